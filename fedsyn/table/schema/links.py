"""Numbers inside bins that go by the rest of their rows.

Which row of a bin has which of its numbers follows from what the released model says: where readmissions grow likelier
from bin to bin, they do so inside a bin, too. Without it a coefficient is too small.

What the model says of one row is mostly noise, where its cells hold few rows, and a number that goes by noise goes by
the truth so much less. So the log odds of a bin's rows are smoothed: they are taken to be a sum over the other columns,
quadratic in the normal score of a number, and free in the frequent values of a category (ridge least squares over rows
of the model; of two normal columns it is exact).

Columns come one after the other, and a later one goes by the numbers that earlier ones have already: in the corner
cells of two tails, much of what links the columns lies inside the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.domain import Codes, Floats
from fedsyn.table.schema.inside import Inside

if TYPE_CHECKING:
    from fedsyn.table.schema.binned import BinnedColumn

#: (n, d) codes, a column, and two codes of it for each row -> (n,) log odds of the second.
RowOdds = Callable[[np.ndarray, str, np.ndarray, np.ndarray], np.ndarray]

#: Share of the rows that a value of a category needs to have a term of its own; and rows that a term is shrunk by.
_FREQUENT, _RIDGE = 1 / 64, 1.0
#: Steps of a fit, and its terms at most.
_NEWTON, _MOST_TERMS = 8, 32
#: Places in a bin over which its scores are averaged.
_PLACES = 32


@dataclass(frozen=True)
class RowModel:
    """A released model's view of single rows.

    Attributes:
        codes: (m, d) rows drawn from it.
        odds: log odds of rows between two values of one column.
        beside: column -> the columns on which its odds depend.
    """

    codes: Codes
    odds: RowOdds
    beside: Mapping[str, Sequence[str]]


class Links:
    """Weights by which rows move numbers inside bins.

    Args:
        columns: of the schema, whose ordered ones have densities inside bins.
        counts: ordered column -> (codes,) records.
        model: released.

    Attributes:
        odds: of the model.
    """

    def __init__(self, columns: Mapping[str, Any], counts: Mapping[str, Floats], model: RowModel) -> None:
        self.odds, self._axes = model.odds, {name: axis for axis, name in enumerate(columns)}
        self._terms: dict[str, _Terms] = {
            name: _Scores(columns[name], counts[name])
            if name in counts
            else _Marks(np.bincount(model.codes[:, axis], minlength=columns[name].size) / len(model.codes))
            for name, axis in self._axes.items()
        }
        self._weights: dict[str, list[tuple[str, Floats]]] = {}
        rng, scores = np.random.default_rng(1), dict[str, Floats]()  # another stream than that of the rows
        for name in counts:
            column = columns[name]
            if (inside := column.inside) is None:
                continue
            self._weights[name] = self._fitted(name, inside, model)
            codes, moved = model.codes[:, self._axes[name]], self.moved(name, model.codes, scores)
            inside.link(codes, moved)
            scores |= self.scores(name, codes, column.draw(codes, rng, moved)[0])

    def _fitted(self, name: str, inside: Inside, model: RowModel) -> list[tuple[str, Floats]]:
        """Returns weights of the other columns' terms, (bins, terms) each."""
        beside = model.beside[name]
        parts = [self._terms[other].table[model.codes[:, self._axes[other]]] for other in beside]
        terms = np.concatenate([*parts, np.ones((len(model.codes), 1))], axis=1)
        low, high, steps = inside.steps()
        codes = model.codes[:, self._axes[name]]
        here = [np.flatnonzero((codes == first) | (codes == second)) for first, second in zip(low, high, strict=True)]
        ends = (np.repeat(end, [len(some) for some in here]) for end in (low, high))
        odds = np.split(
            model.odds(model.codes[np.concatenate(here)], name, *ends), np.cumsum(list(map(len, here)))[:-1]
        )
        weights = np.zeros((len(steps), terms.shape[1]))
        for bin_, (some, step) in enumerate(zip(here, steps, strict=True)):
            if len(some) and step:
                weights[bin_] = step * _logistic(terms[some], odds[bin_])
        ends_of = np.cumsum([part.shape[1] for part in parts])
        split = zip(beside, np.split(weights, ends_of, axis=1), strict=False)
        return [(other, some) for other, some in split if some.any()]

    def scores(self, name: str, codes: Codes, numbers: Floats) -> dict[str, Floats]:
        """Returns the normal scores of a column's numbers, (n,), under its name.

        They are NaN of codes that are no numbers. Nothing is returned of a column that is not moved.
        """
        terms = self._terms[name]
        return {name: terms.scores(codes, numbers)} if name in self._weights and isinstance(terms, _Scores) else {}

    def moved(self, name: str, rows: Codes, scores: Mapping[str, Floats]) -> Floats | None:
        """Returns how far each row moves a column's number, (n,).

        None where nothing is known.

        Args:
            name: the column.
            rows: (n, d) codes.
            scores: of the numbers that other columns have already.
        """
        if name not in self._weights:
            return None
        bins, out = rows[:, self._axes[name]], np.zeros(len(rows))
        for other, weights in self._weights[name]:
            bins = np.minimum(bins, len(weights) - 1)
            each = (weights @ self._terms[other].table.T)[bins, rows[:, self._axes[other]]]
            if (score := scores.get(other)) is not None:
                first, second = weights[bins, 0], weights[bins, 1]
                each = np.where(np.isnan(score), each, score * (first + second * score))
            out += each
        return out


