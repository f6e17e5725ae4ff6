"""The client half of sketch_aim, and its contract: exact one-way marginals, sketches, chosen marginals, for sums only.

The server half is `strategies/sketch_aim.py`; docs/sketch_aim.md describes the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fedsyn.aggregation import Contribution
from fedsyn.config import RunConfig
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.inference.capacity import Capacity
from fedsyn.plugins.clients.sketch_aim_cohorts import SUMS_OF_COHORTS, CohortBudget, MeasureAll
from fedsyn.privacy import PrivacyStatement, gaussian_rho
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.protocol.client import Marginals, OneWay, TableClient, answers
from fedsyn.protocol.contract import Contract, require
from fedsyn.protocol.plan import Planned
from fedsyn.selection.scores import Penalty
from fedsyn.selection.sketches import Sketcher, make_sketcher
from fedsyn.settings import Node
from fedsyn.wire.envelope import Arrays
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import Layout, Request, SomeCandidates, SumRequest

# So many marginals carried what 5,000 to 50,000 rows have to say at epsilon = 1 on most tables (docs/sketch_aim.md).
_MARGINALS = 20


#: What is summed, for the statement.
SUMS = (
    "once, {d} one-way marginals at mu^2 = 1/sigma^2 each and one vector of sketches at S^2/sigma^2, with S^2 the sum "
    "of their squared sensitivities; {m} chosen marginals at 1/sigma^2 each"
)


class SketchAimAblation(Node):
    """What serves a comparison only.

    Attributes:
        sketch: 'groups': coarse marginals, of neighbouring values of about equal mass put together; 'count':
            CountSketch; 'signs': a +-1/sqrt(k) projection.
        weights: integer weights c of the sketches of cliques with 2, 3, ... attributes; the noise on a sketch is
            sigma / c. 0, or a size beyond the list: no sketch; such a clique is judged by those of its parts.
        caution: how many standard deviations of its noise are taken off a squared distance before its root.
        seed: public, of the bits of 'count' and 'signs'.
    """

    sketch: Literal["groups", "count", "signs"] = "groups"
    weights: tuple[int, ...] = (1,)
    caution: float = Field(default=1.0, ge=0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _weighted(self) -> SketchAimAblation:
        if not any(self.weights) or any(not 0 <= c <= 1000 for c in self.weights):
            raise ValueError("weights must be integers from 0 to 1000, one of them at least 1")
        return self


class SketchAimOptions(Node):
    """Options of sketch_aim.

    Attributes:
        rounds: T, sums of chosen marginals.
        marginals: M, chosen marginals in all, spread evenly over the rounds; null: 20, or one a round if T is larger.
        one_way_share: share of the budget (mu^2) for the d one-way marginals.
        sketch_share: share of the budget for the sketches; the rest measures the M chosen marginals.
        width: k, most entries of a sketch.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
        ablation: what serves a comparison only.
    """

    rounds: int = Field(default=10, ge=1, le=10_000)
    marginals: int | None = Field(default=None, ge=1)
    one_way_share: float = Field(default=0.2, gt=0, lt=1)
    sketch_share: float = Field(default=0.05, gt=0, lt=1)
    width: int = Field(default=36, ge=1, le=65536)
    penalty: Penalty = "effective"
    iterations: int = Field(default=25, ge=1)
    final_iterations: int = Field(default=25, ge=1)
    ablation: SketchAimAblation = Field(default_factory=SketchAimAblation)

    @model_validator(mode="after")
    def _consistent(self) -> SketchAimOptions:
        if self.one_way_share + self.sketch_share >= 1:
            raise ValueError("one_way_share and sketch_share must leave a share of the budget for measuring")
        if self.planned < self.rounds:
            raise ValueError(f"marginals ({self.marginals}) must be at least one for each of the {self.rounds} rounds")
        return self

    @property
    def planned(self) -> int:
        """M."""
        return self.marginals or max(_MARGINALS, self.rounds)

    def in_round(self, t: int) -> int:
        """Marginals of round t, 1 to T; the first rounds take what does not divide."""
        return self.planned // self.rounds + (t <= self.planned % self.rounds)

    def weight_of(self, clique: Clique) -> int:
        """c_q; 0: no sketch."""
        position = len(clique) - 2
        return self.ablation.weights[position] if 0 <= position < len(self.ablation.weights) else 0


@dataclass(frozen=True)
class Sigmas:
    """Noise scales, fixed before the first request; standard deviations on what is summed.

    Attributes:
        one_way: of the one-way marginals, in records.
        per_sensitivity: of the sketches, in multiples of their joint L2 sensitivity.
        marginal: of a chosen marginal, in records.
    """

    one_way: float
    per_sensitivity: float
    marginal: float

    @classmethod
    def of(cls, mu2: float, options: SketchAimOptions, attributes: int, choice: bool = True) -> Sigmas:
        """Divides mu^2: d one-way marginals, one vector of sketches, M chosen marginals, each kind by its share.

        Where there is nothing to choose from, the one-way marginals get all of it.
        """
        if not choice:
            return cls(sqrt(attributes / mu2), math.inf, math.inf)
        left = 1.0 - options.one_way_share - options.sketch_share
        return cls(
            sqrt(attributes / (options.one_way_share * mu2)),
            1.0 / sqrt(options.sketch_share * mu2),
            sqrt(options.planned / (left * mu2)),
        )


class SketchAimContract(Contract):
    Options = SketchAimOptions
    accountant = "gaussian"
    _weighed: tuple[tuple[Clique, ...], tuple[int, ...]] = ((), ())
    statement = PrivacyStatement(
        public="{public}",
        trust="{trust}",
        server_sees="noisy sums of one-way marginals, sketches and chosen marginals; {server}",
        client_sees="groups of neighbouring values and the chosen cliques: functions of released values",
        cost="{sums}; accounted exactly, as one Gaussian mechanism; noise drawn by {noise}",
        sampler="{sampler}",
    )

    general_words: ClassVar[dict[str, object]] = {"sums": SUMS.format(d="`d`", m="`m`")}

    def words(self) -> dict[str, object]:
        sums = SUMS if self.config.federation.participations is None else SUMS_OF_COHORTS
        return {"sums": sums.format(d=len(self.domain), m=self.options.planned)}

    def planned(self, request: Request, layout: Layout | None) -> Planned | None:
        """One-way marginals and sketches once, M chosen marginals in T sums, each at its own noise."""
        if self.config.federation.participations is not None:
            return self.budget_of_cohorts(self.plan_rho).planned(request.name, layout)
        mu2, options, d = 2.0 * self.plan_rho, self.options, len(self.domain)
        sigmas = Sigmas.of(mu2, options, d, self.has_choice)
        if isinstance(request, OneWay):
            return Planned(d * gaussian_rho(sigmas.one_way), d * gaussian_rho(sigmas.one_way))
        if not isinstance(request, Sketches | Marginals):
            return Planned(0.0) if isinstance(request, MeasureAll) else None
        if not self.has_choice:
            return Planned(0.0)
        if isinstance(request, Sketches):
            return Planned(gaussian_rho(sigmas.per_sensitivity), gaussian_rho(sigmas.per_sensitivity))
        one = gaussian_rho(sigmas.marginal)
        return Planned(options.in_round(1) * one, options.planned * one)

    def budget_of_cohorts(self, rho: float) -> CohortBudget:
        """How rho is divided where clients take part in some rounds only."""
        return CohortBudget.of(rho, len(self.domain), self.paid(self.options.rounds))

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        require(
            config.federation.participations is None or cls.options_of(config).rounds > 1,
            "federation.participations: 'sketch_aim' chooses after the first round's cohort and measures after that; "
            "set mechanism.rounds to 2 or more, or leave participations out",
        )

    @cached_property
    def has_choice(self) -> bool:
        """Whether any candidate is sketched, a public fact: one with a weight that the model can take by itself."""
        fits = Capacity(self.domain, self.config.inference).test()
        return any(fits(q) for q in self.candidates.cliques if self.options.weight_of(q))

    def sketcher(self, cliques: Sequence[Clique], arrays: Arrays | Sequence[npt.NDArray[Any]]) -> Sketcher:
        """The sketches of some cliques, the same on server and clients.

        Args:
            cliques: each with a weight.
            arrays: the packed groups, for sketches by groups; else none.
        """
        ablation, cliques = self.options.ablation, tuple(cliques)
        weights = self.weights_of(cliques)
        if not cliques or not all(weights):
            raise ProtocolError("parameter 'cliques' names a clique that these options do not sketch, or none")
        if len(arrays) != (ablation.sketch == "groups"):
            raise ProtocolError("the request does not bring the groups of the sketches, or more than them")
        return make_sketcher(self.domain, cliques, ablation.sketch, self.options.width, weights, ablation.seed, *arrays)

    def weights_of(self, cliques: tuple[Clique, ...]) -> tuple[int, ...]:
        """c_q of each clique; the clients of a round ask for the same ones, one after the other."""
        if self._weighed[0] != cliques:
            self._weighed = (cliques, tuple(self.options.weight_of(q) for q in cliques))
        return self._weighed[1]


class Sketches(SumRequest):
    """The sketches of some candidates, one after the other, as ONE vector."""

    name = "sketch"
    leaves = "sketches of its marginals, linear in its rows, in a sum"
    costs = "one vector of L2 sensitivity S = sqrt(sum of (c_q r)^2): mu^2 = S^2/sigma^2, once"

    cliques: SomeCandidates

    def sketcher(self, contract: SketchAimContract, arrays: Sequence[npt.NDArray[Any]]) -> Sketcher:
        return contract.sketcher([contract.candidates.cliques[i] for i in self.cliques], arrays)

    def layout(self, contract: SketchAimContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """One row adds one row of each public matrix, so the vector moves by sqrt(sum of (c_q r)^2) in L2, exactly.

        Whatever groups or seed the server names: every row of a matrix has the same norm r.
        """
        sketcher = self.sketcher(contract, arrays)
        return Layout.of_vector(
            sketcher.length,
            sketcher.sensitivity,
            signed=sketcher.signed,
            magnitude=sketcher.magnitude,
            replaced=TWICE if sketcher.signed else COUNTS,
        )


class SketchAimClient(TableClient):
    """Contributes to sums and selects nothing. All one-way marginals are the base class's answer."""

    Contract = SketchAimContract
    contract: SketchAimContract

    @answers(Sketches)
    def sketch(self, call: Call[Sketches]) -> Contribution:
        """The sketches of its rows, exact integers."""
        vector = call.request.sketcher(self.contract, call.arrays).of_rows(self.codes)
        return Contribution.of_vector(np.asarray(vector), call.request.layout(self.contract, call.arrays))

    @answers(MeasureAll)
    def measure_all(self, call: Call[MeasureAll]) -> Contribution:
        """All one-way and the chosen marginals, exact; each is a count, L2 sensitivity 1."""
        return self.marginals(call.request.layout(self.contract, call.arrays))

    @answers(Marginals)
    def measure(self, call: Call[Marginals]) -> Contribution:
        """The chosen marginals, exact; each is a count, L2 sensitivity 1."""
        return self.marginals(call.request.layout(self.contract, call.arrays))
