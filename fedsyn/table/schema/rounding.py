"""Bounds that look like public knowledge: rounded outward, so that no row's own value stands in a schema."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

# A lower bound of this share of the upper one, or less, becomes 0.
_NEAR_ZERO = 0.3
# Whole numbers this close together are grades or months, and end where they end.
_FEW = 20
# Days that make months too fine a unit for bounds.
_YEARS = 730


def outward(low: float, high: float, places: int = 0) -> tuple[float, float]:
    """Round numbers around a range, in steps of 1, 2 or 5 times a power of ten, of at most `places` decimals.

    >>> outward(18, 91), outward(35.2, 41.8, 1), outward(1931, 2004)
    ((0.0, 100.0), (35.0, 42.0), (1930.0, 2010.0))
    """
    few = places == 0 and high - low <= _FEW
    step = Decimal(1) if few else _step(high - low if high > low else max(abs(high), 1.0), places)
    lower, upper = _multiple(math.floor(_in_steps(low, step)), step), _multiple(math.ceil(_in_steps(high, step)), step)
    if not few and 0 <= lower <= _NEAR_ZERO * upper:
        lower = 0.0
    return float(lower), float(upper)


def _step(span: float, places: int) -> Decimal:
    power = Decimal(10) ** math.floor(math.log10(span))
    size = Decimal(span) / power
    step = power / 5 if size < 2 else power / 2 if size < 5 else power
    return max(step, Decimal(10) ** -places)


def _in_steps(value: float, step: Decimal) -> Decimal:
    """A number in steps, without the dust that floats leave: 0.3 is three steps of 0.1."""
    steps = Decimal(repr(float(value))) / step
    nearest = steps.to_integral_value()
    return nearest if abs(steps - nearest) < Decimal("1e-9") else steps


def _multiple(steps: int, step: Decimal) -> float:
    return float(steps * step)


def outward_days(first: dt.date, last: dt.date) -> tuple[dt.date, dt.date]:
    """The starts and ends of months around a range of days; of years where it is longer than two.

    >>> print(*outward_days(dt.date(2024, 3, 9), dt.date(2024, 11, 2)))
    2024-03-01 2024-11-30
    """
    if (last - first).days > _YEARS:
        return dt.date(first.year, 1, 1), dt.date(last.year, 12, 31)
    following = (last.replace(day=28) + dt.timedelta(days=4)).replace(day=1) if last.year < dt.MAXYEAR else last
    return first.replace(day=1), following - dt.timedelta(days=1)


def outward_seconds(low: float, high: float) -> tuple[float, float]:
    """Whole seconds around a range of spans: round numbers of days, hours or minutes."""
    unit = next(unit for unit in (86_400.0, 3_600.0, 60.0, 1.0) if high - low >= 2 * unit or unit == 1.0)
    lower, upper = outward(low / unit, high / unit)
    return lower * unit, upper * unit
