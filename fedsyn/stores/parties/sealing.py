"""A client's sealed deal.

The server carries it and can read none of it; each party reads its own part alone.

One X25519 key of the client serves one deal. Each party's box is sealed under a key that HKDF-SHA256 derives from the
agreement of that key with the party's own; what is authenticated with it binds the store's version, the run, the
client, the party with its key, and the two public facts of the client (`DealFacts`), which stand readable in front of
the box. So a box that is moved to another run, client or party, or whose facts are changed, does not open.

Slots 0 and 1 of the client's vector are seeds, slot 2 is the dense correction. It is sealed once, under a key of its
own that stands in the boxes of the parties 1 and 2, together with the digest of the sealed bytes. ChaCha20-Poly1305
does not bind its key: one ciphertext may open under two keys. So what two parties compare (`DealContent.marks`) is seed
for seed, and for the correction key and digest together.

All randomness here is the operating system's, also in a simulation: no result depends on it.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.dealing import deal, received
from fedsyn.crypto.mpc.shared import PARTIES, Shared
from fedsyn.crypto.primitives import KEY, TAG, KeyPair, derive, seal, unseal, usable_public_key
from fedsyn.errors import ProtocolError
from fedsyn.stores.parties.interface import SealedDeal
from fedsyn.stores.parties.messages import STORE_VERSION

_FACTS = struct.Struct("<dq")
_SEEDS = (2, 1, 1)  # that a party gets; the other two get the key and the digest of the correction besides
_BOX, _CORRECTION = b"fedsyn store: box", b"fedsyn store: correction"


class Fault(IntEnum):
    """Kind of fault of a refused deal.

    The parties tell it each other and the server. It never depends on what was dealt.
    """

    sentence: str

    def __new__(cls, number: int, sentence: str = "") -> Fault:
        fault = int.__new__(cls, number)
        fault._value_, fault.sentence = number, sentence
        return fault

    NONE = 0, ""
    MALFORMED = 1, "its deal is malformed"
    BOX = 2, "its deal was not sealed for this run, this client and this party, or it is damaged"
    CORRECTION = 3, "the dense part of its deal was not sealed for this run and this client, or it is damaged"
    FACTS = 4, "it told the parties different budgets or row counts"
    SLOTS = 5, "it dealt shares to the parties that do not fit together"
    BUDGET = 6, "its deal allows for a smaller budget than this run may still spend"
    TWICE = 7, "it has dealt in this run already"
    MANY = 8, "more clients have dealt than a party's policy allows"
    SEALED = 9, "its pad was not sealed for this run, this client and what was asked, or it is damaged"
    UNSIGNED = 10, "its pad is not signed by the key that the configuration pins for it"


class RefusedDeal(ProtocolError):
    """A deal that cannot be used."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


@dataclass(frozen=True)
class DealFacts:
    """Facts that a client says in the open.

    It seals its deal to them.

    Attributes:
        rho: zCDP: the most that the store may release of this client's rows.
        rows: of this client where row counts are public, else 0.
    """

    rho: float
    rows: int
    SIZE: ClassVar[int] = _FACTS.size  # bytes

    def to_bytes(self) -> bytes:
        return _FACTS.pack(self.rho, self.rows)

    @classmethod
    def of(cls, raw: bytes) -> DealFacts:
        if len(raw) != _FACTS.size:
            raise RefusedDeal(Fault.MALFORMED)
        facts = cls(*_FACTS.unpack(raw))
        if not 0.0 < facts.rho < math.inf or not 0 <= facts.rows < 2**40:
            raise RefusedDeal(Fault.MALFORMED)
        return facts


@dataclass(frozen=True)
class DealPart:
    """One party's part of a sealed deal.

    The correction is empty at party 0, which needs none.
    """

    public: bytes
    box: bytes
    correction: bytes

    @classmethod
    def of(cls, sealed: SealedDeal, index: int) -> DealPart:
        return cls(sealed.public, sealed.boxes[index], sealed.correction if index else b"")


