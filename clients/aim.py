"""The client half of AIM, and its contract: exact answers into a store, from which one clique a round is chosen.

Maddock et al. 2024, Algorithms 2 and 3 (after McKenna et al. 2022). The server half is `strategies/aim.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsyn.capabilities import FHE
from fedsyn.config import RunConfig
from fedsyn.privacy import PrivacyStatement, Scales, epsilon_for_rho, sigma_for_rho
from fedsyn.privacy.budget import divide
from fedsyn.protocol.client import TableClient
from fedsyn.protocol.contract import Contract, require
from fedsyn.protocol.plan import Foreseen, ForeseenChoice, ForeseenOpening, Planned, largest_measured
from fedsyn.protocol.stored import STORE_REQUESTS, Answers, OpenMarginals, OpenOneWay, SelectClique
from fedsyn.selection.scores import Penalty, penalised_cells
from fedsyn.selection.terms import L1, Terms
from fedsyn.selection.views import ModelView
from fedsyn.settings import Node
from fedsyn.wire.requests import Layout, Request

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
    """Choices by the exponential mechanism and Gaussian noise, both by the store: a zCDP filter."""

    Options = AimOptions
    options: AimOptions
    central = True
    store = STORE_REQUESTS
    statement = PrivacyStatement(
        public="{public}",
        trust="{trust}{honest}",
        server_sees="the store's choice of each round and noisy marginals; {server}",
        client_sees="that it is asked to deal, once; nothing of the others",
        cost="a choice epsilon_t^2/8; a marginal 1/(2 sigma_t^2); noise drawn by {noise}. A client enters all that the "
        "store may release when it deals. The scales of an annealed run are chosen from released values behind a zCDP "
        "filter",
        sampler="{sampler}",
    )
    general_words: ClassVar[dict[str, object]] = {
        "honest": " (with a `score` other than l1 also every client, with its rows)"
    }

    def words(self) -> dict[str, object]:
        """Squared scores rest on one more assumption."""
        honest = "; and every client, to deal no more than the rows that it published"
        return {"honest": "" if self.options.score == L1.name else honest}

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

    def terms(self, view: ModelView, eligible: Sequence[int], sigma: float, size: float, rows: int) -> Terms:
        """The public integers of a choice: w_q (||M_q(D) - n p_q|| - penalty_q), the norm as `score` says.

        One row moves a score by at most `Terms.moved`; the penalty and the model depend on released values only.

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
        weights, p = candidates.weights[chosen], view.probabilities(cliques)
        return Terms.of(self.options.score, cliques, p, weights, cells, sigma=sigma, size=size, rows=rows)

    def bound(self, size: float) -> int:
        """Bound on the rows that were dealt: their number where it is public, else well beyond the released one.

        A store computes with as many bits as that needs. More rows than this would spoil a score, and no privacy.
        """
        public = self.config.privacy.client_sizes == "public"
        return max(1, math.ceil(size) if public else 2 * math.ceil(size) + _MORE_ROWS)

    @property
    def most_rounds(self) -> int:
        """T, or where the budget is annealed the 16 d at which it ends."""
        return 16 * len(self.domain) if self.options.rounds is None else int(self.options.rounds)

    # The budget, lines 1-2 --------------------------------------------------------------------------------------------

    def first_scales(self, rho: float) -> Scales:
        """Lines 1-2, for 16 d planned rounds; else an equal division over d one-way marginals and T rounds.

        Each of the 16 d planned releases gets `r rho / (16 d)`: `sigma² = 16 d / (2 r rho)`, as in AIM itself (McKenna
        et al. 2022). FLAIM's line 2 prints `sigma² = 16 d / (0.9 rho)`, without the 2: private as well, but it starts
        at twice the variance. Annealing chooses the later scales from noisy results, so no plan but
        only the ledger's filter bounds the total.
        """
        d, options = len(self.domain), self.options
        if options.rounds is not None:
            return divide(rho, options.rounds + d, options.rounds, options.measure_fraction)
        return divide(rho, 16 * d, 16 * d, options.measure_fraction)

    def foreseen(self, rows: int) -> Iterable[Foreseen]:
        """Choices and marginals at the first noise and, if the budget is annealed, at that of a last round which has
        all of the budget: what lies between them reaches no farther."""
        rho, d = self.budget.mechanism * (1.0 - self.budget.schema_share), len(self.domain)
        scales = [self.first_scales(rho)]
        if self.options.rounds is None:
            r = self.options.measure_fraction
            scales.append(
                Scales(
                    sigma_for_rho(r * self.budget.mechanism), epsilon_for_rho((1.0 - r) * self.budget.mechanism), 1, 1
                )
            )
        yield ForeseenOpening(OpenOneWay.name, d, 2 * sum(self.domain.shape), scales[0].sigma)
        for one in scales:
            yield ForeseenOpening(OpenMarginals.name, 1, largest_measured(self), one.sigma)
            yield ForeseenChoice(SelectClique.name, self.largest_terms(one.sigma, rows), one.epsilon)

    def largest_terms(self, sigma: float, rows: int) -> Terms:
        """Those of the candidates that scores of others cannot reach farther than: of none are both weight and cells
        larger. What the model says of them moves no bound."""
        every = self.candidates
        order = np.lexsort((-every.weights, -every.cells))
        kept, heaviest = list[int](), 0.0
        for i in order:
            if every.cells[i] <= self.config.inference.max_cells and every.weights[i] > heaviest:
                kept.append(int(i))
                heaviest = float(every.weights[i])
        if not kept:
            kept = [int(np.argmin(every.cells))]
        nothing = [np.zeros(int(every.cells[i])) for i in kept]
        cliques, norm, bound = [every.cliques[i] for i in kept], self.options.score, self.bound(float(rows))
        weights, cells = every.weights[kept], every.cells[kept]
        return Terms.of(norm, cliques, nothing, weights, cells, sigma=sigma, size=float(rows), rows=bound)

    def planned(self, request: Request, layout: Layout | None) -> Planned | None:
        """All that the store may release, entered once, when a client deals; the store's keepers do the rest."""
        return Planned(self.budget.mechanism, self.budget.mechanism) if isinstance(request, Answers) else None

    def least_sigma(self, rho: float) -> float | None:
        """The noise of every marginal if the rounds are fixed, which a party demands; None: its ledger alone limits."""
        return None if self.options.rounds is None else self.first_scales(rho).sigma


class FhAimOptions(AimOptions):
    """Options of FHAIM: AIM's, annealed, with the squared L2 score by default."""

    rounds: int | None = Field(default=None, ge=1, le=10_000)
    score: Literal["l1", "squared_l2"] = "squared_l2"


class FhAimContract(AimContract):
    """FHAIM: the same over ciphertexts. The paper has one data entity; here there may be many."""

    Options = FhAimOptions
    central = False

    @classmethod
    def default_aggregation(cls, *, alone: bool = False) -> dict[str, str]:
        return {"protocol": FHE.name, "noise": FHE.noises[0]}


class DistAimContract(AimContract):
    """The same over many holders: each deals in the first round in which it takes part."""

    central = False


class AimClient(TableClient):
    """Holds the whole table; deals its answers, and is asked no more."""

    Contract = AimContract


class FhAimClient(TableClient):
    """A data entity: encrypts its answers and the noise of what will be opened, and may then leave."""

    Contract = FhAimContract


class DistAimClient(TableClient):
    """Holds some rows; deals its answers once, and is asked no more."""

    Contract = DistAimContract
