"""A crypto party as a `fedsyn party serve` process with TLS on localhost, driven as a deployment's server drives it.

Whatever goes wrong is one sentence at the server, nothing is opened, and the party's ledger is right afterwards. What
clients send here has no noise, so what comes out is exact but for the noise that the service draws itself: of choices,
and of the totals of clients whose keys it has not pinned.
"""

from __future__ import annotations

import re
import secrets
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from fedsyn.aggregation.base import Limits
from fedsyn.config import RunConfig, RuntimeNode, load_options
from fedsyn.crypto.fhe.bfv import BfvComputation, DecryptionQuery, Sums
from fedsyn.crypto.fhe.parameters import Parameters
from fedsyn.crypto.fhe.products import parameters_of
from fedsyn.crypto.fhe.seal import Encryptor, SecretKeys, added, ring_of, sealapi
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.crypto.primitives import KeyPair, apply_masks
from fedsyn.domain import Clique
from fedsyn.errors import ProtocolError, RunError
from fedsyn.front.testing.bench import equal_arrays
from fedsyn.front.testing.harness import Federation, Outcome, execute, finished
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.keys.party_keys import load_credentials
from fedsyn.keys.tls import channel_to
from fedsyn.privacy import DistributedNoise, PrivacyBudget
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.settings import PartyCard
from fedsyn.stores.crypto import CryptoKey
from fedsyn.stores.parties import connect, messages
from fedsyn.stores.parties.boxes import Pads, of_deal, of_sum, opening_of, seal_box
from fedsyn.stores.parties.crypto import KeyHolder, pooled_noise
from fedsyn.stores.parties.interface import Announcement, Begun, ChooseOrder, OpenOrder, TotalOrder, sealed_for
from fedsyn.stores.parties.lines import LINE, LOST, TAG, cut
from fedsyn.stores.parties.local import LocalCryptoParty
from fedsyn.stores.parties.sealing import DealFacts
from fedsyn.stores.parties.serving import METHOD
from fedsyn.stores.parties.steps import types_of
from fedsyn.table.counting.marginals import count
from fedsyn.wire.envelope import Arrays
from support.crypto_services import (
    CLIENTS,
    CODES,
    DOMAIN,
    NAME,
    PRIVATE,
    RHO,
    ROSTER,
    ROUNDS,
    TABLE,
    CryptoServices,
    Recorded,
)

pytest.importorskip("tenseal")


class Driven:
    """A run of the service by a server that knows every count, and gives openings no noise."""

    def __init__(self, services: CryptoServices, party: Recorded | None = None, **named: Any) -> None:
        self.services, self.party = services, party or services.remote()
        rho = named.pop("rho", RHO)
        self.config = services.config(**named)
        self.contract = contract_class(self.config.mechanism.name)(self.config, DOMAIN)
        self.facts = self.contract.store_facts if self.contract.store else None
        cliques = self.contract.stored.cliques if self.contract.store else ()
        self.announcement = Announcement(self.config, DOMAIN, cliques, rho, 1, secrets.token_bytes(16), CLIENTS)
        self.number = -1
        self.begun: Begun = self.party.begin(self.announcement)
        if self.facts is not None:
            self.parameters: Parameters = parameters_of(self.config)
            self.computation = BfvComputation(self.parameters, self.begun.keys)
            self.encryptor = Encryptor(self.parameters, self.begun.keys.public)
            self._fill()

    def _fill(self) -> None:
        """All counts at the first client, planes without noise, and every client's pads."""
        assert self.facts is not None
        self.layout = SlotLayout(self.facts.cliques, DOMAIN, self.parameters.slots)
        self.ranges = NoiseRanges(self.layout, self.facts.openings, self.facts.attributes)
        pads = Pads(self.layout, self.ranges.planes, self.computation.ring.modulus)
        facts, boxes = [DealFacts(self.announcement.rho, len(CODES)), *[DealFacts(self.announcement.rho, 0)] * 2], {}
        for k, told in enumerate(facts):
            seed, box = self.box(k, of_deal(told))
            pads.add(seed)
            boxes[k] = told.to_bytes() + box
        assert self.party.admit(None, boxes) == {}
        counts = self.layout.vector({q: exact([q]) for q in self.layout.cliques})
        planes = np.zeros(self.ranges.planes * self.layout.noisy, np.int64)
        stored, self.numbers = pads.on(counts, planes)
        minus = self.computation.read(self.party.unpad())
        self.counts = added(self.computation.ring, self.read(stored.astype(np.int64)), minus)

    def read(self, vector: npt.NDArray[np.int64]) -> list[Any]:
        return self.computation.read(self.encryptor.to_bytes(vector))

    def box(self, k: int, facts: bytes, signed: bool = True) -> tuple[bytes, bytes]:
        """A seed of a client, and the box with it."""
        agreed = sealed_for(self.begun.run, self.config, DOMAIN, self.announcement.cliques)
        identity = simulated_identities(k, CLIENTS)[0] if signed else None
        return seal_box(facts, agreed, k, self.begun.seal, identity)

    @property
    def id(self) -> str:
        return self.begun.run.hex()

    def choice(self, best: int = 0, epsilon: float = 0.01) -> tuple[ChooseOrder, DecryptionQuery]:
        """One whose outcome is certain: the penalties of all other cliques are far beyond the noise."""
        self.number += 1
        cliques = [q for q in self.contract.candidates.cliques if len(q) == 2]
        p = [np.full(DOMAIN.size(q), 1 / DOMAIN.size(q)) for q in cliques]
        cells, weights, n = np.array([float(len(x)) for x in p]), np.ones(len(p)), len(CODES)
        terms = ChoiceTerms.of("squared_l2", cliques, p, weights, cells, sigma=10.0, size=n, rows=n)
        penalties = np.full(len(p), 2**40)
        penalties[best] = 0
        terms = replace(terms, penalties=penalties)
        asked = self.computation.scores(self.counts, self.layout, terms, np.zeros(len(p), np.int64))
        return ChooseOrder(self.number, "select", 1, epsilon, terms), asked

    def opening(
        self, cliques: Sequence[Clique] | None = None, sigma: float = 20.0
    ) -> tuple[OpenOrder, tuple[bytes, ...]]:
        """`self.factor` is then what its counts are multiplied by."""
        self.number += 1
        cliques = tuple(cliques or ((name,) for name in DOMAIN))
        cells = sum(DOMAIN.size(clique) for clique in cliques)
        facts = {"count": len(cliques), "length": cells, "rows": len(CODES)}
        limits = Limits.of(self.config.aggregation, CLIENTS, self.config.federation.minimum_cohort)
        self.factor = pooled_noise(sigma, limits, **facts).resolution
        pieces = self.ranges.reserve(cliques)
        padded = opening_of(self.numbers, self.layout, pieces, self.factor, self.computation.ring.modulus)
        return OpenOrder(self.number, "measure", 1, sigma, cliques), (padded.astype("<u8").tobytes(),)

    def total(self, contributors: int = CLIENTS, length: int = 40) -> tuple[TotalOrder, npt.NDArray[np.uint64]]:
        """Each client's vector is 0, 1, 2, ... times its number; who contributes is named already."""
        self.number += 1
        order = TotalOrder(self.number, "measure", 1, 40.0, 1.0, 1, length, CLIENTS)
        whole, boxes = np.zeros(length, np.uint64), {}
        for k in range(contributors):
            seed, boxes[k] = self.box(k, of_sum(order))
            apply_masks(whole, [seed], [])
            whole += (k + 1) * np.arange(length, dtype=np.uint64)
        assert self.party.admit(order, boxes) == {}
        return order, whole


