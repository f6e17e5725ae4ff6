"""Projections of two-way marginals beside HeteroFedSyn's signs: Gaussian ones, as printed, and none at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedsyn.mechanism import Clique, Domain
from fedsyn.selection.indif import Noisy, Projection, clique_key, indif_squared, splitmix64, square
from fedsyn.table.counting.marginals import count

# Integers per unit of a Gaussian matrix. Rounding to them adds 1/12 to a variance of 2^20: a relative bias of 1e-7.
_UNIT = 1 << 10

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gaussian(Projection):
    """Rounded multiples of N(0, 1), as Li et al. 2026 print it."""

    @property
    def unit(self) -> float:
        return _UNIT * sqrt(self.size)

    def rows(self, pair: Clique, cells: npt.NDArray[np.integer]) -> npt.NDArray[np.signedinteger]:
        """(m, k) rows of a pair's matrix from public bits."""
        places = cells.astype(np.uint64)[:, None] * np.uint64(self.size) + np.arange(self.size, dtype=np.uint64)
        drawn = splitmix64(clique_key(self.seed, pair), np.asarray(places))
        uniform = ((drawn >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # open interval (0, 1)
        return np.asarray(np.rint(_UNIT * ndtri(uniform)), np.int32)

    def squared_sensitivity(self, domain: Domain, pair: Clique) -> int:
        """The largest squared norm of a row of the matrix."""
        return int((self.matrix(domain, pair).astype(np.int64) ** 2).sum(axis=1).max())

    def magnitude(self, domain: Domain, pairs: Sequence[Clique]) -> float:
        return float(max(int(np.abs(self.matrix(domain, pair)).max()) for pair in pairs))


@dataclass(frozen=True)
class Whole(Projection):
    """The marginals themselves: P is the identity."""

    signed: ClassVar[bool] = False

    @property
    def unit(self) -> float:
        return 1.0

    def width(self, domain: Domain, pair: Clique) -> int:
        return domain.size(pair)

    def squared_sensitivity(self, domain: Domain, pair: Clique) -> int:
        return 1

    def apply(
        self, codes: npt.NDArray[np.integer], domain: Domain, pairs: Sequence[Clique]
    ) -> list[npt.NDArray[np.int64]]:
        return [table.ravel() for table in count(codes, domain, pairs)]

    def of_table(self, domain: Domain, pair: Clique, table: Floats) -> Floats:
        return table.ravel()

    def of_product(
        self, domain: Domain, pair: Clique, a: Floats, b: Floats
    ) -> tuple[Floats, tuple[float, float, float]]:
        return np.outer(a, b).ravel(), mean_squares(domain, pair, a, b)


PROJECTIONS: dict[str, type[Projection]] = {"signs": Projection, "gaussian": Gaussian, "none": Whole}


def mean_squares(domain: Domain, pair: Clique, a: Floats, b: Floats) -> tuple[float, float, float]:
    """Means over P of the squares that `Projection.of_product` returns."""
    rows, columns = domain.shape_of(pair)
    return columns * square(a), rows * square(b), float(rows * columns)


def printed_indif_squared(
    domain: Domain, pair: Clique, projected: Noisy, a: Noisy, b: Noisy, projection: Projection
) -> float:
    """InDif2^2 debiased as Theorem 5 prints it: with means over P, which is public, and so with more variance."""
    _, given = projection.of_product(domain, pair, a.values, b.values)
    means = mean_squares(domain, pair, a.values, b.values)

    def bias(squares: tuple[float, float, float]) -> float:
        left, right, frobenius = squares
        return b.sigma**2 * left + a.sigma**2 * right - a.sigma**2 * b.sigma**2 * frobenius

    return indif_squared(domain, pair, projected, a, b, projection) + bias(given) - bias(means)
