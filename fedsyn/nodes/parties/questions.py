"""Questions to the crypto party as bytes; reading is strict: a server may send anything."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from fedsyn.crypto.fhe.question import DecryptionQuery, Sums
from fedsyn.errors import ProtocolError

_MALFORMED = "a question to the crypto party is malformed"


def asked_blobs(asked: DecryptionQuery) -> list[bytes]:
    """The ranges first, then the ciphertexts."""
    facts = {"starts": list(asked.starts), "sizes": list(asked.sizes), "offsets": list(asked.offsets)}
    return [json.dumps(facts).encode(), *asked.ciphertexts]


def read_asked(blobs: Sequence[memoryview]) -> DecryptionQuery:
    """ProtocolError if it is malformed; whether the ranges fit the ciphertexts is looked at where they are read."""
    try:
        facts = json.loads(bytes(blobs[0]))
        parts = [facts[name] for name in ("starts", "sizes", "offsets")]
        if any(not isinstance(part, list) or any(type(n) is not int for n in part) for part in parts):
            raise ValueError
        starts, sizes, offsets = (tuple(part) for part in parts)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise ProtocolError(_MALFORMED) from None
    return DecryptionQuery(tuple(bytes(blob) for blob in blobs[1:]), starts, sizes, offsets)


def sums_blobs(asked: DecryptionQuery, sums: Sums) -> list[bytes]:
    """What `KeyHolder.sums` is asked."""
    facts = json.dumps({"length": sums.length, "copies": sums.copies}).encode()
    parts = [part.astype("<i8").tobytes() for part in (sums.slots, sums.sums, sums.factors)]
    return [facts, *parts, *asked_blobs(asked)]


def read_sums(blobs: Sequence[memoryview]) -> tuple[DecryptionQuery, Sums]:
    """ProtocolError if it is malformed."""
    try:
        facts = json.loads(bytes(blobs[0]))
        slots, found, factors = (np.frombuffer(blob, "<i8").astype(np.int64) for blob in blobs[1:4])
        sums = Sums(slots, found, factors, facts["length"], facts["copies"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise ProtocolError(_MALFORMED) from None
    return read_asked(blobs[4:]), sums
