"""Guesses for columns that have a dtype already: of pandas, and of what pandas makes of Arrow."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.table.schema import persons
from fedsyn.table.schema.aside import DropColumn, IdentifierColumn
from fedsyn.table.schema.base import Reading
from fedsyn.table.schema.columns import BooleanColumn, CategoricalColumn
from fedsyn.table.schema.guess import FEW_ROWS, Asked, Guess, made, places_of, proposed, quantity, set_aside
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.rounding import outward_days
from fedsyn.table.schema.temporal import DateColumn, DatetimeColumn, DurationColumn, TimeColumn
from fedsyn.table.schema.written_numbers import Written
from fedsyn.table.schema.written_times import span_of

if TYPE_CHECKING:
    import pandas as pd


def typed_guess(series: pd.Series, asked: Asked) -> Guess | None:
    """A guess from a dtype; None for text, and for what has to be looked at like text."""
    import pandas as pd

    dtype = series.dtype
    keys: dict[str, Any] = {"stored": str(dtype)} if asked.stored else {}
    if isinstance(dtype, pd.CategoricalDtype):
        return _category(series, asked, keys)
    if pd.api.types.is_bool_dtype(dtype):
        return made(Profile.of(series), BooleanColumn, keys, f"dtype {dtype}", "categories")
    if pd.api.types.is_complex_dtype(dtype) or _holds_lists(series):
        what = "complex numbers" if pd.api.types.is_complex_dtype(dtype) else "lists or records"
        return Guess(DropColumn(drafted=("kind",), stored=str(dtype)), 0, 0.0, f"{what}, of which no kind is")
    if pd.api.types.is_numeric_dtype(dtype):
        return _numbers(series, asked, keys)
    if isinstance(dtype, pd.ArrowDtype) and dtype.type is dt.date:
        return _days(series.astype(object), asked, keys)
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return _datetimes(series, asked, keys)
    if pd.api.types.is_timedelta64_dtype(dtype):
        profile = _counted(series)
        if not profile.values:
            return set_aside(profile, DropColumn, "no row has a value", str(dtype))
        return proposed(profile, DurationColumn, span_of(series.dropna(), {}), asked, keys)
    return _objects(series, asked) if dtype.kind == "O" and not isinstance(dtype, pd.StringDtype) else None


def _holds_lists(series: pd.Series) -> bool:
    import pandas as pd

    if isinstance(series.dtype, pd.ArrowDtype):
        return series.dtype.type in (list, dict)
    some = series.iloc[:1000].tolist() if series.dtype.kind == "O" else []
    return any(isinstance(value, list | dict | set | np.ndarray) for value in some)


def _counted(series: pd.Series) -> Profile:
    """A profile without texts: of values that no pattern has to be tried on."""
    import pyarrow as pa

    counts = series.value_counts(dropna=True).to_numpy()
    texts = pa.nulls(len(counts), pa.string())
    return Profile(str(series.name), len(series), int(series.isna().sum()), texts, counts)


def _category(series: pd.Series, asked: Asked, keys: dict[str, Any]) -> Guess | None:
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


def _numbers(series: pd.Series, asked: Asked, keys: dict[str, Any]) -> Guess:
    import pandas as pd

    numbers: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
    present = numbers[np.isfinite(numbers)]
    profile = Profile.of(series) if pd.api.types.is_integer_dtype(series.dtype) else _counted(series)
    if not present.size:
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    whole = bool(np.all(present == np.floor(present)) and np.abs(present).max() <= 2**53)
    if not asked.keep and pd.api.types.is_integer_dtype(series.dtype):
        why = persons.personal_by_name(profile)
        if why is None and persons.numbers_the_rows(profile):
            why = "numbers the rows"
        if why is not None:
            return set_aside(profile, IdentifierColumn, why, str(series.dtype))
    places = 0 if whole else None if np.abs(present).max() > 2**53 else places_of(present)
    found = Written({}, places, float(present.min()), float(present.max()), f"dtype {series.dtype}")
    if asked.is_label and whole:
        profile = Profile.of(series.astype("Int64"))
    return quantity(profile, found, asked, keys)


def _datetimes(series: pd.Series, asked: Asked, keys: dict[str, Any]) -> Guess:
    profile = _counted(series)
    present = series.dropna()
    if not len(present):
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    zone = present.dt.tz
    lower, upper = outward_days(present.min().date(), present.max().date())
    if zone is None and bool((present == present.dt.normalize()).all()):
        reading = Reading({"lower": str(lower), "upper": str(upper)}, f"dtype {series.dtype}, always midnight")
        return proposed(profile, DateColumn, reading, asked, keys)
    step = next(step for step, unit in _STEPS if unit is None or bool((present == present.dt.floor(unit)).all()))
    bounds: dict[str, Any] = {"lower": f"{lower}T00:00:00", "upper": f"{upper}T23:59:59"}
    bounds |= {"zone": _zone(zone)} if zone is not None else {}
    bounds |= {"step": step} if step != "second" else {}
    return proposed(profile, DatetimeColumn, Reading(bounds, f"dtype {series.dtype}"), asked, keys)


def _zone(zone: Any) -> str:
    """The name of a zone; UTC for one that has none, such as +02:00. The dtype comes back all the same."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(str(zone)).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"


def _days(series: pd.Series, asked: Asked, keys: dict[str, Any]) -> Guess:
    """Python's own dates."""
    profile, present = _counted(series), series.dropna()
    if not len(present):
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    lower, upper = outward_days(present.min(), present.max())
    return proposed(profile, DateColumn, Reading({"lower": str(lower), "upper": str(upper)}, "dates"), asked, keys)


_STEPS = (("minute", "min"), ("second", "s"), ("millisecond", "ms"), ("microsecond", None))


def _objects(series: pd.Series, asked: Asked) -> Guess | None:
    """Objects of Python's own types, as pandas makes them of Arrow's dates, times and decimals."""
    import pandas as pd

    present = series.dropna()
    if not len(present):
        return None
    kinds = {type(value) for value in present.iloc[:1000].tolist()}
    profile = _counted(series)
    if kinds == {dt.date}:
        return _days(series, asked, {"stored": "date32[day]"} if asked.stored else {})
    if kinds == {dt.time}:
        step = "second" if all(not value.microsecond for value in present.tolist()) else "microsecond"
        keys = {"stored": "time64[us]"} if asked.stored else {}
        bounds = {} if step == "second" else {"step": step}
        return proposed(profile, TimeColumn, Reading(bounds, "times of day"), asked, keys)
    if kinds == {decimal.Decimal}:
        places = max(0, *(-int(value.as_tuple().exponent) for value in present.unique().tolist()))
        keys = {"stored": f"decimal128(38, {places})"} if asked.stored else {}
        found = Written({}, places or None, float(present.min()), float(present.max()), "decimals")
        if places == 0:
            found = Written({}, 0, found.low, found.high, "decimals")
        return quantity(profile, found, asked, keys)
    if kinds <= {bool}:
        return made(
            Profile.of(series),
            BooleanColumn,
            {"stored": "object"} if asked.stored else {},
            "true and false",
            "categories",
        )
    if kinds <= {int, float} and kinds:
        return _numbers(pd.to_numeric(series), asked, {"stored": "object"} if asked.stored else {})
    return None