class _Marks:
    """A mark of each frequent code.

    Attributes:
        table: (codes, terms).
    """

    def __init__(self, shares: Floats) -> None:
        frequent = np.flatnonzero(shares >= _FREQUENT)
        self.table = np.zeros((len(shares), len(frequent)))
        self.table[frequent, np.arange(len(frequent))] = 1.0


class _Scores:
    """Normal scores of an ordered column, and their squares.

    A code has the means over its bin. Codes that are no numbers have marks.

    Attributes:
        table: (codes, terms).
    """

    def __init__(self, column: BinnedColumn, counts: Floats) -> None:
        self._column, bins = column, len(column.edges) - 1
        rows = np.maximum(counts[:bins], 1.0)
        self._below, self._shares = (np.cumsum(rows) - rows) / rows.sum(), rows / rows.sum()
        places = (np.arange(_PLACES) + 0.5) / _PLACES
        score = _normal(self._below[:, None] + self._shares[:, None] * places)
        self.table = np.eye(len(counts), 2 + len(counts) - bins, 2 - bins)
        self.table[:bins] = 0.0
        self.table[:bins, 0], self.table[:bins, 1] = score.mean(axis=1), (score**2).mean(axis=1)

    def scores(self, codes: Codes, numbers: Floats) -> Floats:
        """Returns the scores of numbers, (n,)."""
        out, here = np.full(len(codes), np.nan), codes < len(self._shares)
        bins = codes[here]
        out[here] = _normal(self._below[bins] + self._shares[bins] * self._column.share(bins, numbers[here]))
        return out


def _logistic(terms: Floats, odds: Floats) -> Floats:
    """Returns the logistic model nearest to log odds of rows.

    The last term is the constant, which is not shrunk. Of many others those stay that go along with the odds the most.
    """
    from scipy.special import expit

    shares, out = expit(odds), np.zeros(terms.shape[1])
    known = np.abs((terms - terms.mean(axis=0)).T @ shares) / np.maximum(terms.std(axis=0), 1e-9)
    known[-1] = np.inf
    kept = np.sort(np.argsort(-known, kind="stable")[:_MOST_TERMS])
    terms, weights, shrunk = terms[:, kept], np.zeros(len(kept)), np.full(len(kept), _RIDGE)
    shrunk[-1] = 1e-9
    for _ in range(_NEWTON):
        told = expit(terms @ weights)
        slope = terms.T @ (shares - told) - shrunk * weights
        weights += np.linalg.solve((terms.T * (told * (1.0 - told))) @ terms + np.diag(shrunk), slope)
    out[kept] = weights
    return out


_Terms = _Marks | _Scores


def _normal(shares: Floats) -> Floats:
    """Returns normal scores of shares below; none is infinite."""
    from scipy.special import ndtri  # a schema is read without SciPy

    return np.asarray(ndtri(np.clip(shares, 1e-9, 1.0 - 1e-9)))
