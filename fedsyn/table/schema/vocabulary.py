"""Meanings of people's words in a table.

A word may say an order, no answer, a person, or a number that stands for a missing one.

The words stand in `vocabulary.yaml`. Nothing here decides anything: a draft proposes what is found, with its reason,
and `HINTS` has a sentence for what a person should look at. A hint names a value only if the draft lists it, or if at
least `FEW_ROWS` rows hold it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedsyn import yamlio
from fedsyn.lazy import pc, pd
from fedsyn.output import counted
from fedsyn.table.schema.column_base import Reading
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import mostly_numbers

# Rows that have to hold a value before it may be named.
FEW_ROWS = 10
# Words of a column that are looked up.
_MOST_WORDS = 100
# Share of the rows that a number has to stand in before it is taken for one that stands for a missing value.
_OFTEN = 0.01
# Numbers that may be codes are no more than these.
_FEW_CODES = 20
_BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[\s_.'-]+(?=[^\W\d_])")

_ICD = r"^[A-TV-Z]\d[0-9A-Z](\.?[0-9A-Z]{1,4})?[+*!]?$"
#: Intervals as pandas.cut writes them: [0, 10), (10.0, inf].
_BRACKETED = re.compile(r"^[\[(]\s*(-?inf|-?\d+(?:\.\d+)?)\s*[,;]\s*(-?inf|-?\d+(?:\.\d+)?)\s*[\])]$")
_NUMBERED = re.compile(r"^\(?(\d{1,3})(?:\)?\s*[-–:.=)]\s*|\s+\()(?=[^\d\s]).+$")


@cache
def word_lists() -> dict[str, Any]:
    """Returns the words by what they say."""
    return yamlio.read_mapping(Path(__file__).with_name("vocabulary.yaml"))


@cache
def known_words(key: str) -> frozenset[str]:
    """Returns the words of one list, plainly written."""
    return frozenset(map(plainly_written, word_lists()[key]))


def plainly_written(text: str) -> str:
    """Returns a text in small letters.

    It has one space between words, and plain apostrophes.
    """
    return " ".join(text.casefold().replace("’", "'").split())


def words_of(name: str) -> list[str]:
    """Returns the words of a column's name, in small letters.

    `PatientID`, `patient_id` and `patient id` give the same words.
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[^a-z0-9äöüß]+", spaced.lower()) if word]


def is_person(name: str) -> bool:
    """Returns whether a column's name says that its values are persons.

    Such names are `subject`, `patient_id` and `Kunden-Nr`.
    """
    whole, rest = _root(name)
    return names_persons(name) or (rest != whole and rest in known_words("almost_persons_in_names"))


def names_persons(name: str) -> bool:
    """Returns whether a column's name says persons themselves.

    A household or a case may have several.

    >>> [names_persons(name) for name in ("Kunden-Nr", "patient_id", "Fallnummer", "e-mail")]
    [True, True, False, False]
    """
    whole, rest = _root(name)
    return bool({whole, rest} & known_words("persons")) or (rest != whole and rest in known_words("persons_in_names"))


def _root(name: str) -> tuple[str, str]:
    """Returns a name in small letters, whole and without its number."""
    whole = "".join(words_of(name))
    return whole, re.sub(r"(ids?|nr|no|number|nummer|key|code|identifier)$", "", whole)


#: What follows for a column of persons who may have several rows.
FOR_ONE_ROW = "epsilon is for one row, not for one person, who may have several"
#: What helps.
PROTECT_PERSONS = "to protect persons, set privacy.unit: person"
#: What follows where the schema says who a person is.
EITHER_UNIT = f"privacy.unit: person protects each of them with all rows; with privacy.unit: row {FOR_ONE_ROW}"


