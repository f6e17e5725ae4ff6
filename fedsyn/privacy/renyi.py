"""Rényi DP of DP-SGD steps, as one number.

A step is a Gaussian release of a sum over a Poisson sample of the rows.

A step takes each row with probability `rate`, independently, sums over the rows taken a vector of norm at most Δ each,
and adds N(0, σ²); z = σ/Δ is its noise multiplier. Which rows were taken stays secret. For an integer order α >= 2 one
row, added or removed, moves it by

    D_α = log( Σ_k C(α, k) (1 - q)^(α-k) q^k exp(k (k-1) / (2 z²)) ) / (α - 1),   k = 0 ... α,

the larger of both directions, and no approximation (Mironov, Talwar & Zhang 2019, "Rényi Differential Privacy of the
Sampled Gaussian Mechanism", Theorem 5 and Section 3.3).

**One order, chosen before the run.** Rényi DP of ONE order adds up like any other cost, also where releases, scales and
the decision to go on are chosen on the way: a filter that stops the sum makes the whole interaction that Rényi DP
(Feldman & Zrnic 2021, Theorem 3.1). So a ledger needs one number a release, and Gaussian releases (α rho) and choices
(α rho: rho-zCDP is that at every order) may stand beside the steps. The order follows from public numbers only
(`best_order`), so it depends on no output. The price against the numerical composition of all steps (PLD) is 5% to 9%
more noise; tests compare both with jax-privacy's accountants.

Nothing here needs JAX: whoever reads a ledger can check it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

#: Orders that a run chooses from.
ORDERS = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
#: Relative room for rounding in the sum, which has at most 513 positive terms.
_ROOM = 1e-9
#: No step has less noise than its sensitivity's thousandth, or more than its millionfold.
_MULTIPLIERS = (1e-3, 1e6)


@lru_cache(maxsize=4096)
def sampled_rdp(rate: float, multiplier: float, order: int) -> float:
    """Returns the Rényi DP of one step, rounded up.

    It is at an integer order, and infinite where it is beyond a double.

    Args:
        rate: q, probability with which a row is taken.
        multiplier: z, standard deviation of the noise over the sensitivity of the sum.
        order: α, an integer of at least 2.
    """
    if not (0.0 < rate <= 1.0 and 0.0 < multiplier < math.inf) or order < 2 or order != int(order):
        raise ValueError("a step needs a rate in (0, 1], a positive noise multiplier and an integer order of 2 or more")
    if rate == 1.0:
        return order / (2.0 * multiplier) / multiplier
    k = np.arange(2, order + 1, dtype=np.float64)  # for k = 0 and 1 the exponential is 1
    logs = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0)
    logs += k * math.log(rate) + (order - k) * math.log1p(-rate)
    with np.errstate(over="ignore"):
        exponents = k * (k - 1.0) / 2.0 / multiplier / multiplier
    if not np.isfinite(exponents).all():
        return math.inf
    # Σ C (1-q)^(α-k) q^k (e^x - 1) + 1: what is added to 1 keeps its digits, however small.
    with np.errstate(divide="ignore"):
        above = float(logsumexp(logs + exponents + np.log(-np.expm1(-exponents))))
    return float(np.logaddexp(0.0, above)) * (1.0 + _ROOM) / (order - 1)


def renyi_epsilon(spent: float, order: int, delta: float) -> float:
    """Returns the ε at δ of Rényi DP `spent`, at least 0.

    It needs one order only (Canonne, Kamath & Steinke 2020, Proposition 12).
    """
    return max(0.0, spent + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1))


def renyi_capacity(epsilon: float, delta: float, order: int) -> float:
    """Returns the most Rényi DP at an order for (ε, δ).

    It is not positive if the order cannot imply (ε, δ).
    """
    return epsilon - math.log1p(-1.0 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def multiplier_for(rdp: float, rate: float, order: int) -> float:
    """Returns the least noise multiplier of a step within `rdp`.

    It is at one order, and within 1e-12 above the true one.

    Raises:
        ValueError: no multiplier between a thousandth and a million does.
    """
    # The cost falls as the noise grows: a geometric bisection that keeps `high` on the side that is affordable.
    low, high = _MULTIPLIERS
    if not rdp > 0.0 or sampled_rdp(rate, high, order) > rdp:
        raise ValueError("no noise is enough for a step of this cost")
    if sampled_rdp(rate, low, order) <= rdp:
        return low
    while high > low * (1.0 + 1e-12):
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (low, middle) if sampled_rdp.__wrapped__(rate, middle, order) <= rdp else (middle, high)
    return high


@lru_cache(maxsize=64)
def best_order(epsilon: float, delta: float, rate: float, steps: int) -> int:
    """Returns the order that needs least noise for (ε, δ).

    It is for `steps` equal steps.

    Args:
        epsilon: of all steps together.
        delta: of all steps together.
        rate: q.
        steps: how many, at least 1.

    Raises:
        ValueError: at no order is any noise enough.
    """
    best, least = 0, math.inf
    for order in ORDERS:
        capacity = renyi_capacity(epsilon, delta, order)
        # An order that needs more noise than the best one so far is found out by a single sum.
        if capacity <= 0.0 or (best and sampled_rdp.__wrapped__(rate, least, order) * steps >= capacity):
            continue
        try:
            best, least = order, multiplier_for(capacity / steps, rate, order)
        except ValueError:
            continue
    if not best:
        raise ValueError("no amount of noise fits this number of steps into the budget")
    return best
