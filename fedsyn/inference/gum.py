"""GUM: rows whose marginals follow noisy one- and two-way marginals.

After Zhang et al. 2021 (PrivSyn), section 5, "gradually update method": start from rows that are right attribute by
attribute and update them marginal by marginal. Rows of cells that hold too many are freed and fill cells that hold too
few, as copies of rows that are there ("duplicate": the other attributes come along, but no new combination appears) or
by overwriting the marginal's own attributes ("replace": fills empty cells, at the price of the row's other
correlations). Each update closes the share alpha of the gap, and alpha decays exponentially, so that the marginals,
which undo part of each other's work, settle on a compromise.

What differs from the paper, and why (L1 figures: adult, 100 bins, its 30 most dependent pairs, no noise):
- An update closes a share of each cell's gap; the paper's bounds a cell's growth by alpha times its count, so that
  empty cells need a rule of their own.
- Gaps below one row count as none: a count cannot come closer to a real-valued target, only be shuffled.
- Freed rows and the cells they fill are matched on one of the attributes where possible, so that a replacement
  overwrites one attribute and not two (0.017 instead of 0.022).
- Rows start from a forest of the most informative measured pairs instead of independently.
- An attribute in only one marginal is appended at the end given the others of that marginal, repeatedly (as the paper
  does for attributes in a single pair); so a forest of pairs needs no update at all. Copies take only the attributes
  that the measured pairs connect (the paper's "separate and join"), or structural zeros.
- Structural zeros (`Domain.zeros`) hold in every row at any time: where the domain has any, rows start as a sample of
  the maximum-entropy model of the one-way marginals and the forest's pairs, which puts nothing into an impossible cell,
  and every later step keeps a possible row possible: none has to be rejected or repaired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Domain, Flags
from fedsyn.inference.capacity import Capacity
from fedsyn.inference.consistency import consistent
from fedsyn.inference.estimation import estimate
from fedsyn.inference.junction_tree import model_size, pass_cost
from fedsyn.inference.measurements import Measurement
from fedsyn.inference.rows_by_cell import RowsByCell
from fedsyn.inference.sampling import deal
from fedsyn.inference.whole_rows import WholeRows
from fedsyn.table.counting.hierarchy import HierarchicalMeasurement

Axes = tuple[int, ...]
Zeros = tuple[tuple[Axes, Flags], ...]


@dataclass(frozen=True)
class GumConfig:
    """Settings of a fit of rows.

    The defaults were chosen on adult and shoppers, noise-free and with noise.

    Attributes:
        iterations: updates of every marginal, each time in a new random order.
        decay: factor on alpha, which is 1 in the first iteration, after each one.
        duplicate: share of the freed rows that become copies; the others, and all that fill an empty cell, are
            overwritten.
    """

    iterations: int = 50
    decay: float = 0.95
    duplicate: float = 0.5


def synthesize(
    domain: Domain,
    measurements: Sequence[Measurement],
    rows: int,
    rng: np.random.Generator,
    config: GumConfig | None = None,
    *,
    total: float | None = None,
    start: np.ndarray | None = None,
    one_way: Sequence[HierarchicalMeasurement] = (),
) -> np.ndarray:
    """Makes rows whose marginals follow measurements: `consistent`, then `fit_rows`.

    Args:
        domain: all attributes. One that no measurement names is uniform and independent.
        measurements: noisy marginals in counts, each with its own sigma.
        rows: number of rows to make; the marginals are scaled to it.
        rng: randomness that carries no privacy.
        config: how to fit.
        total: public number of records; None for the least-variance estimate from the measurements.
        start: (m, d) codes to start from instead of a forest of pairs, for instance of fewer measurements.
        one_way: attributes measured at several resolutions, besides.

    Returns:
        (rows, d) codes in the smallest unsigned integer type that holds every value, columns in domain order.

    Raises:
        ValueError: a malformed measurement, total, start or number of rows.
    """
    marginals = consistent(domain, measurements, total=total, one_way=one_way)
    return fit_rows(domain, marginals, rows, rng, config, start=start)


def fit_rows(
    domain: Domain,
    marginals: Mapping[Clique, np.ndarray],
    rows: int,
    rng: np.random.Generator,
    config: GumConfig | None = None,
    *,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Fits rows to non-negative marginals that agree.

    They come from `consistent`, and may be of any scale; all else is as in `synthesize`.
    """
    if rows < 0:
        raise ValueError("the number of rows must not be negative")
    config = config or GumConfig()
    # Scaled marginals, without attributes that are in one of them only.
    targets = _scaled(domain, marginals, rows)
    ones = _one_way(domain, targets, rows)
    peeled = _peel(_maximal(targets), zeros_of(domain))
    late = {axis for axis, _ in peeled.taken}
    # Start, and move towards one marginal after the other.
    table = started(domain, peeled.core, ones, rows, rng, late=late, start=start)
    table = _updated(table, peeled.core, peeled.zeros, rng, config)
    # Append the attributes that were left out, each given the others of its marginal.
    for axis, others in reversed(peeled.taken):
        weights = projected(targets, (*others, axis)).reshape(-1, domain.shape[axis])
        if axis in peeled.barred:
            weights = possible_weights(weights, peeled.barred[axis].reshape(weights.shape))
        group = _cells([table[other] for other in others], [domain.shape[other] for other in others], rows)
        table[axis] = deal(weights, group.astype(np.int64), rng)
    return np.ascontiguousarray(table.T)


