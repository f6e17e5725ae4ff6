"""FHAIM's steps over BFV: exact scores, openings in the asked slots alone, and combinations of sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedsyn.crypto.fhe.bfv import (
    BfvComputation,
    BfvReader,
    DecryptionQuery,
    Sums,
    centred,
    centred_all,
    sum_modulo,
    uniform,
)
from fedsyn.crypto.fhe.parameters import LARGEST, bfv_for_store
from fedsyn.crypto.fhe.seal import Encryptor, SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, SlotLayout
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.selection.terms import ChoiceTerms

pytest.importorskip("tenseal")

PARAMETERS = bfv_for_store(4)
SLOTS = PARAMETERS.slots
SMALL = Domain(("a", "b", "c", "d"), (3, 2, 4, 1))
#: Its cells take three ciphertexts, and one clique lies in two of them.
LARGE = Domain(("a", "b", "c"), (150, 120, 100))
PAIRS = [q for k in (1, 2) for q in combinations(SMALL.attributes, k)]
STORES = {"small": (SMALL, PAIRS), "large": (LARGE, [("a", "b"), ("b", "c"), ("a", "c"), ("b",)])}


@dataclass(frozen=True)
class Key:
    secret: SecretKeys
    computation: BfvComputation
    reader: BfvReader
    encryptor: Encryptor

    def drowned(self, vector: np.ndarray) -> tuple[bytes, ...]:
        """As it goes to the key holder, without a mask."""
        nothing = np.zeros(SLOTS, np.uint64)
        return tuple(self.computation.hidden(one, nothing) for one in self.stored(vector))

    def stored(self, vector: np.ndarray) -> list[Any]:
        """As a client's message would bring it."""
        return self.computation.read(self.encryptor.to_bytes(vector))


@pytest.fixture(scope="module")
def key() -> Key:
    secret = SecretKeys(PARAMETERS)
    public = secret.public
    return Key(secret, BfvComputation(PARAMETERS, public), BfvReader(secret), Encryptor(PARAMETERS, public.public))


@dataclass(frozen=True)
class Held:
    """A store and what is in it, in the clear and encrypted."""

    layout: SlotLayout
    counts: dict[Clique, np.ndarray]
    ciphertexts: list[Any]

    @classmethod
    def of(cls, name: str, key: Key, most: int = 300) -> Held:
        domain, cliques = STORES[name]
        layout, rng = SlotLayout(cliques, domain, SLOTS), np.random.default_rng(5)
        counts = {clique: rng.integers(0, most, domain.size(clique)) for clique in cliques}
        return cls(layout, counts, key.stored(layout.vector(counts)))

    def terms(self, seed: int, cliques: list[Clique], *, fractions: bool = False, rows: int = 300) -> ChoiceTerms:
        rng, domain = np.random.default_rng(seed), self.layout.domain
        p = [rng.dirichlet(np.full(domain.size(clique), 0.3)) for clique in cliques]
        weights = rng.uniform(0.1, 1.0, len(cliques)) if fractions else rng.integers(1, 9, len(cliques)).astype(float)
        cells = np.array([float(domain.size(clique)) for clique in cliques])
        return ChoiceTerms.of("squared_l2", cliques, p, weights, cells, sigma=2.0, size=float(rows), rows=rows)

    def exact(self, terms: ChoiceTerms) -> np.ndarray:
        return terms.scores([self.counts[clique] for clique in terms.cliques])


@pytest.fixture(scope="module")
def small(key: Key) -> Held:
    return Held.of("small", key)


@pytest.fixture(scope="module")
def large(key: Key) -> Held:
    return Held.of("large", key)


@pytest.fixture(params=sorted(STORES))
def held(request: pytest.FixtureRequest) -> Held:
    return request.getfixturevalue(request.param)


# A choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fractions", [False, True])
def test_scores_are_exact(key: Key, held: Held, fractions: bool) -> None:
    """Of some of the store's cliques, in any order; models above and below counts, noise of both signs."""
    rng = np.random.default_rng(1)
    cliques = [held.layout.cliques[i] for i in rng.permutation(len(held.layout.cliques))[:8]]
    terms = held.terms(2, cliques, fractions=fractions)
    noise = rng.integers(-(2**50), 2**50, len(cliques))
    asked = key.computation.scores(held.ciphertexts, held.layout, terms, noise)
    found = key.reader.scores(asked, terms)
    assert found.dtype == np.int64 and found.tolist() == (held.exact(terms) + noise).tolist()
    assert asked.sizes == terms.sizes and all(0 <= offset < key.secret.ring.modulus for offset in asked.offsets)


