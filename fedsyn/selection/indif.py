"""InDif, a pair's distance from independence, from noisy projected marginals.

Li et al. 2026, "HeteroFedSyn", Algorithms 1 and 2, Theorem 5, after Zhang et al. 2021, "PrivSyn". All parties form
the same projection matrices from a public seed; a client sums its exact counts times an INTEGER matrix, so that secure
sums stay exact, and dividing by the matrix's public scale comes after the noise.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.errors import ConfigError
from fedsyn.selection.sketches import squared_distance
from fedsyn.table.counting.marginals import count_sparse_many
from fedsyn.table.counting.sums import dot

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
#: Integers per record of a released InDif score (central PrivSyn).
INDIF_UNIT = 1 << 10
#: How far one row moves an InDif score, in records: see `indif`.
INDIF_SENSITIVITY = 4


def all_pairs(domain: Domain) -> tuple[Clique, ...]:
    """Returns every pair of attributes, in the order that all parties share."""
    return tuple(itertools.combinations(domain.attributes, 2))


# Projection --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """Random projection of two-way marginals to `size` signed sums each (Algorithm 1).

    With `matrix` G (cells, size) of integers, a client contributes M G, and P = G / `unit` has E||x P||^2 = ||x||^2.

    Attributes:
        size: k, numbers per pair.
        seed: public; all clients must use the same matrices, or their sums mean nothing.
    """

    size: int = 10
    seed: int = 0

    #: Whether its integers have both signs.
    signed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1 or self.seed < 0:
            raise ConfigError("a projection needs at least one number per pair, and a seed that is not negative")

    @property
    def unit(self) -> float:
        """Divisor of a summed integer."""
        return math.sqrt(self.size)

    def width(self, domain: Domain, pair: Clique) -> int:
        """Numbers that stand for one pair."""
        return self.size

    def matrix(self, domain: Domain, pair: Clique) -> npt.NDArray[np.signedinteger]:
        """Returns one pair's integers, (cells, k), with cells in C order."""
        return _matrix(self, pair, domain.shape_of(pair))

    def rows(self, pair: Clique, cells: Codes) -> npt.NDArray[np.signedinteger]:
        """Returns rows of a pair's matrix, (m, k): +-1 from public bits.

        They are the same on every machine and NumPy version. Bits come from a counter-based function (splitmix64 of
        Steele, Lea & Flood 2014, keyed by SHA-256 of seed and pair), so that a client computes them for the cells that
        its rows touch only. Nothing about privacy rests on them.
        """
        bits = sign_bits(clique_key(self.seed, pair), cells.astype(np.uint64), self.size)
        return np.asarray(np.int8(1) - np.int8(2) * bits.astype(np.int8))

    def squared_sensitivity(self, domain: Domain, pair: Clique) -> int:
        """Returns one pair's squared L2 sensitivity (Theorem 4, for counts).

        One row of the table adds one row of k signs.
        """
        return self.size

    def sensitivity(self, domain: Domain, pairs: Sequence[Clique]) -> float:
        """Returns the L2 sensitivity of the integers of all pairs.

        One row is in one cell of each pair.
        """
        return math.sqrt(sum(self.squared_sensitivity(domain, pair) for pair in pairs))

    def magnitude(self, domain: Domain, pairs: Sequence[Clique]) -> float:
        """Returns the most that one row adds to an integer, either way."""
        return 1.0

    def apply(self, codes: Codes, domain: Domain, pairs: Sequence[Clique]) -> list[Integers]:
        """Returns a table's exact integers (Algorithm 1, lines 2 and 4).

        For each pair they are M_ab G_ab, before the noise.
        """
        marginals = count_sparse_many(codes, domain, pairs)
        return [
            marginal.counts @ self.rows(pair, marginal.cells).astype(np.int64)
            for pair, marginal in zip(pairs, marginals, strict=True)
        ]

    def of_table(self, domain: Domain, pair: Clique, table: Floats) -> Floats:
        """Returns the projection of a known table, (k,)."""
        known = table.ravel()
        cells = np.flatnonzero(known)
        return np.asarray(np.einsum("i,ik->k", known[cells], self.matrix(domain, pair)[cells]) / self.unit)

    def of_product(
        self, domain: Domain, pair: Clique, a: Floats, b: Floats
    ) -> tuple[Floats, tuple[float, float, float]]:
        """Projects a product of marginals, and returns its noise's factors.

        The projection is (a x b) P, (k,). Its noise goes with sum_j ||a P_j||^2, sum_j ||P_j b||^2 and ||P||_F^2.
        """
        table = self.matrix(domain, pair).astype(np.float64).reshape(*domain.shape_of(pair), -1) / self.unit
        by_a, by_b = np.einsum("i,ijk->jk", a, table), np.einsum("j,ijk->ik", b, table)
        return np.einsum("j,jk->k", b, by_a), (square(by_a), square(by_b), square(table))


@lru_cache(maxsize=2048)  # only the server forms whole ones, once for each update of the scores
def _matrix(projection: Projection, pair: Clique, shape: tuple[int, int]) -> npt.NDArray[np.signedinteger]:
    return projection.rows(pair, np.arange(shape[0] * shape[1]))


