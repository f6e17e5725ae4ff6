"""Days between two dates of a row, compared as a column.

Two columns of dates may each be kept, and their pair in cells of weeks, while a stay of two days has become one of
thirty. Where the real rows have two dates near to each other, what lies between them is compared like any column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedsyn.domain import Floats
from fedsyn.evaluation.real.reading import Notation
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import MOMENTS, BinnedColumn
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.ordered import DateColumn, DatetimeColumn
from fedsyn.table.schema.profile import Profile

_DAY, _TO = 86_400e6, " to "  # microseconds; stands between both names
#: Of the rows with both, in so many the one is not the later; and near is a smaller share of the range of the other
#: than one of the most bins that a draft cuts it into.
_IN_ORDER, _NEAR = 0.99, 1.0 / FINEST
_FEWEST = 20  # rows with both dates
_LOOKED_AT, _SHORTEST = 32, 6  # values, and characters of a date: 202405
_ROWS_LOOKED_AT = 200  # which show that another column has the days


def with_between(tables: Sequence[pd.DataFrame], names: Sequence[str]) -> tuple[list[pd.DataFrame], list[str]]:
    """Returns tables with the days between near dates, and all names.

    Args:
        tables: real, synthetic and held-out rows. The real ones alone say which dates are near.
        names: columns that all of them have.
    """
    moments = {name: notation for name in names if (notation := _moment(tables[0][name])) is not None}
    if len(moments) < 2:
        return list(tables), list(names)
    days = [
        {name: notation.cells(table[name]).numbers / _DAY for name, notation in moments.items()} for table in tables
    ]
    added: list[dict[str, Floats]] = [{} for _ in tables]
    for late in moments:
        early = _nearest(late, days[0])
        if early is None or _is_there(days[0][late] - days[0][early], tables[0][names]):
            continue
        if (name := f"{early}{_TO}{late}") not in names:
            for columns, own in zip(added, days, strict=True):
                columns[name] = own[late] - own[early]
    further = [table.assign(**columns) for table, columns in zip(tables, added, strict=True)]
    return further, [*names, *added[0]]


def ends_of(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns both dates of each column between two of them."""
    known, ends = {*names}, dict[str, tuple[str, str]]()
    for name in names:
        parts = name.split(_TO)
        for at in range(1, len(parts)):  # a date may have these words in its name, too
            pair = _TO.join(parts[:at]), _TO.join(parts[at:])
            if known.issuperset(pair):
                ends[name] = pair
    return ends


def _moment(series: pd.Series) -> Notation | None:
    """Returns the notation of a column of dates; None of any other."""
    if pd.api.types.is_numeric_dtype(series.dtype) or not _may_hold_dates(series):
        return None
    notation = Notation.of(series)
    column = notation.column
    return notation if isinstance(column, BinnedColumn) and column.scale[0].startswith(MOMENTS) else None


def _may_hold_dates(series: pd.Series) -> bool:
    """Returns whether a few values are dates, which most columns are not."""
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return True
    some = series.iloc[:_LOOKED_AT].dropna()
    some = some if len(some) else series.dropna().iloc[:_LOOKED_AT]
    texts = [str(value) for value in some.tolist()]
    if 2 * sum(len(text) >= _SHORTEST and any(map(str.isdigit, text)) for text in texts) < len(texts):
        return False
    profile = Profile.of(some.astype(object))
    return bool(profile.values) and any(kind.reading(profile) for kind in (DateColumn, DatetimeColumn))


def _is_there(between: Floats, real: pd.DataFrame) -> bool:
    """Returns whether a column holds these days already.

    Its first rows show it.
    """
    some = slice(0, _ROWS_LOOKED_AT)
    for name in real.columns:
        numbers = pd.to_numeric(real[name].iloc[some].astype(object), errors="coerce").to_numpy(np.float64)
        known = np.isfinite(numbers) & np.isfinite(between[some])
        if known.sum() >= _FEWEST and bool((numbers == between[some])[known].all()):
            return True
    return False


def _nearest(late: str, days: dict[str, Floats]) -> str | None:
    """Returns the date that is nearest before another one, or None."""
    of_late, found = days[late], dict[float, str]()
    known = of_late[np.isfinite(of_late)]
    if not len(known):
        return None
    reach = float(known.max() - known.min())
    for early, of_early in days.items():
        between = of_late - of_early
        between = between[np.isfinite(between)]
        if early == late or len(between) < _FEWEST or not (between > 0).any() or (between >= 0).mean() < _IN_ORDER:
            continue
        middle = float(np.median(between))
        if middle < _NEAR * reach:
            found.setdefault(middle, early)
    return found[min(found)] if found else None
