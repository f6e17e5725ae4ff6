"""Written forms of text columns, and bounds around them.

A column may write dates, times of day, spans of time and numbers.

Numbers have thousands, decimal commas, currencies, percent. Bounds look like public knowledge: they are rounded
outward, so that no row's own value stands in a schema.
"""

from __future__ import annotations

import calendar
import datetime as dt
import math
import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np

from fedsyn.lazy import pa, pc, pd
from fedsyn.table.schema import formats
from fedsyn.table.schema.binned import LARGEST_INTEGER
from fedsyn.table.schema.column_base import Reading
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import as_digits
from fedsyn.table.schema.vocabulary import word_lists

_HOURS = r"\d{1,2}"
_DAYS = r"^-?\d+ days?( [+-]?\d{1,2}:\d{2}:\d{2}(\.\d+)?)?$"
_ONLY_DAYS = r"^-?\d+ days?$"
_LONG_CLOCK = r"^-?\d{1,5}:[0-5]\d:[0-5]\d(\.\d{3}|\.\d{6})?$"
_ISO_DATE = "%Y-%m-%d"
#: How `isoformat` writes times to a step.
_ISO_CLOCKS = {
    "minute": "%H:%M",
    "second": "%H:%M:%S",
    "millisecond": "%H:%M:%S.%3f",
    "microsecond": "%H:%M:%S.%6f",
}
_UTC = "+00:00"
_AT_MIDNIGHT = r"[ T](0?0:00(:00([.,]0+)?)?|12:00(:00)? ?[Aa][Mm])$"


def dates(profile: Profile) -> Reading | None:
    """Returns how a column writes dates, or None.

    The dates may be moments that are always midnight.
    """
    for pattern, written in word_lists()["dates"]:
        if profile.all_match(f"^{pattern}$"):
            ends = _ends(profile, written)
            if ends is not None and _means_dates(profile, written):
                lower, upper = outward_days(ends[0].date(), ends[1].date())
                keys = {"lower": lower.isoformat(), "upper": upper.isoformat()}
                keys |= {} if written == _ISO_DATE else {"format": _spelled(profile, written)}
                return Reading(keys, f"dates like {_pattern_in_words(written)}{_doubt(profile, written)}")
    return datetimes(profile, midnight=True)


def _means_dates(profile: Profile, written: str) -> bool:
    """Returns whether digits that could be dates are ones.

    Of numbers between 190001 and 209912 one of eight ends like a month, so three that do are months; of a day and a
    month the order has to show, because nothing else in DDMMYYYY does.
    """
    if written in ("%Y%m", "%Y%m.0"):
        return profile.values > 2
    return not (written in ("%d%m%Y", "%m%d%Y") and _doubt(profile, written))


def datetimes(profile: Profile, midnight: bool = False) -> Reading | None:
    """Returns how a column writes moments, or None.

    With `midnight` it takes only moments without a zone that are all midnight.
    """
    if profile.share_matching(r":") < 1:
        return None
    dates = [(pattern, form) for pattern, form in word_lists()["dates"] if profile.all_match(f"^{pattern}[ T]")]
    parts = (dates, word_lists()["clocks"], word_lists()["zones"], (" ", "T"))
    for (date_pattern, date), (clock_pattern, clock, step), (zone_pattern, zone), between in product(*parts):
        if profile.all_match(f"^{date_pattern}{between}{clock_pattern}{zone_pattern}$"):
            reading = _datetime(profile, f"{date}{between}{clock}{zone or ''}", zone, step, midnight)
            if reading is not None:
                return reading
    return None


