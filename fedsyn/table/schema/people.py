"""Rows of a table that are of one person."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.column_base import IdentifierColumn
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.persons import places

Settle = Callable[[DrawnRows, np.random.Generator], Any]


@dataclass(frozen=True, eq=False)
class People:
    """The persons of a table's rows, one after the other.

    Attributes:
        counts: (persons,) rows of each, at least one.
        empty: (rows,) which of them stand for persons without a row; None: there are none.
        constant: columns that are the same in all rows of a person.
        order: column by which the rows of a person stand in order; None: there is none.
        along: (rows,) numbers of that column, which ascend within each person, and which are missing; None: they are
            drawn as those of any column, and put in order.
        start: number of persons before these.
        in_rows: those of `constant` that a person without a row does not have.
    """

    counts: Integers
    empty: Flags | None = None
    constant: Collection[str] = ()
    order: str | None = None
    along: tuple[npt.NDArray[Any], Flags] | None = None
    start: int = 0
    in_rows: Collection[str] = ()

    @cached_property
    def whose(self) -> Integers:
        """(rows,) number of each row's person among these."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def first(self) -> Integers:
        """(rows,) position of the first row of each row's person."""
        return np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    def kept(self, rows: Flags | None) -> People:
        """Returns these persons with some of their rows; None: all."""
        if rows is None:
            return self
        counts = np.bincount(self.whose[rows], minlength=len(self.counts))
        return replace(self, counts=counts, empty=None if self.empty is None else self.empty[rows], along=None)

    def numbers_of(self, name: str) -> tuple[npt.NDArray[Any], Flags] | None:
        """Returns numbers of a column that are known before any draw.

        They come with a mask of the missing. None for any other column.
        """
        return self.along if name == self.order else None

    def blanked(self, name: str, series: pd.Series) -> pd.Series:
        """Returns a column's values, none in the rows of persons without one."""
        if self.empty is None or (name in self.constant and name not in self.in_rows):
            return series
        whole = isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu"
        plain = isinstance(series.dtype, np.dtype) and series.dtype.kind == "b"
        series = series.astype("Int64") if whole else series.astype(object) if plain else series
        return series.mask(self.empty)

    def named(self, column: IdentifierColumn, rng: np.random.Generator) -> pd.Series:
        """Returns an identifier made afresh for each person, by row."""
        return column.fresh(self.start, len(self.counts), rng).iloc[self.whose].reset_index(drop=True)

    def settled(self, rows: DrawnRows, settle: Settle, rng: np.random.Generator) -> tuple[str, ...]:
        """Makes numbers of rows those of persons, in place.

        Args:
            rows: codes, and numbers inside bins, of rows.
            settle: makes constraints hold in such rows.
            rng: draws for it.

        Returns:
            The columns whose numbers belong to persons or stand in order: they are not to be drawn again.
        """
        numbers = [name for name in rows.drawn if name in self.constant]
        if numbers:
            # Constraints between a person's own columns hold once they hold in the person's first row.
            own = rows.taken(np.unique(self.first), [*rows.codes])
            settle(own, rng)
            for name in numbers:
                drawn, absent = own.drawn[name]
                rows.drawn[name] = drawn[self.whose], absent[self.whose]
        if self.order in rows.drawn:
            if self.along is None:
                values, absent = rows.drawn[self.order]
                rows.drawn[self.order] = self.ascending(values, absent), absent
            numbers.append(self.order)
        return tuple(numbers)

    def put_in_order(self, rows: DrawnRows) -> None:
        """Puts rows of persons in order, in place.

        Some numbers had to leave it: a constraint may leave a row no number but an earlier one.
        """
        if self.order not in rows.drawn:
            return
        values, absent = rows.drawn[self.order]
        values = np.where(absent, np.inf, values.astype(np.float64))
        back = np.flatnonzero((values[1:] < values[:-1]) & (self.whose[1:] == self.whose[:-1]))
        if not len(back):
            return
        mine = np.flatnonzero(np.isin(self.whose, self.whose[back]))
        taken = mine[np.lexsort((values[mine], self.whose[mine]))]
        for name, codes in rows.codes.items():
            moved = codes.copy()
            moved[mine] = codes[taken]
            rows.codes[name] = moved
        for name, drawn in rows.drawn.items():
            both = tuple(part.copy() for part in drawn)
            for new, old in zip(both, drawn, strict=True):
                new[mine] = old[taken]
            rows.drawn[name] = (both[0], both[1])

    def ascending(self, values: Floats, absent: Flags) -> Floats:
        """Returns values of rows in ascending order within each person.

        Rows without a value keep their places.
        """
        out, there = values.copy(), np.flatnonzero(~absent)
        out[there] = values[there][np.lexsort((values[there], self.whose[there]))]
        return out


def counts_of_rows(records: Any, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns counts of rows' codes from those of records.

    A record shows one row of each person: the rows that are not there are left out.
    """
    return {name: counts[name][places(records.columns[name])] for name in records.rows.columns if name in counts}
