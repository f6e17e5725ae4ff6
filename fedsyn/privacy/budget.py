"""What a run may spend, and how a mechanism divides it among its releases.

`PrivacyBudget` is the (ε, δ) that a run promises for one row. Mechanisms spend it in zCDP (`rho`), or, when
all they ever do is add Gaussian noise, in Gaussian DP (`mu`). The functions below it turn a budget into the
noise scales of one mechanism; the ledger (fedsyn.privacy.ledger) charges what is really released and trusts
none of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedsyn.errors import ConfigError, nearest
from fedsyn.privacy.conversion import SMALLEST_DELTA, gaussian_mu, zcdp_epsilon, zcdp_rho

#: Relative room that the ledger leaves for float rounding when a plan sums to exactly its budget.
#: `PrivacyBudget.rho` and `.mu`² are lowered by twice as much first, so a sum that uses the room is still
#: inside (ε, δ).
ROUNDING_ROOM = 1e-9

Variant = Literal["naive", "oracle", "private"]


@dataclass(frozen=True)
class PrivacyBudget:
    """The final guarantee: (epsilon, delta)-DP for one row, added or removed, at one client.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    >>> round(budget.rho, 5), round(budget.mu, 5)  # as zCDP, and as one Gaussian mechanism
    (0.03056, 0.26805)
    >>> round(sigma_for_rho(budget.rho / 20), 2)  # of each of 20 marginals, in records
    18.09

    Raises:
        ConfigError: unless epsilon is positive and finite, and delta strictly between 0 and 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _number("privacy.epsilon", self.epsilon))
        object.__setattr__(self, "delta", _number("privacy.delta", self.delta))
        if not 0.0 < self.epsilon < math.inf:
            raise ConfigError(f"privacy.epsilon must be positive and finite; got {self.epsilon:g}")
        _check_delta(self.delta)

    @classmethod
    def of_rho(cls, rho: float, delta: float) -> PrivacyBudget:
        """The smallest budget at `delta` whose `rho` is at least this one: what a given plan really costs."""
        delta = _number("privacy.delta", delta)
        _check_delta(delta)
        return cls(zcdp_epsilon(rho * (1.0 + 3.0 * ROUNDING_ROOM), delta), delta)

    @property
    def rho(self) -> float:
        """The largest zCDP parameter that implies the budget, less the room kept for rounding."""
        return zcdp_rho(self.epsilon, self.delta) * (1.0 - 2.0 * ROUNDING_ROOM)

    @property
    def mu(self) -> float:
        """`sensitivity / sigma` of one Gaussian mechanism that just meets the budget, less the same room."""
        return gaussian_mu(self.epsilon, self.delta) * (1.0 - ROUNDING_ROOM)

    def to_dict(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


# ----------------------------------------------------------------------------- cost of one release, and back


def gaussian_rho(sigma: float, sensitivity: float = 1.0) -> float:
    """zCDP of one Gaussian release: `sensitivity² / (2 sigma²)` (Bun & Steinke 2016, Proposition 1.6)."""
    ratio = _positive("sensitivity", sensitivity) / _positive("sigma", sigma)
    return 0.5 * ratio * ratio  # infinite where ** would raise: then no ledger accepts it


def exponential_rho(epsilon: float) -> float:
    """zCDP of one exponential mechanism: `epsilon² / 8`, by its bounded range (Cesar & Rogers 2021)."""
    return _positive("epsilon", epsilon) * epsilon / 8.0


def sigma_for_rho(rho: float, sensitivity: float = 1.0) -> float:
    """The sigma at which one Gaussian release costs `rho`."""
    return _positive("sensitivity", sensitivity) / math.sqrt(2.0 * _positive("rho", rho))


def epsilon_for_rho(rho: float) -> float:
    """The epsilon at which one choice by the exponential mechanism costs `rho`."""
    return math.sqrt(8.0 * _positive("rho", rho))


def sigma_for_mu(mu: float, count: int = 1, sensitivity: float = 1.0) -> float:
    """The sigma of `count` Gaussian releases that cost `mu` together: `sensitivity sqrt(count) / mu`."""
    return _positive("sensitivity", sensitivity) * math.sqrt(_at_least_one("count", count)) / _positive("mu", mu)


# ------------------------------------------------------------------------------------- division of a budget


@dataclass(frozen=True)
class Scales:
    """The noise scales of a mechanism with fixed rounds.

    Attributes:
        sigma: standard deviation of every Gaussian release, in records.
        epsilon: parameter of every exponential mechanism.
        gaussians: number of Gaussian releases that one row takes part in, as the allocation counts them.
        choices: number of exponential mechanisms that one row takes part in.
    """

    sigma: float
    epsilon: float
    gaussians: int
    choices: int

    @property
    def rho(self) -> float:
        """What the plan costs. The ledger's total is computed from the releases, not from this."""
        return self.gaussians * gaussian_rho(self.sigma) + self.choices * exponential_rho(self.epsilon)


def _divide(rho: float, gaussians: int, choices: int, ratio: float) -> Scales:
    """The share `ratio` of rho for the Gaussian releases, the rest for the choices, evenly within a kind."""
    _positive("rho", rho)
    if not 0.0 < ratio < 1.0:
        raise ConfigError("the share of the budget for measuring must lie strictly between 0 and 1")
    sigma = sigma_for_rho(ratio * rho / gaussians)
    return Scales(sigma, epsilon_for_rho((1.0 - ratio) * rho / choices), gaussians, choices)


def aim_scales(rho: float, rounds: int, attributes: int, ratio: float = 0.9) -> Scales:
    """Scales of central AIM with fixed rounds T: d one-way marginals, then T choices and T measurements.

    `sigma = sqrt((T + d) / (2 r rho))`, `epsilon = sqrt(8 (1 - r) rho / T)`; counts, so the sensitivity is 1.

    Args:
        rho: zCDP budget.
        rounds: T, at least 1.
        attributes: d, the number of one-way marginals measured before the first round.
        ratio: r, the share of rho for measuring.
    """
    _at_least_one("rounds", rounds)
    return _divide(rho, rounds + _at_least_one("attributes", attributes), rounds, ratio)


def aim_start(rho: float, attributes: int, ratio: float = 0.9, *, as_printed: bool = False) -> Scales:
    """Starting scales of AIM with budget annealing: T = 16 d planned rounds (FLAIM Algorithm 2, lines 1-2).

    Each of the 16 d planned releases gets `r rho / (16 d)`: `sigma² = 16 d / (2 r rho)`, as in AIM itself
    (McKenna et al. 2022). FLAIM's line 2 prints `sigma² = 16 d / (0.9 rho)`, without the 2: private as well,
    but it starts at twice the variance; `as_printed=True` selects it. Annealing chooses the later scales from
    noisy results, so no plan but only the ledger's filter bounds the total.
    """
    planned = 16 * _at_least_one("attributes", attributes)
    scales = _divide(rho, planned, planned, ratio)
    if as_printed:
        return Scales(scales.sigma * math.sqrt(2.0), scales.epsilon, planned, planned)
    return scales


def flaim_scales(
    rho: float,
    rounds: int,
    local_rounds: int,
    attributes: int,
    ratio: float = 0.9,
    variant: Variant = "private",
    *,
    as_printed: bool = False,
) -> Scales:
    """FLAIM's sigma_t and epsilon_t (Maddock et al. 2024, Lemma 4.1), corrected for more than one local
    round.

    A row sits at one client, so only that client's choices and the sums it joins touch the row: parallel
    composition over clients, no factor for their number. Of a client that is asked in all T rounds these are

    * T s choices by the exponential mechanism, `epsilon_t = sqrt(8 (1 - r) rho / (T s))`;
    * the server's noisy sums: T s of chosen marginals, and of the d one-way marginals once (naive, oracle) or
      in every round (private);
    * T (s - 1) local noisy measurements (Algorithm 1, line 9). Each steers the client's next choice, and the
      choice is sent to the server, so its noise is no post-processing of the server's later noise on the same
      marginal: it is a release of its own. The last local step of a round has none, because nothing reads the
      local model after it.

    So T (2s - 1 + d) Gaussian releases for "private" and T (2s - 1) + d for "naive" and "oracle":
    `sigma_t = sqrt(T (2s - 1 + d) / (2 r rho))` and `sqrt((T (2s - 1) + d) / (2 r rho))`. Lemma 4.1 prints s
    for 2s - 1: the same for s = 1, an UNDER-CHARGE for s > 1, where it leaves the local measurements unpaid.

    Args:
        rho: zCDP budget.
        rounds: T.
        local_rounds: s.
        attributes: d.
        ratio: r, the share of rho for measuring.
        variant: "naive", "oracle" or "private".
        as_printed: use s in place of 2s - 1. For reproducing the paper only: with s > 1 a ledger that charges
            what is released refuses the run, unless its budget is that of the true cost (`flaim_rho` and
            `PrivacyBudget.of_rho`), which it then reports.
    """
    steps = _at_least_one("rounds", rounds) * _at_least_one("local_rounds", local_rounds)
    measured = steps if as_printed else rounds * (2 * local_rounds - 1)
    one_way = _one_way_releases(rounds, attributes, variant)
    return _divide(rho, measured + one_way, steps, ratio)


def flaim_rho(scales: Scales, rounds: int, local_rounds: int, attributes: int, variant: Variant = "private") -> float:
    """What FLAIM with these scales really costs a row of a client that is asked in every round."""
    gaussians = rounds * (2 * local_rounds - 1) + _one_way_releases(rounds, attributes, variant)
    return Scales(scales.sigma, scales.epsilon, gaussians, rounds * local_rounds).rho


def flaim_sensitivity(
    largest_weight: float, variant: Variant = "private", *, rows: Literal["fixed", "counted"] = "fixed"
) -> float:
    """Sensitivity of FLAIM's score `w_q (‖M_q(D_k) - n_k p_q‖₁ - bias - τ̃_k(q))`, one row added or removed.

    The model's p_q has to be scaled to the client's size n_k. With a FIXED n_k, a public constant or a number
    that was released and paid for, the row moves one cell of M_q(D_k) by one and the score by at most w_q.
    With an n_k COUNTED from D_k the scaled model moves as well, by one record in all: 2 w_q. The
    heterogeneity term (oracle, private) reads the rows a second time and moves the score by as much again
    (Lemma 4.1's factor 2); a mean of |q| one-way distances moves no more than the largest of them.

    Args:
        largest_weight: max over the candidates of w_q; the exponential mechanism compares all their scores.
        variant: "naive" has no heterogeneity term.
        rows: "fixed" or "counted", as above.
    """
    if rows not in ("fixed", "counted"):
        raise ValueError("rows must be 'fixed' or 'counted'")
    distances = 1.0 if _variant(variant) == "naive" else 2.0
    return distances * (1.0 if rows == "fixed" else 2.0) * _positive("largest_weight", largest_weight)


def _one_way_releases(rounds: int, attributes: int, variant: Variant) -> int:
    return _at_least_one("attributes", attributes) * (rounds if _variant(variant) == "private" else 1)


def _variant(variant: str) -> str:
    allowed = ("naive", "oracle", "private")
    if variant not in allowed:
        raise ConfigError(
            f"unknown FLAIM variant '{variant}'{nearest(variant, allowed)}; allowed: {', '.join(allowed)}"
        )
    return variant


def _check_delta(delta: float) -> None:
    if not SMALLEST_DELTA < delta < 1.0:
        raise ConfigError(f"privacy.delta must lie strictly between 0 and 1; got {delta:g}")


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a number") from None


def _positive(name: str, value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite")
    return float(value)


def _at_least_one(name: str, value: int) -> int:
    if value < 1 or value != int(value):
        raise ConfigError(f"{name} must be an integer of at least 1")
    return int(value)
