"""Encoding a table block by block, with the codes that the whole table would get at once.

A block's columns come as what their file is read into: Arrow arrays (Parquet) or pandas Series (CSV). Nothing is built
per row. A column of few values is looked up value by value; numbers go to their bins as an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.errors import CellError
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.model import Schema
from fedsyn.table.schema.own_rows import NOTHING_OWN, OwnRows, WordBook
from fedsyn.table.schema.values import dates_in_numbers, text_in_column

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Codes of text that are remembered for a column.
_REMEMBERED = 1 << 16


class Block(NamedTuple):
    """Some rows of a table, encoded.

    Attributes:
        codes: (m, d) in the schema's dtype and order, C order.
        numbers: (m, ordered columns) float32 before binning, in the schema's order; NaN where missing.
        own: the values of an open schema's open columns, whose codes are placeholders; words are those known so far.
    """

    codes: np.ndarray
    numbers: npt.NDArray[np.float32]
    own: OwnRows = NOTHING_OWN


class BlockEncoder:
    """Encodes the blocks of one table, which all have the schema's columns. `finish` says what is wrong with the table.

    >>> import pyarrow as pa
    >>> schema = Schema.loads("columns: {age: {kind: numeric, lower: 0, upper: 99, dtype: integer, bins: 10}}")
    >>> encoder = BlockEncoder(schema)
    >>> encoder.block({"age": pa.array([7, 63, None])}).codes.tolist()
    [[0], [6], [0]]

    Args:
        schema: of the table.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.numeric = [name for name, column in schema.columns.items() if isinstance(column, BinnedColumn)]
        self.rows = 0
        self._known: dict[str, dict[str, int]] = {name: {} for name in schema.columns}
        self._texts = dict.fromkeys(self.numeric, 0)  # rows that hold what the column's kind cannot read
        self._flags = dict.fromkeys(self.numeric, 0)  # rows of blocks that hold true and false only
        self._numbers = dict.fromkeys(self.numeric, 0)  # rows with a number
        self._books = {
            name: WordBook(column, schema.missing_text)
            for name, column in schema.columns.items()
            if name in schema.open and isinstance(column, CategoricalColumn)
        }

    def block(self, columns: Mapping[str, pa.Array | pd.Series]) -> Block:
        """Encodes some rows.

        Args:
            columns: of the schema, all of one length.

        Raises:
            DataError: a numeric column holds dates, or any column lists or records.
        """
        size = len(columns[next(iter(self.schema.columns))])
        codes = np.empty((size, len(self.schema.columns)), dtype=self.schema.dtype)
        numbers = np.empty((size, len(self.numeric)), dtype=np.float32)
        own: dict[str, npt.NDArray[np.float64]] = {}
        index: dict[str, npt.NDArray[np.integer]] = {}
        for j, (name, column) in enumerate(self.schema.columns.items()):
            if isinstance(column, CategoricalColumn):
                codes[:, j] = self._categories(name, column, columns[name])
                if name in self._books:
                    texts, places, _ = _factorised(name, columns[name])
                    index[name] = self._books[name].places(texts)[places]
            else:
                values = self._values(name, column, columns[name])
                codes[:, j] = column.codes_of(values)
                if name in self.schema.open:
                    own[name] = values
                with np.errstate(over="ignore"):
                    numbers[:, self.numeric.index(name)] = values
        self.rows += size
        return Block(codes, numbers, OwnRows(own, {name: book.words for name, book in self._books.items()}, index))

    def finish(self) -> None:
        """Says what only the whole table shows.

        Raises:
            DataError: a column holds what its kind cannot read. Names the column, counts rows, quotes nothing.
        """
        for name in self.numeric:
            # A CSV reader takes a block of true and false for booleans; beside numbers they are text.
            bad = self._texts[name] + (self._flags[name] if self._numbers[name] or self._texts[name] else 0)
            if bad:
                column = self.schema.columns[name]
                assert isinstance(column, BinnedColumn)
                raise text_in_column(name, column.kind, column.expected, bad, self.rows)

    def _categories(self, name: str, column: CategoricalColumn, source: pa.Array | pd.Series) -> np.ndarray:
        values, index, is_text = _factorised(name, source)
        known = self._known[name]
        missing = self.schema.missing_text
        codes = []
        for value in values:
            # A cell of a CSV file stands for a category first; whatever else it is, `code_of` says.
            code = known.get(value) if type(value) is str else None
            if code is None:
                code = column.code_of(column.value_of(value, missing) if is_text else value, missing)
                if type(value) is str and len(known) < _REMEMBERED:
                    known[value] = code
            codes.append(code)
        codes.append(column.code_of(None, missing))  # the last entry: -1 of the index
        found: np.ndarray = np.asarray(codes, dtype=self.schema.dtype)[index]
        return found

    def _values(self, name: str, column: BinnedColumn, source: pa.Array | pd.Series) -> npt.NDArray[np.float64]:
        """(m,) float64 numbers, NaN where missing; counts what is not of the column's kind."""
        plain = _plain_numbers(source)
        if plain is not None:
            numbers, flags = plain
            own = column.of_plain(numbers)
            if own is not None:
                if flags:
                    self._flags[name] += len(numbers)
                else:
                    self._numbers[name] += int(np.count_nonzero(~np.isnan(numbers)))
                return own
            if np.isnan(numbers).all():  # a block of missing cells is one in every kind
                return numbers
        if column.reads_numbers:
            _refuse_dates(name, source)
        values, index, _ = _factorised(name, source)
        parsed, bad = column.parse_all(values, self.schema.missing_text)
        rows = np.bincount(index + 1, minlength=len(values) + 1)[1:]  # of each value
        flags_here = np.array([isinstance(value, bool) for value in values], dtype=bool) & _is_series(source)
        self._texts[name] += int(rows[bad].sum())
        self._flags[name] += int(rows[flags_here & ~bad].sum())
        self._numbers[name] += int(rows[~bad & ~flags_here & ~np.isnan(parsed)].sum())
        found: npt.NDArray[np.float64] = np.append(parsed, np.nan)[index]
        return found


