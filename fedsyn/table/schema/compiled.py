"""A schema's constraints, compiled: computed columns, structural zeros, possible draws.

Nothing here looks at rows, so constraints cost no privacy: they are public, as the schema is. A cell is a zero if and
only if no values in its bins satisfy the constraints; what is left of them is settled when a table is decoded, inside
the bins, so that a row's codes never change. No model sees a column that constraints compute.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from math import prod
from typing import Any, TypeGuard

import numpy as np

from fedsyn.domain import Flags, Zeros
from fedsyn.errors import SchemaError, nearest
from fedsyn.table.schema.binned import MOMENTS, NUMBERS, SPANS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import Condition, DrawnRows, Literal, NumberGrid, grid_of, united
from fedsyn.table.schema.feasible import (
    MOST_CELLS,
    Clause,
    ColumnOrder,
    Constraint,
    Group,
    groups_of,
    open_codes,
    refuse_circles,
)
from fedsyn.table.schema.rules import AnyRule, Comparison, Determined, Impossible, SumRule, When
from fedsyn.table.schema.spread import close_unlisted

_DAY = Fraction(86_400_000_000)


class ComputedColumn(ABC):
    """Computation of one column from others."""

    name: str

    @abstractmethod
    def add(self, rows: DrawnRows) -> None:
        """Computes the column."""

    def equal(self, numbers: np.ndarray, expected: np.ndarray) -> Flags:
        """(n,) whether numbers of the column are those that are computed."""
        return np.asarray(numbers == expected)

    def broken(self, rows: DrawnRows) -> Flags:
        """Returns where an existing column differs from the computed one, (n,)."""
        computed = DrawnRows(dict(rows.codes), dict(rows.drawn))
        self.add(computed)
        if self.name not in computed.drawn:
            return np.asarray(rows.codes[self.name] != computed.codes[self.name])
        (numbers, absent), (expected, missing) = rows.drawn[self.name], computed.drawn[self.name]
        return np.asarray(np.where(absent | missing, absent != missing, ~self.equal(numbers, expected)))


class Computed(ComputedColumn):
    """Sum, computed exactly: in whole steps where all terms are whole.

    Args:
        rule: what the schema says.
        columns: every column that has codes or is computed.

    Raises:
        SchemaError: terms that cannot be added, or a sum that its column cannot hold.
    """

    def __init__(self, rule: SumRule, columns: Mapping[str, Any]) -> None:
        self.rule, self.name = rule, rule.column
        self.sources = tuple(name for _, name in rule.terms)
        column = columns[rule.column]
        if not isinstance(column, BinnedColumn):
            raise SchemaError(f"{rule.text}: '{rule.column}' must be a column of numbers, dates or times")
        grid = grid_of(column)
        assert grid is not None
        self.whole = grid.whole
        self.grids: dict[str, NumberGrid] = {}
        for name in self.sources:
            source_grid = grid_of(columns[name])
            if source_grid is None or (not isinstance(columns[name], BinnedColumn) and source_grid.family != NUMBERS):
                raise SchemaError(f"{rule.text}: '{name}' is not a column of numbers, dates or times")
            self.grids[name] = source_grid
        unit = self._unit(grid)
        in_days = grid.family.startswith(MOMENTS)  # where numbers are added to dates
        self.steps = {
            name: source_grid.unit * (_DAY if in_days and source_grid.family == NUMBERS else 1) / unit
            for name, source_grid in self.grids.items()
        }
        self._require_room(column, columns)

    def _unit(self, grid: NumberGrid) -> Fraction:
        """Returns the worth of the result's step in the terms' unit."""
        families = [self.grids[name].family for name in self.sources]
        moments = {family for family in families if family.startswith(MOMENTS)}
        left = sum(sign for (sign, _), family in zip(self.rule.terms, families, strict=True) if family in moments)
        if set(families) == {NUMBERS} and grid.family == NUMBERS:
            return grid.unit
        if len(moments) <= 1 and set(families) <= {SPANS, *moments}:
            if (left, grid.family) == (0, SPANS) or (left == 1 and grid.family in moments):
                return grid.unit
            days = all(source_grid.unit % _DAY == 0 for source_grid in self.grids.values())
            if left == 0 and days and grid.family == NUMBERS:
                return _DAY * grid.unit  # a difference of dates, as a number of days
        if left == 1 and set(families) == {NUMBERS, grid.family} and grid.unit % _DAY == 0:
            return grid.unit  # a date some days later
        raise SchemaError(
            f"{self.rule.text}: {' and '.join(dict.fromkeys(families))} do not add up to {grid.family}; numbers "
            "make numbers, moments less moments a duration (of dates also days), moments and durations moments, dates "
            "and days dates"
        )

    def _require_room(self, column: BinnedColumn, columns: Mapping[str, Any]) -> None:
        optional = [name for name in self.sources if self.grids[name].optional(columns[name].unlisted)]
        if optional and not column.missing:
            raise SchemaError(f"{self.rule.text}: '{optional[0]}' may be missing, so '{self.name}' needs missing: true")
        if not self.whole:
            return
        for name, grid in self.grids.items():
            if not grid.whole:
                raise SchemaError(
                    f"{self.rule.text}: '{name}' has any number of decimals; make it kind decimal, or '{self.name}' "
                    "kind numeric"
                )
            if self.steps[name].denominator != 1:
                raise SchemaError(
                    f"{self.rule.text}: '{name}' is finer than '{self.name}', which needs as many places, or as fine a "
                    "step"
                )

    def add(self, rows: DrawnRows) -> None:
        terms = [rows.numbers(name, self.grids[name]) for name in self.sources]
        absent = np.zeros(len(terms[0][1]), dtype=bool)
        for _, missing in terms:
            absent |= missing
        rows.drawn[self.name] = (np.where(absent, 0, self._total([numbers for numbers, _ in terms])), absent)

    def _total(self, numbers: list[np.ndarray]) -> np.ndarray:
        if all(grid.whole for grid in self.grids.values()):
            finest = math.lcm(*(step.denominator for step in self.steps.values()))
            total = np.zeros(len(numbers[0]), dtype=np.int64)
            for (sign, name), part in zip(self.rule.terms, numbers, strict=True):
                total += sign * int(self.steps[name] * finest) * part.astype(np.int64)
            return total if self.whole else total / finest
        values = [self.grids[name].value(part) for name, part in zip(self.sources, numbers, strict=True)]
        summed = np.zeros(len(values[0]))
        for (sign, _), value in zip(self.rule.terms, values, strict=True):
            summed = summed + sign * value
        return summed

    def equal(self, numbers: np.ndarray, expected: np.ndarray) -> Flags:
        close = np.rint(numbers) == expected if self.whole else np.isclose(numbers, expected, rtol=1e-9, atol=1e-9)
        return np.asarray(close)


class Mapped(ComputedColumn):
    """A column that another one determines, by a public map.

    Args:
        rule: what the schema says.
        columns: every column that has codes or is computed.
        is_sum: whether the first column is a sum, which may lie beyond the column's bounds.

    Raises:
        SchemaError: a value that a column does not have, or rows for which the map has no answer.
    """

    def __init__(self, rule: Determined, columns: Mapping[str, Any], is_sum: bool = False) -> None:
        self.rule, self.name, self.sources = rule, rule.column, (rule.determines,)
        self.source, self.target = columns[rule.determines], columns[rule.column]
        entries = [(Condition(rule.determines, self.source, key), value) for key, value in rule.map.items()]
        self.conditions = [condition for condition, _ in entries]
        self.literals: list[Literal] = [condition.literal() for condition in self.conditions]
        if isinstance(self.target, CategoricalColumn):
            values: list[Any] = [self._code(value) for _, value in entries]
            rest: Any = self._rest_code()
        elif isinstance(self.target, BinnedColumn):
            values = [self._number(value) for _, value in entries]
            rest = np.nan if self.target.missing else None
        else:
            raise SchemaError(f"{rule.text}: '{rule.column}' must be a column of categories, numbers, dates or times")
        if rest is None:
            self._require_all(is_sum)
        self.answers = np.array([*values, 0 if rest is None else rest])

    def _code(self, value: Any) -> int:
        condition = Condition(self.name, self.target, value)  # knows the categories, and says which there are
        return int(np.flatnonzero(condition.literal().possible)[0])

    def _rest_code(self) -> int | None:
        other = self.target.other_value
        if other is not None:
            return int(np.flatnonzero(Condition(self.name, self.target, other).literal().possible)[0])
        return len(self.target.values) if self.target.missing else None

    def _number(self, value: Any) -> float:
        if value is None:
            if not self.target.missing:
                raise SchemaError(f"{self.rule.text}: the map says missing, so '{self.name}' needs missing: true")
            return float("nan")
        intervals = Condition(self.name, self.target, value).intervals
        if len(intervals) != 1 or intervals[0][0] != intervals[0][1]:
            raise SchemaError(f"{self.rule.text}: '{value}' is not one value that '{self.name}' can have")
        return intervals[0][0]

    def _require_all(self, is_sum: bool) -> None:
        """Refuses a map that leaves a value of the source out."""
        known = np.logical_or.reduce([literal.sure for literal in self.literals])
        grid = grid_of(self.source)
        if isinstance(self.source, BinnedColumn) and grid is not None:
            covered = united([interval for condition in self.conditions for interval in condition.intervals], grid)
            low = np.full(len(known), -np.inf) if is_sum else grid.low  # a sum may be anything
            high = np.full(len(known), np.inf) if is_sum else grid.high
            inside = np.zeros(len(known), dtype=bool)
            for first, last in covered:
                inside |= (low >= first) & (high <= last)
            known = np.where(grid.absent, known, inside)
        if not known[: len(known) - self.source.unlisted].all():
            labels = [*self.source.labels(), *self.source.sides]
            raise SchemaError(
                f"{self.rule.text}: the map has no entry for '{labels[int(np.flatnonzero(~known)[0])]}' of "
                f"'{self.rule.determines}', and '{self.name}' has no 'other' and no 'missing: true' for it"
            )

    def add(self, rows: DrawnRows) -> None:
        """Computes the column by the first entry that a row meets."""
        source = self.rule.determines
        entry = np.full(len(rows.drawn[source][0] if source in rows.drawn else rows.codes[source]), len(self.literals))
        for at in range(len(self.literals) - 1, -1, -1):
            entry[self.literals[at].holds(rows)] = at
        answers = self.answers[entry]
        if isinstance(self.target, CategoricalColumn):
            rows.codes[self.name] = answers.astype(np.intp)
            return
        absent = np.isnan(answers)
        numbers = np.where(absent, 0, answers)
        rows.drawn[self.name] = (numbers.astype(np.int64) if self.target.whole else numbers, absent)

    @property
    def of_codes(self) -> np.ndarray:
        """Value of each source code, (codes,). A bin's first entry decides."""
        entries = [literal.possible for literal in self.literals]
        return np.asarray(self.answers[np.stack([*entries, np.ones(self.source.size, bool)]).argmax(axis=0)])

    def traced(self, literal: Literal) -> Literal | None:
        """Restates a condition for its source, unless the source's numbers decide."""
        if any(condition.intervals is not None for condition in self.literals):
            return None
        rows = DrawnRows({self.rule.determines: np.arange(self.source.size)}, {})
        self.add(rows)
        holds = literal.holds(rows)
        return Literal(self.rule.determines, holds, holds)