def exact(cliques: Sequence[Clique]) -> npt.NDArray[np.int64]:
    return np.concatenate([table.ravel() for table in count(CODES, DOMAIN, list(cliques))]).astype(np.int64)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CryptoServices]:
    started = CryptoServices(tmp_path_factory.mktemp("crypto"), operators=("operator", "second"), idle=600.0)
    try:
        yield started
    finally:
        started.close()
        assert started.process is not None and started.process.poll() is not None


@pytest.fixture
def services(running: CryptoServices) -> Iterator[CryptoServices]:
    """Shared by the tests that leave it running."""
    yield running
    running.end_runs()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., CryptoServices]]:
    """Starts a service for one test."""
    started: list[CryptoServices] = []

    def start(**named: Any) -> CryptoServices:
        started.append(CryptoServices(tmp_path, **named))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.close()


def one_sentence(error: pytest.ExceptionInfo[RunError], *said: str) -> None:
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text and "internal" not in text and len(text) < 400, text
    assert all(re.search(part, text) for part in said), text


def at(services: CryptoServices) -> str:
    return re.escape(f"the crypto party '{NAME}' ({services.card.address})")


def refused(services: CryptoServices, run: Driven, step: Callable[[], Any], *said: str, charged: float = 0.0) -> None:
    """One sentence, nothing opened, the run over, and in the book what was charged before it was found out."""
    before, answered = services.spent, len(run.party.heard)
    with pytest.raises(RunError) as caught:
        step()
    one_sentence(caught, at(services), "nothing was opened", *said)
    assert len(run.party.heard) - answered <= 1, "the end of the run alone is answered"
    with pytest.raises(RunError, match="has no run"):
        run.party.open(*run.opening()) if run.facts else run.party.total(*run.total())
    assert services.spent - before == pytest.approx(charged) and services.book.open is None
    assert run.id in services.book.runs


# Runs ----------------------------------------------------------------------------------------------------------------


class Deployed(Recorded):
    """The service for a seeded simulation: it is announced as the deployment that it is to the service.

    A configuration's hash, to which clients encrypt and which the service signs, has no runtime.
    """

    def begin(self, announcement: Announcement) -> Begun:
        config = announcement.config.model_copy(update={"runtime": RuntimeNode(engine="deployment")})
        assert config.sha256 == announcement.config.sha256
        return super().begin(replace(announcement, config=config))

    def choose(self, order: ChooseOrder, asked: DecryptionQuery) -> npt.NDArray[np.int64]:
        self.chosen = [*getattr(self, "chosen", []), super().choose(order, asked)]
        return self.chosen[-1]


class Told(LocalCryptoParty):
    """A simulation's party, whose noise of choices is taken to be the service's: it chooses what that one chose."""

    chosen: Iterator[npt.NDArray[np.int64]]

    def choose(self, order: ChooseOrder, asked: DecryptionQuery) -> npt.NDArray[np.int64]:
        super().choose(order, asked)
        return next(self.chosen)