def _is_series(source: Any) -> bool:
    return type(source).__module__.startswith("pandas")


def _plain_numbers(source: pa.Array | pd.Series) -> tuple[npt.NDArray[np.float64], bool] | None:
    """The numbers of a column that holds nothing else, and whether they are booleans; None for any other column."""
    if _is_series(source):
        if source.dtype.kind not in "biuf":
            return None
        return source.to_numpy(dtype=np.float64), source.dtype.kind == "b"
    import pyarrow as pa

    kind = source.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    if pa.types.is_boolean(kind):  # of the whole column, says a Parquet file: no block can differ
        source = source.cast(pa.uint8())
    if source.null_count == 0 or pa.types.is_floating(kind):
        return source.to_numpy(zero_copy_only=False).astype(np.float64, copy=False), False
    numbers: npt.NDArray[np.float64] = source.fill_null(0).to_numpy().astype(np.float64)
    numbers[source.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers, False


def _refuse_dates(name: str, source: pa.Array | pd.Series) -> None:
    if _is_series(source):
        return  # a CSV file is not read for dates
    import pyarrow as pa

    kind = source.type.value_type if pa.types.is_dictionary(source.type) else source.type
    if pa.types.is_timestamp(kind):
        raise dates_in_numbers(name)


def _factorised(name: str, source: pa.Array | pd.Series) -> tuple[list[Any], npt.NDArray[np.integer], bool]:
    """(different values, (m,) index of each row's value or -1 for missing, whether these are cells of a CSV file)."""
    import pandas as pd

    if _is_series(source):
        if isinstance(source.dtype, pd.CategoricalDtype):
            return source.cat.categories.tolist(), source.cat.codes.to_numpy(), True
        inverse, uniques = pd.factorize(source, use_na_sentinel=True)
        return uniques.tolist(), inverse, True
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(source.type):
        if pa.types.is_nested(source.type):
            raise CellError(f"column '{name}' holds lists or records; a schema describes single values")
        try:
            source = pc.dictionary_encode(source)
        except pa.ArrowNotImplementedError:  # a type without a hash kernel
            inverse, uniques = pd.factorize(source.to_pandas(), use_na_sentinel=True)
            return uniques.tolist(), inverse, False
    index = source.indices
    if index.null_count:
        index = index.cast(pa.int64()).fill_null(-1)
    return source.dictionary.to_pandas().tolist(), index.to_numpy(), False
