"""The lines between two parties' services: one stream of a run in each direction, first in, first out.

A party sends on streams that it opens, and receives on those that the others open to it. A stream names its run by the
announcement's nonce; it may arrive before this party has heard of the run. Messages are cut into frames of 1 MiB, so
they have no size limit; what is not fetched yet has one (`Inbox`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fedsyn.mpc.network import PartyGone

LINE = "/fedsyn.Line/Send"
TAG = "fedsyn-run"  # metadata: the run's nonce
_PART, _LAST, _END, _ABORT = b"\0", b"\1", b"\2", b"\3"
_FRAME = 1 << 20
_PENDING = 8  # inboxes of runs that this party has not heard of yet


class Inbox:
    """What one other party has sent in one run, in order.

    Args:
        who: the other party, for messages.
        most: bytes that may wait; more of them close the inbox.
    """

    def __init__(self, who: str, most: int) -> None:
        self.who, self.most = who, most
        self.taken = False  # by a stream: there is one
        self.ended: str | None = None
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def put(self, message: bytes) -> None:
        with self._lock:
            self._waiting += len(message)
        if self._waiting > self.most:
            self.close(f"{self.who} has sent more than it could have to")
        else:
            self._queue.put(message)

    def close(self, reason: str) -> None:
        """Whoever waits, and every later `get` that finds nothing, gets PartyGone with the first reason."""
        if self.ended is None:
            self.ended = reason
        self._queue.put(None)

    def get(self, timeout: float) -> bytes:
        try:
            message = self._queue.get(timeout=timeout)
        except queue.Empty:
            raise PartyGone(f"heard nothing from {self.who} for {timeout:g} seconds") from None
        if message is None:
            self._queue.put(None)
            raise PartyGone(self.ended or f"{self.who} has left")
        with self._lock:
            self._waiting -= len(message)
        return message


class Inboxes:
    """The inboxes of a service: by run and party, made by whoever comes first.

    Args:
        most: see `Inbox`.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._found: dict[tuple[str, str], Inbox] = {}

    def of(self, tag: str, who: str) -> Inbox:
        with self._lock:
            if (tag, who) not in self._found:
                mine = [key for key in self._found if key[1] == who]
                for old in mine[: max(0, len(mine) + 1 - _PENDING)]:
                    self._found.pop(old).close("too many runs at once")
                self._found[tag, who] = Inbox(who, self._most)
            return self._found[tag, who]

    def forget(self, tag: str) -> None:
        with self._lock:
            for key in [key for key in self._found if key[0] == tag]:
                del self._found[key]

    def fill(self, frames: Iterator[bytes], tag: str, who: str) -> None:
        """Reads a stream to its end; when it breaks, its inbox says so."""
        inbox = self.of(tag, who)
        if inbox.taken:
            inbox.close(f"{who} has opened two lines")
            return
        inbox.taken, parts = True, []
        reason = f"{who} is gone: its connection broke"
        try:
            for frame in frames:
                kind, rest = frame[:1], frame[1:]
                if kind in (_END, _ABORT):
                    reason = f"{who} has ended the run"
                    break
                parts.append(rest)
                if kind == _LAST:
                    inbox.put(parts[0] if len(parts) == 1 else b"".join(parts))
                    parts = []
                elif len(parts) * _FRAME > self._most:
                    break
        except grpc.RpcError:
            pass  # the connection broke: `reason` says so
        finally:
            inbox.close(reason)


class Line:
    """The way to one other party in one run."""

    def __init__(self, channel: grpc.Channel, tag: str, who: str, on_break: Callable[[str], None]) -> None:
        self._who, self._frames = who, queue.SimpleQueue[bytes]()
        self._on_break = on_break
        self.closed = False
        self._call: Any = channel.stream_unary(LINE).future(self._out(), metadata=((TAG, tag),))
        self._call.add_done_callback(self._done)

    def _out(self) -> Iterator[bytes]:
        while True:
            frame = self._frames.get()
            yield frame
            if frame[:1] in (_END, _ABORT):
                return

    def _done(self, call: Any) -> None:
        if not self.closed:
            self._on_break(f"{self._who} is gone: the connection to it broke")

    def send(self, payload: bytes | memoryview) -> None:
        if self.closed or self._call.done():
            raise PartyGone(f"{self._who} is gone: the connection to it broke")
        for start in range(0, max(1, len(payload)), _FRAME):
            part = payload[start : start + _FRAME]
            self._frames.put((_LAST if start + _FRAME >= len(payload) else _PART) + part)

    def close(self, abort: bool) -> None:
        if not self.closed:
            self.closed = True
            self._frames.put(_ABORT if abort else _END)


class Lines:
    """`Network` of one run at one service.

    Args:
        tag: of the run.
        others: index of each of the other two -> (what to call it, channel to it).
        inboxes: of the service.
        timeout: seconds to wait for a message.
    """

    def __init__(self, tag: str, others: dict[int, tuple[str, grpc.Channel]], inboxes: Inboxes, timeout: float) -> None:
        self._tag, self._inboxes, self._timeout = tag, inboxes, timeout
        self._in = {index: inboxes.of(tag, who) for index, (who, _) in others.items()}
        self._out = {index: Line(channel, tag, who, self._in[index].close) for index, (who, channel) in others.items()}

    def send(self, to: int, payload: bytes | memoryview) -> None:
        self._out[to].send(payload)

    def receive(self, sender: int) -> bytes:
        return self._in[sender].get(self._timeout)

    def abort(self, reason: str) -> None:
        """Wakes whoever waits here, and tells the other two."""
        for inbox in self._in.values():
            inbox.close(reason)
        self.close(abort=True)

    def close(self, abort: bool = False) -> None:
        for line in self._out.values():
            line.close(abort)
        self._inboxes.forget(self._tag)
