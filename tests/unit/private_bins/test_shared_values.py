"""Values that many rows share, found with bounds and bins: cells, sensitivity by brute force, and whole runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import SchemaError
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.private_bins.ranges import (
    NoisyGrid,
    atoms_of,
    cuts,
    heavy,
    histogram,
    lone,
    range_around,
    tree,
    universe,
)
from fedsyn.table.schema import BinnedColumn, Schema


def schema_of(text: str) -> Schema:
    return Schema.loads(f"columns: {{x: {{{text}}}, y: {{kind: categorical, categories: [a, b], other: false}}}}")


@pytest.mark.parametrize("whole", [True, False])
def test_a_row_is_in_one_cell_of_a_universe_with_named_values(whole: bool) -> None:
    """By brute force: one row more changes one count of each width by one, whatever its number is."""
    named = (-7.0, 20.0, 99_999.0)
    edges = universe(whole, None, None, 0.0, named)
    assert all(a < b for a, b in itertools.pairwise(edges))
    alone = {edges[i] for i in np.flatnonzero(lone(edges, whole))}
    assert {0.0, *named} <= alone
    numbers = [-math.inf, -7.5, -7.0, -0.5, 0.0, 19.0, 20.0, np.nextafter(20.0, 30.0), 21.0, 99_999.0, 1e300, math.inf]
    rows = np.floor(numbers) if whole else np.array(numbers)
    before = histogram(np.array(edges), rows)
    for number in rows:
        more = histogram(np.array(edges), np.append(rows, number)) - before
        assert sorted(more.tolist())[-1] == 1 and more.sum() == 1
        blocks = tree(len(more)).apply(more)
        assert (np.asarray(blocks) ** 2).sum() == len(tree(len(more)).widths)
    assert np.array_equal(histogram(np.array(edges), np.append(rows, math.nan)), before)
    assert before[edges.index(20.0)] == (2 if whole else 1), "20 and the next float are two values of floats"


def test_a_named_value_at_a_public_bound_is_a_cell() -> None:
    assert universe(True, 0.0, 9.0, 0.0, (9.0,))[-2:] == (9.0, 10.0)
    assert universe(False, 0.0, 9.0, 0.0, (9.0,))[-2:] == (9.0, math.nextafter(9.0, math.inf))


def test_a_cell_needs_a_bins_share_and_to_stand_out() -> None:
    counts = np.array([500.0, 20.0, 9.0, 60.0])
    assert heavy(counts, 10.0, 16).tolist() == [True, False, False, True]  # a share of 580: 36.25
    assert heavy(counts, 100.0, 16).tolist() == [True, False, False, False]


def test_rows_beside_an_atom_are_not_counted_as_its() -> None:
    atom = np.array([False, False, True, False, False])
    counts = np.array([1.0, -2.0, 900.0, 3.0, 1.0])
    assert range_around(counts, atom, 10.0) == (2, 3, False), "the next larger cell has all others"
    counts[:2] = 9.0, 9.0  # 18 > 10 sqrt(2): together they stand out
    assert range_around(counts, atom, 10.0) == (1, 2, False)
    counts[4] = 50.0
    assert range_around(counts, atom, 10.0) == (2, 4, True)
    assert range_around(np.array([1.0, 900.0]), np.array([False, True]), 10.0) == (0, 1, False), "nothing is larger"
    assert range_around(np.array([900.0]), np.array([True]), 10.0) == (0, 0, False)


def test_a_trimmed_range_does_not_end_at_an_atom() -> None:
    counts = np.zeros(12)
    counts[0], counts[1:4] = 900.0, 3.0
    edges = np.arange(13.0)
    for sigma, end in ((50.0, 2), (0.1, 4)):
        grid = NoisyGrid(edges, counts, sigma, 2 * sigma, lone(edges, True))
        cut = cuts(grid, 8, trim_low=True, trim_high=True)
        assert cut[:2] == [0, 1] and cut[-1] == end
        assert atoms_of(grid, cut, 8) == [0]
    assert atoms_of(NoisyGrid(edges, counts, 0.1, 0.2), [0, 1, 4], 8) == [], "no cell is known to hold one value"


KINDS = {
    "integer": "kind: integer, bounds: private",
    "decimal": "kind: decimal, places: 2, lower: 0, upper: private",
    "float": "kind: numeric, bounds: private",
    "equal": "kind: numeric, bounds: private, bins: 16",
    "bins": "kind: integer, lower: 0, upper: 50000, bins: private",
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "zeros"), [(1000, 0.7), (1000, 0.97), (20_000, 0.9)])
def test_zero_inflated_columns_keep_their_zeros(kind: str, rows: int, zeros: float) -> None:
    """Epsilon 1: within three points, and amounts are written beside zeros, not in their place."""
    rng = np.random.default_rng(7)
    amounts = np.exp(rng.normal(6, 1.2, rows)).round(2 if kind != "integer" else 0) + 1
    x = np.where(rng.permutation(rows) < round(zeros * rows), 0.0, amounts)
    frame = pd.DataFrame({"x": x, "y": rng.choice(["a", "b"], rows)})
    synthesizer = fedsyn.Synthesizer(1.0, 1e-6, schema_of(KINDS[kind]), seed=3).fit(frame)
    closed = synthesizer.schema_.columns["x"]
    assert isinstance(closed, BinnedColumn) and 0.0 in map(closed.number, closed.atoms)
    made = pd.to_numeric(synthesizer.sample(20_000)["x"])
    assert abs(float((made == 0).mean()) - zeros) < 0.03
    if rows == 20_000:  # the tail's thinnest part falls into the last bin
        assert 0.6 < float(made.mean()) / x.mean() < 1.4
    assert Schema.loads(synthesizer.schema_.dumps()) == synthesizer.schema_


@pytest.mark.thorough
def test_a_value_that_the_schema_names_is_an_atom_wherever_it_lies() -> None:
    """Half of an assay at its limit of 20.00, which no grid of cents has a cell for."""
    rng = np.random.default_rng(1)
    values = np.where(rng.random(8000) < 0.51, 20.0, (20 + rng.gamma(2.0, 40.0, 8000)).round(2))
    frame = pd.DataFrame({"x": values, "y": rng.choice(["a", "b"], 8000)})
    text = "kind: decimal, places: 2, bounds: private, atoms: [20]"
    synthesizer = fedsyn.Synthesizer(1.0, 1e-6, schema_of(text), seed=3).fit(frame)
    made = pd.to_numeric(synthesizer.sample(20_000)["x"])
    assert abs(float((made == 20.0).mean()) - 0.51) < 0.03


# What a schema may say -----------------------------------------------------------------------------------------------


def test_named_atoms_stand_in_an_open_schema_and_in_the_closed_one() -> None:
    schema = schema_of("kind: decimal, places: 2, lower: 0, upper: private, atoms: [20, '0.50']")
    assert Schema.loads(schema.dumps()) == schema and "atoms" in schema.to_dict()["columns"]["x"]
    assert schema.sha256 != schema_of("kind: decimal, places: 2, lower: 0, upper: private").sha256
    finding = PrivateColumns(schema)
    assert finding.ranges[0].named == (50.0, 2000.0)
    last = finding.ranges[0].edges.index(4096.0)
    cells = [[int(i < last) for i in range(len(finding.ranges[0].edges) - 1)]]
    closed = finding.closed(cells, [[0, 1, last]], [], [[0]]).columns["x"]
    assert isinstance(closed, BinnedColumn)
    assert [closed.number(atom) for atom in closed.atoms] == [0.0, 50.0, 2000.0]
    assert closed.atom_bins.sum() == 3 and closed.edges.tolist() == [0, 1, 50, 51, 2000, 2001, 4096]


def test_dates_have_named_atoms_too() -> None:
    schema = schema_of("kind: date, bounds: private, atoms: [1900-01-01, 2020-01-01], bins: 5")
    assert Schema.loads(schema.dumps()) == schema
    assert schema.to_dict()["columns"]["x"]["atoms"] == ["1900-01-01", "2020-01-01"]


def test_an_edge_behind_an_atom_of_floats_is_left_to_its_key() -> None:
    schema = schema_of("kind: numeric, lower: 0, upper: private")
    finding = PrivateColumns(schema)
    buckets = len(finding.ranges[0].edges) - 1
    closed = finding.closed([[1] * 40 + [0] * (buckets - 40)], [[0, 1, 40]], [], [[0]])
    data = closed.to_dict()["columns"]["x"]
    assert data["atoms"] == [0.0] and len(data["bins"]) == 2 and data["bins"][0] == 0.0
    made = closed.columns["x"]
    assert isinstance(made, BinnedColumn)
    assert made.codes_of(np.array([0.0, -3.0, 1e-30, 4.0])).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: integer, bounds: private, values: [1, 2]", "nothing is left for private to find"),
        ("kind: integer, bounds: private, atoms: 3", "atoms: expected a list of values"),
        ("kind: integer, bounds: private, atoms: [3, 3]", "atoms must be different values"),
        ("kind: integer, lower: 0, upper: private, atoms: [-3]", "within what is public of the bounds"),
        ("kind: integer, lower: 0, upper: 9, bins: private, atoms: [10]", "within what is public of the bounds"),
        ("kind: integer, bounds: private, atoms: [0.5]", "atoms: '0.5' is not"),
        ("kind: date, bounds: private, atoms: [never]", "atoms: 'never' is not a date"),
    ],
)
def test_atoms_that_cannot_be_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as error:
        schema_of(text)
    assert "'x'" in str(error.value) and "\n" not in str(error.value)
