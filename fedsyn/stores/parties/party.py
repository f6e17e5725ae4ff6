"""One of the three computing parties in one run.

It holds, checks, charges and computes. It knows no transport.

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

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsyn.crypto.mpc.dealing import KEY, ServerShare
from fedsyn.crypto.mpc.network import Cheating, Network
from fedsyn.crypto.mpc.session import Session
from fedsyn.crypto.mpc.shared import PARTIES, Shared, Words, concatenate
from fedsyn.crypto.primitives import KeyPair
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError
from fedsyn.privacy import Ledger
from fedsyn.privacy import release as released
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.privacy.shared_choice import DRAWING
from fedsyn.selection.terms import L1, ChoiceTerms, SquaredL2
from fedsyn.stores.parties.checks import Host, check_announcement, ledger_of, plan_choice, plan_opening
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, PartyCost, PartyOrder, run_id
from fedsyn.stores.parties.messages import digest_of, pack
from fedsyn.stores.parties.policy import LimitsNode
from fedsyn.stores.parties.sealing import DealContent, DealFacts, DealPart, Fault, RefusedDeal, open_deal
from fedsyn.stores.parties.steps import PartyRun, RunHalf, step
from fedsyn.table.counting.stored import StoredLayout

_NONCE = 16


class Party(RunHalf["_Run"]):
    """A computing party's half of one run.

    Args:
        index: 0, 1 or 2.
        host: what it is, whatever the run.
        network: to the other two, for this run alone.
    """

    def __init__(self, index: int, host: Host, network: Network) -> None:
        super().__init__(host, index)
        self._lines = _CountedNetwork(index, network)

    @property
    def cost(self) -> PartyCost:
        rounds = self._lines.rounds + (self._begun.session.rounds if self._begun is not None else 0)
        return PartyCost(self._lines.bytes_sent, rounds, self.cpu)

    def stop(self, reason: str) -> None:
        if self._begun is not None:
            self._lines.rounds += self._begun.session.rounds
        super().stop(reason)

    @step
    def begin(self, announcement: Announcement) -> bytes:
        """Agrees with the other two on a run; returns its id.

        The parties send one message each way, then keys of the slots.
        """
        contract = check_announcement(announcement, self.host)
        ledger = ledger_of(announcement)
        digest, nonce = digest_of(pack(Announcement, announcement)), os.urandom(_NONCE)
        heard = self._lines.exchange(digest + nonce, digest + nonce, len(digest) + _NONCE)
        for sender, message in heard.items():
            if message[: len(digest)] != digest:
                raise ProtocolError(f"the server announced different runs to this party and to {self._name(sender)}")
        nonces = [heard[i][len(digest) :] if i != self.index else nonce for i in range(PARTIES)]
        run = run_id(announcement, nonces)
        slot_key = os.urandom(KEY)
        # The key of slot s is drawn by party s and told to party s - 1, the only other one that holds the slot.
        heard = self._lines.exchange(run + slot_key, run + bytes(KEY), len(run) + KEY)
        if any(piece[: len(run)] != run for piece in heard.values()):
            raise Cheating("the parties do not agree on the id of the run: one of them lies")
        key = heard[(self.index + 1) % PARTIES][len(run) :]
        malicious = announcement.config.aggregation.threat == "malicious"
        session = Session(self.index, (slot_key, key), self._lines, malicious)
        self._enter(_Run(run, announcement, contract, ledger, session))
        return run

    @step
    def deal(self, parts: Mapping[int, DealPart]) -> dict[int, str]:
        """Takes deals by partition id; returns the refused ones, and why.

        A deal that any party refuses is refused at all three.
        """
        run = self._running()
        deals = run.deals
        entries = deals.opened(parts, self.host.pair, run.ledger.remaining, self.host.policy.limits)
        digest = digest_of(b"deal", run.state(), *(str(partition).encode() for partition in sorted(parts)))
        before, after = deals.compared(entries, digest)
        heard = self._lines.exchange(before, after)
        for sender, message in heard.items():
            self._same(sender, message[: len(digest)], digest)
        verdict = deals.judged(entries, heard, len(digest))
        verdicts = {**self._lines.exchange(verdict, verdict, len(verdict)), self.index: verdict}
        return deals.taken(entries, verdicts, self._name)

    @step
    def choose(self, order: ChooseOrder) -> int:
        """The index that the mechanism chose; all three parties learn it."""
        run = self._running(order)
        terms = order.terms
        session, limits = run.session, self.host.policy.limits
        plan = plan_choice(order, run.layout, limits, run.public_rows, bounded=session.malicious)
        draws = self.index in DRAWING
        share = self._share_of_choice(run, order, plan.noise, draws=draws, noise_by=released.PARTIES)
        norms = _norms(session, terms, run.marginals(terms.cliques) * terms.scale - terms.model)
        # Scores that left their bits would wrap, and the largest one be no largest one: a liar's noise is bounded too.
        added = session.sum_of_bounded_inputs(share, plan.noise_bits) if session.malicious else None
        noisy = session.sum_of_inputs(share) if added is None else added
        return session.argmax((norms - terms.penalties) * terms.weights + noisy, plan.score_bits)

    @step
    def open(self, order: OpenOrder) -> ServerShare:
        """Returns this party's share of noisy marginals, for the server.

        It shares the marginals times the noise's resolution plus the noise of all three.
        """
        run = self._running(order)
        noise = plan_opening(order, run.layout, self.host.policy.limits, run.least_sigma)
        entry = noise.release(order.name, order.round, replaced=released.COUNTS)
        self._charge(run, order, entry)
        share = run.ledger.distributed(np.zeros(noise.length, np.int64), noise, entry, self._source(order))
        noisy = run.marginals(order.cliques) * noise.resolution + run.session.sum_of_inputs(share)
        return run.session.shares_for_server(noisy)

    def _running(self, order: PartyOrder | None = None) -> _Run:
        """The run.

        Raises ProtocolError if there is none, or an order comes out of turn or too early.
        """
        run = self._begun
        if run is None:
            raise ProtocolError("no run has begun")
        if order is not None:
            run.ordered.take(order)
            least = max(self.host.policy.minimum_clients, run.announcement.minimum)
            if len(run.deals.facts) < least:
                raise ProtocolError(f"{len(run.deals.facts)} clients have dealt, and nothing comes out below {least}")
        return run

    def _agree(self, run: _Run, order: PartyOrder) -> None:
        """Compares the order, and all that came before it.

        Each of the three says that it takes the order.
        """
        whole = pack(type(order), order)
        digest = digest_of(b"order", run.state(), whole)
        for sender, heard in self._lines.exchange(digest, digest, len(digest)).items():
            self._same(sender, heard, digest)
        run.history = digest_of(run.history, whole)

    def _same(self, sender: int, heard: bytes, digest: bytes) -> None:
        if heard != digest:
            raise ProtocolError(f"the server told this party something else than {self._name(sender)}")

    def _name(self, index: int) -> str:
        """Returns the words for another party."""
        return self._begun.name(index) if self._begun is not None else f"party {index}"


def _norms(session: Session, terms: ChoiceTerms, far: Shared) -> Shared:
    """Returns shares of the norm of each clique's γ M - m.

    It is exactly the norm that the noise was sized for.
    """
    if terms.norm == L1.name:
        return session.l1(far, terms.starts, terms.bits)
    if terms.norm == SquaredL2.name:
        return session.squared(far, terms.starts)
    raise ProtocolError("a choice by a norm is asked for that three parties do not compute")


class _Run(PartyRun):
    """A run, as a computing party keeps it."""

    def __init__(self, run: bytes, announcement: Announcement, contract: Any, ledger: Ledger, session: Session) -> None:
        super().__init__(run, announcement, contract, ledger)
        self.session, self.history = session, run
        self.layout = StoredLayout(announcement.cliques, announcement.domain)
        self.deals = Deals(self.agreed, self.layout.length, session.index)

    @property
    def public_rows(self) -> int | None:
        """Rows of all clients that have dealt, where they are public."""
        if self.config.privacy.client_sizes != "public":
            return None
        return sum(facts.rows for facts in self.deals.facts.values())

    def state(self) -> bytes:
        """Digest of what was dealt and ordered so far.

        It is equal at all three parties.
        """
        dealt = (str(k).encode() + facts.to_bytes() for k, facts in sorted(self.deals.facts.items()))
        return digest_of(self.history, *dealt)

    def marginals(self, cliques: tuple[Clique, ...]) -> Shared:
        """Returns shares of some marginals, one after the other.

        They are sums of the stored shares and need no message.
        """
        stored = self.deals.total
        return concatenate([stored.mapped(functools.partial(self._onto, clique)) for clique in cliques])

    def _onto(self, clique: Clique, slot: Words) -> Words:
        return self.layout.marginal(slot.view(np.int64), clique).ravel().view(np.uint64)

    def name(self, index: int) -> str:
        nodes = self.config.aggregation.parties
        return f"party '{nodes[index].name}'" if nodes is not None else f"party {index}"


class _CountedNetwork:
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
        """Sends one message to each neighbour; returns theirs, by index."""
        self.rounds += 1
        others = (self.index - 1) % PARTIES, (self.index + 1) % PARTIES
        for to, message in zip(others, (before, after), strict=True):
            self.send(to, message)
        heard = {sender: bytes(self.receive(sender)) for sender in others}
        if length is not None and any(len(message) != length for message in heard.values()):
            raise Cheating("another party sent a message of the wrong length")
        return heard


# What clients have dealt ----------------------------------------------------------------------------------------------

_MARK, _FACTS = 32, 16
_ENTRY = 1 + _FACTS + _MARK  # bytes that two parties exchange about one client


@dataclass(frozen=True)
class DealEntry:
    """One client's deal: opened, or why not."""

    fault: Fault
    opened: DealContent | None = None

    def told(self, slot: int) -> bytes:
        """Returns the digest for the other holder of a slot.

        The slot is this party's own (0) or its next one (1).
        """
        if self.opened is None:
            return bytes([self.fault]) + bytes(_FACTS + _MARK)
        return bytes([self.fault]) + self.opened.facts.to_bytes() + self.opened.marks[slot]


