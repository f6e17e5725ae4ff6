"""The envelope of every request, and a reply.

A Flower message holds a list of arrays and one scalar, a JSON text. Nothing is ever pickled. The bytes of an array are
NumPy's own format, read with pickling disabled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy.typing as npt
from pydantic import Field, TypeAdapter

from fedsyn.errors import ConfigError, ProtocolError, refuse

PROTOCOL_VERSION = 3
#: Most bytes of a message where no node's own link bounds it: Flower's limit is 2^31 - 1.
FLOWERS_MOST = 2**31 - 2**27
ENVELOPE = "envelope"  # the one scalar of a request
ANSWER = "answer"  # the one scalar of a reply
#: Bytes of one message, there or back: a node sends and takes no larger one, nor does the SuperLink's gate.
MOST_MESSAGE = 2**29
Scalar = bool | int | float | str | bytes
Arrays = list[npt.NDArray[Any]]


def check_message(size: float, where: str, *, simulated: bool = True) -> None:
    """Raises ConfigError, naming `where`, for too large a message.

    Flower, or a node's link, carries no more at once.
    """
    most = FLOWERS_MOST if simulated else MOST_MESSAGE
    if size > most:
        raise ConfigError(
            f"{where}: {size / 2**20:,.0f} MiB would be sent at once, and a message has at most "
            f"{most / 2**20:,.0f}: lower workload.degree, workload.size, data.bins, inference.max_cells or "
            "mechanism.rounds"
        )


_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def to_json(fields: Mapping[str, Any]) -> str:
    return _encode(fields)


def from_json(text: Any, what: str) -> dict[str, Any]:
    """A JSON object from a message. Raises ProtocolError for anything else."""
    try:
        fields = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, thousands of levels
        fields = None
    if not isinstance(fields, dict):
        raise ProtocolError(f"the message's {what} is missing or not a JSON object")
    return fields


_MALFORMED = "the description of the sum is malformed"
_Whole = Annotated[int, Field(ge=0, lt=2**53)]
_Count = Annotated[int, Field(ge=1, lt=2**53)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class SumSpec:
    """The public facts of a sum, as its clients receive them.

    Attributes:
        shapes: shapes of the summed arrays.
        sigma: standard deviation of the noise on the sum, in units of the summed values.
        sensitivity: L2 sensitivity of one array.
        count: the most arrays that one row may touch.
        signed: whether values may be negative.
        magnitude: largest absolute value that one row adds to one entry.
        asked: number of clients that the server asks.
        number: of the sum in its run, from 0; no two sums of a run share one.
    """

    shapes: tuple[tuple[_Count, ...], ...]
    sigma: _Positive
    sensitivity: _Positive
    count: _Count
    signed: bool = False
    magnitude: _Positive = 1.0
    asked: _Count = 1
    number: _Whole = 0

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> SumSpec:
        """The facts from an envelope. Raises ProtocolError if they are malformed."""
        try:
            facts = {name: fields[name] for name in SumSpec.__dataclass_fields__}
            spec = _SPEC.validate_json(to_json(facts), strict=True)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ProtocolError(_MALFORMED) from None
        refuse(not 1 <= spec.length < 2**53, _MALFORMED)
        return spec

    @cached_property
    def length(self) -> int:
        """L, entries of the summed vector."""
        return sum(math.prod(shape) for shape in self.shapes)


_SPEC = TypeAdapter(SumSpec)


@dataclass(frozen=True)
class Stage:
    """Number of a message within a secure sum.

    Attributes:
        name: of the stage.
        skip: number of the message's arrays that belong to the mechanism; those of the stage follow.
        run: random name of the server's run, which tells the sums of two runs apart.
    """

    name: str
    skip: int
    run: str

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Stage:
        name, skip, run = (fields.get(key) for key in ("name", "skip", "run"))
        if not isinstance(name, str) or not isinstance(run, str) or type(skip) is not int or skip < 0:
            raise ProtocolError("the message belongs to no stage of a secure sum")
        return cls(name, skip, run)


@dataclass(frozen=True)
class Envelope:
    """The fields of every request beside its arrays.

    Attributes:
        request: name of the request.
        kind: 'ask' or 'sum'.
        round: t.
        config_hash: `RunConfig.sha256` of the run.
        params: the request's own parameters; only its record in `clients/` reads them.
        sequence: numbers the requests of a run: randomness is keyed by it, so that two requests of one name in one
            round never share their noise. All stages of one sum have the same.
        sum: facts of the sum, for kind 'sum'.
        stage: of a secure sum.
        version: of the protocol.
    """

    request: str
    kind: str
    round: int
    config_hash: str
    params: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = 0
    sum: SumSpec | None = None
    stage: Stage | None = None
    version: int = PROTOCOL_VERSION

    def to_scalars(self) -> dict[str, Scalar]:
        """Writes the envelope as one JSON text.

        Flower checks every key of a record, and thousands of clients mean thousands of records.
        """
        fields = {name: value for name, value in vars(self).items() if value is not None}  # `asdict` copies all params
        fields |= {"config": fields.pop("config_hash"), "params": dict(self.params)}
        fields |= {name: asdict(fields[name]) for name in ("sum", "stage") if name in fields}
        return {ENVELOPE: to_json(fields)}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Envelope:
        """Reads and checks an envelope.

        Raises ProtocolError, which names the field at fault, never its value.
        """
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
        expected = {"request": str, "kind": str, "round": int, "config": str, "params": dict, "sequence": int}
        for key, kind in expected.items():
            if not isinstance(fields.get(key), kind) or isinstance(fields.get(key), bool):
                raise ProtocolError(f"message field '{key}' is missing or not a {kind.__name__}")
        parts: dict[str, Any] = {}
        readers: dict[str, Any] = {"sum": SumSpec.read, "stage": Stage.read}
        for key, read in readers.items():
            if key in fields:
                if not isinstance(fields[key], dict):
                    raise ProtocolError(f"message field '{key}' is not a dict")
                parts[key] = read(fields[key])
        return cls(*(fields[key] for key in expected), **parts)


@dataclass(frozen=True)
class Reply:
    """One client's checked reply."""

    partition: int
    arrays: Arrays
    params: Mapping[str, Any]
