"""Two tables of one schema: persons, and their rows.

Persons have what is the same in all of their rows; rows name their person. Joined they are one table, which has one row
of a person without rows: all of its columns but the person's own are missing (`persons.least_rows: 0`).
"""

from __future__ import annotations

from pathlib import Path

from fedsyn.errors import DataError, nearest
from fedsyn.lazy import pd
from fedsyn.output import counted
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import raw_rows, require_table
from fedsyn.table.schema import Schema
from fedsyn.table.schema.persons import Persons, require_records, row_columns


def joined_files(persons: str | Path, rows: str | Path, schema: Schema, options: FileOptions | None) -> pd.DataFrame:
    """Returns two files as one table, cells as they are written.

    Args:
        persons: file of the persons.
        rows: file of their rows.
        schema: of both.
        options: how the files are read.

    Raises:
        ConfigError, DataError: as `raw_rows`, or see `joined`.
    """
    own, other = _columns(schema)
    first, second = (raw_rows(require_table(file), options, names) for file, names in ((persons, own), (rows, other)))
    return joined(first, second, schema, (str(persons), str(rows)))


def joined(persons: pd.DataFrame, rows: pd.DataFrame, schema: Schema, names: tuple[str, str]) -> pd.DataFrame:
    """Returns two tables as one.

    A person without rows has one there. Rows of a person that the other table does not name come, too: what is said of
    such a person is missing.

    Args:
        persons: one row each.
        rows: theirs.
        schema: of both.
        names: of the tables, for messages.

    Raises:
        DataError: a column is missing, or persons stand twice in their table.
    """
    key = _persons(schema).id
    for table, wanted, name in zip((persons, rows), _columns(schema), names, strict=True):
        absent = [column for column in wanted if column not in table.columns]
        if absent:
            hint = nearest(absent[0], list(map(str, table.columns)))
            raise DataError(f"{name_of(name)} lacks the column '{absent[0]}'{hint}, which the schema says is in it")
    twice = int(persons[key].dropna().duplicated().sum())
    if twice:
        many = counted(twice, "row")
        raise DataError(f"{name_of(names[0])} has {many} too many: it must have one row of each person")
    own, other = _columns(schema)
    # Keys of one type: a file's are text, and a frame's may be categories or numbers.
    left, right = (table[list(wanted)].astype({key: object}) for table, wanted in ((persons, own), (rows, other)))
    return left.merge(right, on=key, how="outer", sort=False)


def name_of(table: str) -> str:
    """Returns how a sentence names a table."""
    return table if "/" in table or "." in table else f"the table '{table}'"


def apart(table: pd.DataFrame, schema: Schema) -> dict[str, pd.DataFrame]:
    """Returns a table of persons and one of rows, by their names.

    Args:
        table: joined.
        schema: of both; it names them.
    """
    persons = _persons(schema)
    assert persons.tables is not None
    own, other = ([name for name in names if name in table.columns] for names in _columns(schema))
    some = table[[name for name in row_columns(schema) if name in table.columns]]
    there = (some.notna() & (some != "")).any(axis=1)  # cells as they are written, or values
    each = table[own].drop_duplicates(persons.id).reset_index(drop=True)
    return dict(zip(persons.tables, (each, table.loc[there, other].reset_index(drop=True)), strict=True))


def _persons(schema: Schema) -> Persons:
    require_records(schema)
    assert schema.persons is not None
    return schema.persons


def _columns(schema: Schema) -> tuple[list[str], list[str]]:
    """Returns the columns of persons, and those of rows."""
    persons = _persons(schema)
    own = [persons.id, *persons.constant]
    order = [persons.order] if isinstance(persons.order, str) else []
    return own, [*dict.fromkeys([persons.id, *order, *row_columns(schema)])]
