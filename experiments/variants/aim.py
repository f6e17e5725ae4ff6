"""AIM as Maddock et al. 2024 print it: `mechanism: {name: experiments.variants.aim:PrintedAim, rounds: null}`."""

from __future__ import annotations

import math
from dataclasses import replace

from fedsyn.plugins.clients.aim import AimClient, AimContract
from fedsyn.plugins.strategies.aim import Aim
from fedsyn.privacy import Scales


class PrintedAimContract(AimContract):
    """AIM's, with the sigma_0 of Algorithm 2, line 2."""

    def first_scales(self, rho: float) -> Scales:
        """Starts the annealing at twice the variance that the budget allows."""
        scales = super().first_scales(rho)
        return scales if self.options.rounds is not None else replace(scales, sigma=scales.sigma * math.sqrt(2.0))


class PrintedAimClient(AimClient):
    """Deals its answers, as AIM's client."""

    Contract = PrintedAimContract


class PrintedAim(Aim):
    """AIM whose annealing starts as printed."""

    Client = PrintedAimClient
