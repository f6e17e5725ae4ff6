"""Joining: waiting for nodes, and asking each who it is.

Private row counts are handled here, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsyn.config import FederationNode
from fedsyn.errors import ProtocolError, RunError, refuse
from fedsyn.flower.asking import NodeGrid
from fedsyn.protocol.exchange import Exchange
from fedsyn.protocol.record import Missing, Waiting, few, who
from fedsyn.protocol.waiting import Announce, Announcer
from fedsyn.wire.envelope import Reply
from fedsyn.wire.holder import MOST_PARTITIONS
from fedsyn.wire.refusals import UNHEARD, Kind, Refusal
from fedsyn.wire.requests import Summed

#: Seconds after which a node that waits for its holder is asked again.
PAUSE = 5.0
_AWAY = Refusal(Kind.OFFLINE, "its node is not connected")
#: Why a client of a run that is resumed is missing.
GONE = Refusal(Kind.ABSENT, "it has not come back since the run was resumed")
#: Parameter of the answer to `join`: true where the node keeps its memory of the run on its own disk, and answers a
#: request that it has answered already with the same bytes, and is charged once.
AGAIN = "again"
_LARGEST = 2**53  # of a row count that a client may claim: what a float holds exactly
#: Of a row count that a client reckons with.
LARGEST_SIZE = 2.0**32
AskWho = Callable[[Mapping[int, int], float], tuple[dict[int, Reply], list[Refusal]]]
#: Of a cohort of whose rows nothing is known: a bound that no federation of people reaches.
LARGEST_SUM = 2.0**40
ABSENT = -1  # the node of a client that has not come back
_REPLY = 30.0  # seconds that a node gets to say who it is
#: Standard deviations that no released sum is off by, but for a probability of 2^-100.
FAR = 12.0


@dataclass(frozen=True)
class Participant:
    """A client, as the server knows it.

    Attributes:
        partition: its id.
        node: on the Grid.
        rows: its row count: public, or estimated from released values.
        own: the row count that the client itself reckons with, where that is another one; see `reckoned`.
        again: whether its node answers an identical request as before, and is charged once (`AGAIN`).
    """

    partition: int
    node: int
    rows: float | None
    own: float | None = None
    again: bool = False

    @property
    def reckoned(self) -> float:
        """Row count in this client's own statistics.

        It is the public one, or the released one, at least 1.
        """
        return (self.rows or 0.0) if self.own is None else self.own


@dataclass(frozen=True)
class Queue:
    """Limits on waiting for clients that have yet to join.

    Attributes:
        people: seconds for nodes whose holders have yet to approve the run, and for those without which it cannot
            begin: people have days (federation.patience).
        nodes: seconds for nodes that were not heard, where the run could begin without them
            (federation.connect_timeout).
        partitions: the holders' partitions by node, where the operator knows them.
        holders: the holders' names by partition, where they are known.
        announce: called with whom the run waits for, and with None when that is over.
    """

    people: float
    nodes: float
    partitions: Mapping[int, int]
    holders: Mapping[int, str]
    told: Announce

    def named(self, missing: Mapping[int, Refusal]) -> list[Missing]:
        """Returns who these nodes are and why they are missing.

        It names them by partition where that is known.
        """
        known = sorted((self.partitions.get(node, -1), node) for node in missing)
        return [Missing(who(self.holders, None if k < 0 else k, node), missing[node]) for k, node in known]


def wait_for_nodes(grid: NodeGrid, wanted: int, needed: int, queue: Queue) -> tuple[list[int], list[Missing]]:
    """Returns connected nodes, and nodes that the run goes without.

    It waits for all of them for `queue.nodes` seconds. Then those that are there have to do, if they are `needed`; with
    fewer of them it waits for `queue.people` seconds in all, and says for whom.

    Args:
        grid: with the nodes.
        wanted: how many there should be.
        needed: nodes without which the run would fail.
        queue: how long, from now on.

    Raises:
        RunError: fewer have come in the time that they had.
    """
    nodes: list[int] = []

    def look() -> tuple[int, list[Missing]]:
        nodes[:] = sorted(grid.get_node_ids())
        return len(nodes), [] if len(nodes) >= wanted else _absent(nodes, wanted, queue)

    absent = _missed(look, wanted, needed, queue)
    if len(nodes) < needed:
        most, key = max((queue.people, "patience"), (queue.nodes, "connect_timeout"))
        raise RunError(
            f"{len(nodes)} of {wanted} clients connected within {most:g} s (federation.{key}), the minimum is "
            f"{needed}; not connected: {few(absent)}"
        )
    return nodes, absent


def _missed(look: Callable[[], tuple[int, list[Missing]]], wanted: int, needed: int, queue: Queue) -> list[Missing]:
    """Waits as `wait_for_nodes` does; returns the clients still missing.

    It serves the start and the resume of a run.

    Args:
        look: how many are there now, and who is missing.
        wanted: how many there should be.
        needed: how many there must be; fewer are there only once all time is over.
        queue: how long, from now on.
    """
    began, most, announce = time.monotonic(), max(queue.people, queue.nodes), Announcer(queue.told)
    try:
        while True:
            (there, missing), now = look(), time.monotonic() - began
            if not missing or (there >= needed and now >= queue.nodes) or now >= most:
                return missing
            if there < needed:
                announce(Waiting("join", 0, wanted, time.time() + most - now, tuple(missing)))
            time.sleep(min(PAUSE if now >= queue.nodes else 0.5, most - now))
    finally:
        announce(None)


def _absent(nodes: Sequence[int], wanted: int, queue: Queue) -> list[Missing]:
    """Returns who is not connected, or only how many.

    It names the holders where the operator knows their nodes.
    """
    if not queue.partitions:
        return [Missing(who({}, None), _AWAY)] * (wanted - len(nodes))
    return queue.named(dict.fromkeys(queue.partitions.keys() - nodes, _AWAY))


def asked_patiently(exchange: Exchange, dropped: dict[int, Refusal], queue: Queue, needed: int) -> dict[int, Reply]:
    """Returns the replies to `join`.

    Nodes that wait for a person's approval are asked again, with the same message. As long as anybody waits, or the run
    would fail otherwise, those whose reply was lost are asked again, too: it costs nothing to say who one is, and a
    node that was there a moment ago has not gone. If enough have refused for good that the run must fail, nobody is
    asked again.

    Args:
        exchange: the request, to every node.
        dropped: why nodes are not among the replies: those that go on waiting in the end stay there.
        queue: how long, from now on.
        needed: replies without which the run would fail.
    """
    began, had, announce = time.monotonic(), set[int](), Announcer(queue.told)
    replies = exchange([])
    try:
        while True:
            waiting = {k for k, why in dropped.items() if why.kind is Kind.APPROVAL}
            had |= waiting
            lost = {k for k, why in dropped.items() if why.kind in UNHEARD}
            short = len(replies) < needed
            again = sorted(waiting | (lost if waiting or short else lost & had))
            patience = queue.people if waiting or short else queue.nodes
            left = began + patience - time.monotonic()
            hopeless = len(replies) + len(waiting | lost) < min(needed, len(exchange.nodes))
            if not again or left <= 0 or hopeless:
                return dict(sorted(replies.items()))
            missing = queue.named({exchange.nodes[k]: dropped[k] for k in again})
            announce(Waiting(exchange.envelope.request, 0, len(exchange.nodes), time.time() + left, tuple(missing)))
            time.sleep(min(PAUSE, left))
            for k in again:
                del dropped[k]
            nodes = {k: exchange.nodes[k] for k in again}
            replies |= replace(exchange, nodes=nodes)([])
    finally:
        announce(None)


def provisional(nodes: Sequence[int]) -> dict[int, Participant]:
    """Returns the nodes under ids that no partition has.

    They keep these until they have said who they are.
    """
    return {-1 - i: Participant(-1 - i, node, None) for i, node in enumerate(nodes)}


def joined(
    participants: Mapping[int, Participant], replies: Mapping[int, Reply], public: bool
) -> tuple[dict[int, Participant], dict[int, Refusal]]:
    """Returns the clients by partition, and other nodes' reasons.

    A client without an id of its own gets a free one. Of two that claim the same id, the first node's is used.
    """
    clients: dict[int, Participant] = {}
    unnamed, refused = [], dict[int, Refusal]()
    for key, reply in sorted(replies.items(), key=lambda item: -item[0]):
        try:
            partition, rows = read_join(reply, public)
        except ProtocolError as error:
            refused[participants[key].node] = Refusal(Kind.REPLY, str(error))
            continue
        client = Participant(-1, participants[key].node, rows, again=reply.params.get(AGAIN) is True)
        if partition is None:
            unnamed.append(client)
        elif partition in clients:
            sentence = f"two nodes claim partition {partition}; the second is not used"
            refused[client.node] = Refusal(Kind.REPLY, sentence)
        else:
            clients[partition] = replace(client, partition=partition)
    free = (k for k in range(len(participants)) if k not in clients)
    for client, partition in zip(unnamed, free, strict=False):
        clients[partition] = replace(client, partition=partition)
    return dict(sorted(clients.items())), refused


def require_enough(clients: Mapping[int, Participant], nodes: int, minimum: int, missing: Sequence[Missing]) -> None:
    """Raises RunError with the first reasons if fewer than `minimum` clients joined."""
    if len(clients) < minimum:
        detail = f" ({few(missing, 3)})" if missing else ""
        raise RunError(f"only {len(clients)} of {nodes} clients joined, the minimum is {minimum}{detail}")


def with_released_sizes(
    clients: Mapping[int, Participant],
    replies: Mapping[int, Reply],
    sigma: float,
    drop: Callable[[int, str], None],
    fits: Callable[[float], bool] = lambda _: True,
) -> dict[int, Participant]:
    """Returns the clients with estimates of their released row counts.

    Clients without a usable count are left out. The estimates sum to what was released: a released count is `n_k` plus
    noise, and below 0 where a client has few rows. Cutting each off at 1 would add to every such client, and so to the
    total: it is not done before they are summed (`estimated_sizes`).

    Args:
        clients: those that were asked.
        replies: with what each released.
        sigma: standard deviation of the noise on each.
        drop: of clients whose reply is no number, or one that no table of the run has.
        fits: says whether the run can compute with a client of that size. One that claims more is left out before
            the rest of the budget is spent: it would end the run for all others.
    """
    released = {}
    for partition, reply in replies.items():
        rows = reply.params.get("rows")
        if not isinstance(rows, int | float) or isinstance(rows, bool) or not abs(rows) < _LARGEST:
            drop(partition, "the released row count is not a number, or larger than any")
        elif rows >= LARGEST_SIZE or not fits(usable_size(rows)):
            drop(partition, f"it claims about {rows:,.0f} rows, and this run cannot compute with that number")
        else:
            released[partition] = float(rows)
    estimates = estimated_sizes(list(released.values()), sigma)
    return {
        k: replace(clients[k], rows=estimate, own=usable_size(released[k]))
        for k, estimate in zip(released, estimates, strict=True)
    }


def most_of_released(clients: Iterable[Participant], sigma: float) -> float:
    """Returns a bound on the rows of all these clients.

    Each has released its own count with noise of `sigma`.
    """
    counts = [client.rows or 0.0 for client in clients]
    return math.fsum(counts) + FAR * sigma * math.sqrt(len(counts))


def beyond(sums: Summed, most: float, name: str, rows: float, stored: bool) -> str | None:
    """Returns a sentence if sums hold what their rows cannot give.

    Of a store's marginals these are totals, too: a row is in one cell of each, so one of n cells adds up to the rows,
    with noise of sigma sqrt(n).

    Args:
        sums: with the noise of each.
        most: bound on the absolute value of an exact entry.
        name: of the request.
        rows: bound on those of the contributors.
        stored: whether a store has opened them.
    """
    what = f"the store's '{name}' holds counts" if stored else f"the clients' sum '{name}' holds a value"
    for values, sigma in zip(sums.arrays, sums.sigmas, strict=True):
        found = [(float(np.abs(values).max(initial=0.0)), sigma)]
        found += [(abs(float(values.sum())), sigma * math.sqrt(values.size))] if stored else []
        for value, noise in found:
            if not value <= most + FAR * noise:
                return (
                    f"{what} of {value:.3g}, and their rows, {rows:,.0f} at most, give none beyond {most:.3g}: a "
                    f"client sent what no table holds, and the {'store' if stored else 'sum'} does not say which; "
                    "nothing more was asked of anybody"
                )
    return None


def usable_size(released: float) -> float:
    """Returns a released row count as a client may use it.

    It is cut to between 1 and the largest that a client may have.
    """
    return min(max(1.0, released), LARGEST_SIZE)


def estimated_sizes(released: Sequence[float], sigma: float) -> list[float]:
    """Returns row counts from noisy ones, each at least 1.

    Their sum is that of the noisy ones, so unbiased, but at least one row for each client, which matters where noise
    drowns even the total.

    Each is pulled towards the mean by the positive-part rule of James and Stein: of the K deviations' squared length S,
    (K - 3) sigma^2 is what noise alone would have, and w = 1 - (K - 3) sigma^2 / S of each deviation is kept. It has
    the smaller expected squared error than the noisy counts from K = 4 on, whatever the true counts are: next to
    nothing changes for a few holders of thousands of rows, and phones with a dozen rows each get the mean. What a
    client has beyond one row is then cut off at 0, and scaled so that all of it comes to the sum.

    Args:
        released: (K,) noisy counts, of any sign.
        sigma: standard deviation of the noise on each.
    """
    if not released:
        return []
    number = len(released)
    total = max(float(number), math.fsum(released))
    mean = math.fsum(released) / number
    squared = math.fsum((value - mean) ** 2 for value in released)
    expected = max(0, number - 3) * sigma * sigma
    weight = max(0.0, 1.0 - expected / squared) if squared > 0.0 else 1.0
    beyond = [max(0.0, mean + weight * (value - mean) - 1.0) for value in released]
    if not any(beyond):
        return [total / number] * number
    factor = (total - number) / math.fsum(beyond)
    return [1.0 + factor * value for value in beyond]


def with_even_sizes(clients: Mapping[int, Participant], sums: Summed) -> dict[int, Participant]:
    """Returns the clients with an even part of the noisy sum.

    Nobody knows more of their row counts.

    Raises:
        RunError: too few clients contributed.
    """
    if not sums.opened:
        raise RunError("too few clients contributed to the sum of their row counts")
    rows = max(1.0, float(sums.arrays[0][0])) / len(sums.contributors)
    return {k: replace(client, rows=rows) for k, client in clients.items()}


def told_again(grid: NodeGrid, nodes: Mapping[int, int], replies: Mapping[int, Reply]) -> None:
    """Tells the Grid which nodes answer an identical request as before.

    Such a node pays once.
    """
    for key, reply in replies.items():
        if reply.params.get(AGAIN) is True:
            grid.answers_again(nodes[key])


def read_join(reply: Reply, public: bool) -> tuple[int | None, float | None]:
    """Returns the partition and public row count that a node names.

    It raises ProtocolError if they are impossible.
    """
    partition, rows = reply.params.get("partition"), reply.params.get("rows")
    if partition is not None and not _whole(partition, MOST_PARTITIONS):
        raise ProtocolError(f"the partition id is not an integer from 0 to {MOST_PARTITIONS - 1}")
    if not (_whole(rows, _LARGEST) or (rows is None and not public)):
        raise ProtocolError("the row count is not a non-negative integer")
    return partition, float(rows) if public and rows is not None else None


def _whole(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


# Who comes back -------------------------------------------------------------------------------------------------------


class Returning:
    """Finds absent clients of a resumed run.

    It looks anew at every exchange as long as there are any.

    A resumed run is a new run to Flower: a node may have another id, and may have gone or not come back yet. Who a node
    is, it says itself (`join`, which is free and changes nothing at the node). Only a node that keeps its memory of the
    run on its own disk goes on with it (`AGAIN`): another one would not know what it has released, nor that it has
    answered the request under way, and would pay for it twice.

    Args:
        ask: asks nodes who they are, by provisional ids, for so many seconds; gives replies, and why others gave none.
        federation: of the configuration. `connect_timeout` is waited, once, for as many nodes as there are absent
            clients, and `patience` while fewer than `minimum_cohort` are back.
        public: whether row counts are public.
        announce: called with whom the run waits for.
    """

    def __init__(self, ask: AskWho, federation: FederationNode, public: bool, announce: Announce) -> None:
        self._ask, self._public, self._minimum = ask, public, max(1, federation.minimum_cohort)
        self._queue = Queue(federation.patience, federation.connect_timeout, {}, {}, announce)
        self._waited = False
        self._known: set[int] = set()  # nodes that have said who they are
        self.reasons: list[Refusal] = []

    def find(self, grid: NodeGrid, clients: dict[int, Participant], *, wait: bool = True) -> None:
        """Fills in the nodes of absent clients that are there now.

        Args:
            grid: with the nodes.
            clients: by partition id; changed.
            wait: for those that are not there, the first time and as long as they have for it; else one look has to do.

        Raises:
            RunError: fewer than the minimum have come back in the time that they had.
        """
        if not wait or self._waited:
            self._look(grid, clients)
            return
        self._waited, queue = True, self._queue
        absent = _missed(lambda: self._look(grid, clients), len(clients), self._minimum, queue)
        back = len(clients) - len(absent)
        if back < self._minimum:
            why = f" ({self.reasons[-1]})" if self.reasons else ""
            patience = max(queue.people, queue.nodes)
            raise RunError(
                f"{back} of the run's {len(clients)} clients have come back within {patience:g} s "
                f"(federation.patience), the minimum is {self._minimum}{why}; nothing was sent, and the run can be "
                "resumed when they are there"
            )

    def _look(self, grid: NodeGrid, clients: dict[int, Participant]) -> tuple[int, list[Missing]]:
        fresh = sorted(set(grid.get_node_ids()) - self._known - {c.node for c in clients.values()})
        if fresh:
            self._place(fresh, clients)
        absent = [Missing(who({}, k), GONE) for k, client in clients.items() if client.node == ABSENT]
        return len(clients) - len(absent), absent

    def _place(self, nodes: Sequence[int], clients: dict[int, Participant]) -> None:
        replies, why = self._ask({-1 - i: node for i, node in enumerate(nodes)}, _REPLY)
        self.reasons += why
        for key, reply in replies.items():
            node = nodes[-1 - key]
            self._known.add(node)
            try:
                partition = self._checked(reply, clients)
            except ProtocolError as error:
                self.reasons.append(Refusal(Kind.REPLY, str(error)))
            else:
                clients[partition] = replace(clients[partition], node=node)

    def _checked(self, reply: Reply, clients: Mapping[int, Participant]) -> int:
        partition, rows = read_join(reply, self._public)
        if partition is None or partition not in clients:
            raise ProtocolError("a node is not one of the run's clients")
        client = clients[partition]
        refuse(client.node != ABSENT, f"two nodes claim partition {partition}; the second is not used")
        refuse(
            reply.params.get(AGAIN) is not True,
            f"client {partition} keeps no memory of the run on its disk, as `fedsyn node serve` does: it would pay "
            "twice for what it has answered",
        )
        if self._public and rows != client.rows:
            raise ProtocolError(f"client {partition} has more or fewer rows than when the run began")
        return partition
