"""Words and scales of several holders' tables, compared column by column.

One person who has the tables of several holders can see, before a run, that one of them writes other words or measures
in another unit. What is said here is read from rows: it is for the eyes of the person who has them.

*When words are said to differ.* Two groups of holders share no word. If both drew from the same words, the chance that
one of n rows is a word that the other group, with m rows, has never seen is about u = (1 + words that it has seen
once) / (m + 1) (Good and Turing). All n are with a chance of about u^n. It has to be below e^-10 for either group, so
that a column of rare words in a small table says nothing. Where each group has one word alone, the column names the
holder.

*When scales are said to differ.* Three quarters of the rows of some holders lie beyond three quarters of the others'.
Of n rows of one distribution, three quarters lie in its upper quarter with a chance below 3^(-n/2) (Chernoff: the
divergence of 3/4 from 1/4 is log(3)/2), which is one in 59,000 for `ENOUGH` rows. Holders may differ so much in truth
(a children's hospital): the sentence says what is seen, and asks for the unit where the ratio of the medians is that of
two units, within what both medians' spread (1.57 interquartile ranges over the root of the number of rows, as in a
notched box plot) and two digits leave open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedsyn.domain import Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.output import counted, first_of
from fedsyn.table.schema.approval import Repeats, beyond, identifiers, people_counted
from fedsyn.table.schema.binned import NUMBERS, BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.encoding import Block, Encoder
from fedsyn.table.schema.hidden import encoder_of, with_hidden
from fedsyn.table.schema.persons import person_attributes
from fedsyn.table.schema.profile import Profile
from fedsyn.table.schema.values import written
from fedsyn.table.schema.vocabulary import ENOUGH, FEW_ROWS
from fedsyn.table.schema.whose import of_nobody, rows_of_persons

#: A chance below e to the minus this is none.
_CHANCE = 10.0
# Numbers of a column that are kept of one holder; of a longer table every second, every fourth row and so on.
_KEPT = 1 << 17
# Holders that a sentence names.
_NAMED = 3
#: Ratios of units that people mix up.
UNITS = (
    (2.2046, "pounds and kilograms"),
    (2.54, "inches and centimetres"),
    (10.0, "millimetres and centimetres"),
    (12.0, "months and years"),
    (24.0, "hours and days"),
    (60.0, "minutes and hours"),
    (100.0, "per cent and shares"),
    (365.25, "days and years"),
    (1000.0, "grams and kilograms"),
    (1e6, "units and millions"),
)


def holdings_of(schema: Any, frames: Mapping[str, pd.DataFrame]) -> dict[str, Holding]:
    """Returns what is in each table, by its name.

    Args:
        schema: of all tables.
        frames: name -> rows.
    """
    holdings = {}
    for table, frame in frames.items():
        holdings[table], nobody = Holding(schema), of_nobody(schema, frame)
        holdings[table].encoded(frame[~nobody])
        if nobody.any():
            holdings[table].see(frame[nobody])
        if (own := rows_of_persons(schema, frame)) is not None:
            holdings[table].see_own(own, of_nobody(schema, own))
    return holdings


class TakesRows(Protocol):
    """A taker of rows as read and as encoded."""

    @property
    def beside(self) -> list[str]:
        """Columns that it needs beside those of the model."""

    def there(self, frame: pd.DataFrame) -> Flags | None:
        """Returns (rows,) whether each is a row of a person.

        It is not where a person has none. None: all are.
        """

    def add(self, frame: pd.DataFrame, block: Block, there: Flags | None) -> None:
        """Takes some rows more, and which of them are rows."""

    def sentences(self) -> list[str]:
        """Returns sentences on what it took, for the rows' holder."""


