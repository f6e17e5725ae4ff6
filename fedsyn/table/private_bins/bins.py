"""Where a column is cut into bins, from released counts of its grid: no row is looked at here, and nothing is paid."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NoisyGrid:
    """A grid and what was released of it.

    Attributes:
        edges: (cells + 1,) ascending.
        counts: (cells,) estimated rows; noise may make them negative.
        sigma: standard deviation of the noise of one cell, at most.
        noise: that of any range of cells, at most.
    """

    edges: Floats
    counts: Floats
    sigma: float
    noise: float

    def mass(self, start: int, end: int) -> float:
        return max(0.0, float(self.counts[start:end].sum()))

    def least(self, cells: npt.ArrayLike) -> Floats:
        """How many rows stand out in a range of `cells` cells: two standard deviations.

        A bin too many costs a little accuracy, and no privacy: these are released values.
        """
        alone = self.sigma * np.sqrt(np.asarray(cells, dtype=np.float64))
        return 2.0 * np.minimum(alone, self.noise)


def cuts(cells: NoisyGrid, most: int, *, trim_low: bool, trim_high: bool) -> list[int]:
    """Indices of the grid's edges that become the edges of the bins, ascending; at most `most` bins.

    1. A cell with a bin's share of the rows, one in `most`, is a bin of its own: an atom (a zero that stands for "no"),
       or as much as the grid can tell.
    2. Up to half of the bins: the bin with most rows is cut at its median, as long as both parts stand out: bins of
       about equal mass.
    3. Up to all of them: the bin where a cut lowers the sum of rows times width most, there: a row is drawn anywhere
       in its bin, so that sum bounds how far rows are moved. Long tails and gaps are cut here.

    No part is cut off that does not stand out of the noise, unless it is empty for its width: so a small table, or
    a small budget, gets fewer bins.

    Args:
        cells: the grid.
        most: bins.
        trim_low, trim_high: whether the range may end before the grid does, on that side.
    """
    start, end = _outermost(cells, trim_low, trim_high)
    heavy = max(cells.mass(start, end) / most, float(cells.least(1)))
    parts: list[tuple[int, int]] = []
    begin = start
    atoms = [i for i in range(start, end) if cells.counts[i] >= heavy]
    for atom in atoms[:most]:
        if begin < atom:
            parts.append((begin, atom))
        parts.append((atom, atom + 1))
        begin = atom + 1
    if begin < end:
        parts.append((begin, end))
    parts = _joined(cells, parts, most)
    for half, cut in (((most + 1) // 2, _median), (most, _best)):
        while len(parts) < half:
            offers = [(gain, at, place) for place, part in enumerate(parts) for gain, at in [cut(cells, *part)]]
            gain, at, place = max(offers, default=(0.0, 0, 0))
            if gain <= 0:
                break
            low, high = parts[place]
            parts[place : place + 1] = [(low, at), (at, high)]
    return [parts[0][0], *(high for _, high in parts)]


def _outermost(cells: NoisyGrid, trim_low: bool, trim_high: bool) -> tuple[int, int]:
    """The range without its ends, as far as they hold no more than the noise of a range: a longer tail is data."""
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
    """(rows of the part, where it is cut into halves of equal mass); no gain where a half would not stand out."""
    if end - start < 2:
        return 0.0, start
    below = np.cumsum(np.maximum(cells.counts[start:end], 0.0))
    at = start + 1 + min(int(np.searchsorted(below, below[-1] / 2)), end - start - 2)
    halves = ((start, at), (at, end))
    stands_out = all(cells.mass(low, high) > cells.least(high - low) for low, high in halves)
    return (cells.mass(start, end) if stands_out else 0.0), at


def _best(cells: NoisyGrid, start: int, end: int) -> tuple[float, int]:
    """(how much the best cut lowers rows times width, beyond what noise alone does, and where it is).

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
