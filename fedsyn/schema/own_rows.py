"""A holder's own values in open columns, beside the codes of the others: what finding counts, and closing encodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
