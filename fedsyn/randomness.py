"""Sources of random numbers.

Keyed streams of a seed serve simulations, the operating system serves privacy.

Two kinds of randomness meet in a run and must not be confused.

* Noise. It carries the privacy guarantee. `Randomness.generator(*key)` gives it: without a seed an
  `OsRandom`, whose every bit is read from `os.urandom`; with a seed a NumPy generator, whose output anyone
  who knows the seed can subtract again. A seeded run is a simulation and says so (`Randomness.label`).
* Everything else (partitions, cohorts, rows of the synthetic table). `Randomness.ordinary(*key)` gives a
  NumPy generator in both cases. Nothing that it decides is protected by its secrecy. Without a seed it can be
  keyed by a secret of the run (`keyed`), so that a run that is resumed decides as before; noise never is.

Streams are keyed by (seed, *key), for instance `generator(round, partition, "measure")`, never by arrival
order: the same run gives the same numbers however its work is spread over processes and machines.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedsyn.errors import ConfigError

Size = int | Sequence[int] | None

SEEDED_LABEL = "not private: seeded noise"
OS_LABEL = "operating system"


class RandomSource(Protocol):
    """The methods of `np.random.Generator` that fedsyn draws with; `OsRandom` has the same."""

    def standard_normal(self, size: Any = None) -> Any: ...

    def random(self, size: Any = None) -> Any: ...

    def integers(self, low: Any, high: Any = None, size: Any = None) -> Any: ...

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any: ...

    def permutation(self, x: Any) -> Any: ...


class Randomness:
    """Hands out random sources by key.

    Args:
        seed: a non-negative integer for a simulation that can be repeated bit for bit, or None to draw noise
            from the operating system.
        path: key prefix of every source; `child` extends it.
        secret: without a seed, what ordinary streams (and no noise) are keyed by.

    Raises:
        ConfigError: for a seed that is not a non-negative integer.
    """

    def __init__(self, seed: int | None = None, path: tuple[int | str, ...] = (), secret: bytes | None = None) -> None:
        if seed is not None:
            try:
                seed = operator.index(seed)
            except TypeError:
                raise ConfigError("seed must be a non-negative integer, or null for real noise") from None
            if seed < 0:
                raise ConfigError("seed must be a non-negative integer, or null for real noise")
        self._seed = seed
        self._path = tuple(_key_part(part) for part in path)
        self._secret = secret if seed is None else None

    @property
    def seeded(self) -> bool:
        """True when noise can be recomputed from the seed.

        Such a run is a simulation, and not private.
        """
        return self._seed is not None

    @property
    def label(self) -> str:
        """The sampler, as privacy statements and ledgers name it."""
        return SEEDED_LABEL if self.seeded else OS_LABEL

    def generator(self, *key: int | str) -> RandomSource:
        """Returns the source of noise for this key.

        The same key gives the same seeded stream, in any order of calls.
        """
        return OsRandom() if self._seed is None else self._stream("noise", key)

    def ordinary(self, *key: int | str) -> np.random.Generator:
        """Returns a NumPy generator for choices that carry no privacy.

        Its stream is unrelated to `generator(*key)`.

        Without a seed it starts from operating-system entropy, or is keyed by the secret of `keyed`.
        """
        if self._seed is None and self._secret is None:
            return np.random.default_rng()
        return self._stream("ordinary", key)

    def keyed(self, secret: bytes) -> Randomness:
        """Returns a copy whose ordinary streams follow from a secret.

        Anyone who knows the secret can repeat them; noise stays unchanged.
        """
        return Randomness(self._seed, self._path, secret)

    def child(self, *key: int | str) -> Randomness:
        """Returns a copy that puts `key` before every later key."""
        return Randomness(self._seed, (*self._path, *key), self._secret)

    def _stream(self, purpose: str, key: tuple[int | str, ...]) -> np.random.Generator:
        # JSON keeps 1 and "1", and ("a", "b") and ("ab",), apart; SHA-256 does not change between processes
        # and Python versions as hash() does.
        root = self._seed if self._secret is None else self._secret.hex()
        name = json.dumps([root, purpose, *self._path, *(_key_part(part) for part in key)])
        digest = hashlib.sha256(name.encode("utf-8")).digest()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


def _key_part(part: int | str) -> int | str:
    return part if isinstance(part, str) else operator.index(part)


_MANTISSA = np.uint64((1 << 52) - 1)
_SIGN = np.uint64(1 << 63)
_HEAD_BITS = 11
# Leading zeros of an 11-bit number; 11 for zero.
_LEADING_ZEROS = np.array([_HEAD_BITS - v.bit_length() for v in range(1 << _HEAD_BITS)], dtype=np.uint64)


class OsRandom:
    """Random numbers from the operating system's generator, with the methods of `RandomSource`.

    Stateless: every call reads fresh bytes, so copies, forks and threads never share or repeat a number.
    """

    label = OS_LABEL

    def random(self, size: Size = None) -> Any:
        """Draws uniformly from the open interval (0, 1).

        The values are odd multiples of 2^-53: symmetric about 1/2, never 0 or 1.
        """
        count, shape = _count(size)
        # 52 random bits and a fixed last one: with 53 random bits plus a half the largest would round to 1.
        odd = ((_words(count) >> np.uint64(12)) << np.uint64(1)) | np.uint64(1)
        return _shaped(odd * 2.0**-53, shape)

    def standard_normal(self, size: Size = None) -> Any:
        """Draws standard normals by the inverse CDF.

        A random sign goes on the quantile of a uniform tail probability.

        The tail probability is a double with a random exponent (see `_sign_and_tail`), so the tails are
        limited by neither 53 bits nor 8 standard deviations: each double down to 2^-1000 comes with its own
        probability.
        """
        count, shape = _count(size)
        sign, tail = _sign_and_tail(count)
        normal = -ndtri(0.5 * tail)
        normal.view(np.uint64)[...] |= sign
        return _shaped(normal, shape)

    def gumbel(self, loc: float = 0.0, scale: float = 1.0, size: Size = None) -> Any:
        """Draws Gumbel values, with full precision in both tails.

        `loc - scale * log(E)` with E standard exponential.
        """
        count, shape = _count(size)
        sign, tail = _sign_and_tail(count)
        half = 0.5 * tail
        # A fair coin chooses between the two halves of the exponential's CDF; each is evaluated from its own
        # end.
        exponential = np.where(sign != 0, -np.log(half), -np.log1p(-half))
        return _shaped(loc - scale * np.log(exponential), shape)

    def integers(self, low: int, high: int | None = None, size: Size = None) -> Any:
        """Draws integers uniformly from [low, high), or [0, low) without `high`.

        Exact, by rejection; int64.
        """
        if high is None:
            low, high = 0, low
        span = int(high) - int(low)
        if span < 1 or low < -(2**63) or high > 2**63:
            raise ValueError("integers needs low < high, both within 64 bits")
        count, shape = _count(size)
        words = _words(count)
        if span < 2**64:  # only the full 64-bit range has no remainder to reject
            last = np.uint64(2**64 - 2**64 % span - 1)
            while (rejected := np.flatnonzero(words > last)).size:
                words[rejected] = _words(rejected.size)
            words = words % np.uint64(span)
        # Unsigned addition wraps modulo 2^64, which is what two's complement needs for a negative `low`.
        return _shaped((words + np.uint64(int(low) % 2**64)).view(np.int64), shape)

    def permutation(self, x: int | Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
        """Returns a random order of `range(x)`, or of the entries of `x`.

        An array is permuted along its first axis.
        """
        values = np.arange(x) if isinstance(x, int | np.integer) else np.asarray(x)
        while True:
            keys = _words(len(values))
            if np.unique(keys).size == keys.size:  # equal keys would favour the old order
                return values[np.argsort(keys)]


def _words(count: int) -> NDArray[np.uint64]:
    """(count,) uint64, all bits from the operating system."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64).copy()


