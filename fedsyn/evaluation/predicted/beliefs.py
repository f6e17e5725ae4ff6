"""Posteriors of squared relative errors, from noisy looks at them.

The looks are those of a run's sketches, at independence and at its last model (`fedsyn.evaluation.predicted.effects`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, log_ndtr, ndtri, ndtri_exp

Floats = npt.NDArray[np.float64]
#: The relative error of nothing known: every cell is off by all that it has, on average.
MOST = 4.0
_GRID = np.exp(np.linspace(math.log(1e-7), math.log(MOST), 120))
_SHAPES = (0.1, 0.2, 0.4, 1.0)
_Z = float(ndtri(0.95))  # of a normal variable: nine of ten lie between -z and z
_LEAST = 1e-3  # of the looks' spread: a prior's mean, where looks show nothing


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Posteriors of some R^2.

    Attributes:
        means: (effects,) of each.
        spreads: (effects,) its standard deviation, the prior held fixed.
        first: mean of the prior.
        worlds: (2, effects) mean of each under the least and the largest prior that the looks leave open.
        firsts: (2,) the means of these two, less what the model explains.
        most: the mean of the largest prior, at independence.
    """

    means: Floats
    spreads: Floats
    first: float
    worlds: Floats
    firsts: Floats
    most: float

    @property
    def prior(self) -> tuple[float, float]:
        """Returns mean and standard deviation of an unseen effect.

        They hold for an effect of this kind that nobody looked at.
        """
        variance = 2.0 * self.first**2 + float(np.diff(self.firsts)[0] / 2.0 / _Z) ** 2
        return self.first, math.sqrt(variance)


def believed(alone: Floats, last: Floats, spread: Floats, left: float = 1.0, usual: float | None = None) -> Beliefs:
    """Returns the posteriors of some effects after noisy looks at them.

    They hold however the looks were used. The squared relative errors R_i^2 of one kind of effects have a common prior,
    Gamma; its shape is below 1 where few of them are large. Its mean is the mean of the looks x_i = R_i^2 + N(0, s_i^2)
    at independence, of ALL effects of the kind, which are unbiased whatever was done with them afterwards, and its
    shape what these looks are likeliest under. Each effect's posterior comes from its own look at the last model. Looks
    of what a plan left alone are too small, since large ones were chosen; a posterior draws them up to the prior, and a
    mean of unbiased looks over them would not.

    Where many columns share one factor, a model of some pairs explains a part of all others. What it leaves of those
    that it did not measure is the ratio of their looks' sums, at the last model and at independence: the same sketches
    see both, so what chose them is in both. The prior's mean is that part of what it is at independence.

    The mean of the prior is an estimate itself. What noise leaves open of it is a normal variable, cut at 0 since no
    mean of squares is negative. Two worlds, at 5% and at 95% of that, move all effects of a kind together. Where the
    noise is far larger than such means ever are, as with sketches of three columns, what is usual says more than the
    looks do (`_among_usual`).

    Args:
        alone: (effects,) unbiased looks at R^2 from independence, which the prior is learned from.
        last: (effects,) the same from the last model.
        spread: (effects,) their standard deviations, positive.
        left: what a model leaves of an effect that it did not measure: 1 where it explains none of them.
        usual: a mean that such effects have at most as a rule; None: nothing is known before the looks.
    """
    least = _LEAST * float(spread.mean())
    mean, error = float(alone.mean()), math.sqrt(float(spread @ spread)) / len(spread)
    first, latest = _likelihoods(alone, spread), _likelihoods(last, spread)
    means = [mean, *_cut_at_zero(mean, error)] if usual is None else _among_usual(mean, error, usual)
    middle, *firsts = np.clip(means, least, MOST).tolist()
    worlds = np.array([_posterior(first, latest, each, left)[0] for each in firsts])
    means, spreads = _posterior(first, latest, middle, left)
    return Beliefs(means, spreads, left * middle, worlds, left * np.array(firsts), firsts[1])


def _cut_at_zero(mean: float, spread: float) -> Floats:
    """Returns 5% and 95% points of a normal variable above 0.

    >>> _cut_at_zero(0.0, 1.0).round(3).tolist(), _cut_at_zero(10.0, 1.0).round(3).tolist()
    ([0.063, 1.96], [8.355, 11.645])
    """
    above = log_ndtr(mean / spread)
    return np.asarray(mean - spread * ndtri_exp(above + np.log([0.95, 0.05])))


def _among_usual(mean: float, spread: float, usual: float) -> Floats:
    """Returns the median, 5% and 95% points of a noisy mean.

    Its prior is a half-Cauchy variable, the customary one for a scale of which an order of magnitude is known (Gelman
    2006). It is above `usual` once in twenty times, and its tail gives way to a look that shows more.

    >>> _among_usual(0.0, 1.0, 0.1).round(3).tolist(), _among_usual(1.0, 0.01, 0.1).round(2).tolist()
    ([0.008, 0.001, 0.09], [1.0, 0.98, 1.02])
    """
    scale = usual / math.tan(0.95 * math.pi / 2.0)
    grid = np.geomspace(_GRID[0], MOST, 4000)
    log = np.log(grid / (1.0 + (grid / scale) ** 2)) - 0.5 * ((mean - grid) / spread) ** 2  # even in the logarithm
    chances = np.exp(log - log.max())
    below = np.cumsum(chances) - chances / 2.0
    return np.asarray(np.exp(np.interp(np.array([0.5, 0.05, 0.95]) * chances.sum(), below, np.log(grid))))


def _likelihoods(looks: Floats, spread: Floats) -> Floats:
    """(effects, grid) of each look, up to a factor of its own."""
    log = -0.5 * ((looks[:, None] - _GRID) / spread[:, None]) ** 2
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _posterior(first: Floats, latest: Floats, mean: float, left: float) -> tuple[Floats, Floats]:
    """Returns means and standard deviations under priors.

    The priors have that mean. Each shape is weighted by how well it explains the first looks.
    """
    # Shapes are weighted by how well they explain the first looks.
    prior = np.array([_prior(mean, shape) for shape in _SHAPES])
    evidence = np.log(np.maximum(first @ prior.T, 1e-300)).sum(axis=0)
    # The prior of what the model leaves, averaged over the shapes.
    prior = np.array([_prior(left * mean, shape) for shape in _SHAPES])
    prior = (np.exp(evidence - evidence.max()) @ prior)[None]
    # Each effect's posterior under it, from the look at the last model.
    mass = np.maximum(latest @ prior[0], 1e-300)
    means, squares = (latest * _GRID) @ prior[0] / mass, (latest * _GRID**2) @ prior[0] / mass
    return means, np.sqrt(np.maximum(squares - means**2, 0.0))


def _prior(mean: float, shape: float) -> Floats:
    """(grid,) probabilities of a Gamma variable near each value."""
    edges = np.sqrt(_GRID[1:] * _GRID[:-1])
    below = gammainc(shape, np.concatenate([edges, [np.inf]]) * shape / mean)
    return np.diff(below, prepend=0.0)
