"""What a party sees of a three-party computation is noise, and the same noise for neighbouring inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats

from benchmarks.mpc_threads import in_threads
from fedsyn.crypto.mpc.dealing import deal, received
from fedsyn.crypto.mpc.network import LocalNetwork, Network
from fedsyn.crypto.mpc.rounds import BITS, RING, Arithmetic
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import Shared, Words, words

# Each p-value is wrong under a true null once in 10^6. Uniformity computes 24 of them; the simulator test computes 3,
# each the smallest of about 1,100 times their number: a false alarm in 80,000 runs of this file.
ALARM = 1e-6


class OneStreamForAll(Session):
    """Broken: every message is masked from the beginning of the streams."""

    def _masks(self, count: int) -> tuple[Words, Words]:
        plus, minus = super()._masks(count)
        first = self.__dict__.setdefault("first", [plus, minus])
        for i, fresh in enumerate((plus, minus)):
            first[i] = np.concatenate([first[i], fresh[len(first[i]) :]])
        return first[0][:count], first[1][:count]


class OneMaskForAMessage(Session):
    """Broken: the words of a message share one mask."""

    def _masks(self, count: int) -> tuple[Words, Words]:
        plus, minus = super()._masks(count)
        return np.full(count, plus[:1].sum()), np.full(count, minus[:1].sum())


def views(
    program: Callable[[Session, Callable[[np.ndarray], Shared]], Any],
    seed: tuple[int, ...],
    make: Callable[[int, tuple[bytes, bytes], Network], Session] = Session,
) -> list[list[Words]]:
    """Per party everything that it sees as words: its parts of what is dealt to it, then the messages in order."""
    rng = np.random.default_rng(seed)
    keys, random = [rng.bytes(32) for _ in range(3)], rng.bytes(64)
    network = LocalNetwork(timeout=20, record=True)
    dealt: list[list[Words]] = [[], [], []]

    def run(s: Session) -> None:
        def secret(values: np.ndarray) -> Shared:
            parts = deal(values, random)
            share = received(s.index, parts.seeds_of(s.index), parts.correction if s.index else None, len(values))
            dealt[s.index] += [share.own, share.next]
            return share

        program(s, secret)

    in_threads(run, keys, network, make)
    return [
        parts + [np.frombuffer(payload, np.uint64) for _, payload in view if len(payload) % 8 == 0]  # others say "ok"
        for parts, view in zip(dealt, network.views, strict=True)
    ]


# Uniformity ----------------------------------------------------------------------------------------------------------


def everything(s: Session, secret: Callable[[np.ndarray], Shared]) -> None:
    """Every primitive, on zeros and small numbers, where a mask that is missing or used twice shows best."""
    n, starts = 3000, np.arange(0, 3000, 20)
    x = secret(np.zeros(n, np.int64))
    noise = s.sum_of_inputs(np.arange(n) % 5) + s.sum_of_inputs(np.arange(n) % 3)
    for owner in range(3):
        noise += s.input(RING, owner, words(np.ones(n, np.int64)) if s.index == owner else None, n)
    noise += s.sum_of_bounded_inputs(np.zeros(n, np.int64), 1)
    sums = s.l1(s.multiply(x, noise), starts, 28) + s.squared(noise, starts) + s.inner(x, noise, starts)
    s.argmax(sums, 40)
    s.open(sums)


def uniformity(view: list[Words]) -> dict[str, float]:
    """p-values of chi-square tests that bytes are uniform on 0..255: those of all messages, of the differences of
    successive messages of one length, and of the differences of neighbouring words in a message."""
    lengths: dict[int, Words] = {}
    pairs = []
    for message in view:
        if len(message) in lengths:
            pairs.append(message - lengths[len(message)])
        lengths[len(message)] = message
    samples = {"bytes": view, "messages": pairs, "neighbours": [m[1::2] - m[: len(m) // 2 * 2 : 2] for m in view]}
    return {name: byte_p_value(np.concatenate(parts)) for name, parts in samples.items()}


def byte_p_value(sample: Words) -> float:
    counts = np.bincount(sample.view(np.uint8), minlength=256)
    return float(scipy.stats.chisquare(counts).pvalue)


def test_all_that_a_party_sees_is_uniform() -> None:
    """A party sees about 30,000 words: 240,000 bytes, 940 for each of the 256 values.

    Power 1/2 at chi-square 370 instead of 255: a relative error of sqrt(115 / 240,000) = 2.2% in each frequency, or
    sqrt(115 / (240,000 * 255)) = 0.14% of the bytes constant.
    """
    for view in views(everything, (1,)):
        assert sum(map(len, view)) > 30_000
        assert min(uniformity(view).values()) > ALARM


def test_all_that_a_party_sees_of_checked_products_is_uniform() -> None:
    """Triples, what is opened to check them, coins and digests too: some 200,000 words."""
    for view in views(everything, (1,), functools.partial(Session, malicious=True)):
        assert sum(map(len, view)) > 200_000
        assert min(uniformity(view).values()) > ALARM


def test_a_mask_that_is_used_twice_is_seen_in_checked_products() -> None:
    """Triples from the beginning of the streams, all of them: then gates' shares are opened under one mask."""
    for view in views(everything, (1,), functools.partial(OneStreamForAll, malicious=True)):
        assert min(uniformity(view).values()) < ALARM


