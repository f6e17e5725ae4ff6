"""Draws from what a run leaves uncertain: least squares of overlapping marginals, what a projection holds, files."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest

from fedsyn.domain import Domain, Zeros
from fedsyn.errors import InputError, ProtocolError
from fedsyn.inference import EmpiricalModel, Evidence, Measurement, Model, Posterior, estimate
from fedsyn.inference.effects import Effects
from fedsyn.inference.grids import Grid, on_grids
from fedsyn.inference.held import Held, nearest_counts
from fedsyn.inference.measurements import merge
from fedsyn.inference.triangulation import axes_of

DOMAIN = Domain(("a", "b", "c"), (4, 2, 3))
GROUPS = (np.array([0, 0, 1, 1]), np.array([0, 1, 1]))


def measured(rng: np.random.Generator, domain: Domain = DOMAIN, n: float = 1000.0) -> list[Measurement]:
    """Overlapping cliques of several sigmas, one permuted, one measured twice, one in groups."""
    p = rng.dirichlet(np.ones(domain.size())).reshape(domain.shape) * n
    a, ab, ca, bc = p.sum((1, 2)), p.sum(2), p.sum(1).T, p.sum(0)
    grouped = np.add.reduceat(np.add.reduceat(p.sum(1), [0, 2], 0), [0, 1], 1)
    given = [(("a",), a, 3.0), (("a", "b"), ab, 5.0), (("c", "a"), ca, 4.0), (("b", "c"), bc, 6.0), (("a",), a, 9.0)]
    out = [Measurement(q, values + rng.normal(0, s, values.shape), s) for q, values, s in given]
    return [*out, Measurement(("a", "c"), grouped + rng.normal(0, 2, (2, 2)), 2.0, groups=GROUPS)]


def grids_of(measurements: list[Measurement]) -> tuple[list[Grid], list[np.ndarray]]:
    axes = axes_of(DOMAIN)
    merged = merge(axes, measurements)
    return [Grid.of(axes, one) for one in merged], [one.values for one in merged]


def rows_of(grid: Grid) -> np.ndarray:
    """The 0/1 matrix that a grid's measurement is, on the cells of the whole table in domain order."""
    codes = np.array(list(product(*map(range, DOMAIN.shape))))
    return np.stack([grid.counted(code[None, :]).ravel() for code in codes], axis=1)


def test_effects_are_the_least_squares_of_all_tables_with_the_known_total() -> None:
    measurements = [m for m in measured(np.random.default_rng(0)) if m.groups is None]
    grids, values = grids_of(measurements)
    tables, one_way = Effects(grids).tables(values, 1000.0)
    design = np.concatenate([rows_of(grid) / grid.sigma for grid in grids])
    target = np.concatenate([v.ravel() / grid.sigma for v, grid in zip(values, grids, strict=True)])
    size, ones = DOMAIN.size(), np.ones((1, DOMAIN.size()))
    system = np.block([[design.T @ design, ones.T], [ones, np.zeros((1, 1))]])
    best = (np.linalg.pinv(system) @ np.append(design.T @ target, 1000.0))[:size]
    for grid, table in zip(grids, tables, strict=True):
        np.testing.assert_allclose(table.ravel(), rows_of(grid) @ best, atol=1e-7)
    ranks = axes_of(DOMAIN).rank
    np.testing.assert_allclose(one_way[ranks["a"]], best.reshape(DOMAIN.shape).sum((1, 2)), atol=1e-7)


def test_groups_and_values_agree_on_their_one_way_marginals_and_lose_nothing_of_them() -> None:
    measurements = [m for m in measured(np.random.default_rng(1)) if set(m.clique) == {"a"} or m.groups is not None]
    grids, values = grids_of(measurements)
    tables, one_way = Effects(grids).tables(values, 1000.0)
    design = np.concatenate([rows_of(grid) / grid.sigma for grid in grids])
    target = np.concatenate([v.ravel() / grid.sigma for v, grid in zip(values, grids, strict=True)])
    ones = np.ones((1, DOMAIN.size()))
    system = np.block([[design.T @ design, ones.T], [ones, np.zeros((1, 1))]])
    best = (np.linalg.pinv(system) @ np.append(design.T @ target, 1000.0))[: DOMAIN.size()]
    for grid, table in zip(grids, tables, strict=True):
        np.testing.assert_allclose(table.ravel(), rows_of(grid) @ best, atol=1e-6)
        for rank in grid.ranks:
            np.testing.assert_allclose(grid.margin(table, (rank,)), grid.of_values(rank, one_way[rank]), atol=1e-6)


