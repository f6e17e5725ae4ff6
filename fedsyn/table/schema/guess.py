"""What kind a column is, guessed from its values, its dtype and its name; and why.

A guess is a proposal. Whatever points at single persons is proposed to be left out, and the bounds of everything else
are rounded outward.
`written_numbers` says how a column of text writes numbers: thousands, decimal commas, currencies, percent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsyn.table.schema import persons
from fedsyn.table.schema.aside import DropColumn, IdentifierColumn, TextColumn
from fedsyn.table.schema.base import ColumnBase, Reading
from fedsyn.table.schema.binned import BinnedColumn, NumericColumn
from fedsyn.table.schema.columns import KINDS, CategoricalColumn, CodeColumn
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.quantities import DecimalColumn, IntegerColumn
from fedsyn.table.schema.rounding import outward

# A column lists at most so many values; of a longer list, those that enough rows hold.
MOST_CATEGORIES = 500
LONG_LIST = 100
# Rows that have to hold a category before it may be listed without a word.
FEW_ROWS = 10
# What a run allows, too.
MOST_BINS = 65535
# An integer label with at most this many different values is a class, not a quantity.
_MOST_CLASSES = 20
# Words that stand for a missing value among numbers and dates, and are a category among text.
_PLACEHOLDERS = frozenset(
    ("?", "-", "--", "---", ".", "*", "n.a.", "N.A.", "k.A.", "unknown", "Unknown", "missing", "unbekannt")
)


@dataclass(frozen=True, eq=False)
class Guess:
    """A proposal for one column.

    Attributes:
        column: as the schema has it, with `drafted`.
        values: number of different values.
        missing: share of the rows without one.
        why: of the guess, in words, without a value of a row.
        folded: (values, rows) that become the category "other".
        rare: number of listed categories that fewer than `FEW_ROWS` rows hold.
        missing_values: words of a fixed list that were taken for missing values.
    """

    column: ColumnBase
    values: int
    missing: float
    why: str
    folded: tuple[int, int] = (0, 0)
    rare: int = 0
    missing_values: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuessOptions:
    """What is asked for.

    Attributes:
        bins: of ordered columns.
        is_label: whether the column is the label: integers of few values become classes, and it gets no "other".
        keep: whether the column is to be kept, whatever it looks like.
        decimal: the decimal mark of text, where somebody said it.
        stored: whether the table had dtypes, which come back (a file of text has none).
    """

    bins: int = 32
    is_label: bool = False
    keep: bool = False
    decimal: str | None = None
    stored: bool = True


def made(
    profile: Profile, kind: type[ColumnBase], keys: Mapping[str, Any], why: str, drafted: str = "bounds", rare: int = 0
) -> Guess:
    """A guess, with what was read from the data under `drafted`; `rare` where categories are held by few rows."""
    marks = ("kind", drafted, "missing", *(("rare",) if rare else ()))
    column = kind.model_validate({**keys, "missing": profile.missing > 0, "drafted": marks})
    return Guess(column, profile.values, profile.missing / max(1, profile.rows), why, rare=rare)


def set_aside(profile: Profile, kind: type[ColumnBase], why: str, stored: str | None = None) -> Guess:
    """A proposal to leave a column out."""
    column = kind.model_validate({"drafted": ("kind",), "stored": stored})
    return Guess(column, profile.values, profile.missing / max(1, profile.rows), why)


def text_guess(profile: Profile, asked: GuessOptions, stored: str | None) -> Guess:
    """Proposes a kind for a column of text, and its public-looking values. `stored`: the dtype that is to come back."""
    if not profile.values:
        return set_aside(profile, DropColumn, "no row has a value", stored)
    if not asked.keep:
        aside = _aside(profile, stored)
        if aside is not None:
            return aside
    keys: dict[str, Any] = {"stored": stored} if stored else {}
    found = _more_than_text(profile, asked, keys)
    if found is not None:
        return found
    words = tuple(sorted(_PLACEHOLDERS & set(profile.texts.to_pylist())))
    if words:  # what is left may be numbers or dates
        found = _more_than_text(profile.without(words), asked, keys)
        if found is not None and not isinstance(found.column, CategoricalColumn):
            marks = ", ".join(f"'{word}'" for word in words)
            return replace(found, why=f"{found.why}; {marks} taken for missing", missing_values=words)
    mostly = "; mostly numbers: see missing_values" if profile.share_matching(r"^[+-]?[\d.,]+$") > 0.8 else ""
    if not asked.keep and persons.nearly_unique(profile):
        return set_aside(profile, IdentifierColumn, persons.shown_share(profile) + mostly, stored)
    found = proposed(profile, CategoricalColumn, Reading({}, "text"), asked, keys)
    return replace(found, why=found.why + mostly)


def _more_than_text(profile: Profile, asked: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """The guess of the first kind that reads the text, then of numbers; None for other text."""
    if not profile.values:
        return None
    for kind in KINDS.values():
        reading = kind.reading(profile)
        if reading is not None and _reads(found := proposed(profile, kind, reading, asked, keys), profile):
            return found
    numbers = written_numbers(profile, asked.decimal)
    if numbers is not None and _reads(found := quantity(profile, numbers, asked, keys), profile):
        return found
    return None


def _reads(guess: Guess, profile: Profile) -> bool:
    """Whether a column reads what it was guessed from; tried on some of it."""
    if not isinstance(guess.column, BinnedColumn):
        return True
    _, bad = guess.column.parse_all(profile.tried.to_pylist(), frozenset())
    return not bad.any()


def _aside(profile: Profile, stored: str | None) -> Guess | None:
    """A proposal to leave the column out, where its name or its values point at persons."""
    why = persons.personal_by_values(profile) or persons.personal_by_name(profile) or persons.numbers_the_rows(profile)
    if why is None and persons.nearly_unique(profile) and CodeColumn.reading(profile) is not None:
        why = persons.shown_share(profile)
    if why is not None:
        return set_aside(profile, IdentifierColumn, why, stored)
    if persons.is_free_text(profile):
        return set_aside(profile, TextColumn, "free text", stored)
    return None


def proposed(
    profile: Profile, kind: type[ColumnBase], reading: Reading, asked: GuessOptions, keys: Mapping[str, Any]
) -> Guess:
    """The guess that a column is of one kind; `keys`: further ones that it has."""
    if "bins" in kind.model_fields:
        return made(profile, kind, {**reading.keys, "bins": asked.bins, **keys}, reading.why)
    keys = {**reading.keys, **keys}
    if kind.model_fields["categories"].is_required():
        return _listed(profile, kind, keys, reading.why, asked)
    return made(profile, kind, keys, reading.why, "categories")


def _listed(profile: Profile, kind: type[ColumnBase], keys: Mapping[str, Any], why: str, asked: GuessOptions) -> Guess:
    """A guess that lists the values; of many, those that enough rows hold."""
    texts: list[str] = profile.texts.to_pylist()
    kept = profile.values
    if kept > LONG_LIST:
        kept = min(MOST_CATEGORIES, int(np.count_nonzero(profile.counts >= FEW_ROWS)))
    listed = sorted(texts[:kept])
    named = [text for text in texts[:kept] if text.casefold() == "other"]
    other = named[0] if named else "other"
    keys = {**keys, "categories": tuple(listed) or (other,)}
    if asked.is_label and listed:
        keys |= {"other": False}
    elif not named:
        keys |= {"other": other}
    folded = (profile.values - kept, int(profile.counts[kept:].sum()))
    rare = int(np.count_nonzero(profile.counts[:kept] < FEW_ROWS))
    guess = made(profile, kind, keys, why, "categories", rare)
    return replace(guess, folded=folded)


def quantity(profile: Profile, numbers: Written, asked: GuessOptions, keys: Mapping[str, Any]) -> Guess:
    """A column of numbers: classes, integers, decimals, or floats of any precision."""
    whole = numbers.places == 0
    if asked.is_label and whole and profile.values <= _MOST_CLASSES and not numbers.keys:
        classes = tuple(sorted(int(text) for text in profile.texts.to_pylist()))
        if len(set(classes)) == len(classes):
            return made(profile, CategoricalColumn, {**keys, "categories": classes}, "classes", "categories")
    low, high = outward(numbers.low, numbers.high, numbers.places if numbers.places is not None else 12)
    shared: dict[str, Any] = {**numbers.keys, "lower": low, "upper": high, "bins": asked.bins, **keys}
    if numbers.places is None:
        if numbers.keys:
            shared |= {"places": 6}
            return made(profile, DecimalColumn, shared, numbers.why)
        return made(profile, NumericColumn, {**shared, "dtype": "float"}, numbers.why)
    if whole:
        return made(profile, IntegerColumn, shared, "whole numbers" if not numbers.keys else f"whole {numbers.why}")
    return made(profile, DecimalColumn, {**shared, "places": numbers.places}, numbers.why)


def places_of(numbers: np.ndarray, most: int = 6) -> int | None:
    """Decimals that hold every one of some finite numbers exactly; None if more than `most` would be needed."""
    for places in range(most + 1):
        if np.array_equal(np.round(numbers, places), numbers):
            return places
    return None


_CURRENCY = r"€|\$|£|¥|₹|zł|Kč|Fr\.?|kr\.?|(?:US|A|C|NZ)\$|EUR|USD|GBP|CHF|SEK|NOK|DKK|PLN|CZK|JPY|CAD|AUD"
_AFFIXED = re.compile(rf"^(?P<a>[+-]?)(?P<prefix>(?:{_CURRENCY})?\s?)(?P<b>[+-]?)(?P<body>[\d.,'\s]*\d)(?P<suffix>.*)$")
_SUFFIX = re.compile(rf"^\s?(?:{_CURRENCY}|%|‰|[A-Za-zµ°/]{{1,6}}[²³]?)?$")
_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_MOST_PLACES = 6


@dataclass(frozen=True)
class Written:
    """How numbers are written: the keys of an `integer` or `decimal` column, and in what range they lie.

    Attributes:
        keys: `thousands`, `mark`, `prefix`, `suffix`, where they are not the usual ones.
        places: digits after the decimal mark; None: numbers of any precision.
        low, high: the smallest and the largest one.
        why: the same in words.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    places: int | None = 0
    low: float = 0.0
    high: float = 0.0
    why: str = ""


