"""Parties that are services: what a deployment's server drives.

Every call goes to all of them at the same time. If one refuses, fails, lies or is gone, the others are told to end the
run, and one sentence says which party it was.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import grpc

from fedsyn.errors import ProtocolError, RunError
from fedsyn.keys.party_keys import load_credentials
from fedsyn.keys.tls import channel_to, trouble_with
from fedsyn.settings import PartyCard
from fedsyn.stores.parties import messages
from fedsyn.stores.parties.driven import ComputeParties, CryptoParty, Driven
from fedsyn.stores.parties.interface import Announcement, PartyCost
from fedsyn.stores.parties.lines import LOST, TAG, cut
from fedsyn.stores.parties.serving import METHOD
from fedsyn.stores.parties.steps import types_of

T = TypeVar("T")
_CONNECT = 10.0  # seconds
_MOMENT = 2.0  # seconds
#: Whose error is told if several parties have one: first who refused, then who is gone, last who saw another one leave.
_FIRST = ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")


class Remote(Driven):
    """Parties that are services, whatever their role.

    Args:
        cards: of the parties, in order.
        operator: folder with the key by which they know this server (`fedsyn party keygen --operator`).
        timeout: seconds that one call may take.

    Raises:
        ConfigError: the folder does not hold the keys.
    """

    role: ClassVar[str] = "party"
    nobody: ClassVar[str] = "the parties have no run"

    def __init__(self, cards: Sequence[PartyCard], operator: str | Path, timeout: float = 600.0) -> None:
        self.cards, self.timeout = tuple(cards), timeout
        self._credentials = load_credentials(Path(operator))
        self._channels: list[grpc.Channel] = []
        self._watches: list[Any] = []
        self._tag: str | None = None
        self._costs = [PartyCost()] * len(self.cards)

    @property
    def costs(self) -> tuple[PartyCost, ...]:
        return tuple(self._costs)

    def enter(self, announcement: Announcement) -> None:
        self._channels = [channel_to(card.address, card.certificate, self._credentials) for card in self.cards]
        for index, (card, channel) in enumerate(zip(self.cards, self._channels, strict=True)):
            why = trouble_with(card.address, card.certificate, self._credentials)
            if why is None:
                try:
                    grpc.channel_ready_future(channel).result(_CONNECT)
                except grpc.FutureTimeoutError:
                    why = "does not answer"
            if why is not None:
                self.fail(f"{self._name(index)} {why}")
        self._tag = announcement.nonce.hex()

    def _watch(self) -> None:
        """Holds a call open at each party, from the run's begin.

        The run ends there when this side breaks.
        """
        for channel in self._channels:
            self._watches.append(channel.unary_stream(METHOD + "watch")(b"", metadata=((TAG, self._tag),)))
        for index, watch in enumerate(self._watches):
            try:
                next(watch)
            except (grpc.RpcError, StopIteration):
                self.fail(f"{self._name(index)} has dropped the run")

    def end(self) -> None:
        if self._tag is not None:
            for call in [self._call(index, "end", b"", 5.0) for index in range(len(self._channels))]:
                with contextlib.suppress(grpc.RpcError):
                    call.result()
        for watch in self._watches:
            watch.cancel()
        for channel in self._channels:
            channel.close()
        self._tag, self._watches, self._channels = None, [], []

    def take(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        if self._tag is None:
            raise RunError(f"{self.nobody}: it was not announced, or it is over")
        asks, answers = types_of(step)
        calls = [
            self._call(index, step.__name__, messages.pack(asks, values), self.timeout)
            for index, values in enumerate(arguments)
        ]
        ended = queue.SimpleQueue[Any]()
        for call in calls:
            call.add_done_callback(ended.put)
        if any(ended.get().exception() is not None for _ in calls):
            self.fail(self._reason(calls))
        results: list[T] = []
        for index, call in enumerate(calls):
            try:
                answer, self._costs[index] = messages.unpack(answers, call.result())
            except ProtocolError:
                self.fail(f"{self._name(index)} gave a malformed answer")
            results.append(answer)
        if not self._watches:
            self._watch()
        return results

    def _name(self, index: int) -> str:
        return f"{self.role} '{self.cards[index].name}' ({self.cards[index].address})"

    def _call(self, index: int, method: str, message: bytes, timeout: float) -> Any:
        call = self._channels[index].stream_unary(METHOD + method)
        return call.future(cut(message), timeout=timeout, metadata=((TAG, self._tag or ""),))

    def _reason(self, calls: Sequence[Any]) -> str:
        """Returns one sentence about calls of which one failed.

        The others get a moment to say what they saw.

        They are not told to end before that: then they would say that they were told.
        """
        failures, deadline = [], time.monotonic() + _MOMENT
        for index, call in enumerate(calls):
            try:
                error = call.exception(timeout=max(0.0, deadline - time.monotonic()))
            except grpc.FutureTimeoutError:
                continue
            if error is not None:
                code, text = str(error.code().name), str(error.details())
                rank = _FIRST.index(code) if code in _FIRST else len(_FIRST)
                if code == "UNAVAILABLE":
                    text = LOST
                elif code == "DEADLINE_EXCEEDED":
                    text = f"has not answered for {self.timeout:g} seconds"
                failures.append((rank, index, code, text))
        _, index, code, text = min(failures)
        verb = "" if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED") else "has ended the run: "
        return f"{self._name(index)} {verb}{text}"


class RemoteParties(Remote, ComputeParties):
    """The three computing parties as services."""

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        first, second, third = (bytes.fromhex(card.key) for card in self.cards)
        return first, second, third


class RemoteCryptoParty(Remote, CryptoParty):
    """The crypto party as a service.

    Args:
        card: of the party.
        operator: as for `Remote`.
        timeout: as for `Remote`.
    """

    role = "the crypto party"
    nobody = "the crypto party has no run"

    def __init__(self, card: PartyCard, operator: str | Path, timeout: float = 600.0) -> None:
        super().__init__([card], operator, timeout)
