"""The command line: bad input is one message and exit code 2, a failed run exit code 1; the reader's own CSV."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn import __version__
from support.bad_inputs import CONFIG
from support.typed_commands import Fedsyn, Result, entry_point

SECRET = "4711-diagnosis"  # stands for a value in the reader's table: no message may quote it

SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
label: smokes
"""


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    """The command's own entry point, in this process."""
    return entry_point(capsys, monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: rows, schema and configuration."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "age": rng.integers(18, 90, 60),
            "job": rng.choice(["clerk", "driver", "nurse"], 60),
            "smokes": rng.choice(["no", "yes"], 60),
        }
    )
    rows.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_one_message(result: Result, *parts: str, code: int = 2) -> None:
    """Exit code and exactly one line that names what is wrong, without traceback and without a value of the data."""
    assert result.code == code, result
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: " if code == 2 else "failed: ")
    assert "Traceback" not in result.err and result.out == ""
    for part in parts:
        assert part in lines[0]
    assert SECRET not in result.err


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


# Bad configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("federation.client=3", ["unknown key 'federation.client'", "did you mean 'clients'"]),
        ("epsilom=1", ["unknown key 'epsilom'", "did you mean 'epsilon'"]),
        ("data.source=/dev/null", ["/dev/null is a pipe or a device, not a file"]),
        ("privacy.epsilon=0", ["privacy.epsilon", "greater than 0"]),
        ("privacy.epsilon=-1", ["privacy.epsilon", "greater than 0"]),
        ("mechanism.name=augflame", ["unknown mechanism 'augflame'", "did you mean 'augflaim'"]),
        ("federation.partition=idd", ["idd", "did you mean 'iid'"]),
        ("evaluation=[workload_eror]", ["workload_eror", "did you mean 'workload_error'"]),
        ("data.source=adlut", ["adlut", "did you mean 'adult'"]),
        ("data.source=absent.csv", ["absent.csv"]),
        ("data.schema=absent.yaml", ["absent.yaml"]),
        ("data.label=smoke", ["smoke", "did you mean 'smokes'"]),
        ("workload.cliques=[[age, jbo]]", ["jbo", "did you mean 'job'"]),
        ("privacy", ["KEY.KEY=VALUE"]),
        ("runtime.engine=deployment", ["evaluation"]),
    ],
)
def test_a_bad_configuration(project: Path, fedsyn: Fedsyn, assignment: str, parts: list[str]) -> None:
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out", "--set", assignment), *parts)
    assert not (project / "out" / "synthetic.csv").exists()


def test_a_missing_configuration_file(fedsyn: Fedsyn, project: Path) -> None:
    assert_one_message(fedsyn("run", "absent.yaml"), "absent.yaml")
    assert not (project / "runs").exists()


def test_a_deployment_without_a_superlink(fedsyn: Fedsyn, project: Path) -> None:
    sets = ["--set", "runtime.engine=deployment", "--set", "evaluation=[]"]
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out", *sets), "runtime.superlink")


def test_an_output_folder_that_is_a_file(fedsyn: Fedsyn, project: Path) -> None:
    assert_one_message(fedsyn("run", "run.yaml", "--out", "rows.csv"), "rows.csv")


# Bad data -------------------------------------------------------------------------------------------------------------


def test_a_column_missing_from_the_csv(fedsyn: Fedsyn, project: Path) -> None:
    replace(project / "rows.csv", "age,job,smokes", "age,jobs,smokes")
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "rows.csv", "'job'", "did you mean 'jobs'")


def test_text_in_a_numeric_column(fedsyn: Fedsyn, project: Path) -> None:
    with (project / "rows.csv").open("a", encoding="utf-8") as file:
        file.write(f"{SECRET},clerk,no\n")
    result = fedsyn("run", "run.yaml", "--out", "out")
    assert result.code == 0 and "age: in 1 of 61 rows (1.64%) there is something other than" in result.err
    assert "left out: 1 of 61 rows (1.64%), which count nowhere" in result.err
    for file in (project / "out").iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_an_empty_file(fedsyn: Fedsyn, project: Path) -> None:
    (project / "rows.csv").write_text("", encoding="utf-8")
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "rows.csv is empty")


