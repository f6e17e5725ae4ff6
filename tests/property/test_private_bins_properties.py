"""Small universes, by brute force: whatever is found of a column, it is a schema in which every value has a code."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.private_bins.prefixes import PrefixTree, is_word, level_counts
from fedsyn.private_bins.private_columns import PrivateColumns
from fedsyn.private_bins.ranges import (
    NoisyGrid,
    allot,
    cuts,
    divisible,
    grid,
    histogram,
    significant_range,
    tree,
    universe,
)
from fedsyn.table.schema import BinnedColumn, Schema

whole_numbers = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30)
numbers = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None)
@given(values=whole_numbers | numbers, whole=st.booleans(), most=st.integers(2, 20), seed=st.integers(0, 99))
def test_whatever_is_released_closes_the_schema(values: list[float], whole: bool, most: int, seed: int) -> None:
    """Also where noise drowns the rows: the steps of a run, with noise of one row."""
    x, rng = np.array(values, float), np.random.default_rng(seed)
    x = np.round(x) if whole else x
    dtype = "integer" if whole else "float"
    schema = Schema.loads(
        f"columns: {{x: {{kind: numeric, dtype: {dtype}, bounds: private, bins: {{private: {most}}}}}}}"
    )
    found_of = PrivateColumns(schema).ranges[0]
    counts = histogram(np.array(found_of.edges), x)
    assert counts.sum() == len(x)
    noisy = counts + rng.normal(0, 1, len(counts))
    first, last, _ = significant_range(noisy, 3.0)
    cells = allot(found_of.edges, np.where(noisy > 3.0, noisy, 0.0), first, last, whole)
    assert divisible(found_of.edges, cells, whole)
    edges = found_of.grid(cells)
    made = tree(len(edges) - 1)
    blocks = made.apply(histogram(edges, x))
    assert [part.sum() for part in np.split(blocks, np.cumsum(made.lengths)[:-1])] == [len(x)] * len(made.widths)
    estimate = histogram(edges, x) + rng.normal(0, 1, len(edges) - 1)
    cut = cuts(NoisyGrid(edges, estimate, 1.0, 3.0), most, trim_low=True, trim_high=True)
    closed = PrivateColumns(schema).closed([cells], [cut], [])
    assert Schema.loads(closed.dumps()) == closed
    found = closed.columns["x"]
    assert isinstance(found, BinnedColumn) and 1 <= found.size <= most
    codes = found.codes_of(x)
    inside = (x >= found.edges[0]) & (x < found.edges[-1])
    assert ((found.edges[codes] <= x) & (x < found.edges[codes + 1]))[inside].all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(2, 12), st.floats(0, 20))
def test_cuts_are_ascending_edges_of_the_grid_and_no_more_than_asked(
    counts: list[float], most: int, sigma: float
) -> None:
    for trim in (True, False):
        cells = NoisyGrid(np.arange(len(counts) + 1.0), np.array(counts), sigma, 2 * sigma)
        found = cuts(cells, most, trim_low=trim, trim_high=trim)
        assert 2 <= len(found) <= most + 1
        assert all(a < b for a, b in itertools.pairwise(found)) and found[0] >= 0 and found[-1] <= len(counts)
        assert trim or (found[0], found[-1]) == (0, len(counts))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 5))
def test_parts_of_a_bucket_differ_by_one(span: int, parts: int, start: int) -> None:
    parts = min(parts, span)
    made = np.diff(grid((float(start), float(start + span)), (parts,), True))
    assert len(made) == parts and made.sum() == span and made.max() - made.min() <= 1


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), st.integers(1, 50), max_size=12))
def test_a_tree_without_noise_finds_exactly_what_is_frequent(rows: dict[str, int]) -> None:
    words, counts = list(rows), np.array(list(rows.values()), np.int64)
    found = PrefixTree(50, 16)
    while found.alive:
        level = level_counts(words, counts, found.alive)
        assert level.sum() <= counts.sum(), "a row is in one cell at most"
        found.take(level.astype(float), 10.0, len(level), 0.5 * len(level))  # a threshold of zero
    assert found.found == {word: float(count) for word, count in rows.items() if is_word(word)}
    assert set(found.categories) == set(found.found)


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.none() | st.integers(-1000, 1000), st.none() | st.integers(0, 1000))
def test_universes_ascend_between_what_is_public(whole: bool, lower: int | None, more: int | None) -> None:
    low = None if lower is None else float(lower)
    high = None if more is None else float((lower or 0) + more)
    edges = universe(whole, low, high)
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert low is None or edges[0] == low
    assert high is None or edges[-1] == high + whole or low == high


_ENDS = {
    "numeric": (0, 9),
    "integer": (-5, 10),
    "decimal": (0.5, 9.5),
    "date": ("2024-01-01", "2024-12-31"),
    "datetime": ("2024-01-01T00:00:00", "2024-12-31T00:00:00"),
    "time": ("00:00:00", "23:59:59"),
    "duration": ("0 days 00:00:00", "9 days 00:00:00"),
}
_PRIVATE_BINS = st.sampled_from(["private", {"private": 32}, {"private": 5}, {"private": {"most": 31}}])


@st.composite
def open_columns(draw: st.DrawFn) -> dict[str, Any]:
    """Every way to say that something of a column is private."""
    if draw(st.booleans()):
        some = ["private", {"private": 64}, {"private": {"most": 64, "length": 24}}, {"private": {"length": 7}}]
        column: dict[str, Any] = {"kind": draw(st.sampled_from(["categorical", "code"]))}
        column["categories"] = draw(st.sampled_from(some))
        column |= draw(st.sampled_from([{}, {"other": True}, {"other": "rest"}, {"other": "other"}]))
        return column | draw(st.sampled_from([{}, {"missing": True}]))
    kind = draw(st.sampled_from(list(_ENDS)))
    low, high = _ENDS[kind]
    column = {"kind": kind} | ({"places": 1} if kind == "decimal" else {})
    ends = ({"bounds": "private"}, {"lower": "private", "upper": high}, {"lower": low, "upper": "private"})
    bounds = draw(st.sampled_from([*ends, {"lower": low, "upper": high}, {"lower": "private", "upper": "private"}]))
    if "private" in bounds.values():
        bins = draw(st.none() | _PRIVATE_BINS | st.sampled_from([1, 7, 31, 32, 33]))
    else:
        bins = draw(_PRIVATE_BINS)
    return column | bounds | ({} if bins is None else {"bins": bins}) | draw(st.sampled_from([{}, {"missing": True}]))


@settings(max_examples=60, deadline=None)
@given(open_columns())
def test_what_is_open_survives_its_file(column: dict[str, Any]) -> None:
    """The hash too: client and server compare it, and the client has read a file."""
    schema = Schema.from_dict({"columns": {"x": column, "y": {"kind": "categorical", "categories": ["a", "b"]}}})
    again = Schema.loads(schema.dumps())
    assert again.open == schema.open and schema.open
    assert again == schema and again.sha256 == schema.sha256 and again.to_dict() == schema.to_dict()
