"""A budget, the cost of one release, and the refusal beyond it.

`PrivacyBudget` is the (ε, δ) that a run promises for one row. Mechanisms spend it in zCDP (`rho`), or, when all they
ever do is add Gaussian noise, in Gaussian DP (`mu`). `RunBudget` (fedsyn.privacy.run_budget) has the parts of a run's;
the ledger (fedsyn.privacy.ledger) charges what is really released and trusts no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedsyn.errors import BudgetExceeded, ConfigError
from fedsyn.privacy.conversion import SMALLEST_DELTA, gaussian_mu, zcdp_rho

#: Relative room that the ledger leaves for float rounding when a plan sums to exactly its budget.
#: `PrivacyBudget.rho` and `.mu`² are lowered by twice as much first, so a sum that uses the room is still
#: inside (ε, δ).
ROUNDING_ROOM = 1e-9


@dataclass(frozen=True)
class PrivacyBudget:
    """The final guarantee: (epsilon, delta)-DP.

    It holds for one row, added or removed, at one client.

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

    @property
    def rho(self) -> float:
        """Largest zCDP parameter that implies the budget, less rounding room."""
        return zcdp_rho(self.epsilon, self.delta) * (1.0 - 2.0 * ROUNDING_ROOM)

    @property
    def mu(self) -> float:
        """Largest `sensitivity / sigma` of one Gaussian mechanism within the budget.

        Room for rounding is taken off.
        """
        return gaussian_mu(self.epsilon, self.delta) * (1.0 - ROUNDING_ROOM)

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"

    def to_dict(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


# --------------------------------------------------------------------------------- the one place that refuses


def affordable(cost: float, budget: float, room: float = ROUNDING_ROOM) -> bool:
    """Returns whether costs fit a budget, up to float rounding.

    Plans divide a budget so that it sums to exactly the budget; in floating point the sum may come out a few ulps
    above. The room of 1e-9 (relative) is safe because `PrivacyBudget.rho` and `.mu` lie at least as far below the
    largest values that imply (ε, δ): a sum that uses all of it is still within the promise. `Ledger` checks that on
    construction instead of assuming it, for the larger `REREADING_ROOM`.
    """
    return cost <= budget * (1.0 + room)


def require_budget(fits: bool, sentence: Callable[[], str], error: type[BudgetExceeded] = BudgetExceeded) -> None:
    """Refuses what no budget is left for.

    A run's ledger, a holder's and a party's ledger for life, and a client that checks a request before it looks at a
    row, refuse here and nowhere else. They call it before anything is entered or drawn.

    Args:
        fits: whether the budget covers it.
        sentence: returns what was asked for and what is left; called only for a refusal.
        error: says who may read that.

    Raises:
        BudgetExceeded: it does not fit.
    """
    if not fits:
        raise error(f"{sentence()}; nothing was released")


# ----------------------------------------------------------------------------- cost of one release, and back


def gaussian_rho(sigma: float, sensitivity: float = 1.0) -> float:
    """Returns the zCDP of one Gaussian release.

    It is `sensitivity² / (2 sigma²)` (Bun & Steinke 2016, Proposition 1.6).
    """
    ratio = positive("sensitivity", sensitivity) / positive("sigma", sigma)
    return 0.5 * ratio * ratio  # infinite where ** would raise: then no ledger accepts it


def exponential_rho(epsilon: float) -> float:
    """Returns the zCDP of one exponential mechanism: `epsilon² / 8`.

    This follows from its bounded range (Cesar & Rogers 2021).
    """
    return positive("epsilon", epsilon) * epsilon / 8.0


def sigma_for_rho(rho: float, sensitivity: float = 1.0) -> float:
    """Returns the sigma at which one Gaussian release costs `rho`."""
    return positive("sensitivity", sensitivity) / math.sqrt(2.0 * positive("rho", rho))


def epsilon_for_rho(rho: float) -> float:
    """Returns the epsilon at which one exponential mechanism costs `rho`."""
    return math.sqrt(8.0 * positive("rho", rho))


def _check_delta(delta: float) -> None:
    if not SMALLEST_DELTA < delta < 1.0:
        raise ConfigError(f"privacy.delta must lie strictly between 0 and 1; got {delta:g}")


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a number") from None


def positive(name: str, value: float | None) -> float:
    """Returns a number that is positive and finite.

    If it is not, a ValueError names it.
    """
    if value is None or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite")
    return float(value)
