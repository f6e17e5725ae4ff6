"""Budget annealing: AIM's rule for scales that adapt to what was learned, behind the ledger's filter.

McKenna et al. 2022 (AIM), Section 4.4; Maddock et al. 2024, Algorithm 2 lines 17-20 and appendix B.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from fedsyn.domain import Clique
from fedsyn.inference import Model
from fedsyn.privacy import epsilon_for_rho, exponential_rho, gaussian_rho, sigma_for_rho


@dataclass(frozen=True)
class Scales:
    """The noise of one round.

    Attributes:
        sigma: standard deviation of every Gaussian release, in records.
        epsilon: parameter of every exponential mechanism.
        gaussians: number of Gaussian releases in it that one row takes part in.
        choices: number of exponential mechanisms in it that one row takes part in.
    """

    sigma: float
    epsilon: float
    gaussians: int
    choices: int


def annealed(scales: Scales, settled: bool, left: float, measure_fraction: float) -> tuple[Scales, bool]:
    """The next round's scales, and whether that round is the last.

    Lines 17-18: a settled round halves sigma and doubles epsilon. Lines 19-20: if what is left would not pay for two
    rounds, one last round spends all of it. The scales depend on released values only; that their sum stays within the
    budget is the ledger's business, which refuses a round that it does not.

    Args:
        scales: those of the last round; `gaussians` and `choices` say how many releases of each kind one row takes part
            in per round.
        settled: whether the last round changed the model by less than its noise (see `is_settled`).
        left: zCDP budget that is left.
        measure_fraction: share of the last round's budget for Gaussian noise.
    """
    g, c = scales.gaussians, scales.choices
    sigma, epsilon = scales.sigma, scales.epsilon
    if settled:
        sigma, epsilon = sigma / 2.0, epsilon * 2.0
    cost = g * gaussian_rho(sigma) + c * exponential_rho(epsilon)
    if left > 2.0 * cost:
        return Scales(sigma, epsilon, g, c), False
    return Scales(
        sigma_for_rho(measure_fraction * left / g), epsilon_for_rho((1.0 - measure_fraction) * left / c), g, c
    ), True


def is_settled(before: Model, after: Model, cliques: Sequence[Clique], sigmas: Sequence[float]) -> bool:
    """Line 17: whether a measured marginal of the model moved by no more than the expected norm of its noise.

    With several marginals in a round one of them is enough (appendix B.4).

    Args:
        before: the model before the round.
        after: the model after it.
        cliques: the round's chosen cliques.
        sigmas: noise of each measurement, in records of the model's total.
    """
    pairs = zip(before.project_many(cliques), after.project_many(cliques), sigmas, strict=True)
    return any(np.abs(new - old).sum() <= sqrt(2.0 / pi) * sigma * old.size for old, new, sigma in pairs)
