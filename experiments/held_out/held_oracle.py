"""What could be reached: sketch_aim's planner, tree and fits, told the true errors of its model in every round.

An oracle reads the table to choose; nothing is sketched, so all of the budget goes into noisy marginals, and those are
noisy as they would be. It is no mechanism and gives no privacy. Where even the best oracle is above a bound, choosing
better does not reach it; where sketch_aim is above the oracle, that much is lost by choosing without seeing. The choice
is greedy by predicted gain, so an oracle is a yardstick and not a proof: another plan may do better still.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.held_out.held_cells import Assignments, Cell, code_hash, measures
from experiments.held_out.held_tables import rows_of
from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.inference import Measurement, Model
from fedsyn.plugins.strategies.sketch_aim import SketchAim
from fedsyn.randomness import Randomness
from fedsyn.selection.planning import MeasurementPlan, ModelErrors, Planner
from fedsyn.selection.views import ModelView
from fedsyn.table.counting.marginals import count
from fedsyn.table.counting.sums import cost, residual

#: How much of the workload's cliques an oracle sees, and how bold it is: with a boldness of 4 it reckons with a quarter
#: of the noise's variance, so it takes more marginals than the planner would. Four settings; AIM has six.
ORACLES: dict[str, Assignments] = {
    f"oracle {seen} x{boldness:g}": (f"oracle.sizes={most}", f"oracle.boldness={boldness:g}")
    for seen, most in (("pairs", 2), ("all", 3))
    for boldness in (1.0, 4.0)
}
#: Chooses among all pairs of attributes, whatever the workload: what a mechanism would do that is judged by nll.
EVERY_PAIR = {"oracle every pair": ("oracle.sizes=2", "oracle.boldness=1", "workload={degree: 2, size: null}")}


class Bold(Planner):
    """A planner that believes in `boldness` times the budget when it asks whether one more clique pays."""

    boldness = 1.0

    def best(self, errors: ModelErrors, eligible: Any, room: Any, budget: float, cells: Any = None) -> MeasurementPlan:
        return super().best(errors, eligible, room, self.boldness * budget, cells)


class Oracle(SketchAim):
    """The server half of sketch_aim over rows that it reads, with no clients.

    Args:
        config: of a run of sketch_aim.
        codes: (n, d) training rows.
        domain: of them.
        sizes: most attributes of a clique whose error is looked at.
        boldness: of the plan.
    """

    def __init__(self, config: RunConfig, codes: npt.NDArray[Any], domain: Domain, sizes: int, boldness: float) -> None:
        super().__init__(config, domain, "", randomness=Randomness(config.runtime.seed))
        self.codes, self.sizes, self.boldness = codes, sizes, boldness
        self._noise = np.random.default_rng([config.runtime.seed or 0, 16])
        self._true: dict[Clique, npt.NDArray[np.float64]] = {}

    @property
    def total(self) -> float:
        return float(len(self.codes))

    @cached_property
    def planner(self) -> Planner:
        planner = Bold(self.workload, self.candidates)
        planner.boldness = self.boldness
        return planner

    def true(self, cliques: Sequence[Clique]) -> list[npt.NDArray[np.float64]]:
        """Flat exact marginals, in records."""
        missing = [q for q in dict.fromkeys(cliques) if q not in self._true]
        for clique, counts in zip(missing, count(self.codes, self.domain, missing), strict=True):
            self._true[clique] = np.asarray(counts, np.float64).ravel()
        return [self._true[q] for q in cliques]

    def missed(self, sketched: Any, view: ModelView) -> npt.NDArray[np.float64]:
        """The true errors where `SketchAim.missed` has estimates."""
        cliques = self.candidates.cliques
        place = {q: i for i, q in enumerate(cliques)}
        parts = np.zeros(len(cliques))
        seen = [q for q in cliques if 1 < len(q) <= self.sizes]
        for clique, p, counts in zip(seen, view.probabilities(seen), self.true(seen), strict=True):
            inside = self.planner.inside(parts)[place[clique]] if len(clique) > 2 else 0.0
            parts[place[clique]] = max(0.0, float(np.abs(counts - self.total * p).sum()) ** 2 - inside)
        return parts

    def counted(self, plan: Mapping[int, float]) -> list[Measurement]:
        """The plan's residuals, in cells or groups as sketch_aim measures them, with Gaussian noise."""
        found = []
        for i, groups, budget in self.parts(plan):
            clique = self.candidates.cliques[i]
            shape = self.domain.shape_of(clique) if groups is None else tuple(int(g.max()) + 1 for g in groups)
            sigma = sqrt(cost(shape) / budget)
            empty = Measurement(clique, np.zeros(shape), sigma, groups=groups)
            counts = np.asarray(empty.of_cells(self.true([clique])[0])).reshape(shape)
            noise = self._noise.normal(0.0, sigma, shape)
            found.append(self.residual_of(replace(empty, values=residual(counts) + noise)))
        return found

    def run(self) -> Model:
        """The rounds of `SketchAim.protocol`, without its sketches and with their budget."""
        mu2, first = 2.0 * self.contract.budget.mechanism, self.options.one_way_share
        ones = [i for i, q in enumerate(self.candidates.cliques) if len(q) == 1]
        prices = self.prices[ones]  # the first look has the same noise everywhere
        measurements = self.counted(dict(zip(ones, first * mu2 * prices / prices.sum(), strict=True)))
        self.estimate(measurements)
        left = (1.0 - first) * mu2
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            plan = self.plan(None, measurements, left, t)  # type: ignore[arg-type]
            left -= sum(plan.values())
            measurements += self.counted(plan)
            self.estimate(measurements, t == self.options.rounds)
        assert self.model is not None
        return self.model


def run_oracle(cell: Cell) -> dict[str, Any]:
    """The metrics of an oracle in a cell; those of `held_cells.run_cell`."""
    started, given = time.process_time(), dict(text.split("=", 1) for text in cell.sets)
    sizes, boldness = int(given.pop("oracle.sizes")), float(given.pop("oracle.boldness"))
    sets = tuple(f"{key}={value}" for key, value in given.items())
    config = Cell(cell.table, cell.rows, cell.epsilon, cell.seed, cell.name, sets).config()
    table = rows_of(cell.table)
    model = Oracle(config, table.train[: cell.rows], table.domain, sizes, boldness).run()
    facts = {"id": cell.id, **asdict(cell), "code": code_hash()} | measures(cell, model)
    return facts | {"cpu": round(time.process_time() - started, 2)}


__all__ = ["EVERY_PAIR", "ORACLES", "Oracle", "run_oracle"]
