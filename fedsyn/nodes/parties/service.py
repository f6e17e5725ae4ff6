"""A party as a service, of either role: `fedsyn party serve party.yaml`.

An operator's server announces runs and gives orders; of three computing parties each opens lines to the other two.
Everybody is known by the one certificate that this party pinned for it, so an operator cannot play a party, nor a party
an operator. A crypto party talks to operators alone: the keys of a run are made when it is announced and are gone when
it ends, and clients know them by a signature of the key whose certificate stands on this party's card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc

from fedsyn.config import load_options
from fedsyn.crypto.mpc.network import PartyGone
from fedsyn.nodes.parties.crypto import KeyHolder
from fedsyn.nodes.parties.interface import Announcement
from fedsyn.nodes.parties.lines import Inboxes, RunNetwork
from fedsyn.nodes.parties.party import Party
from fedsyn.nodes.parties.policy import PartyFile
from fedsyn.nodes.parties.serving import Half, Serving
from fedsyn.nodes.service.certificates import signer
from fedsyn.nodes.service.tls import channel_to, trouble_with
from fedsyn.settings import PartyCard


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
        """Look whether the configuration names the three parties that this one knows, and the other two answer."""
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
    """The service of a crypto party. Raises ConfigError, too, if TenSEAL is not installed."""

    half, entry_bytes = KeyHolder, 64  # a slot of a ciphertext takes up to 64 bytes

    def __init__(self, file: PartyFile) -> None:
        from fedsyn.crypto.fhe.seal import sealapi

        sealapi()
        super().__init__(file)

    def make(self, announcement: Announcement, tag: str) -> tuple[Half, Callable[[str], None]]:
        return KeyHolder(self.host, signer(self.credentials)), lambda reason: None


def service_of(file: PartyFile) -> Serving:
    """Return the service that a party's file describes."""
    return CryptoService(file) if file.role == "crypto" else Service(file)
