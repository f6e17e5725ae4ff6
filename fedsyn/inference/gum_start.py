"""Where GUM's rows start: a forest of informative pairs, or rows that zeros allow.

Structural zeros (`Domain.zeros`) are honoured from the first row on: where the domain has any, rows start as a sample
of the maximum-entropy model of the one-way marginals and the forest's pairs, which puts nothing into an impossible
cell. Every later step of `fedsyn.inference.gum` keeps a possible row possible: none has to be rejected or repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from fedsyn.config import InferenceNode
from fedsyn.domain import Cells, Clique, Domain
from fedsyn.inference.capacity import Capacity
from fedsyn.inference.estimation import estimate
from fedsyn.inference.junction_tree import model_size, pass_cost
from fedsyn.inference.measurements import Measurement
from fedsyn.inference.sampling import deal

Axes = tuple[int, ...]
Zeros = tuple[tuple[Axes, Cells], ...]


def started(
    domain: Domain,
    core: Mapping[Axes, np.ndarray],
    ones: Sequence[np.ndarray],
    rows: int,
    rng: np.random.Generator,
    *,
    late: set[int],
    start: np.ndarray | None,
) -> np.ndarray:
    """(d, rows) codes to begin with.

    Args:
        domain: all attributes.
        core: marginals of at least two attributes that rows will be fitted to.
        ones: every attribute's one-way marginal.
        rows: number of rows.
        rng: randomness.
        late: attributes that come last, whatever stands there now.
        start: (m, d) rows to start from instead; those that the domain's zeros forbid are made anew.
    """
    # One row of this array per attribute: every step of GUM works on whole columns of the table.
    table = np.zeros((len(domain), rows), dtype=np.min_scalar_type(max(domain.shape, default=1) - 1))
    attributes = {axis for axes in core for axis in axes}
    everyone = np.zeros(rows, dtype=np.int64)
    if start is not None:
        table[:] = _resized(domain, start, rows, rng).T
        barred = np.flatnonzero(domain.violated(table.T))
        if len(barred):
            table[:, barred] = _allowed(domain, core, ones, rng, len(barred)).T
    elif domain.zeros:
        table[:] = _allowed(domain, core, ones, rng, rows).T
        return table
    elif core:
        for axis, parent in forest(core).items():
            if parent is None:
                table[axis] = deal(ones[axis][None], everyone, rng)
            else:
                table[axis] = deal(projected(core, (parent, axis)), table[parent].astype(np.int64), rng)
    zeroed = {axis for axes, _ in zeros_of(domain) for axis in axes}
    for axis in range(len(domain)):
        if axis not in attributes and axis not in late and axis not in zeroed:
            table[axis] = deal(ones[axis][None], everyone, rng)
    return table


def zeros_of(domain: Domain) -> Zeros:
    """The domain's zeros by columns."""
    return tuple((domain.axes(clique), cells) for clique, cells in domain.zeros)


def without_zeros(domain: Domain, clique: Clique, table: np.ndarray) -> np.ndarray:
    """A marginal with nothing in impossible cells."""
    impossible = domain.impossible(clique)
    return table if impossible is None else np.where(impossible, 0.0, table)


def impossible_of(zeros: Sequence[tuple[Axes, Cells]], wanted: Axes, shape: tuple[int, ...], axes: Axes) -> np.ndarray:
    """The cells over `wanted` that zeros on subsets of it rule out.

    Args:
        zeros: some.
        wanted: the attributes of the result's axes.
        shape: sizes of `axes`.
        axes: the same attributes in another order.
    """
    sizes = dict(zip(axes, shape, strict=True))
    out = np.zeros([sizes[axis] for axis in wanted], dtype=bool)
    for own, cells in zeros:
        order = sorted(range(len(own)), key=lambda i: wanted.index(own[i]))
        out |= cells.transpose(order).reshape([sizes[axis] if axis in own else 1 for axis in wanted])
    return out


def possible_weights(weights: np.ndarray, barred: np.ndarray) -> np.ndarray:
    """(groups, v) weights with nothing on impossible values; where that leaves none, all possible ones are alike."""
    out = np.where(barred, 0.0, weights)
    empty = out.sum(axis=1) <= 0
    out[empty] = ~barred[empty]
    return out


