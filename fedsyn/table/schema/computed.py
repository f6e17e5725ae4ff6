"""Columns that constraints compute from others: sums and public maps.

No model sees them. They are neither read nor measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from fedsyn.domain import Flags
from fedsyn.errors import SchemaError
from fedsyn.table.schema.binned import MOMENTS, NUMBERS, SPANS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import Condition, DrawnRows, Literal, NumberGrid, grid_of, united
from fedsyn.table.schema.rules import AnyRule, Determined, SumRule

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
        self.grid, self.whole = grid, grid.whole
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


def sources_of(rule: SumRule | Determined) -> set[str]:
    """The columns from which a constraint computes another one."""
    return {name for _, name in rule.terms} if isinstance(rule, SumRule) else {rule.determines}
