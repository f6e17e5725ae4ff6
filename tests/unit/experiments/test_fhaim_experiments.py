"""What FHAIM's tables need and the product does not have: its printed circuit, and the polynomial for its L1 score."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import ceil, log2

import numpy as np
import pytest
import scipy.stats

from experiments.fhaim_table3.polynomial import POLYNOMIAL, L1Polynomial
from experiments.fhaim_table4.naive import (
    NaiveComputation,
    NaiveLayout,
    NaiveProducts,
    RotatingKeys,
    naive_parameters,
)
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvReader, DecryptionQuery, Sums
from fedsyn.crypto.fhe.parameters import MOST_BITS, PLAIN_BITS, fresh_noise, product_noise
from fedsyn.crypto.fhe.products import Columns
from fedsyn.crypto.fhe.seal import Encryptor
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.front.testing.harness import config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.selection.terms import NORMS, ChoiceTerms
from fedsyn.table.counting.marginals import count

#: Each p-value is wrong under a true null once in 10^6; this file computes 2 of them.
ALARM = 1e-6
NAME = "experiments.fhaim_table3.polynomial:FhAimL1"


# The polynomial ------------------------------------------------------------------------------------------------------

EQUATION_4 = {0: "0.0556", 2: "3.6049", 4: "-11.9929", 6: "24.4175", 8: "-23.6236", 10: "8.5577"}


def printed(x: Fraction) -> Fraction:
    """FHAIM, appendix C, equation 4."""
    return sum((Fraction(factor) * x**power for power, factor in EQUATION_4.items()), Fraction(0))


def polynomial_terms(cells: int, rows: int, scale: int, model: np.ndarray) -> ChoiceTerms:
    """Every cell a marginal of its own, with weight 1 and without penalty."""
    ones, cliques = np.ones(cells, np.int64), tuple((f"x{i}",) for i in range(cells))
    return ChoiceTerms(L1Polynomial.name, cliques, (1,) * cells, ones, 0 * ones, model, scale, rows)


@pytest.mark.parametrize(("rows", "scale"), [(300, 1), (300, 256), (20_000, 8)])
def test_a_norm_is_equation_4_of_the_paper(rows: int, scale: int) -> None:
    """In exact fractions, over the whole range of differences and rounded to an integer step."""
    assert Fraction(L1Polynomial.alpha(rows)) == max(10_000, rows + 1)
    counts = np.unique(np.linspace(0, rows, 200).astype(np.int64))
    model = np.random.default_rng(0).integers(0, scale * rows + 1, len(counts))
    terms = polynomial_terms(len(counts), rows, scale, model)
    found = terms.scores([np.array([cell]) for cell in counts])
    alpha = scale * max(10_000, rows + 1)
    for cell, m, score in zip(counts.tolist(), model.tolist(), found.tolist(), strict=True):
        assert abs(score - alpha * printed(Fraction(scale * cell - m, alpha))) <= Fraction(1, 2) + Fraction(1, 10**6)
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
    terms = ChoiceTerms(L1Polynomial.name, (("x",),), (4,), np.array([3]), np.array([7]), 4 * model // 2, 4, 4)
    moved = [
        abs(int(terms.scores([np.array(t) + np.eye(4, dtype=np.int64)[cell]])[0] - terms.scores([np.array(t)])[0]))
        for t in tables
        for cell in range(4)
    ]
    assert len(moved) == 80 and max(moved) <= terms.moved == 3 * (ceil(4 * 2.3314) + 1)


def config(**aggregation: object) -> RunConfig:
    return config_of(NAME, 1, {"rounds": 2}, aggregation=aggregation)


def test_a_run_chooses_by_the_polynomial_on_the_plain_store_only() -> None:
    federation = federation_of(awkward_table("odd_names"), True)
    outcome = finished(execute(config(protocol="plain", noise="server"), federation))
    assert outcome.strategy.contract.store_facts.norm == L1Polynomial.name
    for protocol in ("fhe", "mpc"):
        with pytest.raises(ConfigError, match=r"aggregation\.protocol: plain only"):
            config(protocol=protocol, noise="distributed")


# The printed circuit -------------------------------------------------------------------------------------------------


class Key:
    """A key holder with keys for rotations that notes what it was asked."""

    def __init__(self) -> None:
        pytest.importorskip("tenseal")
        self.secret = RotatingKeys(naive_parameters())
        self.parameters, self.reader = self.secret.ring.parameters, BfvReader(self.secret)
        self.computation = NaiveComputation(self.secret)
        self.encryptor = Encryptor(self.parameters, self.secret.public.public)
        self.seen: list[DecryptionQuery] = []

    def sums(self, asked: DecryptionQuery, sums: Sums) -> list[bytes]:
        self.seen.append(asked)
        return self.reader.again(asked, sums)

    def products(
        self, domain: Domain, codes: np.ndarray, cliques: list[Clique], holders: tuple[tuple[str, ...], ...] = ()
    ) -> NaiveProducts:
        entities = []
        for held in holders or (domain.attributes,):
            layout = NaiveLayout.of(len(codes), self.parameters.slots, domain, held)
            vectors = layout.vectors({name: codes[:, domain.attributes.index(name)] for name in held})
            raw = [piece for vector in vectors for piece in self.encryptor.to_bytes(vector)]
            entities.append(Columns.of(layout, self.computation.read(raw)))
        slots = SlotLayout(cliques, domain, self.parameters.slots)
        return NaiveProducts(self.computation, entities, domain, slots, self.sums)


@pytest.fixture(scope="module")
def key() -> Key:
    return Key()


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "holders"), [(5, (("b",), ("a", "c"))), (16_390, ())])
def test_counts_as_the_paper_computes_them(key: Key, rows: int, holders: tuple[tuple[str, ...], ...]) -> None:
    """A product, a sum by rotations, a move for every cell, also behind the first row of slots."""
    domain = Domain(("a", "b", "c"), (2, 1, 2)) if holders else Domain(("a", "b"), (2, 1))
    codes = np.stack([np.random.default_rng([0, rows]).integers(0, n, rows) for n in domain.shape], axis=1)
    cliques = [q for k in (1, 2) for q in combinations(domain.attributes, k)]
    made = key.products(domain, codes, cliques, holders)
    layout = made.layout
    layout.length, layout.copies = 9000, 1  # so that cells also lie in the second of BFV's two rows of slots
    layout._ranges[cliques[-1]] = (8995, 8995 + domain.size(cliques[-1]))
    read = np.concatenate([key.secret.decrypted(one) for one in made.counts()])
    exact = {q: c.ravel() for q, c in zip(cliques, count(codes, domain, cliques), strict=True)}
    expected = layout.vector(exact)
    assert read[: len(expected)].tolist() == expected.tolist() and not read[len(expected) :].any()
    two_way = sum(domain.size(clique) for clique in cliques if len(clique) == 2)
    assert made.count == two_way * made.entities[0].layout.chunks


@pytest.mark.slow
@pytest.mark.thorough
def test_the_key_holder_sees_uniform_slots(key: Key) -> None:
    key.seen.clear()
    key.products(Domain(("a", "b"), (1, 2)), np.zeros((300, 2), np.int64), [("a", "b"), ("a",)]).counts()
    (asked,) = key.seen
    views, modulus = key.reader.slots(asked), key.secret.ring.modulus
    low = np.bincount((views & np.uint64(255)).astype(int), minlength=256)
    assert scipy.stats.kstest(views / modulus, "uniform").pvalue > ALARM
    assert scipy.stats.chisquare(low).pvalue > ALARM


@pytest.mark.slow
def test_sums_by_rotations_and_selectors_have_the_noise_that_was_derived(key: Key) -> None:
    """With the chunks of rows that the parameters are for added up."""
    ring, n, one = key.secret.ring, key.parameters.degree, np.ones(key.parameters.slots, np.int64)

    def room(noise: float, ciphertext: object) -> bool:
        """Whether a ciphertext has the room that a noise of that size leaves, but for two bits of rounding."""
        bits = sum(prime.bit_length() for prime in ring.primes[: ciphertext.coeff_modulus_size()])  # type: ignore[attr-defined]
        return key.secret.room(ciphertext) >= bits - 2 - PLAIN_BITS - log2(noise)

    total = ring.api.Ciphertext()
    ring.evaluator.multiply(*(key.encryptor.encrypted(one) for _ in range(2)), total)
    key.computation.relinearised(total)
    for _ in range(10):  # 2^10 of them, in one direction
        ring.evaluator.add_inplace(total, ring.copied(total))
    assert room(2**10 * product_noise(n, fresh_noise(n)), total)
    moved = key.computation.moved(key.computation.summed(total), 12_345)
    derived = (2**10 * product_noise(n, fresh_noise(n)) + 2.0**22) * n * n * 2.0 ** (PLAIN_BITS - 1)
    assert room(derived, moved)
    read = key.secret.decrypted(ring.flooded(moved, key.encryptor.inner))
    assert read[12_345] == 2**10 * n and not np.delete(read, 12_345).any()


def test_the_parameters_of_the_circuit_stay_within_the_standard() -> None:
    parameters = naive_parameters()
    assert sum(parameters.primes) <= MOST_BITS[parameters.degree]
    assert parameters.primes[-1] == max(parameters.primes) <= 60
