"""Conversions against 60-digit values, against dp-accounting, and against the published classical formulas.

`GOLDEN` was computed with mpmath at 60 digits: Balle & Wang's Theorem 8 as it is printed (no cancellation at
that precision) and Lemma A.2 with 250 bisections for α, inverted by 250 bisections; `_exact_gaussian_delta`
and `_exact_zcdp_delta` below are those formulas.
"""

from __future__ import annotations

import math

import mpmath
import pytest
from dp_accounting import (
    GaussianDpEvent,
    ZCDpEvent,
    get_epsilon_gaussian,
    get_sigma_gaussian,
)
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from fedsyn.privacy import gaussian_rho, zcdp_epsilon
from fedsyn.privacy.conversion import gaussian_delta, gaussian_epsilon, gaussian_mu, zcdp_delta, zcdp_rho

# epsilon, delta, largest rho, largest mu
GOLDEN = [
    (1e-3, 1e-15, 1.096450644260108e-8, 0.00015416656798859291),
    (1e-3, 1e-9, 2.5471976982135419e-8, 0.00024256362200844686),
    (1e-3, 1e-5, 1.2015087259042878e-7, 0.00057995926396368511),
    (0.1, 1e-15, 9.1649145695955073e-5, 0.014025128386782339),
    (0.1, 1e-9, 0.00017713844718502088, 0.019916423412681467),
    (0.1, 1e-5, 0.00043299372940180957, 0.032520784056203912),
    (1.0, 1e-15, 0.0083510747257872788, 0.13356467682802593),
    (1.0, 1e-9, 0.014973057673588526, 0.18197480729533226),
    (1.0, 1e-5, 0.030556595197639566, 0.26805112321129422),
    (5.0, 1e-15, 0.18716617783575001, 0.63069647837838864),
    (5.0, 1e-9, 0.31169326160725639, 0.82527829658305324),
    (5.0, 1e-5, 0.55097347493933846, 1.1212418238184089),
    (10.0, 1e-15, 0.68725754354753686, 1.2063310064741037),
    (10.0, 1e-9, 1.0907857043970156, 1.53787733681454),
    (10.0, 1e-5, 1.7826956163289516, 2.0004456204306324),
    (50.0, 1e-15, 11.382155973849312, 4.8746552828148265),
    (50.0, 1e-9, 15.476211272224232, 5.7213597689549303),
    (50.0, 1e-5, 20.718340470824237, 6.6773233381400261),
]


@pytest.mark.parametrize("epsilon,delta,rho,mu", GOLDEN)
def test_golden_values_from_the_safe_side(epsilon: float, delta: float, rho: float, mu: float) -> None:
    ours_rho, ours_mu = zcdp_rho(epsilon, delta), gaussian_mu(epsilon, delta)
    assert ours_rho == pytest.approx(rho, rel=1e-10)
    assert ours_mu == pytest.approx(mu, rel=1e-10)
    # Rounded down, up to the last digit of the golden value itself.
    assert ours_rho <= rho * (1 + 2e-16)
    assert ours_mu <= mu * (1 + 2e-16)


