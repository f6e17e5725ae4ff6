"""A table as it stands, before anybody says what its columns are: what a schema is drafted from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsyn.errors import DataError
from fedsyn.lazy import pa, pd, pq
from fedsyn.table.data.layout import TextLayout, layout_of, require_names
from fedsyn.table.data.opening import is_parquet, source_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import (
    Options,
    first_rows,
    options_for,
    readable,
    require_table,
)
from fedsyn.table.schema.frames import frame_of_arrow
from fedsyn.table.schema.values import parse_number

# Cells that are read of a file: 280,000 rows of 60 columns. What a schema says of a table shows in so many.
MOST_CELLS = 1 << 24


@dataclass(frozen=True, eq=False)
class Cells:
    """A table, or its first rows.

    Attributes:
        frame: of a text file, its cells as text (missing values are empty text, or what the file has in their place);
            of another source, the values in the types that they have there.
        options: how the file has to be read, where that differs from a plain CSV file.
        notes: what was found out, in sentences that quote no cell.
        text: whether `frame` holds text of a file.
    """

    frame: pd.DataFrame
    options: FileOptions
    notes: tuple[str, ...]
    text: bool


def read_cells(
    path: str | Path,
    options: Options = None,
    most: int = MOST_CELLS,
    columns: Sequence[str] | None = None,
) -> Cells:
    """Reads a file, or its first rows if it has more than `most` cells. Columns without a name are left out, and said.

    Args:
        path, options: as `read_table`.
        most: cells that are read, at least; whole rows.
        columns: names of a schema, by which the separator is found then.

    Raises:
        ConfigError, DataError: as `read_table`, and for a first line that names no columns, or one name twice.
    """
    path = require_table(path)
    chosen = options_for(path, options)
    with readable(path):
        cells = (
            _parquet(path, most, chosen)
            if is_parquet(path)
            else _text(layout_of(path, chosen, columns), most, columns is None)
        )
    if len(cells.frame) == 0:
        raise DataError(f"{path} has no rows{''.join(f'; {note}' for note in cells.notes)}")
    if not len(cells.frame.columns):
        raise DataError(f"{path} names no columns: put a line with the names of the columns at its top")
    return cells


def _text(layout: TextLayout, most: int, strict: bool) -> Cells:
    header = layout.header
    if strict:
        require_names(layout.path, header)
    rows = -(-most // len(header))
    frame = first_rows(layout, rows + 1, {"dtype": str})
    notes = list(layout.notes)
    if layout.file.fell_back:
        notes.append("bytes that are not UTF-8, read as Windows-1252 (--encoding names another)")
    if len(frame) > rows:
        notes.append(f"more than {rows:,} rows: what is proposed was read from the first {rows:,}")
    unnamed = [j for j, name in enumerate(header) if not name.strip()]
    if unnamed:
        notes.append(_left_out(unnamed, len(header)))
    first = frame.iloc[:20]
    filled = first[first.fillna("").ne("").any(axis=1)]
    if unnamed and len(filled) and _are_names(filled.iloc[0]):
        above = int(filled.index[0]) + 1
        joins = "--header 2 joins both rows, " if above == 1 else ""
        notes.append(f"the next row looks like names, too: {joins}--skip-rows {above} takes it alone")
    elif _has_units(frame):
        notes.append("the row under the names has words where the next have numbers (units?): --header 2 joins both")
    frame = frame.iloc[:rows, [j for j in range(len(header)) if j not in unnamed]]
    return Cells(frame, layout.options(), tuple(notes), text=True)


def _are_names(row: pd.Series) -> bool:
    """Whether a row has a text in every cell, none of them a number and none twice."""
    texts = [str(cell).strip() for cell in row.tolist()]
    return all(texts) and len(set(texts)) == len(texts) and not any(parse_number(text) is not None for text in texts)


def _has_units(frame: pd.DataFrame) -> bool:
    """Whether the first row has no number, but a word in a column where the next twenty have numbers."""
    cells = frame.iloc[:21].fillna("").astype(str).to_numpy()
    if len(cells) < 21 or any(parse_number(cell) is not None for cell in cells[0]):
        return False
    told = [column for column in cells.T if column[0].strip()]
    return any(all(parse_number(cell) is not None for cell in column[1:]) for column in told)


def _left_out(unnamed: list[int], columns: int) -> str:
    if unnamed == [0]:
        return "the first column has no name (df.to_csv writes an index like that): left out"
    if unnamed == [columns - 1]:
        return "the last column has no name (a separator at the end of each line?): left out"
    numbers = ", ".join(str(j + 1) for j in unnamed[:5])
    return f"columns without a name (number {numbers}): left out; name them in the first line to keep them"


def _parquet(path: Path, most: int, chosen: FileOptions) -> Cells:
    with pq.ParquetFile(source_of(path, chosen)) as file:
        names, nested = _plain_names(path, file.schema_arrow)
        rows = -(-most // max(1, len(names)))
        batches, done = [], 0
        for batch in file.iter_batches(min(rows, 1 << 17), columns=names):
            batches.append(batch)
            done += len(batch)
            if done >= rows:
                break
        kept = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata)
        table = pa.Table.from_batches(batches, schema=kept).slice(0, rows)
        more = file.metadata.num_rows > len(table)
    notes = [f"{file.metadata.num_rows:,} rows: what is proposed was read from the first {rows:,}"] if more else []
    if nested:
        notes.append(f"left out, as they hold lists, records or bytes: {', '.join(nested)}")
    return Cells(frame_of_arrow(table), FileOptions(), tuple(notes), text=False)


def _plain_names(path: Path, schema: Any) -> tuple[list[str], list[str]]:
    """Return the columns of a Parquet file that a table on paper could have, and those of lists, records or bytes.

    Raises:
        DataError: a column is there twice, or all hold lists, records or bytes.
    """
    kinds = (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    plain: list[str] = []
    nested: list[str] = []
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise DataError(f"{path} has more than one column named '{field.name}': rename one")
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        (nested if any(is_kind(kind) for is_kind in kinds) else plain).append(field.name)
    if nested and not plain:
        raise DataError(f"every column of {path} holds lists, records or bytes: make plain columns of them")
    return plain, nested
