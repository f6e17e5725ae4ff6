"""Conditions on one column, as constraints state them, and its numbers.

A condition is a value, a list of values, `"< 16"`, `"16..45"`, or null for missing. On an ordered column it is a set of
intervals of its numbers, on any other a set of codes. What a condition says of a CODE is twofold: whether some value in
it may satisfy it, and whether every one does.

Every ordered column has numbers of its own (days, cents, minutes, floats). `NumberGrid` says which of them lie in which
code, and how they compare with another column's: 2024-05-31 with 2024-05-31T08:00, 12.50 with 12.5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats
from fedsyn.errors import SchemaError, nearest
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.values import is_missing, parse_number


@dataclass(frozen=True, eq=False)
class NumberGrid:
    """An ordered column's numbers.

    Attributes:
        family: what they are; only columns of one family compare.
        unit: what one step is worth in the family's unit: 1, or a microsecond.
        whole: whether numbers are whole steps; else any float.
        low, high: (codes,) float64, the smallest and the largest number of each code; 0 where absent.
        absent: (codes,) whether the code stands for no number at all: missing, or a category that is no number.
        drawn: whether numbers are drawn inside codes (else a code is one number).
    """

    family: str
    unit: Fraction
    whole: bool
    low: Floats
    high: Floats
    absent: Flags
    drawn: bool

    def value(self, number: npt.ArrayLike) -> Floats:
        """Returns numbers in the family's unit, correctly rounded.

        Equal values of two grids are equal floats.
        """
        out: Floats = np.asarray(number, dtype=np.float64)
        out = out * self.unit.numerator if self.unit.numerator != 1 else out
        return out / self.unit.denominator if self.unit.denominator != 1 else out

    def optional(self, unlisted: bool) -> bool:
        """Returns whether a row of a table may have no number.

        `unlisted` says whether the last code is that of what is not listed, which no table has.
        """
        return bool(self.absent[: len(self.absent) - unlisted].any())

    def at_most(self, value: npt.ArrayLike) -> Floats:
        """The largest number whose value is at most this one."""
        value = np.asarray(value, dtype=np.float64)
        if not self.whole:
            return value
        number: Floats = np.floor(value * self.unit.denominator / self.unit.numerator)
        number = number + (self.value(number + 1) <= value)
        return np.asarray(number - (self.value(number) > value))

    def at_least(self, value: npt.ArrayLike) -> Floats:
        """The smallest number whose value is at least this one."""
        value = np.asarray(value, dtype=np.float64)
        if not self.whole:
            return value
        number = self.at_most(value)
        return np.asarray(number + (self.value(number) < value))

    def below(self, value: npt.ArrayLike) -> Floats:
        """The largest number whose value is less than this one."""
        value = np.asarray(value, dtype=np.float64)
        return self.at_least(value) - 1 if self.whole else np.asarray(np.nextafter(value, -math.inf))

    def above(self, value: npt.ArrayLike) -> Floats:
        """The smallest number whose value is more than this one."""
        value = np.asarray(value, dtype=np.float64)
        return self.at_most(value) + 1 if self.whole else np.asarray(np.nextafter(value, math.inf))

    def inside(self, low: npt.ArrayLike, high: npt.ArrayLike, uniform: Floats) -> Floats:
        """Numbers between two, both included, at uniform places in [0, 1)."""
        low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        if self.whole:
            return np.asarray(low + np.minimum(np.floor(uniform * (high - low + 1)), high - low))
        return np.asarray(np.clip(low + uniform * (high - low), low, high))


def grid_of(column: Any) -> NumberGrid | None:
    """The grid of a column; None where its values have no order."""
    if isinstance(column, BinnedColumn):
        return _binned(column)
    if isinstance(column, CategoricalColumn):
        return _categorical(column)
    return None


def _binned(column: BinnedColumn) -> NumberGrid:
    low, high = column.ends if column.within is None else column.within.ends()
    nothing = np.zeros(len(column.sides))
    absent = np.arange(column.size) >= len(low)
    return NumberGrid(*column.scale, column.whole, np.append(low, nothing), np.append(high, nothing), absent, True)


def _categorical(column: CategoricalColumn) -> NumberGrid | None:
    """Categories that are numbers, or stand in an order."""
    numbers = [None if isinstance(v, str | bool) else parse_number(v) for v in column.values]
    family = NUMBERS
    if all(number is None for number in numbers):
        if not column.ordered:
            return None
        family = f"categories in the order {', '.join(map(str, column.values))}"
        placed = set(column.categories) - set(column.unordered)
        numbers = [float(place) if value in placed else None for place, value in enumerate(column.values)]
    numbers += [None] * len(column.sides)
    low = np.array([0.0 if number is None else number for number in numbers])
    absent = np.array([number is None for number in numbers])
    whole = all(number is None or float(number).is_integer() for number in numbers)
    return NumberGrid(family, Fraction(1), whole, low, low, absent, False)


# Conditions -----------------------------------------------------------------------------------------------------------


Interval = tuple[float, float]
_COMPARED = re.compile(r"^(<=|>=|!=|<|>|=)\s*(.+)$", re.DOTALL)
_RANGE = re.compile(r"^(.+?)\s*\.\.\s*(.+)$", re.DOTALL)


@dataclass(frozen=True)
class Between:
    """Range of an ordered column.

    A bound of None means no bound. `above` and `below` leave out the bound itself.
    """

    low: Any = None
    high: Any = None
    above: bool = False
    below: bool = False

    @classmethod
    def read(cls, item: Any) -> list[Between] | None:
        """Reads the ranges that a text asks for.

        Such texts are `< 16`, `!= 3` or `16..45`. None for any other value.
        """
        if isinstance(item, cls):
            return [item]
        text = item.strip() if isinstance(item, str) else ""
        if compared := _COMPARED.match(text):
            value = compared[2].strip()
            below, above = cls(high=value, below=True), cls(low=value, above=True)
            return {
                "<=": [cls(high=value)],
                "<": [below],
                ">=": [cls(low=value)],
                ">": [above],
                "=": [cls(value, value)],
                "!=": [below, above],
            }[compared[1]]
        ends = _RANGE.match(text)
        return [cls(ends[1], ends[2])] if ends else None


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """Some rows between codes and values.

    Attributes:
        codes: column -> (n,) codes; of a computed column of numbers there are none.
        drawn: ordered column -> (n,) numbers, and (n,) which are missing.
    """

    codes: dict[str, np.ndarray]
    drawn: dict[str, tuple[np.ndarray, np.ndarray]]

    def taken(self, rows: np.ndarray | slice, names: Iterable[str] | None = None) -> DrawnRows:
        """Some of the rows, of some columns."""
        wanted = set(names) if names is not None else {*self.codes, *self.drawn}
        codes = {name: values[rows] for name, values in self.codes.items() if name in wanted}
        return DrawnRows(codes, {n: (values[rows], no[rows]) for n, (values, no) in self.drawn.items() if n in wanted})

    def numbers(self, name: str, grid: NumberGrid) -> tuple[np.ndarray, np.ndarray]:
        """(n,) numbers of an ordered column, and which are missing."""
        if name in self.drawn:
            return self.drawn[name]
        return grid.low[self.codes[name]], grid.absent[self.codes[name]]


@dataclass(frozen=True, eq=False)
class Literal:
    """A condition on one column, compiled.

    Attributes:
        name: the column.
        possible, sure: (codes,) whether some, and whether every value of a code satisfies it.
        intervals: numbers that satisfy it, disjoint and ascending, both ends included; None where codes decide.
        null: whether a missing number satisfies it.
    """

    name: str
    possible: Flags
    sure: Flags
    intervals: tuple[Interval, ...] | None = None
    null: bool = False

    def holds(self, rows: DrawnRows) -> Flags:
        """Returns whether it holds for rows, (n,).

        Their numbers decide, which may lie beyond all bins, or else their codes.
        """
        if self.intervals is None:
            return np.asarray(self.sure[rows.codes[self.name]])
        numbers, absent = rows.drawn[self.name]
        inside = np.zeros(len(numbers), dtype=bool)
        for low, high in self.intervals:
            inside |= (numbers >= low) & (numbers <= high)
        codes = rows.codes.get(self.name)
        return np.where(absent, self.null if codes is None else self.sure[codes], inside)


class Condition:
    """Part of a constraint that concerns one column.

    Args:
        name: the column.
        column: itself, of an ordered or a categorical kind.
        wanted: a value, a list of values, a comparison or a range (text or `Between`); None stands for missing.

    Raises:
        SchemaError: a value that the column does not have, or a comparison where there is no order.
    """

    def __init__(self, name: str, column: Any, wanted: Any) -> None:
        self.name, self.column = name, column
        self.grid = grid_of(column)
        self.null = False
        self._codes = np.zeros(column.size, dtype=bool)
        intervals: list[Interval] = []
        for item in wanted if isinstance(wanted, list | tuple) else [wanted]:
            if is_missing(item):
                if not column.optional:
                    raise SchemaError(f"column '{name}' has no missing values in this schema (missing: true)")
                self.null = True
            elif (
                isinstance(column, BinnedColumn) and not isinstance(item, Between) and column.side_of(item) is not None
            ):
                self._codes[column.side_of(item)] = True
            elif isinstance(column, BinnedColumn):
                intervals += self._intervals(Between.read(item) or [Between(item, item)])
            else:
                self._codes |= self._categories(item)
        if self.null and isinstance(column, BinnedColumn):
            self._codes[column.coded_missing] = True
        self.intervals = united(intervals, self.grid)

    def literal(self, *, unless_missing: bool = False) -> Literal:
        """Returns the condition as a literal.

        A missing value satisfies it if null is among what it lists, or with `unless_missing`.
        """
        codes = self._codes
        if unless_missing and isinstance(self.column, BinnedColumn):
            codes = codes | (self.grid is not None and self.grid.absent)
        return self._compiled(self.intervals, codes, self.null or unless_missing)

    def negated(self) -> Literal:
        """Returns the opposite of the condition.

        A missing value satisfies the opposite unless null is among what the condition lists.
        """
        return self._compiled(_complement(self.intervals, self.grid), ~self._codes, not self.null)

    def _compiled(self, intervals: tuple[Interval, ...], codes: Flags, null: bool) -> Literal:
        if not isinstance(self.column, BinnedColumn):
            possible = codes.copy()
            if self.column.missing:
                possible[len(self.column.values)] = null
            return Literal(self.name, possible, possible)
        grid = self.grid
        assert grid is not None
        possible, sure = (np.zeros(self.column.size, dtype=bool) for _ in range(2))
        for low, high in intervals:
            possible |= (grid.low <= high) & (grid.high >= low)
            sure |= (grid.low >= low) & (grid.high <= high)
        possible[grid.absent] = sure[grid.absent] = codes[grid.absent]
        return Literal(self.name, possible, sure, intervals, null)

    # Categorical columns ----------------------------------------------------------------------------------------------

    def _categories(self, item: Any) -> Flags:
        column = self.column
        codes = np.zeros(column.size, dtype=bool)
        known = None if isinstance(item, Between) else column.named(item)
        compared = _COMPARED.match(item.strip()) if isinstance(item, str) and known is None else None
        if compared and compared[1] in ("=", "!="):
            known = column.named(compared[2].strip())
            if known is None:
                raise self._unknown(compared[2].strip())
        if known is not None:
            codes[known] = True
            present = np.arange(column.size) < len(column.values)
            return ~codes & present if compared and compared[1] == "!=" else codes
        ranges = Between.read(item)
        if ranges is None or self.grid is None:
            raise self._unknown(item)
        for low, high in self._intervals(ranges):
            codes |= (self.grid.low >= low) & (self.grid.high <= high) & ~self.grid.absent
        return codes

    def _unknown(self, item: Any) -> SchemaError:
        if isinstance(item, Between):
            return SchemaError(f"'{self.name}' has no order, so no range; a list asks for any of several values")
        values = [str(value) for value in self.column.values]
        some = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
        return SchemaError(
            f"'{item}' is not a category of column '{self.name}'{nearest(str(item), values) or f' (which has: {some})'}"
        )

    # Ordered columns --------------------------------------------------------------------------------------------------

    def _intervals(self, ranges: Iterable[Between]) -> list[Interval]:
        intervals, grid = [], self.grid
        assert grid is not None
        for ends in ranges:
            low, high = -math.inf, math.inf
            if ends.low is not None:
                value = grid.value(self._number(ends.low))
                low = float(grid.above(value) if ends.above else grid.at_least(value))
            if ends.high is not None:
                value = grid.value(self._number(ends.high))
                high = float(grid.below(value) if ends.below else grid.at_most(value))
            if low > high and ends.low != ends.high:
                raise SchemaError(
                    f"'{ends.low}..{ends.high}' of column '{self.name}' is an empty range: its first end is the larger"
                )
            intervals.append((low, high))
        return intervals

    def _number(self, value: Any) -> float:
        """A number of the column's grid."""
        column = self.column
        if isinstance(column, BinnedColumn):
            number: float | None
            try:
                number = None if isinstance(value, bool) else column.number(value)
            except (ValueError, TypeError, OverflowError):
                number = column.parse(value)  # as a cell has it
            if number is None or math.isnan(number):
                raise SchemaError(f"'{value}' is not {column.expected}, as column '{self.name}' holds")
            return number
        assert self.grid is not None
        known = column.named(value)
        if known is not None and not self.grid.absent[known]:
            return float(self.grid.low[known])
        try:
            if self.grid.family.startswith("categories"):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise self._unknown(value) from None


def united(intervals: list[Interval], grid: NumberGrid | None) -> tuple[Interval, ...]:
    """Disjoint intervals, ascending; neighbouring whole numbers belong together."""
    out: list[Interval] = []
    for low, high in sorted(interval for interval in intervals if interval[0] <= interval[1]):
        if out and grid is not None and low <= _after(out[-1][1], grid):
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _complement(intervals: tuple[Interval, ...], grid: NumberGrid | None) -> tuple[Interval, ...]:
    if grid is None:
        return ()
    out, start = [], -math.inf
    for low, high in intervals:
        if low > start:
            out.append((start, -_after(-low, grid)))
        start = _after(high, grid)
    if start < math.inf:
        out.append((start, math.inf))
    return tuple(out)


def _after(number: float, grid: NumberGrid) -> float:
    return number + 1 if grid.whole else math.nextafter(number, math.inf)
