"""First-order solver of the estimation problem, in the entropy's geometry.

Minimised is F(p) = f(p) + k KL(p || p0), f(p) = 1/2 ||r(p)||^2 with r(p) = s * (p - t): p the probabilities of all
measured cells, t the measured ones, s = total / sigma, k the shrinkage and p0 a model to shrink towards, of potentials
theta0. A
proximal step of length h from p with potentials theta along a gradient g gives the model with potentials
(theta + h k theta0 - h g) / (1 + h k): the divergence is that of the geometry itself, so its part of the step
is exact. Iterates are models and a step costs one calibration. Potentials stay on the measured cliques.

Where groups of cells were measured, r(p) = s * (A p - t) with a 0/1 matrix A (`Seen`); potentials
move along A', so inside a group the cells keep the proportions that they had.

Inner products are `einsum`, not BLAS: a threaded dot product adds in an order that depends on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Floats, Integers
from fedsyn.inference.calibrate import Calibrator
from fedsyn.table.counting.sums import dot, sums_of_groups

# Iterations over which the relative decrease of the loss is compared with the tolerance.
_WINDOW = 10
# The last iterations of an accelerated fit are plain steps: they take out what momentum left in steep directions.
# They are a fifth of the iterations, and at most this many.
_PLAIN_STEPS = 10
_MAX_TRIES = 40
# Of the cells whose fitted count is above its noise, the share that counts as fitted to the noise: cliques overlap.
_DECIDED = 0.5
# The step grows by this factor after each accelerated iteration (and at least halves when it was too long).
_GROWTH = 1.2
# A curvature that has grown by more than this was met on rounding errors: nothing is left to descend.
_ROUNDED = 2.0**20


@dataclass
class Solution:
    """Result of a solver.

    The calibrator's theta and tables are those of the result.

    Attributes:
        iterations: iterations made.
        loss: F at the result.
        fit: f at the result.
        converged: the tolerance was met.
        history: F before the first and after each iteration (with shrinkage, of an average: a bound on it).
    """

    iterations: int
    loss: float
    fit: float
    converged: bool
    history: list[float]


class Seen:
    """The linear map A from a model's cells to measured numbers.

    It sums over groups of cells, in several ways at once; its transpose is here, too. If each clique is measured once
    and cell by cell, A is the identity, and nothing here does any work.

    Args:
        offsets: (f + 1,) where each clique's cells begin among all n.
        parts: of each measurement, one after the other: which clique, the group of each of its cells (None: each is its
            own), and how many groups there are.
    """

    def __init__(self, offsets: Sequence[int], parts: Sequence[tuple[int, Integers | None, int]]) -> None:
        self.cells = int(offsets[-1])
        self._parts: list[tuple[slice, slice, Integers | None]] = []
        start = 0
        for factor, groups, length in parts:
            rows = slice(start, start + length)
            self._parts.append((rows, slice(int(offsets[factor]), int(offsets[factor + 1])), groups))
            start += length
        self.length = start
        all_rows = [rows for rows, _, _ in self._parts]
        self.is_plain = (
            self.length == self.cells
            and [cells for _, cells, _ in self._parts] == all_rows
            and all(groups is None for _, _, groups in self._parts)
        )

    def of(self, cells: Floats) -> Floats:
        """Returns A p, (m,), of p, (n,)."""
        if self.is_plain:
            return cells
        out = np.empty(self.length)
        for rows, where, groups in self._parts:
            part = cells[where]
            out[rows] = part if groups is None else sums_of_groups(groups, part, rows.stop - rows.start)
        return out

    def back(self, values: Floats) -> Floats:
        """Returns A' r, (n,), of r, (m,)."""
        if self.is_plain:
            return values
        out = np.zeros(self.cells)
        for rows, where, groups in self._parts:
            part = values[rows]
            out[where] += part if groups is None else part[groups]
        return out


