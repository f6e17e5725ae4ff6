"""How large a committee is: the documented table, against brute force, and its own promises."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsyn.aggregation.secagg.size import FEWEST, TRIALS, Size, derive, hypergeometric_tail
from fedsyn.errors import ConfigError

DOCUMENTED = {  # docs/secure_sums.md: clients -> members, semi-honest and malicious
    3: (3, 3),
    10: (10, 10),
    20: (10, 10),
    100: (16, 26),
    1_000: (36, 112),
    5_000: (38, 134),
    100_000: (38, 141),
}


def test_hypergeometric_tails_are_exact() -> None:
    for population, marked, draws in [(10, 3, 4), (30, 12, 7), (99, 5, 16), (999, 50, 46)]:
        for least in range(draws + 2):
            ours = hypergeometric_tail(population, marked, draws, least)
            assert float(ours) == pytest.approx(
                scipy.stats.hypergeom.sf(least - 1, population, marked, draws), rel=1e-9, abs=1e-300
            )
    subsets = list(itertools.combinations(range(8), 3))
    hits = sum(len({0, 1, 2, 3} & set(subset)) >= 2 for subset in subsets)
    assert hypergeometric_tail(8, 4, 3, 2) == Fraction(hits, len(subsets))


@pytest.mark.parametrize("clients", DOCUMENTED)
def test_the_documented_table(clients: int) -> None:
    corrupted, dropouts = int(0.05 * clients), int(0.1 * clients)
    sizes = tuple(derive(clients, corrupted, dropouts, 40, malicious).members for malicious in (False, True))
    assert sizes == DOCUMENTED[clients]


@given(st.integers(2, 400), st.integers(0, 60), st.integers(0, 60), st.sampled_from([10, 20, 40]), st.booleans())
def test_a_committee_keeps_its_promises_and_a_smaller_one_would_not(
    n: int, corrupted: int, dropouts: int, bits: int, malicious: bool
) -> None:
    try:
        size = derive(n, corrupted, dropouts, bits, malicious)
    except ConfigError:
        assert n <= corrupted + (2 if malicious else 1) * dropouts
        return
    assert min(n, FEWEST) <= size.members <= n
    assert size.members - size.corrupted - (2 if malicious else 1) * size.lost >= 1
    assert size.corrupted < size.threshold <= size.members - size.lost
    if size.members == n:
        assert (size.corrupted, size.lost) == (corrupted, dropouts)  # certain, whatever the bits
        return
    drawn, gone = Fraction(1, 2 ** (bits + TRIALS * malicious)), Fraction(1, 2**bits)
    assert hypergeometric_tail(n, corrupted, size.members, size.corrupted + 1) <= drawn
    assert hypergeometric_tail(n, dropouts, size.members, size.lost + 1) <= gone
    assume(size.members > FEWEST)
    fewer = size.members - 1
    bad = next(k for k in range(n + 1) if hypergeometric_tail(n, corrupted, fewer, k + 1) <= drawn)
    lost = next(k for k in range(n + 1) if hypergeometric_tail(n, dropouts, fewer, k + 1) <= gone)
    assert not Size(fewer, bad, lost).protects(malicious)


@pytest.mark.parametrize("members", [4, 5, 6])
def test_different_stories_never_reveal_every_honest_key(members: int) -> None:
    """Brute force over what a malicious server may tell each honest member: at most `lost` others are gone.

    Shares of corrupted members are the server's own. Whatever it asks, one honest key lacks shares.
    """
    for corrupted, lost in itertools.product(range(members), range(1, members)):
        size = Size(members, corrupted, lost)
        honest = members - corrupted
        stories = list(itertools.combinations(range(members), lost))
        may = [[story for story in stories if member not in story] for member in range(honest)]
        if len(stories) ** honest > 200_000:
            continue
        worst = max(
            sum(corrupted + sum(owner in story for story in told) >= size.threshold for owner in range(honest))
            for told in itertools.product(*may)
        )
        if size.protects(malicious=True):
            assert worst < honest
        elif honest > 0 and corrupted + lost < members and corrupted == 0 and members == 4:
            assert worst == honest or lost < 2  # the bound is not idle: two gone of four can be had