def written_numbers(profile: Profile, decimal: str | None = None) -> Written | None:
    """How a column writes numbers; None if it holds anything else.

    Args:
        profile: of the column.
        decimal: the decimal mark, where somebody said it.
    """
    if decimal != "," and profile.all_match(_PLAIN):
        return _measured(profile, Written())
    sample = profile.tried.to_pylist()
    first = _AFFIXED.match(sample[0]) if sample else None
    if first is None or not _SUFFIX.match(first["suffix"]):
        return None
    prefix, suffix = first["prefix"], first["suffix"]
    head, tail = re.escape(prefix.strip()), re.escape(suffix.strip())
    for thousands, mark in _styles(sample, decimal):
        digits = rf"(\d{{1,3}}({re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
        pattern = rf"^[+-]?\s?({head})?\s?[+-]?{digits}({re.escape(mark)}\d+)?\s?({tail})?$"
        if profile.all_match(pattern) and _wears(profile, head, tail):
            grouped = thousands and profile.any_matches(rf"\d{re.escape(thousands)}\d")
            keys = {"thousands": thousands} if grouped else {}
            keys |= {"mark": mark} if mark != "." else {}
            keys |= {key: text for key, text in (("prefix", prefix), ("suffix", suffix)) if text}
            return _measured(profile, Written(keys))
    return None


