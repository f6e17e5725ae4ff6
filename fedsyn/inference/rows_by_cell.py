"""Rows of a table by the cells of a marginal.

They are sorted once, and taken many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array


@dataclass(frozen=True, eq=False)
class RowsByCell:
    """The rows of each cell of a marginal.

    Attributes:
        rows: (n,) rows, cell after cell, inside a cell in their order.
        starts: (cells,) where each cell begins among them.
        counts: (cells,) rows of each.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, cell: np.ndarray, cells: int) -> RowsByCell:
        """Sorts rows by counting.

        NumPy sorts bytes so; what is wider goes by the transpose of a sparse matrix.
        """
        if cell.itemsize == 1:
            counts = np.bincount(cell, minlength=cells)
            return cls(np.argsort(cell, kind="stable"), np.cumsum(counts) - counts, counts)
        n = len(cell)
        entries = np.ones(n, np.int8), cell.astype(np.int32), np.arange(n + 1, dtype=np.int32)
        matrix = csc_array(entries, shape=(cells, n)).tocsr()
        return cls(matrix.indices, matrix.indptr[:-1], np.diff(matrix.indptr))

    def free(self, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the first `wanted[c]` rows of each cell c, shuffled.

        A cell with fewer rows gives all of them.
        """
        some = np.flatnonzero(wanted)
        taken = np.minimum(wanted[some], self.counts[some])
        places = np.repeat(self.starts[some] - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
        return rng.permutation(self.rows[places])

    def one_of(self, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns a random row of each wanted cell, none of them empty."""
        places = self.starts[wanted] + (rng.random(len(wanted)) * self.counts[wanted]).astype(np.int64)
        return np.asarray(self.rows[places])
