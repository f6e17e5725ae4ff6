"""Contents of Flower's messages, made and read.

Arrays travel as one of Flower's objects.

Flower sends each array as two objects, and the SuperLink takes a call for each of them, from the sender and from the
receiver. A stage of a secure sum has a dozen arrays. Between a server and a `fedsyn node` they travel together: one
array whose bytes are a count, the length of each, and then all of them in NumPy's format. Who does not know of it is
sent none (`fedsyn.flower.patient`), and answers as Flower would.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedsyn.errors import ProtocolError
from fedsyn.flower.private import ErrorCode, ObjectTree

#: Flower's errors of a SuperLink that has no reply and expects none.
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
#: Causes of Flower's errors of a ClientApp, for people.
_CAUSES = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: ": its ClientApp could not be loaded (see the node's own log)",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: ": its ClientApp raised an exception outside of fedsyn (see the node's own "
    "log); its function for `train` has to return what `fedsyn.FlowerApp.answer` returns",
}
NUMERIC = "uifb"  # kinds of NumPy types that a reply may hold
_KEY = "_together"  # of the one array
_FORM = "numpy.ndarray"


def pack(arrays: ArrayRecord, scalars: Mapping[str, Any]) -> RecordDict:
    """Returns a request's content.

    It has the arrays of a shared record, and a mapping of its own.
    """
    return RecordDict({"arrays": arrays, "config": ConfigRecord(dict(scalars))})


def array_record(arrays: Sequence[npt.NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord([np.asarray(a, order="C") for a in arrays])  # ascontiguousarray would give 0-d arrays an axis


def read_reply(message: Message) -> tuple[list[npt.NDArray[Any]], dict[str, Any]]:
    """Returns arrays and scalars of a reply.

    Raises ProtocolError if it is an error or does not decode.
    """
    if message.has_error():
        # The reason is free text made by the other side: it is not repeated, because it may quote anything.
        code = message.error.code
        raise ProtocolError(f"the client's node answered with error code {code}{_CAUSES.get(code, '')}")
    try:
        return read_content(message)
    except Exception as error:
        raise ProtocolError(f"the reply does not decode ({type(error).__name__})") from None


def read_content(message: Message) -> tuple[list[npt.NDArray[Any]], dict[str, Any]]:
    """Returns arrays and scalars of a message's content."""
    records = message.content
    return [_read_array(array) for array in records["arrays"].values()], dict(records["config"])


def _read_array(array: Array) -> npt.NDArray[Any]:
    if array.stype != _FORM:
        raise ProtocolError("an array of the message is not in NumPy's format")
    decoded: npt.NDArray[Any] = array.numpy()  # np.load(allow_pickle=False)
    if decoded.dtype.kind not in NUMERIC:
        raise ProtocolError("an array of the message is not numeric")
    return decoded


def content_bytes(content: RecordDict) -> int:
    """Returns the bytes of a payload.

    It counts array data, and the text of keys and scalars.
    """
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(key) + len(array.data) for key, array in record.items())
        else:
            for key, value in record.items():
                total += len(key) + (len(value) if isinstance(value, str | bytes) else 8)
    return total


def objects_of(tree: ObjectTree) -> list[str]:
    """Returns the names of a message's objects, each once.

    After an object come those that it consists of.
    """

    def below(node: ObjectTree) -> Iterator[str]:
        for child in node.children:
            yield from below(child)
        yield node.object_id

    return list(dict.fromkeys(below(tree)))


# Arrays together ------------------------------------------------------------------------------------------------------


def together(record: ArrayRecord) -> ArrayRecord:
    """Joins a record's arrays into one.

    A record of none or of one is left unchanged.
    """
    if len(record) < 2:
        return record
    parts = [bytes(array.data) for array in record.values()]
    data = struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts)) + b"".join(parts)
    return ArrayRecord({_KEY: Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)})


def is_together(record: ArrayRecord) -> bool:
    return list(record) == [_KEY]


def apart(record: ArrayRecord) -> ArrayRecord:
    """Splits the arrays of `together` again.

    A record of another kind is left unchanged.

    Raises:
        ValueError: the lengths are not those of the bytes.
    """
    if not is_together(record):
        return record
    data = bytes(record[_KEY].data)
    if len(data) < 8:
        raise ValueError("arrays that travel together need a count")
    (count,) = struct.unpack_from("<Q", data)
    if count > (len(data) - 8) // 8:
        raise ValueError("arrays that travel together are fewer than they say")
    sizes = struct.unpack_from(f"<{count}Q", data, 8)
    start = 8 + 8 * count
    if start + sum(sizes) != len(data):
        raise ValueError("arrays that travel together have other lengths than they say")
    arrays = {}
    for place, size in enumerate(sizes):
        arrays[str(place)] = Array(dtype="", shape=(), stype=_FORM, data=data[start : start + size])
        start += size
    return ArrayRecord(arrays)
