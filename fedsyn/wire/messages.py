"""Requests of a mechanism, replies of its clients, and how both are encoded.

A request is `Ask` or `Sum`. Both travel as one Flower message per client: a list of arrays, and a flat mapping of
scalars that holds the envelope (protocol version, config hash, request name, round) and `params`, a JSON text.
Nothing is ever pickled. The bytes of an array are NumPy's own format, read with pickling disabled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ProtocolError

PROTOCOL_VERSION = 1
ENVELOPE = "envelope"  # the one scalar of a request
ANSWER = "answer"  # the one scalar of a reply
Scalar = bool | int | float | str | bytes
Arrays = list[npt.NDArray[Any]]


@dataclass(frozen=True)
class Ask:
    """A request whose replies reach the server one by one: each must already be private.

    Attributes:
        cohort: partition ids of the clients that are asked.
        name: method of the client half that answers.
        params: public JSON-able parameters.
        arrays: public arrays, the same for every client (for instance the current model).
    """

    cohort: tuple[int, ...]
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[npt.NDArray[Any]] = ()

    kind = "ask"


@dataclass(frozen=True)
class Sum:
    """A request of which the server learns only the sum over the cohort plus Gaussian noise.

    Attributes:
        cohort: partition ids of the clients that are asked.
        name: method of the client half that answers with its contribution.
        shapes: shapes of the arrays that are summed; a contribution is laid out as their concatenation.
        sigma: standard deviation of the noise on the sum, in units of the summed values (records, for counts).
        count: largest number of these arrays that one row can touch, each with L2 sensitivity `sensitivity`.
        sensitivity: L2 sensitivity of one array.
        params: public JSON-able parameters.
        arrays: public arrays, the same for every client.
        argument: why one row touches only `count` of the arrays, where that is fewer than all of them.
        signed: whether a contribution may hold negative values (sketches); counts may not.
        magnitude: largest absolute value that one row adds to one entry, for the check that no sum can overflow.
    """

    cohort: tuple[int, ...]
    name: str
    shapes: tuple[tuple[int, ...], ...]
    sigma: float
    count: int
    sensitivity: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    arrays: Sequence[npt.NDArray[Any]] = ()
    argument: str = ""
    signed: bool = False
    magnitude: float = 1.0

    kind = "sum"

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def length(self) -> int:
        return sum(self.sizes)


Request = Ask | Sum


@dataclass(frozen=True)
class Summed:
    """Answer to a `Sum`.

    Attributes:
        arrays: noisy sums, float64, in the shapes that were asked for.
        sigmas: standard deviation of the noise that each array carries (larger than asked for with local noise).
        contributors: partition ids whose contribution is in the sum, ascending.
    """

    arrays: Arrays
    sigmas: tuple[float, ...]
    contributors: tuple[int, ...]


@dataclass(frozen=True)
class Envelope:
    """What every message carries beside its arrays.

    `sequence` numbers the requests of a run: randomness is keyed by it, so that two requests of one name in one round
    never share their noise. All stages of one sum have the same.
    """

    request: str
    kind: str
    round: int
    config_hash: str
    params: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = 0
    version: int = PROTOCOL_VERSION

    def to_scalars(self) -> dict[str, Scalar]:
        """One JSON text: Flower checks every key of a record, and thousands of clients mean thousands of records."""
        fields = {
            "version": self.version,
            "request": self.request,
            "kind": self.kind,
            "round": self.round,
            "config": self.config_hash,
            "params": dict(self.params),
            "sequence": self.sequence,
        }
        return {ENVELOPE: to_json(fields)}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Envelope:
        """Reads and checks an envelope; ProtocolError names the field at fault, never its value."""
        return cls._parse(str(scalars.get(ENVELOPE)))

    @classmethod
    @lru_cache(maxsize=8)  # clients of a simulation that share a process read the same text one after the other
    def _parse(cls, text: str) -> Envelope:
        fields = from_json(text, "envelope")
        version = fields.get("version")
        if version != PROTOCOL_VERSION or isinstance(version, bool):
            raise ProtocolError(
                f"the peer speaks protocol version {version if isinstance(version, int) else 'unknown'}, "
                f"this side speaks {PROTOCOL_VERSION}: install the same fedsyn on both"
            )
        expected = {"request": str, "kind": str, "config": str, "params": dict, "round": int, "sequence": int}
        for key, kind in expected.items():
            if not isinstance(fields.get(key), kind) or isinstance(fields.get(key), bool):
                raise ProtocolError(f"message field '{key}' is missing or not a {kind.__name__}")
        return cls(*(fields[key] for key in ("request", "kind", "round", "config", "params", "sequence")))


@dataclass(frozen=True)
class Reply:
    """One client's checked reply."""

    partition: int
    arrays: Arrays
    params: Mapping[str, Any]


