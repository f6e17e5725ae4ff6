"""L1 distances of one table's marginals from given distributions, for many cliques at once.

Of each marginal only the cells that rows touch are read. A small client spends its time in the overhead of array calls,
one set of them per clique; here the cliques share them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.table.counting.marginals import cell_strides, count, runs_of

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
    strides = cell_strides(domain, tuple(domain.axes(clique) for clique in cliques))
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
    distinct, counts, bounds = runs_of(cells)
    starts = bounds[:-1]
    touched = np.concatenate([p[distinct[bounds[i] : bounds[i + 1]]] for i, p in enumerate(marginals)])
    inside = np.add.reduceat(np.abs(counts - size * touched), starts)
    outside = np.maximum(0.0, 1.0 - np.add.reduceat(touched, starts))
    return np.asarray(inside + size * outside)


# Distances of very many marginals ---------------------------------------------------------------------------------


class FlatLayout:
    """Where many marginals lie in one vector, one after the other, and which of them are equally long.

    Attributes:
        cliques: m cliques.
        sizes: (m,) cells of each.
        bounds: (m + 1,) first cell of each.
    """

    def __init__(self, domain: Domain, cliques: tuple[Clique, ...]) -> None:
        self.domain, self.cliques = domain, cliques
        self.sizes = np.array([domain.size(q) for q in cliques], np.int64)
        self.bounds = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def groups(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """(positions, (k, cells) places of their cells) of the k marginals of each number of cells."""
        which = [np.flatnonzero(self.sizes == cells) for cells in np.unique(self.sizes)]
        return [(some, self.bounds[some][:, None] + np.arange(self.sizes[some[0]])) for some in which]

    @cached_property
    def by_length(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """(positions, (k, length) domain columns) of the k cliques of each number of attributes."""
        lengths = np.array([len(q) for q in self.cliques], np.int64)
        which = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        return [(some, np.array([self.domain.axes(self.cliques[i]) for i in some])) for some in which]

    def sums(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(m,) sum of each marginal's cells: to the bit what summing each by itself gives."""
        out = np.empty(len(self.sizes))
        for which, places in self.groups:
            out[which] = values[places].sum(axis=1)
        return out


_layouts: deque[FlatLayout] = deque(maxlen=8)


def flat_layout(domain: Domain, cliques: Sequence[Clique]) -> FlatLayout:
    """The layout of some marginals; the last few are kept.

    They are found by comparing and not by a hash, which would be computed for every name each time.
    """
    wanted = tuple(cliques)
    for layout in _layouts:
        if layout.cliques == wanted and layout.domain == domain:
            return layout
    _layouts.appendleft(FlatLayout(domain, wanted))
    return _layouts[0]


# Counts of tables of this process that may be asked for again: those of a simulation's clients, round after round.
_KEPT_BYTES = 1 << 28
_kept: OrderedDict[tuple[bytes, Domain], dict[Clique, npt.NDArray[np.int32]]] = OrderedDict()


def flat_counts(codes: npt.NDArray[np.integer], layout: FlatLayout) -> npt.NDArray[np.int32]:
    """Counts of many marginals of a table as one vector; kept for the next time.

    A table does not change in a run, but is asked for the same counts, or most of them, in every round. They are found
    by a hash of the rows, and the oldest are dropped.
    """
    if len(codes) >= 1 << 31:
        raise ValueError("too many rows for counts of 32 bits")
    digest = hashlib.blake2b(np.ascontiguousarray(codes).data, digest_size=32)
    digest.update(repr((codes.dtype.str, codes.shape)).encode())
    key = (digest.digest(), layout.domain)
    known = _kept.setdefault(key, {})
    _kept.move_to_end(key)
    new = [clique for clique in layout.cliques if clique not in known]
    if new:
        for clique, counts in zip(new, count(codes, layout.domain, new), strict=True):
            known[clique] = counts.ravel().astype(np.int32)
        while sum(kept.nbytes for table in _kept.values() for kept in table.values()) > _KEPT_BYTES and len(_kept) > 1:
            _kept.popitem(last=False)
    return np.concatenate([np.zeros(0, np.int32), *(known[clique] for clique in layout.cliques)])