def both(services: CryptoServices, monkeypatch: pytest.MonkeyPatch, mechanism: str, **nodes: Any) -> list[Outcome]:
    """The same seeded run with the service, and with a simulation's party."""
    config = services.config(mechanism, **nodes)
    config = config.model_copy(update={"runtime": RuntimeNode(seed=4)})
    federation = Federation(TABLE, tuple(CODES[k::CLIENTS] for k in range(CLIENTS)))
    remote, local = Deployed(services.card, services.folder / "operator"), Told(Randomness(4))
    outcomes = []
    for party in (remote, local):
        if party is local:
            local.chosen = iter(getattr(remote, "chosen", []))
        monkeypatch.setattr(connect, "connect_crypto", lambda config, randomness, party=party: party)
        outcomes.append(finished(execute(config, federation)))
    if _facts(config) is not None:
        no_secret_in(remote.heard, parameters_of(config))
    return outcomes


def _facts(config: RunConfig) -> Any:
    contract = contract_class(config.mechanism.name)(config, DOMAIN)
    return contract.store_facts if contract.store else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "nodes"),
    [
        ("fhaim", {}),
        ("sketch_aim", {}),
        ("distributed_aim", {"privacy": PRIVATE}),
    ],
)
def test_a_run_with_the_service_is_the_run_of_a_simulation(
    services: CryptoServices, monkeypatch: pytest.MonkeyPatch, mechanism: str, nodes: dict[str, Any]
) -> None:
    """Bit for bit, but for the noise of choices, which the service draws itself; and the books agree."""
    before = services.spent
    ours, theirs = (outcome.strategy for outcome in both(services, monkeypatch, mechanism, **nodes))
    assert ours.model is not None and theirs.model is not None
    assert equal_arrays(ours.model.to_arrays(), theirs.model.to_arrays())
    assert ours.ledger.releases == theirs.ledger.releases
    assert [record.selected for record in ours.records] == [record.selected for record in theirs.records]
    book, party = services.book, sum(entry.rho for entry in ours.ledger.releases if entry.name != "sizes")
    assert book.spent - before == pytest.approx(party) and book.open is None
    announced, spent = list(book.runs.values())[-1]
    assert spent == pytest.approx(party) and announced >= spent * (1 - 1e-9)


@pytest.mark.parametrize("mechanism", ["fhaim", "sketch_aim"])
def test_a_run_whose_clients_know_the_card_and_nobody_knows_a_seed(services: CryptoServices, mechanism: str) -> None:
    """As in a deployment: `connect_crypto` finds the service, and clients check its signature."""
    federation = Federation(TABLE, tuple(CODES[k::CLIENTS] for k in range(CLIENTS)))
    before = services.spent
    outcome = finished(execute(services.config(mechanism), federation))
    assert outcome.dropped == set() and outcome.strategy.ledger.private
    charged = sum(entry.rho for entry in outcome.strategy.ledger.releases)
    assert services.spent - before == pytest.approx(charged)


# Answers -------------------------------------------------------------------------------------------------------------


def test_choices_and_openings(services: CryptoServices) -> None:
    before = services.spent
    run = Driven(services)
    assert [run.party.choose(*run.choice(best=best)).tolist() for best in (3, 0)] == [[3], [0]]
    order, asked = run.opening()
    assert np.array_equal(run.party.open(order, asked), run.factor * exact(order.cliques))
    pair = run.contract.candidates.cliques[-1]
    assert np.array_equal(run.party.open(*run.opening([pair])), run.factor * exact([pair]))
    assert run.party.costs[0].cpu > 0
    no_secret_in(run.party.heard, run.parameters)
    run.party.end()
    run.party.end()
    expected = 2 * 0.01**2 / 8 + (len(DOMAIN) + 1) / (2 * 20.0**2)
    assert services.spent - before == pytest.approx(expected)
    services.wait_for("the run is over: its server has ended it")
    assert services.book.open is None and services.book.runs[run.id] == [pytest.approx(RHO), pytest.approx(expected)]


def test_totals(services: CryptoServices) -> None:
    before = services.spent
    run = Driven(services, mechanism="sketch_aim")
    assert run.party.total(*run.total()).tolist() == [6 * i for i in range(40)]
    assert run.party.total(*run.total(length=20_000)).tolist() == [6 * i for i in range(20_000)]
    run.party.end()
    assert services.spent - before == pytest.approx(2 / (2 * 40.0**2), rel=1e-6)


@pytest.mark.slow
def test_totals_of_clients_who_could_be_made_up_carry_the_whole_noise_once_more(
    fresh: Callable[..., CryptoServices],
) -> None:
    """Whose configuration the party has not pinned. The standard deviation of 20,000 entries is within 5 of its own
    1/sqrt(2 L): one that is right is farther once in a million runs."""
    services, length = fresh(pinned=None), 20_000
    run = Driven(services, mechanism="sketch_aim")
    order, whole = run.total(length=length)
    noise = run.party.total(order, whole) - 6 * np.arange(length)
    run.party.end()
    limits = Limits.of(run.config.aggregation, CLIENTS, run.config.federation.minimum_cohort)
    facts = {"asked": CLIENTS, "fewest": limits.fewest, "corrupted": limits.corrupted}
    plan = DistributedNoise.of(40.0, sensitivity=1.0, count=1, length=length, **facts)
    assert run.begun.adds and abs(noise.std() / (40.0 * plan.resolution) - 1.0) < 5.0 / np.sqrt(2.0 * length)
    assert services.spent == pytest.approx(1 / (2 * 40.0**2), rel=1e-6), "and is charged once"


