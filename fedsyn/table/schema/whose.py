"""Persons of rows, by their identifiers.

One rule, wherever persons are told apart, and another one for persons without a row: in a run, in a draft, between two
tables, and beside real rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.across import order_among
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.encoding import values_and_places
from fedsyn.table.schema.persons import row_columns
from fedsyn.table.schema.values import is_missing, written


class Whose:
    """Numbers the persons of rows in several blocks or tables.

    Identifiers are compared by their whole text, as a CSV file has it: 1 and 1.0 are one person, and so are 1 and "1".
    A row whose identifier is missing is a person of its own: its number is below zero, and no other row has it.

    >>> whose = Whose({"", "NA"})
    >>> whose.of(pd.Series(["b", 1.0, "NA", "b"], dtype=object)).tolist(), whose.of(pd.Series([1, 2])).tolist()
    ([0, 1, -1, 0], [1, 2])

    Args:
        missing: texts that stand for a missing value (`Schema.missing_text`).

    Attributes:
        nameless: rows without an identifier so far.
    """

    def __init__(self, missing: Collection[str]) -> None:
        self.nameless = 0
        self._missing, self._known = frozenset(missing), dict[str, int]()

    def of(self, identifiers: pd.Series) -> Integers:
        """Returns the number of each row's person, (rows,)."""
        values, index = values_and_places(identifiers)
        numbers = np.full(len(values) + 1, -1, np.int64)
        for at, value in enumerate(values):
            if not is_missing(value, self._missing):
                numbers[at] = self._known.setdefault(written(value), len(self._known))
        whose: Integers = numbers[index]
        nobody = np.flatnonzero(whose < 0)
        whose[nobody] = -1 - self.nameless - np.arange(len(nobody))
        self.nameless += len(nobody)
        return whose


class PersonColumn(NamedTuple):
    """The column of a table that says whose a row is.

    Attributes:
        name: of the column.
        missing: texts that stand for a missing value.
    """

    name: str
    missing: Collection[str]

    @classmethod
    def of(cls, schema: Any) -> PersonColumn | None:
        """Returns that of a schema, if there is a schema with persons."""
        known = schema is not None and schema.persons is not None
        return cls(schema.persons.id, schema.missing_text) if known else None

    def numbered(self, table: pd.DataFrame) -> Integers | None:
        """Returns the number of each row's person, (rows,).

        None where the table lacks the column.
        """
        return numbered(table[self.name], self.missing) if self.name in table.columns else None


def numbered(identifiers: pd.Series, missing: Collection[str]) -> Integers:
    """Returns numbers of the rows' persons without gaps, (rows,).

    They are told apart by `Whose`, and numbered from 0 as they are first met.
    """
    return np.asarray(pd.factorize(Whose(missing).of(identifiers))[0], np.int64)


def along_of(
    schema: Any, table: pd.DataFrame, rows: DrawnRows, which: Flags | None
) -> tuple[Integers, Floats | None] | None:
    """Returns whose rows are, and by what they ascend.

    The second is None where they stand in order as they come; both are where the table does not say it.

    Args:
        schema: of the rows, with persons.
        table: has the rows.
        rows: the same, as constraints see them.
        which: rows of the table that they are; None: all.
    """
    persons = schema.persons
    names = [persons.id, *([persons.order] if isinstance(persons.order, str) else [])]
    if not set(names) <= set(table.columns):
        return None
    identifiers = table[persons.id] if which is None else table.loc[which, persons.id]
    return numbered(identifiers, schema.missing_text), order_among(persons, rows)


def of_nobody(schema: Any, table: pd.DataFrame) -> Flags:
    """Returns which rows stand for a person without one, (rows,).

    Where `persons.least_rows` is 0, such a row has no value in any column that may differ between rows. A word that
    stands for a missing value has one where its column lists it.

    Args:
        schema: of the rows.
        table: it may lack columns.
    """
    names = [] if schema.persons is None else [name for name in row_columns(schema) if name in table.columns]
    if not names or schema.persons.least_rows:
        return np.zeros(len(table), bool)
    return np.asarray(np.logical_and.reduce([_missing(schema, name, table[name]) for name in names]))


def rows_of_persons(schema: Any, table: pd.DataFrame) -> pd.DataFrame | None:
    """Returns the rows in which what is said of persons is counted.

    Where persons have a table of their own it is one row of each; where some have no row, all rows. None: they are no
    others than those in which all columns are counted.
    """
    persons = schema.persons
    if persons is None or (persons.tables is None and persons.least_rows) or persons.id not in table.columns:
        return None
    if persons.tables is None:
        return table
    first = np.unique(numbered(table[persons.id], schema.missing_text), return_index=True)[1]
    return table.iloc[first]


def _missing(schema: Any, name: str, series: pd.Series) -> Flags:
    """Returns which cells hold nothing, (rows,)."""
    column, (values, index) = schema.columns[name], values_and_places(series)
    words = schema.missing_text
    if isinstance(column, CategoricalColumn):
        words = frozenset(word for word in words if not column.lists(word))
    gone = np.array([is_missing(value, words) for value in values] + [True])
    return np.asarray(gone[index])