def rows_each(name: str, values: int, rows: int, most: int, *, persons: bool = False) -> str:
    """Returns how often the values of an identifier repeat, in words.

    It holds counts of rows: it is for the eyes of the person who has them.

    Args:
        name: of the column.
        values: number of different ones.
        rows: that have one.
        most: rows that hold the same one.
        persons: whether somebody said that they are persons; a name may say so, too.
    """
    if persons or is_person(name):
        return f"{counted(values, 'person', 'people')}, up to {counted(most, 'row')} each"
    return f"{counted(values, 'different value')} in {counted(rows, 'row')}, up to {most:,} each"


def several_rows(name: str, values: int, rows: int, most: int, *, persons: bool = False) -> str:
    """Returns a sentence on a column of persons who repeat.

    The arguments are those of `rows_each`.
    """
    each = rows_each(name, values, rows, most, persons=persons)
    either = ": " if persons or is_person(name) else "; if they are persons, "
    return f"{each}{either}{FOR_ONE_ROW}; {PROTECT_PERSONS}"


def of_persons(sentence: str) -> str:
    """Returns a hint for a kept column of persons, perhaps."""
    return f"{sentence} (kind: identifier, person: true)"


def is_shared(name: str) -> bool:
    """Returns whether persons share the values of a column.

    Such names are `first name` and `Strasse`.
    """
    words = words_of(name)
    return bool({*words, "".join(words)} & known_words("shared_by_persons"))


def names_an_identifier(name: str, values: int) -> bool:
    """Returns whether a column is named like an identifier.

    It has more than a few `values`.
    """
    return values > _FEW and (is_person(name) or bool(set(words_of(name)) & known_words("identifiers")))


def is_icd(profile: Profile) -> bool:
    """Returns whether all texts look like ICD-10 codes.

    A dot in more than one of ten, or the name, has to say so, too.
    """
    if is_person(profile.name) or not profile.all_match(_ICD):
        return False
    return bool(known_words("diagnoses") & set(words_of(profile.name))) or profile.share_matching(r"\.") > 0.1


def is_post_code(profile: Profile) -> bool:
    """Returns whether a column holds post codes of digits, by its name."""
    return bool(known_words("post_codes") & set(words_of(profile.name))) and profile.all_match(r"^\d{4,6}$")


# Persons --------------------------------------------------------------------------------------------------------------

_EMAIL = r"^[^@\s]+@[^@\s]+\.[A-Za-z]{2,}$"
_UUID = r"^\{?[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\}?$"
_PHONE = r"^(\+|00|\(?0)[\d]{1,4}[\d ()/.-]{5,}$"
_ADDRESS = r"^(\d{1,3}\.){3}\d{1,3}$|^https?://"

# Values that a column of names may have before they are taken for those of persons.
_FEW = 20
# Share of rows that would be left if every value stood once, from which on values point at rows.
_NEARLY_UNIQUE = 0.5
# Rows that it takes to say so.
ENOUGH = 20
# A sentence has so many words, or so many characters.
_WORDS, _LENGTH = 4, 40


def personal_by_name(profile: Profile) -> str | None:
    """Why a column's name makes its values those of persons, or None."""
    words = words_of(profile.name)
    joined = "".join(words)
    if profile.values <= _FEW:
        return None
    if {*words, joined} & known_words("personal") or is_person(profile.name):
        return "named like personal data"
    if set(words) & known_words("identifiers") and profile.unlike > 0.1:
        return "named like an identifier"
    return None


def personal_by_values(profile: Profile) -> str | None:
    """Returns why a column of text holds identifiers, or None.

    The column's name does not matter.
    """
    for pattern, what in ((_EMAIL, "e-mail addresses"), (_UUID, "UUIDs"), (_ADDRESS, "network addresses")):
        if profile.values > 1 and profile.share_matching(pattern) > 0.8:
            return what
    if profile.values > _FEW and profile.share_matching(_PHONE) > 0.8 and profile.share_matching(r"[ ()/+-]") > 0.5:
        return "telephone numbers"
    return None


def is_free_text(profile: Profile) -> bool:
    """Returns whether a column holds sentences.

    They are long, and mostly different from each other.
    """
    if profile.values <= _FEW or profile.unlike < 0.2:
        return False
    words = pc.mean(pc.add(pc.count_substring(profile.tried, " "), 1)).as_py()
    length = pc.mean(pc.utf8_length(profile.tried)).as_py()
    return bool(words >= _WORDS or length >= _LENGTH)


