"""Boxes over columns: random range queries, and the rows inside them.

Source: Li et al. 2026 (HeteroFedSyn), Eq. 5, drawn as the published code and Du & Li 2024 (SynMeter) do it: every set
of attributes is equally likely; on a numeric attribute the range from lo ~ U(lower, upper) to hi ~ U(lo, upper) of the
public bounds, on a categorical one a single value, every value equally likely; the label is an attribute like the
others. One departure: the queries come from a fixed seed and the schema alone, so that every run of a table answers the
same ones (the published code draws others each time). A missing number lies in no range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.evaluation.inputs import ColumnRange

#: Queries of every run of a table, and their public seed.
QUERIES, QUERY_SEED = 1_000, 20_260
#: Boxes that a message may bring.
MOST_BOXES = 4_096
# Comparisons of a row with a side that are held at a time: 2 million take about 20 MB.
_COMPARED_AT_ONCE = 1 << 21


def rows_inside(
    table: npt.NDArray[Any], axes: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Returns the number of a table's rows in each of J boxes.

    Args:
        table: (n, d) codes or positions.
        axes, low, high: (J, k) columns, and their first and last values, both included.
    """
    counts = np.zeros(len(axes), np.int64)
    columns = np.ascontiguousarray(table.T)
    step = max(1, _COMPARED_AT_ONCE // max(1, len(table)))
    for start in range(0, len(axes), step):
        block = slice(start, start + step)
        inside = np.ones((len(axes[block]), len(table)), dtype=bool)
        for axis, least, most in zip(axes[block].T, low[block].T, high[block].T, strict=True):
            at = columns[axis]
            inside &= (at >= least[:, None]) & (at <= most[:, None])
        counts[block] = inside.sum(axis=1)
    return counts


@dataclass(frozen=True, eq=False)
class RangeQueries:
    """Boxes of positions (see `EvaluationInput.positions`): Q queries over k attributes each.

    Attributes:
        axes: (Q, k) int64 column indices, different within a query.
        low, high: (Q, k) float64 bounds, both included.
    """

    axes: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def answers(self, positions: np.ndarray) -> np.ndarray:
        """Returns the share of rows inside each box, (Q,) float64.

        Takes (n, d) positions. The share is 0 for a table without rows.
        """
        return rows_inside(positions, self.axes, self.low, self.high) / max(1, len(positions))


def random_queries(
    domain: Domain, ranges: Mapping[str, ColumnRange], ways: int, number: int, rng: np.random.Generator
) -> RangeQueries:
    """Draws random boxes over `ways` different attributes.

    `number` of them, distributed as the module says.

    Raises:
        ValueError: the domain has fewer attributes.
    """
    if not 1 <= ways <= len(domain):
        raise ValueError(f"a query over {ways} attributes of a domain that has {len(domain)}")
    axes = np.argsort(rng.random((number, len(domain))), axis=1)[:, :ways]
    first, second = rng.random((2, number, ways))
    low = np.floor(first * np.array(domain.shape)[axes])
    high = low.copy()
    for name, column in ranges.items():
        chosen = axes == domain.axes((name,))[0]
        low[chosen] = column.lower + first[chosen] * (column.upper - column.lower)
        high[chosen] = low[chosen] + second[chosen] * (column.upper - low[chosen])
    return RangeQueries(axes, low, high)


@dataclass(frozen=True, eq=False)
class Boxes:
    """J boxes of codes over two columns each.

    Range queries as a data holder without bounds and bins sees them.

    A box without codes (`high` below `low`) holds no row.

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
        """Bound on the number of boxes that a row is in.

        It is at least 1, and follows from the boxes alone.

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
        """Returns the deepest sum over the codes of an axis.

        max over codes u of `axis` of the sum over other columns of max_v g(u, v).
        """
        edges = np.unique(self.low[self.axes == axis])  # a deepest place of intervals is where one begins
        along = np.zeros(len(edges), np.int64)
        mine = (self.axes == axis).any(axis=1)
        first = np.where(self.axes[:, 0] == axis, 0, 1)
        rows = np.arange(len(self))
        other = self.axes[rows, 1 - first]
        for partner in np.unique(other[mine]):
            boxes = np.flatnonzero(mine & (other == partner))
            lo, hi = self.low[boxes, first[boxes]], self.high[boxes, first[boxes]]
            far_lo, far_hi = self.low[boxes, 1 - first[boxes]], self.high[boxes, 1 - first[boxes]]
            starts = np.unique(far_lo)
            near = (edges[:, None] >= lo[None, :]) & (edges[:, None] <= hi[None, :])
            far = (starts[:, None] >= far_lo[None, :]) & (starts[:, None] <= far_hi[None, :])
            along += (near.astype(np.int64) @ far.astype(np.int64).T).max(axis=1, initial=0)
        return int(along.max(initial=0))
