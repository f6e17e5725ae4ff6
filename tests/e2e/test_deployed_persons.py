"""Holders of persons' rows on a real SuperLink: one file, two files, and a node that refuses to go below persons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from unit.runs.test_whole_persons import hospital, require_persons, schema, two_tables

from fedsyn import yamlio
from fedsyn.ledgers.accounts import open_ledger, summary
from fedsyn.table.schema import Schema
from support.loopback import BIN, Federation, federation_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

PERSON = "one person with all rows at one client, added or removed"
APART = schema(least_rows=0, tables=["patients", "visits"])
CONFIG = """\
mechanism: {name: sketch_aim, rounds: 2}
data: {source: visits, schema: schema.yaml}
federation: {clients: 3, minimum_cohort: 3, connect_timeout: 300}
privacy: {epsilon: 4.0, delta: 1.0e-5, unit: person, client_sizes: private}
aggregation: {protocol: secagg, noise: distributed}
evaluation: {federated: true, share: 0.1}
runtime: {engine: deployment, superlink: loopback}
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with federation_of(tmp_path, yamlio.dumps(APART), CONFIG) as started:
        yield started


def add(federation: Federation, number: int, *, two: bool) -> None:
    """A holder's node, whose policy is for persons, with 400 people of its own."""
    folder, table = federation.folder, hospital(400, none=0.3, seed=number)
    files = {"visits": table} if not two else two_tables(table)
    for name, each in files.items():
        each.to_csv(folder / f"{name}{number}.csv", index=False)
    apart = {"persons": str(folder / f"patients{number}.csv")} if two else {}
    data, own = folder / f"visits{number}.csv", folder / "schema.yaml"
    federation.add_node(f"holder{number}", data, own, policy={"unit": "person"}, partition=number, **apart)


def read(out: Path, name: str) -> Any:
    return json.loads((out / name).read_text(encoding="utf-8"))


def test_persons_of_one_file_and_of_two_are_protected_together(federation: Federation) -> None:
    """Nodes with one file and with two give whole persons, and each says whom it protects."""
    add(federation, 0, two=True)
    add(federation, 1, two=False)
    add(federation, 2, two=True)
    out = federation.folder / "out"
    done = federation.fedsyn_run(federation.folder / "run.yaml", out, timeout=1200)
    logs = "".join(federation.log(name) for name in ("superlink", "holder0", "holder1", "holder2"))
    assert done.returncode == 0, done.stderr + logs
    patients, visits = (pd.read_csv(out / f"synthetic_{name}.csv") for name in ("patients", "visits"))
    assert patients["patient"].is_unique and set(visits["patient"]) < set(patients["patient"])
    require_persons(visits.merge(patients, on="patient"))
    assert len(patients) == pytest.approx(1200, rel=0.1)
    without = 1 - visits["patient"].nunique() / len(patients)
    assert without == pytest.approx(0.3, abs=0.1)
    # Whom the run protects stands wherever anybody reads of it.
    ledger = read(out, "ledger.json")
    assert ledger["unit"] == ledger["statement"]["unit"] == PERSON and ledger["holders_per_person"] == 1
    assert "all rows of one person are added or removed" in ledger["adjacency"] and ledger["against"]["holders"] == 3
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "one person" in readme and "people, up to 12 rows each" in readme and "one row" not in readme
    assert "one person" in (out / "report_public.html").read_text(encoding="utf-8")
    joined, *rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert joined["cohort"] == [0, 1, 2] and not any(line["dropped"] for line in rounds)
    for number in range(3):
        state = federation.folder / f"holder{number}-node" / "state" / "ledger.jsonl"
        facts = summary(open_ledger(state))
        assert facts["unit"] == PERSON and facts["runs"][0]["unit"] == PERSON
        charged = [json.loads(line) for line in state.read_text().splitlines()]
        releases = [line["release"] for line in charged if line["entry"] == "charge"]
        assert sorted((r["name"], r["round"]) for r in releases) == sorted(
            (r["name"], r["round"]) for r in ledger["releases"]
        )
    # Holders said how far one record of each person is from the table, and no row of a person more.
    said = read(out, "federated_evaluation.json")
    assert said["holders"] == 3 and said["of"] == "people"
    names = {name.removeprefix("column_score: ") for name in said["figures"] if name.startswith("column_score: ")}
    assert names == set(Schema.from_dict(APART).records.columns)
    (paid,) = [entry for entry in ledger["releases"] if entry["name"] == "evaluate"]
    assert paid["rho"] == pytest.approx(0.1 * ledger["rho"], rel=1e-2)
    assert not [word for word in ("x1,", "x17", "x399") if word in logs + done.stderr + done.stdout]


def test_nodes_for_persons_refuse_single_rows_before_a_charge(federation: Federation) -> None:
    """Said aloud, the run begins; no node of a policy for persons takes part, and their ledgers stay empty."""
    for number in range(3):
        add(federation, number, two=number == 0)
    file = federation.folder / "run.yaml"
    unsaid = CONFIG.replace("unit: person, ", "")
    file.write_text(unsaid, encoding="utf-8")
    refused = federation.fedsyn_run(file, federation.folder / "unsaid")
    assert refused.returncode == 2 and "a person may have several rows" in " ".join(refused.stderr.split())
    out = federation.folder / "out"
    done = federation.fedsyn_run(file, out, "privacy.unit=row", timeout=600)
    assert done.returncode == 1
    said = " ".join((done.stderr + done.stdout).split())
    assert "takes part in runs that protect persons: set privacy.unit: person" in said, said
    for number in range(3):
        state = federation.folder / f"holder{number}-node" / "state" / "ledger.jsonl"
        assert [json.loads(line)["entry"] for line in state.read_text().splitlines()] == ["open"]
        shown = subprocess.run(
            [str(BIN / "fedsyn"), "ledger", "show", str(state.parent.parent / "node.yaml")],
            capture_output=True,
            text=True,
            check=True,
            env=federation.environment,
        )
        assert "Unit: one row" in shown.stdout  # nothing has run
    assert np.all([not (out / name).exists() for name in ("synthetic.csv", "model.npz")])
