"""The parties of a simulation: three threads of one process, each with a state of its own, or one crypto party.

They do what services do, sealed deals included, and cost what those cost but for the network. With a seed their noise
is that of every other store with the same seed. They protect nobody: one process has all three slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedsyn.aggregation.secagg.primitives import KeyPair
from fedsyn.crypto.mpc.network import LocalNetwork, PartyGone
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.errors import FedsynError, RunError
from fedsyn.nodes.parties.checks import Host
from fedsyn.nodes.parties.crypto import KeyHolder
from fedsyn.nodes.parties.driven import CryptoParty, Parties
from fedsyn.nodes.parties.interface import Announcement, PartyCost
from fedsyn.nodes.parties.party import Party
from fedsyn.nodes.parties.policy import Policy
from fedsyn.randomness import Randomness

T = TypeVar("T")
_ENDED = "the server has ended it"


class LocalParties(Parties):
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
    def costs(self) -> tuple[PartyCost, ...]:
        return tuple(party.cost for party in self.parties) if self.parties else (PartyCost(),) * PARTIES

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        first, second, third = (pair.public for pair in self._pairs)
        return first, second, third

    def enter(self, announcement: Announcement) -> None:
        self.network = LocalNetwork(self._timeout, self._record)
        hosts = self._hosts or [_simulated(pair, announcement, self._randomness) for pair in self._pairs]
        self.parties = tuple(
            Party(index, host, line)
            for index, (host, line) in enumerate(zip(hosts, self.network.endpoints, strict=True))
        )

    def end(self) -> None:
        for party in self.parties:
            party.stop(_ENDED)

    def take(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        network, parties = self.network, self.parties
        if network is None:
            raise RunError("no run was announced to the parties")
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}

        def take(party: Party) -> None:
            try:
                results[party.index] = step(party, *arguments[party.index])
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


class LocalCryptoParty(CryptoParty):
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

    def enter(self, announcement: Announcement) -> None:
        self.holder = KeyHolder(self._host or _simulated(KeyPair(), announcement, self._randomness))

    def end(self) -> None:
        if self.holder is not None:
            self.holder.stop(_ENDED)

    def take(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        if self.holder is None:
            raise RunError("no run was announced to the crypto party")
        try:
            return [step(self.holder, *arguments[0])]
        except FedsynError as error:
            raise RunError(f"the crypto party: {error}") from error


def _simulated(pair: KeyPair, announcement: Announcement, randomness: Randomness) -> Host:
    return Host(pair, Policy.of_simulation(announcement.config.mechanism.name), randomness)
