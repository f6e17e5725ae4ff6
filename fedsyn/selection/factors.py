"""Factors that link many columns, found in the sketches of all pairs.

**The model.** A factor z is a hidden standard normal score. Columns are independent given the factors. A column of
factor z has a normal score, l z + sqrt(1 - l^2) e with e apart from everything, and the score is cut into values: the
Gaussian copula with correlations l_a l_b, its margins those that were released. A factor is an attribute of `LEVELS`
values, intervals of z of equal mass, that the domain hides. So its junction tree is a star, small for any number of
columns, and a pair that is measured besides is a triangle on it.

Values have places along the score: codes that have an order their own, others the places that the sketches show.
Values that share a place share what it says; values without one are independent of z.

**The sketches.** One sketch of a pair is mostly noise where rows are few. The sketches of all pairs have their noise
independently, and one factor puts a single direction into all of them: the matrix of all pairs has an eigenvalue that
grows like the number of columns, where that of noise grows like its root. Everything here is a function of released
values.

    scores        unordered values along the strongest direction that links them to other columns (correspondence
                  analysis of all pairs together)
    correlations  of normal scores, one for each pair
    one_factor    loadings with the products nearest to them, where they are beyond what noise alone would show
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.inference.model import MOST_FACTORS, Model
from fedsyn.selection.sketches import Sketcher

#: Values of the factor. Between intervals of equal mass lies all but 2.2% of a normal variance.
LEVELS = 16
# Points of z in each interval, over which a column's probabilities are averaged.
_POINTS = 16


@dataclass(frozen=True, eq=False)
class Cuts:
    """Places of a column's values along its normal score.

    Attributes:
        mass: (values,) probabilities.
        places: (values,) place of each value, 0 to the number of places - 1; -1: none.
    """

    mass: Floats
    places: Integers

    @classmethod
    def of(cls, mass: npt.ArrayLike, places: npt.ArrayLike) -> Cuts:
        """Makes cuts of masses and places, which are normalised and renumbered."""
        masses, positions = np.maximum(np.asarray(mass, np.float64), 0.0) + 1e-12, np.asarray(places, np.int64)
        ranks = np.full(len(positions), -1)
        ranks[positions >= 0] = np.unique(positions[positions >= 0], return_inverse=True)[1]
        return cls(masses / masses.sum(), ranks)

    @property
    def share(self) -> Floats:
        """Each value's share of its place's probability, (values,).

        A value without a place has its own probability instead.
        """
        placed = self.places >= 0
        whole = np.bincount(self.places[placed], self.mass[placed])
        return np.asarray(np.where(placed, self.mass / whole[self.places], self.mass))

    @property
    def edges(self) -> Floats:
        """Scores between neighbouring places, (places - 1,).

        Only values that have a place count.
        """
        placed = self.places >= 0
        within = np.bincount(self.places[placed], self.mass[placed])
        return np.asarray(ndtri(np.clip(np.cumsum(within)[:-1] / within.sum(), 1e-12, 1.0 - 1e-12)))

    @property
    def placed(self) -> float:
        """Probability of a value that has a place."""
        return float(self.mass[self.places >= 0].sum())

    def spread(self, of_places: Floats) -> Floats:
        """Spreads numbers of places over their values.

        It turns (places, ...) into (values, ...), with 0 for a value without a place.
        """
        weight = np.where(self.places >= 0, self.share * self.placed, 0.0)
        return np.asarray(of_places[self.places] * weight.reshape(-1, *[1] * (of_places.ndim - 1)))

    def given(self, loading: float | Floats, z: Floats) -> Floats:
        """Returns probabilities given the factor, (values, len(z)).

        `loading` is one number, or one for each z.
        """
        below = ndtr((self.edges[:, None] - loading * z) / np.sqrt(1.0 - loading**2))
        bounds = np.vstack([np.zeros((1, len(z))), below, np.ones((1, len(z)))])
        return self.spread(np.diff(bounds, axis=0)) + np.where(self.places < 0, self.mass, 0.0)[:, None]

    def moments(self, most: int) -> Floats:
        """Returns each value's first Hermite moments of the score, (values, most).

        They are normalised: integrals of He_k phi / sqrt(k!). P(a, b) of two columns with correlation r is the sum over
        k of r^k times the products (Mehler's formula), from k = 0, where they are the masses.
        """
        edges = self.edges
        density = np.exp(-(edges**2) / 2.0) / np.sqrt(2.0 * np.pi)
        now, before = np.ones_like(edges), np.zeros_like(edges)
        integrals = np.empty((len(edges) + 1, most))
        for k in range(1, most + 1):
            at = np.concatenate([[0.0], now * density, [0.0]]) / np.sqrt(k)
            integrals[:, k - 1] = at[:-1] - at[1:]
            now, before = (edges * now - np.sqrt(k - 1.0) * before) / np.sqrt(k), now
        return self.spread(integrals)


def factor_model(
    domain: Domain, cuts: Mapping[str, Cuts], factors: Sequence[Mapping[str, float]], total: float
) -> Model:
    """Returns the model of independent factors that the domain hides.

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


# Sketched pairs -------------------------------------------------------------------------------------------------------


# Terms of Mehler's series; at a correlation of 0.97 the rest is below one part in a hundred.
_TERMS = 30
_LARGEST = 0.97  # of a loading
_LEAST = 0.1  # of a loading: with less nothing is linked by a correlation of 0.1
# 95% point of the Tracy-Widom law of order 1: noise alone has a larger top eigenvalue in one run of twenty.
_TRACY_WIDOM = 0.98
_STEPS = 50


@dataclass(frozen=True, eq=False)
class SketchedPair:
    """A sketched pair beside independent attributes.

    Attributes:
        pair: its attributes.
        groups: of each attribute, the group of each value.
        beyond: (g, h) shares of the rows that the pair has beyond independence, with noise.
        sigma: standard deviation of the noise in each.
    """

    pair: Clique
    groups: tuple[Codes, ...]
    beyond: Floats
    sigma: float


def looks(
    sketcher: Sketcher, values: Sequence[Floats], sigma: float, masses: Mapping[str, Floats], total: float
) -> Iterator[SketchedPair]:
    """Yields the sketched pairs, each beside what independence would show.

    Args:
        sketcher: that made the values.
        values: of each of its cliques, opened.
        sigma: standard deviation of the noise before weights.
        masses: (values,) probabilities of each attribute, as released.
        total: records.
    """
    for i, clique in enumerate(sketcher.cliques):
        if len(clique) == 2:
            shape = sketcher.shapes[i]
            apart = sketcher.of_marginal(i, np.multiply.outer(masses[clique[0]], masses[clique[1]]).ravel())
            groups = tuple(sketcher.grouping[key] for key in zip(clique, shape, strict=True))
            yield SketchedPair(
                clique, groups, (values[i] / total - apart).reshape(shape), sketcher.sigma_of(i, sigma) / total
            )


# The order of unordered values ---------------------------------------------------------------------------------------


def scores(pairs: Sequence[SketchedPair], cuts: Mapping[str, Cuts], unordered: Sequence[str]) -> dict[str, Floats]:
    """Returns scores of unordered attributes' values, (values,) each.

    They place the values along the factor that links their attribute to others. All pairs are one symmetric matrix, in
    units of their noise; a factor's part in it is the product of what its columns have, the mass of each group of
    values times their mean score. So scores are the coordinates of the leading eigenvector over these masses. They are
    given if noise alone has so large an eigenvalue in at most one run of twenty, and for those attributes whose
    coordinates are more than twice what noise puts there. Values that no sketch told apart have one score.

    Args:
        pairs: as sketched.
        cuts: of the attributes that have an order.
        unordered: those that have none.
    """
    whole = _Whole(pairs, cuts, unordered)
    values, vectors = np.linalg.eigh(whole.matrix)
    top, out = float(values[-1]), dict[str, Floats]()
    if top <= _edge(whole.dimensions):
        return out
    for name, groups in whole.groups.items():
        part = vectors[whole.places[name], -1]
        if float(part @ part) > 4.0 * (len(part) - 1.0) / top**2:  # noise has a variance of 1 / top^2 in each
            mass = np.bincount(groups, cuts[name].mass, len(part))
            out[name] = (part / np.maximum(mass, 0.25 / len(part)))[groups]
    return out


def _edge(dimensions: float) -> float:
    """Returns the top eigenvalue that noise exceeds in one run of twenty.

    The noise is a symmetric matrix of variance 1.
    """
    return float(2.0 * sqrt(dimensions) + _TRACY_WIDOM * dimensions ** (-1.0 / 6.0))


class _Whole:
    """All pairs as one symmetric matrix, in units of noise.

    An ordered attribute has one row, any other one for each of its groups. If an unordered attribute has other groups
    in other pairs, the finest count; a coarser one's counts are divided among them, in proportion to their mass.
    """

    def __init__(self, pairs: Sequence[SketchedPair], cuts: Mapping[str, Cuts], unordered: Sequence[str]) -> None:
        # The groups of each attribute, by size, and the rows of the matrix for it.
        seen = {
            (name, size): groups
            for look in pairs
            for name, groups, size in zip(look.pair, look.groups, look.beyond.shape, strict=True)
        }
        finest = dict(sorted(seen))  # the largest size of each name stands last
        sizes = {name: size if name in unordered else 1 for name, size in finest.items()}
        ends = np.cumsum([0, *sizes.values()])
        self.groups = {name: seen[name, size] for name, size in finest.items() if name in unordered}
        self.places = {name: slice(*bounds) for name, bounds in zip(sizes, pairwise(ends), strict=True)}
        self.dimensions = int(ends[-1]) - len(self.groups)  # groups' counts beyond independence add up to 0
        # What turns a pair's counts into its block of the matrix.
        directions = {
            (name, size): _shared(cuts[name].mass, groups, self.groups[name])
            if name in self.groups
            else _direction(cuts[name], groups, size)[:, None]
            for (name, size), groups in seen.items()
        }
        self.matrix = np.zeros((ends[-1], ends[-1]))
        for look in pairs:
            (a, b), (g, h) = look.pair, look.beyond.shape
            at = self.places[a], self.places[b]
            self.matrix[at] = directions[a, g].T @ look.beyond @ directions[b, h] / look.sigma
            self.matrix[at[::-1]] = self.matrix[at].T


def _shared(mass: Floats, groups: Codes, finest: Codes) -> Floats:
    """Returns weights that divide groups' counts among the finest groups.

    They are (groups, finest groups), in proportion to mass.
    """
    both = np.zeros((int(groups.max()) + 1, int(finest.max()) + 1))
    np.add.at(both, (groups, finest), mass)
    return np.asarray(both / both.sum(axis=1, keepdims=True))


def _direction(cuts: Cuts, groups: Codes, size: int) -> Floats:
    """Returns the unit vector along which a weak correlation shows, (size,).

    It is over groups' counts beyond independence.
    """
    first = np.bincount(groups, cuts.moments(1)[:, 0], size)
    return np.asarray(first / max(float(np.linalg.norm(first)), 1e-12))


# Correlations and factors --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Correlations:
    """Correlations of the normal scores of attributes, as noisy sketches tell them.

    Attributes:
        names: the attributes.
        values: (d, d) symmetric; 0 where there is none.
        precision: (d, d) 1 / variance; 0 where there is none, and on the diagonal.
    """

    names: tuple[str, ...]
    values: Floats
    precision: Floats

    def among(self, names: Sequence[str]) -> Correlations:
        """Returns the correlations of some attributes."""
        at = [self.names.index(name) for name in names]
        return Correlations(tuple(names), self.values[np.ix_(at, at)], self.precision[np.ix_(at, at)])


def correlations(pairs: Sequence[SketchedPair], cuts: Mapping[str, Cuts], rows: float) -> Correlations:
    """Returns the correlations of normal scores that explain the pairs.

    Normal scores with these correlations would look, on average, as the pairs do.

    The counts beyond independence are read along one direction, that of a weak correlation: there a correlation r shows
    the sum over k of c_k r^k (Mehler), which is solved for r. Noise in that direction has the sketch's own sigma; a
    correlation of n rows of independent columns has a variance of 1/n besides.
    """
    names = tuple(dict.fromkeys(name for look in pairs for name in look.pair))
    place = {name: i for i, name in enumerate(names)}
    read: dict[tuple[str, bytes], tuple[Floats, Floats]] = {}

    def of(name: str, groups: Codes, size: int) -> tuple[Floats, Floats]:
        key = name, groups.tobytes()
        if key not in read:
            moments = np.zeros((size, _TERMS))
            np.add.at(moments, groups, cuts[name].moments(_TERMS))
            unit = moments[:, 0] / max(float(np.linalg.norm(moments[:, 0])), 1e-12)
            read[key] = unit, unit @ moments
        return read[key]

    # What each pair shows along its weak direction, and the series that explains it.
    at = np.zeros((2, len(pairs)), np.int64)
    seen, sigmas = np.zeros((2, len(pairs)))
    series = np.zeros((len(pairs), _TERMS))
    for i, look in enumerate(pairs):
        (one, first), (two, second) = map(of, look.pair, look.groups, look.beyond.shape)
        at[:, i] = place[look.pair[0]], place[look.pair[1]]
        seen[i], sigmas[i], series[i] = one @ look.beyond @ two, look.sigma, first * second
    # Solve for the correlations, and turn slopes and noise into precisions.
    values, slopes = _solved(series, seen)
    table, precision = np.zeros((2, len(names), len(names)))
    table[at[0], at[1]] = table[at[1], at[0]] = values
    certain = slopes**2 / (sigmas**2 + slopes**2 / max(1.0, rows))
    precision[at[0], at[1]] = precision[at[1], at[0]] = certain
    return Correlations(names, table, precision)


def _solved(series: Floats, seen: Floats) -> tuple[Floats, Floats]:
    """Solves each series for the value that was seen, by bisection.

    Returns the arguments, or the nearest ends, and the slopes there, (m,) each; 0 for a series that shows nothing.
    """
    low, high = np.full(len(seen), -_LARGEST), np.full(len(seen), _LARGEST)
    for _ in range(30):
        middle = (low + high) / 2.0
        over = _horner(series, middle) * middle > seen
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    roots = (low + high) / 2.0
    slopes = _horner(series * np.arange(1, series.shape[1] + 1), roots)
    shows = series[:, 0] > 1e-9  # of a value without neighbours nothing is read
    return np.where(shows, roots, 0.0), np.where(shows, np.maximum(slopes, 0.5 * series[:, 0]), 0.0)


def _horner(series: Floats, at: Floats) -> Floats:
    """Returns the sums over k of series[:, k] at^k, (m,)."""
    out = np.zeros(len(at))
    for k in range(series.shape[1] - 1, -1, -1):
        out = out * at + series[:, k]
    return out


def factors(known: Correlations) -> list[dict[str, float]]:
    """Returns the loadings of each factor that shows, the strongest first.

    There are `MOST_FACTORS` at most. An attribute joins a factor if its loading is more than two standard deviations,
    and 0.1; the next factor is looked for among the attributes that joined none.
    """
    loadings, names = list[dict[str, float]](), list(known.names)
    while len(names) > 2 and len(loadings) < MOST_FACTORS and (factor := one_factor(known.among(names))):
        loadings.append(factor)
        names = [name for name in names if name not in factor]
    return loadings


def one_factor(known: Correlations) -> dict[str, float]:
    """Returns attribute -> loading of the factor that shows.

    The result is empty if noise alone could show it. Loadings are the least squares of l_a l_b to the correlations,
    weighted by their precision. If there were no correlation at all, the standardised ones were noise of variance 1,
    whose top eigenvalue exceeds 2 sqrt(d) by more than 0.98 d^(-1/6) in one run of twenty. Loadings are shrunk by their
    noise (James & Stein).
    """
    weights, d = known.precision, len(known.names)
    if d < 3:
        return {}
    # Nothing shows where noise alone reaches the top eigenvalue.
    top, vectors = np.linalg.eigh(known.values * np.sqrt(weights))
    if top[-1] <= _edge(d):
        return {}
    # Least squares from two starts; the better one counts.
    one = int(np.argmax(np.abs(vectors[:, -1])))
    starts = vectors[:, -1], known.values[one] + np.eye(d)[one]  # two blocks alike: their mixture is a saddle point
    loadings = min((_least_squares(known, start) for start in starts), key=lambda candidate: _loss(known, candidate))
    # Keep loadings that stand out of their noise, shrunk by it.
    variance = 1.0 / np.maximum(weights @ loadings**2, 1e-12)
    shown = loadings**2 > np.maximum(4.0 * variance, _LEAST**2)
    if shown.sum() < 3:
        return {}
    shrunk = loadings * (1.0 - variance / np.where(shown, loadings**2, np.inf))
    return {name: float(loading) for name, loading, shows in zip(known.names, shrunk, shown, strict=True) if shows}


def _least_squares(known: Correlations, start: Floats) -> Floats:
    """Returns loadings whose products are nearest to the correlations, (d,).

    They are improved one after the other, from a start of any scale.
    """
    weights, values = known.precision, known.values
    products = np.multiply.outer(start, start)
    scale = float((weights * values * products).sum()) / max(float((weights * products**2).sum()), 1e-300)
    loadings = np.clip(sqrt(max(scale, 0.0)) * start, -_LARGEST, _LARGEST)
    for _ in range(_STEPS):
        for a in range(len(loadings)):
            at = weights[a] * loadings
            loadings[a] = np.clip(at @ values[a] / max(float(at @ loadings), 1e-300), -_LARGEST, _LARGEST)
    return loadings


def _loss(known: Correlations, loadings: Floats) -> float:
    return float((known.precision * (known.values - np.multiply.outer(loadings, loadings)) ** 2).sum())
