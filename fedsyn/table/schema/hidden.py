"""Columns that no file has, though a model sees them.

A stay, say: with `discharged = admitted + stay`, where `stay` is hidden, what lies between the two dates of a row is
read from both, modelled in bins of its own, and added to the admission in the synthetic table. So short stays stay
short where the bins of the dates are months. No file has the column, before a run or after it.

Such a sum says nothing of the rows: it holds by what the hidden column is. It reads a row's own cells alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Floats
from fedsyn.errors import SchemaError
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import remade
from fedsyn.table.schema.computed import Computed
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.encoding import Encoder, numbers_alone
from fedsyn.table.schema.rules import AnyRule, SumRule


class Hidden:
    """A column that is read from the others of a sum.

    Args:
        name: of the column.
        rule: the sum in which it stands.
        columns: every column that has codes or is computed.

    Attributes:
        sources: columns from which it is read.

    Raises:
        SchemaError: it stands twice in the sum, another column of the sum is hidden, or they do not give its values.
    """

    def __init__(self, name: str, rule: SumRule, columns: Mapping[str, Any]) -> None:
        signs = [sign for sign, term in rule.terms if term == name]
        others = [(sign, term) for sign, term in rule.terms if term != name]
        if len(signs) > 1:
            raise SchemaError(f"'{name}' is hidden, and stands twice in '{rule.text}'")
        for term in (rule.column, *(term for _, term in others)):
            if not isinstance(columns[term], BinnedColumn):
                raise SchemaError(f"'{name}' is hidden, and cannot be read from '{term}': it is in no bins")
            if columns[term].hidden:
                raise SchemaError(f"'{name}' and '{term}' are both hidden in '{rule.text}': neither can be read")
        sign = signs[0]
        # column = sign name + others, so name = sign column - sign others
        terms: list[Any] = [(sign, rule.column), *((-sign * other, term) for other, term in others)]
        first = sorted(terms, key=lambda term: -term[0])  # a sum is written with its plus first
        self.name, self.column = name, columns[name]
        self._sum = Computed(SumRule(column=name, terms=tuple(first)), columns)
        self.sources = self._sum.sources
        self._columns = {term: columns[term] for term in self.sources}

    def numbers(self, frame: pd.DataFrame, missing_text: frozenset[str]) -> Floats:
        """Returns its numbers in the rows of a table, (n,).

        They are NaN where one of its sources has none.
        """
        rows = DrawnRows({}, {})
        for name, column in self._columns.items():
            # A row without a number has none here; no row may be left out.
            values, _ = numbers_alone(remade(column, missing=True), frame[name], missing_text)
            rows.drawn[name] = np.where(np.isfinite(values), values, 0.0), ~np.isfinite(values)
        self._sum.add(rows)
        numbers, absent = rows.drawn[self.name]
        return np.where(absent, np.nan, numbers.astype(np.float64))

    def series(self, frame: pd.DataFrame, missing_text: frozenset[str]) -> pd.Series:
        """Returns the column of a table, as a file would have it."""
        numbers = self.numbers(frame, missing_text)
        absent = np.isnan(numbers)
        cells: pd.Series = self.column.cells(np.where(absent, 0.0, numbers), absent)
        return cells.set_axis(frame.index)


def hidden_columns(
    rules: Iterable[AnyRule], columns: Mapping[str, Any], derived: Mapping[str, Any], constant: Collection[str] = ()
) -> list[Hidden]:
    """Returns the hidden columns of a schema.

    Args:
        rules: its constraints.
        columns, derived: its modelled columns, and those that constraints compute.
        constant: those that are the same in all rows of a person.

    Raises:
        SchemaError: a hidden column stands in no sum, or in several; it is constant where what it is read from is not,
            or the other way round; or see `Hidden`.
    """
    every, found = {**columns, **derived}, list[Hidden]()
    for name in (name for name, column in every.items() if getattr(column, "hidden", False)):
        if name in derived:
            raise SchemaError(f"'{name}' is hidden, and computed by a constraint: no table would have anything of it")
        sums = [rule for rule in rules if isinstance(rule, SumRule) and name in (term for _, term in rule.terms)]
        if len(sums) != 1:
            what = "in no constraint that adds it to others" if not sums else f"in {len(sums)} sums"
            raise SchemaError(
                f"'{name}' is hidden, so no file has it, and stands {what}: one like 'discharged = admitted + {name}' "
                "says from which columns it is read"
            )
        found.append(Hidden(name, sums[0], every))
        own = [source in constant for source in found[-1].sources]
        if (name in constant) != all(own):
            way = "leave it out there" if name in constant else "name it there, too"
            raise SchemaError(
                f"'{name}' is hidden, and read from {' and '.join(found[-1].sources)}, which persons.constant "
                f"{'names' if all(own) else 'does not name'}: {way}"
            )
    return found


def with_hidden(schema: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with its hidden columns.

    A column is left out where the table lacks what it is read from.
    """
    able = [one for one in schema.compiled.hidden if {*one.sources} <= {*frame.columns}]
    return frame.assign(**{one.name: one.series(frame, schema.missing_text) for one in able}) if able else frame


def without_hidden(schema: Any) -> list[str]:
    """Returns the names of all columns that tables may have."""
    hidden = {one.name for one in schema.compiled.hidden}
    return [name for name in schema.every_column if name not in hidden]


def encoder_of(schema: Any, names: Collection[str], dtype: npt.DTypeLike) -> Encoder:
    """Returns an encoder of some columns."""
    hidden = [one for one in schema.compiled.hidden if one.name in names]
    return Encoder({name: schema.columns[name] for name in names}, schema.missing_text, dtype, hidden=hidden)
