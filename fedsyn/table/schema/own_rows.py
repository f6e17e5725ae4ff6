"""A holder's own values in open columns, beside the codes of the others: what finding counts, and closing encodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.table.schema.binned import BinnedColumn
from fedsyn.table.schema.columns import CategoricalColumn
from fedsyn.table.schema.model import Schema

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Values of n rows.

    Attributes:
        numbers: column -> (n,) float64, NaN where missing.
        words: column -> the different texts of the table that the rows are of.
        index: column -> (n,) place of each row's text in `words`, -1 where missing.
    """

    numbers: Mapping[str, npt.NDArray[np.float64]]
    words: Mapping[str, Sequence[str]]
    index: Mapping[str, npt.NDArray[np.integer]]

    def word_counts(self, name: str) -> npt.NDArray[np.int64]:
        """(words,) rows of each text of a column."""
        return np.bincount(self.index[name] + 1, minlength=len(self.words[name]) + 1)[1:]

    def taken(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice) -> OwnRows:
        """Some of the rows."""
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        return OwnRows(numbers, self.words, {name: places[rows] for name, places in self.index.items()})

    def pruned(self) -> OwnRows:
        """The same rows with the texts that they have, and no others of the table that they are of."""
        words, index = {}, {}
        for name, known in self.words.items():
            used = np.unique(self.index[name][self.index[name] >= 0])
            places = np.full(len(known) + 1, -1, np.int32)  # the last entry is that of a missing value
            places[used] = np.arange(len(used), dtype=np.int32)
            words[name], index[name] = [known[i] for i in used.tolist()], places[self.index[name]]
        return OwnRows(self.numbers, words, index)

    def divided(self, *masks: npt.NDArray[np.bool_]) -> tuple[OwnRows, ...]:
        """The rows of each (n,) mask."""
        return tuple(self.taken(mask) for mask in masks)

    @classmethod
    def joined(cls, parts: Sequence[OwnRows]) -> OwnRows:
        """Parts, one below the other; of several tables, too, whose words have other numbers."""
        if not parts:
            return NOTHING_OWN
        words: dict[str, dict[str, int]] = {name: {} for name in parts[0].words}
        index: dict[str, list[npt.NDArray[np.integer]]] = {name: [] for name in words}
        for part in parts:
            for name, known in words.items():
                places = [known.setdefault(word, len(known)) for word in part.words[name]]
                index[name].append(np.array([*places, -1], np.int32)[part.index[name]])
        numbers = {name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers}
        joined = {name: np.concatenate(places) for name, places in index.items()}
        return cls(numbers, {name: list(known) for name, known in words.items()}, joined)


#: Of a closed schema's rows.
NOTHING_OWN = OwnRows({}, {}, {})


class WordBook:
    """The different texts of one column of a table, numbered as they come."""

    def __init__(self, column: CategoricalColumn, missing_text: frozenset[str]) -> None:
        self._column, self._missing = column, missing_text
        self._places: dict[str, int] = {}

    @property
    def words(self) -> list[str]:
        return list(self._places)

    def places(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """(m + 1,) the number of each value's text, -1 where it is missing; the last entry is that of a missing value.

        A text that stands for a missing value is none, and neither is a blank one.
        """
        words = [self._column.word_of(value) for value in values]
        found = [
            -1 if word is None or word in self._missing else self._places.setdefault(word, len(self._places))
            for word in words
        ]
        return np.array([*found, -1], np.int32)


def own_rows(schema: Schema, frame: pd.DataFrame) -> OwnRows:
    """Return a table's own values in the open columns of its schema.

    Raises:
        DataError: as `Schema.encode`.
    """
    numbers, words, index = {}, {}, {}
    for name in schema.open:
        column = schema.columns[name]
        if isinstance(column, BinnedColumn):
            numbers[name] = column.numbers(frame[name], schema.missing_text)
        else:
            book = WordBook(column, schema.missing_text)
            index[name] = _places(book, frame[name])
            words[name] = book.words
    return OwnRows(numbers, words, index)


def _places(book: WordBook, series: pd.Series) -> npt.NDArray[np.integer]:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        inverse, uniques = series.cat.codes.to_numpy(), series.cat.categories
    else:
        inverse, uniques = pd.factorize(series, use_na_sentinel=True)
    places: npt.NDArray[np.integer] = book.places(uniques.tolist())[inverse]
    return places


def closed_codes(closed: Schema, codes: npt.NDArray[np.integer], own: OwnRows) -> npt.NDArray[np.integer]:
    """(n, d) codes by a closed schema, of rows whose codes by the open one hold placeholders."""
    result = codes.astype(closed.dtype)
    for j, (name, column) in enumerate(closed.columns.items()):
        if name in own.numbers:
            assert isinstance(column, BinnedColumn)
            result[:, j] = column.codes_of(own.numbers[name])
        elif name in own.index:
            assert isinstance(column, CategoricalColumn)
            table = [column.code_of(word, closed.missing_text) for word in (*own.words[name], None)]
            result[:, j] = np.asarray(table, closed.dtype)[own.index[name]]
    return result
