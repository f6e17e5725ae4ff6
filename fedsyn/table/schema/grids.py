"""The numbers that an ordered column can hold, so that columns of different kinds can be compared and added.

Every ordered column has numbers of its own (days, cents, minutes, floats). `NumberGrid` says which of them lie in which
code, and how they compare with another column's: 2024-05-31 with 2024-05-31T08:00, 12.50 with 12.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.values import parse_number

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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
        """Numbers in the family's unit, correctly rounded: equal values of two grids are equal floats."""
        out: Floats = np.asarray(number, dtype=np.float64)
        out = out * self.unit.numerator if self.unit.numerator != 1 else out
        return out / self.unit.denominator if self.unit.denominator != 1 else out

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
    edges = column.edges
    if column.whole:
        low, high = edges[:-1], edges[1:] - 1
    else:
        low, high = edges[:-1], np.nextafter(edges[1:], edges[:-1])
        high[-1] = edges[-1]  # which the last bin holds
    if column.within is not None:
        low, high = column.within.ends()
    nothing = np.zeros(int(column.missing))
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
    numbers += [None] * int(column.missing)
    low = np.array([0.0 if number is None else number for number in numbers])
    absent = np.array([number is None for number in numbers])
    whole = all(number is None or float(number).is_integer() for number in numbers)
    return NumberGrid(family, Fraction(1), whole, low, low, absent, False)
