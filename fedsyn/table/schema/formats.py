"""Formats of moments, and of spans of time.

They have the codes of `strftime`, and a few that it lacks.

Tables write moments in more ways than `strftime` knows. These codes are those of `date` of GNU, and `%3f` of others:

| code                  | writes                                     | reads                          |
|-----------------------|--------------------------------------------|--------------------------------|
| `%-d` `%-m` `%-H` `%-I` | a number without its leading zero: 1     | also 01                        |
| `%3f`, `%1f` to `%9f` | three digits of a second's fraction: 198 | up to nine, to the microsecond |
| `%:z`                 | the offset with its colon: +03:00          | also +0300, +03 and Z          |
| `%:::z`               | the shortest offset: +03, +05:30           | the same                       |
| `%P`                  | am and pm in small letters                 | in any case                    |
| `%^b` `%^B`           | a month's name in capitals: JUL            | in any case                    |

A format that a draft proposes is the one with which a column's own cells come out: `spelled`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.lazy import pc, pd

if TYPE_CHECKING:
    from fedsyn.table.schema.profile import Profile

_CODE = re.compile(r"(%(?:[1-9]f|:{1,3}z|[-^]?[A-Za-z]|%))")
#: Codes as a pattern of what they read.
_READ = {
    **{f"%{code}": r"\d{1,2}" for code in "mdHIMS"},
    **{"%Y": r"\d{4}", "%y": r"\d{2}", "%f": r"\d{1,9}", "%b": r"\p{L}{3}", "%B": r"\p{L}+", "%p": r"\p{L}{2}"},
    "%z": r"(?:Z|[+-]\d{2}(?::?\d{2})?)",
}
_UNPADDED = ("%d", "%m", "%H", "%I")
_HOURS_ALONE = re.compile(r"([+-]\d{2})$")
# Digits of a second's fraction beyond microseconds.
_BEYOND = re.compile(r"([.,]\d{6})\d+")


@cache
def plain(form: str) -> str:
    """Returns a format in the codes of `strftime` alone.

    Its cells are read with it.

    >>> plain("%-d.%-m.%Y %H:%M:%S.%3f%:z")
    '%d.%m.%Y %H:%M:%S.%f%z'
    """
    return _CODE.sub(lambda code: "%" + {"P": "p"}.get(code[0][-1], code[0][-1]), form)


def readable(text: str, form: str | None) -> str:
    """Returns a cell as `strptime` takes it.

    Without a form it is one of ISO 8601.
    Its offset has minutes, and its fraction ends with the microseconds.
    """
    if form is None:
        return _BEYOND.sub(r"\1", text)
    text = _BEYOND.sub(r"\1", text) if "f" in form else text
    return _HOURS_ALONE.sub(r"\1:00", text) if ":::z" in form else text


def text_of(moment: Any, form: str) -> str:
    """Returns a date, a time or a datetime as text.

    >>> import datetime as dt
    >>> text_of(dt.datetime(2024, 7, 1, 6, 5, 4, 198_000, dt.UTC), "%-d-%^b-%y %H:%M:%S.%3f%:z %P")
    '1-JUL-24 06:05:04.198+00:00 am'
    """
    parts = _parts(form)
    if len(parts) > 1:
        form = "".join(_written(moment, part) if at % 2 else part for at, part in enumerate(parts))
    return str(moment.strftime(form))


@cache
def _parts(form: str) -> tuple[str, ...]:
    """Splits a format at the codes that `strftime` lacks.

    These stand at odd places.
    """
    parts = [""]
    for at, part in enumerate(_CODE.split(form)):
        if at % 2 and part != "%%" and (len(part) > 2 or part == "%P"):
            parts += [part, ""]
        else:
            parts[-1] += part
    return tuple(parts)


def _written(moment: Any, code: str) -> str:
    """Returns what one of the codes here writes."""
    if code[-1] == "f":
        return f"{moment.microsecond:06d}000"[: int(code[1])]
    if code[1] == "-" and code in _NUMBERS:
        return str(_NUMBERS[code](moment))
    usual = str(moment.strftime(plain(code)))
    if code[-1] == "z":
        hours, minutes = usual[:3], usual[3:5]
        return hours if code == "%:::z" and minutes == "00" else f"{hours}:{minutes}" if usual else ""
    if code == "%P":
        return usual.lower()
    return usual.upper() if code[1] == "^" else usual.removeprefix("0")


_NUMBERS: dict[str, Callable[[Any], int]] = {
    "%-d": lambda moment: moment.day,
    "%-m": lambda moment: moment.month,
    "%-H": lambda moment: moment.hour,
    "%-I": lambda moment: (moment.hour + 11) % 12 + 1,
}


def spelled(profile: Profile, form: str) -> str:
    """Returns a format with the codes that write a column's own texts.

    A column that drops leading zeros now and then drops them everywhere, and of fractions the longest counts.

    Args:
        profile: of a column, all of whose texts the format reads.
        form: in the codes of `strftime`.
    """
    tokens = [token for token in _CODE.split(form) if token]
    return "".join(_spelled(profile, tokens, at) for at in range(len(tokens)))


def _spelled(profile: Profile, tokens: Sequence[str], at: int) -> str:
    code = tokens[at]
    alone = not any(token in _READ for token in (*tokens[at - 1 : at], *tokens[at + 1 : at + 2]))
    if code in _UNPADDED:
        return f"%-{code[1]}" if alone and profile.any_matches(_pattern(tokens, at, r"\d")) else code
    if code == "%f":
        digits = pc.replace_substring_regex(profile.texts, _pattern(tokens, at, r"(\d+)"), r"\1")
        return f"%{pc.max(pc.utf8_length(digits)).as_py()}f"
    for written, part in _spellings(code):
        if profile.all_match(_pattern(tokens, at, part)):
            return written
    return code


def _spellings(code: str) -> Iterator[tuple[str, str]]:
    """Yields other codes for one of `strftime`.

    Each has a pattern of what it writes.
    """
    if code in ("%b", "%B"):
        yield f"%^{code[1]}", r"\p{Lu}+"
    if code == "%p":
        yield "%P", r"\p{Ll}+"
    if code == "%z":
        yield "%:z", r"[+-]\d{2}:\d{2}"
        yield "%:::z", r"[+-]\d{2}(?::(?:[1-5]\d|0[1-9]))?"


def _pattern(tokens: Sequence[str], at: int, part: str) -> str:
    """Returns a pattern of cells.

    `part` stands in the place of one code.
    """
    parts = [part if j == at else _READ.get(token, re.escape(token)) for j, token in enumerate(tokens)]
    return f"^{''.join(parts)}$"


def offset_of(profile: Profile) -> str | None:
    """Returns the offset from UTC of every text, such as +03:00.

    None where there are several.
    """
    texts = pc.unique(pc.replace_substring_regex(profile.texts, r"^.*([+-]\d{2}):?(\d{2})?$", r"\1:\2"))
    ends = {_offset(end) for end in texts.to_pylist()}
    return ends.pop() if len(ends) == 1 else None


def _offset(end: str) -> str:
    return f"{end}00" if end.endswith(":") else end.replace("-00:00", "+00:00")


# Cells one by one -----------------------------------------------------------------------------------------------------


def has_offset(written: str | None, text: str) -> bool:
    """Returns whether a cell says its offset from UTC.

    The format decides, or without one the cell itself.
    """
    if written is not None:
        return "%z" in plain(written)
    return re.search(r"(Z|[T ]\d.*[+-]\d\d(:?\d\d)?)$", text.strip()) is not None


def moment(value: Any) -> Any:
    """Returns a Timestamp for a date or a datetime.

    None for a missing value. Text and other values stay as they are.
    """
    if value is None:
        return None
    if isinstance(value, pd.Period):
        return value.start_time
    return pd.Timestamp(value) if isinstance(value, dt.date | np.datetime64) else value


def since_epoch(moments: np.ndarray) -> np.ndarray:
    """Returns (m,) timedelta64[us] since the beginning of 1970."""
    since: np.ndarray = moments.astype("datetime64[us]") - np.datetime64(0, "us")
    return since


def time_of_day(value: Any, written: str | None) -> np.timedelta64:
    missing = np.timedelta64("NaT")
    if value is None:
        return missing
    if isinstance(value, str):
        try:
            text = value.strip()
            value = dt.time.fromisoformat(text) if written is None else _strptime(text, written)
        except ValueError:
            return missing
    if isinstance(value, dt.datetime):
        value = value.time()
    if not isinstance(value, dt.time):
        return missing
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    return np.timedelta64(seconds * 1_000_000 + value.microsecond, "us")


def _strptime(text: str, written: str) -> dt.time:
    return dt.datetime.strptime(readable(text, written), plain(written)).time()


#: Digits of a second's fraction, by the step.
FRACTIONS = {"millisecond": 3, "microsecond": 6}


def clock(span: Any, digits: int, fraction: int) -> str:
    """Returns a span as a clock without days.

    The hours have at least `digits` digits, the fraction of a second has `fraction`.
    """
    micro = span // dt.timedelta(microseconds=1)
    total, rest = divmod(abs(micro), 1_000_000)
    text = f"{'-' if micro < 0 else ''}{total // 3600:0{digits}d}:{total // 60 % 60:02d}:{total % 60:02d}"
    return f"{text}.{rest:06d}"[: len(text) + 1 + fraction] if fraction else text
