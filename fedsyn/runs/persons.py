"""Makes whole persons of a model of records.

A record has a person's own attributes, the number of rows, one row and the one after it. A whole person starts from a
record: the two rows stand next to each other, at a place that is as likely as any other. Rows before and after them are
drawn one by one, each given the person, the number of rows and the row next to it.

Noise in the model adds up along a person: of dates in order, one step may leap ahead and none goes back. So the rows
that are drawn would lie later than the model's records say, or earlier where they were drawn backwards. The odds of a
step are weighed by one factor for each value of the column that gives the order, with which the rows have the records'
values. Nothing else only goes one way; weights for all columns made some tables better and others worse.

All of it follows from the released model: no privacy is spent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedsyn.domain import Codes, Flags, Floats, Integers
from fedsyn.inference import AnyModel
from fedsyn.inference.conditional import Conditional, graphical
from fedsyn.table.schema import Schema
from fedsyn.table.schema.ordered import IntegerColumn
from fedsyn.table.schema.people import People
from fedsyn.table.schema.persons import (
    BEFORE,
    COUNT,
    before_column,
    next_name,
    no_row_code,
    places,
    row_columns,
)

#: Persons with whom weights are found, and how often.
_PERSONS, _STEPS = 1 << 11, 4
# Share of rows that is as good as none.
_TINY = 1e-3


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
        self.following = Conditional(chain, [self.names[at] for at in self.after])
        self.preceding = Conditional(chain, [self.names[at] for at in self.here])
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
        counts, of_rows, _ = self._drawn(records, rng)
        shown = np.maximum(counts, 1)  # a person without a row has one that is empty
        whose = np.repeat(np.arange(len(records)), shown)
        empty = (counts == 0)[whose] if (counts == 0).any() else None
        filled = np.zeros((len(whose), len(self.here)), np.int64)
        filled[slice(None) if empty is None else ~empty] = of_rows
        codes = self._rows(records, filled, whose)
        order = persons.order if isinstance(persons.order, str) else None
        return codes, People(shown, empty, persons.constant, order, start)

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
        ahead, back = self._weights(self.after, self.to_here), self._weights(self.here, same)
        at = place + 1
        while len(going := np.flatnonzero(at + 1 < counts)):  # each person's next row, all persons at once
            known = records[going].copy()
            known[:, self.here] = of_rows[first[going] + at[going]]
            self._stand(known, at[going])
            drawn = self.following.drawn(known, rng, ahead)[:, self.after]
            at[going] += 1
            of_rows[first[going] + at[going]] = _recoded(drawn, self.to_here)
        at = place.copy()
        while len(going := np.flatnonzero((at > 0) & (counts > 1))):
            known = records[going].copy()
            known[:, self.after] = _recoded(of_rows[first[going] + at[going]], self.to_after)
            at[going] -= 1
            self._stand(known, at[going])
            of_rows[first[going] + at[going]] = self.preceding.drawn(known, rng, back)[:, self.here]

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


def _recoded(codes: Codes, tables: list[Integers]) -> Integers:
    """Returns (rows, columns) codes, each by its column's table."""
    return np.stack([table[codes[:, j]] for j, table in enumerate(tables)], axis=1)
