"""All parties of one secure sum in one process, for tests; every message and every state goes through bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedsyn.aggregation.secagg import Identity, SecureSumClient, SecureSumServer, Session

Arrays = list[np.ndarray]
Change = Callable[[str, int, Arrays], Arrays]


def session_of(clients: int, length: int = 5, **facts: Any) -> Session:
    """5% corrupted and 10% dropouts unless said otherwise; a malicious threat takes the full graph."""
    facts = {"dropouts": clients // 10, "corrupted": clients // 20, **facts}
    if facts.get("threat") == "malicious":
        facts.setdefault("graph", "full")
    # Partition numbers with gaps: a position must never be taken for a partition.
    return Session(b"a test", tuple(range(3, 3 + 2 * clients, 2)), length, **facts)


def carried(arrays: Arrays) -> Arrays:
    """The arrays as a transport hands them on: through bytes, without pickle."""
    result = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        file.seek(0)
        result.append(np.load(file, allow_pickle=False))
    return result


class Parties:
    """Server and clients of a session, with random contributions.

    Args:
        session: the public facts.
        vectors: (n, length) uint64 contributions; random ones by default.
        seed: of the random contributions.
    """

    def __init__(self, session: Session, vectors: np.ndarray | None = None, seed: int = 0) -> None:
        self.session = session
        n = len(session.clients)
        rng = np.random.default_rng(seed)
        every = rng.integers(0, 2**64, (n, session.length), dtype=np.uint64) if vectors is None else vectors
        self.vectors = dict(zip(session.clients, every, strict=True))
        malicious = session.threat == "malicious"
        self.identities = {c: Identity.derived(b"test %d" % c) for c in session.clients} if malicious else {}
        self.roster = {c: identity.public for c, identity in self.identities.items()} or None
        self.server = SecureSumServer(session, self.roster)
        self.states: dict[int, dict[str, Any]] = {}
        self.dropped: dict[int, str] = {}
        self.inbox: list[tuple[str, int, Arrays]] = []  # all that reached the server
        self.calls: dict[int, int] = {}

    def client(self, partition: int) -> SecureSumClient:
        """The client as a new process makes it: from its remembered state."""
        state = self.states.get(partition)
        return SecureSumClient(
            self.session,
            partition,
            identity=self.identities.get(partition),
            roster=self.roster,
            state=None if state is None else json.loads(json.dumps(state)),
        )

    def ask(self, partition: int, stage: str, inbox: Arrays) -> Arrays:
        """One client's reply; its state is remembered whether it answers or refuses."""

        def vector() -> np.ndarray:
            self.calls[partition] = self.calls.get(partition, 0) + 1
            return self.vectors[partition]

        client = self.client(partition)
        try:
            return carried(client.answer(stage, carried(inbox), vector))
        finally:
            self.states[partition] = client.to_state()

    def stage(self, gone: Iterable[int] = (), change: Change | None = None) -> str:
        """One round trip; `gone` are the positions that do not answer, `change` alters replies on their way."""
        stage, common, each = self.server.outbox()
        missing = {self.session.clients[i] for i in gone}
        replies = {}
        for partition, own in each.items():
            if partition in missing:
                continue
            reply = self.ask(partition, stage, [*common, *own])
            if change is not None:
                reply = change(stage, partition, reply)
            replies[partition] = reply
            self.inbox.append((stage, partition, reply))
        self.server.receive(replies, self.dropped.setdefault)
        return stage

    def until(self, stage: str, gone: Mapping[str, Iterable[int]] | None = None) -> None:
        """All round trips before `stage`."""
        while not self.server.done and (due := self.server.outbox()[0]) != stage:
            self.stage((gone or {}).get(due, ()))

    def run(self, gone: Mapping[str, Iterable[int]] | None = None, change: Change | None = None) -> None:
        """All round trips."""
        while not self.server.done:
            self.stage((gone or {}).get(self.server.outbox()[0], ()), change)

    def total(self, partitions: Iterable[int]) -> np.ndarray:
        """What the sum over these clients must be: computed with Python's integers."""
        columns = zip(*(self.vectors[p].tolist() for p in partitions), strict=True)
        return np.array([sum(column) % 2**64 for column in columns], np.uint64)
