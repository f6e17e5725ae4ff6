"""Numbers inside bins that go by the rest of their rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from fedsyn.inference import Model
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import NumericColumn
from fedsyn.table.schema.links import RowModel, _logistic

EDGES = (-6.0, -1.5, -0.9, -0.4, 0.0, 0.4, 0.9, 1.5, 6.0)
ROWS, SLOPE = 100_000, 0.8


def _slope(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    both = np.cov(np.asarray(x, np.float64), np.asarray(y, np.float64))
    return float(both[0, 1] / both[0, 0])


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Values of two normal columns, and numbers made from exact counts of their cells: linked, and not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    values = pd.DataFrame({"x": x, "y": SLOPE * x + 0.6 * rng.normal(size=ROWS)})
    schema = Schema(columns={name: NumericColumn(bins=EDGES) for name in "xy"}, approved=True)
    codes = schema.encode(values).astype(np.intp)
    cells = np.bincount(codes @ [8, 1], minlength=64).reshape(8, 8)
    model = Model(schema.domain, {("x", "y"): np.log(np.maximum(cells, 0.5))}, ROWS)
    linked, alone = (decoding(schema, model, lean).decode(codes, rng) for lean in ({}, None))
    assert (schema.encode(linked) == codes).all()
    return values, linked, alone


def test_a_slope_between_two_columns_is_that_of_their_values(tables: tuple[pd.DataFrame, ...]) -> None:
    """Unlinked numbers lose a twentieth. Its standard error is 0.3%, but the rows are the same."""
    true, linked, alone = (_slope(frame.x, frame.y) for frame in tables)
    assert linked == pytest.approx(true, rel=0.01) and alone < 0.965 * true


def test_numbers_go_along_inside_the_corner_cells(tables: tuple[pd.DataFrame, ...]) -> None:
    true, linked, alone = (frame[(frame > EDGES[-2]).all(axis=1)].corr().iloc[0, 1] for frame in tables)
    assert linked == pytest.approx(true, abs=0.1) and abs(alone) < 0.1 < true / 2


def test_weights_are_those_of_a_logistic_model() -> None:
    rng = np.random.default_rng(2)
    terms = np.column_stack([rng.normal(size=(4000, 2)), np.ones(4000)])
    found = _logistic(terms, terms @ [0.7, -1.2, 0.4])
    assert found == pytest.approx([0.7, -1.2, 0.4], rel=0.01)  # what one row shrinks
    # Where all rows are of one of the two, nothing is infinite.
    assert np.isfinite(_logistic(terms, np.full(4000, 800.0))).all()


def test_of_many_terms_those_stay_that_say_most() -> None:
    rng = np.random.default_rng(3)
    terms = np.column_stack([rng.normal(size=(4000, 200)), np.ones(4000)])
    found = _logistic(terms, 0.7 * terms[:, 17] + 0.4)
    assert np.count_nonzero(found) == 32 and found[[17, -1]] == pytest.approx([0.7, 0.4], rel=0.01)


def test_a_column_by_itself_and_one_bin_are_drawn_as_before() -> None:
    columns = {"x": NumericColumn(bins=(0.0, 1.0)), "y": NumericColumn(bins=(0.0, 1.0, 3.0))}
    schema = Schema(columns=columns, approved=True)
    codes = np.column_stack([np.zeros(500, np.intp), np.arange(500) % 2])
    model = RowModel(codes, lambda rows, *_: np.zeros(len(rows)), {"x": ["y"], "y": []})
    linked = schema.shaped({"x": np.array([500.0]), "y": np.array([250.0, 250.0])}, {}, model)
    plain = schema.shaped({"x": np.array([500.0]), "y": np.array([250.0, 250.0])}, {})
    one, other = (each.decode(codes, np.random.default_rng(0)) for each in (linked, plain))
    assert np.allclose(one, other, atol=0.05)
