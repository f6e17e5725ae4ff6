"""The parties of a simulation: three threads of one process, each with a state of its own, or one crypto party.

They do what services do, sealed deals included, and cost what those cost but for the network. With a seed their noise
is that of every other store with the same seed. They protect nobody: one process has all three slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg.primitives import KeyPair
from fedsyn.crypto.fhe.question import DecryptionQuery, Sums
from fedsyn.crypto.mpc.dealing import reconstruct
from fedsyn.crypto.mpc.network import LocalNetwork, PartyGone
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.errors import FedsynError, ProtocolError, RunError
from fedsyn.nodes.parties.checks import Host
from fedsyn.nodes.parties.crypto import KeyHolder
from fedsyn.nodes.parties.interface import (
    Announcement,
    Begun,
    ChooseOrder,
    OpenOrder,
    PartyCost,
    SealedDeal,
    TotalOrder,
)
from fedsyn.nodes.parties.party import Party
from fedsyn.nodes.parties.policy import Policy
from fedsyn.nodes.parties.sealing import DealPart
from fedsyn.randomness import Randomness

T = TypeVar("T")


class LocalParties:
    """`Parties` in this process.

    Args:
        randomness: of the parties' noise, seeded or not.
        hosts: what the parties are; default: new keys, and a policy that takes everything.
        timeout: seconds that a party waits for another one.
        record: whether `network.views` keeps what each party receives, for tests.
    """

    def __init__(
        self,
        randomness: Randomness,
        hosts: tuple[Host, Host, Host] | None = None,
        timeout: float = 600.0,
        record: bool = False,
    ) -> None:
        self._randomness, self._hosts, self._timeout, self._record = randomness, hosts, timeout, record
        self._pairs = tuple(host.pair for host in hosts) if hosts else (KeyPair(), KeyPair(), KeyPair())
        self.network: LocalNetwork | None = None
        self.parties: tuple[Party, ...] = ()

    @property
    def costs(self) -> tuple[PartyCost, PartyCost, PartyCost]:
        first, second, third = (party.cost for party in self.parties) if self.parties else (PartyCost(),) * PARTIES
        return first, second, third

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        first, second, third = (pair.public for pair in self._pairs)
        return first, second, third

    def begin(self, announcement: Announcement) -> bytes:
        self.end()
        self.network = LocalNetwork(self._timeout, self._record)
        policy = Policy.of_simulation(announcement.config.mechanism.name)
        hosts = self._hosts or [Host(pair, policy, self._randomness) for pair in self._pairs]
        self.parties = tuple(
            Party(index, host, line)
            for index, (host, line) in enumerate(zip(hosts, self.network.endpoints, strict=True))
        )
        return self._agreed(lambda party: party.begin(announcement), "id of the run")

    def deal(self, deals: Mapping[int, SealedDeal]) -> dict[int, str]:
        parts = [{k: DealPart.of(sealed, index) for k, sealed in deals.items()} for index in range(PARTIES)]
        return self._agreed(lambda party: party.deal(parts[party.index]), "refused deals")

    def choose(self, order: ChooseOrder) -> int:
        return self._agreed(lambda party: party.choose(order), "chosen index")

    def open(self, order: OpenOrder) -> npt.NDArray[np.int64]:
        shares = self.each(lambda party: party.open(order))
        try:
            return reconstruct(shares)
        except ProtocolError as error:
            self.end()
            raise RunError(f"the parties: {error}") from None

    def end(self) -> None:
        for party in self.parties:
            party.end()

    def each(self, step: Callable[[Party], T]) -> list[T]:
        """What a step gives at each party, in order; they take it at the same time.

        Raises:
            RunError: one of them refused or failed, and which.
        """
        network, parties = self.network, self.parties
        if network is None:
            raise RunError("no run was announced to the parties")
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}

        def take(party: Party) -> None:
            try:
                results[party.index] = step(party)
            except Exception as error:  # told below, and raised in the caller's thread
                errors[party.index] = error
                network.abort(f"party {party.index} has ended the run")

        threads = [threading.Thread(target=take, args=(party,), daemon=True) for party in parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            index, error = min(errors.items(), key=lambda found: (isinstance(found[1], PartyGone), found[0]))
            raise RunError(f"party {index}: {error}") from error
        return [results[party.index] for party in parties]

    def _agreed(self, step: Callable[[Party], T], what: str) -> T:
        first, *others = self.each(step)
        if any(other != first for other in others):
            raise RunError(f"the parties do not agree on the {what}: one of them lies")
        return first


class LocalCryptoParty:
    """`CryptoParty` in this process: it protects nobody, and does what a service does.

    Args:
        randomness: of its noise, seeded or not.
        host: what it is; default: a policy that takes everything.
    """

    def __init__(self, randomness: Randomness, host: Host | None = None) -> None:
        self._randomness, self._host = randomness, host
        self.holder: KeyHolder | None = None

    @property
    def costs(self) -> PartyCost:
        return self.holder.cost if self.holder is not None else PartyCost()

    def begin(self, announcement: Announcement) -> Begun:
        self.end()
        policy = Policy.of_simulation(announcement.config.mechanism.name)
        self.holder = KeyHolder(self._host or Host(KeyPair(), policy, self._randomness))
        return self._said(lambda holder: holder.begin(announcement))

    def choose(self, order: ChooseOrder, asked: DecryptionQuery) -> npt.NDArray[np.int64]:
        return self._said(lambda holder: holder.choose(order, asked))

    def open(self, order: OpenOrder, brought: Sequence[bytes]) -> npt.NDArray[np.int64]:
        return self._said(lambda holder: holder.open(order, brought))

    def admit(self, order: TotalOrder | None, boxes: Mapping[int, bytes]) -> dict[int, str]:
        return self._said(lambda holder: holder.admit(order, boxes))

    def total(self, order: TotalOrder, vector: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return self._said(lambda holder: holder.total(order, vector))

    def unpad(self) -> list[bytes]:
        return self._said(lambda holder: holder.unpad())

    def sums(self, asked: DecryptionQuery, sums: Sums) -> list[bytes]:
        return self._said(lambda holder: holder.sums(asked, sums))

    def end(self) -> None:
        if self.holder is not None:
            self.holder.end()

    def _said(self, step: Callable[[KeyHolder], T]) -> T:
        if self.holder is None:
            raise RunError("no run was announced to the crypto party")
        try:
            return step(self.holder)
        except FedsynError as error:
            raise RunError(f"the crypto party: {error}") from error
