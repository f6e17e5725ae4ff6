"""Sources of tables: benchmark tables, files, memory, OpenML, scikit-learn, SynthFS.

`load_dataset` is the one entry to a table with its schema; `source_cells` gives a table as it stands, before anybody
says what its columns are, to draft a schema from. A *source* is one of
    a registered name     `adult`, `magic`, `iris`, ... (`dataset_names()`); FEDSYN_DATA is searched first
    `synthfs`             the generator of FLAIM's appendix B.1.1: Gaussian features whose means differ from client to
                          client, with one knob for how much
    `sklearn:NAME`        a table that scikit-learn ships: iris, wine, digits, breast_cancer, diabetes
    `openml:NAME_OR_ID`   any OpenML table; needs a schema
    a path                `.csv`, `.tsv`, `.csv.gz`, `.xlsx`, `.parquet`, ...; needs a schema
    a table in memory     of pandas, Polars, Arrow or DuckDB; needs a schema
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsyn.errors import ConfigError, DataError, SchemaError, nearest
from fedsyn.lazy import pa, pc, pd, pq
from fedsyn.output import counted
from fedsyn.table.data.datasets import DatasetEntry, dataset_names, describe
from fedsyn.table.data.edges import MOST_NOTES, encoded_twice, footer_of
from fedsyn.table.data.layout import TextLayout, header_options, layout_of
from fedsyn.table.data.lines import RowReader
from fedsyn.table.data.opening import SUFFIXES, is_parquet, source_of
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import (
    Options,
    left_out,
    options_for,
    read_guessed,
    read_table,
    readable,
    require_table,
)
from fedsyn.table.data.sheets import dates_of_serials, is_serial
from fedsyn.table.schema import NumericColumn, Schema
from fedsyn.table.schema.frames import as_frame, frame_of_arrow
from fedsyn.table.schema.values import MISSING_TEXT, parse_number
from fedsyn.table.schema.vocabulary import known_words, words_of

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyFrame

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T]00:00(:00)?)?")
# Names under which scikit-learn's tables are registered, where its own name is taken by another table.
_SKLEARN_NAMES = {"breast_cancer": "breast_cancer_sklearn", "diabetes": "diabetes_sklearn"}


@dataclass(frozen=True)
class Dataset:
    """A table with its public schema.

    Attributes:
        frame: the rows, with at least the schema's columns.
        schema: the public schema, label included.
        name: the source's name, for reports.
        native_partition: (n,) int64 client of each row where the source has clients of its own (SynthFS),
            else None.
    """

    frame: pd.DataFrame
    schema: Schema
    name: str
    native_partition: np.ndarray | None = None

    def encode(self) -> np.ndarray:
        """(n, d) codes; see `Schema.encode`."""
        return self.schema.encode(self.frame)


def load_dataset(
    source: str | Path | AnyFrame,
    *,
    schema: Schema | str | Path | None = None,
    bins: int | None = None,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Loads a table together with its public schema.

    Approval of a drafted schema is not checked here: a run calls `schema.require_approved()`.

    Args:
        source: see the module.
        schema: a schema or the path of one. Needed for paths, DataFrames and OpenML; replaces the registered
            schema of a registered name.
        bins: overrides the number of equal-width bins of numeric columns (not explicit edges, not `bins:
            values`).
        label: overrides the schema's label.
        options: of `synthfs`: see `SynthFSOptions`. Of files: see `FileOptions`. Of a registered table with grouped
            categories (intrusion's 22 attacks in 4 groups): `grouped: false` keeps the raw values.

    Returns:
        The data set; its frame holds what `schema.encode` accepts.

    Raises:
        ConfigError: an unknown source or option.
        SchemaError: a schema is needed and missing, malformed, or has no such label.
        DataError: the table cannot be read or fetched, or does not have the schema's columns.
    """
    options = dict(options or {})
    loaded_schema = Schema.load(schema) if isinstance(schema, str | Path) else schema
    dataset = _load(source, loaded_schema, options)
    result = dataset.schema.adjusted(bins, label)
    result.require_columns(dataset.frame.columns, where=f"the table '{dataset.name}'")
    if len(dataset.frame) == 0:
        raise DataError(f"the table '{dataset.name}' has no rows")
    return Dataset(dataset.frame, result, dataset.name, dataset.native_partition)


