"""Three-party computation on any small input gives what NumPy gives, whatever the keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.mpc_threads import in_threads
from fedsyn.crypto.mpc.dealing import deal, received
from fedsyn.crypto.mpc.network import LocalNetwork
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import Shared, bits_of

KEYS = st.lists(st.binary(min_size=32, max_size=32), min_size=3, max_size=3, unique=True)
WHOLE = st.integers(-(2**63), 2**63 - 1)


@st.composite
def bounded(draw: st.DrawFn, least: int = 0, least_bits: int = 1, most_bits: int = 64) -> tuple[list[int], int]:
    """Values, often at the edge of their range or equal, and the bits of the range."""
    bits = draw(st.integers(least_bits, most_bits))
    high = 2 ** (bits - 1)
    edges = st.sampled_from([e for e in (-high, high - 1, 0, -1, 1 - high) if -high <= e < high])
    values = draw(st.lists(st.one_of(edges, st.integers(-high, high - 1)), min_size=least, max_size=70))
    return values, bits


@st.composite
def segments(draw: st.DrawFn, length: int) -> np.ndarray:
    return np.array([0, *sorted(draw(st.lists(st.integers(0, length), max_size=4)))])


def computed(keys: list[bytes], values: list[list[int]], program: Callable[..., Any], malicious: bool = False) -> Any:
    """program(session, *shares) at party 0; the vectors were dealt with bytes that come from the keys."""
    make = functools.partial(Session, malicious=malicious)
    dealt = [deal(np.array(v, np.int64), keys[i % 3] + keys[(i + 1) % 3]) for i, v in enumerate(values)]

    def run(s: Session) -> Any:
        shares = [
            received(s.index, d.seeds_of(s.index), d.correction if s.index else None, len(d.correction)) for d in dealt
        ]
        return program(s, *shares)

    first, *others = in_threads(run, keys, LocalNetwork(timeout=20), make)
    assert all(np.array_equal(first, other) for other in others)
    return first


@settings(deadline=None)
@given(KEYS, st.lists(st.tuples(WHOLE, WHOLE), max_size=70), st.data())
def test_products_modulo_2_to_the_64(keys: list[bytes], pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    starts = data.draw(segments(len(x)))

    def program(s: Session, a: Shared, b: Shared) -> list[int]:
        one = s.open(s.multiply(a, b)), s.open(s.inner(a, b, starts)), s.open(s.squared(a, starts))
        return np.concatenate(one).tolist()

    def by_segment(values: list[int]) -> list[int]:
        return [sum(values[a:b]) for a, b in zip(starts, [*starts[1:], len(x)], strict=True)]

    products = [a * b for a, b in pairs]
    expected = products + by_segment(products) + by_segment([a * a for a in x])
    assert computed(keys, [x, y], program) == [(e + 2**63) % 2**64 - 2**63 for e in expected]


@settings(deadline=None)
@given(KEYS, bounded())
@example([bytes(31) + bytes([k]) for k in range(3)], ([], 28))
def test_signs(keys: list[bytes], given_: tuple[list[int], int]) -> None:
    values, bits = given_
    found = computed(keys, [values], lambda s, x: s.open_planes(bits_of(s.negative(x, bits), len(x))))
    assert found.tolist() == [v < 0 for v in values]


@settings(deadline=None)
@given(KEYS, bounded(least_bits=2, most_bits=57), st.data())  # 64 values of 2^56 sum to less than 2^63
def test_l1_by_segment(keys: list[bytes], given_: tuple[list[int], int], data: st.DataObject) -> None:
    values, bits = given_
    values = values[:64]
    starts = data.draw(segments(len(values)))
    ends = [*starts[1:], len(values)]
    found = computed(keys, [values], lambda s, x: s.open(s.l1(x, starts, bits)))
    assert found.tolist() == [sum(map(abs, values[a:b])) for a, b in zip(starts, ends, strict=True)]


@settings(deadline=None)
@given(KEYS, bounded(least=1, most_bits=63))
@example([bytes(31) + bytes([k]) for k in range(3)], ([5] * 65, 4))
def test_argmax_takes_the_first_of_the_largest(keys: list[bytes], given_: tuple[list[int], int]) -> None:
    values, bits = given_
    assert computed(keys, [values], lambda s, x: s.argmax(x, bits + 1)) == np.argmax(values)


@pytest.mark.slow
@settings(deadline=None)
@given(KEYS, bounded(least=1, least_bits=2, most_bits=50), st.data())
def test_checked_results_are_the_same(keys: list[bytes], given_: tuple[list[int], int], data: st.DataObject) -> None:
    values, bits = given_
    starts = data.draw(segments(len(values)))

    def program(s: Session, x: Shared) -> list[int]:
        return [*s.open(s.l1(x, starts, bits)).tolist(), *s.open(s.squared(x, starts)).tolist(), s.argmax(x, bits + 1)]

    assert computed(keys, [values], program, malicious=True) == computed(keys, [values], program)
