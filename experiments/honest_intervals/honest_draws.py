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
from honest_populations import Population, counts

from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.protocol.strategy import MechanismStrategy

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
        """Whether a measurement contains these columns."""
        return any(columns <= frozenset(m.clique) for m in self.measurements)


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
                + _shaped(sampled[m.clique], m)
                + rng.normal(0, m.sigma, np.shape(m.values)),
            )
            for m in self.seen.measurements
        ]
        return self._fitted(perturbed, self.centre)


class Pulled(Refits):
    """With the pull of the run's own fit: what it costs in coverage."""

    name, pulled = "pulled", True


class Fresh(Refits):
    """What selection does: the same cliques with the same noise, but measured on rows that nobody chose them by."""

    name = "fresh"

    def __init__(self, seen: Seen, rng: np.random.Generator) -> None:
        rows = seen.population.sample(round(seen.model.total), rng)
        seen.measurements = [
            replace(
                m,
                values=_shaped(counts(rows, seen.population.domain, m.clique), m)
                + rng.normal(0, m.sigma, np.shape(m.values)),
            )
            for m in seen.measurements
        ]
        super().__init__(seen, rng)


def _shaped(table: np.ndarray, m: Measurement) -> np.ndarray:
    return table.reshape(np.shape(m.values))


DRAWINGS: dict[str, type[Drawing]] = {kind.name: kind for kind in (Refits, Pulled, Fresh)}