class Deals:
    """The sum of all deals in one run, as two slots.

    Single deals are forgotten one by one.

    A client that deals shares that do not fit together would spoil the sum, or make the parties compute on different
    numbers. So the two holders of each slot compare a digest of the seed (or of the correction with its key), all three
    compare the client's public facts, and a client is taken by all parties or by none. The others are not held up.

    Args:
        run: id.
        length: L, entries that each client deals.
        index: of this party.
    """

    def __init__(self, run: bytes, length: int, index: int) -> None:
        self.run, self.length, self.index = run, length, index
        self.facts: dict[int, DealFacts] = {}
        nothing = np.zeros(length, np.uint64)
        self.total = Shared(nothing, nothing, index)

    def opened(
        self, parts: Mapping[int, DealPart], pair: KeyPair, remaining: float, limits: LimitsNode
    ) -> dict[int, DealEntry]:
        """This party's own look at some deals, by partition id.

        Args:
            parts: this party's parts.
            pair: its key pair.
            remaining: rho that the run may still release, of each of these clients' rows.
            limits: of the policy.
        """
        entries = {}
        for place, partition in enumerate(sorted(parts)):
            try:
                if partition in self.facts:
                    raise RefusedDeal(Fault.TWICE)
                if len(self.facts) + place >= limits.clients:
                    raise RefusedDeal(Fault.MANY)
                opened = open_deal(parts[partition], self.run, self.index, pair, partition, self.length)
                if opened.facts.rho * (1.0 + ROUNDING_ROOM) < remaining:
                    raise RefusedDeal(Fault.BUDGET)
                entries[partition] = DealEntry(Fault.NONE, opened)
            except RefusedDeal as refused:
                entries[partition] = DealEntry(refused.fault)
        return entries

    def compared(self, entries: Mapping[int, DealEntry], digest: bytes) -> tuple[bytes, bytes]:
        """Returns the messages to both neighbours.

        The party before hears about this party's own slot, the one after about its next slot.
        """
        before, after = (digest + b"".join(entry.told(slot) for entry in entries.values()) for slot in (0, 1))
        return before, after

    def judged(self, entries: Mapping[int, DealEntry], heard: Mapping[int, bytes], skip: int) -> bytes:
        """Returns one byte for each client: this party's finding.

        The finding is its own or follows from what the other two have sent.
        """
        verdict = bytearray(len(entries))
        for sender, message in heard.items():
            if len(message) != skip + _ENTRY * len(entries):
                raise Cheating("another party sent a message of the wrong length")
            slot = 0 if sender == (self.index - 1) % PARTIES else 1
            for place, entry in enumerate(entries.values()):
                theirs = message[skip + _ENTRY * place :][:_ENTRY]
                fault = entry.fault
                if fault == Fault.NONE and theirs[0] == Fault.NONE:
                    ours = entry.told(slot)
                    if theirs[1 : 1 + _FACTS] != ours[1 : 1 + _FACTS]:
                        fault = Fault.FACTS
                    elif theirs != ours:
                        fault = Fault.SLOTS
                verdict[place] = verdict[place] or fault
        return bytes(verdict)

    def taken(
        self, entries: Mapping[int, DealEntry], verdicts: Mapping[int, bytes], name: Callable[[int], str]
    ) -> dict[int, str]:
        """Adds the deals that all three parties accept.

        Returns why the rest was refused, by partition id.
        """
        refused = {}
        own_slot, after = self.total.own.copy(), self.total.next.copy()
        for place, (partition, entry) in enumerate(entries.items()):
            faults = [(party, verdicts[party][place]) for party in range(PARTIES) if verdicts[party][place]]
            if faults:
                party, fault = faults[0]
                refused[partition] = f"{name(party)}: {_sentence(fault)}"
                continue
            assert entry.opened is not None
            shared = entry.opened.shared(self.index, self.length)
            own_slot += shared.own
            after += shared.next
            self.facts[partition] = entry.opened.facts
        self.total = Shared(own_slot, after, self.index)
        return refused


def _sentence(fault: int) -> str:
    try:
        return Fault(fault).sentence
    except ValueError:
        raise ProtocolError("another party found a fault that this one does not know") from None
