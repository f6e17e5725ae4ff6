"""Rows of persons in an analysis.

Tables of a run for persons have one record of each: what its rows have in common, their number, one of its rows, and
the next one. So persons are independent of each other, as the rows of an ordinary table are, and an estimate's error is
that of persons: nothing has to be said of how like each other the rows of one person are.

*Rows.* A row that is one of k, each as likely as another, stands for k: with weights k, sums over records have the
expectation of sums over all rows, and the sandwich, in which a person is one observation, is that of clustered rows (of
which one of each cluster is seen: Hoffman, Sen & Weinberg 2001, "Within-cluster resampling", average over such draws).
Without weights each person counts once, however many rows it has.

*Rows in order.* There the record's row is one of the first k - 1, and its next one follows. Of the two, the one with b
rows before it is taken with the chance (k - 1 - b) / k, else its next one: then each of the k is as likely as another.

*From a row to the next.* Such pairs stand for k - 1 of them; for rows that may be exchanged, for k (each row and one
other of the person). How far the column that gives the order moves is a column of the record: two of its numbers, each
drawn in its own bin, would say so to two bins only, and a slope over their difference would be too small.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from fedsyn.domain import Floats
from fedsyn.errors import ConfigError
from fedsyn.evaluation.analysis.tables import WEIGHT, Records, SyntheticTables
from fedsyn.output import first_of
from fedsyn.table.schema.persons import BEFORE, COUNT, GAP, next_name

if TYPE_CHECKING:
    import pandas as pd

#: What counts once in an analysis of persons.
Per = Literal["row", "person"]
#: Note where no row counts.
ONE_EACH = "Each person counts once."
_CHANGE = re.compile(r"\bchange\(\s*([^()]+?)\s*\)")


def with_changes(formula: str, tables: SyntheticTables) -> str:
    """Returns a formula without `change(x)`.

    It has the next row's value minus this one's instead; of the column that gives the order, what lies between the two.

    Raises:
        ConfigError: of no column that differs between the rows of a person.
    """
    if tables.records is None or not _CHANGE.search(formula):
        return formula
    rows, gaps = tables.records.rows, tables.records.gaps

    def written(match: re.Match[str]) -> str:
        name = match[1].strip("'\"`")
        if name not in rows:
            raise ConfigError(
                f"'{name}' does not change from a row of a person to the next; columns that may: {first_of(rows, 20)}"
            )
        if gaps is not None and name == gaps.of:
            return GAP if gaps.step == 1.0 else f"{{{GAP} * {gaps.step!r}}}"
        return f"{{{next_name(name)} - {name}}}"

    changed = _CHANGE.sub(written, formula)
    return changed if "~" in changed else f"{changed} ~ 1"


def with_next(columns: Sequence[str], tables: SyntheticTables) -> list[str]:
    """Returns columns, and what they are called in the next row."""
    rows = () if tables.records is None else tables.records.rows
    return [*columns, *(next_name(name) for name in columns if name in rows)]


def shown(tables: SyntheticTables, columns: Sequence[str], per: Per | None) -> tuple[SyntheticTables, list[str]]:
    """Returns the tables of what a question is about.

    It is about persons, their rows, or pairs of rows.

    Args:
        tables: of an analysis; such as are not of persons come back as they are.
        columns: that the question looks at.
        per: what counts once; None: a row where the question looks at rows, else a person.

    Returns:
        Tables with a column `WEIGHT` where rows count, and notes on what counts.

    Raises:
        ConfigError: the tables are not of persons, or the question looks at no row.
    """
    if per is not None and per not in get_args(Per):
        raise ConfigError(f"per: expected {' or '.join(get_args(Per))}, found {per!r}")
    records = tables.records
    if records is None:
        if per is not None:
            raise ConfigError("per: the tables are not of a run that protects persons; each of their rows counts once")
        return tables, []
    after = {name: next_name(name) for name in records.rows}
    pairs, rows = _of_pairs_or_rows(columns, records)
    if not (pairs or rows):
        if per == "row":
            raise ConfigError("per: the formula has no column that differs between the rows of a person")
        return tables, [ONE_EACH]
    other = "the next one" if records.in_order else "any other one"
    if pairs:
        what = f"pair of a row and {other} of the same person"
    else:
        what = "row"
        if records.in_order:
            some = {name: later for name, later in after.items() if name in columns}
            frames = [_any_row(frame, some, number) for number, frame in enumerate(tables.frames)]
            tables = replace(tables, frames=frames, versions=({}, after))
    unit = None if records.gaps is None or GAP not in columns else records.gaps.unit
    of_gaps = [] if unit is None else [f"'{GAP}' is in {unit}."]
    if per == "person":
        return tables, [f"Each person counts once, by one {what}.", *of_gaps]
    less = int(pairs and records.in_order)
    frames = [frame.assign(**{WEIGHT: np.maximum(_number(frame, COUNT) - less, 0.0)}) for frame in tables.frames]
    note = f"Each {what} counts once; errors are those of persons, whose rows are alike."
    return replace(tables, frames=frames, given=tables.given | {COUNT}), [note, *of_gaps]


def standing_for(frame: pd.DataFrame, tables: SyntheticTables, columns: Collection[str]) -> Floats:
    """Returns how many rows each row of a table stands for, (n,).

    A record stands for none where the person has no such row, or no such pair of rows: nothing is missing there.

    Args:
        frame: one of them.
        tables: that `shown` returned.
        columns: that the question looks at.
    """
    weights = _number(frame, WEIGHT) if WEIGHT in frame else np.ones(len(frame))
    pairs, rows = (False, False) if tables.records is None else _of_pairs_or_rows(columns, tables.records)
    return weights * (_number(frame, COUNT) >= pairs + 1) if pairs or rows else weights


def _of_pairs_or_rows(columns: Collection[str], records: Records) -> tuple[bool, bool]:
    """Returns whether columns are of pairs of rows, and of single ones."""
    after = {GAP, *map(next_name, records.rows)}
    return bool({*columns} & after), bool({*columns} & {*records.rows})


def _any_row(frame: pd.DataFrame, after: Mapping[str, str], number: int) -> pd.DataFrame:
    """Returns one of each person's rows, by a coin (see the module)."""
    rows, before = _number(frame, COUNT), _number(frame, BEFORE)
    coins = np.random.default_rng(number).random(len(frame))
    here = (rows < 2) | (coins * rows < rows - 1.0 - before)
    return frame.assign(**{name: frame[name].where(here, frame[other]) for name, other in after.items()})


def _number(frame: pd.DataFrame, name: str) -> Floats:
    return np.asarray(frame[name].to_numpy(np.float64, na_value=0.0))
