"""The client half of central AIM, and its contract: the one data holder selects, and its marginals are measured.

Maddock et al. 2024, Algorithm 2 (after McKenna et al. 2022). The server half is `strategies/aim.py`.
"""

from __future__ import annotations

from pydantic import Field

from fedsyn.aggregation import Contribution
from fedsyn.config import Node
from fedsyn.privacy import EXPONENTIAL, PrivacyStatement, Release
from fedsyn.protocol.client import Answer, Marginals, TableClient, answers
from fedsyn.protocol.contract import Contract
from fedsyn.selection.scores import Penalty, expected_noise, l1_distances, penalised_cells
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import AskRequest, Positive, SomeCandidates


class AimAblation(Node):
    """What serves a comparison only.

    Attributes:
        printed_start: start the annealing from the printed sigma_0 (twice the variance that the budget allows).
    """

    printed_start: bool = False


class AimOptions(Node):
    """Options of central AIM.

    Attributes:
        rounds: T, a fixed number of rounds; null: budget annealing as in Algorithm 2.
        ratio: share of the budget for Gaussian noise; the rest is for selection.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model, which is far smaller for sparse marginals.
        iterations: of the fit after each round.
        final_iterations: of the last fit. More iterations lower the loss on measured cliques, but drive cells with
            small noisy counts to 0, which costs likelihood on held-out rows (docs/mechanisms.md has the figures).
        ablation: what serves a comparison only.
    """

    rounds: int | None = Field(default=10, ge=1)
    ratio: float = Field(default=0.9, gt=0, lt=1)
    penalty: Penalty = "cells"
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=50, ge=1)
    ablation: AimAblation = Field(default_factory=AimAblation)


class AimContract(Contract):
    """One holder, choices by the exponential mechanism and Gaussian noise: a zCDP filter."""

    Options = AimOptions
    central = True
    statement = PrivacyStatement(
        public="{public}",
        trust="{trust}",
        server_sees="the holder's choice of each round, by the exponential mechanism; {server}",
        client_sees="the current model and the eligible cliques of each round: functions of released values",
        cost="a choice epsilon_t^2/8; a marginal 1/(2 sigma_t^2); noise drawn by {noise}. The scales of an annealed "
        "run are chosen from released values behind a zCDP filter",
        sampler="{sampler}",
    )

    def score_sensitivity(self, eligible: list[int]) -> float:
        """How far one row moves a score: the largest w_q of the eligible cliques.

        One row moves ||M_q(D) - n p_q||_1 by at most 1 (n is a public or released number), so the score by at most
        w_q. The penalty depends on no row.
        """
        return float(self.candidates.weights[eligible].max())


class Select(AskRequest):
    """One eligible clique by the exponential mechanism (line 13)."""

    name = "select"
    leaves = "the index of one clique"
    costs = "one choice: rho epsilon^2/8"

    eligible: SomeCandidates
    sigma: Positive
    epsilon: Positive

    def releases(self, contract: AimContract) -> tuple[Release, ...]:
        sensitivity = contract.score_sensitivity(self.eligible)
        return (Release(self.name, 0, EXPONENTIAL, sensitivity, epsilon=self.epsilon, noise_by="the data holder"),)


class AimClient(TableClient):
    """Holds the whole table."""

    Contract = AimContract
    contract: AimContract

    @answers(Select)
    def select(self, call: Call[Select]) -> Answer:
        """Line 13: one clique by the exponential mechanism; returns its candidate index."""
        asked, eligible = call.request, call.request.eligible
        view = self.view(call.arrays)
        cliques = [self.candidates.cliques[i] for i in eligible]
        distances = l1_distances(self.codes, self.domain, cliques, view, self.size)
        cells = penalised_cells(self.options.penalty, self.candidates, eligible, view)
        best = self.ledger.exponential(
            self.candidates.weights[eligible] * (distances - expected_noise(asked.sigma, cells)),
            epsilon=asked.epsilon,
            sensitivity=self.contract.score_sensitivity(eligible),
            name=asked.name,
            round=call.round,
            source=call.source,
        )
        return [], {"chosen": eligible[best]}

    @answers(Marginals)
    def measure(self, call: Call[Marginals]) -> Contribution:
        """Line 14: the exact marginals that are asked for; each is a count, L2 sensitivity 1."""
        return self.marginals(call.request.layout(self.contract, call.arrays))
