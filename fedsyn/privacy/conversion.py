"""Conversion of zCDP and Gaussian DP to (ε, δ) and back.

It never under-reports.

All functions are pure and take floats. Rounding has a direction: a δ or ε that is returned is at least the
true one, a rho or mu that is returned is at most the largest that is allowed. Two things make that so. Every
δ is inflated by a bound on its own rounding error, and every inverse ends with a point at which that inflated
δ was seen to be small enough.

Sources: Canonne, Kamath & Steinke 2020, "The Discrete Gaussian for Differential Privacy", Corollary 13 (FLAIM
Lemma A.2); Balle & Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache

from scipy.special import erfcx, ndtr

_ULP = sys.float_info.epsilon  # 2^-52
#: A positive δ below this is rounded up to it; a δ to be met must be larger.
SMALLEST_DELTA = 1e-300
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_STEP = 2.0**-45  # relative step towards the safe side while verifying an inverse


# ---------------------------------------------------------------------------------------------------- zCDP


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Returns the δ at which rho-zCDP implies (epsilon, δ)-DP.

    It is the bound of FLAIM Lemma A.2, minimised over α.

    `log δ(α) = (α-1)(αρ-ε) + (α-1) log(α-1) - α log α` is strictly convex on α > 1, and its derivative
    `(2α-1)ρ - ε + log(1-1/α)` increases from -inf, so the minimum is its one zero. The lemma holds for EVERY
    α > 1: an inexact zero only makes the result larger.

    Args:
        rho: zCDP parameter, at least 0 (may be infinite).
        epsilon: at least 0.

    Returns:
        δ in [0, 1].
    """
    _require(rho >= 0.0, "rho must be at least 0")
    _require(0.0 <= epsilon < math.inf, "epsilon must be at least 0 and finite")
    if rho == 0.0:
        return 0.0
    if math.isinf(rho):
        return 1.0
    epsilon = min(epsilon, 1e100)  # δ falls with ε: safe, and no product below overflows

    def descending(x: float) -> bool:  # x = α - 1
        return (2.0 * x + 1.0) * rho - epsilon - math.log1p(1.0 / x) < 0.0

    # The derivative is positive at α = (ε+1)/(2ρ) + 2, since log(1-1/α) > -log 2 there. The cap keeps x²
    # finite.
    order = _boundary(descending, _lower_order(rho, epsilon), min((epsilon + 1.0) / (2.0 * rho) + 1.0, 1e100))
    return _zcdp_delta_at(rho, epsilon, order)


@lru_cache(maxsize=4096)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Returns the least epsilon with `zcdp_delta(rho, epsilon) <= delta`, rounded up.

    >>> round(zcdp_epsilon(0.05, 1e-5), 4)
    1.3081
    >>> zcdp_rho(zcdp_epsilon(0.05, 1e-5), 1e-5) >= 0.05  # there and back costs nothing
    True

    With ε eliminated through the derivative's zero, the optimal α satisfies `(α-1)²ρ + log α = log(1/δ)`,
    whose left side increases: one root gives α, and α gives ε.
    """
    _require(rho >= 0.0, "rho must be at least 0")
    _require(SMALLEST_DELTA < delta < 1.0, "delta must lie strictly between 0 and 1")
    if rho == 0.0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    target = -math.log(delta)

    # x = α - 1 at which the two sides meet; with it, ε is the zero of the derivative in α.
    def short(x: float) -> bool:
        return x * x * rho + math.log1p(x) < target

    x = _boundary(short, 0.0, min(math.sqrt(target / rho), 1e100))
    epsilon = (1.0 + x) * rho - math.log1p(1.0 / x) + (target - math.log1p(x)) / x
    # Whatever rounding did to x: step up, twice as far each time, until the inflated δ is small enough.
    epsilon = max(epsilon, 0.0)
    step = _STEP * max(epsilon, rho)
    while zcdp_delta(rho, epsilon) > delta:
        epsilon, step = epsilon + step, 2.0 * step
    return epsilon


@lru_cache(maxsize=4096)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Returns the largest rho that implies (epsilon, delta)-DP, rounded down.

    It is by Lemma A.2. At the optimum `ρ = (ε - log(1-1/α)) / (2α-1)`; put into `(α-1)²ρ + log α = log(1/δ)` the left
    side increases in α.
    """
    _require(0.0 < epsilon < math.inf, "epsilon must be positive and finite")
    _require(SMALLEST_DELTA < delta < 1.0, "delta must lie strictly between 0 and 1")
    target = -math.log(delta)

    def rho_at(x: float) -> float:
        return (epsilon + math.log1p(1.0 / x)) / (2.0 * x + 1.0)

    def short(x: float) -> bool:
        return x * x * rho_at(x) + math.log1p(x) < target

    # Double until α is on the far side, bisect, and step down until the inflated δ is small enough.
    high = 1.0
    while short(high):
        high *= 2.0
    rho = rho_at(_boundary(short, 0.0, high))
    step = _STEP
    while zcdp_delta(rho, epsilon) > delta:
        rho, step = rho * (1.0 - step), min(2.0 * step, 0.5)
    return rho


