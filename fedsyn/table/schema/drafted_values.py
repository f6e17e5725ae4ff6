"""Values of an ordered column with a place of their own.

These are steps that all numbers are multiples of, a few different values, values that many rows share, and codes for
missing values far from all others. Everything here reads the rows, so what is drafted is public only once a person says
so; a value that fewer than `FEW_ROWS` rows hold is never listed, nor is one of fewer people, where these have several
rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, isfinite, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.encoding import numbers_alone
from fedsyn.table.schema.formats import plain
from fedsyn.table.schema.ordered import DateColumn, TemporalColumn, WrittenNumber
from fedsyn.table.schema.profile import held_by
from fedsyn.table.schema.vocabulary import ENOUGH, FEW_ROWS, codes_apart, limit_in, of_persons, sentinel, several_rows

#: A table keeps the share of a value if it is off by no more than this: half of what is called lost
#: (`fedsyn.evaluation.verdict.LOST`; a test holds the two together). A value whose bin would smear more of it over its
#: neighbours gets a bin of its own.
KEPT_SHARE = 0.05
#: And its standard deviation, if that is off by no more than this factor's logarithm.
KEPT_SPREAD = log(1.5) / 2.0
# That k random numbers have a common divisor of m or more has a chance of m^(1-k) about; below this it is none.
_CHANCE = 1e-3
# Shares of the rows that codes for missing values hold together, at least, and how many there may be on one side.
_OFTEN, _MOST_CODES = 0.01, 5

# The first days of 1990 and 2050, as Excel counts days.
_EXCEL = 32_874, 54_789
# Different numbers that it takes to be those of persons (more than years, ages and days of a year that are in use), and
# the largest share of them that may end in the same digit.
_MANY, _LAST_DIGIT = 200, 0.2
_MONTH = 365.2425 / 12  # days

Counts = npt.NDArray[np.int64]


class Held(NamedTuple):
    """The different finite numbers of a column.

    Attributes:
        numbers: (k,) ascending.
        rows: (k,) rows that hold each.
        people: (k,) people who do; where nobody has several rows, the rows.
    """

    numbers: Floats
    rows: Counts
    people: Counts

    @classmethod
    def of(
        cls, column: BinnedColumn, series: pd.Series, missing: frozenset[str], whose: Integers | None = None
    ) -> Held:
        """Counts the numbers of a column.

        Args:
            column: as drafted.
            series: its values.
            missing: texts that stand for a missing value.
            whose: (rows,) number of each row's person; None: each row is one.
        """
        numbers, _ = numbers_alone(column, series, missing)
        known = np.isfinite(numbers)
        found, at, rows = np.unique(numbers[known], return_inverse=True, return_counts=True)
        return cls(found, rows, rows if whose is None else held_by(at.reshape(-1), whose[known], len(found)))

    def among(self, which: Flags) -> Held:
        """Returns some of the numbers."""
        return Held(self.numbers[which], self.rows[which], self.people[which])

    def times(self, factor: float) -> Held:
        """Returns the numbers in other steps."""
        return self._replace(numbers=self.numbers * factor)


def written_in_months(column: BinnedColumn) -> bool:
    """Returns whether dates are written without their day, as 202405 is."""
    form = column.format if isinstance(column, DateColumn) else None
    return form is not None and "%d" not in plain(form)


def room(column: BinnedColumn) -> Floats:
    """Returns the number of different values in each bin, (bins,).

    They are numbers, or months.
    """
    widths = np.diff(column.edges)
    if column.values or not column.whole:
        return np.ones(len(widths)) if column.values else np.full(len(widths), np.inf)
    return np.asarray(np.maximum(1.0, np.rint(widths / _MONTH)) if written_in_months(column) else widths)


def in_steps(column: BinnedColumn, numbers: Floats) -> BinnedColumn:
    """Returns the column with the largest step of its numbers.

    All of them are multiples of it.

    Hundreds of dollars, half points, quarters of hours. Zero is a multiple of everything and counts as none. Of k
    random numbers the greatest common divisor is m or more with a chance of about m^(1-k): the sum of g^-k from m on.
    So a few numbers show no small step. Days are counted from an arbitrary one, so dates have none. A hidden column is
    as fine as what it is read from.

    Args:
        column: as drafted, in its smallest steps.
        numbers: (k,) different ones.
    """
    if not isinstance(column, WrittenNumber | TemporalColumn) or isinstance(column, DateColumn) or not len(numbers):
        return column
    if column.hidden:
        return column
    whole = np.abs(numbers[numbers != 0]).astype(np.int64)
    step = int(np.gcd.reduce(whole)) if len(whole) and np.array_equal(whole, np.abs(numbers[numbers != 0])) else 1
    if step <= 1 or float(step) ** (1 - len(whole)) > _CHANCE:
        return column
    low, high = column.span
    ends = np.floor(low / step) * step, np.ceil(high / step) * step
    if isinstance(column, WrittenNumber):
        size: Any = step / 10**column.decimals if column.decimals else step
    else:  # of the clock, whose last bound is the last moment of a day
        size, ends = step, (ends[0], np.floor(high / step) * step)
    bounds = {"lower": column.bound(float(ends[0])), "upper": column.bound(float(ends[1]))}
    return _with(column, multiple_of=size, **bounds)


def beside_limits(column: BinnedColumn, numbers: Floats) -> BinnedColumn:
    """Returns the column without empty room beyond its limits.

    A row below <0.5 has that word. Of several limits (<0.5 and <1) the outermost counts, as numbers lie between them;
    where a number lies beyond that, too, the bounds stay.

    Args:
        column: as drafted, with its steps.
        numbers: (k,) different ones, ascending.
    """
    ends: dict[str, list[float]] = {"<": [], ">": []}
    for sign, text in filter(None, map(limit_in, column.censored)):
        written = isinstance(column, WrittenNumber)
        value = column.value_of(text, frozenset()) if written else column.parse(text)  # type: ignore[attr-defined]
        if value is not None and isfinite(value):
            ends[sign].append(column.number(value) if written else value)
    low, high = min(ends["<"], default=-inf), max(ends[">"], default=inf)
    low, high = (np.ceil(low), np.floor(high)) if column.whole else (low, high)
    bounds = {"lower": column.bound(low)} if column.span[0] < low <= numbers[0] else {}
    bounds |= {"upper": column.bound(high)} if numbers[-1] <= high < column.span[1] else {}
    return _with(column, **bounds) if bounds else column


def listed(column: BinnedColumn, held: Held) -> BinnedColumn | None:
    """Returns the column with its few values as the only ones.

    None where a value is held by few people, or where bins of one number each would hold the same values.

    Args:
        column: as drafted.
        held: its numbers.
    """
    numbers = held.numbers
    if len(numbers) < 2 or held.people.min() < FEW_ROWS or not column.whole:
        return None
    if numbers[-1] - numbers[0] == len(numbers) - 1 and (numbers[0], numbers[-1]) == column.span:
        return None
    return _with(
        column, values=[column.bound(number) for number in numbers.tolist()], lower=None, upper=None, bins=None
    )


def spikes(column: BinnedColumn, held: Held, rows: int, noise: float) -> Floats:
    """Returns the numbers whose share the column's bins would lose.

    A bin spreads its rows evenly over its numbers. Of a number that a share s of the rows hold, in a bin of b rows and
    w numbers, that moves s - b / (rows w) of the rows. It has to be more than a table may lose and still keep the share
    (`KEPT_SHARE`), and more than the noise of the two cells that a bin of its own adds.

    Args:
        column: as drafted, with its bins and the atoms so far.
        held: its numbers.
        rows: of the table.
        noise: of one cell at the draft's budget, as a share of the rows.
    """
    codes = column.codes_of(held.numbers)
    inside = np.bincount(codes, held.rows, minlength=column.size)[codes]
    moved = (held.rows - inside / room(column)[codes]) / rows
    known = np.isin(held.numbers, [column.number(atom) for atom in column.atoms])
    lost: Floats = held.numbers[(moved > max(KEPT_SHARE, 2.0 * noise)) & (held.people >= FEW_ROWS) & ~known]
    return lost


def between_atoms(column: BinnedColumn, numbers: Floats, atoms: Floats) -> BinnedColumn:
    """Returns the column without room beyond an atom at its end.

    Nothing lies below a limit of detection, or above a cap.
    """
    ends = {key: column.bound(end) for key, end in (("lower", numbers[0]), ("upper", numbers[-1])) if end in atoms}
    return _with(column, **ends) if ends else column


def with_atoms(column: BinnedColumn, numbers: Collection[float]) -> BinnedColumn:
    """Returns the column with some atoms more."""
    if not len(numbers):
        return column
    every = {column.number(atom) for atom in column.atoms} | {*numbers}
    return _with(column, atoms=[column.bound(number) for number in sorted(every)])


def far_codes(numbers: Floats, counts: Counts, known: Collection[float]) -> list[float]:
    """Returns numbers that stand for a missing value beyond doubt.

    They are some that tables use so (`known`), together in at least 1 of 100 rows, each in at least `FEW_ROWS`, and
    farther from all others than these are from each other: -999 among temperatures, 99 among answers of 1 to 5, the
    year 9999. What stands nearer may be a value, and is hinted at (`vocabulary.sentinel`).

    Args:
        numbers: (k,) different finite ones.
        counts: (k,) rows of each, or people.
        known: numbers that tables use for missing values.
    """
    order = np.argsort(numbers)
    numbers, counts, codes = numbers[order], counts[order], list[float]()
    for side in (1, -1):
        ends = numbers[::-side], counts[::-side]
        for most in range(min(_MOST_CODES, len(numbers) - 3), 0, -1):
            some, held, rest = ends[0][:most], ends[1][:most], ends[0][most:]
            often = held.min() >= FEW_ROWS and held.sum() >= _OFTEN * counts.sum()
            if often and set(some.tolist()) <= {*known} and np.abs(some - rest[0]).min() > np.ptp(rest):
                codes += some.tolist()
                break
    return codes


def hints_on_numbers(
    column: BinnedColumn,
    series: pd.Series,
    missing: frozenset[str],
    whose: Integers | None = None,
    asks: bool = True,
) -> tuple[str, ...]:
    """Returns hints on a column of numbers; of several the first.

    The arguments are those of `Held.of`. `asks`: whether the numbers may be those of persons, whom no other column has.
    """
    numbers, rows, counts = Held.of(column, series, missing, whose)
    if column.scale[0] != NUMBERS or not len(numbers):
        return ()
    values = [float(column.bound(number)) for number in numbers.tolist()]
    hint = sentinel(values, counts) or days_of_excel(column, values)
    hint = hint or (codes_apart(values, counts) if not column.values else None)
    if hint is None and asks and number_persons(np.array(values), rows):
        hint = of_persons(several_rows(str(series.name), len(rows), int(rows.sum()), int(rows.max())))
    return (hint,) if hint else ()


def number_persons(values: Floats, rows: Counts) -> bool:
    """Returns whether numbers that repeat may be those of persons.

    They are whole, not negative, and many. None has a twentieth of the rows, as zero bytes or no steps have, and they
    end in all digits alike, as quantities that people round do not. Either they begin far from zero and fill their
    range evenly, as members 10000 to 11999 do, or they repeat although they are few of their range, as no measured
    quantity does. Post codes and articles may look so, too: it is a question.

    Args:
        values: (k,) different ones, ascending.
        rows: (k,) of each.
    """
    k, n = len(values), int(rows.sum())
    if k < _MANY or 2 * k > n or 20 * rows.max() > n or values[0] < 0 or (values != np.floor(values)).any():
        return False
    if np.bincount((values % 10).astype(np.int64), minlength=10).max() > _LAST_DIGIT * k:
        return False
    wide = float(values[-1] - values[0]) + 1.0
    tenths = np.bincount((10.0 * (values - values[0]) / wide).astype(np.int64), rows, 10)
    return bool((k >= 0.8 * wide and values[0] >= wide and tenths.min() >= n / 20) or 10 * k <= wide)


def days_of_excel(column: BinnedColumn, values: Sequence[float]) -> str | None:
    """Returns a hint on numbers that may be Excel's days.

    None for other numbers. They lie between the first days of 1990 and 2050, where a quantity stays only if its largest
    number is less than 1.7 times its smallest. Their last digits are those of days: of k numbers about a fifth are
    multiples of 5, and of amounts that people round more; more than four standard deviations above that are not days.
    There are as many different numbers as show it (`ENOUGH`).

    Args:
        column: as drafted.
        values: different numbers.
    """
    k, rounded = len(values), sum(value % 5 == 0 for value in values)
    within = all(value.is_integer() and _EXCEL[0] <= value <= _EXCEL[1] for value in values)
    if k < ENOUGH or not within or rounded > k / 5 + 4.0 * sqrt(k * 0.16):
        return None
    ends = (str(np.datetime64("1899-12-30") + int(float(bound))) for bound in (column.lower, column.upper))
    return (
        f"dates, counted in days as Excel does ({' to '.join(ends)})? Save them as dates, such as 2024-01-31, and "
        "draft again; in an Excel file kind: date reads them as they are"
    )


def _with(column: BinnedColumn, **keys: Any) -> BinnedColumn:
    """The column with some keys more, which were read from the rows."""
    marks = [key for key in keys if key not in ("lower", "upper", "bins") and key not in column.drafted]
    data = column.model_dump() | keys | {"drafted": (*column.drafted, *marks)}
    return type(column).model_validate({key: value for key, value in data.items() if value is not None})
