"""Draws from what a run leaves uncertain: least squares of overlapping marginals, what a projection holds, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from fedsyn.domain import Domain, Floats, Zeros
from fedsyn.errors import InputError, ProtocolError
from fedsyn.front.several import held_of
from fedsyn.inference import EmpiricalModel, Evidence, Measurement, Model, Posterior, estimate
from fedsyn.inference.held_sums import nearest_counts
from fedsyn.inference.junction_tree import axes_of
from fedsyn.inference.measurements import LeastSquares, MeasuredGrid, merge
from fedsyn.inference.posterior import on_grids
from fedsyn.table.schema import Schema

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


def grids_of(measurements: list[Measurement]) -> tuple[list[MeasuredGrid], list[np.ndarray]]:
    axes = axes_of(DOMAIN)
    merged = merge(axes, measurements)
    return [MeasuredGrid.of(axes, one) for one in merged], [one.values for one in merged]


def rows_of(grid: MeasuredGrid) -> np.ndarray:
    """The 0/1 matrix that a grid's measurement is, on the cells of the whole table in domain order."""
    codes = np.array(list(product(*map(range, DOMAIN.shape))))
    return np.stack([grid.counted(code[None, :]).ravel() for code in codes], axis=1)


def test_effects_are_the_least_squares_of_all_tables_with_the_known_total() -> None:
    measurements = [m for m in measured(np.random.default_rng(0)) if m.groups is None]
    grids, values = grids_of(measurements)
    tables, one_way = LeastSquares(grids).tables(values, 1000.0)
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
    tables, one_way = LeastSquares(grids).tables(values, 1000.0)
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


def test_what_a_projection_holds_beside_measurements_with_far_less_noise() -> None:
    """As above, where a pair is measured with ten times the noise of its neighbours: its covariance is held as well."""
    domain, rng, x = Domain(("x", "y", "z"), (12, 12, 12)), np.random.default_rng(0), np.arange(12.0)
    near = np.exp(-((x[:, None] - x) ** 2) / 4.5)
    near /= near.sum(axis=1, keepdims=True)
    first = np.exp(-x / 4)
    truth = (4000 * first / first.sum())[:, None, None] * near[:, :, None] * near
    sums = {("x",): (1, 2), ("y",): (0, 2), ("z",): (0, 1), ("x", "y"): 2, ("y", "z"): 0}
    measurements = []
    for clique, axis in sums.items():
        sigma, values = 50.0 if clique == ("y", "z") else 5.0, truth.sum(axis)
        measurements.append(Measurement(clique, values + rng.normal(0, sigma, values.shape), sigma))
    posterior = Posterior.of(estimate(domain, measurements, total=4000.0), measurements)
    tables, _ = posterior._effects.tables(posterior._values, 4000.0)
    signed = next(table for table, grid in zip(tables, posterior._grids, strict=True) if grid.clique == ("y", "z"))

    def covariance(table: np.ndarray) -> float:
        p = table / table.sum()
        return float(x @ p @ x - (p.sum(1) @ x) * (p.sum(0) @ x))

    # with the measurements' own weights it is 4.5 where 7.2 is wanted, as if y and z hardly went together
    assert abs(covariance(posterior.centre.project(("y", "z"))) - covariance(signed)) < 0.5


def test_the_sums_of_noisy_tables_are_met() -> None:
    """Counts of values, and the sums of a number over categories and with a number, come to those of noisy tables."""
    rng, domain = np.random.default_rng(4), Domain(("x", "y", "g"), (8, 8, 3))
    x, y = np.arange(8.0) ** 2, np.arange(8.0)
    truth = np.exp(-((y[:, None] - y) ** 2) / 3)[:, :, None] * np.exp(np.outer(y, [0.0, 0.2, 0.4]))[:, None]
    truth *= 5000 / truth.sum()
    sums = {("x", "y"): 2, ("x", "g"): 1, ("x",): (1, 2), ("y",): (0, 2), ("g",): (0, 1)}
    noisy = [Measurement(q, (part := truth.sum(axis)) + rng.normal(0, 8, part.shape), 8.0) for q, axis in sums.items()]
    posterior = Posterior(estimate(domain, noisy, total=5000.0), Evidence(tuple(noisy), 5000.0), {"x": x, "y": y})
    tables, _ = posterior._effects.tables(posterior._values, 5000.0)
    for grid, table in zip(posterior._grids, tables, strict=True):
        found = posterior.centre.project(grid.clique)
        moments = {("x", "y"): (x - 20, y - 3), ("x", "g"): (x - 20, np.eye(3)), ("x",): (np.eye(8),)}
        for mark in moments.get(grid.clique, ()):
            table, found = np.tensordot(table, mark, (0, 0)), np.tensordot(found, mark, (0, 0))
        if grid.clique in moments:
            np.testing.assert_allclose(found / 5000, table / 5000, atol=2e-2 if len(grid.clique) == 2 else 2e-4)


