"""Approving what was drafted in a schema's columns: what is left, and which categories few rows hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.errors import SchemaError
from fedsyn.table.schema.base import ASIDE, ColumnBase
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.open import PRIVATE
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.vocabulary import FEW_ROWS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class How:
    """How columns are approved.

    Attributes:
        few: rows that have to hold a category before it may be approved without a reason.
        public: why the categories of these columns are public, whoever holds them.
        fold: puts categories that few rows hold into "other".
        private: takes the bounds and categories of these columns out, so that a run finds them by noisy sums.
    """

    few: int = FEW_ROWS
    public: str | None = None
    fold: bool = False
    private: bool = False


@dataclass(frozen=True)
class Finding:
    """What a table shows about a column, in numbers of rows and values.

    Attributes:
        rare: categories of the column that some rows hold, but fewer than asked for.
        unlisted: different values that are none of its categories.
        unlisted_rows: rows that hold them.
        unread: rows whose cells are not of the column's kind.
    """

    rare: tuple[Any, ...] = ()
    unlisted: int = 0
    unlisted_rows: int = 0
    unread: int = 0


def findings(schema: Any, frame: pd.DataFrame, few: int = FEW_ROWS) -> dict[str, Finding]:
    """What a table shows about each modelled column of a schema.

    Args:
        schema: the `Schema` of the table.
        frame: its rows, as text or typed.
        few: rows that have to hold a category before it may be approved without a reason.

    Raises:
        DataError: the table lacks a column of the schema.
    """
    schema.require_columns(frame.columns)
    # Of open columns nothing stands in the schema yet.
    columns = {name: column for name, column in schema.columns.items() if name not in schema.open}
    return {name: _finding(schema, column, frame[name], few) for name, column in columns.items()}


def _finding(schema: Any, column: ColumnBase, series: pd.Series, few: int) -> Finding:
    if isinstance(column, BinnedColumn) and series.dtype.kind != "O" and not _is_text(series):
        return Finding()  # a dtype says what its values are
    profile = Profile.of(series, schema.missing_text)
    texts: list[str] = profile.texts.to_pylist()
    if isinstance(column, BinnedColumn):
        _, bad = column.parse_all(texts, schema.missing_text)
        return Finding(unread=int(profile.counts[bad].sum()))
    assert isinstance(column, CategoricalColumn)
    codes = np.array([column.code_of(text, schema.missing_text) for text in texts], dtype=np.int64)
    own = np.array([column.lists(text) for text in texts], dtype=bool)
    rows = np.bincount(codes[own], weights=profile.counts[own], minlength=column.size)
    listed = [code for code, value in enumerate(column.values) if value in column.categories]
    rare = tuple(column.values[code] for code in listed if 0 < rows[code] < few)
    return Finding(rare, int((~own).sum()), int(profile.counts[~own].sum()))


def _is_text(series: pd.Series) -> bool:
    import pandas as pd

    return isinstance(series.dtype, pd.StringDtype | pd.CategoricalDtype)


def left(schema: Any, found: Mapping[str, Finding] | None = None, few: int = FEW_ROWS) -> dict[str, list[str]]:
    """Column -> what still needs approval there, in words; without the columns that need none.

    Args:
        schema: a `Schema`.
        found: what its table shows, if it is at hand.
        few: as `findings`.
    """
    result = {}
    for name in schema.unapproved:
        column = schema.columns[name]
        words = [_WORDS[mark] for mark in column.drafted if mark in _WORDS]
        rare = (
            len(found[name].rare)
            if found is not None and name in found
            else ("some" if "rare" in column.drafted else 0)
        )
        if rare and column.public is None:
            words.append(f"{rare} of its categories {'is' if rare == 1 else 'are'} held by fewer than {few} rows")
        result[name] = words
    return result


_WORDS = {
    "kind": "its kind",
    "bounds": "its bounds",
    "categories": "its categories",
    "missing": "whether values are missing",
}


def approved_column(
    column: ColumnBase, data: Mapping[str, Any], known: Finding | None, how: How, name: str, where: str = "schema"
) -> dict[str, Any]:
    """A column as plain data, approved.

    Args:
        column: the column, and `data` the same as plain data.
        known: what the table shows, if it is at hand; without it, what the draft marked as rare counts.
        how: it is approved.
        name, where: what to call it, and its schema, in a message.

    Raises:
        SchemaError: few rows hold a category, and nobody said why it is public.
    """
    data = dict(data)
    rare: tuple[Any, ...] = known.rare if known is not None else ()
    marked = "rare" in column.drafted and known is None
    if how.private:
        data, rare, marked = _private(data), (), False
    if how.fold and rare:
        data, rare = _folded(data, rare, where, name), ()
    if (rare or marked) and not (how.public or column.public):
        raise SchemaError(_refusal(where, name, len(rare), how.few))
    data |= {"public": how.public} if how.public else {}
    kept = [mark for mark in data.get("drafted", []) if mark != "rare"]
    return data | ({"drafted": kept} if kept else {}) | {"approved": True}


def _refusal(where: str, name: str, rare: int, few: int) -> str:
    some = (
        f"{rare} of the categories of '{name}' {'is' if rare == 1 else 'are'}"
        if rare
        else (f"categories of '{name}' are")
    )
    return (
        f"{where}: {some} held by fewer than {few} rows, and may tell of single persons: take them out, put them into "
        "'other' (--fold, with --data FILE), let the run find what is frequent (--private), or say why they are "
        "public (--public WHY, in the file public: WHY)"
    )


def _private(data: dict[str, Any]) -> dict[str, Any]:
    """A column whose bounds or categories are to be found by the run, and are not in the schema."""
    out = ("lower", "upper", "bins", "bounds", "categories", "other", "groups", "ordered", "unordered", "width")
    kept = {key: value for key, value in data.items() if key not in out}
    if "categories" in data:
        return {**kept, "categories": PRIVATE, "drafted": _without(data, "categories")}
    if data["kind"] == "boolean" or data["kind"] in ASIDE:
        return data  # there is nothing to find
    return {**kept, "bounds": PRIVATE, "drafted": _without(data, "bounds")}


def _without(data: Mapping[str, Any], mark: str) -> list[str]:
    return [other for other in data.get("drafted", ()) if other not in (mark, "rare")]


def _folded(data: dict[str, Any], rare: tuple[Any, ...], where: str, name: str) -> dict[str, Any]:
    """A column without some categories, which go to "other"."""
    left = [value for value in data["categories"] if value not in rare]
    if not left:
        raise SchemaError(f"{where}: every category of '{name}' is held by few rows: set its kind to drop")
    if data.get("other") in rare or data.get("other") is False:
        data = {**data, "other": True}
    placeless = [value for value in data.get("unordered", ()) if value in left]
    return {**data, "categories": left} | ({"unordered": placeless} if "unordered" in data else {})
