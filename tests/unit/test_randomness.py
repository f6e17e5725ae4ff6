"""Keys, labels and the operating-system source."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtri

from fedsyn.errors import ConfigError
from fedsyn.randomness import OS_LABEL, SEEDED_LABEL, OsRandom, Randomness


def _draw(source: object) -> list[float]:
    return source.standard_normal(4).tolist()  # type: ignore[attr-defined]


def test_same_key_same_stream_and_different_keys_differ() -> None:
    keys = [
        (),
        (0,),
        (1,),
        ("1",),
        (1, 2),
        (12,),
        ("a", "b"),
        ("ab",),
        ("a,b",),
        ("noise",),
        (1, "a"),
        ("a", 1),
    ]
    streams = [tuple(_draw(Randomness(7).generator(*key))) for key in keys]
    assert len(set(streams)) == len(keys)
    assert streams == [tuple(_draw(Randomness(7).generator(*key))) for key in keys]
    assert _draw(Randomness(8).generator("a")) != _draw(Randomness(7).generator("a"))


def test_numpy_integers_are_the_same_key_as_python_ones() -> None:
    assert _draw(Randomness(7).generator(np.int64(3))) == _draw(Randomness(7).generator(3))


def test_noise_and_ordinary_streams_of_one_key_are_unrelated() -> None:
    assert _draw(Randomness(7).generator("a")) != _draw(Randomness(7).ordinary("a"))


def test_child_prefixes_the_key() -> None:
    child = Randomness(7).child("round", 3)
    assert _draw(child.generator("x")) == _draw(Randomness(7).generator("round", 3, "x"))
    assert child.seeded and child.label == SEEDED_LABEL


def test_streams_do_not_depend_on_the_process() -> None:
    # PYTHONHASHSEED changes hash(): a key hashed with it would give another stream.
    code = "from fedsyn.randomness import Randomness; print(Randomness(7).generator('a', 1).standard_normal())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_without_a_seed_noise_comes_from_the_operating_system() -> None:
    randomness = Randomness()
    assert isinstance(randomness.generator("a"), OsRandom)
    assert not randomness.seeded and randomness.label == OS_LABEL
    assert _draw(randomness.generator("a")) != _draw(randomness.generator("a"))
    assert isinstance(randomness.child("b").ordinary(), np.random.Generator)


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_bad_seeds_are_refused(seed: object) -> None:
    with pytest.raises(ConfigError, match="non-negative integer"):
        Randomness(seed)  # type: ignore[arg-type]


def test_shapes_follow_numpy() -> None:
    source, reference = OsRandom(), np.random.default_rng(0)
    for size in (None, 0, 5, (2, 3), (0, 4), ()):
        for draw in ("standard_normal", "random"):
            ours, theirs = getattr(source, draw)(size), getattr(reference, draw)(size)
            assert np.shape(ours) == np.shape(theirs)
        assert np.shape(source.gumbel(size=size)) == np.shape(reference.gumbel(size=size))
        assert np.shape(source.integers(3, size=size)) == np.shape(reference.integers(3, size=size))
    assert sorted(source.permutation(6)) == list(range(6))
    assert sorted(source.permutation(["b", "a"])) == ["a", "b"]
    with pytest.raises(ValueError, match="negative"):
        source.random(-1)


def test_integers_stay_in_range_and_reach_its_ends() -> None:
    source = OsRandom()
    values = source.integers(-2, 3, 1000)
    # P(an end missing) = 2 (4/5)^1000 < 1e-96.
    assert (values.min(), values.max()) == (-2, 2)
    extremes = source.integers(-(2**63), 2**63, 200)
    assert extremes.dtype == np.int64 and (extremes < 0).any() and (extremes > 0).any()
    assert source.integers(2**63 - 1, 2**63) == 2**63 - 1
    for low, high in ((3, 3), (0, 2**63 + 1), (-(2**63) - 1, 0)):
        with pytest.raises(ValueError, match="low < high"):
            source.integers(low, high)


class _Bytes:
    """Stands in for os.urandom and replays 64-bit words."""

    def __init__(self, *words: int) -> None:
        self.words = itertools.chain(words, itertools.repeat(1 << 63))

    def __call__(self, count: int) -> bytes:
        return np.array([next(self.words) for _ in range(count // 8)], dtype=np.uint64).tobytes()


def test_uniform_never_reaches_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", _Bytes(0, 2**64 - 1))
    assert OsRandom().random(2).tolist() == [2.0**-53, 1.0 - 2.0**-53]


def test_normal_tail_is_deeper_than_53_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    # Eleven zero coins, 53 more, five more, then a one: tail = 2^-(1 + 11 + 53 + 5).
    fifth = 1 << (63 - 5)
    for sign, expected in ((0, 1.0), (1 << 63, -1.0)):
        monkeypatch.setattr(os, "urandom", _Bytes(sign, 0, fifth))
        value = OsRandom().standard_normal()
        assert value == -expected * ndtri(2.0**-70 / 2.0)
        assert abs(value) > 9.0


def test_gumbel_reaches_both_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    first = 1 << 63  # the first extra coin is a one: tail = 2^-(1 + 11 + 53)
    monkeypatch.setattr(os, "urandom", _Bytes(0, 0, first))
    assert OsRandom().gumbel() == pytest.approx(66 * math.log(2.0), rel=1e-12)
    monkeypatch.setattr(os, "urandom", _Bytes(1 << 63, 0, first))
    assert OsRandom().gumbel() == pytest.approx(-math.log(66 * math.log(2.0)), rel=1e-12)


def test_all_zero_words_still_give_a_finite_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    value = OsRandom().standard_normal()
    assert 36.0 < value < 38.0  # the floor of 2^-1000, instead of an endless wait for a one