@dataclass(eq=False)
class Holding:
    """Contents of one holder's table, in a schema's columns.

    Attributes:
        schema: of the table.
        rows: that were counted.
        counts: column of categories -> (size,) rows of each code.
        numbers: column of numbers -> some of them, in parts.
        absent: column -> rows without a value, where the column has no place for them.
        people: identifier -> (hash of each value, rows of each) in parts.
        own_rows: rows that were counted of what is said of persons; None: the same as of all other columns.
        encoder: of its rows, which counts what it cannot place.
        maker: of its records, which takes the rows as they are read; None: nobody makes any.
    """

    schema: Any
    maker: TakesRows | None = None
    rows: int = 0
    own_rows: int | None = None
    counts: dict[str, Integers] = field(default_factory=dict)
    numbers: dict[str, list[Floats]] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)
    people: dict[str, list[tuple[Any, Integers]]] = field(default_factory=dict)
    _every: int = 1

    def __post_init__(self) -> None:
        self.encoder: Encoder = self.schema.encoder()

    @property
    def beside(self) -> list[str]:
        """Names of columns that are read and not encoded."""
        wanted = [] if self.maker is None else self.maker.beside
        return [*dict.fromkeys([*identifiers(self.schema), *wanted])]

    def encoded(self, frame: pd.DataFrame) -> Block:
        """Encodes some rows, and counts what they hold."""
        encoder, whole = self.encoder, frame
        # The rows of persons who have none are no rows, and what they lack is not missing.
        there = None if self.maker is None else self.maker.there(frame)
        frame = frame if there is None else frame[there]
        self.see(frame)
        before = dict(encoder.unplaced)
        block = encoder.block(frame)
        self._see_absent([name for name, rows in encoder.unplaced.items() if rows > before[name]], frame)
        self.add(block)
        if there is not None:
            kept = there.copy()
            kept[there] = True if block.kept is None else block.kept
            block = block._replace(kept=kept)
        if self.maker is not None:
            self.maker.add(whole, block, there)
        return block

    def see_own(self, frame: pd.DataFrame, alone: Flags) -> None:
        """Counts what persons have, in place of what their rows say.

        So it is counted of persons without a row, too.

        Args:
            frame: rows of persons (`rows_of_persons`).
            alone: which of them are of persons without a row.
        """
        names = [name for name in person_attributes(self.schema) if name in self.schema.persons.known_of_all]
        encoder = encoder_of(self.schema, names, np.int64)
        block, self.own_rows = encoder.block(frame), len(frame)
        if block.kept is not None:
            self.encoder.left_out += int((~block.kept & alone).sum())
        self.encoder.unplaced |= encoder.unplaced
        self.encoder.clipped |= encoder.clipped
        for at, name in enumerate(names):
            self.absent.pop(name, None)
            if name in self.counts:
                self.counts[name] = np.bincount(block.codes[:, at], minlength=self.schema.columns[name].size)
        self._see_absent([name for name in names if encoder.unplaced[name]], frame)

    def _see_absent(self, names: Collection[str], frame: pd.DataFrame) -> None:
        """Counts rows without a value in columns that cannot place some."""
        frame = frame if all(name in frame.columns for name in names) else with_hidden(self.schema, frame)
        for name in names:
            column = self.schema.columns[name]
            if not column.missing:  # of what cannot be placed, some has no value
                known = frozenset(word for word in self.schema.missing_text if not _lists(column, word))
                self.absent[name] = self.absent.get(name, 0) + Profile.of(frame[name], known).missing

    def of_all(self, name: str, some: int) -> str:
        """Returns how many of a column's rows, or people, some are."""
        persons = self.schema.persons
        if self.own_rows is None or name not in persons.known_of_all:
            return _of(some, self.encoder.rows)
        return _of(some, self.own_rows, *(("row",) if persons.tables is None else ("person", "people")))

    def see(self, frame: pd.DataFrame) -> None:
        """Counts how often the identifiers of some rows more repeat."""
        told = () if self.maker is None else self.maker.beside  # whose persons have a record each
        for name in identifiers(self.schema):
            if name in frame.columns and name not in told:
                profile = Profile.of(frame[name], self.schema.missing_text)
                hashes = pd.util.hash_array(np.array(profile.texts.to_pylist(), dtype=object), categorize=False)
                self.people.setdefault(name, []).append((hashes, profile.counts))

    def add(self, block: Block) -> None:
        """Counts the codes and numbers of some rows more."""
        numeric = 0
        start = -self.rows % self._every
        for j, (name, column) in enumerate(self.schema.columns.items()):
            is_open = name in self.schema.open
            if isinstance(column, CategoricalColumn) and not is_open:
                counts = np.bincount(block.codes[:, j], minlength=column.size)
                self.counts[name] = self.counts.get(name, 0) + counts
            elif isinstance(column, BinnedColumn):
                numbers = block.numbers[start :: self._every, numeric].astype(np.float64)
                self.numbers.setdefault(name, []).append(numbers)
                numeric += 1
        self.rows += len(block.codes)
        while self.rows > _KEPT * self._every:
            self._every *= 2
            for name, parts in self.numbers.items():
                self.numbers[name] = [np.concatenate(parts)[::2]]

    def numbers_of(self, name: str) -> Floats:
        """Returns the numbers that were kept of a column."""
        parts = self.numbers.get(name, [])
        numbers = np.concatenate(parts) if parts else np.zeros(0)
        return numbers[np.isfinite(numbers)]

    def repeats(self) -> dict[str, Repeats]:
        """Returns how often the values of each identifier stand in the rows."""
        counted = {}
        for name, parts in self.people.items():
            _, place = np.unique(np.concatenate([hashes for hashes, _ in parts]), return_inverse=True)
            rows = np.bincount(place, np.concatenate([counts for _, counts in parts])).astype(np.int64)
            counted[name] = Repeats.of(rows)
        return counted

    def listed(self, name: str) -> Integers:
        """Returns the rows of each listed category of a column."""
        column: CategoricalColumn = self.schema.columns[name]
        return self.counts[name][column.listed_codes]


