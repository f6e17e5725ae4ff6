"""Filters that add up a holder's runs.

One filter for a table's life, whatever the accountants of its runs.

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

*renyi α* (the first run takes steps of DP-SGD on secret samples): the Rényi divergence of order α, over α, of all
entries. α is that of the first run, which follows from its configuration alone. A step costs what
`fedsyn.privacy.renyi` says of its rate and noise at that order; an entry of rho is rho-zCDP and has at most α rho
(Gaussian noise exactly that), so it counts rho. The sum at one order is a filter as the two others are (Feldman & Zrnic
2021, Theorem 3.1), and every limit converts it at that order. No rho, and no mu, says what sampling saves: with small
probability the row was taken, so as α grows the divergence of a step over α goes to that of a step on all rows, and
its trade-off function ends as steeply. So a ledger that adds up otherwise takes no such run, nor one of another order:
what was chosen before anything was released stays (above). `mechanism.order` sets a run's order to the ledger's.

So a first run of (ε, δ) fits into a limit of the same (ε, δ), to the last digit, whatever its accountant. Each limit
converts at its own δ. A limit per period bounds what is released within any such period, given all that came before.

tests/property/test_node_limits.py has all of it against fedsyn.privacy.conversion and brute force.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fedsyn.errors import ConfigError, NodeError
from fedsyn.privacy import SAMPLED, PrivacyBudget, Release, accountant_for, zcdp_epsilon
from fedsyn.privacy.accountant import RenyiAccountant
from fedsyn.privacy.budget import affordable
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.privacy.renyi import ORDERS, renyi_epsilon, sampled_rdp

#: 'gaussian', 'zcdp', or 'renyi' and an order.
Kind = str
#: The accountants whose costs a ledger for life can add up.
ACCOUNTANTS = ("gaussian", "zcdp", "renyi")
_RENYI = re.compile(r"renyi ([2-9]|[1-9][0-9]{1,2})")
#: What a choice of some rho costs where everything is counted as Gaussian DP.
CHOICE = math.pi / 2.0
DAY = 86400.0  # seconds
#: Seconds after its last entry for which a run that has not ended keeps what it announced from others. What it charges
#: is checked against the limits whenever it comes.
PATIENCE = DAY


class LifetimeLimits(NamedTuple):
    """Limits on what a holder's table may give away.

    Attributes:
        per_run: for one run; None if only the other two limit it.
        per_period: a budget, and the days of the period that ends now; None for no such limit.
        lifetime: of all runs.
    """

    per_run: PrivacyBudget | None
    per_period: tuple[PrivacyBudget, float] | None
    lifetime: PrivacyBudget


@lru_cache(maxsize=64)
def order_of(kind: Kind) -> int | None:
    """Returns the α of 'renyi α', None for the two others.

    Raises ValueError for any other name.
    """
    if kind in ("gaussian", "zcdp"):
        return None
    match = _RENYI.fullmatch(kind)
    if match is None:
        raise ValueError("no filter of that name")
    return int(match.group(1))


def counted(release: Release, kind: Kind) -> float:
    """Returns what a release counts under an accountant.

    Its rho, or a sampled step's divergence over α.
    """
    order = order_of(kind)
    if order is None or release.mechanism != SAMPLED:
        return release.rho
    assert release.sigma is not None and release.rate is not None
    return release.count * sampled_rdp(release.rate, release.sigma / release.sensitivity, order) / order


def require_joined(kind: Kind, life: Kind) -> None:
    """Raises NodeError where a ledger cannot add up sampled steps.

    The run counts steps on secret samples.

    Args:
        kind: accountant of the run.
        life: filter of the ledger; for a table's first run the same as `kind`.
    """
    if order_of(kind) is None or kind == life:
        return
    if order_of(life) is None:
        raise NodeError(
            "this table's ledger adds up rho since its first run, and the run takes steps of DP-SGD: what secret "
            "sampling saves of them has no rho; nothing was released"
        )
    raise NodeError(
        f"this table's ledger adds up Rényi divergences of order {order_of(life)}: set mechanism.order to it; nothing "
        "was released"
    )


def require_filter(kind: Kind, life: Kind | None, limits: LifetimeLimits) -> None:
    """Raises NodeError where a run of that accountant cannot be added up.

    The first run names its order, or the numbers that it follows from, and it stays for life: an order that would leave
    less than a quarter of a limit is refused (`_keeps_enough`).

    Args:
        kind: accountant of the run.
        life: filter of the ledger; None before its first run.
        limits: of the holder.
    """
    require_joined(kind, life or kind)
    order = order_of(kind)
    if life is None and order is not None and not _keeps_enough(order, limits):
        allowed = [str(other) for other in ORDERS if _keeps_enough(other, limits)]
        what = f"set mechanism.order to {allowed[0]} to {allowed[-1]}" if allowed else "no order leaves more"
        raise NodeError(
            f"this table's ledger would add up Rényi divergences of order {order} for life, which leaves less than a "
            f"quarter of its limits; {what}; nothing was released"
        )


def _keeps_enough(order: int, limits: LifetimeLimits) -> bool:
    """Returns whether an order keeps a quarter for other releases.

    Gaussian noise and choices counted at that order may be a quarter of what they may be in rho.
    """
    budgets = [limit.budget for limit in adding(limits)]
    return all(rho_of(each, f"renyi {order}") >= 0.25 * rho_of(each, "zcdp") for each in budgets)


@dataclass(frozen=True)
class Cost:
    """Cost of an entry.

    Attributes:
        rho: its zCDP; of a sampled step see `counted`.
        gaussian: whether Gaussian noise alone makes it up.
        time: of the entry, seconds since 1970.
    """

    rho: float
    gaussian: bool
    time: float = 0.0

    def under(self, kind: Kind) -> float:
        """Returns the cost in the filter's unit.

        Rho, half of mu², or a Rényi divergence over its order.
        """
        return self.rho * CHOICE if kind == "gaussian" and not self.gaussian else self.rho


def total(costs: Iterable[Cost], kind: Kind) -> float:
    """Returns the sum of costs in the filter's unit."""
    return math.fsum(cost.under(kind) for cost in costs)


