"""Comparisons of a row with the next one of its person.

Such a constraint says that what a row has is at most, or less than, what the next row has: `discharged <=
next.admitted`. It is a sum over columns of both rows, with a public weight each, that may not lie above zero. A column
that is computed as a sum stands in it by its terms: with `discharged = admitted + nights` the nights of a visit are at
most the days to the next admission.

None of the steps by which it holds sees a real row:

- Codes of a record in which no numbers satisfy it are structural zeros. Where the model knows how far it is to the next
  row, that stands for both rows' values of the column that gives the order.
- Rows are drawn whose bins have numbers that the rows beside them leave (`fedsyn.table.schema.in_turn`).
- Numbers inside bins are drawn again where two rows break it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags, Floats, Integers, Zeros
from fedsyn.errors import SchemaError
from fedsyn.table.schema.computed import Computed
from fedsyn.table.schema.conditions import DrawnRows, NumberGrid, grid_of
from fedsyn.table.schema.persons import GAP, next_name, places, spread_over
from fedsyn.table.schema.rules import NEXT, Across

Bounds = dict[str, Floats]


@dataclass(frozen=True)
class Term:
    """Column of a row in a comparison.

    Attributes:
        name: of the column.
        ahead: whether it is that of the next row.
        weight: of its number.
    """

    name: str
    ahead: bool
    weight: float


@dataclass(frozen=True, eq=False)
class NextOrder:
    """Weighed numbers of two rows, with a largest sum.

    A number that is missing satisfies it.

    Attributes:
        terms: the columns; a column of one row stands once.
        limit: the largest sum: zero, or what is next below it.
        grids: of the columns.
        text: the constraint.
    """

    terms: tuple[Term, ...]
    limit: float
    grids: Mapping[str, NumberGrid]
    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term.name for term in self.terms))

    def apart(self, order: str) -> tuple[tuple[Term, ...], float] | None:
        """Returns the other terms, and the weight of a gap.

        Where both rows' values of the column that gives the order stand in it, how far one lies from the other says as
        much. None where they do not.
        """
        both = {term.ahead: term.weight for term in self.terms if term.name == order}
        if set(both) != {False, True} or both[False] != -both[True]:
            return None
        return tuple(term for term in self.terms if term.name != order), both[True]

    def least(self, term: Term, low: Floats, high: Floats) -> Floats:
        """Returns the least that a term may add, from its column's bounds."""
        return np.asarray(term.weight * (low if term.weight > 0 else high))

    def impossible(self, weights: Sequence[float], grids: Sequence[tuple[Floats, Floats, Flags]]) -> Flags:
        """Returns the cells in which no numbers satisfy it.

        Args:
            weights: of some numbers.
            grids: least and largest number of each code, and which codes have none.
        """
        axes = np.ix_(*(np.arange(len(low)) for low, _, _ in grids))
        total: Any = 0.0
        absent: Any = False
        for weight, (low, high, none), at in zip(weights, grids, axes, strict=True):
            total = total + weight * (low if weight > 0 else high)[at]
            absent = absent | none[at]
        return np.asarray((total > self.limit) & ~absent)

    def broken(self, rows: DrawnRows, here: Integers) -> Flags:
        """Returns which rows break it with the rows after them, (n,).

        Args:
            rows: of persons, one after the other.
            here: (n,) positions of rows that have a next one.
        """
        total, known = np.zeros(len(here)), np.ones(len(here), bool)
        for term in self.terms:
            numbers, absent = rows.numbers(term.name, self.grids[term.name])
            at = here + term.ahead
            total += term.weight * numbers[at].astype(np.float64)
            known &= ~absent[at]
        return known & (total > self.limit)

    def tighten(self, which: Term, here: Integers, low: Bounds, high: Bounds, absent: Mapping[str, Flags]) -> None:
        """Tightens the bounds of one term's column by those of the others.

        Args:
            which: the term.
            here: positions of rows that have a next one.
            low, high: column -> (rows,) bounds, changed in place.
            absent: column -> (rows,) which have no number.
        """
        room, known = np.full(len(here), self.limit), np.ones(len(here), bool)
        for term in self.terms:
            at = here + term.ahead
            known &= ~absent[term.name][at]
            if term is not which:
                room -= self.least(term, low[term.name][at], high[term.name][at])
        at, whole = (here + which.ahead)[known], self.grids[which.name].whole
        bound = room[known] / which.weight
        if which.weight > 0:
            high[which.name][at] = np.minimum(high[which.name][at], np.floor(bound) if whole else bound)
        else:
            low[which.name][at] = np.maximum(low[which.name][at], np.ceil(bound) if whole else bound)


