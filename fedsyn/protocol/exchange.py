"""One request, there and back: a message to each client of a cohort, and the replies that can be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedsyn.aggregation.base import Enough
from fedsyn.errors import Lost, ProtocolError, refuse
from fedsyn.flower import Grid, Message
from fedsyn.flower.direct import DirectRequest, chunks
from fedsyn.flower.grid import InProcessGrid, new_message
from fedsyn.flower.messages import array_record, content_bytes, extended, pack, read_reply
from fedsyn.flower.patient import PatientGrid
from fedsyn.output import plain
from fedsyn.protocol.record import Missing, RoundCosts, Waiting
from fedsyn.protocol.waiting import NO_REPLY, Announce, may_pass, reasons
from fedsyn.wire.envelope import ANSWER, Arrays, Envelope, Reply, from_json

#: Seconds until those that are missing are asked again: at first, and at most.
PAUSE, LONGEST = 5.0, 60.0
Each = Mapping[int, Arrays]


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
        patience: asks those that are missing again; None: nobody is.
        needed: whether the clients that have replied are enough; None: all are needed.
        why: reasons of the clients that are missing, by partition id; of those without a node from the beginning.
    """

    grid: Grid
    nodes: Mapping[int, int]
    envelope: Envelope
    timeout: float
    costs: RoundCosts
    drop: Callable[[int, str], None]
    patience: Patience | None = None
    needed: Enough | None = None
    why: dict[int, str] = field(default_factory=dict)

    def __call__(self, arrays: Arrays, each: Each | None = None) -> dict[int, Reply]:
        """Sends, waits and reads.

        Args:
            arrays: for every client.
            each: further arrays for single clients, put behind those that all of them get.

        Returns:
            The usable replies, by partition, ascending.
        """
        return {reply.partition: reply for reply in self.stream(arrays, each)}

    def stream(self, arrays: Arrays, each: Each | None = None) -> Iterator[Reply]:
        """The same, one reply after the other: an in-process federation holds few of them at a time.

        Yields:
            The usable replies, in partition order.
        """
        seconds, source = 0.0, self._source(arrays, each)
        try:
            while True:
                start = time.perf_counter()
                reply = next(source, None)
                seconds += time.perf_counter() - start  # without what becomes of the reply
                if reply is None:
                    break
                yield reply
        finally:
            self.costs.add_seconds(self.envelope.request, seconds)

    def _source(self, arrays: Arrays, each: Each | None) -> Iterator[Reply]:
        grid = self.grid
        if isinstance(grid, InProcessGrid) and grid.is_direct:
            return self._directly(grid, arrays, each)
        at_once = grid.at_once if isinstance(grid, InProcessGrid) else None
        if at_once is None:
            return self._together(arrays, each)
        blocks = chunks(sorted(self.nodes), at_once)
        return (reply for block in blocks for reply in self.among(block)._together(arrays, each))

    def _directly(self, grid: InProcessGrid, arrays: Arrays, each: Each | None) -> Iterator[Reply]:
        """Without messages, client by client."""
        common = DirectRequest.of(arrays, self.envelope.to_scalars())

        def requests() -> Iterator[tuple[int, DirectRequest]]:
            for partition, node in sorted(self.nodes.items()):
                asked = common if each is None else common.extended(each[partition])
                self.costs.messages += 1
                self.costs.bytes_down += asked.size
                yield node, asked

        for partition, answered in zip(sorted(self.nodes), grid.ask(requests(), self.timeout), strict=True):
            if answered is None:
                self._late(partition)
            else:
                self.costs.bytes_up += answered.size
                reply = self._used(partition, answered.read)
                if reply is not None:
                    yield reply
            if partition in self.why:
                self.drop(partition, self.why[partition])

    def _together(self, arrays: Arrays, each: Each | None) -> Iterator[Reply]:
        """One message for each client, all of them under way at once."""
        received = self.read(self.grid.send_and_receive(list(self.messages(arrays, each)), timeout=self.timeout))
        if self.patience is not None:
            received = self.patience.completed(self, received, arrays, each)
        for partition, reason in sorted(self.why.items()):
            self.drop(partition, reason)
        for partition in list(received):
            yield received.pop(partition)

    def among(self, partitions: Iterable[int]) -> Exchange:
        """The same with some of the clients."""
        chosen = set(partitions)
        nodes = {k: node for k, node in self.nodes.items() if k in chosen}
        away = {k: reason for k, reason in self.why.items() if k in chosen - nodes.keys()}
        return replace(self, nodes=nodes, why=away)

    def enough(self, replied: Collection[int]) -> bool:
        """Whether these clients' replies are enough for what comes next."""
        return len(replied) == len(self.nodes.keys() | self.why) if self.needed is None else self.needed(replied)

    def again(self, nodes: Mapping[int, int], arrays: Arrays, each: Each | None) -> dict[int, Reply]:
        """The replies of clients that are asked again, at the nodes where they are now."""
        if not nodes:
            return {}
        exchange = replace(self, nodes=nodes, why={})
        replies = exchange.read(self.grid.send_and_receive(list(exchange.messages(arrays, each)), timeout=self.timeout))
        for partition in nodes:
            self.why.pop(partition)
        self.why.update(exchange.why)
        return replies

    def messages(self, arrays: Arrays, each: Each | None = None) -> Iterator[Message]:
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
            self.costs.messages += 1
            self.costs.bytes_down += size
            yield new_message(self.grid, content, node, str(self.envelope.round), self.timeout)

    def read(self, replies: Iterable[Message]) -> dict[int, Reply]:
        """The usable replies; clients whose reply is missing or malformed are dropped from the request."""
        expected = {node: partition for partition, node in self.nodes.items()}
        received: dict[int, Reply] = {}
        refused: set[int] = set()
        for message in replies:
            partition = expected.get(message.metadata.src_node_id)
            if partition is None or partition in received:
                continue
            self.costs.bytes_up += content_bytes(message.content) if message.has_content() else 0
            reply = self._used(partition, partial(read_reply, message))
            if reply is None:
                refused.add(partition)
            else:
                received[partition] = reply
        for partition in self.nodes:
            if partition not in received and partition not in refused:
                self._late(partition)
        return dict(sorted(received.items()))

    def _used(self, partition: int, read: Callable[[], tuple[Arrays, Mapping[str, Any]]]) -> Reply | None:
        """A checked reply; None, and its client dropped, if it cannot be used."""
        try:
            return _checked(partition, self.envelope.request, *read())
        except ProtocolError as error:
            self.why[partition] = str(error)
            return None

    def _late(self, partition: int) -> None:
        why = f"{NO_REPLY} to '{self.envelope.request}' within {self.timeout:g} s"
        if isinstance(self.grid, PatientGrid):
            why = self.grid.why(self.nodes[partition], self.envelope.request, self.timeout)
        self.why[partition] = why


