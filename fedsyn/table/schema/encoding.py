"""Encodes a table block by block.

It does so whatever the table is read from. The codes are those of the whole table at once.

Whatever a block comes from, it is a DataFrame here. Nothing is built per row: a column of few values is looked up value
by value, and numbers go to their bins as an array. Of an open schema's open columns a block also keeps the values:
finding counts them, and closing encodes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Domain, Flags, Floats, Integers
from fedsyn.lazy import pd
from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.column_base import LEFT_OUT
from fedsyn.table.schema.columns import CategoricalColumn, Column
from fedsyn.table.schema.conditions import DrawnRows
from fedsyn.table.schema.values import is_missing

#: Stands for a value that no column can place: no text file may hold it, so no schema names it.
UNREADABLE = "\0"
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

    def coded(self, codes: np.ndarray, schema: Any, before: Domain) -> np.ndarray:
        """Returns (n, d) codes by the schema that was found.

        Args:
            codes: (n, d) of these rows, by the open schema.
            schema: that was found.
            before: domain of the open schema.
        """
        result = codes.astype(schema.dtype)
        for j, (name, column) in enumerate(schema.columns.items()):
            if isinstance(column, BinnedColumn) and name in self.numbers:
                numbers, placeholders = self.numbers[name], before[name] - len(column.sides)
                aside = codes[:, j].astype(np.int64) - placeholders + column.size - len(column.sides)
                result[:, j] = np.where(np.isnan(numbers), aside, column.codes_of(np.nan_to_num(numbers)))
            elif isinstance(column, CategoricalColumn) and name in self.index:
                table = [column.code_of(word, schema.missing_text) for word in (*self.words[name], None)]
                result[:, j] = np.asarray(table, schema.dtype)[self.index[name]]
        return result

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
        kept: (rows,) which rows of the table the block has; None: all of them.
    """

    codes: np.ndarray
    numbers: npt.NDArray[np.float32]
    own: OwnRows = NOTHING_OWN
    kept: Flags | None = None

    @property
    def read(self) -> int:
        """Number of the table's rows that were read for it."""
        return len(self.codes) if self.kept is None else len(self.kept)

    def of(self, mask: Flags) -> Flags:
        """Returns a mask of the table's rows for the rows kept."""
        return mask if self.kept is None else mask[self.kept]


class ReadFromOthers(Protocol):
    """A column that is read from others of its table."""

    name: str

    def numbers(self, frame: pd.DataFrame, missing_text: frozenset[str]) -> Floats:
        """Returns its numbers, (n,), NaN where it has none."""


