"""A server that deviates, against an honest crypto party and honest clients: totals and openings of contributors.

Each attack is written out. Against a party that opens what it is brought, it reads one client's counts at a legal
price; here its answer is uniform, whatever the counts are, or there is none. False alarms: a p-value below 1e-6 is one
in a million runs of a test.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats

from fedsyn.aggregation.base import Limits
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvComputation, residues
from fedsyn.crypto.fhe.products import parameters_of
from fedsyn.crypto.fhe.seal import Encryptor, added
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.crypto.primitives import KEY, Identity, KeyPair, apply_masks, key_stream
from fedsyn.errors import FedsynError, ProtocolError
from fedsyn.front.testing.harness import config_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.keys.certificates import signer
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.keys.party_keys import load_party, new_party
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.privacy import DistributedNoise, Ledger, PrivacyBudget
from fedsyn.privacy.distributed import pool_share
from fedsyn.randomness import Randomness
from fedsyn.registry import contract_class
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.settings import FheNode
from fedsyn.stores.crypto import CryptoKey, order_of
from fedsyn.stores.parties.boxes import Pads, of_deal, of_sum, open_box, opening_of, seal_box
from fedsyn.stores.parties.checks import Host
from fedsyn.stores.parties.crypto import KeyHolder, pooled_noise
from fedsyn.stores.parties.interface import Announcement, ChooseOrder, OpenOrder, TotalOrder, sealed_for
from fedsyn.stores.parties.policy import PartyPolicy
from fedsyn.stores.parties.sealing import DealFacts, RefusedDeal
from fedsyn.table.counting.marginals import count
from fedsyn.wire.envelope import Arrays, SumSpec

TABLE = awkward_table("missing_values")
DOMAIN, CODES = TABLE.schema.domain, TABLE.encode()
CLIENTS, LENGTH, SIGMA = 5, 4_000, 40.0
RHO, ALARM = PrivacyBudget(1.0, 1e-5).rho, 1e-6
ROSTER = {k: simulated_identities(k, CLIENTS)[0].public.hex() for k in range(CLIENTS)}
#: What the victim counts: nothing like noise.
COUNTS = np.arange(LENGTH) % 7


class Study:
    """A run of a deployment: a crypto party in this process, with a book, and clients that check its signature."""

    def __init__(self, folder: Path, mechanism: str = "sketch_aim", *, pinned: bool = True, **policy: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.card = new_party(folder / "elder", "elder", "127.0.0.1:7443")
        _, credentials, pair = load_party(folder / "elder")
        self.config = self._config(mechanism)
        rules: dict[str, Any] = {"epsilon_per_run": 1.0, "epsilon_total": 5.0, "delta": 1e-5, "mechanisms": [mechanism]}
        rules |= {"minimum_clients": 4, "configurations": [self.config.sha256] if pinned else None, **policy}
        rules_ = PartyPolicy.model_validate(rules)
        self.book = PartyLedger(folder / "ledger.jsonl", rules_.total_budget)
        self.party = KeyHolder(Host(pair, rules_, Randomness(None), self.book, (self.card,)), signer(credentials))
        contract = contract_class(mechanism)(self.config, DOMAIN)
        self.facts = contract.store_facts if contract.store else None
        self.cliques = tuple(contract.stored.cliques) if contract.store else ()
        announced = Announcement(self.config, DOMAIN, self.cliques, RHO, 4, secrets.token_bytes(16), CLIENTS)
        self.begun = self.party.begin(announced)
        self.key = CryptoKey(self.config, DOMAIN, self.cliques)
        self.agreed = sealed_for(self.begun.run, self.config, DOMAIN, self.cliques)

    def _config(self, mechanism: str) -> RunConfig:
        aggregation = {"protocol": "fhe", "noise": "distributed", "crypto": self.card.model_dump(), "roster": ROSTER}
        runtime = {"engine": "deployment", "seed": None, "operator": "operator"}
        aggregation |= {"corrupted": 0.2, "dropout": 0.2}
        return config_of(
            mechanism,
            CLIENTS,
            {"rounds": 2},
            aggregation=aggregation,
            runtime=runtime,
            federation={"clients": CLIENTS, "minimum_cohort": 4},
        )

    @property
    def invitation(self) -> Arrays:
        parts = (self.begun.run, self.begun.keys.public, self.begun.seal, self.begun.signature)
        return [np.frombuffer(part, np.uint8) for part in parts]

    def holder(self, k: int) -> Any:
        return SimpleNamespace(partition=k, identities=lambda: (simulated_identities(k, CLIENTS)[0], {}))

    def limits(self, asked: int = CLIENTS) -> Limits:
        return Limits.of(self.config.aggregation, asked, self.config.federation.minimum_cohort)


@pytest.fixture(params=[True, False], ids=["pinned", "unknown"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Study:
    return Study(tmp_path / "study", pinned=request.param)


def is_uniform(values: npt.NDArray[Any], modulus: int) -> bool:
    """Kolmogorov-Smirnov, of all of them and of the differences of neighbours."""
    whole = values.astype(object) % modulus
    for sample in (whole, (whole[1:] - whole[:-1]) % modulus):
        if scipy.stats.kstest(sample.astype(float) / modulus, "uniform").pvalue < ALARM:
            return False
    return True


# Sums ----------------------------------------------------------------------------------------------------------------


def spec(number: int = 0, **changes: Any) -> SumSpec:
    facts: dict[str, Any] = {"sigma": SIGMA, "sensitivity": 1.0, "count": 1, "asked": CLIENTS, "number": number}
    return SumSpec(((LENGTH,),), **{**facts, **changes})


def plan(study: Study, told: SumSpec) -> DistributedNoise:
    limits = study.limits(told.asked)
    facts = {"asked": limits.asked, "fewest": limits.fewest, "corrupted": limits.corrupted}
    return DistributedNoise.of(told.sigma, sensitivity=told.sensitivity, count=told.count, length=LENGTH, **facts)


def answered(study: Study, k: int, told: SumSpec) -> tuple[npt.NDArray[np.uint64], bytes]:
    """An honest client's answer: its counts, its share of the noise, its pad; `k` counts k + 1 times `COUNTS`."""
    noise, ledger = plan(study, told), Ledger(PrivacyBudget(1000.0, 1e-5), noise_by="self")
    part: Any = SimpleNamespace(name="measure", call=SimpleNamespace(round=1), spec=told, holder=study.holder(k))
    seed, box = study.key.pad(study.invitation, part)
    entry = replace(noise.release("measure", 1), sensitivity=1.0, count=1)
    source = Randomness(None).generator("client", k, told.number)
    padded = ledger.distributed((k + 1) * COUNTS, noise, entry, source).view(np.uint64)
    apply_masks(padded, [seed], [])
    return padded, box