# Marginals ------------------------------------------------------------------------------------------------------------


def _scaled(domain: Domain, marginals: Mapping[Clique, np.ndarray], rows: int) -> dict[Axes, np.ndarray]:
    """Scales marginals to the number of rows, by domain columns.

    Columns ascend, and a marginal that holds nothing becomes uniform. Impossible cells become 0, whatever noise and
    consistency left there.
    """
    out = {}
    for clique, values in marginals.items():
        axes = domain.axes(clique)
        order = np.argsort(axes)
        table = np.maximum(np.asarray(values, dtype=np.float64), 0.0)
        table = without_zeros(domain, clique, table).transpose(order)
        mass = float(table.sum())
        scaled = table * (rows / mass) if mass > 0 else np.full(table.shape, rows / table.size)
        out[tuple(axes[i] for i in order)] = np.ascontiguousarray(scaled)
    return dict(sorted(out.items()))


def _one_way(domain: Domain, targets: Mapping[Axes, np.ndarray], rows: int) -> list[np.ndarray]:
    """Returns every attribute's one-way marginal.

    Its own comes before that of a larger clique; without any it is uniform.
    """
    ones = [np.full(size, rows / size) for size in domain.shape]
    for axes in sorted(targets, key=lambda a: (-len(a), a)):
        for axis in axes:
            ones[axis] = marginal_of(targets[axes], axes, (axis,))
    return ones


def _maximal(targets: Mapping[Axes, np.ndarray]) -> dict[Axes, np.ndarray]:
    """Returns the marginals of several attributes that no other one contains."""
    wide = {axes: table for axes, table in targets.items() if len(axes) > 1}
    holding = {axis: [set(axes) for axes in wide if axis in axes] for axis in {axis for axes in wide for axis in axes}}
    return {axes: table for axes, table in wide.items() if not any(set(axes) < other for other in holding[axes[0]])}


@dataclass(frozen=True)
class _Peeled:
    """Marginals without the attributes that only one of them has.

    Attributes:
        core: the marginals left.
        taken: (attribute, the others of its marginal) in the order in which they were taken out: they are appended to
            the rows in the opposite order.
        zeros: those of the attributes left: a row that obeys them can be completed.
        barred: attribute taken out -> its marginal's impossible cells, the attribute on the last axis.
    """

    core: dict[Axes, np.ndarray]
    taken: list[tuple[int, Axes]]
    zeros: Zeros
    barred: dict[int, np.ndarray]


