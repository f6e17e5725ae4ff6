"""Draws some attributes of rows, given all others of the same rows.

Each row has values of its own that are given, so no single restricted model does. The attributes to be drawn are
eliminated one after the other, for many rows at once: a factor keeps an axis of rows beside those of the attributes
that are still open, and the given ones only choose its cells. Then values are drawn in the opposite order. This is
exact, and costs for each row what the model costs among the open attributes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Codes, Floats
from fedsyn.inference.estimation import estimate
from fedsyn.inference.gum import forest
from fedsyn.inference.measurements import Measurement
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import AnyModel, EmpiricalModel, MixtureModel
from fedsyn.randomness import RandomSource

# Cells of a factor, over rows and open attributes.
_CELLS = 1 << 21


class Factor(NamedTuple):
    """A log factor of some rows.

    Attributes:
        scope: open attributes.
        table: (rows, values of each), or (1, ...) where it is the same for all rows.
    """

    scope: Clique
    table: Floats


class Conditional:
    """Draws open attributes of a model's rows, given the others.

    >>> from fedsyn.domain import Domain
    >>> model = Model(Domain(("a", "b"), (2, 2)), {("a", "b"): np.array([[0.0, -99.0], [-99.0, 0.0]])}, 1.0)
    >>> rest = Conditional(model, ["b"])
    >>> rest.drawn(np.array([[0, 0], [1, 0], [1, 0]]), np.random.default_rng(0)).tolist()
    [[0, 0], [1, 1], [1, 1]]

    Args:
        model: a graphical model.
        open_: attributes to be drawn.
    """

    def __init__(self, model: Model, open_: Sequence[str]) -> None:
        self.domain, self.open = model.domain, tuple(open_)
        hidden = [name for name, _ in model.domain.hidden]
        wanted = {*self.open, *hidden}
        parts = [(tuple(clique), np.asarray(table, np.float64)) for clique, table in model.potentials.items()]
        parts += [(zero.clique, np.where(zero.cells, -np.inf, 0.0)) for zero in model.domain.zeros]
        # Axes of a part: those of given attributes first, as one; then the open ones.
        self._parts: list[tuple[Clique, Clique, Floats]] = []
        for clique, table in parts:
            scope = tuple(name for name in clique if name in wanted)
            if scope:
                given = tuple(name for name in clique if name not in wanted)
                axes = [clique.index(name) for name in (*given, *scope)]
                shape = (math.prod(self.domain.shape_of(given)), *self.domain.shape_of(scope))
                self._parts.append((given, scope, np.ascontiguousarray(table.transpose(axes)).reshape(shape)))
        self._order, self._largest = self._elimination([scope for _, scope, _ in self._parts], wanted)

    def _elimination(self, scopes: Sequence[Clique], names: set[str]) -> tuple[list[str], int]:
        """Returns an order of the open attributes.

        The cells of its largest factor come with it.

        Next comes the attribute whose factor is smallest; of several, the first in the domain.
        """
        left, sets, order, largest = [n for n in self.domain.names if n in names], [set(s) for s in scopes], [], 1
        while left:
            joined = {name: {name}.union(*(s for s in sets if name in s)) for name in left}
            cells = {name: math.prod(self.domain.shape_of(joined[name])) for name in left}
            name = min(left, key=lambda one: cells[one])
            largest = max(largest, cells[name])
            sets = [s for s in sets if name not in s] + [joined[name] - {name}]
            left.remove(name)
            order.append(name)
        return order, largest

    def drawn(self, codes: Codes, rng: RandomSource, tilt: Mapping[str, Floats] | None = None) -> Codes:
        """Returns rows with open attributes drawn.

        Args:
            codes: (n, d) rows; what stands in the open attributes means nothing.
            rng: one number for each row and open attribute.
            tilt: open attribute -> log weights beside the model's, (values,), or (n, values) of each row.

        Raises:
            ValueError: a row that the model makes impossible, whatever is drawn.
        """
        out = np.array(codes)
        block = max(1, _CELLS // self._largest)
        for start in range(0, len(codes), block):
            here = slice(start, start + block)
            some = {name: w[None] if w.ndim == 1 else w[here] for name, w in (tilt or {}).items()}
            self._draw(out[here], rng, some)
        return out

    def _draw(self, rows: Codes, rng: RandomSource, tilt: Mapping[str, Floats]) -> None:
        factors = [Factor(scope, self._chosen(rows, given, table)) for given, scope, table in self._parts]
        factors += [Factor((name,), weights) for name, weights in tilt.items()]
        steps: list[tuple[str, Factor]] = []
        for name in self._order:
            mine = [factor for factor in factors if name in factor.scope]
            factors = [factor for factor in factors if name not in factor.scope]
            rest = [n for n in self.domain.names if n != name and any(n in factor.scope for factor in mine)]
            whole = self._product(mine, (*rest, name))
            steps.append((name, whole))
            if rest:
                factors.append(Factor(tuple(rest), _summed(whole.table)))
        values: dict[str, npt.NDArray[np.intp]] = {}
        for name, (scope, table) in reversed(steps):
            index = tuple(values[other] for other in scope[:-1])
            logs = table[(np.arange(len(rows)) if len(table) > 1 else 0, *index)]
            values[name] = _one_of(np.broadcast_to(logs, (len(rows), table.shape[-1])), rng.random(len(rows)))
        for name in self.open:
            rows[:, self.domain.axes((name,))[0]] = values[name]

    def _chosen(self, rows: Codes, known: Clique, table: Floats) -> Floats:
        """Returns a part's cells for each row's given values."""
        if not known:
            return table
        columns = tuple(rows[:, axis].astype(np.intp) for axis in self.domain.axes(known))
        return np.asarray(table[np.ravel_multi_index(columns, self.domain.shape_of(known))])

    def _product(self, factors: Sequence[Factor], scope: Clique) -> Factor:
        """Returns the sum of log factors over a larger scope."""
        out: Floats = np.zeros((1, *self.domain.shape_of(scope)))
        for own, table in factors:
            axes = [0, *(1 + own.index(name) for name in scope if name in own)]
            shape = [len(table), *(self.domain[name] if name in own else 1 for name in scope)]
            out = out + table.transpose(axes).reshape(shape)
        return Factor(scope, out)


def _summed(table: Floats) -> Floats:
    """Returns the logarithm of the sum of exponentials over the last axis."""
    top = table.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(table - top).sum(axis=-1)) + top[..., 0])


def _one_of(logs: Floats, uniform: Floats) -> npt.NDArray[np.intp]:
    """Draws a value of each row, (rows,), from (rows, values) log weights."""
    top = logs.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("a row that the model makes impossible has nothing to be drawn")
    cumulated = np.cumsum(np.exp(logs - top), axis=1)
    return np.asarray((cumulated < (uniform * cumulated[:, -1])[:, None]).sum(axis=1), np.intp)


# Models that are no graphical ones ------------------------------------------------------------------------------------


def graphical(model: AnyModel, cliques: Sequence[Clique]) -> Model:
    """Returns a graphical model of a model's rows.

    It is the model itself if it is one. Else a tree of the pairs that say most of each other is fitted to the model's
    own marginals: post-processing, which costs nothing.

    Args:
        model: of any form.
        cliques: whose pairs may be edges.
    """
    if isinstance(model, Model):
        return model
    assert isinstance(model, EmpiricalModel | MixtureModel)
    domain = model.domain
    pairs = list(dict.fromkeys(domain.canonical(pair) for clique in cliques for pair in combinations(clique, 2)))
    ones: list[Clique] = [(name,) for name in domain]
    counts = dict(zip([*ones, *pairs], model.project_many([*ones, *pairs]), strict=True))
    parents = forest({domain.axes(pair): counts[pair] for pair in pairs})
    edges = {frozenset(edge) for edge in parents.items()}
    chosen = [*ones, *(pair for pair in pairs if frozenset(domain.axes(pair)) in edges)]
    measured = [Measurement(clique, np.asarray(counts[clique]), 1.0) for clique in chosen]
    return estimate(domain, measured, total=model.total)
