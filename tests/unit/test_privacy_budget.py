"""Validation, allocation and the formulas of FLAIM Lemma 4.1."""

from __future__ import annotations

import math

import pytest

from fedsyn.errors import ConfigError
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    GaussianAccountant,
    Ledger,
    PrivacyBudget,
    Release,
    aim_scales,
    aim_start,
    epsilon_for_rho,
    exponential_rho,
    flaim_rho,
    flaim_scales,
    flaim_sensitivity,
    gaussian_rho,
    sigma_for_mu,
    sigma_for_rho,
    zcdp_delta,
    zcdp_epsilon,
)
from fedsyn.privacy.budget import ROUNDING_ROOM


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


def test_budget_of_rho_covers_that_rho() -> None:
    budget = PrivacyBudget.of_rho(0.2, 1e-6)
    assert budget.rho >= 0.2
    assert budget.epsilon == pytest.approx(zcdp_epsilon(0.2, 1e-6), rel=1e-7)
    with pytest.raises(ConfigError):
        PrivacyBudget.of_rho(0.2, 1.0)


def test_costs_and_their_inverses() -> None:
    assert gaussian_rho(2.0) == 1 / 8
    assert gaussian_rho(2.0, sensitivity=3.0) == 9 / 8
    assert exponential_rho(2.0) == 0.5
    assert gaussian_rho(sigma_for_rho(0.3, 2.0), 2.0) == pytest.approx(0.3, rel=1e-15)
    assert exponential_rho(epsilon_for_rho(0.3)) == pytest.approx(0.3, rel=1e-15)
    assert sigma_for_mu(0.5, count=9, sensitivity=2.0) == 12.0
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive"):
            gaussian_rho(bad)


def test_aim_scales_spend_everything() -> None:
    scales = aim_scales(0.4, rounds=10, attributes=14, ratio=0.9)
    assert scales.sigma == pytest.approx(math.sqrt(24 / (2 * 0.9 * 0.4)), rel=1e-14)
    assert scales.epsilon == pytest.approx(math.sqrt(8 * 0.1 * 0.4 / 10), rel=1e-14)
    assert scales.rho == pytest.approx(0.4, rel=1e-14)


def test_aim_start_as_in_aim_and_as_printed_in_flaim() -> None:
    scales, printed = aim_start(0.4, 14), aim_start(0.4, 14, as_printed=True)
    assert scales.sigma**2 == pytest.approx(16 * 14 / (2 * 0.9 * 0.4), rel=1e-14)
    assert printed.sigma**2 == pytest.approx(16 * 14 / (0.9 * 0.4), rel=1e-14)
    assert scales.epsilon == printed.epsilon == pytest.approx(math.sqrt(8 * 0.1 * 0.4 / (16 * 14)), rel=1e-14)


@pytest.mark.parametrize("rounds,local,attributes,ratio", [(10, 1, 14, 0.9), (5, 3, 7, 0.5), (1, 1, 1, 0.1)])
def test_flaim_scales_as_lemma_4_1_prints_them(rounds: int, local: int, attributes: int, ratio: float) -> None:
    rho = 0.37
    for variant in ("naive", "oracle", "private"):
        gaussians = rounds * local + (attributes if variant != "private" else rounds * attributes)
        scales = flaim_scales(rho, rounds, local, attributes, ratio, variant, as_printed=True)  # type: ignore[arg-type]
        assert scales.sigma == pytest.approx(math.sqrt(gaussians / (2 * ratio * rho)), rel=1e-14)
        assert scales.epsilon == pytest.approx(math.sqrt(8 * (1 - ratio) * rho / (rounds * local)), rel=1e-14)


def test_flaim_scales_pay_for_local_measurements() -> None:
    rho, rounds, local, attributes, ratio = 0.37, 5, 3, 7, 0.8
    private = flaim_scales(rho, rounds, local, attributes, ratio)
    naive = flaim_scales(rho, rounds, local, attributes, ratio, "naive")
    assert private.sigma == pytest.approx(math.sqrt(5 * (2 * 3 - 1 + 7) / (2 * ratio * rho)), rel=1e-14)
    assert naive.sigma == pytest.approx(math.sqrt((5 * (2 * 3 - 1) + 7) / (2 * ratio * rho)), rel=1e-14)
    assert flaim_rho(private, rounds, local, attributes) == pytest.approx(rho, rel=1e-14)
    printed = flaim_scales(rho, rounds, local, attributes, ratio, as_printed=True)
    assert flaim_rho(printed, rounds, local, attributes) > rho * 1.1  # what the lemma leaves unpaid


def test_flaim_scales_agree_for_one_local_round() -> None:
    for variant in ("naive", "oracle", "private"):
        right = flaim_scales(0.4, 10, 1, 14, 0.9, variant)  # type: ignore[arg-type]
        assert right == flaim_scales(0.4, 10, 1, 14, 0.9, variant, as_printed=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("local_rounds", [1, 2, 4])
def test_a_ledger_accepts_the_right_scales_exactly(local_rounds: int) -> None:
    """Every release of a client asked in all rounds, entered one by one, fills the budget and no more."""
    budget, rounds, attributes = PrivacyBudget(1.0, 1e-9), 4, 6
    scales = flaim_scales(budget.rho, rounds, local_rounds, attributes)
    ledger = Ledger(budget)
    for t in range(1, rounds + 1):
        ledger.charge(Release("one-way", t, GAUSSIAN, sigma=scales.sigma, count=attributes))
        for step in range(local_rounds):
            ledger.charge(Release("select", t, EXPONENTIAL, 2.0, epsilon=scales.epsilon))
            if step < local_rounds - 1:
                ledger.charge(Release("local measurement", t, GAUSSIAN, sigma=scales.sigma))
        ledger.charge(Release("measure", t, GAUSSIAN, sigma=scales.sigma, count=local_rounds))
    assert ledger.spent == pytest.approx(budget.rho, rel=1e-12)
    assert ledger.epsilon() <= budget.epsilon
    assert not ledger.can_afford(Release("one more", 5, GAUSSIAN, sigma=1e3 * scales.sigma))


def test_flaim_sensitivity() -> None:
    assert flaim_sensitivity(3.0, "naive") == 3.0
    assert flaim_sensitivity(3.0, "oracle") == flaim_sensitivity(3.0, "private") == 6.0
    assert flaim_sensitivity(3.0, "naive", rows="counted") == 6.0
    assert flaim_sensitivity(3.0, rows="counted") == 12.0


def test_bad_allocations_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'private'"):
        flaim_scales(0.4, 10, 1, 14, 0.9, "privat")  # type: ignore[arg-type]
    for rounds in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="rounds"):
            aim_scales(0.4, rounds, 14)  # type: ignore[arg-type]
    for ratio in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="share"):
            aim_scales(0.4, 10, 14, ratio)
    with pytest.raises(ValueError, match="rows"):
        flaim_sensitivity(1.0, rows="hidden")  # type: ignore[arg-type]
