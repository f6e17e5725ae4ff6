"""Fits by the estimators of Private-PGM's package `mbi`.

The problem is the one that `estimate` states, and so is the optimum. JAX compiles for every new set of cliques, which
takes seconds to a minute. Importing this module imports JAX.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from fedsyn.domain import Clique, Floats
from fedsyn.inference.estimation import Task, start_potentials
from fedsyn.inference.junction_tree import axes_of, maximal
from fedsyn.inference.mbi_forms import clique_vector, constraints_of, domain_of, linear_measurement, mbi
from fedsyn.inference.measurements import MeasuredGrid
from fedsyn.inference.model import FitInfo, Model
from fedsyn.table.counting.sums import sums_of_groups

# As in fedsyn's own solver: the step grows by this factor where it was short enough, and halves where it was not.
_GROWTH = 1.2
# The first step is as long as the loss bends along one that is this much shorter than mbi's.
_SHORT = 1e-3
# A tolerance that ends a fit only where nothing is gained.
_TINY = np.finfo(float).tiny


class Pulled(NamedTuple):
    """Measurements, and the model that a fit is pulled to.

    Attributes:
        measurements: mbi's.
        origin: potentials of the model.
        weight: pseudo-records of it.
        noisy: number of noisy values, where a fit ends at their noise; else 0.
    """

    measurements: tuple[Any, ...]
    origin: Any
    weight: float
    noisy: int


def _norm(marginals: Any, data: Pulled, targets: int) -> Any:
    """Returns half the squared norm of the residuals.

    They are of what is seen, less `targets` times the measured values.
    """
    out = 0.0
    for m in data.measurements:
        residual = (m.query(marginals.project(m.clique)) - targets * m.noisy_measurement) / m.stddev
        out = out + 0.5 * (residual**2).sum()
    return out


def _disagreement(marginals: Any, data: Pulled) -> Any:
    return _norm(marginals, data, 1)


def _is_explained(marginals: Any, loss: Any, data: Pulled) -> Any:
    """Returns whether noise alone would leave such a loss (`solvers.Problem.is_explained`)."""
    decided = sum((m.query(marginals.project(m.clique)) > m.stddev).sum() for m in data.measurements)
    return (data.noisy > 0) & (2.0 * loss <= data.noisy - 0.5 * decided)


@dataclasses.dataclass(frozen=True)
class PulledDescent(mbi.estimation.MirrorDescent):
    """mbi's mirror descent, of the loss and a divergence from a model.

    The divergence is that of the geometry itself, so its part of a step is exact (`fedsyn.inference.solvers`). A step
    is accepted if the loss bends less on it than the divergence between its ends allows. The first one has the length
    of fedsyn's own. A fit that ends at the noise level takes no step beyond, wherever in mbi's block that is.
    """

    def _init(self, domain: Any, loss_fn: Any, known_total: float, **more: Any) -> Any:
        state = super()._init(domain, loss_fn, known_total, **more)
        oracle = self._oracle(loss_fn.cliques, domain, constraints=more.get("constraints", ()))
        slope, short = jax.grad(loss_fn)(state.mu), _SHORT * state.alpha
        way = oracle(state.potentials - short * slope, known_total) - state.mu
        bend, descent = 2.0 * _norm(way, loss_fn.data, 0), -slope.dot(way)
        alpha = jax.numpy.where((bend > 0) & (descent > 0), short * descent / bend, state.alpha)
        # At least one step is made: only then is asked whether noise explains what is left.
        return state._replace(alpha=alpha, loss=jax.numpy.array(jax.numpy.inf))

    def _step(self, state: Any, loss_fn: Any, known_total: Any, constraints: Any = ()) -> Any:
        return jax.lax.cond(
            _is_explained(state.mu, state.loss, loss_fn.data),
            lambda: state,
            lambda: self._advanced(state, loss_fn, known_total, constraints),
        )

    def _advanced(self, state: Any, loss_fn: Any, known_total: Any, constraints: Any) -> Any:
        oracle = self._oracle(loss_fn.cliques, state.potentials.domain, constraints=constraints)
        loss, slope = jax.value_and_grad(loss_fn)(state.mu)
        pull = state.alpha * loss_fn.data.weight / known_total
        ahead = (state.potentials + pull * loss_fn.data.origin - state.alpha * slope) / (1.0 + pull)
        there = oracle(ahead, known_total)
        loss_there, way = loss_fn(there), there - state.mu
        allowed = 0.5 / state.alpha * (ahead - state.potentials).dot(way)
        short = loss_there - loss - slope.dot(way) <= allowed
        new, old = (there, ahead, loss_there), (state.mu, state.potentials, state.loss)
        mu, potentials, loss = jax.tree.map(lambda one, other: jax.numpy.where(short, one, other), new, old)
        alpha = jax.numpy.where(short, _GROWTH, 0.5) * state.alpha
        return mbi.estimation.MirrorDescentState(mu, potentials, alpha, loss)

    def _loss_value(self, state: Any, loss_fn: Any, known_total: Any, constraints: Any = ()) -> float:
        """Returns the loss, or minus infinity where noise explains it."""
        return -math.inf if _is_explained(state.mu, state.loss, loss_fn.data) else float(state.loss)


def fit_by_mbi(task: Task, estimator: str) -> Model:
    """Fits by one of mbi's estimators, in double precision.

    Iterations are rounded up to a multiple of mbi's block, and the tolerance is that of a block. Where an estimator's
    finish leaves what is no number, mirror descent makes the fit.
    """
    axes, measured = axes_of(task.domain), task.measured
    hidden = [mask for mask in (task.prior.rank_potentials() if task.prior else ()) if mask & axes.hidden]
    masks = sorted(maximal([*(m.mask for m in measured), *hidden]))
    blocks: list[None] = []
    potentials: dict[Clique, Floats] = {}
    explained = False
    block = mbi.estimation.CALLBACK_EVERY
    if masks:
        names = tuple(task.domain.names[column] for column in axes.order)
        theirs = domain_of(names, axes.sizes)
        with jax.enable_x64(True):
            loss = _loss(theirs, task, masks)
            fitted = _estimator(task, estimator).estimate(
                theirs,
                loss,
                known_total=task.total,
                constraints=constraints_of(theirs, ((axes.by_rank(m), cells) for m, cells in axes.zeros.items())),
                iters=task.config.iterations,
                callback_fn=lambda _: blocks.append(None),
                warm_start=clique_vector(theirs, _start(task, masks, task.start)),
                tol=max(task.config.tolerance, _TINY) if task.config.tolerance or loss.data.noisy else None,
                patience=1,
            )
            explained = bool(_is_explained(fitted.marginals, loss(fitted.marginals), loss.data))
        potentials = {clique: np.asarray(table.values) for clique, table in fitted.potentials.tables.items()}
        if not all(np.isfinite(table).all() for table in potentials.values()) and estimator != "MirrorDescent":
            return fit_by_mbi(task, "MirrorDescent")
    model = Model(task.domain, potentials, task.total)
    converged = explained or len(blocks) < math.ceil(task.config.iterations / block)
    model.info = FitInfo(block * len(blocks), _loss_of(task, model), converged)
    return model


def _estimator(task: Task, name: str) -> Any:
    """Returns mbi's estimator; ours, if it has more to do than mbi's."""
    pulled = name == "MirrorDescent" and (task.shrinkage or task.config.stop_at_noise_level)
    return PulledDescent() if pulled else getattr(mbi.estimation, name)()


def _loss(theirs: Any, task: Task, masks: list[int]) -> Any:
    """Returns what is minimised, as mbi takes it."""
    axes, measurements = axes_of(task.domain), []
    for m in task.measured:
        grid = MeasuredGrid.of(axes, m)
        groups = None if grid.is_fine else grid.groups
        measurements.append(linear_measurement(grid.clique, m.values, m.sigma, groups))
    lipschitz = mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(theirs, measurements)
    noisy = sum(m.noisy for m in task.measured) if task.config.stop_at_noise_level else 0
    origin = clique_vector(theirs, _start(task, masks, task.prior))
    data = Pulled(tuple(measurements), origin, task.shrinkage, noisy)
    cliques = tuple(axes.by_rank(mask) for mask in masks)
    return mbi.MarginalLossFn(cliques, _disagreement, data, lipschitz)


def _start(task: Task, masks: list[int], model: Model | None) -> dict[tuple[str, ...], Floats]:
    """Returns a model's potentials on the fit's cliques."""
    axes = axes_of(task.domain)
    tables = start_potentials(task.domain, masks, model)
    return {axes.by_rank(mask): table for mask, table in zip(masks, tables, strict=True)}


def _loss_of(task: Task, model: Model) -> float:
    axes, loss = axes_of(task.domain), task.least_loss
    for m in task.measured:
        table = model.project(axes.by_rank(m.mask)).ravel()
        seen = table if m.index is None else sums_of_groups(m.index, table, m.values.size)
        loss += 0.5 * float(np.add.reduce(((seen - m.values.ravel()) / m.sigma) ** 2, None))
    return loss
