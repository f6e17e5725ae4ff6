"""Persons of a table, and the record of each.

A person may have many rows: visits, payments, sessions. Where a person is what a run protects, mechanisms never see the
rows. They see one **record** of each person:

    the columns that are the same in all rows of a person
    the number of rows
    the other columns, of one of the rows; of rows in order also how many stand before it, and of rows in the order of
    a column how far it is to the next one
    the same columns once more, of the row after it: "next ..."

So a table of records is a table like any other, with a schema of its own (`Schema.records`). It has the same columns,
and codes after the values of a row's columns for "there is no such row". What the constraints of the rows make
impossible inside one row is impossible in both rows of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedsyn.domain import Clique, Domain, Flags, Integers, Zeros
from fedsyn.errors import SchemaError, nearest
from fedsyn.output import counted
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.column_base import IdentifierColumn, remade
from fedsyn.table.schema.columns import CategoricalColumn, Column
from fedsyn.table.schema.ordered import IntegerColumn

#: Word in the place of a value, where a person has no such row.
NO_ROW = "(no row)"
#: Name of a record's column with the number of a person's rows.
COUNT = "number of rows"
#: Name of a record's column with the number of rows before the one that it shows, where rows stand in order.
BEFORE = "rows before"
#: Name of a record's column with what lies between the row that it shows and the next one, in steps of the column by
#: which rows stand in order: days between visits.
GAP = "until next row"
_NEXT = "next "
# Weight of a pair that is counted in persons, beside 1 of one in rows.
_PERSONS = 2.0
# Bins between two powers of two: of a number of rows from 4 on, and of the steps between two rows.
_ROWS, _STEPS = 2, 4
# Bins of gaps, at most: those of days of 35 years. Seconds of a year would have twice as many, most of them without a
# gap and all of them with noise. Octaves have fewer parts then.
_MOST_GAPS = 45
# Of gaps, the last octaves, which have one bin each. What noise leaves in a bin moves a mean gap by the bin's number:
# with four bins each these two would move it four times as far as all below them, empty as they mostly are. Gaps of a
# person add up to the range at most.
_LAST = 2
# Of gaps that are no whole steps, octaves below the largest one that have bins of their own.
_OCTAVES = 10


class Persons(BaseModel):
    """The persons of a table, publicly known.

    Attributes:
        id: the identifier that says whose a row is.
        order: column by which the rows of a person stand in order; true: they stand in order as they come; false: they
            have none, and may be exchanged.
        constant: columns that are the same in all rows of a person, such as a date of birth.
        most_rows: the most rows that a person is expected to have; who has more is counted with so many.
        tables: names of two tables, of persons and of their rows, where they are apart; null: one table has both.
        least_rows: the fewest rows that a person is expected to have; above 1, who has fewer counts nowhere. With 0
            there may be persons without a row: a table has one row of such a person, in which all columns that differ
            between rows are missing (a left join of persons and rows).
        in_rows: columns of `constant` that the table of rows has, not that of persons, such as the arm of a trial. A
            person without a row has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    order: bool | str = False
    constant: tuple[str, ...] = ()
    most_rows: int = Field(ge=1, le=10**6)
    least_rows: int = Field(default=1, ge=0, le=10**6)
    tables: tuple[str, str] | None = None
    in_rows: tuple[str, ...] = ()

    @property
    def one_each(self) -> bool:
        """Returns whether each person has one row, in one table.

        Then a record is that row.
        """
        return self.most_rows == 1 == self.least_rows and self.tables is None

    @property
    def in_order(self) -> bool:
        """Returns whether the rows of a person have an order."""
        return self.order is not False

    @property
    def known_of_all(self) -> tuple[str, ...]:
        """Returns constant columns that a person without a row has, too."""
        return tuple(name for name in self.constant if name not in self.in_rows)


def rows_of_each(persons: Persons) -> str:
    """Returns words for how many rows a person has at most.

    >>> rows_of_each(Persons(id="firm", most_rows=20)), rows_of_each(Persons(id="firm", most_rows=8, least_rows=8))
    ('up to 20 rows each', '8 rows each')
    """
    most = f"{counted(persons.most_rows, 'row')} each"
    return most if persons.least_rows == persons.most_rows else f"up to {most}"


