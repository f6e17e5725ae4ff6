"""experiments/posterior_oracle: its posterior against brute force, and the library's against its."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.posterior_oracle.sampler import FlatMeans, NormalPotentials, Potentials, Pulled, cells_of
from fedsyn.domain import Domain, Zeros
from fedsyn.errors import InputError
from fedsyn.inference import Evidence, Measurement, Model, Posterior, estimate

TWO = Domain(("x",), (2,))
DOMAIN = Domain(("a", "b", "c"), (4, 2, 3))


def fitted(domain: Domain, measurements: list[Measurement], total: float) -> tuple[Model, Evidence]:
    return estimate(domain, measurements, total=total), Evidence(tuple(measurements), total)


def chain(rng: np.random.Generator, n: float = 1000.0) -> list[Measurement]:
    """Two pairs of a chain and one of its columns, as a run measures them."""
    p = rng.dirichlet(np.ones(DOMAIN.size())).reshape(DOMAIN.shape) * n
    given = [(("a",), p.sum((1, 2)), 3.0), (("a", "b"), p.sum(2), 15.0), (("b", "c"), p.sum(0), 16.0)]
    return [Measurement(q, values + rng.normal(0, s, values.shape), s) for q, values, s in given]


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match="at most 4096 cells, and this one has 8000"):
        cells_of(Domain(("a", "b", "c"), (20, 20, 20)))
    with pytest.raises(InputError, match="kept none"):
        Potentials(*fitted(TWO, [], 100.0))


def test_potentials_are_those_of_the_measured_cliques_without_their_gauge() -> None:
    """A chain of 4 x 2 and 2 x 3 cells: 3 + 1 + 2 numbers of single columns, 3 + 2 of the pairs."""
    posterior = Potentials(*fitted(DOMAIN, chain(np.random.default_rng(0)), 1000.0))
    assert posterior.design.shape == (24, 11)
    np.testing.assert_allclose(posterior.design.T @ posterior.design, np.eye(11), atol=1e-12)
    np.testing.assert_allclose(posterior.design.sum(axis=0), 0.0, atol=1e-12)


def test_impossible_cells_are_none_of_the_table() -> None:
    impossible = np.zeros((2, 3), bool)
    impossible[0, 2] = True
    domain = Domain(("b", "c"), (2, 3), zeros=(Zeros(("b", "c"), impossible),))
    m = Measurement(("b", "c"), np.array([[30.0, 40.0, 8.0], [10.0, 9.0, 11.0]]), 5.0)
    posterior = Potentials(*fitted(domain, [m], 100.0))
    assert len(posterior.cells) == 5 and [0, 2] not in posterior.cells.tolist()
    assert posterior.probabilities(np.zeros((1, 4))).tolist() == [[0.2] * 5]


def exact_of_two(y: np.ndarray, n: float, sigma: float, prior: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of p by weights on its grid; `prior`: density over p."""
    variance = 4 * n * p * (1 - p) + 2 * sigma**2  # of y1 - y2, the total being known
    weights = prior * np.exp(-((y[0] - y[1] - n * (2 * p - 1)) ** 2) / (2 * variance)) / np.sqrt(variance)
    mean = float(np.average(p, weights=weights))
    return mean, float(np.sqrt(np.average((p - mean) ** 2, weights=weights)))


