"""The clients of a run that is resumed, found again.

A resumed run is a new run to Flower: a node may have another id, and may have gone or not come back yet. Who a node is,
it says itself (`join`, which is free and changes nothing at the node). Only a node that keeps its memory of the run on
its own disk goes on with it (`Joined.again`): another one would not know what it has released, nor that it has answered
the request under way, and would pay for it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedsyn.config import FederationNode
from fedsyn.errors import ProtocolError, RunError
from fedsyn.nodes.flower import Grid
from fedsyn.protocol.joining import AGAIN, Participant, read_join
from fedsyn.protocol.record import Missing, Waiting
from fedsyn.protocol.waiting import GONE, Announce, Announcer
from fedsyn.protocol.wire.envelope import Reply

ABSENT = -1  # the node of a client that has not come back
_REPLY = 30.0  # seconds that a node gets to say who it is

Ask = Callable[[Mapping[int, int], float], tuple[dict[int, Reply], list[str]]]


class Returning:
    """Finds absent clients, at every exchange anew as long as there are any.

    Args:
        ask: asks nodes who they are, by provisional ids, for so many seconds; gives replies, and why others gave none.
        federation: of the configuration. `connect_timeout` is waited, once, for as many nodes as there are absent
            clients, and `patience` while fewer than `minimum_cohort` are back.
        public: whether row counts are public.
        told: called with whom the run waits for.
    """

    def __init__(self, ask: Ask, federation: FederationNode, public: bool, told: Announce) -> None:
        self._ask, self._public, self._federation, self._told = ask, public, federation, Announcer(told)
        self._deadline: float | None = None
        self._known: set[int] = set()  # nodes that have said who they are
        self.reasons: list[str] = []

    def find(self, grid: Grid, clients: dict[int, Participant], *, wait: bool = True) -> None:
        """Fills in the nodes of absent clients that are there now.

        Args:
            grid: with the nodes.
            clients: by partition id; changed.
            wait: for those that are not there, as long as they have for it; without it one look has to do.

        Raises:
            RunError: fewer than the minimum have come back in the time that they had.
        """
        first, minimum = wait and self._deadline is None, max(1, self._federation.minimum_cohort)
        patience = max(self._federation.connect_timeout, self._federation.patience)
        if first:
            self._deadline = time.monotonic() + self._federation.connect_timeout
            latest = time.monotonic() + patience
        while True:
            fresh = sorted(set(grid.get_node_ids()) - self._known - {c.node for c in clients.values()})
            if fresh:
                self._place(fresh, clients)
            absent = [k for k, client in clients.items() if client.node == ABSENT]
            back, now = len(clients) - len(absent), time.monotonic()
            is_over = self._deadline is None or now >= self._deadline
            if not wait or not absent or (is_over and (not first or back >= minimum or now >= latest)):
                break
            if first and back < minimum:
                missing = tuple(Missing(k, None, GONE) for k in absent)
                self._told(Waiting("join", 0, len(clients), time.time() + latest - now, missing))
            time.sleep(0.5)
        self._told(None)
        if first and back < minimum:
            why = f" ({self.reasons[-1]})" if self.reasons else ""
            raise RunError(
                f"{back} of the run's {len(clients)} clients have come back within {patience:g} s "
                f"(federation.patience), the minimum is {minimum}{why}; nothing was sent, and the run can be resumed "
                "when they are there"
            )

    def _place(self, nodes: Sequence[int], clients: dict[int, Participant]) -> None:
        replies, why = self._ask({-1 - i: node for i, node in enumerate(nodes)}, _REPLY)
        self.reasons += why
        for key, reply in replies.items():
            node = nodes[-1 - key]
            self._known.add(node)
            try:
                partition = self._checked(reply, clients)
            except ProtocolError as error:
                self.reasons.append(str(error))
            else:
                clients[partition] = replace(clients[partition], node=node)

    def _checked(self, reply: Reply, clients: Mapping[int, Participant]) -> int:
        partition, rows = read_join(reply, self._public)
        if partition is None or partition not in clients:
            raise ProtocolError("a node is not one of the run's clients")
        client = clients[partition]
        if client.node != ABSENT:
            raise ProtocolError(f"two nodes claim partition {partition}; the second is not used")
        if reply.params.get(AGAIN) is not True:
            raise ProtocolError(
                f"client {partition} keeps no memory of the run on its disk, as `fedsyn node serve` does: it would pay "
                "twice for what it has answered"
            )
        if self._public and rows != client.rows:
            raise ProtocolError(f"client {partition} has more or fewer rows than when the run began")
        return partition
