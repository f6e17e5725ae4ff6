"""Bounds and bins of numbers, from noisy counts of public cells.

The first look counts rows by their distance from a public number, zero or for dates the begin of 2025, in powers of
two, between what is public of the bounds (`universe`). The second one
counts them on a grid within the range that stood out, finer where rows are, at several widths (`grid`, `tree`). Where
the column is then cut into bins (`cuts`) follows from these counts alone: no row is looked at, and nothing is paid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.table.counting.hierarchy import Hierarchy

#: The probability with which noise alone lets any empty cell of a step stand out. Stated, not tuned: one run in a
#: hundred may get a range, or a prefix, that no row is in.
FALSE_ALARM = 0.01
# Powers of two: from 2^-32, below which a number counts as tiny, to 2^64; whole numbers up to 2^53, as far as float64
# knows every one.
_SMALLEST, _LARGEST, _STEPS = -32, 64, 53
_ABOVE_ZERO = float(np.nextafter(0.0, 1.0))


def threshold(sigma: float, cells: int, false_alarm: float = FALSE_ALARM) -> float:
    """Returns the count that a noisy count must exceed to stand out.

    Of `cells` empty cells with independent N(0, sigma²) noise the chance that any exceeds `sigma z` is at most
    `cells (1 - Φ(z))` (union), so z is the 1 - false_alarm / cells quantile. The noise of the clients' shares is a
    discrete Gaussian: to its last digit the same at such a sigma.

    >>> round(threshold(10.0, 195), 1)
    38.8
    """
    return sigma * NormalDist().inv_cdf(1.0 - false_alarm / max(1, cells))


@lru_cache(maxsize=64)
def universe(
    whole: bool, lower: float | None, upper: float | None, middle: float = 0.0, named: tuple[float, ...] = ()
) -> tuple[float, ...]:
    """Returns the ascending edges of all cells.

    Cell i holds edge i <= x < edge i + 1, and the outermost ones all that lies beyond.

    The middle has a cell of its own. From there the cells double to both sides: of whole numbers and zero {1}, {2, 3},
    {4 .. 7}, ...; else [2^-32, 2^-31), ....

    >>> universe(True, 0.0, 9.0)
    (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)
    >>> universe(True, 95.0, 105.0, 100.0)
    (95.0, 97.0, 99.0, 100.0, 101.0, 102.0, 104.0, 106.0)

    Args:
        whole: whether every number is a whole one; the last edge is then one beyond the largest.
        lower, upper: public bounds; None where they are private.
        middle: a whole number where others are finest; 0 where numbers are not whole.
        named: values that the schema calls frequent, each a cell. The cells stay disjoint, so a row is in one of them.
    """
    if whole:
        steps = [2.0**k for k in range(_STEPS)]
        edges = [middle + step for step in (*(1.0 - n for n in reversed(steps)), *steps)]
    else:
        powers = [2.0**k for k in range(_SMALLEST, _LARGEST + 1)]
        edges = [*(-x for x in reversed(powers)), 0.0, _ABOVE_ZERO, *powers]
    low = edges[0] if lower is None else lower
    high = edges[-1] if upper is None else upper + whole
    edges += [edge for value in named for edge in (value, value + 1.0 if whole else math.nextafter(value, math.inf))]
    edges = sorted(set(edges))
    if low == high or (not whole and high in named):  # one number
        high = math.nextafter(high, math.inf)
    return (low, *(edge for edge in edges if low < edge < high), high)


def places(edges: Floats, numbers: Floats) -> Integers:
    """Returns the cell of each number, (m,).

    A number beyond all cells gets the nearest one; missing numbers are left out.
    """
    known = numbers[~np.isnan(numbers)]
    cells: npt.NDArray[Any] = np.searchsorted(edges[1:-1], known, side="right")
    return cells.astype(np.int64, copy=False)


def histogram(edges: Floats, numbers: Floats) -> Integers:
    """Counts rows in each cell, (cells,).

    One row is in at most one of them.
    """
    return np.bincount(places(edges, numbers), minlength=len(edges) - 1)


def lone(edges: npt.ArrayLike, whole: bool) -> Flags:
    """Marks the cells that hold a single value, (cells,).

    >>> lone([0.0, 1.0, 2.0, 4.0], True).tolist()
    [True, True, False]
    """
    ends = np.asarray(edges, np.float64)
    behind = ends[:-1] + 1.0 if whole else np.nextafter(ends[:-1], np.inf)
    return np.asarray(ends[1:] == behind)


def heavy(counts: Floats, least: float, most: int) -> Flags:
    """Marks the cells that stand out with a bin's share, (cells,).

    Args:
        counts: (cells,) noisy rows.
        least: what stands out (`threshold`).
        most: bins: a cell with less than one in so many of the rows that stand out is none of its own.
    """
    standing = counts > least
    return np.asarray(standing & (counts >= counts[standing].sum() / most))


def range_around(counts: Floats, atoms: Flags, least: float) -> tuple[int, int, bool]:
    """Returns (first, last, found): the range of a column with atoms.

    It is the range of the other cells, and the atoms. Where none of the others stands out there is one of them all the
    same, beside the outermost atom: rows that are not of an atom shall not be counted as its. That cell is the next
    larger one, unless the cells below stand out together: the noise of k cells is sqrt(k) times that of one.

    Args:
        counts: (cells,) noisy rows.
        atoms: (cells,) which are values that many rows share.
        least: what stands out.
    """
    if not atoms.any():
        return significant_range(counts, least)
    first, last, found = significant_range(np.where(atoms, -np.inf, counts), least)
    ends = np.flatnonzero(atoms)
    low, high = int(ends[0]), int(ends[-1])
    if found:
        return min(first, low), max(last, high), True
    if atoms[low : high + 1].all() and high - low + 1 < len(counts):
        below, above = float(counts[:low].sum()), float(counts[high + 1 :].sum())
        upwards = high + 1 < len(counts) and not below > max(above, least * math.sqrt(low))
        low, high = (low, high + 1) if upwards else (low - 1, high)
    return low, high, False


def significant_range(counts: Floats, least: float) -> tuple[int, int, bool]:
    """Returns (first, last, found): the outermost significant cells.

    A cell is significant if its noisy count exceeds `least`.

    Where none does, the fullest one stands for all: a table too small for its noise gets a column of one bucket.
    """
    passing = np.flatnonzero(counts > least)
    if len(passing) == 0:
        fullest = int(np.argmax(counts))
        return fullest, fullest, False
    return int(passing[0]), int(passing[-1]), True


# The grid -------------------------------------------------------------------------------------------------------------

#: Most cells of a grid.
MOST_CELLS = 1024
# Cells that one block of the next width has. Four: half as many widths as with two, each of which a row pays for.
_BRANCHES = 4


def allot(edges: Sequence[float], counts: Floats, first: int, last: int, whole: bool) -> list[int]:
    """Allots cells of the grid to the buckets of the universe.

    Buckets outside the range get none.

    Half of the cells go by mass, half by the root of mass times width: with k bins the widths that make the sum of
    mass times width least go as one over the root of the density, so that is where cells are needed.

    Args:
        edges: of the universe.
        counts: (buckets,) noisy rows of each, zero where they did not stand out.
        first, last: of the range.
        whole: whether every number is a whole one.
    """
    inside = slice(first, last + 1)
    mass, width = np.maximum(counts[inside], 0.0), np.diff(np.asarray(edges))[inside]
    spread = np.sqrt(mass * width)
    shares = np.full(len(mass), 1.0 / len(mass))
    if mass.sum() > 0:
        shares = 0.5 * mass / mass.sum() + 0.5 * spread / spread.sum()
    room = MOST_CELLS - len(mass)  # one for each bucket
    cells = 1 + np.floor(shares * room).astype(np.int64)
    if whole:
        cells = np.minimum(cells, width.astype(np.int64))
    else:
        cells[lone(edges, whole)[inside]] = 1
    allotted = np.zeros(len(edges) - 1, np.int64)
    allotted[inside] = cells
    return [int(n) for n in allotted]


@lru_cache(maxsize=64)
def grid(edges: tuple[float, ...], cells: tuple[int, ...], whole: bool) -> tuple[float, ...]:
    """Returns the ascending edges of the grid.

    Each bucket of the universe is divided into its number of equal cells.

    Whole numbers are divided so that the parts' numbers of values differ by at most one.

    >>> grid((0.0, 1.0, 2.0, 4.0, 8.0), (0, 1, 2, 2), True)
    (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    """
    points: list[float] = []
    for low, high, parts in zip(edges, edges[1:], cells, strict=False):
        if parts == 0:
            continue
        if whole:
            inner = [low + part * int(high - low) // parts for part in range(parts)]
        else:
            inner = [low + (high - low) * part / parts for part in range(parts)]
        points += inner
        end = high
    return (*points, end)


def divisible(edges: tuple[float, ...], cells: Sequence[int], whole: bool) -> bool:
    """Returns whether such an allotment makes a grid.

    Buckets with cells must be neighbours, not too many, and no cell may be empty.
    """
    used = [i for i, n in enumerate(cells) if n > 0]
    if len(cells) != len(edges) - 1 or min(cells, default=-1) < 0 or not used or sum(cells) > MOST_CELLS:
        return False
    if used != list(range(used[0], used[-1] + 1)):
        return False
    points = grid(edges, tuple(cells), whole)
    return all(a < b for a, b in itertools.pairwise(points))


@lru_cache(maxsize=64)
def tree(cells: int) -> Hierarchy:
    """Returns the tree of blocks that a grid is counted in.

    There are blocks of 4, 16, 64, ... cells, every width with the same noise.
    """
    widths = [1]
    while widths[-1] * _BRANCHES < cells:
        widths.append(widths[-1] * _BRANCHES)
    return Hierarchy(cells, cells, tuple(widths), (1.0,) * len(widths))


def range_noise(tree: Hierarchy, sigma: float) -> float:
    """Returns a bound on the standard deviation of any range's rows.

    The rows come from least squares over a `tree` with noise sigma.

    sigma times the root of twice the number of widths, at least 2 sigma
    (tests/unit/private_bins/test_private_columns.py compares with the exact covariance).
    """
    return sigma * float(np.sqrt(max(4.0, 2.0 * len(tree.widths))))


# The bins -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NoisyGrid:
    """A grid and what was released of it.

    Attributes:
        edges: (cells + 1,) ascending.
        counts: (cells,) estimated rows; noise may make them negative.
        sigma: standard deviation of the noise of one cell, at most.
        noise: that of any range of cells, at most.
        alone: (cells,) which hold one value; None: none.
        named: places of cells that are atoms whatever their counts.
    """

    edges: Floats
    counts: Floats
    sigma: float
    noise: float
    alone: Flags | None = None
    named: Sequence[int] = ()

    def mass(self, start: int, end: int) -> float:
        return max(0.0, float(self.counts[start:end].sum()))

    def least(self, cells: npt.ArrayLike) -> Floats:
        """Returns the rows that stand out in a range of `cells` cells.

        It is two standard deviations.

        A bin too many costs a little accuracy, and no privacy: these are released values.
        """
        alone = self.sigma * np.sqrt(np.asarray(cells, dtype=np.float64))
        return 2.0 * np.minimum(alone, self.noise)


def cuts(cells: NoisyGrid, most: int, *, trim_low: bool, trim_high: bool) -> list[int]:
    """Returns indices of the grid's edges that become bin edges.

    They ascend, and make at most `most` bins.

    1. A cell with a bin's share of the rows, one in `most`, that stands out of all cells' noise (`threshold`) is a bin
       of its own: an atom (a zero that stands for "no"), or as much as the grid can tell. The range does not end at
       an atom: rows beyond it would be counted as its.
    2. Up to half of the bins: the bin with most rows is cut at its median, as long as both parts stand out: bins of
       about equal mass.
    3. Up to all of them: the bin where a cut lowers the sum of rows times width most, there: a row is drawn anywhere
       in its bin, so that sum bounds how far rows are moved. Long tails and gaps are cut here.

    No part is cut off that does not stand out of its noise by two standard deviations, unless it is empty for its
    width: so a small table, or a small budget, gets fewer bins. Of a thousand places some stand out so by chance.

    Args:
        cells: the grid.
        most: bins.
        trim_low, trim_high: whether the range may end before the grid does, on that side.
    """
    start, end = _outermost(cells, trim_low, trim_high)
    # 1. Atoms are bins of their own; the rest lies between them.
    least = max(cells.mass(start, end) / most, threshold(cells.sigma, end - start))
    own = sorted({*np.flatnonzero(cells.counts[start:end] >= least) + start, *cells.named})
    if own:
        start, end = min(start, own[0]), max(end, own[-1] + 1)
        end += int(trim_high and end < len(cells.counts) and own[-1] == end - 1 and _is_alone(cells, own[-1]))
        start -= int(trim_low and start > 0 and own[0] == start and _is_alone(cells, own[0]))
    parts: list[tuple[int, int]] = []
    begin = start
    for atom in map(int, own[:most]):
        if begin < atom:
            parts.append((begin, atom))
        parts.append((atom, atom + 1))
        begin = atom + 1
    if begin < end:
        parts.append((begin, end))
    parts = _joined(cells, parts, most)
    # 2. and 3. Cut where it gains most: by medians up to half of the bins, then by width.
    for half, cut in (((most + 1) // 2, _median), (most, _best)):
        while len(parts) < half:
            offers = [(gain, at, place) for place, part in enumerate(parts) for gain, at in [cut(cells, *part)]]
            gain, at, place = max(offers, default=(0.0, 0, 0))
            if gain <= 0:
                break
            low, high = parts[place]
            parts[place : place + 1] = [(low, at), (at, high)]
    return [parts[0][0], *(high for _, high in parts)]


def atoms_of(cells: NoisyGrid, cut: Sequence[int], most: int) -> list[int]:
    """Returns the cells of a value that many rows share.

    Each is a bin of `cut`, has a bin's share of the rows, and stands out, as in `cuts`.
    """
    start, end = cut[0], cut[-1]
    least = max(cells.mass(start, end) / most, threshold(cells.sigma, end - start))
    parts = set(itertools.pairwise(cut))
    return [i for i in range(start, end) if (i, i + 1) in parts and _is_alone(cells, i) and cells.counts[i] >= least]


def _is_alone(cells: NoisyGrid, cell: int) -> bool:
    return cells.alone is not None and bool(cells.alone[cell])


def _outermost(cells: NoisyGrid, trim_low: bool, trim_high: bool) -> tuple[int, int]:
    """Returns the range without ends that hold only noise.

    An end with more rows than the noise of its range is data: a long tail.
    """
    total = len(cells.counts)
    least = np.minimum(cells.least(np.arange(1, total + 1)), cells.noise)
    below, above = np.cumsum(cells.counts) > least, np.cumsum(cells.counts[::-1]) > least
    low = int(np.argmax(below)) if trim_low and below.any() else 0
    high = total - int(np.argmax(above)) if trim_high and above.any() else total
    return (low, high) if low < high else (0, total)


def _joined(cells: NoisyGrid, parts: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """No more than `most` parts: the lightest neighbours are put together."""
    while len(parts) > most:
        together = [cells.mass(a, d) for (a, _), (_, d) in itertools.pairwise(parts)]
        at = int(np.argmin(together))
        parts[at : at + 2] = [(parts[at][0], parts[at + 1][1])]
    return parts


def _median(cells: NoisyGrid, start: int, end: int) -> tuple[float, int]:
    """Returns (rows of the part, its cut into halves of equal mass).

    There is no gain where a half would not stand out.
    """
    if end - start < 2:
        return 0.0, start
    below = np.cumsum(np.maximum(cells.counts[start:end], 0.0))
    at = start + 1 + min(int(np.searchsorted(below, below[-1] / 2)), end - start - 2)
    halves = ((start, at), (at, end))
    stands_out = all(cells.mass(low, high) > cells.least(high - low) for low, high in halves)
    return (cells.mass(start, end) if stands_out else 0.0), at


def _best(cells: NoisyGrid, start: int, end: int) -> tuple[float, int]:
    """Returns (gain, place) of the best cut.

    The gain is how much it lowers rows times width, beyond what noise alone does.

    Cutting takes the rows of each part off the width of the other one.
    """
    if end - start < 2:
        return 0.0, start
    edges, size = cells.edges[start : end + 1], np.arange(1, end - start)
    below = np.cumsum(cells.counts[start:end])
    wide_low, wide_high = edges[1:-1] - edges[0], edges[-1] - edges[1:-1]
    low, high = np.maximum(below[:-1], 0.0), np.maximum(below[-1] - below[:-1], 0.0)
    noise = np.hypot(cells.least(size) * wide_high, cells.least(size[::-1]) * wide_low)
    gain = low * wide_high + high * wide_low - noise
    at = int(np.argmax(gain))
    return float(gain[at]), start + 1 + at
