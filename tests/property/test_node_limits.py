"""A holder's limits: never looser than the (ε, δ) that they name, whatever runs come in whatever order."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedsyn.ledgers.limits import CHOICE, DAY, Cost, LifetimeLimits, adding, epsilon_of, rho_of, total
from fedsyn.privacy import (
    EXPONENTIAL,
    GAUSSIAN,
    PrivacyBudget,
    Release,
    accountant_for,
    zcdp_epsilon,
)
from fedsyn.privacy.conversion import gaussian_delta, gaussian_epsilon, zcdp_delta

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)


def _log_range(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


EPSILON, DELTA = _log_range(0.01, 20.0), _log_range(1e-12, 0.01)
COSTS = st.lists(st.tuples(_log_range(1e-6, 0.5), st.booleans()), max_size=12)


@SETTINGS
@given(EPSILON, DELTA, st.sampled_from(["gaussian", "zcdp"]))
def test_a_first_run_fits_its_own_budget_and_not_a_digit_less(epsilon: float, delta: float, kind: str) -> None:
    budget = PrivacyBudget(epsilon, delta)
    announced = rho_of(budget, kind)
    (limit,) = adding(LifetimeLimits(None, None, budget))
    assert limit.fits(0.0, announced, kind)
    (smaller,) = adding(LifetimeLimits(None, None, PrivacyBudget(epsilon * (1 - 1e-6), delta)))
    assert not smaller.fits(0.0, announced, kind)
    (stricter,) = adding(LifetimeLimits(None, None, PrivacyBudget(epsilon, delta * 0.999)))
    assert not stricter.fits(0.0, announced, kind), "the limit's own delta counts"
    accountant = accountant_for(kind, budget)
    assert announced * (2.0 if kind == "gaussian" else 1.0) == accountant.capacity


@SETTINGS
@given(EPSILON, DELTA, st.sampled_from(["gaussian", "zcdp"]), COSTS)
def test_what_is_accepted_is_within_epsilon_and_delta(
    epsilon: float, delta: float, kind: str, asked: list[tuple[float, bool]]
) -> None:
    """By the conversions themselves: nothing of this module's own arithmetic is believed."""
    (limit,) = adding(LifetimeLimits(None, None, PrivacyBudget(epsilon, delta)))
    taken: list[Cost] = []
    for rho, gaussian in asked:
        more = Cost(rho * rho_of(limit.budget, kind), gaussian)
        if limit.fits(total(taken, kind), more.under(kind), kind):
            taken.append(more)
    if kind == "zcdp":
        assert zcdp_delta(math.fsum(cost.rho for cost in taken), epsilon) <= delta
    else:  # choices as Gaussian mechanisms of mu = ε sqrt(2π)/4, where rho = ε²/8
        mus = [math.sqrt(2 * c.rho) if c.gaussian else math.sqrt(8 * c.rho) * math.sqrt(2 * math.pi) / 4 for c in taken]
        assert gaussian_delta(math.sqrt(math.fsum(mu * mu for mu in mus)), epsilon) <= delta
    assert epsilon_of(total(taken, kind), delta, kind) <= epsilon


@SETTINGS
@given(COSTS, DELTA)
def test_epsilon_of_gaussian_entries_is_the_exact_one_and_else_that_of_zcdp(
    entries: list[tuple[float, bool]], delta: float
) -> None:
    costs = [Cost(rho, True) for rho, _ in entries]
    rho = math.fsum(cost.rho for cost in costs)
    assert epsilon_of(total(costs, "gaussian"), delta, "gaussian") == gaussian_epsilon(math.sqrt(2 * rho), delta)
    mixed = [Cost(rho, gaussian) for rho, gaussian in entries]
    assert epsilon_of(total(mixed, "zcdp"), delta, "zcdp") == zcdp_epsilon(math.fsum(c.rho for c in mixed), delta)


def test_costs_are_those_of_the_releases() -> None:
    gaussian = Release("measure", 1, GAUSSIAN, 2.0, sigma=3.0, count=4, extra=0.01)
    choice = Release("select", 1, EXPONENTIAL, epsilon=0.3, count=2)
    for release, factor in ((gaussian, 1.0), (choice, CHOICE)):
        cost = Cost(release.rho, release.mechanism == GAUSSIAN)
        assert cost.under("zcdp") == release.rho and cost.under("gaussian") == factor * release.rho
    assert 2 * Cost(gaussian.rho, True).under("gaussian") == gaussian.mu2


# A choice as a Gaussian mechanism: steps 2 to 4 of the argument, by brute force --------------------------------------


