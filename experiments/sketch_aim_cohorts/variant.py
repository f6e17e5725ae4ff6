"""sketch_aim where each client takes part in some rounds only: `mechanism: {name: ...variant:ByCohorts}`.

It needs `federation.max_participations`, and at least two rounds. Nothing here is meant for real rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.special import chdtrc

from fedsyn.aggregation import Contribution
from fedsyn.config import RunConfig
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement
from fedsyn.plugins.clients.sketch_aim import FINEST, FirstLook, Residuals, SketchAimClient, SketchAimContract
from fedsyn.plugins.strategies.sketch_aim import SketchAim, Sketched, expanded
from fedsyn.privacy import gaussian_rho, sigma_for_rho
from fedsyn.privacy.release import COUNTS
from fedsyn.protocol.client import OneWay, answers
from fedsyn.protocol.cohorts import cohort_size
from fedsyn.protocol.contract import Contract, require
from fedsyn.protocol.plan import Foreseen, ForeseenSum, Planned, most_cells
from fedsyn.protocol.strategy import Protocol
from fedsyn.protocol.wire.holder import Call
from fedsyn.protocol.wire.requests import CandidateIndices, Layout, Request, Sum, Summed, SumRequest
from fedsyn.selection.planning import Errors
from fedsyn.selection.views import ModelView

#: What is summed, for the statement.
SUMS_OF_COHORTS = (
    "in the first round {d} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at S^2/sigma^2, with "
    "S^2 the sum of their squared sensitivities; in any other one vector of {d} one-way and the chosen marginals with "
    "weights c, at (sum of c^2)/sigma^2"
)
Weight = Annotated[int, Field(strict=True, ge=1, le=FINEST)]
# Of runs on independent attributes, those that may take noise for an association.
_CHANCE = 0.05


@dataclass(frozen=True)
class CohortBudget:
    """The noise of each sum, where a client takes part in at most m rounds.

    A row of a client that takes part in j <= m rounds pays for j of them, each of which costs at most 1/m of the
    budget: in the first round half of that for the d one-way marginals and half for ONE vector of sketches; in any
    other the whole, for ONE vector of one-way and chosen marginals. Every sum adds Gaussian noise, and which of them a
    client is in depends on no row, so what concerns its rows is one Gaussian mechanism with mu^2 = the sum of
    Delta^2/sigma^2 over those rounds, however cliques and weights followed from what was released before (Smith &
    Thakurta 2022). Other cohorts' releases do not depend on the row at all.

    Attributes:
        each: zCDP of one round, for one row.
        attributes: d.
        most: m.
    """

    each: float
    attributes: int
    most: int

    @classmethod
    def of(cls, rho: float, attributes: int, most: int) -> CohortBudget:
        return cls(rho / most, attributes, most)

    @property
    def first_one_way(self) -> float:
        """Standard deviation of the one-way marginals of the first round, in records."""
        return sigma_for_rho(0.5 * self.each / self.attributes)

    @property
    def per_sensitivity(self) -> float:
        """Standard deviation of the sketches, in multiples of their joint L2 sensitivity."""
        return sigma_for_rho(0.5 * self.each)

    def later(self, sensitivity: float) -> float:
        """Standard deviation of a later cohort's vector of that L2 sensitivity."""
        return sigma_for_rho(self.each, sensitivity)

    def planned(self, name: str, layout: Layout | None) -> Planned | None:
        """The most that each of the mechanism's requests may cost a row: in one round, and in all m."""
        if layout is None:
            return None
        once = {
            Residuals.name: 0.0,  # of the schedule that asks everybody
            "one-way": self.attributes * gaussian_rho(self.first_one_way),
            "sketch": gaussian_rho(self.per_sensitivity),
            MeasureAll.name: self.each,
        }.get(name)
        return None if once is None else Planned(once, self.most * once)