class Problem:
    """The residuals as a function of the potentials.

    Args:
        calibrator: its factors are the measured cliques.
        target: (n,) measured probabilities, laid out like the calibrator's marginals.
        scale: (n,) s, positive.
        shrinkage: weight of the divergence from p0; 0: none.
        origin: (n,) theta0, potentials of p0; None: all zero.
        unit: factor by which `scale` was divided, of a fit that ends when the noise explains what is left; else 0.
        cells: noisy ones among the n; those that structural zeros rule out are known.
        seen: A, where groups were measured; `target` and `scale` are then (m,); None: the identity.
    """

    def __init__(
        self,
        calibrator: Calibrator,
        target: np.ndarray,
        scale: np.ndarray,
        shrinkage: float = 0.0,
        origin: np.ndarray | None = None,
        unit: float = 0.0,
        cells: int = 0,
        seen: Seen | None = None,
    ) -> None:
        self.calibrator = calibrator
        self.seen = None if seen is None or seen.is_plain else seen
        self.unit, self.cells = unit, cells
        self.scale = scale
        self.shrinkage = shrinkage
        self._shift = scale * target
        self._origin = np.zeros_like(calibrator.theta) if origin is None else origin
        self._partition = 0.0
        if shrinkage:
            self.calibrator.theta[...] = self._origin
            self._partition = self.calibrator.run()

    def residual(self, theta: np.ndarray) -> np.ndarray:
        """Returns the residuals of the model with these potentials, (m,).

        It takes one calibration.
        """
        self.calibrator.theta[...] = theta
        self.calibrator.run()
        out: np.ndarray = self.scale * self._measured()
        out -= self._shift
        return out

    def _measured(self) -> np.ndarray:
        """Returns A p, (m,)."""
        marginals: np.ndarray = self.calibrator.marginals
        return marginals if self.seen is None else self.seen.of(marginals)

    def gradient(self, residual: np.ndarray) -> np.ndarray:
        """Returns A' (s * residual), the gradient of f in p, (n,)."""
        out: np.ndarray = self.scale * residual
        return out if self.seen is None else self.seen.back(out)

    def step(self, theta: np.ndarray, residual: np.ndarray, length: float) -> np.ndarray:
        """Returns the proximal step from theta along the gradient.

        Without shrinkage this is theta - length * gradient.
        """
        out = self.gradient(residual)
        out *= -length
        out += theta
        if self.shrinkage:
            weight = length * self.shrinkage
            out += weight * self._origin
            out /= 1.0 + weight
        return out

    def divergence(self) -> float:
        """Returns k KL(p || p0) of the last `residual`'s model."""
        if not self.shrinkage:
            return 0.0
        calibrator = self.calibrator
        moved = dot(calibrator.theta - self._origin, calibrator.marginals)
        return self.shrinkage * max(0.0, moved - calibrator.log_partition + self._partition)

    def curvature(self, theta: np.ndarray, residual: np.ndarray) -> float:
        """Returns the curvature of f along a very short step.

        It is 1 / (the longest sensible first step), and 0 at a minimum of F. One of f alone, such as the model before,
        is none with shrinkage: the largest curvature of one cell stands in there.
        """
        largest = float(self.scale.max(initial=0.0)) ** 2
        flat = largest if self.shrinkage else 0.0
        if largest == 0 or not dot(residual, residual) > 0:
            return flat
        length = 1e-3 / largest
        change = self.residual(theta - length * self.gradient(residual))
        change -= residual
        slope = -dot(residual, change)
        return dot(change, change) / (length * slope) if slope > 0 else flat

    def is_explained(self, residual: np.ndarray) -> bool:
        """Returns whether noise alone would leave such residuals.

        They must be those of the last `residual` (Morozov's discrepancy principle).

        The truth leaves n noisy cells a loss of n / 2. A fit leaves less: one half for each number that the
        measurements and not the prior decide. Of the cells whose fitted count is above its noise we count half: the
        cliques of a model overlap, and decide many of them twice.
        """
        if not self.unit:
            return False
        decided = int(np.count_nonzero(self._measured() * self.scale * self.unit > 1.0))
        return dot(residual, residual) * self.unit**2 <= self.cells - _DECIDED * decided

    def reached(self) -> np.ndarray | None:
        """Returns the last `residual`'s probabilities for `travelled`, (n,).

        The result is None where `travelled` needs none.
        """
        return self.calibrator.marginals.copy() if self.shrinkage and self.seen is not None else None

    def travelled(self, new: np.ndarray, old: np.ndarray, change: np.ndarray, cells: np.ndarray | None) -> float:
        """Returns KL(new || old) + KL(old || new) of two models.

        It is the inner product of their differences in potentials and in probabilities.

        Args:
            new: potentials of the model that the last `residual` was of.
            old: of the other.
            change: the difference of their residuals.
            cells: what `reached` gave for the other.
        """
        if cells is not None:
            return dot(new - old, self.calibrator.marginals - cells)
        return dot((new - old) / self.scale, change)


def _stalled(history: list[float], tolerance: float) -> bool:
    """Returns whether the loss has stopped falling.

    It has if the last iterations lowered it by no more than the tolerance, relatively.
    """
    if len(history) <= _WINDOW or tolerance <= 0:
        return False
    before, after = min(history[:-_WINDOW]), min(history[-_WINDOW:])
    return before - after <= tolerance * after