def _peel(core: dict[Axes, np.ndarray], zeros: Zeros = ()) -> _Peeled:
    """Removes attributes that are in one marginal only.

    All zeros of such an attribute must be inside that marginal. It goes on until none is left.
    """
    core, barred = dict(core), dict[int, np.ndarray]()
    taken: list[tuple[int, Axes]] = []
    while True:
        # The marginals of each attribute, and the attributes that its zeros concern.
        homes: dict[int, list[Axes]] = {}
        for axes in core:
            for axis in axes:
                homes.setdefault(axis, []).append(axes)
        reach = {axis: {a for axes, _ in zeros if axis in axes for a in axes} for axis in homes}
        # A leaf is in one marginal only, with all its zeros inside it.
        single = (axis for axis in sorted(homes) if len(homes[axis]) == 1)
        leaf = next((axis for axis in single if reach[axis] <= set(homes[axis][0])), None)
        if leaf is None:
            return _Peeled(core, taken, zeros, barred)
        # Take it out; zeros on it become zeros on the others of its marginal.
        axes = homes[leaf][0]
        table = core.pop(axes)
        others = tuple(axis for axis in axes if axis != leaf)
        taken.append((leaf, others))
        if reach[leaf]:
            inside = [zero for zero in zeros if leaf in zero[0]]
            barred[leaf] = impossible_of(inside, (*others, leaf), table.shape, axes)
            zeros = (*(zero for zero in zeros if leaf not in zero[0]), (others, np.asarray(barred[leaf].all(axis=-1))))
        if len(others) > 1 and not any(set(others) <= set(rest) for rest in core):
            core[others] = marginal_of(table, axes, others)


def _connected(core: Iterable[Axes]) -> list[list[int]]:
    """Returns the groups of attributes that marginals connect with each other."""
    groups: dict[int, set[int]] = {}
    for axes in core:
        joined = set(axes).union(*(groups.get(axis, set()) for axis in axes))
        for axis in joined:
            groups[axis] = joined
    return [sorted(group) for axis, group in groups.items() if axis == min(group)]


# Updates --------------------------------------------------------------------------------------------------------------


def _updated(
    table: np.ndarray, core: Mapping[Axes, np.ndarray], zeros: Zeros, rng: np.random.Generator, config: GumConfig
) -> np.ndarray:
    """Returns the table after all iterations, (d, rows)."""
    marginals = list(core.items())
    if not marginals or not table.shape[1]:
        return table
    moving = WholeRows(table, _connected([*core, *(axes for axes, _ in zeros)]))
    alpha = 1.0
    for _ in range(config.iterations):
        # A new order of the rows each time: below, the first rows of a cell stand for random ones.
        moving.reorder(rng.permutation(moving.rows))
        for which in rng.permutation(len(marginals)):
            axes, target = marginals[which]
            update(moving, axes, target, alpha, config.duplicate, rng, zeros)
        alpha *= config.decay
    return moving.table()


