"""Flower's Grid of a deployment, with a loop of our own.

Replies are asked for often, and nobody is given up too soon.

Flower's `send_and_receive` sleeps three seconds between two looks, and takes whatever the SuperLink says of a node for
its reply. Here

* the pauses between looks are short, and grow;
* a node that the SuperLink cannot reach is told apart from one that is slow (`silence`);
* a node that said in `join` that it answers again (`answers_again`) gets the identical message a second time when it
  has come back, or been started anew, without a reply. It pays once (`fedsyn.node.answering`). No other node ever
  does.
* the arrays of its messages travel together (`fedsyn.flower.messages`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedsyn.flower import private
from fedsyn.flower.asking import MessageGrid
from fedsyn.flower.messages import GONE, apart, objects_of, together
from fedsyn.flower.private import (
    ConfirmMessageReceivedRequest,
    ErrorCode,
    PullAppMessagesRequest,
    PullObjectRequest,
    inflate_object_from_contents,
    metadata_from_proto,
    name_message,
    runtime_client,
)
from fedsyn.wire.refusals import Kind, Refusal

_FIRST, _GROWTH, _LONGEST = 0.02, 1.3, 0.4  # seconds between two looks for replies
_LOOK = 1.0  # seconds between two looks at who is connected, while somebody is missed
_AGAIN = 30.0  # seconds without a reply until a node gets the message a second time; then twice as long, and so on
_RETURN = 30.0  # seconds that a node has to come back within one request
_OBJECT = 5.0  # seconds from one object of a reply to the next


def patient(grid: Grid, nodes: Mapping[int, int] | None = None) -> Grid:
    """Returns the Grid, or a patient one of a deployment's.

    Args:
        grid: Flower's.
        nodes: those that the run is for, each with its holder's partition (`runtime.nodes`); None: any.
    """
    # Who has such a Grid has imported its module, and with it Flower's databases, which no simulation needs.
    deployed = private.NAMES["HttpGrid"] in sys.modules and isinstance(grid, private.HttpGrid)
    return PatientGrid(grid, nodes) if deployed else grid


@dataclass
class _Awaited:
    """One node's message that has no reply yet.

    Attributes:
        message: as it was made.
        missed: whether it is waited for once it has gone: it was there at the last look.
        activated: when the SuperLink last saw the node start, as it was known when the message was sent.
        sent: when it was sent last.
        ids: of every copy of it.
        lost: since when the SuperLink has no copy that the node could still answer; None while it has.
        copies: how often it was sent again.
    """

    message: Message
    missed: bool
    activated: str = ""
    sent: float = 0.0
    ids: set[str] = field(default_factory=set)
    lost: float | None = None
    copies: int = 0

    @property
    def node(self) -> int:
        return int(self.message.metadata.dst_node_id)


@dataclass
class _Arriving:
    """A reply of which something has not arrived at the SuperLink yet.

    Attributes:
        proto: its announcement.
        missing: names of the objects that are still to be fetched, in order.
        wait: seconds from one object to the next.
        end: when the next one must have come.
        contents: of the others.
    """

    proto: Any
    missing: list[str]
    wait: float
    end: float
    contents: dict[str, bytes] = field(default_factory=dict)


class PatientGrid(MessageGrid, Grid):
    """Flower's HTTP Grid, which it wraps.

    Attributes:
        partitions: the nodes that the run is for, with their holders' partitions; None: any. Another node that is
            registered and online is not seen: it is asked nothing, and waited for by nobody.
    """

    def __init__(self, grid: Grid, nodes: Mapping[int, int] | None = None) -> None:
        self._grid = grid
        self.partitions = nodes
        self._again: set[int] = set()
        self._activated: dict[int, str] = {}
        self._offline: set[int] = set()  # missed in an earlier request, and not seen since
        self._looked = 0.0
        self._arriving: list[_Arriving] = []

    # What Exchange asks ------------------------------------------------------------------------------------------

    def answers_again(self, node: int) -> None:
        """Notes what `NodeGrid.answers_again` describes."""
        self._again.add(node)

    def silence(self, node: int, request: str, timeout: float, error: Message | None = None) -> Refusal:
        """Returns why a node's reply to the last request is missing."""
        if node in self._offline or error is not None:
            return Refusal(Kind.OFFLINE, f"the SuperLink lost the client's node before it replied to '{request}'")
        sentence = f"the client's node is connected, and did not reply to '{request}' within {timeout:g} s"
        return Refusal(Kind.SLOW, sentence)

    # Flower's Grid -----------------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The nodes of this run that are connected."""
        self._look()
        return [node for node in self._activated if self.partitions is None or node in self.partitions]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return list(self._grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have come whole."""
        self._announced(message_ids)
        return [message for _, message in self._whole()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Returns the replies that came in time, like Flower's own method.

        An error stands where the SuperLink says that there will be none.
        """
        end = time.monotonic() + (timeout if timeout is not None else 1e9)
        if self._offline:
            self._look()
        awaited = [_Awaited(each, each.metadata.dst_node_id not in self._offline) for each in messages]
        self._pack([each for each in awaited if each.node in self._again])
        self._send(awaited)
        return list(self._replies(awaited, end))

    def _pack(self, awaited: Sequence[_Awaited]) -> None:
        """Joins the arrays of each message.

        Messages that share a record go on sharing one.
        """
        packed: dict[int, RecordDict] = {}
        for each in awaited:
            content = each.message.content
            if "arrays" not in content:
                continue
            if id(content) not in packed:
                packed[id(content)] = RecordDict({**content, "arrays": together(content["arrays"])})
            each.message.content = packed[id(content)]

    # One request -------------------------------------------------------------------------------------------------

    def _replies(self, awaited: list[_Awaited], end: float) -> Iterator[Message]:
        wait = _FIRST
        while awaited and time.monotonic() < end:
            before = len(awaited)
            self._announced({name for each in awaited for name in each.ids})
            for name, reply in self._whole():
                entry = next((each for each in awaited if name in each.ids), None)
                if entry is not None and self._is_last(entry, name, reply):
                    awaited.remove(entry)
                    yield reply
            self._miss(awaited)
            if awaited:
                wait = _FIRST if len(awaited) < before else min(wait * _GROWTH, _LONGEST)
                time.sleep(max(0.0, min(wait, end - time.monotonic())))
        self._arriving.clear()

    def _is_last(self, entry: _Awaited, name: str, reply: Message) -> bool:
        """Returns whether this is a node's final message.

        Otherwise another copy is waited for, or sent.
        """
        if not reply.has_error() or reply.error.code not in GONE:
            self._offline.discard(entry.node)
            return True
        entry.ids.discard(name)
        if entry.ids:
            return False
        self._offline.add(entry.node)
        if entry.node not in self._again or not entry.missed:
            return True
        entry.lost = entry.lost or time.monotonic()
        return False

    def _miss(self, awaited: list[_Awaited]) -> None:
        """Sends the message again, and gives up nodes gone too long.

        It goes to those who would answer it.
        """
        now = time.monotonic()
        suspects = [each for each in awaited if each.node in self._again and each.missed and now - each.sent > _LOOK]
        slow = [each for each in self._arriving if math.isinf(each.wait)]
        if not (suspects or slow) or now - self._looked < _LOOK:
            return
        self._look()
        for reply in slow:
            if int(reply.proto.metadata.src_node_id) not in self._activated:
                reply.end = now  # who has gone sends no more of it
        again = []
        for each in suspects:
            activated = self._activated.get(each.node)
            if activated is None:
                each.lost = each.lost or now
                self._offline.add(each.node)
                if now - each.lost > _RETURN:
                    awaited.remove(each)
            elif each.lost is not None or activated != each.activated or now - each.sent > _AGAIN * 2**each.copies:
                again.append(_again(each))
        self._send(again)

    def _send(self, awaited: Sequence[_Awaited]) -> None:
        for each in awaited:
            each.sent, each.lost = time.monotonic(), None
            each.activated = self._activated.get(each.node, "")
        if awaited:
            names = list(self._grid.push_messages([each.message for each in awaited]))
            for each, name in zip(awaited, names, strict=False):
                if name:
                    each.ids.add(name)

    def _look(self) -> None:
        """Notes who is connected, and since when."""
        self._looked = time.monotonic()
        self._activated = {int(each.node_id): str(each.last_activated_at) for each in self._grid.get_nodes()}
        self._offline -= set(self._activated)

    # Flower's own client -----------------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return runtime_client(self._grid)

    def _announced(self, message_ids: Iterable[str]) -> None:
        """Asks for new replies.

        Each is announced once, before its objects have arrived at the SuperLink.

        With that the SuperLink forgets what was asked: a second look would find an error in place of the reply.
        """
        wanted = set(message_ids) - {each.proto.metadata.reply_to_message_id for each in self._arriving}
        if not wanted:
            return
        got = self._client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        for proto, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            # Who is not asked again has until the request's own end.
            wait = _OBJECT if int(proto.metadata.src_node_id) in self._again else math.inf
            self._arriving.append(_Arriving(proto, objects_of(tree), wait, time.monotonic() + wait))

    def _whole(self) -> Iterator[tuple[str, Message]]:
        """Yields announced replies that have arrived, with their request's name.

        An error for one that never will.
        """
        for each in self._arriving[:]:
            try:
                if not self._arrived(each):
                    continue
                message = self._inflated(each)
            except (ValueError, KeyError, TypeError):
                metadata = metadata_from_proto(each.proto.metadata)
                error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply did not arrive whole")
                message = Message(error=error, metadata=metadata)
            self._arriving.remove(each)
            yield each.proto.metadata.reply_to_message_id, message

    def _arrived(self, reply: _Arriving) -> bool:
        """Fetches what there is of a reply.

        Raises ValueError if the rest will not come: a node may be killed.
        """
        while reply.missing:
            request = PullObjectRequest(
                node=self._grid.node, run_id=reply.proto.metadata.run_id, object_id=reply.missing[0]
            )
            got = self._client.PullObject(request)
            if not got.object_available:
                if time.monotonic() > reply.end:
                    raise ValueError("an object of the reply is missing")
                return False
            reply.contents[reply.missing.pop(0)] = bytes(got.object_content)
            reply.end = time.monotonic() + reply.wait
        return True

    def _inflated(self, reply: _Arriving) -> Message:
        metadata = reply.proto.metadata
        confirmation = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=metadata.run_id, message_object_id=metadata.message_id
        )
        self._client.ConfirmMessageReceived(confirmation)
        message = inflate_object_from_contents(metadata.message_id, reply.contents)
        if not isinstance(message, Message):
            raise TypeError("no message")
        if message.has_content() and "arrays" in message.content:
            message.content["arrays"] = apart(message.content["arrays"])
        name_message(message, metadata.message_id)
        return message


def _again(awaited: _Awaited) -> _Awaited:
    """Returns the records in a new message.

    Flower takes no message twice.
    """
    before = awaited.message.metadata
    awaited.message = Message(
        awaited.message.content, before.dst_node_id, before.message_type, ttl=before.ttl, group_id=before.group_id
    )
    awaited.copies += 1
    return awaited