def rho_of(budget: PrivacyBudget, kind: Kind) -> float:
    """Returns the rho that a budget allows under a filter.

    0 where it is too small for the filter's order.
    """
    order = order_of(kind)
    if order is None:
        return accountant_for(kind, budget).rho
    try:
        return RenyiAccountant.of(budget, order).rho
    except ConfigError:
        return 0.0


def epsilon_of(spent: float, delta: float, kind: Kind) -> float:
    """Returns the epsilon of a sum of costs, rounded up.

    At some delta.
    """
    order = order_of(kind)
    if order is not None:
        return renyi_epsilon(order * spent, order, delta) if spent else 0.0
    return gaussian_epsilon(math.sqrt(2.0 * spent), delta) if kind == "gaussian" else zcdp_epsilon(spent, delta)


def largest_epsilon(rest: float, delta: float, kind: Kind) -> float | None:
    """Returns the largest epsilon that `rest` has room for.

    In the filter's unit; None below 0.001.

    It has three digits, rounded down.
    """
    epsilon = epsilon_of(rest, delta, kind) if rest > 0.0 else 0.0
    if epsilon < 0.001:
        return None
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    # Three digits, nearest first: a limit of 1 is 0.99999999 once it went to rho and back, and must come out as 1.
    most = round(epsilon / unit)
    for digits in (most, most - 1, most - 2):
        tried = float(f"{digits * unit:.3g}")
        if affordable(rho_of(PrivacyBudget(tried, delta), kind), rest):
            return tried
    return None


class Limit(NamedTuple):
    """One of the limits that runs add up in.

    Attributes:
        name: for people.
        budget: what may be spent.
        days: of the period; None for life.
    """

    name: str
    budget: PrivacyBudget
    days: float | None

    def within(self, costs: Iterable[Cost], now: float) -> list[Cost]:
        """Returns the costs that count at some time.

        All, or those of the period before it. One of the future counts.
        """
        since = -math.inf if self.days is None else now - self.days * DAY
        return [cost for cost in costs if cost.time > since]

    def fits(self, spent: float, more: float, kind: Kind) -> bool:
        """Returns whether `more` on top of `spent` fits the limit.

        In the filter's unit.
        """
        return affordable(spent + more, rho_of(self.budget, kind))


def adding(limits: LifetimeLimits) -> list[Limit]:
    """Returns the limits that runs add up in."""
    added = []
    if limits.per_period is not None:
        budget, days = limits.per_period
        added.append(Limit(f"limit for any {days:g} days", budget, days))
    return [*added, Limit("limit for life", limits.lifetime, None)]
