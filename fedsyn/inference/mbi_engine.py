"""The reference engine: Private-PGM's `mbi` package behind the interface of the native one. Imported nowhere else.

Only the fit is mbi's: its potentials become an ordinary `Model`. JAX compiles for every new clique set, which takes
seconds to minutes; use this engine to check the native one, not to work with.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError
from fedsyn.inference.measurements import Merged
from fedsyn.inference.model import FitInfo, Model, from_rank_order, to_rank_order
from fedsyn.inference.triangulation import axes_of, maximal
from fedsyn.table.counting.groups import sums_of_groups

if TYPE_CHECKING:
    from fedsyn.inference.fitting import EstimateConfig


@contextmanager
def _mbi() -> Iterator[Any]:
    """The mbi package, in double precision while the context lasts: in single its fits stall above 1e5 records."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mbi's advice on JAX settings that the context below follows
            import jax
            import mbi
    except ImportError as error:
        raise ConfigError(
            "inference.engine 'mbi' needs the mbi package: pip install fedsyn[pgm], or use 'native'"
        ) from error
    with jax.enable_x64(True):
        yield mbi


def _potential_cliques(domain: Domain, masks: Sequence[int]) -> list[Clique]:
    return [axes_of(domain).clique(mask) for mask in sorted(maximal(masks))]


def _clique_vector(mbi: Any, domain: Domain, cliques: Sequence[Clique], model: Model | None) -> Any:
    """mbi's form of a model's potentials on the given cliques."""
    from fedsyn.inference.fitting import start_potentials

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
    merged: Sequence[Merged],
    total: float,
    config: EstimateConfig,
    warm_start: Model | None,
) -> Model:
    """Fits with mbi; arguments as the native engine takes them.

    `iterations` is rounded up to a multiple of mbi's block of 50; `tolerance` applies to the decrease over one block.
    "accelerated" is mbi's UniversalAcceleratedMethod, whose step is fixed.

    Raises:
        ConfigError: mbi is not installed, or the domain has structural zeros.
    """
    if domain.zeros:
        raise ConfigError("inference.engine 'mbi' cannot honour the schema's constraints; use 'native'")
    started = time.perf_counter()
    with _mbi() as mbi:
        potentials = _fitted_potentials(mbi, domain, [m for m in merged if m.mask], total, config, warm_start)
    model = Model(domain, potentials, total)
    loss = sum(m.disagreement for m in merged)
    for m in merged:
        clique = axes_of(domain).clique(m.mask)
        found = to_rank_order(domain, clique, model.project(clique)).ravel()
        seen = found if m.index is None else sums_of_groups(m.index, found, m.values.size)
        loss += 0.5 * float(np.add.reduce(((seen - m.values.ravel()) / m.sigma) ** 2, None))
    model.info = FitInfo(
        engine="mbi",
        solver=config.solver,
        iterations=config.iterations,
        passes=0,
        loss=loss,
        converged=False,
        seconds=time.perf_counter() - started,
    )
    return model


def _fitted_potentials(
    mbi: Any,
    domain: Domain,
    measured: Sequence[Merged],
    total: float,
    config: EstimateConfig,
    warm_start: Model | None,
) -> dict[Clique, np.ndarray]:
    """Clique -> potential, of the cliques that mbi's solver keeps."""
    cliques = _potential_cliques(domain, [m.mask for m in measured])
    fitted = _clique_vector(mbi, domain, cliques, warm_start)
    if config.iterations and cliques:
        estimation = mbi.estimation
        mirror = config.solver == "mirror_descent"
        solver = estimation.MirrorDescent() if mirror else estimation.UniversalAcceleratedMethod()
        measurements = []
        for m in measured:
            clique = axes_of(domain).clique(m.mask)
            if m.index is not None:
                query = _sums(domain, clique, m.index, m.values.size)
                measurements.append(mbi.LinearMeasurement(m.values.ravel(), clique, m.sigma, query))
                continue
            values = np.ascontiguousarray(from_rank_order(domain, clique, m.values)).ravel()
            measurements.append(mbi.LinearMeasurement(values, clique, m.sigma))
        fitted = solver.estimate(
            mbi.Domain(domain.attributes, domain.shape),
            measurements,
            known_total=total,
            iters=config.iterations,
            tol=config.tolerance or None,
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
