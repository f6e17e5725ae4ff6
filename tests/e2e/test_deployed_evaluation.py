"""Three holders' nodes are asked how good the table is, and say what their rows say in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.evaluation.federated.intervals import HolderSums
from fedsyn.evaluation.federated.statistics import Entries, vector
from fedsyn.runs.federated_evaluation import question_about
from fedsyn.table.counting.workload import all_kway
from fedsyn.table.data import encode_file
from fedsyn.table.schema import Schema
from support.loopback import Federation, federation_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

SCHEMA = """\
columns:
  age: {kind: integer, lower: 18, upper: 89, bins: 6}
  job: {kind: categorical, categories: [clerk, driver, nurse], other: false}
  smokes: {kind: categorical, categories: ['no', 'yes'], other: false}
label: smokes
"""
CONFIG = """\
mechanism: {name: sketch_aim, rounds: 1}
data: {source: survey, schema: schema.yaml}
federation: {clients: 3, minimum_cohort: 3}
privacy: {epsilon: 450.0, delta: 1.0e-5, client_sizes: public}
workload: {degree: 2, size: null}
evaluation: {federated: true, share: 0.05}
runtime: {engine: deployment, superlink: loopback}
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with federation_of(tmp_path, SCHEMA, CONFIG) as started:
        yield started


def test_three_nodes_say_what_their_rows_say_here(federation: Federation) -> None:
    """At epsilon 450 the noise of the secure sum is below a third of a row, so the figures must agree to 0.2%."""
    schema, holders = Schema.loads(SCHEMA), []
    for k, rows in enumerate((400, 500, 600)):
        rng = np.random.default_rng(rows)
        smokes = np.where(rng.random(rows) < 0.3, "yes", "no")
        job = np.where(smokes == "yes", rng.choice(["clerk", "driver"], rows), rng.choice(["driver", "nurse"], rows))
        data, own = federation.folder / f"holder{k}.csv", federation.folder / f"holder{k}.yaml"
        pd.DataFrame({"age": rng.integers(18, 90, rows), "job": job, "smokes": smokes}).to_csv(data, index=False)
        own.write_text(SCHEMA, encoding="utf-8")
        federation.add_node(f"holder{k}", data, own, partition=k)
        holders.append(encode_file(data, schema))
    out = federation.folder / "out"
    done = federation.fedsyn_run(federation.folder / "run.yaml", out)
    assert done.returncode == 0, done.stderr + federation.log("superlink") + federation.log("holder0")
    facts = json.loads((out / "federated_evaluation.json").read_text(encoding="utf-8"))
    question, notes = question_about(schema, all_kway(schema.domain, 2), encode_file(out / "synthetic.csv", schema))
    assert facts["holders"] == 3 and facts["notes"] == notes == []
    entries, sizes = Entries.of(question, False), [float(len(codes)) for codes in holders]
    total = sum(vector(question, entries, rows, own, sum(sizes)) for rows, own in zip(holders, sizes, strict=True))
    here = HolderSums.of(question, entries, np.asarray(total, float), 1e-9, sum(sizes), 0.0, 3).intervals()
    assert list(facts["figures"]) == list(here)
    for name, figure in facts["figures"].items():
        assert figure["value"] == pytest.approx(here[name].value, abs=2e-3), name
        assert figure["low"] <= here[name].low + 2e-3 and here[name].high - 2e-3 <= figure["high"], name
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    (paid,) = [entry for entry in ledger["releases"] if entry["name"] == "evaluate"]
    assert ledger["private"] and paid["rho"] == pytest.approx(0.05 * ledger["rho"], rel=1e-3)
    assert "What the holders say" in (out / "report_public.html").read_text(encoding="utf-8")
