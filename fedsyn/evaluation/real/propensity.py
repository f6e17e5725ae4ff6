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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.evaluation.inputs import sample_rows
from fedsyn.evaluation.scores import Codes, Floats
from fedsyn.version import installing

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

    As many rows of either table are read. Returns a text where something is missing.

    Args:
        real: (n, d) codes, those of numbers in the order of their values.
        synthetic: (s, d) codes.
        rng: chooses rows and permutes marks.
    """
    if find_spec("sklearn") is None:
        return f"needs scikit-learn: {installing('evaluation')}"
    rows = min(len(real), len(synthetic), MOST_ROWS)
    if rows < FEWEST_ROWS:
        return f"needs {FEWEST_ROWS} rows of each table"
    X = np.concatenate([sample_rows(codes, rows, rng) for codes in (real, synthetic)]).astype(np.float32)
    marks = np.repeat([0.0, 1.0], rows)
    pmse, chance = _pmse(X, marks), float(np.mean([_chance(X, rng) for _ in range(_PERMUTED)]))
    first, right = np.tile(rng.permutation(rows) < rows // 2, 2), 0.0  # half of each table
    for half in (first, ~first):
        score = _tree(int(half.sum())).fit(X[half], marks[half]).predict(X[~half])
        # A score of a half is right half of the time.
        right += float(np.where(score == 0.5, 0.5, (score > 0.5) == (marks[~half] == 1.0)).sum())
    return Propensity(pmse, pmse / chance if chance else 1.0, right / (2 * rows), 2 * rows)


def _chance(X: npt.NDArray[np.float32], rng: np.random.Generator) -> float:
    """Returns the pMSE of permuted marks, by a tree of some rows."""
    some = X[rng.permutation(len(X))[:_PERMUTED_ROWS]]
    return _pmse(some, rng.permutation(np.arange(len(some)) % 2.0)) * len(some) / len(X)


def _tree(rows: int) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    # The mean of marks of 0 and 1 in a leaf is the share of synthetic rows; squared error is Gini's impurity.
    return DecisionTreeRegressor(min_samples_leaf=max(5, math.ceil(_LEAF * rows)), random_state=0)


def _pmse(X: npt.NDArray[np.float32], marks: Floats) -> float:
    scores = _tree(len(X)).fit(X, marks).predict(X)
    return float(np.mean((scores - marks.mean()) ** 2))