def stays_possible(
    table: np.ndarray, rows: np.ndarray, axes: Axes, values: Sequence[np.ndarray], zeros: Zeros
) -> np.ndarray:
    """(m,) whether rows of a (d, n) table would be possible with these values of some attributes.

    Args:
        table: codes.
        rows: (m,) which rows.
        axes: attributes that would be overwritten.
        values: (m,) new codes of each.
        zeros: the domain's.
    """
    new = dict(zip(axes, values, strict=True))
    out = np.ones(len(rows), dtype=bool)
    for own, cells in zeros:
        if not new.keys().isdisjoint(own):
            out &= ~cells[tuple(new[axis] if axis in new else table[axis, rows] for axis in own)]
    return out


def _allowed(
    domain: Domain,
    core: Mapping[Axes, np.ndarray],
    ones: Sequence[np.ndarray],
    rng: np.random.Generator,
    rows: int,
) -> np.ndarray:
    """(rows, d) rows of a model of the one-way marginals, and of the forest's pairs as far as they fit beside zeros."""
    names = domain.attributes
    edges = [(b, a) for a, b in forest(core).items() if b is not None]
    known = InferenceNode()
    node = known.model_copy(
        update={
            "max_cells": max(known.max_cells, 2 * model_size(domain, [])),
            "max_message_passing_cost": max(
                known.max_message_passing_cost, 2 * pass_cost(domain, [(name,) for name in names])
            ),
        }
    )
    pairs = [tuple(names[axis] for axis in edge) for edge in edges]
    kept = Capacity(domain, node).add_while_fitting(pairs)
    total = max(1.0, float(ones[0].sum())) if ones else 1.0
    measured = [Measurement((name,), ones[axis], 1.0) for axis, name in enumerate(names)]
    measured += [Measurement(pairs[i], projected(core, edges[i]), 1.0) for i in kept]
    return estimate(domain, measured, total=total).sample(rows, rng)


def marginal_of(table: np.ndarray, axes: Axes, wanted: Axes) -> np.ndarray:
    """The projection of a table over `axes` (ascending) onto some of them, its axes in the order of `wanted`."""
    kept = tuple(sorted(wanted))
    projected: np.ndarray = table.sum(axis=tuple(i for i, axis in enumerate(axes) if axis not in kept))
    return projected.transpose([kept.index(axis) for axis in wanted])


def projected(targets: Mapping[Axes, np.ndarray], wanted: Axes) -> np.ndarray:
    """The projection onto `wanted`, in that order, of the smallest marginal that holds it."""
    axes = min((a for a in targets if set(wanted) <= set(a)), key=lambda a: (targets[a].size, a))
    return marginal_of(targets[axes], axes, wanted)


def forest(core: Mapping[Axes, np.ndarray]) -> dict[int, int | None]:
    """Parent of each attribute (None for roots), parents first: the spanning forest of most mutual information."""
    information = {pair: _information(projected(core, pair)) for axes in core for pair in combinations(axes, 2)}
    group = {axis: {axis} for axes in core for axis in axes}
    neighbours: dict[int, list[int]] = {axis: [] for axis in sorted(group)}
    for a, b in sorted(information, key=lambda pair: (-information[pair], pair)):
        if group[a] is not group[b]:
            group[a] |= group[b]
            for axis in group[b]:
                group[axis] = group[a]
            neighbours[a].append(b)
            neighbours[b].append(a)
    parents: dict[int, int | None] = {}
    for root in neighbours:
        if root in parents:
            continue
        parents[root] = None
        queue = [root]
        while queue:
            axis = queue.pop()
            for other in neighbours[axis]:
                if other not in parents:
                    parents[other] = axis
                    queue.append(other)
    return parents


def _information(pair: np.ndarray) -> float:
    """Mutual information of a two-way marginal, in nats; 0 for an empty one."""
    mass = float(pair.sum())
    if mass <= 0:
        return 0.0
    p = pair / mass
    product = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    held = p > 0
    return float((p[held] * np.log(p[held] / product[held])).sum())


def _resized(domain: Domain, start: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """(rows, d) codes to start from: the given ones, cut or repeated at random to the number of rows."""
    start = np.asarray(start)
    if start.ndim != 2 or start.shape[1] != len(domain) or (len(start) == 0 and rows > 0):
        raise ValueError("start must have rows, and one column for each attribute of the domain")
    if (start < 0).any() or (start >= np.array(domain.shape)).any():
        raise ValueError("start must lie within the domain")
    if len(start) == rows:
        return start
    index = np.concatenate([np.tile(np.arange(len(start)), rows // len(start)), rng.permutation(len(start))])[:rows]
    table: np.ndarray = start[index]
    return table
