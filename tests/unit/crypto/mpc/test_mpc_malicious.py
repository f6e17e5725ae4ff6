"""Checked products: results as without checks, a lie ends the computation before it tells something, the bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats

from benchmarks.mpc_threads import in_threads
from fedsyn.crypto.mpc import checking
from fedsyn.crypto.mpc.checking import assignment, buckets
from fedsyn.crypto.mpc.dealing import ServerShare, deal, received, reconstruct
from fedsyn.crypto.mpc.network import Cheating, LocalNetwork, Network
from fedsyn.crypto.mpc.rounds import RING
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import Shared, Words, bits_of, words

KEYS = [bytes([k]) * 32 for k in (1, 2, 3)]
RNG = np.random.default_rng(5)
X, Y = RNG.integers(-(2**26), 2**26, (2, 70))
STARTS = np.array([0, 0, 40, 41])
LIARS = pytest.mark.parametrize("liar", [0, 1, 2])


def secret(session: Session, values: Any) -> Shared:
    vector = np.asarray(values, np.int64)
    dealt = deal(vector, np.random.default_rng(len(vector)).bytes(64))
    return received(
        session.index, dealt.seeds_of(session.index), dealt.correction if session.index else None, len(vector)
    )


def checked(index: int, keys: tuple[bytes, bytes], network: Network) -> Session:
    return Session(index, keys, network, malicious=True)


def computed(program: Callable[[Session], Any]) -> Any:
    results = in_threads(program, KEYS, LocalNetwork(timeout=20), checked)
    for other in results[1:]:
        assert np.array_equal(results[0], other)
    return results[0]


# Results -------------------------------------------------------------------------------------------------------------


def by_segment(values: np.ndarray) -> list[int]:
    return [int(values[a:b].sum()) for a, b in itertools.pairwise([*STARTS, len(values)])]


def test_results_are_those_without_checks() -> None:
    def program(s: Session) -> list[int]:
        x, y = secret(s, X), secret(s, Y)
        found = [s.multiply(x, y), s.inner(x, y, STARTS), s.squared(x, STARTS), s.l1(x, STARTS, 27)]
        found += [
            s.multiply(s.input(RING, 1, words(Y) if s.index == 1 else None, len(Y)), x) + s.sum_of_inputs(X * s.index)
        ]
        found += [s.sum_of_bounded_inputs(X % 100 - s.index, 8)]
        signs = s.open_planes(bits_of(s.negative(x, 27), len(X)))
        return np.concatenate([*(s.open(f) for f in found), signs.astype(np.int64), [s.argmax(x, 28)]]).tolist()

    expected = [*X * Y, *by_segment(X * Y), *by_segment(X * X), *by_segment(abs(X)), *X * Y + 3 * X]
    expected += [*3 * (X % 100) - 3, *(X < 0), X.argmax()]
    assert computed(program) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 65, 513])
def test_argmax(count: int) -> None:
    values = RNG.integers(-5, 6, count)
    assert computed(lambda s: s.argmax(secret(s, values), 5)) == values.argmax()


def test_a_server_outside_reconstructs() -> None:
    def program(s: Session) -> ServerShare:
        return s.shares_for_server(s.multiply(secret(s, X), secret(s, Y)))

    assert np.array_equal(reconstruct(in_threads(program, KEYS, None, checked)), X * Y)


def test_gates_in_several_batches_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_BATCH", 30), ("_PIECE", 64), ("_MOST", 500)):
        monkeypatch.setattr(checking, name, value)
    assert checking._batches(70) == [(0, 35), (35, 70)]
    assert np.array_equal(computed(lambda s: s.open(s.l1(secret(s, X), STARTS, 27))), by_segment(abs(X)))


def test_rounds_and_bytes_are_those_of_the_documentation() -> None:
    def cost(program: Callable[[Session], Any]) -> tuple[int, int]:
        def counted(s: Session) -> tuple[int, int]:
            program(s)
            return s.rounds, s.bytes_sent

        ((rounds, sent),) = set(in_threads(counted, KEYS, None, checked))
        return rounds, sent

    def triples(gates: int) -> int:
        size, dummies = buckets(gates)
        return size * (gates + dummies)

    n, coin = len(X), 32 + 32
    gates = 7  # words of 64 lanes
    one = 24 * triples(n) + coin + 32 + 64 + 4
    assert cost(lambda s: s.open(secret(s, X))) == (2, 8 * n + 36)
    assert cost(lambda s: s.shares_for_server(secret(s, X))) == (0, 0)
    assert cost(lambda s: s.shares_for_server(s.multiply(secret(s, X), secret(s, X)))) == (6, 8 * n + one)
    assert cost(lambda s: s.shares_for_server(s.inner(secret(s, X), secret(s, X), STARTS))) == (6, 8 * n + one)
    both = one + 24 * triples(gates) + coin + 32

    def program(s: Session) -> None:
        x = secret(s, X)
        s.and_planes(x[:gates], x[:gates])
        s.open(s.multiply(x, x))

    assert cost(program) == (2 + 8 + 2, 8 * (n + gates) + both + 8 * n + 36)


# The bound -----------------------------------------------------------------------------------------------------------


def best_cheater(gates: int, size: int, dummies: int) -> Fraction:
    """The largest probability to pass of any errors of gates, one at least, and of triples; counts arrangements."""
    best = Fraction(0)
    count = size * (gates + dummies)
    for d in itertools.product(range(3), repeat=gates):
        if not any(d):
            continue
        wanted = [error for error in (*d, *[0] * dummies) for _ in range(size)]
        for e in itertools.combinations_with_replacement(range(3), count):
            if sorted(wanted) == list(e):  # else no arrangement passes
                passing = sum(list(arranged) == wanted for arranged in itertools.permutations(e))
                best = max(best, Fraction(passing, math.factorial(count)))
    return best


@pytest.mark.parametrize(
    ("gates", "size", "dummies"),
    [(1, 1, 1), (1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2), (3, 1, 2), (5, 1, 1), (3, 2, 1)],
)
def test_the_bound_is_what_the_best_cheater_reaches(gates: int, size: int, dummies: int) -> None:
    assert best_cheater(gates, size, dummies) == Fraction(1, math.comb(size * (gates + dummies), size))


def test_without_dummies_a_cheater_passes_for_certain() -> None:
    assert best_cheater(2, 2, 0) == 1


@pytest.mark.parametrize("security", [1, 5, 12, 20])
def test_buckets_are_the_fewest_triples_that_suffice(security: int) -> None:
    for gates in (1, 2, 3, 5, 10, 40, 200):
        enough = [
            size * (gates + dummies)
            for size in range(1, 30)
            for dummies in range(1, 300)
            if math.comb(size * (gates + dummies), size) >= 2**security
        ]
        size, dummies = buckets(gates, security)
        assert dummies >= 1
        assert math.comb(size * (gates + dummies), size) >= 2**security
        assert size * (gates + dummies) == min(enough)


def test_buckets_of_real_sizes() -> None:
    assert buckets(1) == (22, 1)
    assert buckets(6_252) == (3, 1)
    assert buckets(741_455) == (2, 1)
    assert buckets(741_454) == (2, 2)
    assert buckets(990_000) == (2, 1)
    for gates in (1, 10, 161, 5_000, 330_000, 505_386, 990_000, 10**7):
        size, dummies = buckets(gates)
        assert math.comb(size * (gates + dummies), size) >= 2**40


def test_an_assignment_is_a_uniform_permutation() -> None:
    """90 ways to give 6 triples to 3 gates, of 9,000 seeds that do not change: no false alarm unless NumPy changes."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(9_000):
        place = tuple(assignment(seed.to_bytes(32, "little"), 3, 2).tolist())
        assert sorted(place) == [0, 0, 1, 1, 2, 2]
        counts[place] = counts.get(place, 0) + 1
    assert len(counts) == 90
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 0.001


