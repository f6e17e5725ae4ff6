"""Everything that touches Flower's moving parts.

The rest of the package imports Flower's classes from here, so that a change of Flower's minor version is a change of
this file: message construction and reading, the bridge between a message-based server and a `NumPyClient`, the
in-process Grid, and launching `flwr run`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

# Flower reads these when it is first imported; a framework for private data does not phone home.
for _name in ("FLWR_TELEMETRY_ENABLED",):
    os.environ.setdefault(_name, "0")
for _name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ.setdefault(_name, "1")

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.compat.client.client import Client
from flwr.compat.client.numpy_client import NumPyClient
from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.typing import Code, FitIns, FitRes, Status
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.protocol.messages import ANSWER, to_json

__all__ = [
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "FitClient",
    "Grid",
    "InProcessGrid",
    "Message",
    "MetricRecord",
    "NumPyClient",
    "RecordDict",
    "Result",
    "ServerApp",
    "Strategy",
    "array_record",
    "bridge",
    "content_bytes",
    "extended",
    "new_message",
    "pack",
    "read_reply",
    "read_state",
    "write_state",
]

TRAIN = "train"
_log = logging.getLogger("fedsyn")
_EMPTY = "_empty"  # the key by which Flower's legacy conversion marks "no arrays"


# Messages ----------------------------------------------------------------------------------------------------------


def pack(arrays: ArrayRecord, scalars: Mapping[str, Any]) -> RecordDict:
    """Content of a request: the arrays of a shared record, and a mapping of its own."""
    return RecordDict({"arrays": arrays, "config": ConfigRecord(dict(scalars))})


def new_message(grid: Grid, content: RecordDict, node: int, group: str, ttl: float) -> Message:
    """A train request to one node."""
    if isinstance(grid, InProcessGrid):
        return grid.create_message(content, TRAIN, node, group, ttl)
    # Elsewhere the run and this side's node are facts of the process, and Flower fills them in.
    return Message(content, dst_node_id=node, message_type=TRAIN, group_id=group, ttl=ttl)


def array_record(arrays: Sequence[npt.NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord([np.asarray(a, order="C") for a in arrays])  # ascontiguousarray would give 0-d arrays an axis


def extended(record: ArrayRecord, arrays: Sequence[npt.NDArray[Any]]) -> ArrayRecord:
    """A record with further arrays behind those of `record`, whose bytes are shared and not encoded again."""
    first = len(record)
    more = {str(first + i): Array(np.asarray(a, order="C")) for i, a in enumerate(arrays)}
    return ArrayRecord({**dict(record.items()), **more})


def read_reply(message: Message) -> tuple[list[npt.NDArray[Any]], dict[str, Any]]:
    """Arrays and scalars of a reply; ProtocolError if it is an error or does not decode."""
    if message.has_error():
        # The reason is free text made by the other side: it is not repeated, because it may quote anything.
        raise ProtocolError(f"the client's node answered with error code {message.error.code}")
    try:
        records = message.content
        arrays = [_read_array(a) for key, a in records["arrays"].items() if key != _EMPTY]
        return arrays, dict(records["config"])
    except Exception as error:
        raise ProtocolError(f"the reply does not decode ({type(error).__name__})") from None


def _read_array(array: Array) -> npt.NDArray[Any]:
    if array.stype not in ("numpy.ndarray",):
        raise ProtocolError("an array of the reply is not in NumPy's format")
    decoded = array.numpy()  # np.load(allow_pickle=False)
    if decoded.dtype.kind not in "uifb":
        raise ProtocolError("an array of the reply is not numeric")
    return decoded


def content_bytes(content: RecordDict) -> int:
    """Bytes of a payload: array data, and the text of keys and scalars."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(key) + len(array.data) for key, array in record.items())
        else:
            for key, value in record.items():
                total += len(key) + (len(value) if isinstance(value, str | bytes) else 8)
    return total


def bridge(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Client mod: presents a message-based train request to a `NumPyClient.fit`, and its result as a reply.

    Flower 1.41's message API has the records `arrays` and `config`; the client API behind `NumPyClient` names the
    same two records `fitins.*` on the way in and `fitres.*` on the way out.
    """
    try:
        records = message.content
        message.content = RecordDict({"fitins.parameters": records["arrays"], "fitins.config": records["config"]})
        reply = call_next(message, context)
        result = reply.content
        reply.content = RecordDict({"arrays": result["fitres.parameters"], "config": result["fitres.metrics"]})
    except Exception as error:
        # Flower would send the exception's text to the server, and that of a reader or parser may quote a value.
        _log.exception("fedsyn: this node could not answer; the server is told the kind of error only")
        answer = to_json({"ok": False, "error": "client", "message": _told(error)})
        content = {"arrays": ArrayRecord(), "config": ConfigRecord({ANSWER: answer})}
        return Message(RecordDict(content), reply_to=message)
    return reply


def _told(error: Exception) -> str:
    """What a server may know of a failure: the text of an error about configuration, the type of any other."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__} (see this node's own log)"


class FitClient(Client):
    """A `NumPyClient` as Flower's `Client`, for `fit` alone.

    `NumPyClient.to_client` does the same with a class that it makes anew on every call. A new abstract class empties
    Python's caches of type checks, which makes every message of an in-process federation about twice as dear.
    """

    def __init__(self, numpy_client: NumPyClient) -> None:
        self.numpy_client = numpy_client

    def fit(self, ins: FitIns) -> FitRes:
        arrays, examples, metrics = self.numpy_client.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, metrics)


