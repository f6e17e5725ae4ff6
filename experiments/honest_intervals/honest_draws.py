"""Draws from what a run leaves uncertain: models that each table comes from.

`Refits` is an oracle of this experiment: every measurement is perturbed once more by what made it uncertain, the
sampling of the rows and its own noise, and the model is fitted again (randomise, then optimise). For a linear model
with Gaussian noise that is a draw from the posterior; it needs no Hessian, and a fit per draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from experiments.honest_intervals.honest_populations import Floats, Population, counts
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.posterior import Posterior
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.table.counting.sums import residual

# Rows of the pool that stands for the model when rows are drawn from it independently.
_POOL = 10
# Of a fit; from 50 on the draws of a run on the generated population no longer move (300: by 1% of their spread).
_ITERATIONS = 60


@dataclass(eq=False)
class Seen:
    """What a finished run has in memory.

    Attributes:
        strategy: its server half.
        population: where its rows came from.
        measurements: of its last fit.
        kappa: the pull of that fit.
        prior: what it pulled towards.
    """

    strategy: MechanismStrategy
    population: Population
    measurements: Sequence[Measurement] = ()
    kappa: float = 0.0
    prior: Model | None = field(default=None)

    @property
    def model(self) -> Model:
        assert self.strategy.model is not None
        return self.strategy.model

    def holds(self, columns: frozenset[str]) -> bool:
        """Whether a measurement contains these columns, cell by cell."""
        return any(columns <= frozenset(m.clique) for m in self.measurements if m.groups is None)


def seen_of(m: Measurement, table: Floats) -> Floats:
    """What a measurement sees of a marginal over its clique, in the shape of its values: cells, groups, residuals."""
    seen = m.of_cells(table).reshape(np.shape(m.values))
    return residual(seen) if m.beyond else seen


class Drawing(ABC):
    """A source of models, one per table.

    Attributes:
        name: of it.
        centre: the model that draws scatter about.
    """

    name: str
    centre: Model

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Model:
        """One model."""


class Posteriors(Drawing):
    """The library's own: what `fedsyn sample --tables` draws from."""

    name = "posterior"

    def __init__(self, seen: Seen, rng: np.random.Generator) -> None:
        self.posterior = Posterior.of(seen.model, seen.measurements)
        self.centre = self.posterior.centre

    def draw(self, rng: np.random.Generator) -> Model:
        return self.posterior.draw(rng)


class Refits(Drawing):
    """Perturb, and fit again, without the run's pull towards independence: it would bias what intervals are about."""

    name, pulled = "refits", False

    def __init__(self, seen: Seen, rng: np.random.Generator) -> None:
        self.seen, self.n = seen, round(seen.model.total)
        self.centre = self._fitted(seen.measurements, seen.model)
        self.pool = self.centre.sample(_POOL * self.n, rng)

    def _fitted(self, measurements: Sequence[Measurement], start: Model) -> Model:
        seen = self.seen
        config = EstimateConfig(iterations=_ITERATIONS, tolerance=1e-4)
        return estimate(
            start.domain,
            measurements,
            total=start.total,
            config=config,
            warm_start=start,
            prior=seen.prior if self.pulled else None,
            shrinkage=seen.kappa if self.pulled and seen.prior is not None else 0.0,
        )

    def draw(self, rng: np.random.Generator) -> Model:
        domain = self.centre.domain
        rows = self.pool[rng.integers(0, len(self.pool), self.n)]
        sampled: dict[tuple[str, ...], Any] = {}
        for clique in dict.fromkeys(m.clique for m in self.seen.measurements):
            sampled[clique] = counts(rows, domain, clique) - counts(self.pool, domain, clique) / _POOL
        perturbed = [
            replace(
                m,
                values=np.asarray(m.values)
                + seen_of(m, sampled[m.clique])
                + rng.normal(0, m.sigma, np.shape(m.values)),
            )
            for m in self.seen.measurements
        ]
        return self._fitted(perturbed, self.centre)


class Pulled(Refits):
    """With the pull of the run's own fit: what it costs in coverage."""

    name, pulled = "pulled", True


class Fresh(Posteriors):
    """What selection does: the same cliques with the same noise, but measured on rows that nobody chose them by."""

    name = "fresh"

    def __init__(self, seen: Seen, rng: np.random.Generator) -> None:
        rows = seen.population.sample(round(seen.model.total), rng)
        domain = seen.population.domain
        again = [
            (m, seen_of(m, counts(rows, domain, m.clique)) + rng.normal(0, m.sigma, np.shape(m.values)))
            for m in seen.measurements
        ]
        seen.measurements = [replace(m, values=values) for m, values in again]
        super().__init__(seen, rng)


DRAWINGS: dict[str, type[Drawing]] = {kind.name: kind for kind in (Posteriors, Refits, Pulled, Fresh)}
