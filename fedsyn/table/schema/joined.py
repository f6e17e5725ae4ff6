"""Two tables of one schema: persons, and their rows.

Persons have what is the same in all of their rows, but for what only rows say (`persons.in_rows`); rows name their
person. Joined they are one table, which has one row of a person without rows: all of its columns but the person's own
are missing (`persons.least_rows: 0`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import permutations
from typing import TYPE_CHECKING, Any

from fedsyn.errors import DataError, nearest
from fedsyn.lazy import pd
from fedsyn.output import counted, first_of
from fedsyn.table.schema.frames import as_frame, require_text_names
from fedsyn.table.schema.persons import Persons, require_records
from fedsyn.table.schema.whose import Whose, of_nobody

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyTables

log = logging.getLogger(__name__)
# Columns that no table has: the person's number, and the identifier of a row beside that of its person.
_KEY, _THEIRS = "\0key", "\0theirs"


def joined(
    persons: pd.DataFrame, rows: pd.DataFrame, schema: Any, names: tuple[str, str], *, first: bool = False
) -> pd.DataFrame:
    """Returns two tables as one.

    A person without rows has one there. Rows of a person that the other table does not name come, too: what is said of
    such a person is missing. A row without an identifier is nobody else's: it stands alone, whichever table has it.

    So each row of the result depends on the rows of one person: on all that have this identifier, in both tables.
    Identifiers meet by the rule of `fedsyn.table.schema.whose`, as in `fedsyn.table.data.records`.

    Args:
        persons: one row each.
        rows: theirs.
        schema: of both.
        names: of the tables, for messages.
        first: take the first of several rows of a person in the table of persons, and say so. Else they are refused.
            No row may decide whether a holder takes part in a run.

    Raises:
        DataError: a column is missing, or persons stand twice in their table.
    """
    key = _persons(schema).id
    for table, wanted, name in zip((persons, rows), _columns(schema), names, strict=True):
        absent = [column for column in wanted if column not in table.columns]
        if absent:
            hint = nearest(absent[0], list(map(str, table.columns)))
            there = table is persons and absent[0] in rows.columns
            more = f". {name_of(names[1])} has it: name it under persons.in_rows, too" if there else ""
            raise DataError(
                f"{name_of(name)} lacks the column '{absent[0]}'{hint}, which the schema says is in it{more}"
            )
    tables, whose = zip((persons, rows), columns_apart(schema), strict=True), Whose(schema.missing_text)
    left, right = (
        table[[name for name in wanted if name in table.columns]].assign(
            **{key: table[key].astype(object), _KEY: whose.of(table[key])}
        )
        for table, wanted in tables
    )
    twice = left[_KEY].duplicated()
    if twice.any():
        extra = counted(int(twice.sum()), "row")
        many = f"{name_of(names[0])} has {extra} too many: it must have one row of each person"
        if not first:
            raise DataError(many)
        log.warning("%s; the first one of each counts", many)
        left = left[~twice]
    unknown = (right[_KEY] >= 0) & ~right[_KEY].isin(left[_KEY])
    if unknown.any():
        log.warning(
            "%s has %s of persons whom %s does not have: what it would say of them is missing",
            name_of(names[1]),
            counted(int(unknown.sum()), "row"),
            name_of(names[0]),
        )
    both = left.merge(right.rename(columns={key: _THEIRS}), on=_KEY, how="outer", sort=False)
    both[key] = both[key].where(both[key].notna(), both[_THEIRS])
    return both.drop(columns=[_KEY, _THEIRS])


def one_table(tables: AnyTables, schema: Any) -> pd.DataFrame:
    """Returns a table, or two tables of one schema, as one DataFrame.

    Raises:
        DataError: not a table, or other tables than the schema names.
    """
    if not isinstance(tables, Mapping):
        return as_frame(tables)
    names = None if schema is None or schema.persons is None else schema.persons.tables
    if schema is None or names is None or set(tables) != set(names):
        expected = "one table (persons.tables would name two)" if names is None else " and ".join(map(repr, names))
        raise DataError(f"the schema is of {expected}; found {', '.join(map(repr, map(str, tables))) or 'none'}")
    persons, rows = (as_frame(tables[name]) for name in names)
    for frame in (persons, rows):
        require_text_names(frame)
    return joined(persons, rows, schema, names)


def require_both(
    columns: Collection[str], schema: Any, name: str, way: str, among: Collection[str] | None = None
) -> None:
    """Refuses one table of two in the place of both.

    Args:
        columns: of the table.
        schema: whether it is of two tables is looked up here.
        name: of the table, for the message.
        way: to give both, with {} for the name of each.
        among: columns that matter; None: all.

    Raises:
        DataError: it lacks columns of one of the two.
    """
    persons = schema.persons
    if persons is None or persons.tables is None:
        return
    for wanted, table in zip(_columns(schema), persons.tables, strict=True):
        absent = [column for column in wanted if column not in columns and (among is None or column in among)]
        if absent:
            raise DataError(
                f"{name} lacks columns of the table of {table} ({first_of(absent, 3)}): give both tables, "
                f"{way.format(*persons.tables)}, or one in which they are joined"
            )


def persons_first(tables: Mapping[str, Collection[str]], schema: Any) -> tuple[str, str] | None:
    """Returns the names of two tables, that of the persons first.

    None where they are not those of persons and of their rows.

    Args:
        tables: name -> its columns.
        schema: of both.
    """
    found = _pairs(tables, schema) if len(tables) == 2 else []
    return found[0] if found else None


def _pairs(tables: Mapping[str, Collection[str]], schema: Any) -> list[tuple[str, str]]:
    """Returns pairs of tables of persons and of their rows, in order.

    Empty where they are not as many of each.
    """
    own, other = map(set, _columns(schema))
    persons = [name for name, columns in tables.items() if own <= {*columns} and not {*columns} & (other - own)]
    rows = [name for name, columns in tables.items() if name not in persons and other <= {*columns}]
    return list(zip(persons, rows, strict=True)) if len(persons) == len(rows) == len(tables) / 2 else []


def require_persons_first(tables: Mapping[str, Collection[str]], schema: Any) -> tuple[str, str] | None:
    """Returns `persons_first`, and refuses two tables that nearly are such.

    Raises:
        DataError: what they lack, and which columns stand in the wrong one.
    """
    if (found := persons_first(tables, schema)) is not None or len(tables) != 2:
        return found
    own, other = _columns(schema)
    if all({*own, *other} <= {*columns} for columns in tables.values()):  # joined, of two holders
        return None
    key, rest = _persons(schema).id, [name for name in other if name not in own]

    def lacking(persons: str, rows: str) -> list[tuple[str, str, str]]:
        places = [(name, persons, rows) for name in own] + [(name, rows, persons) for name in other]
        return [place for place in places if place[0] not in tables[place[1]]]

    persons, rows = min(permutations(tables, 2), key=lambda names: len(lacking(*names)))
    parts = []
    for name, table, beside in lacking(persons, rows):
        if name == key:
            parts.append(f"{name_of(table)} lacks '{name}', which says whose a row is{nearest(name, [*tables[table]])}")
        elif name in tables[beside]:
            says = "is the same in all rows of a person, by persons.constant: name it under persons.in_rows, too"
            if name not in own:
                in_rows = name in _persons(schema).in_rows
                says = "is among persons.in_rows" if in_rows else "is not among persons.constant"
            parts.append(f"'{name}' stands in {name_of(beside)}, and {says}")
        else:
            parts.append(f"{name_of(table)} lacks '{name}'{nearest(name, [*tables[table]])}")
    parts += [
        f"'{name}' stands in {name_of(persons)}, too, and is not among persons.constant"
        for name in rest
        if name in tables[persons] and name in tables[rows]
    ]
    raise DataError(
        f"{name_of(persons)} and {name_of(rows)} do not fit the schema's persons and their rows: {'; '.join(parts)}"
    )


def pairs_of(tables: Mapping[str, Collection[str]], schema: Any) -> list[tuple[str, str]]:
    """Returns pairs of tables of persons and of their rows.

    Those of several holders pair up in the order in which they are named. Empty where tables are joined already.

    Raises:
        DataError: see `require_persons_first`.
    """
    if len(tables) == 2:
        found = require_persons_first(tables, schema)
        return [] if found is None else [found]
    return _pairs(tables, schema)


def there_are(schema: Any, table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table without the rows of persons without one."""
    nobody = of_nobody(schema, table)
    return table.loc[~nobody] if nobody.any() else table


