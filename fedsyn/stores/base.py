"""Interface of every store: a client's half and a server's.

The server's half lives for one run.

A store adds up what clients deal, forgets who dealt what, and lets out two things: an index, chosen by the exponential
mechanism over its exact sums, and marginals with Gaussian noise. Who could see more is what the stores differ in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedsyn.aggregation.base import Contribution, TrustModel
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, ProtocolError, refuse
from fedsyn.privacy import EXPONENTIAL, DistributedNoise, Ledger, Release, SelectionNoise
from fedsyn.privacy.against import Reads
from fedsyn.privacy.release import COUNTS, PARTIES
from fedsyn.randomness import Randomness
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.table.counting.stored import StoredLayout, StoreFacts
from fedsyn.wire.envelope import Arrays, Reply, check_message
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.requests import Choose, DealRequest, Layout, Open, Summed

DEALT = "dealt"  # in a holder's state: whether it has dealt in this run


@dataclass(frozen=True)
class ClientDeal:
    """A client's side of a deal.

    Attributes:
        call: what the server asks for, with the budget that the store has for this client's rows; its arrays are what
            the store's server half sent along (`StoreServer.invitation`).
        answer: computes the client's exact answers; called only when they are needed.
        ledger: the client's own.
        holder: the data holder.
        contract: of the client; public.
    """

    call: Call[Any]
    answer: Callable[[Call[Any]], Contribution]
    ledger: Ledger
    holder: Holder
    contract: Any

    @property
    def config(self) -> RunConfig:
        config: RunConfig = self.contract.config
        return config

    @property
    def request(self) -> DealRequest:
        request: DealRequest = self.call.request
        return request

    @property
    def partition(self) -> int:
        """This client's place.

        It is its own id, or the one that the server gave it in the last array of the message.

        Raises:
            ProtocolError: the message names none, or another one.
        """
        place = self.call.arrays[-1]
        if place.shape != (1,) or place.dtype.kind not in "iu":
            raise ProtocolError("the request to deal does not say which client it is for")
        refuse(self.holder.partition not in (None, int(place[0])), "the message is for another client of the store")
        return int(place[0])

    def promise(self, noise_by: str) -> None:
        """Charges everything that the store may release of this client's rows.

        It does so once in a run.

        Raises:
            ProtocolError: this client has dealt already.
            BudgetExceeded: the store would release more than this client has left.
        """
        refuse(self.holder.state.get(DEALT), "this client has dealt its answers in this run already")
        self.ledger.promise(self.request.release(noise_by))
        self.holder.state[DEALT] = True

    @property
    def public_rows(self) -> int:
        """Rows of this client where their number is public, else 0."""
        return len(self.holder.codes) if self.config.privacy.client_sizes == "public" else 0


@dataclass(frozen=True)
class ServedRun:
    """The run, as a store's server half needs it.

    Attributes:
        contract: of the run.
        ledger: the run's.
        randomness: the server's.
        party_ledger: makes the ledger of a simulated party, by its index.
        clients: who has joined, by partition id, with their row counts.
        drop: records that a client's deal was refused, and why.
        most_of: bound on a client's rows by what is public of them, or was released.
    """

    contract: Any
    ledger: Ledger
    randomness: Randomness
    party_ledger: Callable[[int], Ledger]
    clients: Mapping[int, Any]
    drop: Callable[[int, str], None]
    most_of: Callable[[int], float]

    @property
    def config(self) -> RunConfig:
        config: RunConfig = self.contract.config
        return config

    @cached_property
    def layout(self) -> StoredLayout:
        """Layout of the cells that clients deal."""
        layout: StoredLayout = self.contract.stored
        return layout

    @property
    def facts(self) -> StoreFacts:
        """Facts on what may be asked of the store."""
        facts: StoreFacts = self.contract.store_facts
        return facts

    def rows(self, client: int) -> int | None:
        """A client's row count where these are public."""
        public = self.config.privacy.client_sizes == "public"
        return round(self.clients[client].rows or 0.0) if public else None


class Store(TrustModel):
    """One kind of store: its public facts, and the client's half.

    Args:
        config: of the run.
    """

    reads: Reads = "releases"
    choices_by: ClassVar[str] = PARTIES  # who draws the noise of a choice, as a ledger names them

    def __init__(self, config: RunConfig) -> None:
        self.node, self.federation = config.aggregation, config.federation
        self.minimum = config.federation.minimum_cohort
        self.simulated = config.runtime.engine != "deployment"  # one process plays everybody

    def check(self, clients: int) -> None:
        if self.node.noise == "local":
            raise ConfigError(
                "aggregation.noise: 'local' adds noise to each client's vector, and a store adds it to what comes out "
                f"of it; allowed for this mechanism: {', '.join(n for n in self.capabilities.noises if n != 'local')}"
            )
        self.capabilities.require(self.node.noise, self.node.threat, store=True)

    @property
    def fewest(self) -> int:
        """Clients that must have dealt before anything is chosen or opened."""
        return max(1, self.minimum)

    # What is made sure of before the run's first charge (`fedsyn.protocol.room`), and again before each release ------

    def room_of_deals(self, contract: Any, rows: float) -> None:
        """Raises ConfigError if deals do not fit a message or memory.

        Args:
            contract: of the run.
            rows: most rows that one client can have, where its deal grows with them.
        """
        size, where = 8.0 * contract.stored.length, f"aggregation.protocol: {self.node.protocol}"
        check_message(size, where, simulated=self.simulated)

    def room_of_choice(self, terms: ChoiceTerms, epsilon: float) -> SelectionNoise:
        """Returns the noise of a choice by these terms.

        Raises ConfigError if it overflows what this store compares.
        """
        terms.check()
        noise = SelectionNoise(epsilon, terms.moved)
        noise.check(float(terms.reach))
        return noise

    def room_of_opening(self, sigma: float, *, count: int, length: int, rows: int) -> DistributedNoise | None:
        """Returns the noise of opened marginals.

        Raises ConfigError if they and it overflow this store's numbers.

        Args:
            sigma: of each marginal, in records.
            count: marginals.
            length: their cells.
            rows: most rows that were dealt.
        """
        noise = DistributedNoise.of_parties(sigma, count=count, length=length)
        noise.check_ring(float(rows))
        return noise

    @abstractmethod
    def answer(self, part: ClientDeal) -> Arrays:
        """Returns a client's deal; charges its ledger before it does."""

    @abstractmethod
    def serve(self, run: ServedRun) -> StoreServer:
        """The server's half, for one run."""


