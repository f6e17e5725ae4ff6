"""Approval of drafted columns.

It says what is left to approve, and which categories few rows, or people, hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedsyn.domain import Integers
from fedsyn.errors import SchemaError, nearest
from fedsyn.lazy import pd
from fedsyn.output import counted, first_of
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import ASIDE, ColumnBase, IdentifierColumn
from fedsyn.table.schema.encoding import Encoder
from fedsyn.table.schema.frames import require_text_names
from fedsyn.table.schema.hidden import with_hidden
from fedsyn.table.schema.open import PRIVATE
from fedsyn.table.schema.persons import Persons
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import written
from fedsyn.table.schema.vocabulary import (
    EITHER_UNIT,
    FEW_ROWS,
    FOR_ONE_ROW,
    PROTECT_PERSONS,
    is_shared,
    rows_each,
    several_rows,
)
from fedsyn.table.schema.whose import PersonColumn, of_nobody, rows_of_persons

#: What stands above a draft.
DRAFT_NOTE = """\
# A DRAFT: this schema was read from data. What a column lists under `drafted` may tell something about single
# rows (a largest income, a rare category). Put public knowledge in its place, or `private` (a run then finds bounds,
# bins or categories with noise), or make sure that it is public as it stands; then set its `approved: true`, or let
# `fedsyn schema review` do so. Until then no run accepts it.
# Columns of kind identifier, text and drop are left out of the synthetic table. To keep one, change its kind.
# Lines that begin with `#?` say what your rows show. `review` asks about them; they are not for anybody else.
"""
#: How a line of a draft begins that only its table's holder is to see.
REMARK = "#? "
# Categories that are shown with their rows.
_SHOWN = 12


@dataclass(frozen=True)
class How:
    """Options with which columns are approved.

    Attributes:
        few: rows, or people, that have to hold a category before it may be approved without a reason.
        public: why the categories of these columns are public, whoever holds them.
        fold: puts categories that few hold into "other".
        private: takes the bounds and categories of these columns out, so that a run finds them by noisy sums.
    """

    few: int = FEW_ROWS
    public: str | None = None
    fold: bool = False
    private: bool = False


@dataclass(frozen=True)
class Finding:
    """Facts that a table shows about a column.

    Attributes:
        rare: categories of the column that some rows, or people, hold, but fewer than asked for.
        values: what the rows of a column of categories hold, as text.
        shown: what the rows hold, in words: for the eyes of their holder.
    """

    rare: tuple[Any, ...] = ()
    values: tuple[str, ...] = ()
    shown: str = ""


def findings(schema: Any, frame: pd.DataFrame, few: int = FEW_ROWS) -> dict[str, Finding]:
    """Returns findings about each modelled column of a schema.

    Open columns are left out, because nothing of them stands in the schema yet. Where the schema says who a person is,
    a category is held by people: one of them with many rows is one.

    Args:
        schema: the `Schema` of the table.
        frame: its rows, as text or typed.
        few: rows, or people, that have to hold a category before it may be approved without a reason.

    Raises:
        DataError: the table lacks a column of the schema.
    """
    require_text_names(frame)
    schema.require_columns(frame.columns)
    frame = with_hidden(schema, frame)
    # Of open columns nothing stands in the schema yet.
    columns = {name: column for name, column in schema.columns.items() if name not in schema.open}
    persons, own = PersonColumn.of(schema), rows_of_persons(schema, frame)

    def with_persons(table: pd.DataFrame) -> tuple[pd.DataFrame, Integers | None]:
        return table, None if persons is None else persons.numbered(table)

    of_rows = with_persons(frame[~of_nobody(schema, frame)])
    constant, of_persons = ((), of_rows) if own is None else (schema.persons.constant, with_persons(own))
    found = dict[str, Finding]()
    for name, column in columns.items():
        table, whose = of_persons if name in constant else of_rows
        found[name] = _finding(schema, column, table[name], few, whose)
    return found


def _finding(schema: Any, column: Any, series: pd.Series, few: int, whose: Integers | None) -> Finding:
    if isinstance(column, BinnedColumn):
        return _ordered(schema, column, series)
    # "NA" may be a country.
    missing = frozenset(word for word in schema.missing_text if not column.lists(word))
    profile = Profile.of(series, missing, whose)
    texts: list[str] = profile.texts.to_pylist()
    codes = [column.code_of(text, schema.missing_text) if column.lists(text) else -1 for text in texts]
    rows, listed = dict.fromkeys(range(column.size), 0) | profile.held([[code] for code in codes]), column.listed_codes
    rare = tuple(column.values[code] for code in listed if 0 < rows[code] < few)
    often = sorted(listed, key=lambda code: -rows[code])
    shown = first_of([f"{written(column.values[code])} {rows[code]:,}" for code in often], _SHOWN)
    shown = shown if whose is None else f"{shown} (people)"
    shown += f"; {len(rare)} held by fewer than {few} {who_hold(schema)}" if rare else ""
    shown += _others(profile.missing, rows.get(-1, 0), "row" if whose is None else "person")
    return Finding(rare, values=tuple(texts), shown=shown)


def _ordered(schema: Any, column: BinnedColumn, series: pd.Series) -> Finding:
    everything = type(column).model_validate({**column.model_dump(), "missing": True, "unlisted": True})
    encoder = Encoder({"x": everything}, schema.missing_text, np.int64, keep=("x",))
    block = encoder.block(series.to_frame("x"))
    numbers, rows = block.own.numbers["x"], np.bincount(block.codes[:, 0], minlength=everything.size)
    known = numbers[~np.isnan(numbers)]
    # Values with a code of their own: those among the numbers, and words beside them.
    own = [(column.bound(column.edges[code]), rows[code]) for code in np.flatnonzero(column.atom_bins)]
    absent, *beside, _ = rows[len(everything.edges) - 1 :]
    own += zip(everything.sides[1:-1], beside, strict=True)
    others = "".join(f"; {int(count):,} hold {written(value)}" for value, count in own if count)
    others += _others(int(absent), encoder.unplaced["x"])
    if not len(known):
        return Finding(shown=f"no value{others}")
    finite = np.sort(known[np.isfinite(known)])
    if not len(finite):
        return Finding(shown=f"no finite value{others}")
    low, middle, high = (column.bound(number) for number in finite[[0, len(finite) // 2, -1]])
    return Finding(shown=f"from {low} to {high}, half of them up to {middle}{others}")


def _others(absent: int, unplaced: int, who: str = "row") -> str:
    missing = f"; {absent:,} missing" if absent else ""
    some = counted(unplaced, who, "people" if who == "person" else None)
    return f"{missing}; {some} with something else" if unplaced else missing


def who_hold(schema: Any) -> str:
    """Returns who holds a category: rows, or people."""
    return "rows" if schema.persons is None else "people"


#: Mark of the identifier of `persons` while what they say was read from data.
PERSONS = "persons"


def waiting(schema: Any) -> dict[str, tuple[str, ...]]:
    """Returns what was read from data and nobody approved, by column."""
    whose = {} if schema.persons is None else {schema.persons.id: schema.aside[schema.persons.id]}
    marks = {name: column.drafted for name, column in schema.columns.items()}
    marks |= {
        name: tuple(mark for mark in (PERSONS, "width") if mark in column.drafted)
        for name, column in whose.items()
        if PERSONS in column.drafted
    }
    columns = schema.columns | whose
    return {
        name: drafted
        for name, drafted in marks.items()
        if drafted
        and not ((schema.approved or columns[name].approved) and ("rare" not in drafted or columns[name].public))
    }


def person_columns(schema: Any) -> tuple[str, ...]:
    """Returns names of the columns that are of persons.

    A fact of the schema alone: what is public may rest on it.
    """
    whose = None if schema.persons is None else schema.persons.id
    return tuple(name for name, column in schema.aside.items() if getattr(column, "person", False) or name == whose)


def people(schema: Any, frame: pd.DataFrame | None = None, names: Collection[str] | None = None) -> list[str]:
    """Returns sentences on identifiers that may be persons with several rows.

    Args:
        schema: a `Schema`.
        frame: rows, as text or typed; it may lack columns that are set aside.
        names: of these columns alone; None: of all.
    """
    repeats = {}
    for name in identifiers(schema):
        if frame is not None and name in frame.columns:
            profile = Profile.of(frame[name], schema.missing_text)
            repeats[name] = Repeats.of(profile.counts)
    return people_counted(schema, repeats, names)


class Repeats(NamedTuple):
    """Numbers that say how often an identifier repeats.

    Attributes:
        values: number of different ones.
        rows: that have one.
        most: rows that hold the commonest one.
        fewest: rows that hold the rarest one.
    """

    values: int
    rows: int
    most: int
    fewest: int

    @classmethod
    def of(cls, rows: Integers) -> Repeats:
        """Returns the numbers of an identifier, from (values,) rows that hold each."""
        return cls(len(rows), int(rows.sum()), int(rows.max(initial=0)), int(rows.min()) if len(rows) else 0)


def identifiers(schema: Any) -> list[str]:
    """Returns names of identifiers that may be of persons.

    Nobody has said that they are not, and their names do not say so.
    """
    return [
        name
        for name, column in schema.aside.items()
        if isinstance(column, IdentifierColumn)
        and (name in person_columns(schema) or (column.person is None and not is_shared(name)))
    ]


def people_counted(schema: Any, repeats: Mapping[str, Repeats], names: Collection[str] | None = None) -> list[str]:
    """Returns the sentences of `people` on columns whose rows are counted already.

    Without counts they are on columns that the schema calls persons. With them all identifiers of which a value repeats
    are named, whatever they are called: for the eyes of the person who has the rows. What `schema.persons` says is said
    by `beyond`.
    """
    sentences, persons = [], person_columns(schema)
    for name in identifiers(schema):
        if names is not None and name not in names:
            continue
        known = name in persons and "person" not in schema.aside[name].drafted
        if schema.persons is not None and name == schema.persons.id:
            each = f"'{name}' says which person a row is of"
            if name in repeats:
                each = f"'{name}': {rows_each(name, *repeats[name][:3], persons=known)}"
            sentences.append(f"{each}; {EITHER_UNIT}")
        elif name not in repeats:
            sentences += [f"'{name}' says which person a row is of: {FOR_ONE_ROW}; {PROTECT_PERSONS}"] * (
                name in persons
            )
        elif name in persons or repeats[name].values < repeats[name].rows:
            sentences.append(f"'{name}': {several_rows(name, *repeats[name][:3], persons=known)}")
    return sentences


def beyond(schema: Any, repeats: Mapping[str, Repeats]) -> list[str]:
    """Returns sentences on persons with too many or too few rows.

    They are for the eyes of the person who has the rows.
    """
    persons = schema.persons
    found = None if persons is None else repeats.get(persons.id)
    return [] if persons is None or found is None else other_rows(persons, found.fewest, found.most)


def other_rows(persons: Persons, fewest: int, most: int) -> list[str]:
    """Returns sentences on more and fewer rows than a person may have.

    `fewest` and `most` are what somebody has; 0: nobody has a row. Where the schema allows both, there is none.
    """
    lines, least, so_many = list[str](), f"{persons.least_rows:,}", f"{persons.most_rows:,}"
    if most > persons.most_rows:
        who = f"persons.most_rows in the schema is {so_many}: who has more counts as a person with {so_many}"
        lines.append(f"'{persons.id}': somebody has {counted(most, 'row')}, and {who}")
    if 0 < fewest < persons.least_rows:
        who = f"persons.least_rows in the schema is {least}: who has fewer counts nowhere"
        lines.append(f"'{persons.id}': somebody has {counted(fewest, 'row')}, and {who}")
    return lines


def nameless_rows(persons: Persons, rows: int) -> list[str]:
    """Returns a sentence on rows that do not say whose they are."""
    if not rows:
        return []
    have = "has" if rows == 1 else "have"
    return [f"'{persons.id}': {counted(rows, 'row')} {have} no value, and each counts as a person of its own"]


def left(schema: Any, results: Mapping[str, Finding] | None = None, few: int = FEW_ROWS) -> dict[str, list[str]]:
    """Returns what still needs approval in each column, in words.

    Columns that need none are left out.

    Args:
        schema: a `Schema`.
        results: what its table shows, if it is at hand.
        few: as `findings`.
    """
    result = {}
    for name, drafted in schema.unapproved.items():
        column = schema.every_column[name]
        words = [_WORDS[mark] for mark in drafted if mark in _WORDS]
        rare = (
            len(results[name].rare)
            if results is not None and name in results
            else ("some" if "rare" in column.drafted else 0)
        )
        if rare and column.public is None:
            words.append(
                f"{rare} of its categories {'is' if rare == 1 else 'are'} held by fewer than {few} {who_hold(schema)}"
            )
        result[name] = words
    return result


def not_approved(left: Mapping[str, Sequence[str]]) -> str:
    """Returns the refusal of a drafted schema.

    `left` maps a column to what was read from the data and nobody approved.
    """
    marks = "; ".join(f"{name}: {', '.join(items)}" for name, items in left.items())
    rare = any("rare" in items for items in left.values())
    return (
        f"this schema was drafted from data and is not approved. Read from the data: {marks}. "
        "Replace each by public knowledge, or by 'private' to have it found with noise, "
        "or make sure that it is public as it stands, "
        "then set 'approved: true' in the column (fedsyn schema review does it)"
        + (
            "; where 'rare' stands, few rows hold some category: take these out and delete 'rare', or say why they are "
            "public (public: WHY)"
            if rare
            else ""
        )
    )


def standing(hints: Mapping[str, Sequence[str]], names: Collection[str]) -> list[str]:
    """Returns sentences with the hints on columns approved as they stand."""
    return [
        f"{name} is approved as it stands. {hint[:1].upper()}{hint[1:]}"
        for name in names
        for hint in hints.get(name, ())
    ]


def not_stated(proposed: Collection[Any]) -> list[str]:
    """Returns sentences on the proposed constraints that are not stated.

    Args:
        proposed: of `remarks.Proposed`.
    """
    return [f"not stated, so it may fail in the synthetic table: {one.rule} (it {one.seen})" for one in proposed]


_WORDS = {
    "kind": "its kind",
    "bounds": "its bounds and bins",
    "bins": "its bins",
    "categories": "its categories",
    "atoms": "values that have a bin of their own",
    "values": "its values",
    "multiple_of": "what its values are multiples of",
    "missing_codes": "its codes for missing values",
    "censored": "its limits",
    "notation": "how its values are written",
    "unlisted": "that rows hold words among its numbers",
    "missing": "whether values are missing",
    PERSONS: "what persons: says of it",
    "width": "its number of digits",
}


def approved_columns(
    schema: Any, names: Collection[str], results: Mapping[str, Finding] | None, how: How, where: str = "schema"
) -> dict[str, dict[str, Any]]:
    """Columns of a schema as plain data, approved.

    Args:
        schema: a `Schema`.
        names: the columns.
        results: what its table shows, if it is at hand; without it, what the draft marked as rare counts.
        how: they are approved.
        where: what to call the schema in a message.

    Raises:
        SchemaError: no such column, or few rows hold a category, and nobody said why it is public.
    """
    data, columns = schema.to_dict()["columns"], schema.every_column
    for name in names:
        if not isinstance(name, str):
            raise SchemaError(f"{where}: a column's name is text, found {type(name).__name__}")
        if name not in columns:
            raise SchemaError(f"{where} has no column '{name}'{nearest(name, columns)}")
    return {name: _approved(schema, name, data[name], (results or {}).get(name), how, where) for name in names}


def _approved(
    schema: Any, name: str, data: Mapping[str, Any], known: Finding | None, how: How, where: str
) -> dict[str, Any]:
    """A column of a schema, which is `data` as plain data, approved."""
    column: ColumnBase = schema.every_column[name]
    data = dict(data)
    rare: tuple[Any, ...] = known.rare if known is not None else ()
    marked = "rare" in column.drafted and known is None
    if how.private:
        data, rare, marked = _private(data), (), False
    if how.fold and rare:
        data, rare = _folded(data, rare, where, name), ()
    if (rare or marked) and not (how.public or column.public):
        raise SchemaError(_refusal(where, name, len(rare), f"{how.few} {who_hold(schema)}"))
    data |= {"public": how.public} if how.public else {}
    marks = [mark for mark in data.get("drafted", []) if mark != "rare"]
    return data | ({"drafted": marks} if marks else {}) | {"approved": True}


def _refusal(where: str, name: str, rare: int, few: str) -> str:
    some = (
        f"{rare} of the categories of '{name}' {'is' if rare == 1 else 'are'}"
        if rare
        else (f"categories of '{name}' are")
    )
    return (
        f"{where}: {some} held by fewer than {few}, and may tell of single persons: take them out, put them into "
        "'other' (--fold, with --data FILE), let the run find what is frequent (--private), or say why they are "
        "public (--public WHY, in the file public: WHY)"
    )


def _private(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a column without its bounds or categories.

    The run is to find them, so they are not in the schema.
    """
    ordered = ("lower", "upper", "bins", "bounds", "atoms", "values")
    out = (*ordered, "categories", "other", "unlisted", "groups", "ordered", "unordered", "width")
    rest = {key: value for key, value in data.items() if key not in out}
    if "categories" in data:
        return {**rest, "categories": PRIVATE, "drafted": _without(data, "categories", "rare")}
    if data["kind"] == "boolean" or data["kind"] in ASIDE:
        return data  # there is nothing to find
    return {**rest, "bounds": PRIVATE, "drafted": _without(data, "bounds", "bins", "atoms", "values", "unlisted")}


def _without(data: Mapping[str, Any], *marks: str) -> list[str]:
    return [mark for mark in data.get("drafted", ()) if mark not in marks]


def _folded(data: dict[str, Any], rare: tuple[Any, ...], where: str, name: str) -> dict[str, Any]:
    """A column without some categories, which go to "other"."""
    left = [value for value in data["categories"] if value not in rare]
    if not left:
        raise SchemaError(f"{where}: every category of '{name}' is held by few rows: set its kind to drop")
    if data.get("other") in rare or data.get("other") is False:
        data = {key: value for key, value in data.items() if key != "unlisted"} | {"other": True}
    placeless = [value for value in data.get("unordered", ()) if value in left]
    return {**data, "categories": left} | ({"unordered": placeless} if "unordered" in data else {})
