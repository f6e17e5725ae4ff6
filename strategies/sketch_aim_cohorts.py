"""sketch_aim with cohorts only: nobody is asked before it takes part, and nobody takes part in more than m rounds.

The part of `strategies/sketch_aim.py` that runs with `federation.participations`; docs/sketch_aim.md has the proof of
its privacy. The client half is in `clients/sketch_aim_cohorts.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.inference import Measurement
from fedsyn.inference.capacity import Capacity
from fedsyn.plugins.clients.sketch_aim_cohorts import CohortBudget, MeasureAll
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.wire.requests import Sum, Summed


class Pool:
    """Sums of the same marginals over one cohort after the other, added up: the table of all who were in one of them.

    Each brings noise of its own, so the noise of c cohorts' total is the root of c times that of one; what it no longer
    has is the error of a cohort that is unlike the others.

    Args:
        cliques: of the marginals.
    """

    def __init__(self, cliques: Sequence[Clique]) -> None:
        self.cliques = list(cliques)
        self.totals: list[npt.NDArray[np.float64]] = []
        self.variance = self.rows = 0.0

    def add(self, arrays: Sequence[npt.NDArray[np.float64]], sigma: float, rows: float) -> None:
        """One cohort's noisy sums, their standard deviation, and the cohort's rows."""
        self.totals = [a + b for a, b in zip(self.totals, arrays, strict=True)] if self.totals else list(arrays)
        self.variance += sigma * sigma
        self.rows += rows

    def measurements(self, total: float) -> list[Measurement]:
        """Brought to the federation's total: whoever was asked stands for everybody."""
        factor = total / max(1.0, self.rows)
        sigma = float(np.sqrt(self.variance)) * factor
        pairs = zip(self.cliques, self.totals, strict=True) if self.totals else ()
        return [Measurement(clique, values * factor, sigma) for clique, values in pairs]


class ByCohorts(MechanismStrategy):
    """The first cohort tells what to measure, and all the others measure the same.

    A clique that one cohort of unlike clients measures is biased towards that cohort, more than any noise that it saves
    is worth. So there is one choice, after the first cohort's one-way marginals and sketches, and every later cohort is
    asked for the same marginals: their sums add up to those of all clients but the first cohort's. One-way marginals
    are asked of every cohort. A client sends one vector in all, or two.

    M, the number of marginals, is the one whose predicted gain is largest (`best_plan`).
    """

    def by_cohorts(self) -> Protocol:
        contract: Any = self.contract
        budget: CohortBudget = contract.budget_of_cohorts(self.ledger.remaining_rho)
        ones, pooled = Pool([(name,) for name in self.domain]), Pool([])
        which = self.sketched()
        chosen: list[int] | None = None if which else []
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            cohort = self.sample(self.config.federation.participation)
            if chosen is None:
                self.record.sigma = budget.first_one_way
                sums = yield Sum(cohort, OneWay(), budget.first_one_way)
                if not self.is_open(sums, "one-way marginals"):
                    continue
                self.pool(ones, sums, slice(None))
                self.model = None
                self.estimate(ones.measurements(self.total))
                sums = yield self.sum_of_sketches(which, budget, cohort)
                if self.is_open(sums, "sketches"):
                    chosen = self.best_plan(self.sketches_of(which, sums), budget, t)
                    pooled = Pool([self.candidates.cliques[i] for i in chosen])
                    self.selected(pooled.cliques)
                continue
            self.record.sigma = budget.marginal(len(chosen))
            sums = yield Sum(cohort, MeasureAll(cliques=chosen), self.record.sigma)
            if self.is_open(sums, "marginals"):
                self.pool(ones, sums, slice(len(ones.cliques)))
                self.pool(pooled, sums, slice(len(ones.cliques), None))
        self.model = None  # its one-way marginals were those of one cohort
        self.estimate(ones.measurements(self.total))
        if pooled.totals:
            self.estimate([*ones.measurements(self.total), *pooled.measurements(self.total)], last=True)

    def pool(self, pool: Pool, sums: Summed, which: slice) -> None:
        """Adds some arrays of an opened sum, whose noise is the same on each."""
        if pool.cliques:
            pool.add(sums.arrays[which], sums.sigmas[0], self.rows(sums.contributors))

    def best_plan(self, sketched: Any, budget: CohortBudget, t: int) -> list[int]:
        """The candidates that all later cohorts measure.

        With M of them every marginal's noise goes as the root of d + M. For each M of a growing sequence the best M are
        chosen under that noise, and what they gain is predicted: for each, its weight times (its distance from the
        model of the first cohort's one-way marginals, as the sketches estimate it, less the noise of the pooled sums),
        less what the one-way marginals' noise grows by. The largest prediction wins; if none is above 0, nothing is
        measured but one-way marginals. A function of released values. The cohort that tells is small, its sketches'
        noise is large, and the best of many are looked for: so much is taken off every squared distance that noise
        alone does not pass for one.
        """
        # The largest of m noises exceeds this many standard deviations about never: none passes for a distance.
        sketched = replace(sketched, caution=max(sketched.caution, sqrt(2.0 * log(max(2, len(sketched.values))))))
        node, left = self.config.federation, self.options.rounds - t
        cohort = cohort_size(node.participation, node.minimum_cohort, len(self.clients))
        # Of `left` cohorts' rows, where each has as many as the others, brought to the federation's.
        scale = len(self.clients) / (cohort * sqrt(left)) if left else np.inf
        best: tuple[float, list[int]] = (0.0, [])
        for most in _growing():
            self.capacity = Capacity(self.domain, self.config.inference)
            gain, chosen = self.gain_of(sketched, budget, most, float(scale)) if left else (0.0, [])
            if gain > best[0]:
                best = gain, chosen
            if len(chosen) < most:
                break
        self.capacity = Capacity(self.domain, self.config.inference)
        self.capacity.add([self.candidates.cliques[i] for i in best[1]])
        if not best[1]:
            self.record.notes.append("no marginal promises more than its noise: one-way marginals alone are measured")
        return sorted(best[1])

    def gain_of(self, sketched: Any, budget: CohortBudget, most: int, scale: float) -> tuple[float, list[int]]:
        """What at most `most` candidates are predicted to gain together, in weighted records, and which."""
        chosen = self.best_under(sketched, budget.marginal(most) * scale, most)
        sigma, alone = (budget.marginal(k) * scale for k in (len(chosen), 0))
        gains = self.predicted(sketched, chosen, sigma)
        return gains - self.one_way_cost(sigma - alone), chosen

    # What sketch_aim says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def sketched(self) -> list[int]: ...

    @abstractmethod
    def sum_of_sketches(self, which: list[int], sigmas: Any, cohort: Sequence[int] | None = None) -> Sum: ...

    @abstractmethod
    def sketches_of(self, which: list[int], sums: Summed) -> Any: ...

    @abstractmethod
    def best_under(self, sketched: Any, sigma: float, most: int) -> list[int]:
        """At most so many candidates of the largest positive gain under that noise, which the model can take."""

    @abstractmethod
    def predicted(self, sketched: Any, chosen: Sequence[int], sigma: float) -> float:
        """Sum of w_q (distance - expected noise) over them."""

    @abstractmethod
    def one_way_cost(self, sigma: float) -> float:
        """Sum of w_q times the expected noise of that scale over the one-way marginals."""


def _growing() -> Iterator[int]:
    """1, 2, 3, 4, 5, 7, 9, 12, 15, 19, ...: by a quarter."""
    number = 1
    while True:
        yield number
        number = ceil(1.25 * number)
