"""Discrete Gaussian draws and shares have the distribution they are charged as, and that of opendp's exact sampler.

Seeded sources give the same numbers in every run. Tests of the operating system's source and of opendp's have a
false-alarm rate of ALPHA = 1e-7 per comparison; there are about 40 of them: 4e-6 per run of the suite.

Powers: over the at most 60 cells used here the limit of a chi-square statistic is at most 130. A parameter s that is
wrong by 2% moves it by n * 2 * 0.02² = 800 with n = 1,000,000 draws (one that is wrong by 8%, by n * 0.08² = 640 in the
comparison of two samples of n = 100,000), 10 standard deviations beyond the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedsyn.privacy import DistributedNoise, Ledger, PrivacyBudget
from fedsyn.privacy._discrete import discrete_gaussian
from fedsyn.randomness import OsRandom, Randomness, RandomSource

ALPHA = 1e-7
COUNT = 1_000_000
CELLS = 60
SOURCES: dict[str, Callable[[], RandomSource]] = {
    "seeded": lambda: Randomness(21).generator("discrete"),
    "operating system": OsRandom,
}


@pytest.fixture(params=list(SOURCES))
def source(request: pytest.FixtureRequest) -> RandomSource:
    return SOURCES[request.param]()


def _edges(s: float) -> NDArray[np.int64]:
    """Left ends of the cells (but for the first, which is open) of the chi-square tests, from -4 s to 4 s."""
    return np.unique(np.rint(np.linspace(-4.0, 4.0, CELLS - 1) * s).astype(np.int64))


def _cells(draws: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)


def _probabilities(s: float, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the cells: sums of exp(-x²/(2 s²)), or, where s is large, normal probabilities between half-integers.

    The latter are off by a relative 1/(24 s²) or so (Euler-Maclaurin).
    """
    if s >= 1e4:
        return np.diff(stats.norm.cdf([-np.inf, *((edges - 0.5) / s), np.inf]))
    x = np.arange(-math.ceil(12 * s), math.ceil(12 * s) + 1)
    weights = np.exp(-0.5 * (x / s) ** 2)
    # The normaliser, once more by Poisson summation.
    total = math.sqrt(2 * math.pi) * s * (1 + 2 * sum(math.exp(-2 * (math.pi * j * s) ** 2) for j in (1, 2, 3, 4)))
    assert math.fsum(weights) == pytest.approx(total, rel=1e-12)
    return np.bincount(np.searchsorted(edges, x, side="right"), weights=weights, minlength=len(edges) + 1) / total


