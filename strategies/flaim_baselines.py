"""The server halves of FLAIM's two Gaussian baselines (Maddock et al. 2024, Table 1).

The client halves, with the contracts, are in `clients/flaim_baselines.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsyn.inference import Measurement
from fedsyn.plugins.clients.flaim_baselines import Draw, FedNaiveBayesClient, FlaimRandomClient
from fedsyn.plugins.strategies.flaim import Flaim
from fedsyn.privacy import Scales, sigma_for_rho
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.wire.requests import AskRequest, Sum


class FlaimRandom(Flaim):
    """FLAIM (Random): clients choose cliques uniformly, so that the whole budget measures."""

    Client = FlaimRandomClient

    def first_scales(self) -> Scales:
        """All of the budget on T s chosen and the one-way marginals; nothing is measured locally."""
        often = self.options.rounds if self.contract.one_way_every_round else 1
        count = self.options.rounds * self.options.local_rounds + len(self.domain) * often
        return Scales(sigma_for_rho(self.ledger.remaining_rho / count), 1.0, count, 0)

    def choice(
        self, eligible: list[int], scales: Scales, measurements: Sequence[Measurement]
    ) -> tuple[AskRequest, list[np.ndarray]]:
        """No model goes with it: whoever draws blindly needs none."""
        return Draw(eligible=eligible), []


class FedNaiveBayes(MechanismStrategy):
    """FedNaiveBayes: the workload restricted to one-way marginals, measured in every round."""

    Client = FedNaiveBayesClient

    def protocol(self) -> Protocol:
        rounds, ones = self.options.rounds, [(name,) for name in self.domain]
        sigma = sigma_for_rho(self.ledger.remaining_rho / (rounds * len(ones)))
        measurements: list[Measurement] = []
        for t in range(1, rounds + 1):
            self.begin_round(t)
            self.record.sigma = sigma
            cohort = self.sample(self.config.federation.participation)
            sums = yield Sum(cohort, OneWay(), sigma)
            measurements += self.opened(sums, ones)
            self.estimate(measurements, t == rounds)
