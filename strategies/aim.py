"""The server half of central AIM. The client half is `clients/aim.py`.

Maddock et al. 2024, Algorithm 2, after McKenna et al. 2022, "AIM: An Adaptive and Iterative Mechanism for
Differentially Private Synthetic Data".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from fedsyn.config import Node, RunConfig
from fedsyn.counting.candidates import Candidates
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement
from fedsyn.inference.capacity import Structure
from fedsyn.privacy import (
    EXPONENTIAL,
    PrivacyStatement,
    Release,
    Scales,
    aim_scales,
    aim_start,
)
from fedsyn.protocol.client import indices
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts, require
from fedsyn.selection.annealing import annealed, is_settled
from fedsyn.selection.scores import Penalty
from fedsyn.selection.views import pack_model
from fedsyn.wire.messages import Ask, Reply, Sum, Summed


class AimConfig(Node):
    """Options of central AIM.

    Attributes:
        rounds: T, a fixed number of rounds; null: budget annealing as in Algorithm 2.
        ratio: share of the budget for Gaussian noise; the rest is for selection.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model, which is far smaller for sparse marginals.
        as_printed: start the annealing from the printed sigma_0 (twice the variance that the budget allows).
        iterations: of the fit after each round.
        final_iterations: of the last fit. More iterations lower the loss on measured cliques, but drive cells with
            small noisy counts to 0, which costs likelihood on held-out rows (docs/mechanisms.md has the figures).
    """

    rounds: int | None = Field(default=10, ge=1)
    ratio: float = Field(default=0.9, gt=0, lt=1)
    penalty: Penalty = "cells"
    as_printed: bool = False
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=50, ge=1)


class Aim(MechanismStrategy):
    """Central AIM: one holder of every row selects, measures and fits, T times or until the budget is spent.

    It is the yardstick of the federated mechanisms and runs through the same protocol, with one client that holds the
    whole table: that client draws the choices, the noise is drawn where `aggregation` says.

    Departures from Algorithm 2 as printed (docs/mechanisms.md): line 2 misses a factor 2 in sigma_0 (`as_printed`);
    line 6 increments t before line 7 tests for 0, so the initialisation is done before the loop; the ledger, not the
    loop condition, is what stops an overspend.

    Privacy statement.
    Unit: one row, added or removed, at one client (there is one).
    Public: schema, workload, configuration, the row count (`client_sizes: private` pays for it).
    Trusted not to collude: whoever adds the noise; with `plain` and server noise, the server.
    The server sees: the choices; noisy marginals; with `plain` also the exact ones.
    A client sees: the current model and the eligible cliques, both functions of released values.
    Cost of each release: a choice epsilon_t^2/8, a marginal 1/(2 sigma_t^2); the scales of an annealed run are chosen
    from released values behind a zCDP filter.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    Config = AimConfig
    central = True

    @classmethod
    def check(cls, config: RunConfig) -> None:
        require(
            config.federation.participation == 1.0,
            "federation.participation: central AIM has one data holder, who takes part in every round; "
            "leave participation at 1",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.candidates = Candidates.of(self.workload, self.domain)  # lines 3-4
        self.structure = Structure(self.domain, self.run.inference)
        self.measurements: list[Measurement] = []

    def protocol(self) -> Protocol:
        scales = self.first_scales()  # lines 1-2
        self.begin_round(1)
        sums = yield self.sum_of([], scales, one_way=True)  # lines 7-10
        self.measured(sums, [(name,) for name in self.domain])
        self.estimate(self.measurements)
        while self.model is not None:
            scales, last = self.next_scales(scales)  # lines 17-20
            self.record.sigma, self.record.epsilon = scales.sigma, scales.epsilon
            self.record.cohort = list(self.everyone())
            eligible = self.structure.which_fit(self.candidates.cliques, self.share())  # line 12
            if not eligible:
                break
            self.open = frozenset(eligible)
            self.charge_choice(scales)  # before it is asked for: a reply that is late or malformed was released too
            replies = yield Ask(
                self.everyone(),
                "select",
                {"eligible": eligible, "sigma": scales.sigma, "epsilon": scales.epsilon},
                pack_model(self.model),
            )
            choices = self.accept(replies, self.read_choice)
            if not choices:
                break  # the only holder is gone: what was measured so far stands
            chosen = next(iter(choices.values()))  # line 13
            clique = self.candidates.cliques[chosen]
            sums = yield self.sum_of([chosen], scales, one_way=False)  # line 14
            self.structure.add([clique])
            self.measured(sums, [clique])
            before = self.model
            self.estimate(self.measurements, last)  # line 15
            self.settled = is_settled(before, self.model, [clique], [scales.sigma])  # line 17
            self.record.selected = [" × ".join(clique)]
            if last:
                break
            self.begin_round(self.round + 1)

    # Budget -----------------------------------------------------------------------------------------------------------

    settled = False

    def first_scales(self) -> Scales:
        """Lines 1-2, or the equal division over a fixed number of rounds."""
        rho, d = self.ledger.remaining_rho, len(self.domain)
        if self.config.rounds is None:
            return aim_start(rho, d, self.config.ratio, as_printed=self.config.as_printed)
        return aim_scales(rho, self.config.rounds, d, self.config.ratio)

    def next_scales(self, scales: Scales) -> tuple[Scales, bool]:
        """Lines 17-20: halves the noise if the last round changed little; all of the budget if little is left."""
        if self.config.rounds is not None:
            return scales, self.round == self.config.rounds
        one_each = Scales(scales.sigma, scales.epsilon, 1, 1)
        return annealed(one_each, self.settled, self.ledger.remaining_rho, self.config.ratio)

    def share(self) -> float:
        """Share of the largest model that this round may use: what will be spent when the round is over (line 12)."""
        if self.config.rounds is None:
            return min(1.0, max(0.05, self.ledger.spent_rho / self.budget.rho))
        return self.round / self.config.rounds

    def charge_choice(self, scales: Scales) -> None:
        weight = float(max(self.candidates.weights[i] for i in self.open))
        self.promise(
            Release("select", self.round, EXPONENTIAL, weight, epsilon=scales.epsilon, noise_by="the data holder")
        )

    # The steps --------------------------------------------------------------------------------------------------------

    def read_choice(self, reply: Reply) -> int:
        chosen = indices(reply.params.get("chosen"), len(self.candidates), "chosen")
        if len(chosen) != 1 or chosen[0] not in self.open:
            raise ProtocolError("the reply does not choose one eligible clique")
        return chosen[0]

    def sum_of(self, chosen: Sequence[int], scales: Scales, *, one_way: bool) -> Sum:
        ones = [(name,) for name in self.domain] if one_way else []
        cliques = ones + [self.candidates.cliques[i] for i in chosen]
        return Sum(
            self.everyone(),
            "one-way" if one_way else "measure",
            tuple(self.domain.shape_of(q) for q in cliques),
            scales.sigma,
            count=len(cliques),
            params={"cliques": list(chosen)},
        )

    def measured(self, sums: Summed, cliques: Sequence[tuple[str, ...]]) -> None:
        if sums.contributors:
            triples = zip(cliques, sums.arrays, sums.sigmas, strict=True)
            self.measurements += [Measurement(clique, values, sigma) for clique, values, sigma in triples]

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(
            public=public_facts(self.run),
            trust=seen["trust"],
            server_sees=f"the holder's choice of each round, by the exponential mechanism; {seen['server']}",
            client_sees="the current model and the eligible cliques of each round: functions of released values",
            cost=f"a choice epsilon_t^2/8; a marginal 1/(2 sigma_t^2); noise drawn by {seen['noise']}",
            sampler="see the run",
        )
