"""The only functions that draw noise.

Only the ledger calls them, after the charge is entered.

The discrete Gaussian's arithmetic is in `_discrete`, which only this module imports.

A unit test reads the sources and fails when noise is drawn, or this module imported, anywhere else.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsyn.privacy import _discrete
from fedsyn.randomness import RandomSource

#: The grid that noisy values lie on is a power of two between sigma / 2^17 and sigma / 2^16, and at most 1
#: record.
GRID_BITS = 16


def noise_grid(sigma: float) -> float:
    """Returns the spacing of the released values, in records.

    It is a power of two that divides 1.
    """
    return min(1.0, 2.0 ** (math.floor(math.log2(sigma)) - GRID_BITS))


def gaussian(values: NDArray[np.number], sigma: float, source: RandomSource) -> NDArray[np.float64]:
    """Adds N(0, sigma²) to values, rounded to a grid.

    Low-order bits then carry nothing (Mironov 2012).

    A double that is added to a double leaves traces of both in the last bits of the sum. Two cases:

    * Integer values (counts). The noise is rounded to the grid first. The grid divides 1, so the result
      equals the rounding of the real-valued sum (post-processing of the Gaussian mechanism); all integers
      have the same set of possible results, and no bit of the result depends on the value except through the
      sum.
    * Float values. The sum is rounded to the grid, at least 2^17 times coarser than sigma's own last bit.

    Args:
        values: any shape; integer or float dtype. The dtype, never the values, decides between the cases.
        sigma: standard deviation, in records.
        source: one normal is drawn per value, in C order.

    Returns:
        A new float64 array of the same shape.
    """
    grid = noise_grid(sigma)
    noise = sigma * np.asarray(source.standard_normal(values.shape), dtype=np.float64)
    if values.dtype.kind in "iub":
        return values.astype(np.float64) + grid * np.rint(noise / grid)
    rounded: NDArray[np.float64] = grid * np.rint((values + noise) / grid)
    return rounded


def discrete(values: NDArray[np.int64], s: float, source: RandomSource) -> NDArray[np.int64]:
    """Adds N_Z(0, s²) to values, exact to 2^-170.

    Each entry has an independent number; no float is involved.

    Args:
        values: (L,) int64; the caller makes sure that the sums fit.
        s: parameter, from 0.25 to 2^40.
        source: of 64-bit words.
    """
    noisy = _discrete.discrete_gaussian(s, values.size, source)
    noisy += values
    return noisy


def poisson_sample(rows: int, rate: float, source: RandomSource) -> NDArray[np.int64]:
    """Returns indices of a Poisson sample of rows, ascending.

    Each row is taken with probability `rate`, independently.

    A uniform number is a multiple of 2^-53, so the probability is off by less than that.

    Args:
        rows: n.
        rate: q.
        source: one uniform number is drawn per row.
    """
    return np.flatnonzero(np.asarray(source.random(rows)) < rate).astype(np.int64)


def exponential(scores: NDArray[np.float64], epsilon: float, sensitivity: float, source: RandomSource) -> int:
    """Draws an index by the exponential mechanism, with Gumbel noise.

    Index i has probability ∝ `exp(epsilon scores[i] / (2 sensitivity))`.

    `argmax_i (epsilon scores[i] / (2 sensitivity) + Gumbel)` has exactly that distribution. Scores are taken
    relative to the largest one, where rounding is finest; the distribution does not depend on a common
    offset.

    Args:
        scores: (n,) float64, at least one of them finite; -inf is never chosen.
        epsilon: of the exponential mechanism.
        sensitivity: the largest change of any score by one row.
        source: n Gumbel variables are drawn.
    """
    with np.errstate(over="ignore"):  # a candidate that far behind becomes -inf: probability 0 to all precision
        scaled = (scores - scores.max()) * (epsilon / (2.0 * sensitivity))
    return int(np.argmax(scaled + source.gumbel(size=scores.shape)))


def gumbel_steps(size: int, scale: float, source: RandomSource) -> NDArray[np.int64]:
    """Draws Gumbel variables times `scale`, rounded to integers, (size,).

    They are standard ones, for `fedsyn.privacy.shared_choice`.

    Every source's Gumbel variables lie within [-8, 800]: its uniform numbers are at least 2^-1074.
    """
    steps: NDArray[np.int64] = np.rint(scale * np.asarray(source.gumbel(size=size), dtype=np.float64)).astype(np.int64)
    return steps