def name_of(table: str) -> str:
    """Returns how a sentence names a table."""
    return table if "/" in table or "." in table else f"the table '{table}'"


def apart(table: pd.DataFrame, schema: Any) -> dict[str, pd.DataFrame]:
    """Returns a table of persons and one of rows, by their names.

    Args:
        table: joined.
        schema: of both; it names them.
    """
    persons = _persons(schema)
    assert persons.tables is not None
    own, other = ([name for name in names if name in table.columns] for names in columns_apart(schema))
    each = table[own].drop_duplicates(persons.id).reset_index(drop=True)
    rows = table.loc[~of_nobody(schema, table), other]
    return dict(zip(persons.tables, (each, rows.reset_index(drop=True)), strict=True))


def _persons(schema: Any) -> Persons:
    require_records(schema)
    persons: Persons = schema.persons
    return persons


def columns_apart(schema: Any) -> tuple[list[str], list[str]]:
    """Returns the columns that tables of persons and rows may have.

    They are in the schema's order behind the identifier. Those that are computed, or made afresh, are among them, and
    may be missing from a holder's tables; of what is constant in a person each has one.
    """
    key, (own, other) = _persons(schema).id, _columns(schema)
    known = {*own, *other, *schema.order} - {key}
    names = [name for name in schema.every_column if name in known]
    return [key, *(name for name in names if name in own)], [key, *(name for name in names if name not in own)]


def _columns(schema: Any) -> tuple[list[str], list[str]]:
    """Returns the columns that tables of persons and rows need."""
    persons = _persons(schema)
    needed = {*schema.needed}
    known = needed | {name for name in schema.every_column if name not in schema.columns}  # no hidden one
    own = [persons.id, *(name for name in persons.known_of_all if name in known)]
    order = [persons.order] if isinstance(persons.order, str) else []
    rows = [name for name in schema.needed if name not in persons.known_of_all]
    return own, [*dict.fromkeys([persons.id, *order, *rows])]
