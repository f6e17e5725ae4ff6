"""Steps of DP-SGD: what one costs at a Rényi order, what a ledger makes of many, and what it draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from fedsyn.errors import BudgetExceeded, ConfigError
from fedsyn.privacy import GAUSSIAN, SAMPLED, Ledger, PrivacyBudget, Release, sigma_for_rho
from fedsyn.privacy.accountant import GaussianAccountant, RenyiAccountant, ZcdpAccountant
from fedsyn.privacy.conversion import gaussian_epsilon
from fedsyn.privacy.renyi import best_order, multiplier_for, renyi_capacity, renyi_epsilon, sampled_rdp
from fedsyn.randomness import OsRandom, Randomness

BUDGET = PrivacyBudget(5.0, 1e-5)
RATE, STEPS = 0.1, 50
ORDER = best_order(5.0, 1e-5, RATE, STEPS)


def step(multiplier: float, rate: float = RATE, count: int = 1) -> Release:
    return Release("step", 1, SAMPLED, 2.0, sigma=2.0 * multiplier, rate=rate, count=count)


def planned_multiplier() -> float:
    return multiplier_for(RenyiAccountant.of(BUDGET, ORDER).capacity / STEPS, RATE, ORDER)


# One step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "multiplier", "order"), [(0.1, 2.0, 5), (0.003, 0.7, 4), (0.5, 4.0, 12), (0.9, 1.0, 2)]
)
def test_the_cost_of_a_step_is_the_integral(rate: float, multiplier: float, order: int) -> None:
    """Of both directions the larger one, by quadrature; no formula is shared."""

    def density(x: float, at: float) -> float:
        return math.exp(-((x - at) ** 2) / (2.0 * multiplier**2)) / (multiplier * math.sqrt(2.0 * math.pi))

    def divergence(forward: bool) -> float:
        def inside(x: float) -> float:
            without, mixed = density(x, 0.0), (1 - rate) * density(x, 0.0) + rate * density(x, 1.0)
            p, q = (mixed, without) if forward else (without, mixed)
            return q * (p / q) ** order

        reach = 12.0 * multiplier + order
        return math.log(quad(inside, -reach, reach, limit=500, epsabs=0, epsrel=1e-10)[0]) / (order - 1)

    ours = sampled_rdp(rate, multiplier, order)
    assert ours == pytest.approx(divergence(True), rel=1e-6)
    assert ours >= divergence(False) * (1 - 1e-9)


@pytest.mark.parametrize("order", [2, 7, 64, 512])
def test_a_sample_of_all_rows_is_a_gaussian_release(order: int) -> None:
    assert sampled_rdp(1.0, 3.0, order) == pytest.approx(order / 18.0, rel=1e-12)
    assert sampled_rdp(1.0 - 1e-12, 3.0, order) == pytest.approx(order / 18.0, rel=1e-6)
    assert sampled_rdp(0.5, 3.0, order) < sampled_rdp(1.0, 3.0, order)


def test_hardly_any_noise_costs_more_than_a_double_holds() -> None:
    assert sampled_rdp(0.1, 1e-300, 16) == math.inf
    assert sampled_rdp(1e-9, 1e6, 2) > 0.0


@pytest.mark.parametrize(("rate", "multiplier", "order"), [(0.0, 1.0, 2), (1.1, 1.0, 2), (0.5, 0.0, 2), (0.5, 1.0, 1)])
def test_what_is_no_step_is_refused(rate: float, multiplier: float, order: int) -> None:
    with pytest.raises(ValueError, match="a step needs"):
        sampled_rdp(rate, multiplier, order)


def test_the_multiplier_is_the_least_that_is_enough() -> None:
    z = multiplier_for(0.01, 0.1, 8)
    assert sampled_rdp(0.1, z, 8) <= 0.01 < sampled_rdp(0.1, z * (1 - 1e-9), 8)
    with pytest.raises(ValueError, match="no noise is enough"):
        multiplier_for(0.0, 0.1, 8)


@pytest.mark.parametrize("order", [2, 5, 64])
def test_capacity_and_epsilon_are_inverse(order: int) -> None:
    capacity = renyi_capacity(5.0, 1e-5, order)
    if capacity > 0:
        assert renyi_epsilon(capacity, order, 1e-5) == pytest.approx(5.0, rel=1e-12)


def test_no_other_order_needs_less_noise() -> None:
    best = planned_multiplier()
    for order in (*range(2, 33), 64, 128):
        capacity = renyi_capacity(5.0, 1e-5, order)
        if capacity > 0:
            assert multiplier_for(capacity / STEPS, RATE, order) >= best * (1 - 1e-6)


def test_a_budget_too_small_for_an_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="Rényi order 2"):
        RenyiAccountant.of(PrivacyBudget(0.1, 1e-9), 2)


# Against others' accountants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.1, 2.3, 500), (0.003, 0.65, 6000), (1.0, 30.0, 50)])
def test_epsilon_is_that_of_dp_accounting_at_the_same_order(rate: float, multiplier: float, steps: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    for order in (2, 4, 16, 64):
        theirs = rdp.RdpAccountant(orders=[order])
        theirs.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier)), steps)
        ours = renyi_epsilon(steps * sampled_rdp(rate, multiplier, order), order, 1e-5)
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_jax_privacys_accountants_find_less() -> None:
    """Its Rényi accountant looks at many orders, its PLD accountant composes numerically: 5% to 25% of epsilon less."""
    accounting = pytest.importorskip("jax_privacy.accounting")
    z = planned_multiplier()
    plan = accounting.DpParams(noise_multipliers=z, num_samples=1000, batch_size=100, delta=1e-5)
    found = {}
    for name, config in (("rdp", accounting.RdpAccountantConfig()), ("pld", accounting.PldAccountantConfig())):
        found[name] = accounting.DpsgdTrainingAccountant(config).compute_epsilon(STEPS, plan)
    assert 0.75 * 5.0 < found["pld"] <= found["rdp"] <= 5.0 * (1 + 1e-6)
    assert found["rdp"] > 0.98 * 5.0  # a fractional order between two integers is a little better


# The ledger ----------------------------------------------------------------------------------------------------------


def new_ledger() -> Ledger:
    return Ledger(BUDGET, RenyiAccountant.of(BUDGET, ORDER))


def test_a_ledger_pays_for_the_planned_steps_and_not_for_one_more() -> None:
    ledger, z = new_ledger(), planned_multiplier()
    for _ in range(STEPS):
        ledger.charge(step(z))
    assert ledger.epsilon() == pytest.approx(5.0, rel=1e-6) and ledger.epsilon() <= 5.0
    with pytest.raises(BudgetExceeded):
        ledger.charge(step(z))
    with pytest.raises(BudgetExceeded):
        ledger.charge(Release("measure", 1, GAUSSIAN, sigma=100.0))
    assert len(ledger.releases) == STEPS


def test_gaussian_releases_stand_beside_steps() -> None:
    ledger = new_ledger()
    rho = 0.1 * ledger.remaining_rho
    ledger.charge(Release("measure", 1, GAUSSIAN, sigma=sigma_for_rho(rho)))
    assert ledger.remaining == pytest.approx(0.9 * ledger.accountant.capacity, rel=1e-9)
    ledger.charge(step(multiplier_for(0.5 * ledger.remaining, RATE, ORDER)))
    assert ledger.remaining == pytest.approx(0.45 * ledger.accountant.capacity, rel=1e-6)


@pytest.mark.parametrize("compact", [False, True])
def test_a_ledger_with_steps_survives_json(compact: bool) -> None:
    import json

    ledger, z = new_ledger(), planned_multiplier()
    for t in range(STEPS):
        ledger.charge(Release("step", t, SAMPLED, 2.0, sigma=2.0 * z, rate=RATE))
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict(compact=compact))))
    assert len(again.releases) == (1 if compact else STEPS)
    assert again.spent == pytest.approx(ledger.spent, rel=1e-12) and again.accountant == ledger.accountant
    with pytest.raises(BudgetExceeded):
        again.charge(step(z))


def test_other_accountants_count_a_step_as_if_it_took_every_row() -> None:
    for accountant in (ZcdpAccountant.of(BUDGET), GaussianAccountant.of(BUDGET)):
        plain = Release("measure", 1, GAUSSIAN, 2.0, sigma=6.0)
        assert accountant.cost(step(3.0)) == accountant.cost(plain)


@pytest.mark.parametrize("facts", [{"rate": None}, {"rate": 0.0}, {"rate": 1.5}, {"sigma": None}])
def test_what_is_no_sampled_release_is_refused(facts: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Release("step", 1, SAMPLED, **{"sigma": 1.0, "rate": 0.5, **facts})
    with pytest.raises(ValueError, match="rate"):
        Release("measure", 1, GAUSSIAN, sigma=1.0, rate=0.5)


def test_exchanging_a_row_costs_at_most_what_is_said() -> None:
    """Of Gaussian releases alone the exact value is known: twice the shift."""
    ledger = new_ledger()
    sigma = sigma_for_rho(0.5 * ledger.remaining_rho)
    ledger.charge(Release("measure", 1, GAUSSIAN, sigma=sigma))
    exact = gaussian_epsilon(2.0 / sigma, 1e-5)
    assert exact <= ledger.epsilon_replace_one <= 3.0 * exact
    assert new_ledger().epsilon_replace_one == 0.0
    full = new_ledger()
    full.charge(step(planned_multiplier(), count=STEPS))
    assert 10.0 < full.epsilon_replace_one < 20.0


# What is drawn -------------------------------------------------------------------------------------------------------


class Untouched(OsRandom):
    def _never(self, *_: object, **__: object) -> None:
        raise AssertionError("something was drawn before it was paid for")

    random = standard_normal = integers = gumbel = _never  # type: ignore[assignment]


def draw(ledger: Ledger, total: object, rows: int, rate: float, source: object, sigma: float = 2.0) -> np.ndarray:
    entry = Release("step", 1, SAMPLED, sigma=sigma, rate=rate)
    return ledger.sampled_gaussian(total, rows, entry, source)  # type: ignore[arg-type]


def test_a_step_beyond_the_budget_draws_nothing() -> None:
    with pytest.raises(BudgetExceeded):
        draw(new_ledger(), lambda chosen: np.zeros(1, np.int64), 10, 0.5, Untouched(), sigma=0.01)


def test_sample_and_noise_are_those_that_were_charged() -> None:
    """40,000 rows at rate 0.1: 4,000 are taken, +- 60; 4 standard deviations of both mean and noise: once in 7,500."""
    seen = []

    def total(chosen: np.ndarray) -> np.ndarray:
        seen.append(chosen)
        return np.zeros(10_000, np.int64)

    ledger = new_ledger()
    noisy = draw(ledger, total, 40_000, 0.1, Randomness(7).generator("step"))
    (chosen,) = seen
    assert abs(len(chosen) - 4000) < 4 * 60 and len(set(chosen.tolist())) == len(chosen)
    assert abs(np.std(noisy) - 2.0) < 4 * 2.0 / math.sqrt(20_000)
    entry = ledger.releases[0]
    assert (entry.mechanism, entry.rate, entry.sigma, entry.count) == (SAMPLED, 0.1, 2.0, 1)
    again = draw(new_ledger(), total, 40_000, 0.1, Randomness(8).generator("step"))
    assert not np.array_equal(seen[1], chosen) and not np.array_equal(again, noisy)


def test_a_table_without_rows_gives_noise() -> None:
    noisy = draw(new_ledger(), lambda chosen: np.zeros(3, np.int64), 0, 0.1, OsRandom())
    assert noisy.shape == (3,) and noisy.any()


def test_a_sum_that_rounding_could_betray_is_refused() -> None:
    with pytest.raises(ValueError, match="integers"):
        draw(new_ledger(), lambda chosen: np.zeros(3), 10, 0.1, OsRandom())