def test_nearest_counts_keep_the_sum_and_are_the_nearest() -> None:
    counts = np.array([5.0, -2.0, 3.0, 0.5])
    near = nearest_counts(counts)
    assert near.sum() == pytest.approx(6.5) and near.min() == 0.0
    np.testing.assert_allclose(near, [4.5 - 1 / 6 + 0.0, 0.0, 2.5 - 1 / 6, 0.0], atol=0.4)
    rng = np.random.default_rng(0)
    for other in rng.dirichlet(np.ones(4), 200) * 6.5:
        assert np.sum((near - counts) ** 2) <= np.sum((other - counts) ** 2)


def test_nearest_counts_keep_the_mean_of_numbers() -> None:
    """Bins that double, of which the last four are empty: what noise leaves in them moves the mean by a tenth.

    Of 400 draws the mean is off by four standard errors once in 16,000.
    """
    numbers = np.array([np.nan, *2.0 ** np.arange(12)])
    true = np.array([500.0, 100, 200, 400, 800, 800, 800, 400, 200, 0, 0, 0, 0])
    mean = float(numbers[1:] @ true[1:] / true[1:].sum())
    noisy = true + np.random.default_rng(0).normal(0.0, 8.0, (400, 13))

    def means(tables: Iterable[Floats]) -> Floats:
        return np.array([numbers[1:] @ each[1:] / each[1:].sum() for each in tables])

    near = np.array([nearest_counts(each, numbers) for each in noisy])
    assert near.min() >= 0.0 and np.allclose(near.sum(axis=1), noisy.sum(axis=1))
    assert np.isclose(means(near), means(noisy), rtol=1e-6).mean() > 0.9  # few ask for a mean that no counts have
    assert means(near).mean() == pytest.approx(mean, abs=4 * means(near).std() / 20)
    assert means([nearest_counts(each) for each in noisy]).mean() > 1.08 * mean
    least = nearest_counts(np.array([300.0, 50.0, -20.0]), np.array([np.nan, 1.0, 2.0]))  # no counts have this mean
    assert least.tolist() == nearest_counts(np.array([300.0, 50.0, -20.0])).tolist()
    counts = np.array([50.0, 50.0, 3.0, -3.0])
    near, some = nearest_counts(counts, np.array([0.0, 1.0, 10.0, 20.0])), np.random.default_rng(1)
    for other in some.dirichlet(np.ones(4), 20_000) * 100:  # none that has the sum is nearer
        if abs(other @ [0, 1, 10, 20] - 20.0) < 0.5:
            assert np.sum((near - counts) ** 2) <= np.sum((other - counts) ** 2) + 50


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


def test_what_constraints_compute_of_held_columns_is_held() -> None:
    schema = Schema.loads(
        "columns:\n"
        "  fee: {kind: integer, lower: 0, upper: 9}\n  drugs: {kind: integer, lower: 0, upper: 9}\n"
        "  tax: {kind: integer, lower: 0, upper: 9}\n  total: {kind: integer, lower: 0, upper: 99}\n"
        "  all: {kind: integer, lower: 0, upper: 99}\nconstraints: [total = fee + drugs, all = total + tax]\n"
    )
    sizes = dict(zip(schema.domain.attributes, schema.domain.shape, strict=True))
    ones = [Measurement((name,), np.full(size, 10.0), 1.0) for name, size in sizes.items()]
    pair = Measurement(("fee", "drugs"), np.full((sizes["fee"], sizes["drugs"]), 1.0), 1.0)
    posterior = Posterior.of(estimate(schema.domain, [*ones, pair], total=100.0), [*ones, pair])
    assert sorted(map(sorted, held_of(schema, posterior))) == [["drugs", "fee", "total"], ["tax"]]


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