def test_each_run_has_a_key_of_its_own(services: CryptoServices) -> None:
    runs = []
    for _ in range(2):
        runs.append(Driven(services))
        runs[-1].party.end()
    one, other = (run.begun for run in runs)
    assert one.keys.public != other.keys.public and one.seal != other.seal and runs[0].id != runs[1].id


# The secret key ------------------------------------------------------------------------------------------------------


def secrets_in(raw: bytes, parameters: Parameters) -> int:
    """How many objects of SEAL begin anywhere in some bytes that can be read as a secret key."""
    ring, found = ring_of(parameters), 0
    magic = ring.to_bytes(ring.api.Plaintext("1"))[:3]  # and the size of the header
    for match in re.finditer(re.escape(magic), raw):
        try:
            ring.read("SecretKey", raw[match.start() :])
        except ProtocolError:
            continue
        found += 1
    return found


def no_secret_in(heard: Sequence[bytes], parameters: Parameters) -> None:
    assert heard and sum(map(len, heard)) > 100_000
    for raw in heard:
        assert secrets_in(raw, parameters) == 0
        for blob in messages.parts_of(raw)[1]:
            with pytest.raises(ProtocolError):
                ring_of(parameters).read("SecretKey", blob)


def test_a_secret_key_among_other_bytes_would_be_found(services: CryptoServices) -> None:
    """Of the search, not of the service: also in the middle of something else."""
    run = Driven(services)
    run.party.end()
    ring, api = ring_of(run.parameters), sealapi()
    raw = ring.to_bytes(api.KeyGenerator(ring.context).secret_key())
    assert secrets_in(raw, run.parameters) == 1
    assert secrets_in(b"x" * 77 + raw + run.begun.keys.public, run.parameters) == 1
    assert secrets_in(b"".join(run.party.heard), run.parameters) == 0


# What clients check --------------------------------------------------------------------------------------------------


def test_clients_take_no_key_that_their_party_has_not_signed_for_their_run(services: CryptoServices) -> None:
    run = Driven(services)
    invitation = arrays(run.begun)
    run.party.end()
    other = Driven(services)
    other.party.end()
    key = CryptoKey(run.config, DOMAIN, run.announcement.cliques)
    read = key.read(invitation)
    assert (read.public, read.seal) == (run.begun.keys.public, run.begun.seal)
    own, foreign = run.begun, other.begun
    services.keygen("impostor", "--address", services.card.address)
    impostor = load_options(PartyCard, services.folder / "impostor/card.yaml")
    wrong: list[tuple[CryptoKey, Arrays]] = [
        (key, arrays(replace(own, keys=foreign.keys))),  # a key of another run
        (key, arrays(replace(own, seal=foreign.seal))),
        (key, arrays(replace(own, run=foreign.run))),  # for another run
        (key, arrays(replace(own, signature=foreign.signature))),
        (key, arrays(replace(own, signature=b""))),
        (key, arrays(replace(own, keys=replace(own.keys, public=b"")))),
        (replace(key, config=services.config(privacy={"epsilon": 1.5})), invitation),
        (replace(key, config=services.config(options={"rounds": None})), invitation),
        (replace(key, config=services.config(card=impostor)), invitation),
        (replace(key, cliques=key.cliques[1:]), invitation),
        (replace(key, domain=replace(DOMAIN, shape=tuple(n + 1 for n in DOMAIN.shape))), invitation),
    ]
    for client, sent in wrong:
        with pytest.raises(ProtocolError, match=r"^the run's keys were not signed for it by the crypto party"):
            client.read(sent)
    for sent in ([], invitation[:3], [invitation[0][:5], *invitation[1:]], [a.astype(np.int64) for a in invitation]):
        with pytest.raises(ProtocolError, match="does not bring its run and the crypto party's keys"):
            key.read(sent)
    document = run.config.model_copy(update={"aggregation": run.config.aggregation.model_copy(update={"crypto": None})})
    with pytest.raises(ProtocolError, match=r"aggregation\.crypto is missing"):
        replace(key, config=document).read(invitation)


class Forged(Recorded):
    """A server that would have clients encrypt to a key of its own."""

    def begin(self, announcement: Announcement) -> Begun:
        begun, facts = super().begin(announcement), _facts(announcement.config)
        if facts is None:
            return replace(begun, seal=KeyPair().public)
        return replace(begun, keys=SecretKeys(parameters_of(announcement.config)).public)


