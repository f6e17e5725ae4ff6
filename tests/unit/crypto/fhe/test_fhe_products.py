"""Marginals of encrypted one-hot columns against counting."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.stats

from fedsyn.crypto.fhe.bfv import BfvComputation, BfvReader, DecryptionQuery, Sums
from fedsyn.crypto.fhe.parameters import Parameters, bfv_for_store
from fedsyn.crypto.fhe.products import ColumnLayout, Columns, Products
from fedsyn.crypto.fhe.seal import Encryptor, SecretKeys
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.table.counting.marginals import count

pytest.importorskip("tenseal")

pytestmark = pytest.mark.xdist_group("fhe products")  # keys are made once

DOMAIN = Domain(("a", "b", "c", "d"), (3, 2, 5, 1))
EVERY = [q for k in (1, 2) for q in combinations(DOMAIN.attributes, k)]
#: Each p-value is wrong under a true null once in 10^6; this file computes 6 of them.
ALARM = 1e-6


@dataclass
class Key:
    """A key holder that notes what it was asked."""

    parameters: Parameters
    seen: list[tuple[DecryptionQuery, Sums]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.secret = SecretKeys(self.parameters)
        self.computation = BfvComputation(self.parameters, self.secret.public)
        self.encryptor = Encryptor(self.parameters, self.secret.public.public)
        self.reader = BfvReader(self.secret)

    def sums(self, asked: DecryptionQuery, sums: Sums) -> list[bytes]:
        self.seen.append((asked, sums))
        return self.reader.again(asked, sums)

    def columns(self, domain: Domain, held: tuple[str, ...], codes: np.ndarray) -> Columns:
        """An entity's columns, as a message brings them."""
        layout = ColumnLayout.of(len(codes), self.parameters.slots, domain, held)
        given = {name: codes[:, domain.attributes.index(name)] for name in held}
        raw = [piece for vector in layout.vectors(given) for piece in self.encryptor.to_bytes(vector)]
        assert len(raw) == layout.ciphertexts
        return Columns.of(layout, self.computation.read(raw))


@pytest.fixture(scope="module")
def key() -> Key:
    return Key(bfv_for_store(2, 2**10))


def table(domain: Domain, rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, rows])
    return np.stack([rng.integers(0, n, rows) for n in domain.shape], axis=1)


def products(
    key: Key,
    domain: Domain,
    codes: np.ndarray,
    cliques: list[Clique],
    holders: tuple[tuple[str, ...], ...] = (),
) -> tuple[Products, SlotLayout]:
    holders = holders or (domain.attributes,)
    entities = [key.columns(domain, held, codes) for held in holders]
    layout = SlotLayout(cliques, domain, key.parameters.slots)
    return Products(key.computation, entities, domain, layout, key.sums), layout


def check_counts(key: Key, made: Products, layout: SlotLayout, codes: np.ndarray) -> None:
    """Every copy of every cell is its count, and nothing lies behind them."""
    ciphertexts = made.counts()
    read = np.concatenate([key.secret.decrypted(one) for one in ciphertexts])
    exact = {q: c.ravel() for q, c in zip(layout.cliques, count(codes, layout.domain, layout.cliques), strict=True)}
    expected = layout.vector(exact)
    assert len(ciphertexts) == layout.ciphertexts
    assert read[: len(expected)].tolist() == expected.tolist() and not read[len(expected) :].any()
    fresh = key.secret.room(key.encryptor.encrypted(expected[:4]))
    assert min(map(key.secret.room, ciphertexts)) >= fresh - 2  # they came back fresh


# Counts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 5, 300, pytest.param(5000, marks=pytest.mark.slow)])
def test_counts_of_one_entity(key: Key, rows: int) -> None:
    """All columns side by side in one ciphertext, or (5,000 rows) three of seven."""
    codes = table(DOMAIN, rows)
    made, layout = products(key, DOMAIN, codes, EVERY)
    check_counts(key, made, layout, codes)


