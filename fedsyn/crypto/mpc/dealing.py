"""Key streams, dealing of a secret by a client, and its reconstruction.

Both happen outside of the three parties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedsyn.crypto.mpc.shared import PARTIES, Shared, Words, words
from fedsyn.errors import ProtocolError, refuse

KEY = 32  # bytes of a key or a seed
_CHUNK = memoryview(bytes(1 << 16))  # zeros: key stream is made in pieces that stay in the processor's cache
_LONGEST = 1 << 38  # bytes: ChaCha20's block counter has 32 bits


class KeyStream:
    """The ChaCha20 stream of a single-purpose key, read as words.

    Everybody who has the key reads the same.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY:
            raise ValueError(f"a key has {KEY} bytes")
        self._cipher, self._left = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor(), _LONGEST

    def words(self, count: int) -> Words:
        """Returns the next `count` words."""
        self._left -= 8 * count
        if self._left < 0:
            raise ValueError("a key stream ends after 2^38 bytes: take new keys")
        raw = bytearray(8 * count)
        view = memoryview(raw)
        for start in range(0, len(raw), len(_CHUNK)):
            part = view[start : start + len(_CHUNK)]
            self._cipher.update_into(_CHUNK[: len(part)], part)
        return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False)


def wire(slot: Words) -> bytes:
    """Returns the words as little-endian bytes."""
    return slot.astype("<u8", copy=False).tobytes()


def buffer(slot: Words) -> memoryview:
    """Returns the words' bytes, without a copy where they lie so already."""
    return np.ascontiguousarray(slot, "<u8").reshape(-1).data


def digest(slot: Words) -> bytes:
    return hashlib.sha256(buffer(slot)).digest()


@dataclass(frozen=True)
class Dealt:
    """A client's vector, shared.

    Slots 0 and 1 are the key streams of two seeds; slot 2 is the rest of the vector.

    The parties 1 and 2 both get the one dense `correction`, party 0 gets seeds alone: 8 B per entry and 64 B, where
    three dense slots would be 24 B per entry. A seed is 256 bits of randomness of the client; ChaCha20 as a
    pseudo-random generator makes every party's two slots look uniform. Sealing the parts is the caller's.
    """

    seeds: tuple[bytes, bytes]
    correction: Words

    def seeds_of(self, index: int) -> tuple[bytes, ...]:
        """Returns the seeds for party `index`.

        Parties 1 and 2 also get the correction.
        """
        return (self.seeds, self.seeds[1:], self.seeds[:1])[index]


def deal(vector: npt.NDArray[np.int64], random: bytes) -> Dealt:
    """Shares a vector among three parties with 64 fresh random bytes."""
    if len(random) != 2 * KEY:
        raise ValueError(f"dealing takes {2 * KEY} random bytes")
    seeds = random[:KEY], random[KEY:]
    first, second = (KeyStream(seed).words(len(vector)) for seed in seeds)
    return Dealt(seeds, words(vector) - first - second)


def received(index: int, seeds: Sequence[bytes], correction: Words | None, length: int) -> Shared:
    """Returns party `index`'s part of a dealt vector.

    It is made of `Dealt.seeds_of(index)` and the correction (party 0: None).

    Raises:
        ProtocolError: the message has another form. A client is not one of the parties and may send anything.
    """
    needed = 2 if index == 0 else 1
    if len(seeds) != needed or any(len(seed) != KEY for seed in seeds) or (correction is None) != (index == 0):
        raise ProtocolError(f"party {index} needs {needed} seeds of {KEY} bytes" + ", a correction" * (index != 0))
    slots = [KeyStream(seed).words(length) for seed in seeds]
    if correction is not None:
        refuse(correction.shape != (length,) or correction.dtype != np.uint64, f"a correction has {length} words")
        slots.insert(1 if index == 1 else 0, correction)
    return Shared(slots[0], slots[1], index)


@dataclass(frozen=True, eq=False)
class ServerShare:
    """Message of party i to a server that learns a vector.

    It holds slot i, and the digest of slot i + 1.
    """

    own: Words
    next_digest: bytes


def reconstruct(shares: Sequence[ServerShare]) -> npt.NDArray[np.int64]:
    """Returns the vector, from the parties' shares in order.

    Slot i came from party i, its SHA-256 digest from party i - 1, so one party that lies differs from an honest one:
    about its own slot from the one before it, about the digest from the one after it.

    Raises:
        ProtocolError: two parties differ about a slot that both hold.
    """
    if len(shares) != PARTIES or len({share.own.shape for share in shares}) != 1:
        raise ProtocolError("a vector is put together from one share of equal length from each of three parties")
    for i, share in enumerate(shares):
        if digest(share.own) != shares[i - 1].next_digest:
            raise ProtocolError(f"parties {(i - 1) % PARTIES} and {i} disagree about a share that both hold")
    total = shares[0].own + shares[1].own + shares[2].own
    return total.view(np.int64)
