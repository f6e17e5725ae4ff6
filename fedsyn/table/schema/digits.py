"""Numbers read from the text of a file, cell by cell.

A cell is a number, or missing, or text, by itself: nothing that stands in other cells has a say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedsyn.domain import Flags, Floats
from fedsyn.lazy import pa, pc, pd
from fedsyn.table.schema.values import parse_number

# Numbers as Arrow and Python read alike.
_PLAIN = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"


def numbers_in(texts: pa.Array, missing: Collection[str], decimal: str = ".") -> pd.Series:
    """Returns the numbers that cells of text hold.

    A column of floats, NaN where a cell is missing. Where some cells are no numbers it is one of objects, which holds
    the text of those.

    >>> import pyarrow as pa
    >>> numbers_in(pa.array(["1,5", " 2", "NA ", ""]), ["", "NA"], ",").tolist()
    [1.5, 2.0, nan, nan]
    >>> numbers_in(pa.array(["1.5", "TRUE"]), [""]).tolist()
    [1.5, 'TRUE']

    Args:
        texts: (m,) strings.
        missing: texts that stand for a missing value. Those that are numbers stand for that number, however written.
        decimal: mark of the decimals. Where it is a comma, a cell with a point is no number.
    """
    cells = pc.utf8_trim_whitespace(texts)
    cells = pc.if_else(pc.is_in(cells, pa.array(sorted(missing), pa.string())), None, cells)
    # What Python alone can decide, text by text: None where nothing is left to it.
    odd = None
    pointed = cells if decimal == "." else pc.replace_substring(cells, ",", ".")
    numbers = _cast(pointed) if decimal == "." or not pc.any(pc.match_substring(cells, ".")).as_py() else None
    if numbers is None:
        plain = pc.match_substring_regex(pointed, _PLAIN)
        if decimal == ",":
            plain = pc.and_(plain, pc.invert(pc.match_substring(cells, ".")))
        numbers = _cast(pc.if_else(plain, pointed, None))
        assert numbers is not None
        odd = pc.if_else(plain, None, cells)
    absent = [number for word in missing if (number := parse_number(word)) is not None and number == number]
    result = pd.Series(numbers)
    if odd is not None:
        result = _with_odd(numbers, odd, decimal)
    return result.mask(result.isin(absent)) if absent else result


def numbers_at_once(values: Sequence[Any], missing_text: frozenset[str]) -> tuple[Floats, Flags] | None:
    """Returns the numbers of values that are nothing else, at once.

    The result has the form of `parse_all`, the numbers are those of `parse_number`. None where some value is neither a
    number nor missing.
    """
    try:
        texts = "".join(values)
    except TypeError:  # some are no text
        texts = "".join(value for value in values if isinstance(value, str))
    if "_" in texts:  # which Python reads as a mark of thousands
        return None
    try:
        numbers = np.array([math.nan if value in missing_text else float(value) for value in values], np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers, np.zeros(len(numbers), dtype=bool)


def _cast(cells: pa.Array) -> Floats | None:
    """Returns the numbers of text, NaN where it is null.

    None if some text is not plainly a number.
    """
    try:
        numbers: Floats = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return numbers if np.isfinite(numbers).sum() == len(cells) - cells.null_count else None


def _with_odd(numbers: Floats, odd: pa.Array, decimal: str) -> pd.Series:
    """Returns numbers with those that only Python reads.

    Text that it does not read stands beside them.
    """
    coded = odd.dictionary_encode()
    read = [_number(text, decimal) for text in coded.dictionary.to_pylist()]
    here = np.flatnonzero(odd.is_valid().to_numpy(zero_copy_only=False))
    codes = coded.indices.drop_null().to_numpy()
    if all(type(value) is float for value in read):
        numbers = numbers.copy()
        numbers[here] = np.array(read, dtype=np.float64)[codes]
        return pd.Series(numbers)
    mixed = numbers.astype(object)
    values = np.empty(len(read), dtype=object)
    values[:] = read
    mixed[here] = values[codes]
    return pd.Series(mixed)


def _number(text: str, decimal: str) -> float | str:
    """Returns the number of a text, or the text.

    A text that is a number by the other mark only stands in quotation marks, so that nobody reads it as one.
    """
    stripped = text.strip()
    number = parse_number(stripped if decimal == "." else stripped.replace(",", "."))
    if decimal == "," and "." in stripped:
        return text if number is None else f"'{text}'"
    return text if number is None else number