def _merged(expected: NDArray[np.float64], *counts: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Neighbouring cells are put together, from both ends inwards, until each expects at least 30."""
    middle = len(expected) // 2
    starts, waiting = [0], 0.0
    for i in range(middle):
        waiting += float(expected[i])
        if waiting >= 30:
            starts.append(i + 1)
            waiting = 0.0
    backwards, waiting = [], 0.0
    for i in range(len(expected) - 1, middle, -1):
        waiting += float(expected[i])
        if waiting >= 30:
            backwards.append(i)
            waiting = 0.0
    starts += backwards[::-1]
    return [np.add.reduceat(np.asarray(c, float), starts) for c in (expected, *counts)]


def _chi_square(draws: NDArray[np.int64], s: float) -> tuple[float, float]:
    """The statistic and its limit at ALPHA."""
    edges = _edges(s)
    expected, observed = _merged(_probabilities(s, edges) * len(draws), _cells(draws, edges))
    assert expected.min() >= 20
    return float(((observed - expected) ** 2 / expected).sum()), float(stats.chi2.isf(ALPHA, len(expected) - 1))


@pytest.mark.parametrize("s", [0.5, 1.0, 3.0, 17.36, 100.0, 900.0, 1500.0, 1e4, 1e6])
def test_draws_have_the_distribution(source: RandomSource, s: float) -> None:
    draws = discrete_gaussian(s, COUNT, source)
    statistic, limit = _chi_square(draws, s)
    assert statistic < limit
    wrong, limit = _chi_square(draws, 1.02 * s)
    assert wrong > limit  # the test can tell


def test_moments_and_symmetry(source: RandomSource) -> None:
    """Mean, variance, skewness and fourth moment of N(0, s²), which a discrete one with s >= 3 shares to 1e-70."""
    limit = stats.norm.isf(ALPHA / 2) / math.sqrt(COUNT)
    for s in (3.0, 17.36, 2000.0):
        z = discrete_gaussian(s, COUNT, source) / s
        for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs((z**power).mean() - mean) < math.sqrt(variance) * limit
        above, below = int((z > 0).sum()), int((z < 0).sum())
        assert stats.binomtest(above, above + below).pvalue > ALPHA


def test_draws_are_independent(source: RandomSource) -> None:
    limit = stats.norm.isf(ALPHA / 2)
    for s in (3.0, 2000.0):
        z = discrete_gaussian(s, COUNT, source) / s
        for lag in (1, 2, 65_536):  # the last is the length of the sampler's chunks
            assert abs((z[lag:] * z[:-lag]).mean()) < limit / math.sqrt(COUNT - lag)
            assert abs(((z[lag:] ** 2 - 1) * (z[:-lag] ** 2 - 1)).mean()) < 2 * limit / math.sqrt(COUNT - lag)


@pytest.mark.parametrize("s", [17.36, *(pytest.param(s, marks=pytest.mark.slow) for s in (1.0, 5000.0))])
def test_opendp_draws_the_same_distribution(s: float) -> None:
    """Two samples of 100,000 each: chi-square test of homogeneity. opendp's sampler is that of Canonne et al. 2020."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    size = 100_000
    space = dp.vector_domain(dp.atom_domain(T=int), size=size), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=s)([0] * size), dtype=np.int64)
    statistic, limit = _chi_square(theirs, s)
    assert statistic < limit
    edges = _edges(s)
    for parameter, same in ((s, True), (1.08 * s, False)):
        ours = discrete_gaussian(parameter, size, OsRandom())
        _, one, two = _merged(_probabilities(s, edges) * size, _cells(theirs, edges), _cells(ours, edges))
        statistic = float(((one - two) ** 2 / (one + two)).sum())
        assert (statistic < stats.chi2.isf(ALPHA, len(one) - 1)) == same


@pytest.mark.parametrize("clients,lost", [(5, 0), (20, 2)])
def test_the_shares_of_a_sum_add_up_to_the_planned_noise(source: RandomSource, clients: int, lost: int) -> None:
    """Exact values plus N(0, sigma_of(contributors)²): mean and variance, and at most sigma without the corrupted."""
    length, sigma, corrupted = 100_000, 7.3, 1
    plan = DistributedNoise.of(
        sigma, sensitivity=1.0, count=1, length=length, asked=clients, fewest=clients - 2, corrupted=corrupted
    )
    counts = np.arange(length, dtype=np.int64) % 50
    vectors = [
        Ledger(PrivacyBudget(1.0, 1e-5)).distributed(counts, plan, plan.release("m", 1), source)
        for _ in range(clients - lost)
    ]
    limit = stats.norm.isf(ALPHA / 2) / math.sqrt(length)
    for contributors in (clients - lost, clients - 2 - corrupted):
        noise = np.sum(vectors[:contributors], axis=0) / plan.resolution - contributors * counts
        z = noise / plan.sigma_of(contributors)
        assert abs(z.mean()) < limit and abs((z**2).mean() - 1.0) < math.sqrt(2.0) * limit
        assert noise.std() > sigma * (1.0 - math.sqrt(0.5) * limit)
    assert plan.sigma_of(clients - 2 - corrupted) == pytest.approx(sigma, rel=2e-4)
