"""The reference of `fedsyn.inference`: fits by Private-PGM's `mbi` package, and mechanisms whose fits are mbi's.

Only the fit is mbi's: its potentials become an ordinary `Model`. JAX compiles for every new clique set, which takes
seconds to minutes: this is to check fedsyn's own fits with, not to work with. It needs `pip install mbi`.

    mechanism: {name: "experiments.mbi_engine:Aim"}
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.inference import Measurement
from fedsyn.inference.estimation import completed, start_potentials
from fedsyn.inference.junction_tree import axes_of, maximal
from fedsyn.inference.measurements import Merged, least_variance_total, merge
from fedsyn.inference.model import FitInfo, Model, from_rank_order, to_rank_order
from fedsyn.plugins.strategies.aim import Aim as NativeAim
from fedsyn.plugins.strategies.distributed_aim import DistributedAim as NativeDistributedAim
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.table.counting.sums import sums_of_groups


@contextmanager
def _mbi() -> Iterator[Any]:
    """The mbi package, in double precision while the context lasts: in single its fits stall above 1e5 records."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mbi's advice on JAX settings that the context below follows
            import jax
            import mbi
    except ImportError as error:
        raise ConfigError("fits by mbi need the mbi package: pip install mbi") from error
    with jax.enable_x64(True):
        yield mbi


def _potential_cliques(domain: Domain, masks: Sequence[int]) -> list[Clique]:
    return [axes_of(domain).clique(mask) for mask in sorted(maximal(masks))]


def _clique_vector(mbi: Any, domain: Domain, cliques: Sequence[Clique], model: Model | None) -> Any:
    """mbi's form of a model's potentials on the given cliques."""
    axes = axes_of(domain)
    tables = start_potentials(domain, [axes.mask(clique) for clique in cliques], model)
    theirs = mbi.Domain(domain.attributes, domain.shape)
    factors = {
        clique: mbi.Factor(theirs.project(clique), np.ascontiguousarray(from_rank_order(domain, clique, table)))
        for clique, table in zip(cliques, tables, strict=True)
    }
    return mbi.CliqueVector(theirs, cliques, factors)


def estimate_with_mbi(
    domain: Domain,
    measurements: Sequence[Measurement],
    *,
    total: float | None = None,
    iterations: int = 100,
    tolerance: float = 1e-4,
    solver: str = "accelerated",
    warm_start: Model | None = None,
) -> Model:
    """Fits with mbi; arguments as `fedsyn.inference.estimate` takes them, structural zeros excepted.

    `iterations` is rounded up to a multiple of mbi's block of 50; `tolerance` applies to the decrease over one block.
    "accelerated" is mbi's UniversalAcceleratedMethod, whose step is fixed; the other is "mirror_descent".
    """
    if domain.zeros:
        raise ConfigError("mbi cannot honour structural zeros: estimate with fedsyn's own fit")
    found = merge(axes_of(domain), measurements)
    total = least_variance_total(found) if total is None else total
    merged = completed(axes_of(domain), found, total)
    with _mbi() as mbi:
        measured = [m for m in merged if m.mask]
        potentials = _fitted_potentials(mbi, domain, measured, total, (solver, iterations, tolerance), warm_start)
    model = Model(domain, potentials, total)
    loss = sum(m.disagreement for m in merged)
    for m in merged:
        clique = axes_of(domain).clique(m.mask)
        found = to_rank_order(domain, clique, model.project(clique)).ravel()
        seen = found if m.index is None else sums_of_groups(m.index, found, m.values.size)
        loss += 0.5 * float(np.add.reduce(((seen - m.values.ravel()) / m.sigma) ** 2, None))
    model.info = FitInfo(iterations, loss, False)
    return model


class _ByMbi(MechanismStrategy):
    """A mechanism whose models mbi fits, with as many iterations, and no shrinkage."""

    def estimate(self, measurements: Sequence[Measurement], last: bool = False, shrinkage: float | None = None) -> None:
        if measurements:
            self.measured = tuple(measurements)
            name = "final_iterations" if last else "iterations"
            iterations = getattr(self.config.inference, name) or getattr(self.options, name)
            with self.timed("estimate"):
                total = self.rows_known(measurements)
                self.model = estimate_with_mbi(
                    self.domain, measurements, total=total, iterations=iterations, warm_start=self.model
                )


class Aim(_ByMbi, NativeAim):
    """Central AIM, fitted by mbi."""


class DistributedAim(_ByMbi, NativeDistributedAim):
    """Distributed AIM, fitted by mbi."""


def _fitted_potentials(
    mbi: Any,
    domain: Domain,
    measured: Sequence[Merged],
    total: float,
    settings: tuple[str, int, float],
    warm_start: Model | None,
) -> dict[Clique, np.ndarray]:
    """Clique -> potential, of the cliques that mbi's solver keeps."""
    cliques = _potential_cliques(domain, [m.mask for m in measured])
    fitted = _clique_vector(mbi, domain, cliques, warm_start)
    solver, iterations, tolerance = settings
    if iterations and cliques:
        estimation = mbi.estimation
        mirror = solver == "mirror_descent"
        method = estimation.MirrorDescent() if mirror else estimation.UniversalAcceleratedMethod()
        measurements = []
        for m in measured:
            clique = axes_of(domain).clique(m.mask)
            if m.index is not None:
                query = _sums(domain, clique, m.index, m.values.size)
                measurements.append(mbi.LinearMeasurement(m.values.ravel(), clique, m.sigma, query))
                continue
            values = np.ascontiguousarray(from_rank_order(domain, clique, m.values)).ravel()
            measurements.append(mbi.LinearMeasurement(values, clique, m.sigma))
        fitted = method.estimate(
            mbi.Domain(domain.attributes, domain.shape),
            measurements,
            known_total=total,
            iters=iterations,
            tol=tolerance or None,
            warm_start=fitted,
        ).potentials
    return {
        tuple(fitted[clique].domain.attributes): np.asarray(fitted[clique].datavector(flatten=False))
        for clique in fitted.cliques
    }


def _sums(domain: Domain, clique: Clique, index: npt.NDArray[np.int64], length: int) -> Callable[[Any], Any]:
    """mbi's form of a sum over groups of cells; `index` has the cells by rank, a factor has them by its clique."""
    by_rank = index.reshape(axes_of(domain).shape(axes_of(domain).mask(clique)))
    where = np.ascontiguousarray(from_rank_order(domain, clique, by_rank)).ravel()

    def query(factor: Any) -> Any:
        import jax

        return jax.ops.segment_sum(factor.datavector(), where, num_segments=length)

    return query
