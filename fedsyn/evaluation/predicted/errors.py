"""The error that a model is predicted to have on marginals: their effects' errors, added up cell by cell.

In a cell of clique q that expects lambda records, a share S of the rows' variance is left, and a squared relative
error Q: the sums of what is left of q's effects. The L1 error is the sum over cells of

    sqrt(S m(lambda)^2 + (2 / pi) Q lambda^2),   at most 2 lambda,

m the mean absolute deviation of a Poisson variable (2 lambda where lambda is small, sqrt(2 lambda / pi) where it is
large); sqrt(2 / pi) is that of a normal one.

A fit that nothing shrinks towards independence does not weigh noise against what it expects: it keeps all of it that is
the marginal of a table. Its error is at least that of noisy counts projected onto those (`kept_noise`).

What rests on assumptions, and not on the released values: that errors
are spread like this over cells, that what no sketch and no measurement saw is like what they saw, and that a fit keeps
what least squares would. How far that holds was measured (`experiments/quality`), and is in every interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, gammaln, ndtr

from fedsyn.domain import Clique
from fedsyn.evaluation.predicted.effects import Effects, Released, Scenario, SketchError, Source
from fedsyn.inference.evidence import Evidence
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.marginals import groups_within
from fedsyn.table.counting.workload import subsets

Floats = npt.NDArray[np.float64]
#: Cells of the marginals that are formed at the same time.
_CELLS_AT_ONCE = 1 << 21
_MAD = math.sqrt(2.0 / math.pi)
#: 5%, the middles of twelve parts of a distribution, 95%.
_POINTS = np.concatenate([[0.05], (np.arange(12) + 0.5) / 12, [0.95]])
_LARGE = 50.0  # records of a cell, from which Poisson and normal deviations agree to a thousandth
_FACTORIALS = gammaln(np.arange(_LARGE) + 1.0)  # their logarithms


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predicted L1 errors of normalised marginals, 0 to 2.

    Attributes:
        errors: (Q,) of each clique.
        lows, highs: (Q,) where they are in nine of ten, by what is not known of associations.
        floors: (Q,) what noise and rows leave of an error, however the model was fitted.
        slopes: of each clique, effect -> what the error gains when its R^2 grows.
        bounds: (Q,) what an error is at most, whatever was not seen.
        sources: (Q,) the weakest that an error rests on.
    """

    errors: Floats
    lows: Floats
    highs: Floats
    floors: Floats
    slopes: list[dict[Clique, float]]
    bounds: Floats
    sources: tuple[Source, ...]


class Predictor:
    """Predicts errors of a run's last model from what the run released.

    Args:
        model: the last one.
        evidence: what it was fitted to.
        sketch_errors: of it.
        cliques: whose errors are asked for, in domain order.
        shrunk: whether its fit was shrunk towards independence (`fedsyn.inference.shrinkage`).
    """

    def __init__(
        self,
        model: Released,
        evidence: Evidence,
        sketch_errors: Iterable[SketchError],
        cliques: Sequence[Clique],
        shrunk: bool = True,
    ) -> None:
        self.cliques = tuple(cliques)
        self.model, self.shrunk = model, shrunk
        self.effects = Effects(model, evidence, sketch_errors, self.cliques)

    def errors(self, *scenarios: Scenario) -> list[Predicted]:
        """Predicted errors of the run as it was (`Scenario()`), or as it might have been; marginals are formed once."""
        found, bounds = [_Foreseen(self, scenario) for scenario in scenarios], np.empty(len(self.cliques))
        sources = tuple(map(self._source, self.cliques))
        for place, marginal in self._marginals():
            bounds[place], expected = self._bound(self.cliques[place], marginal), dict[float, _Expected]()
            for one in found:
                rows = one.scenario.rows
                if rows not in expected:
                    expected[rows] = _Expected.of(marginal * self.model.total * rows)
                one.add(place, expected[rows], sources[place] == "unknown")
        return [Predicted(*self._spread(f.errors, f.slopes), f.floors, f.slopes, bounds, sources) for f in found]

    def _spread(self, errors: Floats, slopes: Sequence[Mapping[Clique, float]]) -> tuple[Floats, Floats, Floats]:
        """Means, 5% and 95% points of errors over what is believed of R^2.

        A squared error is linear in the R^2: certain + Y, and Y is taken for a Gamma variable of its mean and variance.
        """
        means, squares = np.zeros((2, len(errors)))
        for place, own in enumerate(slopes):
            parts = [(2.0 * errors[place] * slope, self.effects[s]) for s, slope in own.items()]
            means[place] = math.fsum(gain * effect.squared for gain, effect in parts)
            squares[place] = math.fsum((gain * effect.spread) ** 2 for gain, effect in parts)
        known = (means <= 0) | (squares <= 0)
        shape = np.where(known, 1.0, means**2 / np.where(known, 1.0, squares))
        certain = np.maximum(errors**2 - means, 0.0)
        points = gammaincinv(shape[:, None], _POINTS) / shape[:, None] * means[:, None]
        found = np.sqrt(certain[:, None] + points)
        low, high = found[:, 0], np.minimum(found[:, -1], 2.0)
        return (
            np.where(known, errors, found[:, 1:-1].mean(axis=1)),
            np.where(known, errors, low),
            np.where(known, errors, high),
        )

    def _noise(self, clique: Clique) -> float:
        """Variance of the noise in a cell of the least squares of what was measured cell by cell."""
        sizes, variance = {name: self.model.domain.size((name,)) for name in clique}, 0.0
        for s in subsets(clique):
            if self.effects[s].precision > 0:
                cells, free = (math.prod(sizes[name] - less for name in s) for less in (0, 1))
                variance += free * cells / math.prod(sizes.values()) ** 2 / self.effects[s].precision
        return variance

    def _source(self, clique: Clique) -> Source:
        if self.effects.is_measured(clique):
            return "measured"
        found = {self.effects[s].source for s in subsets(clique) if len(s) == 2}
        return next((kind for kind in ("unknown", "inferred", "sketched") if kind in found), "measured")

    def _bound(self, clique: Clique, marginal: Floats) -> float:
        """Bounds the distance to any table with the model's one-way marginals, by Fréchet's lower bound."""
        least = np.zeros(1)
        for name in clique:
            least = (least[:, None] + self.effects.masses[name]).ravel()
        shared = np.minimum(marginal, np.maximum(least - (len(clique) - 1.0), 0.0))
        return float(2.0 - 2.0 * shared.sum())

    def _marginals(self) -> Iterator[tuple[int, Floats]]:
        """(place, probabilities) of each clique, some at a time."""
        sizes = [self.model.domain.size(clique) for clique in self.cliques]
        for block in groups_within(_CELLS_AT_ONCE, range(len(sizes)), sizes.__getitem__):
            view = ModelView(self.model)  # type: ignore[arg-type]
            yield from zip(block, view.probabilities([self.cliques[i] for i in block]), strict=True)


