"""What the services of all roles have in common: who may call, one run at a time, and how a run leaves.

A service is known by its own certificate, and knows its operators by theirs. One run at a time: a second one is refused
until the first has ended. What a run has in memory goes when it ends, when its server's connection breaks, or after
`idle` seconds without an order. Only sentences about public facts leave.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import grpc

from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.errors import BudgetExceeded, ConfigError, FedsynError, ProtocolError
from fedsyn.nodes.lifetime.party_ledger import PartyLedger, read_party_lines
from fedsyn.nodes.parties import messages
from fedsyn.nodes.parties.interface import PartyCost
from fedsyn.nodes.parties.lines import FRAME, LINE, TAG, joined
from fedsyn.nodes.parties.policy import PartyFile
from fedsyn.nodes.service.certificates import expiry_of
from fedsyn.nodes.service.health import Budget, Health, Metrics, Pages, Requests, pages_of
from fedsyn.nodes.service.tls import peer_of, server_credentials, server_options
from fedsyn.settings import PartyCard

METHOD = "/fedsyn.Party/"
OPERATOR = "operator"
_log = logging.getLogger("fedsyn.party")
_THREADS = 24


class Busy(FedsynError):
    """Another run is under way."""


class Stateful(Protocol):
    """A party's half of one run."""

    @property
    def cost(self) -> PartyCost: ...

    def stop(self, reason: str) -> None: ...


P = TypeVar("P", bound=Stateful)


@dataclass
class Current(Generic[P]):
    """The run that a service is in.

    Attributes:
        tag: the announcement's nonce.
        party: the state machine.
        abort: wakes whoever waits for another party, with the reason.
        lock: held while an order is computed.
        dropped: why, from the moment when the run is to leave.
        over: set when the run has left the service.
        latest: when the last order came.
    """

    tag: str
    party: P
    abort: Callable[[str], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    dropped: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    latest: float = field(default_factory=time.monotonic)


class Serving(ABC, Generic[P]):
    """A role's service.

    Class attributes:
        methods: names of the operator's calls; each is a method that takes a request and the run's tag.

    Args:
        file: `party.yaml`, with absolute file names.
        cards: this party's own card first.
        pins: who may call: certificate (DER) -> `OPERATOR`, or the key of another party.
        certificates: of all of them, PEM.
        credentials: this party's own.

    Raises:
        ConfigError: the ledger cannot be used, or nobody can listen there.
    """

    methods: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        file: PartyFile,
        cards: Sequence[PartyCard],
        pins: Mapping[bytes, str],
        certificates: Sequence[str],
        credentials: Any,
    ) -> None:
        self.file, self.cards, self.credentials = file, tuple(cards), credentials
        self._pins, limits = dict(pins), file.policy.limits
        self.book = PartyLedger(Path(file.ledger), file.policy.total_budget)
        self._current: Current[P] | None = None
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self.most = 8 * max(limits.entries, limits.cells) + 1000 * limits.candidates + (64 << 20)
        self.orders = Requests("orders", "order", "outcome")
        self._probes: Pages | None = None
        self.reading = threading.Lock()  # held while a request is in memory: there is one, of up to `most` bytes
        pool = futures.ThreadPoolExecutor(_THREADS, "party")
        self._server = grpc.server(
            pool, (_Routes(self),), options=server_options(2 * FRAME), maximum_concurrent_rpcs=_THREADS
        )
        listen = file.listen or cards[0].address
        try:
            self.port = self._server.add_secure_port(listen, server_credentials(credentials, [*certificates]))
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.book.close()
            raise ConfigError(f"listen: cannot listen on {listen}")

    def start(self) -> None:
        """Start the service. Raises ConfigError, and starts nothing, if `listen_health` cannot be listened on."""
        if self.file.listen_health is not None:
            self._probes = Pages(self.file.listen_health, pages_of(self.health), "listen_health")
        self._server.start()
        threading.Thread(target=self._watch_idle, daemon=True).start()

    def stop(self) -> None:
        """Ends a run that is under way, and the service."""
        self._stopped.set()
        if self._current is not None:
            self.drop(self._current, "this party was stopped")
        self._server.stop(1.0).wait(5.0)
        if self._probes is not None:
            self._probes.close()
        self.book.close()

    def health(self) -> Health:
        """Return one look, for probes: also at the ledger's file, which somebody may have touched."""
        problems, runs = list[str](), 0
        try:
            runs = len(read_party_lines(Path(self.file.ledger)).runs)
        except ConfigError:
            problems.append("the ledger's file is damaged: the party must not go on before a person has looked at it")
        expires = expiry_of(self.credentials.certificate)
        if expires < time.time():
            problems.append("the certificate of this party's card has expired: fedsyn party rotate makes a new one")
        if self._stopped.is_set():
            problems.append("the party is stopping")
        allowed, busy, latest = self.book.budget, self._current is not None, self.orders.latest
        budget = Budget(self.book.epsilon, allowed.epsilon, allowed.delta, runs)
        facts = {"role": self.file.role, "busy": busy, "last_order": latest, "certificate_expires": expires}
        figures: Metrics = {
            "last_order_seconds": ("gauge", "When an order last came; 0: never.", {"": latest}),
            "busy": ("gauge", "1 while it is in a run.", {"": float(busy)}),
            "certificate_expires_seconds": ("gauge", "When the card's certificate ends.", {"": expires}),
        }
        return Health("party", self.cards[0].name, tuple(problems), self.orders, budget, facts, figures)

    # Who calls -------------------------------------------------------------------------------------------------------

    def caller(self, context: grpc.ServicerContext) -> str:
        return peer_of(context, self._pins)

    def hear(self, frames: Iterator[bytes], tag: str, key: str, hang_up: Callable[[], object]) -> None:
        """Takes another party's line until it ends; a role without lines has none to call it."""
        raise ProtocolError("this party has no lines to others")

    # The operator's calls --------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, request: bytes, tag: str) -> bytes:
        """Announces a run."""

    def end(self, tag: str) -> bytes:
        current = self._current
        if current is not None and current.tag == tag:
            self.drop(current, "its server has ended it")
            return self.answer(current, {})
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

    def drop(self, current: Current[P], reason: str) -> None:
        """The run leaves: no order begins any more, waiting orders are woken, and the run has left when this
        returns."""
        if current.over.is_set():
            return
        if first := current.dropped is None:
            current.dropped = reason
        current.abort(reason)
        with current.lock:
            current.party.stop(reason)
        self._leave(current)
        if first:
            _log.info("the run is over: %s", reason)

    def entered(self, tag: str, make: Callable[[], tuple[P, Callable[[str], None]]]) -> Current[P]:
        """Makes a run the current one; Busy if there is one."""
        with self._lock:
            self.free()
            party, abort = make()
            self._current = Current(tag, party, abort)
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

    def order(self, tag: str) -> Turn[P]:
        """An order's turn in the run with this tag."""
        return Turn(self._found(tag))

    def computed(self, current: Current[P], step: Callable[[], Any]) -> Any:
        """What a step gives; after an error the run has left, and the others know."""
        try:
            return step()
        except BaseException:
            current.abort("this party has ended the run")
            self._leave(current)
            raise
        finally:
            current.latest = time.monotonic()

    def answer(self, current: Current[P], facts: dict[str, Any], blobs: list[bytes] | None = None) -> bytes:
        """What goes back, with what the party has spent so far."""
        return messages.pack({**facts, "cost": asdict(current.party.cost)}, blobs or [])

    def _found(self, tag: str) -> Current[P]:
        current = self._current
        if current is None or current.tag != tag:
            raise ProtocolError("no such run here: it has ended, was dropped, or this party was started anew")
        return current

    def _leave(self, current: Current[P]) -> None:
        with self._lock:
            if self._current is current:
                self._current = None
        current.over.set()

    def _watch_idle(self) -> None:
        while not self._stopped.wait(min(1.0, self.file.idle / 4)):
            current = self._current
            if current is None or current.lock.locked():
                continue
            if time.monotonic() - current.latest > self.file.idle:
                self.drop(current, f"no order came for {self.file.idle:g} s")


