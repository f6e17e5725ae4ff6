"""Tables read from text, Excel and Parquet files, whole or in blocks.

A CSV cell is text, and what it means depends on the schema, never on its neighbours: a column that holds only
`0` in one client's file and `0`, `4+` in another's must be read the same way by both. All cells are therefore read as
text. Those of categories are matched with the schema's, and those of numeric columns become numbers one by one; which
lines are rows is decided line by line (`fedsyn.table.data.lines`).

A table larger than memory is encoded block by block. The codes are those that `schema.encode(read_table(...))` gives,
with one difference: a whole number of a Parquet file stays a whole number. Read as a whole, pandas turns the integers
of a column into floats as soon as one row lacks a value, and a category `"1.0"` or an integer beyond 2**53 would then
depend on other rows.
"""

from __future__ import annotations

import logging
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags
from fedsyn.errors import ConfigError, DataError, FedsynError, nearest
from fedsyn.lazy import pa, pc, pd, pq
from fedsyn.output import counted
from fedsyn.table.data.encoded import RowSpool
from fedsyn.table.data.layout import TextLayout, layout_of
from fedsyn.table.data.lines import RowReader
from fedsyn.table.data.opening import SHEETS, SUFFIXES, TEXTS, is_parquet, source_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.sealed import is_sealed, plain_name
from fedsyn.table.data.sheets import dates_of_serials
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.digits import numbers_in
from fedsyn.table.schema.encoding import UNREADABLE, Block, OwnRows
from fedsyn.table.schema.frames import series_of
from fedsyn.table.schema.holdings import Holding
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.ordered import CalendarColumn
from fedsyn.table.schema.values import MISSING_TEXT

log = logging.getLogger(__name__)
# Names of tables, in a message.
_ENDINGS = ".csv, .tsv, .txt (and these with .gz, .bz2, .xz, .zip or .zst), .xlsx, .parquet"
# Files of other programs, and what to do with them.
_OTHERS = {
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".sav": "convert it: pandas.read_spss(...).to_parquet(...)",
    ".dta": "convert it: pandas.read_stata(...).to_parquet(...)",
    ".sas7bdat": "convert it: pandas.read_sas(...).to_parquet(...)",
    ".json": "convert it: pandas.read_json(...).to_parquet(...)",
    ".feather": "convert it: pandas.read_feather(...).to_parquet(...)",
}
# How files start that are called .csv now and then.
_STARTS = {
    b"\x1f\x8b": ".csv.gz",
    b"PK\x03\x04": ".xlsx or .csv.zip",
    b"PAR1": ".parquet",
    b"BZh": ".csv.bz2",
    b"\xfd7zXZ": ".csv.xz",
    b"\xd0\xcf\x11\xe0": ".xls",
}
Options = FileOptions | Mapping[str, Any] | None
#: More rows than any file has.
ALL_ROWS = 1 << 48


def read_guessed(path: Path) -> pd.DataFrame:
    """Reads a table whose columns are numbers, or text.

    A column is of numbers if all of its cells are. Raises DataError as `read_table`.
    """
    with readable(path):
        if is_parquet(path):
            return pd.read_parquet(path)
        layout = layout_of(path, FileOptions())
        parts = list(text_columns(layout, range(len(layout.header))))
    guessed = {}
    for name, texts in zip(layout.header, map(pa.chunked_array, zip(*parts, strict=True)), strict=True):
        numbers = numbers_in(texts.combine_chunks(), MISSING_TEXT)
        words = texts.to_pandas().astype(object)
        guessed[name] = words.mask(words.isin(MISSING_TEXT)) if numbers.dtype == object else numbers
    return pd.DataFrame(guessed)


def require_table(path: str | Path) -> Path:
    """Returns the path of an existing file with a table's name.

    Raises DataError for any other.
    """
    if "://" in str(path):
        raise DataError(f"{path} is an address, and fedsyn opens none: download the file, and name that")
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file in it")
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link that leads to no file")
    if not path.name.lower().endswith(SUFFIXES):
        advice = _OTHERS.get(path.suffix.lower())
        raise DataError(f"cannot read {path}: " + (advice or f"its name must end in one of {_ENDINGS}"))
    if not path.is_file():
        if path.exists():
            raise DataError(f"{path} is not a regular file; a table is read twice, so write it to one first")
        present = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"no such file: {path}{nearest(path.name, present)}")
    _require_its_name(path)
    return path


