"""The client halves of FLAIM's two Gaussian baselines (Maddock et al. 2024, Table 1), and their contracts.

Only Gaussian noise of a scale fixed in advance is ever added: a run is accounted exactly, as one Gaussian mechanism.
The server halves are in `strategies/flaim_baselines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from fedsyn.plugins.clients.flaim import FlaimClient, FlaimContract, FlaimOptions
from fedsyn.privacy import PrivacyStatement, Release, Scales, gaussian_rho, sigma_for_rho
from fedsyn.protocol.client import Answer, OneWay, TableClient, answers
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import Foreseen, ForeseenSum, Planned
from fedsyn.protocol.wire.holder import Call
from fedsyn.protocol.wire.requests import AskRequest, CandidateIndices, Layout, Request
from fedsyn.settings import Node


class FlaimRandomOptions(FlaimOptions):
    """Options of FLAIM (Random): those of the family; its rounds are fixed."""

    rounds: int = Field(default=10, ge=1, le=10_000)


class FlaimRandomContract(FlaimContract):
    Options = FlaimRandomOptions
    accountant = "gaussian"
    own_sizes = False
    statement = PrivacyStatement(
        public="{public}; the choices, which depend on no row",
        trust="{trust}",
        server_sees="each client's {s} choice(s) per round, which depend on no row; {server}",
        client_sees="the eligible cliques and all clients' choices of each round: functions of released values",
        cost="per round and row {s} chosen marginal(s), {how_often} {d} one-way marginals, each mu^2 = 1/sigma^2; "
        "noise drawn by {noise}",
        sampler="{sampler}",
    )

    def first_scales(self, rho: float) -> Scales:
        """All of the budget on the chosen marginals (s in each round of a client) and the one-way ones."""
        rounds = self.paid(self.options.rounds)
        often = rounds if self.one_way_every_round else 1
        count = rounds * self.options.local_rounds + len(self.domain) * often
        return Scales(sigma_for_rho(rho / count), 1.0, count, 0)


class BlindDraw(AskRequest):
    """s distinct eligible cliques, uniformly."""

    name = "select"
    leaves = "the indices of s cliques, drawn without looking at a row"
    costs = "nothing: the choice depends on no row"

    eligible: CandidateIndices

    def releases(self, contract: FlaimRandomContract) -> tuple[Release, ...]:
        return ()


class FlaimRandomClient(FlaimClient):
    """FLAIM (Random): chooses without looking at its rows."""

    Contract = FlaimRandomContract

    @answers(BlindDraw)
    def select(self, call: Call[BlindDraw]) -> Answer:  # type: ignore[override]
        """s distinct eligible cliques, uniformly."""
        eligible = call.request.eligible
        order = call.source.permutation(len(eligible))
        chosen = [eligible[int(i)] for i in order[: self.options.local_rounds]]
        self.holder.state["chosen"] = {"round": call.round, "candidates": chosen}
        return [], {"chosen": chosen}


class FedNaiveBayesOptions(Node):
    """Options of FedNaiveBayes.

    Attributes:
        rounds: T.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=10, ge=1, le=10_000)
    iterations: int = Field(default=12, ge=1)
    final_iterations: int = Field(default=12, ge=1)


class FedNaiveBayesContract(Contract):
    Options = FedNaiveBayesOptions
    accountant = "gaussian"
    statement = PrivacyStatement(
        public="{public}",
        trust="{trust}",
        server_sees="{server}",
        client_sees="the names of the requests",
        cost="per round and row {d} one-way marginals, each mu^2 = 1/sigma^2; noise drawn by {noise}",
        sampler="{sampler}",
    )

    def sigma(self, rho: float) -> float:
        """The noise of every marginal: d of them in each of the rounds that a client takes part in."""
        return sigma_for_rho(rho / (self.paid(self.options.rounds) * len(self.domain)))

    def planned(self, request: Request, layout: Layout | None) -> Planned | None:
        if layout is None or not isinstance(request, OneWay):
            return None
        return Planned(layout.count * gaussian_rho(self.sigma(self.plan_rho)))

    def foreseen(self, rows: int) -> Iterable[Foreseen]:
        """The one-way marginals, in every round."""
        layout = Layout.of_marginals(self.domain, [(name,) for name in self.domain])
        rho = layout.count * gaussian_rho(self.sigma(self.plan_rho))
        return [ForeseenSum.of(OneWay.name, layout, rho, times=self.options.rounds)]

    def words(self) -> dict[str, object]:
        return {"d": len(self.domain)}


class FedNaiveBayesClient(TableClient):
    """Contributes all one-way marginals, which is the base class's answer."""

    Contract = FedNaiveBayesContract
