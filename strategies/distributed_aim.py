"""The server half of Distributed AIM. The client half is `clients/distributed_aim.py`.

Sedimo & Near, "Efficient Distributed Differentially Private Synthetic Data with High Utility via Secure Aggregation",
Protocol 1 (Gaussian top-k) and Protocol 2 (Distributed AIM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedsyn.aggregation.fixed_point import decode, encoded_moves
from fedsyn.config import Node
from fedsyn.counting.candidates import Candidates
from fedsyn.counting.reductions import norm
from fedsyn.domain import Clique
from fedsyn.inference import Measurement, Model, estimate
from fedsyn.inference.capacity import Structure
from fedsyn.privacy import PrivacyStatement, sigma_for_rho
from fedsyn.protocol.strategy import MechanismStrategy, Protocol, public_facts
from fedsyn.selection.scores import Penalty, expected_noise, penalised_cells
from fedsyn.selection.views import ModelView, pack_model
from fedsyn.wire.messages import Sum, Summed


class DistributedAimConfig(Node):
    """Options of Distributed AIM.

    Attributes:
        rounds: T.
        top: k, cliques that are selected and measured in a round.
        ratio: share of the budget for measuring; the rest is for scores. The paper's is a half.
        initial: 'one_way': all one-way marginals are measured before the first round; 'none': the first scores are
            taken against the uniform distribution, as printed.
        penalty: what a measurement's noise is expected to cost: in 'cells', n_r as AIM has it, or in the 'effective'
            support (sum of the square roots of the model's probabilities)^2, which is smaller for sparse marginals.
        remeasure: whether a clique inside a measured one may be selected, as printed. A local score does not fall when
            its clique is measured, so the same few are then selected over and over.
        scale: gamma, integer steps of a score.
        as_printed: noise of the scores for a sensitivity of sqrt(|R|) max w_r (Algorithm 2, line 1), and a penalty
            without weights (Protocol 2, step 2a). The paper's whole algorithm is this with initial 'none', ratio 0.5,
            remeasure true and penalty 'cells'.
        iterations: of the fit after each round.
        final_iterations: of the last fit.
    """

    rounds: int = Field(default=10, ge=1)
    top: int = Field(default=5, ge=1)
    ratio: float = Field(default=0.9, gt=0, lt=1)
    initial: Literal["one_way", "none"] = "one_way"
    penalty: Penalty = "cells"
    remeasure: bool = False
    scale: int = Field(default=1000, ge=1, le=2**20)
    as_printed: bool = False
    iterations: int = Field(default=50, ge=1)
    final_iterations: int = Field(default=50, ge=1)


@dataclass(frozen=True)
class Plan:
    """Noise scales, fixed before the first request.

    Attributes:
        sigma: standard deviation of every measured marginal, in records.
        per_sensitivity: standard deviation of a round's scores, in multiples of their L2 sensitivity.
    """

    sigma: float
    per_sensitivity: float

    @classmethod
    def of(cls, rho: float, config: DistributedAimConfig, attributes: int) -> Plan:
        """Divides rho (for Gaussian noise mu^2 = 2 rho): `ratio` to k marginals a round and the one-way ones."""
        measured = config.rounds * config.top + (attributes if config.initial == "one_way" else 0)
        return cls(
            sigma_for_rho(config.ratio * rho / measured), sigma_for_rho((1.0 - config.ratio) * rho / config.rounds)
        )


class DistributedAim(MechanismStrategy):
    """Gaussian top-k over sums: a round's scores of all cliques are summed with noise, the best k are measured.

    Clients send no choices: their scores and their marginals are seen in sums only. Scores are real numbers and travel
    as integers of 1 / `scale`.

    What is summed is the clients' LOCAL distance from the model. By the triangle inequality that is an upper bound of
    the pooled table's distance, and equals it only where the clients err in the same direction in every cell: many
    small clients, or clients unlike each other, sum up their own sampling error and their own peculiarity, which are
    largest for large marginals. The paper's claim of unbiased selection does not hold for this score; see
    docs/mechanisms.md for what it costs, and `sketch_aim` for a score that does not have the error.

    Departures from the paper (docs/mechanisms.md): the weighted scores have L2 sensitivity sqrt(sum_r w_r^2), where
    Algorithm 2, line 1 takes sqrt(|R|) times the largest (`as_printed`); values are rounded, not truncated, and the
    rounding is part of the sensitivity; the penalty is subtracted once and not by every client, and is multiplied by
    w_r as in AIM itself; the model is scaled to a client's public or released size; the noise is accounted exactly, as
    one Gaussian mechanism; before the first round all one-way marginals are measured (`initial: none` as printed); no
    clique is selected that lies inside a measured one (`remeasure: true` as printed).

    Privacy statement.
    Unit: one row, added or removed, at one client.
    Public: schema, workload, configuration, who answers, the row counts (`client_sizes: private` pays for them).
    Trusted not to collude: as `aggregation` says; with `plain` and server noise, the server itself.
    The server sees: noisy sums of scores and of marginals; with `plain` also every client's exact or less noisy vector.
    A client sees: the current model, the eligible and the selected cliques: functions of released values.
    Cost of each release: the one-way marginals once, and per round k marginals and one vector of scores: mu^2 is
    1/sigma^2 for each marginal, sum_r N_r^2/sigma^2 for the scores; accounted exactly, as one Gaussian mechanism.
    Sampler: the operating system's; seeded (not private) in a simulation with a seed.
    """

    Config = DistributedAimConfig
    accountant = "gaussian"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.candidates = Candidates.of(self.workload, self.domain)
        self.structure = Structure(self.domain, self.run.inference)
        self.measurements: list[Measurement] = []
        self.uniform: Model | None = None

    def protocol(self) -> Protocol:
        plan = Plan.of(self.ledger.remaining_rho, self.config, len(self.domain))
        for t in range(1, self.config.rounds + 1):  # Protocol 2, step 2
            self.begin_round(t)
            self.record.sigma = plan.sigma
            cohort = self.sample(self.run.federation.participation)
            if t == 1 and self.config.initial == "one_way":
                sums = yield self.one_way_sum(cohort, plan.sigma)
                self.measurements += self.opened(sums, [(name,) for name in self.domain])
                self.estimate(self.measurements)
            eligible = self.eligible()
            if not eligible:
                self.record.notes.append("no clique fits into this round's share of the model")
                continue
            sums = yield self.score_sum(cohort, eligible, plan)  # step 2a: Protocol 1, steps 1-3
            if not sums.contributors:
                self.record.notes.append("too few contributions: no scores were opened in this round")
                continue
            chosen = self.select(sums, eligible, plan)  # Protocol 1, steps 4-5
            sums = yield self.measure_sum(cohort, chosen, plan)  # step 2b
            self.measurements += self.opened(sums, [self.candidates.cliques[i] for i in chosen])
            self.estimate(self.measurements, t == self.config.rounds)  # step 2c

    # Requests ---------------------------------------------------------------------------------------------------------

    def score_sum(self, cohort: Sequence[int], eligible: list[int], plan: Plan) -> Sum:
        """All eligible scores as ONE vector; its sensitivity is argued in the client half, under the same name.

        A distance of n_i rows from a model of n_i rows is at most 2 n_i: so much for `magnitude`, and 1 for rounding.
        """
        weights = self.candidates.weights[eligible]
        moves = encoded_moves(weights, self.config.scale).astype(np.float64)
        sensitivity = norm(moves)
        noise_for = sqrt(len(moves)) * float(moves.max()) if self.config.as_printed else sensitivity
        return Sum(
            tuple(cohort),
            "scores",
            ((len(eligible),),),
            noise_for * plan.per_sensitivity,
            count=1,
            sensitivity=sensitivity,
            params={"eligible": eligible},
            arrays=pack_model(self.current_model()),
            magnitude=float(ceil(2.0 * self.config.scale * float(weights.max())) + 1),
        )

    def measure_sum(self, cohort: Sequence[int], chosen: list[int], plan: Plan) -> Sum:
        """The chosen marginals with the round's share of the budget: less noise where fewer than k could be chosen.

        The share, mu^2 = k / sigma^2, is fixed in advance, however the noise is divided.
        """
        shapes = tuple(self.domain.shape_of(self.candidates.cliques[i]) for i in chosen)
        sigma = plan.sigma * sqrt(len(chosen) / self.config.top)
        return Sum(tuple(cohort), "measure", shapes, sigma, count=len(chosen), params={"cliques": chosen})

    # The steps --------------------------------------------------------------------------------------------------------

    def share(self) -> float:
        """Share of the largest model that this round may use, as in AIM: early rounds leave room for later ones."""
        return self.round / self.config.rounds

    def eligible(self) -> list[int]:
        """Candidates that the model can take and, while there are any, that lie inside no measured clique.

        Which ones these are follows from released values. Fewer scores also mean less noise on each.
        """
        cliques = self.candidates.cliques
        fitting = self.structure.which_fit(cliques, self.share())
        measured = [set(m.clique) for m in self.measurements]
        fresh = [i for i in fitting if not _inside(cliques[i], measured)]
        return fitting if self.config.remeasure or not fresh else fresh

    def current_model(self) -> Model:
        """The model, or the uniform distribution before anything is measured (Protocol 2, step 1)."""
        if self.model is not None:
            return self.model
        if self.uniform is None:
            self.uniform = estimate(self.domain, [], total=self.total)
        return self.uniform

    def select(self, sums: Summed, eligible: list[int], plan: Plan) -> list[int]:
        """Protocol 1, steps 4-5: decodes, subtracts the penalty once, and takes the k best that the model can take.

        Ties go to the smaller index. Returns candidate indices, ascending.
        """
        gains = decode(sums.arrays[0], self.config.scale) - self.penalty(eligible, plan.sigma)
        chosen: list[int] = []
        taken: list[set[str]] = []
        for i in np.lexsort((np.array(eligible), -gains)):
            clique = self.candidates.cliques[eligible[i]]
            repeats = not self.config.remeasure and _inside(clique, taken)
            if not repeats and self.structure.fits(clique, self.share()):
                self.structure.add([clique])
                chosen.append(eligible[i])
                taken.append(set(clique))
            if len(chosen) == self.config.top:
                break
        chosen.sort()
        self.record.selected = [" × ".join(self.candidates.cliques[i]) for i in chosen]
        return chosen

    def penalty(self, eligible: list[int], sigma: float) -> npt.NDArray[np.float64]:
        """(m,) what the noise of a measurement is expected to cost each score; it depends on no row.

        Scores and noise are both those of the cohort, so the sum needs no scaling to the federation here.
        """
        cells = penalised_cells(self.config.penalty, self.candidates, eligible, ModelView(self.current_model()))
        weights = 1.0 if self.config.as_printed else self.candidates.weights[eligible]
        return weights * expected_noise(sigma, cells)

    def statement(self) -> PrivacyStatement:
        seen = self.aggregation.who_sees_what()
        return PrivacyStatement(
            public=public_facts(self.run),
            trust=seen["trust"],
            server_sees=f"noisy sums of scores and of marginals; {seen['server']}",
            client_sees="the current model, the eligible and the selected cliques: functions of released values",
            cost=(
                "one-way marginals (if measured) once and k marginals a round at mu^2 = 1/sigma^2 each; a round's "
                f"scores, one vector, at its L2 sensitivity squared / sigma^2; noise drawn by {seen['noise']}"
            ),
            sampler="see the run",
        )


def _inside(clique: Clique, others: Sequence[set[str]]) -> bool:
    return any(other.issuperset(clique) for other in others)