def _datetime(profile: Profile, written: str, zone: str | None, step: str, midnight: bool) -> Reading | None:
    if midnight != (zone is None and profile.all_match(_AT_MIDNIGHT)):
        return None
    ends = _ends(profile, written)
    if ends is None:
        return None
    offset = formats.offset_of(profile) if zone and "%z" in zone else _UTC
    if offset is not None:
        first, last = (end.astimezone(_zone_of(offset)) if end.tzinfo else end for end in ends)
    else:
        first, last = ends
    lower, upper = outward_days(first.date(), last.date())
    if midnight:
        keys = {"lower": str(lower), "upper": str(upper), "format": _spelled(profile, written)}
        return Reading(keys, f"dates with a time that is always midnight{_doubt(profile, written)}")
    if step != "minute" and profile.all_match(r"\d:\d\d:00([.,]0+)?( ?[AaPp][Mm])?( ?(UTC|Z|[+-]\d\d(:?\d\d)?))?$"):
        step = "minute"
    spelled = _spelled(profile, written)
    keys = {"lower": f"{lower}T00:00:00", "upper": f"{upper}T23:59:59"}
    keys |= {} if spelled == f"{_ISO_DATE}T{_ISO_CLOCKS[step]}{'%:z' if zone else ''}" else {"format": spelled}
    keys |= {"zone": offset if offset not in (None, _UTC) else "UTC"} if zone else {}
    keys |= {"step": step} if step != "second" else {}
    zone_note = "" if not zone else f", {keys['zone']}" if offset else ", written in UTC from here on"
    return Reading(keys, f"moments to the {step}{zone_note}{_doubt(profile, written)}")


def times(profile: Profile) -> Reading | None:
    """Returns how a column writes times of day, or None."""
    for pattern, written, step in word_lists()["clocks"]:
        if not profile.all_match(f"^{pattern.replace(_HOURS, '([01]?[0-9]|2[0-3])', 1)}$"):
            continue
        keys: dict[str, Any] = {"step": step} if step != "second" else {}
        spelled = _spelled(profile, written)
        keys |= {} if spelled == _ISO_CLOCKS[step] else {"format": spelled}
        return Reading(keys, f"times of day to the {step}")
    return None


def spans(profile: Profile) -> Reading | None:
    """Returns how a column writes spans of time, or None."""
    clock = profile.all_match(_LONG_CLOCK)
    if not clock and not profile.all_match(_DAYS):
        return None
    durations = pd.to_timedelta(pd.Series(profile.texts.to_pylist(), dtype=object), errors="coerce")
    if durations.isna().any():
        return None
    if clock:
        return span_of(durations, {"format": "short clock" if profile.any_matches(r"^-?\d:") else "clock"})
    return span_of(durations, {"format": "days", "step": "day"} if profile.all_match(_ONLY_DAYS) else {})


def span_of(values: Any, keys: dict[str, Any]) -> Reading:
    """Returns bounds of a column that enclose these spans.

    The spans are a Series of timedeltas, none missing.
    """
    lower, upper = outward_seconds(values.min().total_seconds(), values.max().total_seconds())
    bounds = {"lower": str(pd.Timedelta(seconds=lower)), "upper": str(pd.Timedelta(seconds=upper))}
    units = {"second": "s", "millisecond": "ms", "microsecond": "us"}
    step = next(step for step, unit in units.items() if unit == "us" or (values == values.dt.floor(unit)).all())
    finer = {} if step == "second" else {"step": step}
    return Reading({**bounds, **finer, **keys}, "spans of time")


def _ends(profile: Profile, written: str) -> tuple[dt.datetime, dt.datetime] | None:
    """Returns the first and the last moment.

    None if a text is not written so, or if the year is before 1000.
    """
    texts = pd.Series([as_digits(text, written) for text in profile.texts.to_pylist()], dtype=object)
    written = _spaced(profile, written)
    if "%z" in written:  # hours alone, too
        texts = texts.map(lambda text: formats.readable(text, "%:::z"))
    try:
        moments = pd.to_datetime(texts.iloc[: len(profile.tried)], format=written, utc="%z" in written)
        moments = pd.to_datetime(texts, format=written, utc="%z" in written)
    except (ValueError, OverflowError):
        return None
    if moments.min().year < 1000:  # strftime writes such years with fewer digits, and nobody means them
        return None
    return moments.min().to_pydatetime(), moments.max().to_pydatetime()


def _spelled(profile: Profile, written: str) -> str:
    """A format as a column spells it."""
    return formats.spelled(profile, _spaced(profile, written))


def _spaced(profile: Profile, written: str) -> str:
    """A format with the character that stands between its parts."""
    if "%b" in written and " " in str(profile.texts[0].as_py()):
        return written.replace("-", " ")
    return written


