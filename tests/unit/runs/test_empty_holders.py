"""Whole simulated runs in which a holder has no rows: its table is empty, or its share of a split is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn import Synthesizer
from fedsyn.errors import DataError
from fedsyn.loading import parse_config
from fedsyn.registry import METRICS, contract_class, mechanisms
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import split_tables
from fedsyn.table.schema import Schema

CLOSED = """\
columns:
  age: {kind: integer, lower: 18, upper: 89, bins: 6}
  ward: {kind: categorical, categories: [heart, lung, skin], other: false}
  smoker: {kind: boolean}
label: smoker
"""
OPEN = """\
columns:
  age: {kind: integer, bounds: private, bins: {private: 8}}
  ward: {kind: categorical, categories: {private: {length: 5}}}
  smoker: {kind: boolean}
label: smoker
"""


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(18, 90, count), "ward": rng.choice(["heart", "lung", "skin"], count)}
    return pd.DataFrame({**columns, "smoker": rng.random(count) < 0.3})


def document(folder: Path, schema: str = CLOSED, **nodes: Any) -> dict[str, Any]:
    """A run over three files, the last of which has no rows."""
    (folder / "schema.yaml").write_text(schema, encoding="utf-8")
    files = []
    for number, count in enumerate((300, 200, 0)):
        files.append(str(folder / f"{number}.csv"))
        rows(count, number).to_csv(files[-1], index=False)
    return {
        "mechanism": {"name": "sketch_aim"},
        "data": {"source": files, "schema": str(folder / "schema.yaml"), "test_fraction": 0.2},
        "federation": {"clients": 3, "partition": "native"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "workload": {"degree": 2},
        "evaluation": list(METRICS),
        "runtime": {"seed": 1},
    } | nodes


QUICK = ("sketch_aim", "naive_flaim", "fed_naive_bayes", "fed_privsyn", "distaim")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in mechanisms()]
)
def test_a_run_with_an_empty_file_ends_like_any_other(name: str, tmp_path: Path) -> None:
    if contract_class(name).central:
        pytest.skip("has one holder of every row")
    mechanism = {"name": name, **({"rounds": 2} if "rounds" in contract_class(name).Options.model_fields else {})}
    metrics = [metric for metric in METRICS if metric not in ("rmse", "nll")]
    changes: dict[str, Any] = {"evaluation": metrics, "mechanism": mechanism}
    if name == "fhaim":  # scores of squares need a public bound on the rows
        changes["privacy"] = {"epsilon": 8.0, "delta": 1e-5, "client_sizes": "public"}
    out = tmp_path / "out"
    run(parse_config(document(tmp_path, **changes)), out)
    joined = json.loads((out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert joined["cohort"] == [0, 1, 2] and joined["not_joined"] == []
    results = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    assert all(math.isfinite(results[metric]) for metric in metrics)


@pytest.mark.parametrize("held_out", [0.0, 0.5])
def test_a_run_that_asks_its_holders_how_good_it_is(held_out: float, tmp_path: Path) -> None:
    evaluation = {"federated": True, "metrics": [], "held_out": held_out}
    out = tmp_path / "out"
    run(parse_config(document(tmp_path, evaluation=evaluation)), out)
    assert (out / "federated_evaluation.json").is_file()


def test_what_is_private_in_a_schema_is_found_beside_a_holder_without_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(parse_config(document(tmp_path, OPEN, evaluation=[])), out)
    found = Schema.load(out / "schema.yaml")
    assert not found.open and "heart" in found.columns["ward"].values  # type: ignore[union-attr]


def test_tables_in_memory(tmp_path: Path) -> None:
    schema = Schema.loads(CLOSED)
    made = Synthesizer(schema=schema, epsilon=8.0, seed=1).fit([rows(300), rows(0)]).sample(10)
    assert len(made) == 10
    with pytest.raises(DataError, match="all 2 tables have no rows"):
        Synthesizer(schema=schema, epsilon=8.0, seed=1).fit([rows(0), rows(0)])


def test_files_that_are_all_empty_are_refused(tmp_path: Path) -> None:
    config = document(tmp_path)
    for file in config["data"]["source"]:
        rows(0).to_csv(file, index=False)
    with pytest.raises(DataError, match="all 3 tables have no rows"):
        split_tables(parse_config(config))
    config["data"]["source"], config["federation"] = config["data"]["source"][0], {"clients": 3}
    with pytest.raises(DataError, match=r"0\.csv has no rows"):
        split_tables(parse_config(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    ["iid", {"name": "dirichlet", "beta": 0.05, "min_rows": 0}, {"name": "quantity", "alpha": 0.05, "min_rows": 0}],
)
@pytest.mark.parametrize("name", ["augflaim", "distributed_aim"])
def test_a_split_may_leave_clients_without_rows(name: str, partition: Any, tmp_path: Path) -> None:
    rows(40).to_csv(tmp_path / "rows.csv", index=False)
    changes = {
        "mechanism": {"name": name, "rounds": 2} if name == "augflaim" else {"name": name},
        "data": {"source": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "schema.yaml"), "test_fraction": 0.5},
        "federation": {"clients": 30, "partition": partition},
        "evaluation": ["workload_error", "heterogeneity"],
    }
    config = parse_config(document(tmp_path, **changes))
    assert min(map(len, split_tables(config).parts)) == 0
    run(config, tmp_path / "out")
    results = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert all(math.isfinite(results[metric]) for metric in config.evaluation.metrics)
