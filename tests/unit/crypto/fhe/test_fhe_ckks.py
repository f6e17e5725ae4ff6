"""FHAIM's steps over CKKS: scores and openings within derived errors, and the polynomial that stands for L1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, log2, sqrt
from typing import Any

import numpy as np
import pytest
import scipy.stats

from fedsyn.crypto.fhe.ckks import CkksComputation, CkksReader
from fedsyn.crypto.fhe.parameters import CKKS_GRID, POOL_REACH, Parameters, ckks_error, ckks_for_store, ckks_noise
from fedsyn.crypto.fhe.plan import layout_of, parameters_of
from fedsyn.crypto.fhe.question import Asked
from fedsyn.crypto.fhe.seal import Encryptor, Ring, SecretKeys
from fedsyn.crypto.fhe.slots import NoiseRanges, Piece, SlotLayout
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.front.testing.harness import config_of
from fedsyn.selection.terms import NORMS, POLYNOMIAL, L1Polynomial, Terms
from fedsyn.table.counting.stored import StoreFacts

pytestmark = pytest.mark.xdist_group("fhe ckks")  # keys with rotations are made once

SMALL = Domain(("a", "b", "c", "d"), (3, 2, 17, 1))
#: 21 pairs in blocks of 512 slots: two ciphertexts.
LARGE = Domain(tuple("abcdefg"), (20,) * 7)
CLIQUES: dict[Domain, list[Clique]] = {
    SMALL: [q for k in (1, 2) for q in combinations(SMALL.attributes, k)],
    LARGE: [q for k in (2, 1) for q in combinations(LARGE.attributes, k)],
}


@dataclass(frozen=True)
class Key:
    parameters: Parameters
    secret: SecretKeys
    computation: CkksComputation
    reader: CkksReader
    encryptor: Encryptor

    @classmethod
    def of(cls, parameters: Parameters) -> Key:
        pytest.importorskip("tenseal")
        secret = SecretKeys(parameters)
        parts = (CkksComputation(parameters, secret.public), CkksReader(secret))
        return cls(parameters, secret, *parts, Encryptor(parameters, secret.public.public))

    def stored(self, vector: np.ndarray) -> list[Any]:
        return self.computation.read(self.encryptor.to_bytes(vector))

    def slots(self, asked: Asked) -> np.ndarray:
        return np.concatenate([self.secret.decrypted(self.secret.ring.ciphertext(raw)) for raw in asked.ciphertexts])

    def flood_bits(self, terms: Terms) -> int:
        """log2 of the flood over scores: as much more than that of an opening as their noise is."""
        block = max((size - 1).bit_length() for size in terms.sizes)
        more = self.computation._noise_of(terms, block) / ckks_noise(self.parameters)
        return self.parameters.flood_bits + max(0, ceil(log2(more)))

    def flood(self, terms: Terms) -> float:
        """Its eight standard deviations in a slot, in units of the norm."""
        return ckks_error(self.parameters) * 2.0 ** (self.flood_bits(terms) - self.parameters.flood_bits)

    def rounding(self, terms: Terms, exact: np.ndarray) -> float:
        """Of doubles: log2(n) times 2^-53 of the largest number in any slot, score or mask, at encoding and decoding;
        and the noise that the flood covers, which is far below."""
        mask = float(np.abs(self.masks(terms)).max())
        largest = max(float(np.abs(exact).max()) / terms.unit, mask)
        return 2.0 * 2.0**-53 * log2(self.parameters.degree) * largest + self.flood(terms) * 2.0**-40

    def masks(self, terms: Terms) -> np.ndarray:
        """The bounds of the masks of a question about scores."""
        block = max((size - 1).bit_length() for size in terms.sizes)
        return np.array([-1.0, 1.0]) * self.computation._largest(terms, block) * 2.0**-10


@pytest.fixture(scope="module")
def key() -> Key:
    return Key.of(ckks_for_store(3, 2, 9))


@pytest.fixture(scope="module")
def deep() -> Key:
    return Key.of(ckks_for_store(3, 5, 6, 1))


@dataclass(frozen=True)
class Held:
    layout: SlotLayout
    counts: dict[Clique, np.ndarray]
    ciphertexts: list[Any]
    rows: int

    @classmethod
    def of(cls, domain: Domain, key: Key, rows: int) -> Held:
        rng = np.random.default_rng(rows)
        layout = SlotLayout(CLIQUES[domain], domain, key.parameters.slots, aligned=True)
        counts = {q: rng.multinomial(rows, rng.dirichlet(np.ones(domain.size(q)))) for q in layout.cliques}
        return cls(layout, counts, key.stored(layout.vector(counts)), rows)

    def terms(self, norm: str, cliques: Sequence[Clique], *, sigma: float, fractions: bool = False) -> Terms:
        rng, domain = np.random.default_rng(3), self.layout.domain
        p = [rng.dirichlet(np.full(domain.size(clique), 0.3)) for clique in cliques]
        weights = rng.uniform(0.1, 1.0, len(cliques)) if fractions else rng.integers(1, 9, len(cliques)).astype(float)
        cells = np.array([float(domain.size(clique)) for clique in cliques])
        facts = {"sigma": sigma, "size": float(self.rows), "rows": self.rows}
        return Terms.of(norm, list(cliques), p, weights, cells, **facts)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of 2^30 whatever it should be: what is left are the errors of the computation itself."""
    flood = Ring._flood
    monkeypatch.setattr(Ring, "_flood", lambda ring, bits: flood(ring, 30))