def order(told: SumSpec) -> TotalOrder:
    return order_of("measure", 1, told)


def everybody(study: Study, told: SumSpec) -> tuple[list[npt.NDArray[np.uint64]], dict[int, bytes]]:
    answers = [answered(study, k, told) for k in range(CLIENTS)]
    return [padded for padded, _ in answers], {k: box for k, (_, box) in enumerate(answers)}


def test_an_honest_total_is_right(study: Study) -> None:
    """The counts of all, with at least the noise that is charged and at most what 5 of 3 shares and the party make."""
    told = spec()
    vectors, boxes = everybody(study, told)
    assert study.party.admit(order(told), boxes) == {}
    noise = plan(study, told)
    off = study.party.total(order(told), sum(vectors)) / noise.resolution - 15 * COUNTS
    own = noise.whole().sigma_of(1) if study.begun.adds else 0.0
    expected = np.hypot(noise.sigma_of(CLIENTS), own)
    assert abs(off.std() / expected - 1.0) < 5.0 / np.sqrt(2.0 * LENGTH)
    assert study.book.spent == pytest.approx(1 / (2 * SIGMA**2), rel=1e-6)


@pytest.mark.parametrize(
    "made",
    [
        lambda vectors: vectors[0],
        lambda vectors: sum(vectors[:4]),
        lambda vectors: 3 * sum(vectors),
        lambda vectors: sum(vectors) + vectors[0],
        lambda vectors: np.zeros(LENGTH, np.uint64),
        lambda vectors: vectors[0] - vectors[1],
    ],
    ids=["of one", "of four", "scaled", "one twice", "of nobody", "a difference"],
)
def test_a_total_of_others_than_were_named_is_uniform(study: Study, made: Callable[[Any], Any]) -> None:
    """All five are named, and so is what comes out charged."""
    told = spec()
    vectors, boxes = everybody(study, told)
    assert study.party.admit(order(told), boxes) == {}
    answer = study.party.total(order(told), np.asarray(made(vectors), np.uint64))
    assert is_uniform(answer.view(np.uint64), 2**64)
    assert study.book.spent == pytest.approx(1 / (2 * SIGMA**2), rel=1e-6)


