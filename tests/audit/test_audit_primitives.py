"""The ledger's primitives, audited alone: thousands of releases on two neighbouring tables, and what they give away.

(ε, δ)-DP bounds every distinguisher: for any event S, `P[M(D) in S] <= e^ε P[M(D') in S] + δ`. Each audit runs the real
ledger many times on two tables that differ in one row, chosen so that the event is close to the worst one there is, and
turns counts into a lower bound on ε by Clopper-Pearson intervals. Honest noise stays below the claim: the bound exceeds
it with probability at most ALPHA. An audit without power would pass anything, so each one is repeated with the noise
halved, or a sensitivity understated, and must then catch it. Whole runs of the mechanisms are audited in
`test_audit_mechanisms.py`, which cannot afford so many; the tables and scores here are made up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.privacy.accountant import GaussianAccountant
from fedsyn.randomness import OsRandom, RandomSource

ALPHA = 1e-8  # false-alarm rate of one audit with honest noise
RUNS = 8_000


class Halved:
    """A broken source: noise of half the claimed scale."""

    def __init__(self, source: OsRandom) -> None:
        self._source = source

    def standard_normal(self, size: Any = None) -> Any:
        return 0.5 * self._source.standard_normal(size)

    def gumbel(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        return 0.5 * self._source.gumbel(loc, scale, size)


def epsilon_lower_bound(hits: int, hits_neighbour: int, runs: int, delta: float, alpha: float) -> float:
    """A lower confidence bound (level 1 - alpha) on the ε of a mechanism whose δ is known.

    `hits` of `runs` outputs on one table and `hits_neighbour` on its neighbour fell into an event fixed
    beforehand.
    """
    low = stats.beta.ppf(alpha / 2.0, hits, runs - hits + 1) if hits else 0.0
    missed = runs - hits_neighbour
    high = stats.beta.ppf(1.0 - alpha / 2.0, hits_neighbour + 1, missed) if missed else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf


# ------------------------------------------------------------------------- the exponential mechanism

# 100 rows (0, 0, 0, 0) and, next to them, the same with a row (1, 1, 1, 1). In attribute 0 the model expects
# no 1 at all, so the row moves that score UP; in the others it expects one, so the row moves those scores
# DOWN: the worst case of the exponential mechanism, where the change of the chosen score and of the
# normaliser add up.
TABLE = np.zeros((100, 4), dtype=np.int64)
NEIGHBOUR = np.vstack([TABLE, np.ones((1, 4), dtype=np.int64)])
MODEL = np.array([[1.0, 0.0], [0.99, 0.01], [0.99, 0.01], [0.99, 0.01]])


def _scores(table: NDArray[np.int64], rows: int) -> NDArray[np.float64]:
    """FLAIM's distances `‖M_j(D) - rows p_j‖₁` of the four one-way marginals."""
    counts = [np.bincount(table[:, j], minlength=2) for j in range(table.shape[1])]
    return np.array([np.abs(c - rows * p).sum() for c, p in zip(counts, MODEL, strict=True)])


def _audit_choice(source: RandomSource, sensitivity: float, *, rows: str = "fixed", epsilon: float = 1.0) -> float:
    hits = []
    for table in (NEIGHBOUR, TABLE):
        scores = _scores(table, len(TABLE) if rows == "fixed" else len(table))
        picks = [
            Ledger(PrivacyBudget(10.0, 1e-5)).exponential(
                scores, Release("select", 1, EXPONENTIAL, sensitivity, epsilon=epsilon), source
            )
            for _ in range(RUNS)
        ]
        hits.append(picks.count(0))
    return epsilon_lower_bound(hits[0], hits[1], RUNS, 0.0, ALPHA)


def test_the_row_moves_the_scores_as_far_as_claimed() -> None:
    fixed = _scores(NEIGHBOUR, 100) - _scores(TABLE, 100)
    counted = _scores(NEIGHBOUR, 101) - _scores(TABLE, 100)
    np.testing.assert_allclose(fixed, [1, -1, -1, -1], atol=1e-12)
    np.testing.assert_allclose(counted, [2, -1.98, -1.98, -1.98], atol=1e-12)


def test_audit_of_the_exponential_mechanism() -> None:
    """The true log-ratio of this event is 0.83 for ε = 1, and 1.75 with half the noise."""
    assert 0.35 < _audit_choice(OsRandom(), 1.0) <= 1.0


def test_the_audit_catches_halved_gumbel_noise() -> None:
    assert _audit_choice(Halved(OsRandom()), 1.0) > 1.0


def test_the_audit_catches_scores_scaled_by_a_counted_size() -> None:
    """A mistake of FLAIM's published code: distances to `|D_k| p`, with the sensitivity of a fixed size."""
    assert _audit_choice(OsRandom(), 1.0, rows="counted") > 1.0


# ------------------------------------------------------------------------------ the Gaussian mechanism

CELLS = 200_000  # each cell of one release is an independent run of the mechanism on a one-cell table
TIGHT = PrivacyBudget(1.0, 0.01)


def _audit_gaussian(source: RandomSource, releases: int) -> float:
    """Averages `releases` Gaussian releases that fill the budget together; the best of several thresholds.

    Both directions (row present or absent) and all thresholds are tried, each at ALPHA over their number.
    """
    sigma = math.sqrt(releases) / TIGHT.mu
    outputs = []
    for count in (8, 7):  # the cell with and without the row
        ledger = Ledger(TIGHT, GaussianAccountant.of(TIGHT))
        values = np.full(CELLS, count)
        entries = [Release("measure", t, GAUSSIAN, sigma=sigma) for t in range(releases)]
        noisy = [ledger.gaussian([values], entry, source)[0] for entry in entries]
        assert ledger.epsilon() == pytest.approx(TIGHT.epsilon, rel=1e-6)
        outputs.append(np.mean(noisy, axis=0) - 7)
    thresholds = np.array([0.5, 1.0, 1.4, 2.0, 3.0, 4.0])
    bounds = []
    for threshold in thresholds:
        share = ALPHA / (2 * len(thresholds))
        above = [int((output > threshold).sum()) for output in outputs]
        below = [int((output < 1 - threshold).sum()) for output in outputs]
        bounds.append(epsilon_lower_bound(above[0], above[1], CELLS, TIGHT.delta, share))
        bounds.append(epsilon_lower_bound(below[1], below[0], CELLS, TIGHT.delta, share))
    return max(bounds)


@pytest.mark.parametrize("releases", [1, 3])
def test_audit_of_the_gaussian_mechanism(releases: int) -> None:
    """The calibration is exact, so the bound comes close to the claim and must not pass it."""
    assert 0.7 < _audit_gaussian(OsRandom(), releases) <= TIGHT.epsilon


@pytest.mark.parametrize("releases", [1, 3])
def test_the_audit_catches_halved_gaussian_noise(releases: int) -> None:
    assert _audit_gaussian(Halved(OsRandom()), releases) > TIGHT.epsilon


def test_the_lower_bound_itself_covers_the_truth() -> None:
    """Randomised response with known ε: at level 90% at most 10% of the bounds may lie above it (200 trials:
    more than 41 has probability below 1e-5)."""
    epsilon = 1.2
    probability = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    rng = np.random.default_rng(3)
    hits = rng.binomial(500, probability, 200)
    misses = rng.binomial(500, 1.0 - probability, 200)
    bounds = [epsilon_lower_bound(a, b, 500, 0.0, 0.1) for a, b in zip(hits, misses, strict=True)]
    assert sum(bound > epsilon for bound in bounds) <= 41
    assert np.median(bounds) > 0.75 * epsilon
