"""What a projection onto distributions must not move: one-way marginals, and first moments of pairs.

A fit to signed tables sets negative cells to zero and keeps positive ones. In a cell that is nearly empty this adds a
part of the noise, and in a row of such cells the parts add up: means go towards the tails, coefficients towards zero.
The sums themselves, of a row or of x y over a pair, are known without bias and with far less noise than their cells.
So what a fit missed of them is added to what it is asked for, and it is fitted again (Bregman iteration, Osher et al.
2005).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedsyn.inference.grids import Grid

Floats = npt.NDArray[np.float64]


class Held:
    """The held sums on some grids, from unbiased tables.

    Args:
        grids: of the measurements.
        aims: signed counts on each grid; they agree with each other.
        one_way: rank -> the signed counts of its values.
    """

    def __init__(self, grids: Sequence[Grid], aims: Sequence[Floats], one_way: Mapping[int, Floats]) -> None:
        self.grids = grids
        self.aims = aims
        self._one_way = {rank: nearest_counts(counts) for rank, counts in one_way.items()}

    def corrected(self, given: Sequence[Floats], fitted: Sequence[Floats]) -> list[Floats]:
        """What the next fit is asked for, so that it comes to the held sums.

        Args:
            given: what the last one was asked for, on each grid.
            fitted: what it came to; not negative.
        """
        return [
            table + sum(self._missing(grid, aim, now), np.zeros(()))
            for grid, table, aim, now in zip(self.grids, given, self.aims, fitted, strict=True)
        ]

    def _missing(self, grid: Grid, aim: Floats, now: Floats) -> Iterator[Floats]:
        """Tables, in the proportions of the fit where they can be, with what it misses of each sum."""
        for rank in grid.ranks:
            margin = grid.margin(now, (rank,))
            missed = grid.of_values(rank, self._one_way[rank]) - margin
            yield now * grid.across(missed / np.where(margin > 0, margin, 1.0), (rank,))
        for pair in combinations(grid.ranks, 2):
            joint = grid.margin(now, pair)
            first, second = (self._scores(grid, rank) for rank in pair)
            moment = np.multiply.outer(_centred(first, joint.sum(axis=1)), _centred(second, joint.sum(axis=0)))
            spread = float(np.add.reduce(joint * moment**2, None))
            if spread > 0:
                short = float(np.add.reduce((grid.margin(aim, pair) - joint) * moment, None))
                yield now * grid.across(moment * (short / spread), pair)

    def _scores(self, grid: Grid, rank: int) -> Floats:
        """0, 1, ... for the values, of a group their mean."""
        counts = self._one_way[rank] + 1e-9  # an empty group has the mean of its values
        return grid.of_values(rank, counts * np.arange(len(counts))) / grid.of_values(rank, counts)


def _centred(scores: Floats, margin: Floats) -> Floats:
    return scores - np.average(scores, weights=margin)


def nearest_counts(counts: Floats) -> Floats:
    """The nearest non-negative numbers with the same sum, which is positive (Euclidean projection on a simplex)."""
    total = float(np.add.reduce(counts))
    ordered = np.sort(counts)[::-1]
    over = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    shift = over[np.flatnonzero(ordered > over)[-1]]
    return np.asarray(np.maximum(counts - shift, 0.0))
