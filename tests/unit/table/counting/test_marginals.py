"""Counting kernels against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.table.counting import marginals
from fedsyn.table.counting.marginals import (
    count,
    count_one_way,
    count_sparse_many,
    dense_to_sparse,
    split_one_way,
)

DOMAIN = Domain(("a", "b", "c", "d"), (3, 300, 1, 5))


def table(rows: int, dtype: type = np.uint16, order: str = "F") -> np.ndarray:
    rng = np.random.default_rng(rows)
    codes = np.stack([rng.integers(0, n, rows) for n in DOMAIN.shape], axis=1)
    return np.asarray(codes, dtype=dtype, order=order)


def brute(codes: np.ndarray, domain: Domain, clique: tuple[str, ...]) -> np.ndarray:
    counts = np.zeros(domain.shape_of(clique), dtype=np.int64)
    for row in codes:
        counts[tuple(int(row[axis]) for axis in domain.axes(clique))] += 1
    return counts


ALL_CLIQUES = [c for k in range(5) for c in itertools.permutations(DOMAIN.attributes, k)]


@pytest.mark.parametrize("rows", [0, 1, 57])
@pytest.mark.parametrize(("dtype", "order"), [(np.uint16, "F"), (np.int64, "C"), (np.int32, "F")])
@pytest.mark.parametrize("few", [0, 1 << 12])
def test_count_equals_brute_force_for_every_clique_and_axis_order(monkeypatch, rows, dtype, order, few):
    monkeypatch.setattr(marginals, "_FEW_ROWS", few)
    codes = table(rows, dtype, order)
    for clique, result in zip(ALL_CLIQUES, count(codes, DOMAIN, ALL_CLIQUES), strict=True):
        assert result.dtype == np.int64
        assert result.shape == DOMAIN.shape_of(clique)
        np.testing.assert_array_equal(result, brute(codes, DOMAIN, clique), err_msg=str(clique))


@pytest.mark.parametrize("rows", [0, 50, 9000])
def test_very_many_pairs_are_counted_as_each_alone(rows):
    rng = np.random.default_rng(rows)
    domain = Domain(tuple(f"x{i}" for i in range(48)), (*(2 + i % 4 for i in range(47)), 40))
    codes = np.stack([rng.integers(0, n, rows) for n in domain.shape], axis=1).astype(np.uint8)
    pairs = [pair for pair in itertools.permutations(domain.attributes, 2) if rng.random() < 0.6]
    assert len(pairs) >= marginals._MANY_PAIRS
    for pair, result in zip(pairs, count(codes, domain, pairs), strict=True):
        assert result.dtype == np.int64
        np.testing.assert_array_equal(result, count(codes, domain, [pair])[0], err_msg=str(pair))


@pytest.mark.parametrize("seed", range(8))
def test_products_are_made_of_strips_that_have_a_pair_alone(seed):
    """Gaps between the strips that one strip has pairs with, both orders, attributes of one value, strips not full."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 9, 5 * marginals._STRIP + 3)
    among, codes = rng.random((7, 7)) < 0.4, np.stack([rng.integers(0, n, 300) for n in shape], axis=1)
    strip = np.argsort(np.argsort(shape, kind="stable")) // marginals._STRIP
    pairs = [p for p in itertools.permutations(range(len(shape)), 2) if among[strip[p[0]], strip[p[1]]]]
    made = marginals.PairProducts(shape, np.array(pairs))
    expected = [np.bincount(codes[:, a] * shape[b] + codes[:, b], minlength=shape[a] * shape[b]) for a, b in pairs]
    np.testing.assert_array_equal(made.counts(codes), np.concatenate(expected))
    every = np.array(list(itertools.combinations(range(len(shape)), 2)))
    assert made._area < marginals.PairProducts(shape, every)._area


def test_count_in_chunks_equals_count_in_one_go(monkeypatch):
    codes = table(101)
    whole = count(codes, DOMAIN, ALL_CLIQUES)
    one_way = count_one_way(codes, DOMAIN)
    sparse = count_sparse_many(codes, DOMAIN, ALL_CLIQUES)
    monkeypatch.setattr(marginals, "_CHUNK", 20)
    monkeypatch.setattr(marginals, "_FEW_ROWS", 0)
    for expected, result in zip(whole, count(codes, DOMAIN, ALL_CLIQUES), strict=True):
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(count_one_way(codes, DOMAIN), one_way)
    for expected, result in zip(sparse, count_sparse_many(codes, DOMAIN, ALL_CLIQUES), strict=True):
        np.testing.assert_array_equal(result.cells, expected.cells)
        np.testing.assert_array_equal(result.counts, expected.counts)


