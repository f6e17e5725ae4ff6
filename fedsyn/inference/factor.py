"""A model of factors: hidden standard normal scores that link many columns, which are independent given them.

A column of factor z has a normal score of its own, l z + sqrt(1 - l^2) e with e apart from everything, and the score is
cut into values: the Gaussian copula with correlations l_a l_b, its margins those that were released. A factor is an
attribute of `LEVELS` values, intervals of z of equal mass, that the domain hides. So its junction tree is a star, small
for any number of columns, and a pair that is measured besides is a triangle on it.

Values have places along the score: codes that have an order their own, others the places that sketches told
(`fedsyn.selection.factors`). Values that share a place share what it says; values without one are independent of z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from fedsyn.domain import Clique, Domain
from fedsyn.inference.model import Model

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

#: Values of the factor. Between intervals of equal mass lies all but 1.2% of a normal variance.
LEVELS = 16
# Points of z in each interval, over which a column's probabilities are averaged.
_POINTS = 16


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where a column's values lie along its normal score.

    Attributes:
        mass: (values,) probabilities.
        places: (values,) place of each value, 0 to the number of places - 1; -1: none.
    """

    mass: Floats
    places: Places

    @classmethod
    def of(cls, mass: npt.ArrayLike, places: npt.ArrayLike) -> Cuts:
        """Masses need not be normalised, nor places be without gaps."""
        given, own = np.maximum(np.asarray(mass, np.float64), 0.0) + 1e-12, np.asarray(places, np.int64)
        found = np.full(len(own), -1)
        found[own >= 0] = np.unique(own[own >= 0], return_inverse=True)[1]
        return cls(given / given.sum(), found)

    @property
    def share(self) -> Floats:
        """(values,) of what its place has, each value's share; of a value without a place its probability."""
        placed = self.places >= 0
        whole = np.bincount(self.places[placed], self.mass[placed])
        return np.asarray(np.where(placed, self.mass / whole[self.places], self.mass))

    @property
    def edges(self) -> Floats:
        """(places - 1,) of the score between neighbouring places, among the values that have one."""
        placed = self.places >= 0
        within = np.bincount(self.places[placed], self.mass[placed])
        return np.asarray(ndtri(np.clip(np.cumsum(within)[:-1] / within.sum(), 1e-12, 1.0 - 1e-12)))

    @property
    def placed(self) -> float:
        """Probability of a value that has a place."""
        return float(self.mass[self.places >= 0].sum())

    def spread(self, of_places: Floats) -> Floats:
        """(values, ...) what (places, ...) says of each value; 0 of a value without a place."""
        weight = np.where(self.places >= 0, self.share * self.placed, 0.0)
        return np.asarray(of_places[self.places] * weight.reshape(-1, *[1] * (of_places.ndim - 1)))

    def given(self, loading: float | Floats, z: Floats) -> Floats:
        """(values, len(z)) probabilities given the factor; by one loading, or one of each z."""
        below = ndtr((self.edges[:, None] - loading * z) / np.sqrt(1.0 - loading**2))
        bounds = np.vstack([np.zeros((1, len(z))), below, np.ones((1, len(z)))])
        return self.spread(np.diff(bounds, axis=0)) + np.where(self.places < 0, self.mass, 0.0)[:, None]

    def moments(self, most: int) -> Floats:
        """(values, most) of the score's first normalised Hermite polynomials over each value: int He_k phi / sqrt(k!).

        P(a, b) of two columns with correlation r is the sum over k of r^k times the products (Mehler's formula), from
        k = 0, where they are the masses.
        """
        edges = self.edges
        density = np.exp(-(edges**2) / 2.0) / np.sqrt(2.0 * np.pi)
        now, before = np.ones_like(edges), np.zeros_like(edges)
        found = np.empty((len(edges) + 1, most))
        for k in range(1, most + 1):
            at = np.concatenate([[0.0], now * density, [0.0]]) / np.sqrt(k)
            found[:, k - 1] = at[:-1] - at[1:]
            now, before = (edges * now - np.sqrt(k - 1.0) * before) / np.sqrt(k), now
        return self.spread(found)


def factor_model(
    domain: Domain, cuts: Mapping[str, Cuts], factors: Sequence[Mapping[str, float]], total: float
) -> Model:
    """Return the model of some factors, independent of each other, over a domain that hides them.

    Args:
        domain: of the table.
        cuts: of every attribute.
        factors: of each, attribute -> loading, between -1 and 1. An attribute in none is independent of all others.
        total: records.
    """
    names = list[str]()
    for i in range(len(factors)):
        name = f"factor {i + 1}"
        while name in domain:
            name += "'"
        names.append(name)
    z = ndtri((np.arange(LEVELS * _POINTS) + 0.5) / (LEVELS * _POINTS))
    potentials: dict[Clique, Floats] = {(attribute,): np.log(cuts[attribute].mass) for attribute in domain}
    for name, loadings in zip(names, factors, strict=True):
        for attribute, loading in loadings.items():
            averaged = cuts[attribute].given(loading, z).reshape(-1, LEVELS, _POINTS).mean(axis=2)
            potentials[attribute, name] = np.log(np.maximum(averaged, 1e-300))
            del potentials[attribute,]
    return Model(replace(domain, hidden=[(name, LEVELS) for name in names]), potentials, total)  # type: ignore[arg-type]


__all__ = ["LEVELS", "Cuts", "factor_model"]