def to_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True)


def from_json(text: Any, what: str) -> dict[str, Any]:
    """A JSON object from a message; ProtocolError if it is none."""
    try:
        fields = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, thousands of levels
        fields = None
    if not isinstance(fields, dict):
        raise ProtocolError(f"the message's {what} is missing or not a JSON object")
    return fields


# Contributions to a sum --------------------------------------------------------------------------------------------


def encode_sparse(cells: npt.NDArray[np.integer], values: npt.NDArray[np.integer]) -> Arrays:
    """A sparse integer vector as two arrays: gaps between sorted cells, and values, in the smallest integer types.

    Args:
        cells: (m,) strictly increasing flat positions.
        values: (m,) integers, negative ones in a signed sum only.
    """
    gaps = np.diff(cells, prepend=0) if len(cells) else np.zeros(0, np.int64)
    return [gaps.astype(_smallest(gaps)), values.astype(_smallest(values))]


def decode_sparse(
    arrays: Sequence[npt.NDArray[Any]], length: int, *, signed: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Inverse of `encode_sparse`, checked against the length of the summed vector; ProtocolError if malformed."""
    if len(arrays) != 2:
        raise ProtocolError(f"a sparse vector has 2 arrays, the reply has {len(arrays)}")
    gaps, values = arrays
    for part in (gaps, values):
        if part.ndim != 1 or part.dtype.kind not in "ui":
            raise ProtocolError("a sparse vector must hold one-dimensional integer arrays")
    if gaps.shape != values.shape or len(gaps) > length:
        raise ProtocolError("a sparse vector's cells and values do not match")
    least = -(2**53) if signed else -1
    if len(gaps) and (int(gaps.min()) < 0 or int(gaps.max()) > length or int(values.min()) <= least):
        raise ProtocolError("a sparse vector holds negative or oversized entries")
    if len(gaps) and int(values.max()) >= 2**53:
        raise ProtocolError("a sparse vector holds negative or oversized entries")
    cells = np.cumsum(gaps, dtype=np.int64)
    if len(cells) and (cells[-1] >= length or (len(cells) > 1 and int(gaps[1:].min()) < 1)):
        raise ProtocolError(f"a sparse vector's cells must increase and stay below {length}")
    return cells, values.astype(np.int64)


def _smallest(values: npt.NDArray[np.integer]) -> np.dtype[Any]:
    if not len(values):
        return np.dtype(np.uint8)
    low, high = int(values.min()), int(values.max())
    if low >= 0:
        return np.dtype(np.min_scalar_type(high))
    return np.result_type(np.min_scalar_type(low), np.min_scalar_type(-high - 1) if high > 0 else np.int8)


def split_vector(vector: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Views of a flat vector in the given shapes, in order."""
    sizes = [math.prod(shape) for shape in shapes]
    bounds = np.cumsum([0, *sizes])
    return [vector[bounds[i] : bounds[i + 1]].reshape(shape) for i, shape in enumerate(shapes)]
