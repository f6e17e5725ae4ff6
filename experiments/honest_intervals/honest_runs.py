"""One run of a mechanism on one sample, and every interval that it leads to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.held_out import held_cells
from experiments.honest_intervals.honest_draws import DRAWINGS, Seen
from experiments.honest_intervals.honest_estimands import ESTIMANDS, Estimand, pairs_of
from experiments.honest_intervals.honest_populations import POPULATIONS, Population, counts
from fedsyn.evaluation.analysis import Combined, combine
from fedsyn.inference import Model
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.registry import strategy_class

Floats = npt.NDArray[np.float64]

#: Tables of an analysis, and rows of each / real rows.
TABLES, LARGER = 20, 5


@dataclass(frozen=True)
class Place:
    """One run."""

    population: str
    rows: int
    epsilon: float
    mechanism: str
    drawing: str
    run: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(map(str, astuple(self)))

    @property
    def seed(self) -> int:
        """The same sample and the same noise for every way to draw."""
        facts = (self.population, self.rows, self.epsilon, self.mechanism, self.run)
        return zlib.crc32(repr(facts).encode())


@dataclass(frozen=True)
class Line:
    """One estimate of one run with its intervals, `low` and `high` being the honest one.

    `held`: every pair of its columns was measured. `centre`: the estimate under the model that draws scatter about.
    """

    kind: str
    term: str
    held: int
    truth: float
    real_low: float
    real_high: float
    naive_low: float
    naive_high: float
    low: float
    high: float
    centre: float


def run(place: Place) -> list[Line]:
    """The intervals of one run."""
    population, rng = POPULATIONS[place.population](), np.random.default_rng(place.seed)
    rows = population.sample(place.rows, rng)
    seen = fitted(place, population, rows)
    drawing = DRAWINGS[place.drawing](seen, rng)
    models = [drawing.draw(rng) for _ in range(TABLES)]
    naive_rows = seen.model.sample(place.rows, rng)
    lines: list[Line] = []
    for what in ESTIMANDS[place.population]:
        held = all(map(seen.holds, pairs_of(what.clique)))
        real = alone(what.estimates(counts(rows, population.domain, what.clique), population))
        naive = alone(what.estimates(counts(naive_rows, population.domain, what.clique), population))
        found = honest(what, models, place.rows, population, rng)
        ends = [real.naive(), naive.naive(), found.interval()]
        centre = what.estimates(np.maximum(drawing.centre.project(what.clique), 0.0), population)[0]
        for i, name in enumerate(what.names):
            figures = [float(end[i]) for pair in ends for end in pair]
            figures.append(float(centre[i]))
            lines.append(Line(what.kind, name, int(held), truth(place.population, what)[i], *figures))
    return lines


def honest(what: Estimand, models: list[Model], n: int, population: Population, rng: np.random.Generator) -> Combined:
    """Tables of independent rows, one of each model: all that is needed of them is the counts over the clique."""
    each = []
    for model in models:
        p = np.maximum(model.project(what.clique), 0.0)
        each.append(
            what.estimates(
                rng.multinomial(n * LARGER, (p / p.sum()).ravel()).reshape(p.shape).astype(float), population
            )
        )
    return combine([q for q, _ in each], [v for _, v in each], ratio=float(LARGER))


def alone(found: tuple[Floats, Floats]) -> Combined:
    """One table's estimates in the form of `Combined`, for their plain intervals."""
    q, v = found
    return Combined(q, v, np.zeros_like(v), v, np.zeros(len(v), bool), found, 1, np.zeros_like(v))


@cache
def truth(population: str, what: Estimand) -> tuple[float, ...]:
    """The population's values."""
    known = POPULATIONS[population]()
    return tuple(map(float, what.estimates(known.joint(what.clique) * 1e9, known)[0]))


def fitted(place: Place, population: Population, rows: npt.NDArray[np.uint8]) -> Seen:
    """A run of the mechanism as the held-out protocol runs one, with what its last fit was made of."""
    sets = (f"mechanism.name={place.mechanism}", "workload={degree: 2, size: null}")
    cell = held_cells.Cell(place.population, place.rows, place.epsilon, place.seed, place.mechanism, sets)
    own, held_cells.strategy_class = held_cells.strategy_class, watched  # type: ignore[assignment]
    try:
        strategy: Any = held_cells.fitted(cell.config(), rows, population.domain)
    finally:
        held_cells.strategy_class = own
    return Seen(strategy, population, *strategy.seen)


@cache
def watched(name: str) -> type[MechanismStrategy]:
    """The mechanism's server half, which keeps what its last fit was made of."""
    half = strategy_class(name)

    class Watched(half):  # type: ignore[misc, valid-type]
        def shrunk_towards(self, measurements: Any, settings: Any, shrinkage: Any) -> tuple[Model | None, float]:
            prior, found = super().shrunk_towards(measurements, settings, shrinkage)
            self.seen = (tuple(measurements), found, prior)
            return prior, found

    return Watched


def places(
    populations: list[str], rows: list[int], epsilons: list[float], mechanisms: list[str], drawing: str, runs: range
) -> Iterator[Place]:
    """Run by run, so that an interrupted experiment has as many of each."""
    for number in runs:
        for population in populations:
            for n in rows:
                for epsilon in epsilons:
                    for mechanism in mechanisms:
                        yield Place(population, n, epsilon, mechanism, drawing, number)