def test_what_a_projection_holds() -> None:
    """Nearly empty cells far from the diagonal make a covariance too small; held, it is what all cells say together."""
    domain, rng, x = Domain(("x", "y"), (12, 12)), np.random.default_rng(0), np.arange(12.0)
    truth = np.exp(-((x[:, None] - x) ** 2) / 4.5 - x[:, None] / 4)
    truth *= 4000 / truth.sum()
    pair = Measurement(("x", "y"), truth + rng.normal(0, 12, (12, 12)), 12.0)
    ones = Measurement(("x",), truth.sum(1) + rng.normal(0, 12, 12), 12.0)
    plain = estimate(domain, [pair, ones], total=4000.0)
    posterior = Posterior.of(plain, [pair, ones])
    tables, _ = posterior._effects.tables(posterior._values, 4000.0)
    signed = next(table for table, grid in zip(tables, posterior._grids, strict=True) if grid.clique == ("x", "y"))

    def covariance(table: np.ndarray) -> float:
        p = table / table.sum()
        return float(x @ p @ x - (p.sum(1) @ x) * (p.sum(0) @ x))

    wanted = covariance(signed)
    assert wanted - covariance(plain.project(("x", "y"))) > 0.3
    assert abs(covariance(posterior.centre.project(("x", "y"))) - wanted) < 0.1


def test_a_correction_adds_what_a_fit_misses_of_means_and_moments() -> None:
    measurements = measured(np.random.default_rng(4))
    grids, values = grids_of(measurements)
    aims, one_way = Effects(grids).tables(values, 1000.0)
    now = on_grids(estimate(DOMAIN, [], total=1000.0), grids)
    after = Held(grids, aims, one_way).corrected(aims, now)
    for grid, aim, given, fitted in zip(grids, aims, after, now, strict=True):
        for rank in grid.ranks:
            missed = grid.margin(given - aim, (rank,))
            wanted = grid.of_values(rank, nearest_counts(one_way[rank])) - grid.margin(fitted, (rank,))
            np.testing.assert_allclose(missed, wanted, atol=1e-6)


def test_nearest_counts_keep_the_sum_and_are_the_nearest() -> None:
    counts = np.array([5.0, -2.0, 3.0, 0.5])
    near = nearest_counts(counts)
    assert near.sum() == pytest.approx(6.5) and near.min() == 0.0
    np.testing.assert_allclose(near, [4.5 - 1 / 6 + 0.0, 0.0, 2.5 - 1 / 6, 0.0], atol=0.4)
    rng = np.random.default_rng(0)
    for other in rng.dirichlet(np.ones(4), 200) * 6.5:
        assert np.sum((near - counts) ** 2) <= np.sum((other - counts) ** 2)


# Draws ---------------------------------------------------------------------------------------------------------------


def test_draws_have_the_exact_posterior_of_a_small_table() -> None:
    """A table of two cells, counted once: the posterior is known, by weights on a fine grid of p.

    40 draws: their mean is within 4 standard errors, their variance within a factor that a chi-square with 39 degrees
    of freedom leaves with probability 1e-4 on each side; the seed is fixed.
    """
    domain, n, sigma, rng = Domain(("x",), (2,)), 400.0, 40.0, np.random.default_rng(5)
    y = np.array([130.0, 281.0])
    p = np.linspace(1e-4, 1 - 1e-4, 20001)
    # y1 - y2 given the total: mean n (2 p - 1), variance 4 n p (1 - p) + 2 sigma^2
    variance = 4 * n * p * (1 - p) + 2 * sigma**2
    weights = np.exp(-((y[0] - y[1] - n * (2 * p - 1)) ** 2) / (2 * variance)) / np.sqrt(variance)
    mean = np.average(p, weights=weights)
    spread = np.sqrt(np.average((p - mean) ** 2, weights=weights))
    m = Measurement(("x",), y, sigma)
    posterior = Posterior.of(estimate(domain, [m], total=n), [m])
    drawn = np.array([posterior.draw(rng).project(("x",))[0] / n for _ in range(40)])
    assert abs(drawn.mean() - mean) < 4 * spread / np.sqrt(40)
    assert 0.36 < drawn.var(ddof=1) / spread**2 < 2.07


def test_rows_of_a_cohort_are_fewer_and_deviate_more() -> None:
    m = Measurement(("x",), np.array([500.0, 500.0]), 1.0)
    model = estimate(Domain(("x",), (2,)), [m], total=1000.0)
    whole, part = (Posterior.of(model, [dataclasses.replace(m, share=share)]) for share in (1.0, 0.25))
    one, two = (np.array(p._deviations(np.random.default_rng(0))[0]) for p in (whole, part))
    np.testing.assert_allclose(two, 2 * one)


def test_more_rows_than_are_drawn_deviate_as_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsyn.inference.posterior._MOST_ROWS", 100)
    m = Measurement(("x",), np.array([5000.0, 5000.0]), 1.0)
    posterior = Posterior.of(estimate(Domain(("x",), (2,)), [m], total=10000.0), [m])
    rng = np.random.default_rng(0)
    away = np.array([posterior._deviations(rng)[0][0] for _ in range(400)])
    # variance 10000/4; 400 draws: a chi-square's quantiles of 1e-4 are within (0.75, 1.29)
    assert 0.75 < away.var() / 2500.0 < 1.29


