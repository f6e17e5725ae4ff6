"""Files of persons and of their rows, read as one table."""

from __future__ import annotations

from pathlib import Path

from fedsyn.lazy import pd
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import raw_rows, require_table
from fedsyn.table.schema import Schema
from fedsyn.table.schema.joined import columns_apart, joined


def joined_files(
    persons: str | Path, rows: str | Path, schema: Schema, options: FileOptions | None, *, first: bool = False
) -> pd.DataFrame:
    """Returns two files as one table, cells as they are written.

    Args:
        persons: file of the persons.
        rows: file of their rows.
        schema: of both.
        options: how the files are read.
        first: see `joined`.

    Raises:
        ConfigError, DataError: as `raw_rows`, or see `joined`.
    """
    one, two = (
        raw_rows(require_table(file), options, names)
        for file, names in zip((persons, rows), columns_apart(schema), strict=True)
    )
    return joined(one, two, schema, (str(persons), str(rows)), first=first)
