"""Sums over tables: residuals of marginals, groups of values, and inner products.

Of a marginal of k >= 2 attributes with g_1 x ... x g_k cells, G in all, the residual is R M = M - sum_a M_a g_a/G +
(k - 1) n/G: the orthogonal projection onto the tables whose one-way marginals are all 0, the sum of the residual spaces
of all subsets of two attributes and more (McKenna et al. 2020; ResidualPlanner, Xiao et al. 2023). Of one attribute it
is M - n/g, what is beyond the total.

One row is one cell's unit table, so it adds one column of R, and all columns have the same norm, since R commutes with
every renaming of values: ||R e||^2 = trace(R)/G = `cost`. That is (1 - 1/g_1)(1 - 1/g_2) of a pair, a quarter where
both are binary, and half of three binary attributes. G R is a matrix of integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Floats, Integers


def dimensions(shape: Sequence[int]) -> int:
    """Returns the dimension of the space of residuals.

    It is the trace of R, and 0 if the parts explain everything.

    >>> dimensions((2,)), dimensions((2, 2)), dimensions((3, 4)), dimensions((2, 2, 2)), dimensions((1, 5))
    (1, 1, 6, 4, 0)
    """
    if len(shape) == 1:
        return shape[0] - 1
    return math.prod(shape) - 1 - sum(g - 1 for g in shape)


def cost(shape: Sequence[int]) -> float:
    """Returns the squared L2 norm that one row adds.

    The row adds it to the residual. It would be 1 for the counts themselves.
    """
    return dimensions(shape) / math.prod(shape)


def times_cells(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns G R M of a marginal in its shape.

    Integers give integers, at most G n in absolute value.
    """
    out: npt.NDArray[Any] = table.size * table + (table.ndim - 1) * table.sum()
    if table.ndim == 1:
        out = out - table.sum()
        return out
    for axis, size in enumerate(table.shape):
        others = tuple(other for other in range(table.ndim) if other != axis)
        out = out - size * table.sum(axis=others, keepdims=True)
    return out


def residual(table: Floats) -> Floats:
    """R M of a marginal in its shape."""
    if table.ndim == 1:
        return np.asarray(table - np.add.reduce(table) / len(table))
    out = table + (table.ndim - 1) * (np.add.reduce(table, None) / table.size)
    for axis, size in enumerate(table.shape):
        others = tuple(other for other in range(table.ndim) if other != axis)
        out -= np.add.reduce(table, others, keepdims=True) * (size / table.size)
    return np.asarray(out)


# Groups ---------------------------------------------------------------------------------------------------------------


#: Of each attribute of a clique, the group of each value, 0 to its number of groups.
Groups = tuple[Codes, ...]


def group_of_cells(groups: Sequence[Codes]) -> tuple[Integers, int]:
    """Returns the group of each cell of a marginal.

    Args:
        groups: of each attribute, the group of each of its values.

    Returns:
        (cells,) group of each cell, cells and groups in C order, and the number of groups.

    >>> index, length = group_of_cells([np.array([0, 0, 1]), np.array([0, 1])])
    >>> index.tolist(), length
    ([0, 1, 0, 1, 2, 3], 4)
    """
    index, length = np.zeros(1, np.int64), 1
    for group in groups:
        count = int(np.max(group)) + 1
        index, length = (index[:, None] * count + np.asarray(group, np.int64)).ravel(), length * count
    return index, length


def sums_of_groups(index: Codes, values: npt.NDArray[np.number], length: int = 0) -> Floats:
    """Returns the sum of the values in each group, (groups,).

    There are at least `length` sums.
    """
    return np.bincount(index, values, length).astype(np.float64, copy=False)


# Reductions -----------------------------------------------------------------------------------------------------------


def dot(a: Floats, b: Floats) -> float:
    """Returns the inner product of two vectors.

    Uses einsum rather than BLAS, whose order of summation depends on kernel and threads.
    """
    return float(np.einsum("i,i->", a, b))


def norm(a: Floats) -> float:
    """Euclidean norm of a vector: `np.linalg.norm` takes it from BLAS."""
    return math.sqrt(dot(a, a))
