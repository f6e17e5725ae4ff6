"""AIM as Maddock et al. 2024 print it: `mechanism: {name: experiments.variants.aim:PrintedAim, rounds: null}`."""

from __future__ import annotations

import math
from dataclasses import replace

from fedsyn.mechanism import OpenMarginals, OpenOneWay, Step
from fedsyn.plugins.clients.aim import AimClient, AimContract
from fedsyn.plugins.strategies.aim import Aim


class PrintedAimContract(AimContract):
    """AIM's, with the sigma_0 of Algorithm 2, line 2."""

    def plan(self, rho: float, rows: float = math.inf) -> list[Step]:
        """Starts the annealing at twice the variance that the budget allows."""
        steps = super().plan(rho, rows)
        if self.options.rounds is not None:
            return steps
        halved = {OpenOneWay: "rho", OpenMarginals: "least"}
        return [
            replace(step, **{halved[step.request]: step.first_rho / 2.0}) if step.request in halved else step
            for step in steps
        ]


class PrintedAimClient(AimClient):
    """Deals its answers, as AIM's client."""

    Contract = PrintedAimContract


class PrintedAim(Aim):
    """AIM whose annealing starts as printed."""

    Client = PrintedAimClient
