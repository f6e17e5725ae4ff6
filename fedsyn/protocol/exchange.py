"""One request to a cohort, and its usable replies.

A message goes to each client, and its reply comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from fedsyn.aggregation.base import Enough
from fedsyn.errors import Lost, ProtocolError, refuse
from fedsyn.flower.asking import Answer, NodeGrid
from fedsyn.flower.direct import DirectRequest
from fedsyn.protocol.record import Missing, RoundCosts, Waiting, few, who
from fedsyn.protocol.waiting import Announce
from fedsyn.wire.envelope import Arrays, Envelope, Reply
from fedsyn.wire.refusals import PASSING, Kind, Refusal, answer_of

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
        drop: records why a client's reply is missing, or cannot be used.
        patience: asks those that are missing again; None: nobody is.
        needed: whether the clients that have replied are enough; None: all are needed.
        away: why clients without a node are missing, by partition id.
    """

    grid: NodeGrid
    nodes: Mapping[int, int]
    envelope: Envelope
    timeout: float
    costs: RoundCosts
    drop: Callable[[int, Refusal], None]
    patience: Patience | None = None
    needed: Enough | None = None
    away: Mapping[int, Refusal] = field(default_factory=dict)

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
        """Yields one reply after the other.

        Few of an in-process federation's replies are in memory at a time.

        Yields:
            The usable replies, in partition order.
        """
        seconds, source = 0.0, self._usable(arrays, each)
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

    def _usable(self, arrays: Arrays, each: Each | None) -> Iterator[Reply]:
        """Yields the usable replies; drops the other clients."""
        answers: Iterable[tuple[int, Reply | Refusal]] = chain(
            self.answers(self.nodes, arrays, each), self.away.items()
        )
        if self.patience is not None:
            answers = self.patience.completed(self, dict(answers), arrays, each)
        for partition, answer in answers:
            if isinstance(answer, Reply):
                yield answer
            else:
                self.drop(partition, answer)

    def answers(
        self, nodes: Mapping[int, int], arrays: Arrays, each: Each | None = None
    ) -> Iterator[tuple[int, Reply | Refusal]]:
        """Asks some clients, at these nodes.

        Yields each one's reply, or why it cannot be used, in partition order.
        """
        common, order = DirectRequest.of(arrays, self.envelope.to_scalars()), sorted(nodes)

        def requests() -> Iterator[tuple[int, DirectRequest]]:
            for partition in order:
                request = common if each is None else common.extended(each[partition])
                self.costs.messages += 1
                self.costs.bytes_down += request.size
                yield nodes[partition], request

        answers = self.grid.ask(self.envelope, requests(), self.timeout)
        for partition, answer in zip(order, answers, strict=True):
            if isinstance(answer, Refusal):
                yield partition, answer
            else:
                self.costs.bytes_up += answer.size
                yield partition, _checked(partition, self.envelope.request, answer)

    def enough(self, replied: Collection[int]) -> bool:
        """Returns whether these clients' replies suffice for what follows."""
        return len(replied) == len(self.nodes.keys() | self.away) if self.needed is None else self.needed(replied)


@dataclass(frozen=True)
class Patience:
    """Patience of a run with missing replies.

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
        self, exchange: Exchange, answers: dict[int, Reply | Refusal], arrays: Arrays, each: Each | None
    ) -> Iterator[tuple[int, Reply | Refusal]]:
        """Completes the answers with those of clients that are asked again.

        Args:
            exchange: of the request.
            answers: replies that came at first, and why others are missing; handed over one after the other.
            arrays, each: of the request.

        Raises:
            Lost: there are too few, for good or for as long as there was patience, and the run is to end of it.
        """
        deadline, pause = time.monotonic() + self.seconds, PAUSE
        try:
            while True:
                missing = {k: why for k, why in sorted(answers.items()) if isinstance(why, Refusal)}
                replied = answers.keys() - missing
                if exchange.enough(replied):
                    break
                hopeful = {k for k, why in missing.items() if why.kind in PASSING and self.remembers(k)}
                left = deadline - time.monotonic()
                if left <= 0 or not exchange.enough(replied | hopeful):
                    if self.stops:
                        raise self._lost(exchange, replied, missing, left <= 0 and bool(hopeful))
                    break
                until, about = time.time() + left, exchange.envelope
                self.told(Waiting(about.request, about.round, len(answers), until, self._named(missing)))
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, LONGEST)
                there = {k: node for k, node in self.nodes().items() if k in hopeful}
                answers |= exchange.answers(there, arrays, each)
        finally:
            self.told(None)
        for partition in sorted(answers):
            yield partition, answers.pop(partition)

    def _named(self, missing: Mapping[int, Refusal]) -> tuple[Missing, ...]:
        return tuple(Missing(who(self.names, k), why) for k, why in missing.items())

    def _lost(
        self, exchange: Exchange, replied: Collection[int], missing: Mapping[int, Refusal], is_late: bool
    ) -> Lost:
        envelope = exchange.envelope
        waited = f" after {self.seconds:g} s (federation.patience)" if is_late else ""
        return Lost(
            f"'{envelope.request}' of round {envelope.round} was answered by {len(replied)} of "
            f"{len(replied) + len(missing)} clients{waited}, too few to go on; missing: {few(self._named(missing))}",
            can_go_on=exchange.enough({*replied, *filter(self.remembers, missing)}),
        )


def _checked(partition: int, name: str, answer: Answer) -> Reply | Refusal:
    """Returns a client's reply, or its refusal.

    If what the client sent is neither, the refusal says why.
    """
    try:
        arrays, scalars = answer.read()
        fields = answer_of(scalars)
        if isinstance(fields, Refusal):
            return fields
        refuse(fields.get("request") != name, "the reply answers another request")
        refuse(not isinstance(fields.get("params"), dict), "the reply's parameters are not a JSON object")
    except ProtocolError as error:
        return Refusal(Kind.REPLY, str(error))
    return Reply(partition, arrays, fields["params"])
