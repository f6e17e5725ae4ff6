"""What a marginal has beyond its parts: the projection, its sensitivity, and fits to it."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, estimate
from fedsyn.inference.estimation import completed
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import Evidence, LeastSquares, MeasuredGrid, least_variance_total, merge
from fedsyn.inference.shrinkage import own_counts
from fedsyn.table.counting.sums import cost, dimensions, residual, times_cells

SHAPES = [(2,), (5,), (1, 3), (2, 2), (3, 4), (2, 2, 2), (2, 3, 4), (2, 2, 2, 3)]
DOMAIN = Domain(("a", "b", "c"), (2, 3, 4))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_moves_the_residual_by_the_cost_whatever_its_cell(shape: tuple[int, ...]) -> None:
    for cell in product(*map(range, shape)):
        one = np.zeros(shape, np.int64)
        one[cell] = 1
        moved = times_cells(one)
        assert moved.dtype == np.int64 and np.abs(moved).max() <= one.size
        assert np.sum((moved / one.size) ** 2) == pytest.approx(cost(shape), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_sum_of_the_effects_of_two_attributes_and_more(shape: tuple[int, ...]) -> None:
    table = np.random.default_rng(1).integers(0, 9, shape)
    assert residual(table.astype(float)) == pytest.approx(times_cells(table) / table.size, abs=1e-12)
    effects, sizes = np.zeros(shape), 0
    least = min(2, len(shape))
    for size in range(least, len(shape) + 1):
        for part in combinations(range(len(shape)), size):
            others = tuple(axis for axis in range(len(shape)) if axis not in part)
            kept = np.mean(table, axis=others, keepdims=True) if others else table.astype(float)
            effects += varying_of(kept, part)
            sizes += int(np.prod([shape[axis] - 1 for axis in part]))
    assert residual(table.astype(float)) == pytest.approx(effects, abs=1e-12)
    assert dimensions(shape) == sizes


def varying_of(table: np.ndarray, part: tuple[int, ...]) -> np.ndarray:
    """The part of a table, with axes of length one elsewhere, that sums to 0 along each of these axes."""
    for axis in part:
        table = table - table.mean(axis=axis, keepdims=True)
    return table


def test_nothing_is_lost_beside_the_one_way_marginals() -> None:
    """A fit to exact one-way marginals and residuals is the fit to exact counts."""
    rng = np.random.default_rng(2)
    table = rng.integers(5, 60, DOMAIN.shape).astype(float)
    ones = [Measurement((name,), table.sum(others(axis)), 1.0) for axis, name in enumerate(DOMAIN)]
    counts = table.sum(axis=2)
    config = EstimateConfig(iterations=2000, tolerance=0.0)
    part = Measurement(("a", "b"), residual(counts), 0.5, beyond=True)
    model = estimate(DOMAIN, [*ones, part], total=table.sum(), config=config)
    assert model.project(("a", "b")) == pytest.approx(counts, abs=1e-2)
    # Noise in the parts that it does not speak of changes nothing.
    shifted = Measurement(("b", "a"), part.values.T + 7.0 + np.arange(2.0), 0.5, beyond=True)
    again = estimate(DOMAIN, [*ones, shifted], total=table.sum(), config=config)
    assert again.project(("a", "b")) == pytest.approx(model.project(("a", "b")), abs=1e-2)


def others(axis: int) -> tuple[int, ...]:
    return tuple(other for other in range(3) if other != axis)


def test_completed_residuals_have_the_one_way_marginals_that_were_measured() -> None:
    """Of cells and of groups: the projection, inverted where the parts are known."""
    rng, axes = np.random.default_rng(3), axes_of(DOMAIN)
    table = rng.integers(5, 60, DOMAIN.shape).astype(float)
    ones = [Measurement((name,), table.sum(others(axis)), 1.0) for axis, name in enumerate(DOMAIN)]
    groups = (np.array([0, 1, 0]), np.array([1, 0, 0, 1]))
    part = Measurement(("b", "c"), np.zeros((2, 2)), 2.0, groups=groups)
    coarse = part.of_cells(table.sum(axis=0)).reshape(2, 2)
    some = [Measurement(("a", "c"), residual(table.sum(axis=1)), 2.0, beyond=True)]
    some.append(Measurement(("b", "c"), residual(coarse), 2.0, groups=groups, beyond=True))
    assert some[1].of_cells(table.sum(axis=0)) == pytest.approx(residual(coarse).ravel())
    given = [*ones, *(Measurement(m.clique, m.values, m.sigma, groups=m.groups, beyond=True) for m in some)]
    found = completed(axes, merge(axes, given), float(table.sum()))
    whole = [*ones, Measurement(("a", "c"), table.sum(axis=1), 2.0)]
    whole.append(Measurement(("b", "c"), coarse, 2.0, groups=groups))
    for mine, exact in zip(found, merge(axes, whole), strict=True):
        assert (mine.mask, mine.sigma, mine.beyond) == (exact.mask, exact.sigma, False)
        assert mine.values == pytest.approx(exact.values)
    assert [m.noisy for m in found if m.mask.bit_count() == 2] == [
        dimensions(m.values.shape) for m in found if m.mask.bit_count() == 2
    ]


def test_merged_apart_from_counts_and_silent_about_the_total() -> None:
    axes = axes_of(DOMAIN)
    counts = np.arange(6.0).reshape(2, 3)
    some = [Measurement(("a", "b"), counts, 1.0), Measurement(("a", "b"), counts, 2.0, beyond=True)]
    plain, beyond = merge(axes, some)
    assert (plain.beyond, plain.noisy, beyond.beyond, beyond.noisy) == (False, 6, True, 2)
    assert beyond.values.ravel() == pytest.approx(residual(counts).ravel())
    assert least_variance_total([plain, beyond]) == least_variance_total([plain])
    with pytest.raises(ValueError, match="residual"):
        merge(axes, [Measurement(("a",), np.ones(2), 1.0, beyond=True)])


def test_least_squares_of_effects_agree_with_those_of_a_matrix() -> None:
    """One-way marginals and residuals of overlapping cliques: the unbiased tables, against the pseudo-inverse."""
    rng, axes = np.random.default_rng(4), axes_of(DOMAIN)
    total, cells = 100.0, 24
    given = [
        Measurement((name,), rng.normal(20, 5, size), 1.0 + size) for name, size in zip("abc", (2, 3, 4), strict=True)
    ]
    given += [
        Measurement(("a", "b"), rng.normal(0, 5, (2, 3)), 1.5, beyond=True),
        Measurement(("a", "b", "c"), rng.normal(0, 5, (2, 3, 4)), 2.5, beyond=True),
    ]
    merged = merge(axes, given)
    rows, right = [np.full((1, cells), 1e4)], [np.array([1e4 * total])]
    for m in given:
        for unit in np.eye(int(np.prod(np.shape(m.values)))):
            kept = [DOMAIN.axes((name,))[0] for name in m.clique]
            back = unit.reshape([DOMAIN.shape[axis] if axis in kept else 1 for axis in range(3)])
            back = np.asarray(np.broadcast_to(back, DOMAIN.shape))
            if m.beyond:
                back = np.asarray(np.broadcast_to(varied(unit.reshape(np.shape(m.values)), kept), DOMAIN.shape))
            rows.append(back.reshape(1, -1) / m.sigma)
            values = residual(np.asarray(m.values)) if m.beyond else m.values
            right.append(np.array([unit @ values.ravel() / m.sigma]))
    solved = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0].reshape(DOMAIN.shape)
    tables, _ = LeastSquares([MeasuredGrid.of(axes, m) for m in merged]).tables([m.values for m in merged], total)
    for m, table in zip(merged, tables, strict=True):
        names = axes.clique(m.mask)
        wanted = np.einsum(solved, [0, 1, 2], [DOMAIN.axes((name,))[0] for name in names])
        assert table == pytest.approx(wanted, abs=1e-4)


def varied(unit: np.ndarray, kept: list[int]) -> np.ndarray:
    return residual(unit).reshape([DOMAIN.shape[axis] if axis in kept else 1 for axis in range(3)])


def test_residuals_alone_have_no_least_squares() -> None:
    (merged,) = merge(axes_of(DOMAIN), [Measurement(("a", "b"), np.zeros((2, 3)), 1.0, beyond=True)])
    with pytest.raises(ValueError, match="own counts"):
        LeastSquares([MeasuredGrid.of(axes_of(DOMAIN), merged)])


def test_evidence_keeps_what_is_a_residual_and_smoothing_leaves_it_out() -> None:
    part = Measurement(("a", "b"), residual(np.arange(6.0).reshape(2, 3)), 2.0, beyond=True)
    own = Measurement(("a",), np.array([3.0, 4.0]), 1.0)
    kept = Evidence.from_arrays(DOMAIN, Evidence((own, part), 7.0).to_arrays())
    assert [m.beyond for m in kept.measurements] == [False, True]
    assert own_counts(DOMAIN, [own, part])["a"][0].tolist() == [3.0, 4.0]
    assert "b" not in own_counts(DOMAIN, [own, part])
