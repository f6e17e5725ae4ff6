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
    first, last = max(least, draws - population + marked), min(marked, draws)
    if first > last:
        return Fraction(0)
    ways = term = math.comb(marked, first) * math.comb(population - marked, draws - first)
    for j in range(first, last):  # each term from the one before: the division leaves no rest
        term = term * ((marked - j) * (draws - j)) // ((j + 1) * (population - marked - draws + j + 1))
        ways += term
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

    What is returned was checked with exact integers; floats (`_Search`) only say which degrees need no check, because
    they miss a promise by more than the floats can err.
    """
    allowed, search = Fraction(1, 2**failure_bits), _Search(n, corrupted, dropouts, failure_bits)
    degree = search.connected()
    while degree < n - 1:
        lacking, threshold = search.lacking(degree)
        if lacking:
            degree += lacking + lacking % 2
            continue
        while threshold and n * hypergeometric_tail(n - 1, dropouts, degree, degree - threshold + 1) > allowed:
            threshold -= 1
        apart = disconnection_bound(n, corrupted + dropouts, degree)
        exposed = (n - corrupted) * hypergeometric_tail(n - 1, corrupted, degree, threshold)
        if threshold and exposed + apart <= allowed:
            return degree, threshold
        degree += 2
    return n - 1, full_threshold(n, corrupted, dropouts)


class _Search:
    """Which degrees can be passed over, by logarithms of factorials: fast for any n, and never wrong about a degree.

    Every probability below is a sum of positive terms, and every term is the exponential of nine log factorials, each
    off by less than 1e-13 of its value, which is at most n ln n. Up to n = 100,000 that is below 1.1e-6 for all nine,
    and so is the relative error of the sum. It is compared with what is allowed times 1 + `slack`, which is 1e-5 there
    and grows with ln n! for larger n. So a degree is passed over only where it breaks a promise, and a threshold only
    where it is too large.

    Passing over many at once: let l(k) be the fewest lost neighbours and c(k) the smallest threshold that keep promises
    3 and 1 for degree k. Who draws more draws no fewer marked ones, so neither falls with k. Degree k needs a threshold
    between max(1, c(k)) and k - l(k); where that lacks x, the degrees below k + x lack something too.
    """

    def __init__(self, n: int, corrupted: int, dropouts: int, failure_bits: int) -> None:
        self.n, self.corrupted, self.dropouts = n, corrupted, dropouts
        self.logs = np.array([math.lgamma(i + 1.0) for i in range(n + 1)])
        self.slack = 1e-5 * max(1.0, float(self.logs[n]) / 1e6)
        self.allowed = 2.0**-failure_bits * (1.0 + self.slack)

    def connected(self) -> int:
        """Smallest even degree that keeps promise 2, a bound that falls with the degree; at least n - 1 if none does.

        It falls because the bound of degree k + 2 is that of k times (n - k - 1) / (n - k + 1) and twice a share.
        """
        low, high = 1, max(1, self.n // 2)
        while low < high:
            half = (low + high) // 2
            low, high = (half + 1, high) if self._apart(2 * half) > self.allowed else (low, half)
        return 2 * low

    def _apart(self, degree: int) -> float:
        """`disconnection_bound`."""
        n, removed, logs = self.n, self.corrupted + self.dropouts, self.logs
        if removed < degree:
            return 0.0
        ways = logs[removed] - logs[removed - degree] - logs[n] + logs[n - degree]
        return n * (n - degree + 1) / 2 * math.exp(ways)

    def lacking(self, degree: int) -> tuple[int, int]:
        """By how much the degree is too small at least, 0 if it may do; and the largest threshold to be tried."""
        honest = self.n - self.corrupted
        threshold = max(0, degree + 1 - self._least(self.dropouts, degree, self.allowed / self.n))
        lacks = max(1, self._least(self.corrupted, degree, self.allowed / honest)) - threshold
        if lacks <= 0:  # promises 1 and 2 share what is allowed: that rules out this degree, and says nothing of others
            left = max(0.0, self.allowed - self._apart(degree) * (1.0 - self.slack))
            lacks = min(1, self._least(self.corrupted, degree, left / honest) - threshold)
        return max(0, lacks), threshold

    def _least(self, marked: int, draws: int, limit: float) -> int:
        """Smallest j with P[H(n - 1, marked, draws) >= j] <= limit."""
        population, logs = self.n - 1, self.logs
        first, last = max(0, draws - population + marked), min(marked, draws)
        j = np.arange(last, first - 1, -1)
        terms = logs[marked] - logs[j] - logs[marked - j]
        terms += logs[population - marked] - logs[draws - j] - logs[population - marked - draws + j]
        terms -= logs[population] - logs[draws] - logs[population - draws]
        tails = np.cumsum(np.exp(terms))  # of last, last - 1, ...
        return last + 1 - int(np.searchsorted(tails, limit, side="right"))


@lru_cache(maxsize=8)
def circle(seed: bytes, n: int) -> npt.NDArray[np.int64]:
    """(n,) the clients in their random order on the circle."""
    # Sorting random words is a random order; its bias (equal words) is below n^2 / 2^65. A key stream, unlike
    # NumPy's permutation, is the same in every version of every library.
    order = np.argsort(np.frombuffer(key_stream(seed, 8 * n), "<u8"), kind="stable")
    order.setflags(write=False)
    return order


def _steps(degree: int) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(-(degree // 2), 0), np.arange(1, degree // 2 + 1)])


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
        order = circle(seed, n)
        result = np.empty((n, degree), np.int64)
        result[order] = np.sort(order[(np.arange(n)[:, None] + _steps(degree)) % n], axis=1)
    result.setflags(write=False)
    return result


def neighbours_of(seed: bytes, n: int, degree: int, position: int) -> npt.NDArray[np.int64]:
    """(degree,) row `position` of `neighbours`, without the others: a server says how large n is, a client pays."""
    if degree == n - 1:
        return np.delete(np.arange(n), position)
    order = circle(seed, n)
    place = int(np.flatnonzero(order == position)[0])
    return np.sort(order[(place + _steps(degree)) % n])


def slots(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n, k): entry (i, s) is the place of client i in the row of its s-th neighbour; the graph is symmetric."""
    n, degree = table.shape
    flat = (table + n * np.arange(n)[:, None]).ravel()  # ascending, since every row is
    here = np.searchsorted(flat, table * n + np.arange(n)[:, None])
    return np.asarray(here - table * degree)