def test_the_slope_of_probits_against_logits_is_largest_at_a_half() -> None:
    logits = np.linspace(-30.0, 30.0, 200_001)
    u = 1 / (1 + np.exp(-logits))
    tail = 1 / (1 + np.exp(np.abs(logits)))  # the smaller of u and 1 - u, exact
    slope = tail * (1 - tail) / norm.pdf(norm.ppf(tail))
    assert slope.max() <= math.sqrt(2 * math.pi) / 4 * (1 + 1e-12) and abs(logits[slope.argmax()]) < 1e-3
    assert u[slope.argmax()] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.0, 10.0])
def test_a_bounded_range_is_dominated_by_the_gaussian_that_it_is_counted_as(epsilon: float) -> None:
    """Hockey-stick divergences of the two-point pairs, over offsets t and ε', against those of mu = ε sqrt(2π)/4."""
    mu = epsilon * math.sqrt(2 * math.pi) / 4
    assert mu * mu / 2 == pytest.approx(CHOICE * epsilon**2 / 8)
    for t in np.linspace(0.0, epsilon, 41)[1:-1]:
        p = math.expm1(epsilon - t) / (math.exp(-t) * math.expm1(epsilon))
        q = p * math.exp(-t)
        for threshold in np.linspace(0.0, epsilon, 21):
            for one, other in (((p, 1 - p), (q, 1 - q)), ((q, 1 - q), (p, 1 - p))):
                delta = sum(max(0.0, a - math.exp(threshold) * b) for a, b in zip(one, other, strict=True))
                assert delta <= gaussian_delta(mu, threshold) * (1 + 1e-9)


def test_a_smaller_factor_would_not_do() -> None:
    """The factor π/2 is the smallest: a coin of small ε at ε' = 0 has the total variation of that Gaussian."""
    epsilon, mu = 1e-3, 1e-3 * math.sqrt(2 * math.pi) / 4
    coin = math.tanh(epsilon / 4)
    assert gaussian_delta(mu * 0.999, 0.0) < coin <= gaussian_delta(mu, 0.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_an_exponential_mechanism_itself_is_dominated(epsilon: float) -> None:
    rng, mu = np.random.default_rng(7), epsilon * math.sqrt(2 * math.pi) / 4
    for _ in range(200):
        scores = rng.uniform(0, 5, 6)
        moved = scores + rng.uniform(-1, 1, 6)
        one, other = (np.exp(epsilon * s / 2) / np.exp(epsilon * s / 2).sum() for s in (scores, moved))
        for threshold in (0.0, epsilon / 4, epsilon / 2):
            delta = np.maximum(0.0, one - math.exp(threshold) * other).sum()
            assert delta <= gaussian_delta(mu, threshold) * (1 + 1e-9)


# Periods -------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(
    st.lists(st.tuples(st.floats(0, 400), _log_range(0.01, 0.9)), max_size=30),
    st.floats(1, 100),
    st.lists(st.floats(-50, 50), min_size=30, max_size=30),
)
def test_no_window_holds_more_than_the_limit(asked: list[tuple[float, float]], days: float, jumps: list[float]) -> None:
    """Brute force over every window, by true times, though the clock that the book sees jumps back now and then."""
    budget = PrivacyBudget(1.0, 1e-6)
    limit = adding(LifetimeLimits(None, (budget, days), PrivacyBudget(1000.0, 1e-6)))[0]
    whole, latest = rho_of(budget, "zcdp"), 0.0
    costs: list[Cost] = []
    taken: list[tuple[float, float]] = []
    for (day, share), jump in zip(sorted(asked), jumps, strict=False):
        clock = (day + min(0.0, jump)) * DAY  # slow or set back, never ahead
        rho = share * whole
        if limit.fits(total(limit.within(costs, clock), "zcdp"), rho, "zcdp"):
            latest = max(latest, clock)
            costs.append(Cost(rho, True, latest))
            taken.append((day * DAY, rho))
    # A clock that is behind by up to 50 days makes a window of the clock's days: those are what the limit bounds.
    for end in costs:
        inside = [c.rho for c in costs if end.time - days * DAY < c.time <= end.time]
        assert math.fsum(inside) <= whole * (1 + 1e-9)
    if all(jump >= 0 for jump in jumps[: len(asked)]):
        for when, _ in taken:
            inside = [rho for day, rho in taken if when - days * DAY < day <= when]
            assert math.fsum(inside) <= whole * (1 + 1e-9)


def test_a_clock_that_jumps_back_frees_nothing() -> None:
    limit = adding(LifetimeLimits(None, (PrivacyBudget(1.0, 1e-6), 10), PrivacyBudget(9.0, 1e-6)))[0]
    costs = [Cost(0.1, True, day * DAY) for day in (0, 5, 12, 20)]
    counted = [len(limit.within(costs, day * DAY)) for day in (100, 25, 20, 14, 3, -50)]
    assert counted == [0, 1, 2, 3, 4, 4]
    assert all(a <= b for a, b in pairwise(counted))
