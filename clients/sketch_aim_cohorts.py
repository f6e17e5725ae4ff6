"""What sketch_aim's clients agree on where each takes part in some of the rounds only: one request, and the budget.

The first cohort is asked for one-way marginals and sketches, every later one for one-way marginals and what was chosen:
`strategies/sketch_aim_cohorts.py`, docs/mechanisms/sketch_aim.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any

import numpy.typing as npt
from pydantic import Field

from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.privacy import gaussian_rho, sigma_for_rho
from fedsyn.privacy.release import COUNTS
from fedsyn.protocol.common import Marginals
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Planned
from fedsyn.protocol.wire.requests import CandidateIndices, Layout, SumRequest

#: Largest of the integer weights by which one request gives its marginals different noise.
FINEST = 16
#: What is summed, for the statement.
SUMS_OF_COHORTS = (
    "in the first round {d} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at S^2/sigma^2, with "
    "S^2 the sum of their squared sensitivities; in any other one vector of {d} one-way and the chosen marginals with "
    "weights c, at (sum of c^2)/sigma^2"
)
Weight = Annotated[int, Field(strict=True, ge=1, le=FINEST)]


def weighed_layout(contract: Contract, cliques: Sequence[Clique], weights: Sequence[int]) -> Layout:
    """Lays out marginals, each times its weight, as ONE vector.

    A row is in one cell of each marginal, so it moves the vector by exactly sqrt(sum of c^2) in L2.

    Args:
        contract: of the family.
        cliques: whose marginals they are.
        weights: c of each.
    """
    norm = sqrt(sum(c * c for c in weights))
    cells = sum(contract.domain.size(q) for q in cliques)
    return Layout.of_vector(cells, norm, magnitude=float(max(weights)), replaced=COUNTS)


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
        if len(self.weights) != len(self.cliques):
            raise ProtocolError("parameter 'weights' must have one weight for each of 'cliques'")
        if len(self.one_way) != len(contract.domain):
            raise ProtocolError("parameter 'one_way' must have one weight for each attribute")
        return weighed_layout(contract, self.measured(contract), [*self.one_way, *self.weights])


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
            Marginals.name: 0.0,  # of the other schedule
            "one-way": self.attributes * gaussian_rho(self.first_one_way),
            "sketch": gaussian_rho(self.per_sensitivity),
            MeasureAll.name: self.each,
        }.get(name)
        return None if once is None else Planned(once, self.most * once)


__all__ = ["FINEST", "SUMS_OF_COHORTS", "CohortBudget", "MeasureAll", "Weight", "weighed_layout"]
