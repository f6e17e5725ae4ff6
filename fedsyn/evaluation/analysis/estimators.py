"""Estimators of one table.

Coefficients of a linear or a logistic regression, or a column's means.

An estimator is a small class with one method, so an analyst may hand over her own. Variances are sandwich estimates by
default: the combining rule takes the variance of drawing a table's rows out again, so it must be right also where the
regression is not the truth.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.version import installing

Floats = npt.NDArray[np.float64]

#: The extra that brings statsmodels and formulaic.
NEEDED = f"formulas need statsmodels: {installing('analysis')}"
# Newton's steps from the estimate without weights, and a step, of terms of 1 at most, that is none.
_NEWTON, _CLOSE = 50, 1e-9


class Estimator(ABC):
    """A model that is fitted to each table.

    Attributes:
        title: what it is called in a result.
    """

    title: str

    @abstractmethod
    def estimate(
        self, y: Floats, X: Floats, names: Sequence[str], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Estimates and their variances in one table.

        Args:
            y: (n,) outcome.
            X: (n, k) terms, of full rank.
            names: of the k terms, for messages.
            weights: (n,) how many rows each of these stands for, which are one observation all the same; None: one.

        Returns:
            (k,) estimates, (k,) variances: squared standard errors.

        Raises:
            DataError: this table has no such estimate.
        """


