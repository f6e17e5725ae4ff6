"""Proposes who a person is.

An identifier repeats, or two tables share one.

Everything in the proposal is read from the rows: which columns are the same in all rows of each person, and the most
rows that one has. So it is marked on the identifier, as what a draft reads of any column is, and needs approval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import PurePath
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Floats, Integers
from fedsyn.errors import DataError, SchemaError
from fedsyn.lazy import pd
from fedsyn.output import counted
from fedsyn.table.schema import vocabulary
from fedsyn.table.schema.approval import PERSONS
from fedsyn.table.schema.column_base import AsideColumn, IdentifierColumn
from fedsyn.table.schema.draft import Guess
from fedsyn.table.schema.encoding import Encoder, numbers_alone
from fedsyn.table.schema.hidden import with_hidden
from fedsyn.table.schema.ordered import DateColumn, DatetimeColumn, IntegerColumn
from fedsyn.table.schema.patterns import BREAKS
from fedsyn.table.schema.persons import Persons, persons_in_words
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import MISSING_TEXT, written
from fedsyn.table.schema.whose import Whose, numbered

# Share of persons who may stand twice in what is still taken for a table of persons.
_TWICE = 0.1
# Digits that an identifier which is made afresh may have.
_MOST_DIGITS = 30
# Column that no table has: the number of a row's person.
_KEY = "\0key"
#: What two tables need to be persons and their rows.
NOT_APART = (
    "tables of persons and of their rows need one column in common that says whose a row is: different in each row of "
    "the table of persons, and repeated in that of their rows"
)


@dataclass(frozen=True, eq=False)
class ProposedPersons:
    """Persons as a draft proposes them.

    Attributes:
        persons: who they are.
        people: number of them.
        rows: theirs.
        most: the largest number of rows.
        whose: (rows,) number of each row's person.
        width: digits of the identifiers, where zeros in front make them as long as each other; else 0.
    """

    persons: Persons
    people: int
    rows: int
    most: int
    whose: Integers
    width: int

    @property
    def hint(self) -> str:
        """A sentence for the person who has the rows."""
        each = vocabulary.rows_each(self.persons.id, self.people, self.rows, self.most)
        few = "".join(f"{sentence}. " for sentence in bound_of_few(self.whose, self.persons.most_rows))
        return (
            f"{each}. {persons_in_words(self.persons)}. {few}This is `persons:` at the end, a guess from the rows: "
            "privacy.unit: person rests on it, and protects each of them with all rows"
        )


@dataclass(frozen=True, eq=False)
class Apart:
    """Persons in a table of their own, beside that of their rows.

    Attributes:
        key: the column that both tables have, which says whose a row is.
        tables: names of both, persons first.
        own: the table of persons.
        rows: that of their rows, joined with what is said of each person.
        alone: (persons without a row, 1) what the key says of them.
        unknown: rows of somebody whom the table of persons does not have.
        nameless: rows without an identifier, in the table of rows.
        own_first: whether the table of persons was named first.
    """

    key: str
    tables: tuple[str, str]
    own: pd.DataFrame
    rows: pd.DataFrame
    alone: pd.DataFrame
    unknown: int
    nameless: int
    own_first: bool

    @property
    def without(self) -> int:
        """Number of persons without a row."""
        return len(self.alone)

    @property
    def whose(self) -> pd.DataFrame:
        """The key of each row, and of each person without one."""
        return pd.concat([self.rows[[self.key]], self.alone], ignore_index=True)

    @property
    def said(self) -> str:
        """A sentence for the person who has the tables."""
        persons, rows = self.tables
        more = f"; {counted(self.without, 'person', 'people')} without a row" * bool(self.without)
        more += f"; {counted(self.unknown, 'row')} of somebody whom {persons} does not have" * bool(self.unknown)
        if self.nameless:
            more += f"; {counted(self.nameless, 'row')} without a '{self.key}', each of a person of its own"
        more += "; what is said of such a person is missing" * bool(self.unknown or self.nameless)
        return f"{persons} has one row of each person, {rows} has their rows: '{self.key}' says whose{more}"


def apart(tables: Mapping[str, pd.DataFrame]) -> Apart | None:
    """Returns two tables as persons and their rows.

    None if they are something else. A column that both have says whose a row is: no value of it repeats in the one,
    some repeat in the other, and the one has most of them. Each has a column that the other lacks. Other columns that
    both have are taken from the persons. A row without a value is of a person of its own, in either table.
    """
    if len(tables) != 2:
        return None
    found = list[tuple[bool, int, str, tuple[str, str]]]()
    for persons, rows in permutations(tables):
        own, other = tables[persons], tables[rows]
        shared = [name for name in own.columns if name in other.columns]
        if len(shared) in (len(own.columns), len(other.columns)):
            continue
        for name in shared:
            known, whose = _whose(own[name], other[name])
            named, people = whose[whose >= 0], len(np.unique(whose[whose >= 0]))
            is_key = 2 * int((known >= 0).sum()) > len(known) == len(np.unique(known)) and people < len(named)
            if is_key and 2 * int(np.isin(named, known).sum()) >= len(named):
                found.append((vocabulary.is_person(name), people, name, (persons, rows)))
    if not found:
        return None
    *_, key, names = max(found)
    own, other = (tables[name].astype({key: object}) for name in names)
    known, whose = _whose(own[key], other[key])
    left = other[[key, *(name for name in other.columns if name not in own.columns)]].assign(**{_KEY: whose})
    right = own.drop(columns=key).assign(**{_KEY: known})
    joined = left.merge(right, on=_KEY, how="left", sort=False)[[*own.columns, *left.columns[1:-1]]]
    alone, unknown = own.loc[~np.isin(known, whose), [key]], int((~np.isin(whose[whose >= 0], known)).sum())
    return Apart(key, names, own, joined, alone, unknown, int((whose < 0).sum()), names == tuple(tables))


def require_apart(tables: Mapping[str, pd.DataFrame]) -> Apart:
    """Returns two tables as persons and their rows.

    Raises:
        DataError: they are not.
    """
    if (two := apart(tables)) is None:
        raise DataError(nearly_apart(tables) or f"{' and '.join(tables)}: {NOT_APART}")
    return two


def nearly_apart(tables: Mapping[str, pd.DataFrame]) -> str:
    """Returns why two tables are nearly persons and their rows.

    Few persons stand twice, or identifiers of one table have lost the zeros at their beginning. Else it is empty.
    """
    for persons, rows in permutations(tables) if len(tables) == 2 else ():
        own, other = tables[persons], tables[rows]
        for name in (name for name in own.columns if name in other.columns):
            known, whose = _whose(own[name], other[name])
            there = whose[whose >= 0]
            if len(np.unique(there)) == len(there):
                continue
            extra, met = len(known) - len(np.unique(known)), 2 * int(np.isin(there, known).sum()) >= len(there)
            if met and 0 < extra <= _TWICE * len(known) < _TWICE * len(there):
                return (
                    f"{persons} has {counted(extra, 'row')} too many: it must have one row of each person, and "
                    f"'{name}' says which one a row is of"
                )
            if not met and not extra:
                bare = [column.astype(object).map(_without_zeros) for column in (own[name], other[name])]
                one, two = _whose(*bare)
                if len(np.unique(one)) == len(one) and 2 * int(np.isin(two, one).sum()) >= len(two):
                    return (
                        f"'{name}' is written with zeros at its beginning in one of {persons} and {rows}, and without "
                        "them in the other, so nearly nobody is found: write it alike in both"
                    )
    return ""


def _without_zeros(identifier: Any) -> Any:
    return written(identifier).lstrip("0") if isinstance(identifier, str | int) else identifier


def named_as(two: Apart) -> Apart:
    """Returns two files with the names that their tables have."""
    persons, rows = (PurePath(file).stem for file in two.tables)
    names = (persons, rows) if persons.strip() and persons.strip() != rows.strip() else ("persons", "rows")
    return replace(two, tables=names)


def _whose(*columns: pd.Series) -> list[Integers]:
    """Returns the number of each row's person, (rows,) of each table."""
    whose = Whose(MISSING_TEXT)
    return [whose.of(column) for column in columns]


