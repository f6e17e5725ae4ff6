"""One computing party as a service: `fedsyn party serve party.yaml`.

An operator's server announces runs and gives orders; the other two parties open lines; everybody is known by the one
certificate that this party pinned for it, so an operator cannot play a party, nor a party an operator. One run at a
time: a second one is refused until the first has ended. What a run has in memory goes when it ends, when its server's
connection breaks, or after `idle` seconds without an order. Only sentences about public facts leave.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc

from fedsyn.errors import BudgetExceeded, ConfigError, FedsynError, ProtocolError
from fedsyn.mpc.network import PartyGone
from fedsyn.parties import messages
from fedsyn.parties.book import Book
from fedsyn.parties.checks import Host
from fedsyn.parties.interface import Announcement, ChooseOrder, OpenOrder
from fedsyn.parties.keys import certificate_of, load_party
from fedsyn.parties.lines import FRAME, LINE, TAG, Inboxes, Lines, joined
from fedsyn.parties.party import Party
from fedsyn.parties.policy import PartyFile, load_card
from fedsyn.parties.tls import channel_to, der, peer_of, server_credentials, server_options, trouble_with
from fedsyn.randomness import Randomness

METHOD = "/fedsyn.Party/"
OPERATOR = "operator"
_log = logging.getLogger("fedsyn.party")
_THREADS = 24


class Busy(FedsynError):
    """Another run is under way."""


@dataclass
class Current:
    """The run that a service is in.

    Attributes:
        tag: the announcement's nonce.
        party: the state machine.
        lines: to the other two.
        lock: held while an order is computed.
        dropped: why, from the moment when the run is to leave.
        over: set when the run has left the service.
        latest: when the last order came.
    """

    tag: str
    party: Party
    lines: Lines
    lock: threading.Lock = field(default_factory=threading.Lock)
    dropped: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    latest: float = field(default_factory=time.monotonic)


class Service:
    """The service of a party.

    Args:
        file: `party.yaml`, with absolute file names.

    Raises:
        ConfigError: a key, card or certificate does not fit, or the ledger cannot be used.
    """

    def __init__(self, file: PartyFile) -> None:
        self.file = file
        card, self.credentials, pair = load_party(Path(file.folder))
        first, second = (load_card(path) for path in file.parties)
        self.cards, others = (card, first, second), (first, second)
        certificates = [certificate_of(Path(path)) for path in file.operators]
        pins = {der(text): OPERATOR for text in certificates} | {der(other.certificate): other.key for other in others}
        distinct = len({card.key, first.key, second.key}) == 3 and len(pins) == 2 + len({*certificates})
        if not distinct or der(card.certificate) in pins:
            raise ConfigError("parties, operators: two of them have the same key; each side has its own")
        self._pins, limits = pins, file.policy.limits
        self.book = Book(Path(file.ledger), file.policy.total_budget)
        self.host = Host(pair, file.policy, Randomness(None), self.book, self.cards)
        self._who = {other.key: f"party '{other.name}' ({other.address})" for other in others}
        self._channels = {other.key: channel_to(other.address, other.certificate, self.credentials) for other in others}
        self._inboxes = Inboxes(64 * max(limits.entries, limits.cells) + (64 << 20))
        self._current: Current | None = None
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.most = 8 * max(limits.entries, limits.cells) + 1000 * limits.candidates + (64 << 20)
        self.reading = threading.Lock()  # held while a request is in memory: there is one, of up to `most` bytes
        pool = futures.ThreadPoolExecutor(_THREADS, "party")
        self._server = grpc.server(
            pool, (_Routes(self),), options=server_options(2 * FRAME), maximum_concurrent_rpcs=_THREADS
        )
        listen = file.listen or card.address
        try:
            self.port = self._server.add_secure_port(
                listen, server_credentials(self.credentials, [*certificates, first.certificate, second.certificate])
            )
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.book.close()
            raise ConfigError(f"listen: cannot listen on {listen}")

    def start(self) -> None:
        self._server.start()
        threading.Thread(target=self._watch_idle, daemon=True).start()

    def stop(self) -> None:
        """Ends a run that is under way, and the service."""
        self._stopped.set()
        if self._current is not None:
            self.drop(self._current, "this party was stopped")
        self._server.stop(1.0).wait(5.0)
        for channel in self._channels.values():
            channel.close()
        self.book.close()

    # Who calls -------------------------------------------------------------------------------------------------------

    def caller(self, context: grpc.ServicerContext) -> str:
        return peer_of(context, self._pins)

    def hear(self, frames: Iterator[bytes], tag: str, key: str, hang_up: Callable[[], object]) -> None:
        """Takes another party's line until it ends."""
        self._inboxes.fill(frames, tag, self._who[key], hang_up)

    # The operator's calls --------------------------------------------------------------------------------------------

    def begin(self, request: bytes, tag: str) -> bytes:
        announcement = messages.read_announcement(request)
        if announcement.nonce.hex() != tag:
            raise ProtocolError("the announcement is malformed")
        current = self._enter(announcement, tag)
        with current.lock:
            run = self._computed(current, lambda: current.party.begin(announcement))
        _log.info(
            "run %s begins: %s, up to %.4g rho", run.hex()[:16], announcement.config.mechanism.name, announcement.rho
        )
        return self._answer(current, {"run": run.hex()})

    def deal(self, request: bytes, tag: str) -> bytes:
        parts = messages.read_deals(request)
        with self._order(tag) as current:
            refused = self._computed(current, lambda: current.party.deal(parts))
        return self._answer(current, {"refused": {str(k): why for k, why in refused.items()}})

    def choose(self, request: bytes, tag: str) -> bytes:
        order = messages.read_order(request)
        if not isinstance(order, ChooseOrder):
            raise ProtocolError("an order is malformed")
        with self._order(tag) as current:
            index = self._computed(current, lambda: current.party.choose(order))
        return self._answer(current, {"index": index})

    def open(self, request: bytes, tag: str) -> bytes:
        order = messages.read_order(request)
        if not isinstance(order, OpenOrder):
            raise ProtocolError("an order is malformed")
        with self._order(tag) as current:
            share = self._computed(current, lambda: current.party.open(order))
        return self._answer(current, {}, messages.share_bytes(share))

    def end(self, tag: str) -> bytes:
        current = self._current
        if current is not None and current.tag == tag:
            self.drop(current, "its server has ended it")
            return self._answer(current, {})
        return messages.pack({})

    def watch(self, tag: str, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Stays open as long as the run; if the server's side of it breaks, the run is dropped."""
        current = self._found(tag)

        def gone() -> None:  # in gRPC's own thread, which nothing may hold up
            if not current.over.is_set():
                threading.Thread(target=self.drop, args=(current, "the connection to its server broke")).start()

        if not context.add_callback(gone):
            gone()
        yield b""
        current.over.wait()

    # Runs ------------------------------------------------------------------------------------------------------------

    def drop(self, current: Current, reason: str) -> None:
        """The run leaves: no order begins any more, whoever waits for another party is woken, and has left when this
        returns."""
        if current.over.is_set():
            return
        if current.dropped is None:
            current.dropped = reason
            _log.info("the run is over: %s", reason)
        current.lines.abort(reason)
        with current.lock:
            current.party.stop(reason)
        self._leave(current)

    def _enter(self, announcement: Announcement, tag: str) -> Current:
        index = self.host.index_in(announcement.config)
        keys = [node.key for node in announcement.config.aggregation.parties or ()]
        self.free()
        for key, channel in self._channels.items():
            self._connected(key, channel)
        others = {keys.index(key): (self._who[key], channel) for key, channel in self._channels.items()}
        with self._lock:
            self.free()
            lines = Lines(tag, others, self._inboxes, self.file.timeout)
            self._current = Current(tag, Party(index, self.host, lines), lines)
            return self._current

    def free(self) -> None:
        """Busy if there is a run."""
        current = self._current
        if current is not None:
            seconds = time.monotonic() - current.latest
            raise Busy(
                f"is busy with another run, whose last order came {seconds:.0f} s ago; it is free when that run "
                f"ends, or {self.file.idle:g} s after its last order"
            )

    def _connected(self, key: str, channel: grpc.Channel) -> None:
        try:
            grpc.channel_ready_future(channel).result(min(10.0, self.file.timeout))
        except grpc.FutureTimeoutError:
            other = next(card for card in self.cards if card.key == key)
            why = trouble_with(other.address, other.certificate, self.credentials) or "does not answer"
            raise PartyGone(f"{self._who[key]} {why}") from None

    def _found(self, tag: str) -> Current:
        current = self._current
        if current is None or current.tag != tag:
            raise ProtocolError("no such run here: it has ended, was dropped, or this party was started anew")
        return current

    def _order(self, tag: str) -> _Turn:
        return _Turn(self._found(tag))

    def _computed(self, current: Current, step: Callable[[], Any]) -> Any:
        """What a step gives; after an error the run has left, and the other two know."""
        try:
            return step()
        except BaseException:
            current.lines.abort("this party has ended the run")
            self._leave(current)
            raise
        finally:
            current.latest = time.monotonic()

    def _leave(self, current: Current) -> None:
        with self._lock:
            if self._current is current:
                self._current = None
        current.over.set()

    def _answer(self, current: Current, facts: dict[str, Any], blobs: list[bytes] | None = None) -> bytes:
        return messages.pack({**facts, "cost": asdict(current.party.cost)}, blobs or [])

    def _watch_idle(self) -> None:
        while not self._stopped.wait(min(1.0, self.file.idle / 4)):
            current = self._current
            if current is None or current.lock.locked():
                continue
            if time.monotonic() - current.latest > self.file.idle:
                self.drop(current, f"no order came for {self.file.idle:g} s")


class _Turn:
    """An order's turn in a run; two at once are refused."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def __enter__(self) -> Current:
        current = self._current
        if not current.lock.acquire(blocking=False):
            raise ProtocolError("an order came while another one is computed")
        if current.dropped is not None:
            current.lock.release()
            raise ProtocolError(f"the run is over at this party: {current.dropped}")
        current.latest = time.monotonic()
        return current

    def __exit__(self, *_: object) -> None:
        self._current.lock.release()


class _Routes(grpc.GenericRpcHandler):
    """Calls by their names, for those who may make them; what goes wrong leaves as a code and one sentence."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._methods = {METHOD + name: getattr(service, name) for name in ("begin", "deal", "choose", "open")}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == LINE:
            return grpc.stream_unary_rpc_method_handler(self._line)
        if details.method == METHOD + "watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        if details.method == METHOD + "end":
            return grpc.stream_unary_rpc_method_handler(self._end)
        method = self._methods.get(details.method)
        return None if method is None else grpc.stream_unary_rpc_method_handler(self._checked(method))

    def _checked(
        self, method: Callable[[bytes, str], bytes]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
        service = self._service

        def call(frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with _Sentences(context):
                self._only(OPERATOR, context)
                tag = _tag(context)
                if method == service.begin:
                    service.free()
                if not service.reading.acquire(blocking=False):
                    raise ProtocolError("an order came while another one is computed")
                try:
                    return method(joined(frames, service.most), tag)
                finally:
                    service.reading.release()
            raise AssertionError  # what left above was an error

        return call

    def _end(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with _Sentences(context):
            self._only(OPERATOR, context)
            return self._service.end(_tag(context))
        raise AssertionError

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _Sentences(context):
            self._only(OPERATOR, context)
            yield from self._service.watch(_tag(context), context)

    def _line(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with _Sentences(context):
            key = self._service.caller(context)
            if key == OPERATOR:
                raise ProtocolError("an operator is no party")
            self._service.hear(frames, _tag(context), key, context.cancel)
        return b""

    def _only(self, role: str, context: grpc.ServicerContext) -> None:
        if self._service.caller(context) != role:
            raise ProtocolError("a party is no operator")


class _Sentences:
    """Turns errors into a status code and a sentence; nothing else about an error leaves."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or type(error) is Exception:  # the latter is gRPC's own abort
            return
        codes = grpc.StatusCode
        if isinstance(error, Busy):
            code = codes.RESOURCE_EXHAUSTED
        elif isinstance(error, PartyGone):
            code = codes.ABORTED
        elif isinstance(error, FedsynError):
            code = codes.FAILED_PRECONDITION
        else:
            code = codes.INTERNAL
        text = str(error) if isinstance(error, FedsynError) else f"an internal error ({type(error).__name__})"
        level = logging.WARNING if isinstance(error, BudgetExceeded | ProtocolError) else logging.INFO
        _log.log(level, "refused: %s", text)
        self._context.abort(code, text)


def _tag(context: grpc.ServicerContext) -> str:
    found = [value for key, value in context.invocation_metadata() if key == TAG]
    if len(found) != 1 or len(found[0]) != 32:
        raise ProtocolError("a call does not name its run")
    return str(found[0])
