"""Tables of other libraries.

Whatever gives Arrow's C stream comes in as a DataFrame, and goes out as it came.

Polars frames, Arrow tables and DuckDB relations all give the stream (`__arrow_c_stream__`), and pyarrow reads it. A
table goes out in the library that it came from. Of a DuckDB relation that is Arrow: a relation belongs to a connection
that may be closed by then, while DuckDB queries an Arrow table by the name of its variable on any connection.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from fedsyn.errors import DataError
from fedsyn.lazy import pa, pd

if TYPE_CHECKING:
    #: A table of pandas, Polars, Arrow or DuckDB.
    AnyFrame: TypeAlias = pd.DataFrame | "ArrowStream"
    #: One, or those of persons and of their rows, by their names.
    AnyTables: TypeAlias = AnyFrame | Mapping[str, AnyFrame]

#: What a table comes in and goes out as.
Kind = Literal["pandas", "polars", "arrow"]


class ArrowStream(Protocol):
    """A table of any library that gives Arrow's C stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def is_table(table: Any) -> bool:
    """Returns whether `as_frame` can try to read it."""
    return isinstance(table, pd.DataFrame) or (not isinstance(table, type) and hasattr(table, "__arrow_c_stream__"))


def as_frame(table: AnyFrame) -> pd.DataFrame:
    """Returns a table as a DataFrame.

    A DataFrame of pandas stays as it is. Any other table is read by its Arrow stream.

    Raises:
        DataError: not a table.
    """
    if isinstance(table, pd.DataFrame):
        return table
    expected = "expected a DataFrame (pandas, Polars, Arrow, a DuckDB relation)"
    if not is_table(table):
        lazy = "; collect it first: .collect()" if hasattr(table, "collect") else ""
        raise DataError(f"{expected}; found {type(table).__name__}{lazy}")
    try:
        return frame_of_arrow(pa.table(table))
    except (pa.ArrowException, TypeError, ValueError):  # a column; a stream that was read already
        raise DataError(f"{expected}; the Arrow stream of {type(table).__name__} is not a table") from None


def require_text_names(frame: pd.DataFrame) -> None:
    """Refuses a table with names of columns that are no text.

    `read_csv(header=None)` gives such a table.

    Raises:
        DataError: one sentence, with what renames them.
    """
    if not all(isinstance(name, str) for name in frame.columns):
        raise DataError("column names must be text: frame.columns = frame.columns.map(str)")


def kind_of(table: Any) -> Kind:
    """Returns the library that a table came from.

    Its type alone decides. For several tables it is the one of all of them, else pandas.
    """
    if isinstance(table, list | tuple):
        kinds = {kind_of(one) for one in table}
        return kinds.pop() if len(kinds) == 1 else "pandas"
    if type(table).__module__.partition(".")[0] == "polars":
        return "polars"
    return "pandas" if isinstance(table, pd.DataFrame) or not is_table(table) else "arrow"


def in_kind(table: pa.Table, kind: Kind) -> Any:
    """Returns an Arrow table as a table of another library.

    The library is not pandas. Ordered categories become an Enum of Polars.
    """
    if kind != "polars":
        return table
    polars = import_module("polars")
    ordered = [name for name in table.column_names if getattr(table[name].type, "ordered", False)]
    values = {name: table[name].combine_chunks().dictionary.to_pylist() for name in ordered}
    enums = {
        name: polars.Enum(categories)
        for name, categories in values.items()
        if all(isinstance(value, str) for value in categories)
    }
    return polars.from_arrow(table).cast(enums)


def frame_of_arrow(table: pa.Table) -> pd.DataFrame:
    """Returns an Arrow table as a DataFrame.

    It has the dtypes that pandas gave a table that it wrote. Integers stay integers beside missing values.
    """
    frame = table.to_pandas()
    for name in table.column_names:
        if table.column_names.count(name) == 1 and name in frame and is_whole(table[name].type):
            frame[name] = series_of(table[name]) if frame[name].dtype.kind in "fO" else frame[name]
        elif table.column_names.count(name) == 1 and name in frame and pa.types.is_decimal(table[name].type):
            frame[name] = table[name].to_pandas(types_mapper=pd.ArrowDtype)  # objects do not know their digits
    return frame.reset_index(drop=True)


def series_of(column: pa.Array | pa.ChunkedArray) -> pd.Series:
    """Returns a column of Arrow as pandas has it.

    Whole numbers and booleans stay such beside missing values.
    """
    kind = column.type
    if isinstance(column, pa.DictionaryArray) and pa.types.is_string(kind.value_type) and kind.index_type == pa.int32():
        # What Arrow makes of it, without an object for each label.
        codes = column.indices.fill_null(-1).to_numpy()
        return pd.Series(pd.Categorical.from_codes(codes, pd.Index(column.dictionary.to_pandas()), kind.ordered))
    return column.to_pandas(types_mapper=_nullable if is_whole(column.type) and column.null_count else None)


def is_whole(kind: pa.DataType) -> bool:
    """Returns whether values are whole numbers or booleans.

    Pandas makes floats or objects of them where some are missing.
    """
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _nullable(kind: pa.DataType) -> Any:
    names = {"bool": "boolean"}
    return pd.api.types.pandas_dtype(names.get(str(kind), str(kind).replace("uint", "UInt").replace("int", "Int")))


def as_decimals(texts: Sequence[str], absent: np.ndarray, stored: str) -> pd.Series:
    """Returns numbers as Arrow's decimals: objects, or pandas' own dtype of them.

    Args:
        texts: (n,) numbers.
        absent: (n,) which are missing.
        stored: the type, such as decimal128(10, 2), or the dtype, decimal128(10, 2)[pyarrow].
    """
    kind = decimal_type(stored)
    context, last = decimal.Context(prec=kind.precision), decimal.Decimal(1).scaleb(-kind.scale)
    values = [
        None if gone else context.quantize(decimal.Decimal(x), last) for x, gone in zip(texts, absent, strict=True)
    ]
    return pd.Series(values, dtype=pd.ArrowDtype(kind) if stored.endswith("[pyarrow]") else object)


def decimal_type(stored: str) -> Any:
    """Returns Arrow's type of a stored decimal(precision, scale)."""
    name, precision, scale = re.findall(r"\w+", stored)[:3]
    return getattr(pa, name)(int(precision), int(scale))
