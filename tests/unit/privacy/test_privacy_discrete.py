"""The discrete Gaussian sampler's tables and arithmetic are exact to the bits that its docstring promises.

The reference is exp(-x²/(2 s²)) at 120 digits, computed anew for every x; probabilities are compared as fractions.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import mpmath
import numpy as np
import pytest

from fedsyn.privacy import _discrete
from fedsyn.privacy._discrete import discrete_gaussian, split
from fedsyn.randomness import OsRandom, Randomness

Pmf = dict[int, Fraction]


class Words:
    """A source that hands out given 64-bit words, in order, and none beyond them."""

    def __init__(self, words: Any) -> None:
        self.words = [int(word) for word in words]

    def integers(self, low: int, high: int, size: int) -> Any:
        assert (low, high) == (-(2**63), 2**63) and size <= len(self.words)
        given, self.words = self.words[:size], self.words[size:]
        return np.array(given, dtype=np.uint64).view(np.int64)


def entries(table: Any) -> list[int]:
    """2^191 P(|X| <= i) as the table holds it."""
    return [int(head) << 128 | low for head, low in zip(table.heads, table.lows, strict=True)]


def pmf_of(table: Any) -> Pmf:
    """The exact distribution of the table's draws."""
    bounds = [0, *entries(table), 1 << 191]
    magnitudes = [Fraction(after - before, 1 << 191) for before, after in pairwise(bounds)]
    result = {0: magnitudes[0]}
    for x, p in enumerate(magnitudes[1:], 1):
        result[x] = result[-x] = p / 2
    return result


def reference(variance: Fraction) -> Pmf:
    """N_Z(0, variance) at 120 digits, on |x| <= 18 s: beyond lies less than 2 exp(-162) < 2^-232."""
    with mpmath.workdps(120):
        reach = int(18 * mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)) + 2
        scale = mpmath.mpf(-variance.denominator) / (2 * variance.numerator)
        weights = [int(mpmath.exp(scale * x * x) * mpmath.mpf(2) ** 380) for x in range(reach)]
    total = weights[0] + 2 * sum(weights[1:])
    return {sign * x: Fraction(w, total) for x, w in enumerate(weights) for sign in (1, -1)}


