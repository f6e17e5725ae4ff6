"""The tutorials, followed as they stand: their files, their commands, their Python, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block, in order; what needs several machines is left to `test_deploy_docs`."""
    text = page.read_text(encoding="utf-8").partition("\n## For real")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def follow(page: str, folder: Path, files: list[str]) -> str:
    """Does what a page says in a folder; YAML blocks become `files`, one after the other. What was printed."""
    printed, names = [], iter(files)
    for language, block in blocks(TUTORIALS / page):
        if language == "yaml":
            name = next(names, None)
            if name is None:
                break
            (folder / name).write_text(block, encoding="utf-8")
        elif language == "python":
            printed.append(_call([sys.executable, "-c", block], folder))
        else:
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                assert words[0] == "fedsyn"
                printed.append(_call([sys.executable, "-m", "fedsyn.front.cli", *words[1:]], folder))
    assert next(names, None) is None
    return "\n".join(printed)


def _call(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_from_a_csv_to_a_release(tmp_path: Path) -> None:
    printed = follow("csv_to_release.md", tmp_path, ["schema.yaml"])
    assert "may be released" in printed and "nothing needs approval" in printed

    real = pd.read_csv(tmp_path / "patients.csv", sep=";", encoding="latin-1", dtype=str)
    how: dict[str, Any] = {"sep": ";", "encoding": "cp1252"}  # as the table that it was made from
    rows = pd.read_csv(tmp_path / "out" / "synthetic.csv", dtype=str, keep_default_na=False, **how)
    assert list(rows) == [name for name in real if name != "name"]
    assert list(rows["patient_id"]) == [f"P{number:06d}" for number in range(1, len(rows) + 1)]  # made afresh
    assert set(rows["postcode"]) <= {"01067", "01069", "53113", "80331", "other"}
    assert rows["cost"].str.fullmatch(r"\d{1,3}(,\d{3})*\.\d\d").all()
    stay = pd.to_datetime(rows["discharged"]) - pd.to_datetime(rows["admitted"])
    assert (stay.dt.days == rows["nights"].astype(int)).all() and "rows break it" not in printed
    assert ((rows["ward"] == "children") == (rows["building"] == "North")).all()
    assert rows.loc[rows["ward"] == "children", "age"].astype(int).max() <= 17
    children = pd.read_csv(tmp_path / "children.csv", **how)
    assert len(children) == 500 and set(children["ward"]) == {"children"}


@pytest.mark.slow
@pytest.mark.thorough
def test_patients_and_visits(tmp_path: Path) -> None:
    printed = " ".join(follow("visits.md", tmp_path, ["schema.yaml"]).split())
    page = " ".join((TUTORIALS / "visits.md").read_text(encoding="utf-8").split())
    for said in re.findall(r"says: \*(.+?)\*", page):
        assert said in printed
    for held in ("discharged = admitted + nights", "discharged <= next.admitted"):
        assert f"{held}. " in printed.partition("still to approve")[0]
    assert (
        "a person has 0 to 20 rows, in the order of 'admitted'; 'sex' and 'born' are the same in all of them" in printed
    )
    assert "epsilon 1 at delta 1e-06, for one person" in printed and printed.count("nothing needs approval") == 2
    assert "for one row" not in printed.partition("more people:")[2].partition("'patient_id'")[0]
    assert "rows break it" not in printed

    folder = tmp_path / "out"
    made = {name: pd.read_csv(folder / f"synthetic_{name}.csv") for name in ("patients", "visits")}
    for name, table in made.items():
        real = pd.read_csv(tmp_path / f"{name}.csv")
        assert list(table) == list(real) and len(table) == pytest.approx(len(real), rel=0.25)
    people = made["patients"]["patient_id"]
    assert list(people) == [f"P{number:06d}" for number in range(1, len(people) + 1)]
    assert set(made["visits"]["patient_id"]) < set(people)  # some have none
    visits = made["visits"].groupby("patient_id", sort=False)
    assert visits["admitted"].apply(lambda dates: dates.is_monotonic_increasing).all()
    after = visits["admitted"].shift(-1)
    assert after.notna().sum() > 1000 and (made["visits"]["discharged"] <= after)[after.notna()].all()
    joined = pd.read_csv(folder / "synthetic.csv")
    assert (joined.groupby("patient_id")[["sex", "born"]].nunique() == 1).all(axis=None)
    assert pd.read_csv(tmp_path / "more.csv")["patient_id"].nunique() == 200

    text = (tmp_path / "run.yaml").read_text(encoding="utf-8")
    (tmp_path / "rows.yaml").write_text(text.replace("privacy: {unit: person}", ""), encoding="utf-8")
    command = [sys.executable, "-m", "fedsyn.front.cli", "run", "rows.yaml", "--out", "refused"]
    refused = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "write privacy.unit: person" in refused.stderr, refused.stderr


@pytest.mark.slow
@pytest.mark.thorough
def test_a_consortium_of_three(tmp_path: Path) -> None:
    printed = follow("consortium.md", tmp_path, ["schema.yaml", "run.yaml"])
    assert "config-sha256" in printed and "may be released" in printed
    ledger = json.loads((tmp_path / "simulated" / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] and ledger["assumptions"]["aggregation"] == "secagg"
    assert ledger["assumptions"]["noise"] == "distributed"
    assert len(pd.read_csv(tmp_path / "simulated" / "synthetic.csv")) > 3000


def shown(cell: Any) -> list[str]:
    """Kinds of a cell's outputs; what is printed comes in as many pieces as the machine takes time."""
    return [kind for kind, _ in groupby(output.output_type for output in cell.outputs)]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_notebook_runs() -> None:
    """Every cell, in a kernel of its own; the outputs that are committed are those of the same cells."""
    nbformat = pytest.importorskip("nbformat", reason="running a notebook needs nbclient")
    nbclient = pytest.importorskip("nbclient", reason="running a notebook needs nbclient")
    pytest.importorskip("ipykernel", reason="running a notebook needs ipykernel")
    notebook = nbformat.read(TUTORIALS / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "commit the notebook as it ran, from top to bottom"
    committed = [shown(cell) for cell in cells]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    assert [shown(cell) for cell in cells] == committed