def ascending(name: str, grid: NumberGrid) -> NextOrder:
    """Returns that rows stand in the order of a column."""
    terms = (Term(name, False, 1.0), Term(name, True, -1.0))
    return NextOrder(terms, 0.0, {name: grid}, f"{name} <= {NEXT}{name}")


def next_orders(rules: Any, persons: Any, grids: Mapping[str, NumberGrid], steps: Sequence[Any]) -> list[NextOrder]:
    """Compiles the comparisons of rows with the next ones.

    Args:
        rules: of the schema.
        persons: of the schema, or None.
        grids: of the modelled columns that have one.
        steps: what computes columns.

    Raises:
        SchemaError: nobody says who a person is or in which order rows stand, or columns that do not compare.
    """
    return [_next_order(rule, persons, grids, steps) for rule in rules if isinstance(rule, Across)]


def _next_order(rule: Across, persons: Any, grids: Mapping[str, NumberGrid], steps: Sequence[Any]) -> NextOrder:
    where = f"constraint '{rule.text}'"
    if persons is None or not persons.in_order:
        raise SchemaError(
            f"{where}: '{NEXT}' is the next row of a person, so the schema has to say who a person is and in which "
            "order the rows stand: persons: {id: COLUMN, order: COLUMN or true, most_rows: N}"
        )
    for name in (rule.left, rule.right):
        if name in persons.constant:
            raise SchemaError(
                f"{where}: '{name}' is the same in all rows of a person, by persons.constant: compare it inside a row, "
                f"as in '{rule.left} {rule.op} {rule.right}'"
            )
    if rule.left == rule.right == persons.order and rule.op in (">", ">="):
        raise SchemaError(f"{where}: rows stand in the order of '{persons.order}', so it never falls")
    terms, family = _terms(rule.left, where, grids, steps, computed=True)
    ahead, other = _terms(rule.right, where, grids, steps, computed=False)
    if family != other:
        raise SchemaError(f"{where} compares {family} with {other}")
    sign = 1 if rule.op in ("<", "<=") else -1
    every = [(name, False, sign * worth) for name, worth in terms]
    every += [(name, True, -sign * worth) for name, worth in ahead]
    finest = math.lcm(*(worth.denominator for _, _, worth in every))
    common = math.gcd(*(int(worth * finest) for _, _, worth in every))
    used = {name: grids[name] for name, _, _ in every}
    whole = all(grid.whole for grid in used.values())
    limit = 0.0 if rule.op in ("<=", ">=") else -1.0 if whole else -math.ulp(0.0)
    best, optional = 0.0, False
    for name, _, worth in every:
        grid, weight = grids[name], float(worth * finest / common)
        best += float((weight * np.where(weight > 0, grid.low, grid.high))[~grid.absent].min(initial=np.inf))
        optional |= bool(grid.absent.any())
    if best > limit and not optional:
        raise SchemaError(f"{where} leaves no possible next row")
    scaled = tuple(Term(name, later, float(worth * finest / common)) for name, later, worth in every)
    return NextOrder(scaled, limit, used, rule.text)


def _terms(
    name: str, where: str, grids: Mapping[str, NumberGrid], steps: Sequence[Any], *, computed: bool
) -> tuple[list[tuple[str, Fraction]], str]:
    """Returns columns and what their numbers are worth, and the family."""
    if name in grids:
        return [(name, grids[name].unit)], grids[name].family
    step = next((step for step in steps if step.name == name), None)
    if computed and isinstance(step, Computed) and set(step.sources) <= set(grids):
        worth = [(n, sign * step.steps[n] * step.grid.unit) for sign, n in step.rule.terms]
        if len({n for n, _ in worth}) == len(worth):
            return worth, step.grid.family
    if step is not None:
        raise SchemaError(
            f"{where}: '{name}' is computed by '{step.rule.text}'; "
            + ("only a sum of columns of the model may stand before" if computed else "no computed column may stand in")
            + " the next row's"
        )
    raise SchemaError(f"{where}: the values of '{name}' have no order (ordered: true gives them one)")


# Structural zeros of records -----------------------------------------------------------------------------------------


