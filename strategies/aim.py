"""The server half of AIM over a store, DistAIM and FHAIM.

The client half is `clients/aim.py`.

Maddock et al. 2024, "FLAIM: AIM-based Synthetic Data Generation in the Federated Setting", Algorithm 2 (after McKenna
et al. 2022, "AIM: An Adaptive and Iterative Mechanism for Differentially Private Synthetic Data") and Algorithm 3.
"""

from __future__ import annotations

import itertools

from fedsyn.mechanism import (
    Answers,
    Choose,
    Deal,
    Measurement,
    MechanismStrategy,
    ModelView,
    Open,
    OpenMarginals,
    OpenOneWay,
    Protocol,
    SelectClique,
)
from fedsyn.plugins.clients.aim import AimClient, AimContract, DistAimClient, FhAimClient
from fedsyn.selection.scores import Scales, annealed, is_settled


class Aim(MechanismStrategy):
    """AIM over a store that selects and measures, while the server fits.

    It runs T rounds, or until the budget is spent. Central AIM is this over one holder of every row, DistAIM over a
    sample of many holders: a client that is drawn for the first time deals its exact answers into the store, which adds
    them up. `aggregation` says what the store is.

    Departures from the papers (docs/mechanisms/aim.md): Algorithm 2, line 2 misses a factor 2 in sigma_0
    (`configs/printed/aim.yaml`); its line 6 increments t before line 7 tests for 0, so the initialisation is done when
    there is no model; the ledger, not the loop condition, is what stops an overspend. Algorithm 3, line 6 calls the
    score linear, which its L1 norm is not; a marginal is scaled to the federation, its noise with it.
    """

    Client = AimClient
    contract: AimContract

    def protocol(self) -> Protocol:
        steps, settled = self.steps(), False
        scales = Scales(steps[OpenMarginals].first_sigma, steps[SelectClique].first_epsilon, 1, 1)  # lines 1-4
        dealt: list[int] = []
        measurements: list[Measurement] = []
        for t in itertools.count(1):
            self.begin_round(t)
            cohort = self.sample(self.config.federation.sampling_rate)  # Algorithm 3, line 3
            new = [k for k in cohort if k not in dealt]
            dealt += yield Deal(new, Answers(rho=self.ledger.remaining_rho))  # Algorithm 3, lines 4-5
            if self.model is None:  # Algorithm 2, lines 7-10
                sums = yield Open(OpenOneWay(sigma=scales.sigma))
                measurements += self.opened(sums, [(name,) for name in self.domain])
                self.estimate(measurements)
            scales, last = self.next_scales(scales, settled)  # lines 17-20
            self.record.sigma, self.record.epsilon = scales.sigma, scales.epsilon
            eligible = self.capacity.which_fit(self.candidates.cliques, self.share())  # line 12
            if self.model is not None and eligible:
                size = self.rows(dealt)
                view, bound = ModelView(self.model, self.config.inference.max_cells_at_once), self.contract.bound(size)
                terms = self.contract.terms(view, eligible, scales.sigma, size, bound)
                chosen = eligible[(yield Choose(SelectClique(epsilon=scales.epsilon), terms))]  # line 13
                sums = yield Open(OpenMarginals(cliques=[chosen], sigma=scales.sigma))  # line 14
                clique = self.candidates.cliques[chosen]
                self.capacity.add([clique])
                (measured,) = self.opened(sums, [clique])
                measurements.append(measured)
                before = self.model
                self.estimate(measurements, last)  # line 15
                settled = is_settled(before, self.model, [clique], [measured.sigma])  # line 17
                self.selected([clique])
            if last or (self.model is not None and not eligible):
                break

    def next_scales(self, scales: Scales, settled: bool) -> tuple[Scales, bool]:
        """Returns the next round's scales, and whether it is the last.

        Annealing halves the noise if the last round changed little, and spends all if little is left (lines 17-20).
        """
        if self.options.rounds is not None:
            return scales, self.round == self.options.rounds
        scales, last = annealed(scales, settled, self.ledger.remaining_rho, self.options.measure_fraction)
        return scales, last or self.round >= 16 * len(self.domain)  # where nobody deals, no budget ends a run

    def share(self) -> float:
        """Returns the share of the largest model that this round may use.

        Under annealing it is the share of the budget that is spent so far (line 12).
        """
        if self.options.rounds is None:
            return min(1.0, max(0.05, self.ledger.spent_rho / self.budget.rho))
        return self.round / float(self.options.rounds)


class DistAim(Aim):
    """DistAIM, Algorithm 3: a sample of the clients in each round.

    Each client deals only once. With everybody present, and the same noise, it is central AIM to the last bit.
    """

    Client = DistAimClient


class FhAim(Aim):
    """FHAIM (Kumar et al. 2025): AIM over an encrypted store.

    Its score is the squared L2 one, which ciphertexts can compute. Over one data entity, without noise, it is central
    AIM with that score.
    """

    Client = FhAimClient
