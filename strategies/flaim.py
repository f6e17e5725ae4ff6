"""The server half of the FLAIM family.

The client half, with the contract of both, is `clients/flaim.py`.

Maddock et al. 2024, "FLAIM: AIM-based Synthetic Data Generation in the Federated Setting", Algorithm 1, and the
Gaussian baselines of its Table 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.mechanism import Ask, AskRequest, Clique, Measurement, MechanismStrategy, OneWay, Protocol, Sum, Summed
from fedsyn.plugins.clients.flaim import (
    AugFlaimClient,
    AugFlaimOracleClient,
    BlindDraw,
    FedNaiveBayesClient,
    FedNaiveBayesContract,
    FlaimClient,
    FlaimContract,
    FlaimRandomClient,
    Measure,
    Select,
)
from fedsyn.selection.scores import Scales, annealed, is_settled

Choices = Mapping[int, Sequence[int]]  # by partition: indices of the candidates that it chose


class Flaim(MechanismStrategy):
    """Algorithm 1, which all variants share.

    A variant overrides it where it differs.

    The order of the first round differs from the paper in one thing: its one-way marginals are summed before it
    selects, so that no client selects against the uniform model. No release is added or lost by that.
    """

    contract: FlaimContract

    def protocol(self) -> Protocol:
        steps, settled = self.steps(), False
        epsilon = steps[Select].first_epsilon if Select in steps else 1.0
        scales = Scales(steps[OneWay].first_sigma, epsilon, *self.contract.per_round)
        measurements: list[Measurement] = []
        for t in itertools.count(1):  # line 1
            self.begin_round(t)
            scales, last = self.next_scales(scales, settled, t)
            self.record.sigma, self.record.epsilon = scales.sigma, scales.epsilon if Select in steps else None
            cohort = self.sample(self.config.federation.sampling_rate)  # line 2
            starting = self.model is None
            if starting:  # the first line 11, so that there is a model to select against
                sums = yield Sum(cohort, OneWay(), scales.sigma)
                measurements += self.weighted(sums, self.layout([], True), {})
                self.estimate(measurements)
            if self.model is not None:
                eligible = self.eligible()  # line 5
                request, shown = self.choice(eligible, scales, measurements)
                replies = yield Ask(cohort if eligible else (), request, shown)  # lines 3-10
                choices = self.choices(replies, "chosen", eligible, self.options.local_rounds)
                union = self.fitting_union(choices)
                one_way = self.contract.one_way_every_round and not starting
                cliques, choosers = self.layout(union, one_way), self.behind(union, choices)
                # Whose choices did not arrive is not asked: nobody would count what it contributes.
                contributors = (tuple(choices) or cohort) if cliques else ()
                what = Measure(cliques=union, one_way=one_way) if union else OneWay()
                sums = yield Sum(contributors, what, scales.sigma)  # lines 11-15
                new = self.weighted(sums, cliques, choosers)
                measurements += new
                before = self.model
                self.estimate(measurements, last)  # line 16
                chosen = [m for m in new if m.clique in choosers]
                settled = self.options.rounds is None and is_settled(
                    before, self.model, [m.clique for m in chosen], [m.sigma for m in chosen]
                )
            if last:
                break

    # Budget -----------------------------------------------------------------------------------------------------------

    def next_scales(self, scales: Scales, settled: bool, t: int) -> tuple[Scales, bool]:
        """Returns this round's scales, and whether it is the last.

        Scales are fixed for T rounds, or annealed (appendix B.4).
        """
        if self.options.rounds is not None:
            return scales, t == self.options.rounds
        if t == 1:
            return scales, False
        scales, last = annealed(scales, settled, self.ledger.remaining_rho, self.options.measure_fraction)
        # Rounds in which nobody answers cost little, so the budget alone would not soon end a run without clients.
        return scales, last or t >= 16 * len(self.domain)

    # Selection: lines 3-10 --------------------------------------------------------------------------------------------

    def eligible(self) -> list[int]:
        """Returns the candidates that the model can take (line 5).

        One-way marginals that every round measures anyway are not chosen.
        """
        cliques = self.candidates.cliques
        shortest = 2 if self.contract.one_way_every_round else 1
        return [i for i in self.capacity.which_fit(cliques) if len(cliques[i]) >= shortest]

    def choice(
        self, eligible: list[int], scales: Scales, measurements: Sequence[Measurement]
    ) -> tuple[AskRequest, list[np.ndarray]]:
        """Returns the request for a client's choices, with the model.

        For s > 1 the client fits the measurements so far together with its own.
        """
        assert self.model is not None
        model, sent = self.packed(), measurements if self.options.local_rounds > 1 else ()
        request = Select(
            eligible=eligible,
            sigma=scales.sigma,
            epsilon=scales.epsilon,
            model_arrays=len(model),
            measured=[list(m.clique) for m in sent],
            sigmas=[m.sigma for m in sent],
        )
        return request, [*model, *(m.values for m in sent)]

    def fitting_union(self, choices: Choices) -> list[int]:
        """Returns the distinct choices that fit the model together.

        Those with more records behind them are fitted in first. It is released already who chose which clique, so
        leaving one out is post-processing; a clique that is left out is not measured.
        """
        support: dict[int, float] = {}
        for partition, chosen in choices.items():
            for i in chosen:
                support[i] = support.get(i, 0.0) + self.rows([partition])
        ranked = sorted(support, key=lambda i: (-support[i], i))
        positions = self.capacity.add_while_fitting([self.candidates.cliques[i] for i in ranked])
        return sorted(ranked[j] for j in positions)

    # Measurement: lines 11-16 -----------------------------------------------------------------------------------------

    def layout(self, union: Sequence[int], one_way: bool) -> list[Clique]:
        ones = [(name,) for name in self.domain] if one_way else []
        return ones + [self.candidates.cliques[i] for i in union]

    def behind(self, union: Sequence[int], choices: Choices) -> dict[Clique, set[int]]:
        """Returns who chose each clique of the union."""
        return {self.candidates.cliques[i]: {k for k, chosen in choices.items() if i in chosen} for i in union}

    def weighted(
        self, sums: Summed, cliques: Sequence[Clique], choosers: Mapping[Clique, set[int]]
    ) -> list[Measurement]:
        """Brings every sum, and its noise, to the federation's total (lines 15-16).

        A sum over N_q records becomes `sum * N / N_q` with standard deviation `sigma * N / N_q`: the weight N_q / sigma
        of line 16 in units of the federation's total N.

        Args:
            sums: the answer.
            cliques: of its arrays.
            choosers: the clients behind a chosen clique; the others have everybody behind them.
        """
        if not cliques or not self.is_open(sums, "marginals"):
            return []
        federation, cohort = self.rows(self.clients), self.rows(sums.contributors)
        new = []
        for clique, values, sigma in zip(cliques, sums.arrays, sums.sigmas, strict=True):
            behind = set(sums.contributors) & choosers.get(clique, set(sums.contributors))
            records = self.records_behind(behind, values)
            if records < 1.0:
                continue  # nobody who chose it answered: it says nothing
            noise = sigma * self.noise_factor(federation, records, cohort)
            share = min(1.0, records / federation)
            new.append(Measurement(clique, values * (federation / records), noise, share=share))
        self.selected(choosers)
        return new

    def records_behind(self, behind: Iterable[int], values: npt.NDArray[np.float64]) -> float:
        """Returns N_q, the public or released row count behind a sum.

        Line 15 takes the noisy total of the sum itself, whose noise grows with the number of cells.
        """
        return self.rows(sorted(behind))

    def noise_factor(self, federation: float, records: float, cohort: float) -> float:
        """Returns N / N_q, the factor on a sum's noise.

        It gives the sum line 16's weight alpha_q = N_q / sigma.

        Args:
            federation: N, records of all clients.
            records: N_q, records behind this sum.
            cohort: records of all contributors of the round.
        """
        return federation / records


class NaiveFlaim(Flaim):
    """NaiveFLAIM: AIM's score on every client.

    One-way marginals are measured once, and every sum has the same weight, 1 / sigma.
    """

    Client = FlaimClient

    def noise_factor(self, federation: float, records: float, cohort: float) -> float:
        """Returns N over the records of the round's cohort.

        It is the same for every sum of a round (line 16, Naive): weight 1 / sigma, however few records are behind a
        sum.
        """
        return federation / cohort


class AugFlaimOracle(Flaim):
    """AugFLAIM (Oracle), a baseline for simulations.

    It subtracts each client's true distance from the pooled table.
    """

    Client = AugFlaimOracleClient


class AugFlaim(Flaim):
    """AugFLAIM (Private).

    Clients select locally; the server measures their selections in noisy sums.

    Each round a cohort of clients scores the candidates against the current model, subtracts a proxy of its own
    heterogeneity, and releases s choices; then the cohort's exact marginals (all one-way ones, and of each client those
    it chose) are summed, perturbed, and fitted.

    Read `Flaim.protocol` from top to bottom, as Algorithm 1: it is a generator of requests, and `x = yield request` is
    one exchange with the cohort (`MechanismStrategy.protocol` says what that is in Flower's terms).

    Departures from the paper (docs/mechanisms/flaim.md has them all, and why): the model is scaled to a public or
    released size n_k before a client compares its marginals with it; a sum is divided by the contributors' sizes rather
    than by its own noisy total, whose noise grows with the number of cells; the first round sums its one-way marginals
    before it selects; for s > 1 the local measurements are charged.
    """

    Client = AugFlaimClient


class FlaimRandom(Flaim):
    """FLAIM (Random): clients choose cliques uniformly, so that the whole budget measures."""

    Client = FlaimRandomClient

    def choice(
        self, eligible: list[int], scales: Scales, measurements: Sequence[Measurement]
    ) -> tuple[AskRequest, list[np.ndarray]]:
        """Returns the request for a blind draw, which needs no model."""
        return BlindDraw(eligible=eligible), []


class FedNaiveBayes(MechanismStrategy):
    """FedNaiveBayes: the workload restricted to one-way marginals, measured in every round."""

    Client = FedNaiveBayesClient
    contract: FedNaiveBayesContract

    def protocol(self) -> Protocol:
        rounds, sigma = self.options.rounds, self.steps()[OneWay].sigma
        measurements: list[Measurement] = []
        for t in range(1, rounds + 1):
            self.begin_round(t)
            self.record.sigma = sigma
            cohort = self.sample(self.config.federation.sampling_rate)
            measurements += yield from self.measurements_of(cohort, OneWay(), sigma)
            self.estimate(measurements, t == rounds)