def splitmix64(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns 64 pseudo-random bits for each counter.

    They are that output of splitmix64 started at `key`.
    """
    z = np.uint64(key) + (counters + np.uint64(1)) * _GAMMA  # wraps modulo 2^64, as it should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def clique_key(seed: int, clique: Clique) -> int:
    """Returns the 64-bit key of a clique's bits.

    It is a hash of the seed and the attributes' names, the same on every party.
    """
    text = json.dumps([seed, list(clique)], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def sign_bits(key: int, cells: npt.NDArray[np.uint64], k: int) -> npt.NDArray[np.uint8]:
    """Returns bits of a sign matrix's rows, (m, k).

    0 stands for +1 and 1 for -1.
    """
    words = -(-k // 64)
    places = np.asarray(cells[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64), np.uint64)
    drawn = splitmix64(key, places)
    return np.unpackbits(drawn.astype("<u8").view(np.uint8).reshape(len(cells), 8 * words), axis=1, count=k)


# Estimation ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Noisy:
    """A noisy marginal, or its projection, in proportions of the records.

    Attributes:
        values: the vector.
        sigma: standard deviation of the noise on each entry, in the same unit.
    """

    values: Floats
    sigma: float


def indif_squared(domain: Domain, pair: Clique, projected: Noisy, a: Noisy, b: Noisy, projection: Projection) -> float:
    """Returns an unbiased estimate of InDif2^2, in squared proportions (Algorithm 2).

    InDif2^2 is ||M_ab - M_a x M_b||_2^2 (line 4).

    With independent noise on z, p_a, p_b of standard deviations t, s_a, s_b, and P_j the j-th column of P as a table,

        E||z - (p_a x p_b) P||^2 = ||x P||^2 + k t^2
            + s_b^2 sum_j ||M_a P_j||^2 + s_a^2 sum_j ||P_j M_b||^2 + s_a^2 s_b^2 ||P||_F^2

    over the noise, for x = M_ab - M_a x M_b. Putting p_a for M_a adds s_a^2 s_b^2 ||P||_F^2 to its term, and so does
    p_b: subtracting both terms and adding that once leaves ||x P||^2, whose mean over P is ||x||^2. Theorem 5 puts the
    terms' means over P in their place: unbiased too, but P is public, so that only adds variance.
    t, s_a, s_b are those of the SUM: sqrt(c) times one client's for local noise, one noise for a secure sum.

    It may be negative; callers clip it where they take a root.
    """
    s_a, s_b = a.sigma, b.sigma
    product, (left, right, frobenius) = projection.of_product(domain, pair, a.values, b.values)
    # The squared distance of the noisy vector, less what noise adds to it on average.
    difference = projected.values - product
    bias = len(difference) * projected.sigma**2 + s_b**2 * left + s_a**2 * right - s_a**2 * s_b**2 * frobenius
    return square(difference) - bias


def square(values: Floats) -> float:
    """Returns ||values||_2^2."""
    return dot(values.ravel(), values.ravel())


def distance_squared(domain: Domain, pair: Clique, projected: Noisy, table: Floats, projection: Projection) -> float:
    """Returns an unbiased estimate of ||M_ab - table||_2^2 for fixed proportions.

    This is Algorithm 4, line 3, debiased.
    """
    return squared_distance(projected.values - projection.of_table(domain, pair, table), projected.sigma)


def root(squared: Floats) -> Floats:
    """Returns distances from estimated squares.

    A negative estimate counts as 0; nowhere else is it clipped.
    """
    return np.sqrt(np.maximum(squared, 0.0))


def indif(joint: Codes) -> float:
    """Returns PrivSyn's InDif of one pair, in records.

    It is ||M_ab - M_a x M_b / n||_1.

    Sensitivity 4 (Zhang et al. 2021): with p, r the proportions of the two attributes, a row (x, y) added to n others
    moves the difference by n/(n+1) (e_x - p) x (e_y - r), whose L1 norm is n/(n+1) * 2(1 - p_x) * 2(1 - r_y) < 4.

    Args:
        joint: (s_a, s_b) exact counts.
    """
    n = int(joint.sum())
    if n == 0:
        return 0.0
    return float(np.abs(joint - np.outer(joint.sum(axis=1), joint.sum(axis=0)) / n).sum())


# Selection -----------------------------------------------------------------------------------------------------------


def expected_l2(cells: Floats) -> Floats:
    """Returns E||g||_2 of standard normal vectors of these lengths.

    It is sqrt(2) Gamma((m+1)/2) / Gamma(m/2), about sqrt(m).
    """
    return np.asarray(np.sqrt(2.0) * np.exp(gammaln((cells + 1.0) / 2.0) - gammaln(cells / 2.0)))


def expected_l1(cells: Floats) -> Floats:
    """Returns E||g||_1 of standard normal vectors of these lengths: sqrt(2/pi) m."""
    return math.sqrt(2.0 / math.pi) * cells
