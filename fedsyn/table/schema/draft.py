"""Proposing the columns of a schema from a table.

Everything that is read from the table is marked, what points at persons is set aside, and nothing runs before approval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.table.schema.dtypes import typed_guess
from fedsyn.table.schema.guess import MOST_BINS, Asked, Guess, text_guess
from fedsyn.table.schema.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def draft_columns(
    frame: pd.DataFrame,
    bins: int = 32,
    label: str | None = None,
    keep: Collection[str] = (),
    *,
    decimal: str | None = None,
    text: bool = False,
) -> dict[str, Guess]:
    """Guesses what each column of a table is, to be checked by a person.

    The label is special: integers of few values become classes, it gets no "other", which would be one more class to
    predict, and it is kept.

    Args:
        frame: the table to read.
        bins: number of equal-width bins of every ordered column.
        label: the column to predict, or None.
        keep: columns that are not set aside, whatever they look like.
        decimal: the decimal mark of numbers in text, where somebody said it.
        text: the cells are those of a file of text: no dtype is to come back.

    Returns:
        A guess for each column, in the table's order.

    Raises:
        ConfigError: `bins` out of range, or a name in `keep` that is none of a column.
        DataError: no rows or columns, doubled column names, or `label` is not a column.
    """
    if not hasattr(frame, "columns"):
        raise DataError(f"cannot draft a schema: expected a DataFrame, found {type(frame).__name__}")
    if type(bins) is not int:
        raise ConfigError(f"bins must be a whole number, found {type(bins).__name__}")
    names = [str(name) for name in frame.columns]
    if len(frame) == 0 or not names:
        raise DataError("cannot draft a schema: the table has no rows or no columns")
    if len(set(names)) != len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise DataError(f"cannot draft a schema: more than one column is named '{doubled}'")
    if label is not None and label not in names:
        raise DataError(f"the table has no column '{label}'{nearest(label, names)}")
    if not 1 <= bins <= MOST_BINS:
        raise ConfigError(f"bins must lie between 1 and {MOST_BINS}; got {bins}")
    for name in keep:
        if name not in names:
            raise ConfigError(f"keep: the table has no column '{name}'{nearest(name, names)}")
    guesses = {}
    for j, name in enumerate(names):
        is_label = name == label
        asked = Asked(bins, is_label, is_label or name in keep, decimal, stored=not text)
        guesses[name] = _guess(frame.iloc[:, j].rename(name), asked)
    return guesses


def drafted_schema(guesses: Mapping[str, Guess], label: str | None = None) -> dict[str, Any]:
    """The guesses as `Schema.from_dict` takes them."""
    words = sorted({word for guess in guesses.values() for word in guess.missing_values})
    data: dict[str, Any] = {"columns": {name: guess.column for name, guess in guesses.items()}, "label": label}
    return data | ({"missing_values": words} if words else {})


def _guess(series: pd.Series, asked: Asked) -> Guess:
    found = typed_guess(series, asked)
    if found is not None:
        return found
    return text_guess(Profile.of(series), asked, str(series.dtype) if asked.stored else None)
