"""Draws from some pieces of an ordered column's numbers.

Where ranges cut bins, `Within` says how likely each bin becomes, and draws values inside it as exactly as in a whole
bin. `Among` does so for a column whose only values are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Flags, Floats
from fedsyn.table.schema.inside import Inside


class Within:
    """Pieces of an ordered column's numbers, to which its draws are restricted.

    A bin of whose numbers the pieces hold a share is that much less likely, and a number inside it is drawn from the
    pieces alone. Inside a bin numbers are as likely as `inside` says: all equally, where nothing is said.

    >>> within = Within(np.array([0.0, 10.0, 20.0]), True, [(5.0, 10.0)])
    >>> within.weights.tolist()
    [0.5, 0.1]
    >>> sorted(set(within.draw(np.repeat([0, 1], 100), np.random.default_rng(0).random(200)).tolist()))
    [5, 6, 7, 8, 9, 10]

    Attributes:
        weights: (bins,) share of each bin's values that the pieces hold. Where the pieces are single points of a
            column of floats, which hold nothing of it: their number over the bin's width, as a density.

    Args:
        edges: (bins + 1,) ascending; the last one belongs to the last bin where numbers are not whole.
        whole: whether every number is a whole one.
        pieces: (lowest, highest) each, both included; ascending, and disjoint.
        inside: densities inside the bins.
        atoms: (bins,) which bins hold one value alone, all of whose rows a piece has that holds the value.
    """

    def __init__(
        self,
        edges: Floats,
        whole: bool,
        pieces: Sequence[tuple[float, float]],
        inside: Inside | None = None,
        atoms: Flags | None = None,
    ) -> None:
        self._whole, self._edges, self._inside = whole, edges, inside
        self._atoms = np.zeros(len(edges) - 1, dtype=bool) if atoms is None else atoms
        rows = [piece for low, high in pieces for piece in self._cut(low, high)]
        self._bin = np.array([row[0] for row in rows], dtype=np.int64)
        self._start = np.array([row[1] for row in rows], dtype=np.float64)
        self._spans = np.array([row[2] for row in rows], dtype=np.float64)
        widths: Floats = np.where((np.diff(edges) > 0) & ~self._atoms, np.diff(edges), 1.0)
        self._low, self._width = edges[self._bin], widths[self._bin]
        self._below = self._share(self._start)
        points = not self._spans.any()
        alone = self._atoms[self._bin]
        if points:
            # Beside a value that many rows share a single point of a density has no rows at all.
            measures = np.where(alone, 1.0, 0.0 if alone.any() else 1.0 / np.where(alone, 1.0, self._width))
        else:
            measures = np.where(alone, 1.0, self._share(self._start + self._spans) - self._below)
        self.weights: Floats = np.asarray(np.bincount(self._bin, measures, len(widths)), np.float64)
        self._measures = np.ones_like(measures) if points else measures
        self._ends = np.cumsum(self._measures)

    def _share(self, numbers: Floats) -> Floats:
        """(pieces,) share of their bins' values below some numbers of them."""
        place = (numbers - self._low) / self._width
        return place if self._inside is None else self._inside.share(self._bin, place)

    def _cut(self, low: float, high: float) -> list[tuple[int, float, float]]:
        """Cuts a piece at the edges of bins.

        Returns (bin, first number, how much) for each bin that the piece meets.
        """
        edges = self._edges
        if self._whole:
            low, stop = np.ceil(low), np.floor(high) + 1
        else:
            stop = high
        first = min(max(0, int(np.searchsorted(edges, low, side="right")) - 1), len(edges) - 2)
        pieces = []
        for bin_ in range(first, len(edges) - 1):
            if edges[bin_] > high:
                break
            start, end = max(low, edges[bin_]), min(stop, edges[bin_ + 1])
            last = bin_ == len(edges) - 2
            # A single point belongs to the bin that it opens; the last bin has its upper edge, too.
            point = not self._whole and start == end and (low == high) and (start < edges[bin_ + 1] or last)
            if end > start or point:
                pieces.append((bin_, float(start), float(end - start)))
        return pieces

    def ends(self) -> tuple[Floats, Floats]:
        """Returns the smallest and the largest number in each bin.

        Both are (bins,) and of the pieces in the bin. For a bin without any piece they are the bin's own.
        """
        low, high = self._edges[:-1].copy(), self._edges[1:].copy()
        if self._whole:
            high -= 1
        else:
            high[:-1] = np.nextafter(high[:-1], low[:-1])
            high = np.where(self._atoms, low, high)
        met = np.unique(self._bin)
        first = np.searchsorted(self._bin, met, side="left")
        last = np.searchsorted(self._bin, met, side="right") - 1
        low[met] = self._start[first]
        high[met] = np.minimum(high[met], self._start[last] + self._spans[last] - (1 if self._whole else 0))
        return low, high

    def draw(self, codes: Codes, uniform: Floats) -> npt.NDArray[Any]:
        """Draws a number in each of (n,) bins.

        Each comes from a uniform number of 0 to 1. Returns (n,) numbers, int64 where they are whole.

        A bin that no piece meets, which a model that heeds `weights` never gives, is drawn from as a whole.
        """
        low, high = self._edges[codes], self._edges[codes + 1]
        met = np.isin(codes, self._bin)
        bins, u = codes[met], uniform[met]
        before = np.searchsorted(self._bin, bins, side="left")
        after = np.searchsorted(self._bin, bins, side="right")
        base = self._ends[before] - self._measures[before]
        target = base + u * (self._ends[after - 1] - base)
        piece = np.clip(np.searchsorted(self._ends, target, side="right"), before, after - 1)
        offset = np.clip(target - (self._ends[piece] - self._measures[piece]), 0.0, None)
        start, span = self._start[piece], self._spans[piece]
        share = uniform.copy()
        share[met] = np.where(span > 0, self._below[piece] + offset, self._below[piece])
        values = low + (share if self._inside is None else self._inside.place(codes, share)) * (high - low)
        if self._whole:
            values = np.floor(np.minimum(values, high - 1))
            values[met] = np.clip(values[met], start, start + span - 1)
            drawn: npt.NDArray[Any] = values.astype(np.int64)
            return drawn
        values[met] = np.clip(values[met], start, start + span)
        # Rounding may land on the upper edge, which belongs to the next bin, if there is one.
        last = codes == len(self._edges) - 2
        drawn = np.maximum(np.minimum(values, np.where(last, high, np.nextafter(high, low))), low)
        return np.where(self._atoms[codes], low, drawn)


class Among:
    """Pieces of a column whose only values are listed; as `Within`.

    A listed value is in or out: its bin keeps its whole weight, or has none.

    Args:
        values: (bins,) ascending, one a bin.
        pieces: (lowest, highest) each, both included.
    """

    def __init__(self, values: Floats, pieces: Sequence[tuple[float, float]]) -> None:
        self._values = values
        inside = np.zeros(len(values), dtype=bool)
        for low, high in pieces:
            inside |= (values >= low) & (values <= high)
        self.weights: Floats = inside.astype(np.float64)

    def ends(self) -> tuple[Floats, Floats]:
        """Returns the value of each bin, twice."""
        return self._values, self._values
