"""A node's requests and replies on the wire: Flower's objects, pulled and pushed one by one, and never believed."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedsyn.flower.messages import EMPTY, apart, is_together, objects_of, together
from fedsyn.flower.private import (
    ConfirmMessageReceivedRequest,
    FleetHttpClient,
    GetRunRequest,
    Node,
    ObjectTree,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    message_to_proto,
    name_message,
    no_object_id_recompute,
    remove_content_from_message,
    user_config_from_proto,
)
from fedsyn.wire.envelope import MOST_MESSAGE

MOST_OBJECTS = 200_000  # that one message consists of
MOST_TEXT = 2**23  # bytes of a run's configuration, and of the texts of a message
_RUNS = 32  # whose configuration is remembered
_PATIENCE = 30.0  # seconds for an object that was announced


class TooLarge(ValueError):
    """A request has more bytes than a node reads."""


@dataclass(frozen=True)
class Incoming:
    """One request, as it came.

    Attributes:
        run: Flower's number of the run.
        run_config: as the server submitted it; the app's own defaults are in the app, which is not opened.
        fab_hash: of the submitted app, as the SuperLink tells it; nothing of the app is fetched.
        scalars: texts of the message.
        arrays: of the message, in NumPy's format, unread.
        together: whether they came as one object, so that the reply's may go as one.
    """

    run: int
    run_config: Mapping[str, Any]
    fab_hash: str
    scalars: Mapping[str, str]
    arrays: list[bytes]
    together: bool = False


@dataclass(frozen=True)
class Outgoing:
    """Its reply.

    Attributes:
        scalars: texts.
        arrays: of each type, shape, and the array in NumPy's format.
    """

    scalars: Mapping[str, str]
    arrays: list[tuple[str, tuple[int, ...], bytes]]


class Messages:
    """Requests and replies of one node.

    Args:
        client: of the Fleet API.
        wait: sleeps, and returns early when the node is to end.
    """

    def __init__(self, client: FleetHttpClient, wait: Callable[[float], object]) -> None:
        self._client, self._wait = client, wait
        self._runs: OrderedDict[int, tuple[dict[str, Any], str]] = OrderedDict()

    def receive(self, node: int, asked: Message, tree: ObjectTree) -> Incoming:
        """The whole of a message that was announced.

        Raises:
            ValueError, KeyError, TypeError: it is not what fedsyn sends, or too large.
            httpx.HTTPError: as the client's.
        """
        run, me = asked.metadata.run_id, Node(node_id=node)
        ids = objects_of(tree)
        if len(ids) > MOST_OBJECTS:
            raise TooLarge("too many objects")
        total = 0

        def pull(object_id: str) -> bytes:
            nonlocal total
            content = self._pull(PullObjectRequest(node=me, run_id=run, object_id=object_id))
            total += len(content)
            if total > MOST_MESSAGE:
                raise TooLarge("too many bytes")
            if hashlib.sha256(content).hexdigest() != object_id:
                raise ValueError("an object is not what it is called")
            return content

        contents = {name: pull(name) for name in ids}
        confirmation = ConfirmMessageReceivedRequest(node=me, run_id=run, message_object_id=tree.object_id)
        self._client.ConfirmMessageReceived(confirmation)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message) or message.metadata.run_id != run:
            raise ValueError("no message of this run")
        as_one = is_together(message.content["arrays"])
        return Incoming(run, *self._run(me, run), *_read(message.content), together=as_one)

    def send(self, node: int, reply: Message) -> None:
        """The reply, and those of its objects that the SuperLink lacks. How long it took is nobody's business."""
        me = Node(node_id=node)
        with no_object_id_recompute():
            name_message(reply, reply.object_id)
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            request = PushMessagesRequest(
                node=me,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
            response = self._client.PushMessages(request)
            missing = set(response.objects_to_push)
            for name, each in objects.items():
                if name in missing:
                    push = PushObjectRequest(
                        node=me,
                        run_id=reply.metadata.run_id,
                        object_id=name,
                        object_content=each.deflate(),
                        session_id=response.session_id,
                    )
                    self._client.PushObject(push)

    def _pull(self, request: PullObjectRequest) -> bytes:
        """The bytes of an object. A message is announced before its objects have arrived: they are waited for."""
        wait, end = 0.01, time.monotonic() + _PATIENCE
        while True:
            response = self._client.PullObject(request)
            if not response.object_found or time.monotonic() > end:
                raise ValueError("an object of the message is missing")
            if response.object_available:
                return bytes(response.object_content)
            self._wait(wait)
            wait = min(2 * wait, 0.5)

    def _run(self, me: Node, run: int) -> tuple[dict[str, Any], str]:
        """Configuration and app's hash of a run."""
        if run not in self._runs:
            told = self._client.GetRun(GetRunRequest(node=me, run_id=run)).run
            if told.ByteSize() > MOST_TEXT:
                raise TooLarge("the run's configuration is longer than a node reads")
            self._runs[run] = dict(user_config_from_proto(told.override_config)), str(told.fab_hash)
            while len(self._runs) > _RUNS:
                self._runs.popitem(last=False)
        return self._runs[run]


def reply_to(asked: Message, outgoing: Outgoing, as_one: bool = False) -> Message:
    """The message that answers another; `as_one`: with its arrays as one object."""
    arrays = {
        str(place): Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)
        for place, (dtype, shape, data) in enumerate(outgoing.arrays)
    }
    record = ArrayRecord(arrays)
    record = together(record) if as_one else record
    records = {"arrays": record, "config": ConfigRecord(dict(outgoing.scalars))}
    return Message(RecordDict(records), reply_to=asked)


def _read(content: RecordDict) -> tuple[dict[str, str], list[bytes]]:
    """Texts and arrays of a request: what else a message may hold is nothing that fedsyn sends."""
    scalars = {key: value for key, value in content["config"].items() if isinstance(value, str)}
    if sum(len(key) + len(value) for key, value in scalars.items()) > MOST_TEXT:
        raise TooLarge("the texts of a message are longer than a node reads")
    return scalars, [bytes(array.data) for key, array in apart(content["arrays"]).items() if key != EMPTY]