def _zcdp_delta_at(rho: float, epsilon: float, x: float) -> float:
    """Returns Lemma A.2's δ at α = 1 + x, rounded up.

    It is inflated by its rounding error.
    """
    # x log x - (1+x) log(1+x), written so that a large x cancels nothing.
    terms = (x * (1.0 + x) * rho, -x * epsilon, -x * math.log1p(1.0 / x), -math.log1p(x))
    # Each term is off by a few ulps of itself; they cancel, so the error is relative to their absolute sum.
    error = 8.0 * _ULP * (1.0 + math.fsum(abs(term) for term in terms))
    exponent = math.fsum(terms) + error
    return 1.0 if exponent >= 0.0 else max(math.exp(exponent), SMALLEST_DELTA)


def _lower_order(rho: float, epsilon: float) -> float:
    """Returns a point x = α - 1 where log δ falls.

    There log(1+1/x) exceeds (2x+1)ρ - ε.
    """
    x = 1.0
    while (2.0 * x + 1.0) * rho - epsilon - math.log1p(1.0 / x) >= 0.0:
        x *= 0.5
        if x < 1e-300:  # rho so large that δ is 1 anyway
            break
    return x


# ------------------------------------------------------------------------------------- the Gaussian mechanism


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns the exact δ of a Gaussian mechanism at `epsilon`, rounded up.

    The mechanism has `mu = sensitivity / sigma`.

    Balle & Wang's `δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)` subtracts two nearly equal numbers. With
    a = ε/μ - μ/2, b = ε/μ + μ/2, Mills' ratio R and the normal density φ it is `φ(a) (R(a) - R(b))`: nothing
    overflows, and what cancels is small. R comes from `erfcx`.

    Args:
        mu: at least 0 (may be infinite).
        epsilon: at least 0.

    Returns:
        δ in [0, 1].
    """
    _require(mu >= 0.0, "mu must be at least 0")
    _require(0.0 <= epsilon < math.inf, "epsilon must be at least 0 and finite")
    if mu == 0.0:
        return 0.0
    if math.isinf(mu) or mu > 1e150:
        return 1.0
    ratio = epsilon / mu
    if ratio > 1e150:
        return SMALLEST_DELTA
    a, b = ratio - 0.5 * mu, ratio + 0.5 * mu
    density = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    far = density * _mills(b)
    near = density * _mills(a) if a > 0.0 else float(ndtr(-a))
    # `a` is off by an ulp of b, which moves φ(a) by |a| b ulps; the rest is a few ulps of each term.
    error = 8.0 * _ULP * (near + far) * (1.0 + abs(a) * b)
    return min(1.0, max(near - far + error, SMALLEST_DELTA))


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon of a Gaussian mechanism, rounded up.

    The mechanism has `mu = sensitivity / sigma`; epsilon is that at `delta`.
    """
    _require(mu >= 0.0, "mu must be at least 0")
    _require(SMALLEST_DELTA < delta < 1.0, "delta must lie strictly between 0 and 1")
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # δ falls with ε: double until it is small enough, then bisect to the first double at which it is.
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2.0
    return _boundary(lambda epsilon: gaussian_delta(mu, epsilon) > delta, 0.0, high)


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Returns the largest mu for (epsilon, delta)-DP, rounded down.

    One release of sensitivity Δ needs `sigma = Δ / mu`; m of them, `sigma = Δ sqrt(m) / mu`.
    """
    _require(0.0 < epsilon < math.inf, "epsilon must be positive and finite")
    _require(SMALLEST_DELTA < delta < 1.0, "delta must lie strictly between 0 and 1")
    # δ grows with mu: find a mu that keeps the promise and the double of it that does not.
    low = 1.0
    while gaussian_delta(low, epsilon) > delta:
        low *= 0.5
    high = 2.0 * low
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    # Negated so that `_boundary` returns the side on which the promise holds.
    return -_boundary(lambda negative: gaussian_delta(-negative, epsilon) > delta, -high, -low)


def _mills(x: float) -> float:
    """Returns Mills' ratio `(1 - Φ(x)) / φ(x)` for x >= 0."""
    return _SQRT_HALF_PI * float(erfcx(x / math.sqrt(2.0)))


# -------------------------------------------------------------------------------------------------- helpers


def _boundary(below: Callable[[float], bool], low: float, high: float) -> float:
    """Bisects to neighbouring doubles.

    Returns the end at which `below` is False (`high`'s side). `below(high)` must be False; `low` is assumed True and
    never evaluated.
    """
    while True:
        middle = low + 0.5 * (high - low)
        if not low < middle < high:
            return high
        if below(middle):
            low = middle
        else:
            high = middle


def _require(condition: bool, message: str) -> None:
    if not condition:  # also for NaN, since every comparison with it is False
        raise ValueError(message)
