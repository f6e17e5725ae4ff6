"""A schema with the column order and the dtypes of the DataFrames that it is used on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.schema import Schema
from fedsyn.schema.binned import BinnedColumn

if TYPE_CHECKING:
    import pandas as pd


def as_came(schema: Schema, frames: Sequence[pd.DataFrame]) -> Schema:
    """The schema with its columns in the order of the first frame, and with `stored` where it says nothing of it.

    A dtype is the format of a table, and public. It is not taken over where a single missing cell would change it
    (whole numbers and booleans in NumPy's dtypes, in a column that may be missing): there the schema's own is used,
    which has room for missing values.
    """
    order = [name for name in frames[0].columns if name in schema.every_column]
    data = schema.to_dict()
    columns = {name: data["columns"][name] for name in dict.fromkeys([*order, *data["columns"]])}
    for name, column in schema.columns.items():
        dtypes = {str(frame[name].dtype) for frame in frames if list(frame.columns).count(name) == 1}
        if column.stored is None and len(dtypes) == 1 and name in frames[0].columns:
            dtype = frames[0][name].dtype
            if str(dtype) != "object" and not _depends_on_rows(dtype, column):
                columns[name] = {**columns[name], "stored": str(dtype)}
    return Schema.from_dict({**data, "columns": columns})


def _depends_on_rows(dtype: Any, column: Any) -> bool:
    """Whether a missing cell more or less would make it another dtype."""
    if not column.missing or not isinstance(dtype, np.dtype):
        return False
    fractions = isinstance(column, BinnedColumn) and (not column.whole or getattr(column, "decimals", 0) > 0)
    return dtype.kind in "iub" or (dtype.kind == "f" and not fractions)
