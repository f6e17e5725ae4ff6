"""What a projection onto distributions must not move: one-way marginals, and first moments of pairs.

A fit to signed tables sets negative cells to zero and keeps positive ones. In a cell that is nearly empty this adds a
part of the noise, and in a row of such cells the parts add up: means go towards the tails, coefficients towards zero.
The sums themselves, of a row or of x y over a pair, are known without bias and with far less noise than their cells.
So what a fit missed of them is added to what it is asked for, and it is repeated (Bregman iteration, Osher et al. 2005).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedsyn.inference.calibrate import broadcast_shape, sum_out
from fedsyn.inference.triangulation import Axes, bits

Floats = npt.NDArray[np.float64]


class Held:
    """The held sums of some cliques, from unbiased tables.

    Args:
        axes: of the domain.
        aims: mask -> signed table in counts, axes by rank; they agree with each other.
    """

    def __init__(self, axes: Axes, aims: Mapping[int, Floats]) -> None:
        self.axes = axes
        self.aims = aims
        self._one_way: dict[int, Floats] = {}
        for mask in sorted(aims, key=axes.cells):
            for rank in bits(mask):
                if rank not in self._one_way:
                    self._one_way[rank] = nearest_counts(sum_out(aims[mask], axes, mask, 1 << rank))

    def corrected(self, given: Mapping[int, Floats], fitted: Mapping[int, Floats]) -> dict[int, Floats]:
        """What the next fit is asked for, so that it comes to the held sums.

        Args:
            given: what the last one was asked for, by mask.
            fitted: what it came to; not negative.
        """
        out = {}
        for mask, table in given.items():
            now = np.maximum(fitted[mask], 0.0)
            out[mask] = table + sum(self._missing(mask, now), np.zeros_like(table))
        return out

    def _missing(self, mask: int, now: Floats) -> Iterator[Floats]:
        """Tables over `mask`, in the proportions of the fit where they can be, with what it misses of each sum."""
        for rank in bits(mask):
            margin = sum_out(now, self.axes, mask, 1 << rank)
            ratio = (self._one_way[rank] - margin) / np.where(margin > 0, margin, 1.0)
            yield now * ratio.reshape(broadcast_shape(self.axes, 1 << rank, mask))
        for first, second in combinations(bits(mask), 2):
            pair = 1 << first | 1 << second
            joint = sum_out(now, self.axes, mask, pair)
            moment = np.multiply.outer(_centred(joint.sum(axis=1)), _centred(joint.sum(axis=0)))
            spread = float(np.add.reduce(joint * moment**2, None))
            if spread > 0:
                aim = sum_out(self.aims[mask], self.axes, mask, pair)
                missed = float(np.add.reduce((aim - joint) * moment, None))
                yield now * (moment * missed / spread).reshape(broadcast_shape(self.axes, pair, mask))


def _centred(margin: Floats) -> Floats:
    """Scores 0, 1, ... of values beside their mean."""
    scores = np.arange(len(margin), dtype=np.float64)
    return scores - np.average(scores, weights=margin)


def nearest_counts(counts: Floats) -> Floats:
    """The nearest non-negative numbers with the same sum, which is positive (Euclidean projection on a simplex)."""
    total = float(np.add.reduce(counts))
    ordered = np.sort(counts)[::-1]
    over = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    shift = over[np.flatnonzero(ordered > over)[-1]]
    return np.asarray(np.maximum(counts - shift, 0.0))
