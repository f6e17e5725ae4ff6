"""Cells beside the plain ones: atoms, listed values, multiples, codes for missing, censored, what is not listed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsyn.errors import SchemaError
from fedsyn.table.schema import Schema


def schema_of(**columns: Any) -> Schema:
    return Schema.from_dict({"columns": columns})


def back(schema: Schema, codes: Any, seed: int = 0) -> pd.DataFrame:
    return schema.decode(np.asarray(codes), np.random.default_rng(seed))


def test_an_atom_has_a_bin_of_its_own_and_comes_back_exactly() -> None:
    schema = schema_of(amount={"kind": "integer", "lower": 0, "upper": 999, "bins": [0, 500, 999], "atoms": [0, 40]})
    assert schema.columns["amount"].edges.tolist() == [0, 1, 40, 41, 500, 1000]
    frame = pd.DataFrame({"amount": [0, 1, 39, 40, 41, 700, -5, 2000]})
    assert schema.encode(frame)[:, 0].tolist() == [0, 1, 1, 2, 3, 4, 0, 4]
    drawn = back(schema, np.repeat([[0], [1], [2], [3], [4]], 400, axis=0))["amount"].to_numpy().reshape(5, 400)
    assert set(drawn[0]) == {0} and set(drawn[2]) == {40}
    assert drawn[1].min() >= 1 and drawn[1].max() <= 39 and drawn[3].min() >= 41


@pytest.mark.parametrize("atom", [0.0, 20.5, 100.0])
def test_an_atom_of_floats_is_written_exactly_wherever_it_lies(atom: float) -> None:
    schema = schema_of(load={"kind": "numeric", "lower": 0, "upper": 100, "bins": 4, "atoms": [atom]})
    column = schema.columns["load"]
    values = pd.DataFrame({"load": [atom, np.nextafter(atom, -1) if atom else 0.1, min(100.0, atom + 1), 7.0]})
    codes = schema.encode(values)
    at = int(np.flatnonzero(column.atom_bins)[0])
    assert codes[0, 0] == at and (atom == 100.0 or codes[1, 0] != at)
    drawn = back(schema, np.repeat(np.arange(column.size), 300)[:, None])["load"].to_numpy()
    again = schema.encode(pd.DataFrame({"load": drawn}))[:, 0]
    assert (again == np.repeat(np.arange(column.size), 300)).all()
    assert (drawn[again == at] == atom).all() and drawn.max() <= 100.0


def test_densities_inside_bins_leave_atoms_out() -> None:
    """Exponential counts beside a heavy zero give the rate that they give alone."""
    plain = {"kind": "integer", "lower": 1, "upper": 400, "bins": [1, 101, 201, 301, 400]}
    alone, beside = (
        schema_of(x=plain),
        schema_of(x={**plain, "lower": 0, "bins": [0, 101, 201, 301, 400], "atoms": [0]}),
    )
    counts = 1000.0 * np.exp(-np.arange(4))
    a = alone.shaped({"x": counts}).columns["x"].densities(counts)
    b = beside.shaped({"x": np.r_[1e6, counts]}).columns["x"].densities(np.r_[1e6, counts])
    assert np.allclose(a.rates, b.rates[1:]) and b.rates[0] == 0


def test_listed_values_are_the_only_ones() -> None:
    schema = schema_of(fte={"kind": "decimal", "places": 2, "values": [0.5, 0.75, 1]})
    assert schema.encode(pd.DataFrame({"fte": [0.5, 0.6, 0.64, 0.75, 0.9, 1.0, 3]}))[:, 0].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        2,
    ]
    drawn = back(schema, np.repeat([[0], [1], [2]], 50, axis=0))
    assert drawn["fte"].unique().tolist() == [0.5, 0.75, 1.0]
    again = Schema.loads(schema.dumps())
    assert again == schema and again.sha256 == schema.sha256


@pytest.mark.parametrize(
    ("column", "some", "multiple"),
    [
        ({"kind": "integer", "lower": 0, "upper": 90000, "multiple_of": 100}, 77300, 100),
        ({"kind": "decimal", "places": 1, "lower": 0, "upper": 10, "multiple_of": 0.5}, 7.5, 0.5),
    ],
)
def test_multiples_stay_multiples(column: dict[str, Any], some: float, multiple: float) -> None:
    schema = schema_of(x={**column, "bins": 7})
    codes = np.repeat(np.arange(7), 200)[:, None]
    drawn = back(schema, codes)["x"].to_numpy(dtype=float)
    assert np.allclose(np.round(drawn / multiple) * multiple, drawn)
    assert (schema.encode(pd.DataFrame({"x": drawn})) == codes).all()
    assert schema.columns["x"].bound(schema.columns["x"].number(some)) == some
    with pytest.raises(SchemaError, match="multiples of"):
        schema_of(x={**column, "upper": column["upper"] + multiple / 5})


def test_quarters_of_hours_stay_so() -> None:
    schema = schema_of(at={"kind": "time", "step": "minute", "multiple_of": 15, "upper": "23:45", "bins": 8})
    drawn = back(schema, np.repeat(np.arange(8), 100)[:, None])["at"]
    assert {value[3:5] for value in drawn} == {"00", "15", "30", "45"}


def test_codes_for_missing_and_censored_values_are_cells_and_come_back_as_they_came() -> None:
    lab = {"kind": "decimal", "places": 1, "lower": 0, "upper": 50, "bins": 5, "missing": True}
    schema = schema_of(lab={**lab, "missing_codes": [-999, "refused"], "censored": ["<0.5", ">50"]})
    column = schema.columns["lab"]
    assert column.sides == ("missing", "-999", "refused", "<0.5", ">50") and schema.domain.shape == (10,)
    frame = pd.DataFrame({"lab": ["12.0", None, "-999", " refused", "<0.5", ">50", "-999.0"]})
    codes = schema.encode(frame)[:, 0]
    assert codes.tolist() == [1, 5, 6, 7, 8, 9, 6]
    text = back(schema, codes[:, None])["lab"].tolist()
    assert text[2:6] == ["-999", "refused", "<0.5", ">50"] and pd.isna(text[1]) and 10 <= float(text[0]) < 20


def test_a_number_that_means_missing_keeps_the_dtype_and_is_never_drawn_as_one() -> None:
    schema = schema_of(
        age={"kind": "integer", "lower": 0, "upper": 120, "bins": 3, "missing_codes": [99], "stored": "int64"}
    )
    codes = schema.encode(pd.DataFrame({"age": [5, 99, 98]}))[:, 0]
    assert codes.tolist() == [0, 3, 2]
    drawn = back(schema, np.repeat([[2], [3]], 2000, axis=0))["age"]
    assert str(drawn.dtype) == "int64" and (drawn[2000:] == 99).all() and 99 not in set(drawn[:2000])


def test_what_a_column_cannot_place_has_one_cell_and_is_never_written() -> None:
    """Two holders, 20% smokers each; one writes what the schema does not list."""
    schema = schema_of(
        smoker={"kind": "categorical", "categories": ["no", "yes"], "other": False, "unlisted": True},
        age={"kind": "integer", "lower": 0, "upper": 99, "bins": 4, "unlisted": True},
    )
    frame = pd.DataFrame({"smoker": ["no", "yes", "perhaps", None], "age": ["7", "sixty", None, "80"]})
    assert schema.encode(frame).tolist() == [[0, 0], [1, 4], [2, 4], [2, 3]]
    codes = np.array([[0, 0]] * 800 + [[1, 3]] * 200 + [[2, 0]] * 1000)
    table = back(schema, codes)
    share = (table["smoker"] == "yes").mean()
    assert set(table["smoker"]) == {"no", "yes"} and abs(share - 0.2) < 0.05  # 2,000 rows: five standard errors
    assert codes[-1].tolist() == [2, 0]  # the given codes stay


def test_a_row_that_no_code_takes_is_left_out_and_counted() -> None:
    schema = schema_of(
        sex={"kind": "categorical", "categories": ["F", "M"], "other": False},
        age={"kind": "integer", "lower": 0, "upper": 99},
    )
    encoder = schema.encoder()
    block = encoder.block(pd.DataFrame({"sex": ["F", "x", "m ", "M", "F"], "age": ["3", "4", "sixty", "200", None]}))
    assert len(block.codes) == 2 and encoder.left_out == 3 and encoder.rows == 5
    assert encoder.unplaced == {"sex": 1, "age": 2} and encoder.clipped == {"age": 1}
    assert block.kept is not None and block.kept.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("texts", [None, ["no", "yes"], ["nein", "ja"]])
def test_booleans_are_read_as_people_write_them(texts: list[str] | None) -> None:
    schema = schema_of(b={"kind": "boolean"} if texts is None else {"kind": "boolean", "texts": texts})
    for no, yes in (
        ("no", "yes"),
        ("N", "Y"),
        ("0", "1"),
        ("FALSE", "True"),
        (" nein", "JA "),
        ("non", "oui"),
        ("no", "sí"),
    ):
        assert schema.encode(pd.DataFrame({"b": [no, yes]}))[:, 0].tolist() == [0, 1]
    assert schema.encode(pd.DataFrame({"b": [False, True]}))[:, 0].tolist() == [0, 1]
    assert schema.encode(pd.DataFrame({"b": [0.0, 1.0]}))[:, 0].tolist() == [0, 1]


def test_case_counts_only_where_it_tells_categories_apart() -> None:
    schema = schema_of(g={"kind": "categorical", "categories": ["A", "a", "Bee"], "other": False, "unlisted": True})
    assert schema.encode(pd.DataFrame({"g": ["A", "a", " bee", "BEE ", "c"]}))[:, 0].tolist() == [0, 1, 2, 2, 3]


CELLS = st.one_of(
    st.integers(-5, 130).map(str), st.sampled_from(["", "99", "refused", "<3", "x", "TRUE", "1e400", "nan"])
)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12), st.data())
def test_no_cell_changes_another_rows_codes(rows: list[tuple[str, str]], data: st.DataObject) -> None:
    schema = schema_of(
        a={
            "kind": "integer",
            "lower": 0,
            "upper": 120,
            "bins": 5,
            "atoms": [0],
            "missing_codes": [99, "refused"],
            "censored": ["<3"],
        },
        b={"kind": "categorical", "categories": ["1", "x"], "other": False, "missing": True},
    )
    frame = pd.DataFrame(rows, columns=["a", "b"])
    gone = data.draw(st.integers(0, len(rows) - 1))
    whole, less = (schema.encoder().block(part) for part in (frame, frame.drop(index=gone)))
    kept = np.ones(len(rows), dtype=bool) if whole.kept is None else whole.kept
    rest = np.delete(np.arange(len(rows)), gone)
    expected = whole.codes[[int(kept[:row].sum()) for row in rest if kept[row]]]
    assert less.codes.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "integer", "lower": 0, "upper": 9, "atoms": [11]}, "atoms must be different values"),
        ({"kind": "integer", "lower": 0, "upper": 9, "atoms": [1, 1]}, "atoms must be different values"),
        ({"kind": "integer", "values": [3, 1]}, "values must ascend|is above upper"),
        ({"kind": "integer", "values": [1, 3], "bins": 4}, "leave bins and atoms out"),
        ({"kind": "integer", "lower": 0, "upper": 9, "missing_codes": [99, "99"]}, "stands twice"),
        ({"kind": "categorical", "categories": ["a"], "other": True, "unlisted": True}, "leave one of the two out"),
        (
            {"kind": "date", "lower": "2024-01-01", "upper": "2024-12-31", "atoms": ["2025-01-01"]},
            "atoms must be different",
        ),
    ],
)
def test_what_cannot_be_is_refused(column: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        schema_of(x=column)


def test_dates_have_atoms_and_codes_for_missing() -> None:
    column = {"kind": "date", "lower": "2020-01-01", "upper": "2020-12-31", "bins": 4, "atoms": ["2020-01-01"]}
    schema = schema_of(d={**column, "missing_codes": ["9999-12-31"]})
    codes = schema.encode(pd.DataFrame({"d": ["2020-01-01", "2020-01-02", "9999-12-31"]}))[:, 0]
    assert codes.tolist() == [0, 1, 5]
    written = schema.cells(np.array([[0], [1], [5]]), np.random.default_rng(0))["d"].tolist()
    assert written[0] == "2020-01-01" and written[2] == "9999-12-31" and written[1] > "2020-01-01"


def test_constraints_hold_beside_all_of_them() -> None:
    schema = Schema.from_dict(
        {
            "columns": {
                "n": {"kind": "integer", "lower": 0, "upper": 5, "bins": "values", "unlisted": True},
                "amount": {"kind": "integer", "lower": 0, "upper": 900, "bins": 3, "atoms": [0], "unlisted": True},
                "lab": {"kind": "integer", "lower": 0, "upper": 9, "missing_codes": [-1], "censored": ["<1"]},
            },
            "constraints": [
                {"when": {"n": 0}, "then": {"amount": 0}},
                {"when": {"n": "> 0"}, "then": {"amount": "> 0"}},
            ],
        }
    )
    domain = schema.domain
    every = np.stack([axis.ravel() for axis in np.meshgrid(*map(np.arange, domain.shape), indexing="ij")], axis=1)
    possible = every[~domain.violated(every)]
    assert {(0, 0), (6, 0), (6, 4), (0, 4), (1, 1)} <= set(map(tuple, possible[:, :2].tolist()))
    assert (0, 1) not in set(map(tuple, possible[:, :2].tolist()))
    table = back(schema, np.repeat(possible, 20, axis=0))
    assert not sum(schema.violations(table).values())
