"""One-way marginals at several resolutions: what is asked, what it costs, and what is made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from fedsyn.domain import Domain
from fedsyn.inference import HierarchicalMeasurement, Hierarchy, Measurement, consistent, least_squares, synthesize
from fedsyn.table.counting.hierarchy import FEWEST_CELLS, NormalEquations


def matrix(tree: Hierarchy) -> np.ndarray:
    """(length, size): the weighted blocks, written out from their definition."""
    rows = []
    for level, (width, weight) in enumerate(zip(tree.widths, tree.weights, strict=True)):
        for start in range(0, tree.size if level == 0 else tree.ordered, width):
            row = np.zeros(tree.size)
            row[start : min(start + width, tree.size if level == 0 else tree.ordered)] = weight
            rows.append(row)
    return np.array(rows)


def measured(tree: Hierarchy, counts: np.ndarray, sigma: float, seed: int = 0) -> HierarchicalMeasurement:
    noise = sigma * np.random.default_rng(seed).standard_normal(tree.length)
    values = (matrix(tree) @ counts + noise) / np.repeat(tree.weights, tree.lengths)
    return HierarchicalMeasurement("a", tree, values, sigma)


trees = st.integers(1, 70).flatmap(
    lambda size: st.integers(0, size).map(lambda ordered: Hierarchy.binary(size, ordered).scaled(3.0))
)


@given(trees, st.integers(0, 2**32 - 1))
def test_apply_is_the_sum_over_each_block(tree, seed):
    counts = np.random.default_rng(seed).integers(0, 50, tree.size)
    assert tree.length == len(matrix(tree)) == sum(tree.lengths)
    np.testing.assert_array_equal(tree.apply(counts), matrix(tree) @ counts)


@given(trees)
def test_sensitivity_by_brute_force(tree):
    """Adding a row to each cell in turn: the largest change is the stated one, and reached by every ordered value."""
    changes = np.array([np.linalg.norm(tree.apply(row)) for row in np.eye(tree.size, dtype=np.int64)])
    assert changes.max() <= tree.sensitivity * (1 + 1e-12)
    np.testing.assert_allclose(changes[: tree.ordered], tree.sensitivity)
    assert (changes[tree.ordered :] <= tree.weights[0] + 1e-12).all()


def test_blocks_halve_in_number_down_to_two():
    tree = Hierarchy.binary(101, 100)  # and a missing value
    assert tree.widths == (1, 2, 4, 8, 16, 32, 64) and tree.lengths == [101, 50, 25, 13, 7, 4, 2]
    assert not matrix(tree)[101:, 100].any()
    assert Hierarchy.binary(200, FEWEST_CELLS - 1) == Hierarchy.flat(200)
    assert len(Hierarchy.binary(FEWEST_CELLS, FEWEST_CELLS).widths) > 1


def noise_of(tree: Hierarchy) -> tuple[float, float]:
    """Mean standard deviations, for sensitivity 1 and a known total: of the mass below a value, and of a cell."""
    a = matrix(tree) / tree.sensitivity
    inverse = np.linalg.inv(a.T @ a)
    ones = inverse.sum(axis=1)
    inverse -= np.outer(ones, ones) / ones.sum()  # the total is known
    below = np.tril(np.ones((tree.size, tree.size)))
    prefix = np.einsum("ij,jk,ik->i", below, inverse, below)
    return float(np.sqrt(np.maximum(prefix, 0)).mean()), float(np.sqrt(np.diag(inverse)).mean())


@pytest.mark.parametrize("size", [12, 16, 32, 50, 100, 200, 400])
def test_a_hierarchy_has_less_noise_in_ranges_and_about_what_it_says(size):
    tree = Hierarchy.binary(size, size)
    prefix, cell = noise_of(tree)
    flat, flat_cell = noise_of(Hierarchy.flat(size))
    assert prefix < flat and cell < 1.5 * flat_cell
    assert tree.noise == pytest.approx(prefix, rel=0.15)
    if size == 100:  # the figures of the module's text
        assert prefix / flat == pytest.approx(0.55, abs=0.005) and cell / flat_cell == pytest.approx(1.36, abs=0.005)


def test_least_squares_is_that_of_the_written_out_matrix():
    tree = Hierarchy.binary(21, 20).scaled(2.0)
    counts = np.random.default_rng(3).integers(0, 90, 21)
    one, two = measured(tree, counts, 2.0, 1), measured(Hierarchy.flat(21), counts, 3.0, 2)
    values, sigma = least_squares([one, two])
    rows = np.vstack([matrix(tree) / 2.0, np.eye(21) / 3.0])
    weighted = np.concatenate([one.values * np.repeat(tree.weights, tree.lengths) / 2.0, two.values / 3.0])
    np.testing.assert_allclose(values, np.linalg.lstsq(rows, weighted, rcond=None)[0], rtol=1e-9)
    exact = np.sqrt(np.diag(np.linalg.inv(rows.T @ rows)))
    assert (exact <= sigma * (1 + 1e-12)).all() and sigma <= 1.25 * exact.min()
    equations = NormalEquations(21)
    equations.add(one)
    assert equations.largest >= np.linalg.eigvalsh(matrix(tree).T @ matrix(tree) / 4.0)[-1] * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_settled_marginal_is_the_nearest_valid_one(seed):
    """Against SciPy's bounded least squares, the total as a heavy further row; with and without a measured pair."""
    rng = np.random.default_rng(seed)
    counts = np.rint(200 * rng.dirichlet(np.full(15, 0.2))).astype(int)
    total = float(counts.sum())
    tree = Hierarchy.binary(15, 14)
    one = measured(tree, counts, 6.0, seed)
    rows = [matrix(tree) / 6.0]
    values = [one.values * np.repeat(tree.weights, tree.lengths) / 6.0]
    pairs = []
    if seed % 2:
        pair = np.stack([counts, 2 * counts], axis=1) / 3 + 4.0 * rng.standard_normal((15, 2))
        pairs = [Measurement(("a", "b"), pair, 4.0)]
        pair = pair + (total - pair.sum()) / pair.size
        rows.append(np.eye(15) / (4.0 * math.sqrt(2)))
        values.append(pair.sum(axis=1) / (4.0 * math.sqrt(2)))
    a = np.vstack([*rows, np.full((1, 15), 1e4)])
    expected = lsq_linear(a, np.concatenate([*values, [1e4 * total]]), (0, np.inf), tol=1e-14).x
    got = consistent(Domain(("a", "b"), (15, 2)), pairs, total=total, one_way=[one])
    assert (got[("a",)] >= 0).all() and got[("a",)].sum() == pytest.approx(total)
    np.testing.assert_allclose(got[("a",)], expected, atol=1e-3 * total)
    if pairs:
        np.testing.assert_allclose(got[("a", "b")].sum(axis=1), got[("a",)], atol=1e-6 * total)