def _require_its_name(path: Path) -> None:
    """Refuses a text file that starts like another kind of file.

    Such a file was given a wrong name.
    """
    if not path.name.lower().endswith(TEXTS):
        return
    with readable(path), path.open("rb") as file:
        head = file.read(8)
    for start, ending in _STARTS.items():
        if head.startswith(start):
            raise DataError(f"{path} starts like a {ending} file; rename it so that it ends in {ending}")


def options_for(path: Path, options: Options) -> FileOptions:
    """Checked options of a file.

    Raises:
        ConfigError: an unknown option, a value that cannot be used, or an option that means nothing for the file.
    """
    chosen = FileOptions.of(options)
    inside = plain_name(path).suffix.lower()
    means = {
        "decimal",
        "header",
        "skip_rows",
        "rename",
        "skip_footer",
        *(["sheet"] if inside in SHEETS else ["separator", "encoding"]),
    }
    means = ({"rename"} if is_parquet(path) else means) | ({"key_file"} if is_sealed(path) else set())
    for key in chosen.model_dump(exclude_none=True):
        if key not in means:
            raise ConfigError(f"data.options.{key} means nothing for {path.name}: leave it out")
    return chosen


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns errors of pyarrow, and of files, into a DataError.

    The DataError holds nothing of the file's content.
    """
    try:
        yield
    except UnicodeError:
        raise DataError(
            f"{path} lacks the byte order mark of the encoding that was named: name another encoding (--encoding "
            "utf-16-le, in a run data.options.encoding), or none, which finds it out"
        ) from None
    except pa.ArrowInvalid:
        kind = "Parquet" if is_parquet(path) else "packed"
        raise DataError(f"{path} is not a well-formed {kind} file") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:
        damaged = "the Parquet file is damaged" if is_parquet(path) else "the file is damaged"
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or damaged}") from None


def reads_numbers(column: object) -> bool:
    """Returns whether a column's cells are plain numbers.

    Cells of every other kind are read as text.
    """
    return isinstance(column, BinnedColumn) and column.reads_numbers


def say(layout: TextLayout, reader: RowReader) -> None:
    """Logs what was found out about a text file.

    What its options say already is not logged.
    """
    notes = list(layout.notes)
    if layout.file.fell_back:
        notes.append("what is not UTF-8 read as Windows-1252")
    if layout.file.unreadable:
        notes.append(f"a cell with a NUL, or with bytes that are no {layout.file.encoding}, counts as unreadable")
    if notes:
        log.info("%s: %s", layout.path, "; ".join(notes))
    if reader.left_out:
        log.warning("%s: %s", layout.path, left_out(layout, reader))


def left_out(layout: TextLayout, reader: RowReader) -> str:
    """Returns a sentence on the lines that are no rows."""
    lines, first = counted(reader.left_out, "line"), reader.first_left_out
    where = f", line {first} first," if first is not None and layout.file.sheet is None else ""
    return (
        f"{lines}{where} {'is' if reader.left_out == 1 else 'are'} left out, with more cells than the "
        f"{counted(len(layout.header), 'name')}, or with a quotation mark that is never closed; a cell that holds the "
        "separator needs quotes around it"
    )


def text_columns(layout: TextLayout, wanted: Sequence[int], most: int = ALL_ROWS) -> Iterator[list[pa.Array]]:
    """Yields the texts of some columns of a file, block by block.

    Args:
        layout: of the file.
        wanted: places of the columns.
        most: rows after which no further block is read.
    """
    with layout.file.open() as stream:
        reader = layout.reader(stream)
        for block in reader.blocks(wanted):
            yield list(map(_with_unreadable, block)) if layout.file.unreadable else block
            if reader.rows >= most:
                return
    say(layout, reader)


def _with_unreadable(texts: pa.Array) -> pa.Array:
    """Returns texts, those with a NUL as unreadable values."""
    return pc.if_else(pc.match_substring(texts, "\0"), UNREADABLE, texts)


# Block by block -------------------------------------------------------------------------------------------------------


# Rows of a block: a few megabytes of a table of fifteen columns. Changes no result.
ROWS = 1 << 17
# What is read of a column of a Parquet file at a time, in bytes.
_BUFFER = 1 << 20
# Errors of values that pandas and Python cannot take, as they are raised for all of a column.
_UNTAKEN = (ValueError, OverflowError, NotImplementedError, KeyError, TypeError)


def encoded_blocks(
    path: str | Path, schema: Schema, options: Options = None, rows: int = ROWS, holding: Holding | None = None
) -> Iterator[Block]:
    """The rows of a file, encoded, block by block in their order.

    There is at least one block, which has no rows where the file has none.

    Args:
        path, schema, options: as `read_table`.
        rows: the most rows of a block.
        holding: counts what the rows hold, for the person who has them.

    Raises:
        DataError: as `read_table` and `Schema.encode`; what only the whole table shows comes after the last block. Of a
            damaged Parquet file the message says which row group cannot be read.
    """
    path = require_table(path)
    encoder = schema.encoder() if holding is None else holding.encoder
    encode = encoder.block if holding is None else holding.encoded
    frames = _frames(path, schema, options_for(path, options), rows, [] if holding is None else holding.beside)
    while (block := _next_block(path, frames, encode)) is not None:
        if block.read:
            yield block
    if encoder.rows == 0:
        yield encoder.block(pd.DataFrame({name: [] for name in schema.needed}, dtype=object))


def read_table(path: str | Path, schema: Schema, options: Options = None) -> pd.DataFrame:
    """Reads a table from a file, whole and not encoded.

    The cells of a text file's categories come as text, or missing.

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
    table = pd.concat(frames, ignore_index=True)[list(schema.needed)]
    for name in schema.needed if not is_parquet(path) else ():
        column: Any = schema.every_column[name]
        if not reads_numbers(column):
            table[name] = table[name].astype(object)
        if isinstance(column, CategoricalColumn):
            table[name] = table[name].mask(table[name].isin(schema.missing_text - {*map(str, column.values)}))
    return table