class Encoder:
    """Encodes the blocks of one table.

    All blocks have the table's columns. Each row's codes depend on that row alone, and no cell raises.

    >>> import pandas as pd
    >>> from fedsyn.table.schema import NumericColumn
    >>> age = NumericColumn(lower=0, upper=99, dtype="integer", bins=10)
    >>> encoder = Encoder({"age": age}, frozenset(), np.uint8)
    >>> encoder.block(pd.DataFrame({"age": [7, 63, None]})).codes.tolist()
    [[0], [6]]
    >>> encoder.left_out
    1

    Args:
        columns: name -> modelled column.
        missing_text: text that stands for a missing value.
        dtype: of the codes.
        keep: columns whose values a block keeps beside the codes.
        hidden: columns that no table has.

    Attributes:
        rows: rows seen so far.
        unplaced: column -> rows of them whose value it cannot place.
        clipped: ordered column -> rows whose number lies beyond its bounds.
        left_out: rows that no block has, as a column has no code for what it cannot place.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        missing_text: frozenset[str],
        dtype: npt.DTypeLike,
        keep: Collection[str] = (),
        hidden: Collection[ReadFromOthers] = (),
    ) -> None:
        self.hidden = {one.name: one for one in hidden}
        self.columns, self.missing_text, self.dtype, self.kept = columns, missing_text, np.dtype(dtype), keep
        self.numeric = [name for name, column in columns.items() if isinstance(column, BinnedColumn)]
        self.rows = 0
        self.left_out = 0
        self.unplaced: dict[str, int] = dict.fromkeys(columns, 0)
        self.clipped: dict[str, int] = dict.fromkeys(self.numeric, 0)
        self._known: dict[str, dict[str, int]] = {name: {} for name in columns}
        # The different texts of each open column of categories, numbered as they come.
        self._words: dict[str, dict[str, int]] = {
            name: {} for name, column in columns.items() if name in keep and isinstance(column, CategoricalColumn)
        }

    def block(self, source: pd.DataFrame) -> Block:
        """Encodes some rows, without those that are left out."""
        size = len(source)
        codes = np.empty((size, len(self.columns)), dtype=self.dtype)
        numbers = np.empty((size, len(self.numeric)), dtype=np.float32)
        open_numbers: dict[str, Floats] = {}
        index: dict[str, Codes] = {}
        left_out = np.zeros(size, dtype=bool)
        for j, (name, column) in enumerate(self.columns.items()):
            if isinstance(column, CategoricalColumn):
                values, places = values_and_places(source[name])
                placed = self._categories(name, column, values, places)
                if name in self._words:
                    index[name] = self._word_places(name, column, values)[places]
            else:
                parsed, placed = self._values(name, column, source)
                if name in self.kept:
                    open_numbers[name] = parsed
                with np.errstate(over="ignore"):
                    numbers[:, self.numeric.index(name)] = parsed
            if column.unplaced == LEFT_OUT:
                left_out |= placed == LEFT_OUT
            codes[:, j] = placed
        self.rows += size
        block = Block(
            codes, numbers, OwnRows(open_numbers, {name: list(known) for name, known in self._words.items()}, index)
        )
        if not left_out.any():
            return block
        self.left_out += int(left_out.sum())
        kept = ~left_out
        return Block(codes[kept], numbers[kept], block.own.taken(kept), kept)

    def _categories(self, name: str, column: CategoricalColumn, values: Sequence[Any], places: Codes) -> Codes:
        """Returns the code of each row, (m,).

        Counts the rows that the column cannot place.
        """
        known = self._known[name]
        # Twice each code, and one more where the value is not listed; last that of a missing value.
        placed = np.empty(len(values) + 1, dtype=np.int32)
        placed[-1] = 2 * column.code_of(None, self.missing_text) + (not column.missing)
        for at, value in enumerate(values):
            found = known.get(value) if type(value) is str else None
            if found is None:
                code = column.code_of(value, self.missing_text)
                missing = is_missing(value, self.missing_text) and column.missing
                found = 2 * code + (not missing and code == column.unplaced and not column.lists(value))
                if type(value) is str and len(known) < _REMEMBERED:
                    known[value] = found
            placed[at] = found
        rows = placed[places]
        self.unplaced[name] += int((rows & 1).sum())
        return rows >> 1

    def _word_places(self, name: str, column: CategoricalColumn, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """Returns the number of each value's text, (m + 1,).

        It is -1 where the text is missing. The last entry is that of a missing value.

        A text that stands for a missing value is none, and neither is a blank one.
        """
        known = self._words[name]
        words = [None if is_missing(value, self.missing_text) else column.word_of(value) for value in values]
        absent = {None, UNREADABLE, *self.missing_text}
        places = [-1 if word in absent else known.setdefault(str(word), len(known)) for word in words]
        return np.array([*places, -1], np.int32)

    def _values(self, name: str, column: BinnedColumn, frame: pd.DataFrame) -> tuple[Floats, Codes]:
        """Returns (m,) float64 numbers, NaN where there is none, and (m,) codes.

        Counts the rows that the column cannot place, and those beyond its bounds.
        """
        hidden, numbers = self.hidden.get(name), None
        if hidden is not None:
            numbers = hidden.numbers(frame, self.missing_text)
        elif (plain := _plain_numbers(frame[name])) is not None:
            numbers = column.of_plain(plain)
            numbers = plain if numbers is None and np.isnan(plain).all() else numbers  # missing cells are of every kind
        if numbers is not None:
            codes = column.codes_of(numbers)
            numbers, unplaced = column.without_sides(numbers), np.isnan(numbers) & (not column.missing)
        elif column.reads_numbers and _holds_dates(source := frame[name]):
            numbers, held = np.full(len(source), np.nan), source.notna().to_numpy()
            codes, unplaced = column.codes_of(numbers, held), held | (not column.missing)
        else:
            values, index = values_and_places(frame[name])
            by_value, code_of, bad = column.place(values, self.missing_text)
            gone = np.isnan(by_value) & (code_of == column.unplaced) & (not column.missing)
            numbers = np.append(by_value, np.nan)[index]
            codes = np.append(code_of, column.codes_of(np.array([np.nan])))[index]
            unplaced = np.append(bad | gone, not column.missing)[index]
        self.unplaced[name] += int(unplaced.sum())
        low, high = column.span
        self.clipped[name] += int(((numbers < low) | (numbers > high)).sum())
        return numbers, codes


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


def values_and_places(series: pd.Series) -> tuple[list[Any], Codes]:
    """(different values, (m,) index of each row's value or -1 for missing)."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series.cat.categories.tolist(), series.cat.codes.to_numpy()
    if series.dtype == object and pd.api.types.infer_dtype(series) != "string":
        return _factorised_by_type(series)
    inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    values = uniques.tolist()
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        values = [value if 1 <= value.year <= 9999 else UNREADABLE for value in values]  # pandas cannot write others
    return values, inverse


def _factorised_by_type(series: pd.Series) -> tuple[list[Any], Codes]:
    """Returns the same of values that may be of several types.

    True, 1 and 1.0 are equal to Python, and not to a column: which of them stands first may not decide.
    """
    places: dict[tuple[type, Any], int] = {}
    values, index = list[Any](), np.full(len(series), -1, dtype=np.intp)
    for at, value in enumerate(series):
        try:
            hash(value), str(value)
            cell = None if is_missing(value) else value
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):  # a list; a signaling NaN; the year 12000
            cell = UNREADABLE
        if cell is not None:
            index[at] = place = places.setdefault((type(cell), cell), len(values))
            values += [cell] if place == len(values) else []
    return values, index


def numbers_alone(column: BinnedColumn, series: pd.Series, missing_text: frozenset[str]) -> tuple[Floats, int]:
    """Returns a column's numbers, and how many cells it cannot place.

    The numbers are NaN where there is none; rows that no code takes are left out.
    """
    encoder = Encoder({"x": column}, missing_text, np.int64, keep=("x",))
    numbers: Floats = encoder.block(series.to_frame("x")).own.numbers["x"]
    return numbers, encoder.unplaced["x"]


def drawn_rows(
    columns: Mapping[str, Any], missing_text: frozenset[str], frame: pd.DataFrame
) -> tuple[DrawnRows, Flags | None]:
    """Returns a table's rows as constraints see them.

    They have codes, and numbers of the ordered columns as they are. The second result says which rows of the table they
    are; None: all.
    """
    ordered = [name for name, column in columns.items() if isinstance(column, BinnedColumn)]
    block = Encoder(columns, missing_text, np.int64, keep=ordered).block(frame)
    drawn = {name: (np.where(np.isnan(x), 0.0, x), np.isnan(x)) for name, x in block.own.numbers.items()}
    return DrawnRows({name: block.codes[:, j] for j, name in enumerate(columns)}, drawn), block.kept