def check_scores(key: Key, held: Held, terms: Terms, *, rounded: float, flood: float) -> None:
    """Noisy scores within flood, doubles and the rounding of the two."""
    noise = np.random.default_rng(4).integers(-(2**34), 2**34, len(terms.cliques))
    asked = key.computation.scores(held.ciphertexts, held.layout, terms, noise)
    exact = terms.scores([held.counts[clique] for clique in terms.cliques]) + noise
    found, slots = key.reader.scores(asked, terms), key.slots(asked)
    error = flood + key.rounding(terms, exact)
    assert found.dtype == np.int64 and np.abs(found - exact).max() <= terms.unit * error + rounded
    assert np.array_equal(found, np.rint(slots[list(asked.starts)] * terms.unit))
    assert set(asked.sizes) == {1} and asked.offsets == ()
    assert np.abs(np.delete(slots, asked.starts)).max() <= key.masks(terms)[1] + error


# A choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("fractions", [False, True])
@pytest.mark.parametrize("sigma", [0.2, 5.0])
def test_squared_scores_are_exact_but_for_doubles(key: Key, sigma: float, fractions: bool) -> None:
    held = Held.of(SMALL, key, 300)
    terms = held.terms("squared_l2", held.layout.cliques, sigma=sigma, fractions=fractions)
    check_scores(key, held, terms, rounded=0.5, flood=0.0)


@pytest.mark.usefixtures("calm")
def test_squared_scores_of_many_rows_in_two_ciphertexts(key: Key) -> None:
    held = Held.of(LARGE, key, 20_000)
    assert held.layout.ciphertexts == 2
    for cliques in (held.layout.cliques, [("c", "d"), ("a",), ("f", "g")]):
        check_scores(key, held, held.terms("squared_l2", cliques, sigma=100.0), rounded=0.5, flood=0.0)


@pytest.mark.parametrize("rows", [300, 20_000])
def test_the_flood_is_little_beside_what_one_row_moves(key: Key, rows: int) -> None:
    held = Held.of(SMALL, key, rows)
    terms = held.terms("squared_l2", held.layout.cliques, sigma=5.0)
    check_scores(key, held, terms, rounded=0.5, flood=key.flood(terms))
    assert terms.unit * key.flood(terms) < terms.moved / 20


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("clique", [("d",), ("b",), ("a", "c")])
def test_a_choice_among_one_clique(key: Key, clique: Clique) -> None:
    """Of one cell, with nothing to add up; of two; of 51, in a block of 64."""
    held = Held.of(SMALL, key, 300)
    check_scores(key, held, held.terms("squared_l2", [clique], sigma=3.0), rounded=0.5, flood=0.0)