class Turn(Generic[P]):
    """An order's turn in a run; two at once are refused."""

    def __init__(self, current: Current[P]) -> None:
        self._current = current

    def __enter__(self) -> Current[P]:
        current = self._current
        if not current.lock.acquire(blocking=False):
            if current.dropped is not None:  # it is about to leave
                raise ProtocolError(f"the run is over at this party: {current.dropped}")
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

    def __init__(self, service: Serving[Any]) -> None:
        self._service = service
        self._methods = {METHOD + name: (name, getattr(service, name)) for name in service.methods}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == LINE:
            return grpc.stream_unary_rpc_method_handler(self._line)
        if details.method == METHOD + "watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        if details.method == METHOD + "end":
            return grpc.stream_unary_rpc_method_handler(self._end)
        method = self._methods.get(details.method)
        return None if method is None else grpc.stream_unary_rpc_method_handler(self._checked(*method))

    def _checked(
        self, name: str, method: Callable[[bytes, str], bytes]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
        service = self._service

        def call(frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with _Sentences(context, partial(service.orders.count, name)):
                self._only(OPERATOR, context)
                tag = _tag(context)
                if method == service.begin:
                    service.free()
                if not service.reading.acquire(blocking=False):
                    raise ProtocolError("an order came while another one is computed")
                try:
                    answer = method(joined(frames, service.most), tag)
                    service.orders.count(name, "answered")
                    return answer
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
                raise ProtocolError("an operator is not a party")
            self._service.hear(frames, _tag(context), key, context.cancel)
        return b""

    def _only(self, role: str, context: grpc.ServicerContext) -> None:
        if self._service.caller(context) != role:
            raise ProtocolError("a party is not an operator")


class _Sentences:
    """Turns errors into a status code and a sentence; nothing else about an error leaves. `count` hears the outcome."""

    def __init__(self, context: grpc.ServicerContext, count: Callable[[str], None] = lambda outcome: None) -> None:
        self._context, self._count = context, count

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
        self._count("refused" if isinstance(error, FedsynError) else "failed")
        _log.log(level, "refused: %s", text)
        self._context.abort(code, text)


def _tag(context: grpc.ServicerContext) -> str:
    found = [value for key, value in context.invocation_metadata() if key == TAG]
    if len(found) != 1 or len(found[0]) != 32:
        raise ProtocolError("a call does not name its run")
    return str(found[0])
