"""One computing party as a service: `fedsyn party serve party.yaml`.

An operator's server announces runs and gives orders; the other two parties open lines; everybody is known by the one
certificate that this party pinned for it, so an operator cannot play a party, nor a party an operator.
`fedsyn.nodes.parties.serving` has what all roles share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from fedsyn.config import load_options
from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.nodes.lifetime.party_ledger import called
from fedsyn.nodes.parties import messages
from fedsyn.nodes.parties.checks import Host
from fedsyn.nodes.parties.interface import Announcement, ChooseOrder, OpenOrder
from fedsyn.nodes.parties.lines import Inboxes, Lines
from fedsyn.nodes.parties.party import Party
from fedsyn.nodes.parties.policy import PartyFile
from fedsyn.nodes.parties.serving import OPERATOR, Current, Serving
from fedsyn.nodes.service.party_keys import certificate_of, load_party
from fedsyn.nodes.service.tls import channel_to, der, trouble_with
from fedsyn.randomness import Randomness
from fedsyn.settings import PartyCard

_log = logging.getLogger("fedsyn.party")


class Service(Serving[Party]):
    """The service of a computing party.

    Args:
        file: `party.yaml`, with absolute file names.

    Raises:
        ConfigError: a key, card or certificate does not fit, or the ledger cannot be used.
    """

    methods = ("begin", "deal", "choose", "open")

    def __init__(self, file: PartyFile) -> None:
        card, credentials, pair = load_party(Path(file.folder))
        if len(file.parties) != 2:
            raise ConfigError("parties: a computing party names the cards of the other two")
        first, second = (load_options(PartyCard, path) for path in file.parties)
        others = (first, second)
        certificates = [certificate_of(Path(path)) for path in file.operators]
        pins = {der(text): OPERATOR for text in certificates} | {der(other.certificate): other.key for other in others}
        distinct = len({card.key, first.key, second.key}) == 3 and len(pins) == 2 + len({*certificates})
        if not distinct or der(card.certificate) in pins:
            raise ConfigError("parties, operators: two of them have the same key; each side has its own")
        pinned = [*certificates, first.certificate, second.certificate]
        super().__init__(file, (card, first, second), pins, pinned, credentials)
        limits = file.policy.limits
        self.host = Host(pair, file.policy, Randomness(None), self.book, self.cards)
        self._who = {other.key: f"party '{other.name}' ({other.address})" for other in others}
        self._channels = {other.key: channel_to(other.address, other.certificate, self.credentials) for other in others}
        self._inboxes = Inboxes(64 * max(limits.entries, limits.cells) + (64 << 20))

    def stop(self) -> None:
        super().stop()
        for channel in self._channels.values():
            channel.close()

    def hear(self, frames: Iterator[bytes], tag: str, key: str, hang_up: Callable[[], object]) -> None:
        self._inboxes.fill(frames, tag, self._who[key], hang_up)

    # The operator's calls --------------------------------------------------------------------------------------------

    def begin(self, request: bytes, tag: str) -> bytes:
        announcement = messages.read_announcement(request)
        if announcement.nonce.hex() != tag:
            raise ProtocolError("the announcement is malformed")
        current = self._enter(announcement, tag)
        with current.lock:
            run = self.computed(current, lambda: current.party.begin(announcement))
        _log.info(
            "run %s begins: %s, up to %.4g rho",
            called(run.hex(), announcement.config.runtime.run),
            announcement.config.mechanism.name,
            announcement.rho,
        )
        return self.answer(current, {"run": run.hex()})

    def deal(self, request: bytes, tag: str) -> bytes:
        parts = messages.read_deals(request)
        with self.order(tag) as current:
            refused = self.computed(current, lambda: current.party.deal(parts))
        return self.answer(current, {"refused": {str(k): why for k, why in refused.items()}})

    def choose(self, request: bytes, tag: str) -> bytes:
        order = messages.read_order(request)
        if not isinstance(order, ChooseOrder):
            raise ProtocolError("an order is malformed")
        with self.order(tag) as current:
            index = self.computed(current, lambda: current.party.choose(order))
        return self.answer(current, {"index": index})

    def open(self, request: bytes, tag: str) -> bytes:
        order = messages.read_order(request)
        if not isinstance(order, OpenOrder):
            raise ProtocolError("an order is malformed")
        with self.order(tag) as current:
            share = self.computed(current, lambda: current.party.open(order))
        return self.answer(current, {}, messages.share_bytes(share))

    # Runs ------------------------------------------------------------------------------------------------------------

    def _enter(self, announcement: Announcement, tag: str) -> Current[Party]:
        index = self.host.index_in(announcement.config)
        keys = [node.key for node in announcement.config.aggregation.parties or ()]
        self.free()
        for key, channel in self._channels.items():
            self._connected(key, channel)
        others = {keys.index(key): (self._who[key], channel) for key, channel in self._channels.items()}

        def make() -> tuple[Party, Callable[[str], None]]:
            lines = Lines(tag, others, self._inboxes, self.file.timeout)
            return Party(index, self.host, lines), lines.abort

        return self.entered(tag, make)

    def _connected(self, key: str, channel: grpc.Channel) -> None:
        try:
            grpc.channel_ready_future(channel).result(min(10.0, self.file.timeout))
        except grpc.FutureTimeoutError:
            other = next(card for card in self.cards if card.key == key)
            why = trouble_with(other.address, other.certificate, self.credentials) or "does not answer"
            raise PartyGone(f"{self._who[key]} {why}") from None
