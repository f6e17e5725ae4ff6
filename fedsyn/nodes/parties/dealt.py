"""What clients have dealt to one party: opened, compared with the other two, summed, and forgotten one by one.

A client that deals shares that do not fit together would spoil the sum, or make the parties compute on different
numbers. So the two holders of each slot compare a digest of the seed (or of the correction with its key), all three
compare the client's public facts, and a client is taken by all parties or by none. The others are not held up by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsyn.aggregation.secagg.primitives import KeyPair
from fedsyn.crypto.mpc.network import Cheating
from fedsyn.crypto.mpc.shared import PARTIES, Shared
from fedsyn.errors import ProtocolError
from fedsyn.nodes.parties.policy import LimitsNode
from fedsyn.nodes.parties.sealing import DealContent, DealFacts, DealPart, Fault, RefusedDeal, open_deal
from fedsyn.privacy.budget import ROUNDING_ROOM

_MARK, _FACTS = 32, 16
_ENTRY = 1 + _FACTS + _MARK  # bytes that two parties exchange about one client


@dataclass(frozen=True)
class DealEntry:
    """One client's deal: opened, or why not."""

    fault: Fault
    opened: DealContent | None = None

    def told(self, slot: int) -> bytes:
        """What the other holder of this party's own slot (0) or of its next one (1) is told."""
        if self.opened is None:
            return bytes([self.fault]) + bytes(_FACTS + _MARK)
        return bytes([self.fault]) + self.opened.facts.to_bytes() + self.opened.marks[slot]


class Deals:
    """The sum of what was dealt in one run, as one party's two slots of it.

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

    def compared(self, entries: Mapping[int, DealEntry], told: bytes) -> tuple[bytes, bytes]:
        """The messages to the party before, about this party's own slot, and to the one after, about its next slot."""
        before, after = (told + b"".join(entry.told(slot) for entry in entries.values()) for slot in (0, 1))
        return before, after

    def judged(self, entries: Mapping[int, DealEntry], heard: Mapping[int, bytes], skip: int) -> bytes:
        """One byte for each client: what this party has found, alone or with what the other two have told it."""
        verdict = bytearray(len(entries))
        for sender, message in heard.items():
            if len(message) != skip + _ENTRY * len(entries):
                raise Cheating("another party sent a message of the wrong length")
            slot = 0 if sender == (self.index - 1) % PARTIES else 1
            for place, entry in enumerate(entries.values()):
                theirs = message[skip + _ENTRY * place :][:_ENTRY]
                found = entry.fault
                if found == Fault.NONE and theirs[0] == Fault.NONE:
                    own = entry.told(slot)
                    if theirs[1 : 1 + _FACTS] != own[1 : 1 + _FACTS]:
                        found = Fault.FACTS
                    elif theirs != own:
                        found = Fault.SLOTS
                verdict[place] = verdict[place] or found
        return bytes(verdict)

    def taken(
        self, entries: Mapping[int, DealEntry], verdicts: Mapping[int, bytes], name: Callable[[int], str]
    ) -> dict[int, str]:
        """Adds what all three parties found nothing against; why the rest was refused, by partition id."""
        refused = {}
        own, after = self.total.own.copy(), self.total.next.copy()
        for place, (partition, entry) in enumerate(entries.items()):
            found = [(party, verdicts[party][place]) for party in range(PARTIES) if verdicts[party][place]]
            if found:
                party, fault = found[0]
                refused[partition] = f"{name(party)}: {_sentence(fault)}"
                continue
            assert entry.opened is not None
            shared = entry.opened.shared(self.index, self.length)
            own += shared.own
            after += shared.next
            self.facts[partition] = entry.opened.facts
        self.total = Shared(own, after, self.index)
        return refused


def _sentence(fault: int) -> str:
    try:
        return Fault(fault).sentence
    except ValueError:
        raise ProtocolError("another party found a fault that this one does not know") from None