def nearly_unique(profile: Profile) -> bool:
    """Returns whether nearly every row has a value of its own."""
    return profile.present >= ENOUGH and profile.unlike > _NEARLY_UNIQUE


def numbers_the_rows(profile: Profile) -> str | None:
    """Returns why a column of whole numbers numbers the rows, or None.

    It does so if no number stands twice, and the numbers fill their range or nearly.

    n independent numbers of R would have n (n - 1) / 2 R equal pairs or more on average; where that is ten, none at all
    has a chance below e^-10, so they are not independent: some of a register's numbers.
    """
    if profile.present < ENOUGH or profile.values != profile.present or not profile.all_match(r"^\d{1,15}$"):
        return None
    ends = pc.min_max(profile.texts.cast("int64"))
    wide, rows = int(ends["max"].as_py()) - int(ends["min"].as_py()) + 1, profile.values
    return "numbers the rows" if wide == rows or rows * (rows - 1) >= 20 * wide else None


def shown_share(profile: Profile) -> str:
    """Returns how many values the rows have, in words.

    The words differ if every row has a value of its own.
    """
    if profile.values == profile.present:
        return "a different value in every row"
    return f"{profile.values:,} values in {profile.present:,} rows"


# Orders ---------------------------------------------------------------------------------------------------------------


def reading_in_order(profile: Profile) -> Reading | None:
    """Returns a categorical column whose words have an order.

    The order goes from low to high. None if the words have none that is known.

    What refuses an answer ("prefer not to say") stands last, without a place in the order.
    """
    if not 2 <= profile.values <= _MOST_WORDS:
        return None
    texts: list[str] = sorted(profile.texts.to_pylist())
    none = [text for text in texts if plainly_written(text) in known_words("no_answers")]
    words = [text for text in texts if text not in none]
    if len(words) < 2:
        return None
    places, why = _scale(profile.name, words) or _numbered(words) or _ranges(words) or (None, "")
    if places is None:
        return None
    ordered = sorted(words, key=lambda text: (places[text], text))
    keys: dict[str, Any] = {"categories": (*ordered, *none), "ordered": True}
    if none:
        return Reading(keys | {"unordered": tuple(none)}, f"{why}; no answer outside it")
    return Reading(keys, why)


@cache
def _places_of_words() -> dict[str, dict[str, int]]:
    """Word -> scale -> step."""
    places: dict[str, dict[str, int]] = {}
    for scale, what in word_lists()["scales"].items():
        for step, words in enumerate(what["steps"]):
            for word in words:
                places.setdefault(plainly_written(word), {}).setdefault(scale, step)
    return places


def _scale(name: str, words: Sequence[str]) -> tuple[dict[str, int], str] | None:
    """Returns each word's step on a scale, and the reason.

    The scale is the first that has all words. None if no scale has them all.
    """
    known = [_places_of_words().get(plainly_written(word), {}) for word in words]
    for scale, what in word_lists()["scales"].items():
        named = what.get("named")
        if named is not None and not set(named) & set(words_of(name)):
            continue
        if all(scale in places for places in known):
            steps = [places[scale] for places in known]
            if len(set(steps)) >= what.get("least", 2):
                alike = len(words) - len(set(steps))
                check = (
                    "" if not alike else "; look at words that mean the same, which are in the order of the alphabet"
                )
                return dict(zip(words, steps, strict=True)), f"words of {scale}, in order{check}"
    return None


def _numbered(words: Sequence[str]) -> tuple[dict[str, float], str] | None:
    """Returns the number that each word begins with.

    Such words are `1 - never` and `5 (always)`. None if the words are not numbered so.
    """
    matches = [_NUMBERED.match(word) for word in words]
    numbers = [int(match[1]) for match in matches if match]
    if len(set(numbers)) != len(words) or max(numbers) - min(numbers) >= 2 * len(words):
        return None
    return dict(zip(words, map(float, numbers), strict=True)), "numbered words, in order"