class MeasureAll(SumRequest):
    """All one-way marginals and those of some candidates, each times a weight of its own, as ONE vector."""

    name = "measure-all"
    leaves = "the counts of every attribute and of the chosen cliques, each times its weight, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(sum of c^2): mu^2 = S^2/sigma^2, a round's share of the budget"

    one_way: Annotated[list[Weight], Field(min_length=1, description="weights of the attributes")]
    cliques: CandidateIndices
    weights: list[Weight]

    def measured(self, contract: Contract) -> list[Clique]:
        """All marginals, in the order of the vector."""
        return [(name,) for name in contract.domain] + [contract.candidates.cliques[i] for i in self.cliques]

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """A row is in one cell of each marginal, so it moves the vector by exactly sqrt(sum of c^2) in L2."""
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        if len(self.one_way) != len(contract.domain):
            raise ProtocolError("parameter 'one_way' must have one weight for each attribute")
        weights, cells = [*self.one_way, *self.weights], sum(map(contract.domain.size, self.measured(contract)))
        squared = sum(c * c for c in weights)
        return Layout.of_vector(cells, sqrt(squared), magnitude=float(max(weights)), replaced=COUNTS)


class CohortsContract(SketchAimContract):
    """sketch_aim's options and sketches, with one plan for all cohorts."""

    factors = None

    def words(self) -> dict[str, object]:
        return {"sums": SUMS_OF_COHORTS.format(d=len(self.domain), m=self.options.rounds)}

    def budget_of_cohorts(self, rho: float) -> CohortBudget:
        """How rho is divided where clients take part in some rounds only."""
        return CohortBudget.of(rho, len(self.domain), self.paid(self.options.rounds))

    def planned(self, request: Request, layout: Layout | None) -> Planned | None:
        return self.budget_of_cohorts(self.plan_rho).planned(request.name, layout)

    def foreseen(self, rows: int) -> Iterable[Foreseen]:
        """The first cohort's one-way marginals and sketches, and what each later one is asked for."""
        budget, first = self.budget_of_cohorts(self.plan_rho), FirstLook(alone=False).layout(self, ())
        once = self.planned(FirstLook(alone=False), first)
        assert once is not None
        yield ForeseenSum.of(OneWay.name, first, self.plan_rho, part=min(1.0, once.once / self.plan_rho))
        if self.sketchable:
            yield from self._foreseen_sketches(budget.per_sensitivity)
        yield self._weighed_of_all(budget.each, self.options.rounds)

    def _weighed_of_all(self, rho: float, times: int) -> ForeseenSum:
        cells = sum(self.domain.shape) + most_cells(self)
        layout = Layout.of_vector(cells, float(FINEST), magnitude=float(FINEST), replaced=COUNTS)
        return ForeseenSum.of(MeasureAll.name, layout, rho, times=times, part=1.0 / (len(self.domain) + cells))

    def below_noise_level(self, which: Sequence[int], rows: float) -> bool:
        return False

    @classmethod
    def check(cls, config: RunConfig) -> None:
        Contract.check.__func__(cls, config)
        require(
            config.federation.max_participations is not None and cls.options_of(config).rounds > 1,
            "federation.max_participations: this variant chooses after the first round's cohort and measures later; "
            "set mechanism.rounds to 2 or more, and max_participations",
        )


class CohortsClient(SketchAimClient):
    """Contributes to sums and selects nothing."""

    Contract = CohortsContract
    contract: CohortsContract

    @answers(MeasureAll)
    def measure_all(self, call: Call[MeasureAll]) -> Contribution:
        """All one-way and the chosen marginals, exact integers, each times its weight."""
        request = call.request
        plain = Layout.of_marginals(self.domain, request.measured(self.contract))
        counted, weights = self.marginals(plain), np.array([*request.one_way, *request.weights], np.int64)
        which = np.searchsorted(plain.offsets, counted.cells, side="right") - 1
        layout = request.layout(self.contract, call.arrays)
        return Contribution(counted.cells, counted.values * weights[which], (0,), layout)