def persons_in_words(persons: Persons) -> str:
    """Returns the persons of a schema in one clause.

    >>> persons_in_words(Persons(id="patient", order="day", constant=("sex",), most_rows=20))
    "'patient' says whose a row is; a person has 1 to 20 rows, in the order of 'day'; 'sex' is the same in all of them"
    """
    rows = counted(persons.most_rows, "row")
    rows = rows if persons.least_rows == persons.most_rows else f"{persons.least_rows:,} to {rows}"
    order = {True: ", in the order in which they stand", False: ", in no order"}
    along = order[persons.order] if isinstance(persons.order, bool) else f", in the order of '{persons.order}'"
    names = [f"'{name}'" for name in persons.constant]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    verb = "is" if len(names) == 1 else "are"
    same = f"{listed} {verb} the same in all of them" if names else "no column is the same in all of them"
    return f"'{persons.id}' says whose a row is; a person has {rows}{along}; {same}"


def next_name(name: str) -> str:
    """Returns the name of a column's value in the next row."""
    return f"{_NEXT}{name}"


def is_along(name: str, names: Collection[str]) -> bool:
    """Returns whether a column stands in records alone.

    It is a number of rows, a gap, or a column of the next row. `names` are all columns of the record.
    """
    return name in (COUNT, BEFORE, GAP) or (name.startswith(_NEXT) and name.removeprefix(_NEXT) in names)


def row_columns(schema: Any) -> tuple[str, ...]:
    """Returns the modelled columns that may differ between a person's rows."""
    assert schema.persons is not None
    return tuple(name for name in schema.columns if name not in schema.persons.constant)


def person_attributes(schema: Any) -> tuple[str, ...]:
    """Returns the modelled columns that a person's rows share."""
    assert schema.persons is not None
    return tuple(name for name in schema.columns if name in schema.persons.constant)


def with_rows_alone(schema: Any) -> tuple[str, ...]:
    """Returns the modelled columns that a person without a row lacks.

    It is empty where everybody has one.
    """
    persons = schema.persons
    return tuple(name for name in schema.columns if not persons.least_rows and name not in persons.known_of_all)


def require_persons(schema: Any) -> None:
    """Refuses persons that a schema cannot have. Raises ValueError."""
    persons = schema.persons
    if persons is None:
        return
    names = schema.every_column
    if persons.tables is not None and len({name.strip() for name in persons.tables} - {""}) < 2:
        raise ValueError("persons.tables: two names that differ, of the table of persons and of that of their rows")
    if persons.least_rows > persons.most_rows:
        raise ValueError(f"persons.least_rows: {persons.least_rows:,} is more than most_rows, {persons.most_rows:,}")
    named = [persons.id, *persons.constant, *([persons.order] if isinstance(persons.order, str) else [])]
    for name in named:
        if name not in names:
            raise ValueError(f"persons: '{name}' is not a column{nearest(name, names)}")
    if not isinstance(names[persons.id], IdentifierColumn):
        raise ValueError(f"persons.id: '{persons.id}' must be of kind identifier, which no model sees")
    if isinstance(persons.order, str) and not isinstance(names[persons.order], BinnedColumn):
        raise ValueError(f"persons.order: '{persons.order}' must hold numbers, dates or times")
    if isinstance(persons.order, str) and names[persons.order].hidden:
        raise ValueError(f"persons.order: '{persons.order}' is hidden, so no table has it")
    if isinstance(persons.order, str) and persons.order in persons.constant:
        raise ValueError(f"persons.order: '{persons.order}' is the same in all rows of a person, by persons.constant")
    for name in set(names) & {COUNT, BEFORE, GAP, *map(next_name, names)}:
        raise ValueError(f"persons: a record of a person has a column '{name}' of its own; rename that of the table")
    _require_in_rows(persons)
    if all(name in persons.constant for name in schema.columns):
        raise ValueError("persons.constant: no column is left that differs between the rows of a person")


def _require_in_rows(persons: Persons) -> None:
    """Refuses constant columns that no table of rows can have. Raises ValueError."""
    if persons.in_rows and persons.tables is None:
        raise ValueError("persons.in_rows: one table has all columns; persons.tables would name two")
    for name in persons.in_rows:
        if name not in persons.constant:
            raise ValueError(f"persons.in_rows: '{name}' is not among persons.constant, and stands in rows as it is")


