"""Whole drafts of tables, with constraints that hold, and hints.

`fedsyn init` and `Schema.draft` both ask here, so the same rows give the same draft at the command and in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import DataError
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import AsideColumn, IdentifierColumn
from fedsyn.table.schema.draft import Guess, draft_columns, drafted_schema
from fedsyn.table.schema.draft_request import checked_names
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafted_persons import (
    Apart,
    ProposedPersons,
    marked,
    persons_apart,
    proposed_persons,
    require_apart,
    without_others,
)
from fedsyn.table.schema.frames import as_frame
from fedsyn.table.schema.proposals import Proposal, proposed_constraints
from fedsyn.table.schema.remarks import HEAD, HOLD, proposing
from fedsyn.table.schema.rules import Comparison, Determined, SumRule

if TYPE_CHECKING:
    from fedsyn.table.schema.frames import AnyTables


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
        return replace(self, schema=self.schema.remarked(remarks(guesses, self.holding)), guesses=guesses)


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
    how = partial(draft_columns, bins=bins, decimal=decimal, text=text)
    guesses = how(frame, label=label, keep=keep) if two is None else _guesses_apart(frame, two, label, keep, how)
    guesses = without_others(guesses, frame, holders) if two is None else guesses
    if all(isinstance(guess.column, AsideColumn) for guess in guesses.values()):
        raise DataError(
            f"no column of {where} is left to synthesise: each is empty, personal, free text, one value in every row, "
            "or different in every row; --keep NAME (in Python keep=[NAME]) keeps one"
            + "".join(f"; {note}" for note in notes)
        )
    # Constraints that hold may need columns with a missing value, or with finer bins: wide ones keep little of them.
    fine = guesses if bins is not None else {name: _finest(guess) for name, guess in guesses.items()}
    holding = proposed_constraints(kind.from_dict(drafted_schema(fine, label), where), frame)
    sharp = [one for one in holding if isinstance(one.rule, Comparison | Determined | SumRule)]
    guesses |= {name: fine[name] for one in sharp for name in one.columns}
    for name in {one.unknown for one in holding} - {""}:
        guesses[name] = replace(guesses[name], column=guesses[name].column.model_copy(update={"missing": True}))
    schema = kind.from_dict(drafted_schema(guesses, label), where)
    if two is not None:
        persons: ProposedPersons | None = persons_apart(guesses, holding, two)
    else:
        persons = proposed_persons(schema, guesses, holding, frame, holders)
    if persons is not None:
        guesses[persons.persons.id] = marked(guesses[persons.persons.id], persons)
        key = {"persons": persons.persons.model_dump(mode="json", exclude_defaults=True)}
        schema = kind.from_dict(drafted_schema(guesses, label) | key, where)
    return Draft(schema.remarked(remarks(guesses, holding)), guesses, holding, persons, two)


def draft_of(kind: Any, tables: AnyTables, *args: Any, **how: Any) -> Draft:
    """Drafts the schema of a table of any library, or of two.

    Two tables by their names, such as `{"patients": ..., "visits": ...}`, are persons and their rows.

    Raises:
        As `drafted`. DataError: two tables are none of these.
    """
    if not isinstance(tables, Mapping):
        return drafted(kind, as_frame(tables), *args, **how)
    two = require_apart({name: as_frame(table) for name, table in tables.items()})
    return drafted(kind, two.rows, *args, two=two, **how)


def _guesses_apart(
    frame: pd.DataFrame, two: Apart, label: str | None, keep: Collection[str], how: Callable[..., dict[str, Guess]]
) -> dict[str, Guess]:
    """Returns guesses of persons' columns and of their rows'.

    Each is read from its own table, so that a person with many rows counts once. The key is an identifier of persons.
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
    return guesses


def _finest(guess: Guess) -> Guess:
    column = guess.column
    binned = isinstance(column, BinnedColumn) and not column.values
    return replace(guess, column=column.cut(FINEST)) if binned else guess  # type: ignore[attr-defined]


def remarks(guesses: Mapping[str, Guess], holding: Collection[Proposal]) -> dict[str, list[str]]:
    """Returns the remarks that a schema keeps of its draft.

    Maps each column to its hints, and "" to the constraints that hold.
    """
    lines = {name: list(guess.hints) for name, guess in guesses.items() if guess.hints}
    if holding:
        lines[""] = [HOLD, HEAD, *(proposing(one.rule.data(), one.rows, one.breaks) for one in holding)]
    return lines
