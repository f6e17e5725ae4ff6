"""Counts of very many pairs of attributes, as products of 0/1 columns.

One array call per pair costs ten times what counting a few thousand rows does. Written as 0/1 columns, one for each
value, a table X has all its two-way counts in X^T X. Sums of ones below 2^24 are exact in single precision, in whatever
order and on however many threads a BLAS adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain

# Rows that are multiplied at a time: their 0/1 columns take 4 bytes each, and their counts stay exact.
_ROWS = 1 << 12
# Attributes of more values are counted one pair at a time: their products would mostly add zeros.
_LARGEST_SIZE = 32
# Columns of the left factor at a time; with all those of the right one they bound the product.
_LEFT = 1 << 10
# Seconds that a pair costs by itself, and that each of its rows adds; seconds of a multiplication (measured).
_PER_PAIR, _PER_ROW, _PER_PRODUCT = 1e-5, 2.5e-9, 4e-11

Axes = tuple[int, ...]


def worth_multiplying(shape: Sequence[int], axes: Sequence[Axes], rows: int) -> list[int]:
    """Positions of the cliques that are counted faster by products, all together: none, or every small pair."""
    pairs = [i for i, q in enumerate(axes) if len(q) == 2 and max(shape[q[0]], shape[q[1]]) <= _LARGEST_SIZE]
    columns = sum(shape[axis] for axis in {axis for i in pairs for axis in axes[i]})
    singly = len(pairs) * (_PER_PAIR + _PER_ROW * rows)
    together = _PER_PRODUCT * rows * columns**2 / 2 + _PER_PAIR * (10 + len(pairs) / 5)
    return pairs if together < singly else []


def count_pairs(
    codes: npt.NDArray[np.integer], domain: Domain, pairs: Sequence[tuple[int, int]]
) -> list[npt.NDArray[np.int64]]:
    """Flat counts of some pairs, in C order of the given order of their two columns.

    Args:
        codes: (n, d) rows.
        domain: their domain.
        pairs: two different columns each.
    """
    plan = _plan(domain.shape, tuple(pairs))
    total = np.zeros(plan.length, np.int64)
    for start in range(0, len(codes), _ROWS):
        part = codes[start : start + _ROWS][:, plan.axes]
        ones = np.zeros((len(part), plan.columns), np.float32)
        ones[np.arange(len(part))[:, None], part + plan.starts] = 1.0
        for left, right, target, source in plan.blocks:
            product = ones[:, left].T @ ones[:, right]
            total[target] += product.ravel()[source].astype(np.int64)
    return np.split(total, plan.bounds[1:-1])


class _Plan:
    """Which products hold which pairs.

    Attributes:
        axes: the attributes that take part, ascending.
        starts: first 0/1 column of each.
        columns: number of 0/1 columns.
        blocks: (columns of the left factor, of the right one, cells of the result, where the product has them).
        bounds: (m + 1,) first cell of each pair in the result.
    """

    def __init__(self, shape: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> None:
        self.axes = sorted({axis for pair in pairs for axis in pair})
        sizes = np.array([shape[axis] for axis in self.axes], np.int64)
        ends = np.cumsum(sizes)
        self.starts, self.columns = ends - sizes, int(ends[-1])
        position = {axis: i for i, axis in enumerate(self.axes)}
        first = np.array([position[a] for a, _ in pairs])
        second = np.array([position[b] for _, b in pairs])
        cells = sizes[first] * sizes[second]
        self.bounds = np.concatenate([[0], np.cumsum(cells)]).astype(np.int64)
        self.length = int(self.bounds[-1])
        low = np.minimum(first, second)
        self.blocks = []
        begin = 0
        while begin < len(self.axes):
            end = int(np.searchsorted(ends, self.starts[begin] + _LEFT, side="right"))
            end = max(end, begin + 1)
            chosen = np.flatnonzero((low >= begin) & (low < end))
            if len(chosen):
                left = slice(int(self.starts[begin]), int(ends[end - 1]))
                right = slice(int(self.starts[begin]), self.columns)
                self.blocks.append((left, right, *self._cells(chosen, first, second, sizes, right)))
            begin = end

    def _cells(
        self,
        chosen: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        right: slice,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cells of the chosen pairs in the result, and in the product of a block, flat."""
        width = self.columns - right.start
        lengths = self.bounds[chosen + 1] - self.bounds[chosen]
        pair = np.repeat(chosen, lengths)
        inside = np.arange(len(pair)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        i, j = np.divmod(inside, sizes[second[pair]])
        a, b = self.starts[first[pair]] + i - right.start, self.starts[second[pair]] + j - right.start
        swapped = first[pair] > second[pair]
        return self.bounds[pair] + inside, np.where(swapped, b, a) * width + np.where(swapped, a, b)


@lru_cache(maxsize=4)
def _plan(shape: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> _Plan:
    return _Plan(shape, pairs)
