"""Proposing a schema from a table. Everything it reads from the data is marked, and nothing runs before
approval.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.errors import DataError, nearest
from fedsyn.schema.base import Value
from fedsyn.schema.binned import NumericColumn
from fedsyn.schema.columns import CategoricalColumn, Column
from fedsyn.schema.model import Schema
from fedsyn.schema.values import MISSING_TEXT, parse_number, written

if TYPE_CHECKING:
    import pandas as pd

# A text column keeps this many of its most frequent categories; the rest becomes "other".
_MOST_CATEGORIES = 500
# An integer label with at most this many different values is a class, not a quantity.
_MOST_CLASSES = 20


def draft_schema(frame: pd.DataFrame, bins: int = 32, label: str | None = None) -> Schema:
    """Proposes a schema for a table, to be checked by a person.

    Numbers become numeric columns between the smallest and the largest value; text and booleans become
    categorical columns of the values seen, text with an "other" category. The label is special: integers of
    few values become classes, and it gets no "other", which would be one more class to predict.

    Args:
        frame: the table to read.
        bins: number of equal-width bins of every numeric column.
        label: the column to predict, or None.

    Returns:
        A schema whose columns list under `drafted` what was read; `require_approved` refuses it.

    Raises:
        DataError: no rows or columns, doubled column names, or `label` is not a column.
    """
    names = [str(name) for name in frame.columns]
    if len(frame) == 0 or not names:
        raise DataError("cannot draft a schema: the table has no rows or no columns")
    if len(set(names)) != len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise DataError(f"cannot draft a schema: more than one column is named '{doubled}'")
    if label is not None and label not in names:
        raise DataError(f"the table has no column '{label}'{nearest(label, names)}")
    columns: dict[str, Column] = {
        name: _draft_column(frame.iloc[:, j], bins, is_label=name == label) for j, name in enumerate(names)
    }
    return Schema(columns=columns, label=label)


def _draft_column(series: pd.Series, bins: int, is_label: bool) -> CategoricalColumn | NumericColumn:
    import pandas as pd

    if pd.api.types.is_bool_dtype(series.dtype):
        return CategoricalColumn(
            categories=(False, True), missing=bool(series.isna().any()), drafted=("kind", "missing")
        )
    numbers = _as_numbers(series)
    if numbers is None:
        return _draft_text(series, is_label)
    present = numbers[np.isfinite(numbers)]
    if present.size == 0:
        return _draft_text(series, is_label)
    whole = bool(np.all(present == np.floor(present)) and np.abs(present).max() <= 2**53)
    integer = whole and not _spelled_as_float(series)
    missing = bool(np.isnan(numbers).any())
    distinct = np.unique(present)
    if is_label and integer and len(distinct) <= _MOST_CLASSES:
        classes = tuple(int(value) for value in distinct)
        return CategoricalColumn(categories=classes, missing=missing, drafted=("kind", "categories", "missing"))
    drafted: tuple[str, ...] = ("kind", "bounds", "missing")
    return NumericColumn(
        lower=float(present.min()),
        upper=float(present.max()),
        bins=bins,
        dtype="integer" if integer else "float",
        missing=missing,
        drafted=drafted,
    )


def _as_numbers(series: pd.Series) -> np.ndarray | None:
    """(n,) float64 if every present value is a number, else None."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series.dtype):
        numbers: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    parsed = []
    for value in uniques.tolist():
        missing = isinstance(value, str) and value.strip() in MISSING_TEXT
        number = math.nan if missing else None if isinstance(value, bool) else parse_number(value)
        if number is None:
            return None
        parsed.append(number)
    numbers = np.array([*parsed, math.nan], dtype=np.float64)[inverse]
    return numbers


def _spelled_as_float(series: pd.Series) -> bool:
    """Whether a column of whole numbers is one of floats nevertheless: a float dtype without a missing value.

    Missing values turn integers into floats when a file is read, so those tell nothing.
    """
    return series.dtype.kind == "f" and not bool(series.isna().any())


def _draft_text(series: pd.Series, is_label: bool) -> CategoricalColumn:
    counts: dict[str, int] = {}
    missing = bool(series.isna().any())
    for value, count in series.value_counts(dropna=True).items():
        text = written(value)
        if text.strip() in MISSING_TEXT:
            missing = True
        else:
            counts[text] = counts.get(text, 0) + int(count)
    frequent = sorted(counts, key=lambda text: (-counts[text], text))[:_MOST_CATEGORIES]
    categories: tuple[Value, ...] = tuple(sorted(frequent))
    named = [text for text in frequent if text.casefold() == "other"]
    other = named[0] if named else "other"
    return CategoricalColumn(
        categories=categories or (other,),
        other=False if is_label and categories else other,
        missing=missing,
        drafted=("kind", "categories", "missing"),
    )
