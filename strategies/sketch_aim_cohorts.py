"""sketch_aim with cohorts only: nobody is asked before it takes part, and nobody takes part in more than m rounds.

The part of `strategies/sketch_aim.py` that runs with `federation.participations`;
docs/mechanisms/sketch_aim.md has the proof of its privacy. The client half is in `clients/sketch_aim_cohorts.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique
from fedsyn.inference import Measurement
from fedsyn.plugins.clients.sketch_aim import FirstLook
from fedsyn.plugins.clients.sketch_aim_cohorts import FINEST, CohortBudget, MeasureAll
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.protocol.wire.requests import Sum, Summed


class Pool:
    """Sums of one marginal over one cohort after the other, added up: the table of all who were in one of them.

    Each brings noise of its own, so the noise of c cohorts' total is the root of c times that of one; what it no longer
    has is the error of a cohort that is unlike the others.

    Args:
        clique: of the marginal.
    """

    def __init__(self, clique: Clique) -> None:
        self.clique = clique
        self.total: npt.NDArray[np.float64] | None = None
        self.variance = self.rows = 0.0

    def add(self, values: npt.NDArray[np.float64], sigma: float, rows: float) -> None:
        """One cohort's noisy sum, its standard deviation, and the cohort's rows."""
        self.total = values if self.total is None else self.total + values
        self.variance += sigma * sigma
        self.rows += rows

    def measurement(self, total: float) -> list[Measurement]:
        """Brought to the federation's total: the clients that were asked stand for all; empty if none was."""
        if self.total is None:
            return []
        return [expanded(self.clique, self.total, self.variance, total, total / max(1.0, self.rows))]


def expanded(
    clique: Clique, values: npt.NDArray[np.float64], variance: float, total: float, factor: float
) -> Measurement:
    """A noisy marginal of some clients, brought to the federation's total.

    Of those who were not asked, the rows are missing: as if each row were there by chance, a cell of n_c records has a
    variance of n_c (f - 1), f the expansion, which is added to that of the noise.

    Args:
        clique: of the marginal.
        values: its noisy counts.
        variance: of the noise in each of them.
        total: records of the federation.
        factor: f, the federation's records for each of those clients'.
    """
    missing = total * max(0.0, factor - 1.0) / values.size
    return Measurement(clique, values * factor, sqrt(variance * factor * factor + missing))


def integer_weights(shares: Sequence[float]) -> list[int]:
    """Weights c of 1 to `FINEST` with c^2 in proportion to the shares, up to rounding."""
    most = max(shares)
    return [max(1, round(FINEST * sqrt(share / most))) for share in shares]


