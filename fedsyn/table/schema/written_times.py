"""How a column of text writes dates, times of day, datetimes and spans of time."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from fedsyn.table.schema.base import Reading
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.rounding import outward_days, outward_seconds

# Pattern of a date -> its format in strftime's codes; None: ISO 8601. Tried in this order.
_DATES = (
    (r"\d{4}-\d{2}-\d{2}", "%Y-%m-%d"),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    (r"\d{1,2}/\d{1,2}/\d{4}", "%d/%m/%Y"),
    (r"\d{1,2}/\d{1,2}/\d{4}", "%m/%d/%Y"),
    (r"\d{1,2}-\d{1,2}-\d{4}", "%d-%m-%Y"),
    (r"\d{1,2}-\d{1,2}-\d{4}", "%m-%d-%Y"),
    (r"\d{4}/\d{1,2}/\d{1,2}", "%Y/%m/%d"),
    (r"\d{4}\.\d{1,2}\.\d{1,2}", "%Y.%m.%d"),
    (r"(19|20)\d{6}", "%Y%m%d"),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", "%d.%m.%y"),
    (r"\d{1,2}[ -][A-Za-z]{3}[ -]\d{4}", "%d-%b-%Y"),
)
_HOURS = r"\d{1,2}"
_CLOCKS = (
    (r"\d{1,2}:[0-5]\d", "%H:%M", "minute"),
    (r"(0\d|1[0-2]):[0-5]\d [AP]M", "%I:%M %p", "minute"),
    (r"(0\d|1[0-2]):[0-5]\d:[0-5]\d [AP]M", "%I:%M:%S %p", "second"),
    (r"\d{1,2}:[0-5]\d:[0-5]\d", "%H:%M:%S", "second"),
    (r"\d{1,2}:[0-5]\d:[0-5]\d\.\d{1,3}", "%H:%M:%S.%f", "millisecond"),
    (r"\d{1,2}:[0-5]\d:[0-5]\d\.\d{1,6}", "%H:%M:%S.%f", "microsecond"),
)
_ZONES = (("", None), ("Z", "Z"), (r"[+-]\d{2}:?\d{2}", "%z"))
_DAYS = r"^-?\d+ days?( [+-]?\d{1,2}:\d{2}:\d{2}(\.\d+)?)?$"
_LONG_CLOCK = r"^-?\d{1,5}:[0-5]\d:[0-5]\d$"
_ISO_DATE = "%Y-%m-%d"


def dates(profile: Profile) -> Reading | None:
    """Return how a column writes dates, which may be moments that are always midnight; None if it does not."""
    for pattern, written in _DATES:
        if profile.all_match(f"^{pattern}$"):
            ends = _ends(profile, written)
            if ends is not None:
                lower, upper = outward_days(ends[0].date(), ends[1].date())
                keys = {"lower": lower.isoformat(), "upper": upper.isoformat()}
                keys |= {} if written == _ISO_DATE else {"format": _spelled(profile, written)}
                return Reading(keys, f"dates like {_pattern_in_words(written)}{_doubt(profile, written)}")
    return datetimes(profile, midnight=True)


def datetimes(profile: Profile, midnight: bool = False) -> Reading | None:
    """Return how a column writes moments; with `midnight`, those without a zone that are all midnight. Else None."""
    if profile.share_matching(r":") < 1:
        return None
    for date_pattern, date in _DATES:
        for clock_pattern, clock, step in _CLOCKS:
            for zone_pattern, zone in _ZONES:
                for between in (" ", "T"):
                    if profile.all_match(f"^{date_pattern}{between}{clock_pattern}{zone_pattern}$"):
                        reading = _datetime(profile, f"{date}{between}{clock}{zone or ''}", zone, step, midnight)
                        if reading is not None:
                            return reading
    return None


def _datetime(profile: Profile, written: str, zone: str | None, step: str, midnight: bool) -> Reading | None:
    if midnight != (zone is None and profile.all_match(r"[ T]0?0:00(:00(\.0+)?)?$")):
        return None
    ends = _ends(profile, written)
    if ends is None:
        return None
    lower, upper = outward_days(ends[0].date(), ends[1].date())
    if midnight:
        keys = {"lower": str(lower), "upper": str(upper), "format": _spelled(profile, written)}
        return Reading(keys, f"dates with a time that is always midnight{_doubt(profile, written)}")
    plain = written.startswith(f"{_ISO_DATE}T") and zone != "Z"
    if step != "minute" and profile.all_match(r"\d:\d\d:00(\.0+)?(Z|[+-]\d\d:?\d\d)?$"):
        step, plain = "minute", False
    keys = {"lower": f"{lower}T00:00:00", "upper": f"{upper}T23:59:59"}
    keys |= {} if plain else {"format": _spelled(profile, written)}
    keys |= {"zone": "UTC"} if zone else {}
    keys |= {"step": step} if step != "second" else {}
    said = ", UTC" if zone == "Z" else ", written in UTC from here on" if zone else ""
    return Reading(keys, f"moments to the {step}{said}{_doubt(profile, written)}")


def times(profile: Profile) -> Reading | None:
    """Return how a column writes times of day; None if it does not."""
    for pattern, written, step in _CLOCKS:
        if not profile.all_match(f"^{pattern.replace(_HOURS, '([01]?[0-9]|2[0-3])', 1)}$"):
            continue
        keys: dict[str, Any] = {"step": step} if step != "second" else {}
        keys |= {} if profile.all_match(r"^\d\d:") and "%p" not in written else {"format": written}
        return Reading(keys, f"times of day to the {step}")
    return None


def spans(profile: Profile) -> Reading | None:
    """Return how a column writes spans of time; None if it does not."""
    import pandas as pd

    clock = profile.all_match(_LONG_CLOCK)
    if not clock and not profile.all_match(_DAYS):
        return None
    found = pd.to_timedelta(pd.Series(profile.texts.to_pylist(), dtype=object), errors="coerce")
    return None if found.isna().any() else span_of(found, {"format": "clock"} if clock else {})


def span_of(found: Any, keys: dict[str, Any]) -> Reading:
    """Return bounds of a column that enclose these spans (a Series of timedeltas, none missing)."""
    import pandas as pd

    lower, upper = outward_seconds(found.min().total_seconds(), found.max().total_seconds())
    bounds = {"lower": str(pd.Timedelta(seconds=lower)), "upper": str(pd.Timedelta(seconds=upper))}
    return Reading({**bounds, **keys}, "spans of time")


def _ends(profile: Profile, written: str) -> tuple[dt.datetime, dt.datetime] | None:
    """The first and the last moment; None if a text is not written so."""
    import pandas as pd

    texts = pd.Series(profile.texts.to_pylist(), dtype=object)
    if "%b" in written:
        written = _spelled(profile, written)
    try:
        moments = pd.to_datetime(texts.iloc[: len(profile.tried)], format=written, utc="%z" in written)
        moments = pd.to_datetime(texts, format=written, utc="%z" in written)
    except (ValueError, OverflowError):
        return None
    if moments.min().year < 1000:  # strftime writes such years with fewer digits, and nobody means them
        return None
    return moments.min().to_pydatetime(), moments.max().to_pydatetime()


def _spelled(profile: Profile, written: str) -> str:
    """A format with the character that stands between its parts."""
    if "%b" in written and " " in str(profile.texts[0].as_py()):
        return written.replace("-", " ")
    return written


def _doubt(profile: Profile, written: str) -> str:
    """Says where day and month could be the other way around."""
    if not re.match(r"%[dm][/-]%[dm]", written):
        return ""
    other = written.replace("%d", "%1").replace("%m", "%d").replace("%1", "%m")
    return "; day or month first? both fit" if _ends(profile, other) is not None else ""


def _pattern_in_words(written: str) -> str:
    names = {"%Y": "YYYY", "%m": "MM", "%d": "DD", "%y": "YY", "%b": "Mon"}
    for code, name in names.items():
        written = written.replace(code, name)
    return written
