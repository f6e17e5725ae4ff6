"""A Grid as an exchange needs it.

It asks nodes, and gives for each its answer or why there is none.

Flower's own Grid sends messages and hands back what arrived. What is added here is the same for every Grid that sends
messages; a Grid without messages (`fedsyn.flower.grid`), or with more patience (`fedsyn.flower.patient`), replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsyn.flower.direct import DirectRequest, chunks
from fedsyn.flower.messages import GONE, content_bytes, pack, read_reply
from fedsyn.wire.envelope import Envelope
from fedsyn.wire.refusals import Kind, Refusal

TRAIN = "train"
Requests = Iterable[tuple[int, DirectRequest]]  # node id, and what it is asked


class Answer(NamedTuple):
    """One node's reply, unread.

    Attributes:
        size: bytes of the message that brought it, or would have.
        read: returns arrays and scalars; raises ProtocolError if they cannot be used.
    """

    size: int
    read: Callable[[], tuple[list[npt.NDArray[Any]], Mapping[str, Any]]]


@runtime_checkable
class NodeGrid(Protocol):
    """The methods of a Grid that a run uses."""

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes that are connected."""

    def ask(self, envelope: Envelope, requests: Requests, timeout: float) -> Iterator[Answer | Refusal]:
        """Asks some nodes.

        Args:
            envelope: of the request, for its name and round.
            requests: to each node.
            timeout: seconds that each node has.

        Yields:
            In the order of the requests, each node's answer, or why it gave none.
        """

    def answers_again(self, node: int) -> None:
        """Notes that a node repeats its answer to an identical request.

        The node pays once.
        """


class MessageGrid:
    """A Grid that asks by Flower's messages; a subclass delivers them."""

    @property
    def at_once(self) -> int | None:
        """Number of nodes whose messages are in memory at once.

        None: all nodes of the request.
        """
        return None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages; return the replies that came in time."""
        raise NotImplementedError

    def new_message(self, content: RecordDict, node: int, group: str, ttl: float) -> Message:
        """Makes a train request to one node.

        Flower fills in the run and this side's node.
        """
        return Message(content, dst_node_id=node, message_type=TRAIN, group_id=group, ttl=ttl)

    def ask(self, envelope: Envelope, requests: Requests, timeout: float) -> Iterator[Answer | Refusal]:
        """Asks nodes by messages, as `NodeGrid.ask` describes."""
        for block in [list(requests)] if self.at_once is None else chunks(requests, self.at_once):
            nodes, replies = [node for node, _ in block], self._delivered(envelope, block, timeout)
            block.clear()
            for node in nodes:
                reply = replies.pop(node, None)
                if reply is None or (reply.has_error() and reply.error.code in GONE):
                    yield self.silence(node, envelope.request, timeout, reply)
                else:
                    yield Answer(content_bytes(reply.content) if reply.has_content() else 0, partial(read_reply, reply))

    def _delivered(
        self, envelope: Envelope, block: list[tuple[int, DirectRequest]], timeout: float
    ) -> dict[int, Message]:
        """Returns the first reply of each node."""
        group, replies = str(envelope.round), dict[int, Message]()
        messages = [self.new_message(content, node, group, timeout) for node, content in _contents(block)]
        for reply in self.send_and_receive(messages, timeout=timeout) if messages else ():
            replies.setdefault(reply.metadata.src_node_id, reply)
        return replies

    def silence(self, node: int, request: str, timeout: float, error: Message | None) -> Refusal:
        """Returns why a node gave no reply.

        `error` is Flower's word that none will come, if it said so.
        """
        if error is not None:
            return Refusal(Kind.OFFLINE, f"the SuperLink does not reach the client's node for '{request}'")
        return late(request, timeout)

    def answers_again(self, node: int) -> None:
        """Nothing: no message is sent a second time."""


class FlowerGrid(MessageGrid):
    """Any Grid of Flower's, asked by its own means."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        return list(self._grid.get_node_ids())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return list(self._grid.send_and_receive(messages, timeout=timeout))


def node_grid(grid: Grid) -> NodeGrid:
    """Returns a Grid that asks nodes.

    The Grid itself if it does, else one that asks by its messages.
    """
    return grid if isinstance(grid, NodeGrid) else FlowerGrid(grid)


def late(request: str, timeout: float) -> Refusal:
    """Returns the refusal of a client whose reply came too late."""
    return Refusal(Kind.SLOW, f"no reply to '{request}' within {timeout:g} s")


def _contents(block: list[tuple[int, DirectRequest]]) -> Iterator[tuple[int, RecordDict]]:
    """Yields each node's message content.

    Contents that several nodes are sent are encoded once, and every Grid copies them.
    """
    arrays: dict[int, Array] = {}
    contents: dict[int, RecordDict] = {}
    for node, request in block:
        if id(request) not in contents:
            for frozen, view in zip(request.arrays, request.views(), strict=True):
                if id(frozen) not in arrays:
                    arrays[id(frozen)] = Array(view)
            record = ArrayRecord({str(place): arrays[id(frozen)] for place, frozen in enumerate(request.arrays)})
            contents[id(request)] = pack(record, request.scalars)
        yield node, contents[id(request)]