class ByCohorts(SketchAim):
    """sketch_aim, nobody of whose clients is asked before it takes part, nor takes part in more than m rounds."""

    Client = CohortsClient
    contract: CohortsContract

    def means(self, which: Sequence[int]) -> tuple[float, dict[int, float], float]:
        """As sketch_aim, for the first cohort's sketches."""
        _, squared, rows = super().means(which)
        return self.contract.budget_of_cohorts(self.contract.plan_rho).each, squared, rows * self.share_of_cohort

    def planned_of_cohorts(self, sketched: Sketched, mu2: float) -> dict[int, float]:
        """One plan for all later cohorts. Nothing is measured yet: one cohort's one-way marginals are not everybody's.

        The planner's errors of one attribute are those that it will have if nothing else is measured. One cohort's
        sketches are noisy: where the strongest is not above what noise alone shows, one-way marginals are all.
        """
        assert self.model is not None
        cliques, view = self.candidates.cliques, ModelView(self.model)
        errors = self.errors(sketched, [], view)
        ones = [i for i, q in enumerate(cliques) if len(q) == 1]
        errors = Errors(errors.parts, errors.support, dict.fromkeys(ones, 0.0))
        for i, known in self.planner.precisions(errors, [], mu2).items():
            errors.parts[i] = 2.0 / pi * errors.support(i) ** 2 / known
        fits = self.capacity.test()
        eligible = [i for i, q in enumerate(cliques) if len(q) > 1 and fits(q)] if shows(sketched, view) else []
        new = self.chosen(errors, eligible, 1.0, mu2)
        self.say(new, self.options.rounds)
        self.capacity.add([cliques[i] for i in new])
        return self.planner.precisions(errors, new, mu2)

    # With cohorts only: nobody is asked before it takes part, and nobody takes part in more than m rounds ------------

    def protocol(self) -> Protocol:
        """The first cohort tells what to measure, and all the others measure the same.

        A clique that one cohort of unlike clients measures is biased towards that cohort, more than any noise that it
        saves is worth. So there is one choice, after the first cohort's one-way marginals and sketches, and every later
        cohort is asked for the same marginals: their sums add up to those of all clients but the first cohort's.
        One-way marginals are asked of every cohort. A client sends one vector in all, or two.
        """
        contract = self.contract
        budget = contract.budget_of_cohorts(self.ledger.remaining_rho)
        ones = [CohortPool((name,)) for name in self.domain]
        pooled: list[CohortPool] = []
        shrinkage: float | None = None
        which = self.sketched()
        request = None if which else MeasureAll(one_way=[1] * len(ones), cliques=[], weights=[])
        for t in range(1, self.options.rounds + 1):
            self.begin_round(t)
            cohort = self.sample(self.config.federation.sampling_rate)
            if request is None:
                self.record.sigma = budget.first_one_way
                sums = yield Sum(cohort, FirstLook(alone=False), budget.first_one_way)
                if not self.is_open(sums, "one-way marginals"):
                    continue
                self.pool(ones, sums.arrays, [sums.sigmas[0]] * len(ones), sums)
                self.model = None
                self.estimate(measurements(ones, self.total))
                sums = yield replace(self.sum_of_sketches(which, budget.per_sensitivity), cohort=cohort)
                if self.is_open(sums, "sketches"):
                    with self.timed("select"):
                        sketched = self.sketches_of(which, sums)
                        shrinkage = self.shrinkage_of(sketched)
                        request = self.request_of(self.planned_of_cohorts(sketched, self.later_mu2(budget, t)))
                    pooled = [CohortPool(clique) for clique in request.measured(contract)[len(ones) :]]
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
        return cohort_size(node.sampling_rate, node.minimum_cohort, len(self.clients)) / len(self.clients)

    def pool(
        self,
        pools: Sequence[CohortPool],
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


def shows(sketched: Sketched, view: ModelView) -> bool:
    """Whether any sketch is farther from the model than noise explains: by chance in one run of twenty.

    Of k noises, the squared distance is sigma^2 times a chi-square with k degrees of freedom.
    """
    squared, _, _ = sketched.distances(view)
    entries = np.array([sketched.sketcher.noises(i) for i in range(len(sketched.values))], np.float64)
    sigmas = np.array([sketched.sketcher.sigma_of(i, sketched.sigma) for i in range(len(sketched.values))])
    chances = chdtrc(entries, np.maximum(squared / sigmas**2 + entries, 0.0))
    return bool(len(chances) * chances.min() < _CHANCE)


class CohortPool:
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


def integer_weights(shares: Sequence[float]) -> list[int]:
    """Weights c of 1 to `FINEST` with c^2 in proportion to the shares, up to rounding."""
    most = max(shares)
    return [max(1, round(FINEST * sqrt(share / most))) for share in shares]


def measurements(pools: Sequence[CohortPool], total: float) -> list[Measurement]:
    return [measured for pool in pools for measured in pool.measurement(total)]