def test_a_file_without_rows(fedsyn: Fedsyn, project: Path) -> None:
    (project / "rows.csv").write_text("age,job,smokes\n", encoding="utf-8")
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "rows.csv has no rows")


def test_a_ragged_line_is_left_out_and_stands_in_no_file(fedsyn: Fedsyn, project: Path) -> None:
    """It is said where the file is read."""
    with (project / "rows.csv").open("a", encoding="utf-8") as file:
        file.write(f"30,clerk,no,{SECRET},{SECRET}\n")
    result = fedsyn("run", "run.yaml", "--out", "out")
    assert result.code == 0 and "rows.csv: 1 line, line 62 first, is left out, with more cells" in result.err
    assert SECRET not in result.out + result.err
    texts = [path.read_text(errors="replace") for path in (project / "out").rglob("*.*") if path.is_file()]
    assert len(texts) > 5 and not any("line 62" in text or SECRET in text for text in texts)


@pytest.mark.slow
def test_more_clients_than_rows(fedsyn: Fedsyn, project: Path) -> None:
    """Some clients then have none, and take part with zeros."""
    assert fedsyn("run", "run.yaml", "--out", "out", "--set", "federation.clients=500").code == 0


def test_an_unapproved_schema(fedsyn: Fedsyn, project: Path) -> None:
    assert fedsyn("schema", "draft", "rows.csv", "--out", "draft.yaml").code == 0
    result = fedsyn("run", "run.yaml", "--out", "out", "--set", f"data.schema={project / 'draft.yaml'}")
    assert_one_message(result, "not approved", "age", "job", "smokes", "approved: true")


def test_a_malformed_schema(fedsyn: Fedsyn, project: Path) -> None:
    replace(project / "schema.yaml", "categories: [clerk", "categorys: [clerk")
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "categorys", "did you mean 'categories'")


def test_a_file_without_a_schema(fedsyn: Fedsyn, project: Path) -> None:
    replace(project / "run.yaml", ", schema: schema.yaml", "")
    (project / "schema.yaml").unlink()
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "schema")


def test_drafting_a_schema_of_nothing(fedsyn: Fedsyn, project: Path) -> None:
    assert_one_message(fedsyn("schema", "draft", "absent.csv"), "absent.csv")
    assert_one_message(fedsyn("schema", "draft", "rows.csv", "--label", "smoke"), "did you mean 'smokes'")
    assert_one_message(fedsyn("schema", "draft", "rows.csv", "--out", "no/such/folder.yaml"), "no/such")


