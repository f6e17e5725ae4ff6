"""Discrete Gaussian numbers from random bits and integers alone.

N_Z(0, s²), P(x) ∝ exp(-x² / (2 s²)) on the integers.

No floating-point number takes part in a draw. `_Table` inverts the distribution function of |X|, held as integers of
191 bits: a random word gives the sign and the first 63 bits of a uniform number, which decide nearly always; where they
coincide with those of an entry, 128 more bits are drawn. A large s is a sum of two smaller ones (`split`).

Error of one draw, in total variation:

* Table. With N entries: each is rounded down by less than 2^-191, outcomes beyond N are left out with probability at
  most 2 exp(-N²/(2 s²)) <= 2^-191, and the weights are computed to 2^-270 (`_weights`). Together below
  (N + 4) 2^-190, which is below 2^-175 for every table that is built here (N < 2^15).
* Sum. X₁ + k X₂ with variances V₁ + k² V₂ = s²: completing the square, `P(z) ∝ exp(-z²/(2 s²)) Σ_y exp(-(y-m_z)²/(2
  c²))` with c² = V₁ V₂ / s² and some real m_z. By Poisson summation the sum over y is `sqrt(2π) c (1 + 2 Σ_j exp(-2 π²
  c² j²) cos(2π j m_z))`: it is the same for every z up to a factor 1 ± θ, θ <= 2.1 exp(-2 π² c²). Here c² >= 9, so
  θ < 2^-250, and so is the sum's total variation from N_Z(0, s²). Errors of the parts add.

So one draw is within 2^-170 of N_Z(0, s²), whatever s (at most 8 tables); 2^60 draws are, together, within 2^-110.
Neither the time nor the number of words that a draw takes is constant.

Sources: Canonne, Kamath & Steinke 2020 (the distribution and its tail bound); Micciancio & Walter 2017 (the sum).
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsyn.randomness import RandomSource

SMALLEST, LARGEST = 0.25, 2.0**40  # of s
#: The largest variance of one table: 17,000 entries, made in about 20 ms.
TABLE_VARIANCE = 2**20
_HEAD_BITS, _LOW_BITS = 63, 128
_WORK_BITS = 320
_BUCKET_BITS = 16
_CHUNK = 1 << 13  # words at a time: a chunk's arrays fit into the nearest caches


def discrete_gaussian(s: float, size: int, source: RandomSource) -> NDArray[np.int64]:
    """Draws `size` independent numbers of N_Z(0, s²).

    Args:
        s: parameter. The standard deviation is at most s, and from s = 3 on equals it to within 1e-70.
        size: how many.
        source: one 64-bit word per number and table is drawn.

    Raises:
        ValueError: for s outside [0.25, 2^40].
    """
    total = np.zeros(size, np.int64)
    for factor, table in _tables(s):
        for start in range(0, size, _CHUNK):
            part = total[start : start + _CHUNK]
            part += factor * table.draw(len(part), source)
    return total


@lru_cache(maxsize=64)
def _tables(s: float) -> tuple[tuple[int, _Table], ...]:
    if not SMALLEST <= s <= LARGEST:
        raise ValueError(f"a discrete Gaussian needs a standard deviation from {SMALLEST:g} to {LARGEST:g}")
    return tuple((factor, _Table(variance)) for factor, variance in split(Fraction(s) ** 2))


def split(variance: Fraction, largest: int = TABLE_VARIANCE) -> list[tuple[int, Fraction]]:
    """Splits a variance exactly into factors and small variances.

    The factors f and the variances V, none above `largest`, have Σ f² V = `variance`. Then Σ f X_V, X_V from N_Z(0, V),
    is N_Z(0, variance) up to the error in the module's docstring. Every split has V₁ = 10 k² and V₂ = variance/k² - 10,
    about equal, so that c² = 10 (1 - 10 k²/variance).
    """
    if variance <= largest:
        return [(1, variance)]
    k = math.isqrt(math.isqrt(int(variance) // 10))
    first, second = Fraction(10 * k * k), variance / (k * k) - 10
    assert first * second >= 9 * variance
    return split(first, largest) + [(k * factor, part) for factor, part in split(second, largest)]


class _Table:
    """The distribution of |X|, X from N_Z(0, variance), for inversion.

    Attributes:
        heads: (N,) uint64, the first 63 bits of P(|X| <= i), i = 0 ... N-1.
        lows: the next 128 bits of each.
        direct: (2^16,) int32, |X| by the first 16 bits of the uniform number; -1 where they do not decide.
    """

    def __init__(self, variance: Fraction) -> None:
        # 2 exp(-N²/(2 variance)) <= 2^-191 for N² >= 2 * 192 log(2) variance = 266.2 variance.
        last = math.isqrt(math.ceil(267 * variance)) + 1
        cumulative = _cumulative(variance, last)
        self.heads = np.array([c >> _LOW_BITS for c in cumulative], dtype=np.uint64)
        self.lows = [c & ((1 << _LOW_BITS) - 1) for c in cumulative]
        inside = np.bincount(
            (self.heads >> np.uint64(_HEAD_BITS - _BUCKET_BITS)).astype(np.int64), minlength=1 << _BUCKET_BITS
        )
        self.direct = np.where(inside > 0, -1, np.cumsum(inside)).astype(np.int32)
        for array in (self.heads, self.direct):
            array.flags.writeable = False  # every later draw with this s reads the same table

    def draw(self, size: int, source: RandomSource) -> NDArray[np.int64]:
        """Draws numbers, (size,) int64.

        The last bit of a word is the sign; the first 63 are those of the uniform number.
        """
        words = _words(size, source)
        magnitude = self.direct[words >> np.uint64(64 - _BUCKET_BITS)].astype(np.int64)
        undecided = np.flatnonzero(magnitude < 0)
        magnitude[undecided] = self._search(words[undecided] >> np.uint64(1), source)
        negative = (words & np.uint64(1)).view(np.int64)
        signed: NDArray[np.int64] = (magnitude ^ -negative) + negative
        return signed

    def _search(self, heads: NDArray[np.uint64], source: RandomSource) -> NDArray[np.int64]:
        """Returns how many table entries a uniform number reaches.

        The number begins with these 63 bits.
        """
        first = np.searchsorted(self.heads, heads, side="left")
        for i in np.flatnonzero(np.searchsorted(self.heads, heads, side="right") > first):  # one word in 2^49
            high, low = (int(word) for word in _words(2, source))
            rest = (high << 64) | low
            while first[i] < len(self.heads) and self.heads[first[i]] == heads[i] and self.lows[first[i]] <= rest:
                first[i] += 1
        return first


def _words(size: int, source: RandomSource) -> NDArray[np.uint64]:
    words: NDArray[np.int64] = source.integers(-(2**63), 2**63, size)
    return words.view(np.uint64)


def _cumulative(variance: Fraction, last: int) -> list[int]:
    """Returns scaled cumulative probabilities of a cut discrete Gaussian.

    They are floor(2^191 P(|X| <= i)) for i = 0 ... last-1, with X from N_Z(0, variance) cut to |X| <= last.
    """
    sums, total = [], 0
    for x, weight in enumerate(_weights(variance, last)):
        total += weight if x == 0 else 2 * weight
        sums.append(total)
    inverse = (1 << (2 * _WORK_BITS)) // total
    shift = 2 * _WORK_BITS - _HEAD_BITS - _LOW_BITS
    return [(c * inverse) >> shift for c in sums[:-1]]


def _weights(variance: Fraction, last: int) -> list[int]:
    """Returns 2^320 exp(-x²/(2 variance)) for x = 0 ... last.

    Each is off by at most 5 last² + 5 < 2^34. With q = exp(-1/(2 variance)) the ratio of neighbours is q^(2x+1). Every
    product is rounded down; an error of a ratio grows by at most 4 per step, and that of a weight by the ratio's plus
    1, since no factor exceeds one.
    """
    context = Context(prec=_WORK_BITS * 3 // 10 + 12)
    exponent = context.divide(Decimal(-variance.denominator), Decimal(2 * variance.numerator))
    ratio = int(context.multiply(context.exp(exponent), Decimal(1 << _WORK_BITS)))
    square = (ratio * ratio) >> _WORK_BITS
    weight = 1 << _WORK_BITS
    weights = []
    for _ in range(last + 1):
        weights.append(weight)
        weight = (weight * ratio) >> _WORK_BITS
        ratio = (ratio * square) >> _WORK_BITS
    return weights
