"""A choice whose noise is shares of parties: the exponential mechanism, by exact arithmetic and by draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsyn.errors import BudgetExceeded, ConfigError
from fedsyn.privacy import EXPONENTIAL, Ledger, PrivacyBudget, Release, SelectionNoise
from fedsyn.privacy.release import PARTIES
from fedsyn.privacy.shared_choice import DRAWING
from fedsyn.randomness import Randomness


def chances(scores: np.ndarray, scale: float) -> np.ndarray:
    """P(each index wins), ties to the smallest, when every integer score gets round(scale Gumbel); summed exactly."""
    z = np.arange(int(scores.min() - 8 * scale) - 2, int(scores.max() + 45 * scale) + 3, dtype=np.float64)
    below = np.exp(-np.exp(-(z[:, None] + 0.5 - scores[None, :]) / scale))  # P(Z_j <= z)
    before = np.exp(-np.exp(-(z[:, None] - 0.5 - scores[None, :]) / scale))
    result = []
    for i in range(len(scores)):
        others = before[:, :i].prod(axis=1) * below[:, i + 1 :].prod(axis=1)
        result.append(float(((below[:, i] - before[:, i]) * others).sum()))
    return np.array(result)


def spread(u: np.ndarray, v: np.ndarray, scale: float) -> float:
    ratios = np.log(chances(u, scale) / chances(v, scale))
    return float(ratios.max() - ratios.min())


@pytest.mark.parametrize("moved", [1, 3, 20])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_range_of_log_ratios_is_at_most_epsilon(moved: int, epsilon: float) -> None:
    """Step 3 of the proof, on neighbours that move every score as far as they may, in both directions."""
    noise, rng = SelectionNoise(epsilon, moved), np.random.default_rng(1)
    worst = 0.0
    for _ in range(60):
        u = rng.integers(-3 * moved, 3 * moved + 1, 5)
        v = u + moved * rng.choice([-1, 1], 5)
        worst = max(worst, spread(u, v, noise.scale))
    assert worst <= epsilon * (1 + 1e-6)
    assert worst >= 0.3 * epsilon * moved / (moved + 2)  # the test sees something


def test_without_the_two_steps_for_rounding_epsilon_is_exceeded() -> None:
    """The 2 in `scale` is needed: with Delta alone, coarse integers and ties to the smallest index leak more."""
    u, v = np.array([2, -2, 4, -2]), np.array([3, -3, 3, -1])
    assert spread(u, v, 2.0 * 1 / 4.0) > 5.3
    assert spread(u, v, SelectionNoise(4.0, 1).scale) <= 4.0


def test_the_choice_is_the_exponential_mechanism_also_beside_another_partys_noise() -> None:
    """Pearson chi-square, 40,000 draws, false-alarm rate 1e-6 with 3 degrees of freedom: 30.66.

    The other party's vector is fixed, as a corrupted one's would be: the odds are those of the shifted scores.
    """
    noise = SelectionNoise(1.0, 64)
    scores, other = np.array([0, 50, 100, 90]), np.array([30, -20, 0, 10])
    p = np.exp((scores + other) / noise.scale)
    p /= p.sum()
    trials, budget = 40_000, PrivacyBudget(1000.0, 1e-5)
    ledger, source = Ledger(budget), Randomness(3).generator("draws")
    many = np.tile(scores, trials)
    entry = Release("select", 1, EXPONENTIAL, epsilon=noise.epsilon)
    drawn = ledger.selection_share(many, noise, entry, source, draws=True).reshape(trials, 4)
    hits = np.bincount(np.argmax(drawn + other, axis=1), minlength=4)
    assert float(((hits - trials * p) ** 2 / (trials * p)).sum()) < 30.66
    half = np.exp((scores + other) / (noise.scale / 2))
    half /= half.sum()
    assert float(((hits - trials * half) ** 2 / (trials * half)).sum()) > 1000  # half the noise would not pass


def test_a_party_that_does_not_draw_pays_all_the_same() -> None:
    noise, budget = SelectionNoise(0.05, 64), PrivacyBudget(1.0, 1e-5)
    assert DRAWING == (0, 1)
    for draws in (True, False):
        ledger = Ledger(budget)
        entry = Release("select", 2, EXPONENTIAL, 4.0, epsilon=noise.epsilon, noise_by=PARTIES)
        share = ledger.selection_share(np.zeros(6, np.int64), noise, entry, Randomness(0).generator("x"), draws=draws)
        assert share.dtype == np.int64 and share.any() == draws
        (entry,) = ledger.releases
        assert entry.rho == pytest.approx(0.05**2 / 8) and entry.noise_by == "the three parties, a share each"


def test_nothing_is_drawn_beyond_the_budget() -> None:
    class Unused:
        def gumbel(self, *_: object, **__: object) -> None:
            raise AssertionError("noise was drawn before the charge")

    ledger = Ledger(PrivacyBudget(0.1, 1e-5))
    with pytest.raises(BudgetExceeded):
        entry = Release("select", 1, EXPONENTIAL, epsilon=5.0)
        ledger.selection_share(np.zeros(3, np.int64), SelectionNoise(5.0, 9), entry, Unused(), draws=True)  # type: ignore[arg-type]


def test_a_choice_is_charged_with_the_epsilon_of_its_noise() -> None:
    ledger, entry = Ledger(PrivacyBudget(1.0, 1e-5)), Release("select", 1, EXPONENTIAL, epsilon=0.01)
    with pytest.raises(ValueError, match="the epsilon that its noise is drawn for"):
        ledger.selection_share(
            np.zeros(3, np.int64), SelectionNoise(0.02, 9), entry, Randomness(0).generator("x"), draws=True
        )
    assert not ledger.releases


def test_noise_that_could_leave_62_bits_is_refused() -> None:
    SelectionNoise(0.01, 2**20).check(2.0**61)
    with pytest.raises(ConfigError, match="larger"):
        SelectionNoise(1e-9, 2**40).check(2.0**61)
    for epsilon, moved in ((0.0, 1), (math.inf, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="epsilon"):
            SelectionNoise(epsilon, moved)