def _exact_gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

    def cdf(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return cdf(m / 2 - e / m) - mpmath.exp(e) * cdf(-m / 2 - e / m)


def _exact_zcdp_delta(rho: float, epsilon: float) -> mpmath.mpf:
    r, e = mpmath.mpf(rho), mpmath.mpf(epsilon)
    low, high = mpmath.mpf(0), (e + 1) / (2 * r) + 1
    for _ in range(250):
        x = (low + high) / 2
        if (2 * x + 1) * r - e - mpmath.log1p(1 / x) < 0:
            low = x
        else:
            high = x
    alpha = 1 + high
    return mpmath.exp((alpha - 1) * (alpha * r - e)) / (alpha - 1) * (1 - 1 / alpha) ** alpha


GRID = [(scale, epsilon) for scale in (1e-4, 1e-2, 0.3, 1.0, 4.0, 30.0) for epsilon in (1e-3, 0.1, 1.0, 7.0, 50.0)]


@pytest.mark.parametrize("mu,epsilon", GRID)
def test_gaussian_delta_never_lies_below_the_exact_value(mu: float, epsilon: float) -> None:
    with mpmath.workdps(80):
        exact = _exact_gaussian_delta(mu, epsilon)
        if exact < 1e-295:
            assert gaussian_delta(mu, epsilon) > 0
        else:
            ratio = mpmath.mpf(gaussian_delta(mu, epsilon)) / exact
            assert 1 <= ratio < 1 + mpmath.mpf("1e-7")


@pytest.mark.parametrize("root,epsilon", GRID)
def test_zcdp_delta_never_lies_below_the_exact_minimum(root: float, epsilon: float) -> None:
    rho = root**2
    with mpmath.workdps(80):
        exact = _exact_zcdp_delta(rho, epsilon)
        if exact < 1e-295:
            assert zcdp_delta(rho, epsilon) > 0
        else:
            ratio = mpmath.mpf(zcdp_delta(rho, epsilon)) / min(exact, mpmath.mpf(1))
            assert 1 <= ratio < 1 + mpmath.mpf("1e-10")


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-2])
def test_gaussian_against_dp_accounting(epsilon: float, delta: float) -> None:
    """dp-accounting calibrates with its own root search (to about 1e-9)."""
    mu = gaussian_mu(epsilon, delta)
    assert 1.0 / mu == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-7)
    assert gaussian_epsilon(mu, delta) == pytest.approx(get_epsilon_gaussian(1.0 / mu, delta), rel=1e-7)


@pytest.mark.parametrize("sigma,count", [(0.7, 1), (3.0, 5), (20.0, 100)])
def test_gaussian_composition_against_privacy_loss_distributions(sigma: float, count: int) -> None:
    """A PLD knows nothing of our formula: it convolves a discretised privacy loss `count` times."""
    pld = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
    composed = pld.self_compose(count)
    mu = math.sqrt(count) / sigma
    for epsilon in (0.5, 1.0, 3.0):
        ours, theirs = gaussian_delta(mu, epsilon), composed.get_delta_for_epsilon(epsilon)
        if theirs > 1e-12:
            # Their discretisation is pessimistic, by at most `count` intervals of epsilon.
            assert ours <= theirs * (1 + 1e-9)
            assert gaussian_delta(mu, epsilon - count * 1e-4) >= theirs * (1 - 1e-9)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5])
def test_zcdp_against_renyi_accounting(rho: float, delta: float) -> None:
    """dp-accounting applies the same bound on a grid of orders, so it can only be larger."""
    orders = [1.0 + math.exp(-4.0 + 0.002 * i) for i in range(6000)]
    accountant = RdpAccountant(orders)
    accountant.compose(ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    ours = zcdp_epsilon(rho, delta)
    assert ours <= theirs * (1 + 1e-12)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_zcdp_cost_of_a_gaussian_against_renyi_accounting() -> None:
    accountant = RdpAccountant([1.0 + math.exp(-4.0 + 0.002 * i) for i in range(6000)])
    accountant.compose(GaussianDpEvent(7.0), 12)
    assert zcdp_epsilon(12 * gaussian_rho(7.0), 1e-9) == pytest.approx(accountant.get_epsilon(1e-9), rel=1e-5)


@pytest.mark.parametrize("rho,delta", [(0.01, 1e-9), (0.5, 1e-5), (3.0, 1e-12)])
def test_the_tight_conversion_beats_the_classical_one(rho: float, delta: float) -> None:
    """Bun & Steinke 2016: epsilon = rho + 2 sqrt(rho log(1/delta)), which two of the papers use."""
    classical = rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
    assert 0.85 * classical < zcdp_epsilon(rho, delta) < classical


@pytest.mark.parametrize("epsilon,delta", [(0.5, 1e-5), (1.0, 1e-9), (10.0, 1e-9)])
def test_the_exact_gaussian_beats_zcdp(epsilon: float, delta: float) -> None:
    """zCDP promises less for the same noise, and the exact δ lies below Lemma A.2's bound everywhere."""
    assert gaussian_mu(epsilon, delta) > math.sqrt(2.0 * zcdp_rho(epsilon, delta))
    for mu in (0.1, 0.5, 2.0):
        assert gaussian_delta(mu, epsilon) <= zcdp_delta(mu**2 / 2.0, epsilon)
