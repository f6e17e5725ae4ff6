"""L1 distances of one table's marginals from given distributions, for many cliques at once.

Of each marginal only the cells that rows touch are read. A small client spends its time in the overhead of array calls,
one set of them per clique; here the cliques share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.counting.marginals import cell_strides
from fedsyn.domain import Clique, Domain

# Cell numbers that are held at a time, 8 bytes each.
_AT_ONCE = 1 << 20


def touched_distances(
    codes: npt.NDArray[np.integer],
    domain: Domain,
    cliques: Sequence[Clique],
    marginals: Sequence[npt.NDArray[np.float64]],
    size: float,
) -> npt.NDArray[np.float64]:
    """||M_q(D) - size * p_q||_1 of each clique q, in records; p_q has outside of the touched cells what is left to 1.

    Args:
        codes: (n, d) rows.
        domain: their domain.
        cliques: m cliques of fewer than 2^53 cells each.
        marginals: their distributions, flat; each sums to 1.
        size: number of records to scale the distributions to.

    Returns:
        (m,) float64; sums are pairwise, exact to a few units in the last place.
    """
    n = len(codes)
    if n == 0:
        return np.full(len(cliques), float(size))
    distances = np.empty(len(cliques))
    columns = codes.T.astype(np.float64)  # BLAS is fast, and exact up to 2^53 in any order of addition
    strides = _strides(domain, tuple(cliques))
    step = max(1, _AT_ONCE // n)
    for start in range(0, len(cliques), step):
        block = slice(start, start + step)
        cells = (strides[block] @ columns).astype(np.int64)
        distances[block] = _of_cells(cells, marginals[block], size)
    return distances


def _of_cells(
    cells: npt.NDArray[np.int64], marginals: Sequence[npt.NDArray[np.float64]], size: float
) -> npt.NDArray[np.float64]:
    """Distances from (m, n) flat cells, those of each row of the table in each of m marginals."""
    m, n = cells.shape
    cells.sort(axis=1)
    begins = np.ones((m, n), bool)
    np.not_equal(cells[:, 1:], cells[:, :-1], out=begins[:, 1:])
    first = np.flatnonzero(begins)
    counts = _gaps(first, m * n)
    distinct = cells.ravel()[first]
    starts = np.searchsorted(first, np.arange(m) * n)
    bounds = [*starts.tolist(), len(first)]
    touched = np.concatenate([p[distinct[bounds[i] : bounds[i + 1]]] for i, p in enumerate(marginals)])
    inside = np.add.reduceat(np.abs(counts - size * touched), starts)
    outside = np.maximum(0.0, 1.0 - np.add.reduceat(touched, starts))
    return np.asarray(inside + size * outside)


def _gaps(first: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """Lengths of runs that begin at `first` and fill up to `end`; np.diff costs a few runs several times as much."""
    lengths = np.empty_like(first)
    np.subtract(first[1:], first[:-1], out=lengths[:-1])
    lengths[-1:] = end - first[-1:]
    return lengths


@lru_cache(maxsize=8)
def _strides(domain: Domain, cliques: tuple[Clique, ...]) -> npt.NDArray[np.float64]:
    """(m, d) what a step in each attribute moves the flat cell of each clique's marginal by."""
    return cell_strides(domain, [domain.axes(clique) for clique in cliques]).astype(np.float64)
