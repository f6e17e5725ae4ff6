"""The server half of the FLAIM family. The client half is `clients/flaim.py`.

Maddock et al. 2024, "FLAIM: AIM-based Synthetic Data Generation in the Federated Setting", Algorithm 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsyn.config import InferenceNode, Node, RunConfig
from fedsyn.counting.candidates import Candidates
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.inference import EstimateConfig, Measurement
from fedsyn.inference.capacity import Structure
from fedsyn.inference.fitting import estimate_config
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, PrivacyStatement, Release, Scales, flaim_scales, sigma_for_rho
from fedsyn.protocol.client import indices
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts, require
from fedsyn.selection.annealing import annealed, is_settled
from fedsyn.selection.scores import Penalty
from fedsyn.selection.views import pack_model
from fedsyn.wire.messages import Ask, Reply, Sum, Summed


class FlaimConfig(Node):
    """Options of the FLAIM family.

    Attributes:
        rounds: T, global rounds; null: budget annealing from 8 d planned rounds (appendix B.4).
        local_rounds: s, cliques that a client selects per round.
        ratio: r, share of the budget for Gaussian noise; the rest is for selection.
        filter_and_combine: measure all one-way marginals in every round and leave them out of the choice; null: as the
            variant does (AugFLAIM (Private) does, the others do not). For the ablation of Figure 2.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_q as AIM has it, or in the 'effective'
            support (sum over cells of sqrt(p))^2 of the current model.
        totals: what a sum of marginals is divided by before it meets sums over other clients: 'sizes' (the contributing
            clients' public or released row counts) or 'marginal' (its own noisy total, as printed).
        iterations: of the fit after each round. A cohort is a sample of the federation, so a converged fit also fits
            the sampling error: few iterations regularise.
        final_iterations: of the last fit.
        local_iterations: of a client's local fits (s > 1 only).
    """

    rounds: int | None = Field(default=10, ge=1)
    local_rounds: int = Field(default=1, ge=1)
    ratio: float = Field(default=0.9, gt=0, lt=1)
    filter_and_combine: bool | None = None
    penalty: Penalty = "cells"
    totals: Literal["sizes", "marginal"] = "sizes"
    iterations: int = Field(default=12, ge=1)
    final_iterations: int = Field(default=12, ge=1)
    local_iterations: int = Field(default=20, ge=1)

    def local_fit(self, node: InferenceNode) -> EstimateConfig:
        return estimate_config(node, self.local_iterations)


class Flaim(MechanismStrategy):
    """What the variants share: Algorithm 1, with the places where they differ as small overrides.

    The order of the first round differs from the paper in one thing: its one-way marginals are summed before it
    selects, so that no client selects against the uniform model. No release is added or lost by that.
    """

    Config = FlaimConfig
    # How far one row moves a score, in multiples of w_q: the client half has the argument, under the same name.
    moves_per_row: ClassVar[float] = 1.0
    # Line 5 and line 11: one-way marginals in every round, and then none of them among the candidates.
    filters_and_combines: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.candidates = Candidates.of(self.workload, self.domain)
        self.structure = Structure(self.domain, self.run.inference)
        self.measurements: list[Measurement] = []
        self.settled = False

    def protocol(self) -> Protocol:
        scales, last = self.first_scales(), False
        for t in itertools.count(1):  # line 1
            self.begin_round(t)
            scales, last = self.next_scales(scales, t)
            self.record.sigma, self.record.epsilon = scales.sigma, scales.epsilon
            cohort = self.sample(self.run.federation.participation)  # line 2
            starting = self.model is None
            if starting:  # the first line 11, so that there is a model to select against
                sums = yield self.sum_of(cohort, [], scales, one_way=True)
                self.measured(sums, [], {})
                self.estimate(self.measurements)
            if self.model is not None:
                request = self.ask(cohort, scales)
                self.charge_choices(request, scales)  # before: a reply that is late or malformed was released too
                replies = yield request
                choices = self.accept(replies, self.read_choices)  # lines 3-10
                union = self.fitting_union(choices)
                one_way = self.one_way_every_round and not starting
                # Whose choices did not arrive is left out of the sum too: it would contribute what nobody counts.
                contributors = tuple(choices) or cohort
                sums = yield self.sum_of(contributors, union, scales, one_way=one_way)  # lines 11-15
                chosen = self.measured(sums, union, choices)
                before = self.model
                self.estimate(self.measurements, last)  # line 16
                self.settled = self.anneals and is_settled(
                    before, self.model, [m.clique for m in chosen], [m.sigma for m in chosen]
                )
            if last:
                break

    # Budget -----------------------------------------------------------------------------------------------------------

    @property
    def one_way_every_round(self) -> bool:
        chosen = self.config.filter_and_combine
        return self.filters_and_combines if chosen is None else bool(chosen)

    @property
    def anneals(self) -> bool:
        return self.config.rounds is None

    def first_scales(self) -> Scales:
        """Lemma 4.1, with every local release charged (see `flaim_scales`), for T or 8 d rounds."""
        d, s = len(self.domain), self.config.local_rounds
        rounds = 8 * d if self.anneals else self.config.rounds
        # Lemma 4.1 has two forms, told apart by how often the d one-way marginals are measured.
        form: Literal["naive", "private"] = "private" if self.one_way_every_round else "naive"
        return flaim_scales(self.ledger.remaining_rho, rounds, s, d, self.config.ratio, form)

    def next_scales(self, scales: Scales, t: int) -> tuple[Scales, bool]:
        """This round's scales, and whether it is the last: fixed for T rounds, or annealed (appendix B.4)."""
        if not self.anneals:
            return scales, t == self.config.rounds
        d, s = len(self.domain), self.config.local_rounds
        per_round = Scales(scales.sigma, scales.epsilon, 2 * s - 1 + (d if self.one_way_every_round else 0), s)
        if t == 1:
            return per_round, False
        scales, last = annealed(per_round, self.settled, self.ledger.remaining_rho, self.config.ratio)
        # Rounds in which nobody answers cost little, so the budget alone would not soon end a run without clients.
        return scales, last or t >= 16 * d

    # The steps of a round ---------------------------------------------------------------------------------------------

    def may_be_chosen(self, clique: Clique) -> bool:
        """Line 5: one-way marginals that are measured anyway are filtered from the choice."""
        return not (self.one_way_every_round and len(clique) == 1)

    def noise_scale(self, federation: float, records: float, cohort: float) -> float:
        """Line 16's weight, as what the noise of a sum is multiplied by: alpha_q = N_q / sigma, so N / N_q.

        Args:
            federation: N, records of all clients.
            records: N_q, records behind this sum.
            cohort: records of all contributors of the round.
        """
        return federation / records

    def ask(self, cohort: Sequence[int], scales: Scales) -> Ask:
        """Lines 3-10 as a request: every client of the cohort selects among the cliques that the model can take."""
        assert self.model is not None
        fitting = self.structure.which_fit(self.candidates.cliques)
        eligible = [i for i in fitting if self.may_be_chosen(self.candidates.cliques[i])]
        self.open = frozenset(eligible)
        if not eligible:
            return Ask((), "select")
        arrays = pack_model(self.model)
        params: dict[str, Any] = {
            "eligible": eligible,
            "sigma": scales.sigma,
            "epsilon": scales.epsilon,
            "model_arrays": len(arrays),
        }
        if self.config.local_rounds > 1:
            params["measured"] = [list(m.clique) for m in self.measurements]
            params["sigmas"] = [m.sigma for m in self.measurements]
            arrays = [*arrays, *(m.values for m in self.measurements)]
        return Ask(tuple(cohort), "select", params, arrays)

    def read_choices(self, reply: Reply) -> list[int]:
        chosen = indices(reply.params.get("chosen"), len(self.candidates), "chosen")
        if not chosen or len(chosen) > self.config.local_rounds or not self.open.issuperset(chosen):
            raise ProtocolError("the reply does not choose as many eligible cliques as it was asked for")
        return chosen

    def charge_choices(self, request: Ask, scales: Scales) -> None:
        """The releases that clients make on their own. A row sits at one client: only that client's count for it."""
        if not request.cohort:
            return
        weight = float(max(self.candidates.weights[i] for i in self.open))
        self.promise(
            Release(
                "select",
                self.round,
                EXPONENTIAL,
                self.moves_per_row * weight,
                epsilon=scales.epsilon,
                count=self.config.local_rounds,
                noise_by="each client",
                argument="a row sits at one client, whose choices alone depend on it",
            )
        )
        if self.config.local_rounds > 1:
            self.promise(
                Release(
                    "local measure",
                    self.round,
                    GAUSSIAN,
                    1.0,
                    sigma=scales.sigma,
                    count=self.config.local_rounds - 1,
                    noise_by="each client",
                    argument="each local measurement steers the client's next choice, which is released",
                )
            )

    def fitting_union(self, choices: Mapping[int, list[int]]) -> list[int]:
        """The distinct choices that the model can take together, those with more records behind them first.

        Which clique was chosen by whom is released already, so leaving one out is post-processing, and what is left
        out is not measured.
        """
        support: dict[int, float] = {}
        for partition, chosen in choices.items():
            for i in chosen:
                support[i] = support.get(i, 0.0) + self.rows([partition])
        ranked = sorted(support, key=lambda i: (-support[i], i))
        kept = self.structure.add_while_fitting([self.candidates.cliques[i] for i in ranked])
        return sorted(ranked[j] for j in kept)

    def sum_of(self, cohort: Sequence[int], union: Sequence[int], scales: Scales, *, one_way: bool) -> Sum:
        """Lines 11-15 as a request: one-way marginals of the whole cohort, chosen ones of those who chose them."""
        cliques = self.layout(union, one_way)
        own = min(len(union), self.config.local_rounds)
        self.asked = cliques
        return Sum(
            tuple(cohort) if cliques else (),
            "measure" if union else "one-way",
            tuple(self.domain.shape_of(q) for q in cliques),
            scales.sigma,
            count=max(1, (len(self.domain) if one_way else 0) + own),
            params={"cliques": list(union), "one_way": one_way},
            argument="a client contributes only to the one-way marginals and to the cliques that it chose",
        )

    def layout(self, union: Sequence[int], one_way: bool) -> list[Clique]:
        ones = [(name,) for name in self.domain] if one_way else []
        return ones + [self.candidates.cliques[i] for i in union]

    def measured(self, sums: Summed, union: Sequence[int], choices: Mapping[int, list[int]]) -> list[Measurement]:
        """Lines 15-16: brings every sum to the federation's total, and its noise with it; returns the chosen ones.

        A sum over N_q records becomes `sum * N / N_q` with standard deviation `sigma * N / N_q`: the weight N_q / sigma
        of line 16 in units of the federation's total N.
        """
        if not sums.contributors:
            if self.asked:
                self.record.notes.append("too few contributions: nothing was opened in this round's sum")
            return []
        federation, cohort = self.rows(self.clients), self.rows(sums.contributors)
        ones = len(self.asked) - len(union)
        chooser = {i: {k for k, chosen in choices.items() if i in chosen} for i in union}
        new: dict[int, Measurement] = {}
        for j, (clique, values, sigma) in enumerate(zip(self.asked, sums.arrays, sums.sigmas, strict=True)):
            behind = sums.contributors if j < ones else set(sums.contributors) & chooser[union[j - ones]]
            records = self.rows(behind) if self.config.totals == "sizes" else float(np.sum(values))
            if records < 1.0:
                continue  # nobody who chose it answered (or, as printed, noise alone): it says nothing
            noise = sigma * self.noise_scale(federation, records, cohort)
            new[j] = Measurement(clique, values * (federation / records), noise)
        self.measurements += new.values()
        self.record.selected = [" × ".join(self.candidates.cliques[i]) for i in union]
        return [measurement for j, measurement in new.items() if j >= ones]

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(
            public=public_facts(self.run),
            trust=seen["trust"],
            server_sees=f"{self.choices_in_words()}; {seen['server']}",
            client_sees="the current model and the eligible cliques of each round: functions of released values",
            cost=f"{self.cost_in_words()}; noise drawn by {seen['noise']}",
            sampler="see the run",
        )

    def choices_in_words(self) -> str:
        return f"each client's {self.config.local_rounds} choice(s) per round, by the exponential mechanism"

    def cost_in_words(self) -> str:
        s, d = self.config.local_rounds, len(self.domain)
        how_often = "in every round" if self.one_way_every_round else "once"
        return (
            f"per round and row: {s} choice(s) at epsilon_t^2/8, {s} chosen and {s - 1} local marginal(s) at "
            f"1/(2 sigma_t^2); {d} one-way marginals at 1/(2 sigma_t^2) {how_often}"
        )


class NaiveFlaim(Flaim):
    """NaiveFLAIM: AIM's score on every client, one-way marginals once, every sum weighted alike (1 / sigma).

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: every client's choices one by one; noisy sums; with `plain` also every exact contribution.
    A client sees: the current model and the list of eligible cliques, both functions of released values.
    Cost of each release: once, d one-way marginals at 1/(2 sigma_t^2) each; per round, s choices at epsilon_t^2/8, s
    marginals and s - 1 local ones at 1/(2 sigma_t^2) each.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    def noise_scale(self, federation: float, records: float, cohort: float) -> float:
        """Line 16, Naive: 1 / sigma for every sum of a round, however few records are behind it."""
        return federation / cohort


class AugFlaimOracle(Flaim):
    """AugFLAIM (Oracle): subtracts each client's true distance from the pooled table. A baseline for simulations.

    Privacy statement.
    NOT PRIVATE: the clients' scores read the marginals of the pooled table, which no party of a federation has. It
    refuses to run in a deployment, and its ledger and report say that its result is not private. Otherwise:
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: every client's choices one by one; noisy sums; with `plain` also every exact contribution.
    A client sees: the model, the eligible cliques, and the exact marginals of the pooled table.
    Cost of each release: as NaiveFLAIM's, with twice the sensitivity of the scores (Lemma 4.1).
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    moves_per_row = 2.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ledger.not_private("the oracle's scores read the exact marginals of the pooled table")

    @classmethod
    def check(cls, config: RunConfig) -> None:
        require(
            config.runtime.engine != "deployment",
            "mechanism.name: 'augflaim_oracle' reads the pooled table, which no party of a deployment has; "
            "it is a baseline for simulations",
        )


class AugFlaim(Flaim):
    """AugFLAIM (Private): clients select locally, the server measures what they selected in noisy sums.

    Each round a cohort of clients scores the candidates against the current model, subtracts a proxy of its own
    heterogeneity, and releases s choices; then the cohort's exact marginals (all one-way ones, and of each client those
    it chose) are summed, perturbed, and fitted.

    Departures from the paper, and why (docs/mechanisms.md has them all): the model is scaled to a public or released
    size n_k before a client compares its marginals with it; a sum is divided by the contributors' sizes rather than by
    its own noisy total, whose noise grows with the number of cells; the first round sums its one-way marginals before
    it selects, so that no client ever selects against the uniform model (the number of releases is unchanged); for
    s > 1 the local measurements are charged.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: every client's choices one by one; noisy sums; with `plain` also every exact contribution.
    A client sees: the current model and the list of eligible cliques, both functions of released values.
    Cost of each release: per round, s choices at epsilon_t^2/8 each; d + s marginals at 1/(2 sigma_t^2) each, and s - 1
    local ones. A row sits at one client, so what other clients release costs it nothing.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    moves_per_row = 2.0
    filters_and_combines = True


class FlaimRandom(Flaim):
    """FLAIM (Random): clients choose cliques uniformly, so that the whole budget measures. A baseline of Table 1.

    Only Gaussian noise of a scale fixed in advance is ever added: the run is accounted exactly, as one Gaussian
    mechanism, and not through zCDP.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the choices (they do not depend on rows), the row counts
    (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: the choices; noisy sums; with `plain` also every exact contribution.
    A client sees: the current model and the list of eligible cliques, both functions of released values.
    Cost of each release: once, d one-way marginals, and per round s marginals, at mu^2 = 1/sigma^2 each.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    accountant = "gaussian"

    @classmethod
    def check(cls, config: RunConfig) -> None:
        _needs_fixed_rounds(config)

    def first_scales(self) -> Scales:
        """All of the budget on T s chosen and d one-way marginals; nothing is measured locally."""
        count = self.config.rounds * self.config.local_rounds + len(self.domain)
        return Scales(sigma_for_rho(self.ledger.remaining_rho / count), 1.0, count, 0)

    def charge_choices(self, request: Ask, scales: Scales) -> None:
        """Nothing: the choices depend on no row."""

    def choices_in_words(self) -> str:
        return f"each client's {self.config.local_rounds} choice(s) per round, which depend on no row"

    def cost_in_words(self) -> str:
        s, d = self.config.local_rounds, len(self.domain)
        return f"per round and row {s} chosen marginal(s), once {d} one-way marginals, each mu^2 = 1/sigma^2"


class FedNaiveBayes(Flaim):
    """FedNaiveBayes: the workload restricted to one-way marginals, measured in every round. A baseline of Table 1.

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: noisy sums of one-way marginals; with `plain` also every exact contribution.
    A client sees: the names of the requests.
    Cost of each release: per round, d one-way marginals at mu^2 = 1/sigma^2 each, accounted exactly as one Gaussian.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    accountant = "gaussian"

    @classmethod
    def check(cls, config: RunConfig) -> None:
        _needs_fixed_rounds(config)

    def protocol(self) -> Protocol:
        scales = self.first_scales()
        for t in range(1, self.config.rounds + 1):
            self.begin_round(t)
            self.record.sigma = scales.sigma
            sums = yield self.sum_of(self.sample(self.run.federation.participation), [], scales, one_way=True)
            self.measured(sums, [], {})
            self.estimate(self.measurements, t == self.config.rounds)

    def first_scales(self) -> Scales:
        count = self.config.rounds * len(self.domain)
        return Scales(sigma_for_rho(self.ledger.remaining_rho / count), 1.0, count, 0)

    def choices_in_words(self) -> str:
        return "no choices"

    def cost_in_words(self) -> str:
        return f"per round and row {len(self.domain)} one-way marginals, each mu^2 = 1/sigma^2"


def _needs_fixed_rounds(config: RunConfig) -> None:
    require(
        config.mechanism.options.get("rounds", 10) is not None,
        f"mechanism.rounds: '{config.mechanism.name}' is accounted as one Gaussian mechanism, whose scale is fixed in "
        "advance; give a number of rounds",
    )
