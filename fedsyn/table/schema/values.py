"""Tests on single values of whatever type.

They say what counts as missing, as a number, and as the same category.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from fedsyn.lazy import pd

# What a spreadsheet has in a cell that it cannot compute.
ERRORS = frozenset({"#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"})
# Text that stands for a missing value, unless it is one of the column's own categories.
MISSING_TEXT = ERRORS | {"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>"}


def parse_number(value: Any) -> float | None:
    """Returns the number that a value is or spells.

    None if it is not a number. NaN counts as one.
    """
    if isinstance(value, str) and "_" in value:  # Python reads 1_000; no table does
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None


def mostly_numbers(texts: Sequence[str]) -> bool:
    """Returns whether more than four of five texts are numbers.

    A number here is digits, with points, commas or a sign.
    """
    return sum(re.fullmatch(r"[+-]?[\d.,]*\d[\d.,]*", text) is not None for text in texts) > 0.8 * len(texts)


def written(value: Any) -> str:
    """Returns a value as it is written in a CSV file.

    A whole float is written like the integer, so 1 and 1.0 are the same.
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_missing(value: Any, missing_text: frozenset[str] = frozenset()) -> bool:
    """Returns whether a value of any type is missing.

    A text that stands for a missing value counts, too.
    """
    if isinstance(value, str):
        return value.strip() in missing_text
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def as_digits(value: Any, form: str) -> Any:
    """Returns a number, or digits, with the leading zeros of a form.

    The form is one of dates in digits alone, such as %d%m%Y: 1052024 is 01052024. Other values, and those of other
    forms, stay.

    >>> as_digits(1052024, "%d%m%Y"), as_digits(202405.0, "%Y%m"), as_digits("2024-05", "%Y-%m")
    ('01052024', '202405', '2024-05')
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = written(value) if number else value
    width = _width(form)
    return text.strip().zfill(width) if isinstance(text, str) and width and text.strip().isdigit() else text


_WIDTHS = {"Y": 4, "m": 2, "d": 2, "y": 2}


@cache
def _width(form: str) -> int:
    """Returns the digits of a form of nothing else, or 0."""
    return sum(_WIDTHS[code] for code in form[1::2]) if re.fullmatch(r"(%[Ymdy])+", form) else 0


def text_dtype() -> str:
    """pandas' dtype of text."""
    return "str" if int(pd.__version__.split(".")[0]) >= 3 else "object"


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
    """Yields the keys under which a category may match.

    They are the keys of a value, the most literal first.
    """
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
        if isinstance(value, int) and abs(value) < 2**53:  # pandas makes floats of integers beside a missing value
            yield ("text", str(float(value)))
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
