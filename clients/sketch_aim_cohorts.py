"""What sketch_aim's clients agree on where each takes part in some of the rounds only: one request, and the budget.

The first cohort is asked for one-way marginals and sketches, every later one for one-way marginals and what was chosen:
`strategies/sketch_aim_cohorts.py`, docs/sketch_aim.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from fedsyn.privacy import gaussian_rho, sigma_for_rho
from fedsyn.protocol.common import Marginals
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Planned
from fedsyn.wire.requests import CandidateIndices, Layout, SumRequest

#: What is summed, for the statement.
SUMS_OF_COHORTS = (
    "in the first round {d} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at S^2/sigma^2, with "
    "S^2 the sum of their squared sensitivities; in any other {d} one-way and the chosen marginals at 1/sigma^2 each"
)


class MeasureAll(SumRequest):
    """All one-way marginals, and the marginals of the chosen candidates, in one sum."""

    name = "measure-all"
    leaves = "the counts of every attribute and of the chosen cliques, in a sum"
    costs = "each of the d + M marginals has sensitivity 1: mu^2 = 1/sigma^2 each"

    cliques: CandidateIndices

    def layout(self, contract: Contract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        ones = [(name,) for name in contract.domain]
        return Layout.of_marginals(contract.domain, ones + [contract.candidates.cliques[i] for i in self.cliques])


@dataclass(frozen=True)
class CohortBudget:
    """The noise of each sum, where a client takes part in at most m rounds.

    A row of a client that takes part in j <= m rounds pays for j of them, each of which costs at most 1/m of the
    budget: in the first round half of that for the d one-way marginals and half for ONE vector of sketches; in any
    other the whole, evenly for d + M marginals. Every sum adds Gaussian noise, and which of them a client is in depends
    on no row, so what concerns its rows is one Gaussian mechanism with mu^2 = the sum of Delta^2/sigma^2 over those
    rounds, however M and the cliques followed from what was released before (Smith & Thakurta 2022). Other cohorts'
    releases do not depend on the row at all.

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

    def marginal(self, chosen: int) -> float:
        """Standard deviation of every marginal of a later cohort, one-way or one of M chosen ones, in records."""
        return sigma_for_rho(self.each / (self.attributes + chosen))

    def planned(self, name: str, layout: Layout | None) -> Planned | None:
        """The most that each of the mechanism's requests may cost a row: in one round, and in all m."""
        if layout is None:
            return None
        once = {
            Marginals.name: 0.0,  # of the other schedule
            "one-way": self.attributes * gaussian_rho(self.first_one_way),
            "sketch": gaussian_rho(self.per_sensitivity),
            MeasureAll.name: layout.count * gaussian_rho(self.marginal(layout.count - self.attributes)),
        }.get(name)
        return None if once is None else Planned(once, self.most * once)
