"""Rules that put the estimates of m fully synthetic tables together.

Raghunathan, Reiter & Rubin 2003, "Multiple Imputation for Statistical Disclosure Limitation", section 3, gives the
variance; Reiter 2002, "Satisfying Disclosure Requirements With Synthetic Data Sets", section 2, what to do where it is
not positive. Räisä et al. 2023, "Noise-Aware Statistical Inference with
Differentially Private Synthetic Data", show that the same rules hold where the posterior knows the noise. Si & Reiter
2011, "A Comparison of Posterior Simulation and Inference by Combining Rules for Multiple Imputation", integrate out
what chance the variance of the tables is off by; here it is by the generalized pivot of a component of variance
(Weerahandi 1993, "Generalized Confidence Intervals").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr, ndtri

from fedsyn.errors import InputError

Floats = npt.NDArray[np.float64]

#: What one table cannot say.
ONE_TABLE = (
    "one synthetic table gives a naive interval only, which does not know of the noise and is far too narrow; "
    "draw several, each from its own draw of the posterior: fedsyn sample RUN --tables 20 --out DIR"
)
# Quantiles that stand for the distribution of a variance, and steps of a search among widths.
_MIDDLES = (np.arange(100) + 0.5) / 100
_HALVINGS = 24


@dataclass(frozen=True, eq=False)
class Combined:
    """Estimates of k quantities from m tables.

    Arrays are (k,) float64; of shape () where k was not an axis.

    Attributes:
        estimate: mean over the tables.
        variance: T* and `inside`, of that mean about the population's value; in squared units of the estimate.
        between: b, variance of the tables' estimates.
        within: v_bar, mean of the variances that each table claims for itself.
        floored: whether T was below `ratio` * v_bar, which stands in its place then.
        first: the first table's estimate and its variance: what an analyst of one table would have.
        tables: m.
        least: `ratio` * v_bar, below which T is not.
        inside: what bins leave open beside it, part of `variance`.
    """

    estimate: Floats
    variance: Floats
    between: Floats
    within: Floats
    floored: npt.NDArray[np.bool_]
    first: tuple[Floats, Floats]
    tables: int
    least: Floats
    inside: Floats | float = 0.0

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Returns the honest interval.

        The error is normal with the variance T + `inside`, and b tells T but roughly: (m - 1) (1 + 1/m) b / (T + v_bar)
        is chi-square with m - 1. Solved for T, this is T's generalized pivot (Weerahandi 1993). T is known to be at
        least `ratio` * v_bar, so all that the pivot has below lies there, as what a component of variance has below
        zero lies at zero. The error is a mixture of normals over it, whose quantile this is. Without v_bar it is that
        of a t with m - 1.

        A posterior that is cut off there and scaled to one again (the prior 1 / (T + v_bar) of Si & Reiter 2011) moves
        what it cuts off to larger T. Where the real rows are nearly all there is, about half is cut off, and intervals
        of twelve tables hold the value in 99% and more.
        """
        m, shape = self.tables, (-1, *np.ones(self.between.ndim, np.intp))
        spread = (m - 1) * (1.0 + 1.0 / m) * self.between
        chi = chdtri(m - 1, 1.0 - _MIDDLES).reshape(shape)
        true = np.maximum(spread / chi - self.within, self.least)
        scale = np.sqrt(true + self.inside)
        low, high = np.zeros_like(self.between), ndtri(0.5 + _level(level) / 2) * scale.max(axis=0)
        for _ in range(_HALVINGS):
            half = (low + high) / 2.0
            with np.errstate(divide="ignore", invalid="ignore"):
                covered = np.where(scale > 0, 2.0 * ndtr(half / scale) - 1.0, 1.0).mean(axis=0)
            low, high = np.where(covered < level, half, low), np.where(covered < level, high, half)
        return self.estimate - high, self.estimate + high

    @property
    def widened(self) -> Floats:
        """Width of an interval, over that of a known `variance`."""
        low, high = self.interval()
        with np.errstate(divide="ignore", invalid="ignore"):
            times = (high - low) / (2.0 * ndtri(0.975) * np.sqrt(self.variance))
        return np.asarray(np.where(self.variance > 0, times, 1.0))

    def naive(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Interval that the first table alone would give, if real.

        Never to be shown without `interval`.
        """
        estimate, variance = self.first
        half = ndtri(0.5 + _level(level) / 2) * np.sqrt(variance)
        return estimate - half, estimate + half


def combine(
    estimates: npt.ArrayLike, variances: npt.ArrayLike, *, ratio: float = 1.0, inside: Floats | float = 0.0
) -> Combined:
    """Combines estimates of one quantity, or of k, from m tables.

    Each table comes from its own draw of a posterior.

    With b the variance of the m estimates and v_bar the mean of their variances, the variance of the mean is
    T = (1 + 1/m) b - v_bar: b holds the posterior's variance AND that of drawing a table's rows, which v_bar takes out
    again. The rows of each table must therefore be drawn independently of each other, as those of a sample are.

    T can come out small or negative. The real rows alone, without any noise, would leave a variance of about
    `ratio` * v_bar, so T* is at least that (Reiter 2002 puts it only in the place of a T that is not positive).

    >>> found = combine([4.0, 5.0, 6.0, 5.0], [0.1, 0.1, 0.1, 0.1])
    >>> float(found.estimate), round(float(found.variance), 4), round(float(found.widened), 2)
    (5.0, 0.7333, 1.7)
    >>> [round(float(end), 2) for end in found.interval()]
    [2.15, 7.85]

    Args:
        estimates: (m,) or (m, k), finite.
        variances: of the same shape: squared standard errors as the analysis of each table prints them.
        ratio: rows of a synthetic table / real rows.
        inside: variance that no draw shows, of where values lie inside bins, and taken for known.

    Raises:
        InputError: one table only, other shapes, or numbers that are none.
    """
    q, v = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if q.ndim not in (1, 2) or q.shape != v.shape:
        raise InputError(
            f"estimates and variances: expected both of shape (m,) or (m, k), found {q.shape} and {v.shape}"
        )
    m = len(q)
    if m == 1:
        raise InputError(ONE_TABLE)
    if m == 0 or not (np.isfinite(q).all() and np.isfinite(v).all() and (v >= 0).all()):
        raise InputError("estimates must be finite, and variances finite and not negative, in every table")
    if not (np.isfinite(ratio) and ratio > 0):
        raise InputError(f"ratio: expected rows of a table / real rows, a positive number, found {ratio!r}")
    b, within = q.var(axis=0, ddof=1), v.mean(axis=0)
    spread = (1.0 + 1.0 / m) * b
    raw, floor = spread - within, ratio * within
    total = np.maximum(raw, floor)
    floored = np.asarray(raw < floor)
    return Combined(q.mean(axis=0), total + inside, b, within, floored, (q[0], v[0]), m, floor, inside)


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"level: expected a probability between 0 and 1, such as 0.95, found {level!r}")
    return level
