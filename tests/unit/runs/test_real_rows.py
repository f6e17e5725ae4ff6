"""Real rows as their files have them, for whoever compares: no schema reads them, and a choice keeps their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import DataError
from fedsyn.runs.prepare import encoded_table
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import raw_rows
from fedsyn.table.schema import Schema

SCHEMA = """
columns:
  answer: {kind: boolean}
  age: {kind: integer, lower: 0, upper: 99}
"""


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"age": np.arange(rows) % 90, "answer": rng.choice(["yes", "no", "perhaps"], rows), "row": range(rows)}
    )


def config(data: dict[str, object]) -> RunConfig:
    several = {"clients": 2, "partition": {"name": "native"}} if "holders" in data else {}
    rest = {"mechanism": {"name": "mst"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
    return RunConfig(data=data, federation=several, **rest)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_some_rows_of_a_file_stand_in_their_order_each_as_likely(tmp_path: Path, name: str) -> None:
    frame = table(300_000)
    frame.to_csv(tmp_path / name, index=False) if name.endswith("csv") else frame.to_parquet(
        tmp_path / name, row_group_size=50_000
    )
    read = raw_rows(tmp_path / name, None, ["row", "answer", "absent"], most=20_000, rng=np.random.default_rng(1))
    assert list(read.columns) == ["row", "answer"] and len(read) == 20_000
    places = read["row"].astype(np.int64).to_numpy()
    assert (np.diff(places) > 0).all() and read["answer"].tolist() == frame["answer"][places].tolist()
    assert np.histogram(places, 10)[0] == pytest.approx(2_000, abs=250)  # 5.6 standard deviations
    wanted = np.arange(300_000) % 1_000 == 7
    chosen = raw_rows(tmp_path / name, None, ["row"], wanted=wanted)
    assert chosen["row"].astype(np.int64).tolist() == np.flatnonzero(wanted).tolist()
    with pytest.raises(DataError, match="none of the columns"):
        raw_rows(tmp_path / name, None, ["absent"])
    with pytest.raises(DataError, match="replaced while it was read"):
        raw_rows(tmp_path / name, None, ["row"], wanted=wanted[1:])


def test_text_stays_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("code;cost\n01067;1,50\n;NA\nTrue;1e3\n", encoding="utf-8")
    read = raw_rows(tmp_path / "rows.csv", FileOptions(separator=";"), None)
    assert read["code"].tolist() == ["01067", "", "True"] and read["cost"].tolist() == ["1,50", "NA", "1e3"]


def test_a_run_knows_its_rows_those_held_out_and_those_that_its_schema_could_not_take(tmp_path: Path) -> None:
    """Two holders' files; a third of the rows answers something that the schema does not list, and is left out."""
    frames = [table(300, seed) for seed in (1, 2)]
    files = [tmp_path / f"holder{at}.csv" for at in range(2)]
    for frame, file in zip(frames, files, strict=True):
        frame.to_csv(file, index=False)
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    sources = {"source": str(files[0]), "holders": [str(file) for file in files]}
    data = {**sources, "schema": str(tmp_path / "schema.yaml"), "test_fraction": 0.25}
    split = encoded_table(config(data).data)
    train, test = split.real.read(["age", "answer"], 10_000, np.random.default_rng(0))
    assert test is not None and len(test) == len(split.test) and set(test["answer"]) == {"yes", "no"}
    left_out = sum(int((frame["answer"] == "perhaps").sum()) for frame in frames)
    assert len(train) == len(split.train) + left_out == 600 - len(test)
    assert (train["answer"] == "perhaps").sum() == left_out > 150
    few, _ = split.real.read(["age"], 50, np.random.default_rng(0))
    assert len(few) == 50 and list(few.columns) == ["age"]
    some = encoded_table(config({**data, "sample": 0.5}).data)
    sampled, _ = some.real.read(["answer"], 10_000, np.random.default_rng(0))
    assert len(sampled) == len(some.train) and "perhaps" not in set(sampled["answer"])


def test_rows_in_memory_are_the_caller_s_own() -> None:
    frame = table(200)[lambda rows: rows["answer"] != "perhaps"].reset_index(drop=True)
    split = encoded_table(config({"source": "table"}).data, frame, Schema.loads(SCHEMA))
    train, test = split.real.read(["answer"], 10_000, np.random.default_rng(0))
    assert test is None and train["answer"].tolist() == frame["answer"].tolist()
