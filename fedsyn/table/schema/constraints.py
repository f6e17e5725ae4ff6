"""Whether a table obeys its schema's public constraints. How they are written: `fedsyn.table.schema.rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import Rows
from fedsyn.table.schema.model import Schema

if TYPE_CHECKING:
    import pandas as pd


def check(schema: Schema, frame: pd.DataFrame) -> dict[str, int]:
    """How many rows of a table break each constraint.

    >>> import pandas as pd
    >>> schema = Schema.loads('''
    ... columns:
    ...   born: {kind: integer, lower: 1900, upper: 2030}
    ...   died: {kind: integer, lower: 1900, upper: 2030, missing: true}
    ... constraints: [born <= died]
    ... ''')
    >>> check(schema, pd.DataFrame({"born": [1950, 1990, 1960], "died": [2001, 1980, None]}))
    {'born <= died': 1}

    Numbers are compared as they are, also beyond the bounds of the schema; categories as the schema groups them.

    Args:
        schema: of the table.
        frame: real or synthetic rows. A constraint whose columns are not all there is left out.

    Raises:
        DataError: a column does not hold what its kind says; its rows are counted, no value is quoted.
    """
    rows = Rows({}, {})
    for name, column in schema.every_column.items():
        if name not in frame.columns:
            continue
        if isinstance(column, BinnedColumn):
            numbers = column.numbers(frame[name], schema.missing_text)
            absent = np.isnan(numbers)
            rows.drawn[name] = (np.where(absent, 0.0, numbers), absent)
        elif isinstance(column, CategoricalColumn):
            rows.codes[name] = column.encode(frame[name], schema.missing_text)
    return schema.compiled.violations(rows)


__all__ = ["check"]
