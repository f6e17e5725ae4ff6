"""One of the three computing parties in one run: what it holds, checks, charges and computes. It knows no transport.

**What it sees.** Two of three slots of each client's vector and of everything that is computed: numbers that look
uniform to whoever lacks the third slot. Besides: configuration, schema, who dealt, each client's promised budget and
(where they are public) row count, every order, the indices that were chosen, its own share of the noise. Not the noisy
marginals: their three slots meet at the server alone.

**Order of things.** An order is checked; the three parties compare digests of it and of everything before it; the run's
ledger and the party's book are charged; noise is drawn; something is computed and comes out. A server that tells the
parties different things, or two parties that hold different things, end the run before a charge. After any error the
run is over at this party: its shares are dropped, nothing comes out any more, what was charged stays charged.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsyn.crypto.mpc.dealing import KEY, ServerShare
from fedsyn.crypto.mpc.network import Cheating, Network
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import PARTIES, Shared, Words, concatenate
from fedsyn.domain import Clique
from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.nodes.lifetime.party_ledger import facts_of
from fedsyn.nodes.parties.checks import Host, Orders, check_announcement, ledger_of, plan_choice, plan_opening
from fedsyn.nodes.parties.dealt import Deals
from fedsyn.nodes.parties.interface import Announcement, ChooseOrder, OpenOrder, Order, PartyCost, run_id, sealed_for
from fedsyn.nodes.parties.messages import announcement_bytes, digest_of, order_bytes
from fedsyn.nodes.parties.sealing import DealPart
from fedsyn.nodes.parties.steps import step
from fedsyn.privacy import EXPONENTIAL, Ledger, Release
from fedsyn.privacy import release as released
from fedsyn.privacy.selection import DRAWING
from fedsyn.selection.terms import L1, SquaredL2, Terms
from fedsyn.table.counting.stored import StoredLayout

_NONCE = 16


class Party:
    """A party's half of one run.

    Args:
        index: 0, 1 or 2.
        host: what it is, whatever the run.
        network: to the other two, for this run alone.
    """

    def __init__(self, index: int, host: Host, network: Network) -> None:
        self.index, self.host = index, host
        self.over: str | None = None  # why, once it is
        self._lines = _Lines(index, network)
        self.cpu = 0.0
        self._begun: _Run | None = None

    @property
    def cost(self) -> PartyCost:
        rounds = self._lines.rounds + (self._begun.session.rounds if self._begun is not None else 0)
        return PartyCost(self._lines.bytes_sent, rounds, self.cpu)

    def stop(self, reason: str) -> None:
        """Ends the run; the shares are gone, and the keys of the computation with them. Later calls change nothing."""
        if self.over is not None:
            return
        self.over, run = reason, self._begun
        if run is None:
            return
        self._lines.rounds += run.session.rounds
        self._begun = None
        if self.host.book is not None:
            with contextlib.suppress(FedsynError):  # a ledger that cannot be written: its next reader ends the run
                self.host.book.end(run.id.hex())

    @step
    def begin(self, announcement: Announcement) -> bytes:
        """Agrees with the other two on a run; its id. One message each way, then keys of the slots."""
        contract = check_announcement(announcement, self.host)
        ledger = ledger_of(announcement)
        told, nonce = digest_of(announcement_bytes(announcement)), os.urandom(_NONCE)
        heard = self._lines.exchange(told + nonce, told + nonce, len(told) + _NONCE)
        for sender, message in heard.items():
            if message[: len(told)] != told:
                raise ProtocolError(f"the server announced different runs to this party and to {self._name(sender)}")
        nonces = [heard[i][len(told) :] if i != self.index else nonce for i in range(PARTIES)]
        run = run_id(announcement, nonces)
        own = os.urandom(KEY)
        # The key of slot s is drawn by party s and told to party s - 1, the only other one that holds the slot.
        heard = self._lines.exchange(run + own, run + bytes(KEY), len(run) + KEY)
        if any(piece[: len(run)] != run for piece in heard.values()):
            raise Cheating("the parties do not agree on the id of the run: one of them lies")
        key = heard[(self.index + 1) % PARTIES][len(run) :]
        malicious = announcement.config.aggregation.threat == "malicious"
        session = Session(self.index, (own, key), self._lines, malicious)
        if self.host.book is not None:
            config = announcement.config
            facts = facts_of(config)
            self.host.book.begin(run.hex(), announcement.rho, **facts)
        self._begun = _Run(run, announcement, contract, ledger, session)
        return run

    @step
    def deal(self, parts: Mapping[int, DealPart]) -> dict[int, str]:
        """Takes deals by partition id; those that were refused by any party, and why, the same at all three."""
        run, state = self._running()
        deals = run.deals
        entries = deals.opened(parts, self.index, self.host.pair, run.ledger.remaining, self.host.policy.limits)
        told = digest_of(b"deal", state, *(str(partition).encode() for partition in sorted(parts)))
        before, after = deals.compared(entries, told)
        heard = self._lines.exchange(before, after)
        for sender, message in heard.items():
            self._same(sender, message[: len(told)], told)
        verdict = deals.judged(entries, heard, len(told), self.index)
        verdicts = {**self._lines.exchange(verdict, verdict, len(verdict)), self.index: verdict}
        return deals.taken(entries, verdicts, self.index, self._name)

    @step
    def choose(self, order: ChooseOrder) -> int:
        """The index that the mechanism chose; all three parties learn it."""
        run, state = self._running(order)
        terms = order.terms
        session, limits = run.session, self.host.policy.limits
        plan = plan_choice(order, run.layout, limits, run.public_rows, bounded=session.malicious)
        noise, by = plan.noise, released.PARTIES
        entry = Release(order.name, order.round, EXPONENTIAL, terms.sensitivity, epsilon=noise.epsilon, noise_by=by)
        self._agree_and_charge(run, state, order, entry)
        zeros, draws = np.zeros(len(terms.cliques), np.int64), self.index in DRAWING
        share = run.ledger.selection_share(zeros, noise, entry, self._source(order), draws=draws)
        norms = _norms(session, terms, run.marginals(terms.cliques) * terms.scale - terms.model)
        # Scores that left their bits would wrap, and the largest one be no largest one: a liar's noise is bounded too.
        added = session.sum_of_bounded_inputs(share, plan.noise_bits) if session.malicious else None
        noisy = session.sum_of_inputs(share) if added is None else added
        return session.argmax((norms - terms.penalties) * terms.weights + noisy, plan.score_bits)

    @step
    def open(self, order: OpenOrder) -> ServerShare:
        """This party's share, for the server, of marginals times the noise's resolution plus the noise of all three."""
        run, state = self._running(order)
        noise = plan_opening(order, run.layout, self.host.policy.limits, run.least_sigma)
        entry = noise.release(order.name, order.round, replaced=released.COUNTS)
        self._agree_and_charge(run, state, order, entry)
        share = run.ledger.distributed(np.zeros(noise.length, np.int64), noise, entry, self._source(order))
        noisy = run.marginals(order.cliques) * noise.resolution + run.session.sum_of_inputs(share)
        return run.session.shares_for_server(noisy)

    def end(self) -> None:
        """The server has what it wanted."""
        self.stop("the server has ended it")

    def _running(self, order: Order | None = None) -> tuple[_Run, bytes]:
        """The run, and a digest of all that was dealt and ordered before.

        ProtocolError if there is no run, or an order comes out of turn or too early.
        """
        run = self._begun
        if run is None:
            raise ProtocolError("no run has begun")
        state = run.state()
        if order is not None:
            run.ordered.take(order)
            least = max(self.host.policy.minimum_clients, run.announcement.minimum)
            if len(run.deals.facts) < least:
                raise ProtocolError(f"{len(run.deals.facts)} clients have dealt, and nothing comes out below {least}")
        return run, state

    def _agree_and_charge(self, run: _Run, state: bytes, order: Order, entry: Release) -> None:
        """Compares the order, which says that all three take it, then charges the book; nothing was drawn yet.

        The run's own ledger charges where it draws, and has room: that is looked at first.
        """
        book = self.host.book
        if not run.ledger.can_afford(entry):
            run.ledger.charge(entry)  # raises, in the ledger's own words
        if book is not None:
            book.check(entry.rho)
        whole = order_bytes(order)
        told = digest_of(b"order", state, whole)
        for sender, heard in self._lines.exchange(told, told, len(told)).items():
            self._same(sender, heard, told)
        run.agreed = digest_of(run.agreed, whole)
        if book is not None:
            book.charge(run.id.hex(), entry.rho, name=order.name, round=order.round, number=order.number)

    def _same(self, sender: int, heard: bytes, told: bytes) -> None:
        if heard != told:
            raise ProtocolError(f"the server told this party something else than {self._name(sender)}")

    def _source(self, order: Order) -> Any:
        return self.host.randomness.generator("party", self.index, order.round, order.name, order.number)

    def _name(self, index: int) -> str:
        """How to call another party."""
        return self._begun.name(index) if self._begun is not None else f"party {index}"


def _norms(session: Session, terms: Terms, far: Shared) -> Shared:
    """Shares of the norm of each clique's γ M - m: of exactly the norm that the noise was sized for."""
    if terms.norm == L1.name:
        return session.l1(far, terms.starts, terms.bits)
    if terms.norm == SquaredL2.name:
        return session.squared(far, terms.starts)
    raise ProtocolError("a choice by a norm is asked for that three parties do not compute")


