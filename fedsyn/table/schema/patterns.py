"""Patterns of missing values, zeros and nested codes.

They hold in all rows, and are proposed as constraints beside sums, maps and comparisons
(`fedsyn.table.schema.proposals`). One is proposed only if at least `BREAKS` rows would break it were its columns
independent of each other, and it names no value that few rows, or people, hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.profile import held_by
from fedsyn.table.schema.rules import AnyRule, Dropout, MissingWhere, Nested, When, ZeroTogether
from fedsyn.table.schema.vocabulary import FEW_ROWS

Found = Iterator[tuple[AnyRule, list[str]]]
#: Rows that would have to break a constraint, were its columns independent, before it is proposed.
BREAKS = 20
#: Values of a column that a constraint may list: somebody has to read them.
MOST_ENTRIES = 50
# Rows that are looked at first.
_FIRST = 512


def may_be_missing(column: Any) -> bool:
    """Returns whether a column has a place for missing values."""
    return bool(column.missing or getattr(column, "missing_codes", ()))


def missing_in(rows: DrawnRows, name: str, column: Any) -> Flags:
    """(n,) which rows have a column missing, in words or not."""
    codes = column.coded_missing if isinstance(column, BinnedColumn) else [len(column.values)] * column.missing
    return np.isin(rows.codes[name], codes)


def absent_in(rows: DrawnRows, name: str, column: Any) -> Flags:
    """(n,) which rows have no value of a column."""
    if name in rows.drawn:
        return rows.drawn[name][1]
    return np.asarray(rows.codes[name] >= len(column.values))


class Patterns:
    """The columns of a table whose patterns are looked for.

    Args:
        columns: modelled ones, in the order of the table.
        rows: of all these columns.
        numbers: column of numbers -> (n,) values, NaN where missing.
        whose: (n,) number of each row's person, where persons have several rows.
    """

    def __init__(
        self, columns: Mapping[str, Any], rows: DrawnRows, numbers: Mapping[str, Floats], whose: Integers | None
    ) -> None:
        self._columns, self._rows, self._numbers, self._whose = columns, rows, numbers, whose
        self._categories = [name for name, column in columns.items() if isinstance(column, CategoricalColumn)]

    @cached_property
    def _absent(self) -> dict[str, Flags]:
        """Column that only some rows have -> the other rows, (n,)."""
        able = {name: column for name, column in self._columns.items() if may_be_missing(column)}
        masks = {name: missing_in(self._rows, name, column) for name, column in able.items()}
        return {name: mask for name, mask in masks.items() if mask.any() and not mask.all()}

    # Missing values ---------------------------------------------------------------------------------------------------

    def missing(self) -> Found:
        """Yields the columns of which another one decides where they are missing.

        They are missing exactly where it has some of its values, or is missing, too.
        """
        for name, mask in self._absent.items():
            if not _varies(mask):
                continue
            found = [(len(some), a, some) for a in self._categories if a != name and (some := self._decisive(a, name))]
            if found:
                _, a, some = min(found, key=lambda item: item[0])  # the first of the shortest
                wanted: Any = some if len(some) > 1 else some[0]
                yield MissingWhere(missing=name, where={a: wanted}), [a, name]
                continue
            for a, other in self._absent.items():
                if a == name:
                    break
                if np.array_equal(mask, other):
                    yield MissingWhere(missing=name, where={a: None}), [a, name]
                    break

    def _decisive(self, a: str, name: str) -> tuple[Any, ...]:
        """Returns a category's values where a column is missing.

        It is empty unless they decide it.
        """
        codes, mask, column = self._rows.codes[a], self._absent[name], self._columns[a]
        for rows in (slice(_FIRST), slice(None)):
            held = np.bincount(codes[rows], minlength=column.size)
            absent = np.bincount(codes[rows], weights=mask[rows], minlength=column.size)
            if ((absent > 0) & (absent < held)).any():
                return ()
        used = np.flatnonzero(held)
        if used[-1] > len(column.values):  # not listed
            return ()
        later = list(self._columns).index(a) > list(self._columns).index(name)
        some = [None if code >= len(column.values) else column.values[code] for code in np.flatnonzero(absent)]
        # Two columns that are missing together are said once, of the second one.
        if len(used) > MOST_ENTRIES or (later and None in some):
            return ()
        return tuple(some) if held_by(codes, self._whose, column.size)[used].min() >= FEW_ROWS else ()

    def dropouts(self) -> Found:
        """Yields lists of columns, all missing after the first that is.

        The longest comes first. Two columns are enough if their names differ in a number only; else three are needed.
        """
        names = [
            name for name, mask in self._absent.items() if held_by(mask.astype(np.int64), self._whose, 2)[1] >= FEW_ROWS
        ]
        masks = np.stack([self._absent[name] for name in names]).astype(np.float32) if names else np.zeros((0, 1))
        broken = masks @ (1.0 - masks).T
        expected = masks.sum(axis=1)[:, None] * (1.0 - masks.mean(axis=1))[None, :]
        follows = np.triu((broken == 0) & (expected >= BREAKS), 1)
        left = np.ones(len(names), dtype=bool)
        while (chain := _longest(follows & left[:, None] & left[None, :])) and len(chain) > 1:
            some = [names[at] for at in chain]
            stems = {re.sub(r"\d+", "#", name) for name in some}
            if len({masks[at].tobytes() for at in chain}) > 1 and (len(some) > 2 or len(stems) == 1):
                yield Dropout(dropout=tuple(some)), some
            left[chain] = False

    # Zeros ------------------------------------------------------------------------------------------------------------

    def zeros(self, compared: Collection[tuple[str, str]]) -> Found:
        """Yields columns that are zero together, or where another one is.

        Args:
            compared: (smaller, larger) of comparisons that hold: of counts they say it, too.
        """
        masks = {name: values == 0 for name, values in self._numbers.items() if _varies(values == 0)}
        groups: list[list[str]] = []
        for name in masks:
            for group in groups:
                if all(self._agree(masks, name, other, both=True) for other in group):
                    group.append(name)
                    break
            else:
                groups.append([name])
        for group in groups:
            if len(group) > 1:
                yield ZeroTogether(zero=tuple(group)), group
        for first, second in combinations(groups, 2):
            for a, b in ((first[0], second[0]), (second[0], first[0])):
                if (b, a) not in compared and self._follows(masks, a, b):
                    yield When(when={a: 0}, then={b: 0}), [a, b]

    def _agree(self, masks: Mapping[str, Flags], a: str, b: str, *, both: bool) -> bool:
        """Returns whether zero in one column is zero in the other.

        With `both` also the other way round.
        """
        for rows in (slice(_FIRST), slice(None)):
            known = ~(np.isnan(self._numbers[a][rows]) | np.isnan(self._numbers[b][rows]))
            x, y = masks[a][rows][known], masks[b][rows][known]
            if (x != y).any() if both else (x & ~y).any():
                return False
        return True

    def _follows(self, masks: Mapping[str, Flags], a: str, b: str) -> bool:
        """Returns whether zero in one column makes zero in another one.

        Zero has to be more than the lower end of both: in the first one its most frequent value, in the second one that
        of most rows.
        """
        x, y = masks[a], masks[b]
        values, counts = np.unique(self._numbers[a][~np.isnan(self._numbers[a])], return_counts=True)
        if values[counts.argmax()] != 0 or y.mean() <= 0.5 or x.sum() * (1.0 - y.mean()) < BREAKS:
            return False
        return self._agree(masks, a, b, both=False)

    # Codes in groups --------------------------------------------------------------------------------------------------

    def nests(self, mapped: Collection[tuple[str, str]]) -> Found:
        """Yields the columns whose codes lie in one group each.

        Args:
            mapped: (code, group) of maps that are proposed.
        """
        inside = {(a, b) for a in self._categories for b in self._categories if a != b and self._is_nested(a, b)}
        taken: set[str] = {group for _, group in mapped}
        for a, b in sorted(inside, key=lambda pair: [self._categories.index(name) for name in pair]):
            between = any((a, c) in inside and (c, b) in inside for c in self._categories)
            if b not in taken and not between:
                taken.add(b)
                yield Nested(nested=(a, b)), [a, b]

    def _is_nested(self, a: str, b: str) -> bool:
        code, group = self._columns[a], self._columns[b]
        listed = np.array([v in code.categories and v != code.other_value for v in code.values])
        for rows in (slice(_FIRST), slice(None)):
            inner, outer = self._rows.codes[a][rows], self._rows.codes[b][rows]
            known = (inner < len(listed)) & (outer < len(group.values))
            known[known] = listed[inner[known]]
            cells = np.unique(inner[known].astype(np.int64) * group.size + outer[known])
            held = np.bincount(inner[known], minlength=1)
            if len(cells) != np.count_nonzero(held):
                return False
        shares = np.bincount(outer[known], minlength=1) / max(1, known.sum())
        breaks = np.maximum(held - 1, 0).sum() * (1.0 - (shares**2).sum())
        return bool(breaks >= BREAKS and len(cells) > np.count_nonzero(shares) > 1)


def _varies(mask: Flags) -> bool:
    """Returns whether two independent columns like this one would often differ."""
    share = float(mask.mean()) if len(mask) else 0.0
    return 2.0 * len(mask) * share * (1.0 - share) >= BREAKS


def _longest(follows: Flags) -> list[int]:
    """Returns the longest path in a relation that goes upwards, or []."""
    length, before = np.ones(len(follows), dtype=int), np.full(len(follows), -1)
    for at in range(len(follows)):
        for earlier in np.flatnonzero(follows[:at, at]):
            if length[earlier] + 1 > length[at]:
                length[at], before[at] = length[earlier] + 1, earlier
    path = [int(length.argmax())] if len(follows) else []
    while path and before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return path[::-1]
