"""What measurements see of a model: of each clique all cells, or sums over groups of them, in several ways at once.

A fit compares what is measured with A p, p the probabilities of all cells of the measured cliques and A a 0/1 matrix.
Where each clique is measured once and cell by cell, A is the identity, and nothing here does any work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedsyn.table.counting.groups import sums_of_groups

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]


class Seen:
    """A, as a sum over groups of cells and as its transpose.

    Args:
        offsets: (f + 1,) where each clique's cells begin among all n.
        parts: of each measurement, one after the other: which clique, the group of each of its cells (None: each is its
            own), and how many groups there are.
    """

    def __init__(self, offsets: Sequence[int], parts: Sequence[tuple[int, Groups | None, int]]) -> None:
        self.cells = int(offsets[-1])
        self._parts: list[tuple[slice, slice, Groups | None]] = []
        start = 0
        for factor, groups, length in parts:
            own = slice(start, start + length)
            self._parts.append((own, slice(int(offsets[factor]), int(offsets[factor + 1])), groups))
            start += length
        self.length = start
        self.is_plain = [cells for _, cells, _ in self._parts] == [own for own, _, _ in self._parts] and all(
            groups is None for _, _, groups in self._parts
        )

    def of(self, cells: Floats) -> Floats:
        """(m,) A p, of (n,) p."""
        if self.is_plain:
            return cells
        out = np.empty(self.length)
        for own, where, groups in self._parts:
            part = cells[where]
            out[own] = part if groups is None else sums_of_groups(groups, part, own.stop - own.start)
        return out

    def back(self, values: Floats) -> Floats:
        """(n,) A' r, of (m,) r."""
        if self.is_plain:
            return values
        out = np.zeros(self.cells)
        for own, where, groups in self._parts:
            part = values[own]
            out[where] += part if groups is None else part[groups]
        return out


__all__ = ["Seen"]