def _frames(
    path: Path, schema: Schema, options: FileOptions, rows: int, beside: Sequence[str] = ()
) -> Iterator[pd.DataFrame]:
    """Yields the rows of a file in blocks.

    They have the columns `beside` those of the schema, too, where the file has them.
    """
    if is_parquet(path):
        return _parquet_blocks(path, schema, options, rows, beside)
    return _text_blocks(path, schema, options, rows, beside)


def raw_rows(
    path: str | Path,
    options: Options,
    names: Sequence[str] | None,
    *,
    wanted: Flags | None = None,
    most: int = ALL_ROWS,
    rng: np.random.Generator | None = None,
) -> pd.DataFrame:
    """Reads rows of a file as they are written, without a schema.

    The cells of a text file are text, those of a Parquet file values.

    Args:
        path, options: as `read_table`.
        names: columns to read, in this order, of those that the file has; None: all that have a name of their own.
        wanted: (rows,) which rows to read; None: all.
        most: more rows are drawn by `rng`, in their order.
        rng: chooses rows; needed where there may be more.

    Raises:
        ConfigError, DataError: as `read_table`.
    """
    path, parts, read = require_table(path), list[pa.Table](), 0
    for block in _raw_blocks(path, options_for(path, options), names):
        here = slice(read, read + len(block))
        read = here.stop
        if wanted is not None:
            check_rows(path, min(read, len(wanted)), read)
            block = block.filter(pa.array(wanted[here]))
        key = np.zeros(len(block)) if rng is None else rng.random(len(block))
        parts.append(
            block.append_column(_KEY, pa.array(key)).append_column(_PLACE, pa.array(np.arange(len(block)) + here.start))
        )
        if sum(map(len, parts)) > 2 * most:
            parts = [_least(parts, most)]
    if wanted is not None:
        check_rows(path, read, len(wanted))
    table = _least(parts, most) if parts else pa.table({})
    return pd.DataFrame({name: _cells_of(table[name].combine_chunks()) for name in table.column_names[:-2]}, copy=False)


