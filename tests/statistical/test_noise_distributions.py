"""The drawn noise has the distribution it is charged as.

Seeded sources give the same numbers in every run, so those tests cannot flicker. Tests of the operating
system's source
can: each has a false-alarm rate of at most ALPHA = 1e-7, about twenty of them together 2e-6 per run of the
suite.

Powers, at these sizes: the Kolmogorov-Smirnov limit (Dvoretzky-Kiefer-Wolfowitz with Massart's constant,
valid for every n) is sqrt(log(2/ALPHA) / (2 n)) = 0.0065 at n = 200,000, which a sigma wrong by 3% exceeds
(0.242 x 0.03 = 0.0073); the variance limit, 5.3 standard errors sqrt(2/n), finds a sigma wrong by 1%.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.randomness import OsRandom, Randomness, RandomSource

ALPHA = 1e-7
COUNT = 200_000
SOURCES = {"seeded": lambda: Randomness(20).generator("statistical"), "operating system": OsRandom}


@pytest.fixture(params=list(SOURCES))
def source(request: pytest.FixtureRequest) -> RandomSource:
    return SOURCES[request.param]()  # type: ignore[abstract]


def _ks(sample: NDArray[np.float64], cdf: Callable[[Any], Any]) -> None:
    statistic = stats.kstest(sample, cdf).statistic
    assert statistic < math.sqrt(math.log(2.0 / ALPHA) / (2.0 * len(sample)))


def _normal_limit(count: int) -> float:
    """Two-sided limit at ALPHA of a mean of `count` variables with unit variance."""
    return stats.norm.isf(ALPHA / 2.0) / math.sqrt(count)


def _chi_square(observed: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
    expected = observed.sum() * probabilities
    assert expected.min() > 20  # where the chi-square approximation holds far enough into its tail
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < stats.chi2.isf(ALPHA, len(expected) - 1)


@pytest.mark.parametrize("sigma", [0.5, 30.0])
def test_the_gaussian_mechanism_is_gaussian(source: RandomSource, sigma: float) -> None:
    counts = np.arange(COUNT) % 1000
    (noisy,) = Ledger(PrivacyBudget(1e3, 1e-5)).gaussian([counts], Release("m", 1, GAUSSIAN, sigma=sigma), source)
    noise = (noisy - counts) / sigma
    _ks(noise, stats.norm.cdf)
    assert abs(noise.mean()) < _normal_limit(COUNT)
    # var of Z² is 2.
    assert abs((noise**2).mean() - 1.0) < math.sqrt(2.0) * _normal_limit(COUNT)


def test_noise_is_independent_between_cells_and_of_the_counts(source: RandomSource) -> None:
    counts = np.arange(COUNT) % 1000
    (noisy,) = Ledger(PrivacyBudget(1e3, 1e-5)).gaussian([counts], Release("m", 1, GAUSSIAN, sigma=1.0), source)
    noise = noisy - counts
    for lag in (1, 2, 7):
        assert abs((noise[lag:] * noise[:-lag]).mean()) < _normal_limit(COUNT - lag)
    centred = (counts - counts.mean()) / counts.std()
    assert abs((noise * centred).mean()) < _normal_limit(COUNT)


def test_two_releases_of_one_source_do_not_share_noise(source: RandomSource) -> None:
    ledger = Ledger(PrivacyBudget(1e3, 1e-5))
    zeros = np.zeros(COUNT, dtype=np.int64)
    first, second = ledger.gaussian([zeros, zeros], Release("m", 1, GAUSSIAN, sigma=1.0, count=2), source)
    (third,) = ledger.gaussian([zeros], Release("m", 2, GAUSSIAN, sigma=1.0), source)
    for a, b in ((first, second), (first, third), (second, third)):
        assert abs((a * b).mean()) < _normal_limit(COUNT)


def test_the_tails_of_the_operating_system_normal() -> None:
    """Both tails beyond 4 of two million: 63 expected in each, compared with the binomial distribution."""
    values = OsRandom().standard_normal(2_000_000)
    for count in ((values > 4.0).sum(), (values < -4.0).sum()):
        assert stats.binomtest(int(count), values.size, stats.norm.sf(4.0)).pvalue > ALPHA


def test_the_operating_system_uniform_and_gumbel() -> None:
    source = OsRandom()
    _ks(source.random(COUNT), stats.uniform.cdf)
    gumbel = source.gumbel(2.0, 3.0, 2_000_000)
    _ks(gumbel[:COUNT], lambda x: stats.gumbel_r.cdf(x, 2.0, 3.0))
    for count, probability in (
        ((gumbel > 32.0).sum(), stats.gumbel_r.sf(10.0)),
        ((gumbel < 2.0 - 3.0 * 2.2).sum(), stats.gumbel_r.cdf(-2.2)),
    ):
        assert stats.binomtest(int(count), gumbel.size, probability).pvalue > ALPHA


def test_operating_system_integers_and_permutations_are_uniform() -> None:
    source = OsRandom()
    # 2^64 is 8 * 2^61: if no word were rejected, two of the three thirds would come up 3 times in 8.
    third = source.integers(0, 3 * 2**61, 30_000) // 2**61
    _chi_square(np.bincount(third, minlength=3), np.full(3, 1 / 3))
    _chi_square(np.bincount(source.integers(-3, 4, 35_000) + 3, minlength=7), np.full(7, 1 / 7))
    codes = np.array([int("".join(map(str, source.permutation(3)))) for _ in range(6_000)])
    _chi_square(np.unique(codes, return_counts=True)[1], np.full(6, 1 / 6))


@pytest.mark.parametrize("epsilon,sensitivity", [pytest.param(1.0, 1.0, marks=pytest.mark.slow), (3.0, 2.0)])
def test_the_exponential_mechanism_has_its_distribution(
    source: RandomSource, epsilon: float, sensitivity: float
) -> None:
    """Chi-square of 20,000 choices against `exp(ε u / (2Δ))`; a factor 2 in the exponent is far outside."""
    scores = np.array([1000.0, 1001.5, 998.0, -math.inf, 1000.0, 1002.0])
    picks = np.array(
        [
            Ledger(PrivacyBudget(1e3, 1e-5)).exponential(
                scores, Release("s", 1, EXPONENTIAL, sensitivity, epsilon=epsilon), source
            )
            for _ in range(20_000)
        ]
    )
    weights = np.exp(epsilon * (scores - 1002.0) / (2.0 * sensitivity))
    observed = np.bincount(picks, minlength=len(scores))
    assert observed[3] == 0
    eligible = np.isfinite(scores)
    _chi_square(observed[eligible], weights[eligible] / weights.sum())
