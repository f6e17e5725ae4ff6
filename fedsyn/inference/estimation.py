"""Fits a model to noisy marginals; the folder's entry point.

A fit takes residuals together with the one-way marginals that were measured beside them.

A fit to noisy residuals alone would move one-way marginals to make room for noise that no table has: a count that noise
makes negative costs less where its row and column are fuller. Their own measurements, with noise of their own, do not
hold them. So a fit is asked for the whole marginal, its residual as measured and its parts as their least squares: they
agree with the own measurements, and hold what noise in the residual would move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsyn.config import InferenceNode
from fedsyn.domain import Domain, Floats
from fedsyn.inference import solvers
from fedsyn.inference.calibrate import Calibrator
from fedsyn.inference.junction_tree import Axes, axes_of, bits, build_tree
from fedsyn.inference.measurements import (
    LeastSquares,
    MeasuredGrid,
    Measurement,
    Merged,
    impossible,
    least_variance_total,
    merge,
)
from fedsyn.inference.model import NO_ROW, FitInfo, Model


@dataclass(frozen=True)
class EstimateConfig:
    """Limits of one fit: iterations, tolerance, the noise level.

    Attributes:
        iterations: at most this many. A converged fit also fits the noise, and the sampling error of measurements that
            saw only some of the federation's rows: it drives cells with small noisy counts to 0, which costs likelihood
            on other rows. Stopping early regularises; benchmarks/README.md has figures for two mechanisms. An
            iteration costs 1.3 calibrations.
        tolerance: stop when 10 iterations lowered the loss by less than this, relatively; 0 makes all iterations.
        stop_at_noise_level: stop as well when the noise of the measurements explains what the model leaves of them
            (`solvers.Problem.is_explained`).
    """

    iterations: int = 100
    tolerance: float = 1e-4
    stop_at_noise_level: bool = False


def estimate_config(node: InferenceNode, iterations: int, *, stop_at_noise_level: bool = False) -> EstimateConfig:
    """Returns the settings of one fit.

    The mechanism gives the number of iterations, the configuration may overrule when a fit ends.
    """
    return EstimateConfig(
        iterations,
        stop_at_noise_level=stop_at_noise_level if node.stop_at_noise_level is None else node.stop_at_noise_level,
    )


@dataclass(frozen=True, eq=False)
class Task:
    """A fit to make, as an engine takes it.

    Attributes:
        domain: all attributes of the table.
        merged: measurements as counts, one for each clique and grouping.
        total: records; known.
        config: when to stop.
        warm_start, prior, shrinkage: as `estimate` takes them.
    """

    domain: Domain
    merged: Sequence[Merged]
    total: float
    config: EstimateConfig
    warm_start: Model | None = None
    prior: Model | None = None
    shrinkage: float = 0.0

    @property
    def measured(self) -> list[Merged]:
        """The measurements that have a clique."""
        return [m for m in self.merged if m.mask]

    @property
    def start(self) -> Model | None:
        """The model whose potentials a fit starts from."""
        return self.warm_start or (self.prior if self.domain.hidden else None)

    @property
    def least_loss(self) -> float:
        """Loss that no model can lower."""
        return sum(m.disagreement for m in self.merged) + sum(
            0.5 * ((self.total - float(m.values)) / m.sigma) ** 2 for m in self.merged if not m.mask
        )


#: Makes a fit: `fit_natively`, or one of `fedsyn.inference.engines`.
Engine = Callable[[Task], Model]


def estimate(
    domain: Domain,
    measurements: Sequence[Measurement],
    *,
    total: float | None = None,
    config: EstimateConfig | None = None,
    warm_start: Model | None = None,
    prior: Model | None = None,
    shrinkage: float = 0.0,
    engine: Engine | None = None,
) -> Model:
    """Returns the maximum-entropy model that minimises 1/2 sum_i ||(M_i(p) - y_i)/sigma_i||^2.

    It minimises over the marginal polytope with the total fixed (McKenna, Sheldon & Miklau 2019); where the domain has
    structural zeros, over the distributions that put nothing into impossible cells. The measurements' order does not
    change a bit of it. Attributes that no measurement names are uniform and independent. Residuals: `completed`.

    >>> import numpy as np
    >>> domain = Domain(("age", "smoker", "ward"), (2, 2, 2))
    >>> model = estimate(
    ...     domain,
    ...     [
    ...         Measurement(("age", "smoker"), np.array([[40.0, 10.0], [20.0, 30.0]]), sigma=1.0),
    ...         Measurement(("smoker", "ward"), np.array([[45.0, 15.0], [10.0, 30.0]]), sigma=1.0),
    ...     ],
    ... )
    >>> model.project(("age", "ward")).round(1).tolist()
    [[32.5, 17.5], [22.5, 27.5]]

    Args:
        domain: all attributes of the table.
        measurements: noisy marginals in counts; any cliques, repeated and permuted ones too, or none.
        total: number of records; None: the minimum-variance unbiased estimate, at least 1.
        config: when to stop.
        warm_start: a model to start from; the optimum is the same, the way there shorter.
        prior: p0, to shrink towards. Of its potentials those count that lie inside measured cliques, and those on
            hidden attributes, which nothing measures and no fit moves: with those a fit starts there.
        shrinkage: in records, the weight of KL(p || p0) in what is minimised.
        engine: makes the fit; None: fedsyn's own solver.

    Returns:
        The model, calibrated, with `info` of the fit.

    Raises:
        ValueError: a malformed measurement, a total that is not positive, or zeros that leave no row possible.
    """
    config = config or EstimateConfig()
    if any(model is not None and model.domain != domain for model in (warm_start, prior)):
        raise ValueError("the warm start or the prior belongs to another domain")
    merged = merge(axes_of(domain), measurements)
    total = float(least_variance_total(merged) if total is None else total)
    if not (math.isfinite(total) and total > 0):
        raise ValueError("the total must be positive and finite")
    counts = completed(axes_of(domain), merged, total)
    return (engine or fit_natively)(Task(domain, counts, total, config, warm_start, prior, shrinkage))


def fit_natively(task: Task) -> Model:
    """Fits by fedsyn's own solver, an accelerated method in the entropy's geometry."""
    # The problem: targets, scales and the rule to stop.
    domain, measured, config = task.domain, task.measured, task.config
    compiled = Compiled(domain, measured, task.total, task.prior or task.warm_start)
    calibrator, unit = compiled.calibrator, compiled.unit
    until = (unit, sum(m.noisy for m in measured)) if config.stop_at_noise_level else (0.0, 0)
    target, origin = compiled.target(m.values for m in measured), compiled.potentials(task.prior)
    problem = solvers.Problem(
        calibrator, target, compiled.scale, task.shrinkage / unit**2, origin, *until, seen=compiled.seen
    )
    # Solve it from the warm start.
    solution = solvers.accelerated(problem, compiled.potentials(task.start), config.iterations, config.tolerance)
    if not calibrator.is_possible:
        raise ValueError(NO_ROW)
    info = FitInfo(
        iterations=solution.iterations,
        loss=solution.fit * unit**2 + task.least_loss,
        converged=solution.converged,
        history=tuple(loss * unit**2 for loss in solution.history),
    )
    return Model.calibrated(domain, calibrator, task.total, info=info)


def completed(axes: Axes, merged: Sequence[Merged], total: float) -> list[Merged]:
    """Turns residuals into counts, with as many noises.

    Other measurements stay as they are; every clique and grouping occurs once.

    Args:
        axes: of the domain.
        merged: what was measured.
        total: records.
    """
    if not any(m.beyond for m in merged):
        return list(merged)
    counted = [m for m in merged if m.mask and not m.beyond]
    ones = LeastSquares([MeasuredGrid.of(axes, m) for m in counted]).one_way([m.values for m in counted], total)
    return [_with_parts(axes, m, ones, total) if m.beyond else m for m in merged]


def _with_parts(axes: Axes, one: Merged, ones: Mapping[int, Floats], total: float) -> Merged:
    """Returns the counts that have this residual and these parts.

    The parts are the one-way marginals `ones`; an attribute without one is uniform.
    """
    grid = MeasuredGrid.of(axes, one)
    values = one.values + total / one.values.size
    for axis, rank in enumerate(grid.ranks):
        counts = ones.get(rank, np.full(axes.sizes[rank], total / axes.sizes[rank]))
        effect = grid.of_values(rank, counts) - total / grid.shape[axis]
        values = values + grid.across(effect, (rank,)) * (len(effect) / values.size)
    barred, noisy = impossible(axes, one.mask, one.index, values.shape), one.noisy
    if barred is not None:
        values, noisy = np.where(barred, 0.0, values), min(noisy, values.size - int(barred.sum()))
    return replace(one, values=values, noisy=noisy, beyond=False)


class Compiled:
    """Tree, scales and layout that fits of the same cliques share.

    Args:
        domain: all attributes.
        measured: with a clique each; a clique and its groups may come twice.
        total: records.
        base: a model whose cliques with hidden attributes are the fits' too.

    Attributes:
        calibrator: its factors are the measured cliques, and those of `base`.
        seen: A, from the calibrator's cells to the measured numbers.
        unit: the largest total / sigma. Only the ratios of the scales matter to a solver: kept near one, neither tiny
            nor huge sigmas overflow.
        scale: (m,) total / sigma / unit.
    """

    def __init__(self, domain: Domain, measured: Sequence[Merged], total: float, base: Model | None = None) -> None:
        axes = axes_of(domain)
        self.domain, self.total = domain, total
        hidden = [mask for mask in (base.rank_potentials() if base else ()) if mask & axes.hidden]
        self._masks = list(dict.fromkeys([*(m.mask for m in measured), *hidden]))
        tree = build_tree(axes, [*self._masks, *axes.zeros])
        self.calibrator = Calibrator(tree, self._masks, axes.zeros)
        sizes = [m.values.size for m in measured]
        self.seen = solvers.Seen(
            self.calibrator.offsets.tolist(), [(self._masks.index(m.mask), m.index, m.values.size) for m in measured]
        )
        self.unit = max((total / m.sigma for m in measured), default=1.0)
        self.scale = np.repeat([total / m.sigma / self.unit for m in measured], sizes)

    def target(self, values: Iterable[Floats]) -> Floats:
        """Returns all measurements' counts as probabilities, (m,)."""
        return np.concatenate([np.zeros(0), *(table.ravel() / self.total for table in values)])

    def potentials(self, model: Model | None) -> Floats:
        """Returns a model's potentials on the calibrator's factors, (n,)."""
        return np.concatenate([np.zeros(0), *(t.ravel() for t in start_potentials(self.domain, self._masks, model))])

    def model(self, theta: Floats) -> Model:
        """Returns the model with these potentials, (n,).

        It shares no memory with the calibrator.
        """
        axes = axes_of(self.domain)
        views = zip(self._masks, self.calibrator.views(theta), strict=True)
        return Model(self.domain, {axes.by_rank(mask): table for mask, table in views}, self.total)


def start_potentials(domain: Domain, masks: Sequence[int], model: Model | None) -> list[np.ndarray]:
    """Returns a model's potentials, carried over to other cliques.

    Each mask has one table with axes by rank, zero where the model has none. A potential goes to the smallest mask that
    contains its clique, and is dropped if none does.
    """
    axes = axes_of(domain)
    tables = {mask: np.zeros(axes.shape(mask)) for mask in masks}
    for mask, table in (model.rank_potentials() if model is not None else {}).items():
        hosts = [other for other in masks if mask & other == mask]
        if hosts:
            host = min(hosts, key=lambda other: (axes.cells(other), other))
            shape = [axes.sizes[rank] if mask >> rank & 1 else 1 for rank in bits(host)]
            tables[host] += table.reshape(shape)
    return [tables[mask] for mask in masks]
