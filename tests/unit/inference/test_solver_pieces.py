"""The pieces of a fit by themselves: the divergence, its gradient, and the end at the noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from fedsyn.inference.solvers import Problem, accelerated


class OneTable:
    """A calibrator of one table: its marginals are its cells, exp(theta) normalised."""

    def __init__(self, cells: int) -> None:
        self.theta, self.marginals, self.log_partition = np.zeros(cells), np.zeros(cells), 0.0

    def run(self) -> float:
        self.log_partition = float(logsumexp(self.theta))
        self.marginals = np.exp(self.theta - self.log_partition)
        return self.log_partition


def softmax(theta: np.ndarray) -> np.ndarray:
    return np.exp(theta - logsumexp(theta))


def problem_of(seed: int, kappa: float, unit: float = 0.0, cells: int = 7) -> Problem:
    rng = np.random.default_rng(seed)
    target, scale = rng.dirichlet(np.ones(cells)), rng.uniform(2.0, 9.0, cells)
    return Problem(OneTable(cells), target, scale, kappa, rng.normal(0, 2, cells), unit, cells)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_divergence_is_that_of_the_cells_and_never_negative(seed: int) -> None:
    problem, rng = problem_of(seed, 3.0), np.random.default_rng([seed, 1])
    p0 = softmax(problem._origin)
    for theta in (rng.normal(0, 2, 7), problem._origin + 1e-6 * rng.normal(0, 1, 7), problem._origin + 5.0):
        problem.residual(theta)
        p = softmax(theta)
        by_hand = 3.0 * float(np.sum(p * np.log(p / p0)))
        assert problem.divergence() == pytest.approx(by_hand, rel=1e-9, abs=1e-12)
        assert problem.divergence() >= 0.0


@pytest.mark.parametrize("seed", range(10))
def test_a_short_step_goes_down_the_gradient_of_the_whole_loss(seed: int) -> None:
    """dF/dp = gradient + kappa (theta - theta0), up to a constant: what a proximal step moves potentials along."""
    problem, kappa, rng = problem_of(seed, 2.0), 2.0, np.random.default_rng([seed, 2])
    theta, length, direction = rng.normal(0, 1, 7), 1e-7, rng.normal(0, 1, 7)

    def loss(at: np.ndarray) -> float:
        residual = problem.residual(at)
        return 0.5 * float(residual @ residual) + problem.divergence()

    numeric = (loss(theta + 1e-5 * direction) - loss(theta - 1e-5 * direction)) / 2e-5
    slope = problem.gradient(problem.residual(theta)) + kappa * (theta - problem._origin)
    p = softmax(theta)
    assert numeric == pytest.approx(float(slope @ (p * (direction - p @ direction))), rel=1e-6, abs=1e-7)
    moved = problem.step(theta, problem.residual(theta), length) - theta
    assert np.allclose(moved / length, -slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kappa", [0.3, 30.0])
def test_a_fit_ends_where_the_gradient_of_the_whole_loss_is_none(kappa: float) -> None:
    problem = problem_of(3, kappa)
    found = accelerated(problem, problem._origin.copy(), 3000, 0.0)
    theta = problem.calibrator.theta
    slope = problem.gradient(problem.residual(theta.copy())) + kappa * (theta - problem._origin)
    p = problem.calibrator.marginals
    assert np.abs(p * (slope - p @ slope)).max() < 1e-5 * max(1.0, kappa)
    assert found.loss == pytest.approx(found.fit + problem.divergence(), rel=1e-9) and found.loss >= found.fit


def test_what_noise_explains_is_counted_by_hand() -> None:
    """Seven noisy cells of which five are above their noise: a loss of 7 - 5/2 in squares, and no more."""
    scale, unit, cells = np.full(7, 2.0), 5.0, 7  # 10 n p standard deviations for probability p
    p = np.array([0.3, 0.2, 0.2, 0.15, 0.13, 0.01, 0.01])
    problem = Problem(OneTable(7), p, scale, 0.0, None, unit, cells)  # type: ignore[arg-type]
    problem.residual(np.log(p))
    allowed = cells - 5 / 2
    along = np.full(7, 1.0 / np.sqrt(7.0)) / unit
    assert problem.is_explained(along * np.sqrt(allowed) * (1 - 1e-9))
    assert not problem.is_explained(along * np.sqrt(allowed) * (1 + 1e-9))
    problem.residual(np.zeros(7))  # every cell at 1/7: seven of them decided
    assert not problem.is_explained(along * np.sqrt(allowed) * (1 - 1e-9))
    problem.unit = 0.0
    assert not problem.is_explained(np.zeros(7)), "a fit that does not end at the noise"


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_a_fit_ends_at_a_model_that_noise_explains(kappa: float) -> None:
    problem = problem_of(5, kappa, unit=5.0)
    assert not problem.is_explained(problem.residual(problem._origin.copy()))
    ended = accelerated(problem, problem._origin.copy(), 500, 0.0)
    assert ended.converged and 0 < ended.iterations < 500
    assert problem.is_explained(problem.residual(problem.calibrator.theta.copy()))
