"""Persons of a table beside those of real rows.

What is compared follows from the files. The schema says which column tells persons apart, and by which their rows stand
in order; of everything else the real rows decide. A column in which hardly any person's rows differ is the person's
own. Each fact of a person (number of rows, own columns, mean, largest, first and last value, different values, share of
the commonest) is read and judged like a column of a table with one row of each person, and a step from a row to the
next like a link of two columns. Rows of a person are not independent, so chance is that of as many rows as there are
persons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.real.columns import ColumnScore, ReadColumn, column_score
from fedsyn.evaluation.real.pairs import PairScore, scored_pairs
from fedsyn.evaluation.real.reading import SHARED, Readings
from fedsyn.evaluation.record import percent, short
from fedsyn.evaluation.verdict import Judged, OfPersons, judged
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.persons import COUNT, next_name
from fedsyn.table.schema.vocabulary import FEW_ROWS
from fedsyn.table.schema.whose import PersonColumn, of_nobody

#: Columns that differ between rows of a person, and are compared along them.
MOST_ALONG = 30
_MOST_COUNTED = 20_000_000  # steps times pairs of columns
_FEWEST_COUNTED = 5_000
_DAY = 86_400e6  # microseconds


@dataclass(frozen=True)
class Sameness:
    """Share of persons whose rows differ in a column.

    Of persons with several rows.

    Attributes:
        name: of the column.
        real, synthetic: shares.
        own: whether hardly any real person's rows differ: then it is the person's own column.
    """

    name: str
    real: float
    synthetic: float
    own: bool

    def judged(self) -> Judged:
        """Returns what became of it."""
        words = (
            f"it differs between the rows of {percent(self.real)} of real people, and of {percent(self.synthetic)} here"
        )
        return judged(f"sameness of {self.name}", [("share", abs(self.real - self.synthetic), words)])


@dataclass(frozen=True, kw_only=True)
class PersonsScore:
    """Persons of both tables.

    Attributes:
        real, synthetic: numbers of them.
        most: rows of the person with the most, real and synthetic.
        order: column by which the rows of a person stand in order; True: as they come; False: in none.
        columns: number of rows, and columns that are a person's own, over persons.
        pairs: of these columns, over persons.
        same: of each column, the share of persons whose rows differ in it.
        gap: from a row to the next, by the column that gives the order; None: there is none.
        steps: a column of a row and one of the next row.
        facts: means, largest, first and last values and so on, over persons.
        rules: how the work was bounded, one sentence each.
    """

    real: int
    synthetic: int
    most: tuple[int, int]
    order: bool | str
    columns: tuple[ColumnScore, ...]
    pairs: tuple[PairScore, ...]
    same: tuple[Sameness, ...]
    gap: ColumnScore | None
    steps: tuple[PairScore, ...]
    facts: tuple[ColumnScore, ...]
    rules: tuple[str, ...] = ()

    def torn(self) -> list[str]:
        """Returns own columns that are no longer the same in all rows."""
        return [one.name for one in self.same if one.own and one.judged().state == "lost"]

    def judged(self) -> OfPersons:
        """Returns what became of persons, steps and facts."""
        numbers = next(column for column in self.columns if column.name == COUNT).judged()
        own = [Judged(f"{one.name} of people", *_loss(one)) for one in self.columns if one.name != COUNT]
        same = {one.name: one.judged() for one in self.same}
        people = [numbers, *own, *same.values(), *(pair.judged() for pair in self.pairs if pair.linked)]
        steps = [pair.judged() for pair in self.steps if pair.linked] + ([self.gap.judged()] if self.gap else [])
        foremost = [numbers, *(same[one.name] for one in self.same if one.own)]
        return OfPersons(people, steps, [one.judged() for one in self.facts], foremost)


def _loss(column: ColumnScore) -> tuple[float, str]:
    one = column.judged()
    return one.loss, one.why


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, person by person in their order.

    Attributes:
        counts: (persons,) rows of each.
        some: (persons,) a row of each, also of one without rows.
        at: (rows,) position of each in the table, person by person.
    """

    counts: Integers
    some: Integers
    at: Integers

    @classmethod
    def of(cls, whose: Integers, empty: Flags, order: Floats) -> Rows:
        """Puts rows in order.

        Args:
            whose: (rows,) number of each row's person.
            empty: (rows,) which stand for persons without rows.
            order: (rows,) by which the rows of a person ascend, NaN last.
        """
        there = np.flatnonzero(~empty)
        at = there[np.lexsort((order[there], whose[there]))]
        some = np.empty(int(whose.max(initial=-1)) + 1, np.int64)
        some[whose[::-1]] = np.arange(len(whose))[::-1]
        return cls(np.bincount(whose[there], minlength=len(some)), some, at)

    @cached_property
    def first(self) -> Integers:
        """(persons with rows,) place of the first row among `at`."""
        starts = np.cumsum(self.counts) - self.counts
        return np.asarray(starts[self.counts > 0], np.int64)

    @cached_property
    def steps(self) -> tuple[Integers, Integers]:
        """Positions of rows that have a next one, and of those."""
        last = np.zeros(len(self.at), bool)
        last[np.append(self.first[1:], len(self.at))[: len(self.first)] - 1] = True
        here = np.flatnonzero(~last)
        return self.at[here], self.at[here + 1]

    def spread(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Returns values of persons with rows, `fill` of the others."""
        out = np.full(len(self.counts), fill, np.result_type(values, type(fill)) if values.dtype != object else object)
        out[self.counts > 0] = values
        return out


def persons_score(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    names: Sequence[str],
    schema: Any,
    rng: np.random.Generator,
) -> PersonsScore | str:
    """Returns the persons of a table beside real ones.

    Returns what it would need instead where a column is missing.

    Args:
        real, synthetic: rows as they are written.
        names: columns that both have, without the identifier.
        schema: says who is a person, by what their rows stand in order, and which rows are none.
        rng: chooses columns and steps, and the order of rows that have none.
    """
    tables, persons, by = (real, synthetic), schema.persons, PersonColumn.of(schema)
    assert by is not None
    whose = [one for table in tables if (one := by.numbered(table)) is not None]
    if len(whose) < len(tables):
        return f"needs '{by.name}', which says whose a row is, in both tables"
    read = {name: ReadColumn.of([table[name] for table in tables]) for name in names}
    differ = {name: [_differ(read[name].tables[t].values, whose[t]) for t in (0, 1)] for name in names}
    several = int(np.count_nonzero(np.bincount(whose[0]) > 1))
    own = [name for name in names if several >= FEW_ROWS and differ[name][0] <= SHARED]
    along, rules = [name for name in names if name not in own], list[str]()
    empty = [of_nobody(schema, table) for table in tables]
    if len(along) > MOST_ALONG:
        chosen = {*rng.permutation(np.array(along, object))[:MOST_ALONG].tolist()}
        rules.append(f"Along people, {MOST_ALONG} of {len(along)} columns were compared, drawn at random.")
        along = [name for name in along if name in chosen]
    places = [_order(persons.order, read, t, rng, len(tables[t])) for t in (0, 1)]
    rows = [Rows.of(*three) for three in zip(whose, empty, places, strict=True)]
    numbers = [pd.Series(one.counts) for one in rows]
    of_people = {name: ReadColumn.of([t[name].iloc[r.some] for t, r in zip(tables, rows, strict=True)]) for name in own}
    of_people[COUNT] = ReadColumn.of(numbers)
    steps, more = _steps({name: read[name] for name in along}, rows, rng)
    facts = dict(_facts({name: read[name] for name in along}, rows, persons.in_order))
    return PersonsScore(
        real=len(rows[0].counts),
        synthetic=len(rows[1].counts),
        most=(int(rows[0].counts.max(initial=0)), int(rows[1].counts.max(initial=0))),
        order=persons.order,
        columns=tuple(column_score(name, of_people[name], None, "people") for name in (COUNT, *own)),
        pairs=_pairs_of_people(of_people),
        same=_same(differ, own) if several else (),
        gap=_gap(persons.order, read, rows),
        steps=steps,
        facts=tuple(column_score(name, ReadColumn.of(both), None, "people") for name, both in facts.items()),
        rules=(*rules, *more),
    )


def _same(differ: Mapping[str, Sequence[float]], constant: Sequence[str]) -> tuple[Sameness, ...]:
    return tuple(Sameness(name, short(real), short(made), name in constant) for name, (real, made) in differ.items())


def whole_people(whose: Integers, most: int, rng: np.random.Generator) -> Flags | None:
    """Returns which rows to read so that persons stay whole.

    Persons are drawn until they have `most` rows. None: all rows.

    Args:
        whose: (rows,) number of each row's person, from 0.
        most: rows.
        rng: chooses persons.
    """
    if len(whose) <= most:
        return None
    counts = np.bincount(whose)
    drawn = rng.permutation(len(counts))
    chosen = np.zeros(len(counts), bool)
    chosen[drawn[np.cumsum(counts[drawn]) <= max(most, counts[drawn[0]])]] = True
    return np.asarray(chosen[whose])


def _differ(values: Integers, whose: Integers) -> float:
    """Returns the share of persons with several rows that differ."""
    counts = np.bincount(whose)
    first = np.empty(len(counts), np.int64)
    first[whose[::-1]] = values[::-1]
    differs = np.zeros(len(counts), bool)
    differs[whose[values != first[whose]]] = True
    return float(differs[counts > 1].mean()) if (counts > 1).any() else 0.0


def _order(
    order: bool | str, read: Mapping[str, ReadColumn], table: int, rng: np.random.Generator, rows: int
) -> Floats:
    """Returns numbers by which rows of persons ascend, (rows,).

    Rows without an order are put into a random one.
    """
    if isinstance(order, str) and order in read:
        return read[order].tables[table].numbers
    return np.arange(rows, dtype=np.float64) if order is True else rng.random(rows)


def _pairs_of_people(of_people: Mapping[str, ReadColumn]) -> tuple[PairScore, ...]:
    readings = Readings({name: column.reading for name, column in of_people.items()})
    codes = [np.stack([column.codes[t] for column in of_people.values()], axis=1) for t in (0, 1)]
    numbers = {
        name: [cells.numbers for cells in column.tables] for name, column in of_people.items() if column.reading.ordered
    }
    return scored_pairs(readings, list(of_people), codes, numbers) if len(of_people) > 1 else ()


def _steps(
    read: Mapping[str, ReadColumn], rows: Sequence[Rows], rng: np.random.Generator
) -> tuple[tuple[PairScore, ...], list[str]]:
    """Returns pairs of a row's column and one of the next row.

    Returns also rules that bounded the work.
    """
    names = list(read)
    most = max(_FEWEST_COUNTED, _MOST_COUNTED // max(1, len(names) * (2 * len(names) - 1)))
    steps = [np.stack(one.steps, axis=1) for one in rows]
    if not names or not all(map(len, steps)):
        return (), []
    rules = [f"Steps were counted on at most {most:,} of each table, drawn at random."]
    steps, rules = [sample_rows(some, most, rng) for some in steps], rules if max(map(len, steps)) > most else []
    columns = [*names, *map(next_name, names)]
    readings = Readings({name: read[old].reading for name, old in zip(columns, names * 2, strict=True)})
    codes = [
        np.stack([read[name].codes[t][steps[t][:, at]] for at in (0, 1) for name in names], axis=1) for t in (0, 1)
    ]
    numbers = {
        name: [read[old].tables[t].numbers[steps[t][:, at]] for t in (0, 1)]
        for name, old, at in zip(columns, names * 2, [0] * len(names) + [1] * len(names), strict=True)
        if read[old].reading.ordered
    }
    people = [int(np.count_nonzero(one.counts > 1)) for one in rows]
    return scored_pairs(readings, columns, codes, numbers, len(names), (people[0], people[1])), rules


def _gap(order: bool | str, read: Mapping[str, ReadColumn], rows: Sequence[Rows]) -> ColumnScore | None:
    """Returns what lies between a row and the next one."""
    if not isinstance(order, str) or order not in read or not all(len(one.steps[0]) for one in rows):
        return None
    column = read[order].notation.column
    dates = isinstance(column, BinnedColumn) and column.scale[0] != NUMBERS
    numbers = [cells.numbers / (_DAY if dates else 1.0) for cells in read[order].tables]
    gaps = [pd.Series(one[r.steps[1]] - one[r.steps[0]]) for one, r in zip(numbers, rows, strict=True)]
    name = f"days to the next {order}" if dates else f"difference to the next {order}"
    return column_score(name, ReadColumn.of(gaps), None)


def _facts(
    read: Mapping[str, ReadColumn], rows: Sequence[Rows], in_order: bool
) -> Iterator[tuple[str, list[pd.Series]]]:
    """Yields the facts of persons: name, real values, synthetic ones."""
    if not all(len(one.first) for one in rows):
        return
    for name, column in read.items():
        facts = [_of_column(column, t, rows[t], in_order) for t in (0, 1)]
        for what in facts[0]:
            yield f"{what} {name}", [one[what] for one in facts]


def _of_column(column: ReadColumn, table: int, rows: Rows, in_order: bool) -> dict[str, pd.Series]:
    """Returns the facts of persons that follow from one column."""
    cells, facts = column.tables[table], dict[str, np.ndarray]()
    ends = {"first": rows.first, "last": np.append(rows.first[1:], len(rows.at))[: len(rows.first)] - 1}
    if column.reading.plain:
        numbers = cells.numbers[rows.at]
        known = np.isfinite(numbers)
        counts = np.add.reduceat(known.astype(np.float64), rows.first) if len(rows.first) else np.zeros(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            facts["mean"] = np.add.reduceat(np.where(known, numbers, 0.0), rows.first) / counts
        largest = np.maximum.reduceat(np.where(known, numbers, -np.inf), rows.first)
        facts["largest"] = np.where(np.isfinite(largest), largest, np.nan)
        facts |= {end: numbers[at] for end, at in ends.items() if in_order}
        return {what: pd.Series(rows.spread(values, np.nan)) for what, values in facts.items()}
    if column.reading.ordered:  # dates: what lies between the first and the last
        numbers = cells.numbers[rows.at] / _DAY
        largest = np.fmax.reduceat(numbers, rows.first)
        spans = largest - np.fmin.reduceat(numbers, rows.first)
        return {"days from first to last": pd.Series(rows.spread(spans, np.nan))}
    values = cells.values[rows.at]
    kinds = _kinds(values, rows)
    words = np.array([None, *cells.words], object)
    values = np.where(values < len(words), values, 0)  # a number among words is none
    facts = {"different values of": kinds[0], "share of the commonest": kinds[1]}
    found = {what: pd.Series(rows.spread(values, np.nan)) for what, values in facts.items()}
    if in_order:
        found |= {end: pd.Series(rows.spread(words[values[at]], None)) for end, at in ends.items()}
    return found


def _kinds(values: Integers, rows: Rows) -> tuple[Floats, Floats]:
    """Returns the different values of each person.

    Of persons with rows; and the share of the commonest.
    """
    people = np.repeat(np.arange(len(rows.first)), rows.counts[rows.counts > 0])
    keys, held = np.unique(people * (values.max(initial=0) + 1) + values, return_counts=True)
    owner = keys // (values.max(initial=0) + 1)
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    different = np.bincount(owner, minlength=len(rows.first)).astype(np.float64)
    return different, np.maximum.reduceat(held, starts) / rows.counts[rows.counts > 0]
