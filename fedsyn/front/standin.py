"""Tables that stand in for one that nobody has seen.

They are drawn from what tables are like, given a schema alone.

A column's masses fall off geometrically over its values, as steeply as its unevenness u says. Of s values it has
s^(1 - u log s) effective cells (`views.effective_cells`): the more values, the less even, since what has many is skewed
more often than what has two. A row is normal scores of one factor: column j loads on it with a_j, so that columns i and
j correlate by rho = a_i a_j; cut at the masses, the scores are codes. Values without an order stand in a random one.
The loadings are powers of uniform numbers, some strong columns beside weak ones, with the power that makes the mean of
rho^2 over pairs the table's `links`.

What tables are like was read off the tuning side of experiments/held_out: `python experiments/plan/run.py --prior`
prints `TYPICAL` and `WITHIN` anew. A table's `links` is the mean over its pairs of phi^2 / (1 + phi^2), Pearson's
contingency coefficient squared, phi^2 less what chance adds; rho^2 of two columns with normal scores.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

from fedsyn.domain import Domain
from fedsyn.selection.views import effective_cells

Floats = npt.NDArray[np.float64]


class Likeness(NamedTuple):
    """Two facts on what a table is like.

    They are the mean unevenness of its columns, and how strongly its pairs are linked on average.
    """

    unevenness: float
    links: float


#: Of either, what a sixth, half and five sixths of the tables have less than. Both grow together: over the 22 tables
#: their ranks correlate by 0.33.
TYPICAL = (Likeness(0.008, 0.0009), Likeness(0.042, 0.0715), Likeness(0.102, 0.2248))
#: Standard deviation of log(effective cells) / log(s) of one table's columns beside that: the median over the tables.
WITHIN = 0.035
_TRIES = 64  # of drawing rows that constraints allow
_STEEPEST = 700.0


def drawn_rows(domain: Domain, rows: int, like: Likeness, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws the (rows, d) codes of a stand-in table.

    No row is drawn that the domain rules out, unless no allowed row turns up in `_TRIES` draws.
    """
    # Powers k of uniform numbers have a mean square of 1 / (2 k + 1), so rho^2 has one of 1 / (2 k + 1)^2.
    loadings = rng.random(len(domain)) ** max(0.0, (1.0 / sqrt(max(like.links, 1e-9)) - 1.0) / 2.0)
    # Where each column cuts its scores into values, and in which order the values lie along them.
    cuts = [_cuts(n, 1.0 - like.unevenness * log(n) + WITHIN * rng.standard_normal()) for n in domain.shape]
    orders = [
        np.arange(size) if domain.ordered.get(name, 0) > 2 else rng.permutation(size)
        for name, size in zip(domain, domain.shape, strict=True)
    ]
    allowed = np.empty((0, len(domain)), np.int64)
    for _ in range(_TRIES):
        # One common factor links all columns of a row; its normal scores become uniform ones.
        scores = ndtr(
            loadings * rng.standard_normal((rows, 1))
            + np.sqrt(1.0 - loadings**2) * rng.standard_normal((rows, len(loadings)))
        )
        cells = [order[np.searchsorted(cut, u)] for order, cut, u in zip(orders, cuts, scores.T, strict=True)]
        codes = np.stack(cells, axis=1).astype(np.int64)
        allowed = np.concatenate([allowed, codes[~domain.violated(codes)]])
        if len(allowed) >= rows:
            return allowed[:rows]
    return np.resize(allowed if len(allowed) else codes, (rows, len(domain)))


def _cuts(size: int, evenness: float) -> Floats:
    """Returns the (size - 1,) cuts of a column's scores.

    They are shares of its rows, and make a column of that evenness.
    """
    rank = np.arange(size) / size

    def masses(steep: float) -> Floats:
        p = np.exp(-steep * rank)
        return np.asarray(p / p.sum())

    def over(steep: float) -> float:
        return log(effective_cells(masses(steep))) - min(max(evenness, 0.02), 1.0) * log(size)

    steep = 0.0 if size == 1 or over(0.0) <= 1e-9 else brentq(over, 0.0, _STEEPEST * size)
    return np.asarray(np.cumsum(masses(float(steep)))[:-1])