@pytest.mark.parametrize(
    "lie",
    [
        {"sigma": 1e6},
        {"sensitivity": 1e-3},
        {"count": 2},
        {"asked": 4},
        {"number": 9},
        {"round": 2},
        {"name": "one-way"},
        {"length": LENGTH - 1},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_an_order_that_clients_did_not_reckon_with_has_no_contributors(study: Study, lie: dict[str, Any]) -> None:
    """Sigma, sensitivity, count, length and clients asked are each client's word, not the server's."""
    told = spec()
    _, boxes = everybody(study, told)
    lied = replace(order(told), **lie)
    boxes = dict(list(boxes.items())[: lied.asked])
    refused = study.party.admit(lied, boxes)
    assert sorted(refused) == sorted(boxes)
    with pytest.raises(ProtocolError, match="0 clients are in it, and nothing is opened below 4"):
        study.party.total(lied, np.zeros(lied.length, np.uint64))
    assert study.book.spent == 0.0


def test_a_box_serves_once(study: Study) -> None:
    """Not for a later order, not for another client, not twice: no two totals of the same noise can be compared."""
    told = spec()
    vectors, boxes = everybody(study, told)
    assert study.party.admit(order(told), {k: boxes[k] for k in (0, 1, 2)}) == {}
    assert sorted(study.party.admit(order(told), {0: boxes[0], 3: boxes[0], 4: boxes[1]})) == [0, 3, 4]
    assert study.party.admit(order(told), {3: boxes[3], 4: boxes[4]}) == {}
    study.party.total(order(told), sum(vectors))
    later = order(spec(1))
    assert sorted(study.party.admit(later, {k: boxes[k] for k in range(4)})) == [0, 1, 2, 3]
    with pytest.raises(ProtocolError, match="order 0 is not later than order 1"):
        study.party.admit(order(told), {k: boxes[k] for k in range(4)})


def test_a_total_is_opened_once(study: Study) -> None:
    told = spec()
    vectors, boxes = everybody(study, told)
    study.party.admit(order(told), boxes)
    study.party.total(order(told), sum(vectors))
    with pytest.raises(ProtocolError, match="a second time"):
        study.party.total(order(told), sum(vectors[1:]))


def test_a_box_of_another_run(study: Study, tmp_path: Path) -> None:
    other = Study(tmp_path / "other")
    _, boxes = everybody(other, spec())
    assert sorted(study.party.admit(order(spec()), boxes)) == list(range(CLIENTS))


def made_up(study: Study, k: int, told: SumSpec) -> tuple[npt.NDArray[np.uint64], bytes]:
    """A client that the server plays: no counts, no noise, a pad that it knows, and a key of its own."""
    seed, box = seal_box(of_sum(order(told)), study.agreed, k, study.begun.seal, Identity.generate())
    from fedsyn.crypto.primitives import apply_masks

    vector = np.zeros(LENGTH, np.uint64)
    apply_masks(vector, [seed], [])
    return vector, box


def test_contributors_that_are_made_up(study: Study) -> None:
    """One is honest, four are the server's. Whose keys are pinned cannot be played; of unknown ones the party itself
    makes the whole noise that it charges: less than that comes out once in a million runs."""
    told = spec()
    vectors, boxes = everybody(study, told)
    for k in range(1, CLIENTS):
        vectors[k], boxes[k] = made_up(study, k, told)
    refused = study.party.admit(order(told), boxes)
    if not study.begun.adds:
        assert sorted(refused) == [1, 2, 3, 4] and set(refused.values()) == {
            "its pad is not signed by the key that the configuration pins for it"
        }
        with pytest.raises(ProtocolError, match="1 clients are in it, and nothing is opened below 4"):
            study.party.total(order(told), vectors[0])
        assert study.book.spent == 0.0
        return
    assert refused == {}
    off = study.party.total(order(told), sum(vectors)) / plan(study, told).resolution - COUNTS
    assert off.std() > SIGMA * (1.0 - 5.0 / np.sqrt(2.0 * LENGTH))
    assert study.book.spent == pytest.approx(1 / (2 * SIGMA**2), rel=1e-6)


def test_too_few_contributors(study: Study) -> None:
    told = spec()
    vectors, boxes = everybody(study, told)
    study.party.admit(order(told), {k: boxes[k] for k in range(3)})
    with pytest.raises(ProtocolError, match="3 clients are in it, and nothing is opened below 4"):
        study.party.total(order(told), sum(vectors[:3]))
    assert study.book.spent == 0.0


def test_a_bad_box_costs_its_client_alone(study: Study) -> None:
    told = spec()
    vectors, boxes = everybody(study, told)
    for k, bad in enumerate(
        (b"", boxes[0][:-1], bytes(KEY) + boxes[0][KEY:], boxes[0][:40] + bytes([boxes[0][40] ^ 1]) + boxes[0][41:])
    ):
        assert list(study.party.admit(order(told), {0: bad})) == [0], k
    assert study.party.admit(order(told), {k: boxes[k] for k in range(1, CLIENTS)}) == {}
    noise = plan(study, told)
    off = study.party.total(order(told), sum(vectors[1:])) / noise.resolution - 14 * COUNTS
    assert abs(off).max() < 10 * SIGMA * 2


def test_a_client_whose_key_is_another_refuses(study: Study) -> None:
    stranger = study.holder(0)
    stranger.identities = lambda: (Identity.generate(), {})
    with pytest.raises(ProtocolError, match="names another key for this client"):
        study.key.sealed(study.key.read(study.invitation), b"sum", stranger)
    stranger.partition = None
    with pytest.raises(ProtocolError, match="needs a partition id of its own"):
        study.key.sealed(study.key.read(study.invitation), b"sum", stranger)


# Boxes ---------------------------------------------------------------------------------------------------------------


def test_a_box_binds_everything() -> None:
    pair, who = KeyPair(), Identity.generate()
    facts, run, k = b"sum" + bytes(20), bytes(32), 3
    seed, box = seal_box(facts, run, k, pair.public, who)
    assert open_box(box, facts, run, k, pair, who.public) == open_box(box, facts, run, k, pair, None) == seed
    wrong: list[Callable[[], bytes]] = [
        lambda: open_box(box, facts + b"\0", run, k, pair, None),
        lambda: open_box(box, facts, b"\1" + run[1:], k, pair, None),
        lambda: open_box(box, facts, run, 2, pair, None),
        lambda: open_box(box, facts, run, k, KeyPair(), None),
        lambda: open_box(box, facts, run, 2, pair, who.public),
        lambda: open_box(box, facts, run, k, pair, Identity.generate().public),
        lambda: open_box(box[:-64], facts, run, k, pair, who.public),
        *(lambda i=i: open_box(_flipped(box, i), facts, run, k, pair, who.public) for i in (0, 31, 40, 79, 80, 143)),
    ]
    for attempt in wrong:
        with pytest.raises(RefusedDeal):
            attempt()
    with pytest.raises(ProtocolError, match="a usable key"):
        seal_box(facts, run, k, bytes(KEY), who)


def _flipped(box: bytes, place: int) -> bytes:
    return box[:place] + bytes([box[place] ^ 1]) + box[place + 1 :]


@pytest.mark.parametrize("modulus", [2**60 - 93, 5, 2**59 + 1])
def test_pads_are_uniform_and_the_same_for_the_same_seed(modulus: int) -> None:
    """Modulo 5 three of eight words are refused, modulo 2^59 + 1 nearly half of them."""
    found = residues(partial(key_stream, b"\7" * KEY), modulus, 50_000)
    assert len(found) == 50_000 and int(found.max()) < modulus
    assert np.array_equal(found[:100], residues(partial(key_stream, b"\7" * KEY), modulus, 100))
    if modulus == 5:
        assert scipy.stats.chisquare(np.bincount(found.astype(np.int64), minlength=5)).pvalue > ALARM
    else:
        assert is_uniform(found, modulus)
    assert not np.array_equal(found, residues(partial(key_stream, b"\6" * KEY), modulus, 50_000))


# A store -------------------------------------------------------------------------------------------------------------


class Stored(Study):
    """A store into which every client has dealt, and each client's own ciphertexts, as a server has them."""

    def __init__(self, folder: Path, dealt: int = CLIENTS, rho: float = RHO, whole: bool = True) -> None:
        pytest.importorskip("tenseal")
        super().__init__(folder, "fhaim")
        assert self.facts is not None
        self.parameters = parameters_of(self.config)
        self.computation: Any = BfvComputation(self.parameters, self.begun.keys)
        self.layout = SlotLayout(self.facts.cliques, DOMAIN, self.parameters.slots)
        self.ranges = NoiseRanges(self.layout, self.facts.openings, self.facts.attributes)
        self.sent: list[tuple[list[Any], npt.NDArray[np.uint64]]] = []
        self.refused: Mapping[int, str] = {}
        boxes = {k: self._deals(k, rho) for k in range(dealt)}
        self.refused = self.party.admit(None, boxes)
        if whole:
            minus = self.computation.read(self.party.unpad())
            self.counts = self.added([*(each[0] for each in self.sent), minus])

    def rows(self, k: int) -> npt.NDArray[np.integer]:
        return CODES[k::CLIENTS]

    def exact(self, k: int) -> dict[Any, npt.NDArray[np.int64]]:
        tables = count(self.rows(k), DOMAIN, list(self.layout.cliques))
        return {q: table.ravel().astype(np.int64) for q, table in zip(self.layout.cliques, tables, strict=True)}

    def _deals(self, k: int, rho: float) -> bytes:
        told, holder = DealFacts(rho, len(self.rows(k))), self.holder(k)
        keys = self.key.read(self.invitation)
        seed, box = self.key.sealed(keys, of_deal(told), holder)
        share, size = pool_share(self.limits().fewest - self.limits().corrupted), self.layout.noisy
        rng = np.random.default_rng(secrets.randbits(64))
        planes = np.rint(rng.normal(0.0, share, size * self.ranges.planes)).astype(np.int64)
        encryptor = Encryptor(self.parameters, keys.public)
        pads = Pads(self.layout, self.ranges.planes, self.computation.ring.modulus).add(seed)
        stored, numbers = pads.on(self.layout.vector(self.exact(k)), planes)
        self.sent.append((self.computation.read(encryptor.to_bytes(stored.astype(np.int64))), numbers))
        return told.to_bytes() + box

    def added(self, lists: list[list[Any]]) -> list[Any]:
        ring, total = self.computation.ring, None
        for each in lists:
            total = added(ring, total, [ring.copied(one) for one in each])
        assert total is not None
        return total

    def numbers(self, counts: range = range(CLIENTS), planes: range = range(CLIENTS)) -> npt.NDArray[np.uint64]:
        """What a server can bring to be opened: the counts of some clients and the planes of some, added up."""
        entries, modulus = self.layout.entries, np.uint64(self.computation.ring.modulus)
        total = np.zeros(len(self.sent[0][1]), np.uint64)
        for place, who in ((slice(0, entries), counts), (slice(entries, None), planes)):
            for k in who:
                total[place] = (total[place] + self.sent[k][1][place]) % modulus
        return total

    def asked(self, numbers: npt.NDArray[np.uint64], factor: int, pieces: Any) -> tuple[bytes]:
        modulus = self.computation.ring.modulus
        return (opening_of(numbers, self.layout, pieces, factor, modulus).astype("<u8").tobytes(),)

    def factor(self, sigma: float, cliques: tuple[Any, ...]) -> int:
        cells = sum(DOMAIN.size(clique) for clique in cliques)
        facts = {"count": len(cliques), "length": cells, "rows": len(CODES)}
        return pooled_noise(sigma, self.limits(), **facts).resolution


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Stored]:
    return lambda: Stored(tmp_path_factory.mktemp("store") / "study")


ATTRIBUTES = tuple((name,) for name in DOMAIN)


def test_an_honest_opening_is_right(store_of: Callable[[], Stored]) -> None:
    store = store_of()
    assert store.refused == {}
    factor, pieces = store.factor(20.0, ATTRIBUTES), store.ranges.reserve(ATTRIBUTES)
    asked = store.asked(store.numbers(), factor, pieces)
    answer = store.party.open(OpenOrder(0, "one-way", 0, 20.0, ATTRIBUTES), asked) / factor
    exact = np.concatenate([table.ravel() for table in count(CODES, DOMAIN, list(ATTRIBUTES))])
    assert 0.0 < abs(answer - exact).max() < 10 * 20.0 * np.sqrt(CLIENTS / 3)
    assert store.book.spent == pytest.approx(len(ATTRIBUTES) / (2 * 20.0**2))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made",
    [
        lambda s: (s.numbers(range(1), range(0)), 1),
        lambda s: (s.numbers(planes=range(0)), 1),
        lambda s: (s.numbers(range(1)), 1),
        lambda s: (s.numbers(), 2),
        lambda s: (s.numbers(range(4)), 1),
        lambda s: (s.numbers(planes=range(4)), 1),
        lambda s: (s.numbers(range(0), range(0)), 1),
    ],
    ids=["one client's counts", "no noise", "one under all noise", "scaled", "four", "noise of four", "nothing"],
)
def test_an_opening_of_anything_else_is_uniform(store_of: Callable[[], Stored], made: Callable[[Stored], Any]) -> None:
    """By the pads of all counts, γ times, and of the slots of noise that the party itself reserves."""
    store = store_of()
    numbers, scaled = made(store)
    widest = max(store.layout.cliques, key=DOMAIN.size)
    found = []
    for number, clique in enumerate((widest, widest, widest)):
        factor, pieces = store.factor(20.0, (clique,)), store.ranges.reserve([clique])
        asked = store.asked(numbers, scaled * factor, pieces)
        found.append(store.party.open(OpenOrder(number, "measure", 1, 20.0, (clique,)), asked))
    values, modulus = np.concatenate(found), store.computation.ring.modulus
    assert is_uniform(values, modulus) and np.median(abs(values)) > 2**50


