"""Clients called in the server's own process, without Flower's messages.

A message of Flower's is a handful of typed dictionaries that check every key, and each array in it is written in
NumPy's format and read again, twice. Here the same client half is called with the same arrays and scalars, and what it
answers is checked and counted as if it had been a message. What still keeps the two sides apart:

* the arrays of a request are written once, into bytes that nobody can change, and every client gets views of its own;
* what a client returns is copied;
* every node has a context of its own, whose state alone survives, as records that could be written down;
* an exception in a client becomes a refusal (`fedsyn.wire.refusals`).
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from fedsyn.errors import ProtocolError
from fedsyn.flower.bridge import FitClient, bridge
from fedsyn.flower.messages import EMPTY, NUMERIC
from fedsyn.wire.refusals import refusal_of

ClientFn = Callable[[Context], Client]
Arrays = list[npt.NDArray[Any]]
#: An array as nobody can change it: shape, type, and its bytes in C order.
Frozen = tuple[tuple[int, ...], np.dtype[Any], bytes]


class TableApp(ClientApp):
    """A ClientApp of bridged `NumPyClient`s.

    An in-process Grid can call them without messages.

    Args:
        client_fn: makes a node's client, by `TableClient.to_client`.
        mods: of Flower, with the bridge as the last one; with any other than the bridge every engine uses messages,
            which is what mods work on.
    """

    def __init__(self, client_fn: ClientFn, mods: Sequence[Any] = (bridge,)) -> None:
        super().__init__(client_fn=client_fn, mods=list(mods))
        self._client_fn, self._bare = client_fn, list(mods) == [bridge]
        self._untouched = self._lifespan  # what Flower's decorator `lifespan` replaces

    @property
    def direct(self) -> ClientFn | None:
        """Function that makes a node's client.

        None means that more than the bridge stands between a message and the client.
        """
        return self._client_fn if self._bare and self._lifespan is self._untouched else None


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
    """Returns one node's answer, or its refusal.

    The context afterwards holds what the client wants to remember.
    """
    start = time.monotonic()
    try:
        client = client_fn(context)
        if not isinstance(client, FitClient):
            raise TypeError("the client_fn of a TableApp gives what TableClient.to_client gives")
        arrays, _, scalars = client.numpy_client.fit(request.views(), dict(request.scalars))
        sent = [_sent(array) for array in arrays]
        if not all(type(key) is type(value) is str for key, value in scalars.items()):
            ConfigRecord(scalars)  # refuses what no message can bring
        size = _text_bytes(scalars) + (_array_bytes(sent, 0) if sent else len(EMPTY))
    except Exception as error:
        sent, scalars = [], refusal_of(error).scalars
        size = _text_bytes(scalars)
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
