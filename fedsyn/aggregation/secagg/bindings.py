"""What the parties of a sum derive, sign and seal, each bound to the sum, its purpose and the parties concerned."""

from __future__ import annotations

import hashlib

from fedsyn.aggregation.secagg import wire
from fedsyn.aggregation.secagg.primitives import derive
from fedsyn.aggregation.secagg.session import Session


def keys_message(session: Session, position: int, publics: bytes) -> bytes:
    """What a client signs in stage `keys`."""
    return b"fedsyn secure sum: keys\0" + session.digest + position.to_bytes(8, "little") + publics


def transcript(session: Session, alive: wire.Flags, keys: bytes) -> bytes:
    """Hash of all public keys of the sum, as one party has seen them; fresh keys make it fresh."""
    return hashlib.sha256(session.digest + wire.write_flags(alive).tobytes() + keys).digest()


def survivors_message(session: Session, seen: bytes, survivors: wire.Flags) -> bytes:
    """What a client signs in stage `agree`: the survivors, and the transcript of the keys that they mask for."""
    return b"fedsyn secure sum: survivors\0" + session.digest + seen + wire.write_flags(survivors).tobytes()


def sealed_for(session: Session, sender: int, receiver: int) -> bytes:
    """What a sealed share is bound to."""
    return session.digest + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")


def self_mask_key(session: Session, position: int, seed: bytes) -> bytes:
    return derive(seed, session.digest, b"self mask", (position,))


def seed_commitment(session: Session, position: int, seed: bytes) -> bytes:
    """Lets the server see that it has put a seed together rightly; says nothing about a seed that it does not know."""
    return derive(seed, session.digest, b"commitment", (position,))


def pair_mask_key(session: Session, one: int, other: int, key: bytes, other_key: bytes, secret: bytes) -> bytes:
    """The key of the mask of a pair, the same whichever of the two asks."""
    ends = sorted([(one, key), (other, other_key)])
    return derive(secret, session.digest, b"pair mask", [i for i, _ in ends], [k for _, k in ends])
