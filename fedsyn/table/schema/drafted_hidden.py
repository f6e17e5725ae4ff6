"""Drafts of what lies between two moments of a row.

Where most rows have two dates nearer to each other than a bin of the dates is wide, bins of both say little of a stay.
The draft then has a hidden column between them (`fedsyn.table.schema.hidden`), with bins of its own, and the second
date is computed from it. This states nothing of the rows that the table does not show by itself: what the hidden column
holds, and its bounds, a person approves as those of any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from operator import attrgetter
from typing import Any

import numpy as np

from fedsyn.domain import Floats
from fedsyn.errors import SchemaError
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, SPANS, BinnedColumn
from fedsyn.table.schema.column_base import remade
from fedsyn.table.schema.computed import Computed
from fedsyn.table.schema.draft import Guess, GuessOptions, guess_of
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafted_values import in_steps, written_in_months
from fedsyn.table.schema.encoding import numbers_alone
from fedsyn.table.schema.hidden import Hidden
from fedsyn.table.schema.ordered import DateColumn, DatetimeColumn, DurationColumn, IntegerColumn
from fedsyn.table.schema.patterns import BREAKS
from fedsyn.table.schema.proposals import by_chance
from fedsyn.table.schema.rules import SumRule
from fedsyn.table.schema.values import MISSING_TEXT

Moments = DateColumn | DatetimeColumn
_DAY = 86_400e6  # microseconds
# Bounds of a column that is computed. They have no say, and are no row's.
_ANY = {DateColumn: ("1900-01-01", "2100-12-31"), DatetimeColumn: ("1900-01-01T00:00:00", "2100-12-31T00:00:00")}


@dataclass(frozen=True, eq=False)
class Between:
    """A hidden column that a draft proposes.

    Attributes:
        name: of the column.
        guess: what it holds.
        rule: the sum that it stands in.
        ends: both moments, in their steps; of the one that is computed with nothing of its rows but how it is written.
        read: returns what a table has of it, (rows,).
    """

    name: str
    guess: Guess
    rule: SumRule
    ends: Mapping[str, Moments]
    read: Callable[[pd.DataFrame], pd.Series]


def drafted_between(
    guesses: Mapping[str, Guess], frame: pd.DataFrame, modelled: Collection[str], bins: int | None
) -> list[Between]:
    """Returns hidden columns for moments that lie near to each other.

    The nearest pairs come first. Each moment is computed once, from one that is not computed.

    Args:
        guesses: column -> what is proposed for it: of persons, or of their rows.
        frame: the table.
        modelled: columns that stay modelled: the label, and what gives the rows of a person their order.
        bins: number of bins that somebody asked for, or None.
    """
    missing = MISSING_TEXT.union(*(guess.missing_values for guess in guesses.values()))
    moments: dict[str, tuple[Moments, Floats]] = {}
    for name, guess in guesses.items():
        column = guess.column
        if isinstance(column, Moments) and not (column.missing_codes or column.censored or written_in_months(column)):
            numbers = numbers_alone(remade(column, missing=True), frame[name], missing)[0]
            stepped = in_steps(column, np.unique(numbers[np.isfinite(numbers)]))
            assert isinstance(stepped, Moments)
            moments[name] = stepped, numbers * float(column.scale[1])
    found, computed, bases = list[Between](), set[str](), set[str]()
    for early, late in _near(moments):
        if _is_there(moments[late][1] - moments[early][1], guesses, frame, missing):
            continue
        for name, base in ((late, early), (early, late)):  # what is computed, and from what
            if name in computed | bases | {*modelled} or base in computed or moments[base][0].missing:
                continue
            one = _between(early, late, name, {n: moments[n][0] for n in (early, late)}, frame, bins, missing)
            if one is not None:
                found.append(one)
                computed.add(name)
                bases.add(base)
                break
    return found


def _near(moments: Mapping[str, tuple[Moments, Floats]]) -> Iterator[tuple[str, str]]:
    """Yields pairs of which one is never the later, nearest first."""
    pairs = []
    for early, (column, x) in moments.items():
        for late, (other, y) in moments.items():
            if early == late or column.scale[0] != other.scale[0] or type(column) is not type(other):
                continue
            if (x > y).any() or not (x < y).any() or by_chance(x, y) < BREAKS:
                continue
            middle = float(np.nanmedian(y - x))
            if middle < float(np.median(np.diff(other.cut(FINEST).edges))) * float(other.scale[1]):
                pairs.append((middle, early, late))
    for _, early, late in sorted(pairs):
        yield early, late


def _is_there(between: Floats, guesses: Mapping[str, Guess], frame: pd.DataFrame, missing: frozenset[str]) -> bool:
    """Returns whether a column has what lies between two moments.

    Then the draft proposes their sum, and no column has to be hidden.

    Args:
        between: (rows,) microseconds.
        guesses, frame, missing: of the draft.
    """
    for name, guess in guesses.items():
        column = guess.column
        if not isinstance(column, BinnedColumn) or column.scale[0] not in (NUMBERS, SPANS):
            continue
        numbers = numbers_alone(remade(column, missing=True), frame[name], missing)[0] * float(column.scale[1])
        values = numbers * (_DAY if column.scale[0] == NUMBERS else 1.0)
        known = np.isfinite(values) & np.isfinite(between)
        if known.any() and bool((values == between)[known].all()):
            return True
    return False


def _between(
    early: str,
    late: str,
    computed: str,
    columns: Mapping[str, Moments],
    frame: pd.DataFrame,
    bins: int | None,
    missing: frozenset[str],
) -> Between | None:
    """Returns what lies between two moments.

    None where it has no bins.
    """
    name = f"{early}_to_{late}"
    if name in frame.columns:
        return None
    step = gcd(columns[early].microseconds, columns[late].microseconds)
    days = isinstance(columns[early], DateColumn)
    kind: Any = IntegerColumn if days else DurationColumn
    finer = min(columns[early], columns[late], key=attrgetter("microseconds"))
    keys = {} if days else _in_step(finer, step) | {"format": None}
    ends = (0, 1) if days else ("0 days", "1 days")
    plain = kind(lower=ends[0], upper=ends[1], bins=1, missing=True, hidden=True, **keys)
    rule = SumRule(column=computed, terms=((1, early), (1, name)) if computed == late else ((1, late), (-1, name)))
    result = without_bounds(columns[computed], step)
    with_missing = {n: remade(column, missing=True) for n, column in columns.items()}
    try:
        known = {**with_missing, name: plain, computed: remade(result, missing=True)}
        Computed(rule, known)
        read = partial(Hidden(name, rule, known).series, missing_text=missing)
    except SchemaError:  # the two are not of one step
        return None
    series = read(frame)
    values = series.rename(name) if days else pd.to_timedelta(series.astype(object)).rename(name)
    guess = guess_of(values, GuessOptions(bins or FINEST, keep=True, stored=False))
    if not isinstance(guess.column, kind):
        return None
    # A long stay is one, also where a number so far from the others would be a code for a missing value.
    marks = tuple(mark for mark in guess.column.drafted if mark not in ("notation", "missing_codes"))
    column = remade(guess.column, hidden=True, stored=None, missing_codes=(), drafted=marks, **keys)
    unit, them = ("days", "them") if days else ("time", "it")
    why = f"{unit} from {early} to {late}; no file has {them}, and {computed} is computed from {them}"
    return Between(name, replace(guess, column=column, why=why), rule, {**columns, computed: result}, read)


def _in_step(column: Moments, step: int) -> dict[str, Any]:
    """Returns keys of a column in which values lie some microseconds apart.

    As nearly as its own unit allows.
    """
    unit = column.microseconds // column.multiple_of
    return {"step": column.step, "multiple_of": max(1, step // unit)}


def without_bounds(column: Moments, step: int) -> Moments:
    """Returns a moment that is computed, without bounds of its rows.

    What it holds follows from other columns, which a person approves. How it is written stays.

    Args:
        column: as drafted.
        step: microseconds between its values, as what it is computed from has them.
    """
    lower, upper = _ANY[type(column)]
    keys = {} if isinstance(column, DateColumn) else _in_step(column, step)
    return remade(column, lower=lower, upper=upper, bins=1, drafted=(), **keys)