def test_what_is_held_is_measured_cell_by_cell() -> None:
    measurements = [*measured(np.random.default_rng(0))]
    measurements = [m for m in measurements if m.clique != ("c", "a")]
    posterior = Posterior.of(estimate(DOMAIN, measurements, total=1000.0), measurements)
    assert posterior.held == (("a", "b"), ("b", "c"))
    assert posterior.holds(("b", "a")) and posterior.holds("c") and not posterior.holds(("a", "c"))


def test_a_draw_puts_nothing_into_impossible_cells() -> None:
    impossible = np.zeros((2, 3), bool)
    impossible[0, 2] = True
    domain = Domain(("b", "c"), (2, 3), zeros=(Zeros(("b", "c"), impossible),))
    m = Measurement(("b", "c"), np.array([[30.0, 40.0, 8.0], [10.0, 9.0, 11.0]]), 5.0)
    posterior = Posterior.of(estimate(domain, [m], total=100.0), [m])
    rng = np.random.default_rng(0)
    for _ in range(3):
        model = posterior.draw(rng)
        assert model.project(("b", "c"))[0, 2] == 0.0
        codes = model.sample(500, rng, independent=True)
        assert not ((codes[:, 0] == 0) & (codes[:, 1] == 2)).any()


def test_independent_rows_vary_as_binomials_and_rounded_ones_do_not() -> None:
    model = Model(Domain(("b", "c"), (2, 2)), {("b", "c"): np.log([[1.0, 3.0], [3.0, 1.0]])}, 100.0)
    rng = np.random.default_rng(0)
    counts = np.array([model.sample(400, rng, independent=True).sum(0) for _ in range(300)])
    together = np.array([(model.sample(400, rng, independent=True).sum(1) == 1).sum() for _ in range(300)])
    # variances 400/4 and 400 * 3/16; 300 draws: a chi-square's quantiles of 1e-5 are within (0.68, 1.39)
    for values, variance in ((counts[:, 0], 100.0), (counts[:, 1], 100.0), (together, 75.0)):
        assert 0.68 < values.var(ddof=1) / variance < 1.39
    assert np.abs(together.mean() - 300.0) < 4 * np.sqrt(75.0 / 300)
    assert np.ptp([(model.sample(400, rng).sum(1) == 1).sum() for _ in range(20)]) <= 4


def test_no_posterior_without_potentials_or_measurements() -> None:
    with pytest.raises(InputError, match="graphical model"):
        Posterior(EmpiricalModel(Domain(("x",), (2,)), np.zeros((3, 1), np.uint8), 3.0), Evidence((), 3.0))
    with pytest.raises(InputError, match="kept none"):
        Posterior.of(Model(Domain(("x",), (2,)), {}, 3.0), [])


# Files ---------------------------------------------------------------------------------------------------------------


def test_evidence_comes_back_bit_for_bit() -> None:
    given = [*measured(np.random.default_rng(2)), Measurement(("b",), np.array([0.1, 1e-300]), 1 / 3, 1, None, 0.3)]
    evidence = Evidence(tuple(given), 1000.1)
    again = Evidence.from_arrays(DOMAIN, evidence.to_arrays())
    assert again.total == evidence.total
    for one, two in zip(evidence.measurements, again.measurements, strict=True):
        assert (one.clique, one.sigma, one.noises, one.share) == (two.clique, two.sigma, two.noises, two.share)
        assert np.array_equal(one.values, two.values) and (one.groups is None) == (two.groups is None)
        assert one.groups is None or all(map(np.array_equal, one.groups, two.groups or ()))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {**a, "values": a["values"][:-1]},
        lambda a: {**a, "values": np.append(a["values"], 1.0)},
        lambda a: {**a, "values": np.full_like(a["values"], np.nan)},
        lambda a: {**a, "groups": a["groups"] + np.uint32(1 << 31)},
        lambda a: {**a, "evidence": a["evidence"][:-3]},
        lambda a: {**a, "evidence": np.frombuffer(a["evidence"].tobytes().replace(b'"a"', b'"z"'), np.uint8)},
        lambda a: {**a, "evidence": np.frombuffer(a["evidence"].tobytes().replace(b"0x1.8", b"-0x1"), np.uint8)},
        lambda a: {**a, "evidence": np.frombuffer(b"[]", np.uint8)},
        lambda a: {**a, "evidence": np.frombuffer(b'{"format": 9}', np.uint8)},
        lambda a: {"evidence": a["evidence"]},
    ],
)
def test_damaged_evidence_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    arrays = Evidence(tuple(measured(np.random.default_rng(2))), 1000.0).to_arrays()
    with pytest.raises(ProtocolError):
        Evidence.from_arrays(DOMAIN, change(arrays))