_KEY, _PLACE = "\0key", "\0place"  # columns that no table has


def _least(parts: Sequence[pa.Table], most: int) -> pa.Table:
    """Returns the rows with the least keys, in their order."""
    table = pa.concat_tables(parts, promote_options="permissive")
    if len(table) <= most:  # in order already
        return table
    kept = np.argpartition(table[_KEY].to_numpy(), most)[:most]
    return table.take(pa.array(np.sort(kept)))


def _raw_blocks(path: Path, options: FileOptions, names: Sequence[str] | None) -> Iterator[pa.Table]:
    with readable(path):
        if is_parquet(path):
            source = source_of(path, options)
            header = options.renamed(pq.read_schema(source).names)
        else:
            layout = layout_of(path, options, names)
            header = layout.header
        wanted = [name for name in (header if names is None else names) if header.count(name) == 1 and name.strip()]
        if not wanted:
            raise DataError(f"{path} has none of the columns that it is to be compared by")
        places = [header.index(name) for name in wanted]
        if is_parquet(path):
            file = pq.ParquetFile(source_of(path, options), buffer_size=_BUFFER)
            own = [file.schema_arrow.names[place] for place in places]
            for group in range(file.num_row_groups):
                for batch in _batches(path, file, group, own, ROWS):
                    yield pa.table([batch.column(name) for name in own], wanted)
            return
        for block in text_columns(layout, places):
            yield pa.table([column.dictionary_encode() for column in block], wanted)
        # A file of names alone has its columns, too.
        yield pa.table([pa.array([], pa.string()).dictionary_encode() for _ in wanted], wanted)


def encode_file(path: str | Path, schema: Schema, options: Options = None) -> Codes:
    """Returns the read-only codes of a file, (n, d).

    Raises DataError as `encode_open_file`.
    """
    return encode_open_file(path, schema, options)[0]


def encode_open_file(
    path: str | Path, schema: Schema, options: Options = None, holding: Holding | None = None
) -> tuple[Codes, OwnRows]:
    """Returns a file's codes and its values in open columns.

    The values are the rows' own. The file is read block by block, and the result is kept in memory only.

    Raises:
        DataError: as `encoded_blocks`; or the file was replaced while it was read.
    """
    path = require_table(path)
    known = row_count(path, options)
    codes, open_values, read = RowSpool(len(schema.columns), schema.dtype, in_memory=1 << 62), [], 0
    for block in encoded_blocks(path, schema, options, holding=holding):
        read += block.read
        codes.append(block.codes)
        open_values.append(block.own)
    check_rows(path, read, known)
    return codes.rows(), OwnRows.joined(open_values)


def check_rows(path: Path, rows: int, known: int | None) -> None:
    """Refuses a file that gave fewer or more rows than announced.

    Raises DataError if the file did not give the rows that its end speaks of. Another file may have been put
    in its place.
    """
    if known is not None and rows != known:
        raise DataError(f"{path} is damaged, or was replaced while it was read: get the file again")


def row_count(path: Path, options: Options = None) -> int | None:
    """Returns the number of rows of a Parquet file.

    The file says so at its end. None for any other file, such as a CSV file, which has to be read.

    Raises:
        DataError: not a well-formed Parquet file.
    """
    if not is_parquet(path):
        return None
    with readable(path):
        return int(pq.read_metadata(source_of(path, options_for(path, options))).num_rows)


def _next_block(path: Path, frames: Iterator[pd.DataFrame], encode: Callable[[pd.DataFrame], Block]) -> Block | None:
    """Returns the next block, encoded.

    A library's message about a cell that it cannot convert may quote the cell, and is left out.
    """
    try:
        frame = next(frames, None)
        return None if frame is None else encode(frame)
    except (pa.ArrowException, ValueError, OverflowError, NotImplementedError) as error:
        if isinstance(error, FedsynError):
            raise
        raise DataError(f"{path} cannot be encoded ({type(error).__name__})") from None