def distance(one: Pmf, two: Pmf) -> Fraction:
    """Total variation, from probabilities that are cut to 400 bits (2^18 of them: off by less than 2^-380)."""
    ours, theirs = ({x: (p.numerator << 400) // p.denominator for x, p in law.items()} for law in (one, two))
    return Fraction(sum(abs(ours.get(x, 0) - theirs.get(x, 0)) for x in ours.keys() | theirs.keys()), 1 << 401)


@pytest.mark.parametrize("s", [0.25, 0.3, 1.0, 3.7, 17.355792387896475, 300.0])
def test_a_table_is_the_discrete_gaussian_to_175_bits(s: float) -> None:
    ((factor, table),) = _discrete._tables(s)
    assert factor == 1
    drawn = pmf_of(table)
    assert sum(drawn.values()) == 1
    assert distance(drawn, reference(Fraction(s) ** 2)) < Fraction(1, 2**175)
    # The test can tell: a parameter that is off by 1e-15 is seen.
    assert distance(drawn, reference((Fraction(s) * (1 + Fraction(1, 10**15))) ** 2)) > Fraction(1, 2**60)


def test_a_sum_of_two_tables_is_the_discrete_gaussian_to_170_bits() -> None:
    variance = Fraction(31.7) ** 2
    (f, first), (g, second) = split(variance, largest=200)
    assert f == 1 and g > 1 and f * f * first + g * g * second == variance
    small, large = pmf_of(_discrete._Table(first)), pmf_of(_discrete._Table(second))
    total: dict[int, int] = {}
    for (x, p), (y, q) in product(small.items(), large.items()):  # multiples of 2^-384, added as integers
        z = x + g * y
        total[z] = total.get(z, 0) + int(p * 2**192) * int(q * 2**192)
    exact = {z: Fraction(p, 2**384) for z, p in total.items()}
    assert sum(exact.values()) == 1
    assert distance(exact, reference(variance)) < Fraction(1, 2**170)
    # The gain is in the size of c: with k = 7 in place of 3 the sum would be visibly wrong.
    k = 7
    coarse: dict[int, int] = {}
    for (x, p), (y, q) in product(small.items(), pmf_of(_discrete._Table((variance - first) / k**2)).items()):
        coarse[x + k * y] = coarse.get(x + k * y, 0) + int(p * 2**192) * int(q * 2**192)
    assert distance({z: Fraction(p, 2**384) for z, p in coarse.items()}, reference(variance)) > Fraction(1, 2**160)


@pytest.mark.parametrize("s", [1024.5, 1e4, 123456.789, 1e6, 1e9, 2.0**40])
def test_every_split_is_exact_and_keeps_its_distance(s: float) -> None:
    def check(variance: Fraction) -> int:
        if variance <= _discrete.TABLE_VARIANCE:
            return 1
        parts = split(variance)
        assert sum(f * f * v for f, v in parts) == variance
        # The first division, as `split` documents it: V1 = 10 k², V2 = (variance - V1) / k².
        k = round(float(variance / 10) ** 0.25)
        k = next(j for j in (k - 1, k, k + 1) if j**4 <= variance / 10 < (j + 1) ** 4)
        first, second = Fraction(10 * k * k), (variance - 10 * k * k) / k**2
        assert first * second / variance >= 9
        assert parts == split(first) + [(k * f, v) for f, v in split(second)]
        return check(first) + check(second)

    assert check(Fraction(s) ** 2) == len(_discrete._tables(s)) <= 8
    assert all(len(table.heads) < 2**15 for _, table in _discrete._tables(s))


@pytest.mark.parametrize("s", [0.3, 3.0, 100.0])
def test_a_word_gives_what_exact_arithmetic_gives(s: float) -> None:
    """Words at both ends of every bucket, and just beside every entry, in both signs."""
    ((_, table),) = _discrete._tables(s)
    exact = entries(table)
    ends = [i << 47 for i in range(1 << 16)] + [(i << 47) - 1 for i in range(1, (1 << 16) + 1)]
    beside = [int(h) + d for h in table.heads for d in (-1, 1)]
    heads = [u for u in {*ends, *beside}.difference(table.heads.tolist()) if 0 <= u < 2**63]
    assert len(heads) > 120_000
    for sign in (0, 1):
        drawn = table.draw(len(heads), Words((u << 1) | sign for u in heads))
        expected = [bisect_right(exact, u << 128) for u in heads]  # no entry lies inside such a head's interval
        assert (drawn == np.array(expected) * (1 - 2 * sign)).all()


@pytest.mark.parametrize("s", [0.3, 3.0])
def test_128_more_bits_decide_where_63_do_not(s: float) -> None:
    ((_, table),) = _discrete._tables(s)
    exact = entries(table)
    tried = set()
    for i, entry in enumerate(exact):
        head = entry >> 128
        for low in {entry & (2**128 - 1), max(0, (entry & (2**128 - 1)) - 1), 0, 2**128 - 1}:
            source = Words([head << 1, low >> 64, low & (2**64 - 1)])
            drawn = int(table.draw(1, source)[0])
            assert drawn == bisect_right(exact, head << 128 | low) and not source.words
            tried.add(drawn - i)
    assert {0, 1} <= tried  # both sides of an entry; in the tail many entries share their first 63 bits
    assert sum(int(a) == int(b) for a, b in zip(table.heads, table.heads[1:], strict=False)) > 1


def test_symmetric_by_construction() -> None:
    words = np.random.default_rng(0).integers(0, 2**63, 1000, dtype=np.uint64) << np.uint64(1)
    for s in (1.0, 40.0):
        ((_, table),) = _discrete._tables(s)
        assert (table.draw(1000, Words(words)) == -table.draw(1000, Words(words | np.uint64(1)))).all()


def test_equal_seeds_give_equal_numbers_and_sources_of_both_kinds_work() -> None:
    for s, size in ((3.0, 100_000), (5000.0, 70_000), (3.0, 0)):
        one, two = (discrete_gaussian(s, size, Randomness(7).generator("share")) for _ in range(2))
        assert one.dtype == np.int64 and one.shape == (size,) and (one == two).all()
        fresh = discrete_gaussian(s, size, OsRandom())
        assert fresh.shape == (size,) and (size == 0 or (fresh != one).any())


@pytest.mark.parametrize("s", [0.0, -1.0, 0.2, 2.0**41, float("nan"), float("inf")])
def test_other_parameters_are_refused(s: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        discrete_gaussian(s, 1, OsRandom())