def read_state(context: Context) -> str | None:
    """The JSON text that a client left in its node's context, or None."""
    record = context.state.get("fedsyn")
    return str(record["state"]) if record is not None and "state" in record else None


def write_state(context: Context, text: str) -> None:
    context.state["fedsyn"] = ConfigRecord({"state": text})


# The in-process engine ---------------------------------------------------------------------------------------------


class InProcessGrid(Grid):
    """A Grid that calls the ClientApp directly: one Context per node, serially or in a pool of processes.

    What makes it equal to a real Grid: a node never sees objects of the server or of another node (records are
    copied), an exception in a client becomes an error reply, and a reply that takes longer than the timeout is late
    and is not delivered. Replies come back in the order in which they finished.

    Args:
        app: the ClientApp; with several workers, one that can be pickled or is importable (`app_path`).
        nodes: node configuration of each node; node ids are 1, 2, ...
        run_config: the run's configuration as the clients' contexts show it.
        workers: processes; 1 is serial.
        app_path: 'module:attribute' of the ClientApp, needed for several workers.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any],
        *,
        workers: int = 1,
        app_path: str | None = None,
    ) -> None:
        self._app = app
        self._run: Any = None
        self._contexts = {
            i + 1: Context(
                run_id=1,
                node_id=i + 1,
                node_config=dict(node),
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i, node in enumerate(nodes)
        }
        self._waiting: dict[str, Message] = {}
        self._count = 0
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            if app_path is None:
                raise ValueError("several workers need app_path")
            import multiprocessing

            self._pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(app_path,)
            )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        metadata = Metadata(
            run_id=1,
            message_id="",
            src_node_id=0,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=time.time(),
            ttl=ttl or 43200.0,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = str(self._count)
            self._waiting[str(self._count)] = message
            ids.append(str(self._count))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._handle(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = [self._waiting.pop(i) for i in self.push_messages(messages)]
        if self._pool is not None:
            return list(self._in_pool(self._pool, waiting, timeout))
        replies = []
        for message in waiting:
            start = time.monotonic()
            reply = self._handle(message)
            # Nodes work side by side in reality, so each has the whole timeout for itself.
            if timeout is None or time.monotonic() - start <= timeout:
                replies.append(reply)
        return replies

    def _handle(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        reply, state = _call(self._app, _copy(message), context)
        context.state = state
        return reply

    def _in_pool(self, pool: ProcessPoolExecutor, messages: list[Message], timeout: float | None) -> Iterator[Message]:
        nodes = {
            pool.submit(_work, message, self._contexts[message.metadata.dst_node_id]): message.metadata.dst_node_id
            for message in messages
        }
        for future in as_completed(nodes):
            try:
                reply, state, seconds = future.result()
            except BrokenProcessPool:
                raise RunError("a worker process of the in-process engine died (out of memory?)") from None
            # Also a late client remembers what it did and what it spent.
            self._contexts[nodes[future]].state = state
            if timeout is None or seconds <= timeout:
                yield reply


def _copy(message: Message) -> Message:
    """The message as another party would receive it: its own records (the arrays' bytes are immutable)."""
    content = RecordDict({key: type(record)(dict(record)) for key, record in message.content.items()})
    return Message(content=content, metadata=message.metadata)


def _call(app: ClientApp, message: Message, context: Context) -> tuple[Message, RecordDict]:
    """One node's work: its reply, or an error reply, and its state afterwards."""
    try:
        reply = app(message, context)
    except Exception as error:
        reply = Message(error=Error(code=0, reason=type(error).__name__), metadata=_reply_metadata(message))
    return reply, context.state


def _reply_metadata(message: Message) -> Metadata:
    asked = message.metadata
    return Metadata(
        run_id=asked.run_id,
        message_id=f"reply-{asked.message_id}",
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=time.time(),
        ttl=asked.ttl,
        message_type=asked.message_type,
    )


_worker_app: ClientApp | None = None


def _start_worker(app_path: str) -> None:
    import importlib

    global _worker_app
    module, _, attribute = app_path.partition(":")
    _worker_app = getattr(importlib.import_module(module), attribute)


def _work(message: Message, context: Context) -> tuple[Message, RecordDict, float]:
    """One node's work in a worker, which got copies of message and context, and its seconds."""
    assert _worker_app is not None
    start = time.monotonic()
    reply, state = _call(_worker_app, message, context)
    return reply, state, time.monotonic() - start
