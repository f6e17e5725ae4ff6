"""Monotone, inverse to each other, and always on the safe side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsyn.errors import BudgetExceeded
from fedsyn.plugins.clients.flaim import lemma_4_1
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    Ledger,
    PrivacyBudget,
    Release,
    zcdp_epsilon,
)
from fedsyn.privacy.accountant import GaussianAccountant
from fedsyn.privacy.conversion import gaussian_delta, gaussian_epsilon, gaussian_mu, zcdp_delta, zcdp_rho


def _log_range(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


EPSILON = _log_range(1e-3, 50.0)
DELTA = _log_range(1e-15, 0.5)
RHO = _log_range(1e-9, 100.0)
MU = _log_range(1e-4, 20.0)
FACTOR = _log_range(1.0 + 1e-6, 10.0)
SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)


@SETTINGS
@given(EPSILON, DELTA)
def test_the_largest_rho_keeps_the_promise_and_cannot_grow(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    assert zcdp_delta(rho * (1 + 1e-10), epsilon) > delta
    assert zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-9)


@SETTINGS
@given(EPSILON, DELTA)
def test_the_largest_mu_keeps_the_promise_and_cannot_grow(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * (1 + 1e-9), epsilon) > delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@SETTINGS
@given(RHO, DELTA)
def test_epsilon_of_rho_keeps_the_promise(rho: float, delta: float) -> None:
    epsilon = zcdp_epsilon(rho, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    if epsilon > 1e-6:
        assert zcdp_delta(rho, epsilon * (1 - 1e-9)) > delta * (1 - 1e-9)


@SETTINGS
@given(MU, DELTA)
def test_epsilon_of_mu_keeps_the_promise(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta


@SETTINGS
@given(EPSILON, DELTA, FACTOR)
def test_budgets_are_monotone(epsilon: float, delta: float, factor: float) -> None:
    assert zcdp_rho(epsilon * factor, delta) > zcdp_rho(epsilon, delta)
    assert gaussian_mu(epsilon * factor, delta) > gaussian_mu(epsilon, delta)
    larger = min(delta * factor, 0.9)
    assert zcdp_rho(epsilon, larger) > zcdp_rho(epsilon, delta)
    assert gaussian_mu(epsilon, larger) > gaussian_mu(epsilon, delta)


@SETTINGS
@given(RHO, EPSILON, FACTOR)
def test_deltas_are_monotone(rho: float, epsilon: float, factor: float) -> None:
    mu = math.sqrt(2.0 * rho)
    # Up to the bound on the rounding error that each δ contains.
    room = 1 + 1e-6
    assert zcdp_delta(rho * factor, epsilon) * room >= zcdp_delta(rho, epsilon)
    assert zcdp_delta(rho, epsilon * factor) <= zcdp_delta(rho, epsilon) * room
    assert gaussian_delta(mu * factor, epsilon) * room >= gaussian_delta(mu, epsilon)
    assert gaussian_delta(mu, epsilon * factor) <= gaussian_delta(mu, epsilon) * room
    # A Gaussian mechanism is mu²/2-zCDP: the exact δ lies below the bound.
    assert gaussian_delta(mu, epsilon) <= zcdp_delta(rho, epsilon) * room


@given(
    st.sampled_from([0.0, 1e-300, 1e-30, 1.0, 1e30, 1e300, math.inf]),
    st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e5, 1e300]),
)
def test_extreme_arguments_give_probabilities(scale: float, epsilon: float) -> None:
    for delta in (zcdp_delta(scale, epsilon), gaussian_delta(scale, epsilon)):
        assert 0.0 <= delta <= 1.0
        assert (delta == 0.0) == (scale == 0.0)


@pytest.mark.parametrize("function", [zcdp_delta, gaussian_delta])
def test_arguments_outside_the_domain_are_refused(function: object) -> None:
    for bad in ((-1.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (1.0, math.nan), (1.0, math.inf)):
        with pytest.raises(ValueError, match="must be"):
            function(*bad)  # type: ignore[operator]
    for inverse in (zcdp_epsilon, gaussian_epsilon, zcdp_rho, gaussian_mu):
        for delta in (0.0, 1.0, math.nan):
            with pytest.raises(ValueError, match="delta"):
                inverse(1.0, delta)
    assert zcdp_epsilon(math.inf, 0.1) == gaussian_epsilon(math.inf, 0.1) == math.inf


GAUSSIANS = st.builds(
    lambda sigma, sensitivity, count: Release("m", 1, GAUSSIAN, sensitivity, sigma=sigma, count=count),
    _log_range(1.0, 1e3),
    _log_range(0.1, 10.0),
    st.integers(1, 20),
)
CHOICES = st.builds(
    lambda epsilon, count: Release("s", 1, EXPONENTIAL, epsilon=epsilon, count=count),
    _log_range(1e-3, 3.0),
    st.integers(1, 5),
)


@SETTINGS
@given(EPSILON, DELTA, st.lists(st.one_of(GAUSSIANS, CHOICES), max_size=30))
def test_no_sequence_of_charges_exceeds_the_budget(epsilon: float, delta: float, releases: list[Release]) -> None:
    ledger = Ledger(PrivacyBudget(epsilon, delta))
    for release in releases:
        affordable = ledger.can_afford(release)
        before = ledger.spent
        try:
            ledger.charge(release)
        except BudgetExceeded:
            assert not affordable and ledger.spent == before
        else:
            assert affordable and ledger.spent > before
        assert zcdp_delta(ledger.spent, epsilon) <= delta
        assert ledger.epsilon() <= epsilon
    assert Ledger.from_dict(ledger.to_dict()).spent == ledger.spent


@SETTINGS
@given(EPSILON, DELTA, st.lists(GAUSSIANS, max_size=20))
def test_no_sequence_of_gaussians_exceeds_the_budget(epsilon: float, delta: float, releases: list[Release]) -> None:
    budget = PrivacyBudget(epsilon, delta)
    ledger = Ledger(budget, GaussianAccountant.of(budget))
    for release in releases:
        if ledger.can_afford(release):
            ledger.charge(release)
        assert gaussian_delta(math.sqrt(ledger.spent), epsilon) <= delta
        assert ledger.epsilon() <= epsilon


@SETTINGS
@given(
    _log_range(1e-4, 10.0),
    st.integers(1, 50),
    st.integers(1, 5),
    st.integers(1, 60),
    st.floats(0.01, 0.99),
    st.booleans(),
)
def test_scales_of_lemma_4_1_cost_exactly_rho(
    rho: float, rounds: int, local_rounds: int, attributes: int, measure_fraction: float, one_way_every_round: bool
) -> None:
    """Counted here once more: chosen, local and one-way marginals, and choices, of a client that is always asked."""
    one_way = attributes * (rounds if one_way_every_round else 1)
    gaussians = rounds * local_rounds + rounds * (local_rounds - 1) + one_way

    gaussian, choice = lemma_4_1(rho, rounds, local_rounds, one_way, measure_fraction)
    assert gaussians * gaussian + rounds * local_rounds * choice == pytest.approx(rho, rel=1e-12)
    each = measure_fraction * rho / (rounds * local_rounds + one_way)
    printed = gaussians * each + (1.0 - measure_fraction) * rho
    assert printed == pytest.approx(rho, rel=1e-12) if local_rounds == 1 else printed > rho
