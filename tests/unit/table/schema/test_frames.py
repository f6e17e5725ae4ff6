"""Tables of other libraries come in by Arrow's C stream, and go out in the library that they came from."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedsyn.errors import DataError
from fedsyn.front.several import table_of
from fedsyn.inference import EmpiricalModel
from fedsyn.randomness import Randomness
from fedsyn.table.schema import Schema
from fedsyn.table.schema.frames import as_frame, in_kind, kind_of


class Stream:
    """What any library gives: a table behind the protocol, and nothing else."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def arrow(rows: int = 40) -> pa.Table:
    """Types that pandas has no plain dtype for, most of them with missing values."""
    return pa.table(
        {
            "visits": pa.array([1, None, 3, 4] * (rows // 4), pa.int64()),
            "small": pa.array([1, 2, 3, 4] * (rows // 4), pa.int8()),
            "ward": pa.array(["a", None, "b", "b"] * (rows // 4), pa.large_string()),
            "sex": pa.array(["f", "m", "f", "m"] * (rows // 4)).dictionary_encode(),
            "smokes": pa.array([True, None, False, False] * (rows // 4)),
            "born": pa.array([dt.date(2024, 1, day) for day in (1, 2, 3, 4)] * (rows // 4)),
            "cost": pa.array([Decimal("1.20"), None, Decimal("3.45"), Decimal(2)] * (rows // 4)),
            "codes": pa.array([[1], [2, 3], None, []] * (rows // 4)),
            "where": pa.array([{"x": 1}, {"x": 2}, None, {"x": 4}] * (rows // 4)),
            "scan": pa.array([b"a", b"b", None, b"d"] * (rows // 4)),
        }
    )


@pytest.mark.parametrize("given", [Stream, lambda table: table, lambda table: table.to_reader()])
def test_a_stream_is_read_like_a_file(given: Any) -> None:
    frame = as_frame(given(arrow()))
    assert str(frame["visits"].dtype) == "Int64" and str(frame["smokes"].dtype) == "boolean"
    drafted = Schema.draft(given(arrow()))
    assert drafted == Schema.draft(frame)
    assert list(drafted.aside) == ["codes", "where", "scan"] and {c.kind for c in drafted.aside.values()} == {"drop"}


def test_every_door_of_a_schema_takes_a_stream() -> None:
    schema = Schema.draft(Stream(arrow())).approve(frame=Stream(arrow()), few=1)
    codes = schema.encode(Stream(arrow()))
    assert np.array_equal(codes, schema.encode(as_frame(arrow())))
    ruled = Schema.from_dict({**schema.to_dict(), "constraints": ["small <= visits"]})
    assert ruled.violations(Stream(arrow())) == ruled.violations(as_frame(arrow())) == {"small <= visits": 0}


def test_the_kind_is_that_of_the_type_and_not_of_the_rows() -> None:
    class Own(pd.DataFrame):
        pass

    frame, table = as_frame(arrow()), arrow()
    assert [kind_of(one) for one in (frame, Own(frame), table, Stream(table), None)] == [
        *["pandas"] * 2,
        *["arrow"] * 2,
        "pandas",
    ]
    assert kind_of([table, Stream(table)]) == "arrow" and kind_of([table, frame]) == "pandas"
    assert in_kind(table, "arrow") is table


@pytest.mark.parametrize("bad", [3, "rows.csv", None, {"a": [1]}, np.ones((2, 2)), Stream])
def test_what_is_no_table_is_named_by_its_type(bad: Any) -> None:
    with pytest.raises(DataError, match=f"Arrow, a DuckDB relation.; found {type(bad).__name__}"):
        as_frame(bad)


def test_a_column_is_no_table() -> None:
    for column in (pa.chunked_array([[4711]]), Stream(pa.chunked_array([[4711]]))):
        with pytest.raises(DataError, match="is not a table") as raised:
            as_frame(column)
        assert "4711" not in str(raised.value)


def test_polars_frames() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(arrow())
    assert kind_of(frame) == "polars"
    kinds = [{n: c.kind for n, c in Schema.draft(one).every_column.items()} for one in (frame, arrow())]
    assert kinds[0] == kinds[1]
    assert isinstance(in_kind(arrow(), "polars"), polars.DataFrame)


def test_a_lazy_frame_is_to_be_collected() -> None:
    with pytest.raises(DataError, match=r"found LazyFrame; collect it first: \.collect\(\)"):
        as_frame(pytest.importorskip("polars").LazyFrame({"a": [1]}))


@pytest.mark.parametrize("rows", [0, 50])
def test_an_enum_of_polars_comes_back_as_one(rows: int) -> None:
    polars = pytest.importorskip("polars")
    kinds = {"triage": polars.Enum(["low", "high", "none"]), "ward": polars.Categorical, "age": polars.Int16}
    frame = polars.DataFrame({"triage": ["high", "low"] * 30, "ward": ["a", "b"] * 30, "age": [3, 4] * 30}, kinds)
    schema = Schema.draft(frame).approve(frame=frame, few=1, public="listed")
    made = table_of(schema, EmpiricalModel(schema.domain, schema.encode(frame)), rows, Randomness(1), "polars")
    assert dict(made.schema) == kinds


def test_duckdb_relations() -> None:
    duckdb = pytest.importorskip("duckdb")
    table = arrow()
    relation = duckdb.connect().from_arrow(table)
    assert kind_of(relation) == "arrow"
    assert as_frame(relation)["visits"].equals(as_frame(table)["visits"])