def require_records(schema: Any) -> None:
    """Refuses a schema that does not say who a person is.

    Raises:
        SchemaError: in one sentence, with what to write.
    """
    if schema.persons is None:
        raise SchemaError(
            "privacy.unit: person: the schema does not say whose a row is; write persons: {id: COLUMN, most_rows: N, "
            "constant: [columns that are the same in all rows of a person]} into it"
        )
    if schema.open:
        raise SchemaError(
            f"privacy.unit: person: '{next(iter(schema.open))}' has private bins, bounds or categories, which are "
            "found for rows only: write public ones into the schema"
        )


# The schema of records -----------------------------------------------------------------------------------------------


def record_columns(schema: Any) -> dict[str, Column]:
    """Returns the columns of a record, by name, in their order."""
    persons = schema.persons
    assert persons is not None
    # A record has what its rows' files do not.
    columns = {n: remade(c, hidden=False) if getattr(c, "hidden", False) else c for n, c in schema.columns.items()}
    of_rows, absent = row_columns(schema), {*with_rows_alone(schema)}
    first = {name: _or_none(columns[name]) if name in absent else columns[name] for name in of_rows}
    after = {next_name(name): _or_none(columns[name]) for name in of_rows}
    own = {n: _or_none(columns[n]) if n in absent else columns[n] for n in person_attributes(schema)}
    own[COUNT] = count_column(persons)
    gap = gap_column(schema)
    between = ({BEFORE: before_column(persons)} if persons.in_order else {}) | ({} if gap is None else {GAP: gap})
    return own | between | first | after


def count_column(persons: Persons) -> IntegerColumn:
    """Returns the column of the number of a person's rows."""
    return _counting(persons.least_rows, persons.most_rows, _ROWS)


def before_column(persons: Persons) -> IntegerColumn:
    """Returns the column of the number of rows before.

    The last row is shown as a next one alone, unless it is the only one.
    """
    return _counting(0, max(0, persons.most_rows - 2), _ROWS)


