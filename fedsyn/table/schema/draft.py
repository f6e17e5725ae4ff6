"""Guesses of which kind each column of a table is.

They go by its values, its dtype and its name, and say why. `drafting` makes a schema of them.

A draft is a proposal. Everything that is read from the table is marked, whatever points at single persons is proposed
to be left out, the bounds of everything else are rounded outward, and nothing runs before approval.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsyn.domain import Integers
from fedsyn.lazy import pa, pd
from fedsyn.output import counted
from fedsyn.table.schema import vocabulary
from fedsyn.table.schema.binned import LARGEST_INTEGER, MOMENTS, NUMBERS, BinnedColumn, NumericColumn
from fedsyn.table.schema.column_base import (
    NOTATION,
    AsideColumn,
    ColumnBase,
    DropColumn,
    IdentifierColumn,
    Reading,
    TextColumn,
)
from fedsyn.table.schema.columns import KINDS, BooleanColumn, CategoricalColumn, CodeColumn
from fedsyn.table.schema.draft_request import checked_names
from fedsyn.table.schema.drafted_bins import FINEST
from fedsyn.table.schema.drafted_values import Held, far_codes
from fedsyn.table.schema.ordered import (
    DateColumn,
    DatetimeColumn,
    DecimalColumn,
    DurationColumn,
    IntegerColumn,
    TemporalColumn,
    TimeColumn,
)
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import MISSING_TEXT, is_missing, mostly_numbers
from fedsyn.table.schema.written import (
    Written,
    bounds_of_days,
    moments,
    of_decimals,
    of_floats,
    outward,
    span_of,
    written_numbers,
)

# A column lists at most so many values; of a longer list, those that enough rows hold.
MOST_CATEGORIES = 500
LONG_LIST = 100
# Share of texts with a digit, from which on they are codes.
_CODES = 0.8
# An integer label with at most this many different values is a class, not a quantity.
_MOST_CLASSES = 20
# Digits of Arrow's decimals of 128 bits.
MOST_DIGITS = 38


@dataclass(frozen=True, eq=False)
class Guess:
    """A proposal for one column.

    Attributes:
        column: as the schema has it, with `drafted`.
        values: number of different values.
        missing: share of the rows without one.
        why: of the guess, in words; a value that it names is one that many rows hold.
        folded: (values, rows) that become the category "other"; of persons, who hold each value once.
        rare: number of listed categories that fewer than `FEW_ROWS` rows, or people, hold.
        missing_values: words of a fixed list that were taken for missing values.
        hints: what a person should look at, in sentences (`vocabulary.HINTS`).
    """

    column: ColumnBase
    values: int
    missing: float
    why: str
    folded: tuple[int, int] = (0, 0)
    rare: int = 0
    missing_values: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuessOptions:
    """Options of a guess.

    Attributes:
        bins: of ordered columns.
        is_label: whether the column is the label: integers of few values become classes, and it gets no "other".
        keep: whether the column is to be kept, whatever it looks like.
        decimal: the decimal mark of text, where somebody said it.
        stored: whether the table had dtypes, which come back (a file of text has none).
        whose: (rows,) number of each row's person, who counts once for each value; None: each row counts.
    """

    bins: int = FINEST
    is_label: bool = False
    keep: bool = False
    decimal: str | None = None
    stored: bool = True
    whose: Integers | None = None

    def profile(self, series: pd.Series) -> Profile:
        """Returns the profile of a column of these rows."""
        return Profile.of(series, whose=self.whose)


def made(
    profile: Profile, kind: type[ColumnBase], keys: Mapping[str, Any], why: str, drafted: str = "bounds", rare: int = 0
) -> Guess:
    """Returns a guess of a kind.

    `drafted` holds what was read from the data. `rare` marks categories that few rows hold.
    """
    marks = ("kind", drafted, "missing", *(("rare",) if rare else ()))
    column = kind.model_validate({**keys, "missing": profile.missing > 0, "drafted": marks})
    return Guess(column, profile.values, profile.missing / max(1, profile.rows), why, rare=rare)


def set_aside(
    profile: Profile, kind: type[ColumnBase], why: str, stored: str | None = None, *, measured: bool = False
) -> Guess:
    """Returns a proposal to leave a column out.

    An identifier that repeats may say which person a row is of, whatever its name is: it is taken for one until
    somebody says that it does not (`schema review` asks), and a hint says how many rows each has. Not so where its
    values look `measured`, or are names that different persons share.
    """
    keys: dict[str, Any] = {"drafted": ("kind",), "stored": stored}
    hints: tuple[str, ...] = ()
    if (
        kind is IdentifierColumn
        and profile.values < profile.present
        and not (measured or vocabulary.is_shared(profile.name))
    ):
        keys |= {"person": True, "drafted": ("kind", "person")}
        hints = (_several_rows(profile),)
    return Guess(kind.model_validate(keys), profile.values, profile.missing / max(1, profile.rows), why, hints=hints)


def _several_rows(profile: Profile) -> str:
    return vocabulary.several_rows(profile.name, profile.values, profile.present, int(profile.counts.max()))


def text_guess(profile: Profile, options: GuessOptions, stored: str | None) -> Guess:
    """Proposes a kind for a column of text.

    It also proposes the column's public-looking values. `stored` is the dtype that is to come back.
    """
    keys: dict[str, Any] = {"stored": stored} if stored else {}
    if not profile.values:
        if options.keep:
            return _listed(profile, CategoricalColumn, keys, "no row has a value", options)
        return set_aside(profile, DropColumn, "no row has a value", stored)
    if not options.keep:
        aside = _aside(profile, stored)
        if aside is not None:
            return aside
    guess = _rolled_up(profile, options, keys) or _more_than_text(profile, options, keys)
    if guess is not None:
        return guess if isinstance(guess.column, BinnedColumn) else replace(guess, hints=vocabulary.text_hints(profile))
    words = tuple(sorted({*vocabulary.word_lists()["placeholders"]} & {*profile.texts.to_pylist()}))
    if words:  # what is left may be numbers or dates
        guess = _more_than_text(profile.without(words), options, keys)
        if guess is not None and not isinstance(guess.column, CategoricalColumn):
            marks = ", ".join(f"'{word}'" for word in words)
            return replace(guess, why=f"{guess.why}; {marks} taken for missing", missing_values=words)
    among = None if options.is_label else _among_words(profile, options, keys)
    if among is not None:
        return among
    if not options.keep and vocabulary.nearly_unique(profile):
        hints = vocabulary.text_hints(profile, listed=False)
        measured = bool(hints) or mostly_numbers(profile.tried.to_pylist())
        guess = set_aside(profile, IdentifierColumn, vocabulary.shown_share(profile), stored, measured=measured)
        return replace(guess, hints=guess.hints or hints)
    guess = proposed(profile, CategoricalColumn, Reading({}, "text"), options, keys)
    return replace(guess, hints=vocabulary.text_hints(profile))


def _among_words(profile: Profile, options: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """Proposes numbers or dates among a few words.

    The words are limits, such as <0.5, and codes for missing values, such as refused.

    Words that many rows hold are listed. Others are not, and have a code for what the column does not list. None unless
    the rest is read, and is four of five different texts or more.
    """
    for words in vocabulary.odd_texts(profile):
        if not 0 < len(words) <= min(_MOST_CLASSES, profile.values // 5):
            continue
        guess = _more_than_text(profile.without(words), options, keys)
        if guess is None or not isinstance(guess.column, BinnedColumn):
            continue
        unread = {text: rows for text, rows in words.items() if guess.column.parse(text, frozenset()) is None}
        if unread != words:  # the column reads some of them
            again = _more_than_text(profile.without(unread), options, keys)
            guess, words = (again, unread) if again and type(again.column) is type(guess.column) else (guess, words)
        often = sorted(text for text, count in words.items() if count >= vocabulary.FEW_ROWS)
        limits = [text for text in often if vocabulary.limit_in(text)]
        found = {"missing_codes": tuple(w for w in often if w not in limits), "censored": tuple(limits)}
        found = {key: listed for key, listed in found.items() if listed}
        left, held = len(words) - len(often), sum(count for count in words.values() if count < vocabulary.FEW_ROWS)
        column = guess.column.model_copy(
            update={**found, "missing": profile.missing > 0, "unlisted": left > 0}
            | {"drafted": (*guess.column.drafted, *found, *(("unlisted",) if left else ()))}
        )
        what = "cannot be read as the others are; the run counts such cells together and writes none of them"
        hints = (f"{counted(held, 'cell' if options.whose is None else 'value')} {what}",) if left else ()
        parts = [(limits, "censored"), ([text for text in often if text not in limits], "missing_codes")]
        shares = (
            vocabulary.of_rows(key, texts, sum(words[text] for text in texts), profile.rows) for texts, key in parts
        )
        why = "; ".join([guess.why, *filter(None, shares)])
        return replace(guess, column=column, why=why, hints=hints, missing=profile.missing / max(1, profile.rows))
    return None


def _with_codes(series: pd.Series, guess: Guess, options: GuessOptions) -> Guess:
    """Returns a guess with codes for missing values (`far_codes`).

    Its bounds reach none of them.
    """
    column = guess.column
    if not isinstance(column, BinnedColumn) or column.scale[0] not in (NUMBERS, MOMENTS):
        return guess
    numbers, _, counts = Held.of(column, series, MISSING_TEXT.union(guess.missing_values), options.whose)
    known, bad = column.parse_all(vocabulary.sentinels(dates=column.scale[0] == MOMENTS), MISSING_TEXT)
    codes = far_codes(numbers, counts, known[~bad].tolist())
    if not codes:
        return guess
    labels = series.drop_duplicates()
    parsed, _ = column.parse_all([None if is_missing(label) else label for label in labels.tolist()], MISSING_TEXT)
    left = ~series.isin(labels[np.isin(parsed, codes)]).to_numpy(bool)
    whose = None if options.whose is None else options.whose[left]
    rest = _plain_guess(series[left], replace(options, whose=whose))
    if not isinstance(rest.column, BinnedColumn) or type(rest.column) is not type(column):
        return guess
    numeric = column.scale[0] == NUMBERS
    words = [int(column.bound(code)) if numeric else column.texts(np.array([code]))[0] for code in codes]
    update = {"missing_codes": (*column.missing_codes, *words), "missing": column.missing}
    update["drafted"] = (*(mark for mark in rest.column.drafted if mark != "missing_codes"), "missing_codes")
    held = int(counts[np.isin(numbers, codes)].sum())
    why = f"{rest.why}; {vocabulary.of_rows('missing_codes', words, held, options.profile(series).rows)}"
    return replace(guess, column=rest.column.model_copy(update=update), why=why)


def _rolled_up(profile: Profile, options: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """Proposes codes of too many values to list, rolled up.

    They are cut to as many of their first characters as leave most rows a listed code.

    ICD-10 codes begin with a category of three characters, post codes with a region, of which all are listed. Where not
    even the first character does that, they are no codes that could be rolled up.
    """
    if profile.values <= LONG_LIST:
        return None
    if vocabulary.is_icd(profile):
        longest, most, what = 3, profile.values, "ICD-10 codes"
    elif vocabulary.is_post_code(profile):
        longest, most, what = min(map(len, profile.texts.to_pylist())) - 1, LONG_LIST, "post codes"
    else:
        return None
    for leading in range(longest, 0, -1):
        short = profile.replaced(rf"^(.{{{leading}}}).*$", r"\1")
        cutoff = _kept(short)
        if short.values <= most and cutoff > 1 and 2 * int(short.counts[:cutoff].sum()) >= short.present:
            guess = _listed(short, CodeColumn, {**keys, "leading": leading}, what, options)
            return replace(guess, why=f"{what}, {profile.values:,} of them: by the first {leading}")
    return None


def _more_than_text(profile: Profile, options: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """Returns the guess of the first kind that reads the text.

    Numbers are tried after the kinds. None for other text.
    """
    if not profile.values:
        return None
    # Digits with a leading zero are a code, unless they are days such as 01052024.
    first = (DateColumn,) if profile.any_matches(r"^0\d{7}$") else ()
    for kind in (*first, *KINDS.values()):
        reading = kind.reading(profile)
        if reading is not None and _reads(guess := proposed(profile, kind, reading, options, keys), profile):
            return guess
    numbers = written_numbers(profile, options.decimal, any_size=options.keep)
    if numbers is not None and _reads(guess := quantity(profile, numbers, options, keys), profile):
        return guess
    return None


def _reads(guess: Guess, profile: Profile) -> bool:
    """Returns whether a column reads what it was guessed from.

    Tries it on some of the texts.
    """
    if not isinstance(guess.column, BinnedColumn):
        return True
    _, bad = guess.column.parse_all(profile.tried.to_pylist(), frozenset())
    return not bad.any()


def _aside(profile: Profile, stored: str | None) -> Guess | None:
    """Proposes to leave a column out that points at persons.

    Its name or its values do. Free text is left out, too. None for any other column.
    """
    why = (
        vocabulary.personal_by_values(profile)
        or vocabulary.personal_by_name(profile)
        or vocabulary.numbers_the_rows(profile)
    )
    named = CodeColumn.reading(profile) is not None and not vocabulary.is_post_code(profile)
    if why is None and named and vocabulary.nearly_unique(profile):
        why = vocabulary.shown_share(profile)
    if why is not None:
        return set_aside(profile, IdentifierColumn, why, stored)
    if vocabulary.is_free_text(profile):
        return set_aside(profile, TextColumn, "free text", stored)
    return None


def proposed(
    profile: Profile, kind: type[ColumnBase], reading: Reading, options: GuessOptions, keys: Mapping[str, Any]
) -> Guess:
    """Returns the guess that a column is of one kind.

    `keys` are further keys that it has.
    """
    if "bins" in kind.model_fields:
        return made(profile, kind, {**reading.keys, "bins": options.bins, **keys}, reading.why)
    keys = {**reading.keys, **keys}
    if kind.model_fields["categories"].is_required():
        return _listed(profile, kind, keys, reading.why, options)
    return made(profile, kind, keys, reading.why, "categories")


def _kept(profile: Profile) -> int:
    """Returns how many values a draft lists, the most frequent ones.

    A draft lists all values, or, if there are many, those that enough rows hold.
    """
    if profile.values <= LONG_LIST:
        return profile.values
    return min(MOST_CATEGORIES, int(np.count_nonzero(profile.counts >= vocabulary.FEW_ROWS)))


def _listed(
    profile: Profile, kind: type[ColumnBase], keys: Mapping[str, Any], why: str, options: GuessOptions
) -> Guess:
    """Returns a guess that lists the values.

    If there are many, it lists those that enough rows hold.
    """
    texts: list[str] = profile.texts.to_pylist()
    cutoff = _kept(profile)
    listed = keys.get("categories") or sorted(texts[:cutoff])
    named = [text for text in texts[:cutoff] if text.casefold() == "other"]
    other = named[0] if named else "other"
    keys = {**keys, "categories": tuple(listed) or (other,)}
    if options.is_label and listed:
        keys |= {"other": False}
    elif not named and (cutoff < profile.values or not listed):
        keys |= {"other": other}
    elif not named:  # all are listed: what other rows hold beyond them is counted, and in no table
        keys |= {"other": False, "unlisted": True}
    folded = (profile.values - cutoff, profile.held([[at >= cutoff] for at in range(profile.values)]).get(True, 0))
    rare = int(np.count_nonzero(profile.counts[:cutoff] < vocabulary.FEW_ROWS))
    guess = made(profile, kind, keys, why, "categories", rare)
    return replace(guess, folded=folded)


def quantity(profile: Profile, numbers: Written, options: GuessOptions, keys: Mapping[str, Any]) -> Guess:
    """A column of numbers: classes, integers, decimals, or floats of any precision."""
    whole = numbers.places == 0
    if options.is_label and whole and profile.values <= _MOST_CLASSES and not numbers.keys:
        classes = tuple(sorted(int(text) for text in profile.texts.to_pylist()))
        if len(set(classes)) == len(classes):
            return made(profile, CategoricalColumn, {**keys, "categories": classes}, "classes", "categories")
    low, high = outward(numbers.low, numbers.high, numbers.places)
    if whole:  # rounded outward, they may pass what is exact
        low, high = max(low, -float(LARGEST_INTEGER)), min(high, float(LARGEST_INTEGER))
    shared: dict[str, Any] = {**numbers.keys, "lower": low, "upper": high, "bins": options.bins, **keys}
    if numbers.places is None:
        if numbers.keys:
            shared |= {"places": 6}
            return made(profile, DecimalColumn, shared, numbers.why)
        return made(profile, NumericColumn, {**shared, **numbers.form, "dtype": "float"}, numbers.why)
    if whole:
        return made(profile, IntegerColumn, shared, "whole numbers" if not numbers.keys else f"whole {numbers.why}")
    return made(profile, DecimalColumn, {**shared, "places": numbers.places}, numbers.why)


def typed_guess(series: pd.Series, options: GuessOptions) -> Guess | None:
    """Guesses from a dtype, or from the types of Python's objects.

    None for what has to be looked at like text.
    """
    dtype, present = series.dtype, series.dropna()
    objects = dtype.kind == "O" or (isinstance(dtype, pd.ArrowDtype) and dtype.type in (dt.date, dt.time))
    types = {type(value) for value in present.iloc[:1000].tolist()} if objects else set()
    keys: dict[str, Any] = {"stored": str(dtype)}
    if isinstance(dtype, pd.CategoricalDtype):
        return _category(series, options, keys)
    if pd.api.types.is_bool_dtype(dtype) or types == {bool}:
        why = "true and false" if types else f"dtype {dtype}"
        return made(options.profile(series), BooleanColumn, keys, why, "categories")
    if pd.api.types.is_complex_dtype(dtype) or types & {list, dict, set, np.ndarray, bytes}:
        what = "lists, records or bytes" if types else "complex numbers"
        return Guess(DropColumn(drafted=("kind",), stored=str(dtype)), 0, 0.0, f"{what}, of which no kind is")
    kind: type[TemporalColumn] = DateColumn
    if not len(present):
        return text_guess(options.profile(series), options, str(dtype))
    if isinstance(dtype, pd.ArrowDtype) and pa.types.is_decimal(dtype.pyarrow_dtype):
        return quantity(_counted(series), of_decimals(present, dtype.pyarrow_dtype.scale), options, keys)
    if pd.api.types.is_numeric_dtype(dtype) or (types and types <= {int, float}):
        return _numbers(pd.to_numeric(series), options)
    if types == {dt.date}:
        keys = keys if isinstance(dtype, pd.ArrowDtype) else {"stored": "date32[day]"}
        reading = Reading(bounds_of_days(min(present), max(present)), "dates")
    elif pd.api.types.is_datetime64_any_dtype(dtype):
        at_midnight, reading = moments(present)
        kind = DateColumn if at_midnight else DatetimeColumn
    elif pd.api.types.is_timedelta64_dtype(dtype):
        kind, reading = DurationColumn, span_of(present, {})
    elif types == {dt.time}:
        finer = any(value.microsecond for value in present.tolist())
        kind, keys = TimeColumn, {"stored": "time64[us]"}
        reading = Reading({"step": "microsecond"} if finer else {}, "times of day")
    elif types == {decimal.Decimal}:
        places = max(0, *(-int(value.as_tuple().exponent) for value in present.unique().tolist()))
        size = max(MOST_DIGITS, places, max(value.adjusted() for value in present.tolist()) + 1 + places)
        keys = {"stored": f"decimal{'128' if size == MOST_DIGITS else '256'}({size}, {places})"}
        return quantity(_counted(series), of_decimals(present, places), options, keys)
    elif types and types <= {dt.datetime, pd.Timestamp}:
        several = len({value.utcoffset() for value in present.tolist()}) > 1
        objects_of_time = pd.to_datetime(present, utc=True if several else None)
        at_midnight, reading = moments(objects_of_time)
        kind = DateColumn if at_midnight else DatetimeColumn
        keys = {"stored": f"timestamp[us{', UTC' if objects_of_time.dt.tz is not None else ''}]"}
    else:
        return None
    return proposed(_counted(series), kind, reading, options, keys)


def _counted(series: pd.Series) -> Profile:
    """Returns a profile without texts.

    It is for values that no pattern has to be tried on.
    """
    counts = series.value_counts(dropna=True).to_numpy()
    texts = pa.nulls(len(counts), pa.string())
    return Profile(str(series.name), len(series), int(series.isna().sum()), texts, counts)


def _category(series: pd.Series, options: GuessOptions, keys: dict[str, Any]) -> Guess | None:
    """Guesses from a categorical dtype, which lists its categories.

    Categories of text may still be names.
    """
    profile = options.profile(series)
    if not profile.values:
        return set_aside(profile, DropColumn, "no row has a value", str(series.dtype))
    if not options.keep:
        why = vocabulary.personal_by_values(profile) or vocabulary.personal_by_name(profile)
        if why is None and vocabulary.nearly_unique(profile):
            why = vocabulary.shown_share(profile)
        if why is not None:
            return set_aside(profile, IdentifierColumn, why, str(series.dtype))
    values = series.cat.categories.tolist()
    plain = all(isinstance(v, bool | int | str) or (isinstance(v, float) and math.isfinite(v)) for v in values)
    keys |= {"categories": tuple(values if plain else map(str, values)), "other": False}
    keys |= {"ordered": True} if series.cat.ordered else {}
    why = f"dtype category{', ordered' if series.cat.ordered else ''}"
    rare = len(values) - int(np.count_nonzero(profile.counts >= vocabulary.FEW_ROWS))
    return made(profile, CategoricalColumn, keys, why, "categories", rare)


def _numbers(series: pd.Series, options: GuessOptions) -> Guess:
    """Guesses for plain numbers of a frame, as for their text.

    Whole numbers may be dates, codes and identifiers, so they are looked at as text. Others are written as Python
    writes them: with an exponent where they are below 1e-4 or from 1e16 on.
    """
    stored = str(series.dtype) if options.stored else None
    numbers: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
    present = numbers[np.isfinite(numbers)]
    few = not present.size or np.abs(present).max() <= LARGEST_INTEGER  # every float beyond is whole
    if pd.api.types.is_integer_dtype(series.dtype) or (few and (present == np.floor(present)).all()):
        return text_guess(options.profile(series), options, stored)
    profile, sizes = _counted(series), np.abs(present[present != 0])
    if not options.keep and (why := vocabulary.personal_by_name(profile)) is not None:
        return set_aside(profile, IdentifierColumn, why, stored)
    plain = sizes.min() >= 1e-4 and sizes.max() < 1e16
    return quantity(profile, of_floats(series, present, plain), options, {"stored": stored} if stored else {})


def guessed_columns(
    frame: pd.DataFrame,
    bins: int | None = None,
    label: str | None = None,
    keep: Collection[str] = (),
    *,
    decimal: str | None = None,
    text: bool = False,
    whose: Integers | None = None,
) -> dict[str, Guess]:
    """Guesses each column's kind, with the finest bins.

    The arguments, and what is raised, are those of `drafting.draft_columns`; `whose` is that of `GuessOptions`.
    """
    names = checked_names(frame, bins, label, keep)
    guesses = {}
    for j, name in enumerate(names):
        is_label = name == label
        options = GuessOptions(bins or FINEST, is_label, is_label or name in keep, decimal, not text, whose)
        guesses[name] = guess_of(frame.iloc[:, j].rename(name), options)
    guesses |= _in_thousands(guesses, frame, options)
    for name, guess in guesses.items():
        if NOTATION & guess.column.model_dump(exclude_defaults=True).keys():
            marks = (*guess.column.drafted, "notation")
            guesses[name] = replace(guess, column=guess.column.model_copy(update={"drafted": marks}))
    return guesses


def _in_thousands(guesses: Mapping[str, Guess], frame: pd.DataFrame, options: GuessOptions) -> dict[str, Guess]:
    """Guesses anew for text of three decimals each, such as 7.192.

    It does so where all other decimals of a table have commas.
    """
    decimals = {n: g.column for n, g in guesses.items() if isinstance(g.column, DecimalColumn)}
    if {column.mark for column in decimals.values() if column.places != 3} != {","}:
        return {}
    new_guesses = {}
    for at, name in enumerate(guesses):
        series = frame.iloc[:, at].rename(name)
        if name not in decimals or decimals[name].places != 3 or pd.api.types.is_numeric_dtype(series.dtype):
            continue
        if not Profile.of(series).any_matches(r"^\D*0\."):
            new_guesses[name] = guess_of(series, replace(options, is_label=False, keep=True, decimal=","))
    return {name: guess for name, guess in new_guesses.items() if isinstance(guess.column, IntegerColumn)}


def drafted_schema(guesses: Mapping[str, Guess], label: str | None = None) -> dict[str, Any]:
    """The guesses as `Schema.from_dict` takes them."""
    words = sorted({word for guess in guesses.values() for word in guess.missing_values})
    data: dict[str, Any] = {"columns": {name: guess.column for name, guess in guesses.items()}, "label": label}
    return data | ({"missing_values": words} if words else {})


def _of_persons(series: pd.Series, guess: Guess, options: GuessOptions) -> str | None:
    """Returns a hint on a kept column of persons, or None.

    The column's name says so, or most of its rows hold values that are too rare to list, as the numbers of persons are.
    Where a few persons have many rows each, most of the values are, and a quarter of the rows: then codes are asked
    about, which have digits.
    """
    values, rows = guess.folded
    unlisted = False
    if rows:
        shown = options.profile(series)
        many = 2 * values > guess.values and 4 * rows > shown.present and shown.share_matching("[0-9]") > _CODES
        unlisted = many or 2 * rows > shown.present
    if not unlisted and not vocabulary.names_an_identifier(str(series.name), guess.values):
        return None
    profile = Profile.of(series)
    return vocabulary.of_persons(_several_rows(profile)) if profile.values < profile.present else None


def guess_of(series: pd.Series, options: GuessOptions) -> Guess:
    return _with_codes(series, _plain_guess(series, options), options)


def _plain_guess(series: pd.Series, options: GuessOptions) -> Guess:
    stored = str(series.dtype) if options.stored else None
    guess = typed_guess(series, options) or text_guess(options.profile(series), options, stored)
    modelled = not isinstance(guess.column, AsideColumn)
    if modelled and guess.values == 1 and not guess.missing and not options.keep and len(series) >= vocabulary.ENOUGH:
        why = "one value in every row: there is nothing to learn"
        return replace(guess, column=DropColumn(drafted=("kind",), stored=stored), why=why, rare=0, hints=())
    if modelled and (hint := _of_persons(series, guess, options)):
        return replace(guess, hints=(*guess.hints, hint))
    return guess