class StoreServer(ABC):
    """The server's half of a store.

    It has what was dealt so far, or the connection to its keeper.

    Args:
        run: what it serves.
        store: of the configuration.
    """

    def __init__(self, run: ServedRun, store: Store) -> None:
        self.run, self.store = run, store
        self.dealt: list[int] = []
        self.orders = 0  # choices and openings so far; their noise is keyed by the number
        self._measured: list[dict[str, float]] = []

    def announce(self, rho: float, clients: int) -> None:  # noqa: B027 - a store of the server's own asks nobody
        """Agrees with the store's keeper on a run.

        `clients` is the number that have joined; `rho` bounds all releases.
        """

    @property
    def invitation(self) -> Arrays:
        """Returns what a client is sent with the request to deal."""
        return []

    @abstractmethod
    def deal(self, replies: Mapping[int, Reply]) -> None:
        """Takes what clients dealt, in partition order.

        A deal that cannot be used drops its client only.
        """

    @abstractmethod
    def choose(self, choice: Choose, round: int) -> int:
        """Charges, then chooses an index of `choice.terms.cliques`."""

    @abstractmethod
    def open(self, opening: Open, layout: Layout, round: int) -> Summed:
        """Charges, then opens the marginals of `layout` with noise."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """The run is over."""

    def traffic(self) -> list[dict[str, float]]:
        """Returns each computing party's cost so far.

        A cost is bytes_sent, rounds and cpu seconds; without parties there is none.
        """
        return []

    def spent(self) -> list[dict[str, float]]:
        """Returns each computing party's cost since the last call."""
        now = self.traffic()
        before = self._measured or [dict.fromkeys(party, 0.0) for party in now]
        self._measured = now
        return [
            {key: round(value - old[key], 6) for key, value in party.items()}
            for party, old in zip(now, before, strict=True)
        ]

    @property
    def at_once(self) -> int:
        """Clients whose deals may be in memory at once."""
        return 2**20

    @property
    def is_open(self) -> bool:
        """Returns whether enough clients have dealt for anything to come out."""
        return len(self.dealt) >= self.store.fewest

    @property
    def most_rows(self) -> int:
        """Bound on every count: the number of rows dealt.

        With split columns it is at least as many rows as there are.

        1 where row counts are private: then there is nothing to check it with.
        """
        return max(1, sum(self.run.rows(k) or 0 for k in self.dealt))

    # What stores share ------------------------------------------------------------------------------------------------

    def next_order(self) -> int:
        """The number of the next order."""
        self.orders += 1
        return self.orders - 1

    def promised(self, choice: Choose) -> ChoiceTerms:
        """Returns the terms of a choice, before anything is charged.

        Raises ConfigError for another norm than the run's.

        A norm's noise is for that norm alone: with the noise of one and the scores of another a choice would read rows.
        """
        terms, score = choice.terms, self.run.facts.norm
        if terms.norm != score:
            raise ConfigError(f"a choice by the norm {terms.norm} is asked for, and this run's score is {score}")
        return terms

    def charge_choice(self, choice: Choose, round: int) -> tuple[SelectionNoise, Release]:
        """Charges a choice whose noise parties draw.

        Returns its plan, and the entry that each of them charges.
        """
        terms = self.promised(choice)
        noise = self.store.room_of_choice(terms, choice.request.epsilon)
        name, sensitivity, by = choice.request.name, terms.sensitivity, self.store.choices_by
        entry = Release(name, round, EXPONENTIAL, sensitivity, epsilon=noise.epsilon, noise_by=by)
        self._promise(entry)
        return noise, entry

    def charge_opening(self, opening: Open, layout: Layout, round: int) -> tuple[DistributedNoise, Release]:
        """Charges marginals whose noise parties or clients draw.

        Returns the plan, and the entry.
        """
        length = sum(int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes)
        sigma, facts = opening.request.sigma, {"count": layout.count, "length": length, "rows": self.most_rows}
        noise = self.store.room_of_opening(sigma, **facts)
        assert noise is not None
        entry = noise.release(opening.request.name, round, replaced=COUNTS)
        self._promise(replace(entry, shares=noise.shares if self.store.capabilities.deals_noise else None))
        return noise, entry

    def _promise(self, entry: Release) -> None:
        randomness = self.run.randomness
        self.run.ledger.promise(replace(entry, sampler=randomness.label) if randomness.seeded else entry)
