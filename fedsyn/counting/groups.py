"""Marginals in groups of values: sums of the cells whose values share a group on every axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Of each attribute of a clique, the group of each value, 0 to its number of groups.
Groups = tuple[npt.NDArray[np.integer], ...]


def shape_of_groups(groups: Groups) -> tuple[int, ...]:
    """Groups of each attribute."""
    return tuple(int(own.max()) + 1 for own in groups)


def group_of_cells(groups: Sequence[npt.NDArray[np.integer]]) -> tuple[npt.NDArray[np.int64], int]:
    """(cells,) group of each cell of a marginal, both in C order, from those of the attributes' values; how many.

    >>> index, length = group_of_cells([np.array([0, 0, 1]), np.array([0, 1])])
    >>> index.tolist(), length
    ([0, 1, 0, 1, 2, 3], 4)
    """
    index, length = np.zeros(1, np.int64), 1
    for own in groups:
        count = int(np.max(own)) + 1
        index, length = (index[:, None] * count + np.asarray(own, np.int64)).ravel(), length * count
    return index, length


def sums_of_groups(
    index: npt.NDArray[np.integer], values: npt.NDArray[np.number], length: int = 0
) -> npt.NDArray[np.float64]:
    """(groups,) sum of the values in each group, at least `length` of them."""
    return np.bincount(index, values, length).astype(np.float64, copy=False)


def counts_in_groups(table: npt.NDArray[np.int64], groups: Groups) -> npt.NDArray[np.int64]:
    """Integer counts, (cells) in the clique's shape, as exact counts in the groups' shape.

    A row is in one cell, a cell in one group: one row moves one count by 1, whatever the groups.
    """
    for axis, own in enumerate(groups):
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(int(own.max()) + 1))
        table = np.add.reduceat(table.take(order, axis), starts, axis)
    return table


__all__ = ["Groups", "counts_in_groups", "group_of_cells", "shape_of_groups", "sums_of_groups"]
