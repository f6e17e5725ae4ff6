"""One request, as it travels between a node's processes.

The connection reads no array and the worker's parent no message: both pass bytes on. A frame is eight bytes with the
length of a JSON header, the header, and the blobs whose lengths it lists. What exceeds a bound is a `FrameError`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.wire.envelope import MOST_MESSAGE
from fedsyn.wire.refusals import Kind, Refusal

#: Bytes of a header: a run's configuration and schema are in it.
MOST_HEADER = 2**25
#: Arrays of one request, or of one reply.
MOST_ARRAYS = 100_000
#: Exit code of a worker whose node's files cannot be used: starting it again changes nothing.
BAD_INPUT = 2
#: Why a task that was killed gave no answer.
GREEDY = Refusal(Kind.BUSY, "the request needed more than this node allows, or its task was ended")
_NUMERIC = "uifb"
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Bounds:
    """Resources that one task may use.

    Attributes:
        seconds: of wall time.
        megabytes: of memory beyond the table and what is imported.
    """

    seconds: float = 300.0
    megabytes: int = 4096


class FrameError(FedsynError):
    """The other process sent something that is not a frame.

    It has ended, or somebody forged it.
    """


@dataclass(frozen=True)
class Task:
    """One request, as `Answering.answer` gets it.

    Attributes:
        run: Flower's number of the run; a run that is resumed has another one.
        run_config: the run's configuration as the server submitted it; nothing of it is believed.
        fab_hash: of the submitted app, as the SuperLink tells it.
        scalars: of the message.
        arrays: of the message, read-only.
    """

    run: int
    run_config: Mapping[str, Any]
    fab_hash: str
    scalars: Mapping[str, Any]
    arrays: list[npt.NDArray[Any]]

    @property
    def digest(self) -> str:
        """Hash of the request.

        A message that is sent again has the same one, whatever Flower numbers it.
        """
        digest = hashlib.sha256(json.dumps(dict(self.scalars), sort_keys=True, default=repr).encode())
        for array in self.arrays:
            digest.update(f"|{array.dtype.str}{array.shape}|".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class NodeReply:
    """A reply that leaves the holder's machine."""

    scalars: dict[str, str]
    arrays: list[npt.NDArray[Any]] = field(default_factory=list)


def failed(refusal: Refusal, *, killed: bool = False) -> tuple[dict[str, Any], list[bytes]]:
    """Returns header and blobs of a refusal for lack of resources.

    `killed` says that its task was killed.
    """
    return {"scalars": refusal.scalars, "arrays": [], "failed": True, "killed": killed}, []


# Arrays --------------------------------------------------------------------------------------------------------------


def written(array: npt.NDArray[Any]) -> bytes:
    """An array in NumPy's format, without pickling."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_array(data: bytes) -> npt.NDArray[Any]:
    """A read-only numeric array from NumPy's format. Raises ProtocolError for anything else."""
    try:
        array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        if array.dtype.kind not in _NUMERIC:
            raise ValueError("not numeric")
    except Exception:  # NumPy parses the header with Python's own tokenizer, whose errors are many
        raise ProtocolError("an array of the request is not a numeric array in NumPy's format") from None
    array.flags.writeable = False
    return array


def packed(reply: NodeReply) -> tuple[dict[str, Any], list[bytes]]:
    """Header and blobs of a reply."""
    described = [[str(array.dtype), list(array.shape)] for array in reply.arrays]
    return {"scalars": reply.scalars, "arrays": described}, [written(array) for array in reply.arrays]


def reply_bytes(reply: NodeReply) -> bytes:
    """A reply as it is kept."""
    return b"".join(frame(*packed(reply)))


def reply_of(content: bytes) -> NodeReply:
    """Inverse of `reply_bytes`. Raises FrameError if these are not its bytes."""
    (length,) = _LENGTH.unpack(content[: _LENGTH.size])
    try:
        header, at, arrays = json.loads(content[_LENGTH.size : _LENGTH.size + length]), _LENGTH.size + length, []
        for size in header["sizes"]:
            arrays.append(read_array(content[at : at + size]))
            at += size
        return NodeReply(dict(header["scalars"]), arrays)
    except (ValueError, KeyError, TypeError, ProtocolError):
        raise FrameError("the reply that was kept is malformed") from None


# Frames --------------------------------------------------------------------------------------------------------------


def frame(header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> list[bytes]:
    """The parts of a frame, in order."""
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}, separators=(",", ":")).encode()
    return [_LENGTH.pack(len(text)) + text, *blobs]


def fits(header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> bool:
    """Returns whether `read_frame` takes this frame.

    The other process would end on a frame that it does not take.
    """
    most = len(json.dumps(header, separators=(",", ":"))) + 21 * len(blobs) + 20
    return most <= MOST_HEADER and len(blobs) <= MOST_ARRAYS and sum(map(len, blobs)) <= MOST_MESSAGE


def write_frame(descriptor: int, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Writes a frame to a pipe or socket.

    Raises:
        OSError: the other side has gone.
    """
    for part in frame(header, blobs):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view[: 2**20]) :]


def read_frame(
    descriptor: int, *, deadline: float | None = None, most: int = MOST_MESSAGE
) -> tuple[dict[str, Any], list[bytes]] | None:
    """Reads a frame from a pipe or socket.

    None means that the other side ended before a frame began.

    Args:
        descriptor: to read from.
        deadline: of `time.monotonic`; None: as long as it takes.
        most: bytes of all blobs.

    Raises:
        FrameError: it is malformed, larger than allowed, or ends in the middle.
        TimeoutError: the deadline passed.
    """
    start = _read(descriptor, _LENGTH.size, deadline, nothing=True)
    if start is None:
        return None
    (length,) = _LENGTH.unpack(start)
    if length > MOST_HEADER:
        raise FrameError("a frame's header is longer than allowed")
    try:
        header = json.loads(_read(descriptor, length, deadline) or b"")
        sizes = header.pop("sizes")
        if type(sizes) is not list or len(sizes) > MOST_ARRAYS or any(type(n) is not int or n < 0 for n in sizes):
            raise ValueError("sizes")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise FrameError("a frame's header is malformed") from None
    if sum(sizes) > most:
        raise FrameError("a frame is larger than allowed")
    return header, [_read(descriptor, size, deadline) or b"" for size in sizes]


def _read(descriptor: int, length: int, deadline: float | None, nothing: bool = False) -> bytes | None:
    parts: list[bytes] = []
    missing = length
    while missing:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and (left <= 0 or not select.select([descriptor], [], [], left)[0]):
            raise TimeoutError
        part = os.read(descriptor, min(missing, 2**20))
        if not part:
            if nothing and not parts:
                return None
            raise FrameError("a frame ends in the middle")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
