"""Writing a decoded table block by block, as CSV or Parquet.

A CSV file has the cells as the schema writes them, whatever dtype the table had in memory: `Schema.cells`. A Parquet
file holds the same values in the types of the schema, missing ones as null, and reads back into pandas with the dtypes
that `Schema.decode` gives. A column whose categories are of several types (numbers and text) is one of text there:
Parquet has no mixed columns.
"""

from __future__ import annotations

import codecs
import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from fedsyn.domain import Codes, Floats
from fedsyn.lazy import pa, pc, pd, pq
from fedsyn.table.data.options import FileOptions
from fedsyn.table.data.readers import reads_numbers
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.frames import decimal_type
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.people import People
from fedsyn.table.schema.values import written

Format = Literal["csv", "parquet"]

# Rows that become text at a time.
_LINES = 1 << 16


class TableWriter(ABC):
    """File that grows by blocks.

    Several threads may `render` at once. One writes, in the order of the blocks.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @abstractmethod
    def render(self, codes: Codes, rng: np.random.Generator, start: int = 0, people: People | None = None) -> Any:
        """Renders (n, d) codes for `write`.

        `start` rows stand before them, and they are of `people`. Draws from `rng` what `decode` draws.
        """

    @abstractmethod
    def write(self, rendered: Any) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def table_writer(path: Path | BinaryIO, schema: Schema, layout: FileOptions | None = None) -> TableWriter:
    """Returns the writer of a `.csv` or `.parquet` file.

    The ending of the file's name decides. A file that is open already is written as CSV.

    `layout`: separator, encoding and decimal mark of a CSV file (`written_as`).
    """
    if isinstance(path, Path) and path.suffix == ".parquet":
        return ParquetTable(path, schema)
    return CsvTable(path, schema, layout or FileOptions())


class CsvTable(TableWriter):
    """CSV file with a header row.

    A file that was given open stays open.
    """

    def __init__(self, path: Path | BinaryIO, schema: Schema, layout: FileOptions) -> None:
        super().__init__(schema)
        self._separator, encoding = layout.separator or ",", layout.encoding or "utf-8"
        # Numbers that the reader takes for such; others stand as their column writes them.
        self._commas = {
            name for name, column in schema.every_column.items() if layout.decimal == "," and reads_numbers(column)
        }
        # What the encoding lacks is a question mark: the budget is spent, and `written_as` has looked.
        self._encoder = None if encoding == "utf-8" else codecs.getincrementalencoder(encoding)("replace")
        self._own = isinstance(path, Path)
        self._file = path.open("wb") if isinstance(path, Path) else path
        self.write([_line(schema.order, self._separator).encode()])

    def render(
        self, codes: Codes, rng: np.random.Generator, start: int = 0, people: People | None = None
    ) -> list[pa.Buffer]:
        cells = self.schema.cells(codes, rng, start, people)
        blocks = [cells.iloc[at : at + _LINES] for at in range(0, len(cells), _LINES)]
        return [_lines(block, self._separator, self._commas) for block in blocks]

    def write(self, rendered: Sequence[pa.Buffer | bytes]) -> None:
        for lines in rendered:
            self._file.write(lines if self._encoder is None else self._encoder.encode(bytes(lines).decode()))

    def close(self) -> None:
        if self._own:
            self._file.close()
        else:
            self._file.flush()


def _line(values: Sequence[Any], separator: str) -> str:
    """One row of a CSV file."""
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="\n").writerow(values)
    return line.getvalue()


def _lines(frame: pd.DataFrame, separator: str, commas: Collection[str]) -> pa.Buffer:
    """Returns the bytes that `frame.to_csv` writes, without the header.

    Arrow joins the cells three times as fast.

    `commas`: columns with decimal commas.
    """
    nothing, comma, end = (pa.scalar(mark, pa.large_string()) for mark in ("", separator, "\n"))
    alone = len(frame.columns) == 1
    cells = [_texts(frame[name], separator, "," if name in commas else ".", alone) for name in frame]
    cells[-1] = pc.binary_join_element_wise(cells[-1], end, nothing)  # short text: cheaper than of the whole line
    lines = pc.binary_join_element_wise(*cells, comma) if len(cells) > 1 else cells[0]
    _, ends, text = lines.buffers()
    return text.slice(0, int(np.frombuffer(ends, np.int64)[len(lines)]))


def _texts(series: pd.Series, separator: str, mark: str, alone: bool) -> pa.Array:
    """Returns the cells of a column as Arrow text.

    `alone` means that the table has no other column. Then a row that is empty needs quotes.
    """

    def cell(value: Any) -> str:
        return _line([value], separator)[:-1] if alone else _line([value, 0], separator)[:-3]

    if series.dtype.kind in "iu":
        return pc.fill_null(pc.cast(pa.array(series), pa.large_string()), cell(None))
    if series.dtype.kind == "f" and mark == ".":  # a number needs no quotes
        return pc.fill_null(_reprs(series.to_numpy(np.float64, na_value=np.nan)), cell(None))
    index, values = pd.factorize(series)
    if series.dtype.kind == "f":
        texts = [cell(repr(value).replace(".", mark)) for value in values.tolist()]
    elif mark != ".":  # numbers with exponents
        texts = [cell(value.replace(".", mark)) for value in values.tolist()]
    else:
        texts = list(map(cell, values.tolist()))
    return pa.array([*texts, cell(None)], pa.large_string()).take(pa.array(np.where(index < 0, len(texts), index)))


def _reprs(numbers: Floats) -> pa.Array:
    """Returns numbers as Python writes them, null for NaN.

    Like Python, Arrow writes the shortest text that reads back as the number, four times as fast. It writes 2 where
    Python writes 2.0, and has exponents elsewhere.
    """
    texts = pc.cast(pa.array(numbers, from_pandas=True), pa.large_string())
    size = np.abs(numbers)
    unlike = (numbers == np.rint(numbers)) | (size < 1e-4) | (size >= 1e10)
    if not unlike.any():
        return texts
    index, values = pd.factorize(numbers[unlike])
    reprs = pa.array(list(map(repr, values.tolist())), pa.large_string())
    return pc.replace_with_mask(texts, pa.array(unlike), reprs.take(pa.array(index)))


class ArrowRows:
    """Decodes codes into Arrow's types.

    Attributes:
        fields: the types of the table, with the pandas dtypes where a column is stored as category.
        pandas: the pandas dtypes, as Parquet files describe them.
        typed: whether a column is stored as category.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        row = self._plain(schema.decode(np.zeros((1, len(schema.columns)), schema.dtype), np.random.default_rng(0)))
        self.fields = pa.schema([pa.field(name, self._type(name, row[name])) for name in schema.order])
        self.pandas: bytes = pa.Schema.from_pandas(row, preserve_index=False).metadata[b"pandas"]
        self.typed = any(schema.every_column[name].stored == "category" for name in schema.order)
        if self.typed:
            self.fields = self.fields.with_metadata({b"pandas": self.pandas})

    def _type(self, name: str, values: pd.Series) -> pa.DataType:
        column = self.schema.every_column[name]
        if (column.stored or "").startswith("decimal"):
            return decimal_type(str(column.stored))
        if isinstance(column, CategoricalColumn) and column.stored != "category" and not column.mixed:
            values = column.cells(np.zeros(1, dtype=np.intp))
        kind = pa.array(values).type
        return pa.string() if pa.types.is_null(kind) or pa.types.is_large_string(kind) else kind

    def _plain(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns a decoded table with mixed categories as text.

        Categories of several types become text, and `encode` finds the category again.
        """
        for name in frame:
            column = self.schema.every_column[str(name)]
            if isinstance(column, CategoricalColumn) and column.mixed:
                frame[name] = frame[name].map(written, na_action="ignore")
        return frame

    def batch(
        self, codes: Codes, rng: np.random.Generator, start: int = 0, people: People | None = None
    ) -> pa.RecordBatch:
        """Returns the rows of (n, d) codes; arguments as `Schema.decode`."""
        frame = self._plain(self.schema.decode(codes, rng, start, people))
        return pa.RecordBatch.from_pandas(frame, schema=self.fields, preserve_index=False)


class ParquetTable(TableWriter):
    """A Parquet file; every block becomes a row group."""

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        rows = ArrowRows(schema)
        self._rows = rows
        # Without the Arrow schema a column of text is one of text to every reader, however it is stored.
        self._file = pq.ParquetWriter(path, rows.fields, store_schema=rows.typed)
        if not rows.typed and hasattr(self._file, "add_key_value_metadata"):  # not in the oldest pyarrow
            self._file.add_key_value_metadata({"pandas": rows.pandas.decode()})

    def render(
        self, codes: Codes, rng: np.random.Generator, start: int = 0, people: People | None = None
    ) -> pa.RecordBatch:
        return self._rows.batch(codes, rng, start, people)

    def write(self, rendered: pa.RecordBatch) -> None:
        self._file.write_batch(rendered, row_group_size=max(1, rendered.num_rows))

    def close(self) -> None:
        self._file.close()
