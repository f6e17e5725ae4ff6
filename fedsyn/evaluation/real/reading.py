"""Values of two tables as they are written, in codes.

No schema has a say. The real rows alone show what a column holds: numbers or dates, if a draft of their values would
read them so, else words. Each value gets a code:

- a number that more than half of what is called a lost share of the rows hold (zero, a limit, a default) is alone; the
  numbers between such ones lie in cells of about equally many real rows;
- a word is alone; of very many the most frequent ones are, and the rest are together;
- missing;
- what no real row has: a word that the real rows never hold, or text among numbers.

Words that mean yes and no are one, where the real rows themselves write them in several ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.evaluation.scores import MOST_GROUPS, Floats, Grouping, few_groups, joined_groups
from fedsyn.evaluation.verdict import LOST
from fedsyn.lazy import pa, pd
from fedsyn.table.schema import BinnedColumn
from fedsyn.table.schema.binned import NUMBERS
from fedsyn.table.schema.column_base import ColumnBase
from fedsyn.table.schema.columns import no_or_yes
from fedsyn.table.schema.digits import numbers_in
from fedsyn.table.schema.draft import GuessOptions, guess_of
from fedsyn.table.schema.profile import held_by
from fedsyn.table.schema.values import MISSING_TEXT, is_missing, written
from fedsyn.table.schema.vocabulary import FEW_ROWS

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
#: A smaller share stays kept even if all of it goes.
SHARED = LOST["share"] / 2.0
_CELLS = 48  # of numbers, between those that many rows share
_WORDS = 100  # that have a code of their own
_GUESSED = 20_000  # rows that show how a column is written
_DRAWN = 24  # cells of a picture, at most
_DAY = 86_400e6  # microseconds
REST, MISSING, NEW = "the rest", "missing", "in no real row"
#: Stands for a word that fewer than `FEW_ROWS` real rows, or people, have: it is compared, and written nowhere.
UNNAMED = "a word of few rows"


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of a table's column.

    Attributes:
        numbers: (n,) NaN where a cell holds none.
        words: different texts that are no numbers.
        at: (n,) place among the words; -1 where a cell holds none.
        whose: (n,) number of each row's person; None: each row stands for itself.
    """

    numbers: Floats
    words: Sequence[str]
    at: Integers
    whose: Integers | None = None

    @cached_property
    def known(self) -> Floats:
        """The numbers alone."""
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def held(self) -> tuple[Floats, Integers]:
        """Different numbers, ascending, and the rows of each."""
        return np.unique(self.known, return_counts=True)

    @cached_property
    def values(self) -> Integers:
        """A number for each different value, (n,); 0 is missing."""
        places = len(self.words) + 1 + np.searchsorted(self.held[0], self.numbers)
        return np.where(np.isfinite(self.numbers), places, self.at + 1)

    @cached_property
    def unshared(self) -> Flags:
        """(n,) which rows hold a value of no other row.

        Of persons it is a value of no other person.
        """
        if self.whose is None:
            return np.asarray((np.bincount(self.values) == 1)[self.values] & (self.values > 0))
        size = int(self.values.max(initial=0)) + 1
        least, most = np.full(size, len(self.at)), np.full(size, -1)
        np.minimum.at(least, self.values, self.whose)
        np.maximum.at(most, self.values, self.whose)
        return np.asarray((least == most)[self.values] & (self.values > 0))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Rows of each word."""
        return dict(
            zip(self.words, np.bincount(self.at[self.at >= 0], minlength=len(self.words)).tolist(), strict=True)
        )

    @property
    def missing(self) -> float:
        """Share of the rows that hold nothing."""
        return float((np.isnan(self.numbers) & (self.at < 0)).mean()) if len(self.at) else 0.0


@dataclass(frozen=True, eq=False)
class Notation:
    """Notation of a column, by which either table is read.

    Attributes:
        column: as a draft of the real values has it.
        is_yes: whether words mean yes or no, however they are written.
    """

    column: ColumnBase
    is_yes: bool = False

    @classmethod
    def of(cls, series: pd.Series) -> Notation:
        """Guesses the notation of real rows, from some of them, evenly spaced."""
        series = series.iloc[:: -(-len(series) // _GUESSED)]
        categorical = isinstance(series.dtype, pd.CategoricalDtype)  # as text of a file comes, and says nothing
        plain = cls(guess_of(series.astype(object) if categorical else series, GuessOptions(keep=True)).column)
        words = plain.cells(series).words if not isinstance(plain.column, BinnedColumn) else ()
        return cls(plain.column, len(words) > 2 and all(no_or_yes(word) is not None for word in words))

    def cells(self, series: pd.Series) -> Cells:
        """Reads a column of any dtype; text as a file has it."""
        plain = self._plain_numbers(series)
        if plain is not None:
            return plain
        categorical = isinstance(series.dtype, pd.CategoricalDtype)
        index, labels = (series.cat.codes, series.cat.categories) if categorical else pd.factorize(series)
        index, numbers = np.asarray(index, np.int64), self._numbers(labels)
        # What is neither missing nor a number is a word; two labels may be the same one.
        unread = np.flatnonzero(np.isnan(numbers))
        odd = zip(unread.tolist(), labels.take(unread).tolist(), strict=True)
        texts = {place: self._word(label) for place, label in odd if not is_missing(label, MISSING_TEXT)}
        words = sorted(set(texts.values()))
        place = {word: at for at, word in enumerate(words)}
        at = np.full(len(labels) + 1, -1)
        at[list(texts)] = [place[text] for text in texts.values()]
        # A cell without a label has the index -1, and finds the last one.
        return Cells(np.append(numbers, np.nan)[index], words, at[index])

    def _word(self, label: object) -> str:
        text = written(label).strip()
        if self.is_yes and (code := no_or_yes(text)) is not None:
            return ("no", "yes")[code]
        return text

    def _plain_numbers(self, series: pd.Series) -> Cells | None:
        """Returns the cells of a column of numbers; None of any other."""
        column, dtype = self.column, series.dtype
        numeric = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
        if not (isinstance(column, BinnedColumn) and column.scale[0] == NUMBERS and numeric):
            return None
        numbers = series.to_numpy(np.float64, na_value=np.nan)
        at, codes = np.full(len(numbers), -1), [word for word in column.missing_codes if not isinstance(word, str)]
        for place, code in enumerate(codes):
            at[numbers == float(code)] = place
        return Cells(np.where((at >= 0) | ~np.isfinite(numbers), np.nan, numbers), [*map(written, codes)], at)

    def _numbers(self, labels: pd.Index) -> Floats:
        """Returns the numbers of different values, NaN of words."""
        column = self.column
        if not isinstance(column, BinnedColumn):
            return np.full(len(labels), np.nan)
        if column.reads_numbers and column.scale[0] == NUMBERS:
            texts = (
                labels if isinstance(labels.dtype, pd.StringDtype) else [written(label) for label in labels.tolist()]
            )
            cells = pa.array(texts, pa.string())
            numbers = pd.to_numeric(numbers_in(cells, MISSING_TEXT), errors="coerce").to_numpy(np.float64)
        else:
            numbers = column.parse_all(labels.tolist(), MISSING_TEXT)[0] * float(column.scale[1])
        codes = {written(word) for word in (*column.missing_codes, *column.censored)}
        aside = [at for at, label in enumerate(labels.tolist() if codes else ()) if written(label).strip() in codes]
        numbers = np.where(np.isfinite(numbers), numbers, np.nan)
        numbers[aside] = np.nan
        return numbers


@dataclass(frozen=True, eq=False)
class Reading:
    """Codes of one column's values, found in its real rows.

    Codes stand in this order: cells of numbers, words, the rest, missing, in no real row.

    Attributes:
        notation: reads the values.
        least: least real number.
        lows: (cells,) least number of each cell, ascending, the first one -inf; empty of a column of words.
        alone: (cells,) whether a cell holds one number alone.
        at: (cells,) mean of the real numbers in each cell; where there is none, its least number.
        words: word -> place among those with a code of their own.
        rare: the other real words.
        few: words that so few real rows have, or people, that no report names them.
        counts: (size,) real rows of each code.
        unshared: share of the real rows whose word no other row, or person, has. A new row of the same kind holds a
            word of no row with a chance of about that (Good 1953, after Turing).
    """

    notation: Notation
    least: float
    lows: Floats
    alone: Flags
    at: Floats
    words: Mapping[str, int]
    rare: frozenset[str]
    few: frozenset[str]
    counts: Integers
    unshared: float

    @classmethod
    def of(cls, notation: Notation, cells: Cells) -> Reading:
        """Finds the codes of a column from its real cells."""
        known, held = cells.held
        lows, alone = _cells_between(known, held, len(cells.at))
        place = np.searchsorted(lows, known, side="right") - 1
        rows, sums = (np.bincount(place, weights, minlength=len(lows)) for weights in (held, held * known))
        least = float(known[0]) if len(known) else np.nan
        at = np.where(rows > 0, sums / np.maximum(rows, 1.0), np.fmax(lows, least))
        frequent = sorted(cells.counts, key=lambda word: (-cells.counts[word], word))
        words = {word: at for at, word in enumerate(frequent[:_WORDS])}
        unshared = float((cells.unshared & (cells.at >= 0)).sum()) / max(1, len(cells.at))
        there = cells.at >= 0
        held = held_by(cells.at[there], None if cells.whose is None else cells.whose[there], len(cells.words))
        few = frozenset(word for word, holders in zip(cells.words, held, strict=True) if holders < FEW_ROWS)
        rest = frozenset(frequent[_WORDS:])
        none = cls(notation, least, lows, alone, at, words, rest, few, np.zeros(0, np.int64), unshared)
        return replace(none, counts=np.bincount(none.codes(cells), minlength=none.size))

    @property
    def ordered(self) -> bool:
        """Returns whether the values are numbers or dates."""
        return len(self.lows) > 0

    @property
    def plain(self) -> bool:
        """Returns whether they are numbers, which people know by their size."""
        column = self.notation.column
        return self.ordered and isinstance(column, BinnedColumn) and column.scale[0] == NUMBERS

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.lows) + len(self.words) + 3

    @property
    def single(self) -> Flags:
        """(size,) which codes stand for one value alone."""
        return np.concatenate([self.alone, np.ones(len(self.words), bool), np.zeros(3, bool)])

    @property
    def places(self) -> Floats | None:
        """(size,) number of each code, NaN of others; None without numbers."""
        return np.append(self.at, np.full(self.size - len(self.at), np.nan)) if self.ordered else None

    def codes(self, cells: Cells) -> Integers:
        """(n,) codes of a table's cells."""
        codes = np.array([*self._of_words(cells.words), self.size - 2], np.int64)[cells.at]
        codes[np.isfinite(cells.numbers)] = self._of_numbers(cells.known)
        return codes

    def counted(self, cells: Cells) -> Integers:
        """(size,) rows of each code."""
        known, held = cells.held
        rows = [*held.tolist(), *cells.counts.values(), int((np.isnan(cells.numbers) & (cells.at < 0)).sum())]
        codes = np.array([*self._of_numbers(known), *self._of_words(cells.counts), self.size - 2], np.int64)
        return np.bincount(codes, rows, minlength=self.size).astype(np.int64)

    def _of_numbers(self, numbers: Floats) -> Integers:
        cells = np.searchsorted(self.lows, numbers, side="right") - 1
        return np.asarray(cells if self.ordered else np.full(len(numbers), self.size - 1), np.int64)

    def _of_words(self, words: Iterable[str]) -> list[int]:
        first, rest = len(self.lows), (self.size - 1, self.size - 3)
        return [first + self.words[word] if word in self.words else rest[word in self.rare] for word in words]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Text of each code.

        It is a value, or the least one of its cell. A cell that begins right after a value is above it, and one that
        ends where the real rows begin is below. A word of few real rows, or people, is not named.
        """
        words = (UNNAMED if word in self.few else word for word in self.words)
        lows = np.fmax(self.lows, self.least)
        texts = self.texts(lows)
        for at in (np.flatnonzero(lows[1:] == np.nextafter(lows[:-1], np.inf)) + 1).tolist():
            texts[at] = f"above {texts[at - 1]}"
        if len(texts) > 1 and texts[0] == texts[1]:
            texts[0] = f"below {texts[0]}"
        return (*texts, *words, REST, MISSING, NEW)

    @property
    def first_codes(self) -> Integers:
        """(groups,) first code of each group, by which groups stand in order."""
        return np.unique(self.groups, return_index=True)[1]

    @property
    def group_labels(self) -> list[str]:
        """Text of each group.

        It is a value, or the first one and how many more; of numbers the least one.
        """
        texts, found = self.labels, []
        for group in range(int(self.groups.max()) + 1):
            (codes,) = np.nonzero(self.groups == group)
            held = codes[self.counts[codes] > 0] if self.counts[codes].any() else codes
            first, more = texts[held[0]], len(held) - 1
            numbers = first if first.startswith(("above ", "below ")) else f"from {first}"
            several = numbers if held[0] < len(self.lows) else f"{first} and {more} more"
            found.append(several if more else first)
        return found

    def drawn(self, cells: Cells) -> Reading:
        """Returns cells of equal width for a picture.

        Few numbers stay each alone, as do values that many rows share. The outermost cells hold what lies beyond 99 of
        100 real rows.
        """
        if not self.ordered or int(self.alone.sum()) == len(cells.held[0]):
            return self
        low, high = np.quantile(cells.known, [0.005, 0.995])
        unit = 1.0 if self.plain else _DAY
        step = _round_step((high - low) / _DRAWN / unit) * unit
        starts = np.arange(np.ceil(low / step) * step, high, step)
        lows, alone = _cells_at(starts, self.lows[self.alone])
        return replace(self, lows=lows, alone=alone, at=lows)

    def texts(self, numbers: Floats) -> list[str]:
        """Numbers as people write them, dates as dates."""
        column = self.notation.column
        if self.plain or not isinstance(column, BinnedColumn):
            return [f"{number:.6g}" if abs(number) < 1e6 else f"{number:,.0f}" for number in numbers.tolist()]
        return column.texts(np.rint(numbers / float(column.scale[1])))

    @cached_property
    def groups(self) -> Integers:
        """(size,) group of each code, in which pairs are compared.

        Missing, what no real row has, and a value that as many rows hold as a group would, are groups by themselves.
        Where new rows of the same kind hold new words, too, these are among the rest.
        """
        rows = max(1, int(self.counts.sum()))
        share, least = self.counts / rows, 1.0 / np.sqrt(rows)
        own = self.single & (share >= 1.0 / MOST_GROUPS)
        own[-2], own[-1] = share[-2] == 0 or share[-2] >= least, True
        rest = np.flatnonzero(~own)
        most, places = max(2, MOST_GROUPS - int(own[:-2].sum())), self.places
        folded = few_groups(share[rest], None if places is None else places[rest], least, most)
        # A run of numbers ends at a number that is a group by itself.
        run = np.cumsum(own)[rest] * (rest < len(self.lows))
        split = folded * (self.size + 1) + run
        groups = np.empty(self.size, np.int64)
        groups[rest] = joined_groups(split, share[rest], least) if len(rest) else 0
        groups[own] = int(groups[rest].max(initial=-1)) + 1 + np.arange(int(own.sum()))
        if self.unshared >= least:
            groups[-1] = groups[-3]
        return groups


def _cells_between(known: Floats, held: Integers, rows: int) -> tuple[Floats, Flags]:
    """Returns where cells of numbers begin, and which hold one number.

    Few different numbers are each alone.

    Args:
        known: (k,) different real numbers, ascending.
        held: (k,) rows of each.
        rows: of the table.
    """
    if not len(known):
        return np.zeros(0), np.zeros(0, bool)
    alone = (held > SHARED * rows) | (len(known) <= _CELLS)
    rest = np.where(alone, 0, held)
    quantile = (_CELLS * (np.cumsum(rest) - rest / 2.0) / max(1, rest.sum())).astype(np.int64)
    starts = known[np.r_[False, np.diff(quantile) > 0]]
    return _cells_at(starts, known[alone])


def _cells_at(starts: Floats, alone: Floats) -> tuple[Floats, Flags]:
    """Returns cells that begin at some numbers.

    Cells also begin at and behind each number that is alone.
    """
    lows = np.unique(np.concatenate([[-np.inf], starts, alone, np.nextafter(alone, np.inf)]))
    return lows, np.isin(lows, alone)


def _round_step(size: float) -> float:
    """Returns a round number that is as large.

    It is 1, 2 or 5 times a power of ten.

    >>> _round_step(0.3), _round_step(7.0)
    (0.5, 10.0)
    """
    power = 10.0 ** np.floor(np.log10(size)) if size > 0 else 1.0
    return float(next(power * times for times in (1.0, 2.0, 5.0, 10.0) if power * times >= size))


@dataclass(frozen=True, eq=False)
class Readings:
    """Columns of the judge, as what counts codes asks for them.

    Attributes:
        columns: in the table's order.
    """

    columns: Mapping[str, Reading]

    @cached_property
    def domain(self) -> Domain:
        """Attributes and numbers of codes."""
        return Domain(tuple(self.columns), tuple(column.size for column in self.columns.values()))

    def places(self, name: str) -> Floats | None:
        """(size,) number of each code; None of a column of words."""
        return self.columns[name].places

    def grouping(self, names: Sequence[str]) -> Grouping:
        """Returns some columns in few groups."""
        groups = tuple(self.columns[name].groups for name in names)
        return Grouping(Domain(tuple(names), tuple(int(g.max()) + 1 for g in groups)), self.domain.axes(names), groups)