class ByCohorts(MechanismStrategy):
    """The first cohort tells what to measure, and all the others measure the same.

    A clique that one cohort of unlike clients measures is biased towards that cohort, more than any noise that it saves
    is worth. So there is one choice, after the first cohort's one-way marginals and sketches, and every later cohort is
    asked for the same marginals: their sums add up to those of all clients but the first cohort's. One-way marginals
    are asked of every cohort. A client sends one vector in all, or two.
    """

    def by_cohorts(self) -> Protocol:
        contract: Any = self.contract
        budget: CohortBudget = contract.budget_of_cohorts(self.ledger.remaining_rho)
        ones = [Pool((name,)) for name in self.domain]
        pooled: list[Pool] = []
        shrinkage: float | None = None
        which = self.sketched()
        request = None if which else MeasureAll(one_way=[1] * len(ones), cliques=[], weights=[])
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            cohort = self.sample(self.config.federation.participation)
            if request is None:
                self.record.sigma = budget.first_one_way
                sums = yield Sum(cohort, FirstLook(alone=False), budget.first_one_way)
                if not self.is_open(sums, "one-way marginals"):
                    continue
                self.pool(ones, sums.arrays, [sums.sigmas[0]] * len(ones), sums)
                self.model = None
                self.estimate(measurements(ones, self.total))
                sums = yield self.sum_of_sketches(which, budget, cohort)
                if self.is_open(sums, "sketches"):
                    with self.timed("select"):
                        sketched = self.sketches_of(which, sums)
                        shrinkage = self.shrinkage_of(sketched)
                        request = self.request_of(self.planned_of_cohorts(sketched, self.later_mu2(budget, t)))
                    pooled = [Pool(clique) for clique in request.measured(contract)[len(ones) :]]
                    self.selected([pool.clique for pool in pooled])
                continue
            self.record.sigma = budget.later(request.layout(contract, ()).sensitivity)
            sums = yield Sum(cohort, request, self.record.sigma)
            if self.is_open(sums, "marginals"):
                weights = np.array([*request.one_way, *request.weights])
                parts = self.parts_of(request.measured(contract), sums.arrays[0])
                values = [part / weight for part, weight in zip(parts, weights, strict=True)]
                self.pool([*ones, *pooled], values, sums.sigmas[0] / weights, sums)
        self.model = None  # its one-way marginals were those of one cohort
        self.estimate(measurements(ones, self.total))
        self.estimate(measurements([*ones, *pooled], self.total), True, shrinkage)

    def later_mu2(self, budget: CohortBudget, t: int) -> float:
        """What the cohorts after round t can give together, as 1/sigma^2 on the federation's counts.

        A sum over one of F cohorts' worth of rows, with noise sigma; c of them have c sigma^2 together, and are brought
        to the federation by F/c: a precision of c/F^2 times 1/sigma^2.
        """
        left: int = self.options.rounds - t
        return 2.0 * budget.each * left * self.share_of_cohort**2

    @property
    def share_of_cohort(self) -> float:
        """The share of the clients that a cohort has."""
        node = self.config.federation
        return cohort_size(node.participation, node.minimum_cohort, len(self.clients)) / len(self.clients)

    def pool(
        self,
        pools: Sequence[Pool],
        arrays: Sequence[npt.NDArray[np.float64]],
        sigmas: Sequence[float] | npt.NDArray[np.float64],
        sums: Summed,
    ) -> None:
        """Adds the marginals of an opened sum to their pools."""
        for pool, values, sigma in zip(pools, arrays, sigmas, strict=True):
            pool.add(values, float(sigma), self.rows(sums.contributors))

    def parts_of(self, cliques: Sequence[Clique], vector: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """The marginals inside a vector, still times their weights."""
        shapes = [self.domain.shape_of(q) for q in cliques]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]

    def request_of(self, plan: Mapping[int, float]) -> MeasureAll:
        """The request that divides a cohort's budget as the plan does, up to the rounding of the weights.

        An attribute of no query of the workload has the least of the other attributes' shares.
        """
        cliques = self.candidates.cliques
        ones = {cliques[i][0]: share for i, share in plan.items() if len(cliques[i]) == 1}
        chosen = [i for i in plan if len(cliques[i]) > 1]
        least = min(ones.values(), default=max(plan.values(), default=1.0))
        shares = [*(ones.get(name, least) for name in self.domain), *(plan[i] for i in chosen)]
        weights = integer_weights(shares)
        d = len(self.domain)
        return MeasureAll(one_way=weights[:d], cliques=chosen, weights=weights[d:])

    # What sketch_aim says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def sketched(self) -> list[int]: ...

    @abstractmethod
    def sum_of_sketches(self, which: list[int], scales: Any, cohort: Sequence[int] | None = None) -> Sum: ...

    @abstractmethod
    def sketches_of(self, which: list[int], sums: Summed) -> Any: ...

    @abstractmethod
    def shrinkage_of(self, sketched: Any) -> float | None:
        """Return the shrinkage that the sketches tell."""

    @abstractmethod
    def planned_of_cohorts(self, sketched: Any, mu2: float) -> dict[int, float]:
        """Candidate -> 1/sigma^2 of everything that is measured with so much, one-way marginals too."""


def measurements(pools: Sequence[Pool], total: float) -> list[Measurement]:
    return [measured for pool in pools for measured in pool.measurement(total)]
