"""Accountants: the arithmetic behind the ledger, and the theorem behind each sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedsyn.errors import ConfigError
from fedsyn.privacy.budget import ROUNDING_ROOM, PrivacyBudget
from fedsyn.privacy.conversion import gaussian_epsilon, zcdp_epsilon
from fedsyn.privacy.release import Release

#: Relative room for the entries of a state, which were within `ROUNDING_ROOM` when they were entered. The same
#: entries, merged (`Ledger.to_dict(compact=True)`), add up to the same real number, but round elsewhere: a count
#: becomes a float, is multiplied by the cost of one, the extra is summed and added, `fsum` rounds once; each by 2^-53
#: at most, on either side. That is below 2e-15 of a sum of positive terms, however many; five times that is allowed.
REREADING_ROOM = ROUNDING_ROOM + 1e-14


class Accountant(Protocol):
    """Adds up the costs of releases in one unit and turns the sum into epsilon."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str:
        """'rho' or 'mu²': what `cost` and `capacity` are measured in."""
        ...

    @property
    def capacity(self) -> float: ...

    def cost(self, release: Release) -> float:
        """Cost of one entry; ValueError when this accountant's theorem does not cover it."""
        ...

    def epsilon(self, spent: float, delta: float) -> float: ...

    def to_dict(self) -> dict[str, str | float]: ...


@dataclass(frozen=True)
class ZcdpAccountant:
    """Fully adaptive zCDP filter: any next release is allowed while the sum of rho stays within `rho`.

    Mechanism, scale and whether to go on may all depend on everything released before: a filter that stops
    the sum at `rho` makes the whole interaction rho-zCDP (Feldman & Zrnic 2021 for Rényi DP at every order;
    Whitehouse et al. 2023 for zCDP), at no extra cost over fixed scales.

    Attributes:
        rho: what may be spent, `PrivacyBudget.rho`.
    """

    rho: float
    name = "zCDP filter"
    unit = "rho"

    def __post_init__(self) -> None:
        _check_capacity("rho", self.rho)

    @classmethod
    def of(cls, budget: PrivacyBudget) -> ZcdpAccountant:
        return cls(budget.rho)

    @property
    def capacity(self) -> float:
        return self.rho

    def cost(self, release: Release) -> float:
        return release.rho

    def epsilon(self, spent: float, delta: float) -> float:
        return zcdp_epsilon(spent, delta)

    def to_dict(self) -> dict[str, str | float]:
        return {"name": "zcdp", "rho": self.rho}


@dataclass(frozen=True)
class GaussianAccountant:
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

    def __post_init__(self) -> None:
        _check_capacity("mu", self.mu)

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


def accountant_for(name: str, budget: PrivacyBudget) -> Accountant:
    """The accountant called 'zcdp' or 'gaussian', with the whole budget as its capacity."""
    if name == "zcdp":
        return ZcdpAccountant.of(budget)
    if name == "gaussian":
        return GaussianAccountant.of(budget)
    raise ConfigError(f"unknown accountant '{name}'; allowed: zcdp, gaussian")


def accountant_from_dict(state: Mapping[str, Any]) -> Accountant:
    """The inverse of `to_dict`; a ledger checks the capacity against its budget."""
    if state["name"] == "zcdp":
        return ZcdpAccountant(state["rho"])
    if state["name"] == "gaussian":
        return GaussianAccountant(state["mu"])
    raise ValueError("unknown accountant")


def affordable(spent: float, capacity: float, room: float = ROUNDING_ROOM) -> bool:
    """Whether a sum of costs stays within the capacity, up to float rounding.

    Plans divide a budget so that it sums to exactly the capacity; in floating point the sum may come out a
    few ulps above. The room of 1e-9 (relative) is safe because `PrivacyBudget.rho` and `.mu` lie at least as
    far below the largest values that imply (ε, δ): a sum that uses all of it is still within the promise.
    `Ledger` checks that on construction instead of assuming it, for the larger `REREADING_ROOM`.
    """
    return spent <= capacity * (1.0 + room)


def _check_capacity(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite")