def test_a_score_has_the_flood_that_its_noise_asks_for(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in slots that hold no mask: F sqrt(n/3) / sqrt(2) in the real part of each, over the scale."""
    monkeypatch.setattr(CkksComputation, "_masks", staticmethod(lambda free, reach: np.zeros(len(free))))
    held = Held.of(LARGE, key, 20_000)
    terms = held.terms("squared_l2", held.layout.cliques, sigma=100.0)
    asked = key.computation.scores(held.ciphertexts, held.layout, terms, np.zeros(len(terms.cliques), np.int64))
    others = np.delete(key.slots(asked), asked.starts)
    assert key.flood_bits(terms) > key.parameters.flood_bits + 20
    # Sixteen thousand of them: one standard deviation of what is found is 0.6%.
    assert others.std() == pytest.approx(key.flood(terms) / 8.0 / sqrt(2.0), rel=0.05)


@pytest.mark.usefixtures("calm")
def test_what_a_selector_leaves_of_a_slot_is_far_below_its_mask(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """2^-40 of it and less, at 20,000 rows in one cell; seen where masks and flood are left out."""
    masks = CkksComputation._masks
    monkeypatch.setattr(CkksComputation, "_masks", staticmethod(lambda free, reach: 0.0 * masks(free, reach)))
    held = Held.of(LARGE, key, 20_000)
    counts = {clique: np.eye(1, LARGE.size(clique), dtype=np.int64)[0] * 20_000 for clique in held.layout.cliques}
    stored = key.stored(held.layout.vector(counts))
    terms = held.terms("squared_l2", held.layout.cliques, sigma=100.0)
    asked = key.computation.scores(stored, held.layout, terms, np.zeros(len(terms.cliques), np.int64))
    left = np.abs(np.delete(key.slots(asked), asked.starts)).max()
    assert left <= key.masks(terms)[1] * 2.0**-40


def test_slots_that_are_not_asked_for_are_uniform_masks(key: Key) -> None:
    """Kolmogorov-Smirnov of 16,000 slots, and of the differences of two questions (a triangle's distribution); four
    p-values, each wrong under a true null once in 10^6. The flood's part of the masks is 10^-5, which is not seen."""
    held = Held.of(LARGE, key, 20_000)
    terms = held.terms("squared_l2", held.layout.cliques, sigma=100.0)
    zeros, bound = np.zeros(len(terms.cliques), np.int64), key.masks(terms)[1]
    views = []
    for _ in range(2):
        asked = key.computation.scores(held.ciphertexts, held.layout, terms, zeros)
        views.append(np.delete(key.slots(asked), asked.starts) / bound)
    for view in views:
        assert scipy.stats.kstest(view, "uniform", (-1, 2)).pvalue > 1e-6
    assert scipy.stats.kstest(views[0] - views[1], "triang", (0.5, -2, 4)).pvalue > 1e-6
    planes = [key.stored(np.zeros(key.parameters.slots, np.int64))[0]]
    asked = key.computation.marginals(held.ciphertexts, planes, 2**20, [Piece(0, 0, 400, 0, 0)], 20_000)
    reach = (20_000 + POOL_REACH / 2**20) * 2.0**-10
    assert scipy.stats.kstest(key.slots(asked)[400:] / reach, "uniform", (-1, 2)).pvalue > 1e-6


def test_scores_that_do_not_fit_their_terms_are_refused(key: Key) -> None:
    held = Held.of(SMALL, key, 300)
    terms = held.terms("squared_l2", held.layout.cliques, sigma=3.0)
    asked = key.computation.scores(held.ciphertexts, held.layout, terms, np.zeros(len(terms.cliques), np.int64))
    bad = [
        replace(asked, starts=asked.starts[1:], sizes=asked.sizes[1:]),
        replace(asked, sizes=(2, *asked.sizes[1:])),
        replace(asked, starts=(key.parameters.slots, *asked.starts[1:])),
        replace(asked, ciphertexts=()),
    ]
    for question in bad:
        with pytest.raises(ProtocolError, match="question to the key holder"):
            key.reader.scores(question, terms)


@pytest.mark.slow  # keys for six products one after the other
@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("rows", [300, 9_999, 50_000])
def test_polynomial_scores_are_exact_but_for_doubles(deep: Key, rows: int) -> None:
    """Of all sizes of blocks, whose unused slots have a polynomial of their own; alpha 10,000 and more.

    Ours rounds a norm before the weight, at most W/2; the reader rounds the score.
    """
    held = Held.of(SMALL, deep, rows)
    for sigma in (0.2, 100.0):
        terms = held.terms(L1Polynomial.name, held.layout.cliques, sigma=sigma)
        check_scores(deep, held, terms, rounded=0.5 * int(terms.weights.max()) + 0.5, flood=0.0)


@pytest.mark.slow
def test_polynomial_scores_are_within_their_flood(deep: Key) -> None:
    held = Held.of(SMALL, deep, 300)
    terms = held.terms(L1Polynomial.name, held.layout.cliques, sigma=5.0)
    check_scores(deep, held, terms, rounded=0.5 * int(terms.weights.max()) + 0.5, flood=deep.flood(terms))


# An opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [SMALL, LARGE])
def test_openings_are_counts_and_their_own_noise_rounded_to_the_grid(key: Key, domain: Domain) -> None:
    held, rng = Held.of(domain, key, 20_000), np.random.default_rng(5)
    cliques = held.layout.cliques
    first = list(cliques[:3])
    ranges = NoiseRanges(held.layout, 4, first)
    noise = rng.integers(-(2**31), 2**31, (ranges.planes, key.parameters.slots))
    planes = [key.stored(plane)[0] for plane in noise]
    for factor, asked_for in ((2**20, first), (1, [cliques[-1]]), (54_321, [cliques[0]]), (2**20, [cliques[0]])):
        pieces = ranges.reserve(asked_for)
        asked = key.computation.marginals(held.ciphertexts, planes, factor, pieces, held.rows)
        found, slots = key.reader.numbers(asked), key.slots(asked)
        exact = np.concatenate([held.counts[clique] for clique in asked_for])
        expected = np.concatenate(
            [exact[p.first : p.first + p.stop - p.start] + noise[p.plane, p.start : p.stop] / factor for p in pieces]
        )
        largest = held.rows + POOL_REACH / factor  # noise is below it, and masks are
        error = ckks_error(key.parameters) + 2.0 * 2.0**-53 * log2(key.parameters.degree) * largest
        assert found.dtype == np.int64 and len(found) == len(exact)
        assert np.abs(found - expected * CKKS_GRID).max() <= 0.5 + CKKS_GRID * error
        wanted = [slot for a, n in zip(asked.starts, asked.sizes, strict=True) for slot in range(a, a + n)]
        assert np.array_equal(found, np.rint(slots[wanted] * CKKS_GRID).astype(np.int64))
        assert np.abs(np.delete(slots, wanted)).max() <= (held.rows + POOL_REACH / factor) * 2.0**-10 + error


def test_a_clique_with_more_cells_than_a_ciphertext_has_slots_is_refused() -> None:
    """It has no block of one ciphertext, and so no sum over a block; 8,192 cells have one."""
    config = config_of("fhaim", 1, aggregation={"protocol": "fhe", "noise": "distributed", "fhe": {"scheme": "ckks"}})
    for b in (64, 65):
        domain = Domain(("a", "b"), (128, b))
        facts = StoreFacts((("a", "b"), ("a",)), 1, 2, "squared_l2")
        if b == 64:
            parameters = parameters_of(config, domain, facts)
            layout = layout_of(parameters, domain, facts)
            assert layout.aligned and layout.range_of(("a", "b")) == (0, 8192) and parameters.rotations == 13
        else:
            with pytest.raises(ConfigError, match="use bfv"):
                parameters_of(config, domain, facts)


# The polynomial ------------------------------------------------------------------------------------------------------

EQUATION_4 = {0: "0.0556", 2: "3.6049", 4: "-11.9929", 6: "24.4175", 8: "-23.6236", 10: "8.5577"}


def printed(x: Fraction) -> Fraction:
    """FHAIM, appendix C, equation 4."""
    return sum((Fraction(factor) * x**power for power, factor in EQUATION_4.items()), Fraction(0))


def polynomial_terms(cells: int, rows: int, scale: int, model: np.ndarray) -> Terms:
    """Every cell a marginal of its own, with weight 1 and without penalty."""
    ones, cliques = np.ones(cells, np.int64), tuple((f"x{i}",) for i in range(cells))
    return Terms(L1Polynomial.name, cliques, (1,) * cells, ones, 0 * ones, model, scale, rows)


@pytest.mark.parametrize(("rows", "scale"), [(300, 1), (300, 256), (20_000, 8)])
def test_a_norm_is_equation_4_of_the_paper(rows: int, scale: int) -> None:
    """In exact fractions, over the whole range of differences and rounded to an integer step."""
    assert Fraction(L1Polynomial.alpha(rows)) == max(10_000, rows + 1)
    counts = np.unique(np.linspace(0, rows, 200).astype(np.int64))
    model = np.random.default_rng(0).integers(0, scale * rows + 1, len(counts))
    terms = polynomial_terms(len(counts), rows, scale, model)
    found = terms.scores([np.array([count]) for count in counts])
    alpha = scale * max(10_000, rows + 1)
    for count, m, score in zip(counts.tolist(), model.tolist(), found.tolist(), strict=True):
        assert abs(score - alpha * printed(Fraction(scale * count - m, alpha))) <= Fraction(1, 2) + Fraction(1, 10**6)
    assert [Fraction(str(each)) for each in POLYNOMIAL] == [Fraction(each) for each in EQUATION_4.values()]


def test_the_polynomial_is_near_the_absolute_value() -> None:
    """Nowhere further than at 0, where an exact cell counts as 556 records of 10,000."""
    x = np.linspace(-1.0, 1.0, 200_001)
    off = np.polynomial.polynomial.polyval(x**2, POLYNOMIAL) - np.abs(x)
    assert np.abs(off).max() == pytest.approx(0.0556, abs=1e-12) and abs(x[np.abs(off).argmax()]) < 1e-9
    assert printed(Fraction(1)) < Fraction(11, 10)


def test_the_polynomial_is_nowhere_steeper_than_it_says() -> None:
    """At the ends exactly, on a grid, and in every zero of the second derivative; it is as steep at 1."""
    powers = {power: Fraction(factor) for power, factor in EQUATION_4.items()}

    def slope(x: Fraction) -> Fraction:
        return sum((power * factor * x ** (power - 1) for power, factor in powers.items() if power), Fraction(0))

    steepest = Fraction(str(L1Polynomial.steepest))
    assert slope(Fraction(1)) == steepest and slope(Fraction(0)) == 0
    whole = np.zeros(11)
    whole[::2] = POLYNOMIAL
    first, second = np.polynomial.polynomial.polyder(whole), np.polynomial.polynomial.polyder(whole, 2)
    roots = np.polynomial.polynomial.polyroots(second)
    critical = [float(root.real) for root in roots if abs(root.imag) < 1e-9 and 0 <= root.real <= 1]
    assert len(critical) >= 3
    for x in critical:
        assert abs(slope(Fraction(x))) < steepest - Fraction(1, 100)
    grid = np.polynomial.polynomial.polyval(np.linspace(-1.0, 1.0, 2_000_001), first)
    # Between points 10^-6 apart a slope changes by at most 10^-6 times the largest curvature.
    curvature = float(np.abs(second) @ np.ones(len(second)))
    assert np.abs(grid).max() <= L1Polynomial.steepest + 1e-9 and curvature * 1e-6 < 1e-2


@pytest.mark.parametrize("rows", [1, 50, 9_998, 9_999, 10_000, 12_345])
@pytest.mark.parametrize("scale", [1, 2, 64])
def test_one_row_moves_no_polynomial_score_by_more_than_the_terms_say(rows: int, scale: int) -> None:
    """All neighbours of a cell: every count below `rows` and the next one, under models at both ends and between."""
    counts, rng = np.arange(rows), np.random.default_rng(rows)
    for model in (np.zeros(rows, np.int64), np.full(rows, scale * rows), rng.integers(0, scale * rows + 1, rows)):
        terms = polynomial_terms(rows, rows, scale, model)
        before, after = (NORMS[terms.norm].measure(scale * c - model, terms) for c in (counts, counts + 1))
        assert np.abs(after - before).max() <= terms.moved == ceil(2.3314 * scale) + 1
    if rows >= 9_999:  # the bound is nearly met where all rows are in one cell
        empty = polynomial_terms(rows + 1, rows, scale, np.zeros(rows + 1, np.int64))
        steps = np.diff(NORMS[empty.norm].measure(scale * np.arange(rows + 1), empty))
        assert steps.max() > 2.3 * scale - 1


def test_one_row_moves_sums_over_many_cells_by_no_more() -> None:
    """All tables of three people in four cells, all neighbours with one row more; the sum's rounding included."""
    model = np.array([1, 0, 5, 2])
    tables = [t for t in np.ndindex(4, 4, 4, 4) if sum(t) == 3]
    terms = Terms(L1Polynomial.name, (("x",),), (4,), np.array([3]), np.array([7]), 4 * model // 2, 4, 4)
    moved = [
        abs(int(terms.scores([np.array(t) + np.eye(4, dtype=np.int64)[cell]])[0] - terms.scores([np.array(t)])[0]))
        for t in tables
        for cell in range(4)
    ]
    assert len(moved) == 80 and max(moved) <= terms.moved == 3 * (ceil(4 * 2.3314) + 1)
