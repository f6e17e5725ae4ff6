"""L1 distances of one table's marginals from given distributions, for many cliques at once.

Of each marginal only the cells that rows touch are read. A small client spends its time in the overhead of array calls,
one set of them per clique; here the cliques share them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.counting.marginals import cell_strides, count
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
    counts = np.diff(first, append=m * n)
    distinct = cells.ravel()[first]
    starts = np.searchsorted(first, np.arange(m) * n)
    bounds = [*starts.tolist(), len(first)]
    touched = np.concatenate([p[distinct[bounds[i] : bounds[i + 1]]] for i, p in enumerate(marginals)])
    inside = np.add.reduceat(np.abs(counts - size * touched), starts)
    outside = np.maximum(0.0, 1.0 - np.add.reduceat(touched, starts))
    return np.asarray(inside + size * outside)


# Distances of very many marginals ---------------------------------------------------------------------------------


class FlatLayout:
    """Where many marginals lie in one vector, one after the other, and which of them are equally long.

    Attributes:
        bounds: (m + 1,) first cell of each.
        groups: (positions, (k, cells) places of their cells) for each number of cells.
    """

    def __init__(self, domain: Domain, cliques: tuple[Clique, ...]) -> None:
        self.cliques = cliques
        self.sizes = np.array([domain.size(q) for q in cliques], np.int64)
        self.bounds = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        self.groups = []
        for cells in np.unique(self.sizes):
            which = np.flatnonzero(self.sizes == cells)
            self.groups.append((which, self.bounds[which][:, None] + np.arange(cells)))

    def sums(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(m,) sum of each marginal's cells: to the bit what summing each by itself gives."""
        out = np.empty(len(self.sizes))
        for which, places in self.groups:
            out[which] = values[places].sum(axis=1)
        return out


@lru_cache(maxsize=4)
def flat_layout(domain: Domain, cliques: tuple[Clique, ...]) -> FlatLayout:
    return FlatLayout(domain, cliques)


# Counts of tables of this process that may be asked for again: those of a simulation's clients, round after round.
_KEPT_BYTES = 1 << 28
_kept: OrderedDict[tuple[bytes, Domain], tuple[tuple[Clique, ...], npt.NDArray[np.int32]]] = OrderedDict()


def flat_counts(codes: npt.NDArray[np.integer], domain: Domain, cliques: tuple[Clique, ...]) -> npt.NDArray[np.int32]:
    """Counts of many marginals of a table as one vector, in the order of the cliques; kept for the next time.

    A table does not change in a run, but is asked for the same counts, or most of them, in every round. They are found
    by a hash of the rows, and the oldest are dropped.
    """
    if len(codes) >= 1 << 31:
        raise ValueError("too many rows for counts of 32 bits")
    digest = hashlib.blake2b(np.ascontiguousarray(codes).data, digest_size=32)
    digest.update(repr((codes.dtype.str, codes.shape)).encode())
    key = (digest.digest(), domain)
    if key in _kept:
        _kept.move_to_end(key)
        places = _places(domain, _kept[key][0], cliques)
        if places is not None:
            return _kept[key][1][places]
    flat = np.concatenate([counts.ravel() for counts in count(codes, domain, cliques)]).astype(np.int32)
    _kept[key] = (cliques, flat)
    while sum(kept.nbytes for _, kept in _kept.values()) > _KEPT_BYTES and len(_kept) > 1:
        _kept.popitem(last=False)
    return flat


@lru_cache(maxsize=2)
def _places(
    domain: Domain, kept: tuple[Clique, ...], wanted: tuple[Clique, ...]
) -> slice | npt.NDArray[np.int64] | None:
    """Where the cells of some marginals are among those of others; None if one of them is missing."""
    if kept == wanted:
        return slice(None)
    layout = flat_layout(domain, kept)
    position = {clique: i for i, clique in enumerate(kept)}
    if not all(clique in position for clique in wanted):
        return None
    which = np.array([position[clique] for clique in wanted])
    sizes = layout.sizes[which]
    return np.repeat(layout.bounds[which] - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))


@lru_cache(maxsize=8)
def _strides(domain: Domain, cliques: tuple[Clique, ...]) -> npt.NDArray[np.float64]:
    """(m, d) what a step in each attribute moves the flat cell of each clique's marginal by."""
    return cell_strides(domain, [domain.axes(clique) for clique in cliques]).astype(np.float64)