@pytest.mark.parametrize("mechanism", ["fhaim", "sketch_aim"])
def test_a_server_with_a_key_of_its_own_gets_nothing(
    services: CryptoServices, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    """Not even a charge: clients look at the signature first."""
    forged = Forged(services.card, services.folder / "operator")
    monkeypatch.setattr(connect, "connect_crypto", lambda config, randomness: forged)
    federation = Federation(TABLE, tuple(CODES[k::CLIENTS] for k in range(CLIENTS)))
    outcome = execute(services.config(mechanism), federation)
    assert isinstance(outcome.error, RunError) and outcome.dropped == {0, 1, 2}
    assert "the run's keys were not signed for it by the crypto party" in str(outcome.error)
    assert not outcome.strategy.ledger.releases and not any(led.releases for led in outcome.ledgers.values())
    assert services.book.open is None


def arrays(begun: Begun) -> Arrays:
    return [np.frombuffer(piece, np.uint8) for piece in (begun.run, begun.keys.public, begun.seal, begun.signature)]


# Refused -------------------------------------------------------------------------------------------------------------


def test_a_replayed_order_ends_the_run(services: CryptoServices) -> None:
    run = Driven(services)
    order, asked = run.opening()
    run.party.open(order, asked)
    refused(services, run, lambda: run.party.open(order, asked), "order 0 is not later than order 0")
    run = Driven(services)
    first, second = run.choice(), run.opening()
    run.party.open(*second)
    refused(services, run, lambda: run.party.choose(*first), "order 0 is not later than order 1")


def test_an_order_by_another_norm_than_the_runs_score(services: CryptoServices) -> None:
    run = Driven(services)
    order, asked = run.choice()
    order = replace(order, terms=replace(order.terms, norm="l1"))
    refused(services, run, lambda: run.party.choose(order, asked), "by another norm", "this run's score is squared_l2")


def test_there_is_no_choice_after_the_last_one(services: CryptoServices) -> None:
    run = Driven(services)
    for _ in range(ROUNDS):
        run.party.choose(*run.choice())
    again = run.choice()
    refused(services, run, lambda: run.party.choose(*again), f"this run has {ROUNDS} choices, and no more")


def test_there_is_no_opening_after_the_last_one(services: CryptoServices) -> None:
    run = Driven(services)
    order, asked = run.opening([("age",)])
    run.party.open(order, asked)
    for _ in range(ROUNDS):
        run.party.open(*run.opening([("age",)]))
    again = replace(order, number=ROUNDS + 1)
    refused(services, run, lambda: run.party.open(again, asked), f"this run has {ROUNDS + 1} openings, and no more")


def test_a_total_of_too_few_clients(services: CryptoServices) -> None:
    """The fewest for which the noise was sized; a party's own minimum counts too."""
    run = Driven(services, mechanism="sketch_aim")
    few = run.total(contributors=2)
    refused(services, run, lambda: run.party.total(*few), "2 clients are in it, and nothing is opened below 3")


@pytest.mark.slow
def test_a_run_of_fewer_clients_than_the_party_wants(fresh: Callable[..., CryptoServices]) -> None:
    services = fresh(policy={"minimum_clients": 4})
    for mechanism in ("fhaim", "sketch_aim"):
        with pytest.raises(RunError) as caught:
            Driven(services, mechanism=mechanism)
        one_sentence(caught, at(services), "its policy lets nothing out below 4 clients, and the run has 3")
    assert services.book.entries == []


@pytest.mark.slow
def test_a_run_whose_noise_rests_on_more_than_the_party_wants(fresh: Callable[..., CryptoServices]) -> None:
    """By default a party refuses what counts on nobody who knows its own share."""
    services = fresh(policy={"dropout": 0.05}, pinned=None)
    asked = {
        "aggregation.corrupted is 0, and its policy demands at least 0.05": {"corrupted": 0.0},
        "aggregation.dropout is 0.1, and its policy allows at most 0.05": {},
    }
    for said, aggregation in asked.items():
        with pytest.raises(RunError) as caught:
            Driven(services, mechanism="sketch_aim", aggregation=aggregation)
        one_sentence(caught, at(services), said)
    assert services.book.entries == []


@pytest.mark.slow
def test_an_order_of_another_kind_of_run(services: CryptoServices) -> None:
    store = Driven(services)
    order, asked = store.opening()
    _, choice = store.choice()
    chosen = replace(store.choice()[0], number=9)
    total = TotalOrder(3, "measure", 1, 40.0, 1.0, 1, 40, CLIENTS)
    refused(services, store, lambda: store.party.admit(total, {}), "this run keeps a store")
    again = Sums.of([(0, 0, 1)], 8, 1)
    for step, said in (
        (lambda run: run.party.open(order, asked), "this run forms sums: it has no store"),
        (lambda run: run.party.choose(chosen, choice), "this run forms sums: it has no store"),
        (lambda run: run.party.sums(choice, again), "does not add up encrypted products"),
        (lambda run: run.party.unpad(), "has no pads to take off"),
        (lambda run: run.party.admit(None, {}), "this run forms sums: it has no store"),
    ):
        run = Driven(services, mechanism="sketch_aim")
        refused(services, run, partial(step, run), said)
    run = Driven(services)
    question = run.choice()[1]
    refused(services, run, lambda: run.party.sums(question, again), "does not add up encrypted products")


def test_less_noise_than_the_run_has(services: CryptoServices) -> None:
    run = Driven(services)
    thin = run.opening(sigma=1.0)
    refused(services, run, lambda: run.party.open(*thin), "an opening with sigma 1 is asked for, and this run has")
    run = Driven(services, mechanism="sketch_aim")
    thin_order = TotalOrder(0, "measure", 1, 0.5, 1.0, 1, 40, CLIENTS)
    run.party.admit(thin_order, {k: run.box(k, of_sum(thin_order))[1] for k in range(CLIENTS)})
    nothing = np.zeros(40, np.uint64)
    refused(services, run, lambda: run.party.total(thin_order, nothing), r"costs 4 mu², but only \S+ of \S+ is left")


def test_questions_that_do_not_fit(services: CryptoServices) -> None:
    """What is found out before the charge costs nothing; what only decryption shows stays charged."""
    cases: list[Callable[[tuple[bytes, ...]], tuple[bytes, ...]]] = [
        lambda sent: (),
        lambda sent: sent * 2,
        lambda sent: (b"",),
        lambda sent: (sent[0][:-8],),
        lambda sent: (sent[0] * 3,),
    ]
    for change in cases:
        run = Driven(services)
        order, sent = run.opening()
        cells = sum(DOMAIN.size(clique) for clique in order.cliques)
        said = f"brings something else than its {cells} padded numbers"
        refused(services, run, partial(run.party.open, order, change(sent)), said)
    damage: list[tuple[Callable[[bytes], bytes], str]] = [
        (lambda sent: b"", "the bytes of a Ciphertext are damaged"),
        (lambda sent: sent[:-9], "the bytes of a Ciphertext are damaged"),
        (lambda sent: sent * 3, "larger than its parameters allow"),
        (lambda sent: run.encryptor.to_bytes(np.arange(5))[0], "is not of the kind that was asked for"),
    ]
    for harm, said in damage:
        run = Driven(services)
        chosen, question = run.choice()
        harmed = replace(question, ciphertexts=(harm(question.ciphertexts[0]), *question.ciphertexts[1:]))
        refused(services, run, partial(run.party.choose, chosen, harmed), said, charged=0.01**2 / 8)
    run = Driven(services)
    chosen, question = run.choice()
    short = replace(question, offsets=question.offsets[1:])
    refused(services, run, lambda: run.party.choose(chosen, short), "does not fit the terms", charged=0.01**2 / 8)


def test_totals_that_do_not_fit(services: CryptoServices) -> None:
    """All of it is public, and found out before the charge."""
    for change, said in (
        ({"length": 10**9}, "malformed, or large"),
        ({"length": 0}, "malformed, or large"),
        ({"count": "all"}, "a message is malformed"),
        ({"sigma": float("nan")}, "a message is malformed"),
        ({"sensitivity": 0.0}, "malformed, or large"),
        ({"asked": True}, "a message is malformed"),
        ({"asked": CLIENTS + 1}, "asks at most the run's 3 clients"),
        ({"name": ""}, "an order is malformed"),
        ({"round": -1}, "an order is malformed"),
    ):
        run = Driven(services, mechanism="sketch_aim")
        order = replace(TotalOrder(0, "measure", 1, 40.0, 1.0, 1, 40, CLIENTS), **change)
        refused(services, run, partial(run.party.admit, order, {}), said)
    for change, length, said in (
        ({}, 39, "another length than its order"),
        ({"sigma": 80.0}, 40, "to which no client has contributed, or a second time"),
        ({"number": 7}, 40, "to which no client has contributed, or a second time"),
    ):
        run = Driven(services, mechanism="sketch_aim")
        order, whole = run.total()
        refused(services, run, partial(run.party.total, replace(order, **change), whole[:length]), said)


def test_another_run_is_refused_while_one_is_under_way(services: CryptoServices) -> None:
    run = Driven(services)
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote("second"))
    one_sentence(caught, at(services), "is busy with another run", "nothing was opened")
    order, asked = run.opening()
    assert np.array_equal(run.party.open(order, asked), run.factor * exact(order.cliques)), "the first run goes on"
    run.party.end()
    Driven(services, services.remote("second")).party.end()


