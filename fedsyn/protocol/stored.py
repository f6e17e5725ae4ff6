"""Requests to a store that every mechanism may yield, and the server's side of the exchange.

    dealt = yield Deal(cohort, Answers(rho=self.ledger.remaining_rho))
    index = yield Choose(Select(epsilon=epsilon), terms)
    sums  = yield Open(Marginals(cliques=[chosen], sigma=sigma))

Only the first reaches clients. What a client promises with it is all that the store may release afterwards: its own
ledger has nothing left to give once it has dealt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsyn.aggregation.store import ServedRun, Store, StoreServer
from fedsyn.nodes.flower.direct import chunks
from fedsyn.privacy import Ledger
from fedsyn.protocol.common import Cap, Evaluate, RowCounts, Rows
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.exchange import Exchange
from fedsyn.protocol.joining import Participant
from fedsyn.protocol.record import RoundCosts, RoundRecord
from fedsyn.protocol.wire.requests import (
    Choose,
    ChooseRequest,
    Deal,
    DealRequest,
    Layout,
    Open,
    OpenRequest,
    Request,
    SomeCandidates,
    Summed,
)
from fedsyn.randomness import Randomness


class Answers(DealRequest):
    """The exact answers to the whole workload, for a store; once in a run."""

    name = "deal"
    leaves = "the counts of all cliques of the workload, into a store that releases none of them as they are"
    costs = "all that the store may release: rho, entered by the client at once"

    def layout(self, contract: Contract) -> Layout:
        """One row is in one cell of each stored marginal."""
        return Layout.of_marginals(contract.domain, contract.stored.cliques)


class Select(ChooseRequest):
    """One eligible clique by the exponential mechanism over the store's scores."""

    name = "select"
    leaves = "the index of one clique, from the store"
    costs = "one choice: rho epsilon^2/8, whatever the score; one row moves it by the sensitivity that the ledger names"


class OneWay(OpenRequest):
    """All one-way marginals of the store."""

    name = "one-way"
    leaves = "the store's counts of every attribute, with noise"
    costs = "d marginals of sensitivity 1: rho d/(2 sigma^2)"

    def layout(self, contract: Contract) -> Layout:
        return Layout.of_marginals(contract.domain, [(name,) for name in contract.domain])


class Marginals(OpenRequest):
    """The store's marginals of some candidates."""

    name = "measure"
    leaves = "the store's counts of the chosen cliques, with noise"
    costs = "each marginal has sensitivity 1: rho 1/(2 sigma^2)"

    cliques: SomeCandidates

    def layout(self, contract: Contract) -> Layout:
        return Layout.of_marginals(contract.domain, [contract.candidates.cliques[i] for i in self.cliques])


#: What a mechanism with a store names as its contract's `store`.
STORE_REQUESTS: tuple[type[Request], ...] = (Answers, Select, OneWay, Marginals)


# Deals that a store is handed at a time: an in-process federation has no more of them in memory.
_BLOCK = 1024


class Keeper:
    """The server's side of `Deal`, `Choose` and `Open`.

    Args:
        store: that the configuration chose.
        contract: of the run.
        ledger: the run's.
        randomness: the server's.
        party_ledger: makes the ledger of a simulated party, by its index.
        clients: who has joined, with their row counts.
        drop: records that a client's reply was refused, and why.
    """

    def __init__(
        self,
        store: Store,
        contract: Contract,
        ledger: Ledger,
        randomness: Randomness,
        party_ledger: Callable[[int], Ledger],
        clients: Mapping[int, Participant],
        drop: Callable[[int, str], None],
    ) -> None:
        self.contract = contract
        minimum = contract.config.federation.minimum_cohort
        public = contract.config.privacy.client_sizes == "public"

        def rows(client: int) -> int | None:
            return round(clients[client].rows or 0.0) if public else None

        run = ServedRun(
            contract.config,
            contract.stored,
            lambda: contract.store_facts,
            ledger,
            randomness,
            party_ledger,
            minimum,
            rows,
            drop,
        )
        self.server: StoreServer = store.serve(run)
        self._measured: list[dict[str, float]] = []

    def deal(self, asked: Deal, exchange: Exchange) -> tuple[int, ...]:
        """One message to each client of the cohort; gives the partition ids that have dealt now."""
        if not asked.cohort:
            return ()
        before, cohort = len(self.server.dealt), list(asked.cohort)
        for first in range(0, len(cohort), self.server.at_once):
            own = {k: [np.array([k], np.int64)] for k in cohort[first : first + self.server.at_once]}
            replies = exchange.among(own).stream(self.server.invitation(asked.request.rho), own)
            for block in chunks(replies, _BLOCK):
                self.server.deal({reply.partition: reply for reply in block})
        return tuple(self.server.dealt[before:])

    def choose(self, asked: Choose, record: RoundRecord) -> int | None:
        """An index, or None where too few clients have dealt."""
        return self.server.choose(asked, record.round) if self._is_open("choice", record) else None

    def open(self, asked: Open, record: RoundRecord) -> Summed:
        """Noisy marginals; none where too few clients have dealt."""
        if not self._is_open("marginals", record):
            return Summed.nothing()
        return self.server.open(asked, asked.request.layout(self.contract), record.round)

    def _is_open(self, what: str, record: RoundRecord) -> bool:
        if not self.server.is_open:
            record.notes.append(
                f"{len(self.server.dealt)} clients have dealt, too few: no {what} came out of the store"
            )
        return self.server.is_open

    @property
    def dealt(self) -> Sequence[int]:
        """Partition ids of all clients that have dealt."""
        return self.server.dealt

    def announce(self, rho: float) -> None:
        """Agree on the run with the store's keeper, before any client pays for anything."""
        self.server.announce(rho)

    def measure(self, costs: RoundCosts) -> None:
        """Puts what the computing parties have spent in a round into its costs."""
        now = self.server.traffic()
        before = self._measured or [dict.fromkeys(party, 0.0) for party in now]
        costs.parties = [
            {key: round(value - old[key], 6) for key, value in party.items()}
            for party, old in zip(now, before, strict=True)
        ]
        self._measured = now

    def close(self) -> None:
        self.server.close()


def unused_requests(requests: dict[str, type[Request]], contract: type[Any]) -> set[str]:
    """Names of a client's requests that this contract does not use: sums if it has a store, deals if it has none.

    And the sum of row counts, where there is one client, or each needs its own; and of what is asked to find how many
    rows of a client take part, both, where a client cannot be the unit. How good the table is may be asked
    after any mechanism.
    """
    kind = "sum" if contract.store else "deal"
    rows = {Rows.name} if contract.own_sizes or contract.central else set()
    if contract.store or contract.central or contract.not_private or contract.accountant not in ("zcdp", "gaussian"):
        rows |= {RowCounts.name, Cap.name}  # no whole client is protected (`fedsyn.protocol.checks.check_unit`)
    return {
        name for name, request in requests.items() if (request.kind == kind and name != Evaluate.name) or name in rows
    }
