"""Schemas of records: their columns, what is impossible in them, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.config import WorkloadNode
from fedsyn.errors import SchemaError
from fedsyn.table.counting.workload import build_workload
from fedsyn.table.data.records import RecordMaker
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.persons import (
    BEFORE,
    COUNT,
    GAP,
    NO_ROW,
    is_along,
    next_name,
    no_row_code,
    places,
    require_records,
)

COLUMNS: dict[str, Any] = {
    "patient": {"kind": "identifier", "make": "sequence"},
    "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
    "born": {"kind": "integer", "lower": 1930, "upper": 2009, "bins": 8},
    "admitted": {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 12},
    "ward": {"kind": "categorical", "categories": ["a", "b", "c"], "other": "rest", "missing": True},
    "cost": {"kind": "numeric", "lower": 0, "upper": 100, "bins": 4, "missing": True, "missing_codes": [-1]},
}


def schema(order: Any = "admitted", least: int = 1, most: int = 9, constraints: Any = ()) -> Schema:
    persons = {"id": "patient", "order": order, "constant": ["sex", "born"], "most_rows": most, "least_rows": least}
    return Schema.from_dict({"columns": COLUMNS, "persons": persons, "constraints": list(constraints)})


def visits(rng: np.random.Generator, persons: int, none: bool = False) -> pd.DataFrame:
    counts = rng.integers(0 if none else 1, 14, persons)
    whose = np.repeat(np.arange(persons), np.maximum(counts, 1))
    rows = len(whose)
    table = pd.DataFrame(
        {
            "patient": [f"p{i}" for i in whose],
            "sex": rng.choice(["f", "m"], persons)[whose],
            "born": rng.integers(1925, 2012, persons)[whose],
            "admitted": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 366, rows), unit="D"),
            "ward": rng.choice(["a", "b", "c", "elsewhere", None], rows),
            "cost": rng.choice([0.0, 12.5, 99.0, -1.0, np.nan], rows),
        }
    )
    table.loc[(counts == 0)[whose], ["admitted", "ward", "cost"]] = None
    return table.sample(frac=1.0, random_state=1).reset_index(drop=True)


def records_of(rows: Schema, table: pd.DataFrame, seed: int = 0) -> np.ndarray:
    maker = RecordMaker(rows, np.random.default_rng(seed))
    Holding(rows, maker).encoded(table)
    return maker.record().codes


def test_a_record_has_the_persons_columns_and_two_rows() -> None:
    records = schema().records
    row = ["admitted", "ward", "cost"]
    assert list(records.columns) == ["sex", "born", COUNT, BEFORE, GAP, *row, *map(next_name, row)]
    assert list(schema(order=False).records.columns) == ["sex", "born", COUNT, *row, *map(next_name, row)]
    assert no_row_code(records.columns["ward"]) == -1  # everybody has a row
    assert no_row_code(records.columns["next ward"]) == 3  # after the listed ones, before "rest" and missing
    assert records.columns["next ward"].size == records.columns["ward"].size + 1
    assert records.columns["next cost"].sides == ("missing", "-1", NO_ROW)
    assert no_row_code(schema(least=0).records.columns["ward"]) == 3
    assert [int(edge) for edge in records.columns[COUNT].edges] == [1, 2, 3, 4, 6, 8, 10]


@pytest.mark.parametrize("order", ["admitted", True, False])
@pytest.mark.parametrize(("least", "most"), [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (0, 9), (1, 9), (2, 9), (9, 9)])
def test_no_record_of_a_table_is_impossible(order: Any, least: int, most: int) -> None:
    """What the schema of records rules out is ruled out by what a record is."""
    rows = schema(order, least, most, ["cost <= born"])
    table = visits(np.random.default_rng(0), 2000, none=least == 0)
    if most == 1:
        table = table.drop_duplicates("patient")
    if most == 2:
        table = table[table.groupby("patient").cumcount() < 2]
    codes = records_of(rows, table)
    assert len(codes) == (table["patient"].value_counts() >= least).sum() > 0
    assert (codes < np.array(rows.records.domain.shape)).all()
    assert not rows.records.domain.violated(codes).any()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ({"kind": "boolean", "texts": ["nein", "ja"], "missing": True}, ["nein", "ja", None]),
        ({"kind": "boolean"}, [False, True]),
        ({"kind": "code", "categories": ["007", "011"], "width": 3, "other": False}, ["007", "011"]),
        ({"kind": "code", "categories": ["I10", "J45"], "leading": 3, "missing": True}, ["I10.0", "J45", None]),
        ({"kind": "categorical", "categories": [1, 2, 3], "missing": True}, [3, 1, None]),
        ({"kind": "categorical", "categories": ["low", "high"], "ordered": True, "other": False}, ["high", "low"]),
        ({"kind": "decimal", "places": 2, "lower": 0, "upper": 10, "bins": 5, "missing": True}, ["1.25", "9.00", None]),
        ({"kind": "datetime", "lower": "2024-01-01", "upper": "2024-12-31", "bins": 4}, ["2024-02-01", "2024-12-01"]),
        ({"kind": "time", "lower": "00:00", "upper": "23:59:59", "bins": 4}, ["01:00", "23:59"]),
        ({"kind": "duration", "lower": "0 days", "upper": "10 days", "bins": 5}, ["1 days", "9 days"]),
    ],
)
@pytest.mark.parametrize("least", [0, 1])
def test_a_column_of_any_kind_may_differ_between_rows(column: dict[str, Any], values: list[Any], least: int) -> None:
    """A record's codes are those of the row, around the one that says that there is none."""
    columns = {"patient": {"kind": "identifier"}, "value": column}
    persons = {"id": "patient", "order": True, "most_rows": 3, "least_rows": least}
    rows = Schema.from_dict({"columns": columns, "persons": persons})
    several = len(values)
    table = pd.DataFrame({"patient": ["a"] * several, "value": pd.Series(values, dtype=object)})
    codes, records = rows.encode(table)[:, 0], rows.records
    names, made = list(records.columns), records_of(rows, table)[0]
    here, after = made[names.index("value")], made[names.index("next value")]
    pairs = {*pairwise(codes.tolist())}
    assert (_as_row(here, records.columns["value"]), _as_row(after, records.columns["next value"])) in pairs
    assert records.columns["next value"].size == rows.columns["value"].size + 1


