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
_NEWTON = 8


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
        rng, drawn = np.random.default_rng(1), dict[str, Floats]()  # another stream than that of the rows
        for name in counts:
            column = columns[name]
            if (inside := column.inside) is None:
                continue
            self._weights[name] = self._fitted(name, inside, model)
            codes = model.codes[:, self._axes[name]]
            inside.link(codes, self.moved(name, model.codes, drawn))
            drawn[name], _ = column.draw(codes, rng, self.moved(name, model.codes, drawn))

    def _fitted(self, name: str, inside: Inside, model: RowModel) -> list[tuple[str, Floats]]:
        """Returns weights of the other columns' terms, (bins, terms) each."""
        beside = model.beside[name]
        parts = [self._terms[other].of(model.codes[:, self._axes[other]]) for other in beside]
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
        return list(zip(beside, np.split(weights, ends_of, axis=1), strict=False))

    def moved(self, name: str, rows: Codes, drawn: Mapping[str, Floats]) -> Floats | None:
        """Returns how far each row moves a column's number, (n,).

        None where nothing is known.

        Args:
            name: the column.
            rows: (n, d) codes.
            drawn: numbers that other columns have already.
        """
        if name not in self._weights:
            return None
        bins, out = rows[:, self._axes[name]], np.zeros(len(rows))
        for other, weights in self._weights[name]:
            bins = np.minimum(bins, len(weights) - 1)
            codes, terms = rows[:, self._axes[other]], self._terms[other]
            if other in drawn and isinstance(terms, _Scores):
                out += np.einsum("ij,ij->i", terms.of(codes, drawn[other]), weights[bins])
            else:
                out += (weights @ terms.of(np.arange(terms.size)).T)[bins, codes]
        return out


class _Marks:
    """A mark of each frequent code."""

    def __init__(self, shares: Floats) -> None:
        self.size = len(shares)
        self._table = np.eye(self.size)[:, np.flatnonzero(shares >= _FREQUENT)]

    def of(self, codes: Codes) -> Floats:
        """Returns (n, terms)."""
        return np.asarray(self._table[codes])


class _Scores:
    """Normal scores of an ordered column, and their squares.

    A code has the means over its bin. Codes that are no numbers have marks.
    """

    def __init__(self, column: BinnedColumn, counts: Floats) -> None:
        self.size, self._column, bins = len(counts), column, len(column.edges) - 1
        rows = np.maximum(counts[:bins], 1.0)
        self._below, self._shares = (np.cumsum(rows) - rows) / rows.sum(), rows / rows.sum()
        places = (np.arange(_PLACES) + 0.5) / _PLACES
        score = _normal(self._below[:, None] + self._shares[:, None] * places)
        means = np.stack([score.mean(axis=1), (score**2).mean(axis=1)], axis=1)
        marks = np.eye(self.size)[:, bins:]
        self._table = np.concatenate([np.concatenate([means, np.zeros((self.size - bins, 2))]), marks], axis=1)

    def of(self, codes: Codes, numbers: Floats | None = None) -> Floats:
        """Returns (n, terms) of codes, or of numbers inside them."""
        out = self._table[codes]
        if numbers is not None and self._column.inside is not None:
            here = codes < len(self._shares)
            bins = codes[here]
            score = _normal(self._below[bins] + self._shares[bins] * self._column.share(bins, numbers[here]))
            out[here, 0], out[here, 1] = score, score**2
        return np.asarray(out)


def _logistic(terms: Floats, odds: Floats) -> Floats:
    """Returns the logistic model nearest to log odds of rows.

    The last term is the constant, which is not shrunk.
    """
    from scipy.special import expit

    shares, weights = expit(odds), np.zeros(terms.shape[1])
    shrunk = np.full(len(weights), _RIDGE)
    shrunk[-1] = 1e-9
    for _ in range(_NEWTON):
        told = expit(terms @ weights)
        slope = terms.T @ (shares - told) - shrunk * weights
        weights += np.linalg.solve((terms.T * (told * (1.0 - told))) @ terms + np.diag(shrunk), slope)
    return np.asarray(weights)


_Terms = _Marks | _Scores
_PLACES = 32


def _normal(shares: Floats) -> Floats:
    """Returns normal scores of shares below; none is infinite."""
    from scipy.special import ndtri  # a schema is read without SciPy

    return np.asarray(ndtri(np.clip(shares, 1e-9, 1.0 - 1e-9)))
