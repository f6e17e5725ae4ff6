"""The crypto party: the only holder of a run's secret keys.

It says what comes out, and knows no transport.

FHAIM's crypto-service entity (Kumar et al. 2025, section 4). It makes its keys anew for every run, takes off what hides
the clients' numbers from the server, and answers with integers that are private already:

- *total*, *opening*: the sum over the contributors that the server names, less their pads, with their noise on it;
- *choice*: it reads noisy scores, adds a noise of its own and returns the index of the largest one. It is trusted with
  the scores;
- *sums*: it adds up slots that are uniform to it and encrypts the sums again (`compute: packed`). Nothing is
  opened.

**What it sees** besides configuration, schema, orders and who contributes: of every total, opening and choice the
numbers above before its own noise is on them; of all other slots numbers that are uniform, under a flood that hides how
they came about (`fedsyn.crypto.fhe`). It never returns a plaintext polynomial, nor a slot that was not asked for (Li &
Micciancio 2021). It counts its answers and refuses what comes after the last one that the mechanism has.

**A server that deviates** gets nothing from a total or an opening but what an honest one gets, for contributors of its
choice (`fedsyn.stores.parties.boxes` has the proof): at least as many as the run and this party's policy demand, each
in it once and as it was sealed, under the sigma, sensitivity and sizes that each reckoned with. Contributors can be
made up:

- *pinned* clients cannot. Where the policy pins the configuration (`policy.configurations`) and that names the
  clients' keys (`aggregation.roster`), each box is signed. Then the shares of the H = fewest - corrupted honest ones
  are in every answer: the noise that is charged (`fedsyn.privacy.distributed`).
- *unknown* clients can: all but one may be the server's, and then a share of 1/H of the variance is all that is sure.
  So this party adds the whole noise once more, at the sigma that it charges; alone it is the Gaussian mechanism (H = 1
  of the same proof, whatever the shares are). A total then carries up to twice the variance. A store of unknown clients
  is refused: its choices would be made on one client's exact counts.

**What stays the server's word.** The scores of a choice. After the store is whole this party hands over its pads' sum,
encrypted, once: so a choice is some function of the TOTAL over all contributors and of nothing else about them. Which
function, it cannot see: a server that deviates learns an index, log2 of the candidates' number in bits, of any function
of that exact total for each choice that the run has, and the price of a choice is then no bound on it. Nothing here is
about what both know: server and crypto party together read everything. `compute: packed`
binds nothing; it trusts the server and stays in simulations.

Order of things as at a computing party: checked, charged in the run's ledger and in the book, drawn, out; after any
error the run is over.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Limits, noise_of
from fedsyn.capabilities import FHE
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvReader, DecryptionQuery, Sums
from fedsyn.crypto.fhe.parameters import LARGEST, MOST_ANSWERS, MOST_FACTOR
from fedsyn.crypto.fhe.products import holders_of, parameters_of
from fedsyn.crypto.fhe.seal import Encryptor, PublicKeys, SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout, placed
from fedsyn.crypto.primitives import KeyPair, apply_masks
from fedsyn.errors import ProtocolError, refuse
from fedsyn.privacy import DistributedNoise, Ledger
from fedsyn.privacy.budget import ROUNDING_ROOM
from fedsyn.privacy.release import COUNTS, ROLES
from fedsyn.stores.parties.boxes import Pads, of_deal, of_sum, open_box
from fedsyn.stores.parties.checks import (
    Host,
    check_configuration,
    check_opening,
    checked,
    contract_of,
    ledger_of,
    plan_choice,
)
from fedsyn.stores.parties.interface import (
    Announcement,
    Begun,
    ChooseOrder,
    OpenOrder,
    PartyCost,
    PartyOrder,
    TotalOrder,
    run_id,
)
from fedsyn.stores.parties.sealing import DealFacts, Fault, RefusedDeal
from fedsyn.stores.parties.steps import PartyRun, RunHalf, step
from fedsyn.table.counting.stored import StoredLayout, StoreFacts
from fedsyn.wire.envelope import SumSpec

_NONCE = 16
_CLIENTS_DREW = "drawn by the clients, not seen here"  # a sampler


class KeyHolder(RunHalf["KeptRun"]):
    """The crypto party's half of one run.

    Args:
        host: what it is, whatever the run.
        sign: signs what clients check against its card; None in a simulation.
    """

    def __init__(self, host: Host, sign: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__(host, 1)
        self._sign = sign

    @property
    def cost(self) -> PartyCost:
        return PartyCost(cpu=self.cpu)

    # Steps ------------------------------------------------------------------------------------------------------------

    @step
    def begin(self, announcement: Announcement) -> Begun:
        config = announcement.config
        check_configuration(announcement, self.host, FHE)
        if self.host.cards is not None:
            refuse(config.aggregation.crypto != self.host.cards[0], "the configuration names another crypto party")
        policy = self.host.policy
        contract = contract_of(announcement, policy.limits)
        if self.host.cards is not None:
            checked(lambda: contract.trusted(config).check(config.federation.clients))
        refuse(policy.threat is not None, f"its policy demands aggregation.threat: {policy.threat}, not fhe's")
        theta, gone, most = config.aggregation.corrupted, config.aggregation.dropout, policy.dropout
        least = policy.corrupted
        refuse(theta < least, f"aggregation.corrupted is {theta:g}, and its policy demands at least {least:g}")
        if most is not None:
            refuse(gone > most, f"aggregation.dropout is {gone:g}, and its policy allows at most {most:g}")
        # Who contributes: clients with pinned keys, or anybody.
        signers = signers_of(config, self.host)
        if contract.store:
            self._check_store(config, signers)
        clients = holders_of(config) if contract.store else announcement.clients
        fewest, least = limits_of(config, clients).fewest, policy.minimum_clients
        refuse(fewest < least, f"its policy opens nothing below {least} clients, and the run does from {fewest} on")
        stored = tuple(contract.stored.cliques) if contract.store else ()
        refuse(stored != announcement.cliques, "the announced cliques are not those that the mechanism stores")
        ledger = ledger_of(announcement, contract.accountant)
        # Keys of this run alone, bound to its announcement.
        nonce = os.urandom(_NONCE)
        run = run_id(announcement, [nonce])
        facts = contract.store_facts if contract.store else None
        secret = None if facts is None else SecretKeys(parameters_of(config))
        keys, pair = PublicKeys(b"", b"") if secret is None else secret.public, KeyPair()
        begun = KeptRun(run, announcement, contract, ledger, secret, pair, signers)
        most = 8 * policy.limits.entries  # 8 bytes each
        refuse(begun.pads is not None and begun.pads.length > most, f"its policy allows {most} entries of a store")
        signature = b"" if self._sign is None else self._sign(signed_keys(begun.agreed, keys.public, pair.public))
        self._enter(begun)
        return Begun(run, keys, pair.public, signature, not contract.store and begun.adds)

    def _check_store(self, config: RunConfig, signers: Mapping[int, bytes] | None) -> None:
        """Refuses a store that nothing binds to its contributors.

        Raises ProtocolError, outside a simulation.
        """
        if self.host.cards is None:
            return
        trusts = "compute: packed trusts the server: simulations only"
        refuse(not config.fhe.is_bound, trusts)
        refuse(config.federation.sampling_rate < 1.0, "a store's contributors are named once: sampling_rate must be 1")
        refuse(
            signers is None,
            "a store's clients could be made up: the configuration names their keys as aggregation.roster, and this "
            "party's policy.configurations its hash",
        )

    @step
    def admit(self, order: TotalOrder | None, boxes: Mapping[int, bytes]) -> dict[int, str]:
        run = self._running(None, None)
        if order is not None and order != run.sum:
            run.ordered.take(order)
            self._check_sum(run, order)
            run.sum, run.seeds = order, {}
        if order is None:
            _ = run.store
            pads = run.pads
            if pads is None or (pads.closed and self.host.cards is not None):
                raise ProtocolError("the contributors of this run's store are named already, or it names none")
            pads.closed = False
        refused = {}
        for partition, box in sorted(boxes.items()):
            try:
                if order is None:
                    run.deal(partition, box, self.host.policy.limits.clients)
                else:
                    run.contribute(order, partition, box)
            except RefusedDeal as error:
                refused[partition] = str(error)
        return refused

    @step
    def unpad(self) -> list[bytes]:
        run = self._running(None, None)
        pads, secret = run.pads, run.secret
        if pads is None or secret is None or pads.closed:
            raise ProtocolError("this run's store has no pads to take off, or they were taken off")
        self._check_many(run, len(run.deals), holders_of(run.config))
        pads.closed = True
        return Encryptor(secret.ring.parameters, secret.public.public).to_bytes(pads.minus())

    @step
    def choose(self, order: ChooseOrder, query: DecryptionQuery) -> npt.NDArray[np.int64]:
        run = self._running(order, query)
        layout, _ = run.store
        terms, limits = order.terms, self.host.policy.limits
        rows = terms.rows if run.pads is None else sum(facts.rows for facts in run.deals.values())
        plan = plan_choice(order, layout, limits, rows, bounded=False)
        noisy = self._share_of_choice(run, order, plan.noise, draws=True, noise_by=ROLES)
        noisy += run.reader.scores(query, terms)
        return np.array([int(np.argmax(noisy))])

    @step
    def open(self, order: OpenOrder, brought: Sequence[bytes]) -> npt.NDArray[np.int64]:
        run = self._running(order, None)
        run.answer(len(brought) if run.pads is None else 0)  # with pads nothing is decrypted
        layout, _ = run.store
        check_opening(order, layout, self.host.policy.limits, run.least_sigma)
        assert run.secret is not None and run.ranges is not None
        limits = limits_of(run.config, holders_of(run.config))
        cells, parameters = sum(layout.domain.size(clique) for clique in order.cliques), run.secret.ring.parameters
        rows = sum(facts.rows for facts in run.deals.values())
        counted = {"count": len(order.cliques), "length": cells, "rows": rows}
        noise = checked(lambda: pooled_noise(order.sigma, limits, **counted))
        pieces = run.ranges.reserve(order.cliques)
        pairs, starts, sizes = placed(pieces, parameters.slots)
        padded = None if run.pads is None else run.pads.read(brought, cells)
        few = padded is None and len(brought) != len(pairs)
        refuse(few, "an opening brings more or fewer ciphertexts than it has")
        entry = replace(noise.release(order.name, order.round, replaced=COUNTS), sampler=_CLIENTS_DREW)
        self._charge(run, order, entry)
        run.ledger.charge(entry)
        if run.pads is None or padded is None:
            return run.reader.numbers(DecryptionQuery(tuple(brought), starts, sizes))
        return run.pads.off(padded, pieces, noise.resolution)

    def _check_sum(self, run: KeptRun, order: TotalOrder) -> None:
        """Refuses a sum that run or policy do not allow.

        Raises ProtocolError.
        """
        whole = all(type(n) is int and n > 0 for n in (order.count, order.length, order.asked))
        real = all(0.0 < value < math.inf for value in (order.sigma, order.sensitivity))
        refuse(not whole or not real or order.length > self.host.policy.limits.cells, "an order is malformed, or large")
        everybody = run.config.federation.clients
        refuse(order.asked > everybody, f"a sum asks at most the run's {everybody} clients")

    def _check_many(self, run: KeptRun, contributors: int, clients: int) -> None:
        """Refuses fewer contributors than run, noise or policy demand.

        Raises ProtocolError.
        """
        fewest = limits_of(run.config, clients).fewest
        fewest = max(fewest, run.announcement.minimum, self.host.policy.minimum_clients)
        refuse(contributors < fewest, f"{contributors} clients are in it, and nothing is opened below {fewest}")

    @step
    def total(self, order: TotalOrder, vector: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        run = self._running(None, None)
        refuse(order != run.sum, "a total is ordered to which no client has contributed, or a second time")
        seeds, run.sum, run.seeds = run.seeds, None, {}
        self._check_many(run, len(seeds), order.asked)
        refuse(vector.shape != (order.length,), "a total has another length than its order")
        facts = SumSpec(((order.length,),), order.sigma, order.sensitivity, order.count, asked=order.asked)
        noise = checked(lambda: noise_of("distributed", facts, limits_of(run.config, order.asked)))
        entry = replace(noise.release(order.name, order.round), sampler=_CLIENTS_DREW)
        self._charge(run, order, entry)
        total = vector.copy()
        apply_masks(total, (), seeds.values())
        if run.adds:
            return run.ledger.once_more(total.view(np.int64), noise, entry, self._source(order))
        run.ledger.charge(entry)
        return total.view(np.int64)

    @step
    def sums(self, query: DecryptionQuery, sums: Sums) -> list[bytes]:
        run = self._running(None, query)
        refuse(run.facts is None or run.config.fhe.compute == "client", "this run does not add up encrypted products")
        layout, facts = run.store
        assert run.secret is not None
        sums.check(len(query.starts))
        room = SlotLayout(facts.cliques, layout.domain, run.secret.ring.parameters.slots)
        refuse(sums.copies * sums.length > room.ciphertexts * room.slots, "a question asks for more than a store holds")
        brought = len(query.ciphertexts) * room.slots  # honest sums do not overlap
        refuse(not query.ciphertexts or sum(query.sizes) > brought, "a question asks for more slots than it brings")
        return run.reader.again(query, sums)

    # What every step begins with ------------------------------------------------------------------------------------

    def _running(self, order: PartyOrder | None, query: DecryptionQuery | None) -> KeptRun:
        run = self._begun
        if run is None:
            raise ProtocolError("no run has begun")
        if order is not None:
            run.ordered.take(order)
        if isinstance(order, ChooseOrder | OpenOrder):
            refuse(run.pads is not None and not run.pads.closed, "this run's store is not whole: nothing comes out yet")
        if query is not None:
            run.answer(len(query.ciphertexts))
        return run


def limits_of(config: RunConfig, clients: int) -> Limits:
    """Returns who must contribute to a sum, and who may be corrupted.

    The sum is over that many `clients`.
    """
    return Limits.of(config.aggregation, clients, config.federation.minimum_cohort)


def signed_keys(agreed: bytes, public: bytes, seal: bytes) -> bytes:
    """Returns the bytes that the crypto party signs for its keys.

    Each client checks them. They cover the keys, and all that makes the run what it is.

    Args:
        agreed: `fedsyn.stores.parties.interface.sealed_for`.
        public: of the ciphertexts.
        seal: of the boxes.
    """
    return hashlib.sha256(b"fedsyn store: keys" + agreed + hashlib.sha256(public).digest() + seal).digest()


def pooled_noise(sigma: float, limits: Limits, *, count: int, length: int, rows: int) -> DistributedNoise:
    """Returns an opening's noise, and the γ of its counts.

    They are the same at the server and at the key holder.

    Args:
        sigma: that is asked for, of one marginal.
        limits: who must have dealt, and who may be corrupted.
        count: marginals.
        length: cells of all.
        rows: bound on every count; 0 where nobody knows one.

    Raises:
        ConfigError: as `DistributedNoise.of_pool`.
    """
    return DistributedNoise.of_pool(
        sigma,
        asked=limits.asked,
        fewest=limits.fewest,
        corrupted=limits.corrupted,
        count=count,
        length=length,
        most=min(MOST_FACTOR, LARGEST // (2 * max(1, rows))),
    )


# Who its clients are, who of them contributes to what, and the pads that go with it -----------------------------------


class KeptRun(PartyRun):
    """A run, as the crypto party keeps it.

    It has the keys, and who contributes to what.
    """

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
        """Returns whether its clients could be made up, and it protects somebody."""
        return self._signers is None

    def contribute(self, order: TotalOrder, partition: int, box: bytes) -> None:
        """Takes one contributor of a sum.

        Raises RefusedDeal if its box cannot be used, or came before.
        """
        if partition in self.seeds:
            raise RefusedDeal(Fault.TWICE)
        if len(self.seeds) >= order.asked:
            raise RefusedDeal(Fault.MANY)
        self.seeds[partition] = self._opened(box, of_sum(order), partition)

    def deal(self, partition: int, box: bytes, most: int) -> None:
        """Takes one contributor of the store.

        Raises RefusedDeal as `contribute`, and if it allows for less than the run may release.
        """
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
    """Returns all clients' public keys, if the administrator agreed to them.

    None means that they could be made up.

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