def test_an_abandoned_run_is_dropped_and_makes_room(services: CryptoServices) -> None:
    times = services.log().count("the connection to its server broke")
    run = Driven(services)
    for channel in run.party._channels:  # as if the server's machine had stopped
        channel.close()
    run.party._channels = []
    services.wait_for("the connection to its server broke", times + 1)
    Driven(services).party.end()
    assert services.book.runs[run.id][1] == 0.0 and services.book.open is None


def test_an_operator_whose_certificate_is_not_pinned(services: CryptoServices) -> None:
    services.keygen("stranger", "--operator")
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote("stranger"))
    one_sentence(caught, at(services), "does not accept the certificate of this side", "nothing was opened")


def test_another_certificate_than_the_card_has(services: CryptoServices) -> None:
    services.keygen("other", "--address", services.card.address)
    wrong = services.card.model_copy(
        update={"certificate": load_options(PartyCard, services.folder / "other/card.yaml").certificate}
    )
    with pytest.raises(RunError) as caught:
        Driven(services, services.remote(card=wrong))
    one_sentence(caught, at(services), "shows another certificate than its card has")


@pytest.mark.slow
def test_configurations_that_the_party_refuses(fresh: Callable[..., CryptoServices]) -> None:
    """Before a key is made; the service goes on. Of a store it must know the clients, and be able to bind them."""
    services = fresh(pinned=None)
    sums = {"mechanism": "sketch_aim"}
    for nodes, said in (
        ({**sums, "card": services.card.model_copy(update={"key": "ab" * 32})}, "names another crypto party"),
        ({**sums, "card": services.card.model_copy(update={"name": "older"})}, "names another crypto party"),
        ({**sums, "federation": {"clients": 10**6}}, "its policy allows 10000 clients"),
        ({"mechanism": "distaim", "options": {"score": "squared_l2"}}, "its policy allows 'fhaim', 'sketch_aim'"),
        ({**sums, "rho": 2 * RHO}, "its policy allows epsilon = 1 at delta = 1e-05 per run"),
        ({}, "a store's clients could be made up: .* aggregation.roster, and this party's policy.configurations"),
    ):
        with pytest.raises(RunError) as caught:
            Driven(services, **nodes)
        one_sentence(caught, at(services), said, "nothing was opened")
    assert services.book.entries == []
    Driven(services, **sums).party.end()