def test_only_the_ciphertexts_that_are_needed_are_sent(key: Key, large: Held) -> None:
    """And their slots are numbered as they are sent: ("a", "c") begins in the second of three and ends in the third."""
    places = [large.layout.range_of(clique)[0] for clique in large.layout.cliques]
    assert places == [0, 18_000, 30_000, 45_000] and large.layout.ciphertexts == 3
    expected: dict[tuple[Clique, ...], tuple[int, tuple[int, ...]]] = {
        (("a", "b"),): (2, (0,)),
        (("b", "c"),): (1, (18_000 - SLOTS,)),
        (("b",), ("a", "c")): (2, (45_000 - SLOTS, 30_000 - SLOTS)),
    }
    for cliques, (count, starts) in expected.items():
        terms = large.terms(3, list(cliques))
        asked = key.computation.scores(large.ciphertexts, large.layout, terms, np.zeros(len(cliques), np.int64))
        assert (len(asked.ciphertexts), asked.starts) == (count, starts)
        assert key.reader.scores(asked, terms).tolist() == large.exact(terms).tolist()


@pytest.mark.parametrize("model", ["none", "all rows in one cell"])
def test_scores_without_a_model_and_of_the_largest_differences(key: Key, small: Held, model: str) -> None:
    terms = small.terms(4, PAIRS)
    changed = np.zeros_like(terms.model)
    if model != "none":
        changed[terms.starts] = terms.scale * terms.rows
    terms = replace(terms, model=changed)
    zeros = np.zeros(len(PAIRS), np.int64)
    found = key.reader.scores(key.computation.scores(small.ciphertexts, small.layout, terms, zeros), terms)
    assert found.tolist() == small.exact(terms).tolist()


@pytest.mark.parametrize("sign", [-1, 1])
def test_scores_up_to_the_largest_integer_are_read(key: Key, small: Held, sign: int) -> None:
    terms = small.terms(4, PAIRS[:3])
    noise = np.array([sign * (LARGEST - 1)] * 3) - small.exact(terms)
    asked = key.computation.scores(small.ciphertexts, small.layout, terms, noise)
    assert key.reader.scores(asked, terms).tolist() == [sign * (LARGEST - 1)] * 3


def test_a_copy_of_the_cells_that_is_not_asked_for_is_hidden_too(key: Key, small: Held) -> None:
    """The second copy's slots are masked, not squares of counts."""
    terms = small.terms(4, PAIRS)
    asked = key.computation.scores(small.ciphertexts, small.layout, terms, np.zeros(len(PAIRS), np.int64))
    slots = key.reader.slots(asked)
    assert small.layout.copies > 1 and (slots > 2**50).mean() > 0.99 and len(np.unique(slots)) == SLOTS


def test_an_offset_is_added_and_a_weight_multiplies(key: Key, small: Held) -> None:
    terms = small.terms(4, PAIRS)
    asked = key.computation.scores(small.ciphertexts, small.layout, terms, np.zeros(len(PAIRS), np.int64))
    found = key.reader.scores(asked, terms)
    t = key.secret.ring.modulus
    more = replace(asked, offsets=tuple((offset + 7) % t for offset in asked.offsets))
    assert (key.reader.scores(more, terms) - found).tolist() == [7] * len(PAIRS)
    none = replace(asked, offsets=(0,) * len(PAIRS))
    sums = [sum_modulo(key.reader.slots(asked)[a : a + n], t) for a, n in zip(asked.starts, asked.sizes, strict=True)]
    expected = [centred(int(w) * total % t, t) for w, total in zip(terms.weights, sums, strict=True)]
    assert key.reader.scores(none, terms).tolist() == expected


def test_a_question_that_does_not_fit_its_terms_is_refused(key: Key, small: Held) -> None:
    terms = small.terms(4, PAIRS)
    asked = key.computation.scores(small.ciphertexts, small.layout, terms, np.zeros(len(PAIRS), np.int64))
    bad = [
        replace(asked, sizes=(*asked.sizes[:-1], asked.sizes[-1] + 1)),
        replace(asked, offsets=asked.offsets[1:]),
        replace(asked, offsets=()),
        replace(asked, starts=(*asked.starts[:-1], SLOTS)),
        replace(asked, starts=(-1, *asked.starts[1:])),
        replace(asked, starts=asked.starts[1:]),
        replace(asked, ciphertexts=()),
    ]
    for question in bad:
        with pytest.raises(ProtocolError, match="question to the key holder"):
            key.reader.scores(question, terms)