def gap_column(schema: Any) -> BinnedColumn | None:
    """Returns the column of what lies between two rows.

    It is in steps of the order's column; None where no modelled column gives the order. Short gaps have short bins, so
    visits a week apart stay a week apart where the bins of the dates are months. From a quarter of the range on, each
    octave has one bin, and before it as many as `_MOST_GAPS` leaves, up to four.
    """
    order = schema.persons.order
    if not isinstance(order, str) or order not in schema.columns:
        return None
    column = schema.columns[order]
    low, high = column.span
    missing = bool(column.sides)
    if column.whole:
        parts = (_STEPS, _STEPS // 2, 1)
        ways = [_counting(0, int(high - low), each, (high - low) / 2**_LAST) for each in parts]
        few = next((way for way in ways if len(way.edges) - 1 <= _MOST_GAPS), ways[-1])
        return remade(few, missing=missing, missing_codes=(NO_ROW,))
    octaves = [at / _STEPS for at in range((_OCTAVES - _LAST) * _STEPS)] + [*range(_OCTAVES - _LAST, _OCTAVES + 1)]
    edges = (0.0, *((high - low) * 2.0 ** (octave - _OCTAVES) for octave in octaves))
    bins = edges if high > low else 1
    return NumericColumn(lower=0.0, upper=edges[-1], bins=bins, missing=missing, missing_codes=(NO_ROW,))


def _counting(least: int, most: int, parts: int, far: float = inf) -> IntegerColumn:
    """Returns a column of counts.

    Every number up to 4 has a bin; from there on each octave has so many parts, of at least one number, and from `far`
    on one.
    """
    edges = [least, *(n for n in (1, 2, 3, 4) if n > least)]
    while edges[-1] <= most:
        last = edges[-1]
        octave = 1 << (last.bit_length() - 1)
        edges.append(last + max(1, octave // parts) if last < far else 2 * last)
    starts = [edge for edge in edges if edge <= most]
    bins = (*starts, most) if len(starts) > 1 or starts[-1] < most else 1
    return IntegerColumn(lower=least, upper=most, bins=bins)


def _or_none(column: Column) -> Column:
    """Returns a column with a further value for "there is no row".

    Of values that are listed it has the codes, not how they are read: rows are encoded by the column itself, and a
    boolean, say, has no third word.
    """
    if not isinstance(column, CategoricalColumn):
        return remade(column, missing_codes=(*column.missing_codes, NO_ROW))
    other = column.other_value
    return CategoricalColumn(
        categories=(*column.categories, NO_ROW),
        other=False if other is None else other,
        ordered=column.ordered,
        unordered=(*column.unordered, NO_ROW) if column.ordered else (),
        missing=column.missing,
        unlisted=column.unlisted,
    )


def no_row_code(column: Column) -> int:
    """Returns the code of "there is no row".

    Of a column that has none it is -1.
    """
    if isinstance(column, CategoricalColumn):
        return column.categories.index(NO_ROW) if NO_ROW in column.categories else -1
    if NO_ROW not in column.missing_codes:
        return -1
    return len(column.edges) - 1 + column.missing + column.missing_codes.index(NO_ROW)


def places(column: Column) -> Integers:
    """Returns a record's code for each of a row's, (codes,).

    Args:
        column: of a record.
    """
    none, size = no_row_code(column), column.size
    return np.array([code for code in range(size) if code != none], np.int64)


def record_domain(rows: Any, columns: Mapping[str, Column]) -> Domain:
    """Returns the attributes of a table of records.

    Args:
        rows: the schema of the rows.
        columns: of its records.

    Impossible cells of a row are impossible in both rows of a record, and so is a next row that a comparison with it
    rules out. A person without a row has none in any column, and one with a single row has no next one.
    """
    persons, domain = rows.persons, rows.domain
    assert persons is not None
    of_rows = row_columns(rows)
    zeros: list[Zeros] = []
    for zero in domain.zeros:
        inside = [name for name in zero.clique if name in of_rows]
        for renamed in [{}, {name: next_name(name) for name in inside}][: 2 if inside else 1]:
            names = tuple(renamed.get(name, name) for name in zero.clique)
            zeros.append(Zeros(names, spread_over(zero.cells, [columns[name] for name in names])))
    zeros += rows.compiled.zeros_across(columns)
    alone = count_column(persons).codes_of(np.array([0.0, 1.0]))
    without = [int(code) for code in alone[persons.least_rows :]]  # numbers of rows of which none is a next one
    zeros += [_none_where(name, columns, [int(alone[0])]) for name in with_rows_alone(rows)]
    zeros += [_none_where(next_name(name), columns, without) for name in of_rows]
    if GAP in columns:
        zeros.append(_none_where(GAP, columns, without))
    if persons.in_order:
        zeros.append(_never_beyond(count_column(persons), before_column(persons)))
    if (back := never_back(rows, columns)) is not None and not _follows(back, zeros):
        zeros.append(back)
    ordered = {n: c.size - len(c.sides) for n, c in columns.items() if isinstance(c, BinnedColumn)}
    coarser = {
        name: tuple(_with_own_group(values, columns[name]) for values in domain.coarser[name])
        for name in domain.coarser
        if name in columns
    }
    sizes = tuple(column.size for column in columns.values())
    return Domain(tuple(columns), sizes, ordered, tuple(zeros), coarser=coarser, wanted=wanted(rows))


def wanted(rows: Any) -> tuple[tuple[Clique, float], ...]:
    """Returns the cliques that make persons and rows, with weights.

    Pairs of what is the same in all rows are counted in persons. What concerns rows is counted in rows: a record stands
    for as many as its number says, so the number is in the clique. A row goes by its person and by the row before it;
    what the row before has in the same column says most of it, and that goes by the number, too. The pairs inside a row
    are few beside those of persons and rows: together they weigh as much.
    """
    own, row = (*person_attributes(rows), COUNT), row_columns(rows)
    after = [next_name(name) for name in row]
    of_persons: list[Clique] = [*combinations(own, 2)] or [own]
    of_rows: list[Clique] = [(name, COUNT, other) for name in own[:-1] for other in row] or [(COUNT, b) for b in row]
    inside: list[Clique] = [*((COUNT, *pair) for pair in combinations(row, 2)), *combinations(after, 2)]
    along: list[Clique] = [*((COUNT, name, next_name(name)) for name in row), *((a, b) for a in row for b in after)]
    if rows.persons is not None and rows.persons.in_order:
        order = rows.persons.order
        along += [(COUNT, BEFORE), *((BEFORE, name) for name in (*row, *after))]
        along += [(COUNT, BEFORE, order), (BEFORE, order, next_name(order))] if order in row else []
        along += [(COUNT, GAP), *((GAP, name) for name in (*own[:-1], *row, *after))] if order in row else []
    within = max(1.0, len(of_rows) / len(inside)) if inside else 1.0
    weights = ((of_persons, _PERSONS), (of_rows, 1.0), (inside, within), (along, 1.0))
    return tuple((clique, weight) for cliques, weight in weights for clique in cliques)


def spread_over(cells: Flags, columns: Sequence[Column]) -> Flags:
    """Returns impossible cells of a row, for columns that may have none.

    A row that is not there breaks nothing.
    """
    out = np.zeros([column.size for column in columns], dtype=bool)
    out[np.ix_(*map(places, columns))] = cells
    return out


def _none_where(name: str, columns: Mapping[str, Column], counts: Sequence[int]) -> Zeros:
    """Returns the zeros of "no row" beside any other number of rows.

    There is no row for these codes of the number, and one for all others.
    """
    cells = np.zeros((columns[COUNT].size, columns[name].size), dtype=bool)
    none = no_row_code(columns[name])
    cells[:, none] = True
    cells[counts] = ~cells[counts]
    return Zeros((COUNT, name), cells)


def _never_beyond(count: IntegerColumn, before: IntegerColumn) -> Zeros:
    """Returns the zeros of more rows before one than there are."""
    most = np.maximum(count.edges[1:] - 3, 0.0)  # a bin's largest number, less the row itself and the next one
    return Zeros((COUNT, BEFORE), before.edges[None, :-1] > most[:, None])


def never_back(rows: Any, columns: Mapping[str, Column]) -> Zeros | None:
    """Returns the zeros of rows in order.

    No row lies in an earlier bin than the one before. Rows without a number stand last. None where no column of the
    model gives the order.

    Args:
        rows: the schema of the rows.
        columns: of its records.
    """
    name = rows.persons.order
    if not isinstance(name, str) or name not in row_columns(rows):
        return None
    here, after = columns[name], columns[next_name(name)]
    assert isinstance(here, BinnedColumn)
    assert isinstance(after, BinnedColumn)
    bins, cells = len(here.edges) - 1, np.zeros((here.size, after.size), dtype=bool)
    cells[:bins, :bins] = np.tri(bins, bins, -1, dtype=bool)
    cells[bins:, :bins] = True
    if (none := no_row_code(here)) >= 0:
        cells[none] = False
    return Zeros((name, next_name(name)), cells)


def _follows(zero: Zeros, others: Sequence[Zeros]) -> bool:
    """Returns whether others rule out all cells of two attributes.

    `admitted <= discharged` and `discharged <= next.admitted` leave no `next.admitted` before `admitted`. A model with
    all three holds these columns together; with two of them it holds pairs, and has room for other links. For each
    number of rows, which says what there is no row of, a third attribute is looked at.
    """
    possible = dict[Clique, Flags]()
    for other in (other for other in others if len(other.clique) == 2):
        for clique, cells in ((other.clique, ~other.cells), (other.clique[::-1], ~other.cells.T)):
            possible[clique] = possible.get(clique, np.True_) & cells
    first, last = zero.clique
    thirds = [c for c in possible if c[0] == first and (c[1], last) in possible and c[1] != COUNT]
    if not thirds:
        return False
    sizes = {first: zero.cells.shape[0], last: zero.cells.shape[1], **{c[1]: possible[c].shape[1] for c in thirds}}
    of_count = next(len(cells) for (name, _), cells in possible.items() if name == COUNT)
    there = [possible.get((COUNT, name), np.ones((of_count, size), bool)) for name, size in sizes.items()]
    ends = np.cumsum([*sizes.values()])[:-1]
    for here, after, *beside in (np.split(each, ends) for each in np.unique(np.hstack(there), axis=0)):
        left = np.outer(here, after) & zero.cells
        for (_, third), present in zip(thirds, beside, strict=True):
            ways = (possible[first, third] & present).astype(np.float32) @ possible[third, last].astype(np.float32)
            left &= ways > 0
        if left.any():
            return False
    return True


def _with_own_group(values: Sequence[int], column: Column) -> tuple[int, ...]:
    """Returns the groups of values, "no row" in one of its own."""
    none = no_row_code(column)
    out = list(values)
    if none >= 0:
        out.insert(none, max(values) + 1)
    return tuple(out)


def record_of(data: Mapping[str, Any]) -> bool:
    """Returns whether plain data of a schema are of records."""
    return data.get("form") == RECORDS


#: Value of `form` in the plain data of a schema of records.
RECORDS = "records"