# All constraints of a schema ------------------------------------------------------------------------------------------


# Draws of rows whose numbers break a constraint, before they are placed one column after the other.
_DRAWS = 8
#: (n, d) codes, a column, and two codes of it for each row -> (n,) log odds of the second (`inside.Odds`).
RowOdds = Callable[[np.ndarray, str, np.ndarray, np.ndarray], np.ndarray]


class CompiledRules:
    """The constraints of one schema.

    Args:
        rules: as the schema states them.
        columns: modelled columns, in the domain's order.
        derived: columns that constraints compute.
        open_columns: those with placeholders, of which something is still to be found: constraints on them are read,
            as far as they can be, and left for later.

    Attributes:
        zeros: structural zeros over codes.
        steps: what computes each derived column, in an order in which it can be done.

    Raises:
        SchemaError: one sentence: an unknown column or value, a comparison of what does not compare, two constraints
            that compute one column, a circle, or constraints that leave no possible row.
    """

    def __init__(
        self,
        rules: Sequence[AnyRule],
        columns: Mapping[str, Any],
        derived: Mapping[str, Any],
        open_columns: Collection[str] = (),
    ) -> None:
        self.rules, self.columns, self.derived = tuple(rules), dict(columns), dict(derived)
        self._sizes = {name: column.size for name, column in columns.items()}
        self._grids = {name: grid for name, column in columns.items() if (grid := grid_of(column)) is not None}
        for rule in rules:
            self._require_known(rule)
        self._open = self._left_open(set(open_columns))
        self.steps = self._steps()
        self._constraints = [(rule, constraint) for rule in rules for constraint in self._closed(rule)]
        constraints = [constraint for _, constraint in self._constraints]
        refuse_circles([constraint for constraint in constraints if isinstance(constraint, ColumnOrder)])
        self._groups = list(groups_of(constraints, self._grids, self._sizes))
        self.zeros = self._zeros()

    # From rules to constraints ----------------------------------------------------------------------------------------

    def _require_known(self, rule: AnyRule) -> None:
        known = {**self.columns, **self.derived}
        for name in _named(rule):
            if name not in known and not (isinstance(rule, Comparison) and name == rule.right):
                raise SchemaError(f"constraint '{rule.text}': '{name}' is not a column{nearest(name, known)}")

    def _left_open(self, unknown: set[str]) -> set[str]:
        """The open columns, and those that are computed from them."""
        computed = {rule.computed: _sources(rule) for rule in self.rules if isinstance(rule, SumRule | Determined)}
        for _ in computed:
            unknown = unknown | {name for name, sources in computed.items() if sources & unknown}
        return unknown

    def _closed(self, rule: AnyRule) -> list[Constraint]:
        """Returns a rule's constraints; none for open columns, once it is checked."""
        unknown = self._open.intersection(_named(rule))
        words = isinstance(rule, Impossible | When) and any(
            isinstance(self.columns.get(name), CategoricalColumn) or name in self.derived for name in unknown
        )
        constraints = [] if words else self._constrained(rule)
        return [] if unknown else constraints

    def _steps(self) -> list[Computed | Mapped]:
        waiting = [rule for rule in self.rules if isinstance(rule, SumRule) or self._is_mapped(rule)]
        ready, out = set(self.columns), list[Computed | Mapped]()
        every = {**self.columns, **self.derived}
        sums = {rule.column for rule in waiting if isinstance(rule, SumRule)}
        while waiting:
            able = [rule for rule in waiting if ready.issuperset(_sources(rule))]
            if not able:
                names = ", ".join(rule.computed for rule in waiting)
                raise SchemaError(f"constraints compute {names} from each other, in a circle; leave one of them out")
            for rule in able:
                is_sum = _sources(rule) <= sums
                out.append(Computed(rule, every) if isinstance(rule, SumRule) else Mapped(rule, every, is_sum))
                ready.add(rule.computed)
            waiting = [rule for rule in waiting if rule not in able]
        return out

    def _is_mapped(self, rule: AnyRule) -> TypeGuard[Determined]:
        return isinstance(rule, Determined) and rule.determines not in self._open

    def _constrained(self, rule: AnyRule) -> list[Constraint]:
        if isinstance(rule, Comparison):
            return [self._comparison(rule)]
        if isinstance(rule, Impossible):
            literals = tuple(self._condition(rule, name, w, "not") for name, w in rule.impossible.items())
            return [Clause(literals, rule.text)]
        if isinstance(rule, When):
            unless = tuple(self._condition(rule, name, w, "not") for name, w in rule.when.items())
            then = [self._condition(rule, name, w, "then") for name, w in rule.then.items()]
            return [Clause((*unless, literal), rule.text) for literal in then]
        return []

    def _condition(self, rule: AnyRule, name: str, wanted: Any, sort: str) -> Literal:
        column = self.columns.get(name, self.derived.get(name))
        try:
            condition = Condition(name, column, wanted)
            return self.traced(condition.negated() if sort == "not" else condition.literal(unless_missing=True))
        except SchemaError as error:
            raise SchemaError(f"constraint '{rule.text}': {error}") from None

    def traced(self, literal: Literal) -> Literal:
        """Restates a determined column's condition for its source. Raises SchemaError."""
        while literal.name not in self.columns:
            step = next(step for step in self.steps if step.name == literal.name)
            restated = step.traced(literal) if isinstance(step, Mapped) else None
            if restated is None:
                sources = ", ".join(step.sources)
                raise SchemaError(
                    f"'{literal.name}' is computed by '{step.rule.text}', so state it for {sources} instead"
                )
            literal = restated
        return literal

    def _comparison(self, rule: Comparison) -> Constraint:
        left, op, right = rule.left, rule.op, rule.right
        if right not in self.columns and right not in self.derived:
            if self._grids.get(left) is not None or left in self.derived:
                try:
                    return Clause((self._condition(rule, left, f"{op} {right}", "then"),), rule.text)
                except SchemaError as error:
                    hint = nearest(right, {**self.columns, **self.derived})
                    raise SchemaError(f"{error}; nor is '{right}' a column{hint}") from None
            raise SchemaError(f"constraint '{rule.text}': '{right}' is not a column{nearest(right, self.columns)}")
        for name in (left, right):
            if name in self.derived:
                raise SchemaError(
                    f"constraint '{rule.text}': '{name}' is computed by another constraint, so it cannot be compared"
                )
            if name not in self._grids:
                raise SchemaError(
                    f"constraint '{rule.text}': the values of '{name}' have no order (ordered: true gives them one)"
                )
        if left == right:
            raise SchemaError(f"constraint '{rule.text}' compares '{left}' with itself")
        families = self._grids[left].family, self._grids[right].family
        if families[0] != families[1]:
            raise SchemaError(f"constraint '{rule.text}' compares {families[0]} with {families[1]}")
        first, second = (left, right) if op in ("<", "<=") else (right, left)
        grids = {name: self._grids[name] for name in (first, second)}
        return ColumnOrder(first, second, op in ("<", ">"), grids, rule.text)

    # Structural zeros -------------------------------------------------------------------------------------------------

    def _zeros(self) -> tuple[Zeros, ...]:
        tables: dict[tuple[str, ...], Flags] = {}
        for _, constraint in self._constraints:
            clique = tuple(name for name in self._sizes if name in constraint.columns)
            codes = open_codes(clique, self._sizes)
            _add(tables, clique, ~np.broadcast_to(constraint.possible(codes), self._shape(clique)))
            if not self._satisfiable(tables):
                raise SchemaError(
                    f"constraint '{constraint.text}' leaves no possible row"
                    + (" beside those before it" if len(self._constraints) > 1 else "")
                )
        for group in self._groups:
            if len(group.constraints) > 1:
                self._add_joint(tables, group)
                if not self._satisfiable(tables):
                    texts = "' and '".join(dict.fromkeys(constraint.text for constraint in group.constraints))
                    raise SchemaError(f"constraints '{texts}' leave no possible row together")
        for clique, cells in tables.items():
            close_unlisted(clique, cells, self.columns)
        return tuple(Zeros(clique, cells) for clique, cells in tables.items())

    @property
    def coarser(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Modelled column -> its codes' values in each category column it determines."""
        groupings: dict[str, tuple[tuple[int, ...], ...]] = {}
        known = {name: (name, np.arange(size)) for name, size in self._sizes.items()}
        for step in self.steps:
            if isinstance(step, Mapped) and isinstance(step.target, CategoricalColumn) and step.sources[0] in known:
                root, codes = known[step.sources[0]]
                known[step.name] = root, step.of_codes[codes]
                values = np.unique(known[step.name][1], return_inverse=True)[1]
                groupings[root] = (*groupings.get(root, ()), tuple(values.tolist()))
        return groupings

    def _shape(self, clique: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._sizes[name] for name in clique)

    def _add_joint(self, tables: dict[tuple[str, ...], Flags], group: Group) -> None:
        """Adds what several constraints rule out only together, on fewest columns."""
        columns = group.columns
        impossible = ~np.broadcast_to(group.possible(open_codes(columns, self._sizes)), self._shape(columns))
        known = self._known(tables, columns)
        for some in (axes for size in range(2, len(columns) + 1) for axes in combinations(range(len(columns)), size)):
            if not (impossible & ~known).any():
                return
            others = tuple(axis for axis in range(len(columns)) if axis not in some)
            cells = np.asarray(impossible.all(axis=others))
            spread = np.expand_dims(cells, others)
            if (spread & ~known).any():
                wider = tuple(columns[axis] for axis in some)
                _add(tables, wider, cells)
                known = known | spread
                for clique in [clique for clique in tables if set(clique) < set(wider)]:
                    apart = tuple(i for i, name in enumerate(wider) if name not in clique)
                    if not (np.expand_dims(tables[clique], apart) & ~tables[wider]).any():
                        del tables[clique]  # said again by the wider one

    def _known(self, tables: Mapping[tuple[str, ...], Flags], columns: Sequence[str]) -> Flags:
        """Cells over some columns that zeros on subsets of them rule out."""
        out = np.zeros(self._shape(columns), dtype=bool)
        for clique, cells in tables.items():
            if set(clique) <= set(columns):
                out |= np.expand_dims(cells, tuple(i for i, name in enumerate(columns) if name not in clique))
        return out

    def _satisfiable(self, tables: Mapping[tuple[str, ...], Flags]) -> bool:
        """Returns whether some row lies in no zero, by eliminating attributes."""
        left = [(set(clique), clique, ~cells) for clique, cells in tables.items()]
        while left:
            names = {name for members, _, _ in left for name in members}
            joined = {name: set().union(*(m for m, _, _ in left if name in m)) for name in names}
            name = min(names, key=lambda n: (prod(self._sizes[other] for other in joined[n]), n))
            clique = tuple(other for other in self._sizes if other in joined[name])
            if prod(self._shape(clique)) > 4 * MOST_CELLS:
                raise SchemaError(
                    f"the constraints on {', '.join(clique)} hang together in too many combinations of codes; "
                    "give these columns fewer bins"
                )
            allowed = np.ones(self._shape(clique), dtype=bool)
            for members, axes, cells in left:
                if name in members:
                    allowed &= np.expand_dims(cells, tuple(i for i, n in enumerate(clique) if n not in axes))
            rest = tuple(other for other in clique if other != name)
            allowed = np.asarray(allowed.any(axis=clique.index(name)))
            left = [item for item in left if name not in item[0]]
            if not allowed.any():
                return False
            if rest and not allowed.all():
                left.append((set(rest), rest, allowed))
        return True

    # Decoding ---------------------------------------------------------------------------------------------------------

    def drawing_from(self, columns: Mapping[str, Any]) -> CompiledRules:
        """Returns these rules for columns whose numbers are drawn otherwise in bins."""
        other = copy.copy(self)
        other.columns = dict(columns)
        return other

    def drawn(self, codes: np.ndarray, rng: np.random.Generator, odds: RowOdds | None = None) -> DrawnRows:
        """Draws numbers inside the bins of (n, d) codes.

        Returns numbers of the ordered columns and codes of the others. It draws column by column, as `odds` says
        of the rows. Then constraints are settled, and what they compute is added.
        """
        rows = DrawnRows({name: codes[:, j] for j, name in enumerate(self.columns)}, {})
        for name, column in self.columns.items():
            if isinstance(column, BinnedColumn):
                rows.drawn[name] = column.draw(
                    rows.codes[name].astype(np.intp), rng, None if odds is None else partial(odds, codes, name)
                )
        self.settle(rows, rng)
        for step in self.steps:
            step.add(rows)
        return rows

    def settle(self, rows: DrawnRows, rng: np.random.Generator) -> None:
        """Redraws numbers in place until constraints hold where codes are possible.

        Args:
            rows: codes of all modelled columns, and numbers inside the bins of the ordered ones.
            rng: randomness; nothing is drawn where everything holds already.
        """
        for group in self._groups:
            left = np.flatnonzero(~group.holds(rows))
            for _ in range(_DRAWS):
                if not len(left):
                    break
                for name in group.undecided:
                    codes = rows.codes[name][left].astype(np.intp)
                    rows.drawn[name][0][left] = self.columns[name].draw(codes, rng)[0]
                left = left[~group.holds(rows.taken(left, group.columns))]
            if len(left):
                placed, numbers = group.place(rows.taken(left, group.columns).codes, rng)
                for name, values in numbers.items():
                    rows.drawn[name][0][left[placed]] = values[placed]

    def violations(self, rows: DrawnRows) -> dict[str, int]:
        """Counts the rows that break each constraint whose columns are there."""
        present = {*rows.codes, *rows.drawn}
        out: dict[str, int] = {}
        for rule in self.rules:
            broken: Flags | None = None
            for step in self.steps:
                if step.rule is rule and present.issuperset({step.name, *step.sources}):
                    broken = step.broken(rows)
            for owner, constraint in self._constraints:
                if owner is rule and present.issuperset(constraint.columns):
                    breaks = ~constraint.holds(rows)
                    broken = breaks if broken is None else broken | breaks
            if broken is not None:
                out[rule.text] = int(broken.sum())
        return out


def computed_columns(rules: Iterable[AnyRule]) -> list[str]:
    """The columns that constraints compute.

    Raises:
        SchemaError: two constraints compute one column.
    """
    names = [rule.computed for rule in rules if rule.computed is not None]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"two constraints compute '{name}'; one is enough")
    return names


def _sources(rule: SumRule | Determined) -> set[str]:
    return {name for _, name in rule.terms} if isinstance(rule, SumRule) else {rule.determines}


def _named(rule: AnyRule) -> list[str]:
    if isinstance(rule, Comparison):
        return [rule.left, rule.right]
    if isinstance(rule, SumRule | Determined):
        return [*_sources(rule), rule.computed]
    return list(rule.impossible) if isinstance(rule, Impossible) else [*rule.when, *rule.then]


def _add(tables: dict[tuple[str, ...], Flags], clique: tuple[str, ...], cells: Flags) -> None:
    if cells.any():
        tables[clique] = tables[clique] | cells if clique in tables else cells