# An opening ----------------------------------------------------------------------------------------------------------


def opened(
    key: Key, held: Held, planes: np.ndarray, factor: int, pieces: list[Any]
) -> tuple[DecryptionQuery, np.ndarray]:
    asked = key.computation.marginals(held.ciphertexts, [key.stored(plane)[0] for plane in planes], factor, pieces)
    return asked, key.reader.numbers(asked)


def test_openings_are_counts_times_the_factor_plus_their_own_noise(key: Key, held: Held) -> None:
    """In the order of the pieces; several cliques at once, over the edge of a ciphertext, and one of them thrice."""
    cliques, rng = held.layout.cliques, np.random.default_rng(7)
    first = list(cliques[:2])
    ranges = NoiseRanges(held.layout, 4, first)
    planes = rng.integers(-(2**40), 2**40, (ranges.planes, SLOTS))
    for factor, asked_for in ((1, first), (2**20, [cliques[-1]]), (12_345, [cliques[0]]), (7, [cliques[0]])):
        pieces = ranges.reserve(asked_for)
        asked, found = opened(key, held, planes, factor, pieces)
        exact = np.concatenate([held.counts[clique] for clique in asked_for])
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            here, noise = exact[piece.first : piece.first + size], planes[piece.plane, piece.start : piece.stop]
            assert found[at : at + size].tolist() == (factor * here + noise).tolist()
            at += size
        assert at == len(found) == len(exact) and asked.offsets == ()
        assert asked.sizes == tuple(piece.stop - piece.start for piece in pieces)


def test_slots_that_were_not_asked_for_show_neither_counts_nor_noise(key: Key, small: Held) -> None:
    """Without any noise dealt a requested slot is its count, and no other slot is near any count."""
    ranges = NoiseRanges(small.layout, 1, [])
    pieces = ranges.reserve([("a", "b")])
    asked, found = opened(key, small, np.zeros((ranges.planes, SLOTS), np.int64), 1, pieces)
    assert found.tolist() == small.counts[("a", "b")].tolist()
    others = np.delete(key.reader.slots(asked), [i for p in pieces for i in range(p.start, p.stop)])
    near = np.minimum(others, np.uint64(key.secret.ring.modulus) - others)
    assert near.min() > 2**20  # of 16,378 uniform residues of 60 bits: false once in 30 million


def test_one_ciphertext_for_each_pair_of_a_stored_one_and_a_plane(key: Key, large: Held) -> None:
    ranges = NoiseRanges(large.layout, 3, [("a", "b"), ("b",)])
    for cliques, count in (([("a", "b"), ("b",)], 3), ([("b", "c")], 1), ([("a", "c")], 2)):
        pieces = ranges.reserve(cliques)
        planes = [key.stored(np.zeros(SLOTS, np.int64))[0]] * ranges.planes
        asked = key.computation.marginals(large.ciphertexts, planes, 1, pieces)
        pairs = {(piece.index, piece.plane) for piece in pieces}
        assert len(asked.ciphertexts) == len(pairs) == count
        assert key.reader.numbers(asked).tolist() == np.concatenate([large.counts[q] for q in cliques]).tolist()


def test_stored_ciphertexts_and_planes_stay_as_they_were(key: Key, small: Held) -> None:
    """What is computed is computed on copies: a store answers many times."""
    plane = key.stored(np.arange(SLOTS))[0]
    before = [key.secret.decrypted(one) for one in (small.ciphertexts[0], plane)]
    terms = small.terms(9, PAIRS)
    for _ in range(2):
        key.computation.scores(small.ciphertexts, small.layout, terms, np.zeros(len(PAIRS), np.int64))
        pieces = NoiseRanges(small.layout, 1, []).reserve([("a",)])
        key.computation.marginals(small.ciphertexts, [plane], 3, pieces)
    after = [key.secret.decrypted(one) for one in (small.ciphertexts[0], plane)]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


# Sums ---------------------------------------------------------------------------------------------------------------


