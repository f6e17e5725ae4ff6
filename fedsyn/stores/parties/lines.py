"""Lines between two parties' services.

A run has one stream in each direction, first in, first out.

A party sends on streams that it opens, and receives on those that the others open to it. A stream names its run by the
announcement's nonce; it may arrive before this party has heard of the run. Messages are cut into frames of 1 MiB, so
they have no size limit; what is not fetched yet has one (`Inbox`). The requests of a server are cut likewise.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.errors import ProtocolError

LINE = "/fedsyn.Line/Send"
TAG = "fedsyn-run"  # metadata: the run's nonce
_PART, _LAST, _END, _ABORT = b"\0", b"\1", b"\2", b"\3"
FRAME = 1 << 20  # bytes, and one that says what it is
_MESSAGE = 256  # bytes that a waiting message counts beside its own
_UNKNOWN = 1 << 14  # bytes that may wait for a run that this party has not heard of: its first message has 48
#: What is said of a party that is gone, stopped or cut off, however it is noticed: nobody can tell which it is.
LOST = "does not answer: it has stopped, is too slow, or the connection to it broke"
_PENDING = 8  # such runs, of each other party


def cut(payload: bytes | memoryview) -> Iterator[bytes]:
    """A message as frames."""
    for start in range(0, max(1, len(payload)), FRAME):
        part = payload[start : start + FRAME]
        yield (_LAST if start + FRAME >= len(payload) else _PART) + part


def joined(frames: Iterator[bytes], most: int) -> bytes:
    """Returns the message that `cut` has cut.

    Raises ProtocolError, and reads no more, if it is longer than `most`.
    """
    parts: list[bytes] = []
    length = 0
    for frame in frames:
        parts.append(frame[1:])
        length += len(frame) + _MESSAGE
        if length > most + _MESSAGE or frame[:1] not in (_PART, _LAST):
            raise ProtocolError("a message is malformed, or longer than this party's policy allows")
        if frame[:1] == _LAST:
            return b"".join(parts)
    raise ProtocolError("a message is malformed")


class Inbox:
    """Messages of one other party in one run, in order.

    Args:
        who: the other party, for messages.
        most: bytes that may wait; more of them close the inbox.
    """

    def __init__(self, who: str, most: int) -> None:
        self.who, self.most = who, most
        self.adopted = False  # by a run of this party
        self.taken = False  # by a stream: there is one
        self.ended: str | None = None
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hang_up: Callable[[], object] | None = None

    def take(self, hang_up: Callable[[], object]) -> bool:
        """Returns whether a stream may fill this inbox.

        `hang_up` ends the stream when the run is over here.
        """
        with self._lock:
            first, self.taken = not self.taken, True
            if first:
                self._hang_up = hang_up
        return first and self.ended is None

    def put(self, message: bytes) -> None:
        with self._lock:
            self._waiting += len(message) + _MESSAGE
            full = self._waiting > self.most
        if full:
            self.close(f"{self.who} has sent more than it could have to")
        else:
            self._queue.put(message)

    def close(self, reason: str) -> None:
        """Ends every waiting `get`, and every later one without a message.

        They raise PartyGone with the first reason.
        """
        if self.ended is None:
            self.ended = reason
        self._queue.put(None)

    def hang_up(self) -> None:
        """Ends the stream that fills this inbox, if there is one."""
        with self._lock:
            self.taken, hang_up, self._hang_up = True, self._hang_up, None
        if hang_up is not None:
            hang_up()

    def get(self, timeout: float) -> bytes:
        try:
            message = self._queue.get(timeout=timeout)
        except queue.Empty:
            raise PartyGone(f"{self.who} {LOST}") from None
        if message is None:
            self._queue.put(None)
            raise PartyGone(self.ended or f"{self.who} has left")
        with self._lock:
            self._waiting -= len(message) + _MESSAGE
        return message


class Inboxes:
    """The inboxes of a service, by run and party.

    An inbox is made by the first that needs it, a line or the run itself.

    Args:
        most: of an inbox, once the run is known here; before that a few KB.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._found: dict[tuple[str, str], Inbox] = {}

    def adopt(self, tag: str, who: str) -> Inbox:
        """The inbox of a run of this party."""
        with self._lock:
            inbox = self._of(tag, who)
            inbox.adopted, inbox.most = True, self._most
            return inbox

    def forget(self, tag: str) -> None:
        """The run is over here: its streams are ended."""
        with self._lock:
            gone = [self._found.pop(key) for key in list(self._found) if key[0] == tag]
        for inbox in gone:
            inbox.hang_up()

    def fill(self, frames: Iterator[bytes], tag: str, who: str, hang_up: Callable[[], object]) -> None:
        """Reads a stream to its end.

        When it breaks, its inbox says so.
        """
        with self._lock:
            inbox = self._of(tag, who)
        if not inbox.take(hang_up):
            inbox.close(f"{who} has opened two lines")
            return
        parts: list[bytes] = []
        length, reason = 0, f"{who} {LOST}"
        try:
            for frame in frames:
                kind, rest = frame[:1], frame[1:]
                if kind in (_END, _ABORT):
                    reason = f"{who} has ended the run"
                    break
                parts.append(rest)
                length += len(rest) + _MESSAGE
                if kind not in (_PART, _LAST) or len(rest) > FRAME or length > inbox.most + _MESSAGE:
                    reason = f"{who} has sent more than it could have to"
                    break
                if kind == _LAST:
                    inbox.put(parts[0] if len(parts) == 1 else b"".join(parts))
                    parts, length = [], 0
        except Exception:  # gRPC's, whatever it is: the connection broke, and `reason` says so
            pass
        finally:
            inbox.close(reason)

    def _of(self, tag: str, who: str) -> Inbox:
        if (tag, who) not in self._found:
            waiting = [key for key, inbox in self._found.items() if key[1] == who and not inbox.adopted]
            for old in waiting[: max(0, len(waiting) + 1 - _PENDING)]:
                inbox = self._found.pop(old)
                inbox.close("too many runs at once")
                inbox.hang_up()
            self._found[tag, who] = Inbox(who, _UNKNOWN)
        return self._found[tag, who]


