"""Draws some attributes of rows, given all others of the same rows.

Each row has values of its own that are given, so no single restricted model does. The attributes to be drawn are
eliminated one after the other, for many rows at once, and are then drawn in the opposite order. This is exact.

Rows that agree in the given attributes of a factor share what it says. So a step whose given attributes have few
combinations is carried out once for all of them, before any row is seen. The others keep an axis of rows.

Weights are multiplied, not their logarithms added: a logarithm and an exponential of every cell take several times as
long. Each factor's largest weight is 1 for any given values, so sums stay below the number of cells. A cell whose
weight is below the smallest number becomes 0. This matters only to a row whose whole weight is nearly as small:
`_draw_in_logs` draws such rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import combinations
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from fedsyn.domain import Clique, Codes, Flags, Floats
from fedsyn.inference.estimation import estimate
from fedsyn.inference.gum import forest
from fedsyn.inference.measurements import Measurement
from fedsyn.inference.model import Model
from fedsyn.inference.other_models import AnyModel, EmpiricalModel, MixtureModel
from fedsyn.randomness import RandomSource

# Cells of a factor, over rows and open attributes, and those of a step that is carried out for all given values.
_CELLS, _ONCE = 1 << 17, 1 << 20
# Weight of a row, beside the largest that its factors allow, below which it is drawn in logarithms.
_LITTLE = 1e-250


class Factor(NamedTuple):
    """Weights of open attributes for given values.

    Attributes:
        given: attributes whose values choose an entry of the first axis; () where there is one for all rows.
        scope: open attributes.
        table: (combinations of given values, values of each open attribute), weights or their logarithms.
    """

    given: Clique
    scope: Clique
    table: Floats


class Step(NamedTuple):
    """Elimination of one attribute.

    Attributes:
        name: of the attribute.
        rest: what its factors hold besides.
        factors: that hold it.
        earlier: earlier steps whose sums hold it, row by row.
        by_row: whether its own sum is made row by row.
        drawn: whether it is drawn; else it is only summed over.
    """

    name: str
    rest: Clique
    factors: tuple[Factor, ...]
    earlier: tuple[int, ...]
    by_row: bool
    drawn: bool


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
        unknown: attributes that are neither given nor drawn.
        first: open attributes that are drawn before the others: if weights of each row are theirs alone, sums over the
            others are made once for all rows.
    """

    def __init__(
        self, model: Model, open_: Sequence[str], unknown: Sequence[str] = (), first: Iterable[str] = ()
    ) -> None:
        self.domain, self.open, self._first = model.domain, tuple(open_), frozenset(first)
        hidden = [name for name, _ in model.domain.hidden]
        wanted = {*self.open, *unknown, *hidden}
        parts = [(tuple(clique), np.asarray(table, np.float64)) for clique, table in model.potentials.items()]
        parts += [(zero.clique, np.where(zero.cells, -np.inf, 0.0)) for zero in model.domain.zeros]
        self._logs = list[Factor]()
        for clique, table in parts:
            scope = tuple(name for name in clique if name in wanted)
            if scope:
                given = tuple(name for name in clique if name not in wanted)
                axes = [clique.index(name) for name in (*given, *scope)]
                shape = (math.prod(self.domain.shape_of(given)), *self.domain.shape_of(scope))
                self._logs.append(Factor(given, scope, np.ascontiguousarray(table.transpose(axes)).reshape(shape)))
        reached = self._reached()
        self._logs = [factor for factor in self._logs if factor.scope[0] in reached]
        self._order = self._elimination([factor.scope for factor in self._logs], reached)
        self._steps = dict[frozenset[str], list[Step]]()

    def tilted(self, weights: Mapping[str, Floats]) -> Conditional:
        """Returns the same draws with further weights.

        Args:
            weights: open attribute -> log weights, (values,).
        """
        out = copy(self)
        out._logs = [*self._logs, *(Factor((), (name,), some[None]) for name, some in weights.items())]
        out._steps = {}
        return out

    def _reached(self) -> set[str]:
        """Returns the open and unknown attributes that draws depend on.

        Unknown ones that no factor links with an open one have a sum of their own, which changes no draw.
        """
        reached, left = set(self.open), [factor.scope for factor in self._logs]
        while some := [scope for scope in left if reached.intersection(scope)]:
            reached.update(*some)
            left = [scope for scope in left if scope not in some]
        return reached

    def _elimination(self, scopes: Sequence[Clique], names: set[str]) -> list[str]:
        """Returns an order of the open attributes.

        Next comes the attribute whose factor is smallest, of those that are not drawn first; of several, the first in
        the domain.
        """
        left, sets, order = [n for n in self.domain.names if n in names], [set(s) for s in scopes], list[str]()
        while left:
            joined = {name: {name}.union(*(s for s in sets if name in s)) for name in left}
            some = [name for name in left if name not in self._first] or left
            name = min(some, key=lambda one: math.prod(self.domain.shape_of(joined[one])))
            sets = [s for s in sets if name not in s] + [joined[name] - {name}]
            left.remove(name)
            order.append(name)
        return order

    # Steps ------------------------------------------------------------------------------------------------------------

    def steps(self, weighed: frozenset[str] = frozenset()) -> list[Step]:
        """Returns the steps, those done that need no row.

        Args:
            weighed: attributes with weights of each row's own.
        """
        if weighed not in self._steps:
            self._steps[weighed] = self._planned(weighed)
        return self._steps[weighed]

    def _planned(self, weighed: frozenset[str]) -> list[Step]:
        factors, sums = [self._shares(factor) for factor in self._logs], dict[int, Clique]()
        steps = list[Step]()
        for name in self._order:
            mine = tuple(factor for factor in factors if name in factor.scope)
            earlier = tuple(at for at, scope in sums.items() if name in scope)
            factors = [factor for factor in factors if name not in factor.scope]
            scopes = [*(factor.scope for factor in mine), *(sums.pop(at) for at in earlier)]
            rest = tuple(n for n in self.domain.names if n != name and any(n in scope for scope in scopes))
            given = tuple(n for n in self.domain.names if any(n in factor.given for factor in mine))
            cells = math.prod(self.domain.shape_of((*given, *rest, name)))
            by_row = bool(earlier) or name in weighed or cells > _ONCE
            mine = self._joined(mine) if by_row else mine
            if not by_row:
                mine = (self._product(mine, given, (*rest, name)),)
                factors += [Factor(given, rest, mine[0].table.sum(axis=-1))] if rest else []
            elif rest:
                sums[len(steps)] = rest
            steps.append(Step(name, rest, mine, earlier, by_row, True))
        # An attribute that nobody asks for is drawn where one that is drawn later depends on it.
        asked = set(self.open)
        for at, step in enumerate(steps):
            steps[at] = step._replace(drawn=step.name in asked)
            asked |= set(step.rest) if step.name in asked else set()
        return steps

    def _shares(self, factor: Factor) -> Factor:
        """Returns a log factor's weights, the largest 1 for any given values."""
        flat = factor.table.reshape(len(factor.table), -1)
        top = flat.max(axis=1, keepdims=True)
        weights = np.exp(flat - np.where(np.isfinite(top), top, 0.0))
        return factor._replace(table=weights.reshape(factor.table.shape))

    def _joined(self, factors: Sequence[Factor]) -> tuple[Factor, ...]:
        """Returns fewer factors with the same product.

        Those are multiplied first whose product is smallest, as long as it is small enough to be made once.
        """
        out = list(factors)
        while len(out) > 1:
            scopes = [(self._both(one, other), one, other) for one, other in combinations(out, 2)]
            (given, scope), one, other = min(scopes, key=lambda some: math.prod(self.domain.shape_of(sum(some[0], ()))))
            if math.prod(self.domain.shape_of((*given, *scope))) > _ONCE:
                break
            out = [factor for factor in out if factor is not one and factor is not other]
            out.append(self._product((one, other), given, scope))
        return tuple(out)

    def _both(self, one: Factor, other: Factor) -> tuple[Clique, Clique]:
        """Returns given attributes and scope of a product."""
        names = self.domain.names
        given, scope = {*one.given, *other.given}, {*one.scope, *other.scope}
        return tuple(name for name in names if name in given), tuple(name for name in names if name in scope)

    def _product(self, factors: Sequence[Factor], known: Clique, scope: Clique) -> Factor:
        """Returns the product of factors over larger given attributes and scope."""
        names, shape = (*known, *scope), self.domain.shape_of((*known, *scope))
        out = np.ones(shape)
        for own in factors:
            mine = (*own.given, *own.scope)
            table = own.table.reshape(self.domain.shape_of(mine))
            out *= np.expand_dims(
                table.transpose([mine.index(name) for name in names if name in mine]),
                [at for at, name in enumerate(names) if name not in mine],
            )
        return Factor(known, scope, out.reshape(math.prod(self.domain.shape_of(known)), *self.domain.shape_of(scope)))

    # Draws ------------------------------------------------------------------------------------------------------------

    def drawn(
        self,
        codes: Codes,
        rng: RandomSource,
        tilt: Mapping[str, Floats] | None = None,
        stuck: Flags | None = None,
    ) -> Codes:
        """Returns rows with open attributes drawn.

        Args:
            codes: (n, d) rows; what stands in the open attributes means nothing.
            rng: one number for each row and attribute that is drawn.
            tilt: open attribute -> log weights of each row, (n, values).
            stuck: (n,) is set where the model makes a row impossible, whatever is drawn; such a row means nothing.

        Raises:
            ValueError: there is such a row, and no `stuck`.
        """
        out = np.array(codes)
        steps = self.steps(frozenset(tilt or {}))
        largest = max((math.prod(self.domain.shape_of((*s.rest, s.name))) for s in steps if s.by_row), default=1)
        block = max(1, _CELLS // largest)
        for start in range(0, len(codes), block):
            here = slice(start, start + block)
            some = {name: weights[here] for name, weights in (tilt or {}).items()}
            uniform = rng.random((sum(step.drawn for step in steps), len(out[here])))
            self._draw(out[here], uniform, steps, some, None if stuck is None else stuck[here])
        return out

    def _draw(
        self, rows: Codes, uniform: Floats, steps: Sequence[Step], tilt: Mapping[str, Floats], stuck: Flags | None
    ) -> None:
        weights = {name: np.exp(some - some.max(axis=1, keepdims=True)) for name, some in tilt.items()}
        wanted = {factor.given for step in steps for factor in step.factors}
        entries = {given: self._entries(rows, given) for given in wanted}
        # Sums over one attribute after the other, row by row.
        sums = dict[int, Floats]()
        for at, step in enumerate(steps):
            if step.by_row and step.rest:
                sums[at] = self._sum(step, steps, entries, sums, weights)
        # Draws in the opposite order.
        values, little = dict[str, npt.NDArray[np.intp]](), np.zeros(len(rows), bool)
        numbers = iter(uniform)
        for step in reversed([step for step in steps if step.drawn or not step.rest]):
            shares = np.ones((len(rows), self.domain[step.name]))
            for factor in step.factors:
                index = tuple(values[name] for name in factor.scope if name != step.name)
                last = np.moveaxis(factor.table, 1 + factor.scope.index(step.name), -1)
                shares *= last[(entries[factor.given], *index)]
            for at in step.earlier:
                scope = steps[at].rest
                index = tuple(values[name] for name in scope if name != step.name)
                shares *= np.moveaxis(sums[at], 1 + scope.index(step.name), -1)[(np.arange(len(rows)), *index)]
            if step.name in weights:
                shares *= weights[step.name]
            if not step.rest:
                little |= shares.sum(axis=1) < _LITTLE
            if step.drawn:
                values[step.name] = one_of(shares, next(numbers))
        if little.any():
            some = {name: part[little] for name, part in tilt.items()}
            found, impossible = self._draw_in_logs(rows[little], uniform[:, little], steps, some)
            if impossible.any() and stuck is None:
                raise ValueError("a row that the model makes impossible has nothing to be drawn")
            if stuck is not None:
                stuck[little] = impossible
            for name, drawn in found.items():
                values[name][little] = drawn
        for name in self.open:
            rows[:, self.domain.axes((name,))[0]] = values[name]

    def _sum(
        self,
        step: Step,
        steps: Sequence[Step],
        entries: Mapping[Clique, npt.NDArray[np.intp]],
        sums: Mapping[int, Floats],
        weights: Mapping[str, Floats],
    ) -> Floats:
        """Returns a step's sum over its attribute, of each row.

        It is (rows, values of the rest), of the product of the step's factors.
        """
        mine = [(factor.scope, factor.table[entries[factor.given]]) for factor in step.factors]
        mine += [(steps[at].rest, sums[at]) for at in step.earlier]
        mine += [((step.name,), weights[step.name])] if step.name in weights else []
        mine.sort(key=lambda part: part[1].size)  # the small ones first: the whole scope is passed through once
        names, (scope, table) = (*step.rest, step.name), mine[0]
        letters = dict(zip(names, ascii_lowercase, strict=False))

        def joined(first: Clique, cells: Floats, other: Clique, more: Floats, out: Clique) -> Floats:
            one, two, three = ("".join(letters[name] for name in some) for some in (first, other, out))
            return np.asarray(np.einsum(f"Z{one},Z{two}->Z{three}", cells, more))

        for other, more in mine[1:-1]:
            whole = tuple(name for name in names if name in scope or name in other)
            scope, table = whole, joined(scope, table, other, more, whole)
        other, more = mine[-1] if len(mine) > 1 else ((), np.ones(len(table)))
        return joined(scope, table, other, more, step.rest)

    def _draw_in_logs(
        self, rows: Codes, uniform: Floats, steps: Sequence[Step], tilt: Mapping[str, Floats]
    ) -> tuple[dict[str, npt.NDArray[np.intp]], Flags]:
        """Draws the same by sums of logarithms, which are never too small.

        Returns also which rows are impossible.
        """
        factors = [(scope, table[self._entries(rows, given)]) for given, scope, table in self._logs]
        factors += [((name,), weights) for name, weights in tilt.items()]
        wholes = list[Floats]()
        for step in steps:
            mine = [factor for factor in factors if step.name in factor[0]]
            factors = [factor for factor in factors if step.name not in factor[0]]
            whole = np.zeros((len(rows), *self.domain.shape_of((*step.rest, step.name))))
            for own, table in mine:
                axes = [0, *(1 + own.index(name) for name in (*step.rest, step.name) if name in own)]
                shape = [len(table), *(self.domain[n] if n in own else 1 for n in (*step.rest, step.name))]
                whole += table.transpose(axes).reshape(shape)
            wholes.append(whole)
            factors.append((step.rest, logsumexp(whole, axis=-1)))
        values, numbers, impossible = dict[str, npt.NDArray[np.intp]](), iter(uniform), np.zeros(len(rows), bool)
        for step, whole in reversed([pair for pair in zip(steps, wholes, strict=True) if pair[0].drawn]):
            logs = whole[(np.arange(len(rows)), *(values[name] for name in step.rest))]
            top = logs.max(axis=1, keepdims=True)
            impossible |= ~np.isfinite(top[:, 0])
            values[step.name] = one_of(np.exp(logs - np.where(np.isfinite(top), top, 0.0)), next(numbers))
        return values, impossible

    def _entries(self, rows: Codes, known: Clique) -> npt.NDArray[np.intp]:
        """Returns each row's entry in factors with these given attributes."""
        if not known:
            return np.zeros(len(rows), np.intp)
        columns = tuple(rows[:, axis].astype(np.intp) for axis in self.domain.axes(known))
        return np.asarray(np.ravel_multi_index(columns, self.domain.shape_of(known)), np.intp)


def one_of(shares: Floats, uniform: Floats) -> npt.NDArray[np.intp]:
    """Draws a value of each row, (rows,), by (rows, values) weights.

    >>> one_of(np.array([[0.0, 2.0], [3.0, 1.0]]), np.array([0.5, 0.5])).tolist()
    [1, 0]
    """
    cumulated = np.cumsum(shares, axis=1)
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