def layouts(sources: Sequence[str], schema: Schema, options: Mapping[str, Any]) -> set[FileOptions]:
    """Returns the formats that the first lines of files show.

    Other sources show nothing.
    """
    paths = [Path(source) for source in sources if is_path(source)]
    return {header_options(path, options_for(path, options), schema.needed) for path in paths}


def source_cells(
    source: str,
    options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    aside: Sequence[str] = (),
) -> Cells:
    """Reads a source in the form that a schema is drafted from.

    Returns the cells of a file, or the values of any other source.

    Args:
        source: see the module.
        options: of a file, or of a generated source.
        columns, aside: as `read_cells`.

    Raises:
        ConfigError, DataError: as `load_dataset`.
    """
    if is_path(source):
        return read_cells(source, options, columns=columns, aside=aside)
    if source.startswith("openml:"):
        _only(dict(options or {}))
        frame = _fetch_openml(source)
    else:
        frame = _load(source, None, dict(options or {})).frame
    return Cells(frame, FileOptions(), (), text=False)


def _load(source: str | Path | AnyFrame, schema: Schema | None, options: dict[str, Any]) -> Dataset:
    if not isinstance(source, str | Path):
        _only(options)
        return Dataset(as_frame(source), needed(schema, "a DataFrame"), "table")
    text = str(source)
    if is_path(text):
        schema = needed(schema, text)
        return Dataset(read_table(text, schema, options), schema, Path(text).name.split(".")[0])
    if text == "synthfs":
        return _load_synthfs(schema, options)
    if text.startswith("openml:"):
        _only(options)
        schema = needed(schema, text)
        return Dataset(_fetch_openml(text), schema, text.removeprefix("openml:"))
    if text.startswith("sklearn:"):
        text = text.removeprefix("sklearn:")
        known = {n: _SKLEARN_NAMES.get(n, n) for n in ("iris", "wine", "digits", "breast_cancer", "diabetes")}
        if text not in known:
            raise ConfigError(f"scikit-learn ships no table '{text}'{nearest(text, known)}; known: {', '.join(known)}")
        text = known[text]
    elif Path(text).is_dir():  # "" is the current one
        raise DataError(f"{text or 'the data source'} is {'a folder' if text else 'empty'}: name a file, or a table")
    elif text not in dataset_names():
        names = ["synthfs", *dataset_names()]
        raise ConfigError(
            f"unknown data source '{text}'{nearest(text, names)}; a source is one of {', '.join(names)}, "
            f"sklearn:NAME, openml:NAME, or a file (.csv, .tsv, .xlsx, .parquet, ...)"
        )
    return _load_registered(text, schema, options)


def _load_registered(name: str, schema: Schema | None, options: dict[str, Any]) -> Dataset:
    from fedsyn.table.data.fetch import fetch

    entry = describe(name)
    has_groups = any(column.get("groups") for column in entry.schema_data["columns"].values())
    _only(options, *(["grouped"] if has_groups else []))
    if schema is None:
        schema = entry.schema_ if options.get("grouped", True) else entry.ungrouped()
    folder = os.environ.get("FEDSYN_DATA")
    if folder:
        for suffix in (".csv", ".csv.gz", ".parquet"):
            path = Path(folder) / f"{name}{suffix}"
            if path.is_file():
                return Dataset(_read_registered(path, entry, schema), schema, name)
    return Dataset(entry.adapt(fetch(entry.origin, name)), schema, name)


def _read_registered(path: Path, entry: DatasetEntry, schema: Schema) -> pd.DataFrame:
    """Reads a local copy of a registered table.

    The copy has the registry's names and values, or those of the table's origin.
    """
    try:
        return entry.adapt(read_table(path, schema))
    except DataError as error:
        if not entry.rename:
            raise
        adapted = entry.adapt(read_guessed(path))
        if set(schema.needed) <= set(adapted.columns):
            return adapted
        raise error


def _load_synthfs(schema: Schema | None, options: dict[str, Any]) -> Dataset:
    from fedsyn.config import parse_options

    chosen = parse_options(SynthFSOptions, options, "synthfs")
    frame, client = synthfs(chosen)
    return Dataset(frame, schema or synthfs_schema(chosen), "synthfs", client)


