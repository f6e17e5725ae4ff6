"""The operations of three parties against plaintext, what they cost, and how they end when a party is gone."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.mpc_threads import in_threads
from fedsyn.crypto.mpc.dealing import deal, received, reconstruct
from fedsyn.crypto.mpc.network import Cheating, LocalNetwork, PartyGone
from fedsyn.crypto.mpc.rounds import RING
from fedsyn.crypto.mpc.session import Session, group_sizes
from fedsyn.crypto.mpc.shared import Shared, bits_of, words
from fedsyn.errors import ProtocolError

KEYS = [bytes([k]) * 32 for k in (1, 2, 3)]
RNG = np.random.default_rng(5)


def secret(session: Session, values: Any) -> Shared:
    """A vector as a client would have dealt it."""
    vector = np.asarray(values, np.int64)
    dealt = deal(vector, np.random.default_rng(len(vector)).bytes(64))
    return received(
        session.index, dealt.seeds_of(session.index), dealt.correction if session.index else None, len(vector)
    )


def computed(program: Callable[[Session], Any], keys: list[bytes] = KEYS) -> Any:
    """The result of a program, equal at all parties."""
    results = in_threads(program, keys, LocalNetwork(timeout=20))
    for other in results[1:]:
        assert np.array_equal(results[0], other)
    return results[0]


def signs(session: Session, values: np.ndarray, bits: int) -> np.ndarray:
    return session.open_planes(bits_of(session.negative(secret(session, values), bits), len(values)))


# Against plaintext ---------------------------------------------------------------------------------------------------

X = RNG.integers(-(2**31), 2**31, 101)
Y = RNG.integers(-(2**31), 2**31, 101)


def test_products_and_inner_products() -> None:
    starts = np.array([0, 0, 40, 41, 101])
    assert np.array_equal(computed(lambda s: s.open(s.multiply(secret(s, X), secret(s, Y)))), X * Y)
    expected = [0, X[:40] @ Y[:40], X[40] * Y[40], X[41:] @ Y[41:], 0]
    assert np.array_equal(computed(lambda s: s.open(s.inner(secret(s, X), secret(s, Y), starts))), expected)
    expected = [0, X[:40] @ X[:40], X[40] ** 2, X[41:] @ X[41:], 0]
    assert np.array_equal(computed(lambda s: s.open(s.squared(secret(s, X), starts))), expected)


def test_operations_keep_shapes() -> None:
    def program(s: Session) -> np.ndarray:
        x = secret(s, np.arange(12)).reshape(3, 4)
        return s.open(s.multiply(x, x).sum(0))

    assert np.array_equal(computed(program), (np.arange(12).reshape(3, 4) ** 2).sum(0))


def test_and_of_words() -> None:
    """A dealt vector's slots, read as an exclusive or: random words whose value `open_planes` tells."""

    def program(s: Session) -> np.ndarray:
        x, y = secret(s, X), secret(s, Y[:-1])[np.arange(len(X)) % 100]
        return np.concatenate([s.open_planes(s.and_planes(x, y)), s.open_planes(x), s.open_planes(y)])

    both, x, y = np.split(computed(program), 3)
    assert np.array_equal(both, x & y)
    assert both.all() and not np.array_equal(x, y)


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_an_input_of_one_party(owner: int) -> None:
    def program(s: Session) -> np.ndarray:
        x = s.input(RING, owner, words(X) if s.index == owner else None, len(X))
        return s.open(s.multiply(x, x) + x)

    assert np.array_equal(computed(program), X * X + X)


def test_the_sum_of_an_input_of_each() -> None:
    assert np.array_equal(computed(lambda s: s.open(s.sum_of_inputs(X * 10**s.index))), X * 111)


@pytest.mark.parametrize("bits", [1, 2, 17, 63])
@pytest.mark.parametrize("length", [0, 1, 64, 70])
def test_the_sum_of_bounded_inputs(bits: int, length: int) -> None:
    high = 2 ** (bits - 1)
    values = np.random.default_rng(bits).integers(-high, high, (3, length))
    values[:, :1], values[:, 1:2] = -high, high - 1
    total = computed(lambda s: s.open(s.sum_of_bounded_inputs(values[s.index], bits)))
    assert np.array_equal(total, values.sum(0))


@pytest.mark.parametrize(("value", "bits"), [(8, 4), (-9, 4), (0, 0), (0, 64)])
def test_a_bounded_input_has_bounds(value: int, bits: int) -> None:
    with pytest.raises(ValueError, match=r"does not fit 4 bits|1 to 63 bits"):
        computed(lambda s: s.sum_of_bounded_inputs(np.array([value]), bits))