def update(
    table: WholeRows,
    axes: Axes,
    target: np.ndarray,
    alpha: float,
    duplicate: float,
    rng: np.random.Generator,
    zeros: Zeros = (),
) -> int:
    """Moves a table towards one marginal; returns how many rows were changed.

    It works in place. Possible rows stay possible: a copy takes all attributes that zeros connect, and a replacement
    that would make its row impossible becomes a copy, or is not made beside an empty cell.

    Args:
        table: n rows in random order; a copy passes on the attributes that it groups with those of the marginal.
        axes: attributes of the marginal.
        target: the marginal, non-negative, summing to n.
        alpha: share of the gap to close.
        duplicate: share of the freed rows to make copies.
        rng: randomness.
        zeros: structural zeros; the attributes of each are all in the group of `axes`, or none of them is.
    """
    goal = target.ravel()
    cell = _cells([table[axis] for axis in axes], target.shape, table.rows)
    have = np.bincount(cell, minlength=goal.size)
    # Gaps of a row or more, and how many rows to move: the share alpha of them, rounded at random.
    gap = goal - have
    gap[np.abs(gap) < 1.0] = 0.0
    surplus, lack = np.maximum(-gap, 0.0), np.maximum(gap, 0.0)
    moves = math.floor(alpha * min(float(surplus.sum()), float(lack.sum())) + rng.random())
    if moves <= 0:
        return 0
    # Rows to free, out of cells with too many, and the cells that they fill, of which copies need a row.
    wanted, filling = _apportion(surplus, moves, rng), _apportion(lack, moves, rng)
    cells = RowsByCell.enough(cell, have, wanted + np.sign(filling))
    freed, filled = cells.free(wanted, rng), np.repeat(np.arange(goal.size), filling)
    # Match on one of the attributes, a random one, so that most replacements leave it as it is.
    axis = int(rng.integers(target.ndim))
    stride, size = math.prod(target.shape[axis + 1 :]), target.shape[axis]
    freed = freed[np.argsort(cell[freed] // stride % size, kind="stable")]
    filled = filled[np.argsort(filled // stride % size, kind="stable")]
    moves = min(len(freed), len(filled))
    freed, filled = freed[:moves], filled[:moves]
    # Copies of rows that the cell has, and replacements; one that zeros forbid becomes a copy, or is not made.
    copied = (rng.random(moves) < duplicate) & (have[filled] > 0)
    replaced = ~copied
    if zeros:
        stays = stays_possible(table, freed, axes, np.unravel_index(filled, target.shape), zeros)
        copied |= replaced & ~stays & (have[filled] > 0)
        replaced &= stays
    # Write both: copies pass on all connected attributes, replacements these alone.
    source = cells.one_of(filled[copied], rng)
    table.copy(axes[0], source, freed[copied])
    for column, values in zip(axes, np.unravel_index(filled[replaced], target.shape), strict=True):
        table[column][freed[replaced]] = values
    return moves


def _cells(columns: Sequence[np.ndarray], shape: Sequence[int], rows: int) -> np.ndarray:
    """Returns the flat cell of each row in a marginal, (n,).

    The marginal is over these columns, and has this shape. Cells have the smallest type that holds their number: most
    marginals of two attributes need one byte, and bytes are added up many at a time.
    """
    kind = np.min_scalar_type(math.prod(shape))
    index = columns[0].astype(kind) if columns else np.zeros(rows, kind)
    for column, size in zip(columns[1:], shape[1:], strict=True):
        index *= kind.type(size)
        np.add(index, column, out=index, casting="unsafe")
    return index


def _apportion(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Splits `count` into integers by systematic rounding.

    Each is the floor or the ceiling of its share.
    """
    edges: np.ndarray = np.cumsum(weights)
    edges = np.floor(edges * (count / edges[-1]) + rng.random()).astype(np.int64)
    np.minimum(edges, count, out=edges)
    edges[np.flatnonzero(weights)[-1] :] = count
    edges[1:] -= edges[:-1].copy()  # in small tables much faster than np.diff with a first value
    return edges


# Where rows start: a forest of informative pairs, or rows that zeros allow ------------------------------------------


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
    """Returns codes to begin with, (d, rows).

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
    # From given rows, from a model that heeds zeros, or down a forest of pairs.
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
    # Attributes outside of all marginals come one by one.
    zeroed = {axis for axes, _ in zeros_of(domain) for axis in axes}
    for axis in range(len(domain)):
        if axis not in attributes and axis not in late and axis not in zeroed:
            table[axis] = deal(ones[axis][None], everyone, rng)
    return table


def zeros_of(domain: Domain) -> Zeros:
    """Returns the domain's zeros by columns."""
    return tuple((domain.axes(clique), cells) for clique, cells in domain.zeros)


def without_zeros(domain: Domain, clique: Clique, table: np.ndarray) -> np.ndarray:
    """Returns a marginal with nothing in impossible cells."""
    impossible = domain.impossible(clique)
    return table if impossible is None else np.where(impossible, 0.0, table)


def impossible_of(zeros: Sequence[tuple[Axes, Flags]], wanted: Axes, shape: tuple[int, ...], axes: Axes) -> np.ndarray:
    """Returns the cells over `wanted` that zeros on its subsets rule out.

    Args:
        zeros: some.
        wanted: the attributes of the result's axes.
        shape: sizes of `axes`.
        axes: the same attributes in another order.
    """
    sizes = dict(zip(axes, shape, strict=True))
    out = np.zeros([sizes[axis] for axis in wanted], dtype=bool)
    for zero_axes, cells in zeros:
        order = sorted(range(len(zero_axes)), key=lambda i: wanted.index(zero_axes[i]))
        out |= cells.transpose(order).reshape([sizes[axis] if axis in zero_axes else 1 for axis in wanted])
    return out


def possible_weights(weights: np.ndarray, barred: np.ndarray) -> np.ndarray:
    """Returns weights without those of impossible values, (groups, v).

    A group that this leaves without any weighs all possible values alike.
    """
    out = np.where(barred, 0.0, weights)
    empty = out.sum(axis=1) <= 0
    out[empty] = ~barred[empty]
    return out


def stays_possible(
    table: WholeRows, rows: np.ndarray, axes: Axes, values: Sequence[np.ndarray], zeros: Zeros
) -> np.ndarray:
    """Marks rows that would stay possible with other values, (m,).

    They are rows of a table that would get these values of some attributes.

    Args:
        table: codes.
        rows: (m,) which rows.
        axes: attributes that would be overwritten.
        values: (m,) new codes of each.
        zeros: the domain's.
    """
    new = dict(zip(axes, values, strict=True))
    out = np.ones(len(rows), dtype=bool)
    for zero_axes, cells in zeros:
        if not new.keys().isdisjoint(zero_axes):
            out &= ~cells[tuple(new[axis] if axis in new else table[axis][rows] for axis in zero_axes)]
    return out


def _allowed(
    domain: Domain, core: Mapping[Axes, np.ndarray], ones: Sequence[np.ndarray], rng: np.random.Generator, rows: int
) -> np.ndarray:
    """Returns rows that the zeros allow, (rows, d).

    They are drawn from a model of the one-way marginals, and of those of the forest's pairs that fit beside the zeros.
    """
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
    fitting = Capacity(domain, node).add_while_fitting(pairs)
    total = max(1.0, float(ones[0].sum())) if ones else 1.0
    measured = [Measurement((name,), ones[axis], 1.0) for axis, name in enumerate(names)]
    measured += [Measurement(pairs[i], projected(core, edges[i]), 1.0) for i in fitting]
    return estimate(domain, measured, total=total).sample(rows, rng)


def marginal_of(table: np.ndarray, axes: Axes, wanted: Axes) -> np.ndarray:
    """Returns the projection of a table onto some attributes.

    `axes` ascend; the result's axes are in the order of `wanted`.
    """
    ascending = tuple(sorted(wanted))
    projected: np.ndarray = table.sum(axis=tuple(i for i, axis in enumerate(axes) if axis not in ascending))
    return projected.transpose([ascending.index(axis) for axis in wanted])


def projected(targets: Mapping[Axes, np.ndarray], wanted: Axes) -> np.ndarray:
    """Returns the projection onto `wanted` of the smallest marginal with it.

    Its axes are in the order of `wanted`.
    """
    axes = min((a for a in targets if set(wanted) <= set(a)), key=lambda a: (targets[a].size, a))
    return marginal_of(targets[axes], axes, wanted)


def forest(core: Mapping[Axes, np.ndarray]) -> dict[int, int | None]:
    """Returns the spanning forest of most mutual information.

    It maps each attribute to its parent (None: a root), parents first.
    """
    # Pairs by mutual information, and the tree that each attribute is in (Kruskal).
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
    # Root every tree at its first attribute.
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
    """Returns the mutual information of a two-way marginal, in nats.

    It is 0 for an empty one.
    """
    mass = float(pair.sum())
    if mass <= 0:
        return 0.0
    p = pair / mass
    product = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    held = p > 0
    return float((p[held] * np.log(p[held] / product[held])).sum())


def _resized(domain: Domain, start: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Returns codes to start from, (rows, d).

    They are the given codes, cut or repeated at random to the number of rows.
    """
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
