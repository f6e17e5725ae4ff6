"""One run at the crypto party: who its clients are, who of them contributes to what, and the pads that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsyn.aggregation.secagg.primitives import KeyPair
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvReader
from fedsyn.crypto.fhe.parameters import MOST_ANSWERS
from fedsyn.crypto.fhe.plan import holders_of
from fedsyn.crypto.fhe.seal import SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.errors import ProtocolError
from fedsyn.nodes.parties.boxes import Pads, of_deal, of_sum, open_box
from fedsyn.nodes.parties.checks import Host, refuse
from fedsyn.nodes.parties.interface import Announcement, TotalOrder
from fedsyn.nodes.parties.sealing import DealFacts, Fault, RefusedDeal
from fedsyn.nodes.parties.steps import PartyRun
from fedsyn.privacy import Ledger
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.table.counting.stored import StoredLayout, StoreFacts


class KeptRun(PartyRun):
    """What the crypto party keeps of a run: its keys, and who contributes to what."""

    def __init__(
        self,
        run: bytes,
        announcement: Announcement,
        contract: Any,
        ledger: Ledger,
        secret: SecretKeys | None,
        pair: KeyPair,
        signers: Mapping[int, bytes] | None,
    ) -> None:
        super().__init__(run, announcement, contract, ledger)
        self.secret, self._pair, self._signers, self.answered = secret, pair, signers, 0
        self.sum: TotalOrder | None = None  # whose contributors are being named
        self.seeds: dict[int, bytes] = {}
        self.facts: StoreFacts | None = contract.store_facts if contract.store else None
        self.deals: dict[int, DealFacts] = {}
        self.layout: StoredLayout | None = None
        self.ranges: NoiseRanges | None = None
        self.pads: Pads | None = None
        if self.facts is None or secret is None:
            return
        self.layout = StoredLayout(announcement.cliques, announcement.domain)
        self.reader = BfvReader(secret)
        slots = SlotLayout(self.facts.cliques, announcement.domain, secret.ring.parameters.slots)
        self.ranges = NoiseRanges(slots, self.facts.openings, self.facts.attributes)
        if self.config.fhe.is_bound:
            self.pads = Pads(slots, self.ranges.planes, secret.ring.modulus)

    @property
    def adds(self) -> bool:
        """Whether its clients could be made up, and it protects somebody."""
        return self._signers is None

    def contribute(self, order: TotalOrder, partition: int, box: bytes) -> None:
        """One contributor of a sum; RefusedDeal if its box cannot be used, or came before."""
        if partition in self.seeds:
            raise RefusedDeal(Fault.TWICE)
        if len(self.seeds) >= order.asked:
            raise RefusedDeal(Fault.MANY)
        self.seeds[partition] = self._opened(box, of_sum(order), partition)

    def deal(self, partition: int, box: bytes, most: int) -> None:
        """One contributor of the store, likewise; and if it allows for less than the run may release."""
        assert self.pads is not None
        if partition in self.deals:
            raise RefusedDeal(Fault.TWICE)
        if len(self.deals) >= most:
            raise RefusedDeal(Fault.MANY)
        facts = DealFacts.of(box[: DealFacts.SIZE])
        if facts.rho * (1.0 + ROUNDING_ROOM) < self.ledger.remaining_rho:
            raise RefusedDeal(Fault.BUDGET)
        self.pads.add(self._opened(box[DealFacts.SIZE :], of_deal(facts), partition))
        self.deals[partition] = facts

    def _opened(self, box: bytes, facts: bytes, partition: int) -> bytes:
        signer = None
        if self._signers and (signer := self._signers.get(partition)) is None:
            raise RefusedDeal(Fault.UNSIGNED)
        return open_box(box, facts, self.agreed, partition, self._pair, signer)

    def answer(self, ciphertexts: int) -> None:
        """Counts what is decrypted; ProtocolError beyond what the flood was sized for."""
        self.answered += ciphertexts
        if self.secret is None:
            raise ProtocolError("this run forms sums: it decrypts nothing, and does not add up encrypted products")
        refuse(self.answered > MOST_ANSWERS, f"a run decrypts {MOST_ANSWERS} ciphertexts, and no more")

    @property
    def store(self) -> tuple[StoredLayout, StoreFacts]:
        """ProtocolError in a run that forms sums."""
        if self.layout is None or self.facts is None:
            raise ProtocolError("this run forms sums: it has no store to choose from or to open")
        return self.layout, self.facts


def signers_of(config: RunConfig, host: Host) -> Mapping[int, bytes] | None:
    """Public keys of all clients, where this party's administrator has agreed to them; None: they could be made up.

    In a simulation, which protects nobody, each client is whom it says it is: an empty table.

    Raises:
        ProtocolError: the configuration names the keys of some clients only, or one key twice.
    """
    if host.cards is None:
        return {}
    roster = config.aggregation.roster
    if roster is None or host.policy.configurations is None:
        return None
    clients = holders_of(config)
    whole = sorted(roster) == list(range(clients)) and len(set(roster.values())) == clients
    refuse(not whole, f"aggregation.roster must name a key of its own for each of the clients 0 to {clients - 1}")
    return {partition: bytes.fromhex(key) for partition, key in roster.items()}