def test_what_zeros_say_is_no_noise_of_a_draw() -> None:
    """Counts of impossible cells are known: a row's sum has the noise of its possible cells only.

    40 draws: a chi-square with 39 degrees of freedom leaves these bounds with probability 1e-4 on each side; before,
    noise in impossible cells made the ratio 3.5 to 4.
    """
    k, n, sigma = 8, 50_000.0, 60.0
    barred = np.abs(np.subtract.outer(np.arange(k), np.arange(k))) > 1
    domain, rng = Domain(("a", "b"), (k, k), zeros=(Zeros(("a", "b"), barred),)), np.random.default_rng(0)
    p = np.where(barred, 0.0, rng.uniform(1.0, 2.0, (k, k)))
    p /= p.sum()
    m = Measurement(("a", "b"), n * p + rng.normal(0, sigma, (k, k)), sigma)
    posterior = Posterior.of(estimate(domain, [m], total=n), [m])
    drawn = np.array([posterior.draw(rng).project(("a",))[3] for _ in range(40)])
    row, cells = p[3].sum(), int((~barred).sum())
    variance = n * row * (1 - row) + sigma**2 * (3 - 2 * 3 / k + cells / k**2)  # the total is known
    assert 0.36 < drawn.var(ddof=1) / variance < 2.07


def test_residuals_of_impossible_cells_keep_their_noise() -> None:
    domain = Domain(("b", "c"), (2, 3), zeros=(Zeros(("b", "c"), np.eye(2, 3, dtype=bool)),))
    ones = [Measurement(("b",), np.array([60.0, 40.0]), 1.0), Measurement(("c",), np.array([30.0, 30.0, 40.0]), 1.0)]
    both = [Measurement(("b", "c"), np.zeros((2, 3)), 1.0, beyond=beyond) for beyond in (False, True)]
    posterior = Posterior.of(estimate(domain, [*ones, *both], total=100.0), [*ones, *both])
    for grid, barred in zip(posterior._grids, posterior._barred, strict=True):
        noise = posterior._noise(grid, barred, np.random.default_rng(0))
        assert barred is None or (noise[barred] == 0).all() == (not grid.beyond)
        assert (noise[~barred] if barred is not None else noise).all()


@pytest.mark.parametrize(("loose", "tight"), [(50.0, 1.0), (300.0, 1.0)])
@pytest.mark.parametrize("beyond", [False, True])
def test_draws_come_to_the_least_squares_whatever_the_ratio_of_the_noises(
    loose: float, tight: float, beyond: bool
) -> None:
    """No cell is nearly empty, so nothing but steps that were not made keeps a fit from what it is asked for."""
    rng, n = np.random.default_rng(6), 200_000.0
    p = rng.dirichlet(np.full(DOMAIN.size(), 20.0)).reshape(DOMAIN.shape) * n
    sums = {("a",): (1, 2), ("b",): (0, 2), ("c",): (0, 1), ("a", "b"): (2,), ("b", "c"): (0,), ("a", "c"): (1,)}
    measurements = []
    for clique, axis in sums.items():
        sigma, values = tight if len(clique) == 1 else loose, p.sum(axis)
        values = values + rng.normal(0, sigma, values.shape)
        measurements.append(Measurement(clique, values, sigma, beyond=beyond and len(clique) > 1))
    posterior = Posterior.of(estimate(DOMAIN, measurements, total=n), measurements)
    noisier = [values + rng.normal(0, 30.0, values.shape) for values in posterior._values]
    for values, model in (
        (posterior._values, posterior.centre),
        (noisier, posterior._nearest(noisier)),
    ):
        aims, _ = posterior._effects.tables(values, n)
        for aim, table in zip(aims, on_grids(model, posterior._grids), strict=True):
            np.testing.assert_allclose(table, aim, atol=0.03 * loose)


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
    alone = Measurement(("x", "y"), np.zeros((2, 2)), 1.0, beyond=True)
    with pytest.raises(InputError, match="own counts were not"):
        Posterior.of(Model(Domain(("x", "y"), (2, 2)), {}, 3.0), [alone])


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
