"""The parties of a simulation, in one process.

They are three threads, each with a state of its own, or one crypto party.

They do what services do, sealed deals included, and cost what those cost but for the network. With a seed their noise
is that of every other store with the same seed. They protect nobody: one process has all three slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from fedsyn.crypto.mpc.network import LocalNetwork, PartyGone
from fedsyn.crypto.mpc.shared import PARTIES
from fedsyn.crypto.primitives import KeyPair
from fedsyn.errors import RunError
from fedsyn.randomness import Randomness
from fedsyn.stores.parties.checks import Host
from fedsyn.stores.parties.crypto import KeyHolder
from fedsyn.stores.parties.driven import ComputeParties, CryptoParty, Driven
from fedsyn.stores.parties.interface import Announcement, PartyCost
from fedsyn.stores.parties.party import Party
from fedsyn.stores.parties.policy import PartyPolicy
from fedsyn.stores.parties.steps import RunHalf

T = TypeVar("T")


class Local(Driven):
    """Parties in this process.

    Args:
        randomness: of the parties' noise, seeded or not.
        hosts: what the parties are; default: new keys, and a policy that takes everything.
    """

    called: ClassVar[str]  # how to speak of the party at a place
    halves: tuple[RunHalf[Any], ...] = ()
    network: LocalNetwork | None = None  # between them, where there are several

    def __init__(self, randomness: Randomness, hosts: Sequence[Host] = ()) -> None:
        self._randomness, self._hosts = randomness, hosts

    @property
    def costs(self) -> tuple[PartyCost, ...]:
        return tuple(half.cost for half in self.halves)

    def end(self) -> None:
        for half in self.halves:
            half.stop("the server has ended it")

    def hosts(self, announcement: Announcement, pairs: Sequence[KeyPair]) -> Sequence[Host]:
        """Returns the parties' facts in a run or a simulation.

        A simulation's parties have these keys.
        """
        policy = PartyPolicy.of_simulation(announcement.config.mechanism.name)
        return self._hosts or [Host(pair, policy, self._randomness) for pair in pairs]

    def take(self, step: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
        if not self.halves:
            raise RunError("no run was announced to the parties")
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}

        def take(place: int) -> None:
            try:
                results[place] = step(self.halves[place], *arguments[place])
            except Exception as error:  # told below, and raised in the caller's thread
                errors[place] = error
                if self.network is not None:
                    self.network.abort(f"party {place} has ended the run")

        threads = [threading.Thread(target=take, args=(place,), daemon=True) for place in range(len(self.halves))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            place, error = min(errors.items(), key=lambda item: (isinstance(item[1], PartyGone), item[0]))
            raise RunError(f"{self.called.format(place)}: {error}") from error
        return [results[place] for place in sorted(results)]


class LocalParties(Local, ComputeParties):
    """The three computing parties in this process.

    Args:
        randomness: as for `Local`.
        hosts: as for `Local`.
        timeout: seconds that a party waits for another one.
        record: whether `network.views` keeps what each party receives, for tests.
    """

    called = "party {}"

    def __init__(
        self, randomness: Randomness, hosts: Sequence[Host] = (), timeout: float = 600.0, record: bool = False
    ) -> None:
        super().__init__(randomness, hosts)
        self._timeout, self._record = timeout, record
        self._pairs = [host.pair for host in hosts] or [KeyPair() for _ in range(PARTIES)]

    @property
    def keys(self) -> tuple[bytes, bytes, bytes]:
        first, second, third = (pair.public for pair in self._pairs)
        return first, second, third

    def enter(self, announcement: Announcement) -> None:
        self.network = LocalNetwork(self._timeout, self._record)
        parts = zip(self.hosts(announcement, self._pairs), self.network.endpoints, strict=True)
        self.halves = tuple(Party(index, host, line) for index, (host, line) in enumerate(parts))


class LocalCryptoParty(Local, CryptoParty):
    """The crypto party in this process.

    It protects nobody, and does what a service does.
    """

    called = "the crypto party"

    def enter(self, announcement: Announcement) -> None:
        self.halves = (KeyHolder(self.hosts(announcement, [KeyPair()])[0]),)
