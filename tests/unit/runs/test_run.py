"""Runs from Python: a DataFrame in place of a source, and what a failed preparation leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, DataError, SchemaError
from fedsyn.loading import parse_config
from fedsyn.runs.directory import load_metrics, load_model
from fedsyn.runs.engines import run
from fedsyn.runs.prepare import split_rows, split_tables
from fedsyn.runs.report import write_full_report
from fedsyn.table.data import partition
from fedsyn.table.schema import Schema

SCHEMA = {
    "columns": {
        "age": {"kind": "numeric", "lower": 0, "upper": 100, "bins": 5, "dtype": "integer"},
        "ward": {"kind": "categorical", "categories": ["a", "b"]},
    },
    "approved": True,
}


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.integers(0, 100, rows), "ward": rng.choice(["a", "b"], rows)})


def config(folder: Path, **changes: object) -> RunConfig:
    Schema.from_dict(SCHEMA).save(folder / "schema.yaml")
    document = {
        "mechanism": {"name": "augflaim", "rounds": 1},
        "data": {"source": "my rows", "schema": str(folder / "schema.yaml")},
        "federation": {"clients": 3},
        "privacy": {"epsilon": 5.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": None},
        "evaluation": "workload_error",
    }
    return parse_config(document | changes)


def test_a_dataframe_takes_the_place_of_the_source(tmp_path: Path) -> None:
    metrics = run(config(tmp_path), tmp_path / "out", table=table())
    assert 0 <= metrics["workload_error"] <= 2
    synthetic = pd.read_csv(tmp_path / "out" / "synthetic.csv")
    assert list(synthetic.columns) == ["age", "ward"]
    assert len(synthetic) == 60  # a table for release is made from all rows
    assert synthetic["age"].between(0, 100).all()
    assert load_model(tmp_path / "out" / "model.npz").domain.attributes == ("age", "ward")


def test_a_table_without_a_column_of_the_schema_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises((DataError, SchemaError), match="ward"):
        run(config(tmp_path), tmp_path / "out", table=table().drop(columns="ward"))
    assert not (tmp_path / "out").exists()


def test_a_failed_preparation_keeps_an_earlier_run(tmp_path: Path) -> None:
    run(config(tmp_path), tmp_path / "out", table=table())
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    with pytest.raises(DataError, match="no rows"):
        run(config(tmp_path), tmp_path / "out", table=table()[:0])
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_metric_that_is_not_finite_is_null_in_the_file_and_infinite_in_python(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"format": 1, "nll": None, "seconds": 1.5}), encoding="utf-8")
    assert load_metrics(tmp_path) == {"nll": float("inf"), "seconds": 1.5}


def test_the_public_file_of_rounds_holds_nothing_that_was_measured(tmp_path: Path) -> None:
    """Keeps apart bytes, which follow exact counts, and times, which follow bytes."""
    run(config(tmp_path), tmp_path / "out", table=table())
    rounds, costs = (lines(tmp_path / "out" / name) for name in ("rounds.jsonl", "measured.jsonl"))
    assert [line["round"] for line in rounds] == [line["round"] for line in costs] == [0, 1]
    assert set(costs[1]) & set(rounds[1]) == {"format", "round"}
    assert {"bytes_up", "bytes_down", "seconds"} <= set(costs[1])
    public = {"round", "cohort", "dropped", "not_joined", "selected", "sigma", "epsilon", "notes"}
    assert set(rounds[1]) == {"format", *public}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_sample_is_split_like_a_table_of_its_own(tmp_path: Path) -> None:
    data = {"source": "my rows", "schema": "schema.yaml", "sample": 0.5, "test_fraction": 0.2}
    seeded = config(tmp_path, data=data, runtime={"seed": 7}).data
    assert seeded.split_seed == 0
    train, test = map(np.flatnonzero, split_rows(seeded, 1000))
    assert (len(train), len(test)) == (400, 100)
    assert len(np.union1d(train, test)) == 500 and max(train.max(), test.max()) > 900
    for runtime in ({"seed": 7}, {}):
        train, test = split_rows(config(tmp_path, data=data | {"sample": 1.0}, runtime=runtime).data, 1000)
        assert (train != test).all()


@pytest.mark.parametrize("block", [1 << 18, 7])
@pytest.mark.parametrize(("sample", "fraction"), [(0.6, 0.3), (1.0, 0.5), (0.4, 0.0)])
def test_without_a_seed_a_row_more_changes_the_part_of_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: float, fraction: float, block: int
) -> None:
    """Neighbours whose other rows have the same coins."""
    monkeypatch.setattr(partition, "_BLOCK", block)
    data = {"source": "my rows", "schema": "schema.yaml", "sample": sample, "test_fraction": fraction}
    node, rng = config(tmp_path, data=data).data, np.random.default_rng(0)
    tosses = [rng.random(41) for share in (sample, fraction) if 0 < share < 1]

    def parts(coins: list[Any]) -> list[Any]:
        streams = [coin for toss in coins for coin in toss]
        monkeypatch.setattr(partition.OsRandom, "random", lambda self, n: np.array([streams.pop(0) for _ in range(n)]))
        found = split_rows(node, len(coins[0]))
        assert not streams
        return list(found)

    whole = parts(tosses)
    assert all(whole[0] <= ~whole[1]) and whole[0].any() and whole[1].any() == (fraction > 0)
    for row in (0, 13, 40):
        less = parts([np.delete(toss, row) for toss in tosses])
        for part, part_less in zip(whole, less, strict=True):
            np.testing.assert_array_equal(np.delete(part, row), part_less)


def test_without_a_seed_the_operating_system_tosses_anew_for_each_run(tmp_path: Path) -> None:
    table(20_000).to_csv(tmp_path / "rows.csv", index=False)
    data = {"source": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "schema.yaml")}
    parsed = config(tmp_path, data=data | {"sample": 0.5, "test_fraction": 0.2})
    first, second = split_tables(parsed), split_tables(parsed)
    assert len(first.train) != 8000 or len(second.train) != 8000
    assert not np.array_equal(first.train[:1000], second.train[:1000])
    for split in (first, second):  # within six standard deviations
        assert abs(len(split.train) - 8000) < 420 and abs(len(split.test) - 2000) < 260
    with pytest.raises(ConfigError, match="leave no row to learn from"):
        split_rows(parsed.data.model_copy(update={"sample": 1e-300}), 5)


def test_rows_that_coins_divided_are_not_measured_again(tmp_path: Path) -> None:
    data = {"source": "my rows", "schema": str(tmp_path / "schema.yaml"), "test_fraction": 0.5}
    run(config(tmp_path, data=data), tmp_path / "out", table=table(), full_page=False)
    table().to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="coins divided them"):
        write_full_report(tmp_path / "out", data=[str(tmp_path / "rows.csv")])


def test_a_run_whose_limits_leave_no_room_says_so_on_its_page_and_in_its_readme(tmp_path: Path) -> None:
    """Names the columns of the rule, which fill the model, before epsilon and more rows."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, 100, 4000)
    whole = {"kind": "numeric", "lower": 0, "upper": 100, "bins": 20, "dtype": "integer"}
    document = {
        "columns": {n: whole if n in ("start", "end") else {**whole, "bins": 10} for n in ("start", "end", "c", "d")},
        "constraints": ["start <= end"],
        "approved": True,
    }
    frame = pd.DataFrame({"start": start, "end": np.minimum(start + rng.integers(0, 20, 4000), 99), "c": start // 2})
    frame["d"] = frame["c"] + rng.integers(0, 10, 4000)
    (tmp_path / "schema.json").write_text(json.dumps(document), encoding="utf-8")
    limited = config(
        tmp_path,
        mechanism={"name": "sketch_aim"},
        data={"source": "my rows", "schema": str(tmp_path / "schema.json")},
        federation={"clients": 1},
        inference={"max_cells": 620},
        runtime={"seed": 1},
    )
    run(limited, tmp_path / "out", table=frame)
    limits = "use fewer bins for start and end, or raise inference.max_message_passing_cost and max_cells"
    predicted = json.loads((tmp_path / "out" / "predicted_quality.json").read_text(encoding="utf-8"))
    assert predicted["limited"] >= 0.2 and predicted["verdict"].endswith(f"Next: {limits}.")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))["quality"]["limits"] == limits
    assert f"Next: {limits}." in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"A larger model would be better: {limits}." in page
