"""What to believe of associations after noisy looks at them: a posterior that does not mind how the looks were used.

The squared relative errors R_i^2 of one kind of effects have a common prior, Gamma; its shape is below 1 where few of
them are large. Its mean is the mean of the looks x_i = R_i^2 + N(0, s_i^2) at independence, of ALL effects of the kind,
which are unbiased whatever was done with them afterwards, and its shape what these looks are likeliest under. Each
effect's posterior comes from its own look at the last model. Looks of what a plan left alone are too small, since large
ones were chosen; a posterior draws them up to the prior, and a mean of unbiased looks over them would not.

Where many columns share one factor, a model of some pairs explains a part of all others. What it leaves of those that
it did not measure is the ratio of their looks' sums, at the last model and at independence: the same sketches see both,
so what chose them is in both. The prior's mean is that part of what it is at independence.

The mean of the prior is an estimate itself. Two worlds, one standard deviation below and above it, say what that
leaves open: it moves all effects of a kind together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc

Floats = npt.NDArray[np.float64]
#: The relative error of nothing known: every cell is off by all that it has, on average.
MOST = 4.0
_GRID = np.exp(np.linspace(math.log(1e-7), math.log(MOST), 120))
_SHAPES = (0.1, 0.2, 0.4, 1.0)
_LEAST = 1e-3  # of the looks' spread: a prior's mean, where looks show nothing


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Posteriors of some R^2.

    Attributes:
        means: (effects,) of each.
        spreads: (effects,) its standard deviation, the prior held fixed.
        worlds: (2, effects) mean of each under either prior.
        firsts: (2,) the priors' means.
    """

    means: Floats
    spreads: Floats
    worlds: Floats
    firsts: Floats

    @property
    def prior(self) -> tuple[float, float]:
        """Mean and standard deviation of an effect of the kind that nobody looked at."""
        mean = float(self.firsts.mean())
        return mean, math.sqrt(float(np.mean(2.0 * self.firsts**2)) - mean**2)


def believed(alone: Floats, last: Floats, spread: Floats, left: float = 1.0) -> Beliefs:
    """The posteriors of some effects.

    Args:
        alone: (effects,) unbiased looks at R^2 from independence, which the prior is learned from.
        last: (effects,) the same from the last model.
        spread: (effects,) their standard deviations, positive.
        left: what a model leaves of an effect that it did not measure: 1 where it explains none of them.
    """
    least = _LEAST * float(spread.mean())
    mean, error = float(alone.mean()), math.sqrt(float(spread @ spread)) / len(spread)
    firsts = np.clip([mean - error, mean + error], least, MOST)
    first, own = _likelihoods(alone, spread), _likelihoods(last, spread)
    worlds = np.array([_posterior(first, own, each, left)[0] for each in firsts])
    means, spreads = _posterior(first, own, min(MOST, max(least, mean)), left)
    return Beliefs(means, spreads, worlds, left * firsts)


def _likelihoods(looks: Floats, spread: Floats) -> Floats:
    """(effects, grid) of each look, up to a factor of its own."""
    log = -0.5 * ((looks[:, None] - _GRID) / spread[:, None]) ** 2
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _posterior(first: Floats, own: Floats, mean: float, left: float) -> tuple[Floats, Floats]:
    """Means and standard deviations under priors of that mean; each shape counts as the first looks say."""
    prior = np.array([_prior(mean, shape) for shape in _SHAPES])
    evidence = np.log(np.maximum(first @ prior.T, 1e-300)).sum(axis=0)
    prior = np.array([_prior(left * mean, shape) for shape in _SHAPES])
    prior = (np.exp(evidence - evidence.max()) @ prior)[None]
    mass = np.maximum(own @ prior[0], 1e-300)
    means, squares = (own * _GRID) @ prior[0] / mass, (own * _GRID**2) @ prior[0] / mass
    return means, np.sqrt(np.maximum(squares - means**2, 0.0))


def _prior(mean: float, shape: float) -> Floats:
    """(grid,) probabilities of a Gamma variable near each value."""
    edges = np.sqrt(_GRID[1:] * _GRID[:-1])
    below = gammainc(shape, np.concatenate([edges, [np.inf]]) * shape / mean)
    return np.diff(below, prepend=0.0)


__all__ = ["MOST", "Beliefs", "believed"]