def sentences(holdings: Mapping[str, Holding], *, slight: bool = True) -> list[str]:
    """Returns sentences on tables, for the person who has them.

    Args:
        holdings: name of a table -> what is in it; of one schema. The name of a single one may be empty.
        slight: as `alone`.
    """
    lines = [f"{name}: {sentence}" for name, sentence in unlike(holdings).items()]
    for table, holding in holdings.items():
        lines += [f"{table}: {line}" if table else line for line in alone(holding, slight=slight)]
    return lines


def alone(holding: Holding, *, slight: bool = True) -> list[str]:
    """Returns sentences on one table, for its holder.

    Args:
        holding: what is in it.
        slight: also what a schema provides for: values for "other", or beyond the bounds, no more of them than an even
            share of a category or bin; and listed words that never occur.
    """
    encoder = holding.encoder
    lines = [line for name in holding.schema.columns for line in _misfits(holding, name, slight)]
    if encoder.left_out:
        rows = _of(encoder.left_out, max(encoder.rows, holding.own_rows or 0))
        lines.append(f"left out: {rows}, which count nowhere; unlisted: true in a column gives its values a place")
    repeats = holding.repeats()
    said = people_counted(holding.schema, repeats) if holding.maker is None else holding.maker.sentences()
    return lines + said + beyond(holding.schema, repeats)


def no_row_fits(holdings: Mapping[str, Holding]) -> str:
    """Returns a sentence on tables of which every row is left out.

    It names the column that places fewest values.
    """
    holding = max(holdings.values(), key=lambda one: one.encoder.left_out)
    unplaced, column = holding.encoder.unplaced, holding.schema.columns
    name = max(unplaced, key=lambda one: unplaced[one])
    return (
        f"no row fits the schema: column '{name}' is of kind {column[name].kind} and cannot place "
        f"{holding.of_all(name, unplaced[name])}; correct its kind or its format in the schema"
    )


def cannot_place(holding: Holding) -> bool:
    """Returns whether a row has a value without a place.

    The category "other" is such a place.
    """
    columns = holding.schema.columns
    return any(rows and not _has_other(columns[name]) for name, rows in holding.encoder.unplaced.items())


def _misfits(holding: Holding, name: str, slight: bool) -> Iterator[str]:
    """Yields sentences on a column that does not fit its rows."""
    column, encoder = holding.schema.columns[name], holding.encoder
    rows, of_all = encoder.rows, partial(holding.of_all, name)
    if name in holding.schema.open:  # nothing of it stands in the schema yet
        return
    absent = holding.absent.get(name, 0)
    odd, beyond = encoder.unplaced[name] - absent, encoder.clipped.get(name, 0)
    if not slight:  # no more than if rows were spread evenly
        even = rows / max(1, column.size - len(column.sides))
        odd, beyond = odd if odd > even or not _has_other(column) else 0, beyond if beyond > even else 0
    if absent:
        fate = f"{_fate(column)}; missing: true keeps them missing"
        yield f"{name}: in {of_all(absent)} there is no value: {fate}"
    if odd and isinstance(column, BinnedColumn):
        yield f"{name}: in {of_all(odd)} there is something other than {column.expected}: {_fate(column)}"
    elif odd:
        yield f"{name}: in {of_all(odd)} the schema does not list the value: {_fate(column)}"
    if beyond:
        yield f"{name}: in {of_all(beyond)} the value lies beyond the bounds: counted in the first or last bin"
    if slight and name in holding.counts:
        listed = holding.listed(name)
        never = int(np.count_nonzero(listed == 0))
        # So many rows that each listed word would stand in ten, were they spread evenly. Rows that are left out, maybe
        # for another column, are not looked at.
        if never and holding.rows >= FEW_ROWS * len(listed):
            yield f"{name}: {never:,} of {len(listed):,} listed words never {'occurs' if never == 1 else 'occur'} here"


def _lists(column: Any, word: str) -> bool:
    return isinstance(column, CategoricalColumn) and column.lists(word)


def _of(some: int, rows: int, *who: str) -> str:
    return f"{some:,} of {counted(rows, *(who or ('row',)))} ({_share(some / rows)})"


def _share(share: float) -> str:
    return "<0.1%" if share < 0.001 else f"{100 * share:.3g}%"


def _has_other(column: Any) -> bool:
    return isinstance(column, CategoricalColumn) and column.other_value is not None


def _fate(column: Any) -> str:
    """Returns words for what becomes of rows that a column cannot place."""
    if _has_other(column):
        return f"counted as '{written(column.other_value)}'"
    if column.unlisted:
        return "counted as not listed"
    return "counted as missing" if column.missing else "left out"