@pytest.mark.slow
def test_configurations_that_the_party_has_pinned_wrongly(fresh: Callable[..., CryptoServices]) -> None:
    """With the keys of some clients, or one key twice."""
    rosters = ({k: ROSTER[k] for k in range(2)}, {**ROSTER, 1: ROSTER[0]})
    wrong: list[dict[str, Any]] = [{"mechanism": "sketch_aim", "aggregation": {"roster": own}} for own in rosters]
    services = fresh(pinned=wrong)
    for nodes in wrong:
        with pytest.raises(RunError) as caught:
            Driven(services, **nodes)
        one_sentence(caught, at(services), "a key of its own for each of the clients 0 to 2", "nothing was opened")


def test_a_simulation_is_refused(services: CryptoServices) -> None:
    config = services.config()
    contract = contract_class("fhaim")(config, DOMAIN)
    for runtime, said in (
        (RuntimeNode(), "takes part in no simulation"),
        (RuntimeNode(engine="deployment").model_copy(update={"seed": 3}), "malformed|a seed that others know"),
    ):
        simulated = config.model_copy(update={"runtime": runtime})
        announced = Announcement(simulated, DOMAIN, contract.stored.cliques, RHO, 1, secrets.token_bytes(16), CLIENTS)
        with pytest.raises(RunError) as caught:
            services.remote().begin(announced)
        one_sentence(caught, at(services), said)


# Hostile callers -----------------------------------------------------------------------------------------------------


def call(
    services: CryptoServices, caller: str, method: str, frames: Sequence[bytes], tag: str | None = "0" * 32
) -> grpc.RpcError:
    """The error of one call by whoever has the keys in a folder."""
    channel = channel_to(services.card.address, services.card.certificate, load_credentials(services.folder / caller))
    try:
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(method)(iter(frames), timeout=10.0, metadata=((TAG, tag),) if tag else ())
        return caught.value
    finally:
        channel.close()


def test_there_are_no_lines_and_no_other_methods(services: CryptoServices) -> None:
    assert call(services, "operator", LINE, [b"\1x"]).details() == "an operator is not a party"
    for method in ("deal", "nonsense"):
        assert call(services, "operator", METHOD + method, [b"\1x"]).details() == "Method not found!"


HEAD = struct.Struct("<I")
NESTED = b"[" * 50_000
JUNK = [
    b"",
    b"\0",
    b"\xff" * 40,
    messages.message_of({}),
    messages.message_of({"kind": "open"}),
    messages.message_of([]),
    messages.message_of({}, [b""]),
    messages.message_of([], [b"Alice"] * 6),
    messages.message_of([{"kind": "open", "number": "Alice"}, None], [b"{}"]),
    messages.message_of([{"number": "Alice", "name": ["Alice"], "cliques": "Alice"}], [b"{}", b"1234567"]),
    HEAD.pack(len(NESTED)) + NESTED,
    HEAD.pack(2**32 - 1) + b"x",
]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["begin", "admit", "choose", "open", "total", "sums"])
def test_malformed_calls_end_neither_the_service_nor_the_run_and_quote_nothing(
    services: CryptoServices, method: str
) -> None:
    run = Driven(services)
    before, tag = services.spent, run.announcement.nonce.hex()
    broken = [*JUNK, *_broken(run)]
    for message in broken:
        error = call(services, "operator", METHOD + method, list(cut(message)), tag)
        assert error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert re.search("malformed|different versions|busy", error.details()), error.details()
        assert "Alice" not in error.details() and "\n" not in error.details()
    for frames in ([], [b""], [b"\7x"], [b"\0x"]):
        assert re.search("malformed|busy", call(services, "operator", METHOD + method, frames, tag).details())
    assert "does not name its run" in call(services, "operator", METHOD + method, [b"\1x"], None).details()
    assert "Alice" not in services.log() and "Traceback" not in services.log()
    assert services.spent == before
    assert run.facts is not None
    run.number, run.ranges = -1, NoiseRanges(run.layout, run.facts.openings, run.facts.attributes)  # none was taken
    order, asked = run.opening()
    assert np.array_equal(run.party.open(order, asked), run.factor * exact(order.cliques))
    run.party.end()