def _text_blocks(
    path: Path, schema: Schema, options: FileOptions, rows: int, beside: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """Yields the rows of a text file in blocks.

    Numbers come as floats, beside the text of cells that are no numbers. Everything else is text, as pandas'
    categories.
    """
    with readable(path):
        layout = layout_of(path, options, schema.needed, list(schema.aside))
        schema.require_columns(layout.header, where=str(path))
        wanted = [*dict.fromkeys([*schema.needed, *(name for name in beside if name in layout.header)])]
        blocks = text_columns(layout, [layout.header.index(name) for name in wanted])
    while True:
        with readable(path):
            block = next(blocks, None)
        if block is None:
            return
        for start in range(0, len(block[0]), rows):
            cells = dict(zip(wanted, (column[start : start + rows] for column in block), strict=True))
            yield pd.DataFrame({name: _read(cells[name], name, layout, schema) for name in cells}, copy=False)


def _read(texts: pa.Array, name: str, layout: TextLayout, schema: Schema) -> pd.Series:
    """Returns cells of text as the kind of their column takes them."""
    column, sheet = schema.every_column[name], layout.file.sheet
    if reads_numbers(column):
        return numbers_in(texts, schema.missing_text, layout.decimal)
    if sheet is not None and isinstance(column, CalendarColumn):
        iso = "%Y-%m-%d" if column.step == "day" else "%Y-%m-%dT%H:%M:%S"
        texts = dates_of_serials(texts, sheet.start, column.format or iso)
    return texts.dictionary_encode().to_pandas()


def _parquet_blocks(
    path: Path, schema: Schema, options: FileOptions, rows: int, beside: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """Yields the rows of a Parquet file in blocks.

    Text, which often repeats, comes as pandas' categories.
    """
    with readable(path):
        fields, source = pq.read_schema(source_of(path, options)), source_of(path, options)
        names = options.renamed(fields.names)
        schema.require_columns(names, where=str(path))
        wanted = [*dict.fromkeys([*schema.needed, *(name for name in beside if name in names)])]
        own = {name: fields.names[names.index(name)] for name in wanted}  # as the file has them
        kinds = {name: fields.field(own[name]).type for name in schema.needed}
        texts = [
            own[name]
            for name in schema.needed
            if isinstance(schema.every_column[name], CategoricalColumn)
            and (pa.types.is_string(kinds[name]) or pa.types.is_large_string(kinds[name]))
        ]
        file = pq.ParquetFile(source, read_dictionary=texts, buffer_size=_BUFFER)
    with file:
        for group in range(file.num_row_groups):
            for batch in _batches(path, file, group, [*own.values()], rows):
                yield pd.DataFrame({name: _cells_of(batch.column(own[name])) for name in own}, copy=False)


def _cells_of(column: pa.Array) -> pd.Series:
    """Returns a column of a Parquet file as pandas has it.

    A cell that pandas cannot take, and a list or record, is text that no column can place: what the others are does
    not depend on it.
    """
    if not pa.types.is_nested(column.type):
        try:
            column.validate(full=True)  # text that is no UTF-8 is found here, and by pandas only when it is looked at
            return series_of(column)
        except (pa.ArrowException, *_UNTAKEN):
            pass
    return pd.Series([_cell_of(cell) for cell in column], dtype=object)


def _cell_of(cell: pa.Scalar) -> Any:
    if not cell.is_valid or pa.types.is_nested(cell.type):
        return UNREADABLE if cell.is_valid else None
    try:
        return cell.as_py()
    except (pa.ArrowException, *_UNTAKEN):
        return UNREADABLE


def _batches(path: Path, file: pq.ParquetFile, group: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yields one row group, batch by batch.

    The error message names the row group, whatever is wrong with it.
    """
    try:
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)
    except (pa.ArrowException, OSError, EOFError, ValueError):
        raise DataError(
            f"{path} is damaged: row group {group + 1} of {file.num_row_groups} cannot be read; get the file again"
        ) from None
