"""Accountants: the arithmetic behind the ledger, and the theorem behind each sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedsyn.errors import ConfigError
from fedsyn.privacy.budget import ROUNDING_ROOM, PrivacyBudget, positive
from fedsyn.privacy.conversion import gaussian_epsilon, zcdp_epsilon
from fedsyn.privacy.release import SAMPLED, Release
from fedsyn.privacy.renyi import renyi_capacity, renyi_epsilon, sampled_rdp

#: Relative room for the entries of a state, which were within `ROUNDING_ROOM` when they were entered. The same
#: entries, merged (`Ledger.to_dict(compact=True)`), add up to the same real number, but round elsewhere: a count
#: becomes a float, is multiplied by the cost of one, the extra is summed and added, `fsum` rounds once; each by 2^-53
#: at most, on either side. That is below 2e-15 of a sum of positive terms, however many; five times that is allowed.
REREADING_ROOM = ROUNDING_ROOM + 1e-14


class Accountant(ABC):
    """Adds up costs in one unit, and turns them into epsilon."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def unit(self) -> str:
        """Unit of `cost` and `capacity`.

        It is 'rho', 'mu²' or a Rényi divergence.
        """

    @property
    @abstractmethod
    def per_rho(self) -> float:
        """Cost of a Gaussian release of rho = 1, in that unit."""

    @property
    @abstractmethod
    def capacity(self) -> float:
        """The budget in that unit."""

    @property
    def rho(self) -> float:
        """The budget as the rho of Gaussian releases."""
        return self.capacity / self.per_rho

    @abstractmethod
    def cost(self, release: Release) -> float:
        """Returns the cost of one entry.

        It raises ValueError if this accountant's theorem does not cover the entry.
        """

    @abstractmethod
    def epsilon(self, spent: float, delta: float) -> float: ...

    def exchanged(self, release: Release, cost: float) -> float:
        """Returns an entry's cost where a row is exchanged for another.

        Sums of it are the second argument of `epsilon_replaced`. Exchanging multiplies what an entry moves by its
        `replaced`, and so rho and mu² by the square.
        """
        return cost * release.replaced**2

    def epsilon_replaced(self, spent: float, exchanged: float, delta: float) -> float:
        """Returns the ε where a row is exchanged, not added or removed."""
        return self.epsilon(exchanged, delta)

    @abstractmethod
    def to_dict(self) -> dict[str, str | float]: ...


@dataclass(frozen=True)
class ZcdpAccountant(Accountant):
    """Fully adaptive zCDP filter.

    Any next release is allowed while the sum of rho stays within `most`.

    Mechanism, scale and whether to go on may all depend on everything released before: a filter that stops
    the sum at `rho` makes the whole interaction rho-zCDP (Feldman & Zrnic 2021 for Rényi DP at every order;
    Whitehouse et al. 2023 for zCDP), at no extra cost over fixed scales.

    Attributes:
        most: the rho that may be spent, `PrivacyBudget.rho`.
    """

    most: float
    name = "zCDP filter"
    unit = "rho"
    per_rho = 1.0

    def __post_init__(self) -> None:
        positive("rho", self.most)

    @classmethod
    def of(cls, budget: PrivacyBudget) -> ZcdpAccountant:
        return cls(budget.rho)

    @property
    def capacity(self) -> float:
        return self.most

    def cost(self, release: Release) -> float:
        return release.rho

    def epsilon(self, spent: float, delta: float) -> float:
        return zcdp_epsilon(spent, delta)

    def to_dict(self) -> dict[str, str | float]:
        return {"name": "zcdp", "rho": self.most}


@dataclass(frozen=True)
class GaussianAccountant(Accountant):
    """Only Gaussian releases: exactly ONE Gaussian mechanism, `mu² = Σ mu_i²`.

    (ε, δ) is exact (Balle & Wang 2018): less noise than zCDP for the same promise. Queries may be chosen adaptively
    (Dong, Roth & Su 2022, composition of Gaussian DP), and so may scales and the decision to go on: Gaussian DP has a
    filter with this same threshold (Smith & Thakurta 2022), and the ledger refuses what would exceed it. Choices by the
    exponential mechanism have no mu and are refused.

    Attributes:
        mu: what may be spent, `PrivacyBudget.mu`.
    """

    mu: float
    name = "one Gaussian mechanism"
    unit = "mu²"
    per_rho = 2.0

    def __post_init__(self) -> None:
        positive("mu", self.mu)

    @classmethod
    def of(cls, budget: PrivacyBudget) -> GaussianAccountant:
        return cls(budget.mu)

    @property
    def capacity(self) -> float:
        return self.mu**2

    def cost(self, release: Release) -> float:
        if release.mu2 is None:
            raise ValueError(
                f"'{release.name}' is a choice by the exponential mechanism: the Gaussian accountant covers "
                "Gaussian releases only; use the zCDP accountant"
            )
        return release.mu2

    def epsilon(self, spent: float, delta: float) -> float:
        return gaussian_epsilon(math.sqrt(spent), delta)

    def to_dict(self) -> dict[str, str | float]:
        return {"name": "gaussian", "mu": self.mu}


