"""A client's exact counts, laid out for a sum of marginals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.counting.marginals import count_one_way, count_sparse_many
from fedsyn.domain import Clique, Domain
from fedsyn.wire.requests import Layout


@lru_cache(maxsize=8)
def _one_way_first(domain: Domain, cliques: tuple[Clique, ...]) -> bool:
    return cliques[: len(domain)] == tuple((name,) for name in domain)


def layout_counts(
    codes: npt.NDArray[np.integer], domain: Domain, layout: Layout, active: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Non-empty cells and counts of some marginals, laid out one after the other.

    Args:
        codes: (n, d) the client's rows.
        domain: its domain.
        layout: of the sum, of marginals.
        active: indices of the cliques to count, ascending.
    """
    cliques, offsets = layout.cliques, layout.offsets
    cells, counts = [], []
    rest = list(active)
    d = len(domain)
    if rest[:d] == list(range(d)) and _one_way_first(domain, cliques):
        # All one-way marginals come first, as in most sums: one histogram counts them together.
        one_way = count_one_way(codes, domain)
        cells.append(np.flatnonzero(one_way))
        counts.append(one_way[cells[0]])
        rest = rest[d:]
    for i, marginal in zip(rest, count_sparse_many(codes, domain, [cliques[i] for i in rest]), strict=True):
        cells.append(offsets[i] + marginal.cells)
        counts.append(marginal.counts)
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *cells]), np.concatenate([empty, *counts])