def test_an_argmax_out_of_bounds_is_an_error() -> None:
    """Modulo 8 each of 0, 3 and 6 is larger than the one before it, and 0 larger than 6."""
    with pytest.raises(ProtocolError, match="leave their 3 bits"):
        computed(lambda s: s.argmax(secret(s, [0, 3, 6]), 3))


def test_a_computation_is_over_after_an_error() -> None:
    def program(s: Session) -> str:
        with contextlib.suppress(Cheating):
            s.open(secret(s, X) + (s.constant(X) if s.index == 0 else 0))
        with pytest.raises(Cheating, match="the computation is over") as error:
            s.shares_for_server(secret(s, X))
        return str(error.value)[:10]

    computed(program)


def test_a_public_constant_is_shared() -> None:
    assert np.array_equal(computed(lambda s: s.open(s.multiply(s.constant(X), secret(s, Y)))), X * Y)


@pytest.mark.parametrize("bits", range(1, 65))
def test_signs_at_the_edge_of_the_range(bits: int) -> None:
    high = 2 ** (bits - 1)
    edge = {e for e in (0, 1, -1, 2, high - 1, high - 2, -high, 1 - high) if -high <= e < high}
    values = np.array([*sorted(edge), *RNG.integers(-high, high, 90, dtype=np.int64, endpoint=False)])
    assert np.array_equal(computed(lambda s: signs(s, values, bits)), values < 0)


def test_a_sign_has_1_to_64_bits() -> None:
    for bits in (0, 65):
        with pytest.raises(ValueError, match="1 to 64"):
            computed(lambda s, bits=bits: signs(s, X, bits))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1000])
def test_l1_by_segment(length: int) -> None:
    values = RNG.integers(-(2**27), 2**27, length)
    values[0], values[-1] = -(2**27), 2**27 - 1
    starts = np.sort(RNG.integers(0, length + 1, 5))
    starts[0] = 0
    expected = [abs(part).sum() for part in np.split(values, starts[1:])]
    assert np.array_equal(computed(lambda s: s.open(s.l1(secret(s, values), starts, 28))), expected)


@pytest.mark.parametrize("bits", [2, 3, 5, 28, 62])
def test_l1_is_as_steep_everywhere_whatever_the_values(bits: int) -> None:
    """Values beyond 2^(bits-1) count as their residues: one step moves a sum by one, also where residues wrap."""
    edges = [k * 2 ** (bits - 1) + d for k in range(-4, 5) for d in (-1, 0, 1)]
    values = np.array([(v + 2**63) % 2**64 - 2**63 for v in edges] + [2**63 - 1, -(2**63)], dtype=np.int64)
    both = np.concatenate([values, (values.view(np.uint64) + np.uint64(1)).view(np.int64)])
    found = computed(lambda s: s.open(s.l1(secret(s, both), np.arange(len(both)), bits)))
    half = 2 ** (bits - 1)
    expected = [abs((int(v) + half) % (2 * half) - half) for v in both]
    assert found.tolist() == expected and max(expected) == half
    assert set(np.abs(found[: len(values)] - found[len(values) :]).tolist()) == {1}


@pytest.mark.parametrize("first", range(1, 201, 20))
def test_argmax_of_1_to_200_values_with_ties(first: int) -> None:
    """Each length with few distinct values, so with ties; the index of the first of the largest."""
    vectors = [RNG.integers(-2, 3, m) for m in range(first, first + 20)]
    found = computed(lambda s: [s.argmax(secret(s, v), 4) for v in vectors])
    assert list(found) == [int(v.argmax()) for v in vectors]