def _wears(profile: Profile, head: str, tail: str) -> bool:
    """Whether every text has the prefix and the suffix, so that none is written without."""
    return (not head or profile.all_match(head)) and (not tail or profile.all_match(rf"{tail}$"))


def _styles(sample: list[str], decimal: str | None) -> list[tuple[str, str]]:
    """Pairs of a thousands separator and a decimal mark to try, the likeliest first."""
    text = "\n".join(sample)
    english = [(",", "."), ("", ".")]
    german = [("", ","), (".", ",")]
    others = [(mark, "," if "," in text else ".") for mark in (" ", "'", "\u00a0", "\u202f")]
    others = [(mark, point) for mark, point in others if re.search(rf"\d{mark}\d", text)]
    if decimal is not None:
        return [*[(t, decimal) for t, _ in others], *(german if decimal == "," else english)]
    if re.search(r"\.\d{3},|,\d{1,2}(\D|$)|,\d{4,}|\.\d{3}\.\d{3}|(^|\n)0,", text) and not re.search(r",\d{3}\.", text):
        return [*others, *german, *english]
    return [*others, *english, *german]


def _measured(profile: Profile, found: Written) -> Written | None:
    """Places and range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = profile.texts
    for key in ("prefix", "suffix"):
        if found.keys.get(key):
            texts = pc.replace_substring(texts, found.keys[key].strip(), "")
    if "thousands" in found.keys:
        texts = pc.replace_substring(texts, found.keys["thousands"], "")
    if found.keys.get("mark") == ",":
        texts = pc.replace_substring(texts, ",", ".")
    texts = pc.replace_substring(pc.replace_substring_regex(texts, r"\s", ""), "+", "")
    try:
        ends = pc.min_max(pc.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        return None
    low, high = float(ends["min"].as_py()), float(ends["max"].as_py())
    if not (abs(low) < 2**53 and abs(high) < 2**53):
        return None
    tails = pc.utf8_length(pc.replace_substring_regex(texts, r"^[^.]*\.?", ""))
    places: int | None = int(pc.max(tails).as_py() or 0)
    if pc.any(pc.match_substring_regex(texts, "[eE]")).as_py() or (places or 0) > _MOST_PLACES:
        places = None
    if 10.0 ** (places or _MOST_PLACES) * max(abs(low), abs(high)) > 2**52:  # steps that float64 has not
        if found.keys:
            return None
        places = None
    return replace(found, places=places, low=low, high=high, why=_in_words(found.keys, places))


def _in_words(keys: dict[str, Any], places: int | None) -> str:
    words = [] if not places else [f"{places} decimal{'s' if places > 1 else ''}"]
    words += ["any precision"] if places is None else []
    words += ["decimal comma"] if keys.get("mark") == "," else []
    if "thousands" in keys:
        words.append(
            "thousands with "
            + {" ": "a space", "\u00a0": "a space", "\u202f": "a space"}.get(keys["thousands"], repr(keys["thousands"]))
        )
    words += [repr(keys[key].strip()) for key in ("prefix", "suffix") if keys.get(key)]
    return "numbers" + (": " if words else "") + ", ".join(words)