def _fetch_openml(source: str) -> pd.DataFrame:
    from fedsyn.table.data.fetch import fetch_openml

    return fetch_openml(source.removeprefix("openml:"))


def is_path(text: str) -> bool:
    """Returns whether a source is a file."""
    return any(text.lower().endswith(suffix) for suffix in SUFFIXES) or "/" in text or Path(text).is_file()


def needed(schema: Schema | None, what: str) -> Schema:
    """The schema; SchemaError without one."""
    if schema is None:
        raise SchemaError(f"{what} needs a schema; `fedsyn schema draft` proposes one from the data")
    return schema


def _only(options: dict[str, Any], *allowed: str) -> dict[str, Any]:
    for key in options:
        if key not in allowed:
            hint = nearest(key, allowed) or (f" (allowed: {', '.join(allowed)})" if allowed else "")
            raise ConfigError(f"unknown data option '{key}'{hint}")
    return options


# Cells ----------------------------------------------------------------------------------------------------------------


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
        heading: a sentence on what was taken for the names of the columns; empty of other sources.
    """

    frame: pd.DataFrame
    options: FileOptions
    notes: tuple[str, ...]
    text: bool
    heading: str = ""

    @property
    def said(self) -> tuple[str, ...]:
        """The heading, if there is one, and the notes."""
        return (*([self.heading] if self.heading else ()), *self.notes)


def read_cells(
    path: str | Path,
    options: Options = None,
    most: int = MOST_CELLS,
    columns: Sequence[str] | None = None,
    aside: Sequence[str] = (),
) -> Cells:
    """Reads a file, or its first rows if it is large.

    A file is large that has more than `most` cells. Columns without a name are left out, and a note says so.

    Args:
        path, options: as `read_table`.
        most: cells that are read, at least; whole rows.
        columns: names of a schema's columns, by which the separator is found then.
        aside: names of those that the schema sets aside.

    Raises:
        ConfigError, DataError: as `read_table`, and for a first line that names no columns, or one name twice.
    """
    path = require_table(path)
    chosen = options_for(path, options)
    with readable(path):
        cells = (
            _parquet(path, most, chosen)
            if is_parquet(path)
            else _text(layout_of(path, chosen, columns, aside), most, columns is None)
        )
    if len(cells.frame) == 0:
        raise DataError(f"{path} has no rows{''.join(f'; {note}' for note in cells.notes)}")
    if not len(cells.frame.columns):
        raise DataError(f"{path} names no columns: put a line with the names of the columns at its top")
    return cells


def _text(layout: TextLayout, most: int, strict: bool) -> Cells:
    header = layout.header
    rows = -(-most // len(header))
    columns, reader = _columns(layout, rows + 1)
    if strict:
        layout.file.require_text()
    notes = [*layout.notes, *([left_out(layout, reader)] if reader.left_out else [])]
    if strict and 2 * reader.left_out > reader.rows + reader.left_out:
        raise DataError(f"{layout.path}: {notes[-1]}")
    if layout.file.fell_back:
        notes.append("bytes that are not UTF-8, read as Windows-1252 (--encoding names another)")
    if reader.rows > rows:
        notes.append(f"more than {rows:,} rows: what is proposed was read from the first {rows:,}")
    elif layout.file.options.skip_footer is None:
        _require_no_footer(layout, columns, reader)
    unnamed = [j for j, name in enumerate(header) if not name.strip()]
    if unnamed:
        notes.append(_left_out(unnamed, len(header)))
    columns = [column.slice(0, rows) for column in columns]
    notes += _second_row(layout, [column.slice(0, 21).to_pylist() for column in columns], bool(unnamed))
    kept = [j for j in range(len(header)) if j not in unnamed]
    columns, dates = _with_dates(layout, columns, kept)
    twice = (sentence for j in kept if (sentence := _encoded_twice(header[j], columns[j])))
    frame = pa.table([columns[j] for j in kept], list(map(str, kept))).to_pandas()
    frame.columns = pd.Index([header[j] for j in kept])
    return Cells(frame, layout.options(), (*notes, *dates, *twice), text=True, heading=layout.heading)


def _columns(layout: TextLayout, most: int) -> tuple[list[pa.ChunkedArray], RowReader]:
    """Returns the columns of a file's first rows, and their reader."""
    parts: list[list[pa.Array]] = []
    with layout.file.open() as stream:
        reader = layout.reader(stream)
        for block in reader.blocks(range(len(layout.header))):
            parts.append(block)
            if reader.rows >= most:
                break
    whole = zip(*parts, strict=True) if parts else [()] * len(layout.header)
    return [pa.chunked_array(list(column), pa.string()) for column in whole], reader


