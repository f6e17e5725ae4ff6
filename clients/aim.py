"""The client half of AIM, and its contract.

Clients put exact answers into a store, which chooses one clique a round.

Maddock et al. 2024, Algorithms 2 and 3 (after McKenna et al. 2022). The server half is `strategies/aim.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedsyn.capabilities import FHE
from fedsyn.mechanism import (
    STORE_REQUESTS,
    Answers,
    Contract,
    Field,
    ModelView,
    Node,
    OpenMarginals,
    OpenOneWay,
    PrivacyStatement,
    RunConfig,
    SelectClique,
    Step,
    TableClient,
    require,
)
from fedsyn.selection.scores import Penalty, penalised_cells
from fedsyn.selection.terms import L1, ChoiceTerms

#: Rows beyond the released ones that a store is laid out for, where row counts are private (`AimContract.bound`).
_MORE_ROWS = 2**12


class AimOptions(Node):
    """Options of AIM over a store.

    Attributes:
        rounds: T, a fixed number of rounds; null: budget annealing as in Algorithm 2.
        measure_fraction: share of the budget for Gaussian noise; the rest is for selection.
        score: 'l1', AIM's; 'squared_l2', FHAIM's, which needs public row counts: a row moves it by w_q (2 N + 1).
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model, which is far smaller for sparse marginals.
        iterations: of the fit after each round.
        final_iterations: of the last fit. More iterations lower the loss on measured cliques, but drive cells with
            small noisy counts to 0, which costs likelihood on held-out rows (benchmarks/README.md has figures).
    """

    rounds: int | None = Field(default=10, ge=1, le=10_000)
    measure_fraction: float = Field(default=0.9, gt=0, lt=1)
    score: Literal["l1", "squared_l2"] = "l1"
    penalty: Penalty = "cells"
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=50, ge=1)


class AimContract(Contract):
    """A zCDP filter over a store's exponential mechanism and Gaussian noise."""

    Options = AimOptions
    options: AimOptions
    central = True
    store = STORE_REQUESTS
    statement = PrivacyStatement(
        server_sees="the store's choice of each round and noisy marginals; {server}",
        client_sees="that it is asked to deal, once; nothing of the others",
        cost="{cost}; the scales of an annealed run are chosen from released values",
        trust="{trust} (with a `score` other than l1 also every client, to deal no more rows than it published)",
    )

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        score, node = cls.options_of(config).score, config.aggregation
        exact = score == L1.name
        require(
            exact or config.privacy.client_sizes == "public",
            f"mechanism.score: '{score}' needs a bound on the number of rows, for its sensitivity or its range: set "
            "privacy.client_sizes: public; allowed with private sizes: l1",
        )
        require(
            exact or node.threat == "semi_honest",
            f"mechanism.score: '{score}' takes clients at their word: one that deals more than its rows makes the "
            "rows of others count for more; allowed with aggregation.threat: malicious: l1",
        )
        require(
            score in node.capabilities.scores or not exact or not node.capabilities.store,
            "mechanism.score: 'l1' needs a comparison for every cell, which ciphertexts do not have; allowed with "
            "aggregation.protocol: fhe: squared_l2",
        )

    # The score, lines 12-13 -------------------------------------------------------------------------------------------

    def terms(self, view: ModelView, eligible: Sequence[int], sigma: float, size: float, rows: int) -> ChoiceTerms:
        """Returns the public integers of a choice.

        A score is w_q (||M_q(D) - n p_q|| - penalty_q), in the norm that `score` names.

        One row moves a score by at most `ChoiceTerms.moved`; the penalty and the model depend on released values only.

        Args:
            view: the current model.
            eligible: indices of the candidates to choose from.
            sigma: noise of the measurement that follows.
            size: n, rows that were dealt, public or released.
            rows: bound on them (`bound`).
        """
        candidates, chosen = self.candidates, list(eligible)
        cliques = [candidates.cliques[i] for i in chosen]
        cells = penalised_cells(self.options.penalty, candidates, chosen, view)
        weights, p = candidates.weights[chosen], list(view.each(cliques))
        return ChoiceTerms.of(self.options.score, cliques, p, weights, cells, sigma=sigma, size=size, rows=rows)

    def bound(self, size: float) -> int:
        """Returns a bound on the rows that were dealt.

        It is their number where that is public, otherwise well above the released one. A store computes with as many
        bits as the bound needs. More rows would spoil a score, but no privacy.
        """
        public = self.config.privacy.client_sizes == "public"
        return max(1, math.ceil(size) if public else 2 * math.ceil(size) + _MORE_ROWS)

    @property
    def most_rounds(self) -> int:
        """T, or the 16 d planned rounds where the budget is annealed."""
        return 16 * len(self.domain) if self.options.rounds is None else int(self.options.rounds)

    # The budget, lines 1-2 --------------------------------------------------------------------------------------------

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Divides the budget evenly, or for 16 d planned rounds (lines 1-2).

        An even division is over d one-way marginals and T rounds.

        Each of the 16 d planned releases gets `r rho / (16 d)`: `sigma² = 16 d / (2 r rho)`, as in AIM itself (McKenna
        et al. 2022). FLAIM's line 2 prints `sigma² = 16 d / (0.9 rho)`, without the 2: private as well, but it starts
        at twice the variance. Annealing chooses the later scales from noisy results, so no plan but only the ledger's
        filter bounds the total; one last round may have all of the budget. DistAIM plans as many, where FLAIM,
        appendix B.4.2, has 8 d for federations: with everybody present it is AIM.
        """
        d, options = len(self.domain), self.options
        measuring, choosing = options.measure_fraction * rho, (1.0 - options.measure_fraction) * rho
        if options.rounds is not None:
            rounds = options.rounds
            first = measuring / (rounds + d)
            marginal = Step(OpenMarginals, first, paid=math.inf, times=rounds)
            choice = Step(SelectClique, choosing / rounds, paid=math.inf, times=rounds)
        else:
            rounds = 16 * d
            first, says = measuring / rounds, "from the first scales on, as annealing has it"
            marginal = Step(OpenMarginals, measuring, least=first, paid=math.inf, times=rounds, says=says)
            choice = Step(SelectClique, choosing, least=choosing / rounds, paid=math.inf, times=rounds, says=says)
        return [Step(Answers, rho, says="for all that follows"), Step(OpenOneWay, first, arrays=d), choice, marginal]

    def largest_terms(self, part: float, rows: int) -> ChoiceTerms:
        """Returns the terms of the candidates whose scores reach farthest.

        No other candidate has both a larger weight and more cells. What the model says of them moves no bound.
        """
        sigma = next(step for step in self.steps if step.request is OpenMarginals).sigma / math.sqrt(part)
        every = self.candidates
        order = np.lexsort((-every.weights, -every.cells))
        frontier, heaviest = list[int](), 0.0
        for i in order:
            if every.cells[i] <= self.config.inference.max_cells and every.weights[i] > heaviest:
                frontier.append(int(i))
                heaviest = float(every.weights[i])
        if not frontier:
            frontier = [int(np.argmin(every.cells))]
        nothing = [np.zeros(int(every.cells[i])) for i in frontier]
        cliques, norm, bound = [every.cliques[i] for i in frontier], self.options.score, self.bound(float(rows))
        weights, cells = every.weights[frontier], every.cells[frontier]
        return ChoiceTerms.of(norm, cliques, nothing, weights, cells, sigma=sigma, size=float(rows), rows=bound)


class FhAimOptions(AimOptions):
    """Options of FHAIM: AIM's, annealed, with the squared L2 score by default."""

    rounds: int | None = Field(default=None, ge=1, le=10_000)
    score: Literal["l1", "squared_l2"] = "squared_l2"


class FhAimContract(AimContract):
    """FHAIM: AIM over ciphertexts.

    The paper has one data entity; here there may be many.
    """

    Options = FhAimOptions
    central = False

    @classmethod
    def default_aggregation(cls, *, alone: bool = False) -> dict[str, str]:
        return {"protocol": FHE.name, "noise": FHE.noises[0]}


class DistAimContract(AimContract):
    """DistAIM: AIM over many holders.

    Each deals in the first round in which it takes part.
    """

    central = False


class AimClient(TableClient):
    """Holds the whole table; deals its answers, and is asked no more."""

    Contract = AimContract


class FhAimClient(TableClient):
    """A data entity, which encrypts its answers and the openings' noise.

    It may then leave.
    """

    Contract = FhAimContract


class DistAimClient(TableClient):
    """Holds some rows; deals its answers once, and is asked no more."""

    Contract = DistAimContract
