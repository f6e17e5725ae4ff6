"""Sums and maxima over some axes of a contiguous table, in the way that NumPy does fast, with the bits that it gives.

NumPy reduces the middle axis of a contiguous three-axis view fast, several scattered axes at once slowly, and a short
last axis slowest of all: it pays some 25 ns for every row of it, so a maximum over rows of two costs thirty times one
over columns. Short rows are therefore turned into columns first, a block of them at a time. That changes no bit: a
maximum has no order, and fewer than eight numbers NumPy adds one after the other either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Rows are short, and turned, up to this width. Sums of more are pairwise in a row, but not down a column.
_WIDEST: dict[np.ufunc, int] = {np.maximum: 63, np.add: 7}
# A table with fewer cells takes less time than a second call.
_FEWEST_CELLS = 2048
#: Cells that are turned at once: in the second-level cache.
BLOCK_CELLS = 1 << 15


def inner_first(shape: Sequence[int], kept: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Reductions as three-axis views (before, reduced, after), the innermost run of axes first."""
    runs = _runs(shape, kept)
    steps = []
    after = 1
    for position in range(len(runs) - 1, -1, -1):
        keep, size = runs[position]
        if keep:
            after *= size
        elif size > 1:
            steps.append((math.prod(s for _, s in runs[:position]), size, after))
    return steps


def outer_first(shape: Sequence[int], kept: Sequence[bool]) -> list[tuple[int, int, int]]:
    """The same, the outermost run first: faster, for the rows of the first steps are longer. Sums get other bits."""
    runs = _runs(shape, kept)
    steps = []
    before = 1
    for position, (keep, size) in enumerate(runs):
        if keep:
            before *= size
        elif size > 1:
            steps.append((before, size, math.prod(s for _, s in runs[position + 1 :])))
    return steps


def _runs(shape: Sequence[int], kept: Sequence[bool]) -> list[tuple[bool, int]]:
    """Neighbouring axes with one fate as one."""
    runs: list[tuple[bool, int]] = []
    for size, keep in zip(shape, kept, strict=True):
        if runs and runs[-1][0] == keep:
            runs[-1] = (keep, runs[-1][1] * size)
        else:
            runs.append((keep, size))
    return runs


def turns(ufunc: np.ufunc, before: int, reduced: int, after: int) -> bool:
    """Whether a step is over short rows, and large enough that `reduce_rows` pays."""
    return after == 1 and reduced <= _WIDEST[ufunc] and before * reduced >= _FEWEST_CELLS


def reduce_rows(ufunc: np.ufunc, table: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> None:
    """`ufunc.reduce(table, 1, None, out)`, by columns.

    Args:
        ufunc: np.add for fewer than eight columns, or np.maximum.
        table: (rows, columns) C-contiguous.
        out: (rows,).
        scratch: (BLOCK_CELLS,) float64, overwritten.
    """
    rows, width = table.shape
    step = len(scratch) // width
    for start in range(0, rows, step):
        part = table[start : start + step]
        columns = scratch[: part.size].reshape(width, len(part))
        np.copyto(columns, part.T)
        ufunc.reduce(columns, 0, None, out[start : start + step])