def test_sums_are_combined_and_encrypted_again(key: Key) -> None:
    values = np.arange(1, 101)
    raw = key.drowned(values)
    asked = DecryptionQuery(raw, (0, 10, 50), (10, 1, 50))
    sums = [int(values[:10].sum()), 11, int(values[50:].sum())]
    wanted = Sums.of([(0, 0, 1), (2, 1, -3), (2, 2, 1), (2, 2, 1), (4, 0, 2**20)], 6, 3)
    (again,) = key.computation.read(key.reader.again(asked, wanted))
    t = key.secret.ring.modulus
    one = [sums[0], 0, (-3 * sums[1] + 2 * sums[2]) % t, 0, (2**20 * sums[0]) % t, 0]
    read = key.secret.decrypted(again)
    assert read[:18].tolist() == one * 3 and not read[18:].any()


def test_combinations_of_no_sum_or_to_nowhere_are_refused(key: Key) -> None:
    asked = DecryptionQuery(key.drowned(np.arange(4)), (0, 1), (1, 2))
    good = Sums.of([(0, 0, 1), (3, 1, 1)], 4, 1)
    assert len(key.reader.again(asked, good)) == 1
    bad = [
        replace(good, slots=good.slots + 1),
        replace(good, slots=good.slots - 1),
        replace(good, sums=good.sums + 1),
        replace(good, sums=good.sums - 1),
        replace(good, factors=good.factors * 2**21),
        replace(good, factors=good.factors[:1]),
        replace(good, length=0),
        replace(good, copies=0),
        replace(good, copies=-1, length=-4),
        replace(good, copies=2**27),
        replace(good, length=2.0),  # type: ignore[arg-type]
        replace(good, copies=True),
    ]
    for sums in bad:
        with pytest.raises(ProtocolError, match="question to the key holder"):
            key.reader.again(asked, sums)


# Questions -----------------------------------------------------------------------------------------------------------


def test_ranges_outside_are_refused() -> None:
    DecryptionQuery((b"x", b"y"), (0, 8, 15), (16, 8, 1)).check(8)
    ranges = {"long": ((0,), (17,)), "behind": ((16,), (1,)), "before": ((-1,), (2,)), "empty": ((3,), (0,))}
    ranges |= {"negative": ((3,), (-1,)), "more starts": ((0, 1), (1,)), "more sizes": ((), (1,))}
    for starts, sizes in ranges.values():
        with pytest.raises(ProtocolError, match="slots that it does not bring"):
            DecryptionQuery((b"x", b"y"), starts, sizes).check(8)


def test_a_question_of_damaged_ciphertexts_is_refused(key: Key) -> None:
    fresh = key.encryptor.to_bytes(np.arange(4))
    for raw in (b"", b"x" * 100, fresh[0]):  # also of a fresh one: it is at another level than answers
        with pytest.raises(ProtocolError):
            key.reader.numbers(DecryptionQuery((raw,), (0,), (1,)))
    answer = key.drowned(np.arange(4))
    with pytest.raises(ProtocolError):
        key.computation.read(answer)


# Numbers -------------------------------------------------------------------------------------------------------------


def test_residues_around_zero() -> None:
    for modulus in (5, 7, 2**59 + 1):
        values = [0, 1, modulus // 2, modulus // 2 + 1, modulus - 1]
        expected = [0, 1, modulus // 2, -(modulus // 2), -1]
        assert [centred(value, modulus) for value in values] == expected
        assert centred_all(np.array(values, np.uint64), modulus).tolist() == expected


def test_sums_of_many_large_residues_do_not_overflow() -> None:
    modulus = 2**60 - 2**14 + 1
    values = np.full(100_000, modulus - 1, np.uint64)
    assert sum_modulo(values, modulus) == 100_000 * (modulus - 1) % modulus
    assert sum_modulo(values[:0], modulus) == 0


@pytest.mark.parametrize("modulus", [2, 3, 5, 2**59 + 1, 2**60 - 2**14 + 1])
def test_residues_are_below_their_modulus_and_as_many_as_asked_for(modulus: int) -> None:
    for size in (0, 1, 1000):
        found = uniform(modulus, size)
        assert found.dtype == np.uint64 and found.shape == (size,) and (found < modulus).all()
    assert modulus > 5 or set(uniform(modulus, 1000).tolist()) == set(range(modulus))
