"""What finding computes, against brute force: cells, grids, noise bounds, bins, prefixes. No message, no run."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedsyn.private_bins.prefixes import SYMBOLS, PrefixTree, level_counts
from fedsyn.private_bins.ranges import (
    MOST_CELLS,
    NoisyGrid,
    allot,
    cuts,
    divisible,
    grid,
    histogram,
    range_noise,
    significant_range,
    threshold,
    tree,
    universe,
)
from fedsyn.table.schema.ordered import DateColumn, DatetimeColumn, IntegerColumn

# The universe --------------------------------------------------------------------------------------------------------


def test_a_universe_of_whole_numbers_doubles_to_both_sides_of_zero() -> None:
    edges = universe(True, None, None)
    middle = edges.index(0.0)
    assert edges[middle : middle + 5] == (0.0, 1.0, 2.0, 4.0, 8.0)
    assert edges[middle - 3 : middle] == (-7.0, -3.0, -1.0)
    for value, cell in ((0, (0, 1)), (1, (1, 2)), (3, (2, 4)), (-1, (-1, 0)), (-2, (-3, -1)), (-3, (-3, -1))):
        place = int(np.argmax(histogram(np.array(edges), np.array([float(value)]))))
        assert (edges[place], edges[place + 1]) == cell


def test_zero_of_a_column_of_floats_has_a_cell_of_its_own() -> None:
    edges = np.array(universe(False, None, None))
    counts = histogram(edges, np.array([0.0, -0.0, 1e-300, 1e-5, -1e-300]))
    place = int(np.flatnonzero(edges == 0.0)[0])
    assert counts[place] == 2, "zero and minus zero"
    assert counts[place - 1] == 1 and counts[place + 1] == 1 and counts.sum() == 5


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("bounds", [(0.0, 9.0), (-5.0, None), (None, 3.0), (7.0, 7.0), (None, None)])
def test_every_number_is_in_one_cell_and_a_missing_one_in_none(whole: bool, bounds: tuple[float, float]) -> None:
    edges = universe(whole, *bounds)
    assert all(a < b for a, b in itertools.pairwise(edges))
    numbers = np.array([-math.inf, -1e300, -6, -5, 0, 1, 3, 7, 9, 10, 1e300, math.inf, math.nan])
    counts = histogram(np.array(edges), numbers)
    assert counts.shape == (len(edges) - 1,) and counts.sum() == len(numbers) - 1


def test_a_public_bound_stays() -> None:
    assert universe(True, 0.0, 9.0)[0] == 0.0 and universe(True, 0.0, 9.0)[-1] == 10.0
    assert universe(False, 0.5, 9.0)[0] == 0.5 and universe(False, 0.5, 9.0)[-1] == 9.0


def test_the_threshold_follows_the_noise_and_the_number_of_cells() -> None:
    assert threshold(2.0, 100) == pytest.approx(2 * threshold(1.0, 100))
    assert threshold(1.0, 1, 0.5) == pytest.approx(0.0, abs=1e-12)
    assert threshold(1.0, 1000) > threshold(1.0, 10) > 2.3


def test_the_range_is_from_the_first_to_the_last_cell_that_stands_out() -> None:
    assert significant_range(np.array([1.0, 50.0, 2.0, 60.0, 3.0]), 10.0) == (1, 3, True)
    assert significant_range(np.array([1.0, -5.0, 4.0]), 10.0) == (2, 2, False)


# The grid ------------------------------------------------------------------------------------------------------------


def test_a_grid_divides_whole_numbers_evenly_and_ends_where_the_range_does() -> None:
    edges = universe(True, 0.0, 1000.0)
    counts = np.where(np.arange(len(edges) - 1) < 8, 100.0, 0.0)
    cells = allot(edges, counts, 2, 7, True)
    made = grid(edges, tuple(cells), True)
    assert divisible(edges, cells, True)
    assert made[0] == edges[2] and made[-1] == edges[8] and len(made) == sum(cells) + 1
    assert all(float(x).is_integer() for x in made)
    for low, high, parts in zip(edges, edges[1:], cells, strict=False):
        widths = {b - a for a, b in itertools.pairwise(made) if low <= a < high}
        assert parts == 0 or max(widths) - min(widths) <= 1


def test_a_grid_is_finer_where_rows_are_and_never_too_large() -> None:
    edges = universe(False, None, None)
    counts = np.zeros(len(edges) - 1)
    counts[120], counts[121], counts[122] = 10_000.0, 10.0, 10_000.0
    cells = allot(edges, counts, 120, 122, False)
    assert sum(cells) <= MOST_CELLS and cells[121] >= 1
    assert cells[120] > 10 * cells[121]


@pytest.mark.parametrize(
    "cells", [[], [0, 0, 0], [1, 0, 1], [1, -1, 1], [2, 1, 1], [MOST_CELLS, 1, 1], [1, 1], [1, 1, 1, 1]]
)
def test_allotments_that_make_no_grid_are_refused(cells: list[int]) -> None:
    assert not divisible((0.0, 1.0, 2.0, 4.0), cells, True)  # two cells of the one number 0, for instance


@pytest.mark.parametrize("cells", [1, 3, 4, 5, 16, 17, 64, 100, 257])
def test_the_noise_of_a_range_is_bounded(cells: int) -> None:
    """Against the covariance of least squares, over every range of neighbouring cells."""
    made = tree(cells)
    blocks = [(b, width) for width, n in zip(made.widths, made.lengths, strict=True) for b in range(n)]
    queries = np.zeros((len(blocks), cells))
    for row, (block, width) in enumerate(blocks):
        queries[row, block * width : (block + 1) * width] = 1
    covariance = np.linalg.inv(queries.T @ queries)
    below = np.tril(np.ones((cells, cells)))
    prefixes = np.pad(below @ covariance @ below.T, ((1, 0), (1, 0)))
    variance = np.diag(prefixes)
    ranges = variance[:, None] + variance[None, :] - 2 * prefixes
    assert math.sqrt(ranges.max()) <= range_noise(made, 1.0)
    assert math.sqrt(ranges.max()) >= 0.4 * range_noise(made, 1.0), "a bound that says nothing"


# Bins ----------------------------------------------------------------------------------------------------------------


def bins_of(counts: np.ndarray, edges: np.ndarray, most: int, sigma: float = 0.0, **trim: bool) -> list[int]:
    trims = {"trim_low": True, "trim_high": True} | trim
    return cuts(NoisyGrid(edges, counts, sigma, 2 * sigma), most, **trims)


def test_an_atom_is_a_bin_of_its_own() -> None:
    counts = np.ones(100)
    counts[40] = 900.0
    found = bins_of(counts, np.arange(101.0), 10)
    assert 40 in found and 41 in found and len(found) <= 11


def test_an_atom_stands_out_of_the_noise_of_all_cells() -> None:
    """A third of a row a cell in 1,024 cells with noise of ten: 23 of them stand out of their own noise on average.

    They filled the bins: 31 of 32 on average (as this test measured it before), 15 of one cell. Cuts alone make 19 and
    6, with standard deviations of 8 and 3.4: the means of 40 grids are above 24 and 9 with a chance below 1e-4 each.
    """
    rng, bins, single = np.random.default_rng(0), [], []
    for _ in range(40):
        cells = NoisyGrid(np.arange(1025.0), 0.3 + rng.normal(0.0, 10.0, 1024), 10.0, 60.0)
        widths = np.diff(cuts(cells, 32, trim_low=False, trim_high=False))
        bins.append(len(widths))
        single.append(int((widths == 1).sum()))
    assert np.mean(bins) < 24 and np.mean(single) < 9


def test_a_universe_of_dates_doubles_from_the_year_2025() -> None:
    date = DateColumn(lower="1900-01-01", upper="2100-01-01")
    moment = DatetimeColumn(lower="1900-01-01T00:00:00", upper="2100-01-01T00:00:00", step="hour")
    assert date.bound(date.middle) == "2025-01-01" and str(moment.bound(moment.middle)).startswith("2025-01-01T00")
    edges = universe(True, *date.reach, date.middle)
    near = [date.bound(edge) for edge in edges if "2010-01-01" < date.bound(edge) < "2030-01-01"]
    assert "2013-10-16" in near and "2025-01-02" in near  # 4,096 days before, and one after
    assert IntegerColumn(lower=0, upper=9).middle == 0.0


def test_half_of_the_bins_have_about_equal_mass() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, 200).astype(float)
    found = bins_of(counts, np.arange(201.0), 16)
    masses = [counts[a:b].sum() for a, b in itertools.pairwise(found)]
    assert len(masses) == 16 and max(masses) <= 2 * counts.sum() / 8


def test_a_gap_is_cut_out() -> None:
    counts = np.zeros(100)
    counts[:10], counts[95:] = 100.0, 100.0
    found = bins_of(counts, np.arange(101.0), 4)
    assert any((a, b) == (10, 95) for a, b in itertools.pairwise(found))


def test_empty_ends_are_trimmed_where_the_bound_was_private_and_kept_where_it_was_public() -> None:
    counts = np.zeros(64)
    counts[20:30] = 100.0
    assert (bins_of(counts, np.arange(65.0), 4)[0], bins_of(counts, np.arange(65.0), 4)[-1]) == (20, 30)
    kept = bins_of(counts, np.arange(65.0), 4, trim_low=False, trim_high=False)
    assert (kept[0], kept[-1]) == (0, 64)


@pytest.mark.parametrize("most", [2, 3, 8, 32])
def test_noise_alone_makes_one_bin_or_few(most: int) -> None:
    rng = np.random.default_rng(1)
    found = bins_of(rng.normal(0, 10, 300), np.arange(301.0), most, sigma=10.0)
    assert 2 <= len(found) <= most + 1 and found == sorted(set(found))


def test_more_atoms_than_bins_are_put_together() -> None:
    counts = np.full(8, 100.0)
    found = bins_of(counts, np.arange(9.0), 4)
    assert len(found) == 5


# Prefixes ------------------------------------------------------------------------------------------------------------


def searched(words: list[str], rows: list[int], most: int = 8, length: int = 8) -> PrefixTree:
    """A tree without noise: what has one row stands out of a noise of a tenth."""
    found = PrefixTree(most, length)
    while found.alive:
        counts = level_counts(words, np.array(rows), found.alive)
        found.take(counts.astype(float), 0.1, len(counts), 0.5)
    return found


def test_without_noise_every_text_is_found_with_its_rows() -> None:
    words, rows = ["a", "ab", "abc", "Łódź", "zoë x"], [5, 4, 3, 2, 6]
    found = searched(words, rows)
    assert found.found == {word: float(count) for word, count in zip(words, rows, strict=True)}


def test_one_row_is_in_one_cell_of_a_level() -> None:
    words = ["north", "south", "s", "", "nord"]
    prefixes = [b"no", b"so"]
    for place in range(len(words)):
        rows = np.zeros(len(words), np.int64)
        rows[place] = 1
        counts = level_counts(words, rows, prefixes)
        assert counts.shape == (2 * SYMBOLS,) and counts.sum() == (words[place][:2] in ("no", "so"))


def test_the_longest_the_rarest_and_the_blank_are_left_out() -> None:
    found = searched(["x" * 9, "often", "seldom", " ", "rare"], [50, 9, 8, 50, 1], most=2)
    assert found.categories == ["often", "seldom"], "of more, the most frequent; none beyond 8 bytes"


@pytest.mark.parametrize(
    "text", ["a ", "\x85a", "a\nb", "a\x00b", "\x1b[1m", "\u2028", "\ufeff", "NA", "n/a", "?x", "\t"]
)
def test_what_passes_for_another_text_is_no_category(text: str) -> None:
    found = PrefixTree(8, 8, frozenset({"NA", "n/a", "?x"}))
    while found.alive:
        counts = level_counts([text, "often"], np.array([100, 50]), found.alive)
        found.take(counts.astype(float), 0.1, len(counts), 0.5)
    assert found.categories == ["often"]


def test_what_does_not_stand_out_is_followed_no_further() -> None:
    found = PrefixTree(8, 8)
    counts = level_counts(["aa", "b"], np.array([100, 30]), found.alive)
    found.take(counts.astype(float), 10.0, len(counts), 0.01)
    assert threshold(10.0, SYMBOLS, 0.01) > 30
    assert found.alive == [b"a"]


def test_a_prefix_that_ends_within_a_letter_is_no_text() -> None:
    found = PrefixTree(8, 8, alive=["ź".encode()[:1]])
    counts = np.zeros(SYMBOLS)
    counts[-1] = 100.0
    found.take(counts, 1.0, SYMBOLS, 0.01)
    assert found.categories == [] and found.alive == []