@pytest.mark.parametrize("few", [0, 10])
def test_count_needs_more_than_two_bytes_of_index(monkeypatch, few):
    monkeypatch.setattr(marginals, "_FEW_ROWS", few)
    domain = Domain(("x", "y", "z"), (300, 300, 2))  # 180,000 cells: past uint16
    codes = np.array([[299, 299, 1], [299, 299, 1], [0, 1, 0]], dtype=np.uint16)
    wide = Domain(("x", "y", "z"), (70_000, 70_000, 2))  # 9.8e9 cells: past uint32, sparse only
    (dense,) = count(codes, domain, [("x", "y", "z")])
    assert dense[299, 299, 1] == 2
    assert dense[0, 1, 0] == 1
    assert dense.sum() == 3
    top = np.array([[69_999, 69_999, 1]], dtype=np.int32)
    assert count_sparse_many(top, wide, [("x", "y", "z")])[0].cells.tolist() == [70_000 * 70_000 * 2 - 1]


def test_the_results_do_not_share_memory_and_leave_the_codes_alone():
    codes = table(20)
    before = codes.copy()
    first, second = count(codes, DOMAIN, [("a",), ("a",)])
    first += 1
    np.testing.assert_array_equal(second, brute(codes, DOMAIN, ("a",)))
    np.testing.assert_array_equal(codes, before)


def test_one_way_vector_is_the_concatenation_of_the_one_way_marginals():
    codes = table(57)
    vector = count_one_way(codes, DOMAIN)
    assert vector.dtype == np.int64
    expected = count(codes, DOMAIN, [(name,) for name in DOMAIN.attributes])
    np.testing.assert_array_equal(vector, np.concatenate(expected))
    for part, whole in zip(split_one_way(vector, DOMAIN), expected, strict=True):
        np.testing.assert_array_equal(part, whole)
    assert count_one_way(table(0), DOMAIN).sum() == 0


@pytest.mark.parametrize("rows", [0, 1, 57])
def test_sparse_equals_dense(rows):
    codes = table(rows)
    sparse = count_sparse_many(codes, DOMAIN, ALL_CLIQUES)
    for one, dense in zip(sparse, count(codes, DOMAIN, ALL_CLIQUES), strict=True):
        assert one.cells.dtype == one.counts.dtype == np.int64
        assert (np.diff(one.cells) > 0).all()
        assert (one.counts > 0).all()
        assert one.total == rows
        assert np.array_equal(dense.flat[one.cells], one.counts)
        again = dense_to_sparse(dense)
        np.testing.assert_array_equal(again.cells, one.cells)
        np.testing.assert_array_equal(again.counts, one.counts)
    assert count_sparse_many(codes, DOMAIN, []) == []


def test_mistakes_are_refused():
    codes = table(5)
    with pytest.raises(ValueError, match="do not fit"):
        count(codes[:, :3], DOMAIN, [("a",)])
    with pytest.raises(ValueError, match="must be integers"):
        count(codes.astype(float), DOMAIN, [("a",)])
    with pytest.raises(ValueError, match="repeats"):
        count(codes, DOMAIN, [("a", "a")])
    with pytest.raises(KeyError):
        count(codes, DOMAIN, [("nobody",)])
    with pytest.raises(ValueError):  # a code outside the domain
        count(np.array([[3, 0, 0, 0]]), DOMAIN, [("a",)])
    huge = Domain(("p", "q"), (2**40, 2**40))
    with pytest.raises(ValueError, match="too many"):
        count_sparse_many(np.zeros((1, 2), dtype=np.int64), huge, [("p", "q")])


def test_a_clique_may_have_exactly_as_many_cells_as_an_index_type_has_values() -> None:
    domain = Domain(("a", "b"), (1, 65536))
    codes = np.array([[0, 65535], [0, 0], [0, 65535]], np.uint16)
    (marginal,) = count(codes, domain, [("a", "b")])
    assert marginal.shape == (1, 65536) and marginal[0, 0] == 1 and marginal[0, 65535] == 2