def seal_deal(
    vector: npt.NDArray[np.int64], run: bytes, keys: Sequence[bytes], partition: int, *, rho: float, rows: int
) -> SealedDeal:
    """Shares a client's exact answers among the three parties.

    Args:
        vector: (L,) integers.
        run: what the run is (`fedsyn.stores.parties.interface.sealed_for`): its id, and what the client agreed to.
        keys: X25519 public keys of the three parties, in order.
        partition: id of the client.
        rho: see `DealFacts`.
        rows: see `DealFacts`.

    Raises:
        ProtocolError: a key is none, or two parties have the same one.
    """
    if len(set(keys)) != PARTIES or not all(len(key) == KEY and usable_public_key(key) for key in keys):
        raise ProtocolError("a deal is sealed to three parties with three different, usable keys")
    pair, facts = KeyPair(), DealFacts(rho, rows)
    dealt, secret = deal(vector, os.urandom(2 * KEY)), os.urandom(KEY)
    dense = dealt.correction.astype("<u8", copy=False).tobytes()
    correction = seal(secret, dense, _bound(_CORRECTION, run, partition, facts, pair.public))
    digest = hashlib.sha256(correction).digest()
    boxes = []
    for index, key in enumerate(keys):
        message = b"".join(dealt.seeds_of(index)) + (secret + digest if index else b"")
        box_key = derive(pair.agree(key), run, _BOX, (STORE_VERSION, partition, index), (pair.public, key))
        bound = _bound(_BOX, run, partition, facts, pair.public, index, key)
        boxes.append(facts.to_bytes() + seal(box_key, message, bound))
    return SealedDeal(pair.public, (boxes[0], boxes[1], boxes[2]), correction)


@dataclass(frozen=True)
class DealContent:
    """One party's part of a deal, opened but not yet expanded.

    A few bytes, and the correction.

    Attributes:
        facts: of the client, as all three boxes must have them.
        seeds: of this party's seeded slots.
        correction: the dense slot; None at party 0.
        marks: (own slot, next slot): 32 bytes each, equal at both parties that hold the slot if the client is honest.
            A mark tells nothing about a seed to who does not know it.
    """

    facts: DealFacts
    seeds: tuple[bytes, ...]
    correction: npt.NDArray[np.uint64] | None
    marks: tuple[bytes, bytes]

    def shared(self, index: int, length: int) -> Shared:
        """The two slots in full."""
        return received(index, self.seeds, self.correction, length)


def open_deal(part: DealPart, run: bytes, index: int, pair: KeyPair, partition: int, length: int) -> DealContent:
    """Opens what a client sealed for this party.

    Raises:
        RefusedDeal: it was not sealed for this run, client and party, or is damaged.
    """
    try:
        facts = DealFacts.of(part.box[: _FACTS.size])
        secret = pair.agree(part.public)
    except (struct.error, ProtocolError):
        raise RefusedDeal(Fault.MALFORMED) from None
    box_key = derive(secret, run, _BOX, (STORE_VERSION, partition, index), (part.public, pair.public))
    bound = _bound(_BOX, run, partition, facts, part.public, index, pair.public)
    message = unseal(box_key, part.box[_FACTS.size :], bound) if len(part.box) < 1024 else None
    if message is None or len(message) != KEY * (2 if index == 0 else 3):
        raise RefusedDeal(Fault.BOX)
    pieces = tuple(message[i : i + KEY] for i in range(0, len(message), KEY))
    seeds, rest = pieces[: _SEEDS[index]], pieces[_SEEDS[index] :]
    correction = None
    if index:
        if len(part.correction) != 8 * length + TAG or hashlib.sha256(part.correction).digest() != rest[1]:
            raise RefusedDeal(Fault.CORRECTION)
        dense = unseal(rest[0], part.correction, _bound(_CORRECTION, run, partition, facts, part.public))
        if dense is None:
            raise RefusedDeal(Fault.CORRECTION)
        correction = np.frombuffer(dense, "<u8").astype(np.uint64, copy=False)
    slots = {0: (0, 1), 1: (1, 2), 2: (2, 0)}[index]
    material = [b"".join(rest) if slot == 2 else seeds[slot if index == 0 else 0] for slot in slots]
    marks = [_mark(run, partition, slot, secret) for slot, secret in zip(slots, material, strict=True)]
    return DealContent(facts, seeds, correction, (marks[0], marks[1]))


def _bound(
    purpose: bytes,
    run: bytes,
    partition: int,
    facts: DealFacts,
    public: bytes,
    index: int | None = None,
    key: bytes = b"",
) -> bytes:
    """Returns what is authenticated beside a sealed message.

    Every field has a fixed length or is the last one.
    """
    place = -1 if index is None else index
    return b"\0".join([purpose, struct.pack("<qqq", STORE_VERSION, partition, place), facts.rho.hex().encode()]) + (
        struct.pack("<q", facts.rows) + run + public + key
    )


def _mark(run: bytes, partition: int, slot: int, material: bytes) -> bytes:
    return hashlib.sha256(b"fedsyn store: slot" + struct.pack("<qq", partition, slot) + run + material).digest()
