"""Encodes a table block by block.

It does so whatever the table is read from. The codes are those of the whole table at once.

Whatever a block comes from, it is a DataFrame here. Nothing is built per row: a column of few values is looked up value
by value, and numbers go to their bins as an array. Of an open schema's open columns a block also keeps the values:
finding counts them, and closing encodes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn, Column
from fedsyn.table.schema.values import dates_in_numbers, is_missing, text_in_column

# Codes of text that are remembered for a column.
_REMEMBERED = 1 << 16


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A holder's own values of n rows, in open columns.

    Attributes:
        numbers: column -> (n,) float64, NaN where missing.
        words: column -> the different texts of the table that the rows are of.
        index: column -> (n,) place of each row's text in `words`, -1 where missing.
    """

    numbers: Mapping[str, Floats]
    words: Mapping[str, Sequence[str]]
    index: Mapping[str, Codes]

    def word_counts(self, name: str) -> Integers:
        """(words,) rows of each text of a column."""
        return np.bincount(self.index[name] + 1, minlength=len(self.words[name]) + 1)[1:]

    def taken(self, rows: Codes | Flags | slice) -> OwnRows:
        """Some of the rows."""
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        return OwnRows(numbers, self.words, {name: places[rows] for name, places in self.index.items()})

    def pruned(self) -> OwnRows:
        """Returns these rows with no texts but those that they have.

        Other texts of the table that they are of are left out.
        """
        words, index = {}, {}
        for name, known in self.words.items():
            used = np.unique(self.index[name][self.index[name] >= 0])
            places = np.full(len(known) + 1, -1, np.int32)  # the last entry is that of a missing value
            places[used] = np.arange(len(used), dtype=np.int32)
            words[name], index[name] = [known[i] for i in used.tolist()], places[self.index[name]]
        return OwnRows(self.numbers, words, index)

    @classmethod
    def joined(cls, parts: Sequence[OwnRows]) -> OwnRows:
        """Joins parts, one below the other.

        They may be of several tables, whose words have other numbers.
        """
        if not parts:
            return NOTHING_OWN
        words: dict[str, dict[str, int]] = {name: {} for name in parts[0].words}
        index: dict[str, list[Codes]] = {name: [] for name in words}
        for part in parts:
            for name, known in words.items():
                places = [known.setdefault(word, len(known)) for word in part.words[name]]
                index[name].append(np.array([*places, -1], np.int32)[part.index[name]])
        numbers = {name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers}
        joined = {name: np.concatenate(places) for name, places in index.items()}
        return cls(numbers, {name: list(known) for name, known in words.items()}, joined)


#: Of a closed schema's rows.
NOTHING_OWN = OwnRows({}, {}, {})


class Block(NamedTuple):
    """Some rows of a table, encoded.

    Attributes:
        codes: (m, d) in the schema's dtype and order, C order.
        numbers: (m, ordered columns) float32 before binning, in the schema's order; NaN where missing.
        own: the values of an open schema's open columns, whose codes are placeholders; words are those known so far.
    """

    codes: np.ndarray
    numbers: npt.NDArray[np.float32]
    own: OwnRows = NOTHING_OWN