def _as_row(code: int, column: Any) -> int:
    return int(np.flatnonzero(places(column) == code)[0])


def test_what_cannot_be_in_a_row_cannot_be_in_either_row_of_a_record() -> None:
    rule = {"when": {"ward": "a"}, "then": {"cost": "<= 25"}}
    records = schema(constraints=[rule]).records
    cliques = [set(zero.clique) for zero in records.domain.zeros]
    assert {"ward", "cost"} in cliques
    assert {"next ward", "next cost"} in cliques
    here = next(zero for zero in records.domain.zeros if set(zero.clique) == {"ward", "cost"})
    after = next(zero for zero in records.domain.zeros if set(zero.clique) == {"next ward", "next cost"})
    assert after.cells.sum() == here.cells.sum() > 0  # and "no row" breaks nothing


def test_a_schema_of_records_is_written_and_read() -> None:
    records = schema().records
    again = Schema.loads(records.dumps())
    assert again.to_dict() == records.to_dict()
    assert (again.sha256, again.domain) == (records.sha256, records.domain)
    assert again.domain.zeros == records.domain.zeros
    assert again.rows.to_dict() == schema().to_dict()
    assert records.sha256 != schema().sha256
    assert records.records is records


def test_the_workload_is_of_persons_and_rows() -> None:
    records = schema().records
    cliques = build_workload(WorkloadNode(degree=None), records.domain).cliques
    assert ("sex", "born") in cliques
    assert ("sex", COUNT, "ward") in cliques
    assert ("ward", "next cost") in cliques
    assert not any("sex" in clique and any(name.startswith("next ") for name in clique) for clique in cliques)


@pytest.mark.parametrize(
    ("persons", "sentence"),
    [
        ({"id": "sex", "most_rows": 3}, "'sex' must be of kind identifier"),
        ({"id": "pateint", "most_rows": 3}, "'pateint' is not a column.*patient"),
        ({"id": "patient", "most_rows": 3, "order": "ward"}, "'ward' must hold numbers, dates or times"),
        ({"id": "patient", "most_rows": 3, "order": "born", "constant": ["born"]}, "the same in all rows"),
        ({"id": "patient", "most_rows": 3, "constant": list(COLUMNS)[1:]}, "no column is left"),
        ({"id": "patient"}, "most_rows"),
        ({"id": "patient", "most_rows": 0}, "most_rows"),
        ({"id": "patient", "most_rows": 3, "least_rows": 4}, "persons.least_rows: 4 is more than most_rows, 3"),
    ],
)
def test_persons_that_cannot_be_are_refused(persons: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SchemaError, match=sentence):
        Schema.from_dict({"columns": COLUMNS, "persons": persons})


def test_a_column_that_has_the_name_of_a_records_own_is_refused() -> None:
    columns = {**COLUMNS, "next ward": COLUMNS["ward"]}
    with pytest.raises(SchemaError, match="rename that of the table"):
        Schema.from_dict({"columns": columns, "persons": {"id": "patient", "most_rows": 3}})


def test_records_need_persons_and_public_bins() -> None:
    with pytest.raises(SchemaError, match="does not say whose a row is"):
        require_records(Schema.from_dict({"columns": COLUMNS}))
    private = {**COLUMNS, "cost": {"kind": "numeric", "bounds": "private"}}
    with pytest.raises(SchemaError, match="'cost' has private"):
        require_records(Schema.from_dict({"columns": private, "persons": {"id": "patient", "most_rows": 3}}))


@pytest.mark.parametrize("least", [0, 1])
def test_numbers_of_rows_lie_inside_bins_as_counts_of_records_suggest(least: int) -> None:
    """Also where a record has a code more, of rows that are not there; amounts that fall steeply lie low in a bin."""
    records = schema(least=least).records
    binned = {name: column for name, column in records.columns.items() if isinstance(column, BinnedColumn)}
    counts = {name: np.ones(column.size) for name, column in binned.items()}
    counts["cost"][:4] = counts["born"][:4] = [1000.0, 100.0, 10.0, 1.0]
    shaped, rng = records.shaped(counts).rows, np.random.default_rng(0)
    for name, width in (("cost", 25.0), ("born", 10.0)):
        column = shaped.columns[name]
        assert isinstance(column, BinnedColumn)
        drawn = column.draw(np.zeros(4000, np.intp), rng)[0] - column.edges[0]
        assert drawn.mean() < 0.42 * width  # evenly: half of it, with a standard error of 0.005
    assert shaped.to_dict() == records.rows.to_dict() and shaped.rows is shaped


def test_a_record_s_own_columns_are_told_from_the_table_s() -> None:
    names = [*schema().records.columns]
    after = [next_name(name) for name in ("admitted", "ward", "cost")]
    assert [name for name in names if is_along(name, names)] == [COUNT, BEFORE, GAP, *after]
    assert not is_along("next visit", ["next visit", "ward"])
