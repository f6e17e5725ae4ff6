"""Codes of an ordered column that stand for no number.

After the bins come missing, each code for a missing value, each censored value, and what the column cannot place.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Flags, Floats
from fedsyn.lazy import pd
from fedsyn.table.schema.column_base import MISSING, UNLISTED, ColumnBase, Value
from fedsyn.table.schema.values import text_dtype, written


class SidedColumn(ColumnBase):
    """A column of numbers, some of whose cells hold none.

    Attributes:
        missing_codes: numbers or words that stand for a missing value (-999, refused), each a code beside missing. They
            are written as they stand here, and are never numbers.
        censored: words that bound a value without giving it (<0.5), each a code; they stay words.
    """

    missing_codes: tuple[Value, ...] = ()
    censored: tuple[str, ...] = ()

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Returns whether every number is whole."""

    @property
    @abstractmethod
    def edges(self) -> Floats:
        """Edges of the bins, (bins + 1,)."""

    @abstractmethod
    def parse_all(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of different values, and which are not of the kind."""

    @abstractmethod
    def codes_of(self, numbers: np.ndarray, bad: Flags | None = None) -> np.ndarray:
        """(n,) codes of numbers."""

    @abstractmethod
    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        """Values in the dtype as it came."""

    @abstractmethod
    def cells(self, numbers: np.ndarray, absent: np.ndarray) -> pd.Series:
        """Values as a CSV file has them."""

    @property
    def sides(self) -> tuple[str, ...]:
        words = (*self.missing_codes, *self.censored)
        return (*[MISSING] * self.missing, *map(written, words), *[UNLISTED] * self.unlisted)

    @property
    def coded_missing(self) -> npt.NDArray[np.intp]:
        """The codes that stand for a missing value, in words or not."""
        return len(self.edges) - 1 + np.arange(int(self.missing) + len(self.missing_codes))

    @property
    def optional(self) -> bool:
        """Returns whether a row may have no number."""
        return self.missing or bool(self.missing_codes) or bool(self.censored)

    def place(self, values: Sequence[Any], missing_text: frozenset[str]) -> tuple[Floats, npt.NDArray[Any], Flags]:
        """Places different values of any type.

        Returns:
            (m,) numbers, NaN where there is none; (m,) codes as `codes_of`; (m,) which the kind cannot place.
        """
        words = self._side_words
        aside = {
            at: words[text]
            for at, value in enumerate(values if words else ())
            if (text := written(value).strip()) in words
        }
        rest = [math.nan if at in aside else value for at, value in enumerate(values)] if aside else values
        numbers, bad = self.parse_all(rest, missing_text)
        codes = self.codes_of(numbers, bad)
        for at, code in aside.items():
            codes[at], bad[at] = code, False
        return self.without_sides(numbers), codes, bad

    def without_sides(self, numbers: Floats) -> Floats:
        """Returns numbers with NaN in the place of codes for missing values."""
        if self._side_numbers:
            numbers = np.where(np.isin(numbers, list(self._side_numbers)), np.nan, numbers)
        return numbers

    @cached_property
    def _side_words(self) -> dict[str, int]:
        """Word -> code of missing_codes and censored values."""
        first = len(self.edges) - 1 + self.missing
        return {written(word): first + at for at, word in enumerate((*self.missing_codes, *self.censored))}

    @cached_property
    def _side_numbers(self) -> dict[float, int]:
        """Number -> code of the missing_codes that the kind reads as numbers."""
        codes: dict[float, int] = {}
        for word in self.missing_codes:
            numbers, bad = self.parse_all([word], frozenset())
            if not bad[0] and not math.isnan(numbers[0]):
                codes[float(numbers[0])] = self._side_words[written(word)]
        return codes

    def side_of(self, value: Any) -> int | None:
        """Returns the code of a word beside the numbers, or None."""
        return self._side_words.get(written(value).strip())

    def series_of(self, numbers: np.ndarray, absent: np.ndarray, codes: np.ndarray, *, dtypes: bool) -> pd.Series:
        """Returns rows as a table has them, words included.

        Args:
            numbers, absent: (n,) as drawn.
            codes: (n,) of the same rows.
            dtypes: whether the dtype is the one as it came, else that of a CSV file's cells.
        """
        if not (self.missing_codes or self.censored):
            return (self.restored if dtypes else self.cells)(numbers, absent)
        by_code, numbers, absent = (
            {code: word for word, code in self._side_words.items()},
            numbers.copy(),
            absent.copy(),
        )
        for number, code in self._side_numbers.items():
            numbers[codes == code], absent[codes == code] = number, False
        series = (self.restored if dtypes else self.cells)(numbers, absent)
        if set(self._side_numbers.values()) == set(by_code):
            for number, code in self._side_numbers.items():
                # No multiple of the column's step, which no number of steps gives back.
                if self.whole and not number.is_integer() and pd.api.types.is_numeric_dtype(series.dtype):
                    series[codes == code] = pd.Series([by_code[code]]).astype(series.dtype).iloc[0]
        else:  # words among numbers
            series = self.cells(numbers, absent)
            series = pd.Series([None if gone else written(value) for value, gone in zip(series, absent, strict=True)])
            series = series.astype(text_dtype())
        if not pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_datetime64_any_dtype(series.dtype):
            for code, word in by_code.items():
                series[codes == code] = word
        return series
