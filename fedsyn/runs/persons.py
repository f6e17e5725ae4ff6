"""Makes whole persons of a model of records, and writes their rows.

A record has a person's own attributes, the number of rows, one row and the one after it. A whole person starts from a
record: the two rows stand next to each other, at a place that is as likely as any other. Rows before and after them are
drawn one by one, each given the person, the number of rows and the row next to it. So every pair of neighbours is as
the model has it for such a person.

All of it follows from the released model: no privacy is spent.
"""

from __future__ import annotations

import numpy as np

from fedsyn.domain import Codes, Flags, Integers
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


class WholePersons:
    """Makes rows of persons from their records.

    Args:
        schema: of the records, with draws inside bins as the model has them.
        model: of the records.
    """

    def __init__(self, schema: Schema, model: AnyModel) -> None:
        self.schema, self.rows = schema, schema.rows
        self.names = list(schema.columns)
        self.here = [self.names.index(name) for name in row_columns(self.rows)]
        self.after = [self.names.index(next_name(name)) for name in row_columns(self.rows)]
        persons = self.rows.persons
        assert persons is not None
        in_order = persons.in_order
        self.before = (self.names.index(BEFORE), before_column(persons)) if in_order else None
        chain = graphical(model, [clique for clique, _ in schema.domain.wanted])
        self.following = Conditional(chain, [self.names[at] for at in self.after])
        self.preceding = Conditional(chain, [self.names[at] for at in self.here])

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
        column = self.schema.columns[COUNT]
        assert isinstance(column, IntegerColumn)
        counts = np.asarray(column.draw(records[:, self.names.index(COUNT)].astype(np.intp), rng)[0]).astype(np.int64)
        first = np.cumsum(counts) - counts
        of_rows = np.empty((int(counts.sum()), len(self.here)), np.int64)  # codes of a record's row
        place = self._places(records, counts, rng)
        some, several = counts > 0, counts > 1
        of_rows[(first + place)[some]] = self._there(records, some, self.here, self.preceding, rng)
        of_rows[(first + place + 1)[several]] = self._as_here(
            self._there(records, several, self.after, self.following, rng)
        )
        self._continue(records, of_rows, first, counts, place, rng)
        shown = np.maximum(counts, 1)  # a person without a row has one that is empty
        whose = np.repeat(np.arange(len(records)), shown)
        empty = (counts == 0)[whose] if (counts == 0).any() else None
        filled = np.zeros((len(whose), len(self.here)), np.int64)
        filled[slice(None) if empty is None else ~empty] = of_rows
        codes = self._rows(records, filled, whose)
        order = persons.order if isinstance(persons.order, str) else None
        return codes, People(shown, empty, persons.constant, order, start)

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
        none = np.array([no_row_code(list(self.schema.columns.values())[j]) for j in at])
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
        at = place + 1
        while len(going := np.flatnonzero(at + 1 < counts)):  # each person's next row, all persons at once
            known = records[going].copy()
            known[:, self.here] = of_rows[first[going] + at[going]]
            self._stand(known, at[going])
            drawn = self.following.drawn(known, rng)[:, self.after]
            at[going] += 1
            of_rows[first[going] + at[going]] = self._as_here(drawn)
        at = place.copy()
        while len(going := np.flatnonzero((at > 0) & (counts > 1))):
            known = records[going].copy()
            known[:, self.after] = self._as_after(of_rows[first[going] + at[going]])
            at[going] -= 1
            self._stand(known, at[going])
            of_rows[first[going] + at[going]] = self.preceding.drawn(known, rng)[:, self.here]

    def _as_here(self, codes: Codes) -> Integers:
        """Returns codes of next rows as those of rows."""
        out = np.empty(codes.shape, np.int64)
        for j, (here, after) in enumerate(zip(self.here, self.after, strict=True)):
            out[:, j] = self._between(after, here)[codes[:, j]]
        return out

    def _as_after(self, codes: Codes) -> Integers:
        out = np.empty(codes.shape, np.int64)
        for j, (here, after) in enumerate(zip(self.here, self.after, strict=True)):
            out[:, j] = self._between(here, after)[codes[:, j]]
        return out

    def _between(self, before: int, after: int) -> Integers:
        """Returns codes of one column for those of another.

        There is -1 for "no row".
        """
        columns = list(self.schema.columns.values())
        one, other = places(columns[before]), places(columns[after])
        out = np.full(columns[before].size, -1, np.int64)
        out[one] = other
        return out

    def _rows(self, records: Codes, of_rows: Integers, whose: Integers) -> Codes:
        """Returns codes in the schema of the rows."""
        out, at = np.empty((len(whose), len(self.rows.columns)), self.rows.dtype), row_columns(self.rows)
        columns = list(self.schema.columns.values())
        for j, name in enumerate(self.rows.columns):
            if name in at:
                place = at.index(name)
                back = np.full(columns[self.here[place]].size, 0, np.int64)
                back[places(columns[self.here[place]])] = np.arange(self.rows.columns[name].size)
                out[:, j] = back[of_rows[:, place]]
            else:
                out[:, j] = records[whose, self.names.index(name)]
        return out
