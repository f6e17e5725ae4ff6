"""Columns of which not everything is public.

The word `private` in a schema asks a run to find what is missing.

    cost:   {kind: numeric, lower: 0, upper: private}           # and bins: 32 that fit
    salary: {kind: numeric, bounds: private, bins: {private: 20}}
    dose:   {kind: numeric, bounds: private, atoms: [0, 20]}    # values that are known to be frequent
    ward:   {kind: categorical, categories: private}            # or {private: {most: 40, length: 12}}

Such a schema is *open*. Its columns stand in it with a placeholder (one bin, or `other` alone), so that names, kinds
and the reading of cells are those of any schema; `Schema.open` says what is to be found, and `Schema.closed`
puts it in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import KINDS, column_dict
from fedsyn.table.schema.values import written

PRIVATE = "private"
#: Bins of a column whose bins are private without a number.
BINS = 32
_MOST_BINS, _MOST_CATEGORIES, _LONGEST = 256, 1024, 64


@dataclass(frozen=True)
class OpenRange:
    """Facts to find about a column of numbers (dates, times, ...).

    Attributes:
        lower, upper: whether that bound is private.
        bins: at most so many bins that fit; None: the bins are the schema's own.
        atoms: values that the schema names as frequent, as it has them. Others are found, where they stand out.
    """

    lower: bool
    upper: bool
    bins: int | None
    atoms: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OpenCategories:
    """Facts to find about a column of categories.

    They say which texts are frequent.

    Attributes:
        most: categories.
        length: bytes (UTF-8) of the longest one; longer ones go to `other`.
    """

    most: int = 64
    length: int = 24


Open = OpenRange | OpenCategories
#: What was found, by column.
Found = Mapping[str, Sequence[Any]]


def set_apart(column: Mapping[str, Any]) -> tuple[dict[str, Any], Open | None]:
    """Returns a column's data without what is private.

    Placeholders stand for that. The second result says what is private, and is None where nothing is.

    Raises:
        ValueError: `private` with options that it does not have, or beside keys that it cannot go with.
    """
    data = dict(column)
    if _is_private(data.get("categories")):
        if data.get("other", True) is False:
            raise ValueError("categories: private needs 'other', for what is too rare to be found")
        if data.get("groups"):
            raise ValueError("categories: private cannot go with groups, which name categories")
        limits = {"most": _MOST_CATEGORIES, "length": _LONGEST}
        wanted = OpenCategories(**_options("categories", data["categories"], limits))
        return {"other": True, **_unmarked(data, "categories", "rare"), "categories": ["other"]}, wanted
    if _is_private(data.get("bounds")):
        if "lower" in data or "upper" in data:
            raise ValueError("bounds: private stands for lower and upper: leave those out")
        _options("bounds", data.pop("bounds"), {})
        data.update(lower=PRIVATE, upper=PRIVATE)
    low, high = (_is_private(data.get(bound)) for bound in ("lower", "upper"))
    bins = data.get("bins", PRIVATE if low or high else None)
    if not (low or high or _is_private(bins)):
        return data, None
    if data.get("values"):
        raise ValueError("values: they are the only ones of a column, so nothing is left for private to find")
    data = _unmarked(data, "bounds") if low and high else data
    atoms = data.pop("atoms", ())
    atoms = _named(_placed(data, low, high), atoms, low, high)
    if not _is_private(bins):
        if bins is not None and (isinstance(bins, bool) or not isinstance(bins, int)):
            raise ValueError("private bounds need bins: private, or a number of equal bins")
        return _placed(data, low, high), OpenRange(low, high, None, atoms)
    most = _options("bins", bins, {"most": _MOST_BINS}).get("most", BINS)
    return {**_placed(data, low, high), "bins": 1}, OpenRange(low, high, most, atoms)


def put_back(data: dict[str, Any], column: Any, wanted: Open) -> dict[str, Any]:
    """Puts the word `private` in the place of placeholders.

    This is the inverse of `set_apart`, for a schema's file.

    A number of equal bins is always written: where `bins` is left out beside private bounds, they are private too.
    """
    if isinstance(wanted, OpenCategories):
        rest = {key: value for key, value in data.items() if key != "categories" and (key, value) != ("other", True)}
        return {**rest, "categories": {PRIVATE: {"most": wanted.most, "length": wanted.length}}}
    bounds = {"lower": wanted.lower, "upper": wanted.upper}
    bins = {"bins": column.bins if wanted.bins is None else {PRIVATE: wanted.bins}}
    atoms = {"atoms": list(wanted.atoms)} if wanted.atoms else {}
    return data | {bound: PRIVATE for bound, is_private in bounds.items() if is_private} | bins | atoms


def named_numbers(column: BinnedColumn, wanted: OpenRange) -> tuple[float, ...]:
    """Returns the numbers of the atoms that an open column names, ascending."""
    return tuple(sorted(_single(column, column.model_dump(), atom).span[0] for atom in wanted.atoms))


def _named(data: Mapping[str, Any], atoms: Any, low: bool, high: bool) -> tuple[Any, ...]:
    """Returns the atoms of an open column, as a file has them.

    Args:
        data: of the column, with its placeholder.
        atoms: as they came.
        low, high: whether that bound is private.

    Raises:
        ValueError: one is no value of the column, stands twice, or lies beyond a public bound.
    """
    if not isinstance(atoms, list | tuple):
        raise ValueError("atoms: expected a list of values")
    kind = KINDS.get(str(data.get("kind")))
    if not atoms or kind is None or not issubclass(kind, BinnedColumn):
        return tuple(atoms)
    try:
        column = kind.model_validate({**data, "bins": 1})
    except ValueError:  # which is said of the column itself
        return tuple(atoms)
    single = [_single(column, data, atom) for atom in atoms]
    numbers, (least, most) = [one.span[0] for one in single], column.reach
    lower, upper = (least if low else column.span[0]), (most if high else column.span[1])
    beyond = any((lower is not None and x < lower) or (upper is not None and x > upper) for x in numbers)
    if beyond or len(set(numbers)) < len(numbers):
        raise ValueError("atoms must be different values within what is public of the bounds")
    return tuple(column_dict(one)["lower"] for one in single)


def _single(column: BinnedColumn, data: Mapping[str, Any], value: Any) -> BinnedColumn:
    """Returns the column with bounds that hold one value alone.

    Raises ValueError if the column cannot hold it.
    """
    try:
        return type(column).model_validate({**data, "lower": value, "upper": value, "bins": 1})
    except ValueError:
        raise ValueError(f"atoms: '{written(value)}' is not {column.expected} that the column can hold") from None


def all_set_apart(columns: Mapping[str, Any], computed: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Open]]:
    """Applies `set_apart` to every column that is data.

    Raises ValueError, which names the column. A column that is computed and open is refused, too.
    """
    plain: dict[str, Any] = dict(columns)
    wanted: dict[str, Open] = {}
    for name, column in columns.items():
        if not isinstance(column, Mapping):
            continue
        try:
            plain[name], private_part = set_apart(column)
        except ValueError as error:
            raise ValueError(f"column '{name}': {error}") from None
        if private_part is not None and name in computed:
            raise ValueError(f"column '{name}': a constraint computes it, so nothing of it can be private")
        if private_part is not None:
            wanted[name] = private_part
    return plain, wanted


def filled_in(
    data: Mapping[str, Any], column: Any, wanted: Open, discovered: Sequence[Any], atoms: Sequence[float] = ()
) -> dict[str, Any]:
    """A column's data with what was found of it.

    Args:
        data: of the open column.
        column: with its placeholder.
        wanted: what was to be found.
        discovered: categories; or the edges of the bins, or the two ends of the range, as numbers of the column, the
            last of whole numbers one beyond the largest.
        atoms: numbers of the values that many rows share, beside those that the schema names.
    """
    if isinstance(wanted, OpenCategories):
        others = () if any(text.casefold() == "other" for text in discovered) and discovered else ("other",)
        return {**data, "categories": list(discovered) or list(others), "other": data.get("other", True)}
    shared = sorted({*named_numbers(column, wanted), *atoms})
    edges = [*discovered[:-1], discovered[-1] - column.whole]
    if not column.whole:  # an atom is cut out by its key: the edge behind it says nothing more
        behind = {float(np.nextafter(atom, np.inf)): atom for atom in shared}
        without = list(dict.fromkeys(behind.get(edge, edge) for edge in edges))
        edges = without if len(without) > 1 else edges
    rest = {key: value for key, value in data.items() if key not in ("bins", "bounds", "lower", "upper", "atoms")}
    rest |= {"atoms": [column.bound(atom) for atom in shared]} if shared else {}
    if wanted.bins is not None:
        return {**rest, "bins": [column.bound(edge) for edge in edges]}
    bins = {"bins": data["bins"]} if "bins" in data else {}
    return {**rest, "lower": column.bound(edges[0]), "upper": column.bound(edges[-1]), **bins}


def _unmarked(data: dict[str, Any], *marks: str) -> dict[str, Any]:
    """Returns data without some marks of a draft.

    The private value in the place of what they mark was not read from anywhere.
    """
    drafted = data.get("drafted")
    if not isinstance(drafted, list | tuple):
        return data
    return {**data, "drafted": [mark for mark in drafted if mark not in marks]}


def with_bins(bins: int, wanted: Open | None) -> Any:
    """Returns a run's own number of bins for a column.

    It replaces the column's bins. They are equal bins, or bins that are found.
    """
    return {PRIVATE: bins} if isinstance(wanted, OpenRange) and wanted.bins is not None else bins


def _is_private(value: Any) -> bool:
    return value == PRIVATE or (isinstance(value, Mapping) and list(value) == [PRIVATE])


def _options(key: str, value: Any, limits: Mapping[str, int]) -> dict[str, int]:
    """Returns the options that stand beside `private`.

    A number stands for the first option. Other options have names. Raises ValueError beyond their limits.
    """
    setting = value[PRIVATE] if isinstance(value, Mapping) else None
    if setting is None:
        return {}
    options = setting if isinstance(setting, Mapping) else {next(iter(limits), ""): setting}
    for name, number in options.items():
        if name not in limits:
            raise ValueError(f"{key}: private takes {' and '.join(limits) or 'no options'}")
        if isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= limits[name]:
            raise ValueError(f"{key}: private: {name} must be a number from 2 to {limits[name]}")
    return dict(options)


def _placed(data: dict[str, Any], low: bool, high: bool) -> dict[str, Any]:
    """Returns data with one bound in the place of two.

    It is the public bound, or any value of the kind.
    """
    kind = KINDS.get(str(data.get("kind")))
    kind = kind if kind is not None and issubclass(kind, BinnedColumn) else BinnedColumn
    end = "upper" if low else "lower"
    known = data.get(end, kind.model_fields[end].default)
    value = kind.origin if known is None or _is_private(known) else known
    return data | ({"lower": value} if low else {}) | ({"upper": value} if high else {})
