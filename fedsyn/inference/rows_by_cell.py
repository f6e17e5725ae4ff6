"""Rows of a table by the cells of a marginal.

An update moves few of a table's rows: as many of each cell are looked up as it asks for, and no more are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

_ONE_BY_ONE = 3  # of so few cells the rows are found cell by cell, by comparisons many at a time


@dataclass(frozen=True, eq=False)
class RowsByCell:
    """Rows of each cell of a marginal.

    Attributes:
        rows: rows, cell after cell, inside a cell in their order.
        starts: (cells,) where each cell begins among them.
        counts: (cells,) rows of each that are known here.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, cell: np.ndarray, counts: np.ndarray) -> RowsByCell:
        """Sorts rows by counting.

        NumPy sorts bytes so; what is wider goes by the transpose of a sparse matrix.

        Args:
            cell: (n,) the cell of each row.
            counts: (cells,) rows of each.
        """
        if cell.itemsize == 1:
            rows = np.argsort(cell, kind="stable")
        else:
            n = len(cell)
            entries = np.ones(n, np.int8), cell.astype(np.int32), np.arange(n + 1, dtype=np.int32)
            rows = csc_array(entries, shape=(len(counts), n)).tocsr().indices
        return cls(rows, np.cumsum(counts) - counts, counts)

    @classmethod
    def enough(cls, cell: np.ndarray, have: np.ndarray, needed: np.ndarray) -> RowsByCell:
        """Finds enough rows of each cell.

        Of cell c they are `needed[c]` at least, or all that it has.

        They are the first of the table, four times as many as it takes where all cells need the same share. Rows of a
        cell that has too few there are looked for in the whole table. Few rows a cell are sorted at once.

        Args:
            cell: (n,) the cell of each row; the rows' order is random.
            have: (cells,) rows of each.
            needed: (cells,) how many.
        """
        some = np.flatnonzero(needed)
        n, first = len(cell), int(4 * len(cell) * needed[some].sum() / max(1, have[some].sum())) + 1
        if 2 * first > n or 4 * len(have) > n:
            return cls.of(cell, have)
        found = cls.of(cell[:first], np.bincount(cell[:first], minlength=len(have)))
        # The cells that the first rows have too few of: all their rows stand behind the others.
        short = some[found.counts[some] < np.minimum(needed[some], have[some])]
        rows = np.concatenate([found.rows, _rows_of(cell, short, have)])
        starts, counts = found.starts.copy(), found.counts.copy()
        starts[short] = first + np.cumsum(have[short]) - have[short]
        counts[short] = have[short]
        return cls(rows, starts, counts)

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


def _rows_of(cell: np.ndarray, wanted: np.ndarray, have: np.ndarray) -> np.ndarray:
    """Returns all rows of some cells.

    They come cell after cell, inside a cell in their order.
    """
    if len(wanted) <= _ONE_BY_ONE:
        return np.concatenate([np.zeros(0, np.intp), *(np.flatnonzero(cell == cell.dtype.type(c)) for c in wanted)])
    flags = np.zeros(len(have), dtype=bool)
    flags[wanted] = True
    rows = np.flatnonzero(flags.take(cell))
    return rows[np.argsort(cell[rows], kind="stable")]
