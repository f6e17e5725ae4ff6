"""The server halves of FLAIM's two Gaussian baselines (Maddock et al. 2024, Table 1).

The client halves, with the contracts, are in `clients/flaim_baselines.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsyn.inference import Measurement
from fedsyn.plugins.clients.flaim_baselines import (
    BlindDraw,
    FedNaiveBayesClient,
    FedNaiveBayesContract,
    FlaimRandomClient,
)
from fedsyn.plugins.strategies.flaim import Flaim
from fedsyn.privacy import Scales
from fedsyn.protocol.client import OneWay
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.protocol.wire.requests import AskRequest, Sum


class FlaimRandom(Flaim):
    """FLAIM (Random): clients choose cliques uniformly, so that the whole budget measures."""

    Client = FlaimRandomClient

    def choice(
        self, eligible: list[int], scales: Scales, measurements: Sequence[Measurement]
    ) -> tuple[AskRequest, list[np.ndarray]]:
        """No model goes with it: a blind draw needs none."""
        return BlindDraw(eligible=eligible), []


class FedNaiveBayes(MechanismStrategy):
    """FedNaiveBayes: the workload restricted to one-way marginals, measured in every round."""

    Client = FedNaiveBayesClient
    contract: FedNaiveBayesContract

    def protocol(self) -> Protocol:
        rounds, ones = self.options.rounds, [(name,) for name in self.domain]
        sigma = self.contract.sigma(self.ledger.remaining_rho)
        measurements: list[Measurement] = []
        for t in range(1, rounds + 1):
            self.begin_round(t)
            self.record.sigma = sigma
            cohort = self.sample(self.config.federation.participation)
            sums = yield Sum(cohort, OneWay(), sigma)
            measurements += self.opened(sums, ones)
            self.estimate(measurements, t == rounds)