@pytest.mark.thorough
def test_slots_of_other_marginals_than_the_order_names_are_uniform(store_of: Callable[[], Stored]) -> None:
    """Where the cells lie, and which noise they have, is the party's reckoning: the server has no say in it."""
    store = store_of()
    cliques = [q for q in store.layout.cliques if DOMAIN.size(q) == max(map(DOMAIN.size, store.layout.cliques))]
    factor, pieces = store.factor(20.0, (cliques[0],)), store.ranges.reserve([cliques[0]])
    moved = [replace(piece, start=piece.start - 3, stop=piece.stop - 3) for piece in pieces]
    asked = store.asked(store.numbers(), factor, moved)
    answer = store.party.open(OpenOrder(0, "measure", 1, 20.0, (cliques[0],)), asked)
    assert np.median(abs(answer[-3:])) > 2**40  # the last three have another mask on them


def test_encrypted_counts_can_not_be_added_to_an_opening(store_of: Callable[[], Stored]) -> None:
    """`unpad` gives the server encrypted counts of all. Decrypted with the noise of an opening, K times them show every
    count exactly, at the price of sigma 20. Nothing that is encrypted is opened."""
    store = store_of()
    (widest, *_), ring = sorted(store.layout.cliques, key=DOMAIN.size, reverse=True), store.computation.ring
    encrypted = [ring.to_bytes(ring.flooded(one, store.computation._encryptor.inner)) for one in store.counts]
    with pytest.raises(ProtocolError, match=f"brings something else than its {DOMAIN.size(widest)} padded numbers"):
        store.party.open(OpenOrder(0, "measure", 1, 20.0, (widest,)), encrypted)
    assert store.book.spent == 0.0


