"""What the key holder decrypts is uniform, but for the sums and slots that it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.stats

from fedsyn.crypto.fhe import bfv
from fedsyn.crypto.fhe.bfv import BfvComputation, BfvReader, DecryptionQuery
from fedsyn.crypto.fhe.parameters import bfv_for_store
from fedsyn.crypto.fhe.seal import Encryptor, SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, Piece, SlotLayout
from fedsyn.domain import Domain
from fedsyn.selection.terms import ChoiceTerms

pytest.importorskip("tenseal")

# Each p-value is wrong under a true null once in 10^6. Tests that expect uniformity compute 29 of them: a false alarm
# in 34,000 runs of this file. What is broken on purpose is unseen with less probability than that: thousands of slots
# are equal then.
ALARM = 1e-6

PARAMETERS = bfv_for_store(4)
SLOTS = PARAMETERS.slots
DOMAIN = Domain(("a", "b", "c"), (30, 25, 40))
CLIQUES = [q for k in (1, 2) for q in combinations(DOMAIN.attributes, k)]
#: Two ciphertexts.
WIDE = Domain(("a", "b", "c"), (100, 90, 80))
RUNS = 12


@dataclass(frozen=True)
class Run:
    """A store of one table, and the key holder's view of what is asked about it."""

    reader: BfvReader
    computation: BfvComputation
    layout: SlotLayout
    counts: list[np.ndarray]
    ciphertexts: list[Any]
    planes: list[Any]

    @classmethod
    def of(cls, domain: Domain) -> Run:
        secret = SecretKeys(PARAMETERS)
        computation, encryptor = BfvComputation(PARAMETERS, secret.public), Encryptor(PARAMETERS, secret.public.public)
        cliques = [q for k in (1, 2) for q in combinations(domain.attributes, k)]
        layout = SlotLayout(cliques, domain, SLOTS)
        counts = {
            clique: np.full(domain.size(clique), 3) for clique in cliques
        }  # all the same: what hides it is a mask
        planes = [encryptor.encrypted(np.zeros(SLOTS, np.int64)) for _ in range(2)]
        stored = computation.read(encryptor.to_bytes(layout.vector(counts)))
        return cls(BfvReader(secret), computation, layout, [*counts.values()], stored, planes)

    @property
    def modulus(self) -> int:
        return self.reader.ring.modulus

    def terms(self) -> ChoiceTerms:
        sizes = [self.layout.domain.size(clique) for clique in self.layout.cliques]
        even, ones = [np.full(size, 1.0 / size) for size in sizes], np.ones(len(sizes))
        return ChoiceTerms.of("squared_l2", self.layout.cliques, even, ones, ones, sigma=5.0, size=1000.0, rows=1000)

    def choice(self) -> DecryptionQuery:
        """Scores, always the same ones."""
        terms = self.terms()
        noise = 12_345 - terms.scores(self.counts)
        asked = self.computation.scores(self.ciphertexts, self.layout, terms, noise)
        assert self.reader.scores(asked, terms).tolist() == [12_345] * len(terms.cliques)
        return asked

    def opening(self, clique: tuple[str, ...] = ("a", "b")) -> tuple[DecryptionQuery, list[Piece]]:
        pieces = NoiseRanges(self.layout, 1, [clique]).reserve([clique])
        return self.computation.marginals(self.ciphertexts, self.planes, 7, pieces), pieces


@pytest.fixture(scope="module")
def run() -> Run:
    return Run.of(DOMAIN)


@pytest.fixture(scope="module")
def wide() -> Run:
    return Run.of(WIDE)