def persons_apart(guesses: Mapping[str, Guess], two: Apart) -> ProposedPersons:
    """Returns persons as two tables show them."""
    whose = numbered(two.rows[two.key], MISSING_TEXT)
    counts = np.bincount(whose)
    modelled = [one for one, guess in guesses.items() if not isinstance(guess.column, AsideColumn)]
    own = tuple(name for name in modelled if name in two.own.columns)
    several, others = int(np.count_nonzero(counts > 1)), [name for name in modelled if name not in own]
    changes = _changes({name: pd.factorize(two.rows[name])[0] for name in others}, whose)
    same = tuple(name for name, people in changes.items() if not people and several >= vocabulary.FEW_ROWS)
    same = same if len(same) < len(others) else ()
    least, most = (0, rounded_up(int(counts.max()))) if two.without else _rows_of(counts)
    persons = Persons(
        id=two.key,
        order=_order([one for one in others if one not in same], guesses, two.rows, whose),
        constant=(*own, *same),
        most_rows=most,
        least_rows=least,
        tables=two.tables,
        in_rows=same,
    )
    people, width = two.without + len(counts), _width(two.whose[two.key])
    return ProposedPersons(persons, people, len(whose), int(counts.max()), whose, width)


def proposed_persons(
    schema: Any, guesses: Mapping[str, Guess], frame: pd.DataFrame, holders: Codes
) -> ProposedPersons | None:
    """Returns persons as the rows show them, or None.

    Args:
        schema: the draft's, without persons.
        guesses: column -> what is proposed for it.
        frame: the rows.
        holders: (rows,) number of each row's holder, whose persons are others than those of the next one.
    """
    names = [name for name, guess in guesses.items() if getattr(guess.column, "person", False)]
    if not names:
        return None
    name = max(names, key=lambda one: (vocabulary.is_person(one), guesses[one].values))
    whose = numbered(frame[name], schema.missing_text)
    whose = numbered(pd.Series(holders * (whose.max(initial=0) + 1) + whose), ()) if holders.any() else whose
    rows = np.bincount(whose)
    several = int(np.count_nonzero(rows > 1))
    modelled = [one for one, guess in guesses.items() if not isinstance(guess.column, AsideColumn)]
    changes = _changes({one: pd.factorize(frame[one])[0] for one in modelled}, whose)
    same = [one for one, persons in changes.items() if not persons] if several >= vocabulary.FEW_ROWS else []
    least, most = _rows_of(rows)
    proposal = Persons(
        id=name,
        order=_order([one for one in modelled if one not in same], guesses, frame, whose),
        constant=tuple(same),
        most_rows=most,
        least_rows=least,
    )
    try:  # a column may have a name that records need, or none may be left that differs
        type(schema).from_dict(schema.to_dict() | {"persons": proposal.model_dump(mode="json")})
    except SchemaError:
        return None
    return ProposedPersons(proposal, len(rows), len(whose), int(rows.max(initial=1)), whose, _width(frame[name]))


