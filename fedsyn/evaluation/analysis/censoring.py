"""Codes for missing and censored values in an analysis.

They are cells of a column of numbers, and none of them is a number.

A code for a missing value (`missing_codes`) is missing in every analysis. A censored value (`<0.5`) bounds a number
without giving it: an average that takes it for its bound is off by as much as the bound is, and one that leaves it out
is of other rows. So nothing is averaged before the analyst has said which of the two she wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedsyn.domain import Codes, Floats
from fedsyn.errors import ConfigError
from fedsyn.evaluation.analysis.tables import SyntheticTables, holds_numbers
from fedsyn.table.schema.binned import BinnedColumn

if TYPE_CHECKING:
    import pandas as pd

#: Ways to treat a censored value: as the number in it, or as missing.
Censored = Literal["bound", "leave_out"]
_SIGNS = "<>≤≥=~ "


def settled(
    tables: SyntheticTables, columns: Iterable[str], censored: Censored | None, averaged: bool = True
) -> tuple[SyntheticTables, list[str]]:
    """Returns tables with numbers, and notes on censored rows.

    Args:
        tables: of an analysis.
        columns: that it looks at.
        censored: how to treat censored values.
        averaged: whether it takes their values for numbers; else censored ones stay words.

    Raises:
        ConfigError: a column has censored values, and nobody said how to treat them; or one of them names no bound.
    """
    if censored is not None and censored not in get_args(Censored):
        raise ConfigError(f"censored: expected {' or '.join(get_args(Censored))}, found {censored!r}")
    frames, notes, bins = list(tables.frames), list[str](), dict(tables.bins)
    for name in dict.fromkeys(columns):
        column = tables.marked.get(name)
        if column is None:
            continue
        placed = [_placed(frame[name], column) for frame in frames]
        share = float(np.mean([(words >= 0).mean() for _, words, _ in placed]))
        if not averaged:
            bins.pop(name, None)  # words have none
        if averaged and share and holds_numbers(column):
            if censored is None:
                raise ConfigError(
                    f"'{name}': {100 * share:.3g}% of its rows are censored ({_some(column.censored)}), and no average "
                    "knows their numbers: pass censored='bound' (each counts as its bound) or censored='leave_out' "
                    "(their rows are left out)"
                )
            way = "counts as its bound" if censored == "bound" else "is left out"
            notes.append(
                f"{100 * share:.3g}% of the rows of '{name}' are censored ({_some(column.censored)}): each {way}."
            )
        bounds = _bounds(name, column) if averaged and share and censored == "bound" else None
        frames = [
            frame.assign(**{name: _series(frame[name], column, *parts, bounds, averaged)})
            for frame, parts in zip(frames, placed, strict=True)
        ]
    return replace(tables, frames=frames, bins=bins), notes


def _placed(series: pd.Series[Any], column: BinnedColumn) -> tuple[Floats, Codes, Codes]:
    """Returns what each row of a column is.

    Returns:
        (n,) numbers, NaN where there is none; (n,) the censored value's place in `column.censored`, or -1; (n,)
        whether it is a code for missing.
    """
    import pandas as pd

    index, values = pd.factorize(series, use_na_sentinel=True)
    numbers, codes, bad = column.place(values.tolist(), frozenset({""}))
    numbers = np.where(bad, np.nan, numbers)
    missing = np.isin(codes, column.coded_missing)
    first = len(column.edges) - 1 + int(column.missing) + len(column.missing_codes)
    inside = (codes >= first) & (codes < first + len(column.censored)) & ~bad
    words = np.where(inside, codes.astype(np.int64) - first, -1)
    unit = column.scale[1]
    numbers = numbers * unit.numerator / unit.denominator
    return np.append(numbers, np.nan)[index], np.append(words, -1)[index], np.append(missing, True)[index]


def _series(
    series: pd.Series[Any],
    column: BinnedColumn,
    numbers: Floats,
    words: Codes,
    missing: Codes,
    bounds: Sequence[float] | None,
    averaged: bool,
) -> pd.Series[Any]:
    import pandas as pd

    if not averaged or not holds_numbers(column):
        return series.where(~pd.Series(missing, index=series.index))
    if bounds is not None:
        numbers = np.where(words >= 0, np.array([*bounds, np.nan])[words], numbers)
    return pd.Series(numbers, index=series.index)


def _bounds(name: str, column: BinnedColumn) -> list[float]:
    """Returns the number in each censored value.

    Raises ConfigError where there is none.
    """
    texts = [word.strip().lstrip(_SIGNS) for word in column.censored]
    numbers, bad = column.parse_all(texts, frozenset({""}))
    for word, number, unread in zip(column.censored, numbers, bad, strict=True):
        if unread or np.isnan(number):
            raise ConfigError(f"'{name}': '{word}' names no bound; pass censored='leave_out'")
    return [float(number) * column.scale[1].numerator / column.scale[1].denominator for number in numbers]


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:3]) + (" ..." if len(words) > 3 else "")
