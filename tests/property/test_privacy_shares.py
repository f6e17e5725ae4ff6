"""Plans of distributed noise keep their promises for any federation, and discrete Gaussian draws any length."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsyn.aggregation.base import Limits
from fedsyn.privacy import DistributedNoise, Ledger, PrivacyBudget
from fedsyn.privacy._discrete import TABLE_VARIANCE, discrete_gaussian, split
from fedsyn.privacy.distributed import FINEST, SMALLEST_SHARE, share_of
from fedsyn.randomness import Randomness

sigmas = st.floats(1e-6, 1e9)


@given(sigma=sigmas, fewest=st.integers(1, 5000), corrupted=st.integers(0, 4999), length=st.integers(1, 10**6))
def test_a_plan_is_never_below_what_was_asked_for(sigma: float, fewest: int, corrupted: int, length: int) -> None:
    assume(fewest > corrupted)
    plan = DistributedNoise.of(
        sigma, sensitivity=1.0, count=1, length=length, asked=5000, fewest=fewest, corrupted=corrupted
    )
    gamma = plan.resolution
    assert gamma & (gamma - 1) == 0 and gamma * sigma >= FINEST and plan.share >= SMALLEST_SHARE
    half = gamma // 2
    assert gamma == 1 or half * sigma < FINEST or share_of(half * sigma, plan.honest) < SMALLEST_SHARE
    planned = (gamma * Fraction(sigma)) ** 2 + 4
    assert planned <= plan.honest * Fraction(plan.share) ** 2 <= planned * (1 + Fraction(1, 2**47))
    assert sigma < plan.sigma_of(plan.honest) < sigma * 1.00013
    assert plan.sigma_of(fewest) <= plan.sigma_of(5000)
    # Charged, and negligible: the shares' own term is below that of the rounding by far, or of its order.
    assert 2e-31 * length < plan.extra_rho < 1e-29 * length


@given(
    asked=st.integers(2, 2000),
    corrupted=st.floats(1e-6, 0.999),
    dropout=st.floats(0.0, 0.999),
    minimum=st.integers(1, 2000),
    sigma=sigmas,
)
def test_another_holder_leaves_at_least_the_noise_that_is_charged(
    asked: int, corrupted: float, dropout: float, minimum: int, sigma: float
) -> None:
    """It takes its own share off the noise of the fewest contributors; the row's own holder always contributes."""
    limits = Limits.of_shares(corrupted, dropout, asked, min(minimum, asked))
    assume(limits.corrupted < limits.fewest)  # else the plan is refused
    plan = DistributedNoise.of(
        sigma, sensitivity=1.0, count=1, length=10, asked=asked, fewest=limits.fewest, corrupted=limits.corrupted
    )
    charged = (plan.resolution * Fraction(sigma)) ** 2 + 4
    assert max(1, limits.fewest - 1) * Fraction(plan.share) ** 2 >= charged
    # So do as many as the run counts on, and with whole noises any number of them.
    assert max(1, limits.fewest - plan.shares.tolerated) * Fraction(plan.share) ** 2 >= charged
    # Masks and noise count the same clients wherever masks can hide a row among two others.
    assert limits.colluding == limits.corrupted or limits.fewest <= 2


@given(sigma=st.floats(0.1, 1e6), rows=st.floats(0.0, 1e18), asked=st.integers(1, 5000), length=st.integers(1, 10**6))
def test_the_ring_check_leaves_room_for_the_noise(sigma: float, rows: float, asked: int, length: int) -> None:
    plan = DistributedNoise.of(sigma, sensitivity=1.0, count=1, length=length, asked=asked, fewest=1, corrupted=0)
    try:
        plan.check_ring(rows)
    except Exception as error:
        assert "ring" in str(error) and plan.resolution * rows + 60 * plan.share * math.sqrt(asked) > 2.0**62
    else:
        assert plan.resolution * rows + 8 * plan.share * math.sqrt(asked) < 2.0**63


@given(s=st.floats(0.25, 2.0**40), size=st.integers(0, 70))
@settings(deadline=None, max_examples=40)
def test_every_parameter_works(s: float, size: int) -> None:
    variance = Fraction(s) ** 2
    parts = split(variance)
    assert sum(f * f * v for f, v in parts) == variance and all(0 < v <= TABLE_VARIANCE for _, v in parts)
    s = min(s, 50.0)  # tables of every size would make this slow
    draws = discrete_gaussian(s, size, Randomness(1).generator("x"))
    assert draws.shape == (size,) and np.all(np.abs(draws) <= 16.4 * s + 2)


@given(values=st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20), clients=st.integers(1, 5))
@settings(deadline=None)
def test_vectors_add_up_exactly_but_for_the_shares(values: list[int], clients: int) -> None:
    exact = np.array(values, dtype=np.int64)
    plan = DistributedNoise.of(
        50.0, sensitivity=1.0, count=1, length=len(exact), asked=clients, fewest=clients, corrupted=0
    )
    total = np.zeros(len(exact), np.int64)
    for k in range(clients):
        entry, source = plan.release("m", 1), Randomness(2).generator("client", k)
        total += Ledger(PrivacyBudget(1.0, 1e-5)).distributed(exact, plan, entry, source)
    noise = total - plan.resolution * clients * exact
    assert np.all(np.abs(noise) <= clients * (16.4 * plan.share + 2)) and noise.dtype == np.int64