@pytest.mark.parametrize(
    "rows", [8193, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (8192, 16_384, 16_385, 40_000))]
)
def test_counts_at_and_beyond_the_slots_of_a_ciphertext(key: Key, rows: int) -> None:
    """Two columns in a ciphertext, then one, then one in two and in three ciphertexts."""
    domain = Domain(("a", "b"), (2, 3))
    codes = table(domain, rows)
    made, layout = products(key, domain, codes, [("a",), ("b",), ("a", "b")])
    assert made.entities[0].layout.chunks == -(-rows // 16_384)
    check_counts(key, made, layout, codes)
    assert made.count == 2 * made.entities[0].layout.chunks


@pytest.mark.parametrize(
    "holders",
    [
        (("a", "b"), ("c", "d")),
        (("c",), ("d", "a", "b")),  # not in the order of the schema
        (("d",), ("a", "b", "c")),  # one of them has no column at all
        (("b",), ("a", "d"), ("c",)),
    ],
)
def test_counts_of_attributes_that_several_entities_hold(key: Key, holders: tuple[tuple[str, ...], ...]) -> None:
    codes = table(DOMAIN, 40)
    made, layout = products(key, DOMAIN, codes, EVERY, holders)
    check_counts(key, made, layout, codes)


@pytest.mark.parametrize(
    "cliques",
    [[("a", "c")], [("c", "a"), ("b",)], [("a",)], [("d",), ("a", "d")], [("b", "c"), ("a", "c"), ("a",)]],
)
def test_counts_of_some_cliques(key: Key, cliques: list[Clique]) -> None:
    codes = table(DOMAIN, 17)
    made, layout = products(key, DOMAIN, codes, cliques)
    check_counts(key, made, layout, codes)


@pytest.mark.parametrize("value", ["first", "last"])
def test_counts_of_people_who_are_all_the_same(key: Key, value: str) -> None:
    """Columns of nothing but ones, and of nothing but zeros, the last values' too, which are sent by nobody."""
    codes = np.zeros((30, 4), np.int64) if value == "first" else np.tile(np.array(DOMAIN.shape) - 1, (30, 1))
    made, layout = products(key, DOMAIN, codes, EVERY)
    check_counts(key, made, layout, codes)


def test_counts_in_more_cells_than_a_ciphertext_has_slots(key: Key) -> None:
    """A store with gaps: one clique lies over the edge of two ciphertexts, another in a third one."""
    domain = Domain(("a", "b"), (2, 3))
    codes = table(domain, 7)
    made, layout = products(key, domain, codes, [("a", "b"), ("a",), ("b",)])
    layout.length = 2 * key.parameters.slots + 5
    layout.copies = 1
    layout._ranges = {("a", "b"): (16_380, 16_386), ("a",): (0, 2), ("b",): (32_768, 32_771)}
    assert layout.ciphertexts == 3
    check_counts(key, made, layout, codes)


# States what should hold; where there is no column at all, nothing is asked of the key holder, and NumPy has nothing to
# concatenate (`BfvReader.slots`).
def test_an_attribute_of_one_value_needs_no_column_even_if_it_is_alone(key: Key) -> None:
    domain = Domain(("a", "b"), (1, 1))
    made, layout = products(key, domain, np.zeros((9, 2), np.int64), [("a",), ("a", "b")])
    check_counts(key, made, layout, np.zeros((9, 2), np.int64))


# How many products ---------------------------------------------------------------------------------------------------


def promised(domain: Domain, pairs: list[Clique], order: tuple[str, ...], rows: int, slots: int) -> int:
    """One product of a value's repeated column with a group of columns gives all cells of the two; the last value of an
    attribute has no column."""
    columns = [(name, value) for name in order for value in range(domain.size((name,)) - 1)]
    width, chunks = max(1, slots // rows), -(-rows // slots)
    groups = [columns[i : i + width] for i in range(0, len(columns), width)]
    wanted = {frozenset(pair) for pair in pairs}
    return chunks * sum(
        any(order.index(name) < order.index(other) and {name, other} in wanted for other, _ in group)
        for name, _ in columns
        for group in groups
    )


@pytest.mark.parametrize(("rows", "pairs"), [(1, 3), (300, 1), (300, 3), (5000, 3), (16_385, 1)])
def test_the_number_of_products_is_what_is_promised(key: Key, rows: int, pairs: int) -> None:
    domain = Domain(("a", "b", "c"), (3, 2, 3))
    cliques = [("a", "b"), ("b", "c"), ("a", "c")][:pairs]
    made, _ = products(key, domain, table(domain, rows), cliques)
    made.counts()
    assert made.count == promised(domain, cliques, domain.attributes, rows, 16_384)
    cells = sum(domain.size(clique) for clique in cliques)
    assert made.count < cells * made.entities[0].layout.chunks  # fewer than Protocol 1's
    if rows <= 300:  # all columns lie in one ciphertext: a product for each value of all attributes but the last
        assert made.count == (2 if pairs == 1 else 3)


def test_the_ciphertexts_of_an_entity() -> None:
    wide = ColumnLayout.of(1000, 16_384, DOMAIN, DOMAIN.attributes)
    assert (wide.width, wide.chunks, wide.ciphertexts) == (16, 1, 7 + 1)
    three = ColumnLayout.of(5000, 16_384, DOMAIN, DOMAIN.attributes)
    assert (three.width, three.ciphertexts, [len(group) for group in three.groups]) == (3, 7 + 3, [3, 3, 1])
    long = ColumnLayout.of(40_000, 16_384, DOMAIN, ("a", "c"))
    assert (long.width, long.chunks, long.ciphertexts) == (1, 3, 6 * 3)


def test_columns_of_a_table_without_rows_are_those_of_one_row_of_zeros() -> None:
    none, one = (ColumnLayout.of(rows, 16_384, DOMAIN, ("a", "b")) for rows in (0, 1))
    assert (none.groups, none.ciphertexts, none.place(2)) == (one.groups, one.ciphertexts, one.place(2))
    row = np.zeros(1, np.int64)
    sent, of_one = ([*layout.vectors({"a": row[:n], "b": row[:n]})] for n, layout in ((0, none), (1, one)))
    assert [len(vector) for vector in sent] == [len(vector) for vector in of_one] and not any(map(np.any, sent))


def test_columns_are_repeated_and_joined() -> None:
    layout = ColumnLayout.of(3, 8, Domain(("a", "b"), (3, 2)), ("a", "b"))
    codes = {"a": np.array([0, 1, 2]), "b": np.array([0, 1, 0])}
    found = [vector.tolist() for vector in layout.vectors(codes)]
    a0, a1, b0 = [1, 0, 0], [0, 1, 0], [1, 0, 1]
    assert found == [a0 + a0, a1 + a1, b0 + b0, a0 + a1, b0]
    assert [layout.place(0), layout.place(1)] == [range(3), range(3, 6)]


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [10, 16_385])
def test_another_number_of_columns_is_refused(rows: int) -> None:
    layout = ColumnLayout.of(rows, 16_384, DOMAIN, ("a", "b"))
    whole = [object()] * layout.ciphertexts
    assert len(Columns.of(layout, whole).joined) == len(layout.groups)
    for wrong in (whole[1:], [*whole, object()], []):
        with pytest.raises(ProtocolError, match="more or fewer encrypted columns"):
            Columns.of(layout, wrong)


def test_a_key_holder_that_answers_something_else_is_refused(key: Key) -> None:
    codes = table(DOMAIN, 5)
    made, _ = products(key, DOMAIN, codes, [("a",)])
    made._refresh = lambda asked, sums: []
    with pytest.raises(ProtocolError, match="more or fewer sums"):
        made.counts()
    made._refresh = lambda asked, sums: list(asked.ciphertexts[:1])  # of another level
    with pytest.raises(ProtocolError):
        made.counts()


# What the key holder sees --------------------------------------------------------------------------------------------


def seen_by(key: Key) -> np.ndarray:
    """(ciphertexts, slots) what it decrypts of one table's columns, all zeros and ones."""
    key.seen.clear()
    codes = np.zeros((300, 2), np.int64)
    made, _ = products(key, Domain(("a", "b"), (3, 2)), codes, [("a", "b"), ("a",)])
    made.counts()
    ((asked, _),) = key.seen
    return key.reader.slots(asked).reshape(-1, key.parameters.slots)


def p_values(views: np.ndarray, modulus: int) -> list[float]:
    """Kolmogorov-Smirnov of all slots and of differences of ciphertexts; chi-square of the lowest byte."""
    differences = (views[1:].astype(object) - views[:-1].astype(object)) % modulus
    found = [
        scipy.stats.kstest(values.ravel() / modulus, "uniform").pvalue for values in (views, differences.astype(float))
    ]
    low = np.bincount((views & np.uint64(255)).astype(int).ravel(), minlength=256)
    return [*map(float, found), float(scipy.stats.chisquare(low).pvalue)]


def test_the_key_holder_sees_uniform_slots(key: Key) -> None:
    """Three ciphertexts (sums, and two values' products) of 16,384 slots."""
    views = seen_by(key)
    assert len(views) == 3 and min(p_values(views, key.secret.ring.modulus)) > ALARM


@pytest.mark.parametrize("broken", ["none", "reused"])
def test_masks_that_are_left_out_or_used_twice_are_seen(key: Key, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.random.default_rng(0).integers(0, key.secret.ring.modulus, 16_384).astype(np.uint64)
    mask = np.zeros_like(one) if broken == "none" else one
    monkeypatch.setattr("fedsyn.crypto.fhe.products.uniform", lambda modulus, size: mask[:size].copy())
    assert min(p_values(seen_by(key), key.secret.ring.modulus)) < ALARM


def test_sums_that_are_encrypted_again_are_of_whole_columns_alone(key: Key) -> None:
    """Each range that the key holder adds up is one column's rows, of one ciphertext; no two of them overlap."""
    key.seen.clear()
    codes = table(DOMAIN, 300)
    made, layout = products(key, DOMAIN, codes, EVERY)
    made.counts()
    ((asked, sums),) = key.seen
    slots = [slot for start, size in zip(asked.starts, asked.sizes, strict=True) for slot in range(start, start + size)]
    assert len(set(slots)) == len(slots) and set(asked.sizes) == {300} and asked.offsets == ()
    assert set(np.abs(sums.factors).tolist()) == {1} and (sums.length, sums.copies) == (layout.length, layout.copies)


def test_packed_columns_leave_out_each_attributes_last_value() -> None:
    packed = ColumnLayout.of(5, 64, DOMAIN, DOMAIN.attributes)
    names: list[Any] = [(name, value) for name in DOMAIN.attributes for value in range(DOMAIN.size((name,)))]
    assert set(names) - set(packed.columns) == {(name, DOMAIN.size((name,)) - 1) for name in DOMAIN.attributes}