@pytest.mark.parametrize("size", [1, 2, 12, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_least_squares_needs_no_matrix_and_bounds_its_noise(size):
    tree = Hierarchy.binary(size, size)
    counts = np.random.default_rng(size).integers(0, 90, size)
    values, sigma = least_squares([measured(tree, counts, 2.0)])
    a = matrix(tree) / 2.0
    weighted = measured(tree, counts, 2.0).values * np.repeat(tree.weights, tree.lengths) / 2.0
    np.testing.assert_allclose(values, np.linalg.lstsq(a, weighted, rcond=None)[0], atol=1e-6)
    noise = np.sqrt(np.diag(np.linalg.inv(a.T @ a)))
    assert noise.max() <= sigma * (1 + 1e-12) and noise.mean() >= 0.8 * sigma


def test_only_integer_weights_are_applied_to_counts():
    with pytest.raises(ValueError, match="integer weights"):
        Hierarchy(4, 4, (1, 2), (1.5, 1.0)).apply(np.ones(4, np.int64))


def test_rows_follow_a_hierarchy_and_the_total_may_be_estimated():
    counts = np.random.default_rng(0).integers(0, 60, 30)
    domain = Domain(("b", "a"), (3, 30))
    one = measured(Hierarchy.binary(30, 30), counts, 1e-3)
    rows = synthesize(domain, [], int(counts.sum()), np.random.default_rng(1), one_way=[one])
    np.testing.assert_array_equal(np.bincount(rows[:, 1], minlength=30), counts)
    assert consistent(domain, [], one_way=[one])[("a",)].sum() == pytest.approx(counts.sum(), abs=0.1)
    assert not consistent(domain, [], total=0.0, one_way=[one])[("a",)].any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0, "ordered": 0},
        {"size": 3, "ordered": 4},
        {"size": 8, "ordered": 8, "widths": (2,)},
        {"size": 8, "ordered": 8, "widths": (1, 2, 3), "weights": (1.0, 1.0, 1.0)},
        {"size": 8, "ordered": 8, "widths": (1, 2, 2), "weights": (1.0, 1.0, 1.0)},
        {"size": 8, "ordered": 3, "widths": (1, 4), "weights": (1.0, 1.0)},
        {"size": 8, "ordered": 8, "widths": (1, 2), "weights": (1.0,)},
        {"size": 8, "ordered": 8, "weights": (0.0,)},
        {"size": 8, "ordered": 8, "weights": (math.inf,)},
    ],
)
def test_malformed_hierarchies_are_refused(wrong):
    with pytest.raises(ValueError):
        Hierarchy(**wrong)


@pytest.mark.parametrize(("values", "sigma"), [([1.0], 1.0), ([1.0, math.nan], 1.0), ([1.0, 2.0], 0.0)])
def test_malformed_measurements_are_refused(values, sigma):
    with pytest.raises(ValueError, match="measurement of a"):
        HierarchicalMeasurement("a", Hierarchy.flat(2), np.array(values), sigma)


def test_measurements_of_other_sizes_do_not_mix():
    with pytest.raises(ValueError, match="one cell for each value"):
        least_squares([measured(Hierarchy.flat(n), np.ones(n), 1.0) for n in (2, 3)])
    with pytest.raises(ValueError, match="no measurement"):
        least_squares([])