class Outbox:
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
            self._on_break(self._reason())

    def _reason(self) -> str:
        if self._call.code() in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            return f"{self._who} has ended the run"  # it hung up
        return f"{self._who} {LOST}"

    def send(self, payload: bytes | memoryview) -> None:
        if self.closed:
            raise PartyGone("the run is over")
        if self._call.done():
            raise PartyGone(self._reason())
        for frame in cut(payload):
            self._frames.put(frame)

    def close(self, abort: bool) -> None:
        if not self.closed:
            self.closed = True
            self._frames.put(_ABORT if abort else _END)


class RunNetwork:
    """`Network` of one run at one service.

    Args:
        tag: of the run.
        others: index of each of the other two -> (what to call it, channel to it).
        inboxes: of the service.
        timeout: seconds to wait for a message.
    """

    def __init__(self, tag: str, others: dict[int, tuple[str, grpc.Channel]], inboxes: Inboxes, timeout: float) -> None:
        self._tag, self._inboxes, self._timeout = tag, inboxes, timeout
        self._in = {index: inboxes.adopt(tag, who) for index, (who, _) in others.items()}
        self._out = {
            index: Outbox(channel, tag, who, self._in[index].close) for index, (who, channel) in others.items()
        }

    def send(self, to: int, payload: bytes | memoryview) -> None:
        self._out[to].send(payload)

    def receive(self, sender: int) -> bytes:
        return self._in[sender].get(self._timeout)

    def abort(self, reason: str) -> None:
        """Wakes everything that waits here, and tells the other two."""
        for inbox in self._in.values():
            inbox.close(reason)
        self.close(abort=True)

    def close(self, abort: bool = False) -> None:
        for line in self._out.values():
            line.close(abort)
        self._inboxes.forget(self._tag)