P = np.linspace(1e-5, 1 - 1e-5, 100001)
BETA = np.sqrt(0.5) * np.log(P / (1 - P))  # the orthonormal potential of two cells: log p = X beta, X = (1, -1)/sqrt(2)
TOWARDS = np.array([0.4, 0.6])
KL = P * np.log(P / 0.4) + (1 - P) * np.log((1 - P) / 0.6)
# d beta / d p = sqrt(1/2) / (p (1 - p)): a density over beta is so many times one over p.
PRIORS = {
    "flat": (FlatMeans(), np.ones_like(P)),
    "normal": (NormalPotentials(0.5), np.exp(-2.0 * BETA**2) / (P * (1 - P))),
    "pulled": (Pulled(FlatMeans(), 50.0, TOWARDS), np.exp(-50.0 * KL)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRIORS)
def test_the_log_density_is_that_of_two_cells(name: str) -> None:
    """Differences of it, against the density over p times what one unit of beta is of p."""
    pytest.importorskip("numpyro")
    y, n, sigma = np.array([130.0, 281.0]), 400.0, 40.0
    prior, over_p = PRIORS[name]
    posterior = Potentials(*fitted(TWO, [Measurement(("x",), y, sigma)], n), prior)
    sign = np.sign(posterior.design[0, 0])
    at = [20000, 30000, 45000]
    variance = 4 * n * P * (1 - P) + 2 * sigma**2
    weights = over_p * np.exp(-((y[0] - y[1] - n * (2 * P - 1)) ** 2) / (2 * variance)) / np.sqrt(variance)
    wanted = np.log(weights * P * (1 - P))[at]
    found = np.array([posterior.log_density(sign * BETA[[i]]) for i in at])
    np.testing.assert_allclose(np.diff(found), np.diff(wanted), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIORS)
def test_draws_have_the_exact_posterior_of_two_cells(name: str) -> None:
    """4,000 draws worth at least 400 independent ones (NUTS: a few iterations between them): the mean is within 5
    standard errors of 400 (false alarm 6e-7), the standard deviation within 5 of 1/sqrt(800).
    """
    pytest.importorskip("numpyro")
    y, n, sigma, rng = np.array([130.0, 281.0]), 400.0, 40.0, np.random.default_rng(1)
    prior, over_p = PRIORS[name]
    posterior = Potentials(*fitted(TWO, [Measurement(("x",), y, sigma)], n), prior)
    mean, spread = exact_of_two(y, n, sigma, over_p, P)
    drawn = posterior.draws(rng, 4000)[:, 0]
    assert abs(drawn.mean() - mean) < 5 * spread / 20
    assert abs(drawn.std() / spread - 1) < 5 / np.sqrt(800)
    # other values, the same chain: that of the run with the cells exchanged
    other = posterior.draws(rng, 4000, values=y[::-1].copy())[:, 0]
    mean, spread = exact_of_two(y[::-1], n, sigma, over_p, P)
    assert abs(other.mean() - mean) < 5 * spread / 20


@pytest.mark.slow
def test_the_normal_approximation_in_potentials_is_the_samplers_where_cells_are_full() -> None:
    """1,000 rows in two cells: one unit of the potential is hundreds of rows, so the peak is normal."""
    pytest.importorskip("numpyro")
    model, evidence = fitted(TWO, [Measurement(("x",), np.array([4300.0, 5700.0]), 40.0)], 10000.0)
    posterior = Potentials(model, evidence, NormalPotentials())
    drawn = posterior.laplace(np.random.default_rng(0), 4000)[:, 0]
    p = np.linspace(0.4, 0.46, 10001)
    mean, spread = exact_of_two(np.array([4300.0, 5700.0]), 1e4, 40.0, 1 / (p * (1 - p)), p)
    # the approximation's own error in the mean is of order 1/n; 4,000 independent draws: 5 standard errors
    assert abs(drawn.mean() - mean) < 5 * spread / np.sqrt(4000) + 1e-4
    assert abs(drawn.std() / spread - 1) < 5 / np.sqrt(8000) + 0.01


@pytest.mark.slow
def test_the_librarys_draws_are_the_samplers_on_a_small_tree() -> None:
    """400 draws of the one, 4,000 of the other worth 400: means differ by at most 5 sqrt(2/400) = 0.36 standard
    deviations, these by 5 sqrt(2/800) = 25%, in each of 18 numbers (false alarm 2e-5); the approximation itself takes
    0.1 and 10% of that.
    """
    pytest.importorskip("numpyro")
    rng = np.random.default_rng(5)
    model, evidence = fitted(DOMAIN, chain(rng), 1000.0)
    library = Posterior(model, evidence)
    ours = np.array([library.draw(rng).project(DOMAIN.attributes) / 1000.0 for _ in range(400)])
    theirs = Potentials(model, evidence).draws(rng, 4000).reshape(-1, *DOMAIN.shape)
    for others in ((2, 3), (3,), (1,)):
        one, two = (x.sum(axis=others).reshape(len(x), -1) for x in (ours, theirs))
        assert np.all(np.abs(one.mean(axis=0) - two.mean(axis=0)) < 0.36 * two.std(axis=0))
        assert np.all(np.abs(one.std(axis=0) / two.std(axis=0) - 1) < 0.25)


@pytest.mark.slow
def test_groups_and_residuals_are_measured_as_they_are() -> None:
    """The library's draws and the sampler's, where one pair is in groups and the other a residual; bounds as above."""
    pytest.importorskip("numpyro")
    from fedsyn.table.counting.sums import residual

    rng, groups = np.random.default_rng(2), (np.array([0, 0, 1, 1]), np.array([0, 1]))
    p = rng.dirichlet(np.ones(DOMAIN.size())).reshape(DOMAIN.shape) * 1000.0
    ones = [(("a",), p.sum((1, 2))), (("b",), p.sum((0, 2))), (("c",), p.sum((0, 1)))]
    found = [Measurement(q, v + rng.normal(0, 8.0, v.shape), 8.0) for q, v in ones]
    coarse = np.add.reduceat(p.sum(2), [0, 2], 0)
    found.append(Measurement(("a", "b"), coarse + rng.normal(0, 10.0, (2, 2)), 10.0, groups=groups))
    beyond = residual(p.sum(0))
    found.append(Measurement(("b", "c"), beyond + rng.normal(0, 9.0, (2, 3)), 9.0, beyond=True))
    model, evidence = fitted(DOMAIN, found, 1000.0)
    library = Posterior(model, evidence)
    ours = np.array([library.draw(rng).project(DOMAIN.attributes) / 1000.0 for _ in range(400)])
    posterior = Potentials(model, evidence)
    assert posterior.design.shape[1] == 3 + 1 + 2 + 1 + 2
    theirs = posterior.draws(rng, 4000).reshape(-1, *DOMAIN.shape)
    for others in ((2, 3), (1, 3), (1,)):
        one, two = (x.sum(axis=others).reshape(len(x), -1) for x in (ours, theirs))
        assert np.all(np.abs(one.mean(axis=0) - two.mean(axis=0)) < 0.36 * two.std(axis=0))
        assert np.all(np.abs(one.std(axis=0) / two.std(axis=0) - 1) < 0.25)