class _Run:
    """What a party keeps of a run, in memory alone."""

    def __init__(self, run: bytes, announcement: Announcement, contract: Any, ledger: Ledger, session: Session) -> None:
        self.id, self.announcement, self.contract, self.ledger, self.session = (
            run,
            announcement,
            contract,
            ledger,
            session,
        )
        self.layout = StoredLayout(announcement.cliques, announcement.domain)
        agreed = sealed_for(run, announcement.config, announcement.domain, announcement.cliques)
        self.deals = Deals(agreed, self.layout.length, session.index)
        self.ordered, self.agreed = Orders(contract, announcement.config), run
        least = getattr(contract, "least_sigma", None)
        self.least_sigma: float | None = least(announcement.rho) if least is not None else None

    @property
    def public_rows(self) -> int | None:
        """Rows of all clients that have dealt, where they are public."""
        if self.announcement.config.privacy.client_sizes != "public":
            return None
        return sum(facts.rows for facts in self.deals.facts.values())

    def state(self) -> bytes:
        """A digest of what was dealt and ordered so far: equal at all three parties."""
        dealt = (str(k).encode() + facts.to_bytes() for k, facts in sorted(self.deals.facts.items()))
        return digest_of(self.agreed, *dealt)

    def marginals(self, cliques: tuple[Clique, ...]) -> Shared:
        """Shares of some marginals, one after the other: sums of the stored shares, no message."""
        stored = self.deals.total
        return concatenate([stored.mapped(functools.partial(self._onto, clique)) for clique in cliques])

    def _onto(self, clique: Clique, slot: Words) -> Words:
        return self.layout.marginal(slot.view(np.int64), clique).ravel().view(np.uint64)

    def name(self, index: int) -> str:
        nodes = self.announcement.config.aggregation.parties
        return f"party '{nodes[index].name}'" if nodes is not None else f"party {index}"


class _Lines:
    """The lines to the other two, counted."""

    def __init__(self, index: int, network: Network) -> None:
        self._network, self.index = network, index
        self.bytes_sent = self.rounds = 0

    def send(self, to: int, payload: bytes | memoryview) -> None:
        self.bytes_sent += len(payload)
        self._network.send(to, payload)

    def receive(self, sender: int) -> bytes:
        return self._network.receive(sender)

    def exchange(self, before: bytes, after: bytes, length: int | None = None) -> dict[int, bytes]:
        """One message to the party before and one to the party after; theirs, by index."""
        self.rounds += 1
        others = (self.index - 1) % PARTIES, (self.index + 1) % PARTIES
        for to, message in zip(others, (before, after), strict=True):
            self.send(to, message)
        heard = {sender: bytes(self.receive(sender)) for sender in others}
        if length is not None and any(len(message) != length for message in heard.values()):
            raise Cheating("another party sent a message of the wrong length")
        return heard
