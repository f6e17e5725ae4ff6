"""Codes of a table, read by attribute and copied by row.

Attributes that are copied together stand beside each other, as many as one machine word has room for: a copy moves them
at once, and one attribute is still a plain view of the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Words for four codes of one byte, or of two; wider codes stand alone.
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint32), 2: np.dtype(np.uint64)}


class WholeRows:
    """The rows of a table in groups of attributes.

    Attributes:
        rows: how many.
    """

    def __init__(self, table: np.ndarray, groups: Iterable[Sequence[int]]) -> None:
        """Takes codes.

        Args:
            table: (d, n) codes, of unsigned integers.
            groups: attributes that are copied together; one that is in no group stands for itself.
        """
        together = [sorted(group) for group in groups]
        grouped = {axis for group in together for axis in group}
        together += [[axis] for axis in range(len(table)) if axis not in grouped]
        self.rows = table.shape[1]
        self._kind = table.dtype
        word: np.dtype[Any] = _WORDS.get(table.itemsize, table.dtype)
        lanes = word.itemsize // table.itemsize
        self._words: list[np.ndarray] = []
        self._places: dict[int, tuple[int, int, int]] = {}
        for which, group in enumerate(together):
            self._words.append(np.zeros((-(-len(group) // lanes), self.rows), word))
            for i, axis in enumerate(group):
                self._places[axis] = which, i // lanes, i % lanes
                self[axis][:] = table[axis]

    def __getitem__(self, axis: int) -> np.ndarray:
        """Returns an attribute's codes, (n,).

        They are a view, to read and to write.
        """
        which, word, lane = self._places[axis]
        codes: np.ndarray = self._words[which][word].view(self._kind).reshape(self.rows, -1)[:, lane]
        return codes

    def copy(self, axis: int, source: np.ndarray, target: np.ndarray) -> None:
        """Copies rows onto others, in all attributes of one's group.

        Args:
            axis: an attribute of the group.
            source: (m,) rows to copy.
            target: (m,) rows to overwrite.
        """
        words = self._words[self._places[axis][0]]
        words[:, target] = words[:, source]

    def reorder(self, order: np.ndarray) -> None:
        """Puts the rows into another order, (n,)."""
        self._words = [words.take(order, axis=1) for words in self._words]

    def table(self) -> np.ndarray:
        """Returns all codes, (d, n)."""
        return np.stack([self[axis] for axis in sorted(self._places)])
