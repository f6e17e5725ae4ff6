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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedsyn.schema.columns import CategoricalColumn, NumericColumn
from fedsyn.schema.model import Schema
from fedsyn.schema.values import written

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "parquet"]

# Rows that become text at a time.
_LINES = 1 << 16


class TableWriter(ABC):
    """A file that grows by blocks. Several threads may `render` at once; one writes, in the blocks' order."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema

    @abstractmethod
    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator) -> Any:
        """What `write` takes of (n, d) codes; draws from `rng` what `schema.decode` draws."""

    @abstractmethod
    def write(self, rendered: Any) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _drawn(self, codes: npt.NDArray[np.integer], rng: np.random.Generator) -> dict[str, Any]:
        """(values, missing) of each numeric column, drawn in the order of the columns."""
        return {
            name: column.draw(codes[:, j].astype(np.intp), rng)
            for j, (name, column) in enumerate(self.schema.columns.items())
            if isinstance(column, NumericColumn)
        }


def table_writer(path: Path, schema: Schema) -> TableWriter:
    """The writer of a file whose name ends in `.csv` or `.parquet`."""
    return ParquetTable(path, schema) if path.suffix == ".parquet" else CsvTable(path, schema)


class CsvTable(TableWriter):
    """A CSV file in UTF-8 with a header row."""

    def __init__(self, path: Path, schema: Schema) -> None:
        import pyarrow as pa

        super().__init__(path, schema)
        self._alone = len(schema.columns) == 1
        self._texts = {
            name: pa.array([self._cell(value) for value in _values(column)], pa.string())
            for name, column in schema.columns.items()
            if isinstance(column, CategoricalColumn)
        }
        self._file = path.open("wb")
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(schema.columns)
        self._file.write(header.getvalue().encode())

    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator) -> list[pa.Buffer]:
        drawn = self._drawn(codes, rng)
        return [self._lines(codes, drawn, slice(at, at + _LINES)) for at in range(0, len(codes), _LINES)]

    def write(self, rendered: list[pa.Buffer]) -> None:
        for lines in rendered:
            self._file.write(lines)

    def close(self) -> None:
        self._file.close()

    def _lines(self, codes: npt.NDArray[np.integer], drawn: dict[str, Any], rows: slice) -> pa.Buffer:
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = []
        for j, name in enumerate(self.schema.columns):
            if name in drawn:
                values, absent = drawn[name]
                cells.append(self._number_cells(values[rows], absent[rows]))
            else:
                cells.append(self._texts[name].take(pa.array(np.ascontiguousarray(codes[rows, j]))))
        cells[-1] = pc.binary_join_element_wise(cells[-1], "", "\n")  # short text: cheaper than of the whole line
        lines = pc.binary_join_element_wise(*cells, ",") if len(cells) > 1 else cells[0]
        _, ends, text = lines.buffers()
        offsets = np.frombuffer(ends, np.int32, len(lines) + 1, offset=lines.offset * 4)
        return text.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))

    def _number_cells(self, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_]) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = pc.cast(pa.array(values), pa.string())
        if values.dtype.kind == "f":
            # Like Python, Arrow writes the shortest text that reads back as the number; but "2" where Python writes
            # "2.0", and exponents elsewhere.
            size = np.abs(values)
            plain = (size >= 1e-4) & (size < 1e10) & (np.floor(values) != values)
            if not plain.all():
                odd = pa.array([repr(value) for value in values[~plain].tolist()], pa.string())
                cells = pc.replace_with_mask(cells, pa.array(~plain), odd)
        if absent.any():
            cells = pc.if_else(pa.array(absent), self._cell(None), cells)
        return cells

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

        super().__init__(path, schema)
        self._values = {
            name: pa.array(_plain(_values(column))) for name, column in schema.columns.items() if not _is_number(column)
        }
        # The dtypes of the decoded table, for who reads the file into pandas.
        row = schema.decode(np.zeros((1, len(schema.columns)), schema.dtype), np.random.default_rng(0))
        fields = [pa.field(name, self._type(name, column)) for name, column in schema.columns.items()]
        described = pa.Schema.from_pandas(row, preserve_index=False).metadata
        self._fields = pa.schema(fields)
        # Without the Arrow schema a column of text is one of text to every reader, however it is stored.
        self._file = pq.ParquetWriter(path, self._fields, store_schema=False)
        if hasattr(self._file, "add_key_value_metadata"):  # not in the oldest pyarrow
            self._file.add_key_value_metadata({"pandas": described[b"pandas"].decode()})

    def _type(self, name: str, column: CategoricalColumn | NumericColumn) -> pa.DataType:
        import pyarrow as pa

        if isinstance(column, NumericColumn):
            return pa.float64() if column.dtype == "float" else pa.int64()
        kind = self._values[name].type
        return pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) else kind

    def render(self, codes: npt.NDArray[np.integer], rng: np.random.Generator) -> pa.RecordBatch:
        import pyarrow as pa

        drawn = self._drawn(codes, rng)
        arrays = []
        for j, (name, column) in enumerate(self.schema.columns.items()):
            if name in drawn:
                values, absent = drawn[name]
                arrays.append(pa.array(values, mask=absent if absent.any() else None))
                continue
            table, index = self._values[name], codes[:, j].astype(np.int32)
            missing = index == len(table) - 1 if column.missing else None
            if pa.types.is_string(table.type):
                values = table.slice(0, len(table) - 1) if column.missing else table
                arrays.append(pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), values))
            else:
                arrays.append(table.take(pa.array(index)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._fields)

    def write(self, rendered: pa.RecordBatch) -> None:
        self._file.write_batch(rendered, row_group_size=max(1, rendered.num_rows))

    def close(self) -> None:
        self._file.close()


def _is_number(column: CategoricalColumn | NumericColumn) -> bool:
    return isinstance(column, NumericColumn)


def _values(column: CategoricalColumn | NumericColumn) -> list[Any]:
    """The value of each code of a categorical column, None for missing, as `decode` gives it."""
    assert isinstance(column, CategoricalColumn)
    values: list[Any] = [*column.values, *([None] if column.missing else [])]
    numbers = not any(isinstance(value, bool | str) for value in column.values)
    if numbers and not all(isinstance(value, int) for value in column.values):
        return [value if value is None else float(value) for value in values]  # one float makes all of them floats
    return values


def _plain(values: list[Any]) -> list[Any]:
    """Values of one type; text where they have several (`encode` finds the category again)."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) <= 1 else [value if value is None else written(value) for value in values]
