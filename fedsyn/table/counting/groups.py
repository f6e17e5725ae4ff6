"""Marginals in groups of values: sums of the cells whose values share a group on every axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Of each attribute of a clique, the group of each value, 0 to its number of groups.
Groups = tuple[npt.NDArray[np.integer], ...]


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


__all__ = ["Groups", "group_of_cells", "sums_of_groups"]
