"""The server half of Distributed AIM.

The client half, with the contract of both, is `clients/distributed_aim.py`.

Sedimo & Near, "Efficient Distributed Differentially Private Synthetic Data with High Utility via Secure Aggregation",
Protocol 1 (Gaussian top-k) and Protocol 2 (Distributed AIM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import (
    Clique,
    Marginals,
    Measurement,
    MechanismStrategy,
    Model,
    ModelView,
    OneWay,
    Protocol,
    Sum,
    Summed,
    estimate,
    pack_model,
)
from fedsyn.plugins.clients.distributed_aim import (
    DistributedAimClient,
    DistributedAimContract,
    Scores,
    decode,
)
from fedsyn.selection.scores import contained_in, expected_noise, penalised_cells


class DistributedAim(MechanismStrategy):
    """Gaussian top-k over sums.

    All cliques' scores of a round are summed with noise; the best k cliques are measured.

    Clients send no choices: their scores and their marginals are seen in sums only. Scores are real numbers and travel
    as integers of 1 / `resolution`.

    What is summed is the clients' LOCAL distance from the model. By the triangle inequality that is an upper bound of
    the pooled table's distance, and equals it only where the clients err in the same direction in every cell: many
    small clients, or clients unlike each other, sum up their own sampling error and their own peculiarity, which are
    largest for large marginals. The paper's claim of unbiased selection does not hold for this score; see
    docs/mechanisms/distributed_aim.md for what it costs, and `sketch_aim` for a score that does not have the error.

    Departures from the paper (docs/mechanisms/distributed_aim.md; as printed: configs/printed/distributed_aim.yaml):
    the weighted scores have L2 sensitivity sqrt(sum_r w_r^2), where Algorithm 2, line 1 takes sqrt(|R|) times the
    largest. Values are rounded, not truncated, and the rounding is part of the sensitivity. The penalty is subtracted
    once and not by every client, and is multiplied by w_r as in AIM itself. The model is scaled to a client's public or
    released size. The noise is accounted exactly, as one Gaussian mechanism. Before the first round all one-way
    marginals are measured. No clique is selected that lies inside a measured one.
    """

    Client = DistributedAimClient
    contract: DistributedAimContract

    def protocol(self) -> Protocol:
        steps = self.steps()
        marginal, per_sensitivity = steps[Marginals].sigma, steps[Scores].sigma
        measurements: list[Measurement] = []
        for t in range(1, self.options.rounds + 1):  # Protocol 2, step 2
            self.begin_round(t)
            self.record.sigma = marginal
            cohort = self.sample(self.config.federation.sampling_rate)
            if t == 1 and self.contract.initial:
                measurements += yield from self.measurements_of(cohort, OneWay(), marginal)
                self.estimate(measurements)
            eligible = self.eligible(measurements)
            if not eligible:
                self.record.notes.append("no clique fits into this round's share of the model")
                continue
            sums = yield self.score_sum(cohort, eligible, per_sensitivity)  # step 2a: Protocol 1, steps 1-3
            if not self.is_open(sums, "scores"):
                continue
            chosen = self.select(sums, eligible, marginal)  # Protocol 1, steps 4-5
            cliques = [self.candidates.cliques[i] for i in chosen]
            # Step 2b, with the round's share of the budget, mu^2 = k / sigma^2, whatever number could be chosen.
            sigma = marginal * sqrt(len(chosen) / self.options.top)
            measurements += yield from self.measurements_of(cohort, Marginals(cliques=chosen), sigma)
            self.selected(cliques)
            self.estimate(measurements, t == self.options.rounds)  # step 2c

    def score_sum(self, cohort: Sequence[int], eligible: list[int], per_sensitivity: float) -> Sum:
        """All eligible scores as ONE vector, with noise for its sensitivity."""
        request, arrays = Scores(eligible=eligible), pack_model(self.current_model)
        sensitivity = request.layout(self.contract, arrays).sensitivity
        return Sum(cohort, request, sensitivity * per_sensitivity, arrays)

    # The steps --------------------------------------------------------------------------------------------------------

    def share(self) -> float:
        """Returns the share of the largest model that this round may use.

        As in AIM, early rounds leave room for later ones.
        """
        return self.round / float(self.options.rounds)

    def eligible(self, measurements: Sequence[Measurement]) -> list[int]:
        """Returns candidates that the model can take.

        As long as there are any, only those inside no measured clique: released values tell which. Fewer scores also
        mean less noise on each.
        """
        cliques = self.candidates.cliques
        fitting = self.capacity.which_fit(cliques, self.share())
        inside = self.inside([m.clique for m in measurements])
        fresh = [i for i in fitting if not inside(cliques[i])]
        return fresh or fitting

    def inside(self, measured: Sequence[Clique]) -> Callable[[Clique], bool]:
        """Returns a test: does a clique lie inside a measured one?

        If it does, its marginal is known already.
        """
        return contained_in(measured)

    @property
    def current_model(self) -> Model:
        """The model; before any measurement the uniform one (Protocol 2, step 1)."""
        return self.uniform if self.model is None else self.model

    @cached_property
    def uniform(self) -> Model:
        return estimate(self.domain, [], total=self.total)

    def select(self, sums: Summed, eligible: list[int], sigma: float) -> list[int]:
        """Selects the k best cliques that fit (Protocol 1, steps 4-5).

        It decodes the sum and subtracts the penalty, once. Ties go to the smaller index. Returns candidate indices,
        ascending.
        """
        gains = decode(sums.arrays[0], self.options.resolution) - self.penalty(eligible, sigma)
        chosen: list[int] = []
        taken: list[Clique] = []
        for i in np.lexsort((np.array(eligible), -gains)):
            clique = self.candidates.cliques[eligible[i]]
            if not self.inside(taken)(clique) and self.capacity.fits(clique, self.share()):
                self.capacity.add([clique])
                chosen.append(eligible[i])
                taken.append(clique)
            if len(chosen) == self.options.top:
                break
        chosen.sort()
        return chosen

    def penalty(self, eligible: list[int], sigma: float) -> npt.NDArray[np.float64]:
        """Returns the expected cost of a measurement's noise per score, (m,).

        It depends on no row. Scores and noise are both those of the cohort, so nothing is scaled to the federation
        here.
        """
        view = ModelView(self.current_model, self.config.inference.max_cells_at_once)
        cells = penalised_cells(self.options.penalty, self.candidates, eligible, view)
        return self.candidates.weights[eligible] * expected_noise(sigma, cells)
