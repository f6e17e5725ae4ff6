"""Boxes of codes over two columns each: range queries as a data holder without bounds and bins sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

#: Boxes that a message may bring.
MOST_BOXES = 4_096
# Comparisons of a row with a side that are held at a time: 2 million take about 20 MB.
_COMPARED_AT_ONCE = 1 << 21


def rows_inside(
    table: npt.NDArray[Any], axes: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Return the number of rows of a table in each of J boxes.

    Args:
        table: (n, d) codes or positions.
        axes, low, high: (J, k) columns, and their first and last values, both included.
    """
    found = np.zeros(len(axes), np.int64)
    columns = np.ascontiguousarray(table.T)
    step = max(1, _COMPARED_AT_ONCE // max(1, len(table)))
    for start in range(0, len(axes), step):
        block = slice(start, start + step)
        inside = np.ones((len(axes[block]), len(table)), dtype=bool)
        for axis, least, most in zip(axes[block].T, low[block].T, high[block].T, strict=True):
            at = columns[axis]
            inside &= (at >= least[:, None]) & (at <= most[:, None])
        found[block] = inside.sum(axis=1)
    return found


@dataclass(frozen=True, eq=False)
class Boxes:
    """J boxes; a box without codes (`high` below `low`) holds no row.

    Attributes:
        axes: (J, 2) int32 columns, different within a box.
        low, high: (J, 2) int32 first and last code, both included.
    """

    axes: npt.NDArray[np.int32]
    low: npt.NDArray[np.int32]
    high: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Boxes:
        return cls(*(np.zeros((0, 2), np.int32) for _ in range(3)))

    def __len__(self) -> int:
        return len(self.axes)

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        return [self.axes, self.low, self.high]

    def check(self, shape: tuple[int, ...]) -> None:
        """ValueError unless these are boxes over the columns of such a domain."""
        if any(a.dtype != np.int32 or a.ndim != 2 or a.shape[1] != 2 for a in (self.axes, self.low, self.high)):
            raise ValueError("boxes have other arrays")
        if not len(self.axes) == len(self.low) == len(self.high) <= MOST_BOXES:
            raise ValueError("the boxes' arrays have other lengths, or there are too many")
        if len(self) and (self.axes.min() < 0 or self.axes.max() >= len(shape) or (np.diff(self.axes) == 0).any()):
            raise ValueError("a box has columns that there are not, or one of them twice")
        if len(self) and ((self.low < 0) | (self.high >= np.array(shape)[self.axes])).any():
            raise ValueError("a box leaves the domain")

    def counts(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(J,) rows of an (n, d) table in each box."""
        return rows_inside(codes, self.axes, self.low, self.high)

    @cached_property
    def depth(self) -> int:
        """A number of boxes that no row is in more of, at least 1; from the boxes alone.

        With g_p(u, v) boxes of a pair p of columns around codes u and v, a row x is in
        sum_p g_p(x_a, x_b) <= sum over columns a of max_u (1/2) sum over pairs p with a of max_v g_p(u, v):
        each pair's term is halved over its two columns, and each half is bounded by its largest over the other column.
        """
        if not len(self):
            return 1
        total = 0
        for axis in np.unique(self.axes):
            total += self._deepest(int(axis))
        return max(1, total // 2)

    def _deepest(self, axis: int) -> int:
        """max over codes u of `axis` of the sum over other columns of max_v g(u, v)."""
        edges = np.unique(self.low[self.axes == axis])  # a deepest place of intervals is where one begins
        along = np.zeros(len(edges), np.int64)
        mine = (self.axes == axis).any(axis=1)
        first = np.where(self.axes[:, 0] == axis, 0, 1)
        rows = np.arange(len(self))
        other = self.axes[rows, 1 - first]
        for partner in np.unique(other[mine]):
            own = np.flatnonzero(mine & (other == partner))
            lo, hi = self.low[own, first[own]], self.high[own, first[own]]
            far_lo, far_hi = self.low[own, 1 - first[own]], self.high[own, 1 - first[own]]
            starts = np.unique(far_lo)
            near = (edges[:, None] >= lo[None, :]) & (edges[:, None] <= hi[None, :])
            far = (starts[:, None] >= far_lo[None, :]) & (starts[:, None] <= far_hi[None, :])
            along += (near.astype(np.int64) @ far.astype(np.int64).T).max(axis=1, initial=0)
        return int(along.max(initial=0))
