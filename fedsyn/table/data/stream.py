"""Reading a table from a file block by block, encoded: what a table larger than memory needs.

The codes are those that `schema.encode(read_table(...))` gives, with one difference: a whole number of a Parquet file
stays a whole number. Read as a whole, pandas turns the integers of a column into floats as soon as one row lacks a
value, and a category `"1.0"` or an integer beyond 2**53 would then depend on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsyn.errors import CellError, DataError, FedsynError
from fedsyn.lazy import pa, pd, pq
from fedsyn.table.data.layout import layout_of
from fedsyn.table.data.opening import is_parquet, source_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import (
    ALL_ROWS,
    Options,
    csv_blocks,
    csv_options,
    options_for,
    readable,
    require_table,
    say,
)
from fedsyn.table.data.spool import RowSpool
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.encoding import Block, Encoder, OwnRows
from fedsyn.table.schema.frames import series_of
from fedsyn.table.schema.model import Schema

# Rows of a block: a few megabytes of a table of fifteen columns. Changes no result.
ROWS = 1 << 17
# What is read of a column of a Parquet file at a time, in bytes.
_BUFFER = 1 << 20


def encoded_blocks(path: str | Path, schema: Schema, options: Options = None, rows: int = ROWS) -> Iterator[Block]:
    """The rows of a file, encoded, block by block in their order.

    Args:
        path, schema, options: as `read_table`.
        rows: the most rows of a block.

    Raises:
        DataError: as `read_table` and `Schema.encode`; what only the whole table shows comes after the last block. Of a
            damaged Parquet file the message says which row group cannot be read.
    """
    path = require_table(path)
    encoder = schema.encoder(csv=not is_parquet(path))
    frames = _frames(path, schema, options_for(path, options), rows)
    while (block := _next_block(path, frames, encoder)) is not None:
        if len(block.codes):
            yield block
    if encoder.rows == 0:
        raise DataError(f"{path} has no rows")
    encoder.finish()


def read_table(path: str | Path, schema: Schema, options: Options = None) -> pd.DataFrame:
    """Reads a table from a file, whole and not encoded: the cells of a text file's categories as text, or missing.

    Args:
        path: a text file with a header row (`.csv`, `.tsv`, `.txt`, packed or not), an Excel or a Parquet file.
        schema: reads only its columns, in its order, as it defines them.
        options: see `FileOptions`; what they leave out is found in the file.

    Returns:
        The table with at least one row.

    Raises:
        ConfigError: an option that cannot be used, or that means nothing for this kind of file.
        DataError: no such file, an unknown format, a damaged or empty file, no rows, or columns of the schema
            are missing. The message never quotes a cell.
    """
    path = require_table(path)
    frames = list(_frames(path, schema, options_for(path, options), ALL_ROWS))
    if not sum(map(len, frames)):
        raise DataError(f"{path} has no rows")
    table = pd.concat(frames, ignore_index=True)[list(schema.columns)]
    for name, column in schema.columns.items() if not is_parquet(path) else ():
        if isinstance(column, CategoricalColumn):
            table[name] = table[name].mask(table[name].isin(schema.missing_text - {*map(str, column.values)}))
    return table


def _frames(path: Path, schema: Schema, options: FileOptions, rows: int) -> Iterator[pd.DataFrame]:
    return (_parquet_blocks if is_parquet(path) else _text_blocks)(path, schema, options, rows)


def encode_file(path: str | Path, schema: Schema, options: Options = None) -> npt.NDArray[np.integer]:
    """Return the (n, d) read-only codes of a file. Raises DataError as `encode_open_file`."""
    return encode_open_file(path, schema, options)[0]


def encode_open_file(
    path: str | Path, schema: Schema, options: Options = None
) -> tuple[npt.NDArray[np.integer], OwnRows]:
    """Return a file's codes and its rows' own values in open columns, read block by block and kept in memory only.

    Raises:
        DataError: as `encoded_blocks`; or the file was replaced while it was read.
    """
    path = require_table(path)
    known = row_count(path, options)
    codes, own = RowSpool(len(schema.columns), schema.dtype, in_memory=1 << 62), []
    for block in encoded_blocks(path, schema, options):
        codes.append(block.codes)
        own.append(block.own)
    check_rows(path, len(codes), known)
    return codes.rows(), OwnRows.joined(own)


def check_rows(path: Path, found: int, known: int | None) -> None:
    """DataError if a file did not give the rows that its end speaks of: another may have been put in its place."""
    if known is not None and found != known:
        raise DataError(f"{path} is damaged, or was replaced while it was read: get the file again")


def row_count(path: Path, options: Options = None) -> int | None:
    """Rows of a Parquet file, which says so at its end; None for a CSV file, which has to be read.

    Raises:
        DataError: not a well-formed Parquet file.
    """
    if not is_parquet(path):
        return None
    with readable(path):
        return int(pq.read_metadata(source_of(path, options_for(path, options))).num_rows)


def _next_block(path: Path, frames: Iterator[pd.DataFrame], encoder: Encoder) -> Block | None:
    """The next block, encoded; what a library says of a cell that it cannot convert may quote it, and is left out."""
    try:
        frame = next(frames, None)
        return None if frame is None else encoder.block(frame)
    except (pa.ArrowException, ValueError, OverflowError, NotImplementedError) as error:
        if isinstance(error, FedsynError):
            raise
        raise CellError(
            f"{path}: a column holds values that its kind in the schema cannot take ({type(error).__name__})"
        ) from None


def _text_blocks(path: Path, schema: Schema, options: FileOptions, rows: int) -> Iterator[pd.DataFrame]:
    with readable(path):
        layout = layout_of(path, options, list(schema.columns))
        blocks = csv_blocks(layout, rows, csv_options(layout, schema))
    while True:
        with readable(path):
            frame = next(blocks, None)
        if frame is None:
            say(layout)
            return
        yield frame


def _parquet_blocks(path: Path, schema: Schema, options: FileOptions, rows: int) -> Iterator[pd.DataFrame]:
    """The rows of a Parquet file; text, which often repeats, as pandas' categories."""
    with readable(path):
        fields, source = pq.read_schema(source_of(path, options)), source_of(path, options)
        schema.require_columns(fields.names, where=str(path))
        kinds = {name: fields.field(name).type for name in schema.columns}
        for name, kind in kinds.items():
            if pa.types.is_nested(kind):
                raise CellError(f"column '{name}' holds lists or records; a schema describes single values")
        texts = [
            name
            for name, column in schema.columns.items()
            if isinstance(column, CategoricalColumn)
            and (pa.types.is_string(kinds[name]) or pa.types.is_large_string(kinds[name]))
        ]
        file = pq.ParquetFile(source, read_dictionary=texts, buffer_size=_BUFFER)
    with file:
        for group in range(file.num_row_groups):
            for batch in _batches(path, file, group, list(schema.columns), rows):
                yield pd.DataFrame({name: series_of(batch.column(name)) for name in schema.columns}, copy=False)


def _batches(path: Path, file: pq.ParquetFile, group: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """One row group, batch by batch; whatever is wrong with it is said of it."""
    try:
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)
    except (pa.ArrowException, OSError, EOFError, ValueError):
        raise DataError(
            f"{path} is damaged: row group {group + 1} of {file.num_row_groups} cannot be read; get the file again"
        ) from None