def test_what_is_opened_says_nothing_of_what_is_encrypted(store_of: Callable[[], Stored]) -> None:
    """A client's counts under both pads: their difference is uniform, so neither opens the other."""
    layout, modulus = store_of().layout, 2**60 - 93
    counts, planes = np.ones(layout.entries, np.int64), np.zeros(layout.noisy, np.int64)
    stored, numbers = Pads(layout, 1, modulus).add(b"\7" * KEY).on(counts, planes)
    assert is_uniform((stored + np.uint64(modulus) - numbers[: layout.entries]) % np.uint64(modulus), modulus)


@pytest.mark.thorough
def test_a_choice_sees_the_total_of_all_or_nothing(store_of: Callable[[], Stored]) -> None:
    """Scores of one client's counts are uniform, with what takes all pads off and without: none is below 2^40, though
    the right ones are. Of the total they are right."""
    store = store_of()
    cliques = [q for q in store.layout.cliques if len(q) == 2]
    p = [np.full(DOMAIN.size(q), 1 / DOMAIN.size(q)) for q in cliques]
    cells, ones, n = np.array([float(len(x)) for x in p]), np.ones(len(p)), len(CODES)
    terms = ChoiceTerms.of("squared_l2", cliques, p, ones, cells, sigma=10.0, size=n, rows=n)
    zeros = np.zeros(len(p), np.int64)
    run = store.party._begun
    assert run is not None

    def read(counts: list[Any]) -> npt.NDArray[np.int64]:
        return run.reader.scores(store.computation.scores(counts, store.layout, terms, zeros), terms)

    one = store.exact(0)
    right = terms.scores([one[q] for q in cliques])
    bare = store.added([store.counts])
    assert read(bare).tolist() == terms.scores(count(CODES, DOMAIN, cliques)).tolist()
    minus = store.added([store.counts])
    for each in store.sent:  # counts - all padded totals = what takes the pads off
        for mine, theirs in zip(minus, each[0], strict=True):
            store.computation.ring.evaluator.sub_inplace(mine, theirs)
    for counts in (store.sent[0][0], store.added([store.sent[0][0], minus])):
        assert abs(right).max() < 2**40 < abs(read(counts)).min()