def test_a_category_outside_the_schema_is_no_error(fedsyn: Fedsyn, project: Path) -> None:
    with (project / "rows.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"30,{SECRET},no\n" for _ in range(200))
    result = fedsyn("run", "run.yaml", "--out", "out", "--set", "privacy.epsilon=100")
    heard = "job: in 200 of 260 rows (76.9%) the schema does not list the value: counted as 'other'"
    assert result.code == 0 and result.err == f"warning: {heard}\n"
    synthetic = pd.read_csv(project / "out" / "synthetic.csv")
    assert set(synthetic["job"]) <= {"clerk", "driver", "nurse", "other"}
    assert (synthetic["job"] == "other").sum() > 100
    beside_real_rows = {"report.html", "comparison.json"}  # not for publication; they name words of many real rows
    for file in (project / "out").iterdir():
        assert SECRET.encode() not in file.read_bytes() or file.name in beside_real_rows


# Failed runs ----------------------------------------------------------------------------------------------------------


def test_a_failed_run_exits_with_1(fedsyn: Fedsyn, project: Path) -> None:
    result = fedsyn("run", "run.yaml", "--out", "out", "--set", "federation.timeout=1.0e-9")
    assert_one_message(result, "only 0 of 3 clients joined", code=1)
    assert not (project / "out" / "synthetic.csv").exists()
    assert not [path for path in (project / "out").iterdir() if path.name.startswith(".")]


def test_a_failed_run_leaves_nothing_of_an_earlier_one(fedsyn: Fedsyn, project: Path) -> None:
    assert fedsyn("run", "run.yaml", "--out", "out").code == 0
    assert (project / "out" / "synthetic.csv").exists()
    assert_one_message(fedsyn("run", "run.yaml", "--out", "out"), "out holds the result of an earlier run", "--force")
    assert (project / "out" / "synthetic.csv").exists()
    assert fedsyn("run", "run.yaml", "--out", "out", "--set", "federation.timeout=1.0e-9", "--force").code == 1
    left = {path.name for path in (project / "out").iterdir()}
    assert not left & {"synthetic.csv", "model.npz", "metrics.json", "report.html"}


# The reader's own CSV -------------------------------------------------------------------------------------------------

RUN_FILES = {
    "config.yaml",
    "ledger.json",
    "measured.jsonl",
    "metrics.json",
    "measurements.npz",
    "model.npz",
    "README.md",
    "comparison.json",
    "predicted_quality.json",
    "report.html",
    "rounds.jsonl",
    "schema.yaml",
    "synthetic.csv",
}


@pytest.mark.slow
@pytest.mark.thorough
def test_from_a_csv_to_a_synthetic_table_in_an_empty_folder(tmp_path: Path) -> None:
    """The installed command, as its user types it: draft a schema, look at it, approve it, run."""
    rng = np.random.default_rng(1)
    columns = {
        "Höhe (cm)": rng.normal(170, 10, 90).round(1),
        "pack years": rng.integers(0, 40, 90),
        "ward": np.repeat(["A", "B 2", "intensive"], 30),
    }
    pd.DataFrame(columns).to_csv(tmp_path / "mine.csv", index=False)
    environment = os.environ | {"COLUMNS": "200"}

    def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedsyn.front.cli", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    drafted = typed("schema", "draft", "mine.csv", "--bins", "5", "--label", "ward", "--out", "schema.yaml")
    assert drafted.returncode == 0 and "fedsyn schema review schema.yaml" in drafted.stdout
    text = (tmp_path / "schema.yaml").read_text(encoding="utf-8")
    assert "drafted" in text and "approved: false" in text

    (tmp_path / "run.yaml").write_text(CONFIG.replace("rows.csv", "mine.csv"), encoding="utf-8")
    refused = typed("run", "run.yaml", "--out", "out")
    assert refused.returncode == 2 and "not approved" in refused.stderr and "Traceback" not in refused.stderr

    (tmp_path / "schema.yaml").write_text(text.replace("approved: false", "approved: true"), encoding="utf-8")
    done = typed("run", "run.yaml", "--out", "out")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "synthetic table: out/synthetic.csv" in done.stdout and "do not release" not in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == RUN_FILES
    synthetic = pd.read_csv(tmp_path / "out" / "synthetic.csv")
    assert list(synthetic.columns) == list(columns) and len(synthetic) > 0
    assert synthetic["pack years"].dtype == np.int64 and synthetic["Höhe (cm)"].dtype == np.float64
    assert set(synthetic["ward"]) <= {"A", "B 2", "intensive", "other"}
    ledger = json.loads((tmp_path / "out" / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] is True and 0 < ledger["epsilon"] <= 4.0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert {"workload_error", "seconds", "peak_mb", "client_mb_up", "client_mb_down"} <= set(metrics)


def test_a_seeded_run_says_that_its_table_is_not_private(fedsyn: Fedsyn, project: Path) -> None:
    result = fedsyn("run", "run.yaml", "--out", "out", "--set", "runtime.seed=1")
    assert result.code == 0 and "do not release" in result.out and "not private: seeded noise" in result.out
    ledger = json.loads((project / "out" / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] is False and "not private: seeded noise" in ledger["not_private_because"]


def test_a_run_without_out_makes_a_new_folder_each_time(fedsyn: Fedsyn, project: Path) -> None:
    for _ in range(2):
        assert fedsyn("run", "run.yaml").code == 0
    made = sorted((project / "runs").iterdir())
    assert len(made) == 2 and all(path.name.startswith("augflaim-rows-") for path in made)


def test_the_resolved_configuration_runs_again(fedsyn: Fedsyn, project: Path) -> None:
    assert fedsyn("run", "run.yaml", "--out", "first", "--set", "runtime.seed=2").code == 0
    assert fedsyn("run", "first/config.yaml", "--out", "second").code == 0
    first, second = (project / name / "synthetic.csv" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_a_run_goes_again_and_is_reported_on_from_any_folder(
    fedsyn: Fedsyn, project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the table was named by --set, relative to the folder in which it was typed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (project / "configs").mkdir()
    (project / "run.yaml").rename(project / "configs" / "run.yaml")
    sets = ["--set", "data.source=rows.csv", "--set", "data.schema=schema.yaml", "--set", "runtime.seed=2"]
    assert fedsyn("run", "configs/run.yaml", "--out", "first", *sets).code == 0
    monkeypatch.chdir(elsewhere)
    assert fedsyn("run", project / "first" / "config.yaml", "--out", "second").code == 0
    assert (elsewhere / "second" / "synthetic.csv").read_bytes() == (project / "first" / "synthetic.csv").read_bytes()
    assert fedsyn("report", project / "first").code == 0
    page = (project / "first" / "report.html").read_text(encoding="utf-8")
    assert "not for publication" in page and 'class="ticks"' in page and "not at hand" not in page


@pytest.mark.parametrize(("key", "name"), [("source", "rows.csv"), ("schema", "schema.yaml")])
def test_a_file_that_is_not_there_is_named_with_its_place_and_the_other_one(
    fedsyn: Fedsyn, project: Path, key: str, name: str
) -> None:
    (project / "configs").mkdir()
    (project / "run.yaml").rename(project / "configs" / "run.yaml")
    other = {"source": "data.schema=schema.yaml", "schema": "data.source=rows.csv"}[key]
    result = fedsyn("run", "configs/run.yaml", "--out", "out", "--set", other)
    assert_one_message(result, f"data.{key}: no such file: {project / 'configs' / name}", f"current one ({project})")
    (project / name).rename(project / "configs" / f"x{name}")
    result = fedsyn("partition", "configs/run.yaml", "--set", other)
    assert_one_message(result, f"did you mean 'x{name}'")


# The other commands ---------------------------------------------------------------------------------------------------


def test_mechanisms_are_listed(fedsyn: Fedsyn) -> None:
    result = fedsyn("mechanisms")
    assert result.code == 0
    for name in ("aim", "augflaim"):
        assert re.search(rf"\b{name}\b", result.out)


def test_datasets_are_listed(fedsyn: Fedsyn) -> None:
    result = fedsyn("datasets")
    assert result.code == 0
    names = "adult adult_flaim magic marketing intrusion covtype credit census abalone obesity insurance shoppers"
    for name in [*names.split(), "breast_cancer", "compas", "diabetes", "synthfs"]:
        assert re.search(rf"\b{name}\b", result.out), name


def test_a_partition_is_described(fedsyn: Fedsyn, project: Path) -> None:
    result = fedsyn("partition", "run.yaml", "--set", "federation.partition=quantity")
    assert result.code == 0 and result.err == ""
    assert re.search(r"clients\D+3\b", result.out) and re.search(r"rows\D+60\b", result.out)


def test_a_partition_of_bad_input(fedsyn: Fedsyn, project: Path) -> None:
    assert_one_message(fedsyn("partition", "run.yaml", "--set", "federation.clients=0"), "federation.clients")


def test_a_draft_goes_to_standard_output(fedsyn: Fedsyn, project: Path) -> None:
    result = fedsyn("schema", "draft", "rows.csv")
    assert result.code == 0 and "columns:" in result.out and "drafted" in result.out


def test_the_version_is_shown(fedsyn: Fedsyn) -> None:
    result = fedsyn("--version")
    assert result.code == 0 and result.out.strip() == __version__


@pytest.mark.parametrize("arguments", [["run"], ["rnu"], ["run", "x.yaml", "--sett", "a=b"], ["schema", "draft"]])
def test_a_wrong_command_line_exits_with_2(fedsyn: Fedsyn, arguments: list[str]) -> None:
    result = fedsyn(*arguments)
    assert result.code == 2 and "Traceback" not in result.err
