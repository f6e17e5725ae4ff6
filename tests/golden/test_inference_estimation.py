"""Estimation against the exact optimum of the convex problem, and against mbi."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from scipy.optimize import nnls

from fedsyn.domain import Clique, Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.engines import ESTIMATORS
from support.inference_reference import CASES, all_cliques, domain_of, marginal

TOTAL = 500.0
EXACT = EstimateConfig(iterations=4000, tolerance=0.0)
needs_mbi = pytest.mark.skipif(importlib.util.find_spec("mbi") is None, reason="mbi is not installed: pip install mbi")


def noisy(domain: Domain, cliques: tuple[Clique, ...], sigma: float, seed: int) -> list[Measurement]:
    rng = np.random.default_rng(seed)
    joint = TOTAL * rng.dirichlet(np.full(domain.size(), 0.5)).reshape(domain.shape)
    out = []
    for index, clique in enumerate(cliques):
        scale = sigma * (1 + index % 3)
        table = marginal(domain, joint, clique)
        out.append(Measurement(clique, table + scale * rng.standard_normal(table.shape), scale))
    return out


def loss_of(model: Model, measurements: list[Measurement]) -> float:
    return sum(0.5 * float((((model.project(m.clique) - m.values) / m.sigma) ** 2).sum()) for m in measurements)


def exact_optimum(domain: Domain, measurements: list[Measurement]) -> tuple[float, np.ndarray]:
    """Least loss and a minimising joint table: non-negative least squares with the total as a heavy equation."""
    cells = domain.size()
    heavy = 1e4
    rows, right = [np.full((1, cells), heavy)], [np.array([heavy * TOTAL])]
    codes = np.stack(np.unravel_index(np.arange(cells), domain.shape), axis=1)
    for m in measurements:
        shape = domain.shape_of(m.clique)
        flat = np.zeros(cells, dtype=np.int64)
        for axis, size in zip(domain.axes(m.clique), shape, strict=True):
            flat = flat * size + codes[:, axis]
        indicator = (flat[None] == np.arange(m.values.size)[:, None]).astype(float)
        rows.append(indicator / m.sigma)
        right.append(m.values.ravel() / m.sigma)
    matrix, target = np.concatenate(rows), np.concatenate(right)
    joint, _ = nnls(matrix, target, maxiter=50 * cells)
    residual = (matrix @ joint - target)[1:]
    return 0.5 * float(residual @ residual), joint.reshape(domain.shape)


MEASURED = [name for name in sorted(CASES) if any(CASES[name][1])]


@pytest.mark.parametrize("name", MEASURED)
def test_estimate_reaches_the_convex_optimum(name: str) -> None:
    shape, cliques = CASES[name]
    domain = domain_of(shape)
    measurements = noisy(domain, cliques, 3.0, 1)
    least, joint = exact_optimum(domain, measurements)
    config = EstimateConfig(iterations=3000, tolerance=0.0)
    model = estimate(domain, measurements, total=TOTAL, config=config)
    assert model.info is not None
    assert model.info.loss == pytest.approx(loss_of(model, measurements), rel=1e-9)
    assert model.info.loss >= least - 1e-4 * (1 + least)
    assert model.info.loss <= least + 1e-4 * (1 + least)
    for m in measurements:  # the measured marginals of an optimum are unique, its joint table is not
        np.testing.assert_allclose(model.project(m.clique), marginal(domain, joint, m.clique), atol=0.02 * m.sigma)


def test_of_all_optima_it_is_the_one_of_largest_entropy() -> None:
    domain = domain_of((3, 4))
    row, column = np.array([200.0, 200.0, 100.0]), np.array([50.0, 150.0, 200.0, 100.0])
    measurements = [Measurement(("a",), row, 1.0), Measurement(("b",), column, 2.0)]
    model = estimate(domain, measurements, config=EXACT)
    assert model.total == pytest.approx(TOTAL)
    np.testing.assert_allclose(model.project(("a", "b")), np.outer(row, column) / TOTAL, atol=1e-6)


def test_warm_start_has_the_same_optimum_across_a_new_triangulation() -> None:
    shape, cliques = CASES["cycle of six"]
    domain = domain_of(shape)
    measurements = noisy(domain, cliques, 3.0, 2)
    before = estimate(domain, measurements[:4], total=TOTAL, config=EXACT)
    cold = estimate(domain, measurements, total=TOTAL, config=EXACT)
    warm = estimate(domain, measurements, total=TOTAL, config=EXACT, warm_start=before)
    assert cold.info is not None and warm.info is not None
    assert set(before.cliques) != set(warm.cliques)
    assert warm.info.loss == pytest.approx(cold.info.loss, rel=1e-6)
    for clique in all_cliques(domain):
        np.testing.assert_allclose(warm.project(clique), cold.project(clique), atol=0.02)


def test_warm_start_carries_the_distribution_over() -> None:
    shape, cliques = CASES["nested"]
    domain = domain_of(shape)
    measurements = noisy(domain, cliques, 3.0, 4)
    before = estimate(domain, measurements, total=TOTAL, config=EXACT)
    still = EstimateConfig(iterations=0)
    wider = [*measurements, Measurement(("c", "d", "a"), np.zeros((2, 5, 4)), 1.0)]
    after = estimate(domain, wider, total=TOTAL, config=still, warm_start=before)
    for clique in all_cliques(domain):
        np.testing.assert_allclose(after.project(clique), before.project(clique), atol=1e-9)


def test_nothing_measured_is_uniform() -> None:
    domain = domain_of((2, 3, 4))
    model = estimate(domain, [])
    assert model.total == 1.0
    np.testing.assert_allclose(model.project(("a", "c")), 1 / 8)
    assert model.info is not None and model.info.converged
    only_total = estimate(domain, [Measurement((), np.array(90.0), 2.0)])
    assert only_total.total == pytest.approx(90.0)
    np.testing.assert_allclose(only_total.project(("b",)), 30.0)


@pytest.mark.slow
@needs_mbi
def test_mbi_computes_the_same_marginals_from_our_potentials() -> None:
    import jax
    import mbi

    for name in ("cycle of four", "components and a free attribute", "permuted triples"):
        shape, cliques = CASES[name]
        domain = domain_of(shape)
        model = estimate(domain, noisy(domain, cliques, 3.0, 6), total=TOTAL)
        with jax.enable_x64(True):
            potentials = model.to_mbi().potentials
            for clique in (("a",), ("d", "b"), ("c", "a", "d")):
                theirs = mbi.marginal_oracles.variable_elimination(potentials, clique, model.total)
                found = np.asarray(theirs.datavector(flatten=False))
                np.testing.assert_allclose(model.project(clique), found, atol=1e-8)


@pytest.mark.slow
@needs_mbi
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["cycle of four", "permuted triples", "two components"])
def test_mbi_estimates_the_same_model(name: str, estimator: str) -> None:
    shape, cliques = CASES[name]
    domain = domain_of(shape)
    measurements = noisy(domain, cliques, 3.0, 7)
    ours = estimate(domain, measurements, total=TOTAL, config=EXACT)
    theirs = estimate(domain, measurements, total=TOTAL, config=EXACT, engine=ESTIMATORS[estimator])
    least, joint = exact_optimum(domain, measurements)
    assert theirs.info is not None and theirs.info.loss == pytest.approx(loss_of(theirs, measurements), rel=1e-9)
    assert least - 1e-4 * (1 + least) <= theirs.info.loss <= least + 1e-3 * (1 + least)
    for m in measurements:  # brute force
        assert np.abs(theirs.project(m.clique) - marginal(domain, joint, m.clique)).sum() < 1e-3 * TOTAL
    for clique in all_cliques(domain):
        assert np.abs(theirs.project(clique) - ours.project(clique)).sum() < 1e-3 * TOTAL