def _ranges(words: Sequence[str]) -> tuple[dict[str, float], str] | None:
    """Returns the lower end of each range.

    Such ranges are `under 18`, `18-24` and `65+`. None unless all are ranges that do not overlap.
    """
    ranges = {word: _range(plainly_written(word)) for word in words}
    ends = [range_ for range_ in ranges.values() if range_ is not None]
    if len(ends) < len(words) or sum(low < high for low, high in ends) * 2 < len(ends):
        return None
    ends.sort()
    if any(low < before for (_, before), (low, _) in pairwise(ends)):
        return None
    return {word: range_[0] for word, range_ in ranges.items() if range_ is not None}, "ranges, in order"


@cache
def _range_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A range in words, and what around its numbers does not count."""

    def any_of(*keys: str) -> str:
        words = {plainly_written(word) for key in keys for word in word_lists()[key]}
        return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))

    number = r"(?P<{0}>\d+(?:[.,' ]\d{{3}})*(?:[.,]\d+)?)\s*(?P<{0}_times>{1})?"
    low, high = (number.format(name, any_of("thousands")) for name in ("low", "high"))
    pattern = (
        rf"^(?:(?P<below>{any_of('below')})|(?P<above>{any_of('above')}))?\s*{low}"
        rf"(?:\s*(?:{any_of('between')})\s*{high}|\s*(?P<more>{any_of('and_more')})|\s*(?P<less>{any_of('and_less')}))?$"
    )
    return re.compile(pattern), re.compile(rf"(?<![^\W\d_])(?:{any_of('units')})(?![^\W\d_])")


def _range(text: str) -> tuple[float, float] | None:
    """Returns both ends of a range in words.

    A number alone is both ends. None for any other text.
    """
    bracketed = _BRACKETED.match(text)
    if bracketed is not None:
        low, high = (float(end.replace(" ", "")) for end in bracketed.groups())
        return (low, high) if low <= high else None
    pattern, units = _range_patterns()
    match = pattern.match(text) or pattern.match(" ".join(units.sub(" ", text).split()))
    if match is None or (match["high"] and (match["below"] or match["above"] not in (None, "from", "da", "desde"))):
        return None
    times = word_lists()["thousands"]

    def value(name: str, factor: str | None) -> float:
        digits = match[name]
        if re.fullmatch(r"\d{1,3}([.,' ]\d{3})+", digits):
            digits = re.sub(r"\D", "", digits)
        return float(digits.replace(",", ".").replace("'", "").replace(" ", "")) * float(times.get(factor, 1))

    try:
        low = value("low", match["low_times"] or match["high_times"])
        if match["high"]:
            high = value("high", match["high_times"])
            return (low, high) if low <= high else None
    except ValueError:
        return None
    if match["below"] or match["less"]:
        return -math.inf, low
    return (low, math.inf) if match["above"] or match["more"] else (low, low)


# Hints ----------------------------------------------------------------------------------------------------------------


def _several_spellings(profile: Profile) -> str | None:
    """Yes, Y and ja; North and north."""
    texts: list[str] = profile.texts.to_pylist()  # the most frequent first
    if len(texts) > _MOST_WORDS:
        return None
    pairs = [*word_lists()["no_and_yes"], ("0", "1")]
    sides = {plainly_written(word): side for pair in pairs for side, word in enumerate(pair)}
    answers = [sides.get(plainly_written(text)) for text in texts]
    if len(texts) > 2 and {*answers} == {0, 1}:
        known = {plainly_written(text): text for text in reversed(texts)}
        words = next((pair for pair in pairs if {*map(plainly_written, pair)} <= known.keys()), None)
        no, yes = (known[plainly_written(w)] for w in words) if words else (texts[answers.index(s)] for s in (0, 1))
        return f"no and yes in several spellings? As one: kind: boolean, texts: {yamlio.in_one_line([no, yes])}"
    forms = [_BETWEEN_LETTERS.sub("", text.casefold()).rstrip(".") for text in texts]
    alike: dict[str, list[str]] = {}
    for form, text in zip(forms, texts, strict=True):
        alike.setdefault(form, []).append(text)
    groups = {first: rest for first, *rest in alike.values() if rest}
    if not groups:
        return None
    return f"one value in several spellings? To merge them: groups: {yamlio.in_one_line(groups)}"


def _several_answers(profile: Profile) -> str | None:
    """Cells such as `web;app;mail`."""
    texts: list[str] = profile.texts.to_pylist()
    if not 3 <= len(texts) <= 2000:
        return None
    for mark in (";", "|", ","):
        parts = [[part.strip() for part in text.split(mark)] for text in texts]
        rows = profile.held(parts)
        together = int(profile.counts[[len(some) > 1 for some in parts]].sum())
        few = len(rows) < len(texts) and 2 <= len(rows) <= 30 and min(rows.values()) >= FEW_ROWS
        if few and together >= 0.1 * profile.present and any(text in rows for text in texts):
            answers = ", ".join(sorted(rows))
            return f"several answers in one cell? Give each its own yes/no column: {answers}"
    return None


def _unread_shape(profile: Profile) -> str | None:
    """Returns the hint for text of an unread shape.

    Such text is 120/80 or $(1.00).
    """
    for shape in word_lists()["shapes"]:
        some = shape.get("some", False)
        if (some or profile.values > 2) and (profile.any_matches if some else profile.all_match)(shape["pattern"]):
            return str(shape["hint"])
    return None


def _several_formats(profile: Profile) -> str | None:
    if profile.share_matching(r"\d{2,4}$|^\d{4}") < 0.8:  # which costs less than the patterns
        return None
    shares = sorted(map(profile.share_matching, word_lists()["date_shapes"]), reverse=True)
    if shares[0] < 1 and shares[1] > 0 and sum(shares) > 0.8:
        return f"dates in several formats? The commonest fits {100 * shares[0]:.0f}% of the values: write all in one"
    return None


#: What text may be, beside its kind: each says so in a sentence, or returns None.
_Hint = Callable[[Profile], str | None]
HINTS: tuple[_Hint, ...] = (_several_formats, _unread_shape, _several_answers, _several_spellings)


def text_hints(profile: Profile, *, listed: bool = True) -> tuple[str, ...]:
    """Returns hints on a column of text.

    The first hint says it all.

    Args:
        profile: of the column.
        listed: whether the draft lists its values, so that a hint may name them.
    """
    hints = HINTS if listed else tuple(hint for hint in HINTS if hint is not _several_spellings)
    return tuple(remark for hint in hints if profile.values > 1 and (remark := hint(profile)) is not None)[:1]


def sentinels(*, dates: bool) -> list[Any]:
    """Returns the numbers, or the days, that tables use for missing values."""
    return list(word_lists()["sentinel_days" if dates else "sentinels"])


def odd_texts(profile: Profile) -> Iterator[dict[str, int]]:
    """Yields texts that may be no numbers or dates, with rows.

    First they are words: texts that are no number, or beside dates have no digit. Then also those of a shape that few
    rows have, as 12,5 among numbers with a point, or 2023-2-3 among dates; and days that no month has.
    """
    rows = dict(zip(profile.texts.to_pylist(), profile.counts.tolist(), strict=True))
    for rare in (False, True):
        for numbers, digits in ((True, r"\d+"), (False, r"\d")):
            shapes = {text: re.sub(digits, "9", text) for text in rows if rare}
            held = profile.held([[shape] for shape in shapes.values()]) if rare else {}
            yield {
                text: count
                for text, count in rows.items()
                if not (mostly_numbers([text]) if numbers else re.search(r"\d", text))
                or (rare and held[shapes[text]] < FEW_ROWS)
            }
    for pattern, form in word_lists()["dates"]:
        if profile.all_match(f"^{pattern}([ T]|$)"):
            days = pd.Series([re.split("[ T]", text)[0] for text in rows], dtype=object)
            impossible = pd.to_datetime(days, format=form, errors="coerce").isna()
            yield {text: count for (text, count), odd in zip(rows.items(), impossible, strict=True) if odd}


def of_rows(key: str, words: Sequence[Any], rows: int, of: int) -> str:
    """Returns words on codes or censored values, with their share.

    >>> of_rows("missing_codes", [-999], 77, 1_000), of_rows("censored", ["<0.5", ">9"], 1, 4)
    ('-999 stands for missing (7.7%)', '<0.5, >9 are censored (25.0%)')
    """
    verb, what = (("is", "are"), "censored") if key == "censored" else (("stands", "stand"), "for missing")
    return f"{', '.join(map(str, words))} {verb[len(words) > 1]} {what} ({100 * rows / of:.1f}%)" if words else ""


def limit_in(text: str) -> tuple[str, str] | None:
    """Returns sign and number of a limit, such as <0.5.

    The sign is < or >. None for any other text.
    """
    match = re.match(r"^([<>≤≥])\s*=?\s*([+-]?[\d.,]*\d)$", text)
    return ("<" if match[1] in "<≤" else ">", match[2]) if match else None


def sentinel(numbers: Iterable[float], rows: Iterable[int]) -> str | None:
    """Returns a hint on a number that often stands apart.

    It stands apart from all others, as 999 does among ages.

    Apart is one beyond the others by more than their range, below zero where they are not, or three times as frequent
    as any of them and ten times as far from them as they are from each other.

    Args:
        numbers: different ones.
        rows: that hold each.
    """
    values, counts = np.array([*numbers], dtype=np.float64), np.array([*rows])
    counts, values = counts[np.isfinite(values)], values[np.isfinite(values)]
    known = set(word_lists()["sentinels"])
    for value in (values.max(), values.min()) if len(values) > 2 else ():
        rest, often = values[values != value], int(counts[values == value].sum())
        if value not in known or often < max(FEW_ROWS, _OFTEN * counts.sum()):
            continue
        low, high = float(rest.min()), float(rest.max())
        gap = value - high if value > high else low - value
        spike = often >= 3 * int(counts[values != value].max()) and gap > 10.0 * float(
            np.median(np.diff(np.sort(rest)))
        )
        if gap > high - low or (value < 0 <= low) or spike:
            return (
                f"{value:g} stands apart from the rest: does it stand for a missing value? Then missing_codes: "
                f"[{value:g}], and bounds without it"
            )
    return None


def codes_apart(numbers: Iterable[float], rows: Iterable[int]) -> str | None:
    """Returns a hint on a few whole numbers far apart.

    Such numbers are 4111 and 5411 of shops.
    """
    values, counts = np.array([*numbers], dtype=np.float64), np.array([*rows])
    if not 2 < len(values) <= _FEW_CODES or counts.min() < FEW_ROWS or (values != np.floor(values)).any():
        return None
    if float(values.max() - values.min()) < 10.0 * len(values):
        return None
    return (
        f"{len(values)} different whole numbers, far apart: codes? Then kind: categorical keeps them; as numbers the "
        "table also has others between them"
    )


def places_on_earth(bounds: Mapping[str, tuple[Any, Any]]) -> dict[str, str]:
    """Returns a hint for each pair of latitude and longitude.

    The names and bounds of two columns show that they are such a pair.
    """

    def called(key: str, most: float) -> list[str]:
        fit = {name for name, (low, high) in bounds.items() if -most <= low and high <= most}
        return [name for name in bounds if name in fit and known_words(key) & set(words_of(name))]

    pairs = zip(called("latitude", 90), called("longitude", 180), strict=False)
    hint = (
        "a place, with '{}', which may point at a person. The run takes them as separate numbers: one column of areas, "
        "in their place, keeps more"
    )
    return {name: hint.format(other) for a, b in pairs for name, other in ((a, b), (b, a))}
