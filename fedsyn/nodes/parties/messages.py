"""Announcements and orders as bytes: one form for the wire and for the digests that the parties compare.

Reading is strict: a server may send anything. What does not read is one fixed sentence.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.dealing import ServerShare
from fedsyn.domain import Clique
from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.nodes.parties.interface import STORE_VERSION, Announcement, ChooseOrder, OpenOrder, Order, TotalOrder
from fedsyn.nodes.parties.sealing import DealPart
from fedsyn.selection.terms import Terms

_HEAD = struct.Struct("<I")
_MOST_HEAD = 1 << 26  # bytes of a message's JSON part


def pack(facts: Mapping[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """JSON facts and some blobs, as one message; the same facts and blobs give the same bytes."""
    head = json.dumps({"facts": facts, "sizes": [len(blob) for blob in blobs]}, sort_keys=True).encode()
    return b"".join([_HEAD.pack(len(head)), head, *blobs])


def unpack(message: bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """The inverse of `pack`; ProtocolError for anything else."""
    try:
        (length,) = _HEAD.unpack_from(message)
        if length > _MOST_HEAD:
            raise ValueError
        head = json.loads(message[_HEAD.size : _HEAD.size + length])
        facts, sizes = head["facts"], head["sizes"]
        start, blobs, view = _HEAD.size + length, [], memoryview(message)
        if not isinstance(facts, dict) or any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError
        for size in sizes:
            blobs.append(view[start : start + size])
            start += size
        if start != len(message):
            raise ValueError
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        raise ProtocolError("a message is malformed") from None
    return facts, blobs


# Announcements -------------------------------------------------------------------------------------------------------


def announcement_bytes(announcement: Announcement) -> bytes:
    return pack(announcement.facts)


def read_announcement(message: bytes) -> Announcement:
    """ProtocolError if it is malformed, or of another version."""
    facts, _ = unpack(message)
    if facts.get("version") != STORE_VERSION:
        raise ProtocolError(
            "server and party speak different versions of the store's protocol: install the same fedsyn"
        )
    try:
        read = Announcement.of(facts)
    except (FedsynError, ValueError, KeyError, TypeError, AttributeError, OverflowError):  # pydantic's is a ValueError
        raise ProtocolError("the announcement of the run is malformed") from None
    return read


# Orders --------------------------------------------------------------------------------------------------------------


def order_bytes(order: Order) -> bytes:
    """An order, whole; two orders with the same bytes are the same."""
    facts: dict[str, Any] = {"number": order.number, "name": order.name, "round": order.round}
    if isinstance(order, OpenOrder):
        cliques = [list(clique) for clique in order.cliques]
        return pack(facts | {"kind": "open", "sigma": float(order.sigma).hex(), "cliques": cliques})
    if isinstance(order, TotalOrder):
        facts |= {"kind": "total", "sigma": float(order.sigma).hex(), "sensitivity": float(order.sensitivity).hex()}
        counted = ("count", "length", "asked")
        return pack(facts | {name: getattr(order, name) for name in counted})
    assert isinstance(order, ChooseOrder)
    terms = order.terms
    facts |= {"kind": "choose", "epsilon": float(order.epsilon).hex(), "norm": terms.norm}
    facts |= {"cliques": [list(clique) for clique in terms.cliques], "sizes": list(terms.sizes)}
    facts |= {"scale": terms.scale, "rows": terms.rows}
    return pack(facts, [_raw(terms.weights), _raw(terms.penalties), _raw(terms.model)])


def order_with(order: Order, blobs: Sequence[bytes]) -> bytes:
    """An order and what the crypto party is to compute it on."""
    return pack({}, [order_bytes(order), *blobs])


def read_order_with(message: bytes) -> tuple[ChooseOrder | OpenOrder | TotalOrder, list[memoryview]]:
    """The inverse. Raises ProtocolError if it is malformed."""
    _, blobs = unpack(message)
    if not blobs:
        raise ProtocolError("an order is malformed")
    return read_order(bytes(blobs[0])), blobs[1:]


def boxes_bytes(order: TotalOrder | None, boxes: Mapping[int, bytes]) -> bytes:
    """Contributors of a sum, or (None) of a store."""
    head = b"" if order is None else order_bytes(order)
    return pack({"partitions": sorted(boxes)}, [head, *(box for _, box in sorted(boxes.items()))])


def read_boxes(message: bytes) -> tuple[TotalOrder | None, dict[int, bytes]]:
    """The inverse. Raises ProtocolError if it is malformed, or names a contributor twice."""
    facts, blobs = unpack(message)
    partitions = _partitions(facts, "contributors")
    if len(blobs) != 1 + len(partitions):
        raise ProtocolError("a message with contributors is malformed")
    order = read_order(bytes(blobs[0])) if len(blobs[0]) else None
    if not isinstance(order, TotalOrder | None):
        raise ProtocolError("an order is malformed")
    return order, {k: bytes(box) for k, box in zip(partitions, blobs[1:], strict=True)}


def read_vector(blobs: Sequence[memoryview]) -> npt.NDArray[np.uint64]:
    """The vector of a total. Raises ProtocolError for anything else."""
    if len(blobs) != 1 or len(blobs[0]) % 8:
        raise ProtocolError("a total is malformed")
    return np.frombuffer(blobs[0], "<u8").astype(np.uint64, copy=False)


def _partitions(facts: Mapping[str, Any], what: str) -> list[int]:
    """Distinct partition ids."""
    listed = facts.get("partitions")
    if not isinstance(listed, list) or not all(type(k) is int and 0 <= k < 2**31 for k in listed):
        raise ProtocolError(f"a message with {what} is malformed")
    if len(set(listed)) != len(listed):
        raise ProtocolError(f"a message with {what} is malformed")
    return listed


def read_order(message: bytes) -> ChooseOrder | OpenOrder | TotalOrder:
    """ProtocolError if it is malformed. What it asks for is checked elsewhere."""
    facts, blobs = unpack(message)
    try:
        number, name, round, kind = facts["number"], facts["name"], facts["round"], facts["kind"]
        if kind == "open" and not blobs:
            return OpenOrder(number, name, round, float.fromhex(facts["sigma"]), _cliques(facts["cliques"]))
        if kind == "total" and not blobs:
            sigma, sensitivity = float.fromhex(facts["sigma"]), float.fromhex(facts["sensitivity"])
            counted = [facts[name] for name in ("count", "length", "asked")]
            return TotalOrder(number, name, round, sigma, sensitivity, *counted)
        if kind != "choose":
            raise ValueError
        weights, penalties, model = (_integers(blob) for blob in blobs)
        cliques, sizes = _cliques(facts["cliques"]), tuple(facts["sizes"])
        terms = Terms(facts["norm"], cliques, sizes, weights, penalties, model, facts["scale"], facts["rows"])
        return ChooseOrder(number, name, round, float.fromhex(facts["epsilon"]), terms)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise ProtocolError("an order is malformed") from None


def digest_of(*pieces: bytes) -> bytes:
    """SHA-256 over pieces and their lengths."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(struct.pack("<Q", len(piece)))
        digest.update(piece)
    return digest.digest()


