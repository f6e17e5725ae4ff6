"""The error that a model is predicted to have on marginals: their effects' errors, added up cell by cell.

In a cell of clique q that expects lambda records, a share S of the rows' variance is left, and a squared relative
error Q: the sums of what is left of q's effects. The L1 error is the sum over cells of

    sqrt(S m(lambda)^2 + (2 / pi) Q lambda^2),   at most 2 lambda,

m the mean absolute deviation of a Poisson variable (2 lambda where lambda is small, sqrt(2 lambda / pi) where it is
large); sqrt(2 / pi) is that of a normal one. What rests on assumptions, and not on the released values: that errors
are spread like this over cells, that what no sketch and no measurement saw is like what they saw, and that a fit keeps
what least squares would. How far that holds was measured (`experiments/quality`), and is in every interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedsyn.domain import Clique
from fedsyn.inference.evidence import Evidence
from fedsyn.selection.views import ModelView
from fedsyn.statement.effects import Effects, Glimpse, Released, Scenario, Source, subsets

Floats = npt.NDArray[np.float64]
#: Cells of the marginals that are formed at the same time.
_CELLS_AT_ONCE = 1 << 21
_MAD = math.sqrt(2.0 / math.pi)
_LARGE = 50.0  # records of a cell, from which Poisson and normal deviations agree to a thousandth


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predicted L1 errors of normalised marginals, 0 to 2.

    Attributes:
        errors: (Q,) of each clique.
        slopes: of each clique, effect -> what the error gains when its R^2 grows.
        bounds: (Q,) what an error is at most, whatever was not seen.
        sources: (Q,) the weakest that an error rests on.
    """

    errors: Floats
    slopes: list[dict[Clique, float]]
    bounds: Floats
    sources: tuple[Source, ...]


class Predictor:
    """Predicts errors of a run's last model from what the run released.

    Args:
        model: the last one.
        evidence: what it was fitted to.
        glimpses: of it.
        cliques: whose errors are asked for, in domain order.
    """

    def __init__(
        self, model: Released, evidence: Evidence, glimpses: Iterable[Glimpse], cliques: Sequence[Clique]
    ) -> None:
        self.cliques = tuple(cliques)
        self.model = model
        self.effects = Effects(model, evidence, glimpses, self.cliques)

    def errors(self, scenario: Scenario | None = None) -> Predicted:
        """Of the run as it was, or as it might have been."""
        chosen = scenario or Scenario()
        parts = {s: self.effects[s].left(chosen) for q in self.cliques for s in subsets(q)}
        errors, bounds, slopes = *np.empty((2, len(self.cliques))), list[dict[Clique, float]]()
        for place, marginal in self._marginals():
            clique = self.cliques[place]
            inside = subsets(clique)
            lam = marginal * self.model.total * chosen.rows
            rows = sum(parts[s].rows * self.effects.dimensions(s) for s in inside) / self.effects.cells(clique)
            relative = sum(parts[s].relative * self.effects[s].squared for s in inside)
            off = np.sqrt(rows * deviation(lam) ** 2 + _MAD**2 * relative * lam**2)
            total = float(lam.sum())
            errors[place] = float(np.minimum(off, 2.0 * lam).sum()) / total
            bounds[place] = self._bound(clique, marginal)
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.where((off > 0) & (off < 2.0 * lam), _MAD**2 * lam**2 / (2.0 * off), 0.0)
            gain = float(slope.sum()) / total
            slopes.append({s: gain * parts[s].relative for s in inside if self.effects[s].spread > 0})
        return Predicted(errors, slopes, bounds, tuple(self._source(q) for q in self.cliques))

    def _source(self, clique: Clique) -> Source:
        if self.effects.is_measured(clique):
            return "measured"
        found = {self.effects[s].source for s in subsets(clique) if len(s) == 2}
        return next((kind for kind in ("unknown", "inferred", "sketched") if kind in found), "measured")

    def _bound(self, clique: Clique, marginal: Floats) -> float:
        """Of the distance to any table with the model's one-way marginals: both have at least Fréchet's lower bound."""
        least = np.zeros(1)
        for name in clique:
            least = (least[:, None] + self.effects.masses[name]).ravel()
        shared = np.minimum(marginal, np.maximum(least - (len(clique) - 1.0), 0.0))
        return float(2.0 - 2.0 * shared.sum())

    def _marginals(self) -> Iterable[tuple[int, Floats]]:
        """(place, probabilities) of each clique, some at a time."""
        domain, block, cells = self.model.domain, list[int](), 0
        for place, clique in enumerate(self.cliques):
            size = domain.size(clique)
            if block and cells + size > _CELLS_AT_ONCE:
                yield from self._formed(block)
                block, cells = [], 0
            block.append(place)
            cells += size
        yield from self._formed(block)

    def _formed(self, block: Sequence[int]) -> Iterable[tuple[int, Floats]]:
        found = ModelView(self.model).probabilities([self.cliques[i] for i in block])  # type: ignore[arg-type]
        return zip(block, found, strict=True)


def deviation(lam: Floats) -> Floats:
    """(m,) E|X - lambda| of Poisson variables: 2 e^-lambda lambda^(f + 1) / f!, f = floor(lambda) (De Moivre)."""
    found = _MAD * np.sqrt(lam)
    few = (lam > 0) & (lam < _LARGE)
    some = lam[few]
    floor = np.floor(some)
    found[few] = np.exp(math.log(2.0) - some + (floor + 1.0) * np.log(some) - gammaln(floor + 1.0))
    return found