def without_others(guesses: Mapping[str, Guess], frame: pd.DataFrame, holders: Codes) -> dict[str, Guess]:
    """Returns guesses without identifiers that repeat by chance.

    Where each row has a `patient_id` of its own, a row is a person. An address or a name that repeats is then shared by
    persons. And a number that repeats at another holder alone is another person's: identifiers of two holders are
    never compared.

    Args:
        guesses: column -> what is proposed for it.
        frame: the rows.
        holders: (rows,) number of each row's holder.
    """
    repeats = {
        name: bool(pd.DataFrame({"value": frame[name], "holder": holders})[frame[name].notna()].duplicated().any())
        for name, guess in guesses.items()
        if isinstance(guess.column, IdentifierColumn)
    }
    of_one_row = any(
        not repeats[name] and vocabulary.names_persons(name) and not guesses[name].missing for name in repeats
    )
    others = {name for name in repeats if not repeats[name] or (of_one_row and not vocabulary.is_person(name))}
    marked_too = {name for name in others if guesses[name].column.person}  # type: ignore[attr-defined]
    return {name: unmarked(guess) if name in marked_too else guess for name, guess in guesses.items()}


def unmarked(guess: Guess) -> Guess:
    """Returns a guess that does not take an identifier for persons."""
    if not getattr(guess.column, "person", False):
        return guess
    drafted = tuple(mark for mark in guess.column.drafted if mark != "person")
    return replace(guess, column=guess.column.model_copy(update={"person": False, "drafted": drafted}), hints=())


def marked(guess: Guess, proposed: ProposedPersons) -> Guess:
    """Returns the guess of the identifier, marked as one of persons."""
    assert isinstance(guess.column, IdentifierColumn)
    width = {"width": proposed.width} if proposed.width else {}
    column = guess.column.model_copy(update={**width, "drafted": (*guess.column.drafted, *width, PERSONS)})
    return replace(guess, column=column, hints=(proposed.hint,))


def _width(identifiers: pd.Series) -> int:
    """Returns the digits of numerals with zeros in front, else 0.

    New ones are then as long as these. It is 0 unless all are equally long, and one begins with a zero.

    >>> [_width(pd.Series(texts)) for texts in (["0883544", "1883544", None], ["12", "07", "7"], ["12", "17"])]
    [7, 0, 0]
    """
    profile = Profile.of(identifiers)
    size = len(profile.texts[0].as_py()) if profile.values else 0
    alike = 1 < size <= _MOST_DIGITS and profile.any_matches("^0") and profile.all_match(rf"^[0-9]{{{size}}}$")
    return size if alike else 0


def _rows_of(counts: Integers) -> tuple[int, int]:
    """Returns the fewest and the most rows of a drafted person.

    In a panel everybody has the same number: that is its design. Any other number is that of some person, and is
    rounded up.

    >>> _rows_of(np.full(40, 7)), _rows_of(np.repeat([7, 6], [39, 1])), _rows_of(np.full(3, 7))
    ((7, 7), (1, 10), (1, 10))

    Args:
        counts: (persons,) rows of each.
    """
    most = int(counts.max(initial=1))
    alike = len(counts) >= vocabulary.FEW_ROWS and most > 1 and int(counts.min()) == most
    return (most, most) if alike else (1, rounded_up(most))


def rounded_up(rows: int) -> int:
    """Returns a round number of rows that is not smaller.

    It is 2, 5, 10, 20, 50 and so on.

    >>> [rounded_up(rows) for rows in (2, 3, 12, 50, 51)]
    [2, 5, 20, 50, 100]
    """
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= max(2, rows):
                return step * power
        power *= 10


def bound_of_few(whose: Integers, most_rows: int) -> list[str]:
    """Returns a sentence on a bound of rows that few people set.

    It is for the eyes of the person who has the rows. Fewer than `FEW_ROWS` people have more rows than others need.

    >>> bound_of_few(np.repeat(np.arange(40), [2] * 39 + [700]), 1000)[0].split(":")[0]
    '1 person alone has more than 2 rows'

    Args:
        whose: (rows,) number of each row's person.
        most_rows: the bound.
    """
    counts = np.bincount(whose)
    if len(counts) <= vocabulary.FEW_ROWS:
        return []
    others = rounded_up(int(np.partition(counts, -vocabulary.FEW_ROWS)[-vocabulary.FEW_ROWS]))
    few = int((counts > others).sum())
    if others >= most_rows or not few:
        return []
    who = f"{counted(few, 'person', 'people')} alone {'has' if few == 1 else 'have'} more than {others:,} rows"
    return [f"{who}: for all others most_rows: {others:,} is enough, and who has more counts as one with {others:,}"]


def differing(schema: Any, frame: pd.DataFrame) -> dict[str, int]:
    """Returns the persons in whom a constant column differs, by column.

    Values are compared as the schema has them: those of one bin or group are the same.
    """
    persons, frame = schema.persons, with_hidden(schema, frame)
    names = [name for name in schema.columns if name in persons.constant]
    whose = numbered(frame[persons.id], schema.missing_text)
    codes = {name: _encoded(schema, name, frame[name]) for name in names}
    return {name: count for name, count in _changes(codes, whose).items() if count}


def _encoded(schema: Any, name: str, series: pd.Series) -> Codes:
    """Returns the codes of a column, -1 for what it cannot place."""
    encoder = Encoder({name: schema.columns[name]}, schema.missing_text, np.int64)
    block = encoder.block(series.to_frame(name))
    codes = np.full(len(series), -1, np.int64)
    codes[slice(None) if block.kept is None else block.kept] = block.codes[:, 0]
    return codes


def _changes(columns: Mapping[str, Codes], whose: Integers) -> dict[str, int]:
    """Returns the persons in whose rows a column differs, by column."""
    first = np.unique(whose, return_index=True)[1]
    return {name: len(np.unique(whose[codes != codes[first[whose]]])) for name, codes in columns.items()}


def _order(names: Collection[str], guesses: Mapping[str, Guess], frame: pd.DataFrame, whose: Integers) -> bool | str:
    """Returns the column that says when a row is, or False.

    It is the only date, or the one that is never later than any other in the same row. Of a table without dates it is
    the column that counts on, such as the years of a panel or the numbers of visits; of several with the same order
    (the year, and the age in it) the one with the fewest values.
    """
    missing = MISSING_TEXT.union(*(guess.missing_values for guess in guesses.values()))
    moments, counting = dict[str, Floats](), dict[str, Floats]()
    for name in names:
        if isinstance(column := guesses[name].column, DateColumn | DatetimeColumn):
            moments[name] = numbers_alone(column, frame[name], missing)[0] * float(column.scale[1])
        elif isinstance(column, IntegerColumn):
            counting[name] = numbers_alone(column, frame[name], missing)[0]
    if not moments:
        counting = {name: values for name, values in counting.items() if _counts_on(values, whose)}
        first = sorted(counting, key=lambda name: len(np.unique(counting[name])))[:1]
        alike = all(_ascend(values, counting[first[0]], whose) for values in counting.values())
        return first[0] if first and alike else False
    first = [name for name in moments if not any((moments[name] > other).any() for other in moments.values())]
    return first[0] if len(first) == 1 else False


def _counts_on(values: Floats, whose: Integers) -> bool:
    """Returns whether a column counts the rows of each person.

    It hardly repeats within a person (a twentieth as often as by chance, if that is `BREAKS` pairs of rows), and most
    steps are one and the same: a product's number in a basket does not repeat either.

    >>> whose = np.repeat(np.arange(90), 3)
    >>> _counts_on(np.tile([2.0, 1.0, 3.0], 90), whose), _counts_on(np.tile([1.0, 1.0, 2.0], 90), whose)
    (True, False)

    Args:
        values: (rows,) numbers of the column, NaN where one has none.
        whose: (rows,) number of each row's person.
    """
    if np.isnan(values).any():
        return False
    rows, counts = np.bincount(whose).astype(np.float64), np.unique(values, return_counts=True)[1]
    pairs = float((rows * (rows - 1.0)).sum()) / 2.0
    by_chance = pairs * float(((counts / len(values)) ** 2).sum())
    if by_chance < BREAKS:
        return False
    at = np.lexsort((values, whose))
    steps = np.diff(values[at])[whose[at][1:] == whose[at][:-1]]
    sizes, many = np.unique(steps[steps > 0], return_counts=True)
    return bool(len(sizes)) and 20 * int((steps == 0).sum()) <= by_chance and int(many.max()) > 0.5 * len(steps)


def _ascend(values: Floats, other: Floats, whose: Integers) -> bool:
    """Returns whether values of each person ascend where others do."""
    at = np.lexsort((other, whose))
    return bool((np.diff(values[at])[whose[at][1:] == whose[at][:-1]] >= 0).all())
