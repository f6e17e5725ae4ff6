"""Ranges that cut bins: how likely each bin becomes, and values drawn inside them, as exactly as in a whole bin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Within:
    """Pieces of an ordered column's numbers, to which its draws are restricted.

    Inside a bin every number is equally likely, so a bin of which the pieces hold a share is that much less likely, and
    a number inside it is drawn from the pieces alone.

    >>> within = Within(np.array([0.0, 10.0, 20.0]), True, [(5.0, 10.0)])
    >>> within.weights.tolist()
    [0.5, 0.1]
    >>> sorted(set(within.draw(np.repeat([0, 1], 100), np.random.default_rng(0)).tolist()))
    [5, 6, 7, 8, 9, 10]

    Attributes:
        weights: (bins,) share of each bin's numbers that the pieces hold. Where the pieces are single points of a
            column of floats, which hold nothing of it: their number over the bin's width, as a density.

    Args:
        edges: (bins + 1,) ascending; the last one belongs to the last bin where numbers are not whole.
        whole: whether every number is a whole one.
        pieces: (lowest, highest) each, both included.
    """

    def __init__(self, edges: Floats, whole: bool, pieces: Sequence[tuple[float, float]]) -> None:
        self._whole, self._edges = whole, edges
        rows = [piece for low, high in _merged(pieces, whole) for piece in self._cut(low, high)]
        self._bin = np.array([row[0] for row in rows], dtype=np.int64)
        self._start = np.array([row[1] for row in rows], dtype=np.float64)
        self._spans = np.array([row[2] for row in rows], dtype=np.float64)
        widths = np.diff(edges)
        self._measures = self._spans if self._spans.any() else np.ones_like(self._spans)
        held = np.bincount(self._bin, self._measures, len(widths))
        self.weights: Floats = np.where(widths > 0, held / np.where(widths > 0, widths, 1.0), (held > 0) * 1.0)
        self._ends = np.cumsum(self._measures)

    def _cut(self, low: float, high: float) -> list[tuple[int, float, float]]:
        """(bin, first number, how much) of a piece in each bin that it meets."""
        edges = self._edges
        if self._whole:
            low, stop = np.ceil(low), np.floor(high) + 1
        else:
            stop = high
        first = min(max(0, int(np.searchsorted(edges, low, side="right")) - 1), len(edges) - 2)
        found = []
        for bin_ in range(first, len(edges) - 1):
            if edges[bin_] > high:
                break
            start, end = max(low, edges[bin_]), min(stop, edges[bin_ + 1])
            last = bin_ == len(edges) - 2
            # A single point belongs to the bin that it opens; the last bin has its upper edge, too.
            point = not self._whole and start == end and (low == high) and (start < edges[bin_ + 1] or last)
            if end > start or point:
                found.append((bin_, float(start), float(end - start)))
        return found

    def ends(self) -> tuple[Floats, Floats]:
        """(bins,) the smallest and the largest number of the pieces in each bin; of a bin without any, its own."""
        low, high = self._edges[:-1].copy(), self._edges[1:].copy()
        if self._whole:
            high -= 1
        else:
            high[:-1] = np.nextafter(high[:-1], low[:-1])
        met = np.unique(self._bin)
        first = np.searchsorted(self._bin, met, side="left")
        last = np.searchsorted(self._bin, met, side="right") - 1
        low[met] = self._start[first]
        high[met] = np.minimum(high[met], self._start[last] + self._spans[last] - (1 if self._whole else 0))
        return low, high

    def draw(self, codes: npt.NDArray[np.integer], rng: np.random.Generator) -> npt.NDArray[Any]:
        """(n,) numbers of (n,) bins, int64 where they are whole; one `rng.random` number each.

        A bin that no piece meets, which a model that heeds `weights` never gives, is drawn from as a whole.
        """
        uniform = rng.random(len(codes))
        low, high = self._edges[codes], self._edges[codes + 1]
        values = low + uniform * (high - low)
        met = np.isin(codes, self._bin)
        own, u = codes[met], uniform[met]
        before = np.searchsorted(self._bin, own, side="left")
        after = np.searchsorted(self._bin, own, side="right")
        base = self._ends[before] - self._measures[before]
        target = base + u * (self._ends[after - 1] - base)
        piece = np.clip(np.searchsorted(self._ends, target, side="right"), before, after - 1)
        offset = np.clip(target - (self._ends[piece] - self._measures[piece]), 0.0, None)
        if self._whole:
            values = np.floor(np.minimum(values, high - 1))
            values[met] = self._start[piece] + np.minimum(np.floor(offset), self._spans[piece] - 1)
            drawn: npt.NDArray[Any] = values.astype(np.int64)
            return drawn
        values[met] = self._start[piece] + np.minimum(offset, self._spans[piece])
        # Rounding may land on the upper edge, which belongs to the next bin, if there is one.
        last = codes == len(self._edges) - 2
        drawn = np.maximum(np.minimum(values, np.where(last, high, np.nextafter(high, low))), low)
        return drawn


def _merged(pieces: Sequence[tuple[float, float]], whole: bool) -> list[tuple[float, float]]:
    """The same numbers in ascending pieces that do not meet."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(pieces):
        if merged and low <= merged[-1][1] + (1 if whole else 0):
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
