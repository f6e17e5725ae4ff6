"""The second look at a column of numbers: a grid within its range, finer where rows are, counted at several widths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.inference.hierarchy import Hierarchy

Floats = npt.NDArray[np.float64]

#: Most cells of a grid.
MOST_CELLS = 1024
# Cells that one block of the next width has. Four: half as many widths as with two, each of which a row pays for.
_BRANCHES = 4


def allot(edges: Sequence[float], counts: Floats, first: int, last: int, whole: bool) -> list[int]:
    """How many cells of the grid each bucket of the universe gets; none outside the range.

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
        cells[width < 1e-300] = 1  # zero alone
    allotted = np.zeros(len(edges) - 1, np.int64)
    allotted[inside] = cells
    return [int(n) for n in allotted]


@lru_cache(maxsize=64)
def grid(edges: tuple[float, ...], cells: tuple[int, ...], whole: bool) -> tuple[float, ...]:
    """Ascending edges of the grid: each bucket of the universe is divided into its number of equal cells.

    Whole numbers into parts whose numbers of numbers differ by at most one.

    >>> grid((0.0, 1.0, 2.0, 4.0, 8.0), (0, 1, 2, 2), True)
    (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    """
    found: list[float] = []
    for low, high, parts in zip(edges, edges[1:], cells, strict=False):
        if parts == 0:
            continue
        if whole:
            inner = [low + part * int(high - low) // parts for part in range(parts)]
        else:
            inner = [low + (high - low) * part / parts for part in range(parts)]
        found += inner
        end = high
    return (*found, end)


def divisible(edges: tuple[float, ...], cells: Sequence[int], whole: bool) -> bool:
    """Whether such an allotment makes a grid: neighbouring buckets with cells, not too many, and none of them empty."""
    used = [i for i, n in enumerate(cells) if n > 0]
    if len(cells) != len(edges) - 1 or min(cells, default=-1) < 0 or not used or sum(cells) > MOST_CELLS:
        return False
    if used != list(range(used[0], used[-1] + 1)):
        return False
    made = grid(edges, tuple(cells), whole)
    return all(a < b for a, b in itertools.pairwise(made))


@lru_cache(maxsize=64)
def tree(cells: int) -> Hierarchy:
    """Cells, and blocks of 4, 16, 64, ... of them: what is counted of a grid, every width with the same noise."""
    widths = [1]
    while widths[-1] * _BRANCHES < cells:
        widths.append(widths[-1] * _BRANCHES)
    return Hierarchy(cells, cells, tuple(widths), (1.0,) * len(widths))


def range_noise(tree: Hierarchy, sigma: float) -> float:
    """Bound of the standard deviation of any range's rows, by least squares over a `tree` with noise sigma.

    sigma times the root of twice the number of widths, at least 2 sigma
    (tests/unit/table/private_bins/test_private_bins.py compares with the exact covariance).
    """
    return sigma * float(np.sqrt(max(4.0, 2.0 * len(tree.widths))))
