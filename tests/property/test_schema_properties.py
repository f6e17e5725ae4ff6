"""Encoding and decoding as laws, on schemas and values that nobody would think of."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsyn.front.testing.schemas import awkward_tables
from fedsyn.table.data import read_table
from fedsyn.table.schema import CategoricalColumn, NumericColumn, Schema
from fedsyn.table.schema.column_base import DropColumn, IdentifierColumn, TextColumn
from fedsyn.table.schema.columns import BooleanColumn, CodeColumn
from fedsyn.table.schema.ordered import (
    DateColumn,
    DatetimeColumn,
    DecimalColumn,
    DurationColumn,
    IntegerColumn,
    TimeColumn,
)
from fedsyn.table.schema.values import written

SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Line ends inside a cell are legal CSV but depend on the writer's platform; lone surrogates are not UTF-8.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
FINITE = st.floats(-1e12, 1e12, allow_nan=False)
INTEGERS = st.integers(-(2**40), 2**40)


def distinct(values):
    return st.lists(values, min_size=1, max_size=6, unique_by=written)


CATEGORICAL = st.builds(
    CategoricalColumn,
    categories=st.one_of(distinct(TEXT), distinct(INTEGERS), distinct(FINITE), st.just([False, True])),
    other=st.sampled_from([None, False]),
    missing=st.booleans(),
)


@st.composite
def numeric(draw):
    missing = draw(st.booleans())
    if draw(st.booleans()):
        lower, upper = sorted((draw(INTEGERS), draw(INTEGERS)))
        bins = draw(st.integers(1, 40))
        return NumericColumn(lower=lower, upper=upper, bins=bins, dtype="integer", missing=missing)
    if draw(st.booleans()):
        edges = sorted(draw(st.lists(FINITE, min_size=2, max_size=6, unique=True)))
        return NumericColumn(bins=tuple(edges), missing=missing)
    lower, upper = sorted((draw(FINITE), draw(FINITE)))
    return NumericColumn(lower=lower, upper=upper, bins=draw(st.integers(1, 40)), missing=missing)


@st.composite
def written_number(draw):
    lower, upper = sorted((draw(st.integers(-(10**9), 10**9)), draw(st.integers(-(10**9), 10**9))))
    mark = draw(st.sampled_from([".", ","]))
    thousands = draw(st.sampled_from([None, " ", "'", "." if mark == "," else ","]))
    affixes = {"prefix": draw(st.sampled_from(["", "€", "$ "])), "suffix": draw(st.sampled_from(["", " %", " EUR"]))}
    given = {"bins": draw(st.integers(1, 40)), "missing": draw(st.booleans()), "mark": mark, "thousands": thousands}
    places = draw(st.integers(0, 4))
    if places == 0:
        return IntegerColumn(lower=lower, upper=upper, **given, **affixes)
    bounds = {"lower": lower / 10**places, "upper": upper / 10**places}
    return DecimalColumn(places=places, **bounds, **given, **affixes)


MOMENTS = st.datetimes(pd.Timestamp("1900-01-01"), pd.Timestamp("2100-12-31"))
STEPS = ("hour", "minute", "second", "millisecond", "microsecond")


@st.composite
def temporal(draw):
    lower, upper = sorted((draw(MOMENTS), draw(MOMENTS)))
    given = {"bins": draw(st.integers(1, 40)), "missing": draw(st.booleans())}
    kind = draw(st.sampled_from(["date", "datetime", "duration", "time"]))
    if kind == "date":
        written = draw(st.sampled_from([None, "%d.%m.%Y", "%Y%m%d"]))
        bounds = {"lower": lower.date().isoformat(), "upper": upper.date().isoformat()}
        return DateColumn(**bounds, format=written, **given)
    step = draw(st.sampled_from(STEPS))
    if kind == "time":
        return TimeColumn(step=step, **given)
    if kind == "duration":
        return DurationColumn(lower="0 days", upper=str(pd.Timedelta(upper - lower)), step=step, **given)
    zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York"]))
    return DatetimeColumn(lower=lower.isoformat(), upper=upper.isoformat(), zone=zone, step=step, **given)


MODELLED = st.one_of(
    CATEGORICAL,
    numeric(),
    written_number(),
    temporal(),
    st.builds(BooleanColumn, texts=st.sampled_from([None, ("nein", "ja")]), missing=st.booleans()),
    st.builds(CodeColumn, categories=st.just(("007", "12", "A1")), missing=st.booleans()),
)
ASIDE = st.sampled_from([DropColumn(), TextColumn(), IdentifierColumn(), IdentifierColumn(make="uuid")])


@st.composite
def schemas(draw):
    modelled = draw(st.dictionaries(TEXT.filter(str.strip), MODELLED, min_size=1, max_size=4))
    aside = draw(st.dictionaries(TEXT.filter(str.strip), ASIDE, max_size=2))
    return Schema(columns={**aside, **modelled})


SCHEMAS = schemas()


def codes_of(schema: Schema, rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((rows, len(schema.columns))) * np.array(schema.domain.shape)).astype(schema.dtype)


@SETTINGS
@given(SCHEMAS, st.integers(0, 30), st.integers(0, 2**31))
def test_encode_undoes_decode_and_numbers_stay_within_their_bounds(schema, rows, seed):
    codes = codes_of(schema, rows, seed)
    frame = schema.decode(codes, np.random.default_rng(seed))
    assert tuple(frame) == schema.order
    assert not {name for name, column in schema.aside.items() if not column.made} & set(frame)
    assert len(frame) == rows
    np.testing.assert_array_equal(schema.encode(frame), codes)
    for name, column in schema.columns.items():
        if isinstance(column, NumericColumn):
            present = frame[name].dropna()
            assert ((present >= column.lower) & (present <= column.upper)).all()


@SETTINGS
@given(SCHEMAS)
def test_every_schema_survives_its_file(schema):
    again = Schema.loads(schema.dumps())
    assert again == schema
    assert again.sha256 == schema.sha256


@settings(SETTINGS, max_examples=30)
@given(SCHEMAS, st.integers(1, 20), st.integers(0, 2**31))
def test_a_table_survives_a_csv_file(schema, rows, seed):
    codes = codes_of(schema, rows, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        schema.decode(codes, np.random.default_rng(seed)).to_csv(path, index=False)
        np.testing.assert_array_equal(schema.encode(read_table(path, schema)), codes)


@pytest.mark.parametrize("table", awkward_tables(), ids=lambda table: table.name)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_awkward_tables_survive_files(table, suffix, tmp_path):
    path = tmp_path / f"table{suffix}"
    if suffix == ".parquet":
        table.frame.to_parquet(path)
    else:
        table.frame.to_csv(path, index=False)
    read = read_table(path, table.schema)
    np.testing.assert_array_equal(table.schema.encode(read), table.encode())
    rng = np.random.default_rng(0)
    again = table.schema.decode(table.encode(), rng)
    assert again.dtypes.equals(table.frame.dtypes)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXT,
    st.sampled_from(["", "NA", "?", "1e400", "-0"]),
)


@SETTINGS
@given(CATEGORICAL, st.lists(ANYTHING, min_size=1, max_size=12))
def test_encoding_categories_is_total_and_depends_on_the_row_alone(column, values):
    schema = Schema(columns={"x": column})
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    codes = schema.encode(frame)[:, 0]
    assert ((codes >= 0) & (codes < column.size)).all()
    alone = [code for i in range(len(values)) for code in schema.encode(frame.iloc[[i]])[:, 0].tolist()]
    assert codes.tolist() == alone  # a row that no code takes is left out of both


@SETTINGS
@given(numeric(), st.lists(st.floats(), min_size=1, max_size=12))
def test_encoding_numbers_is_total_and_monotone(column, values):
    schema = Schema(columns={"x": column})
    values = [*values, None]
    block = schema.block(pd.DataFrame({"x": pd.Series(values, dtype="float64")}))
    codes = block.codes[:, 0]
    assert (codes < column.size).all()
    known = np.array([v is not None and v == v for v in values])
    assert column.missing or (block.kept is not None and block.kept.tolist() == known.tolist())
    present = [v for v, is_known in zip(values, known.tolist(), strict=True) if is_known]
    ordered = [c for _, c in sorted(zip(present, codes[known[: len(codes)] if column.missing else ...], strict=True))]
    assert ordered == sorted(ordered)
    assert not column.missing or codes[-1] == column.size - 1


@SETTINGS
@given(numeric(), st.lists(st.floats(), max_size=12), st.integers(0, 2**31))
def test_a_number_falls_between_the_edges_of_its_bin(column, values, seed):
    """Also on an edge, one step beside it and far outside; the search that `codes_of` avoids is the reference."""
    edges = column.edges
    inside = np.random.default_rng(seed).uniform(edges[0], edges[-1], 20)
    numbers = np.concatenate(
        [edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf), inside, [np.inf, -np.inf, np.nan], values]
    )
    expected = np.searchsorted(edges[1:-1], numbers, side="right")
    expected[np.isnan(numbers)] = column.size - 1 if column.missing else -1  # which is left out
    np.testing.assert_array_equal(column.codes_of(numbers), expected)
