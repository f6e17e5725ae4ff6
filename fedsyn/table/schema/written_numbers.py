"""How a column of text writes numbers: thousands, decimal commas, currencies, percent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from fedsyn.table.schema.profile import Profile

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
