"""Proposing the columns of a schema from a table.

Everything that is read from the table is marked, what points at persons is set aside, and nothing runs before approval.
A column that has a dtype already (of pandas, or of what pandas makes of Arrow) is guessed here, one of text in `guess`.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.table.schema import persons
from fedsyn.table.schema.aside import DropColumn, IdentifierColumn
from fedsyn.table.schema.base import Reading
from fedsyn.table.schema.columns import BooleanColumn, CategoricalColumn
from fedsyn.table.schema.guess import (
    FEW_ROWS,
    MOST_BINS,
    Guess,
    GuessOptions,
    Written,
    made,
    places_of,
    proposed,
    quantity,
    set_aside,
    text_guess,
)
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.rounding import outward_days
from fedsyn.table.schema.temporal import DateColumn, DatetimeColumn, DurationColumn, TemporalColumn, TimeColumn
from fedsyn.table.schema.written_times import span_of

if TYPE_CHECKING:
    import pandas as pd


def typed_guess(series: pd.Series, asked: GuessOptions) -> Guess | None:
    """A guess from a dtype, or from the types of Python's objects; None for what has to be looked at like text."""
    import pandas as pd

    dtype, present = series.dtype, series.dropna()
    objects = dtype.kind == "O" or (isinstance(dtype, pd.ArrowDtype) and dtype.type in (dt.date, dt.time))
    types = {type(value) for value in present.iloc[:1000].tolist()} if objects else set()
    keys: dict[str, Any] = {"stored": str(dtype)}
    if isinstance(dtype, pd.CategoricalDtype):
        return _category(series, asked, keys)
    if pd.api.types.is_bool_dtype(dtype) or types == {bool}:
        why = "true and false" if types else f"dtype {dtype}"
        return made(Profile.of(series), BooleanColumn, keys, why, "categories")
    if pd.api.types.is_complex_dtype(dtype) or types & {list, dict, set, np.ndarray, bytes}:
        what = "lists, records or bytes" if types else "complex numbers"
        return Guess(DropColumn(drafted=("kind",), stored=str(dtype)), 0, 0.0, f"{what}, of which no kind is")
    profile = _counted(series)
    kind: type[TemporalColumn] = DateColumn
    if not profile.values:
        return None if dtype.kind == "O" else set_aside(profile, DropColumn, "no row has a value", str(dtype))
    if pd.api.types.is_numeric_dtype(dtype) or (types and types <= {int, float}):
        return _numbers(pd.to_numeric(series), asked, keys)
    if types == {dt.date}:
        keys = keys if isinstance(dtype, pd.ArrowDtype) else {"stored": "date32[day]"}
        reading = Reading(_days(min(present), max(present)), "dates")
    elif pd.api.types.is_datetime64_any_dtype(dtype):
        kind, reading = _moments(present)
    elif pd.api.types.is_timedelta64_dtype(dtype):
        kind, reading = DurationColumn, span_of(present, {})
    elif types == {dt.time}:
        finer = any(value.microsecond for value in present.tolist())
        kind, keys = TimeColumn, {"stored": "time64[us]"}
        reading = Reading({"step": "microsecond"} if finer else {}, "times of day")
    elif types == {decimal.Decimal}:
        places = max(0, *(-int(value.as_tuple().exponent) for value in present.unique().tolist()))
        found = Written({}, places, float(present.min()), float(present.max()), "decimals")
        return quantity(profile, found, asked, {"stored": f"decimal128(38, {places})"})
    else:
        return None
    return proposed(profile, kind, reading, asked, keys)


def _counted(series: pd.Series) -> Profile:
    """A profile without texts: of values that no pattern has to be tried on."""
    import pyarrow as pa

    counts = series.value_counts(dropna=True).to_numpy()
    texts = pa.nulls(len(counts), pa.string())
    return Profile(str(series.name), len(series), int(series.isna().sum()), texts, counts)


