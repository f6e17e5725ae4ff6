"""Fits that are pulled towards independence, and that end at the noise: the optimum, and kappa from released values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate
from fedsyn.inference.shrinkage import Departure, of_measurements, released_shrinkage

DOMAIN = Domain(("a", "b", "c"), (2, 3, 2))
TOTAL = 200.0
LONG = EstimateConfig(iterations=2000, tolerance=0.0)


def joint(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(12, 0.7)).reshape(2, 3, 2)


def marginal(p: np.ndarray, clique: tuple[str, ...]) -> np.ndarray:
    return p.sum(axis=tuple(i for i, name in enumerate("abc") if name not in clique))


def measured(seed: int = 1, sigma: float = 6.0) -> list[Measurement]:
    rng, p = np.random.default_rng(seed), joint()
    out = []
    for clique in (("a",), ("b",), ("c",), ("a", "b"), ("b", "c")):
        values = TOTAL * marginal(p, clique)
        out.append(Measurement(clique, values + rng.normal(0, sigma, values.shape), sigma))
    return out


def prior(measurements: list[Measurement]) -> Model:
    return estimate(DOMAIN, [m for m in measurements if len(m.clique) == 1], total=TOTAL, config=LONG)


def full(model: Model) -> np.ndarray:
    return model.project(("a", "b", "c")) / model.total


def objective(p: np.ndarray, measurements: list[Measurement], p0: np.ndarray, kappa: float) -> float:
    fit = sum(0.5 * np.sum(((TOTAL * marginal(p, m.clique) - m.values) / m.sigma) ** 2) for m in measurements)
    return float(fit + kappa * np.sum(p * np.log(p / p0)))


@pytest.mark.parametrize("kappa", [0.5, 20.0, 400.0])
def test_the_fit_is_the_minimum_over_all_tables(kappa: float) -> None:
    """Against a quasi-Newton method on the logarithms of all twelve cells."""
    measurements = measured()
    independent = prior(measurements)
    p0 = full(independent)
    model = estimate(DOMAIN, measurements, total=TOTAL, config=LONG, prior=independent, shrinkage=kappa)

    def of_logits(x: np.ndarray) -> float:
        p = np.exp(x - x.max())
        return objective((p / p.sum()).reshape(2, 3, 2), measurements, p0, kappa)

    best = minimize(of_logits, np.log(p0).ravel(), method="BFGS", options={"gtol": 1e-6, "maxiter": 2000})
    found = objective(full(model), measurements, p0, kappa)
    assert found == pytest.approx(best.fun, rel=1e-5)
    assert model.info.loss == pytest.approx(objective(full(model), measurements, p0, 0.0), rel=1e-6)


def test_a_strong_pull_gives_the_prior_and_none_gives_the_plain_fit() -> None:
    measurements = measured()
    independent = prior(measurements)
    pulled = estimate(DOMAIN, measurements, total=TOTAL, config=LONG, prior=independent, shrinkage=1e7)
    assert np.abs(full(pulled) - full(independent)).max() < 1e-3
    plain = estimate(DOMAIN, measurements, total=TOTAL, config=LONG)
    none = estimate(DOMAIN, measurements, total=TOTAL, config=LONG, prior=independent, shrinkage=0.0)
    for q, table in plain.potentials.items():
        assert np.array_equal(table, none.potentials[q]), "no pull changes no bit"


def test_impossible_cells_stay_impossible() -> None:
    zeros = np.zeros((2, 3), bool)
    zeros[0, 1] = True
    domain = Domain(DOMAIN.attributes, DOMAIN.shape, zeros=((("a", "b"), zeros),))
    measurements = measured()
    one_way = [m for m in measurements if len(m.clique) == 1]
    independent = estimate(domain, one_way, total=TOTAL)
    model = estimate(domain, measurements, total=TOTAL, prior=independent, shrinkage=30.0)
    assert model.project(("a", "b"))[0, 1] == 0.0 and np.isfinite(model.info.loss)


def test_a_fit_ends_at_the_noise() -> None:
    measurements = measured()
    ended = estimate(DOMAIN, measurements, total=TOTAL, config=replace(LONG, stop_at_noise_level=True))
    assert ended.info.converged and ended.info.iterations < 50
    cells = sum(m.values.size for m in measurements)
    assert estimate(DOMAIN, measurements, total=TOTAL, config=LONG).info.loss < ended.info.loss <= cells / 2
    before = replace(LONG, stop_at_noise_level=True, iterations=ended.info.iterations - 1)
    early = estimate(DOMAIN, measurements, total=TOTAL, config=before)
    assert not early.info.converged and early.info.loss > cells / 4, "it ends at the first model that noise explains"


@pytest.mark.parametrize("kappa", [10.0, 80.0])
def test_kappa_is_found_again(kappa: float) -> None:
    """Marginals that stray from independence like kappa records do, Dirichlet(kappa p0), with noise.

    300 marginals of 36 cells: sum (p - p0)^2 has a relative standard deviation of about sqrt(2 / 35) each, so their sum
    one of 1.4%, and the noise adds under 2%, of which one standard deviation is taken off. Six of them are 20%: one
    false alarm in a hundred million.
    """
    rng, n, sigma = np.random.default_rng(0), 5000.0, 20.0
    p0 = rng.dirichlet(np.full(36, 20.0))
    departures = []
    for _ in range(300):
        p = rng.dirichlet((kappa - 1.0) * p0)  # of variance p0 (1 - p0) / kappa
        departures.append(Departure(p0, n * p + rng.normal(0, sigma, 36), sigma))
    assert released_shrinkage(departures, n) == pytest.approx(kappa, rel=0.2)


def test_independence_pulls_as_hard_as_all_records_together() -> None:
    rng = np.random.default_rng(1)
    p0 = np.full(36, 1 / 36)
    departures = [Departure(p0, 1000.0 * p0 + rng.normal(0, 30.0, 36), 30.0) for _ in range(20)]
    assert released_shrinkage(departures, 1000.0) == 1000.0 == released_shrinkage([], 1000.0)
    assert released_shrinkage([Departure(np.array([0.5, 0.5]), np.array([1e6, -1e6]), 1.0)], 10.0) == 1.0


def test_measurements_are_sights_of_their_joint_marginals() -> None:
    measurements = measured(sigma=2.0)
    independent = prior(measurements)
    pairs = [m for m in measurements if len(m.clique) == 2]
    departures = [Departure(independent.project(m.clique).ravel() / TOTAL, m.values.ravel(), m.sigma) for m in pairs]
    assert of_measurements(measurements, independent) == released_shrinkage(departures, TOTAL)
    assert 1.0 < of_measurements(measurements, independent) < TOTAL
