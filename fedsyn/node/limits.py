"""How a holder's ledger adds runs up: one filter for a table's life, whatever the accountants of its runs.

**Unit.** rho, half of mu². A Gaussian release of mu = Δ/σ costs `Release.rho` = mu²/2 under either accountant, and is
exact as Gaussian DP. A choice by the exponential mechanism with parameter ε costs ε²/8.

**One filter, and the first run decides which.** Its accountant is chosen before anything was released, so the choice
depends on no output. (Were the filter chosen later, by whether every entry happens to be Gaussian, then a server could
choose it by what it has seen: it takes part in the choice of the next run's mechanism. Each of the two outcomes would
be within (ε, δ), and both together within (ε, 2δ) only.)

*gaussian* (the first run only ever adds Gaussian noise): mu² of all entries stays within mu(ε, δ)², the exact value of
Balle & Wang 2018. Scales, queries and mechanisms may be chosen adaptively: Gaussian DP has a filter with that threshold
(Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023). As long as every entry is Gaussian this is the exact
conversion. A choice may still come later. It counts π/2 times its rho, because a mechanism of bounded range ε is
mu-GDP for mu = ε sqrt(2π)/4, so mu²/2 = (π/2) ε²/8:

1. Its log-ratios lie in an interval [t - ε, t] that holds 0. Among such pairs of distributions the one on two points,
   with log-ratios t and t - ε, dominates all others: it is the largest in convex order (Dong, Durfee & Rogers 2020).
2. Let p and q be the probabilities of its first point. Then log(p/q) = t and log((1-p)/(1-q)) = t - ε, so the logits of
   p and q are ε apart, whatever t.
3. Its trade-off function has one corner, at (q, 1 - p), and ends in (0, 1) and (1, 0), which lie on that of mu-GDP.
   That one is convex, so it lies below wherever it lies below at the corner: where Φ⁻¹(p) - Φ⁻¹(q) <= mu (Dong, Roth &
   Su 2022, (6)).
4. Φ⁻¹ as a function of the logit has slope u(1-u)/φ(Φ⁻¹(u)) <= sqrt(2π)/4 (equality at u = 1/2: Gaussian isoperimetry
   against the variance of a coin, Bobkov 1997), so the difference is at most ε sqrt(2π)/4.

*zcdp* (the first run also chooses): rho of all entries stays within rho(ε, δ) of fedsyn.privacy.conversion: the zCDP
filter (Whitehouse et al. 2023). Gaussian entries and choices count their rho.

So a first run of (ε, δ) fits into a limit of the same (ε, δ), to the last digit, whatever its accountant. Each limit
converts at its own δ. A limit per period bounds what is released within any such period, given all that came before.

tests/property/test_node_limits.py has all of it against fedsyn.privacy.conversion and brute force.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedsyn.privacy import GaussianAccountant, PrivacyBudget, ZcdpAccountant, gaussian_epsilon, zcdp_epsilon
from fedsyn.privacy.accountant import affordable

Kind = Literal["gaussian", "zcdp"]
KINDS: tuple[Kind, ...] = ("gaussian", "zcdp")
#: What a choice of some rho costs where everything is counted as Gaussian DP.
CHOICE = math.pi / 2.0
DAY = 86400.0  # seconds
#: Seconds after its last entry for which a run that has not ended keeps what it announced from others.
PATIENCE = DAY


class BookLimits(NamedTuple):
    """What a holder's table may give away.

    Attributes:
        per_run: None: whatever the other two leave.
        per_period: a budget, and the days of the period that ends now; None: no such limit.
        lifetime: of all runs.
        patience: seconds after its last entry for which a run keeps what it announced from others; what it charges is
            checked against the limits whenever it comes.
    """

    per_run: PrivacyBudget | None
    per_period: tuple[PrivacyBudget, float] | None
    lifetime: PrivacyBudget
    patience: float = PATIENCE


@dataclass(frozen=True)
class Cost:
    """What an entry costs.

    Attributes:
        rho: its zCDP.
        gaussian: whether Gaussian noise alone makes it up.
        time: of the entry, seconds since 1970.
    """

    rho: float
    gaussian: bool
    time: float = 0.0

    def under(self, kind: Kind) -> float:
        """In the filter's unit: rho, or half of mu²."""
        return self.rho * CHOICE if kind == "gaussian" and not self.gaussian else self.rho


def total(costs: Iterable[Cost], kind: Kind) -> float:
    """Sum of costs in the filter's unit."""
    return math.fsum(cost.under(kind) for cost in costs)


def capacity(budget: PrivacyBudget, kind: Kind) -> float:
    """What a budget allows, in the filter's unit: the largest rho, or half of the largest mu²."""
    if kind == "gaussian":
        return 0.5 * GaussianAccountant.of(budget).capacity
    return ZcdpAccountant.of(budget).capacity


def epsilon_of(spent: float, delta: float, kind: Kind) -> float:
    """The epsilon of a sum of costs at some delta, rounded up."""
    return gaussian_epsilon(math.sqrt(2.0 * spent), delta) if kind == "gaussian" else zcdp_epsilon(spent, delta)


class Limit(NamedTuple):
    """One of the limits that runs add up in.

    Attributes:
        name: for people.
        budget: what may be spent.
        days: of the period; None: for life.
    """

    name: str
    budget: PrivacyBudget
    days: float | None

    def within(self, costs: Iterable[Cost], now: float) -> list[Cost]:
        """Those that count at some time: all, or those of the period before it. An entry of the future counts."""
        since = -math.inf if self.days is None else now - self.days * DAY
        return [cost for cost in costs if cost.time > since]

    def fits(self, spent: float, more: float, kind: Kind) -> bool:
        """Whether so much more, in the filter's unit, stays within the limit."""
        return affordable(spent + more, capacity(self.budget, kind))


def adding(limits: BookLimits) -> list[Limit]:
    """The limits that runs add up in."""
    found = []
    if limits.per_period is not None:
        budget, days = limits.per_period
        found.append(Limit(f"limit for any {days:g} days", budget, days))
    return [*found, Limit("limit for life", limits.lifetime, None)]