def _category(series: pd.Series, asked: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """A categorical dtype lists its categories; text of them may still be names."""
    profile = Profile.of(series)
    if not profile.values:
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    if not asked.keep:
        why = persons.personal_by_values(profile) or persons.personal_by_name(profile)
        if why is None and persons.nearly_unique(profile):
            why = persons.shown_share(profile)
        if why is not None:
            return set_aside(profile, IdentifierColumn, why, str(series.dtype))
    values = series.cat.categories.tolist()
    plain = all(isinstance(value, bool | int | float | str) for value in values)
    keys |= {"categories": tuple(values if plain else map(str, values)), "other": False}
    keys |= {"ordered": True} if series.cat.ordered else {}
    why = f"dtype category{', ordered' if series.cat.ordered else ''}"
    rare = len(values) - int(np.count_nonzero(profile.counts >= FEW_ROWS))
    return made(profile, CategoricalColumn, keys, why, "categories", rare)


def _numbers(series: pd.Series, asked: GuessOptions, keys: dict[str, Any]) -> Guess:
    import pandas as pd

    numbers: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
    present = numbers[np.isfinite(numbers)]
    integers = pd.api.types.is_integer_dtype(series.dtype)
    profile = Profile.of(series) if integers else _counted(series)
    if not present.size:
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    exact = bool(np.abs(present).max() <= 2**53)
    whole = exact and bool(np.all(present == np.floor(present)))
    if not asked.keep and integers:
        why = persons.personal_by_name(profile) or persons.numbers_the_rows(profile)
        if why is not None:
            return set_aside(profile, IdentifierColumn, why, str(series.dtype))
    places = 0 if whole else places_of(present) if exact else None
    found = Written({}, places, float(present.min()), float(present.max()), f"dtype {series.dtype}")
    if asked.is_label and whole:
        profile = Profile.of(series.astype("Int64"))
    return quantity(profile, found, asked, keys)


def _moments(present: pd.Series) -> tuple[type[DateColumn] | type[DatetimeColumn], Reading]:
    """The kind of a column of moments, and how it reads them."""
    zone, bounds = present.dt.tz, _days(present.min().date(), present.max().date())
    if zone is None and bool((present == present.dt.normalize()).all()):
        return DateColumn, Reading(bounds, f"dtype {present.dtype}, always midnight")
    step = next(step for step, unit in _STEPS if unit is None or bool((present == present.dt.floor(unit)).all()))
    keys = {"lower": f"{bounds['lower']}T00:00:00", "upper": f"{bounds['upper']}T23:59:59"}
    keys |= {"zone": _zone(zone)} if zone is not None else {}
    keys |= {"step": step} if step != "second" else {}
    return DatetimeColumn, Reading(keys, f"dtype {present.dtype}")


def _zone(zone: Any) -> str:
    """The name of a zone; UTC for one that has none, such as +02:00. The dtype comes back all the same."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(str(zone)).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"


def _days(first: dt.date, last: dt.date) -> dict[str, Any]:
    lower, upper = outward_days(first, last)
    return {"lower": str(lower), "upper": str(upper)}


_STEPS = (("minute", "min"), ("second", "s"), ("millisecond", "ms"), ("microsecond", None))


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
        asked = GuessOptions(bins, is_label, is_label or name in keep, decimal, stored=not text)
        guesses[name] = _guess(frame.iloc[:, j].rename(name), asked)
    return guesses


def drafted_schema(guesses: Mapping[str, Guess], label: str | None = None) -> dict[str, Any]:
    """The guesses as `Schema.from_dict` takes them."""
    words = sorted({word for guess in guesses.values() for word in guess.missing_values})
    data: dict[str, Any] = {"columns": {name: guess.column for name, guess in guesses.items()}, "label": label}
    return data | ({"missing_values": words} if words else {})


def _guess(series: pd.Series, asked: GuessOptions) -> Guess:
    found = typed_guess(series, asked)
    if found is not None:
        return found
    return text_guess(Profile.of(series), asked, str(series.dtype) if asked.stored else None)
