"""Validation of a budget, and its division among releases."""

from __future__ import annotations

import math

import pytest

from fedsyn.errors import ConfigError
from fedsyn.privacy import (
    PrivacyBudget,
    epsilon_for_rho,
    exponential_rho,
    gaussian_rho,
    sigma_for_rho,
)
from fedsyn.privacy.accountant import GaussianAccountant
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.privacy.conversion import zcdp_delta


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, "much", None])
def test_epsilon_must_be_positive_and_finite(epsilon: object) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        PrivacyBudget(epsilon, 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, 2.0, math.nan, 1e-301, []])
def test_delta_must_lie_between_zero_and_one(delta: object) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.delta"):
        PrivacyBudget(1.0, delta)  # type: ignore[arg-type]


def test_the_room_for_rounding_is_inside_the_promise() -> None:
    for epsilon, delta in ((1e-3, 1e-15), (1.0, 1e-9), (50.0, 1e-5)):
        budget = PrivacyBudget(epsilon, delta)
        full = budget.rho * (1.0 + ROUNDING_ROOM)
        assert zcdp_delta(full, epsilon) <= delta
        accountant = GaussianAccountant.of(budget)
        assert accountant.epsilon(accountant.capacity * (1.0 + ROUNDING_ROOM), delta) <= epsilon


def test_costs_and_their_inverses() -> None:
    assert gaussian_rho(2.0) == 1 / 8
    assert gaussian_rho(2.0, sensitivity=3.0) == 9 / 8
    assert exponential_rho(2.0) == 0.5
    assert gaussian_rho(sigma_for_rho(0.3, 2.0), 2.0) == pytest.approx(0.3, rel=1e-15)
    assert exponential_rho(epsilon_for_rho(0.3)) == pytest.approx(0.3, rel=1e-15)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive"):
            gaussian_rho(bad)
