"""Ordered kinds as tables write them: integers, decimals, dates, times, durations.

Numbers may have thousands, decimal commas, currencies, percent. Moments and spans are whole numbers of days, or of a
column's own step: their bounds and edges are written in ISO 8601 (durations: `2 days 03:00:00`, `36:00:00`), cells in
the column's `format` (the codes of `strftime`), or in ISO 8601 where it has none.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, StrictInt, field_validator, model_validator

from fedsyn.domain import Floats
from fedsyn.lazy import pd
from fedsyn.table.schema import formats
from fedsyn.table.schema.binned import (
    MOMENTS,
    NUMBERS,
    SPANS,
    BinnedColumn,
    as_stored,
    numbers_of,
    restored_numbers,
)
from fedsyn.table.schema.column_base import Reading
from fedsyn.table.schema.digits import numbers_at_once
from fedsyn.table.schema.frames import as_decimals
from fedsyn.table.schema.values import as_digits, is_missing, parse_number
from fedsyn.table.schema.written import MOST_PLACES, dates, datetimes, spans, times

if TYPE_CHECKING:
    from fedsyn.table.schema.profile import Profile


class WrittenNumber(BinnedColumn):
    """A number that may be written with more than digits.

    Attributes:
        multiple_of: what every number is a multiple of, where that is more than one step: 100 for prices in hundreds,
            0.5 for half points. Another number goes to the nearest multiple.
        thousands: what stands between groups of three digits, such as "," or "."; None: nothing.
        mark: what stands before the decimals.
        prefix, suffix: text around the number, such as "€" or " %". Spaces around a cell do not count.
        minus: where a negative number has its sign: in front (-$1), inside ($-1), at its end (1-), or as parentheses
            (1).
        plus: whether numbers above zero have a sign, too: +1.
        leading_zero: whether a zero stands before the mark: 0.5, not .5.
    """

    lower: float | None = None
    upper: float | None = None
    bins: StrictInt | tuple[float, ...] | Literal["values"] = 32
    atoms: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    multiple_of: float | None = Field(default=None, gt=0)
    thousands: Literal[",", ".", " ", "'", "\u00a0", "\u202f"] | None = None
    mark: Literal[".", ","] = "."
    prefix: str = ""
    suffix: str = ""
    minus: Literal["front", "inside", "end", "parentheses"] = "front"
    plus: bool = False
    leading_zero: bool = True

    @property
    def decimals(self) -> int:
        """Digits after the decimal mark."""
        return 0

    @property
    def least_decimals(self) -> int:
        """Digits after the decimal mark that stay where they are zeros."""
        return self.decimals

    @property
    def _steps(self) -> int:
        """Steps of the last decimal from one number to the next."""
        return 1 if self.multiple_of is None else max(1, round(self.multiple_of * 10**self.decimals))

    @model_validator(mode="after")
    def _whole_multiple(self) -> WrittenNumber:
        if self.multiple_of is not None and not math.isclose(self._steps, self.multiple_of * 10**self.decimals):
            raise ValueError(f"multiple_of must be a number of at most {self.decimals} decimals")
        return self

    @model_validator(mode="after")
    def _marks_differ(self) -> WrittenNumber:
        if self.thousands == self.mark:
            raise ValueError(
                f"thousands and mark are both '{self.mark}'; say mark: '{',' if self.mark == '.' else '.'}'"
            )
        return self

    @property
    def reads_numbers(self) -> bool:
        plain = self.thousands is None and self.mark == "." and self.minus == "front" and self.leading_zero
        return plain and not self.plus and not self.prefix and not self.suffix

    @property
    def scale(self) -> tuple[str, Fraction]:
        return NUMBERS, Fraction(self._steps, 10**self.decimals)

    @property
    def expected(self) -> str:
        return f"a number like {self.prefix}{self._digits(1234.5)}{self.suffix}"

    @property
    def _not_whole(self) -> str:
        if self.multiple_of is not None:
            return f"bounds, edges and atoms must be multiples of {self.multiple_of:g}"
        digits = "whole numbers" if self.decimals == 0 else f"numbers of at most {self.decimals} decimals"
        return f"bounds and edges must be {digits}, and at most 2**53 steps"

    def number(self, bound: Any) -> float:
        number = float(bound)
        if not math.isfinite(number):
            raise ValueError("a bound must be a finite number")
        steps = number * 10**self.decimals / self._steps
        return float(round(steps)) if math.isclose(steps, round(steps), rel_tol=1e-12, abs_tol=1e-6) else steps

    def bound(self, number: float) -> Any:
        return (
            round(number * self._steps / 10**self.decimals, self.decimals)
            if self.decimals
            else int(number) * self._steps
        )

    def of_plain(self, numbers: Floats) -> Floats | None:
        # The nearest step; an integer column keeps what lies between two integers in the bin of the lower one.
        if self.decimals == 0 and self._steps == 1:
            return numbers
        steps = numbers * 10.0**self.decimals / self._steps
        return np.where(np.isin(numbers, self._coded), steps, np.rint(steps))

    @cached_property
    def _coded(self) -> list[float]:
        """Codes for missing values as numbers, which no step rounds."""
        return [number for word in self.missing_codes if (number := self.value_of(word, frozenset())) is not None]

    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        at_once = numbers_at_once(values, missing_text) if self.reads_numbers else None
        numbers, bad = at_once or numbers_of(self.value_of(value, missing_text) for value in values)
        plain = self.of_plain(numbers)
        assert plain is not None
        return plain, bad

    def value_of(self, value: Any, missing_text: frozenset[str]) -> float | None:
        """Returns a cell's number; NaN where missing, None for other text."""
        if not isinstance(value, str):
            return parse_number(value)
        text = value.strip()
        if text in missing_text:
            return math.nan
        if self.reads_numbers:
            return parse_number(text)
        if self.minus == "parentheses" and text.startswith("(") and text.endswith(")"):
            text = f"-{text[1:-1].strip()}"
        if self.minus == "end" and text.endswith("-"):
            text = f"-{text[:-1].strip()}"
        for affix in (self.prefix.strip(), self.suffix.strip()):
            text = text.removeprefix(affix) if affix == self.prefix.strip() else text.removesuffix(affix)
        text = text.strip()
        sign = text[:1] if text[:1] in "+-" else ""
        body = text.removeprefix(sign).strip().removeprefix(self.prefix.strip()).strip()
        if self.thousands is not None:
            head, mark, tail = body.partition(self.mark)
            groups = head.split(self.thousands)
            if len(groups) > 1 and (not 1 <= len(groups[0]) <= 3 or any(len(group) != 3 for group in groups[1:])):
                return None
            body = "".join(groups) + mark + tail
        if self.mark == "," and "." in body:
            return None
        return parse_number(sign + body.replace(self.mark, "."))

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        in_steps = numbers * self._steps
        if self.stored is not None and self.stored.startswith("decimal"):
            return as_decimals([f"{int(number)}e-{self.decimals}" for number in in_steps.tolist()], absent, self.stored)
        if self.stored in ("str", "string") or (not self.reads_numbers and self.stored in (None, "object")):
            return as_stored(self.cells(numbers, absent), self.stored)
        if self.decimals == 0:
            return restored_numbers(in_steps, absent, True, self.missing, self.stored)
        return restored_numbers(in_steps / 10**self.decimals, absent, False, self.missing, self.stored)

    def cells(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        if self.decimals == 0 and self.reads_numbers:
            return restored_numbers(numbers * self._steps, absent, True, self.missing, None)
        return super().cells(numbers, absent)

    def texts(self, numbers: np.ndarray) -> list[str]:
        values = np.asarray(numbers, np.float64) * self._steps / 10**self.decimals
        return [self._written(number) for number in values.tolist()]

    def _written(self, value: float) -> str:
        sign = "-" if value < 0 else "+" if self.plus and value > 0 else ""
        inside = sign if self.minus == "inside" else ""
        text = f"{self.prefix}{inside}{self._digits(abs(value))}{self.suffix}"
        if value >= 0 or inside:
            return text if inside else f"{sign}{text}"
        return {"parentheses": f"({text})", "end": f"{text}-"}.get(self.minus, f"-{text}")

    def _digits(self, value: float) -> str:
        text = f"{value:,.{self.decimals}f}"
        if self.decimals and self.least_decimals < self.decimals:
            whole, _, tail = text.partition(".")
            tail = tail.rstrip("0").ljust(self.least_decimals, "0")
            text = f"{whole}.{tail}" if tail else whole
        text = text.removeprefix("0") if not self.leading_zero and "." in text else text
        return text.replace(",", "\0").replace(".", self.mark).replace("\0", self.thousands or "")


class IntegerColumn(WrittenNumber):
    """A column of whole numbers."""

    kind: Literal["integer"] = "integer"


class DecimalColumn(WrittenNumber):
    """Column of numbers with a fixed number of decimals.

    Such are prices, temperatures and shares in percent.

    Attributes:
        places: digits after the decimal mark.
        least_places: how many of them stay where they are zeros: 1 writes 3.0 and 3.25, 0 writes 3; None: all.
    """

    kind: Literal["decimal"] = "decimal"
    places: int = Field(ge=0, le=MOST_PLACES)
    least_places: int | None = Field(default=None, ge=0)

    @property
    def decimals(self) -> int:
        return self.places

    @property
    def least_decimals(self) -> int:
        return self.places if self.least_places is None else min(self.least_places, self.places)


# Dates and times ------------------------------------------------------------------------------------------------------


TimeStep = Literal["day", "hour", "minute", "second", "millisecond", "microsecond"]
_MICROSECONDS: dict[str, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


class TemporalColumn(BinnedColumn):
    """A column of moments or spans of time.

    Attributes:
        lower, upper: public bounds, as text.
        format: of the cells, in the codes of `strftime` and those of `formats` (`%3f`, `%:z`, `%-d`); None: ISO 8601.
        step: the unit in which values lie; finer parts of a real value are cut off.
        multiple_of: how many such units lie between two values: 15 for quarters of hours, with step: minute.
    """

    family: ClassVar[str] = MOMENTS
    #: A bound, in a message.
    example: ClassVar[str]
    #: What stands for a missing value among pandas' own.
    nothing: ClassVar[Any] = np.nan

    lower: str | None = None
    upper: str | None = None
    bins: int | tuple[str, ...] | Literal["values"] = 32
    atoms: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    multiple_of: int = Field(default=1, ge=1)
    format: str | None = None
    step: TimeStep = "second"

    @field_validator("lower", "upper", mode="before")
    @classmethod
    def _as_text(cls, bound: Any) -> Any:
        return bound.isoformat() if isinstance(bound, dt.date | dt.time) else bound

    @field_validator("atoms", "values", mode="before")
    @classmethod
    def _all_as_text(cls, values: Any) -> Any:
        if not isinstance(values, list | tuple):
            return values
        return [value.isoformat() if isinstance(value, dt.date | dt.time) else value for value in values]

    @property
    def microseconds(self) -> int:
        """Microseconds between two values that lie next to each other."""
        return _MICROSECONDS[self.step] * self.multiple_of

    @property
    def scale(self) -> tuple[str, Fraction]:
        return self.family, Fraction(self.microseconds)

    @property
    def _zone(self) -> str | None:
        """Zone in which moments are written; None: they have none."""
        return None

    @property
    def _not_whole(self) -> str:
        return f"bounds and edges must be whole {self.step}s"

    @property
    def expected(self) -> str:
        return f"a {self.kind} like {self.texts(np.array([self.span[0]]))[0]}"

    def number(self, bound: Any) -> float:
        read = _since_zero if isinstance(bound, str) else _since_zero.__wrapped__
        return float(read(type(self), self._zone, bound) // self.microseconds)

    def bound(self, number: float) -> Any:
        return self.model_copy(update={"format": None}).texts(np.array([number]))[0]

    @property
    def reach(self) -> tuple[float | None, float | None]:
        # pandas reads spans as nanoseconds in 64 bits
        longest = float(100_000 * _MICROSECONDS["day"] // self.microseconds)
        return -longest, longest

    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        moments, bad = self._microseconds(values, missing_text, self.format)
        numbers = np.floor_divide(moments.astype(np.int64), self.microseconds).astype(np.float64)
        numbers[np.isnat(moments)] = np.nan
        return numbers, bad

    def _microseconds(
        self, values: Sequence[Any], missing_text: frozenset[str], written: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns times since the kind's zero, and unreadable values.

        (m,) timedelta64[us], NaT where missing or not of this kind, and (m,) which are not of this kind.
        """
        absent = np.array([is_missing(value, missing_text) for value in values], dtype=bool)
        cells = pd.Series(
            [None if missing else value for value, missing in zip(values, absent, strict=True)], dtype=object
        )
        try:
            moments = self._read(cells, written)
        except (ValueError, TypeError, OverflowError):
            moments = np.concatenate([[*self._read_alone(cells.iloc[[at]], written)] for at in range(len(cells))])
        return moments, np.isnat(moments) & ~absent

    def _read_alone(self, cells: pd.Series, written: str | None) -> np.ndarray:
        try:
            return self._read(cells, written)
        except (ValueError, TypeError, OverflowError):
            return np.array(["NaT"], dtype="timedelta64[us]")

    @abstractmethod
    def _read(self, cells: pd.Series, written: str | None) -> np.ndarray:
        """Returns times since the kind's zero, (m,) timedelta64[us].

        They are NaT where a value is not of this kind.
        """

    @abstractmethod
    def _values(self, moments: np.ndarray) -> pd.Series:
        """timedelta64[us] since the kind's zero, as pandas has such values."""

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        if self.stored is None or self.stored in ("object", "str", "string"):
            return as_stored(self.cells(numbers, absent), self.stored)
        if self.stored.lower().startswith(("int", "uint", "float")):  # digits, such as 20240531
            return as_stored(pd.to_numeric(self.cells(numbers, absent)), self.stored)
        values = self._values(self._moments(numbers))
        if re.fullmatch(r"timestamp\[.*[^w]\]", self.stored):  # objects, unlike pandas' timestamp[us][pyarrow]
            return values.astype(object).mask(absent, None)
        nothing = None if values.dtype == object else self.nothing
        return as_stored(values.mask(absent, nothing) if absent.any() else values, self.stored)

    def _moments(self, numbers: np.ndarray) -> np.ndarray:
        return (np.asarray(numbers).astype(np.int64) * self.microseconds).astype("timedelta64[us]")

    def texts(self, numbers: np.ndarray) -> list[str]:
        return [self._text(value) for value in self._values(self._moments(numbers)).tolist()]

    def _text(self, value: Any) -> str:
        """Returns one of `_values` as it is written."""
        if self.format is not None:
            return formats.text_of(value, self.format)
        return str(value.isoformat(timespec="hours" if self.step in ("day", "hour") else f"{self.step}s"))


@lru_cache(maxsize=10_000)
def _since_zero(kind: type[TemporalColumn], zone: str | None, bound: Any) -> int:
    """Returns microseconds of a bound since its kind's zero."""
    # Kept, because a draft copies a column hundreds of times, and pandas needs half a millisecond for each bound.
    column = kind.model_construct(zone=zone)
    moments, bad = column._microseconds([bound], frozenset(), None)
    if bad[0] or np.isnat(moments[0]):
        raise ValueError(f"'{bound}' is not a {column.kind} in ISO 8601, such as {column.example}")
    return int(moments[0].astype(np.int64))


class CalendarColumn(TemporalColumn):
    """Moments of the calendar, from the year 1 to 9999.

    A day is spared for zones.
    """

    @property
    def middle(self) -> float:
        days = (dt.date(2025, 1, 1) - dt.date(1970, 1, 1)).days
        return float(days * _MICROSECONDS["day"] // self.microseconds)

    @property
    def reach(self) -> tuple[float | None, float | None]:
        day = _MICROSECONDS["day"]
        first, last = ((dt.date(*date) - dt.date(1970, 1, 1)).days for date in ((1, 1, 2), (9999, 12, 30)))
        return float(first * day // self.microseconds), float(last * day // self.microseconds)

    def _read(self, cells: pd.Series, written: str | None) -> np.ndarray:
        # Together are read only cells that pandas reads as it reads each alone: text, all with an offset or all without
        # one, and no finer than microseconds (one finer cell makes all nanoseconds, which end in the year 2262).
        moments = np.full(len(cells), np.timedelta64("NaT"), "timedelta64[us]")
        together: tuple[list[tuple[int, str]], ...] = ([], [])
        for at, value in enumerate(cells.map(lambda value: as_digits(value, written or ""))):  # a number is no epoch
            moment = formats.moment(value)
            if moment is None or isinstance(moment, pd.Timestamp):
                moments[at] = formats.since_epoch(np.array([self._plain(moment)], dtype="datetime64[us]"))[0]
            elif isinstance(moment, str):
                together[formats.has_offset(written, moment)].append((at, formats.readable(moment, written)))
            else:
                moments[at] = self._read_texts([moment], written, utc=False)[0]
        for utc, texts in enumerate(together):
            if texts:
                moments[[at for at, _ in texts]] = self._read_texts([text for _, text in texts], written, utc=bool(utc))
        return moments

    def _read_texts(self, texts: list[Any], written: str | None, *, utc: bool) -> np.ndarray:
        form = "ISO8601" if written is None else formats.plain(written)
        read = pd.to_datetime(pd.Series(texts, dtype=object), format=form, errors="coerce", utc=utc)
        if self._zone is not None and read.dt.tz is None:  # a moment without a zone is one of the column's zone
            every = np.ones(len(read), dtype=bool)
            read = read.dt.tz_localize(self._zone, ambiguous=every, nonexistent="shift_forward")
        if read.dt.tz is not None:
            read = read.dt.tz_convert("UTC").dt.tz_localize(None)
        return formats.since_epoch(read.to_numpy())

    def _plain(self, value: Any) -> Any:
        """Returns a Timestamp without a zone, in UTC where columns have one."""
        if value is None:
            return np.datetime64("NaT")
        if self._zone is not None:
            if value.tz is None:
                value = value.tz_localize(self._zone, ambiguous=True, nonexistent="shift_forward")
            value = value.tz_convert("UTC")
        return value.tz_localize(None).to_datetime64()


class DatetimeColumn(CalendarColumn):
    """Moments, to the step.

    Attributes:
        zone: IANA name of the moments' zone, UTC, or an offset such as +03:00. They are written in it; None: they have
            none.
    """

    origin: ClassVar[Any] = "1970-01-01T00:00:00"
    example: ClassVar[str] = "2024-05-31T12:00:00"

    kind: Literal["datetime"] = "datetime"
    zone: str | None = None

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str | None) -> str | None:
        import zoneinfo

        if zone is not None and not re.fullmatch(r"[+-](0\d|1[0-4]):[0-5]\d", zone):
            try:
                zoneinfo.ZoneInfo(zone)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError(
                    f"'{zone}' is not a time zone; use a name such as UTC or Europe/Berlin, or +03:00"
                ) from None
        return zone

    @property
    def scale(self) -> tuple[str, Fraction]:
        family, unit = super().scale
        return (family if self.zone is None else f"{family} in a zone"), unit

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        return datetimes(profile)

    @property
    def _zone(self) -> str | None:
        return self.zone

    def _values(self, moments: np.ndarray) -> pd.Series:
        series = pd.Series(np.datetime64(0, "us") + moments)
        return series if self.zone is None else series.dt.tz_localize("UTC").dt.tz_convert(self.zone)


class DateColumn(CalendarColumn):
    """Days."""

    origin: ClassVar[Any] = "1970-01-01"
    example: ClassVar[str] = "2024-05-31"

    kind: Literal["date"] = "date"
    step: Literal["day"] = "day"

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        return dates(profile)

    def _values(self, moments: np.ndarray) -> pd.Series:
        days = pd.Series(np.datetime64(0, "us") + moments)
        return days.dt.date if self.stored is not None and self.stored.startswith("date32") else days

    def _text(self, value: Any) -> str:
        return str(value)[:10] if self.format is None else formats.text_of(value, self.format)


class TimeColumn(TemporalColumn):
    """Times of day."""

    origin: ClassVar[Any] = "00:00:00"
    example: ClassVar[str] = "13:45:00"
    nothing: ClassVar[Any] = None
    family: ClassVar[str] = "times of day"

    kind: Literal["time"] = "time"
    lower: str | None = "00:00:00"
    upper: str | None = "23:59:59"

    @property
    def reach(self) -> tuple[float | None, float | None]:
        return 0.0, float(_MICROSECONDS["day"] // self.microseconds - 1)

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        return times(profile)

    def _read(self, cells: pd.Series, written: str | None) -> np.ndarray:
        return np.array([formats.time_of_day(value, written) for value in cells.tolist()], dtype="timedelta64[us]")

    def _values(self, moments: np.ndarray) -> pd.Series:
        whole = (np.datetime64(0, "us") + moments).astype("datetime64[us]").tolist()
        return pd.Series([moment.time() for moment in whole], dtype=object)


class DurationColumn(TemporalColumn):
    """Spans of time.

    Attributes:
        format: "clock" writes 36:05:00 and 06:05:00, "short clock" 6:05:00, "days" 3 days and 1 day, with step: day;
            None writes `1 days 12:05:00`, as pandas does.
    """

    origin: ClassVar[Any] = "0 days 00:00:00"
    example: ClassVar[str] = "2 days 03:00:00 or 36:00:00"
    family: ClassVar[str] = SPANS

    kind: Literal["duration"] = "duration"
    format: Literal["clock", "short clock", "days"] | None = None
    step: TimeStep = Field(default="second")

    @model_validator(mode="after")
    def _whole_days(self) -> DurationColumn:
        if self.format == "days" and self.step != "day":
            raise ValueError("format: days writes whole days; say step: day, too")
        return self

    @classmethod
    def reading(cls, profile: Profile) -> Reading | None:
        return spans(profile)

    def _read(self, cells: pd.Series, written: str | None) -> np.ndarray:
        if any(isinstance(value, int | float) for value in cells.tolist() if value is not None):
            raise ValueError("a plain number is not a span of time")
        return np.asarray(pd.to_timedelta(cells, errors="coerce").to_numpy(), "timedelta64[us]")

    def _values(self, moments: np.ndarray) -> pd.Series:
        return pd.Series(moments)

    def _text(self, value: Any) -> str:
        if self.format is None:
            return str(value)
        if self.format == "days":
            return f"{value.days} {'day' if abs(value.days) == 1 else 'days'}"
        return formats.clock(value, 1 if self.format == "short clock" else 2, formats.FRACTIONS.get(self.step, 0))