@pytest.mark.thorough
def test_nothing_comes_out_before_the_store_is_whole(tmp_path: Path) -> None:
    store = Stored(tmp_path / "study", whole=False)
    with pytest.raises(ProtocolError, match="this run's store is not whole"):
        store.party.open(OpenOrder(0, "one-way", 0, 20.0, ATTRIBUTES), ())
    few = Stored(tmp_path / "few", dealt=3, whole=False)
    with pytest.raises(ProtocolError, match="3 clients are in it, and nothing is opened below 4"):
        few.party.unpad()


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["admit", "unpad"])
def test_contributors_of_a_store_are_named_once(tmp_path: Path, step: str) -> None:
    """Two stores that differ by a client would show it."""
    store = Stored(tmp_path / "study", dealt=4)
    late = store._deals(4, RHO)
    with pytest.raises(ProtocolError, match=r"named already|were taken off"):
        store.party.admit(None, {4: late}) if step == "admit" else store.party.unpad()


@pytest.mark.thorough
def test_deals_for_less_than_the_run_may_release_and_deals_that_are_not_signed(tmp_path: Path) -> None:
    cheap = Stored(tmp_path / "cheap", rho=RHO / 2, whole=False)
    assert set(cheap.refused.values()) == {"its deal allows for a smaller budget than this run may still spend"}
    store = Stored(tmp_path / "study", dealt=0, whole=False)
    told = DealFacts(RHO, 3)
    for k, identity in ((0, None), (1, Identity.generate()), (CLIENTS, simulated_identities(0, CLIENTS)[0])):
        box = seal_box(of_deal(told), store.agreed, k, store.begun.seal, identity)[1]
        assert list(store.party.admit(None, {k: told.to_bytes() + box})) == [k]
    box = store._deals(0, RHO)
    more = DealFacts(RHO, 10**6).to_bytes() + box[DealFacts.SIZE :]  # another row count than was sealed
    assert list(store.party.admit(None, {0: more})) == [0]
    assert list(store.party.admit(None, {0: box[: DealFacts.SIZE - 1]})) == [0]
    assert store.party.admit(None, {0: box}) == {}
    assert list(store.party.admit(None, {0: box})) == [0]