def unlike(holdings: Mapping[str, Holding]) -> dict[str, str]:
    """Returns a sentence on each column that holders fill differently.

    They share no word there, or no scale.

    Args:
        holdings: name of a table, or file -> what is in it; of one schema.
    """
    sentences: dict[str, str] = {}
    if len(holdings) < 2:
        return sentences
    for name, column in next(iter(holdings.values())).schema.columns.items():
        if isinstance(column, BinnedColumn):
            numbers = {table: holding.numbers_of(name) for table, holding in holdings.items()}
            sentence = _scales(numbers, is_number=column.scale[0] == NUMBERS)
        else:
            known = {table: holding.listed(name) for table, holding in holdings.items() if name in holding.counts}
            sentence = _words(known)
        sentences |= {name: sentence} if sentence else {}
    return sentences


def _words(counts: Mapping[str, Integers]) -> str:
    """Returns a sentence on holders who share no word, or no text."""
    groups: list[tuple[list[str], Integers]] = []
    for table, rows in counts.items():
        if not rows.any():
            continue
        near = [group for group in groups if ((group[1] > 0) & (rows > 0)).any()]
        groups = [group for group in groups if not any(group is one for one in near)]
        tables = [table for group in near for table in group[0]]
        groups.append(([*tables, table], rows + sum(group[1] for group in near)))
    if len(groups) < 2 or all(np.count_nonzero(rows) == 1 for _, rows in groups):
        return ""
    for _, rows in groups:
        unseen = (1 + np.count_nonzero(rows == 1)) / (rows.sum() + 1)
        fewest = min(int(other.sum()) for _, other in groups if other is not rows)
        if fewest * -math.log(unseen) < _CHANCE:
            return ""
    order = list(counts)
    named = sorted(([*tables] for tables, _ in groups), key=lambda tables: order.index(tables[0]))
    groups_ = [f"({first_of(tables, _NAMED)})" if len(tables) > 1 else tables[0] for tables in named]
    return f"no word in common between {', '.join(groups_[:-1])} and {groups_[-1]}"


def _scales(numbers: Mapping[str, Floats], *, is_number: bool) -> str:
    """Returns a sentence on holders' numbers that lie apart.

    It is empty where they do not.
    """
    known = {table: values for table, values in numbers.items() if len(values)}
    if len(known) < 2:
        return ""
    medians = {table: float(np.median(values)) for table, values in known.items()}
    order = sorted(known, key=lambda table: medians[table])
    steps = np.diff([medians[table] for table in order])
    cut = int(np.argmax(steps)) + 1
    lower, upper = (np.concatenate([known[table] for table in part]) for part in (order[:cut], order[cut:]))
    if min(len(lower), len(upper)) < ENOUGH or np.quantile(lower, 0.75) >= np.quantile(upper, 0.25):
        return ""
    high = cut >= len(order) - cut
    named = sorted(order[cut:] if high else order[:cut], key=list(known).index)
    own, others = (upper, lower) if high else (lower, upper)
    top, bottom = float(np.median(own)), float(np.median(others))
    if not is_number or not (top > 0 < bottom or top < 0 > bottom):
        way = "above" if high else "below"
        return f"three quarters of the rows of {first_of(named, _NAMED)} lie {way} three quarters of the others'"
    ratio = top / bottom
    unit = _unit(ratio, _spread(own) + _spread(others))
    rest = [table for table in known if table not in named]
    whose = f"that of {rest[0]}" if len(rest) == 1 else "the others'"
    return (
        f"the median of {first_of(named, _NAMED)} is {_two_digits(ratio)} times {whose}{f' ({unit}?)' if unit else ''}"
    )


def _spread(values: Floats) -> float:
    """Relative uncertainty of a median."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return float(1.57 * (high - low) / math.sqrt(len(values)) / abs(middle))


def _unit(ratio: float, spread: float) -> str:
    """Returns two units of this ratio, or no text."""
    times = max(ratio, 1 / ratio)
    off, unit = min((abs(math.log(times / known)), unit) for known, unit in UNITS)
    return unit if off <= math.log1p(spread + 0.5 * 10 ** (math.floor(math.log10(times)) - 1) / times) else ""


def _two_digits(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,g}"


def changing(tables: Iterable[Mapping[str, int]]) -> list[str]:
    """Returns sentences on columns that differ between a person's rows.

    They are for the person who has the rows.

    Args:
        tables: of each table, column that is said to be the same in all rows of a person -> persons in whom it is not.
    """
    totals: dict[str, int] = {}
    for table in tables:
        for name, persons in table.items():
            totals[name] = totals.get(name, 0) + persons
    return [
        f"column '{name}' differs between the rows of {counted(persons, 'person', 'people')}, and the schema says that "
        "it is the same in all rows (persons.constant): one of the values stands for all"
        for name, persons in totals.items()
    ]
