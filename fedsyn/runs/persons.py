"""Makes whole persons of a model of records.

A record has a person's own attributes, the number of rows, one row and the one after it. A whole person starts from a
record: the two rows stand next to each other, at a place that is as likely as any other. Rows before and after them are
drawn one by one, each given the person, the number of rows and the row next to it.

Noise in the model adds up along a person: of dates in order, one step may leap ahead and none goes back. So the rows
that are drawn would lie later than the model's records say, or earlier where they were drawn backwards. The odds of a
step are weighed by one factor for each value of the column that gives the order, with which the rows have the records'
values. Nothing else only goes one way; weights for all columns made some tables better and others worse.

Inside their bins the numbers of that column lie as far apart as the model's gaps say: once all rows are there, a gap is
drawn for each two neighbours, given both, among those that their bins allow (`spaced`).

All of it follows from the released model: no privacy is spent.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Flags, Floats, Integers
from fedsyn.inference import AnyModel
from fedsyn.inference.conditional import Conditional, graphical
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.ordered import IntegerColumn
from fedsyn.table.schema.people import People
from fedsyn.table.schema.persons import (
    BEFORE,
    COUNT,
    GAP,
    before_column,
    next_name,
    no_row_code,
    places,
    row_columns,
)

#: Persons with whom weights are found, and how often.
_PERSONS, _STEPS = 1 << 11, 4
# Share of rows that is as good as none, and log odds of a gap that two bins do not allow.
_TINY, _NEVER = 1e-3, -50.0
# Neighbours whose gaps are drawn at once.
_AT_ONCE = 1 << 18


class Chain(NamedTuple):
    """Rows of persons, one person after the other.

    Attributes:
        counts: (persons,) rows of each.
        of_rows: (rows, columns of a row) codes, as a record's own row has them.
        place: (persons,) rows before that of the record.
    """

    counts: Integers
    of_rows: Integers
    place: Integers


class WholePersons:
    """Makes rows of persons from their records.

    Args:
        schema: of the records, with draws inside bins as the model has them.
        model: of the records.
    """

    def __init__(self, schema: Schema, model: AnyModel) -> None:
        self.schema, self.rows = schema, schema.rows
        self.names, self.columns = list(schema.columns), list(schema.columns.values())
        self.here = [self.names.index(name) for name in row_columns(self.rows)]
        self.after = [self.names.index(next_name(name)) for name in row_columns(self.rows)]
        persons = self.rows.persons
        assert persons is not None
        in_order = persons.in_order
        self.before = (self.names.index(BEFORE), before_column(persons)) if in_order else None
        chain = graphical(model, [clique for clique, _ in schema.domain.wanted])
        between = [GAP] if GAP in self.names else []  # of a record's own two rows, not of others
        self.following = Conditional(chain, [self.names[at] for at in self.after], between)
        self.preceding = Conditional(chain, [self.names[at] for at in self.here], between)
        self.spacing = Conditional(chain, between) if between else None
        pairs = list(zip(self.here, self.after, strict=True))
        self.to_after = [self._between(here, after) for here, after in pairs]
        self.to_here = [self._between(after, here) for here, after in pairs]
        # The column that gives the order, and log weights of its values.
        self.order = row_columns(self.rows).index(persons.order) if persons.order in row_columns(self.rows) else None
        self.tilt: Floats | None = None
        if self.order is not None:
            self._calibrate(model.sample(_PERSONS, np.random.default_rng(0)))  # a quadrature: none of them comes out

    def _calibrate(self, records: Codes) -> None:
        """Finds weights of values with which rows are as records say.

        Those are kept with which they are nearest; none, if no others are nearer.
        """
        best, least = self.tilt, math.inf
        for _ in range(_STEPS + 1):
            wanted, made = self._shares(records, np.random.default_rng(1))
            off = float(np.abs(wanted - made).sum())
            if off < least:
                best, least = self.tilt, off
            move = 0.5 * np.log((wanted + _TINY) / (made + _TINY))
            self.tilt = move if self.tilt is None else self.tilt + move
        self.tilt = best

    def _shares(self, records: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Returns shares of values, in records and in drawn rows.

        They are of the column that gives the order. A record stands for all rows that have a next one; the
        last row is a next one alone.
        """
        assert self.order is not None
        here, after, chain = self.here[self.order], self.after[self.order], self._drawn(records, rng)
        weights = np.maximum(chain.counts - 1, np.minimum(chain.counts, 1))
        last = (chain.counts > 1) & (chain.place == chain.counts - 2)
        size = len(self.to_after[self.order])
        wanted = np.bincount(records[:, here], weights, minlength=size)
        wanted += np.bincount(self.to_here[self.order][records[last, after]], weights[last], minlength=size)
        made = np.bincount(chain.of_rows[:, self.order], minlength=size).astype(np.float64)
        if (none := no_row_code(self.columns[here])) >= 0:
            wanted[none] = made[none] = 0.0
        return wanted / max(wanted.sum(), 1.0), made / max(made.sum(), 1.0)

    def of(self, records: Codes, rng: np.random.Generator, start: int = 0) -> tuple[Codes, People]:
        """Returns the rows of persons, one person after the other.

        Args:
            records: (persons, d) codes.
            rng: draws numbers of rows inside their bins, places, and rows.
            start: number of persons before these.

        Returns:
            (rows, columns of the rows) codes in the schema of the rows, and whose they are.
        """
        persons = self.rows.persons
        assert persons is not None
        chain = self._drawn(records, rng)
        counts, of_rows, _ = chain
        shown = np.maximum(counts, 1)  # a person without a row has one that is empty
        whose = np.repeat(np.arange(len(records)), shown)
        empty = (counts == 0)[whose] if (counts == 0).any() else None
        there = np.ones(len(whose), bool) if empty is None else ~empty
        filled = np.zeros((len(whose), len(self.here)), np.int64)
        filled[there] = of_rows
        along = self._numbers(records, chain, there, rng)
        codes = self._rows(records, filled, whose)
        order = persons.order if isinstance(persons.order, str) else None
        return codes, People(shown, empty, persons.constant, order, along, start)

    def _numbers(
        self, records: Codes, chain: Chain, there: Flags, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], Flags] | None:
        """Draws numbers of the column that gives the order.

        Returns them with a mask of the missing. Neighbours lie as far apart as gaps say that are drawn for them. None
        where the model knows of no gaps.

        Args:
            records: of the persons.
            chain: their rows.
            there: (rows shown,) which of them are rows; the others stand for persons without one.
            rng: draws.
        """
        if self.spacing is None or self.order is None:
            return None
        column, place = (
            self.rows.columns[row_columns(self.rows)[self.order]],
            places(self.columns[self.here[self.order]]),
        )
        assert isinstance(column, BinnedColumn)
        codes = np.searchsorted(place, chain.of_rows[:, self.order])
        numbers, absent = column.draw(codes, rng)
        inside = np.minimum(codes, len(column.edges) - 2)
        low, high = (np.where(absent, np.nan, end[inside]) for end in column.ends)
        whose = np.repeat(np.arange(len(records)), chain.counts)
        here = np.flatnonzero(whose[1:] == whose[:-1])
        gaps = np.full(len(whose), np.nan)
        for start in range(0, len(here), _AT_ONCE):
            some = here[start : start + _AT_ONCE]
            gaps[some + 1] = self._gaps(records[whose[some]], chain, some, (low, high), rng)
        filled = np.full(len(there), column.ends[0][0]).astype(numbers.dtype), np.zeros(len(there), bool)
        filled[0][there], filled[1][there] = spaced(chain.counts, numbers, (low, high), gaps), absent
        return filled

    def _gaps(
        self, known: Codes, chain: Chain, here: Integers, ends: tuple[Floats, Floats], rng: np.random.Generator
    ) -> Floats:
        """Draws what lies between rows and the next ones, (n,).

        NaN where one of them has no number.

        Args:
            known: (n, d) records of their persons, which are written over.
            chain: all rows.
            here: (n,) positions of the rows.
            ends: (rows,) least and largest number of each row's bin.
            rng: draws.
        """
        assert self.spacing is not None
        column, (low, high) = self.schema.columns[GAP], ends
        assert isinstance(column, BinnedColumn)
        known[:, self.here] = chain.of_rows[here]
        known[:, self.after] = _recoded(chain.of_rows[here + 1], self.to_after)
        first = np.cumsum(chain.counts) - chain.counts
        self._stand(known, here - np.repeat(first, chain.counts)[here])
        # Gaps that two bins allow: those between their nearest and their farthest numbers.
        bins, least = len(column.edges) - 1, np.maximum(low[here + 1] - high[here], 0.0)
        allowed = np.zeros((len(here), column.size), bool)
        allowed[:, :bins] = (column.ends[1] >= least[:, None]) & (
            column.ends[0] <= (high[here + 1] - low[here])[:, None]
        )
        unknown = ~allowed.any(axis=1)
        allowed[unknown] = True
        weights = np.where(allowed, 0.0, _NEVER)
        drawn = self.spacing.drawn(known, rng, {GAP: weights})[:, self.names.index(GAP)]
        numbers, absent = column.draw(drawn.astype(np.intp), rng)
        return np.where(absent | unknown, np.nan, numbers)

    def _drawn(self, records: Codes, rng: np.random.Generator) -> Chain:
        """Draws the rows of persons, in the codes of records."""
        column = self.schema.columns[COUNT]
        assert isinstance(column, IntegerColumn)
        counts = np.asarray(column.draw(records[:, self.names.index(COUNT)].astype(np.intp), rng)[0]).astype(np.int64)
        first = np.cumsum(counts) - counts
        of_rows = np.empty((int(counts.sum()), len(self.here)), np.int64)  # codes of a record's row
        place = self._places(records, counts, rng)
        some, several = counts > 0, counts > 1
        of_rows[(first + place)[some]] = self._there(records, some, self.here, self.preceding, rng)
        after = self._there(records, several, self.after, self.following, rng)
        of_rows[(first + place + 1)[several]] = _recoded(after, self.to_here)
        self._continue(records, of_rows, first, counts, place, rng)
        return Chain(counts, of_rows, place)

    def _places(self, records: Codes, counts: Integers, rng: np.random.Generator) -> Integers:
        """Returns how many rows stand before that of a record."""
        last = np.maximum(counts - 2, 0)
        if self.before is None:
            uniform: Integers = (rng.random(len(records)) * (last + 1)).astype(np.int64)
            return uniform
        edges = self.before[1].edges
        low = edges[records[:, self.before[0]].astype(np.intp)]
        high = np.minimum(edges[records[:, self.before[0]].astype(np.intp) + 1] - 1, last)
        drawn = low + rng.random(len(records)) * (np.maximum(high - low, 0) + 1)
        return np.asarray(np.minimum(drawn, last), np.int64)

    def _stand(self, records: Codes, place: Integers) -> None:
        """Writes places into records."""
        if self.before is not None:
            at, column = self.before
            records[:, at] = column.codes_of(np.minimum(place, column.span[1]).astype(np.float64))

    def _there(self, records: Codes, which: Flags, at: list[int], rest: Conditional, rng: np.random.Generator) -> Codes:
        """Returns a row of some records.

        A model that no zeros bind may have left one out, which is drawn here.
        """
        out = records[which]
        none = np.array([no_row_code(self.columns[j]) for j in at])
        lost = (out[:, at] == none).any(axis=1)
        if lost.any():
            out[lost] = rest.drawn(out[lost], rng)
        return out[:, at]

    def _continue(
        self,
        records: Codes,
        of_rows: Integers,
        first: Integers,
        counts: Integers,
        place: Integers,
        rng: np.random.Generator,
    ) -> None:
        """Draws the rows after and before those of a record."""
        same = [np.arange(self.columns[at].size) for at in self.here]
        following = self.following.tilted(self._weights(self.after, self.to_here))
        preceding = self.preceding.tilted(self._weights(self.here, same))
        at = place + 1
        while len(going := np.flatnonzero(at + 1 < counts)):  # each person's next row, all persons at once
            known = records[going].copy()
            known[:, self.here] = of_rows[first[going] + at[going]]
            self._stand(known, at[going])
            drawn = following.drawn(known, rng)[:, self.after]
            at[going] += 1
            of_rows[first[going] + at[going]] = _recoded(drawn, self.to_here)
        at = place.copy()
        while len(going := np.flatnonzero((at > 0) & (counts > 1))):
            known = records[going].copy()
            known[:, self.after] = _recoded(of_rows[first[going] + at[going]], self.to_after)
            at[going] -= 1
            self._stand(known, at[going])
            of_rows[first[going] + at[going]] = preceding.drawn(known, rng)[:, self.here]

    def _weights(self, at: list[int], to_here: list[Integers]) -> dict[str, Floats]:
        """Returns log weights of the ordering column's values, by name."""
        if self.tilt is None or self.order is None:
            return {}
        there = to_here[self.order]
        return {self.names[at[self.order]]: np.where(there < 0, 0.0, self.tilt[there])}

    def _between(self, before: int, after: int) -> Integers:
        """Returns codes of one column for those of another.

        There is -1 for "no row".
        """
        one, other = places(self.columns[before]), places(self.columns[after])
        out = np.full(self.columns[before].size, -1, np.int64)
        out[one] = other
        return out

    def _rows(self, records: Codes, of_rows: Integers, whose: Integers) -> Codes:
        """Returns codes in the schema of the rows."""
        out, at = np.empty((len(whose), len(self.rows.columns)), self.rows.dtype), row_columns(self.rows)
        for j, name in enumerate(self.rows.columns):
            if name in at:  # a row that is there: places of its codes ascend
                place = at.index(name)
                out[:, j] = np.searchsorted(places(self.columns[self.here[place]]), of_rows[:, place])
            else:
                out[:, j] = records[whose, self.names.index(name)]
        return out