def zeros_across(orders: Sequence[NextOrder], columns: Mapping[str, Any], order: Any) -> Iterator[Zeros]:
    """Yields a record's zeros that comparisons with next rows make.

    Of a comparison of more than two columns of the record they would be larger than what they save: it is settled as
    rows are drawn.

    Args:
        orders: the comparisons.
        columns: of the record.
        order: column that gives the order; True: rows stand in order as they come.

    Raises:
        SchemaError: no next row is possible.
    """
    for one in orders:
        apart = one.apart(order) if isinstance(order, str) and GAP in columns else None
        terms, width = (one.terms, 0.0) if apart is None else apart
        names = [next_name(term.name) if term.ahead else term.name for term in terms]
        weights, sides = [term.weight for term in terms], [ends_of(one.grids[term.name]) for term in terms]
        if apart is not None:  # its code for "no row" stands for no number
            between = grid_of(columns[GAP])
            assert between is not None
            names, weights = [*names, GAP], [*weights, width]
            sides.append(tuple(side[places(columns[GAP])] for side in ends_of(between)))  # type: ignore[arg-type]
        if len(names) > 2:
            continue
        cells = one.impossible(weights, sides)
        if cells.all():
            raise SchemaError(f"constraint '{one.text}' leaves no possible next row")
        if cells.any():
            yield Zeros(tuple(names), spread_over(cells, [columns[name] for name in names]))


def least_apart(
    orders: Sequence[NextOrder], order: str, codes: Mapping[str, Codes], here: Integers, low: Floats
) -> tuple[Floats, Floats]:
    """Returns where numbers in order may begin, and their least gaps, (rows,).

    It is what comparisons with the next row leave, whatever numbers the bins of the other columns give.

    Args:
        orders: the comparisons.
        order: column that gives the order.
        codes: (rows,) of each column.
        here: positions of the rows that have a next one.
        low: (rows,) least number of each row's bin.
    """
    low, gaps = low.copy(), np.zeros(len(low))
    for one in orders:
        both = one.apart(order)
        ahead = next(term for term in one.terms if term.ahead)
        weight = ahead.weight if both is None else both[1]
        if ahead.name != order or weight > 0:
            continue
        total, known = np.full(len(here), -one.limit), np.ones(len(here), bool)
        for term in (term for term in (one.terms if both is None else both[0]) if not term.ahead):
            grid, own = one.grids[term.name], codes[term.name][here].astype(np.intp)
            total += one.least(term, grid.low[own], grid.high[own])
            known &= ~grid.absent[own]
        least = total[known] / -weight
        least = np.ceil(least) if one.grids[order].whole else least
        if both is None:
            inside = np.minimum(least, one.grids[order].high[codes[order][here + 1]][known])
            low[here[known] + 1] = np.fmax(low[here[known] + 1], inside)
        else:
            gaps[here[known] + 1] = np.maximum(gaps[here[known] + 1], least)
    return low, gaps


def ends_of(grid: NumberGrid) -> tuple[Floats, Floats, Flags]:
    """Returns each code's least and largest number, and which have none."""
    return grid.low, grid.high, grid.absent


def with_next(counts: Integers) -> Integers:
    """Returns the positions of rows that have a next one.

    >>> with_next(np.array([2, 1, 3])).tolist()
    [0, 3, 4]
    """
    last = np.zeros(int(counts.sum()), bool)
    last[np.cumsum(counts)[counts > 0] - 1] = True
    return np.flatnonzero(~last)


def broken_across(one: NextOrder, rows: DrawnRows, whose: Integers, order: Floats | None) -> Flags:
    """Returns which rows break a comparison with the next, (rows,).

    Args:
        one: the comparison.
        rows: in any order.
        whose: (rows,) number of each row's person.
        order: (rows,) by which the rows of a person ascend, missing ones last; None: as they come.
    """
    out = np.zeros(len(whose), bool)
    here, after = steps_along(whose, order)
    pairs = np.stack([here, after], axis=1).reshape(-1)
    out[here[one.broken(rows.taken(pairs, one.columns), np.arange(0, len(pairs), 2))]] = True
    return out


def order_among(persons: Any, rows: DrawnRows) -> Floats | None:
    """Returns by what the rows of a person ascend, (rows,).

    A row without a number has NaN, and stands last. None: rows stand in order as they come.
    """
    if not isinstance(persons.order, str):
        return None
    numbers, absent = rows.drawn[persons.order]
    return np.where(absent, np.nan, numbers)


def steps_along(whose: Integers, order: Floats | None) -> tuple[Integers, Integers]:
    """Returns the positions of rows, and of those that follow.

    >>> [at.tolist() for at in steps_along(np.array([0, 1, 0]), np.array([7.0, 1.0, 3.0]))]
    [[2], [0]]

    Args:
        whose: (rows,) number of each row's person.
        order: (rows,) by which the rows of a person ascend, missing ones last; None: as they come.
    """
    at = np.argsort(whose, kind="stable") if order is None else np.lexsort((order, whose))
    here = np.flatnonzero(whose[at][1:] == whose[at][:-1])
    return at[here], at[here + 1]
