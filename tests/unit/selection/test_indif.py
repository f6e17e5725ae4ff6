"""Projections and dependency scores: exact where they can be, and against brute force."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from experiments.variants.projections import PROJECTIONS, Whole, printed_indif_squared
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError
from fedsyn.selection.indif import (
    Noisy,
    Projection,
    all_pairs,
    distance_squared,
    expected_l1,
    expected_l2,
    indif,
    indif_squared,
    root,
)
from fedsyn.table.counting.marginals import count

DOMAIN = Domain(("a", "b", "c"), (4, 3, 5))
PAIR = ("a", "b")


def some_codes(rows: int = 60, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes = (rng.random((rows, 3)) ** 2 * DOMAIN.shape).astype(np.uint8)
    codes[:, 1] = (codes[:, 0] + codes[:, 1]) % 3
    return codes


def noise_free(codes: np.ndarray, pair: tuple[str, str], projection: Projection) -> tuple[Noisy, Noisy, Noisy]:
    """Projection and one-way marginals of a table as the estimator gets them, without noise."""
    (values,) = projection.apply(codes, DOMAIN, [pair])
    one, two = count(codes, DOMAIN, [(pair[0],), (pair[1],)])
    n = len(codes)
    return Noisy(values / projection.unit / n, 0.0), Noisy(one / n, 0.0), Noisy(two / n, 0.0)


# Projection ----------------------------------------------------------------------------------------------------------


def test_pairs_are_in_domain_order():
    assert all_pairs(DOMAIN) == (("a", "b"), ("a", "c"), ("b", "c"))


def test_signs_are_signs_and_the_same_for_everybody():
    """The matrix is a hash of public facts: a change of these bits breaks deployments of mixed versions."""
    matrix = Projection(10, 7).matrix(DOMAIN, PAIR)
    assert matrix.shape == (12, 10) and set(np.unique(matrix)) == {-1, 1}
    digest = hashlib.sha256(np.ascontiguousarray(matrix).tobytes()).hexdigest()
    assert digest[:16] == "23a9188b3bf7f06a"
    # A client forms the rows of the cells that its rows touch, the server all of them.
    every_cell = np.array(list(itertools.product(range(4), range(3), [0])), np.uint8)
    for cell, row in enumerate(every_cell):
        assert np.array_equal(Projection(10, 7).apply(row[None, :], DOMAIN, [PAIR])[0], matrix[cell])


def test_seed_pair_kind_and_size_give_other_matrices():
    base = Projection(10, 0).matrix(DOMAIN, PAIR)
    assert not np.array_equal(base, Projection(10, 1).matrix(DOMAIN, PAIR))
    assert not np.array_equal(base, Projection(10, 0).matrix(DOMAIN, ("a", "c"))[:12])
    assert np.array_equal(base, Projection(10, 0).matrix(DOMAIN, PAIR))


def test_entries_are_fair_and_uncorrelated():
    """40,000 entries; each statistic is off by 5 standard deviations with probability 6e-7, and the seed is fixed."""
    big = Domain(("x", "y"), (80, 50))
    for kind, unit in (("signs", 1.0), ("gaussian", 1024.0)):
        matrix = PROJECTIONS[kind](10, 3).matrix(big, ("x", "y")) / unit
        assert abs(matrix.mean()) < 5 / math.sqrt(matrix.size)
        correlation = matrix.T @ matrix / len(matrix) - np.eye(10)
        assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 5 / math.sqrt(len(matrix))
    assert matrix.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / matrix.size))
    assert stats.kstest(matrix.ravel(), "norm").statistic < 1.95 / math.sqrt(matrix.size)  # 1e-3, seed fixed


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_projecting_is_the_matrix_product(kind):
    projection = PROJECTIONS[kind](6, 1)
    codes = some_codes()
    pairs = all_pairs(DOMAIN)
    for pair, vector, table in zip(
        pairs, projection.apply(codes, DOMAIN, pairs), count(codes, DOMAIN, pairs), strict=True
    ):
        expected = table.ravel() if kind == "none" else table.ravel() @ projection.matrix(DOMAIN, pair).astype(np.int64)
        assert vector.dtype == np.int64 and np.array_equal(vector, expected)
        assert len(vector) == projection.width(DOMAIN, pair) == (DOMAIN.size(pair) if kind == "none" else 6)


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_sums_of_clients_are_the_projection_of_the_pooled_table(kind):
    projection, codes, pairs = PROJECTIONS[kind](6, 1), some_codes(), all_pairs(DOMAIN)
    parts = [projection.apply(part, DOMAIN, pairs) for part in (codes[:7], codes[7:7], codes[7:])]
    for i, whole in enumerate(projection.apply(codes, DOMAIN, pairs)):
        assert np.array_equal(sum(part[i] for part in parts), whole)


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_sensitivity_by_brute_force(kind):
    """Every possible row added to a table, and to an empty one: the largest move is the stated one, for any seed."""
    rows = np.array(list(itertools.product(*map(range, DOMAIN.shape))), np.uint8)
    for seed in range(5):
        projection, pairs = PROJECTIONS[kind](4, seed), all_pairs(DOMAIN)
        for table in (some_codes(20, seed), np.zeros((0, 3), np.uint8)):
            before = np.concatenate(projection.apply(table, DOMAIN, pairs))
            moves = [np.concatenate(projection.apply(np.vstack([table, row]), DOMAIN, pairs)) - before for row in rows]
            largest = max(float(np.linalg.norm(move)) for move in moves)
            stated = projection.sensitivity(DOMAIN, pairs)
            assert largest <= stated * (1 + 1e-12)
            # A row has one cell in each pair, but not every combination of cells: near, and for signs equal.
            assert largest >= (1 if kind != "gaussian" else 0.8) * stated * (1 - 1e-12)
            assert max(np.abs(move).max() for move in moves) <= projection.magnitude(DOMAIN, pairs)
            one = max(float(np.linalg.norm(move[: projection.width(DOMAIN, PAIR)])) for move in moves)
            assert one**2 == pytest.approx(projection.squared_sensitivity(DOMAIN, PAIR))


@pytest.mark.parametrize("wrong", [{"size": 0}, {"seed": -1}])
def test_a_wrong_projection_is_a_config_error(wrong):
    with pytest.raises(ConfigError):
        Projection(**wrong)


# Scores --------------------------------------------------------------------------------------------------------------


def true_indif2(codes: np.ndarray, pair: tuple[str, str]) -> float:
    """By loops over cells, from the definition (equation 3)."""
    n = len(codes)
    i, j = DOMAIN.axes(pair)
    total = 0.0
    for u in range(DOMAIN.shape[i]):
        for v in range(DOMAIN.shape[j]):
            both = np.sum((codes[:, i] == u) & (codes[:, j] == v)) / n
            total += (both - np.sum(codes[:, i] == u) / n * np.sum(codes[:, j] == v) / n) ** 2
    return math.sqrt(total)


@pytest.mark.parametrize("pair", all_pairs(DOMAIN))
def test_without_noise_and_projection_the_score_is_the_distance(pair):
    codes = some_codes()
    unprojected = Whole()
    squared = indif_squared(DOMAIN, pair, *noise_free(codes, pair, unprojected), unprojected)
    assert math.sqrt(squared) == pytest.approx(true_indif2(codes, pair), rel=1e-12)
    table = np.full(DOMAIN.shape_of(pair), 1 / DOMAIN.size(pair))
    squared = distance_squared(DOMAIN, pair, noise_free(codes, pair, unprojected)[0], table, unprojected)
    (joint,) = count(codes, DOMAIN, [pair])
    assert math.sqrt(squared) == pytest.approx(float(np.linalg.norm(joint / len(codes) - table)), rel=1e-12)


@pytest.mark.parametrize("kind", ["signs", "gaussian"])
@pytest.mark.parametrize("printed", [False, True])
def test_without_noise_the_score_is_the_distance_of_the_projections(kind, printed):
    projection, codes = PROJECTIONS[kind](8, 2), some_codes()
    estimate = printed_indif_squared if printed else indif_squared
    squared = estimate(DOMAIN, PAIR, *noise_free(codes, PAIR, projection), projection)
    (joint,) = count(codes, DOMAIN, [PAIR])
    x = (joint / 60 - np.outer(joint.sum(1), joint.sum(0)) / 3600).ravel()
    expected = np.sum((x @ (projection.matrix(DOMAIN, PAIR) / projection.unit)) ** 2)
    assert squared == pytest.approx(float(expected), rel=1e-9)


def test_many_projected_numbers_approach_the_distance():
    """||x P||^2 has standard deviation at most sqrt(2/k) ||x||^2: 5 of them at k = 20,000."""
    codes = some_codes()
    projection = Projection(20_000, 0)
    squared = indif_squared(DOMAIN, PAIR, *noise_free(codes, PAIR, projection), projection)
    assert squared == pytest.approx(true_indif2(codes, PAIR) ** 2, rel=5 * math.sqrt(2 / 20_000))


def test_a_negative_estimate_is_clipped_at_the_root_only():
    quiet = Noisy(np.zeros(4), 0.5)
    domain = Domain(("a", "b"), (2, 2))
    ones = Noisy(np.array([0.5, 0.5]), 0.0)
    table = np.full((2, 2), 0.25)
    unprojected = Whole()
    assert distance_squared(domain, ("a", "b"), quiet, table, unprojected) == pytest.approx(0.25 - 1.0)
    assert indif_squared(domain, ("a", "b"), quiet, ones, ones, unprojected) == pytest.approx(0.25 - 1.0)
    assert root(np.array([-0.75, 0.25])).tolist() == [0.0, 0.5]


def test_privsyns_indif_moves_by_less_than_four_per_row():
    """Every table of 2 x 3 cells with up to 5 rows, and every row that can be added; then a table that comes near 4."""
    tables = [np.reshape(cells, (2, 3)) for cells in itertools.product(range(6), repeat=6) if sum(cells) <= 5]
    largest = 0.0
    for table in tables:
        before = indif(table)
        for cell in range(6):
            more = table.copy()
            more.flat[cell] += 1
            largest = max(largest, abs(indif(more) - before))
    assert 1.0 < largest < 4.0
    crowd = np.zeros((2, 2), np.int64)
    crowd[0, 0] = 10_000  # a first row with two new values among 10,000 equal ones
    assert indif(crowd) == 0.0
    crowd[1, 1] = 1
    assert 3.99 < indif(crowd) < 4.0


def test_privsyns_indif_is_the_l1_distance_in_records():
    (joint,) = count(some_codes(), DOMAIN, [PAIR])
    expected = sum(abs(joint[i, j] - joint[i].sum() * joint[:, j].sum() / 60) for i in range(4) for j in range(3))
    assert indif(joint) == pytest.approx(expected)
    assert indif(np.zeros((3, 3), np.int64)) == 0.0


# Noise ---------------------------------------------------------------------------------------------------------------


def test_expected_norms_of_noise():
    """Against 200,000 draws; the fixed seed makes it repeatable. 5 standard errors, and exact formulas at 1 cell."""
    noise = np.random.default_rng(0).standard_normal((200_000, 3))
    for norms, formula in (
        (np.linalg.norm(noise, axis=1), expected_l2),
        (np.abs(noise).sum(axis=1), expected_l1),
    ):
        error = 5 * norms.std() / math.sqrt(len(norms))
        assert float(formula(np.array([3.0]))[0]) == pytest.approx(norms.mean(), abs=error)
        assert float(formula(np.array([1.0]))[0]) == pytest.approx(math.sqrt(2 / math.pi))
    assert float(expected_l2(np.array([1e4]))[0]) == pytest.approx(100.0, rel=1e-4)
