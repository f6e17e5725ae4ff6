"""Bounds, bins and categories found by holders on a real SuperLink, each with its own table and one open schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.runs.directory import load_model
from fedsyn.table.schema import Schema
from support.loopback import Federation, federation_of

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]

SCHEMA = """\
columns:
  cost: {kind: decimal, places: 2, lower: 0, upper: private, bins: {private: 8}}
  ward: {kind: categorical, categories: {private: {most: 8, length: 2}}}
  sex: {kind: categorical, categories: [f, m]}
"""
CONFIG = """\
mechanism: {name: augflaim, rounds: 1}
data: {source: costs, schema: schema.yaml}
federation: {clients: 3}
privacy: {epsilon: 8.0, delta: 1.0e-5, schema_share: 0.3}
aggregation: {protocol: secagg, noise: distributed}
workload: {degree: 2, size: null}
evaluation: []
runtime: {engine: deployment, superlink: loopback}
"""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with federation_of(tmp_path, SCHEMA, CONFIG) as started:
        yield started


def test_three_holders_find_what_is_private_in_their_schema(federation: Federation) -> None:
    """Every message meets a client in a fresh process: what was found has to survive in its node's state."""
    for k in range(3):
        rng = np.random.default_rng(k)
        costs = rng.lognormal(5, 1, 1200).round(2)
        table = pd.DataFrame(
            {"cost": costs, "ward": rng.choice(["A1", "B", "rare"], 1200, p=[0.6, 0.399, 0.001]), "sex": "f"}
        )
        table.to_csv(federation.folder / f"{k}.csv", index=False)
        files = (federation.folder / f"{k}.csv", federation.folder / "schema.yaml")
        federation.add_node(f"holder{k}", *files, partition=k)
    out = federation.folder / "out"
    done = federation.fedsyn_run(federation.folder / "run.yaml", out, timeout=500)
    assert done.returncode == 0, done.stderr + federation.log("superlink") + federation.log("holder0")
    closed = Schema.load(out / "schema.yaml")
    assert not closed.open
    assert closed.columns["ward"].values == ("A1", "B", "other")  # type: ignore[union-attr]
    edges = closed.columns["cost"].edges / 100  # type: ignore[union-attr]
    assert edges[0] == 0 and 300 < edges[-1] < 10_000 and 3 <= len(edges) <= 9
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] is True and ledger["epsilon"] <= 8.0
    names = [entry["name"] for entry in ledger["releases"]]
    assert names[:6] == ["sizes", "find-ranges", "find-bins", *["find-categories"] * 3]
    assert load_model(out / "model.npz").domain == closed.domain
    synthetic = pd.read_csv(out / "synthetic.csv")
    assert set(synthetic["ward"]) <= {"A1", "B", "other"} and synthetic["cost"].between(0, edges[-1]).all()
