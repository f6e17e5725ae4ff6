"""What is estimated, from the counts of cells: the same figures as `fedsyn.analyse` gives on rows, in microseconds.

A test holds them against the estimators of the library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.honest_intervals.honest_populations import Population
from fedsyn.domain import Clique

Floats = npt.NDArray[np.float64]
_STEPS = 30


@dataclass(frozen=True)
class Estimand:
    """A mean, a proportion or a regression.

    Attributes:
        kind: 'mean', 'proportion', 'linear' or 'logistic'.
        outcome: column.
        terms: columns beside the intercept; none for means and proportions.
        of: code of the outcome whose proportion is meant.
    """

    kind: str
    outcome: str
    terms: tuple[str, ...] = ()
    of: int = 1

    @property
    def clique(self) -> Clique:
        return (self.outcome, *self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """One per estimate, in brackets the term that it is of. The intercept is left out: it is about no column."""
        if not self.terms:
            return (f"{self.outcome} = {self.of}" if self.kind == "proportion" else self.outcome,)
        shown = [" + ".join(f"[{one}]" if one == term else one for one in self.terms) for term in self.terms]
        return tuple(f"{self.outcome} ~ {terms}" for terms in shown)

    def estimates(self, joint: Floats, population: Population) -> tuple[Floats, Floats]:
        """(k,) estimates and variances from counts over the clique; infinite variance where there is no estimate."""
        given = np.flatnonzero(joint.ravel())
        weights = joint.ravel()[given]
        codes = np.unravel_index(given, joint.shape)
        columns = [population.values[name][code] for name, code in zip(self.clique, codes, strict=True)]
        if self.kind == "proportion":
            columns[0] = (codes[0] == self.of).astype(np.float64)
        if not self.terms:
            mean = np.average(columns[0], weights=weights)
            total = weights.sum()
            variance = np.average((columns[0] - mean) ** 2, weights=weights) / max(total - 1, 1)
            return np.array([mean]), np.array([variance])
        X = np.stack([np.ones(len(weights)), *columns[1:]], axis=1)
        fit = linear if self.kind == "linear" else logistic
        estimate, variance = fit(columns[0], X, weights)
        return estimate[1:], variance[1:]


def linear(y: Floats, X: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Least squares on weighted cells, HC1."""
    bread = np.linalg.inv((X.T * weights) @ X)
    beta = bread @ (X.T @ (weights * y))
    n = weights.sum()
    meat = (X.T * (weights * (y - X @ beta) ** 2)) @ X
    return beta, np.diag(bread @ meat @ bread) * n / max(n - X.shape[1], 1)


def logistic(y: Floats, X: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Newton's method on weighted cells, HC0. Columns are scaled for the steps."""
    centre, scale = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-12)
    centre[0], scale[0] = 0.0, 1.0
    Z, beta = (X - centre) / scale, np.zeros(X.shape[1])
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(Z @ beta, -30, 30)))
        step = np.linalg.solve((Z.T * (weights * p * (1 - p))) @ Z, Z.T @ (weights * (y - p)))
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    bread = np.linalg.inv((Z.T * (weights * p * (1 - p))) @ Z)
    meat = (Z.T * (weights * (y - p) ** 2)) @ Z
    return beta / scale, np.diag(bread @ meat @ bread) / scale**2


ESTIMANDS: dict[str, tuple[Estimand, ...]] = {
    "adult": (
        Estimand("mean", "age"),
        Estimand("mean", "education-num"),
        Estimand("mean", "hours-per-week"),
        Estimand("proportion", "income"),
        Estimand("proportion", "sex"),
        Estimand("proportion", "marital-status", of=2),
        Estimand("linear", "hours-per-week", ("age", "sex", "income")),
        Estimand("linear", "hours-per-week", ("sex", "income")),
        Estimand("linear", "education-num", ("sex", "income")),
        Estimand("logistic", "income", ("education-num", "sex")),
        Estimand("logistic", "income", ("age", "sex")),
        Estimand("logistic", "income", ("age", "hours-per-week", "sex")),
    ),
    "generated": (
        Estimand("mean", "age"),
        Estimand("mean", "severity"),
        Estimand("mean", "days"),
        Estimand("proportion", "readmitted"),
        Estimand("proportion", "smoker"),
        Estimand("proportion", "ward", of=1),
        Estimand("linear", "days", ("severity",)),
        Estimand("linear", "days", ("severity", "age")),
        Estimand("linear", "severity", ("age", "ward")),
        Estimand("logistic", "readmitted", ("age",)),
        Estimand("logistic", "readmitted", ("age", "severity")),
        Estimand("logistic", "smoker", ("age", "sex")),
    ),
}


def pairs_of(clique: Clique) -> list[frozenset[str]]:
    """Every pair of a clique; itself where it has one column."""
    if len(clique) < 2:
        return [frozenset(clique)]
    return [frozenset((a, b)) for i, a in enumerate(clique) for b in clique[i + 1 :]]