@dataclass(frozen=True)
class RenyiAccountant(Accountant):
    """Rényi DP at ONE order, chosen before the run.

    It serves steps of DP-SGD, and the releases beside them. Costs add up, and a filter that stops their sum makes the
    whole interaction that Rényi DP, fully adaptively (Feldman & Zrnic 2021). The module `fedsyn.privacy.renyi` says
    what a step costs.

    Attributes:
        order: α, an integer of at least 2.
        most: the Rényi divergence that may be spent.
    """

    order: int
    most: float
    name = "Rényi filter of one order"

    def __post_init__(self) -> None:
        positive("the Rényi divergence that may be spent", self.most)
        if self.order < 2 or self.order != int(self.order):
            raise ValueError("the order must be an integer of at least 2")

    @classmethod
    def of(cls, budget: PrivacyBudget, order: int) -> RenyiAccountant:
        """Returns the accountant of a whole budget, less rounding room.

        It raises ConfigError if the budget is too small for this order.
        """
        most = renyi_capacity(budget.epsilon, budget.delta, order) * (1.0 - 2.0 * ROUNDING_ROOM)
        if not most > 0.0:
            raise ConfigError(
                f"a budget of {budget} pays for no release that is counted at Rényi order {order}, which the run's own "
                "budget chose; nothing was released"
            )
        return cls(order, most)

    @property
    def unit(self) -> str:
        return f"Rényi divergence of order {self.order}"

    @property
    def per_rho(self) -> float:
        return float(self.order)

    @property
    def capacity(self) -> float:
        return self.most

    def cost(self, release: Release) -> float:
        if release.mechanism == SAMPLED:
            assert release.sigma is not None and release.rate is not None
            multiplier = release.sigma / release.sensitivity
            return release.count * sampled_rdp(release.rate, multiplier, self.order)
        return self.order * release.rho

    def epsilon(self, spent: float, delta: float) -> float:
        return renyi_epsilon(spent, self.order, delta)

    def exchanged(self, release: Release, cost: float) -> float:
        """Returns the entry's rho, as if a sample were all rows.

        What sampling saves under exchange is left to the other bound.
        """
        return release.rho * release.replaced**2

    def epsilon_replaced(self, spent: float, exchanged: float, delta: float) -> float:
        """Returns the better of two bounds.

        A row removed and another one added: (ε, δ') twice is (2 ε, (1 + e^ε) δ')-DP, for the largest δ' that keeps this
        within δ. And as zCDP, without what sampling saves: given which places are sampled, a row that is exchanged
        moves a sum `replaced` times as far as one that is added; divergences are convex.
        """
        if exchanged == 0.0:
            return 0.0
        # log((1 + e^ε) δ') grows with δ': bisect for the largest δ' at which it stays within log δ. A δ' below e^-700
        # times δ is not looked for; where even that is too large, only the second bound is left.
        low, high = math.log(delta) - 700.0, math.log(delta)  # of log δ'
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._twice(spent, middle) <= math.log(delta) else (low, middle)
        twice = 2.0 * self._at(spent, low) if self._twice(spent, low) <= math.log(delta) else math.inf
        return min(twice, zcdp_epsilon(exchanged, delta))

    def _twice(self, spent: float, log_delta: float) -> float:
        """Returns log((1 + e^ε) δ')."""
        epsilon = self._at(spent, log_delta)
        return log_delta + epsilon + math.log1p(math.exp(-epsilon))

    def _at(self, spent: float, log_delta: float) -> float:
        """Returns `renyi_epsilon` of a δ that may underflow a double."""
        return max(0.0, spent + math.log1p(-1.0 / self.order) - (log_delta + math.log(self.order)) / (self.order - 1))

    def to_dict(self) -> dict[str, str | float]:
        return {"name": "renyi", "order": self.order, "most": self.most}


def accountant_for(name: str, budget: PrivacyBudget) -> Accountant:
    """Returns the accountant called 'zcdp' or 'gaussian'.

    Its capacity is the whole budget.
    """
    if name == "zcdp":
        return ZcdpAccountant.of(budget)
    if name == "gaussian":
        return GaussianAccountant.of(budget)
    raise ConfigError(f"unknown accountant '{name}'; allowed: zcdp, gaussian")


def accountant_from_dict(state: Mapping[str, Any]) -> Accountant:
    """Restores an accountant that `to_dict` wrote.

    A ledger checks its capacity against the budget.
    """
    if state["name"] == "zcdp":
        return ZcdpAccountant(state["rho"])
    if state["name"] == "gaussian":
        return GaussianAccountant(state["mu"])
    if state["name"] == "renyi":
        return RenyiAccountant(state["order"], state["most"])
    raise ValueError("unknown accountant")