def _require_no_footer(layout: TextLayout, columns: Sequence[pa.ChunkedArray], reader: RowReader) -> None:
    """Asks about totals and notes at the end of a file.

    Raises:
        DataError: names the line, and the options that leave it out and keep it.
    """
    sheet, rows = layout.file.sheet, reader.rows
    if rows < 2 or len(columns) < 2:
        return
    numbers: Sequence[int] = range(sheet.last - rows + 1, sheet.last + 1) if sheet else reader.last_lines
    numbers = numbers[-min(MOST_NOTES, rows - 1) :]
    last = zip(*(column.slice(rows - len(numbers)).to_pylist() for column in columns), strict=True)
    found = footer_of(list(last), numbers, lambda j: columns[j].to_pylist())
    if found is not None:
        raise DataError(
            f"line {found.first} of {layout.path} looks like totals or notes below the table, not like a row "
            f"({found.why}); leave out what follows line {found.first - 1} by --skip-footer {found.lines} (in a run "
            f"data.options.skip_footer: {found.lines}), or keep it by --skip-footer 0"
        )


def _second_row(layout: TextLayout, first: Sequence[Sequence[str]], unnamed: bool) -> list[str]:
    """Returns a hint on a row of more names, or of units.

    `first`: columns of the first rows.
    """
    rows = [list(map(str.strip, row)) for row in zip(*first, strict=True)]
    at = next((j for j, row in enumerate(rows) if any(row)), None)
    if at is None or not layout.lines:
        return []
    if unnamed and _are_names(rows[at]):
        above = layout.file.sheet.numbers[len(layout.lines)] if layout.file.sheet else layout.lines[-1] + 1 + at
        joins = f"--header {len(layout.lines) + 1} joins both rows, " if not at else ""
        return [f"the next row looks like names, too: {joins}--skip-rows {above - 1} takes it alone"]
    if _has_units(rows):
        return [
            "the row under the names has words where the next have numbers (units?): --header 2 joins both, and "
            "without it these columns are read as text, or left out"
        ]
    return []


def _are_names(texts: Sequence[str]) -> bool:
    """Returns whether a row can hold the names of columns.

    It has a text in every cell, none of them a number and none twice.
    """
    return all(texts) and len(set(texts)) == len(texts) and not any(parse_number(text) is not None for text in texts)


