"""Propensity score of a whole table.

It says how well a model tells synthetic rows from real ones.

synthpop's pMSE (Snoke, Raab, Nowok, Dibben & Slavkovic 2018, "General and specific utility measures for synthetic
data", section 3): the mean squared distance from c of the scores that a classifier gives to pooled real and synthetic
rows, where c is the share of synthetic ones. Its ratio to what it is where nothing can be told is 1 for fresh rows
of the same population.

The classifier is a tree, as of synthpop's `utility.gen(method = "cart")`: a logistic regression has a closed form
for what chance does, (k - 1)(1 - c)^2 c / N, but with main effects alone it does not see a link that is gone, and with
those of all pairs k grows with the square of the columns. So chance is measured, as there, by permuted marks. Of N rows
it is in proportion to 1 / N as long as a leaf has the same share of them: the sum of marks in a leaf is off by the root
of its rows, and which splits look best depends on the codes. So trees of a part of the rows tell it, too. All scores
are of the rows that the tree was grown on.

The tree grows here, on counts of codes. scikit-learn's is the same, takes three times as long, and a second to import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.scores import Codes, Floats

#: Rows of each table that are read.
MOST_ROWS = 10_000
#: With fewer, a guess is right in 65 of 100 cases by chance.
FEWEST_ROWS = 50
#: A leaf has a hundredth of the rows at least: of all trees of that kind none has more than a hundred scores to fit.
_LEAF = 0.01
#: Trees of permuted marks; the mean of five knows chance's pMSE to a twentieth or so.
_PERMUTED = 5
#: Rows of both tables that such a tree is grown on at most: a leaf of theirs has 40.
_PERMUTED_ROWS = 4_000
#: Explained squares of a row that are rounding.
_NO_GAIN = 1e-9


@dataclass(frozen=True)
class Propensity:
    """Score of a whole table.

    Attributes:
        pmse: mean squared distance of the scores from a half, 0 to 0.25: as many rows of each table are read.
        ratio: of it to that of permuted marks: 1 is as good as fresh rows.
        told: share of rows that a tree, grown on the other half of them, puts on the right side; 0.5 is guessing.
        rows: that were read, of both tables together.
    """

    pmse: float
    ratio: float
    told: float
    rows: int

    @property
    def beyond_chance(self) -> bool:
        """Returns whether rows are told apart beyond chance.

        A guess passes three standard errors in one table of 700.
        """
        return self.told > 0.5 + 1.5 / math.sqrt(self.rows)

    def words(self) -> str:
        """Returns a clause on how well the rows can be told apart."""
        text = f"a model tells synthetic rows from real ones in {100 * self.told:.0f} of 100 cases"
        return f"{text} (a guess in 50)" if self.beyond_chance else f"{text}, no more than a guess"


def propensity(real: Codes, synthetic: Codes, rng: np.random.Generator) -> Propensity | str:
    """Scores a table by how well real rows can be told apart.

    As many rows of either table are read. Returns a text where there are too few.

    Args:
        real: (n, d) codes, those of numbers in the order of their values.
        synthetic: (s, d) codes.
        rng: chooses rows and permutes marks.
    """
    rows = min(len(real), len(synthetic), MOST_ROWS)
    if rows < FEWEST_ROWS:
        return f"needs {FEWEST_ROWS} rows of each table"
    codes = np.concatenate([sample_rows(codes, rows, rng) for codes in (real, synthetic)])
    marks = np.repeat([0.0, 1.0], rows)
    pmse, chance = _pmse(codes, marks), float(np.mean([_chance(codes, rng) for _ in range(_PERMUTED)]))
    first, right = np.tile(rng.permutation(rows) < rows // 2, 2), 0.0  # half of each table
    for half in (first, ~first):
        score = _scores(codes[half], marks[half], codes[~half])
        # A score of a half is right half of the time.
        right += float(np.where(score == 0.5, 0.5, (score > 0.5) == (marks[~half] == 1.0)).sum())
    return Propensity(pmse, pmse / chance if chance else 1.0, right / (2 * rows), 2 * rows)


def _chance(codes: Codes, rng: np.random.Generator) -> float:
    """Returns the pMSE of permuted marks, by a tree of some rows."""
    some = codes[rng.permutation(len(codes))[:_PERMUTED_ROWS]]
    return _pmse(some, rng.permutation(np.arange(len(some)) % 2.0)) * len(some) / len(codes)


def _pmse(codes: Codes, marks: Floats) -> float:
    return float(np.mean((_scores(codes, marks, codes) - marks.mean()) ** 2))


def _scores(codes: Codes, marks: Floats, scored: Codes) -> Floats:
    """Returns the mean mark of the leaf that each row reaches, (m,).

    A CART grows level by level until no leaf can be split: the squared error of marks of 0 and 1 is Gini's impurity.

    Args:
        codes: (n, d) whole numbers from 0 on.
        marks: (n,) 0 or 1.
        scored: (m, d) codes of the same columns.
    """
    least, scores, going = max(5, math.ceil(_LEAF * len(codes))), np.empty(len(scored)), np.arange(len(scored))
    table, others = np.ascontiguousarray(codes.T), np.ascontiguousarray(scored.T)
    node, other = np.zeros(len(codes), np.intp), np.zeros(len(scored), np.intp)
    while len(node):
        rows, sums = np.bincount(node), np.bincount(node, marks).astype(np.float64)
        scores[going] = (sums / rows)[other]
        gain, column, cut = _best_splits(table, marks, node, rows, sums, least)
        split = gain - sums**2 / rows > _NO_GAIN * rows
        first = 2 * (np.cumsum(split) - 1)  # of the two nodes that a node becomes
        grown, gone = split[node], split[other]
        table, marks, node = np.compress(grown, table, axis=1), marks[grown], node[grown]
        others, going, other = np.compress(gone, others, axis=1), going[gone], other[gone]
        node = first[node] + (table[column[node], np.arange(len(node))] > cut[node])
        other = first[other] + (others[column[other], np.arange(len(other))] > cut[other])
    return scores


def _best_splits(
    table: Codes, marks: Floats, node: Codes, rows: Codes, sums: Floats, least: int
) -> tuple[Floats, Codes, Codes]:
    """Returns the best split of each node.

    It is what the split explains, its column, and the last code on its left.

    Args:
        table: (d, n) codes.
        marks: (n,) 0 or 1.
        node: (n,) of each row.
        rows: (k,) in each node.
        sums: (k,) marks in each node.
        least: rows on either side.
    """
    best, column, cut = np.full(len(rows), -np.inf), np.zeros(len(rows), np.intp), np.zeros(len(rows), np.intp)
    for at, values in enumerate(table):
        shape = len(rows), int(values.max()) + 1
        cell = node * shape[1] + values
        left = np.bincount(cell, minlength=math.prod(shape)).reshape(shape).cumsum(axis=1)
        marked = np.bincount(cell, marks, math.prod(shape)).reshape(shape).cumsum(axis=1)
        right = rows[:, None] - left
        gain = marked**2 / np.maximum(left, 1) + (sums[:, None] - marked) ** 2 / np.maximum(right, 1)
        gain[(left < least) | (right < least)] = -np.inf
        code = gain.argmax(axis=1)
        gains = gain[np.arange(len(rows)), code]
        better = gains > best
        best[better], column[better], cut[better] = gains[better], at, code[better]
    return best, column, cut
