"""Messages between a server and the parties, as bytes.

Values are written and read by their types.

A message is JSON, which has everything but bytes and arrays, and behind it those. It is one form for the wire and for
the digests that the parties compare: the same value of the same type gives the same bytes.

Reading is strict: a server may send anything. What does not read is one fixed sentence; what a value asks for is
checked elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.errors import FedsynError, ProtocolError

#: Version of everything that server, parties and clients say to each other about a store.
STORE_VERSION = 4
_HEAD = struct.Struct("<I")
_MOST_HEAD = 1 << 26  # bytes of a message's JSON part
_MALFORMED = "a message is malformed"


def pack(kind: Any, value: Any) -> bytes:
    """Returns a value as a message.

    Args:
        kind: type of the value: a dataclass, a plain type, an array of numbers, or a tuple, sequence, mapping by
            partition id, or optional of such.
        value: of that type.
    """
    blobs: list[bytes] = []
    return message_of(_written(kind, value, blobs), blobs)


def unpack(kind: Any, message: bytes) -> Any:
    """Reads a value of a type.

    Raises ProtocolError if the message has none, or is of another version.
    """
    facts, blobs = parts_of(message)
    try:
        rest = iter(blobs)
        value = _read(kind, facts, rest)
        _require(next(rest, None) is None)
    except (FedsynError, ValueError, KeyError, TypeError, AttributeError, OverflowError, StopIteration):
        raise ProtocolError(_MALFORMED) from None
    return value


def message_of(facts: Any, blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """Returns JSON facts, and their blobs, as one message."""
    head = {"version": STORE_VERSION, "facts": facts, "sizes": [len(blob) for blob in blobs]}
    text = json.dumps(head, sort_keys=True).encode()
    return b"".join([_HEAD.pack(len(text)), text, *blobs])


def parts_of(message: bytes) -> tuple[Any, list[memoryview]]:
    """Returns the facts and blobs of a `message_of`.

    Raises ProtocolError for anything else, or another version's message.
    """
    try:
        (length,) = _HEAD.unpack_from(message)
        _require(length <= _MOST_HEAD)
        start, blobs, view = _HEAD.size + length, [], memoryview(message)
        head = json.loads(message[_HEAD.size : start])
        version, sizes = head.get("version"), head["sizes"]
        _require(all(type(size) is int and size >= 0 for size in sizes))
        for size in sizes:
            blobs.append(view[start : start + size])
            start += size
        _require(start == len(message))
        facts = head["facts"]
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
        raise ProtocolError(_MALFORMED) from None
    if version != STORE_VERSION:
        raise ProtocolError(
            "server and party speak different versions of the store's protocol: install the same fedsyn"
        )
    return facts, blobs


def digest_of(*pieces: bytes) -> bytes:
    """Returns SHA-256 over pieces and their lengths."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(struct.pack("<Q", len(piece)))
        digest.update(piece)
    return digest.digest()


# By types ------------------------------------------------------------------------------------------------------------


def _written(kind: Any, value: Any, blobs: list[bytes]) -> Any:
    """Returns the JSON of a value.

    The value's bytes and arrays go to `blobs`, in order.
    """
    shape, inner = get_origin(kind), get_args(kind)
    if kind is bytes:
        blobs.append(value)
        return None
    if shape is np.ndarray:
        blobs.append(value.astype(_dtype(kind), copy=False).tobytes())
        return None
    if kind is RunConfig:
        return value.to_dict()
    if kind is Domain:
        return {"attributes": list(value.attributes), "shape": list(value.shape)}
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _written(hint, getattr(value, name), blobs) for name, hint in _fields(kind).items()}
    if shape is UnionType:
        return None if value is None else _written(inner[0], value, blobs)
    if shape in (Mapping, dict):
        return [[key, _written(inner[1], value[key], blobs)] for key in sorted(value)]
    if shape is not None:
        return [_written(hint, each, blobs) for hint, each in zip(_each(kind, len(value)), value, strict=True)]
    return float(value) if kind is float else value


def _read(kind: Any, facts: Any, blobs: Iterator[memoryview]) -> Any:
    """Returns the value of some JSON and the next blobs.

    Raises anything that `unpack` catches.
    """
    shape, inner = get_origin(kind), get_args(kind)
    # Bytes and arrays travel as blobs; their place in the JSON is null.
    if kind is bytes or shape is np.ndarray:
        _require(facts is None)
        blob = next(blobs)
        return bytes(blob) if kind is bytes else np.frombuffer(blob, _dtype(kind)).astype(_native(kind), copy=False)
    if kind is RunConfig:
        return RunConfig.model_validate(facts)
    if kind is Domain:
        return Domain(_read(tuple[str, ...], facts["attributes"], blobs), _read(tuple[int, ...], facts["shape"], blobs))
    if hasattr(kind, "__dataclass_fields__"):
        # Exactly the fields of the dataclass, no more and no fewer.
        fields = _fields(kind)
        _require(isinstance(facts, dict) and facts.keys() == fields.keys())
        return kind(**{name: _read(hint, facts[name], blobs) for name, hint in fields.items()})
    if shape is UnionType:
        return None if facts is None else _read(inner[0], facts, blobs)
    if shape is not None:
        _require(isinstance(facts, list))
    if shape in (Mapping, dict):
        # Mappings are lists of pairs, each key once.
        keys = [key for key, _ in facts]
        _require(all(type(key) is int and 0 <= key < 2**31 for key in keys) and len(set(keys)) == len(keys))
        return {key: _read(inner[1], each, blobs) for key, each in facts}
    if shape is not None:
        # Tuples, lists and sequences, item by item.
        items = [_read(hint, each, blobs) for hint, each in zip(_each(kind, len(facts)), facts, strict=True)]
        return items if shape is list else tuple(items)
    # Plain values: exactly of the type, and no infinity or NaN.
    _require(type(facts) is kind and (kind is not float or math.isfinite(facts)))
    return facts


def _each(kind: Any, length: int) -> Sequence[Any]:
    """Returns the type of each item.

    `tuple[A, B]` has two, `tuple[A, ...]` and sequences as many as come.
    """
    inner = get_args(kind)
    return inner if get_origin(kind) is tuple and inner[1:] != (...,) else [inner[0]] * length


@lru_cache(maxsize=64)
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _native(array: Any) -> Any:
    """Returns the type of an array type's numbers."""
    return get_args(get_args(array)[1])[0]


def _dtype(array: Any) -> Any:
    return np.dtype(_native(array)).newbyteorder("<")


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError
