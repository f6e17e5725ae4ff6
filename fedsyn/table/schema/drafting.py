"""Whole drafts of tables, with constraints that hold, and hints.

`fedsyn init` and `Schema.draft` both ask here, so the same rows give the same draft at the command and in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsyn.domain import Integers
from fedsyn.errors import DataError
from fedsyn.lazy import pd
from fedsyn.table.schema import vocabulary
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.column_base import AsideColumn, IdentifierColumn
from fedsyn.table.schema.computed import computed_columns
from fedsyn.table.schema.draft import Guess, drafted_schema, guessed_columns
from fedsyn.table.schema.draft_request import checked_names
from fedsyn.table.schema.drafted_bins import FINEST, finest, resolved
from fedsyn.table.schema.drafted_hidden import drafted_between
from fedsyn.table.schema.drafted_persons import (
    Apart,
    ProposedPersons,
    marked,
    persons_apart,
    proposed_persons,
    require_apart,
    unmarked,
    without_others,
)
from fedsyn.table.schema.drafted_values import hints_on_numbers
from fedsyn.table.schema.frames import as_frame
from fedsyn.table.schema.ordered import DecimalColumn, IntegerColumn
from fedsyn.table.schema.persons import record_columns
from fedsyn.table.schema.proposals import Proposal, proposed_constraints
from fedsyn.table.schema.remarks import HEAD, HOLD, HOLD_MORE, proposing
from fedsyn.table.schema.rules import Comparison, Determined, SumRule
from fedsyn.table.schema.values import MISSING_TEXT
from fedsyn.table.schema.whose import numbered

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyTables


#: What a draft in Python is not of.
OF_ONE_HOLDER = (
    "a schema is drafted from one table, or from two by their names, and not from a list: draft it from the tables of "
    "one holder, and look with schema.violations and Synthesizer.fit at those of all"
)


@dataclass(frozen=True, eq=False)
class Draft:
    """A drafted schema, with what its rows showed.

    Attributes:
        schema: a `Schema`, whose hints are those of the guesses.
        guesses: column -> what is proposed for it, and why.
        holding: constraints that hold in all rows.
        persons: who a row is about; None: nobody is seen to have several.
        two: both tables, where persons and their rows are apart.
    """

    schema: Any
    guesses: dict[str, Guess]
    holding: list[Proposal]
    persons: ProposedPersons | None = None
    two: Apart | None = None

    def hinted(self, hints: Mapping[str, str]) -> Draft:
        """Returns this draft with hints more, column -> sentence."""
        guesses = {n: replace(g, hints=(*g.hints, hints[n])) if n in hints else g for n, g in self.guesses.items()}
        return replace(
            self,
            schema=self.schema.remarked(remarks(guesses, self.holding, bool(self.schema.constraints))),
            guesses=guesses,
        )


class Rows(NamedTuple):
    """Rows from which bins of their columns are drafted.

    Attributes:
        frame: the rows.
        whose: (rows,) number of each row's person, who is one record; None: each row is one.
    """

    frame: pd.DataFrame
    whose: Integers | None = None


def draft_columns(
    frame: pd.DataFrame,
    bins: int | None = None,
    label: str | None = None,
    keep: Collection[str] = (),
    *,
    decimal: str | None = None,
    text: bool = False,
) -> dict[str, Guess]:
    """Guesses each column's kind and bins, for a person to check.

    The label is special: integers of few values become classes, it gets no "other", which would be one more class to
    predict, and it is kept.

    Args:
        frame: the table to read.
        bins: number of equal-width bins of every ordered column; None: as many of each as its rows carry (`resolved`).
        label: the column to predict, or None.
        keep: columns that are not set aside, whatever they look like.
        decimal: the decimal mark of numbers in text, where somebody said it.
        text: the cells are those of a file of text: no dtype is to come back.

    Returns:
        A guess for each column, in the table's order.

    Raises:
        ConfigError: `bins` out of range, or a name in `keep` that is none of a column.
        DataError: no rows or columns, doubled column names, or `label` is not a column.
    """
    guesses = guessed_columns(frame, bins, label, keep, decimal=decimal, text=text)
    return in_bins(guesses, [Rows(frame)], bins)


def in_bins(
    guesses: Mapping[str, Guess], tables: Sequence[Rows], bins: int | None, width: int | None = None
) -> dict[str, Guess]:
    """Returns guesses with the bins that their rows carry.

    Args:
        guesses: column -> what is proposed for it, in the finest bins.
        tables: each has some of the columns.
        bins: number of bins that somebody asked for, or None.
        width: number of columns that a run models; None: as many as are guessed.
    """
    words = MISSING_TEXT.union(*(guess.missing_values for guess in guesses.values()))
    width = sum(not isinstance(guess.column, AsideColumn) for guess in guesses.values()) if width is None else width
    binned = dict(guesses)
    for frame, whose in tables:
        columns = {name: guess.column for name, guess in guesses.items() if name in frame.columns}
        for name, column in resolved(columns, frame, words, bins, width=width, whose=whose).items():
            hints = (*guesses[name].hints, *hints_on_numbers(column, frame[name], words, whose, len(tables) == 1))
            binned[name] = replace(guesses[name], column=column, hints=hints)
    quantities = (DecimalColumn, NumericColumn)
    bounds = {n: (g.column.lower, g.column.upper) for n, g in binned.items() if isinstance(g.column, quantities)}
    for name, hint in vocabulary.places_on_earth(bounds).items():
        binned[name] = replace(binned[name], hints=(*binned[name].hints, hint))
    return binned


def drafted(
    kind: Any,
    frame: pd.DataFrame,
    bins: int | None = None,
    label: str | None = None,
    keep: Collection[str] = (),
    *,
    decimal: str | None = None,
    text: bool = False,
    where: str = "the table",
    notes: Collection[str] = (),
    holdings: Sequence[int] = (),
    two: Apart | None = None,
) -> Draft:
    """Drafts the schema of a table.

    Args:
        kind: the class `Schema`.
        frame, bins, label, keep, decimal, text: as `draft_columns`.
        where: what to call the table in a message.
        notes: on how it was read, which end a message.
        holdings: rows of each holder, one after the other in `frame`; none: they are of one.
        two: persons and their rows, where they are apart; `frame` has the rows, joined.

    Raises:
        ConfigError, DataError: as `draft_columns`. DataError: no column is left to model.
    """
    holders = np.repeat(np.arange(len(holdings)), holdings) if holdings else np.zeros(len(frame), np.int64)
    how = partial(guessed_columns, bins=bins, decimal=decimal, text=text)
    plain = how(frame, label=label, keep=keep) if two is None else _guesses_apart(frame, two, label, keep, how)
    plain = without_others(plain, frame, holders) if two is None else plain
    persons = _persons_in(kind, plain, frame, holders, two, label)
    if persons is not None:
        plain = _by_people(plain, frame, persons, two, label, keep, how)
        persons = _persons_in(kind, plain, frame, holders, two, label)
    plain, frame, two, persons, rules = _with_between(plain, frame, two, persons, label, bins)
    key: dict[str, Any] = {}
    if persons is not None:
        key = {"persons": persons.persons.model_dump(mode="json", exclude_defaults=True)}
    key |= {"constraints": [rule.data() for rule in rules]} if rules else {}
    width = _width(kind.from_dict(drafted_schema(plain, label) | key, where)) if key else None
    tables, computed = _tables_of(persons, frame) if two is None else _tables_apart(two), computed_columns(rules)
    tables = [part._replace(frame=part.frame.drop(columns=computed, errors="ignore")) for part in tables]
    guesses = in_bins(plain, tables, bins, width)
    if persons is not None and bins is None:
        guesses = _one_by_one(guesses, persons.persons.order)
    if all(isinstance(guess.column, AsideColumn) for guess in guesses.values()):
        raise DataError(
            f"no column of {where} is left to synthesise: each is empty, personal, free text, one value in every row, "
            "or different in every row; --keep NAME (in Python keep=[NAME]) keeps one"
            + "".join(f"; {note}" for note in notes)
        )
    fine = guesses if bins is not None else {name: _finest(guess) for name, guess in guesses.items()}
    whose = None if persons is None else persons.whose
    holding = proposed_constraints(kind.from_dict(drafted_schema(fine, label) | key, where), frame, whose)
    guesses = _as_held(guesses, holding, bins)
    if persons is not None:
        guesses[persons.persons.id] = marked(guesses[persons.persons.id], persons)
    schema = kind.from_dict(drafted_schema(guesses, label) | key, where)
    return Draft(schema.remarked(remarks(guesses, holding, bool(rules))), guesses, holding, persons, two)


def _width(schema: Any) -> int:
    """Returns the number of columns that a run models."""
    return len(schema.columns if schema.persons is None else record_columns(schema))


def _with_between(
    guesses: dict[str, Guess],
    frame: pd.DataFrame,
    two: Apart | None,
    persons: ProposedPersons | None,
    label: str | None,
    bins: int | None,
) -> tuple[dict[str, Guess], pd.DataFrame, Apart | None, ProposedPersons | None, list[SumRule]]:
    """Returns guesses, tables and persons with hidden columns, and their sums.

    What lies between two columns that are the same in all rows of a person is, too.
    """
    own = {*persons.persons.known_of_all} if persons is not None else set[str]()
    in_rows = () if persons is None else persons.persons.in_rows
    order = None if persons is None else persons.persons.order
    modelled = [name for name in (label, order) if isinstance(name, str)]
    first = slice(0, 0) if persons is None else np.unique(persons.whose, return_index=True)[1]
    rules = list[SumRule]()
    for is_own, table in ((True, frame.iloc[first] if two is None else two.own), (False, frame)):
        some = {name: guess for name, guess in guesses.items() if (name in own) == is_own and name not in in_rows}
        for one in drafted_between(some, table, modelled, bins):
            names = list(guesses)
            at = 1 + max(names.index(name) for name in one.ends)
            guesses = {name: guesses[name] for name in names[:at]} | {one.name: one.guess} | guesses
            guesses |= {name: replace(guesses[name], column=column) for name, column in one.ends.items()}
            frame = frame.assign(**{one.name: one.read(frame)})
            if two is not None:
                two = replace(two, rows=two.rows.assign(**{one.name: one.read(two.rows)}))
            if is_own and two is not None:
                two = replace(two, own=two.own.assign(**{one.name: one.read(two.own)}))
            if is_own and persons is not None:
                constant = (*persons.persons.constant, one.name)
                persons = replace(persons, persons=persons.persons.model_copy(update={"constant": constant}))
                own.add(one.name)
            rules.append(one.rule)
    return guesses, frame, two, persons, rules


def _as_held(guesses: Mapping[str, Guess], holding: Collection[Proposal], bins: int | None) -> dict[str, Guess]:
    """Returns guesses as constraints that hold need them.

    They may need columns with a missing value, or with finer bins: wide ones keep little of them.
    """
    needed = dict(guesses)
    for one in holding:
        if bins is None and isinstance(one.rule, Comparison | Determined | SumRule):
            needed |= {name: _finest(guesses[name]) for name in one.columns}
    for name in {one.unknown for one in holding} - {""}:
        needed[name] = _with_missing(needed[name])
    return needed


def _with_missing(guess: Guess) -> Guess:
    """Returns a guess whose modelled column has a missing value."""
    if isinstance(guess.column, AsideColumn):
        return guess
    return replace(guess, column=guess.column.model_copy(update={"missing": True}))


def _persons_in(
    kind: Any,
    guesses: Mapping[str, Guess],
    frame: pd.DataFrame,
    holders: Integers,
    two: Apart | None,
    label: str | None,
) -> ProposedPersons | None:
    """Returns persons as the rows of a draft show them, or None."""
    if all(isinstance(guess.column, AsideColumn) for guess in guesses.values()):
        return None
    if two is not None:
        return persons_apart(guesses, two)
    return proposed_persons(kind.from_dict(drafted_schema(guesses, label)), guesses, frame, holders)


def _by_people(
    guesses: Mapping[str, Guess],
    frame: pd.DataFrame,
    proposed: ProposedPersons,
    two: Apart | None,
    label: str | None,
    keep: Collection[str],
    how: Callable[..., dict[str, Guess]],
) -> dict[str, Guess]:
    """Returns guesses in which each person holds a value once.

    A draft names what enough rows hold. Rows of one person are one: a word that one patient has in fifty visits points
    at that patient. What was set aside stays so, a table of persons has one row of each, and shares of missing cells
    stay those of rows.

    Args:
        guesses: column -> what is proposed for it, by rows.
        frame: the rows.
        proposed: who they are of.
        two: persons and their rows, where they are apart.
        label, keep, how: of the draft.
    """
    known = () if two is None else two.own.columns
    names = [n for n, guess in guesses.items() if n not in known and not isinstance(guess.column, AsideColumn)]
    own = {"label": label if label in names else None, "keep": [name for name in keep if name in names]}
    counted = how(frame[names], whose=proposed.whose, **own)
    return {
        name: unmarked(replace(counted[name], missing=guess.missing)) if name in counted else guess
        for name, guess in guesses.items()
    }


def _tables_of(proposed: ProposedPersons | None, frame: pd.DataFrame) -> list[Rows]:
    """Returns what is of persons, one row each, and their rows.

    Without persons it is the rows alone.
    """
    if proposed is None:
        return [Rows(frame)]
    constant = [*proposed.persons.constant]
    first = np.unique(proposed.whose, return_index=True)[1]
    return [Rows(frame[constant].iloc[first]), Rows(frame.drop(columns=constant), proposed.whose)]


def _tables_apart(two: Apart) -> list[Rows]:
    """Returns persons, and their rows, each with columns of its own."""
    own = [name for name in two.own.columns if name != two.key]
    return [Rows(two.own[own]), Rows(two.rows.drop(columns=own), numbered(two.rows[two.key], MISSING_TEXT))]


def draft_of(kind: Any, tables: AnyTables, *args: Any, **how: Any) -> Draft:
    """Drafts the schema of a table of any library, or of two.

    Two tables by their names, such as `{"patients": ..., "visits": ...}`, are persons and their rows.

    Raises:
        As `drafted`. DataError: two tables are none of these; a list of tables.
    """
    if isinstance(tables, list | tuple):
        raise DataError(OF_ONE_HOLDER)
    if not isinstance(tables, Mapping):
        return drafted(kind, as_frame(tables), *args, **how)
    two = require_apart({name: as_frame(table) for name, table in tables.items()})
    return drafted(kind, two.rows, *args, two=two, **how)


def _guesses_apart(
    frame: pd.DataFrame, two: Apart, label: str | None, keep: Collection[str], how: Callable[..., dict[str, Guess]]
) -> dict[str, Guess]:
    """Returns guesses of persons' columns and of their rows'.

    Each is read from its own table, so that a person with many rows counts once. The key is an identifier of persons.
    Of a person whom the table of persons does not have, everything that it would say is missing.
    """
    checked_names(frame, None, label, keep)
    parts = [[name for name in frame.columns if (name in two.own.columns) == own] for own in (True, False)]
    tables = two.own[parts[0]].drop(columns=two.key), frame[parts[1]]
    guesses = {two.key: how(two.own[[two.key]], label=None)[two.key]}
    if not getattr(guesses[two.key].column, "person", False):
        guesses[two.key] = replace(guesses[two.key], column=IdentifierColumn(person=True, drafted=("kind", "person")))
    for table in tables:
        names = [*table.columns]
        if names:
            own = {"label": label if label in names else None, "keep": [name for name in keep if name in names]}
            guesses |= how(table, **own)
    if two.unknown or two.nameless:
        guesses |= {name: _with_missing(guesses[name]) for name in tables[0].columns}
    return guesses


def _finest(guess: Guess) -> Guess:
    column = guess.column
    binned = isinstance(column, BinnedColumn) and not column.values
    return replace(guess, column=finest(column)) if binned else guess  # type: ignore[arg-type]


def _one_by_one(guesses: dict[str, Guess], order: bool | str) -> dict[str, Guess]:
    """Returns guesses with a bin for each number that counts rows.

    Of two years in one bin a person would have one twice and the other never: rows of a bin have no order in it. More
    numbers than `FINEST` stay as they are.
    """
    guess = guesses.get(order) if isinstance(order, str) else None
    if guess is None or not isinstance(guess.column, IntegerColumn):
        return guesses
    low, high = guess.column.span
    return guesses | {str(order): _finest(guess)} if high - low < FINEST else guesses


def remarks(guesses: Mapping[str, Guess], holding: Collection[Proposal], has_some: bool) -> dict[str, list[str]]:
    """Returns the remarks that a schema keeps of its draft.

    Maps each column to its hints, and "" to the constraints that hold. `has_some` says whether the draft has
    constraints already.
    """
    lines = {name: list(guess.hints) for name, guess in guesses.items() if guess.hints}
    if holding:
        head = [HOLD_MORE] if has_some else [HOLD, HEAD]
        lines[""] = [*head, *(proposing(one.rule.data(), one.rows, one.breaks) for one in holding)]
    return lines