@pytest.mark.parametrize("sizes", [[2] * 7, [5, 5, 5], [11, 11], [3, 3, 3, 3, 2]])
def test_argmax_over_several_levels(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsyn.crypto.mpc.session.group_sizes", lambda count: sizes)
    most = int(np.prod(sizes))
    for count in (most, most - 1, most - sizes[0] - 1):
        high = 2**19
        ties, spread = RNG.integers(0, 2, count), RNG.integers(-high, high, count)
        spread[[0, -1]] = -high, high - 1
        for values, bits in ((ties, 2), (spread, 21), (np.zeros(count, np.int64), 1)):
            found = computed(lambda s, v=values, b=bits: s.argmax(secret(s, v), b))
            assert found == values.argmax()


@pytest.mark.parametrize("count", [513, 2000, 10_000])
def test_argmax_of_many(count: int) -> None:
    values = RNG.integers(-(2**30), 2**30, count)
    assert computed(lambda s: s.argmax(secret(s, values), 32)) == values.argmax()
    values[:] = 7
    assert computed(lambda s: s.argmax(secret(s, values), 32)) == 0


def test_argmax_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        computed(lambda s: s.argmax(secret(s, []), 8))


def test_a_result_does_not_depend_on_the_keys() -> None:
    starts = np.array([0, 30])
    for seed in range(5):
        keys = [np.random.default_rng([seed, k]).bytes(32) for k in range(3)]
        assert np.array_equal(
            computed(lambda s: s.open(s.l1(secret(s, X), starts, 33)), keys), [abs(X[:30]).sum(), abs(X[30:]).sum()]
        )


def test_a_server_outside_reconstructs() -> None:
    shares = in_threads(lambda s: s.shares_for_server(s.multiply(secret(s, X), secret(s, Y))), KEYS)
    assert np.array_equal(reconstruct(shares), X * Y)


_ORACLE = """
import json, sys
vectors = json.load(sys.stdin)
from mpyc.runtime import mpc
kind = mpc.SecInt(32)
async def main():
    async with mpc:
        for vector in vectors:
            secret = [kind(v) for v in vector]
            absolute = await mpc.output([mpc.abs(v) for v in secret])
            index = await mpc.output(mpc.argmax(secret)[0])
            print(json.dumps([[int(a) for a in absolute], int(index)]))
mpc.run(main())
"""


def test_absolute_values_and_argmax_of_mpyc() -> None:
    """MPyC (Schoenmakers), another implementation on other principles: Shamir's sharing over a prime field."""
    if importlib.util.find_spec("mpyc") is None:
        pytest.skip("mpyc is not installed: `pip install mpyc` gives this test its oracle")
    vectors = [[-5, 3, 7, 7, -8], [-1], [-(2**20), 2**20, 0], RNG.integers(-99, 99, 17).tolist(), [4] * 6]
    answer = subprocess.run(
        [sys.executable, "-c", _ORACLE],
        input=json.dumps(vectors),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in answer.stdout.splitlines() if line.startswith("[[")]  # between them MPyC's log
    for vector, line in zip(vectors, lines, strict=True):
        absolute, index = json.loads(line)
        each = np.arange(len(vector))
        assert computed(lambda s, v=vector, e=each: s.open(s.l1(secret(s, v), e, 32))).tolist() == absolute
        assert computed(lambda s, v=vector: s.argmax(secret(s, v), 32)) == index


# What it costs -------------------------------------------------------------------------------------------------------


def cost(program: Callable[[Session], Any]) -> list[tuple[int, int]]:
    """(rounds, bytes sent) of each party."""

    def counted(s: Session) -> tuple[int, int]:
        program(s)
        return s.rounds, s.bytes_sent

    return in_threads(counted, KEYS)


def test_rounds_and_bytes_are_those_of_the_documentation() -> None:
    n, starts = 640, np.array([0, 5, 64])
    v = RNG.integers(-99, 99, n)
    words = n // 64
    assert cost(lambda s: s.multiply(secret(s, v), secret(s, v))) == [(1, 8 * n)] * 3
    assert cost(lambda s: s.inner(secret(s, v), secret(s, v), starts)) == [(1, 8 * 3)] * 3
    assert cost(lambda s: s.squared(secret(s, v), starts)) == [(1, 8 * 3)] * 3
    assert cost(lambda s: s.and_planes(secret(s, v), secret(s, v))) == [(1, 8 * n)] * 3
    assert cost(lambda s: s.sum_of_inputs(v)) == [(1, 8 * n)] * 3
    assert cost(lambda s: s.input(RING, 1, v.view(np.uint64) if s.index == 1 else None, n)) == [
        (1, 0),
        (1, 8 * n),
        (1, 0),
    ]
    assert cost(lambda s: s.sum_of_bounded_inputs(v, 8)) == [(4, 8 * (8 * words + 3 * 8 * n))] * 3
    assert cost(lambda s: s.open(secret(s, v))) == [(2, 8 * n + 36)] * 3
    assert cost(lambda s: s.shares_for_server(secret(s, v) * 3 + secret(s, v)[0] - 4)) == [(0, 0)] * 3
    assert cost(lambda s: s.negative(secret(s, v), 28)) == [(7, 98 * 8 * words)] * 3
    assert cost(lambda s: s.l1(secret(s, v), starts, 28)) == [(10, 100 * 8 * words + 32 * n + 3 * 8 * 3)] * 3
    for bits in range(3, 65):
        for rounds, sent in cost(lambda s, b=bits: s.negative(secret(s, v[:64]), b)):
            assert rounds == 2 + int(np.ceil(np.log2(bits - 2)))
            assert sent < 4 * bits * 8
    ((rounds, sent),) = set(cost(lambda s: s.argmax(secret(s, v[:161]), 28)))
    assert rounds == 7 + 8 + 2
    pairs = 161 * 160 // 2
    assert sent == 8 * (98 * -(-pairs // 64) + 159 * 3 + 3) + 36  # signs, 159 ands of 161 bits, opening


@pytest.mark.slow
def test_a_tournament_has_few_levels_and_few_pairs() -> None:
    for count in range(1, 10_001):
        sizes = group_sizes(count)
        pairs, left = 0, count
        for size in sizes:
            left = -(-left // size)
            pairs += left * size * (size - 1) // 2
        assert left == 1
        assert pairs <= 2**17
        assert len(sizes) == (count > 1) + (count > 512) + (count > 4096)
    assert np.prod(group_sizes(2**18)) >= 2**18  # also where it has to compare more than it would like


# Gone, slow and lying parties ----------------------------------------------------------------------------------------


def outcomes(programs: list[Callable[[Session], Any]], timeout: float) -> list[Any]:
    """What each party ends with: a result or the error it raised."""

    def run(s: Session) -> Any:
        try:
            return programs[s.index](s)
        except Exception as error:
            return error

    return in_threads(run, KEYS, LocalNetwork(timeout))


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_the_others_end_when_a_party_is_silent(gone: int) -> None:
    def program(s: Session) -> Any:
        return s.argmax(secret(s, X), 40)

    def leaves(s: Session) -> str:
        s.multiply(secret(s, X), secret(s, X))
        return "left"

    started = time.monotonic()
    ends = outcomes([leaves if i == gone else program for i in range(3)], timeout=0.2)
    assert time.monotonic() - started < 5
    for i, end in enumerate(ends):
        if i == gone:
            continue
        assert isinstance(end, (PartyGone, ProtocolError))  # a message of another length is noticed before silence
        assert re.fullmatch(
            r"party \d (heard nothing from party \d for 0\.2 seconds|sent \d+ bytes where \d+ are due"
            r"|has ended the computation: it noticed an error)",
            str(end),
        )


def test_the_others_end_when_a_party_is_slow() -> None:
    def slow(s: Session) -> Any:
        time.sleep(1)
        return s.open(secret(s, X))

    ends = outcomes([slow, lambda s: s.open(secret(s, X)), lambda s: s.open(secret(s, X))], timeout=0.2)
    assert str(ends[1]) == "party 1 heard nothing from party 0 for 0.2 seconds"
    assert isinstance(ends[2], (PartyGone, Cheating))  # by itself, or because party 1 says so


def test_an_error_at_one_party_wakes_the_others() -> None:
    network = LocalNetwork(timeout=60)
    seen: list[BaseException] = []

    def program(s: Session) -> Any:
        if s.index == 2:
            raise ZeroDivisionError("a bug")
        try:
            return s.open(secret(s, X))
        except PartyGone as error:
            seen.append(error)
            raise

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        in_threads(program, KEYS, network)
    assert time.monotonic() - started < 5
    assert {str(error) for error in seen} == {"the computation ended because party 2 failed"}
    with pytest.raises(PartyGone, match="party 2 failed"):
        network.endpoints[0].send(1, b"")


@pytest.mark.parametrize("liar", [0, 1, 2])
@pytest.mark.parametrize("copy", ["own", "next"])
def test_a_share_opened_in_two_versions_is_noticed(liar: int, copy: str) -> None:
    def lies(s: Session) -> Any:
        x = secret(s, X)
        return s.open(
            Shared(x.own + (copy == "own"), x.next + (copy == "next"), s.index).mapped(lambda w: w.astype(np.uint64))
        )

    ends = outcomes([lies if i == liar else lambda s: s.open(secret(s, X)) for i in range(3)], timeout=5)
    victim = (liar + 1) % 3 if copy == "own" else (liar - 1) % 3
    assert isinstance(ends[victim], Cheating)
    assert re.fullmatch(r"parties \d and \d disagree about a share; nothing was opened", str(ends[victim]))
    for other in {0, 1, 2} - {victim}:
        assert str(ends[other]) == f"party {victim} has ended the computation: it noticed an error"


def test_an_input_has_the_length_that_was_said() -> None:
    with pytest.raises(ValueError, match="gives 100 values"):
        computed(lambda s: s.input(RING, 0, words(X) if s.index == 0 else None, 100))