def p_values(views: np.ndarray, modulus: int) -> dict[str, float]:
    """Of (k, slots) residues: whether all are uniform, by Kolmogorov-Smirnov and in their lowest byte (chi-square);
    whether differences of successive rows and of neighbouring slots are."""
    whole = views.astype(object)
    rows, neighbours = (
        (whole[1:] - whole[:-1]) % modulus,
        (whole[:, 1::2] - whole[:, ::2][:, : whole.shape[1] // 2]) % modulus,
    )
    low = np.bincount((views & np.uint64(255)).astype(np.int64).ravel(), minlength=256)
    samples = {"all": views, "rows": rows, "neighbours": neighbours}
    tests = {name: kolmogorov(sample, modulus) for name, sample in samples.items() if sample.size}
    return tests | {"low": float(scipy.stats.chisquare(low).pvalue)}


def kolmogorov(sample: np.ndarray, modulus: int) -> float:
    return float(scipy.stats.kstest(sample.ravel().astype(float) / modulus, "uniform").pvalue)


def of_choices(run: Run) -> np.ndarray:
    """(questions times ciphertexts, slots) views of some questions about the same scores."""
    return np.concatenate([run.reader.slots(run.choice()).reshape(-1, SLOTS) for _ in range(4)])


def of_openings(run: Run) -> np.ndarray:
    """The same of openings, without the slots that are asked for."""
    views = []
    for _ in range(4):
        asked, pieces = run.opening()
        slots = run.reader.slots(asked).reshape(-1, SLOTS)
        kept = np.ones(SLOTS, bool)
        for piece in pieces:
            kept[piece.start : piece.stop] = False
        views.append(slots[:, kept])
    return np.concatenate(views)


VIEWS = [of_choices, of_openings]


# Masks ---------------------------------------------------------------------------------------------------------------


def test_masks_are_uniform(run: Run) -> None:
    """200,000 of them; Kolmogorov-Smirnov sees a distance of 0.6%."""
    masks = bfv.uniform(run.modulus, 200_000).reshape(4, -1)
    assert min(p_values(masks, run.modulus).values()) > ALARM


def test_masks_are_uniform_modulo_a_number_far_from_a_power_of_two() -> None:
    """Modulo 5 of 3 bits, where three of eight words are refused."""
    found = np.bincount(bfv.uniform(5, 100_000).astype(np.int64), minlength=5)
    assert scipy.stats.chisquare(found).pvalue > ALARM


# Slots ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", VIEWS)
@pytest.mark.parametrize("domain", ["run", "wide"])
def test_slots_that_are_not_asked_for_are_uniform(
    domain: str, seen: Callable[[Run], np.ndarray], request: pytest.FixtureRequest
) -> None:
    """Also from one question to the next, from one ciphertext to the next, and from slot to slot; 29,000 slots or more.

    The wide store's choice is over two ciphertexts, and its pair ("a", "b") is opened from one of them.
    """
    of: Run = request.getfixturevalue(domain)
    views = seen(of)
    assert views.size > 29_000 and min(p_values(views, of.modulus).values()) > ALARM


@pytest.mark.parametrize("seen", VIEWS)
def test_masks_that_are_left_out_are_seen(run: Run, seen: Callable[[Run], np.ndarray], monkeypatch: Any) -> None:
    monkeypatch.setattr(bfv, "uniform", lambda modulus, size: np.zeros(size, np.uint64))
    assert min(p_values(seen(run), run.modulus).values()) < ALARM


@pytest.mark.parametrize("seen", VIEWS)
def test_masks_that_are_used_twice_are_seen(run: Run, seen: Callable[[Run], np.ndarray], monkeypatch: Any) -> None:
    """Each question's view alone is uniform then (of four copies only one counts); the differences of two are not."""
    masks = bfv.uniform(run.modulus, SLOTS)
    monkeypatch.setattr(bfv, "uniform", lambda modulus, size: masks[:size].copy())
    views = seen(run)
    assert p_values(views, run.modulus)["rows"] < ALARM
    assert p_values(views[:1], run.modulus)["neighbours"] > ALARM


@pytest.mark.parametrize("seen", VIEWS)
def test_one_mask_for_all_slots_is_seen(run: Run, seen: Callable[[Run], np.ndarray], monkeypatch: Any) -> None:
    uniform = bfv.uniform
    monkeypatch.setattr(bfv, "uniform", lambda modulus, size: np.repeat(uniform(modulus, 1), size))
    assert p_values(seen(run), run.modulus)["neighbours"] < ALARM


def test_masks_that_are_used_in_two_ciphertexts_are_seen(wide: Run, monkeypatch: Any) -> None:
    """The copies of one mask in a question of two ciphertexts."""
    uniform = bfv.uniform

    def repeated(modulus: int, size: int) -> np.ndarray:
        return np.tile(uniform(modulus, SLOTS), -(-size // SLOTS))[:size]

    monkeypatch.setattr(bfv, "uniform", repeated)
    assert p_values(of_choices(wide), wide.modulus)["rows"] < ALARM


# Sums and offsets ----------------------------------------------------------------------------------------------------


def test_a_part_of_a_cliques_slots_adds_up_to_nothing_known(run: Run) -> None:
    """All but one slot of a clique, with its offset: uniform, where all of them are the score."""
    terms, found = run.terms(), []
    for _ in range(RUNS):
        asked = run.choice()
        slots = run.reader.slots(asked)
        for start, size, weight, offset in zip(asked.starts, asked.sizes, terms.weights, asked.offsets, strict=True):
            part = bfv.sum_modulo(slots[start : start + size - 1], run.modulus)
            found.append((int(weight) * part + offset) % run.modulus)
    assert len(found) == RUNS * len(CLIQUES) and kolmogorov(np.array(found, object), run.modulus) > ALARM


def test_offsets_are_uniform(run: Run) -> None:
    """Alone, as a ciphertext's bytes would leave them to somebody without the key."""
    offsets = np.array([run.choice().offsets for _ in range(RUNS)], object)
    assert kolmogorov(offsets, run.modulus) > ALARM
    assert kolmogorov((offsets[1:] - offsets[:-1]) % run.modulus, run.modulus) > ALARM


def test_requested_slots_are_the_counts_and_their_noise_every_time(run: Run) -> None:
    """Of an opening without noise: what is asked for has no mask, whatever hides the rest."""
    for _ in range(2):
        asked, _ = run.opening(("b",))
        assert run.reader.numbers(asked).tolist() == [21] * 25


# Two tables ----------------------------------------------------------------------------------------------------------


def test_two_tables_with_the_same_scores_look_alike(run: Run) -> None:
    """Noise that makes their noisy scores equal leaves two samples of slots that no test tells apart."""
    encryptor = Encryptor(PARAMETERS, run.reader.keys.public.public)
    other = {clique: np.arange(DOMAIN.size(clique)) for clique in run.layout.cliques}
    stored = run.computation.read(encryptor.to_bytes(run.layout.vector(other)))
    twin = Run(run.reader, run.computation, run.layout, [*other.values()], stored, run.planes)
    one, two = of_choices(run), of_choices(twin)
    assert scipy.stats.ks_2samp(one.ravel().astype(float), two.ravel().astype(float)).pvalue > ALARM
    difference = (one.astype(object) - two.astype(object)) % run.modulus
    assert kolmogorov(difference, run.modulus) > ALARM
    table = [np.bincount((view & np.uint64(255)).astype(np.int64).ravel(), minlength=256) for view in (one, two)]
    assert scipy.stats.chi2_contingency(np.array(table)).pvalue > ALARM