@pytest.mark.thorough
def test_terms_name_no_fewer_rows_than_the_clients_sealed(store_of: Callable[[], Stored]) -> None:
    """The sensitivity of a squared score follows from them."""
    store = store_of()
    cliques = [q for q in store.layout.cliques if len(q) == 2]
    p = [np.full(DOMAIN.size(q), 1 / DOMAIN.size(q)) for q in cliques]
    cells, ones, n = np.array([float(len(x)) for x in p]), np.ones(len(p)), len(CODES) - 1
    terms = ChoiceTerms.of("squared_l2", cliques, p, ones, cells, sigma=10.0, size=n, rows=n)
    asked = store.computation.scores(store.counts, store.layout, terms, np.zeros(len(p), np.int64))
    with pytest.raises(ProtocolError, match=f"the terms name {n} rows, and the clients have dealt {n + 1}"):
        store.party.choose(ChooseOrder(0, "select", 1, 0.01, terms), asked)
    assert store.book.spent == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"roster": None}, "aggregation.roster: in a deployment"),
        ({"roster": {0: ROSTER[0]}}, "aggregation.roster: in a deployment"),
        ({"fhe": {"compute": "packed"}}, "trusts the server"),
    ],
)
def test_a_deployment_whose_store_nothing_binds_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    config = Study(tmp_path / "study").config
    node = {**config.aggregation.model_dump(), **change}
    with pytest.raises(FedsynError, match=said):
        config_of("fhaim", CLIENTS, {"rounds": 2}, aggregation=node, runtime={"engine": "deployment", "seed": None})