def _has_units(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether the first row holds units.

    It has no number, but a word in a column where the next twenty rows have numbers.
    """
    if len(rows) < 21 or any(parse_number(cell) is not None for cell in rows[0]):
        return False
    columns = [
        column for column in zip(*rows, strict=True) if column[0] not in MISSING_TEXT and not _ISO.fullmatch(column[0])
    ]
    return any(all(parse_number(cell) is not None for cell in column[1:]) for column in columns)


def _with_dates(
    layout: TextLayout, columns: list[pa.ChunkedArray], named: Sequence[int]
) -> tuple[list[pa.ChunkedArray], list[str]]:
    """Returns the columns of a sheet with dates for serial numbers.

    A note says so of each.

    A column of whole serial numbers holds dates if its name says so, or if other cells of it are dates.
    """
    sheet = layout.file.sheet
    if sheet is None:
        return columns, []
    columns, notes = list(columns), []
    for j in named:
        texts = [text for text in columns[j].unique().to_pylist() if text.strip() not in MISSING_TEXT]
        serials = [text for text in texts if is_serial(text.strip()) and text.strip().isdigit()]
        dates = [text for text in texts if _ISO.fullmatch(text.strip())]
        says_so = any(word in known_words("moments") for word in words_of(layout.header[j]))
        if serials and len(serials) + len(dates) == len(texts) and (dates or says_so):
            cells = columns[j].combine_chunks()
            count = pc.sum(pc.is_in(cells, pa.array(serials))).as_py()
            columns[j] = pa.chunked_array([dates_of_serials(cells, sheet.start, "%Y-%m-%d")])
            notes.append(f"{layout.header[j]}: {counted(count, 'cell')} with a serial number of Excel, read as dates")
    return columns, notes


def _encoded_twice(name: str, texts: pa.ChunkedArray) -> str:
    """Returns a hint on text that was encoded in UTF-8 twice.

    It quotes none, and is empty if there is none.
    """
    letters, size = pc.sum(pc.utf8_length(texts)).as_py(), pc.sum(pc.binary_length(texts)).as_py()
    found = encoded_twice(texts.unique().to_pylist()) if letters != size else ()
    if not found:
        return ""
    rows = pc.sum(pc.is_in(texts, pa.array(sorted(found)))).as_py()
    return (
        f"{name}: {counted(rows, 'cell')} of text that was encoded in UTF-8 twice (a letter with an accent has become "
        "two odd ones); unless the file is repaired, the synthetic table is written like that, too"
    )


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
        arrow_schema = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata)
        table = pa.Table.from_batches(batches, schema=arrow_schema).slice(0, rows)
        more = file.metadata.num_rows > len(table)
    notes = [f"{file.metadata.num_rows:,} rows: what is proposed was read from the first {rows:,}"] if more else []
    if nested:
        notes.append(f"left out, as they hold lists, records or bytes: {', '.join(nested)}")
    frame = frame_of_arrow(table)
    frame.columns = pd.Index(chosen.renamed(list(frame.columns)))
    return Cells(frame, FileOptions(rename=chosen.rename), tuple(notes), text=False)


def _plain_names(path: Path, schema: Any) -> tuple[list[str], list[str]]:
    """Returns the plain columns of a Parquet file and the others.

    A table on paper could have the plain ones. The others hold lists, records or bytes.

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


# SynthFS --------------------------------------------------------------------------------------------------------------


# Values beyond this many standard deviations from the outermost means are clipped into the outermost bins.
# The bounds are constants of the generator, so they are public.
_REACH = 5.0


class SynthFSOptions(BaseModel):
    """Options of the generator.

    Attributes:
        beta: exponent of the Zipf distribution of the means. 1 is the most skewed of the paper; the larger,
            the more alike the clients.
        clients: number of clients K; each draws its own means.
        rows: number of rows n, shared evenly among the clients.
        features: number of features d.
        n_zipf: largest mean; means lie in 1 .. n_zipf.
        seed: seed of the generator. The table is public test data, so this is no privacy matter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(default=2.0, ge=0)
    clients: int = Field(default=100, ge=1)
    rows: int = Field(default=50_000, ge=1)
    features: int = Field(default=10, ge=1)
    n_zipf: int = Field(default=40, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _a_row_each(self) -> SynthFSOptions:
        if self.clients > self.rows:
            raise ValueError(f"{self.rows} rows are too few for {self.clients} clients")
        return self


def synthfs_schema(options: SynthFSOptions) -> Schema:
    """Returns the public schema of SynthFS.

    It has 32 equal-width bins that reach five standard deviations beyond the outermost means.
    """
    column = NumericColumn(lower=1 - _REACH, upper=options.n_zipf + _REACH, bins=32, dtype="float")
    return Schema(columns=dict.fromkeys(_names(options), column))


def synthfs(options: SynthFSOptions) -> tuple[pd.DataFrame, np.ndarray]:
    """Generates the table.

    For each client k and feature m a mean is drawn from the Zipf distribution P(r) ~ r^-beta on 1 .. n_zipf
    (bounded, so every beta >= 0 is allowed), then the client's rows from N(mean, 1).

    Returns:
        The table (rows, features) with the clients' rows one after the other, and the (rows,) int64 client of
        each
        row: the native partition.
    """
    rng = np.random.default_rng(options.seed)
    ranks = np.arange(1, options.n_zipf + 1)
    mass = ranks ** -float(options.beta)
    means = rng.choice(ranks, size=(options.clients, options.features), p=mass / mass.sum()).astype(np.float64)
    # Client k gets rows k*n/K .. (k+1)*n/K: equal shares up to one row.
    client = np.arange(options.rows, dtype=np.int64) * options.clients // options.rows
    values = means[client] + rng.standard_normal((options.rows, options.features))
    return pd.DataFrame(values, columns=_names(options)), client


def _names(options: SynthFSOptions) -> list[str]:
    return [f"x{m}" for m in range(1, options.features + 1)]
