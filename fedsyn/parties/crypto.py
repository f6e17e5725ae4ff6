"""The crypto party: the only holder of a run's secret key, and what it lets out. It knows no transport.

FHAIM's crypto-service entity (Kumar et al. 2025, section 4). It makes a key pair for every run, decrypts what the
server has computed on ciphertexts, and answers with integers that are private already:

- *choice*: it reads noisy scores, adds a noise of its own and returns the index of the largest one. It is trusted with
  the scores (`selector: index`); or the scores carry Gaussian noise that is accounted in full, both its own and the
  server's, and it returns all of them (`selector: gaussian`);
- *opening*, *total*: the requested slots, which carry the clients' noise;
- *sums*: it adds up slots that are uniform to it and encrypts the sums again (`compute: packed | naive`). Nothing is
  opened.

**What it sees** besides configuration, schema and orders: of every ciphertext the requested sums or slots; of all
other slots numbers that are uniform, under a flood that hides how they came about (`fedsyn.fhe`). It never returns a
plaintext polynomial, nor a slot that was not asked for (Li & Micciancio 2021). It counts its answers and refuses what
comes after the last one that the mechanism has.

**What it trusts.** The server, to follow the protocol: it cannot see which numbers a ciphertext holds, nor how many
clients are in it. Both together could read everything. Order of things as at a computing party: checked, charged in the
run's ledger and in the book, drawn, out; after any error the run is over.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Limits
from fedsyn.counting.stored import StoredLayout, StoreFacts
from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.fhe.bfv import BfvReader
from fedsyn.fhe.parameters import MOST_FACTOR, most_answers
from fedsyn.fhe.plan import holders_of, layout_of, parameters_of, reader_of
from fedsyn.fhe.question import Asked, Sums
from fedsyn.fhe.seal import PublicKeys, SecretKeys
from fedsyn.parties.book import facts_of
from fedsyn.parties.checks import (
    Host,
    Orders,
    check_configuration,
    check_opening,
    checked,
    contract_of,
    ledger_of,
    plan_choice,
    refuse,
)
from fedsyn.parties.interface import (
    Announcement,
    ChooseOrder,
    OpenOrder,
    Order,
    PartyCost,
    TotalOrder,
    run_id,
    sealed_for,
)
from fedsyn.parties.steps import step
from fedsyn.privacy import EXPONENTIAL, DistributedNoise, Ledger, Release, SelectionNoise
from fedsyn.privacy.distributed import of_two
from fedsyn.privacy.release import COUNTS, ROLES
from fedsyn.selection.terms import Terms

_NONCE = 16


@dataclass(frozen=True)
class Begun:
    """What the crypto party answers to an announcement.

    Attributes:
        run: id, 32 bytes.
        keys: of the run.
        signature: over both, by the key of its certificate; empty in a simulation.
    """

    run: bytes
    keys: PublicKeys
    signature: bytes


class CryptoParty(Protocol):
    """The crypto party as a server sees it. Every method raises RunError, in one sentence, if it is gone, slow or
    refuses; the run is over then."""

    @property
    def costs(self) -> PartyCost:
        """What it has spent so far in this run; its messages are the server's, so it sends and takes part in none."""

    def begin(self, announcement: Announcement) -> Begun: ...

    def choose(self, order: ChooseOrder, asked: Asked) -> npt.NDArray[np.int64]:
        """(1,) the index; with `selector: gaussian` (m,) noisy scores."""

    def open(self, order: OpenOrder, asked: Asked) -> npt.NDArray[np.int64]:
        """The requested slots."""

    def total(self, order: TotalOrder, ciphertexts: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """(L,) the total of a sum."""

    def sums(self, asked: Asked, sums: Sums) -> list[bytes]:
        """Linear combinations of sums of slots, encrypted again."""

    def end(self) -> None: ...


class KeyHolder:
    """The crypto party's half of one run.

    Args:
        host: what it is, whatever the run.
        sign: signs what clients check against its card; None in a simulation.
    """

    def __init__(self, host: Host, sign: Callable[[bytes], bytes] | None = None) -> None:
        self.host, self._sign = host, sign
        self.over: str | None = None
        self._begun: _Run | None = None
        self.cpu = 0.0

    @property
    def cost(self) -> PartyCost:
        return PartyCost(0, 0, self.cpu)

    def stop(self, reason: str) -> None:
        """Ends the run; the secret key is gone. Later calls change nothing."""
        if self.over is not None:
            return
        self.over, run, self._begun = reason, self._begun, None
        if run is not None and self.host.book is not None:
            with contextlib.suppress(FedsynError):  # a ledger that cannot be written: its next reader ends the run
                self.host.book.end(run.id.hex())

    # Steps ------------------------------------------------------------------------------------------------------------

    @step
    def begin(self, announcement: Announcement) -> Begun:
        config = announcement.config
        check_configuration(announcement, self.host, "fhe")
        if self.host.cards is not None:
            refuse(config.aggregation.crypto != self.host.cards[0], "the configuration names another crypto party")
        contract, policy = contract_of(announcement), self.host.policy
        if self.host.cards is not None:
            checked(lambda: contract.trusted(config).check(config.federation.clients))
        refuse(policy.threat is not None, f"its policy demands aggregation.threat: {policy.threat}, not fhe's")
        theta, gone, most = config.aggregation.corrupted, config.aggregation.dropout, policy.dropout
        least = policy.corrupted
        refuse(theta < least, f"aggregation.corrupted is {theta:g}, and its policy demands at least {least:g}")
        if most is not None:
            refuse(gone > most, f"aggregation.dropout is {gone:g}, and its policy allows at most {most:g}")
        if contract.store:
            holders, minimum = holders_of(config), config.federation.minimum_cohort
            fewest, least = Limits.of(config.aggregation, holders, minimum).fewest, policy.minimum_clients
            refuse(fewest < least, f"its policy opens nothing below {least} clients, and the run does from {fewest} on")
        stored = tuple(contract.stored.cliques) if contract.store else ()
        refuse(stored != announcement.cliques, "the announced cliques are not those that the mechanism stores")
        ledger = ledger_of(announcement, contract.accountant)
        nonce = os.urandom(_NONCE)
        run = run_id(announcement, [nonce])
        facts = contract.store_facts if contract.store else None
        secret = SecretKeys(parameters_of(config, announcement.domain, facts))
        keys = secret.public
        signature = self._sign(signed(run, announcement, keys)) if self._sign is not None else b""
        begun = _Run(run, announcement, contract, facts, ledger, secret)
        if self.host.book is not None:
            self.host.book.begin(run.hex(), announcement.rho, **facts_of(config))
        self._begun = begun  # what is in the book gets its end from here on
        return Begun(run, keys, signature)

    @step
    def choose(self, order: ChooseOrder, asked: Asked) -> npt.NDArray[np.int64]:
        run = self._running(order, asked)
        layout, _ = run.store
        terms, limits = order.terms, self.host.policy.limits
        plan_choice(order, layout, limits, terms.rows, bounded=False)
        noise: Any
        if run.config.fhe.selector == "gaussian":
            vector: DistributedNoise = checked(lambda: gaussian_scores(order.epsilon, terms))
            self._charge(run, order, vector.release(order.name, order.round, noise_by=ROLES))
            scores = run.reader.scores(asked, terms)
            return run.ledger.distributed(
                scores,
                noise=vector,
                sigma=vector.sigma,
                sensitivity=vector.sensitivity,
                count=1,
                name=order.name,
                round=order.round,
                source=self._source(order),
            )
        noise = checked(lambda: SelectionNoise(order.epsilon, terms.moved))
        entry = Release(order.name, order.round, EXPONENTIAL, terms.sensitivity, epsilon=noise.epsilon, noise_by=ROLES)
        self._charge(run, order, entry)
        noisy = run.ledger.selection_share(
            run.reader.scores(asked, terms),
            noise=noise,
            draws=True,
            sensitivity=terms.sensitivity,
            name=order.name,
            round=order.round,
            source=self._source(order),
            noise_by=ROLES,
        )
        return np.array([int(np.argmax(noisy))])

    @step
    def open(self, order: OpenOrder, asked: Asked) -> npt.NDArray[np.int64]:
        run = self._running(order, asked)
        layout, _ = run.store
        check_opening(order, layout, self.host.policy.limits, run.least_sigma)
        cells = sum(layout.domain.size(clique) for clique in order.cliques)
        refuse(sum(asked.sizes) != cells, "an opening asks for other slots than its marginals have cells")
        limits = Limits.of(run.config.aggregation, holders_of(run.config), run.config.federation.minimum_cohort)
        noise: DistributedNoise = checked(
            lambda: DistributedNoise.of_pool(
                order.sigma,
                asked=limits.asked,
                fewest=limits.fewest,
                corrupted=limits.corrupted,
                count=len(order.cliques),
                length=cells,
                most=MOST_FACTOR,
            )
        )
        entry = noise.release(order.name, order.round, replaced=COUNTS, sampler="drawn by the clients, not seen here")
        self._charge(run, order, entry)
        run.ledger.charge(entry)
        return run.reader.numbers(asked)

    @step
    def total(self, order: TotalOrder, ciphertexts: Sequence[bytes]) -> npt.NDArray[np.int64]:
        run = self._running(order, None)
        run.answer(len(ciphertexts))
        policy, config = self.host.policy, run.config
        whole = all(type(n) is int and n > 0 for n in (order.count, order.length, order.asked, order.contributors))
        real = all(0.0 < value < math.inf for value in (order.sigma, order.sensitivity))
        refuse(not whole or not real or order.length > policy.limits.cells, "an order is malformed, or too large")
        everybody = config.federation.clients
        refuse(not order.contributors <= order.asked <= everybody, f"a sum asks at most the run's {everybody} clients")
        limits = Limits.of(config.aggregation, order.asked, config.federation.minimum_cohort)
        fewest = max(limits.fewest, policy.minimum_clients)
        if order.contributors < fewest:
            raise ProtocolError(f"{order.contributors} clients are in a sum, and nothing is opened below {fewest}")
        slots = run.secret.ring.parameters.slots
        refuse(len(ciphertexts) != -(-order.length // slots), "a sum brings another number of ciphertexts than it has")
        noise: DistributedNoise = checked(
            lambda: DistributedNoise.of(
                order.sigma,
                sensitivity=order.sensitivity,
                count=order.count,
                length=order.length,
                asked=limits.asked,
                fewest=limits.fewest,
                corrupted=limits.corrupted,
            )
        )
        entry = noise.release(order.name, order.round, sampler="drawn by the clients, not seen here")
        self._charge(run, order, entry)
        run.ledger.charge(entry)
        assert isinstance(run.reader, BfvReader)
        return run.reader.totals(ciphertexts, order.length)

    @step
    def sums(self, asked: Asked, sums: Sums) -> list[bytes]:
        run = self._running(None, asked)
        refuse(run.facts is None or run.config.fhe.compute == "client", "this run does not add up encrypted products")
        layout, facts = run.store
        sums.check(len(asked.starts))
        room = layout_of(run.secret.ring.parameters, layout.domain, facts)
        refuse(sums.copies * sums.length > room.ciphertexts * room.slots, "a question asks for more than a store holds")
        brought = len(asked.ciphertexts) * room.slots  # honest sums do not overlap
        refuse(not asked.ciphertexts or sum(asked.sizes) > brought, "a question asks for more slots than it brings")
        assert isinstance(run.reader, BfvReader)
        return run.reader.again(asked, sums)

    def end(self) -> None:
        self.stop("the server has ended it")

    # What every step begins with ------------------------------------------------------------------------------------

    def _running(self, order: Order | None, asked: Asked | None) -> _Run:
        run = self._begun
        if run is None:
            raise ProtocolError("no run has begun")
        if order is not None:
            run.ordered.take(order)
        if asked is not None:
            run.answer(len(asked.ciphertexts))
        return run

    def _charge(self, run: _Run, order: Order, entry: Release) -> None:
        """Enters into the book what the run's own ledger has room for; on the disk when this returns."""
        book = self.host.book
        if not run.ledger.can_afford(entry):
            run.ledger.charge(entry)  # raises, in the ledger's own words
        if book is not None:
            book.check(entry.rho)
            book.charge(run.id.hex(), entry.rho, name=order.name, round=order.round, number=order.number)

    def _source(self, order: Order) -> Any:
        return self.host.randomness.generator("party", 1, order.round, order.name, order.number)


class _Run:
    """What the crypto party keeps of a run, in memory alone."""

    def __init__(
        self,
        run: bytes,
        announcement: Announcement,
        contract: Any,
        facts: StoreFacts | None,
        ledger: Ledger,
        secret: SecretKeys,
    ) -> None:
        self.id, self.config, self.facts, self.ledger, self.secret = run, announcement.config, facts, ledger, secret
        self.layout = None if facts is None else StoredLayout(announcement.cliques, announcement.domain)
        self.reader = reader_of(secret)
        self.ordered, self.answered = Orders(contract, announcement.config), 0
        least = getattr(contract, "least_sigma", None)
        self.least_sigma: float | None = least(announcement.rho) if least is not None else None

    def answer(self, ciphertexts: int) -> None:
        """Counts what is decrypted; ProtocolError beyond what the flood was sized for."""
        self.answered += ciphertexts
        most = most_answers(self.secret.ring.parameters)
        refuse(self.answered > most, f"a run decrypts {most} ciphertexts, and no more")

    @property
    def store(self) -> tuple[StoredLayout, StoreFacts]:
        """ProtocolError in a run that forms sums."""
        if self.layout is None or self.facts is None:
            raise ProtocolError("this run forms sums: it has no store to choose from or to open")
        return self.layout, self.facts


def signed(run: bytes, announcement: Announcement, keys: PublicKeys) -> bytes:
    """What the crypto party signs and each client checks: the keys, and all that makes the run what it is."""
    agreed = sealed_for(run, announcement.config, announcement.domain, announcement.cliques)
    return signed_keys(agreed, keys.public)


def signed_keys(agreed: bytes, public: bytes) -> bytes:
    """The same from what a client knows: `fedsyn.parties.interface.sealed_for`, and the key that it was sent."""
    return hashlib.sha256(b"fedsyn store: keys" + agreed + hashlib.sha256(public).digest()).digest()


def gaussian_scores(epsilon: float, terms: Terms) -> DistributedNoise:
    """Noise of a choice whose scores anybody may see, at the price of a choice with this epsilon: rho epsilon²/8.

    One row moves score q by at most W_q times what it moves the norm, so the vector by `terms.moved_together` in L2.
    Server and crypto party each add the whole noise: whichever of the two is curious has the other's.
    """
    sigma = 2.0 * terms.moved_together / epsilon
    return of_two(sigma, sensitivity=float(terms.moved_together), length=len(terms.cliques))
