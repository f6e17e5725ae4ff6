"""Two ordered lines from a party to the others.

Within one process the lines are queues.
"""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.errors import ProtocolError, RunError


class PartyGone(RunError):
    """Another party did not answer in time, or has left."""


class Cheating(ProtocolError):
    """The parties' words do not fit together: one of them deviated."""


class Network(Protocol):
    """One party's lines to the other two in one run.

    A line is private, authentic, and first in, first out.
    """

    def send(self, to: int, payload: bytes | memoryview) -> None:
        """Sends without blocking; raises PartyGone if the line is closed."""
        ...

    def receive(self, sender: int) -> bytes:
        """Waits for the next message of `sender`.

        It raises PartyGone, in one sentence, after the timeout or if the sender has left.
        """
        ...


class LocalNetwork:
    """Three endpoints in one process.

    With `record`, `views[i]` lists the (sender, payload) that party i received.
    """

    def __init__(self, timeout: float = 60.0, record: bool = False) -> None:
        self.timeout, self.record = timeout, record
        self.views: tuple[list[tuple[int, bytes]], ...] = ([], [], [])
        self.ended: str | None = None
        self._lock = threading.Lock()
        pairs = [(a, b) for a in range(PARTIES) for b in range(PARTIES) if a != b]
        self._lines: dict[tuple[int, int], queue.SimpleQueue[bytes | None]] = {p: queue.SimpleQueue() for p in pairs}
        self.endpoints: tuple[Network, ...] = tuple(_Endpoint(self, i) for i in range(PARTIES))

    def abort(self, reason: str = "the computation was ended") -> None:
        """Wakes everybody who waits.

        Their `receive` and every later call raise PartyGone with the first reason.
        """
        with self._lock:
            if self.ended is None:
                self.ended = reason
        for line in self._lines.values():
            line.put(None)

    def carry(self, sender: int, to: int, payload: bytes) -> None:
        if self.ended is not None:
            raise PartyGone(self.ended)
        self._lines[sender, to].put(payload)

    def fetch(self, sender: int, to: int) -> bytes:
        try:
            payload = None if self.ended is not None else self._lines[sender, to].get(timeout=self.timeout)
        except queue.Empty:
            raise PartyGone(f"party {to} heard nothing from party {sender} for {self.timeout:g} seconds") from None
        if payload is None:
            raise PartyGone(self.ended or "the computation was ended")
        if self.record:
            self.views[to].append((sender, payload))
        return payload


class _Endpoint:
    def __init__(self, network: LocalNetwork, index: int) -> None:
        self._network, self._index = network, index

    def send(self, to: int, payload: bytes | memoryview) -> None:
        self._network.carry(self._index, to, bytes(payload))

    def receive(self, sender: int) -> bytes:
        return self._network.fetch(sender, self._index)
