"""Schemas that say `private`: what they may say, how they are written, and how they are closed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.errors import SchemaError
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.open import OpenCategories, OpenRange

ALL_KINDS = """
columns:
  cost: {kind: numeric, lower: 0, upper: private}
  beds: {kind: numeric, dtype: integer, bounds: private, bins: {private: 4}}
  salary: {kind: integer, lower: private, upper: 900000, bins: private}
  price: {kind: decimal, places: 2, bounds: private, bins: 10}
  born: {kind: date, bounds: private}
  seen: {kind: datetime, zone: Europe/Berlin, bounds: private, missing: true}
  clock: {kind: time, bins: private}
  stay: {kind: duration, bounds: private}
  ward: {kind: categorical, categories: private}
  zip: {kind: code, width: 5, categories: {private: {most: 40, length: 12}}}
  sex: {kind: categorical, categories: [f, m]}
"""


def column(text: str) -> Schema:
    return Schema.loads(f"columns: {{x: {{{text}}}, y: {{kind: categorical, categories: [a, b]}}}}")


def test_what_is_private_is_known_by_column() -> None:
    schema = Schema.loads(ALL_KINDS)
    assert list(schema.open) == [name for name in schema.columns if name != "sex"]
    assert schema.open["cost"] == OpenRange(False, True, 32)
    assert schema.open["beds"] == OpenRange(True, True, 4)
    assert schema.open["salary"] == OpenRange(True, False, 32)
    assert schema.open["price"] == OpenRange(True, True, None), "equal bins between bounds that are found"
    assert schema.open["clock"] == OpenRange(False, False, 32)
    assert schema.open["ward"] == OpenCategories()
    assert schema.open["zip"] == OpenCategories(40, 12)
    assert schema.domain.shape == (1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 3), "placeholders, and missing where it is a category"


def test_an_open_schema_is_written_and_read_again() -> None:
    schema = Schema.loads(ALL_KINDS)
    again = Schema.loads(schema.dumps())
    assert again == schema and again.sha256 == schema.sha256
    assert "placeholder" not in schema.dumps() and "1970" not in schema.dumps()
    assert (
        column("kind: integer, lower: 0, upper: private").sha256 != column("kind: integer, lower: 0, upper: 0").sha256
    )


def test_a_runs_own_number_of_bins_is_the_most_that_are_found() -> None:
    assert column("kind: integer, bounds: private").adjusted(7).open["x"] == OpenRange(True, True, 7)
    assert column("kind: integer, bounds: private, bins: 9").adjusted(7).open["x"] == OpenRange(True, True, None)


def test_what_is_private_now_needs_no_approval_as_public() -> None:
    drafted = "kind: integer, lower: 3, upper: 77, drafted: [kind, bounds]"
    assert column(drafted).unapproved == {"x": ("kind", "bounds")}
    assert column(drafted.replace("3, upper: 77", "private, upper: private")).unapproved == {"x": ("kind",)}
    assert column(drafted.replace("77", "private")).unapproved == {"x": ("kind", "bounds")}, "3 was read from the data"
    words = "kind: categorical, categories: [a, b], drafted: [categories, missing, rare]"
    assert column(words.replace("[a, b]", "private")).unapproved == {"x": ("missing",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: integer, bounds: private, lower: 0", "bounds: private stands for lower and upper"),
        ("kind: integer, bounds: private, bins: [0, 5]", "private bounds need bins: private, or a number"),
        ("kind: integer, bounds: private, bins: values", "private bounds need bins: private, or a number"),
        ("kind: integer, bounds: private, bins: {private: 1}", "bins: private: most must be a number from 2 to 256"),
        ("kind: integer, bounds: private, bins: {private: many}", "bins: private: most must be a number from 2 to 256"),
        ("kind: integer, bounds: {private: 3}", "bounds: private takes no options"),
        ("kind: integer, lower: 3, upper: 2, bins: private", "lower (3) is above upper (2)"),
        ("kind: categorical, categories: private, other: false", "categories: private needs 'other'"),
        ("kind: categorical, categories: private, groups: {a: [b]}", "categories: private cannot go with groups"),
        ("kind: categorical, categories: {private: {most: 9, size: 3}}", "categories: private takes most and length"),
        ("kind: categorical, categories: {private: {length: 65}}", "length must be a number from 2 to 64"),
        ("kind: categorical, bins: private", "unknown key"),
        ("kind: boolean, categories: private", "a boolean has no categories of its own"),
        ("kind: numeric, lower: privat, upper: 3", "lower"),
    ],
)
def test_what_it_may_not_say_is_one_sentence_with_the_columns_name(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)) as error:
        column(text)
    assert "'x'" in str(error.value) and "\n" not in str(error.value)


def test_nothing_of_a_computed_column_is_private() -> None:
    with pytest.raises(SchemaError, match="column 'x': a constraint computes it, so nothing of it can be private"):
        Schema.from_dict(
            {
                "columns": {
                    "x": {"kind": "integer", "bounds": "private"},
                    "a": {"kind": "integer", "lower": 0, "upper": 9},
                    "b": {"kind": "integer", "lower": 0, "upper": 9},
                },
                "constraints": ["x = a + b"],
            }
        )


# Closing -------------------------------------------------------------------------------------------------------------


def closed_by_hand(schema: Schema) -> Schema:
    """Some neighbouring buckets of each universe, cut at the edges of their grid; two categories."""
    finding = PrivateColumns(schema)
    cells, cuts = [], []
    for one in finding.ranges:
        first = max(1, len(one.edges) - 9)
        cells.append([2 if first <= i <= first + 3 else 0 for i in range(len(one.edges) - 1)])
        cuts.append([] if one.wanted.bins is None else [0, 2, 3, 8][: one.wanted.bins + 1])
    return finding.closed(cells, cuts, [["Łódź", "north"] for _ in finding.texts])


def test_a_closed_schema_is_an_ordinary_one_with_the_edges_that_were_found() -> None:
    schema = Schema.loads(ALL_KINDS)
    closed = closed_by_hand(schema)
    assert not closed.open and "private" not in closed.dumps()
    assert Schema.loads(closed.dumps()) == closed
    assert list(closed.columns) == list(schema.columns) and closed.columns["sex"] == schema.columns["sex"]
    for one in PrivateColumns(schema).ranges:
        made = closed.columns[one.name]
        assert isinstance(made, BinnedColumn)
        first = max(1, len(one.edges) - 9)
        assert made.edges[0] == one.edges[first] and made.edges[-1] == one.edges[first + 4]
        assert len(made.edges) == (11 if one.wanted.bins is None else 4)
    ward = closed.columns["ward"]
    assert ward.size == 3 and ward.values == ("Łódź", "north", "other")  # type: ignore[union-attr]


def test_where_no_category_stands_out_there_is_only_other() -> None:
    schema = column("kind: categorical, categories: private, missing: true")
    closed = PrivateColumns(schema).closed([], [], [[]])
    assert closed.columns["x"].values == ("other",) and closed.domain.shape == (2, 3)  # type: ignore[union-attr]


def test_one_whole_number_may_be_a_bin_at_the_upper_end() -> None:
    schema = column("kind: integer, lower: 0, upper: private, bins: {private: 4}")
    finding = PrivateColumns(schema)
    cells = [[1, 1, 2, *[0] * (len(finding.ranges[0].edges) - 4)]]  # 0, 1, 2, 3
    closed = finding.closed(cells, [[0, 1, 3, 4]], [])
    assert closed.columns["x"].edges.tolist() == [0, 1, 3, 4]  # type: ignore[union-attr]
    assert closed.to_dict()["columns"]["x"]["bins"] == [0, 1, 3, 3]
    codes = np.array([2] * 50)
    drawn = closed.columns["x"].decode(codes, np.random.default_rng(0))  # type: ignore[call-arg]
    assert set(drawn) == {3}


def test_zero_may_be_a_bin_of_its_own_in_a_column_of_floats() -> None:
    schema = column("kind: numeric, lower: 0, upper: private")
    finding = PrivateColumns(schema)
    buckets = len(finding.ranges[0].edges) - 1
    closed = finding.closed([[1] * 40 + [0] * (buckets - 40)], [[0, 1, 40]], [])
    assert Schema.loads(closed.dumps()) == closed
    made = closed.columns["x"]
    assert isinstance(made, BinnedColumn)
    assert made.codes_of(np.array([0.0, -3.0, 1e-30, 4.0])).tolist() == [0, 0, 1, 1]
    values, _ = made.draw(np.zeros(100, np.intp), np.random.default_rng(0))
    assert (values == 0.0).all()


FRAMES: dict[str, Any] = {
    "x": [3, 700, None, 12, 5000],
    "w": ["b", "a", None, "  c ", "NA"],
    "z": [1007, 99, 1007, 5, 5],
    "y": ["a", "b", "a", "a", "b"],
}
ROWS = """
columns:
  x: {kind: numeric, bounds: private, missing: true}
  w: {kind: categorical, categories: private, missing: true}
  z: {kind: code, width: 5, categories: private}
  y: {kind: categorical, categories: [a, b]}
