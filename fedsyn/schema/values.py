"""Single values: what counts as missing, as a number, and as the same category, of whatever type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import CellError

if TYPE_CHECKING:
    import pandas as pd

# Text that stands for a missing value, unless it is one of the column's own categories.
MISSING_TEXT = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"})


def to_numbers(series: pd.Series, missing_text: frozenset[str] = MISSING_TEXT) -> np.ndarray:
    """(n,) float64 numbers of a numeric column, NaN where missing; booleans count as 0 and 1.

    Raises:
        DataError: text that is not a number, or dates. Names the column and counts the rows; never quotes a
            value.
    """
    import pandas as pd

    dtype = series.dtype
    if pd.api.types.is_bool_dtype(dtype) or (
        pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)
    ):
        numbers: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    if pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        raise dates_in_numbers(str(series.name))
    if isinstance(dtype, pd.CategoricalDtype):
        inverse, uniques = series.cat.codes.to_numpy(), series.cat.categories
    else:
        inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    parsed = [
        math.nan if isinstance(value, str) and value.strip() in missing_text else parse_number(value)
        for value in uniques.tolist()
    ]
    bad = np.array([number is None for number in parsed] + [False])[inverse]
    if bad.any():
        raise text_in_numbers(str(series.name), int(bad.sum()), len(series))
    numbers = np.array([math.nan if x is None else x for x in parsed] + [math.nan], dtype=np.float64)[inverse]
    return numbers


def text_in_numbers(name: str, bad: int, rows: int) -> CellError:
    """The refusal of a numeric column that holds text."""
    return CellError(
        f"column '{name}' is numeric in the schema but holds text that is not a number in "
        f"{bad} of {rows} rows; correct the rows, list the text under "
        "missing_values in the schema, or make the column categorical"
    )


def dates_in_numbers(name: str) -> CellError:
    """The refusal of a numeric column that holds dates."""
    return CellError(f"column '{name}' is numeric in the schema but holds dates; convert them to numbers")


def parse_number(value: Any) -> float | None:
    """The number a value is or spells, or None; NaN counts as one."""
    if isinstance(value, str) and "_" in value:  # Python reads 1_000; no table does
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None


def written(value: Any) -> str:
    """How a value is written in a CSV file; a whole float like the integer, so 1 and 1.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def same(a: Any, b: Any) -> bool:
    return key(a) == key(b)


def key(value: Any) -> tuple[str, Any]:
    """Keeps apart what Python's equality mixes up: True and 1."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        return ("number", value)
    return ("text", str(value))


def keys(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys under which a category may match a value, the most literal first."""
    yield key(value)
    if isinstance(value, bool):
        yield ("number", int(value))
        yield ("text", str(value))
        yield ("text", str(value).lower())
    elif isinstance(value, int | float):
        if value in (0, 1):
            yield ("bool", bool(value))
        yield ("text", written(value))
        yield ("text", str(value))
    else:
        text = str(value).strip()
        yield ("text", text)
        if text.lower() in ("true", "false"):
            yield ("bool", text.lower() == "true")
        number = parse_number(text)
        if number is not None and not math.isnan(number):
            yield ("number", number)
            if number in (0.0, 1.0):
                yield ("bool", bool(number))
