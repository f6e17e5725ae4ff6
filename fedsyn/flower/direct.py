"""Calls of client halves, with Flower's messages and without.

A message of Flower's is a handful of typed dictionaries that check every key, and each array in it is written in
NumPy's format and read again, twice. Without messages the same client half is called with the same arrays and scalars,
and what it answers is checked and counted as if it had been a message. What still keeps the two sides apart:

* the arrays of a request are written once, into bytes that nobody can change, and every client gets views of its own;
* what a client returns is copied;
* every node has a context of its own, whose state alone survives, as records that could be written down;
* an exception in a client becomes a refusal (`fedsyn.wire.refusals`).
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from fedsyn.errors import ProtocolError
from fedsyn.flower.messages import NUMERIC, pack, read_content
from fedsyn.wire.refusals import refusal_of

ClientFn = Callable[[Context], NumPyClient]
Arrays = list[npt.NDArray[Any]]
#: An array as nobody can change it: shape, type, and its bytes in C order.
Frozen = tuple[tuple[int, ...], np.dtype[Any], bytes]


class TableApp(ClientApp):
    """A ClientApp whose `train` function is a `NumPyClient`'s answer.

    An in-process Grid can call the client without messages.

    Args:
        client_fn: makes a node's client.
        mods: of Flower; with any of them every engine uses messages, which is what mods work on.
    """

    def __init__(self, client_fn: ClientFn, mods: Sequence[Any] = ()) -> None:
        super().__init__(mods=list(mods))
        self.train()(partial(answered, client_fn))
        self._client_fn, self._bare = client_fn, not mods
        self.__module__ = client_fn.__module__
        self._untouched = self._lifespan  # what Flower's decorator `lifespan` replaces

    @property
    def direct(self) -> ClientFn | None:
        """Function that makes a node's client.

        None means that something else stands between a message and the client.
        """
        return self._client_fn if self._bare and self._lifespan is self._untouched else None

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles a module's `app` as its name.

        Flower's simulation sends the app along with every message.
        """
        named = getattr(sys.modules.get(self.__module__), "app", None) is self
        return "app" if named else object.__reduce_ex__(self, 2)


def answered(client_fn: ClientFn, message: Message, context: Context) -> Message:
    """Returns a node's reply to a message of the server.

    An exception leaves the node as a refusal: Flower would send its text to the server.
    """
    try:
        arrays, scalars = read_content(message)
        for array in arrays:  # on every engine: one process of clients shares what it received
            array.flags.writeable = False
        reply = called(client_fn, arrays, scalars, context)
    except Exception as error:  # of the message itself: `called` answers for the client's
        return Message(pack(ArrayRecord(), refusal_of(error).scalars), reply_to=message)
    return Message(pack(ArrayRecord(reply.arrays), reply.scalars), reply_to=message)


@dataclass(frozen=True)
class DirectRequest:
    """A request to one node; nodes share the parts that are equal.

    Attributes:
        arrays: of the request.
        scalars: of the request.
        size: bytes of the message that would have brought it.
    """

    arrays: tuple[Frozen, ...]
    scalars: Mapping[str, Any]
    size: int

    @classmethod
    def of(cls, arrays: Iterable[npt.NDArray[Any]], scalars: Mapping[str, Any]) -> DirectRequest:
        return cls((), dict(scalars), _text_bytes(scalars)).extended(arrays)

    def extended(self, arrays: Iterable[npt.NDArray[Any]]) -> DirectRequest:
        """Returns a copy with further arrays behind its own.

        Its own are not written again.
        """
        more = [np.asarray(array, order="C") for array in arrays]
        frozen = (*self.arrays, *((array.shape, array.dtype, array.tobytes()) for array in more))
        return DirectRequest(frozen, self.scalars, self.size + _array_bytes(more, len(self.arrays)))

    def views(self) -> Arrays:
        """Read-only arrays over the common bytes, new ones for each client."""
        return [np.ndarray(shape, dtype, data) for shape, dtype, data in self.arrays]


@dataclass(frozen=True, slots=True)
class DirectReply:
    """One node's answer.

    Attributes:
        node: its id.
        arrays: of the reply.
        scalars: of the reply.
        size: bytes of the message that would have brought it.
        seconds: that the node took.
    """

    node: int
    arrays: Arrays
    scalars: Mapping[str, Any]
    size: int
    seconds: float

    def read(self) -> tuple[Arrays, Mapping[str, Any]]:
        """Returns arrays and scalars.

        Raises ProtocolError, as for a message, if an array holds anything but numbers.
        """
        if any(array.dtype.kind not in NUMERIC for array in self.arrays):
            raise ProtocolError(f"the reply does not decode ({ProtocolError.__name__})")
        return self.arrays, self.scalars

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles arrays as a message encodes them.

        NumPy's own pickle would swap the bytes of foreign byte orders.
        """
        parts = [(a.shape, a.dtype, a.tobytes("A"), "C" if a.flags.c_contiguous else "F") for a in self.arrays]
        return _unpickled, (self.node, parts, self.scalars, self.size, self.seconds)


def _unpickled(node: int, parts: list[Any], scalars: Mapping[str, Any], size: int, seconds: float) -> DirectReply:
    arrays = [np.ndarray(shape, dtype, data, order=order).copy("K") for shape, dtype, data, order in parts]
    return DirectReply(node, arrays, scalars, size, seconds)


def ask(client_fn: ClientFn, request: DirectRequest, context: Context) -> DirectReply:
    """Returns one node's answer without a message, as `called`."""
    return called(client_fn, request.views(), dict(request.scalars), context)


def called(client_fn: ClientFn, arrays: Arrays, scalars: Mapping[str, Any], context: Context) -> DirectReply:
    """Returns one node's answer, or its refusal.

    The context afterwards holds what the client wants to remember.
    """
    start = time.monotonic()
    try:
        arrays, _, scalars = client_fn(context).fit(arrays, scalars)
        sent = [_sent(array) for array in arrays]
        if not all(type(key) is type(value) is str for key, value in scalars.items()):
            ConfigRecord(scalars)  # refuses what no message can bring
    except Exception as error:
        sent, scalars = [], refusal_of(error).scalars
    size = _text_bytes(scalars) + _array_bytes(sent, 0)
    return DirectReply(context.node_id, sent, scalars, size, time.monotonic() - start)


def chunks(items: Iterable[Any], length: int) -> Iterator[list[Any]]:
    """Lists of at most `length` items, in order."""
    rest = iter(items)
    while chunk := list(islice(rest, length)):
        yield chunk


def _sent(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the array as the other side would read it.

    It is a copy in C order, or in Fortran's where it is only that.
    """
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise ValueError("an array of objects cannot be sent")
    return np.array(array, order="F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def _text_bytes(scalars: Mapping[str, Any]) -> int:
    return sum(len(key) + (len(value) if isinstance(value, str | bytes) else 8) for key, value in scalars.items())


def _array_bytes(arrays: Sequence[npt.NDArray[Any]], first: int) -> int:
    """Returns the bytes of arrays in NumPy's format, with their names.

    The names are the numbers from `first` on.
    """
    total = 0
    for name, array in enumerate(arrays, first):
        total += len(str(name)) + array.nbytes + _header_bytes(array.dtype, array.shape, array.flags.c_contiguous)
    return total


@lru_cache(maxsize=4096)
def _header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...], is_c: bool) -> int:
    """Bytes that NumPy's format puts before the data."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": not is_c, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.tell()