@dataclass(frozen=True)
class Patience:
    """How a run waits for missing replies.

    Attributes:
        seconds: `federation.patience`.
        stops: whether a run ends that lacks replies for good; otherwise it goes on with what there is.
        remembers: whether a client answers an identical request as before, and pays once.
        nodes: the nodes of clients that can be reached now, by partition id.
        told: called with what the run waits for, and with None when that is over.
        names: of holders, by partition id, where the operator has them.
    """

    seconds: float
    stops: bool
    remembers: Callable[[int], bool]
    nodes: Callable[[], Mapping[int, int]]
    told: Announce
    names: Mapping[int, str] = field(default_factory=dict)

    def completed(
        self, exchange: Exchange, replies: dict[int, Reply], arrays: Arrays, each: Each | None
    ) -> dict[int, Reply]:
        """The replies with those of clients that were asked again.

        Args:
            exchange: of the request; `exchange.why` has the reasons of those that are missing.
            replies: that came at first.
            arrays, each: of the request.

        Raises:
            Lost: there are too few, for good or for as long as there was patience, and the run is to end of it.
        """
        deadline, pause = time.monotonic() + self.seconds, PAUSE
        try:
            while not exchange.enough(replies):
                hopeful = {k for k, why in exchange.why.items() if may_pass(why) and self.remembers(k)}
                left = deadline - time.monotonic()
                if left <= 0 or not exchange.enough({*replies, *hopeful}):
                    if self.stops:
                        raise self._lost(exchange, replies, hopeful, left <= 0)
                    break
                self.told(self._waiting(exchange, replies, left))
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, LONGEST)
                there = {k: node for k, node in self.nodes().items() if k in hopeful}
                replies |= exchange.again(there, arrays, each)
        finally:
            self.told(None)
        return dict(sorted(replies.items()))

    def _waiting(self, exchange: Exchange, replies: Collection[int], left: float) -> Waiting:
        envelope = exchange.envelope
        asked = len(replies) + len(exchange.why)
        return Waiting(envelope.request, envelope.round, asked, time.time() + left, _missing(exchange))

    def _lost(self, exchange: Exchange, replies: Collection[int], hopeful: Collection[int], is_late: bool) -> Lost:
        envelope, missing = exchange.envelope, _missing(exchange)
        named = reasons(missing, names=self.names)
        waited = f" after {self.seconds:g} s (federation.patience)" if is_late and hopeful else ""
        return Lost(
            f"'{envelope.request}' of round {envelope.round} was answered by {len(replies)} of "
            f"{len(replies) + len(missing)} clients{waited}, too few to go on; missing: {named}",
            can_go_on=exchange.enough({*replies, *filter(self.remembers, exchange.why)}),
        )


def _missing(exchange: Exchange) -> tuple[Missing, ...]:
    return tuple(Missing(k, exchange.nodes.get(k), why) for k, why in sorted(exchange.why.items()))


def _checked(partition: int, name: str, arrays: Arrays, scalars: Mapping[str, Any]) -> Reply:
    answer = from_json(scalars.get(ANSWER), "answer")
    if answer.get("ok") is not True:
        kind, text = answer.get("error"), answer.get("message")
        if isinstance(kind, str) and isinstance(text, str):
            raise ProtocolError(plain(f"{kind[:20]}: {text[:300]}", keep=""))
        raise ProtocolError("the reply is neither an answer nor an error")
    refuse(answer.get("request") != name, "the reply answers another request")
    if not isinstance(answer.get("params"), dict):
        raise ProtocolError("the reply's parameters are not a JSON object")
    return Reply(partition, arrays, answer["params"])
