"""Who shares secrets with whom: the neighbour graph, its degree k and the threshold t, derived from what may go wrong.

n clients are asked; a fixed set C of at most c of them colludes with the server, a fixed set D of at most d drops out,
and the graph is drawn at random afterwards, so independently of both (Bell et al. 2020, Definition 3.1 and Section
3.4). The graph is theirs as well: a random circle on which everybody is joined to the h = k/2 next clients on either
side (a Harary graph with random labels), so each neighbourhood is a uniformly random k-subset of the other n - 1.

Three things must not happen.

1. Security: some honest client has t or more corrupted neighbours, who could open both of its secrets. Its number of
   corrupted neighbours is hypergeometric (n - 1, c, k); a union bound over the n - c honest clients gives
   (n - c) P[H(n - 1, c, k) >= t].
2. Security: the honest survivors fall apart into two groups without an edge between them; the server would then learn
   each group's sum. With m = c + d clients removed, two survivors next to each other on the circle are joined unless
   h or more in a row were removed between them. One such gap leaves the rest in one piece (the long way round), so the
   graph falls apart only if TWO disjoint windows of h positions are removed entirely. There are n (n - 2h + 1) / 2
   pairs of disjoint windows, and each is removed with probability [m]_2h / [n]_2h (falling factorials). Bounding the
   probability of a single gap instead would ask for up to twice the degree.
3. Correctness: some client keeps fewer than t surviving neighbours, so that a secret of it cannot be opened:
   n P[H(n - 1, d, k) >= k - t + 1].

(1) + (2) must be at most 2^-failure_bits, and so must (3). All are computed with exact integers. For few clients
they become zero, not merely small (k > c + d is enough), and when no k < n - 1 will do, the graph is full.

Not covered: clients that are corrupted, or made to drop out, BECAUSE of their place in the graph. A server that does
that is malicious; see `session.Session` for why that needs the full graph. Neither is the failure probability summed
over the many sums of a run: it is that of one sum.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg.primitives import key_stream


def hypergeometric_tail(population: int, marked: int, draws: int, least: int) -> Fraction:
    """P[at least `least` of `draws` drawn without replacement are among the `marked` of `population`], exactly."""
    if least <= 0:
        return Fraction(1)
    ways = sum(
        math.comb(marked, j) * math.comb(population - marked, draws - j) for j in range(least, min(marked, draws) + 1)
    )
    return Fraction(ways, math.comb(population, draws))


def disconnection_bound(n: int, removed: int, degree: int) -> Fraction:
    """Upper bound on P[the circle graph of n clients falls apart when `removed` random ones go] (2 above)."""
    window = degree // 2
    if removed < 2 * window:
        return Fraction(0)
    pairs = Fraction(n * (n - 2 * window + 1), 2)
    return pairs * Fraction(math.perm(removed, 2 * window), math.perm(n, 2 * window))


def full_threshold(n: int, corrupted: int, dropouts: int) -> int:
    """Threshold of the full graph: a majority (Bonawitz et al. 2017), within what the parameters allow.

    It must exceed the number of corrupted clients, and be at most n - 1 - dropouts: the neighbours of one client that
    are sure to survive.
    """
    return min(n - 1 - dropouts, max(corrupted + 1, n // 2 + 1))


@lru_cache(maxsize=256)
def derive(n: int, corrupted: int, dropouts: int, failure_bits: int) -> tuple[int, int]:
    """Smallest even degree k, and a threshold t, that satisfy 1-3 of the module's docstring; else the full graph's.

    Among the thresholds that satisfy them the largest is taken: a failure of correctness costs a sum, a failure of
    security a secret.
    """
    allowed = Fraction(1, 2**failure_bits)
    for degree in range(2, n - 1, 2):
        apart = disconnection_bound(n, corrupted + dropouts, degree)
        if apart > allowed:
            continue
        threshold = _largest_threshold(n, dropouts, degree, allowed)
        if threshold < 1:
            continue
        exposed = (n - corrupted) * hypergeometric_tail(n - 1, corrupted, degree, threshold)
        if exposed + apart <= allowed:
            return degree, threshold
    return n - 1, full_threshold(n, corrupted, dropouts)


def _largest_threshold(n: int, dropouts: int, degree: int, allowed: Fraction) -> int:
    """Largest t for which every client keeps t surviving neighbours (3 above), 0 if there is none."""
    lost = 0  # so many neighbours may be lost
    while lost < degree and n * hypergeometric_tail(n - 1, dropouts, degree, lost + 1) > allowed:
        lost += 1
    return degree - lost


@lru_cache(maxsize=8)
def neighbours(seed: bytes, n: int, degree: int) -> npt.NDArray[np.int64]:
    """(n, degree) positions of each client's neighbours, ascending in each row; a function of the public seed.

    Args:
        seed: 32 bytes.
        n: number of clients.
        degree: even and below n - 1, or n - 1 for the full graph.
    """
    if degree == n - 1:
        grid = np.broadcast_to(np.arange(n), (n, n))
        result = grid[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    else:
        # Sorting random words is a random order; its bias (equal words) is below n^2 / 2^65. A key stream, unlike
        # NumPy's permutation, is the same in every version of every library.
        circle = np.argsort(np.frombuffer(key_stream(seed, 8 * n), "<u8"), kind="stable")
        steps = np.concatenate([np.arange(-(degree // 2), 0), np.arange(1, degree // 2 + 1)])
        result = np.empty((n, degree), np.int64)
        result[circle] = np.sort(circle[(np.arange(n)[:, None] + steps) % n], axis=1)
    result.setflags(write=False)
    return result


def slots(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n, k): entry (i, s) is the place of client i in the row of its s-th neighbour; the graph is symmetric."""
    n, degree = table.shape
    flat = (table + n * np.arange(n)[:, None]).ravel()  # ascending, since every row is
    here = np.searchsorted(flat, table * n + np.arange(n)[:, None])
    return here - table * degree
