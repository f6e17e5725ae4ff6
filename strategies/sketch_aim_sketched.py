"""What sketch_aim's opened sketches say of a model: its errors, and what its predicted quality needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

from fedsyn.evaluation.predicted import SketchError
from fedsyn.evaluation.predicted.effects import independent
from fedsyn.inference import Model
from fedsyn.inference.shrinkage import Departure
from fedsyn.selection.planning import shrunk
from fedsyn.selection.sketches import Sketcher, squared_distance
from fedsyn.selection.views import ModelView, effective_cells

# Of runs on independent attributes, those that may take noise for an association.
_CHANCE = 0.05


@dataclass(frozen=True, eq=False)
class Sketched:
    """The opened sketches, brought to the federation's total.

    Attributes:
        sketcher: that made them.
        values: one vector per sketch, in records.
        sigma: standard deviation of their noise before weights.
    """

    sketcher: Sketcher
    values: list[npt.NDArray[np.float64]]
    sigma: float

    def errors(self, view: ModelView) -> npt.NDArray[np.float64]:
        """(sketches,) squared L1 errors of the model, in records^2: shrunk squared distances times the support.

        Cliques of two attributes and of three are shrunk apart: most triples have nothing of their own. The L1 norm of
        an error that is spread like sqrt(p) is its L2 norm times the root of the effective support; no error is larger
        than 2 n, whatever the noise says.
        """
        squared, spread, support = self.distances(view)
        sizes = np.array([len(clique) for clique in self.sketcher.cliques])
        for size in np.unique(sizes):
            squared[sizes == size] = shrunk(squared[sizes == size], spread[sizes == size])
        return np.asarray(np.minimum(squared * support, (2.0 * view.model.total) ** 2))

    def shows(self, view: ModelView) -> bool:
        """Whether any sketch is farther from the model than noise explains: by chance in one run of twenty.

        Of k noises, the squared distance is sigma^2 times a chi-square with k degrees of freedom.
        """
        squared, _, _ = self.distances(view)
        entries = np.array([self.sketcher.noises(i) for i in range(len(self.values))], np.float64)
        sigmas = np.array([self.sketcher.sigma_of(i, self.sigma) for i in range(len(self.values))])
        chances = chdtrc(entries, np.maximum(squared / sigmas**2 + entries, 0.0))
        return bool(len(chances) * chances.min() < _CHANCE)

    def distances(self, view: ModelView) -> npt.NDArray[np.float64]:
        """(3, sketches): unbiased squared L2 distances of the model, their standard deviations by noise, supports."""
        squared, spread, support = found = np.empty((3, len(self.values)))
        for i, probabilities in enumerate(view.probabilities(self.sketcher.cliques)):
            sigma = self.sketcher.sigma_of(i, self.sigma)
            seen, noises = self.sketcher.of_marginal(i, probabilities), self.sketcher.noises(i)
            squared[i] = squared_distance(self.values[i] - view.model.total * seen, sigma, noises)
            spread[i] = sqrt(2.0 * noises) * sigma * sigma
            support[i] = effective_cells(self.sketcher.coarse(i, probabilities))
        return found

    def sketch_errors(self, view: ModelView) -> list[SketchError]:
        """The distances, with what is needed to make errors of them."""
        sketcher, rows = self.sketcher, view.model.total
        names = [(name,) for name in view.model.domain]
        masses = {name: p for (name,), p in zip(names, view.probabilities(names), strict=True)}
        found = []
        for i, (clique, *distance) in enumerate(zip(sketcher.cliques, *self.distances(view), strict=True)):
            squared, spread, support = map(float, distance)
            groups = None
            if sketcher.grouping:
                groups = tuple(sketcher.grouping[pair] for pair in zip(clique, sketcher.shapes[i], strict=True))
            apart = sketcher.of_marginal(i, independent(masses, clique))
            off, sigma = self.values[i] - rows * apart, sketcher.sigma_of(i, self.sigma)
            alone = squared_distance(off, sigma, sketcher.noises(i))
            scatter = rows * sketcher.spread(i)
            found.append(SketchError(clique, squared, spread, scatter, support, groups, alone, sketcher.noises(i)))
        return found

    def departures(self, model: Model) -> list[Departure]:
        """Where the sketches and a model of independent attributes see the same cells."""
        sketcher, found = self.sketcher, []
        for i, p in enumerate(ModelView(model).probabilities(sketcher.cliques)):
            sigma = sketcher.sigma_of(i, self.sigma)
            seen = sketcher.of_marginal(i, p)
            found.append(Departure(seen, self.values[i], sigma, sketcher.spread(i), sketcher.noises(i)))
        return found
