"""Rows of a person, one after the other, between which comparisons hold.

Bounds of numbers are tightened from one row to the next. Comparisons and sums with fixed weights leave exact ones: as
long as no bound crosses another, there are numbers for all rows.

What finds no room is rare: a condition of several columns may leave a row fewer numbers than bounds know, or a model
that no zeros bind has rows that cannot stand together. Then rows that cannot follow the one before them are not
written. A person keeps the first row, and numbers of rows have noise in them anyway. To draw such a person once more
would be worse: that would change who the persons are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags, Integers
from fedsyn.table.schema.across import Bounds, NextOrder, with_next
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.feasible import Group

# Draws of rows whose numbers break a constraint, before they are placed between their bounds.
_DRAWS = 16
# Column -> least and largest numbers of rows, and which have none.
Ends = dict[str, tuple[Any, Any, Flags]]


class RowsInTurn:
    """Makes comparisons with next rows hold among rows of persons.

    Args:
        orders: the comparisons.
        groups: constraints inside a row that numbers decide.
        columns: modelled ones, which draw numbers inside bins.
        fixed: columns whose numbers are not drawn again.
        order: column by which rows stand in order; None: there is none.
    """

    def __init__(
        self,
        orders: Sequence[NextOrder],
        groups: Sequence[Group],
        columns: Mapping[str, Any],
        fixed: Collection[str],
        order: str | None,
    ) -> None:
        self.orders, self.columns, self.fixed, self.order = orders, columns, fixed, order
        named = {name for one in orders for name in one.columns}
        self.groups = [group for group in groups if named & set(group.columns)]
        self.grids = {name: grid for one in orders for name, grid in one.grids.items()}
        for group in self.groups:
            self.grids |= group.grids
        self.names = [*dict.fromkeys([*named, *(name for group in self.groups for name in group.columns)])]

    def settle(self, rows: DrawnRows, counts: Integers, rng: np.random.Generator) -> Flags:
        """Draws numbers again, in place, where two rows break a comparison.

        Numbers of the column that gives the order stay, where the others can do with them.

        Args:
            rows: of persons, one after the other.
            counts: (persons,) rows of each.
            rng: draws.

        Returns:
            (rows,) which to keep; all, unless bins leave a person no room.
        """
        whose, kept = np.repeat(np.arange(len(counts)), counts), np.ones(int(counts.sum()), bool)
        self._sort(rows, whose)
        stays = (self.fixed, [name for name in self.fixed if name != self.order])
        for fixed in stays[: 1 if self.order is None else 2]:
            bad = np.unique(whose[self._broken(rows, counts)])
            if not len(bad):
                return kept
            mine = np.flatnonzero(np.isin(whose, bad))
            some = rows.taken(mine, self.names)
            self._settle(some, counts[bad], {*fixed}, rng)
            for name, (numbers, _) in some.drawn.items():
                rows.drawn[name][0][mine] = numbers
        bad = np.unique(whose[self._broken(rows, counts)])
        if len(bad):
            mine = np.flatnonzero(np.isin(whose, bad))
            kept[mine] = self._following(rows.taken(mine, self.names), counts[bad])
        return kept

    def _sort(self, rows: DrawnRows, whose: Integers) -> None:
        """Sorts a person's numbers that never fall, or never rise.

        They are exchanged among the rows of one bin, so they lie in it as they were drawn. Numbers that a constraint
        inside a row is about stay.
        """
        inside = {name for group in self.groups for name in group.undecided}
        for one in self.orders:
            name = one.columns[0]
            if len(one.columns) > 1 or name in inside or name in self.fixed or name not in rows.drawn:
                continue
            numbers, codes = rows.drawn[name][0], rows.codes[name]
            rising = next(term.weight for term in one.terms if not term.ahead) > 0
            places = np.lexsort((np.arange(len(whose)), codes, whose))
            numbers[places] = numbers[np.lexsort((numbers if rising else -numbers, codes, whose))]

    def _broken(self, rows: DrawnRows, counts: Integers) -> Integers:
        """Returns the positions of rows that break a comparison with the next."""
        here = with_next(counts)
        broken = [one.broken(rows, here) for one in self.orders]
        return np.asarray(here[np.logical_or.reduce(broken)], np.int64)

    def _following(self, rows: DrawnRows, counts: Integers) -> Flags:
        """Returns which rows can follow the last that stays."""
        first, kept = np.cumsum(counts) - counts, np.ones(int(counts.sum()), bool)
        last = first.copy()
        for at in range(1, int(counts.max(initial=0))):
            persons = np.flatnonzero(counts > at)
            here = first[persons] + at
            both = np.stack([last[persons], here], axis=1).reshape(-1)
            pairs, starts = rows.taken(both, self.names), np.arange(0, len(both), 2)
            fine = ~np.logical_or.reduce([one.broken(pairs, starts) for one in self.orders])
            kept[here], last[persons] = fine, np.where(fine, here, last[persons])
        return kept

    def _settle(self, rows: DrawnRows, counts: Integers, fixed: Collection[str], rng: np.random.Generator) -> None:
        low, high, absent = self.bins(rows.codes)
        for name in self.grids:
            if name in rows.drawn and name in fixed:
                low[name], high[name] = (rows.drawn[name][0].astype(np.float64) for _ in range(2))
        first, most = np.cumsum(counts) - counts, int(counts.max(initial=0))
        follows = np.zeros(int(counts.sum()), bool)
        follows[with_next(counts)] = True
        for at in range(most - 1, -1, -1):  # what later rows leave
            here = (first + at)[counts > at]
            self.tighten(here[follows[here]], (low, high), absent, ahead=False)
            self.inside(here, rows, low, high)
        for at in range(most):  # one row after the other
            here = (first + at)[counts > at]
            if at:
                self.tighten(here - 1, (low, high), absent, ahead=True)
            self.inside(here, rows, low, high)
            left, again = self._drawn_again(here, rows, (low, high), (follows, absent), fixed, rng)
            if len(left):
                self._placed(left, again, rows, (low, high), (follows, absent), rng)
            for name in set(self.names) & set(rows.drawn):
                low[name][here] = high[name][here] = rows.drawn[name][0][here]

    def bins(self, codes: Mapping[str, Codes]) -> tuple[Bounds, Bounds, dict[str, Flags]]:
        """Returns bounds of rows by their bins, and which have no number."""
        low, high, absent = Bounds(), Bounds(), dict[str, Flags]()
        for name, grid in self.grids.items():
            own = codes[name]
            low[name], high[name], absent[name] = grid.low[own], grid.high[own], grid.absent[own]
        return low, high, absent

    def tighten(
        self, here: Integers, bounds: tuple[Bounds, Bounds], absent: Mapping[str, Flags], *, ahead: bool, of: str = ""
    ) -> None:
        """Tightens bounds of rows, or of their next ones.

        Args:
            here: positions of rows that have a next one.
            bounds: of all rows, changed in place.
            absent: column -> (rows,) which have no number.
            ahead: whether those of the next ones.
            of: one column; "": all.
        """
        for one in self.orders:
            for term in one.terms:
                if term.ahead == ahead and of in ("", term.name):
                    one.tighten(term, here, *bounds, absent)

    def inside(self, here: Integers, rows: DrawnRows, low: Bounds, high: Bounds) -> None:
        """Tightens bounds of some rows along the comparisons inside a row."""
        for group in self.groups:
            codes = {name: rows.codes[name][here] for name in group.columns}
            bounds = [{name: bound[name][here] for name in group.grids} for bound in (low, high)]
            group.propagate(codes, *bounds)
            for whole, part in zip((low, high), bounds, strict=True):
                for name, values in part.items():
                    whole[name][here] = values

    def _drawn_again(
        self,
        here: Integers,
        rows: DrawnRows,
        bounds: tuple[Bounds, Bounds],
        known: tuple[Flags, Mapping[str, Flags]],
        fixed: Collection[str],
        rng: np.random.Generator,
    ) -> tuple[Integers, list[str]]:
        """Draws numbers of rows again where they lie beyond bounds.

        Returns the rows of which no draw did, which have the numbers that they had, and the columns that were drawn.
        """
        again = [name for name in self.names if name in rows.drawn and name not in fixed]
        left = here[~self._fits(here, rows, bounds, known)]
        before = {name: rows.drawn[name][0][left] for name in again}
        started = left
        for _ in range(_DRAWS):
            if not len(left):
                break
            for name in again:
                rows.drawn[name][0][left] = self.columns[name].draw(rows.codes[name][left].astype(np.intp), rng)[0]
            left = left[~self._fits(left, rows, bounds, known)]
        place = np.searchsorted(started, left)
        for name, numbers in before.items():
            rows.drawn[name][0][left] = numbers[place]
        return left, again

    def _placed(
        self,
        left: Integers,
        again: Sequence[str],
        rows: DrawnRows,
        bounds: tuple[Bounds, Bounds],
        known: tuple[Flags, Mapping[str, Flags]],
        rng: np.random.Generator,
    ) -> None:
        """Places numbers of rows evenly between their bounds.

        Rows for which there are none keep theirs.
        """
        (low, high), (follows, absent) = bounds, known
        later = left[follows[left]]
        before = {name: rows.drawn[name][0][left] for name in again}
        for name in set(again).difference(*(group.undecided for group in self.groups)):
            self.tighten(later, bounds, absent, ahead=False, of=name)
            drawn = self.grids[name].inside(low[name][left], high[name][left], rng.random(len(left)))
            room = low[name][left] <= high[name][left]
            rows.drawn[name][0][left[room]] = drawn[room]
            low[name][left] = high[name][left] = rows.drawn[name][0][left]
        for group in self.groups:
            for name in group.undecided:
                self.tighten(later, bounds, absent, ahead=False, of=name)
            ends = {name: (low[name][left], high[name][left]) for name in group.grids}
            placed, numbers = group.place(rows.taken(left, group.columns).codes, rng, ends)
            for name, taken in numbers.items():
                rows.drawn[name][0][left[placed]] = taken[placed]
                low[name][left[placed]] = high[name][left[placed]] = taken[placed]
        unlike = np.zeros(len(left), bool)
        for group in self.groups:
            unlike |= ~group.holds(rows.taken(left, group.columns))
        for name, old in before.items():
            rows.drawn[name][0][left[unlike]] = old[unlike]

    def _fits(
        self, here: Integers, rows: DrawnRows, bounds: tuple[Bounds, Bounds], known: tuple[Flags, Mapping[str, Flags]]
    ) -> Flags:
        """Returns whether rows lie between bounds, and constraints hold inside.

        They leave room for the next row, too.
        """
        (low, high), (follows, absent) = bounds, known
        fine = np.ones(len(here), bool)
        for name in self.names:
            if name in rows.drawn:
                numbers, gone = (part[here] for part in rows.drawn[name])
                fine &= gone | ((numbers >= low[name][here]) & (numbers <= high[name][here]))
        for group in self.groups:
            fine &= group.holds(rows.taken(here, group.columns))
        later = np.flatnonzero(follows[here])
        for one in self.orders:
            total, there = np.full(len(later), -one.limit), np.ones(len(later), bool)
            for term in one.terms:
                at = here[later] + term.ahead
                there &= ~absent[term.name][at]
                if term.ahead:
                    total += one.least(term, low[term.name][at], high[term.name][at])
                else:
                    total += term.weight * rows.numbers(term.name, self.grids[term.name])[0][at]
            fine[later] &= ~there | (total <= 0.0)
        return fine


class Reach:
    """Bounds that rows of persons leave to those beside them.

    A row after another one needs numbers that all rows before it leave, and a row before needs those that all after it
    do. Bounds of numbers say so exactly, as long as only comparisons and sums are in play.

    Args:
        orders: comparisons of a row with the next one.
        groups: constraints inside a row that numbers decide.

    Attributes:
        names: columns whose codes it looks at.
    """

    def __init__(self, orders: Sequence[NextOrder], groups: Sequence[Group]) -> None:
        self._turn = RowsInTurn(orders, groups, {}, (), None)
        self.names = self._turn.names

    def of(self, codes: Mapping[str, Codes]) -> Ends:
        """Returns what rows allow by themselves.

        Args:
            codes: column -> (n,) codes.
        """
        low, high, absent = self._turn.bins(codes)
        here = np.arange(len(next(iter(low.values()))))
        self._turn.inside(here, DrawnRows({name: codes[name] for name in self.names}, {}), low, high)
        return _joined(low, high, absent)

    def beside(self, ends: Ends, codes: Mapping[str, Codes], *, ahead: bool) -> tuple[Flags, Ends]:
        """Returns which rows can stand beside others, and what they all leave.

        Args:
            ends: (n,) what the others leave.
            codes: column -> (n,) codes of the rows.
            ahead: whether they stand after the others; else before.
        """
        (low, high, absent), mine = _two(ends, _joined(*self._turn.bins(codes)), ahead)
        self._turn.tighten(mine - ahead, (low, high), absent, ahead=ahead)
        both = {name: np.repeat(codes[name], 2) for name in self._turn.names}
        self._turn.inside(mine, DrawnRows(both, {}), low, high)
        out = {name: (low[name][mine], high[name][mine], absent[name][mine]) for name in low}
        return np.logical_and.reduce([(a <= b) | gone for a, b, gone in out.values()]), out

    def allowed(self, ends: Ends, name: str, *, ahead: bool) -> Flags:
        """Returns the codes that may stand beside rows, (n, codes).

        Args:
            ends: (n,) what the rows leave.
            name: of the column.
            ahead: whether it stands after the rows; else before.
        """
        grid, n = self._turn.grids[name], len(next(iter(ends.values()))[0])
        free = {one: (np.full(n, -np.inf), np.full(n, np.inf), np.zeros(n, bool)) for one in ends}
        (low, high, absent), mine = _two(ends, free, ahead)
        self._turn.tighten(mine - ahead, (low, high), absent, ahead=ahead, of=name)
        least, most = low[name][mine, None], high[name][mine, None]
        return np.asarray(grid.absent | ((grid.high >= least) & (grid.low <= most)))


class Left:
    """Bounds of persons at the rows drawn last.

    Args:
        reach: says it.
        ends: of each person.
    """

    def __init__(self, reach: Reach, ends: Ends) -> None:
        self.reach, self.ends = reach, ends

    @classmethod
    def of(cls, reach: Reach, codes: Mapping[str, Codes]) -> Left:
        """Starts from one row of each person."""
        return cls(reach, reach.of(codes))

    def _of(self, persons: Integers) -> Ends:
        return {name: (low[persons], high[persons], none[persons]) for name, (low, high, none) in self.ends.items()}

    def moved(self, persons: Integers, codes: Mapping[str, Codes], *, ahead: bool) -> Flags:
        """Goes on to rows that can stand beside the others.

        Returns where they can.
        """
        fine, ends = self.reach.beside(self._of(persons), codes, ahead=ahead)
        for name, parts in ends.items():
            for whole, part in zip(self.ends[name], parts, strict=True):
                whole[persons[fine]] = part[fine]
        return fine

    def allowed(self, persons: Integers, name: str, *, ahead: bool) -> Flags | None:
        """Returns the codes that can stand beside rows, (persons, codes).

        None where all can.
        """
        allowed = self.reach.allowed(self._of(persons), name, ahead=ahead)
        return None if allowed.all() else allowed


def _joined(low: Bounds, high: Bounds, absent: Mapping[str, Flags]) -> Ends:
    return {name: (low[name], high[name], absent[name]) for name in low}


def _two(ends: Ends, beside: Ends, ahead: bool) -> tuple[tuple[Bounds, Bounds, dict[str, Flags]], Integers]:
    """Returns bounds of two rows each, and where the latter stand."""
    parts = (ends, beside) if ahead else (beside, ends)

    def side(at: int) -> Any:
        return {name: np.stack([part[name][at] for part in parts], axis=1).reshape(-1) for name in beside}

    return (side(0), side(1), side(2)), 2 * np.arange(len(next(iter(beside.values()))[0])) + ahead
