"""The three parties as services: what a deployment's server drives.

Every call goes to all three at the same time. If one of them refuses, fails, lies or is gone, the other two are told to
end the run, and one sentence says which party it was.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from fedsyn.crypto.mpc.dealing import reconstruct
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.errors import FedsynError, ProtocolError, RunError
from fedsyn.nodes.parties import messages
from fedsyn.nodes.parties.interface import Announcement, ChooseOrder, OpenOrder, PartyCost, SealedDeal
from fedsyn.nodes.parties.lines import LOST, TAG, cut
from fedsyn.nodes.parties.sealing import DealPart
from fedsyn.nodes.parties.serving import METHOD
from fedsyn.nodes.service.party_keys import load_credentials
from fedsyn.nodes.service.tls import channel_to, trouble_with
from fedsyn.settings import PartyCard

_CHUNK = 8 << 20  # bytes of deals in one message, unless one client's alone are more
_CONNECT = 10.0  # seconds
_MOMENT = 2.0  # seconds
#: Whose error is told if several parties have one: first who refused, then who is gone, last who saw another one leave.
_FIRST = ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED")

Answer = tuple[dict[str, Any], list[memoryview]]


class RemoteParties:
    """`Parties` that are services.

    Args:
        nodes: their cards, in order.
        operator: folder with the key by which they know this server (`fedsyn party keygen --operator`).
        timeout: seconds that one call may take.

    Raises:
        ConfigError: the folder does not hold the keys.
    """

    def __init__(self, nodes: Sequence[PartyCard], operator: str | Path, timeout: float = 600.0) -> None:
        self.nodes, self.timeout = tuple(nodes), timeout
        self._credentials = load_credentials(Path(operator))
        self._channels: list[grpc.Channel] = []
        self._watches: list[Any] = []
        self._tag: str | None = None
        self.costs: tuple[PartyCost, PartyCost, PartyCost] = (PartyCost(), PartyCost(), PartyCost())

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        first, second, third = (bytes.fromhex(node.key) for node in self.nodes)
        return first, second, third

    def begin(self, announcement: Announcement) -> bytes:
        self.end()
        self._connect()
        self._tag = announcement.nonce.hex()
        message = messages.announcement_bytes(announcement)
        answers = self._each("begin", [message] * PARTIES)
        for channel in self._channels:
            self._watches.append(channel.unary_stream(METHOD + "watch")(b"", metadata=((TAG, self._tag),)))
        for index, watch in enumerate(self._watches):
            try:
                next(watch)
            except (grpc.RpcError, StopIteration):
                self._fail(f"{self._name(index)} has dropped the run")
        return bytes.fromhex(self._agreed(answers, "run", str))

    def deal(self, deals: Mapping[int, SealedDeal]) -> dict[int, str]:
        refused: dict[int, str] = {}
        for chunk in _chunks(deals):
            parts = ({k: DealPart.of(deal, index) for k, deal in chunk.items()} for index in range(PARTIES))
            answers = self._each("deal", [messages.deals_bytes(part) for part in parts])
            found = self._agreed(answers, "refused", dict)
            refused |= {int(k): str(why) for k, why in found.items() if int(k) in chunk}
        return refused

    def choose(self, order: ChooseOrder) -> int:
        index = self._agreed(self._each("choose", [messages.order_bytes(order)] * PARTIES), "index", int)
        if not 0 <= index < len(order.terms.cliques):
            self._fail("the parties have chosen what was not offered to them: one of them lies")
        return int(index)

    def open(self, order: OpenOrder) -> npt.NDArray[np.int64]:
        answers = self._each("open", [messages.order_bytes(order)] * PARTIES)
        try:
            return reconstruct([messages.read_share(blobs) for _, blobs in answers])
        except ProtocolError as error:
            self._fail(f"the parties' shares do not fit together ({error})")
            raise

    def end(self) -> None:
        """Tells the parties, as far as they are there; never an error."""
        if self._tag is not None:
            for call in [self._call(index, "end", b"", 5.0) for index in range(len(self._channels))]:
                with contextlib.suppress(grpc.RpcError):
                    call.result()
        for watch in self._watches:
            watch.cancel()
        for channel in self._channels:
            channel.close()
        self._tag, self._watches, self._channels = None, [], []

    def _connect(self) -> None:
        self._channels = [channel_to(node.address, node.certificate, self._credentials) for node in self.nodes]
        for index, (node, channel) in enumerate(zip(self.nodes, self._channels, strict=True)):
            why = trouble_with(node.address, node.certificate, self._credentials)
            if why is None:
                try:
                    grpc.channel_ready_future(channel).result(_CONNECT)
                except grpc.FutureTimeoutError:
                    why = "does not answer"
            if why is not None:
                self._fail(f"{self._name(index)} {why}")

    def _name(self, index: int) -> str:
        return f"party '{self.nodes[index].name}' ({self.nodes[index].address})"

    def _call(self, index: int, method: str, message: bytes, timeout: float) -> Any:
        call = self._channels[index].stream_unary(METHOD + method)
        return call.future(cut(message), timeout=timeout, metadata=((TAG, self._tag or ""),))

    def _each(self, method: str, requests: Sequence[bytes]) -> list[Answer]:
        """The three answers. Raises RunError if one of them is an error; then the run is over."""
        if self._tag is None:
            raise RunError("the parties have no run: it was not announced, or it is over")
        calls = [self._call(index, method, message, self.timeout) for index, message in enumerate(requests)]
        failed = threading.Event()
        left = threading.Semaphore(0)

        def done(call: Any) -> None:
            if call.exception() is not None:
                failed.set()
            left.release()

        for call in calls:
            call.add_done_callback(done)
        for _ in calls:
            left.acquire()
            if failed.is_set():
                break
        if failed.is_set():
            self._fail(self._reason(calls))
        answers = []
        for index, call in enumerate(calls):
            try:
                facts, blobs = messages.unpack(call.result())
                self._account(index, facts["cost"])
            except (FedsynError, KeyError, TypeError, ValueError):
                self._fail(f"{self._name(index)} gave a malformed answer")
            answers.append((facts, blobs))
        return answers

    def _reason(self, calls: Sequence[Any]) -> str:
        """The one sentence about calls of which one has failed; the others get a moment to say what they saw.

        They are not told to end before that: then they would say that they were told.
        """
        found, deadline = [], time.monotonic() + _MOMENT
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
                found.append((rank, index, code, text))
        _, index, code, text = min(found)
        verb = "" if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED") else "has ended the run: "
        return f"{self._name(index)} {verb}{text}"

    def _fail(self, sentence: str) -> None:
        """Ends the run everywhere, and says why."""
        self.end()
        raise RunError(f"{sentence}; nothing was opened")

    def _account(self, index: int, cost: Mapping[str, Any]) -> None:
        costs = list(self.costs)
        costs[index] = PartyCost(int(cost["bytes_sent"]), int(cost["rounds"]), float(cost["cpu"]))
        self.costs = (costs[0], costs[1], costs[2])

    def _agreed(self, answers: Sequence[Answer], key: str, kind: type) -> Any:
        """What all three answers say."""
        values = [facts.get(key) for facts, _ in answers]
        if type(values[0]) is not kind or values.count(values[0]) != PARTIES:
            self._fail("the parties give different answers: one of them lies")
        return values[0]


def _chunks(deals: Mapping[int, SealedDeal]) -> list[dict[int, SealedDeal]]:
    """Deals in messages of bounded size."""
    chunks: list[dict[int, SealedDeal]] = []
    size = _CHUNK
    for partition, deal in sorted(deals.items()):
        length = sum(map(len, deal.to_parts()))
        if size + length > _CHUNK:
            chunks.append({})
            size = 0
        chunks[-1][partition] = deal
        size += length
    return chunks