class MirrorDescent:
    """State of accelerated Bregman proximal gradient.

    It holds the model z, and the average x that carries the guarantee.

    Args:
        problem: what is minimised.
        theta: (n,) potentials to start from.
    """

    def __init__(self, problem: Problem, theta: np.ndarray) -> None:
        self.problem = problem
        self.z = theta
        self.residual_z, self.cells_z = problem.residual(theta), problem.reached()
        self.divergence_z = problem.divergence()
        self.loss_z = 0.5 * dot(self.residual_z, self.residual_z) + self.divergence_z
        self.best = (self.loss_z, theta)
        self.curvature = problem.curvature(theta, self.residual_z)
        self.iterations = 0
        self.starts: list[tuple[int, float]] = []  # iterations before each restart, and F there
        self.restart()

    def restart(self) -> None:
        """Forgets the momentum and goes on from the best model so far."""
        if self.best[0] < self.loss_z:
            self.loss_z, self.z = self.best
            self.residual_z, self.cells_z = self.problem.residual(self.z), self.problem.reached()
            self.divergence_z = self.problem.divergence()
        self.residual_x, self.loss_x, self.divergence_x = self.residual_z, self.loss_z, self.divergence_z
        self.weight, self.previous = 1.0, 0.0  # previous curvature 0: no momentum yet
        self.starts.append((self.iterations, self.loss_z))
        self.averages = [self.loss_x]

    def descend(self, iterations: int) -> None:
        """Runs some iterations, the last ones plain.

        The calibrator then holds z, the best model.
        """
        plain, start = min(_PLAIN_STEPS, iterations // 5), self.curvature
        for left in range(iterations, 0, -1):
            if left <= plain:
                self.restart()
            if not start or not self.advance() or self.curvature > _ROUNDED * start:
                self.curvature = start
                break
        self.restart()
        if not np.array_equal(self.problem.calibrator.theta, self.z):
            self.problem.residual(self.z)

    def _next_weight(self) -> float:
        """Returns the weight w of the new z in x.

        It solves (1 - w) / (w^2 curvature) = 1 / (previous weight^2 previous curvature).
        """
        if not self.previous:
            return 1.0
        ratio = self.curvature / (self.previous * self.weight**2)
        return (math.sqrt(1.0 + 4.0 * ratio) - 1.0) / (2.0 * ratio)

    def advance(self) -> bool:
        """Makes one iteration; returns False if rounding hides every descent."""
        for _ in range(_MAX_TRIES):
            weight = self._next_weight()
            y = self.residual_x + weight * (self.residual_z - self.residual_x)
            length = 1.0 / (weight * self.curvature)
            z = self.problem.step(self.z, y, length)
            residual = self.problem.residual(z)
            change = residual - self.residual_z
            bend = weight * dot(change, change)
            slope = -dot(y, change)
            if self.problem.shrinkage:
                slope = self.problem.travelled(z, self.z, change, self.cells_z) / length
            if bend <= slope:
                break
            self.curvature *= min(8.0, max(2.0, bend / slope)) if slope > 0 else 8.0
        else:
            return False
        self.z, self.residual_z, self.cells_z = z, residual, self.problem.reached()
        self.divergence_z = self.problem.divergence()
        self.loss_z = 0.5 * dot(residual, residual) + self.divergence_z
        if self.loss_z < self.best[0]:
            self.best = (self.loss_z, z)
        average = self.residual_x + weight * (residual - self.residual_x)
        # Of the average: at most this, by convexity.
        divergence = self.divergence_x + weight * (self.divergence_z - self.divergence_x)
        loss = 0.5 * dot(average, average) + divergence
        if loss > self.loss_x:
            self.restart()
        else:
            self.residual_x, self.loss_x, self.divergence_x = average, loss, divergence
            self.weight, self.previous = weight, self.curvature
            self.averages.append(loss)
        self.iterations += 1
        self.curvature /= _GROWTH
        return True

    def is_stalled(self, tolerance: float) -> bool:
        """Returns whether F has stopped falling.

        It has if the last iterations lowered it by no more than the tolerance, relatively. F is that of the average, as
        long as its momentum lasts. A restart throws the average away and begins at the best model, where F is larger:
        what was reached before says nothing of what will be. So where the last restart is too young to tell, models at
        restarts are compared.
        """
        if len(self.averages) > _WINDOW:
            return _stalled(self.averages, tolerance)
        older = [loss for at, loss in self.starts if at <= self.iterations - _WINDOW]
        return tolerance > 0 and bool(older) and older[-1] - self.best[0] <= tolerance * self.best[0]


def accelerated(problem: Problem, theta: np.ndarray, iterations: int, tolerance: float) -> Solution:
    """Minimises F by accelerated Bregman proximal gradient with adaptive step and restart.

    See Hanzely, Richtarik & Xiao 2021, Algorithm 2 (ABPG with gain adaption, triangle scaling exponent 2), in the
    geometry of the joint distribution's entropy; with that exponent it is the method of Auslender & Teboulle 2006. The
    average x has no potentials on the measured cliques, so the result is the best model z, and the last few iterations
    are plain steps that bring z close to x's loss. A step is accepted by the curvature met on it, which for a quadratic
    loss is the usual upper bound without its cancellation. Momentum restarts when f(x) rises.
    """
    state = MirrorDescent(problem, theta)
    history = [state.loss_x]
    plain = min(_PLAIN_STEPS, iterations // 5)
    converged = state.curvature == 0
    left = 0 if converged else iterations
    while left > 0:
        if left <= plain:
            state.restart()
        if not state.advance():
            converged = True
            break
        left -= 1
        history.append(state.loss_x)
        if problem.is_explained(state.residual_z):
            converged, state.best = True, (state.loss_z, state.z)
            break
        if left > plain and state.is_stalled(tolerance):
            converged, left = True, plain
    loss, theta = state.best
    residual = problem.residual(theta)
    return Solution(len(history) - 1, loss, 0.5 * dot(residual, residual), converged, history)
