"""Models and measurements in the forms of Private-PGM's package `mbi`, and back.

`Model.to_mbi`, `Measurement.to_mbi` and their counterparts call it. Importing it imports JAX, which takes seconds.

Arrays go over as NumPy's, in double precision: JAX computes with them in whatever precision the caller has set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsyn.domain import Clique, Domain, Flags, Floats, Zeros
from fedsyn.errors import ConfigError
from fedsyn.table.counting.sums import Groups, group_of_cells
from fedsyn.version import installing

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mbi's advice on JAX settings that fits follow
        import jax
        import mbi as mbi
except ImportError as error:
    raise ConfigError(f"Private-PGM's forms need the package 'mbi': {installing('pgm')}") from error


@dataclass(frozen=True)
class Seen(mbi.DatavectorQuery):
    """Query of a measurement: what it saw of its clique's marginal.

    mbi's estimate of the total takes it for counts, unless residuals were measured.

    Attributes:
        groups: of each attribute, the group of each value; None: each is its own.
        beyond: residuals were measured.
        shape: of the values.
        noises, share: as in `Measurement`, which mbi has no place for.
    """

    groups: tuple[tuple[int, ...], ...] | None = None
    beyond: bool = False
    shape: tuple[int, ...] | None = None
    noises: int | None = None
    share: float = 1.0

    def __call__(self, factor: Any) -> Any:
        values, shape = factor.datavector(), factor.domain.shape
        if self.groups is not None:
            index, length = group_of_cells(self.each_group)
            values = jax.ops.segment_sum(values, index, num_segments=length)
            shape = tuple(max(group) + 1 for group in self.groups)
        return _residual(values.reshape(shape)).ravel() if self.beyond else values

    @property
    def each_group(self) -> Groups:
        """The groups as arrays."""
        return tuple(np.array(group, np.int64) for group in self.groups or ())

    def op_norm_sq(self) -> float:
        """Returns the squared operator norm, the largest group."""
        return float(np.prod([np.bincount(group).max() for group in self.each_group]))


def _residual(table: Any) -> Any:
    """`fedsyn.table.counting.sums.residual`, of JAX's arrays."""
    out = table + (table.ndim - 1) * (table.sum() / table.size)
    for axis, size in enumerate(table.shape):
        others = tuple(other for other in range(table.ndim) if other != axis)
        out = out - table.sum(others, keepdims=True) * (size / table.size)
    return out


def linear_measurement(
    clique: Clique, values: Floats, sigma: float, groups: Groups | None = None, **more: Any
) -> mbi.LinearMeasurement:
    """Returns a measurement of mbi's.

    Its query knows what was measured.

    Args:
        clique: distinct attributes.
        values: noisy counts, in the clique's order.
        sigma: standard deviation of the noise.
        groups: of each attribute, the group of each value.
        more: of `Seen`.
    """
    numbers = None if groups is None else tuple(tuple(map(int, group)) for group in groups)
    query = Seen(use_for_total_estimation=not more.get("beyond"), groups=numbers, shape=np.shape(values), **more)
    return mbi.LinearMeasurement(np.asarray(values, np.float64).ravel(), tuple(clique), float(sigma), query)


def facts_of_measurement(theirs: mbi.LinearMeasurement) -> dict[str, Any]:
    """Returns the arguments of a `Measurement`.

    Raises:
        ValueError: a query that is not of cells, groups of cells or residuals.
    """
    query = theirs.query
    if query == mbi.Factor.datavector or type(query) is mbi.DatavectorQuery:
        query = Seen()
    if not isinstance(query, Seen):
        raise ValueError(f"the measurement of {theirs.clique} has the query {query!r}; expected counts of cells")
    values = np.asarray(theirs.noisy_measurement, np.float64)
    return {
        "clique": tuple(map(str, theirs.clique)),
        "values": values if query.shape is None else values.reshape(query.shape),
        "sigma": float(theirs.stddev),
        "noises": query.noises,
        "groups": None if query.groups is None else query.each_group,
        "share": query.share,
        "beyond": query.beyond,
    }