"""


def test_own_rows_are_kept_beside_placeholders_and_encoded_once_the_schema_is_closed() -> None:
    schema, frame = Schema.loads(ROWS), pd.DataFrame(FRAMES)
    own = schema.block(frame).own
    assert own.numbers["x"].tolist()[:2] == [3.0, 700.0] and np.isnan(own.numbers["x"][2])
    assert [own.words["w"][i] if i >= 0 else None for i in own.index["w"]] == ["b", "a", None, "c", None]
    assert own.word_counts("z").tolist() == [2, 1, 2] and list(own.words["z"]) == ["01007", "00099", "00005"]
    finding = PrivateColumns(schema)
    edges = finding.ranges[0].edges
    cells = [[int(edges.index(0.0) <= i < edges.index(8192.0)) for i in range(len(edges) - 1)]]
    closed = finding.closed(cells, [[0, cells[0].count(1) - 3, cells[0].count(1)]], [["a", "c"], ["01007"]])
    codes = own.coded(schema.encode(frame), closed, schema.domain)
    assert np.array_equal(codes, closed.encode(frame))


def test_blocks_and_several_tables_give_the_same_own_rows() -> None:
    schema, frame = Schema.loads(ROWS), pd.DataFrame(FRAMES | {"z": ["01007", "00099", "01007", "00005", "00005"]})
    whole = schema.block(frame).own
    encoder = schema.encoder()
    parts = [encoder.block(part) for part in (frame[:2], frame[2:])]
    blocks = type(whole).joined([part.own for part in parts])
    apart = type(whole).joined([schema.block(frame[:2]).own, schema.block(frame[2:]).own])
    for other in (blocks, apart):
        assert np.array_equal(other.numbers["x"], whole.numbers["x"], equal_nan=True)
        for name in ("w", "z"):
            texts = [[one.words[name][i] if i >= 0 else None for i in one.index[name]] for one in (whole, other)]
            assert texts[0] == texts[1]