# Deals and shares ----------------------------------------------------------------------------------------------------


def deals_bytes(parts: Mapping[int, DealPart]) -> bytes:
    """One party's parts of some deals."""
    blobs = [piece for _, part in sorted(parts.items()) for piece in (part.public, part.box, part.correction)]
    return pack({"partitions": sorted(parts)}, blobs)


def read_deals(message: bytes) -> dict[int, DealPart]:
    facts, blobs = unpack(message)
    partitions = _partitions(facts, "deals")
    if len(blobs) != 3 * len(partitions):
        raise ProtocolError("a message with deals is malformed")
    rows = (blobs[i : i + 3] for i in range(0, len(blobs), 3))
    return {k: DealPart(bytes(p), bytes(b), bytes(c)) for k, (p, b, c) in zip(partitions, rows, strict=True)}


def share_bytes(share: ServerShare) -> list[bytes]:
    return [share.own.astype("<u8", copy=False).tobytes(), share.next_digest]


def read_share(blobs: Sequence[memoryview]) -> ServerShare:
    if len(blobs) != 2 or len(blobs[0]) % 8:
        raise ProtocolError("a share of opened marginals is malformed")
    return ServerShare(np.frombuffer(blobs[0], "<u8").astype(np.uint64, copy=False), bytes(blobs[1]))


def _raw(values: npt.NDArray[np.int64]) -> bytes:
    return values.astype("<i8", copy=False).tobytes()


def _integers(blob: memoryview) -> npt.NDArray[np.int64]:
    return np.frombuffer(blob, "<i8").astype(np.int64)


def _cliques(listed: Any) -> tuple[Clique, ...]:
    cliques = tuple(tuple(clique) for clique in listed if isinstance(clique, list))
    if len(cliques) != len(listed) or not all(isinstance(name, str) for clique in cliques for name in clique):
        raise ValueError
    return cliques