def _zone_of(offset: str) -> dt.timezone:
    """Returns a zone of an offset such as +03:00."""
    return dt.datetime.strptime(offset, "%z").tzinfo  # type: ignore[return-value]


def _doubt(profile: Profile, written: str) -> str:
    """Says where day and month could be the other way around."""
    if not re.match(r"%[dm][/-]?%[dm]", written):
        return ""
    other = written.replace("%d", "%1").replace("%m", "%d").replace("%1", "%m")
    return "; day or month first? both fit" if _ends(profile, other) is not None else ""


def _pattern_in_words(written: str) -> str:
    names = {"%Y": "YYYY", "%m": "MM", "%d": "DD", "%y": "YY", "%b": "Mon"}
    for code, name in names.items():
        written = written.replace(code, name)
    return written


def moments(present: pd.Series) -> tuple[bool, Reading]:
    """Returns whether moments are always midnight, and their reading.

    The moments have a dtype of their own.
    """
    zone, bounds = present.dt.tz, bounds_of_days(present.min().date(), present.max().date())
    if zone is None and bool((present == present.dt.normalize()).all()):
        return True, Reading(bounds, f"dtype {present.dtype}, always midnight")
    clock = present.dt.tz_localize(None)  # an hour that a clock shows twice has no floor in its zone
    step = next(step for step, unit in _STEPS if unit is None or bool((clock == clock.dt.floor(unit)).all()))
    keys = {"lower": f"{bounds['lower']}T00:00:00", "upper": f"{bounds['upper']}T23:59:59"}
    keys |= {"zone": _zone(zone)} if zone is not None else {}
    keys |= {"step": step} if step != "second" else {}
    return False, Reading(keys, f"dtype {present.dtype}")


def _zone(zone: Any) -> str:
    """Returns the name of a zone.

    It is UTC for a zone without a name, such as +02:00. The dtype comes back all the same.
    """
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(str(zone)).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"


def bounds_of_days(first: dt.date, last: dt.date) -> dict[str, Any]:
    """Returns bounds around some days, as a schema has them."""
    lower, upper = outward_days(first, last)
    return {"lower": str(lower), "upper": str(upper)}


_STEPS = (("minute", "min"), ("second", "s"), ("millisecond", "ms"), ("microsecond", None))


# Numbers --------------------------------------------------------------------------------------------------------------


#: Digits after the mark of a decimal column, and of one that has affixes and numbers of more.
MOST_PLACES, _WITH_AFFIXES = 12, 6


def places_of(numbers: np.ndarray, most: int = MOST_PLACES) -> int | None:
    """Returns decimals that hold some finite numbers exactly.

    They hold every one of them. None if more than `most` would be needed.
    """
    for places in range(most + 1):
        if np.array_equal(np.round(numbers, places), numbers):
            return places
    return None


_CURRENCY = r"€|\$|£|¥|₹|zł|Kč|Fr\.?|kr\.?|(?:US|A|C|NZ)\$|EUR|USD|GBP|CHF|SEK|NOK|DKK|PLN|CZK|JPY|CAD|AUD"
_AFFIXED = re.compile(rf"^(?P<a>[+-]?)(?P<prefix>(?:{_CURRENCY})?\s?)(?P<b>[+-]?)(?P<body>[\d.,'\s]*\d)(?P<suffix>.*)$")
_SUFFIX = re.compile(rf"^\s?(?:{_CURRENCY}|%|‰|[A-Za-zµ°/]{{1,6}}[²³]?)?$")
_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_EXPONENT = r"^[+-]?\d\.?\d*{}$"
#: Exponents as a column writes all of them, and a pattern of each.
_EXPONENTS = {"e+00": r"e[+-]\d{2,3}", "E+00": r"E[+-]\d{2,3}", "e0": r"e-?\d+", "E0": r"E-?\d+"}
#: Where the minus of a negative number may stand but in front, and a pattern that finds it.
_MINUS = {"parentheses": r"^\((.*)\)$", "end": r"^([^-]*\d[^-]*)-$"}
#: Significant digits that a float64 keeps of any number.
FLOAT_DIGITS = 15
_INFINITE = r"^[+-]?([iI]nf|INF|[iI]nfinity|INFINITY)$"
_ROUNDED = "whole numbers beyond 2**53, to 15 digits"