def spaced(counts: Integers, numbers: npt.NDArray[Any], ends: tuple[Floats, Floats], gaps: Floats) -> npt.NDArray[Any]:
    """Returns numbers of rows that keep their gaps and their bins.

    Neighbours lie as far apart as gaps say, inside their bins. The first number of a person is the one that is given,
    if all that follow can keep their gaps then; else it is any from which they can. Where bins and gaps contradict each
    other, bins hold, and no number goes back.

    >>> spaced(np.array([3]), np.array([2, 90, 95]), (np.array([0.0, 0, 100]), np.array([99.0, 99, 199])),
    ...        np.array([np.nan, 7, 14])).tolist()
    [79, 86, 100]

    Args:
        counts: (persons,) rows of each.
        numbers: (rows,) inside their bins, of one person after the other.
        ends: (rows,) least and largest number of each row's bin; NaN where a row has no number.
        gaps: (rows,) from the row before; NaN where it is not known.
    """
    low, high = (end.copy() for end in ends)
    first, out, known = np.cumsum(counts) - counts, numbers.astype(np.float64), ~np.isnan(low)
    for at in range(int(counts.max(initial=0)) - 2, -1, -1):  # where a number may lie for all later gaps to be kept
        here = (first + at)[counts > at + 1]
        least, most = low[here + 1] - gaps[here + 1], high[here + 1] - gaps[here + 1]
        least, most = np.maximum(low[here], least), np.minimum(high[here], most)
        kept = least <= most  # and not where anything is NaN
        low[here[kept]], high[here[kept]] = least[kept], most[kept]
    # A first number that lies elsewhere goes to the same share of what is left of its bin.
    start = first[(counts > 0) & known[np.minimum(first, len(out) - 1)]] if len(out) else first[:0]
    width = ends[1][start] - ends[0][start]
    share = np.divide(out[start] - ends[0][start], width, out=np.zeros(len(start)), where=width > 0)
    moved = low[start] + share * (high[start] - low[start])
    moved = moved if numbers.dtype.kind == "f" else np.rint(moved)
    out[start] = np.where((out[start] >= low[start]) & (out[start] <= high[start]), out[start], moved)
    for at in range(1, int(counts.max(initial=0))):
        here = (first + at)[counts > at]
        here = here[known[here] & known[here - 1]]
        off = np.where(np.isnan(gaps[here]), out[here], out[here - 1] + gaps[here])
        out[here] = np.maximum(np.clip(off, low[here], high[here]), out[here - 1])
    return np.asarray(out.astype(numbers.dtype))


def _recoded(codes: Codes, tables: list[Integers]) -> Integers:
    """Returns (rows, columns) codes, each by its column's table."""
    return np.stack([table[codes[:, j]] for j, table in enumerate(tables)], axis=1)