class Encoder:
    """Encodes the blocks of one table.

    All blocks have the table's columns. `finish` says what is wrong with the table.

    >>> import pandas as pd
    >>> from fedsyn.table.schema import NumericColumn
    >>> age = NumericColumn(lower=0, upper=99, dtype="integer", bins=10)
    >>> encoder = Encoder({"age": age}, frozenset(), np.uint8)
    >>> encoder.block(pd.DataFrame({"age": [7, 63, None]})).codes.tolist()
    [[0], [6], [0]]

    Args:
        columns: name -> modelled column.
        missing_text: text that stands for a missing value.
        dtype: of the codes.
        keep: columns whose values a block keeps beside the codes.
        csv: whether the blocks are of a CSV file. Its reader takes a block of true and false for booleans; beside
            numbers in other blocks they are text.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        missing_text: frozenset[str],
        dtype: npt.DTypeLike,
        keep: Collection[str] = (),
        csv: bool = False,
    ) -> None:
        self.columns, self.missing_text, self.dtype, self.kept = columns, missing_text, np.dtype(dtype), keep
        self.numeric = [name for name, column in columns.items() if isinstance(column, BinnedColumn)]
        self.rows = 0
        self._csv = csv
        self._known: dict[str, dict[str, int]] = {name: {} for name in columns}
        self._texts = dict.fromkeys(self.numeric, 0)  # rows that hold what the column's kind cannot read
        self._flags = dict.fromkeys(self.numeric, 0)  # rows of a CSV file's blocks that hold true and false only
        self._numbers = dict.fromkeys(self.numeric, 0)  # rows with a number, of a CSV file
        # The different texts of each open column of categories, numbered as they come.
        self._words: dict[str, dict[str, int]] = {
            name: {} for name, column in columns.items() if name in keep and isinstance(column, CategoricalColumn)
        }

    def whole(self, frame: pd.DataFrame) -> Block:
        """Encodes a whole table. Raises DataError as `block` and `finish`."""
        block = self.block(frame)
        self.finish()
        return block

    def block(self, source: pd.DataFrame) -> Block:
        """Encodes some rows. Raises DataError if a numeric column holds dates."""
        size = len(source)
        codes = np.empty((size, len(self.columns)), dtype=self.dtype)
        numbers = np.empty((size, len(self.numeric)), dtype=np.float32)
        open_numbers: dict[str, Floats] = {}
        index: dict[str, Codes] = {}
        for j, (name, column) in enumerate(self.columns.items()):
            if isinstance(column, CategoricalColumn):
                values, places = _factorised(source[name])
                codes[:, j] = self._categories(name, column, values)[places]
                if name in self._words:
                    index[name] = self._word_places(name, column, values)[places]
            else:
                parsed = self._values(name, column, source[name])
                codes[:, j] = column.codes_of(parsed)
                if name in self.kept:
                    open_numbers[name] = parsed
                with np.errstate(over="ignore"):
                    numbers[:, self.numeric.index(name)] = parsed
        self.rows += size
        return Block(
            codes, numbers, OwnRows(open_numbers, {name: list(known) for name, known in self._words.items()}, index)
        )

    def finish(self) -> None:
        """Says what only the whole table shows.

        Raises:
            DataError: a column holds what its kind cannot read. Names the column, counts rows, quotes nothing.
        """
        for name in self.numeric:
            bad = self.unread(name)
            if bad:
                column = self.columns[name]
                assert isinstance(column, BinnedColumn)
                raise text_in_column(name, column.kind, column.expected, bad, self.rows)

    def unread(self, name: str) -> int:
        """Returns how many rows hold unreadable values so far.

        A column's kind cannot read such a value.
        """
        return self._texts[name] + (self._flags[name] if self._numbers[name] or self._texts[name] else 0)

    def _categories(self, name: str, column: CategoricalColumn, values: Sequence[Any]) -> Codes:
        """Returns the code of each value, (m + 1,).

        The last entry is that of a missing value.
        """
        known = self._known[name]
        codes = []
        for value in values:
            code = known.get(value) if type(value) is str else None
            if code is None:
                code = column.code_of(value, self.missing_text)
                if type(value) is str and len(known) < _REMEMBERED:
                    known[value] = code
            codes.append(code)
        return np.asarray([*codes, column.code_of(None, self.missing_text)], dtype=self.dtype)

    def _word_places(self, name: str, column: CategoricalColumn, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """Returns the number of each value's text, (m + 1,).

        It is -1 where the text is missing. The last entry is that of a missing value.

        A text that stands for a missing value is none, and neither is a blank one.
        """
        known = self._words[name]
        words = [None if is_missing(value, self.missing_text) else column.word_of(value) for value in values]
        absent = {None, *self.missing_text}
        places = [-1 if word in absent else known.setdefault(str(word), len(known)) for word in words]
        return np.array([*places, -1], np.int32)

    def _values(self, name: str, column: BinnedColumn, source: pd.Series) -> Floats:
        """Returns float64 numbers, (m,), NaN where missing.

        Counts what is not of the column's kind.
        """
        plain = _plain_numbers(source)
        if plain is not None:
            numbers = column.of_plain(plain)
            if numbers is not None:
                if self._csv and source.dtype.kind == "b":
                    self._flags[name] += len(plain)
                elif self._csv:
                    self._numbers[name] += int(np.count_nonzero(~np.isnan(plain)))
                return numbers
            if np.isnan(plain).all():  # a block of missing cells is one in every kind
                return plain
        if column.reads_numbers and _holds_dates(source):
            raise dates_in_numbers(name)
        values, index = _factorised(source)
        parsed, bad = column.parse_all(values, self.missing_text)
        rows = np.bincount(index + 1, minlength=len(values) + 1)[1:]  # of each value
        flags = np.array([self._csv and isinstance(value, bool) for value in values], dtype=bool)
        self._texts[name] += int(rows[bad].sum())
        self._flags[name] += int(rows[flags & ~bad].sum())
        self._numbers[name] += int(rows[~bad & ~flags & ~np.isnan(parsed)].sum())
        by_row: Floats = np.append(parsed, np.nan)[index]
        return by_row


def _plain_numbers(series: pd.Series) -> Floats | None:
    """Returns the numbers of a column that holds nothing else.

    They are NaN where missing. None for any other column.
    """
    from pandas.api import types as kinds

    dtype = series.dtype
    if not kinds.is_bool_dtype(dtype) and (not kinds.is_numeric_dtype(dtype) or kinds.is_complex_dtype(dtype)):
        return None
    missing = {} if isinstance(dtype, np.dtype) else {"na_value": np.nan}
    numbers: Floats = series.to_numpy(dtype=np.float64, **missing)
    return numbers


def _holds_dates(series: pd.Series) -> bool:
    dtype = series.cat.categories.dtype if isinstance(series.dtype, pd.CategoricalDtype) else series.dtype
    return pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype)


def _factorised(series: pd.Series) -> tuple[list[Any], Codes]:
    """(different values, (m,) index of each row's value or -1 for missing)."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series.cat.categories.tolist(), series.cat.codes.to_numpy()
    inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    return uniques.tolist(), inverse