def _broken(run: Driven) -> list[bytes]:
    """Real orders, each with something wrong that reading alone shows."""
    order, sent = run.opening()
    chosen, question = run.choice()
    total = TotalOrder(9, "measure", 1, 40.0, 1.0, 1, 40, CLIENTS)
    opening, choice = call_of(KeyHolder.open, order, sent), call_of(KeyHolder.choose, chosen, question)
    (named, boxes), _ = messages.parts_of(call_of(KeyHolder.admit, total, {0: b"x"}))
    (ordered, ranges), blobs = messages.parts_of(choice)
    facts, sums = messages.parts_of(call_of(KeyHolder.sums, question, Sums.of([(0, 0, 1)], 8, 1)))
    wrong_ranges: list[Any] = [{**ranges, "starts": [1.5]}, {**ranges, "starts": 3}, {"starts": 3}, "Alice", []]
    wrong_names: list[Any] = [[[0, None], [0, None]], [["Alice", None]], [[0]], [0], {"0": None}, None]
    return [
        opening[:-1],
        choice + b"x",
        *(messages.message_of([named, wrong], [b"x"]) for wrong in wrong_names),
        messages.message_of([named, boxes], []),
        messages.message_of([{**named, "sigma": "Alice"}, boxes], [b"x"]),
        messages.message_of([named, None], [b"1234567"]),
        *(messages.message_of([ordered, wrong], blobs) for wrong in wrong_ranges),
        messages.message_of([{}, ranges], blobs),
        messages.message_of([facts[0], {}], sums),
        messages.message_of(facts, [*sums[:-1], b"seven"]),
        messages.message_of(facts, sums[:-2]),
    ]


def call_of(step: Callable[..., Any], *arguments: Any) -> bytes:
    return messages.pack(types_of(step)[0], arguments)


# A party that is gone ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_party_that_was_killed_between_orders(services: CryptoServices) -> None:
    run = Driven(services)
    run.party.choose(*run.choice())
    before = services.spent
    services.kill()
    try:
        with pytest.raises(RunError) as caught:
            run.party.open(*run.opening())
        one_sentence(caught, at(services), f"{LOST}; nothing was opened")
        with pytest.raises(RunError) as caught:
            Driven(services)
        one_sentence(caught, at(services), "does not listen there")
        assert services.spent == before and services.book.open == run.id
    finally:
        services.start()
    assert services.book.open is None, "the next start ended the run that the killed process had"
    assert services.spent == before and services.book.runs[run.id][1] == pytest.approx(0.01**2 / 8)
    again = Driven(services)
    order, asked = again.opening()
    assert np.array_equal(again.party.open(order, asked), again.factor * exact(order.cliques))
    again.party.end()


@pytest.mark.slow
def test_a_party_that_is_killed_in_the_middle_of_an_order(services: CryptoServices) -> None:
    """What was charged stays charged, and nothing came out."""
    run = Driven(services)
    before = services.spent
    services.signal(signal.SIGSTOP)
    timer = threading.Timer(0.3, services.kill)
    timer.start()
    try:
        with pytest.raises(RunError) as caught:
            run.party.open(*run.opening())
        one_sentence(caught, at(services), f"{LOST}; nothing was opened")
    finally:
        timer.join()
        services.start()
    assert services.spent - before in (0.0, pytest.approx(len(DOMAIN) / (2 * 20.0**2)))
    assert services.book.open is None
    Driven(services).party.end()


@pytest.mark.slow
def test_a_party_started_anew_has_lost_its_run_and_its_key(services: CryptoServices) -> None:
    run = Driven(services)
    services.kill()
    services.start()
    with pytest.raises(RunError) as caught:
        run.party.open(*run.opening())
    one_sentence(caught, at(services), f"{LOST}|no such run here: it has ended, was dropped, or this party was")
    files = {path.name for path in (services.folder / NAME).iterdir()}
    assert files == {"card.yaml", "certificate.pem", "ledger.jsonl", "party.yaml", "seal.key", "tls.key"}
    Driven(services).party.end()


@pytest.mark.slow
def test_a_partys_total_budget_holds_over_runs_and_restarts(fresh: Callable[..., CryptoServices]) -> None:
    services, annealed = fresh(policy={"epsilon_total": 1.2}, idle=1.0), {"options": {"rounds": None}}
    run = Driven(services, **annealed)
    run.party.open(*run.opening(sigma=10.0))
    run.party.end()
    once = len(DOMAIN) / (2 * 10.0**2)
    assert services.spent == pytest.approx(once)
    services.kill()
    services.start()
    with pytest.raises(RunError) as caught:
        Driven(services, **annealed)
    one_sentence(caught, at(services), r"over all runs this party may release epsilon = 1\.2", "nothing was opened")
    assert services.spent == pytest.approx(once) and services.book.open is None
    # A smaller run still fits; without an order for `idle` seconds it is dropped.
    small = Driven(services, rho=PrivacyBudget(1.2, 1e-5).rho - once, **annealed)
    services.wait_for("no order came for 1 s")
    assert services.book.runs[small.id][1] == 0.0 and services.book.open is None
    with pytest.raises(RunError, match="no such run here: it has ended, was dropped"):
        small.party.open(*small.opening())