@dataclass(frozen=True)
class Written:
    """Form in which numbers are written, and their range.

    It has the keys of an `integer` or `decimal` column.

    Attributes:
        keys: `thousands`, `mark`, `prefix`, `suffix`, where they are not the usual ones.
        places: digits after the decimal mark; None: numbers of any precision.
        form: the keys of a `numeric` column that writes them, where there are no places.
        low, high: the smallest and the largest one.
        why: the same in words.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    places: int | None = 0
    low: float = 0.0
    high: float = 0.0
    why: str = ""
    form: dict[str, Any] = field(default_factory=dict)


def written_numbers(profile: Profile, decimal: str | None = None, any_size: bool = False) -> Written | None:
    """Returns how a column writes numbers.

    None if it holds anything else.

    Args:
        profile: of the column.
        decimal: the decimal mark, where somebody said it.
        any_size: whether whole numbers beyond 2^53, which are rather codes, are numbers all the same.
    """
    profile = profile.unlike_pattern(_INFINITE)
    if decimal != "," and profile.all_match(_PLAIN):
        return _measured(profile, Written(), any_size)
    for place, pattern in _MINUS.items():
        if profile.any_matches(pattern) and not profile.any_matches("^-"):
            notation = written_numbers(profile.replaced(pattern, r"-\1"), decimal, any_size)
            shown = "(1)" if place == "parentheses" else "1-"
            return notation and replace(
                notation, keys={**notation.keys, "minus": place}, why=f"{notation.why}, {shown} for -1"
            )
    sample = profile.tried.to_pylist()
    first = _AFFIXED.match(sample[0]) if sample else None
    if first is None or not _SUFFIX.match(first["suffix"]):
        return None
    prefix, suffix = first["prefix"], first["suffix"]
    head, tail = re.escape(prefix.strip()), re.escape(suffix.strip())
    for thousands, mark in _styles(sample, decimal):
        digits = rf"(\d{{1,3}}({re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
        pattern = rf"^[+-]?\s?({head})?\s?[+-]?{digits}({re.escape(mark)}\d+)?\s?({tail})?$"
        if profile.all_match(pattern) and _wears(profile, head, tail):
            grouped = thousands and profile.any_matches(rf"\d{re.escape(thousands)}\d")
            keys = {"thousands": thousands} if grouped else {}
            keys |= {"mark": mark} if mark != "." else {}
            keys |= {key: text for key, text in (("prefix", prefix), ("suffix", suffix)) if text}
            if prefix and profile.any_matches(rf"^{head}\s?-"):
                keys["minus"] = "inside"
            return _measured(profile, Written(keys), any_size)
    return None


def _wears(profile: Profile, head: str, tail: str) -> bool:
    """Returns whether every text has the prefix and the suffix.

    Then none is written without them.
    """
    return (not head or profile.all_match(head)) and (not tail or profile.all_match(rf"{tail}$"))


def _styles(sample: list[str], decimal: str | None) -> list[tuple[str, str]]:
    """Returns styles of numbers to try, the likeliest first.

    A style is a pair of a thousands separator and a decimal mark.
    """
    text = "\n".join(sample)
    english = [(",", "."), ("", ".")]
    german = [("", ","), (".", ",")]
    others = [(mark, "," if "," in text else ".") for mark in (" ", "'", "\u00a0", "\u202f")]
    others = [(mark, point) for mark, point in others if re.search(rf"\d{mark}\d", text)]
    if decimal is not None:
        return [*[(t, decimal) for t, _ in others], *(german if decimal == "," else english)]
    if re.search(r"\.\d{3},|,\d{1,2}(\D|$)|,\d{4,}|\.\d{3}\.\d{3}|(^|\n)0,", text) and not re.search(r",\d{3}\.", text):
        return [*others, *german, *english]
    return [*others, *english, *german]


def _measured(profile: Profile, numbers: Written, any_size: bool) -> Written | None:
    """Returns the numbers' places and range, or None.

    None stands where they cannot be read exactly.

    Infinite ones are beyond every bound, and do not count. Whole numbers beyond 2^53 are rather codes, unless somebody
    says otherwise (`any_size`): float64 does not tell them apart.
    """
    texts = profile.texts
    for key in ("prefix", "suffix"):
        if numbers.keys.get(key):
            texts = pc.replace_substring(texts, numbers.keys[key].strip(), "")
    if "thousands" in numbers.keys:
        texts = pc.replace_substring(texts, numbers.keys["thousands"], "")
    if numbers.keys.get("mark") == ",":
        texts = pc.replace_substring(texts, ",", ".")
    texts = pc.replace_substring(pc.replace_substring_regex(texts, r"\s", ""), "+", "")
    try:
        values = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    finite = np.isfinite(values)
    if not finite.any():
        return None
    texts = texts.filter(pa.array(finite))
    low, high = float(values[finite].min()), float(values[finite].max())
    tails = pc.utf8_length(pc.replace_substring_regex(texts, r"^[^.]*\.?", ""))
    places: int | None = int(pc.max(tails).as_py() or 0)
    exact = not pc.any(pc.match_substring_regex(texts, "[eE]")).as_py() and (places or 0) <= MOST_PLACES
    places = places if exact else None
    if places == 0 and max(abs(low), abs(high)) > LARGEST_INTEGER:
        return replace(numbers, places=None, low=low, high=high, why=_ROUNDED) if any_size else None
    found = measured(low, high, places, numbers)
    if numbers.keys and not _exact(low, high, found.places):
        return None
    if found.places is None:
        return replace(found, form=_significant(profile))
    more = _signs(profile, numbers.keys.get("mark", ".")) | _without_zeros(texts, tails)
    return replace(found, keys={**numbers.keys, **more})


def measured(low: float, high: float, places: int | None, numbers: Written | None = None) -> Written:
    """Returns numbers of a range and a number of places.

    They are of any precision where float64 has no such steps.
    """
    numbers, places = numbers or Written(), places if not places or _exact(low, high, places) else None
    return replace(numbers, places=places, low=low, high=high, why=_in_words(numbers.keys, places))


def _signs(profile: Profile, mark: str) -> dict[str, Any]:
    """Returns keys for signs, and for zeros before the mark."""
    plus = profile.any_matches(r"^\D*\+\s*\D*\d") and not profile.any_matches(r"^[^-+(\d]*[0.,]*[1-9]")
    bare = rf"(^|[^\d{re.escape(mark)}]){re.escape(mark)}\d"
    keys: dict[str, Any] = {"plus": True} if plus else {}
    return keys | ({"leading_zero": False} if profile.any_matches(bare) else {})


def _without_zeros(texts: pa.Array, tails: pa.Array) -> dict[str, Any]:
    """Returns the key for decimals that stay where they are zeros.

    Empty where all do.

    Args:
        texts: (k,) numbers with a point.
        tails: (k,) digits after the point.
    """
    least, most = (int(end.as_py()) for end in pc.min_max(tails).values())
    ends = pc.and_(pc.greater(tails, least), pc.ends_with(texts, "0"))
    return {"least_places": least} if least < most and not pc.any(ends).as_py() else {}


def _significant(profile: Profile) -> dict[str, Any]:
    """Returns the keys of a `numeric` column for significant digits.

    Exponents have a key, too.

    Floats hold 15 digits exactly; where a text has more, all digits of a float are written.
    """
    exponent = next((name for name, part in _EXPONENTS.items() if profile.all_match(_EXPONENT.format(part))), None)
    mantissas = pc.replace_substring_regex(profile.texts, r"[eE].*$|[^\d.eE]", "")
    if exponent is None:
        mantissas = pc.replace_substring_regex(mantissas, r"^0*\.?0*", "")
    digits = int(pc.max(pc.utf8_length(pc.replace_substring(mantissas, ".", ""))).as_py() or 1)
    form: dict[str, Any] = {"exponent": exponent} if exponent else {}
    return form | ({"digits": digits} if digits <= FLOAT_DIGITS else {})


def of_decimals(present: pd.Series, places: int) -> Written:
    """Returns the form of exact decimals."""
    return measured(float(present.min()), float(present.max()), places if places <= MOST_PLACES else None)


def of_floats(series: pd.Series, present: np.ndarray, plain: bool) -> Written:
    """Returns the form of floats as Python writes them.

    Args:
        series: of the table.
        present: its finite numbers, not all whole.
        plain: whether none has an exponent.
    """
    found = measured(float(present.min()), float(present.max()), places_of(present) if plain else None)
    if found.places is None:
        return replace(found, form=_significant(Profile.of(series)))
    rounded = (places for places in range(1, found.places) if (np.round(present, places) == present).any())
    least = next(rounded, None)
    return replace(found, keys={"least_places": least}) if least else found


def _exact(low: float, high: float, places: int | None) -> bool:
    """Returns whether float64 counts the steps, a bit to spare."""
    return 10.0 ** (_WITH_AFFIXES if places is None else places) * max(abs(low), abs(high)) <= LARGEST_INTEGER / 2


def _in_words(keys: dict[str, Any], places: int | None) -> str:
    words = [] if not places else [f"{places} decimal{'s' if places > 1 else ''}"]
    words += ["any precision"] if places is None else []
    words += ["decimal comma"] if keys.get("mark") == "," else []
    if "thousands" in keys:
        words.append(f"thousands with {'a space' if keys['thousands'].isspace() else repr(keys['thousands'])}")
    words += [repr(keys[key].strip()) for key in ("prefix", "suffix") if keys.get(key)]
    return "numbers" + (": " if words else "") + ", ".join(words)


# Bounds ---------------------------------------------------------------------------------------------------------------

# A lower bound of this share of the upper one, or less, becomes 0.
_NEAR_ZERO = 0.3
# Whole numbers this close together are grades or months, and end where they end.
_FEW = 20
# Days that make months too fine a unit for bounds.
_YEARS = 730


def outward(low: float, high: float, places: int | None = 0) -> tuple[float, float]:
    """Returns round numbers around a range.

    They go in steps of 1, 2 or 5 times a power of ten, and have at most `places` decimals (None: as many as it takes).

    >>> outward(18, 91), outward(35.2, 41.8, 1), outward(1931, 2004)
    ((0.0, 100.0), (35.0, 42.0), (1930.0, 2010.0))
    """
    few = places == 0 and high - low <= _FEW
    size = high - low if high > low else abs(high) if places is None else max(abs(high), 1.0)
    step = Decimal(1) if few else _step(size or 1.0, places)
    lower, upper = _multiple(math.floor(_in_steps(low, step)), step), _multiple(math.ceil(_in_steps(high, step)), step)
    if not few and 0 <= lower <= _NEAR_ZERO * upper:
        lower = 0.0
    return float(lower), float(upper)


def _step(span: float, places: int | None) -> Decimal:
    power = Decimal(10) ** math.floor(math.log10(span))
    size = Decimal(span) / power
    step = power / 5 if size < 2 else power / 2 if size < 5 else power
    return step if places is None else max(step, Decimal(10) ** -places)


def _in_steps(value: float, step: Decimal) -> Decimal:
    """Returns a number in steps.

    The dust that floats leave is removed: 0.3 is three steps of 0.1.
    """
    steps = Decimal(repr(float(value))) / step
    nearest = steps.to_integral_value()
    return nearest if abs(steps - nearest) < Decimal("1e-9") else steps


def _multiple(steps: int, step: Decimal) -> float:
    return float(steps * step)


def outward_days(first: dt.date, last: dt.date) -> tuple[dt.date, dt.date]:
    """Returns month starts and ends around a range of days.

    Where the range is longer than two years, they are starts and ends of years.

    >>> print(*outward_days(dt.date(2024, 3, 9), dt.date(2024, 11, 2)))
    2024-03-01 2024-11-30
    """
    if (last - first).days > _YEARS:
        return dt.date(first.year, 1, 1), dt.date(last.year, 12, 31)
    return first.replace(day=1), last.replace(day=calendar.monthrange(last.year, last.month)[1])


def outward_seconds(low: float, high: float) -> tuple[float, float]:
    """Returns whole seconds around a range of spans.

    They are round numbers of days, hours or minutes.
    """
    unit = next(unit for unit in (86_400.0, 3_600.0, 60.0, 1.0) if high - low >= 2 * unit or unit == 1.0)
    lower, upper = outward(low / unit, high / unit)
    return lower * unit, upper * unit
