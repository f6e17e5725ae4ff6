"""Makes one record of each person from the rows of a table.

*Why a record is a row.* A record is a function of one person's rows and of coins of that person alone, which depend on
no row. Fix the coins: a table with one person more, however many rows that person has, gives the same records and one
more. So every release that is (epsilon, delta)-private for one row of the table of records is so for one person of the
table of rows, and all of them together are; the average over the coins is no easier to tell apart than the worst of
them.

Whether a person has a record is said by that person's rows alone, too: who has fewer than `persons.least_rows` has
none.

The order in which records stand is that in which persons are first met. No request asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedsyn.domain import Codes, Flags, Floats, Integers
from fedsyn.errors import DataError
from fedsyn.lazy import pd
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import nameless_rows, other_rows
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import remade
from fedsyn.table.schema.encoding import Block, numbers_alone
from fedsyn.table.schema.hidden import encoder_of
from fedsyn.table.schema.holdings import changing
from fedsyn.table.schema.persons import (
    GAP,
    before_column,
    count_column,
    no_row_code,
    person_attributes,
    places,
    row_columns,
    with_rows_alone,
)
from fedsyn.table.schema.whose import Whose, of_nobody


class Pairs(NamedTuple):
    """Rows that a record of each person shows.

    Attributes:
        counts: (persons,) rows of each.
        before: (persons,) rows of the person before the one that is shown, in their order.
        here: (persons,) position of the row that is shown, -1 where there is none.
        after: (persons,) position of the row after it, -1 where there is none.
    """

    counts: Integers
    before: Integers
    here: Integers
    after: Integers


def pairs_of(person: Codes, order: Floats | None, in_order: bool, persons: int, coins: np.random.Generator) -> Pairs:
    """Draws a row and the one after it for each person.

    >>> rows = pairs_of(np.array([0, 1, 0]), np.array([7.0, 1.0, 3.0]), True, 2, np.random.default_rng(0))
    >>> rows.counts.tolist(), rows.here.tolist(), rows.after.tolist()
    ([2, 1], [2, 1], [0, -1])

    Args:
        person: (rows,) number of each row's person, 0 .. persons - 1.
        order: (rows,) by which the rows of a person stand in order, missing ones last; None: as they come.
        in_order: whether rows stand in order: then the next row follows in it. Else it is any other row of the person.
        persons: how many there are.
        coins: two numbers of each person.
    """
    by_person = np.argsort(person, kind="stable") if order is None else np.lexsort((order, person))
    counts = np.bincount(person, minlength=persons)
    first = np.cumsum(counts) - counts
    one, two = coins.random((2, persons))
    if in_order:  # of the rows that have a next one, each as likely as another
        at = (one * np.maximum(counts - 1, 1)).astype(np.int64)
        then = at + 1
    else:
        at = (one * np.maximum(counts, 1)).astype(np.int64)
        then = (at + 1 + (two * np.maximum(counts - 1, 1)).astype(np.int64)) % np.maximum(counts, 1)
    places = np.append(by_person, -1)  # the last one is that of nobody's row
    here = np.where(counts > 0, first + at, len(person))
    after = np.where(counts > 1, first + then, len(person))
    return Pairs(counts, at, places[here], places[after])


def _numbered(whose: Integers, least: int) -> tuple[Integers, int]:
    """Returns the record of each row, and a person's fewest rows.

    Records are numbered as persons are first met. Rows of a person with fewer than `least` have none, -1.

    >>> _numbered(np.array([9, 4, 9, 7, 7]), 2)
    (array([ 0, -1,  0,  1,  1]), 1)
    """
    _, first, whose, rows = np.unique(whose, return_index=True, return_inverse=True, return_counts=True)
    met = np.argsort(first, kind="stable")
    met = met[rows[met] >= least]
    number = np.full(len(first), -1, np.int64)
    number[met] = np.arange(len(met))
    return number[whose.reshape(-1)], int(rows.min()) if len(rows) else 0


class RecordMaker:
    """Makes the records of one table.

    It takes the encoded rows block by block.

    Args:
        schema: of the rows; it says who is a person.
        coins: of this table's persons. They carry no privacy: whoever knows them learns no row.

    Attributes:
        person: after `record`, (rows read,) the record of each row, -1 where no code takes the row.
        records: after `record`, their number.
        most, fewest: after `record`, the most and the fewest rows of a person.
        changing: after `record`, column -> persons whose rows differ in it though the schema says that none do.
    """

    def __init__(self, schema: Schema, coins: np.random.Generator) -> None:
        assert schema.persons is not None
        self.schema, self.persons, self.coins = schema, schema.persons, coins
        self.person: Integers = np.zeros(0, np.int64)
        self.records = self.most = self.fewest = 0
        self.changing: dict[str, int] = {}
        self._codes, self._numbers = list[Codes](), list[np.ndarray]()
        self._whose, self._order, self._kept = list[Integers](), list[Floats](), list[Flags]()
        self._empty = list[Flags]()
        self._who = Whose(schema.missing_text)

    @property
    def beside(self) -> list[str]:
        """Columns that are needed beside those of the model."""
        order = self.persons.order
        return [self.persons.id, *([order] if isinstance(order, str) and order not in self.schema.columns else [])]

    def there(self, frame: pd.DataFrame) -> Flags | None:
        """Returns (rows,) whether each is a row of a person.

        It is not where a person has none. None: all are.
        """
        return None if self.persons.least_rows else ~of_nobody(self.schema, frame)

    def add(self, frame: pd.DataFrame, block: Block, there: Flags | None) -> None:
        """Takes some rows more, and which of them are rows (`there`).

        Raises:
            DataError: a column is missing that says whose they are, or in which order they stand.
        """
        if absent := [name for name in self.beside if name not in frame.columns]:
            raise DataError(f"the table lacks the column '{absent[0]}', which the schema names under persons")
        kept = np.ones(len(frame), bool) if block.kept is None else block.kept
        whose = self._who.of(frame[self.persons.id])
        if there is not None:
            block = self._with_empty(frame, block, ~there)
            kept = np.ones(len(frame), bool) if block.kept is None else block.kept
        self._kept.append(kept)
        self._codes.append(block.codes)
        self._numbers.append(block.numbers)
        self._whose.append(whose[kept])
        if isinstance(self.persons.order, str):
            column = self.schema.every_column[self.persons.order]
            assert isinstance(column, BinnedColumn)
            # A row without a number stands last; no row may be left out here.
            of_all, series = remade(column, missing=True), frame[self.persons.order]
            self._order.append(numbers_alone(of_all, series, self.schema.missing_text)[0])

    def record(self) -> Block:
        """Returns the records of all rows that were added."""
        records, names = self.schema.records, list(self.schema.columns)
        codes, numbers = np.concatenate(self._codes), np.concatenate(self._numbers)
        whose, self.fewest = _numbered(np.concatenate(self._whose), self.persons.least_rows)
        kept, self.records = np.concatenate(self._kept), int(whose.max(initial=-1)) + 1
        if not (enough := whose >= 0).all():
            codes, numbers, whose, kept[kept] = codes[enough], numbers[enough], whose[enough], enough
        self.person = np.full(len(kept), -1, np.int64)
        self.person[kept] = whose
        order = np.concatenate(self._order)[kept] if self._order else None
        empty = np.concatenate(self._empty)[kept] if self._empty else np.zeros(len(codes), bool)
        there = np.flatnonzero(~empty)
        own = None if order is None else order[there]
        shown = pairs_of(whose[there], own, self.persons.in_order, self.records, self.coins)
        rows = np.append(there, -1)
        shown = shown._replace(here=rows[shown.here], after=rows[shown.after])
        some = np.zeros(self.records, np.int64)  # a row of each person, the one that is shown if there is one
        some[whose] = np.arange(len(whose))
        some = np.where(shown.here < 0, some, shown.here)
        self.most = int(shown.counts.max(initial=0))
        self._see_changes(codes, whose, some)
        if records is self.schema:  # of who has several rows all the same it is one of them
            return Block(codes[some], numbers[some])
        # Codes of a row go to their places beside "no row", and the rows that are not there get that code.
        out = np.empty((self.records, len(records.columns)), records.dtype)
        of_rows, at = row_columns(self.schema), 0
        columns = list(records.columns.values())
        for name in person_attributes(self.schema):
            out[:, at] = places(columns[at])[codes[some, names.index(name)]]
            if (none := no_row_code(columns[at])) >= 0:
                out[shown.counts == 0, at] = none
            at += 1
        count = count_column(self.persons)
        out[:, at] = count.codes_of(np.clip(shown.counts, *count.span).astype(np.float64))
        if self.persons.in_order:
            before, at = before_column(self.persons), at + 1
            out[:, at] = before.codes_of(np.clip(shown.before, *before.span).astype(np.float64))
        gaps = list[Floats]()
        if isinstance(between := records.columns.get(GAP), BinnedColumn) and order is not None:
            gaps, at = [self._gaps(shown, order)], at + 1
            out[:, at] = np.where(shown.after < 0, no_row_code(between), between.codes_of(gaps[0]))
        for rows in (shown.here, shown.after):
            for name in of_rows:
                at += 1
                codes_there = places(columns[at])[codes[rows, names.index(name)]]
                out[:, at] = np.where(rows < 0, no_row_code(columns[at]), codes_there)
        return Block(out, self._numbers_of(numbers, shown, some, gaps))

    def sentences(self) -> list[str]:
        """Returns sentences on the persons, for the rows' holder."""
        lines = [*changing([self.changing]), *other_rows(self.persons, self.fewest, self.most)]
        return [*lines, *nameless_rows(self.persons, self._who.nameless)]

    @staticmethod
    def _gaps(shown: Pairs, order: Floats) -> Floats:
        """Returns what lies between the two rows of each record, (persons,).

        It is NaN where there is no next one, or where one of them has no number.
        """
        padded = np.append(order, np.nan)  # the last one is that of nobody's row
        gaps = padded[shown.after] - padded[shown.here]
        return np.asarray(np.where(np.isfinite(gaps), np.maximum(gaps, 0.0), np.nan))

    def _numbers_of(self, numbers: np.ndarray, shown: Pairs, some: Integers, gaps: list[Floats]) -> np.ndarray:
        """Returns (persons, ordered columns) numbers of the records, from those of rows."""
        ordered = [name for name, column in self.schema.columns.items() if isinstance(column, BinnedColumn)]
        of_rows = row_columns(self.schema)
        own, lacking = person_attributes(self.schema), {*with_rows_alone(self.schema)}
        alone = np.where(shown.counts == 0, np.nan, 0.0)
        parts = [
            numbers[some, ordered.index(name)] + (alone if name in lacking else 0.0) for name in own if name in ordered
        ]
        parts += [shown.counts, *([shown.before] if self.persons.in_order else []), *gaps]
        for rows in (shown.here, shown.after):
            parts += [np.where(rows < 0, np.nan, numbers[rows, ordered.index(n)]) for n in of_rows if n in ordered]
        return np.stack(parts, axis=1).astype(np.float32)

    def _with_empty(self, frame: pd.DataFrame, block: Block, empty: Flags) -> Block:
        """Returns a block with the rows of persons who have none.

        Such a row has nothing in any column that differs between rows. So what these columns cannot place does not
        leave it out; what the person's own columns cannot place does.
        """
        self._empty.append(empty)
        kept = np.ones(len(frame), bool) if block.kept is None else block.kept
        new = np.flatnonzero(empty & ~kept)
        if not len(new):
            return block
        lacking = with_rows_alone(self.schema)
        own = [name for name in person_attributes(self.schema) if name not in lacking]
        added = encoder_of(self.schema, own, self.schema.dtype).block(frame.iloc[new])
        new = new[added.of(np.ones(len(new), bool))] if added.kept is None else new[added.kept]
        names, rows = list(self.schema.columns), np.flatnonzero(kept)
        codes = np.zeros((len(new), len(names)), block.codes.dtype)
        codes[:, [names.index(name) for name in own]] = added.codes
        ordered = [name for name, column in self.schema.columns.items() if isinstance(column, BinnedColumn)]
        numbers = np.full((len(new), len(ordered)), np.nan, np.float32)
        numbers[:, [ordered.index(name) for name in own if name in ordered]] = added.numbers
        place = np.argsort(np.append(rows, new), kind="stable")
        kept = kept.copy()
        kept[new] = True
        return Block(np.append(block.codes, codes, 0)[place], np.append(block.numbers, numbers, 0)[place], kept=kept)

    def _see_changes(self, codes: Codes, whose: Integers, some: Integers) -> None:
        names = list(self.schema.columns)
        for name in person_attributes(self.schema):
            column = codes[:, names.index(name)]
            differs = column != column[some][whose]
            if differs.any():
                self.changing[name] = len(np.unique(whose[differs]))
