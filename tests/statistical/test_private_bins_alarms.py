"""How often noise alone makes a range or a category: as often as is stated, and not much less.

Of m cells without rows the maximum of N(0, sigma²) exceeds threshold(sigma, m, a) with probability
1 - (1 - a/m)^m, which lies between a - a²/2 and a. Over N tables the number of alarms is binomial; with a = 0.05
and N = 4,000 it has mean 195 to 200 and standard deviation 14. The bounds below are five of these away.
"""

from __future__ import annotations

import numpy as np

from fedsyn.private_bins.prefixes import SYMBOLS, PrefixTree
from fedsyn.private_bins.ranges import FALSE_ALARM, significant_range, threshold, universe

_TABLES, _RATE = 4_000, 0.05
_LOW, _HIGH = 195 - 5 * 14, 200 + 5 * 14


def test_an_empty_column_gets_a_range_as_rarely_as_is_stated() -> None:
    rng, sigma = np.random.default_rng(0), 30.0
    cells = len(universe(True, None, None)) - 1
    least = threshold(sigma, cells, _RATE)
    alarms = sum(significant_range(rng.normal(0, sigma, cells), least)[2] for _ in range(_TABLES))
    assert _LOW < alarms < _HIGH


def test_an_empty_column_gets_a_prefix_as_rarely_as_is_stated() -> None:
    rng, sigma, alarms = np.random.default_rng(1), 12.0, 0
    for _ in range(_TABLES):
        tree = PrefixTree(8, 8)
        tree.take(rng.normal(0, sigma, SYMBOLS), sigma, SYMBOLS, _RATE)
        alarms += bool(tree.alive or tree.found)
    assert _LOW < alarms < _HIGH


def test_a_category_far_below_the_threshold_hardly_ever_appears() -> None:
    """A text of one row at sigma 20: its prefix stands out of the first level with probability 1 - Φ((T - 1)/20).

    T is the 1 - 0.01/257 quantile, 3.95 sigma; one row more or less changes that probability from 3.9e-5 to 4.8e-5.
    It has to stand out once more for every byte of it. In 2,000 tables one such level is expected 0.1 times.
    """
    rng, sigma, seen = np.random.default_rng(2), 20.0, 0
    for _ in range(2_000):
        tree = PrefixTree(8, 4)
        counts = rng.normal(0, sigma, SYMBOLS)
        counts[ord("x")] += 1
        tree.take(counts, sigma, SYMBOLS, FALSE_ALARM)
        seen += b"x" in tree.alive
    assert seen <= 2
