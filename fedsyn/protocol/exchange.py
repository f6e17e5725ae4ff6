"""One request, there and back: a message to each client of a cohort, and the replies that can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fedsyn.errors import ProtocolError
from fedsyn.flower import Grid, Message
from fedsyn.flower.grid import new_message
from fedsyn.flower.messages import array_record, content_bytes, extended, pack, read_reply
from fedsyn.protocol.record import RoundCosts, Timer
from fedsyn.wire.envelope import ANSWER, Arrays, Envelope, Reply, from_json


@dataclass(frozen=True)
class Exchange:
    """One exchange of messages over a Grid.

    Attributes:
        grid: that carries them.
        nodes: node of each asked client, by partition id.
        envelope: of the request.
        timeout: seconds to wait; later replies are not used.
        costs: where bytes and seconds are added.
        drop: records that a client's reply cannot be used, and why.
    """

    grid: Grid
    nodes: Mapping[int, int]
    envelope: Envelope
    timeout: float
    costs: RoundCosts
    drop: Callable[[int, str], None]

    def __call__(self, arrays: Arrays, each: Mapping[int, Arrays] | None = None) -> dict[int, Reply]:
        """Sends, waits and reads.

        Args:
            arrays: for every client.
            each: further arrays for single clients, put behind those that all of them get.

        Returns:
            The usable replies, by partition, ascending.
        """
        with Timer(self.costs, self.envelope.request):
            replies = self.grid.send_and_receive(list(self.messages(arrays, each)), timeout=self.timeout)
            return self.read(replies)

    def among(self, partitions: Iterable[int]) -> Exchange:
        """The same with some of the clients."""
        nodes = {k: self.nodes[k] for k in partitions}
        return Exchange(self.grid, nodes, self.envelope, self.timeout, self.costs, self.drop)

    def messages(self, arrays: Arrays, each: Mapping[int, Arrays] | None = None) -> Iterator[Message]:
        """One message per client; what all of them get is encoded once."""
        scalars = self.envelope.to_scalars()
        common = array_record(arrays)
        shared = pack(common, scalars)  # one for all: every Grid copies what it delivers
        size = content_bytes(shared)
        for partition, node in self.nodes.items():
            content = shared
            if each is not None:
                content = pack(extended(common, each[partition]), scalars)
                size = content_bytes(content)
            self.costs.bytes_down += size
            yield new_message(self.grid, content, node, str(self.envelope.round), self.timeout)

    def read(self, replies: Iterable[Message]) -> dict[int, Reply]:
        """The usable replies; whoever is missing or malformed is dropped from the request."""
        expected = {node: partition for partition, node in self.nodes.items()}
        received: dict[int, Reply] = {}
        refused: set[int] = set()
        for message in replies:
            partition = expected.get(message.metadata.src_node_id)
            if partition is None or partition in received:
                continue
            self.costs.bytes_up += content_bytes(message.content) if message.has_content() else 0
            try:
                received[partition] = _read(partition, self.envelope.request, message)
            except ProtocolError as error:
                refused.add(partition)
                self.drop(partition, str(error))
        for partition in self.nodes:
            if partition not in received and partition not in refused:
                self.drop(partition, f"no reply to '{self.envelope.request}' within {self.timeout:g} s")
        return dict(sorted(received.items()))


def _read(partition: int, name: str, message: Message) -> Reply:
    arrays, scalars = read_reply(message)
    answer = from_json(scalars.get(ANSWER), "answer")
    if answer.get("ok") is not True:
        kind, text = answer.get("error"), answer.get("message")
        if isinstance(kind, str) and isinstance(text, str):
            raise ProtocolError(f"{kind[:20]}: {text[:300]}")
        raise ProtocolError("the reply is neither an answer nor an error")
    if answer.get("request") != name:
        raise ProtocolError("the reply answers another request")
    if not isinstance(answer.get("params"), dict):
        raise ProtocolError("the reply's parameters are not a JSON object")
    return Reply(partition, arrays, answer["params"])
