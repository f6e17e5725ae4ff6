"""Writing a decoded table block by block, as CSV or Parquet.

The bytes of a CSV file are those of `schema.decode(codes, rng).to_csv(path, index=False)`, made faster: a category
becomes text once and is looked up; numbers become text in Arrow. A Parquet file holds the same values in the types of
the schema, missing ones as null, and reads back into pandas with the dtypes that `decode` gives. A column whose
categories are of several types (numbers and text) is one of text there: Parquet has no mixed columns.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import Rows
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.values import written

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Format = Literal["csv", "parquet"]

# Rows that become text at a time.
_LINES = 1 << 16


class TableWriter(ABC):
    """A file that grows by blocks. Several threads may `render` at once; one writes, in the blocks' order."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @abstractmethod
    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator, start: int = 0) -> Any:
        """What `write` takes of (n, d) codes, before which `start` rows stand; draws from `rng` what `decode` draws."""

    @abstractmethod
    def write(self, rendered: Any) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def table_writer(path: Path | BinaryIO, schema: Schema) -> TableWriter:
    """The writer of a file whose name ends in `.csv` or `.parquet`; of CSV to a file that is open already."""
    if isinstance(path, Path) and path.suffix == ".parquet":
        return ParquetTable(path, schema)
    return CsvTable(path, schema)


class CsvTable(TableWriter):
    """A CSV file in UTF-8 with a header row. A file that was given open stays open."""

    def __init__(self, path: Path | BinaryIO, schema: Schema) -> None:
        import pyarrow as pa

        super().__init__(schema)
        self._own = isinstance(path, Path)
        self._alone = len(schema.order) == 1
        self._texts = {
            name: pa.array([self._cell(value) for value in _values(column)], pa.string())
            for name, column in schema.every_column.items()
            if isinstance(column, CategoricalColumn)
        }
        self._file = path.open("wb") if isinstance(path, Path) else path
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(schema.order)
        self._file.write(header.getvalue().encode())

    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator, start: int = 0) -> list[pa.Buffer]:
        drawn = self.schema.drawn(codes, rng)
        fresh = self.schema.fresh(start, len(codes), rng)
        return [self._lines(drawn.taken(part), fresh, part) for part in _parts(len(codes))]

    def write(self, rendered: list[pa.Buffer]) -> None:
        for lines in rendered:
            self._file.write(lines)

    def close(self) -> None:
        if self._own:
            self._file.close()
        else:
            self._file.flush()

    def _lines(self, drawn: Rows, fresh: Mapping[str, pd.Series], rows: slice) -> pa.Buffer:
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = []
        for name in self.schema.order:
            if name in drawn.drawn:
                cells.append(self._number_cells(self.schema.every_column[name], *drawn.drawn[name]))
            elif name in fresh:
                cells.append(pa.array([self._cell(value) for value in fresh[name].iloc[rows].tolist()], pa.string()))
            else:
                cells.append(self._texts[name].take(pa.array(np.ascontiguousarray(drawn.codes[name]))))
        cells[-1] = pc.binary_join_element_wise(cells[-1], "", "\n")  # short text: cheaper than of the whole line
        lines = pc.binary_join_element_wise(*cells, ",") if len(cells) > 1 else cells[0]
        _, ends, text = lines.buffers()
        offsets = np.frombuffer(ends, np.int32, len(lines) + 1, offset=lines.offset * 4)
        return text.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))

    def _number_cells(self, column: Any, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_]) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = column.cells(values, absent)
        if column.reads_numbers:  # nothing to quote, unless an empty cell is alone in its line
            return pc.if_else(pa.array(absent), self._cell(None), cells) if self._alone and absent.any() else cells
        distinct = cells.dictionary_encode()
        texts = pa.array([self._cell(text or None) for text in distinct.dictionary.to_pylist()], pa.string())
        return texts.take(distinct.indices)

    def _cell(self, value: Any) -> str:
        """How pandas writes a value of a category."""
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([value] if self._alone else [value, 0])
        return line.getvalue().removesuffix("\n" if self._alone else ",0\n")


