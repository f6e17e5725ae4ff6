"""A party as a service, of either role: `fedsyn party serve party.yaml`.

An operator's server announces runs and gives orders; of three computing parties each opens lines to the other two.
Everybody is known by the one certificate that this party pinned for it, so an operator cannot play a party, nor a party
an operator. A crypto party talks to operators alone: the keys of a run are made when it is announced and are gone when
it ends, and clients know them by a signature of the key whose certificate stands on this party's card.

What an operator calls are the steps of the role's half of a run. One run at a time: a second one is refused until the
first has ended. What a run has in memory goes when it ends, when its server's connection breaks, or after `idle`
seconds without an order. Only sentences about public facts leave.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import grpc

from fedsyn.config import load_options
from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.errors import BudgetExceeded, ConfigError, FedsynError, ProtocolError
from fedsyn.health import Health, Metrics, Pages, Requests, SpentBudget, pages_of
from fedsyn.keys.certificates import expiry_of, signer
from fedsyn.keys.party_keys import certificate_of, load_party
from fedsyn.keys.tls import channel_to, der, peer_of, server_credentials, server_options, trouble_with
from fedsyn.ledgers.party_ledger import PartyLedger, read_party_lines
from fedsyn.randomness import Randomness
from fedsyn.settings import PartyCard
from fedsyn.stores.parties import messages
from fedsyn.stores.parties.checks import Host
from fedsyn.stores.parties.crypto import KeyHolder
from fedsyn.stores.parties.interface import Announcement
from fedsyn.stores.parties.lines import FRAME, LINE, TAG, Inboxes, RunNetwork, joined
from fedsyn.stores.parties.party import Party
from fedsyn.stores.parties.policy import PartyFile
from fedsyn.stores.parties.steps import RunHalf, steps_of, types_of

METHOD = "/fedsyn.Party/"
OPERATOR = "operator"
_log = logging.getLogger("fedsyn.party")
_THREADS = 24
_BUSY = "an order came while another one is computed"
Half = RunHalf[Any]


class Busy(FedsynError):
    """Another run is under way."""


@dataclass
class Current:
    """The run that a service is in.

    Attributes:
        tag: the announcement's nonce.
        party: the role's half of it.
        abort: wakes whoever waits for another party, with the reason.
        lock: held while an order is computed.
        dropped: why, from the moment when the run is to leave.
        over: set when the run has left the service.
        latest: when the last order came.
    """

    tag: str
    party: Half
    abort: Callable[[str], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    dropped: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    latest: float = field(default_factory=time.monotonic)


class Serving(ABC):
    """A role's service.

    Class attributes:
        half: of a run, of this role; its steps are the operator's calls.
        entry_bytes: that one entry of a client takes in a message.

    Args:
        file: `party.yaml`, with absolute file names.
        others: cards of the other parties.

    Raises:
        ConfigError: a key, card or certificate does not fit, the ledger cannot be used, or nobody can listen there.
    """

    half: ClassVar[type[Half]]
    entry_bytes: ClassVar[int]

    def __init__(self, file: PartyFile, others: Sequence[PartyCard] = ()) -> None:
        # Keys: this party's own, and those of the callers that it accepts.
        card, self.credentials, pair = load_party(Path(file.folder))
        self.file, self.cards, limits = file, (card, *others), file.policy.limits
        operators = {certificate_of(Path(path)) for path in file.operators}
        self._pins = {der(text): OPERATOR for text in operators} | {der(each.certificate): each.key for each in others}
        keys, pinned = {each.key for each in self.cards}, [*operators, *(each.certificate for each in others)]
        if len(keys) < len(self.cards) or len(self._pins) < len(pinned) or der(card.certificate) in self._pins:
            raise ConfigError(
                "parties, operators: one of them has this party's own key, or two have the same; each side has its own"
            )
        # The ledger for life, and what every run here shares.
        self.book = PartyLedger(Path(file.ledger), file.policy.total_budget)
        self.host = Host(pair, file.policy, Randomness(None), self.book, self.cards)
        self._steps = steps_of(self.half)
        self._current: Current | None = None
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._most = self.entry_bytes * max(limits.entries, limits.cells) + 1000 * limits.candidates + (64 << 20)
        self._reading = threading.Lock()  # held while a request is in memory: there is one, of up to `_most` bytes
        self.orders = Requests("orders", "order", "outcome")
        self._probes: Pages | None = None
        # One gRPC handler for each step of a run, and one for the lines of other parties.
        pool = futures.ThreadPoolExecutor(_THREADS, "party")
        self._server = grpc.server(pool, options=server_options(2 * FRAME), maximum_concurrent_rpcs=_THREADS)
        calls = {name: self._guarded(partial(self._ordered, name), name) for name in self._steps}
        calls["end"] = self._guarded(self._end)
        handlers = {name: grpc.stream_unary_rpc_method_handler(call) for name, call in calls.items()}
        handlers["watch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        lines = {LINE.rpartition("/")[2]: grpc.stream_unary_rpc_method_handler(self._guarded(self._line))}
        for method, methods in ((METHOD, handlers), (LINE, lines)):
            services = (grpc.method_handlers_generic_handler(method.split("/")[1], methods),)
            self._server.add_generic_rpc_handlers(services)
        # gRPC reports an unusable address as an error or as port 0.
        listen = file.listen or card.address
        try:
            self.port = self._server.add_secure_port(listen, server_credentials(self.credentials, pinned))
        except RuntimeError:
            self.port = 0
        if not self.port:
            self.book.close()
            raise ConfigError(f"listen: cannot listen on {listen}")

    def start(self) -> None:
        """Starts the service.

        Raises ConfigError, and starts nothing, if `listen_health` cannot be listened on.
        """
        if self.file.listen_health is not None:
            self._probes = Pages(self.file.listen_health, pages_of(self.health), "listen_health")
        self._server.start()
        threading.Thread(target=self._watch_idle, daemon=True).start()

    def stop(self) -> None:
        """Ends a run that is under way, and the service."""
        self._stopped.set()
        if self._current is not None:
            self._drop(self._current, "this party was stopped")
        self._server.stop(1.0).wait(5.0)
        if self._probes is not None:
            self._probes.close()
        self.book.close()

    def health(self) -> Health:
        """Returns the service's health, for probes.

        It also looks at the ledger's file, which somebody may have touched.
        """
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
        budget = SpentBudget(self.book.epsilon, allowed.epsilon, allowed.delta, runs)
        facts = {"role": self.file.role, "busy": busy, "last_order": latest, "certificate_expires": expires}
        figures: Metrics = {
            "last_order_seconds": ("gauge", "When an order last came; 0: never.", latest),
            "busy": ("gauge", "1 while it is in a run.", float(busy)),
            "certificate_expires_seconds": ("gauge", "When the card's certificate ends.", expires),
        }
        return Health("party", self.cards[0].name, tuple(problems), self.orders, budget, facts, figures)

    # What a role has of its own ---------------------------------------------------------------------------------------

    def reach(self, announcement: Announcement) -> None:  # noqa: B027 - a role without others has nobody to reach
        """Checks that an announced run can begin, before it is entered."""

    @abstractmethod
    def make(self, announcement: Announcement, tag: str) -> tuple[Half, Callable[[str], None]]:
        """Returns the role's half of a new run, and its waker.

        The waker wakes those in it that wait for another party.
        """

    def hear(self, frames: Iterator[bytes], tag: str, key: str, hang_up: Callable[[], object]) -> None:
        """Takes another party's line until it ends.

        A role without lines has none to call it.
        """
        raise ProtocolError("this party has no lines to others")

    # Calls ------------------------------------------------------------------------------------------------------------

    def call(self, name: str, request: bytes, tag: str) -> bytes:
        """Takes a step of the run with this tag.

        Returns its result, and what the party has spent so far.
        """
        step = self._steps[name]
        asks, answers = types_of(step)
        arguments = messages.unpack(asks, request)
        if name == "begin":
            (announcement,) = arguments
            if announcement.nonce.hex() != tag:
                raise ProtocolError("the announcement is malformed")
            current = self._entered(announcement, tag)
        else:
            current = self._found(tag)
        with self._turn(current):
            try:
                result = step(current.party, *arguments)
            except BaseException:
                current.abort("this party has ended the run")
                self._leave(current)
                raise
            finally:
                current.latest = time.monotonic()
        return messages.pack(answers, (result, current.party.cost))

    def _ordered(self, name: str, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        self._require_operator(context)
        tag = _tag(context)
        if name == "begin":
            self._require_free()
        if not self._reading.acquire(blocking=False):
            raise ProtocolError(_BUSY)
        try:
            answer = self.call(name, joined(frames, self._most), tag)
            self.orders.count(name, "answered")
            return answer
        finally:
            self._reading.release()

    def _end(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        self._require_operator(context)
        current, tag = self._current, _tag(context)
        if current is not None and current.tag == tag:
            self._drop(current, "its server has ended it")
        return messages.message_of(None)

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Stays open as long as the run.

        If the server's side of it breaks, the run is dropped.
        """
        try:
            self._require_operator(context)
            current = self._found(_tag(context))
        except Exception as error:
            self._refuse(error, context)

        def gone() -> None:  # in gRPC's own thread, which nothing may hold up
            if not current.over.is_set():
                threading.Thread(target=self._drop, args=(current, "the connection to its server broke")).start()

        if not context.add_callback(gone):
            gone()
        yield b""
        current.over.wait()

    def _line(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        key = peer_of(context, self._pins)
        if key == OPERATOR:
            raise ProtocolError("an operator is not a party")
        self.hear(frames, _tag(context), key, context.cancel)
        return b""

    def _require_operator(self, context: grpc.ServicerContext) -> None:
        if peer_of(context, self._pins) != OPERATOR:
            raise ProtocolError("a party is not an operator")

    def _guarded(
        self, answer: Callable[[Iterator[bytes], grpc.ServicerContext], bytes], name: str | None = None
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
        """Returns an answer whose errors leave as a code and a sentence.

        Errors of an order are counted.
        """

        def guarded(frames: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            try:
                return answer(frames, context)
            except Exception as error:
                self._refuse(error, context, name)

        return guarded

    def _refuse(self, error: Exception, context: grpc.ServicerContext, name: str | None = None) -> NoReturn:
        """Turns an error into a status code and a sentence.

        Nothing else about it leaves.
        """
        codes, known = grpc.StatusCode, isinstance(error, FedsynError)
        if isinstance(error, Busy):
            code = codes.RESOURCE_EXHAUSTED
        elif isinstance(error, PartyGone):
            code = codes.ABORTED
        else:
            code = codes.FAILED_PRECONDITION if known else codes.INTERNAL
        text = str(error) if known else f"an internal error ({type(error).__name__})"
        if name is not None:
            self.orders.count(name, "refused" if known else "failed")
        level = logging.WARNING if isinstance(error, BudgetExceeded | ProtocolError) else logging.INFO
        _log.log(level, "refused: %s", text)
        context.abort(code, text)
        raise AssertionError  # `abort` raises

    # The run ----------------------------------------------------------------------------------------------------------

    def _entered(self, announcement: Announcement, tag: str) -> Current:
        """Makes a run the current one. Raises Busy if there is one."""
        self._require_free()
        self.reach(announcement)
        with self._lock:
            self._require_free()
            self._current = Current(tag, *self.make(announcement, tag))
            return self._current

    def _require_free(self) -> None:
        """Raises Busy if there is a run."""
        current = self._current
        if current is not None:
            seconds = time.monotonic() - current.latest
            raise Busy(
                f"is busy with another run, whose last order came {seconds:.0f} s ago; it is free when that run "
                f"ends, or {self.file.idle:g} s after its last order"
            )

    @contextmanager
    def _turn(self, current: Current) -> Iterator[None]:
        """Holds an order's turn in a run; two at once are refused."""
        free = current.lock.acquire(blocking=False)
        try:
            if current.dropped is not None:  # it is about to leave
                raise ProtocolError(f"the run is over at this party: {current.dropped}")
            if not free:
                raise ProtocolError(_BUSY)
            current.latest = time.monotonic()
            yield
        finally:
            if free:
                current.lock.release()

    def _found(self, tag: str) -> Current:
        current = self._current
        if current is None or current.tag != tag:
            raise ProtocolError("no such run here: it has ended, was dropped, or this party was started anew")
        return current

    def _drop(self, current: Current, reason: str) -> None:
        """Ends the run.

        No order begins any more, waiting orders are woken, and the run has left when this returns.
        """
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

    def _leave(self, current: Current) -> None:
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
                self._drop(current, f"no order came for {self.file.idle:g} s")


def _tag(context: grpc.ServicerContext) -> str:
    tags = [value for key, value in context.invocation_metadata() if key == TAG]
    if len(tags) != 1 or len(tags[0]) != 32:
        raise ProtocolError("a call does not name its run")
    return str(tags[0])


class Service(Serving):
    """The service of a computing party."""

    half, entry_bytes = Party, 8

    def __init__(self, file: PartyFile) -> None:
        others = [load_options(PartyCard, path) for path in file.parties]
        super().__init__(file, others)
        limits = file.policy.limits
        self._who = {other.key: f"party '{other.name}' ({other.address})" for other in others}
        self._channels = {other.key: channel_to(other.address, other.certificate, self.credentials) for other in others}
        self._inboxes = Inboxes(64 * max(limits.entries, limits.cells) + (64 << 20))

    def stop(self) -> None:
        super().stop()
        for channel in self._channels.values():
            channel.close()

    def hear(self, frames: Iterator[bytes], tag: str, key: str, hang_up: Callable[[], object]) -> None:
        self._inboxes.fill(frames, tag, self._who[key], hang_up)

    def reach(self, announcement: Announcement) -> None:
        """Checks that the configuration names the three known parties.

        The other two must answer.
        """
        self.host.index_in(announcement.config)
        for card in self.cards[1:]:
            try:
                grpc.channel_ready_future(self._channels[card.key]).result(min(10.0, self.file.timeout))
            except grpc.FutureTimeoutError:
                why = trouble_with(card.address, card.certificate, self.credentials) or "does not answer"
                raise PartyGone(f"{self._who[card.key]} {why}") from None

    def make(self, announcement: Announcement, tag: str) -> tuple[Half, Callable[[str], None]]:
        keys = [card.key for card in announcement.config.aggregation.parties or ()]
        others = {keys.index(key): (self._who[key], channel) for key, channel in self._channels.items()}
        lines = RunNetwork(tag, others, self._inboxes, self.file.timeout)
        return Party(keys.index(self.cards[0].key), self.host, lines), lines.abort


class CryptoService(Serving):
    """The service of a crypto party.

    Raises ConfigError, too, if TenSEAL is not installed.
    """

    half, entry_bytes = KeyHolder, 64  # a slot of a ciphertext takes up to 64 bytes

    def __init__(self, file: PartyFile) -> None:
        from fedsyn.crypto.fhe.seal import sealapi

        sealapi()
        super().__init__(file)

    def make(self, announcement: Announcement, tag: str) -> tuple[Half, Callable[[str], None]]:
        return KeyHolder(self.host, signer(self.credentials)), lambda reason: None


def service_of(file: PartyFile) -> Serving:
    """Returns the service that a party's file describes."""
    return CryptoService(file) if file.role == "crypto" else Service(file)
