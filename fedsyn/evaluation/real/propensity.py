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
from dataclasses import dataclass, replace

import numpy as np

from fedsyn.domain import Flags
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
#: Cells of columns that are counted together: as many as a core keeps at hand.
_CELLS_AT_ONCE = 1 << 17
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
    least, scores = max(5, math.ceil(_LEAF * len(codes))), np.empty(len(scored))
    tree, sizes = _Tree.of(codes, marks, scored), codes.max(axis=0).astype(np.intp) + 1
    while len(tree.node):
        rows, sums = np.bincount(tree.node), np.bincount(tree.node, tree.marks).astype(np.float64)
        scores[tree.place] = (sums / rows)[tree.reached]
        # Nodes of fewer rows than two leaves are leaves.
        large = rows >= 2 * least
        tree, rows, sums = tree.of_nodes(large), rows[large], sums[large]
        gain, column, cut = _best_splits(tree, sizes, rows, sums, least)
        split = gain - sums**2 / rows > _NO_GAIN * rows
        tree = tree.of_nodes(split).split(column[split], cut[split])
    return scores


@dataclass(frozen=True, eq=False)
class _Tree:
    """Rows in the nodes of a tree that may still be split.

    Attributes:
        table: (d, n) codes of the rows that it grows on.
        marks: (n,) 0 or 1.
        node: (n,) their nodes, from 0 on.
        scored: (d, m) codes of the rows that it scores.
        place: (m,) of their scores.
        reached: (m,) their nodes.
    """

    table: Codes
    marks: Codes
    node: Codes
    scored: Codes
    place: Codes
    reached: Codes

    @classmethod
    def of(cls, codes: Codes, marks: Floats, scored: Codes) -> _Tree:
        """Returns a root that holds all rows."""
        table, others = np.ascontiguousarray(codes.T), np.ascontiguousarray(scored.T)
        node, reached = np.zeros(len(codes), np.intp), np.zeros(len(scored), np.intp)
        return cls(table, marks.astype(np.intp), node, others, np.arange(len(scored)), reached)

    def of_nodes(self, going: Flags) -> _Tree:
        """Returns the rows of some nodes, which are numbered anew."""
        if going.all():
            return self
        anew, grown, gone = np.cumsum(going) - 1, going[self.node], going[self.reached]
        rows = np.compress(grown, self.table, axis=1), self.marks[grown], anew[self.node[grown]]
        return _Tree(*rows, np.compress(gone, self.scored, axis=1), self.place[gone], anew[self.reached[gone]])

    def split(self, column: Codes, cut: Codes) -> _Tree:
        """Splits each node in two, at the last code on its left."""
        node, reached = (
            2 * at + (table[column[at], np.arange(len(at))] > cut[at])
            for at, table in ((self.node, self.table), (self.reached, self.scored))
        )
        return replace(self, node=node, reached=reached)


def _best_splits(tree: _Tree, sizes: Codes, rows: Codes, sums: Floats, least: int) -> tuple[Floats, Codes, Codes]:
    """Returns the best split of each node.

    It is what the split explains, its column (the first of equal ones), and the last code on its left.

    Args:
        tree: rows and their nodes.
        sizes: (d,) number of codes of each column.
        rows: (k,) in each node.
        sums: (k,) marks in each node.
        least: rows on either side.
    """
    shape = len(tree.table), len(rows)
    gains, cuts = np.full(shape, -np.inf), np.zeros(shape, np.intp)
    for size in np.unique(sizes).tolist() if len(rows) else ():
        columns = np.flatnonzero(sizes == size)
        cells, base = 2 * size * len(rows), (2 * tree.node + tree.marks) * size
        step = max(1, _CELLS_AT_ONCE // max(cells, len(tree.node)))
        for some in (columns[at : at + step] for at in range(0, len(columns), step)):
            # Rows of either mark up to each code, in each node of each column.
            place = base + tree.table[some]
            place += cells * np.arange(len(some))[:, None]
            counts = np.bincount(place.ravel(), minlength=cells * len(some))
            counts = counts.reshape(len(some), len(rows), 2, size).cumsum(axis=3)
            marked, left = counts[:, :, 1], counts[:, :, 0] + counts[:, :, 1]
            right = rows[:, None] - left
            can = (left >= least) & (right >= least)
            gain = np.full(can.shape, -np.inf)
            at, on_left, on_right = marked[can], left[can], right[can]
            whole = np.broadcast_to(sums[:, None], can.shape)[can]
            gain[can] = at**2 / on_left + (whole - at) ** 2 / on_right
            code = gain.argmax(axis=2)
            gains[some], cuts[some] = np.take_along_axis(gain, code[..., None], axis=2)[..., 0], code
    column, each = gains.argmax(axis=0), np.arange(len(rows))
    return gains[column, each], column, cuts[column, each]