def test_equal_words_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([[5, 1, 5, 2], [4, 3, 2, 1]])

    class Fake:
        def __init__(self, key: bytes) -> None:
            pass

        def words(self, count: int) -> Words:
            return np.array(next(drawn), np.uint64)

    monkeypatch.setattr(checking, "KeyStream", Fake)
    assert assignment(bytes(32), 2, 2).tolist() == [1, 1, 0, 0]


def test_the_coin_comes_after_gates_and_triples() -> None:
    class Noting(Session):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, malicious=True)
            self.steps: list[str] = []

        def _product(self, *args: Any) -> Shared:
            product = super()._product(*args)  # the other party's message has arrived
            self.steps.append("product")
            return product

        def _assigned(self, *args: Any) -> Any:
            self.steps.append("coin")
            return super()._assigned(*args)

    def program(s: Session) -> list[str]:
        assert isinstance(s, Noting)
        x = secret(s, X)
        s.open(s.multiply(s.multiply(x, x), x))
        return s.steps

    assert in_threads(program, KEYS, None, Noting) == [["product"] * 3 + ["coin"]] * 3


def test_the_coin_depends_on_every_key_and_differs_each_time() -> None:
    found = set()
    for changed in (None, 0, 1, 2):
        keys = [bytes([9]) * 32 if k == changed else key for k, key in enumerate(KEYS)]
        places = in_threads(lambda s: [tuple(s._assigned(40, 2).tolist()) for _ in range(2)], keys, None, checked)
        assert places[0] == places[1] == places[2]
        found |= set(places[0])
    assert len(found) == 8


def test_a_check_that_breaks_off_ends_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(checking, "assignment", fails)

    def program(s: Session) -> str:
        z = s.multiply(secret(s, X), secret(s, Y))
        with pytest.raises(MemoryError):
            s.open(z)
        with pytest.raises(Cheating, match="MemoryError") as error:
            s.open(z)
        return str(error.value)

    computed(program)