class Linear(Estimator):
    """Ordinary least squares.

    Args:
        robust: standard errors that hold whatever the spread of the residuals (HC1); False: the textbook's.
    """

    title = "linear regression"

    def __init__(self, robust: bool = True) -> None:
        self.robust = robust

    def estimate(
        self, y: Floats, X: Floats, names: Sequence[str], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        stands_for = np.ones(len(y)) if weights is None else weights
        fitted = _statsmodels().WLS(y, X, stands_for).fit(cov_type="HC1" if self.robust else "nonrobust")
        return np.asarray(fitted.params, np.float64), np.asarray(fitted.bse, np.float64) ** 2


class Logit(Estimator):
    """Logistic regression of an outcome of 0 and 1.

    Coefficients are log odds ratios.

    Args:
        robust: sandwich standard errors (HC0); False: the textbook's.
    """

    title = "logistic regression"

    def __init__(self, robust: bool = True) -> None:
        self.robust = robust

    def estimate(
        self, y: Floats, X: Floats, names: Sequence[str], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        if weights is not None:
            return self._weighted(y, X, names, weights)
        sm = _statsmodels()
        exceptions = sm.exceptions
        scale = np.abs(X).max(axis=0)  # Newton's steps are the same in any unit, what they test for is not
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd of 1 to e^800 on the way is no error
            for kind in (
                exceptions.ConvergenceWarning,
                exceptions.HessianInversionWarning,
                exceptions.PerfectSeparationWarning,
            ):
                warnings.simplefilter("error", kind)
            try:
                fitted = sm.Logit(y, X / scale).fit(disp=0, cov_type="HC0" if self.robust else "nonrobust")
            except (Warning, np.linalg.LinAlgError, exceptions.PerfectSeparationError):
                raise DataError(self._separated(y, X, names)) from None
        return np.asarray(fitted.params, np.float64) / scale, (np.asarray(fitted.bse, np.float64) / scale) ** 2

    def _weighted(self, y: Floats, X: Floats, names: Sequence[str], weights: Floats) -> tuple[Floats, Floats]:
        """Estimates where observations stand for several rows.

        Newton's steps begin at the estimate without weights, and the sandwich has each observation's score as one.
        """
        beta, _ = self.estimate(y, X, names)
        scale = np.abs(X).max(axis=0)
        terms, beta = X / scale, beta * scale
        for _ in range(_NEWTON):
            odds = expit(terms @ beta)
            score = (weights * (y - odds)) @ terms
            bread = (terms * (weights * odds * (1.0 - odds))[:, None]).T @ terms
            try:
                step = np.linalg.solve(bread, score)
            except np.linalg.LinAlgError:
                raise DataError(self._separated(y, X, names)) from None
            beta = beta + step
            if np.abs(step).max() < _CLOSE:
                break
        else:
            raise DataError(self._separated(y, X, names))
        each = (weights * (y - expit(terms @ beta)))[:, None] * terms
        inverse = np.linalg.inv(bread)
        spread = inverse @ (each.T @ each) @ inverse if self.robust else inverse
        return beta / scale, np.diagonal(spread) / scale**2

    @staticmethod
    def _separated(y: Floats, X: Floats, names: Sequence[str]) -> str:
        """Returns the sentence for a likelihood without a maximum.

        It names the terms that alone explain the outcome.
        """
        marks = [i for i in range(X.shape[1]) if set(np.unique(X[:, i])) == {0.0, 1.0}]
        alone = [names[i] for i in marks for part in [y[X[:, i] == 1.0]] if part.min() == part.max()]
        of = f" ({', '.join(alone)} alone does)" if alone else ""
        return (
            f"the terms tell the outcome apart exactly{of}: a coefficient is infinite; leave out or merge rare values"
        )


class Means(Estimator):
    """The mean of each column of X by itself.

    Means, and proportions of marks of 0 and 1.
    """

    title = "means and proportions"

    def estimate(
        self, y: Floats, X: Floats, names: Sequence[str], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        if weights is None:
            return X.mean(axis=0), X.var(axis=0, ddof=1) / len(X)
        shares = weights / weights.sum()
        means = shares @ X
        return means, shares**2 @ (X - means) ** 2 * len(X) / max(len(X) - 1, 1)


class Quantile(Estimator):
    """A quantile of the outcome, with the variance of Woodruff 1952.

    Args:
        share: of the values below it, between 0 and 1.
    """

    title = "quantile"

    def __init__(self, share: float) -> None:
        if not 0 < share < 1:
            raise ConfigError(f"quantile: expected a share between 0 and 1, such as 0.5, found {share:g}")
        self.share = share

    def estimate(
        self, y: Floats, X: Floats, names: Sequence[str], weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        if weights is None:
            half = np.sqrt(self.share * (1 - self.share) / len(y))
            low, middle, high = np.quantile(y, np.clip([self.share - half, self.share, self.share + half], 0.0, 1.0))
            return np.array([middle]), np.array([((high - low) / 2.0) ** 2])
        order = np.argsort(y, kind="stable")
        shares = weights[order] / weights.sum()
        reached = np.cumsum(shares) - shares / 2.0
        middle = float(np.interp(self.share, reached, y[order]))
        half = float(np.sqrt(np.sum((shares * ((y[order] <= middle) - self.share)) ** 2)))
        low, high = np.interp([self.share - half, self.share + half], reached, y[order])
        return np.array([middle]), np.array([((high - low) / 2.0) ** 2])


#: The names that `model` may have, for a command line.
ESTIMATORS: dict[str, type[Estimator]] = {"ols": Linear, "logit": Logit}


def estimator_of(model: str | Estimator) -> Estimator:
    """The estimator that was asked for.

    Raises:
        ConfigError: no such name.
    """
    if isinstance(model, Estimator):
        return model
    if model not in ESTIMATORS:
        raise ConfigError(
            f"model: unknown model {model!r}{nearest(str(model), ESTIMATORS)}; known: {', '.join(ESTIMATORS)}"
        )
    return ESTIMATORS[model]()


def _statsmodels() -> Any:
    """Returns the models of statsmodels that are used.

    All of `statsmodels.api` takes twice as long to import, and 25 MB more.
    """
    try:
        from statsmodels.discrete.discrete_model import Logit
        from statsmodels.regression.linear_model import WLS
        from statsmodels.tools import sm_exceptions
    except ImportError:
        raise ConfigError(NEEDED) from None
    return SimpleNamespace(WLS=WLS, Logit=Logit, exceptions=sm_exceptions)