@pytest.mark.parametrize("fhe", [{"compute": "packed"}])
def test_a_party_takes_part_in_no_store_that_nothing_binds(tmp_path: Path, fhe: Any) -> None:
    """Whatever its server's configuration went through."""
    study = Study(tmp_path / "study", "fhaim")
    node = study.config.aggregation.model_copy(update={"fhe": FheNode(**fhe)})
    config = study.config.model_copy(update={"aggregation": node})
    rules = study.party.host.policy.model_copy(update={"configurations": (config.sha256,)})
    announced = Announcement(config, DOMAIN, study.cliques, RHO, 4, bytes(16), CLIENTS)
    with pytest.raises(FedsynError, match=r"simulations"):
        KeyHolder(replace(study.party.host, policy=rules, book=None)).begin(announced)


# Nothing begins that this party would end ----------------------------------------------------------------------------


def test_a_sum_longer_than_the_policy_allows_is_refused_before_anybody_pays(tmp_path: Path) -> None:
    contract = contract_class("sketch_aim")(Study(tmp_path / "any").config, DOMAIN)
    plan = contract.plan(contract.budget.mechanism, 1)
    longest = max(layout.length for step in plan for layout in step.request.largest(contract))
    Study(tmp_path / "fits", limits={"cells": longest})
    with pytest.raises(ProtocolError, match=f"sums of {longest - 1} cells, and one may have {longest}"):
        Study(tmp_path / "short", limits={"cells": longest - 1})


@pytest.mark.parametrize("mechanism", ["sketch_aim", "fhaim"])
@pytest.mark.parametrize(
    ("clients", "policy", "said"),
    [
        (CLIENTS, {"minimum_clients": 5}, "opens nothing below 5 clients, and the run does from 4 on"),
        (3, {}, "lets nothing out below 4 clients, and the run has 3"),
        (0, {"minimum_clients": 1}, "below 1 clients, and the run has 0"),
    ],
)
def test_a_run_of_which_too_few_have_joined_is_refused_before_anybody_pays(
    tmp_path: Path, mechanism: str, clients: int, policy: dict[str, Any], said: str
) -> None:
    study = Study(tmp_path / "study", mechanism)
    rules = study.party.host.policy.model_copy(update=policy)
    announced = Announcement(study.config, DOMAIN, study.cliques, RHO, 4, bytes(16), clients)
    with pytest.raises(ProtocolError, match=said):
        KeyHolder(replace(study.party.host, policy=rules, book=None)).begin(announced)
