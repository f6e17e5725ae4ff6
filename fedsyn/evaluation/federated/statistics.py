"""One holder's counts about a table, in integers that add up.

The vector whose noisy sum is released.

Neither an L1 distance nor a mean of absolute errors is a sum over holders. What is summed bounds them from both sides.
Let x_k be holder k's counts of one marginal, N = sum of x_k, n_k its public or released rows, n their sum, p the
table's shares. The L1 distance of two distributions is 2 (1 - overlap), and for every cell

    sum_k min(x_k, n_k p)  <=  min(N, n p)  <=  sum_k min(x_k, m p)      for any m >= n,

on the left because a minimum is superadditive, on the right because it is subadditive and grows with m. So the sum of
the holders' own overlaps bounds the distance from above (the triangle inequality), and the sum of their overlaps with
the WHOLE table bounds it from below. With one holder the two are equal and the distance is known up to the noise. In
the same way |N_B - n s_B| <= sum_k |x_kB - n_k s_B| for a box B.

No linear statistic does better at a small share of the budget: the table's errors are those of marginals that were
measured with most of it, and counts with sqrt(0.95/0.05), four times, their noise cannot show the sign of one.

**Sensitivity.** The thresholds (n_k p, m p, n_k s) are fixed numbers: the table is released, and n_k is public or
released. A row is in one cell of each marginal; min(D x, T) moves there by at most D, so V = the sum over Q cliques by
at most D Q, and the entry floor(c V / (D Q)) by at most c, because floor(v + c) = floor(v) + c for an integer c. A row
is in at most `Boxes.depth` boxes and |D x - T| moves by at most D in each. A prediction is right or wrong, a row is one
row. So one row moves entry j by at most its c_j, and the vector by at most sqrt(sum of c_j^2) in L2 norm.

**Persons.** Where a run protects persons, a holder's rows are records, one of each person, and so are the rows of the
table. Whatever rows somebody has, that person is one row of `codes`, or one apart: all that is said here of a row holds
for the person (`fedsyn.table.data.records`). Who may be at h holders is in h vectors, and the ledger takes h times the
norm.

**Rows apart.** A holder may keep rows out of the run to test the classifier on, each by a coin of its own
(`fedsyn.protocol.client.set_apart`): the table was made without them. Given the coins a row is either there, and moves
`correct` and `tested`, or here, and moves all the others: the norm is the larger of both, whatever the coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsyn.evaluation.federated.question import TableQuestion
from fedsyn.table.counting.marginals import SparseMarginal, count_sparse_many

#: What one row moves the most precise entries by, and in what parts of a row thresholds are cut.
UNIT, PARTS = 64, 1 << 12
# Entries of n_k and of the sum of them stay exact, and every product below 2^63.
_LARGEST = 2.0**32


@dataclass(frozen=True)
class Entries:
    """Names of the vector's entries, and each one's sensitivity.

    What one row moves each by at most.

    The workload's upper bound, the queries' and the classifier get the same noise relative to what a row can change;
    the lower bound and the row count twice as much; the d columns together as much as one.
    """

    names: tuple[str, ...]
    moves: tuple[int, ...]

    @classmethod
    def of(cls, question: TableQuestion, count_rows: bool, apart: bool = False) -> Entries:
        """Returns the entries of a question's vector.

        Args: the question; whether the row count is not public; whether there are rows apart, to test on.
        """
        d = len(question.domain)
        entries = [("own overlap", UNIT), ("whole overlap", UNIT // 2)]
        entries += [("rows", UNIT // 2)] if count_rows else []
        entries += [("boxes", UNIT)] if len(question.boxes) else []
        entries += [("correct", UNIT)] if question.trees.there else []
        entries += [("tested", UNIT)] if question.trees.there and apart else []
        entries += [(f"column {i}", max(1, round(UNIT / math.sqrt(d)))) for i in range(d)]
        names, moves = zip(*entries, strict=True)
        return cls(names, moves)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the vector to one row."""
        there = ("correct", "tested") if "tested" in self.names else ()
        parts = [0, 0]
        for name, move in zip(self.names, self.moves, strict=True):
            parts[name in there] += move * move
        return math.sqrt(max(parts))


def vector(
    question: TableQuestion,
    entries: Entries,
    codes: npt.NDArray[np.integer],
    rows: float,
    total: float,
    apart: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.int64]:
    """(entries,) what a holder of these rows contributes: no entry is negative.

    Args:
        question: about the table.
        entries: of the vector.
        codes: (n, d) its rows.
        rows: n_k, its public or released rows.
        total: m, at least the sum of n_k over everybody whose vector is in the sum.
        apart: (m, d) rows that the run did without, where the entries have a place for them.
    """
    rows, total = min(rows, _LARGEST), min(total, _LARGEST)
    cliques = [*question.cliques, *question.columns]
    # Overlaps with the table at the holder's size (lower) and at everybody's (upper).
    mine = count_sparse_many(codes, question.domain, cliques)
    q, size = len(question.cliques), len(question.table)
    lower = [_overlap(x, t.cells, _below(t.counts, rows / size)) for x, t in zip(mine, question.margins, strict=True)]
    pairs = zip(mine[:q], question.margins[:q], strict=True)
    upper = [_overlap(x, t.cells, _above(t.counts, total / size)) for x, t in pairs]
    values: dict[str, tuple[int, int]] = {  # name -> V, and what one row moves it by at most
        "own overlap": (sum(lower[:q]), PARTS * q),
        "whole overlap": (sum(upper), PARTS * q),
        "rows": (len(codes), 1),
    }
    values |= {f"column {i}": (v, PARTS) for i, v in enumerate(lower[q:])}
    if "boxes" in entries.names:
        thresholds = np.rint(PARTS * rows * question.shares).astype(np.int64)
        off = np.abs(PARTS * question.boxes.counts(codes) - thresholds).sum()
        values["boxes"] = (int(off), PARTS * question.boxes.depth)
    if "correct" in entries.names:
        assert question.label is not None
        tested = codes[:0] if apart is None else apart
        values["tested"] = (len(tested), 1)
        tested = tested if "tested" in entries.names else codes
        right = question.trees.predict(tested) == tested[:, question.label]
        values["correct"] = (int(right.sum()), 1)
    contributions = [
        move * values[name][0] // values[name][1] for name, move in zip(entries.names, entries.moves, strict=True)
    ]
    return np.array(contributions, np.int64)


def _below(counts: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    thresholds: npt.NDArray[np.int64] = np.floor(PARTS * scale * counts).astype(np.int64)
    return thresholds


def _above(counts: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    thresholds: npt.NDArray[np.int64] = np.ceil(PARTS * scale * counts).astype(np.int64) + 1
    return thresholds


def _overlap(marginal: SparseMarginal, cells: npt.NDArray[np.int64], thresholds: npt.NDArray[np.int64]) -> int:
    """Sum over cells of min(PARTS x, threshold)."""
    if not len(cells) or not len(marginal.cells):
        return 0
    place = np.minimum(np.searchsorted(cells, marginal.cells), len(cells) - 1)
    hit = cells[place] == marginal.cells
    return int(np.minimum(PARTS * marginal.counts[hit], thresholds[place[hit]]).sum())


def rounding(question: TableQuestion, holders: int) -> tuple[float, Sequence[float]]:
    """Returns the most rows that rounded thresholds lose.

    First the mean over the cliques, then the rows of each column.
    """
    q = len(question.cliques)
    cells = [len(margin.cells) for margin in question.margins]
    losses = [holders * count / PARTS for count in cells]
    return math.fsum(losses[:q]) / max(1, q), losses[q:]