# Models ---------------------------------------------------------------------------------------------------------------


def domain_of(names: Sequence[str], sizes: Sequence[int]) -> mbi.Domain:
    """Returns mbi's domain of attributes and their sizes."""
    return mbi.Domain(tuple(names), tuple(sizes))


def clique_vector(theirs: mbi.Domain, tables: Mapping[Clique, Floats]) -> mbi.CliqueVector:
    """Returns tables by clique, each in its clique's order."""
    factors = {q: mbi.Factor(theirs.project(q), np.ascontiguousarray(table)) for q, table in tables.items()}
    return mbi.CliqueVector(theirs, tuple(factors), factors)


def constraints_of(theirs: mbi.Domain, zeros: Iterable[Iterable[Any]]) -> tuple[mbi.Constraint, ...]:
    """Returns structural zeros as constraints."""
    return tuple(
        mbi.Constraint(theirs.project(clique), invalid=np.argwhere(cells)) for clique, cells in zeros if cells.any()
    )


def random_field(
    domain: Domain, potentials: Mapping[Clique, Floats], marginals: Mapping[Clique, Floats], total: float
) -> mbi.MarkovRandomField:
    """Returns a model of mbi's from the parts of one of ours.

    Structural zeros are constraints, which fits from it on keep, and potentials of minus infinity: mbi leaves
    constraints out where it projects onto a clique that no potential has.
    """
    theirs = domain_of(domain.names, domain.sizes)
    covered = [set(clique) for clique in potentials]
    tables = {z.clique: np.zeros(z.cells.shape) for z in domain.zeros if not any(set(z.clique) <= q for q in covered)}
    for clique, table in {**tables, **potentials}.items():
        barred = domain.impossible(clique)
        tables[clique] = table if barred is None else np.where(barred, -np.inf, table)
    return mbi.MarkovRandomField(
        potentials=clique_vector(theirs, tables),
        marginals=clique_vector(theirs, marginals),
        total=total,
        constraints=constraints_of(theirs, domain.zeros),
    )


def parts_of_field(theirs: mbi.MarkovRandomField, domain: Domain | None) -> tuple[Domain, dict[Clique, Floats], float]:
    """Returns domain, potentials and total of a model of mbi's.

    Its constraints, and cells with a potential of minus infinity, become structural zeros.

    Args:
        theirs: the model.
        domain: to give the model; None: its own.

    Raises:
        ValueError: it has no potentials, or belongs to another domain.
    """
    if not isinstance(theirs, mbi.MarkovRandomField):
        raise ValueError(f"expected mbi's MarkovRandomField, got {type(theirs).__name__}, which has no potentials")
    names = tuple(map(str, theirs.domain.attributes))
    domain = domain or Domain(names, theirs.domain.shape)
    if dict(zip(names, theirs.domain.shape, strict=True)) != dict(zip(domain.names, domain.sizes, strict=True)):
        raise ValueError("the model belongs to another domain than the one given")
    for constraint in theirs.constraints:
        domain = _without(domain, constraint.domain.attributes, np.isneginf(np.asarray(constraint.potential.values)))
    potentials = {}
    for factor in theirs.potentials.tables.values():
        clique, table = tuple(map(str, factor.domain.attributes)), np.asarray(factor.values, np.float64)
        barred = np.isneginf(table)
        domain = _without(domain, clique, barred)
        potentials[clique] = np.where(barred, 0.0, table)
    return domain, potentials, float(theirs.total)


def _without(domain: Domain, clique: Sequence[Any], cells: Flags) -> Domain:
    """Returns the domain without some cells, itself if it has none."""
    names = tuple(map(str, clique))
    known = domain.impossible(names)
    if not (cells if known is None else cells & ~known).any():
        return domain
    return replace(domain, zeros=(*domain.zeros, Zeros(names, cells)))