def _sign_and_tail(count: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Draws `count` sign bits and uniforms on (0, 1).

    Each uniform is rounded down to 53 significant bits.

    One word holds the sign, 52 bits of mantissa and 11 fair coins. The run of zeros before the first one
    among the coins is the binary exponent of a uniform real number; when all 11 are zero (one word in 2,048)
    more are drawn.

    Returns:
        (count,) uint64, either 0 or 2^63, and (count,) float64.
    """
    words = _words(count)
    head = (words >> np.uint64(52)) & np.uint64((1 << _HEAD_BITS) - 1)
    zeros = _LEADING_ZEROS[head]
    open_ends = np.flatnonzero(head == 0)
    while open_ends.size:
        coins = (_words(open_ends.size) >> np.uint64(11)).astype(np.float64)  # 53 bits: exact in a double
        exponent = np.frexp(coins)[1]  # bit length, 0 for 0
        zeros[open_ends] += (53 - exponent).astype(np.uint64)
        open_ends = open_ends[(coins == 0) & (zeros[open_ends] < 1000)]
    np.minimum(zeros, np.uint64(1000), out=zeros)
    bits = ((np.uint64(1022) - zeros) << np.uint64(52)) | (words & _MANTISSA)
    return words & _SIGN, bits.view(np.float64)


def _count(size: Size) -> tuple[int, tuple[int, ...] | None]:
    if size is None:
        return 1, None
    shape = (operator.index(size),) if not isinstance(size, Sequence) else tuple(operator.index(n) for n in size)
    if any(n < 0 for n in shape):
        raise ValueError("size must not be negative")
    return int(np.prod(shape, dtype=np.int64)), shape


def _shaped(flat: NDArray[Any], shape: tuple[int, ...] | None) -> Any:
    return flat[0].item() if shape is None else flat.reshape(shape)