@dataclass(frozen=True, eq=False)
class _Expected:
    """A clique's expected counts, (cells,), with what all scenarios of as many rows need of them.

    Attributes:
        lam: the counts.
        most: twice the counts.
        scatter: their squared `deviation`.
        squared: their squares.
        halves: `_MAD` squared times their squares.
        total: their sum.
    """

    lam: Floats
    most: Floats
    scatter: Floats
    squared: Floats
    halves: Floats
    total: float

    @classmethod
    def of(cls, lam: Floats) -> _Expected:
        squared = lam**2
        return cls(lam, 2.0 * lam, deviation(lam) ** 2, squared, _MAD**2 * squared, float(lam.sum()))


class _Foreseen:
    """Errors of a run as it might have been, clique after clique."""

    def __init__(self, predictor: Predictor, scenario: Scenario) -> None:
        self.predictor, self.scenario, effects = predictor, scenario, predictor.effects
        self.parts = {s: effects[s].left(scenario) for q in predictor.cliques for s in subsets(q)}
        self.errors, self.floors = np.empty((2, len(predictor.cliques)))
        self.slopes = list[dict[Clique, float]]()

    def add(self, place: int, expected: _Expected, unknown: bool) -> None:
        """Computes what is expected of the clique at a place from its expected counts."""
        clique, effects, parts = self.predictor.cliques[place], self.predictor.effects, self.parts
        inside = list(subsets(clique))
        rows = sum(parts[s].rows * effects.dimensions(s) for s in inside) / effects.cells(clique)
        relative = sum(parts[s].relative * effects[s].squared for s in inside)
        off = rows * expected.scatter
        off += _MAD**2 * relative * expected.squared
        np.sqrt(off, out=off)
        self.errors[place] = self.floors[place] = float(np.minimum(off, expected.most).sum()) / expected.total
        if not self.predictor.shrunk and not unknown:
            noise = self.predictor._noise(clique) * self.scenario.noise**2
            self.errors[place] = max(self.errors[place], kept_noise(expected.lam, noise) / expected.total)
        doubtful = [s for s in inside if effects[s].spread > 0]
        gain = 0.0
        if doubtful:
            flat = ~((off > 0) & (off < expected.most))
            off *= 2.0
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.divide(expected.halves, off, out=off)
            slope[flat] = 0.0
            gain = float(slope.sum()) / expected.total
        self.slopes.append({s: gain * parts[s].relative for s in doubtful})


def deviation(lam: Floats) -> Floats:
    """(m,) E|X - lambda| of Poisson variables: 2 e^-lambda lambda^(f + 1) / f!, f = floor(lambda) (De Moivre)."""
    found = _MAD * np.sqrt(lam)
    few = (lam > 0) & (lam < _LARGE)
    some = lam[few]
    floor = np.floor(some)
    found[few] = np.exp(math.log(2.0) - some + (floor + 1.0) * np.log(some) - _FACTORIALS[floor.astype(np.intp)])
    return found


def kept_noise(lam: Floats, variance: float) -> float:
    """E ||X - lambda||_1, X the noisy counts lambda + N(0, variance) projected onto counts of the same total.

    That is X = max(lambda + noise - tau, 0) with the tau that keeps the total (on average over the noise).
    """
    total, sigma = float(lam.sum()), math.sqrt(variance)
    if sigma <= 0 or total <= 0:
        return 0.0
    low, high = -9.0 * sigma - float(lam.max()), 9.0 * sigma + float(lam.max())
    for _ in range(80):
        tau = (low + high) / 2.0
        over = lam - tau
        mean = over * ndtr(over / sigma) + sigma * _density(over / sigma)
        low, high = (tau, high) if float(mean.sum()) > total else (low, tau)
    # Of y = noise - tau: lambda where y < -lambda, else |y|.
    cut = ndtr((tau - lam) / sigma)
    whole = 2.0 * sigma * _density(np.array([tau / sigma])) + tau * (2.0 * ndtr(tau / sigma) - 1.0)
    below = tau * cut + sigma * _density((tau - lam) / sigma)
    return float((lam * cut + whole - below).sum())


def _density(z: Floats) -> Floats:
    return np.asarray(np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