class Opening(Session):
    """Notes what a check opens: x - a and y - b of each gate and triple."""

    def _missing(self, x: Shared) -> Words:
        missing = super()._missing(x)
        if x.own.ndim == 2:
            self.__dict__.setdefault("opened", []).extend(self.kind.sum(x, missing))
        return missing


@pytest.mark.parametrize("kind", [RING, BITS])
def test_what_a_check_opens_is_uniform(kind: Arithmetic) -> None:
    """3,000 products 0 * 0: so 2 x 12,004 words that are a triple's, and x - a less y - b tells a - b alone."""

    def program(s: Session) -> list[Words]:
        s.kind = kind
        zero = s.constant(np.zeros(3000, np.int64))
        s.open((s.multiply if kind is RING else s.and_planes)(zero, zero)[:1])
        return s.opened

    keys = [np.random.default_rng([2, k]).bytes(32) for k in range(3)]
    opened = in_threads(program, keys, None, functools.partial(Opening, malicious=True))[0]
    assert sum(map(len, opened)) > 24_000
    assert min(uniformity(opened).values()) > ALARM


@pytest.mark.parametrize(("make", "by"), [(OneStreamForAll, "messages"), (OneMaskForAMessage, "neighbours")])
def test_a_mask_that_is_used_twice_is_seen(make: type[Session], by: str) -> None:
    assert max(uniformity(view)[by] for view in views(everything, (1,), make)) < ALARM


# Simulation ----------------------------------------------------------------------------------------------------------

RUNS = 400
TABLES = np.array([[7, -2, 0, 1, -3, 2], [-7, 2, 1, -1, 0, 3]])  # l1 by pairs (9, 1, 5) and (9, 2, 3): argmax 0
NOISES = np.array([[[0, 0, 0], [2, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 0, 0], [1, 0, 1]]])  # equal sums, (2, 1, 1)


def neighbours(which: int) -> Callable[[Session, Callable[[np.ndarray], Shared]], None]:
    """A program whose inputs, dealt and the parties' own, differ between 0 and 1, and whose one output does not."""

    def program(s: Session, secret: Callable[[np.ndarray], Shared]) -> None:
        starts = np.arange(0, 6, 2)
        x = secret(TABLES[which])
        noise = s.sum_of_inputs(NOISES[which, s.index] << 60) + s.sum_of_inputs(NOISES[which, s.index])
        s.argmax(s.l1(x, starts, 5) + s.squared(x, starts) * 0 + noise * 0, 6)

    return program


def features(words: np.ndarray) -> Iterator[np.ndarray]:
    """Of each run's words: the top 4 bits of each word, of each sum, difference and exclusive or of some pairs."""
    yield from (words >> np.uint64(60)).T
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, words.shape[1], (2, 1200))
    adjacent = np.arange(words.shape[1] - 1)
    a, b = words[:, np.r_[first, adjacent]], words[:, np.r_[second, adjacent + 1]]
    for operation in (np.subtract, np.bitwise_xor, np.add):
        yield from (operation(a, b) >> np.uint64(60)).T


def smallest_p_value(one: np.ndarray, other: np.ndarray) -> float:
    """Two-sample chi-square (16 cells) of each feature; the smallest p-value times their number."""
    smallest, count = 1.0, 0
    for a, b in zip(features(one), features(other), strict=True):
        table = np.array([np.bincount(a.astype(int), minlength=16), np.bincount(b.astype(int), minlength=16)])
        table = table[:, table.any(axis=0)]
        count += 1
        if table.shape[1] > 1:
            smallest = min(smallest, scipy.stats.chi2_contingency(table).pvalue)
    return smallest * count


def sampled(make: type[Session]) -> list[list[np.ndarray]]:
    """[input][party]: the words that the party sees, one row a run."""
    runs = [[views(neighbours(which), (which, seed), make) for seed in range(RUNS)] for which in (0, 1)]
    return [[np.array([np.concatenate(run[party]) for run in group]) for party in range(3)] for group in runs]


@pytest.mark.slow
@pytest.mark.thorough
def test_views_of_neighbouring_inputs_are_equally_distributed() -> None:
    """What a simulator that knows only the output would have to produce: its output cannot depend on the input."""
    one, other = sampled(Session)
    for party in range(3):
        assert smallest_p_value(one[party], other[party]) > ALARM


@pytest.mark.slow
def test_views_tell_neighbouring_inputs_apart_if_a_mask_is_used_twice() -> None:
    one, other = sampled(OneStreamForAll)
    for party in range(3):
        assert smallest_p_value(one[party], other[party]) < ALARM