class ParquetTable(TableWriter):
    """A Parquet file; every block becomes a row group."""

    def __init__(self, path: Path, schema: Schema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(schema)
        self._typed = any(schema.every_column[name].stored == "category" for name in schema.order)
        self._values = {
            name: pa.array(_plain(_values(column)))
            for name, column in schema.every_column.items()
            if isinstance(column, CategoricalColumn)
        }
        # The dtypes of the decoded table, for who reads the file into pandas.
        row = schema.decode(np.zeros((1, len(schema.columns)), schema.dtype), np.random.default_rng(0))
        self._fields = pa.schema([pa.field(name, self._type(name, row[name])) for name in schema.order])
        described = pa.Schema.from_pandas(row, preserve_index=False).metadata
        if self._typed:
            self._fields = self._fields.with_metadata({b"pandas": described[b"pandas"]})
        # Without the Arrow schema a column of text is one of text to every reader, however it is stored.
        self._file = pq.ParquetWriter(path, self._fields, store_schema=self._typed)
        if not self._typed and hasattr(self._file, "add_key_value_metadata"):  # not in the oldest pyarrow
            self._file.add_key_value_metadata({"pandas": described[b"pandas"].decode()})

    def _type(self, name: str, values: pd.Series) -> pa.DataType:
        import pyarrow as pa

        column = self.schema.every_column[name]
        if name in self._values:
            kind = self._values[name].type
            as_categories = column.stored == "category" or (not self._typed and pa.types.is_string(kind))
            return pa.dictionary(pa.int32(), kind, getattr(column, "ordered", False)) if as_categories else kind
        stored = column.stored or ""
        if stored.startswith("decimal"):
            return pa.decimal128(38, getattr(column, "decimals", 0))
        kind = pa.array(values).type
        return pa.string() if pa.types.is_null(kind) or pa.types.is_large_string(kind) else kind

    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator, start: int = 0) -> pa.RecordBatch:
        import pyarrow as pa

        drawn = self.schema.drawn(codes, rng)
        fresh = self.schema.fresh(start, len(codes), rng)
        arrays = []
        for name, field in zip(self.schema.order, self._fields, strict=True):
            if name in drawn.drawn:
                column: Any = self.schema.every_column[name]
                values = column.restored(*drawn.drawn[name])
                arrays.append(pa.array(values, type=field.type, from_pandas=True))
            elif name in fresh:
                arrays.append(pa.array(fresh[name], type=field.type, from_pandas=True))
            else:
                arrays.append(self._categories(name, drawn.codes[name].astype(np.int32), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields)

    def _categories(self, name: str, index: npt.NDArray[np.int32], kind: pa.DataType) -> pa.Array:
        import pyarrow as pa

        table, column = self._values[name], self.schema.every_column[name]
        missing = index == len(table) - 1 if column.missing else None
        if pa.types.is_dictionary(kind):
            values = table.slice(0, len(table) - 1) if column.missing else table
            return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), values, ordered=kind.ordered)
        return table.take(pa.array(index))

    def write(self, rendered: pa.RecordBatch) -> None:
        self._file.write_batch(rendered, row_group_size=max(1, rendered.num_rows))

    def close(self) -> None:
        self._file.close()


def _parts(rows: int) -> list[slice]:
    """The rows that become text at a time."""
    return [slice(at, at + _LINES) for at in range(0, rows, _LINES)]


def _values(column: CategoricalColumn) -> list[Any]:
    """The value of each code of a categorical column, None for missing, as `decode` gives it."""
    values: list[Any] = [*column.values, *([None] if column.missing else [])]
    numbers = not any(isinstance(value, bool | str) for value in column.values)
    if numbers and not all(isinstance(value, int) for value in column.values):
        return [value if value is None else float(value) for value in values]  # one float makes all of them floats
    return values


def _plain(values: list[Any]) -> list[Any]:
    """Values of one type; text where they have several (`encode` finds the category again)."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) <= 1 else [value if value is None else written(value) for value in values]
