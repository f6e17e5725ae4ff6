"""Makes whole persons of a model of records.

A record has a person's own attributes, the number of rows, one row and the one after it. A whole person starts from a
record: the two rows stand next to each other, at a place that is as likely as any other. Rows before and after them are
drawn one by one, each given the person, the number of rows and the row next to it. Where the model knows of gaps, they
say where the rows stand (`fedsyn.runs.timeline`), and the record's own next row is drawn as all others.

Noise in the model adds up along a person: of dates in order, one step may leap ahead and none goes back. So without
gaps the rows that are drawn would lie later than the model's records say, or earlier where they were drawn backwards.
The odds of a step are weighed by one factor for each value of the column that gives the order, with which the rows have
the records' values. Nothing else only goes one way; weights for all columns made some tables better and others worse.

Inside their bins the numbers of that column lie as far apart as the model's gaps say: once all rows are there, a gap is
drawn for each two neighbours, given both, among those that their bins and the person's other gaps allow (`spaced`).

Where constraints compare a row with the next one, a row may be one that none can follow, or precede. Then the person
ends there, or begins. What numbers inside bins decide is settled as rows are decoded (`fedsyn.table.schema.across`).

All of it follows from the released model: no privacy is spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Flags, Floats, Integers
from fedsyn.inference import AnyModel
from fedsyn.inference.conditional import Conditional, graphical
from fedsyn.runs.gaps import NEVER, put_between, spaced
from fedsyn.runs.timeline import Span, Timeline
from fedsyn.table.schema import Schema
from fedsyn.table.schema.across import least_apart
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.in_turn import Left
from fedsyn.table.schema.ordered import IntegerColumn
from fedsyn.table.schema.people import People
from fedsyn.table.schema.persons import (
    BEFORE,
    COUNT,
    GAP,
    before_column,
    never_back,
    next_name,
    no_row_code,
    person_attributes,
    places,
    row_columns,
)

#: Persons with whom weights are found, and how often.
_PERSONS, _STEPS = 1 << 11, 4
# Share of rows that is as good as none.
_TINY = 1e-3
# Draws of a row that cannot stand beside another, the second half of them among the bins that can.
_TRIES = 8
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
        self.before = (self.names.index(BEFORE), before_column(persons)) if persons.in_order else None
        self.model, self.chain = model, (chain := graphical(model, [clique for clique, _ in schema.domain.wanted]))
        between = [GAP] if GAP in self.names else []  # of a record's own two rows, not of others
        first = [persons.order] if persons.order in row_columns(self.rows) else []
        self.following = Conditional(chain, [self.names[at] for at in self.after], between, map(next_name, first))
        self.preceding = Conditional(chain, [self.names[at] for at in self.here], between, first)
        self.spacing = Conditional(chain, between) if between else None
        own = [name for name in person_attributes(self.rows) if no_row_code(schema.columns[name]) >= 0]
        self.own = Conditional(chain, own) if own else None
        pairs = list(zip(self.here, self.after, strict=True))
        self.to_after = [self._between(here, after) for here, after in pairs]
        self.to_here = [self._between(after, here) for here, after in pairs]
        # Pairs of a row and the next one that cannot be.
        sides = set(row_columns(self.rows)), {next_name(name) for name in row_columns(self.rows)}
        zeros = [zero for zero in schema.domain.zeros if all(side & set(zero.clique) for side in sides)]
        back = never_back(self.rows, schema.columns)  # which others may imply, so that no model has them
        zeros += [] if back is None or back in zeros else [back]
        self.apart = [(schema.domain.axes(zero.clique), zero.cells) for zero in zeros] if self._compares else []
        # The column that gives the order, and log weights of its values.
        self.order = row_columns(self.rows).index(persons.order) if persons.order in row_columns(self.rows) else None
        self.tilt: Floats | None = None
        if self.order is not None:
            self._calibrate(model.sample(_PERSONS, np.random.default_rng(0)))  # a quadrature: none of them comes out

    @cached_property
    def timeline(self) -> Timeline | None:
        """Places of rows by gaps; None if none are known."""
        return None if self.spacing is None else Timeline.of(self.schema, self.model)

    @cached_property
    def _placing(self) -> Conditional:
        return Conditional(self.chain, [BEFORE], [GAP])

    @property
    def _compares(self) -> bool:
        """Returns whether constraints compare a row with the next one."""
        return bool(self.rows.compiled.across)

    def _calibrate(self, records: Codes) -> None:
        """Finds weights, or speeds, that give rows the records' values.

        Those are kept with which they are nearest; none, if no others are nearer. A timeline needs no weights: they
        would bend its steps to noise in the records' values.
        """
        assert self.order is not None
        best, least, records = (self.tilt, self.timeline), math.inf, self._with_own(records, np.random.default_rng(2))
        counts = records[:, self.names.index(COUNT)].astype(np.intp)
        busy = np.zeros(len(records), np.bool_) if self.timeline is None else self.timeline.busy[counts]
        for _ in range(_STEPS + 1 if self.timeline is None or busy.any() else 0):
            chain = self._drawn(records, np.random.default_rng(1))
            wanted, drawn = self._shares(records, chain)
            off = float(np.abs(wanted - drawn).sum())
            if off < least:
                best, least = (self.tilt, self.timeline), off
            if self.timeline is None:
                move = 0.5 * np.log((wanted + _TINY) / (drawn + _TINY))
                self.tilt = move if self.tilt is None else self.tilt + move
            else:
                at = places(self.columns[self.here[self.order]])[: self.timeline.bins]
                self.timeline = self.timeline.hastened(*(one[at] for one in self._shares(records, chain, busy)))
        self.tilt, self.timeline = best

    def _with_own(self, records: Codes, rng: np.random.Generator) -> Codes:
        """Returns records in which people with rows have what rows say."""
        if self.own is None:
            return records
        at, out = [self.names.index(name) for name in self.own.open], records.copy()
        none = np.array([no_row_code(self.columns[j]) for j in at])
        lost = (out[:, self.names.index(COUNT)] > 0) & (out[:, at] == none).any(axis=1)
        out[lost] = self.own.drawn(out[lost], rng)
        return out

    def _shares(self, records: Codes, chain: Chain, whose: Flags | None = None) -> tuple[Floats, Floats]:
        """Returns shares of values, in records and in drawn rows.

        They are of the column that gives the order. A record stands for all rows that have a next one; the
        last row is a next one alone.

        Args:
            records: of persons.
            chain: their rows.
            whose: (persons,) who counts; None: everybody.
        """
        assert self.order is not None
        whose = np.ones(len(records), np.bool_) if whose is None else whose
        here, after = self.here[self.order], self.after[self.order]
        weights = np.where(whose, np.maximum(chain.counts - 1, np.minimum(chain.counts, 1)), 0)
        last = (chain.counts > 1) & (chain.place == chain.counts - 2)
        size = len(self.to_after[self.order])
        wanted = np.bincount(records[:, here], weights, minlength=size)
        wanted += np.bincount(self.to_here[self.order][records[last, after]], weights[last], minlength=size)
        drawn = np.bincount(chain.of_rows[:, self.order], np.repeat(whose, chain.counts), minlength=size)
        if (none := no_row_code(self.columns[here])) >= 0:
            wanted[none] = drawn[none] = 0.0
        return wanted / max(wanted.sum(), 1.0), drawn / max(drawn.sum(), 1.0)

    def of(self, records: Codes, rng: np.random.Generator, start: int = 0) -> tuple[Codes, People]:
        """Returns the rows of persons, one person after the other.

        Args:
            records: (persons, d) codes.
            rng: draws numbers of rows inside their bins, places, and rows.
            start: number of persons before these.

        Returns:
            (rows, columns of the rows) codes in the schema of the rows, and whose they are.
        """
        persons, records = self.rows.persons, self._with_own(records, rng)
        assert persons is not None
        chain = self._drawn(records, rng)
        counts, of_rows, _ = chain
        shown = np.maximum(counts, 1)  # a person without a row has one that is empty
        whose = np.repeat(np.arange(len(records)), shown)
        empty = (counts == 0)[whose] if (counts == 0).any() else None
        there = np.ones(len(whose), bool) if empty is None else ~empty
        filled = np.zeros((len(whose), len(self.here)), np.int64)
        filled[there] = of_rows
        codes = self._rows(records, filled, whose)
        along = self._numbers(records, chain, (there, codes), rng)
        order = persons.order if isinstance(persons.order, str) else None
        return codes, People(shown, empty, persons.constant, order, along, start, persons.in_rows)

    def _numbers(
        self, records: Codes, chain: Chain, shown: tuple[Flags, Codes], rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], Flags] | None:
        """Draws numbers of the column that gives the order.

        Returns them with a mask of the missing. Neighbours lie as far apart as gaps say that are drawn for them. None
        where the model knows of no gaps.

        Args:
            records: of the persons.
            chain: their rows.
            shown: (rows shown,) which of them are rows; the others stand for persons without one; and all their codes.
            rng: draws.
        """
        there, every = shown
        if self.spacing is None or self.order is None:
            return None
        name, place = row_columns(self.rows)[self.order], places(self.columns[self.here[self.order]])
        column = self.rows.columns[name]
        assert isinstance(column, BinnedColumn)
        codes = np.searchsorted(place, chain.of_rows[:, self.order])
        numbers, absent = column.draw(codes, rng)
        inside = np.minimum(codes, len(column.edges) - 2)
        low, high = (np.where(absent, np.nan, end[inside]) for end in column.ends)
        whose, first = np.repeat(np.arange(len(records)), chain.counts), np.cumsum(chain.counts) - chain.counts
        before = np.arange(len(whose)) - first[whose]
        least = None
        if self._compares:
            of_columns = dict(zip(self.rows.columns, every[there].T, strict=True))
            here = np.flatnonzero(whose[1:] == whose[:-1])
            low, least = least_apart(self.rows.compiled.across, name, of_columns, here, low)

        def gaps(here: Integers, nearest: Floats, farthest: Floats, rates: Floats) -> Floats:
            out = np.empty(len(here))
            for start in range(0, len(here), _AT_ONCE):
                block = slice(start, start + _AT_ONCE)
                known = records[whose[here[block]]]
                known[:, self.here] = chain.of_rows[here[block]]
                known[:, self.after] = _recoded(chain.of_rows[here[block] + 1], self.to_after)
                self._stand(known, before[here[block]])
                out[block] = self._gaps(known, (nearest[block], farthest[block]), rates[block], rng)
            return out

        filled = np.full(len(there), column.ends[0][0]).astype(numbers.dtype), np.zeros(len(there), bool)
        filled[0][there], filled[1][there] = spaced(chain.counts, numbers, (low, high), gaps, least), absent
        return filled

    def _gaps(self, known: Codes, ends: tuple[Floats, Floats], rates: Floats, rng: np.random.Generator) -> Floats:
        """Draws what lies between rows and the next ones, (n,).

        NaN where one of them has no number.

        Args:
            known: (n, d) records of the rows and the next ones.
            ends: (n,) least and largest gap that may be.
            rates: (n,) by which longer gaps are less likely, as exp(-rate gap).
            rng: draws.
        """
        assert self.spacing is not None
        column, (nearest, farthest) = self.schema.columns[GAP], ends
        assert isinstance(column, BinnedColumn)
        (low, high), bins = column.ends, len(column.edges) - 1
        allowed = np.zeros((len(known), column.size), bool)
        allowed[:, :bins] = (high >= nearest[:, None]) & (low <= farthest[:, None])
        unknown = ~allowed.any(axis=1)
        allowed[unknown] = True
        longer = np.append(0.5 * (low + high), np.zeros(column.size - bins))
        weights = np.where(allowed, -rates[:, None] * longer, -np.inf)
        # Never as unlikely as a gap that is not allowed.
        weights = np.maximum(weights - weights.max(axis=1, keepdims=True), 0.6 * NEVER)
        weights[~allowed] = NEVER
        drawn = self.spacing.drawn(known, rng, {GAP: weights})[:, self.names.index(GAP)].astype(np.intp)
        numbers, absent = column.draw(drawn, rng)
        # Its bin may have numbers that these rows do not.
        low, high = (end[np.minimum(drawn, bins - 1)] for end in (low, high))
        left = np.maximum(low, nearest), np.minimum(high, farthest)
        numbers = put_between(numbers, (low, high), left, whole=column.whole)
        return np.where(absent | unknown, np.nan, numbers)

    def _drawn(self, records: Codes, rng: np.random.Generator) -> Chain:
        """Draws the rows of persons, in the codes of records."""
        column = self.schema.columns[COUNT]
        assert isinstance(column, IntegerColumn)
        counts = np.asarray(column.draw(records[:, self.names.index(COUNT)].astype(np.intp), rng)[0]).astype(np.int64)
        first = np.cumsum(counts) - counts
        of_rows = np.empty((int(counts.sum()), len(self.here)), np.int64)  # codes of a record's row
        place = self._places(records, counts, rng)
        span = self._span(records, counts, place, rng)
        some, several = counts > 0, counts > 1
        of_rows[(first + place)[some]] = self._there(records, some, self.here, self.preceding, rng)
        ends = np.zeros(len(records), np.int64), counts.copy()
        if span is None:  # else the record's own next row is drawn by gaps, as all that follow
            alone = np.zeros(int(several.sum()), bool)
            after = self._there(records, several, self.after, self.following, rng, alone)
            of_rows[(first + place + 1)[several]] = _recoded(after, self.to_here)
            ends[1][np.flatnonzero(several)[alone]] = place[several][alone] + 1
        self._continue(records, of_rows, (first, place), ends, span, rng)
        if (ends[0] == 0).all() and (ends[1] == counts).all():
            return Chain(counts, of_rows, place)
        at = np.arange(len(of_rows)) - np.repeat(first, counts)
        kept = (at >= np.repeat(ends[0], counts)) & (at < np.repeat(ends[1], counts))
        return Chain(ends[1] - ends[0], of_rows[kept], place - ends[0])

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

    def _span(self, records: Codes, counts: Integers, place: Integers, rng: np.random.Generator) -> Span | None:
        """Returns where rows of records stand, and draws their places again.

        A place is as likely as the model says beside the record, times how well the rows before it and after it fit.
        `place` is changed in place. None without a timeline.
        """
        if (line := self.timeline) is None:
            return None
        assert self.order is not None and self.before is not None
        codes = records[:, self.names.index(COUNT)].astype(np.intp)
        span = Span(codes, rng.binomial(counts, line.absent[codes]), *np.zeros((2, len(records))))
        if not len(some := np.flatnonzero(counts > 1)):
            return span
        # Where the row stands; if that is not known, where the next one does, or anywhere.
        rows = records[some, self.here[self.order]], self.to_here[self.order][records[some, self.after[self.order]]]
        (bins, after), anywhere = map(self._bins, rows), rng.integers(0, line.bins, len(some))
        bins = np.where(bins >= 0, bins, np.where(after >= 0, after, anywhere))
        span.first[some] = span.last[some] = line.positions(span.counts[some], bins, rng)
        at, column = self.before

        def placed(weights: Floats) -> Integers:
            return self._placing.drawn(records[some], rng, {BEFORE: weights})[:, at].astype(np.int64)

        place[some] = line.places(span.counts[some], span.first[some], column.edges, counts[some] - 2, placed, rng)
        return span

    def _bins(self, codes: Codes) -> Integers:
        """Returns the bins of codes in the order, -1 without one."""
        assert self.order is not None and self.timeline is not None
        at = places(self.columns[self.here[self.order]])
        return np.where(np.isin(codes, at[: self.timeline.bins]), np.searchsorted(at, codes), -1)

    def _stand(self, records: Codes, place: Integers) -> None:
        """Writes places into records."""
        if self.before is not None:
            at, column = self.before
            records[:, at] = column.codes_of(np.minimum(place, column.span[1]).astype(np.float64))

    def _there(
        self,
        records: Codes,
        which: Flags,
        at: list[int],
        rest: Conditional,
        rng: np.random.Generator,
        stuck: Flags | None = None,
    ) -> Codes:
        """Returns a row of some records.

        A model that no zeros bind may have left one out, or have one that cannot follow: it is drawn here. `stuck` is
        set where none can.
        """
        out = records[which]
        none = np.array([no_row_code(self.columns[j]) for j in at])
        lost = (out[:, at] == none).any(axis=1)
        if stuck is not None:
            for axes, cells in self.apart:
                lost |= cells[tuple(out[:, axis] for axis in axes)]
        if lost.any():
            impossible = np.zeros(int(lost.sum()), bool)
            out[lost] = rest.drawn(out[lost], rng, stuck=None if stuck is None else impossible)
            if stuck is not None:
                stuck[lost] = impossible
        return out[:, at]

    def _continue(
        self,
        records: Codes,
        of_rows: Integers,
        where: tuple[Integers, Integers],
        ends: tuple[Integers, Integers],
        span: Span | None,
        rng: np.random.Generator,
    ) -> None:
        """Draws the rows after and before those of a record.

        Args:
            records: of the persons.
            of_rows: codes of all rows, written in place.
            where: (persons,) position of each person's first row, and rows before that of the record.
            ends: (persons,) rows before the first that there is, and up to the last: changed in place where a row has
                none that can come before it, or follow.
            span: where rows of records stand; None: nobody knows.
            rng: draws.
        """
        (first, place), (begins, stops) = where, ends
        same = [np.arange(self.columns[at].size) for at in self.here]
        rest = self.following.tilted(self._weights(self.after, self.to_here))
        reach = self.rows.compiled.reach
        at, left = place + (span is None), None
        if reach is not None:
            left = Left.of(reach, self._row_codes(records, of_rows, first + np.minimum(place, stops - 1), stops > 0))
        if left is not None and span is None:  # a record's own next row that its numbers rule out is drawn again
            some = np.flatnonzero(stops > at)
            codes = self._row_codes(records[some], of_rows, (first + place + 1)[some])
            at[some] -= ~left.moved(some, codes, ahead=True)
        while len(going := np.flatnonzero(at + 1 < stops)):  # each person's next row, all persons at once
            known = records[going].copy()
            known[:, self.here] = of_rows[first[going] + at[going]]
            self._stand(known, at[going])
            rows = span, stops[going] - at[going] - 1
            drawn, stuck = self._next(rest, known, going, left, rows, rng, ahead=True)
            at[going] += 1
            of_rows[first[going] + at[going]] = drawn
            stops[going[stuck]] = at[going[stuck]]
        rest = self.preceding.tilted(self._weights(self.here, same))
        at = place.copy()
        if reach is not None:  # what the last row leaves, and each before it
            back = np.maximum(stops - 1, 0)
            left = Left.of(reach, self._row_codes(records, of_rows, first + back, stops > 0))
            while len(going := np.flatnonzero(back > place)):
                back[going] -= 1
                left.moved(going, self._row_codes(records[going], of_rows, (first + back)[going]), ahead=False)
        while len(going := np.flatnonzero(at > begins)):
            known = records[going].copy()
            known[:, self.after] = _recoded(of_rows[first[going] + at[going]], self.to_after)
            rows = span, at[going] - begins[going]
            at[going] -= 1
            self._stand(known, at[going])
            of_rows[first[going] + at[going]], stuck = self._next(rest, known, going, left, rows, rng, ahead=False)
            begins[going[stuck]] = at[going[stuck]] + 1

    def _next(
        self,
        rest: Conditional,
        known: Codes,
        going: Integers,
        left: Left | None,
        rows: tuple[Span | None, Integers],
        rng: np.random.Generator,
        *,
        ahead: bool,
    ) -> tuple[Codes, Flags]:
        """Draws rows beside others, by gaps where the model knows of any.

        Arguments and results are those of `_beside`; `rows` is where the others stand, and (n,) how many are to come.
        """
        span, many = rows
        if span is None:
            return self._beside(rest, known, going, left, rng, ahead=ahead)
        assert self.timeline is not None and self.order is not None
        line, position, counts = self.timeline, span.last if ahead else span.first, span.counts[going]
        own, at = [side[self.order] for side in ((self.here, self.after) if ahead else (self.after, self.here))]
        bins = self._bins(known[:, own] if ahead else self.to_here[self.order][known[:, own]])
        shares, none = line.shares(counts, position[going], many, ahead=ahead), (many <= span.absent[going]) & ahead
        odds = np.full((len(known), self.columns[at].size), NEVER)
        odds[:, places(self.columns[at])] = line.odds(counts, bins, position[going], shares, none, ahead=ahead)
        out, stuck = self._beside(rest, known, going, left, rng, {self.names[at]: odds}, ahead=ahead)
        there = (bins := self._bins(out[:, self.order])) >= 0
        counts, bins, some = counts[there], bins[there], going[there]
        position[some] = line.moved(counts, bins, position[some], shares[there], rng, ahead=ahead)
        return out, stuck

    def _beside(
        self,
        rest: Conditional,
        known: Codes,
        going: Integers,
        left: Left | None,
        rng: np.random.Generator,
        odds: Mapping[str, Floats] | None = None,
        *,
        ahead: bool,
    ) -> tuple[Codes, Flags]:
        """Draws rows beside others.

        Returns their codes, and for which rows there is none.

        Args:
            rest: draws them.
            known: (n, d) records with the others.
            going: (n,) whose they are.
            left: what the others leave; None: whatever the model has.
            rng: draws.
            odds: (n, values) log weights of columns; None: the model's own.
            ahead: whether they stand after the others.
        """
        columns, stuck = self.after if ahead else self.here, np.zeros(len(known), bool)
        tables = self.to_here if ahead else [np.arange(self.columns[at].size) for at in columns]
        out = _recoded(rest.drawn(known, rng, odds, stuck)[:, columns], tables)
        if left is None:
            return out, stuck
        fine = stuck | left.moved(going, self._row_codes(known, out), ahead=ahead)
        for trial in range(_TRIES):
            again = np.flatnonzero(~fine)
            if not len(again):
                break
            tilt = {name: some[again] for name, some in (odds or {}).items()}
            if trial >= _TRIES // 2:
                for name, some in self._tilt(left, going[again], ahead=ahead).items():
                    tilt[name] = np.maximum(tilt[name] + some, NEVER) if name in tilt else some
            none = np.zeros(len(again), bool)
            out[again] = _recoded(rest.drawn(known[again], rng, tilt, none)[:, columns], tables)
            stuck[again] = none
            fine[again] = none | left.moved(going[again], self._row_codes(known[again], out[again]), ahead=ahead)
        return out, stuck | ~fine

    def _tilt(self, left: Left, going: Integers, *, ahead: bool) -> dict[str, Floats]:
        """Returns log weights that leave out codes which cannot stand beside rows."""
        weights = dict[str, Floats]()
        for at, name in zip(self.after if ahead else self.here, row_columns(self.rows), strict=True):
            if name in left.reach.names and (allowed := left.allowed(going, name, ahead=ahead)) is not None:
                weights[self.names[at]] = np.zeros((len(going), self.columns[at].size))
                weights[self.names[at]][:, places(self.columns[at])] = np.where(allowed, 0.0, NEVER)
        return weights

    def _row_codes(
        self, records: Codes, of_rows: Codes, at: Integers | None = None, there: Flags | None = None
    ) -> dict[str, Codes]:
        """Returns rows' codes of the columns that comparisons look at.

        Args:
            records: (n, d) of the persons.
            of_rows: codes of rows, as records have them.
            at: (n,) positions of the rows; None: they are all.
            there: (n,) which of them are rows; the others get any codes. None: all are.
        """
        reach, out = self.rows.compiled.reach, dict[str, Codes]()
        assert reach is not None
        if at is not None:
            at = at if there is None else np.where(there, at, 0)
            of_rows = of_rows[at] if len(of_rows) else np.zeros((len(at), of_rows.shape[1]), np.int64)
        of = row_columns(self.rows)
        for name in reach.names:
            codes = of_rows[:, of.index(name)] if name in of else records[:, self.names.index(name)]
            out[name] = self._of_row(name, codes).astype(np.intp)
        return out

    def _of_row(self, name: str, codes: Codes) -> Codes:
        """Returns codes of a row for those of a record."""
        column = self.columns[self.names.index(name)]
        if no_row_code(column) < 0:
            return codes
        return np.minimum(np.searchsorted(places(column), codes), self.rows.columns[name].size - 1)

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
            codes = of_rows[:, at.index(name)] if name in at else records[whose, self.names.index(name)]
            out[:, j] = self._of_row(name, codes)
        return out


def _recoded(codes: Codes, tables: list[Integers]) -> Integers:
    """Returns (rows, columns) codes, each by its column's table."""
    return np.stack([table[codes[:, j]] for j, table in enumerate(tables)], axis=1)
