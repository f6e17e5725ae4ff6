"""The public cells in which numbers are first counted: sign and power of two, between what is public of the bounds."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: The probability with which noise alone lets any empty cell of a step stand out. Stated, not tuned: one run in a
#: hundred may get a range, or a prefix, that no row is in.
FALSE_ALARM = 0.01
# Powers of two: from 2^-32, below which a number counts as tiny, to 2^64; whole numbers up to 2^53, as far as float64
# knows every one.
_SMALLEST, _LARGEST, _STEPS = -32, 64, 53
_ABOVE_ZERO = float(np.nextafter(0.0, 1.0))


def threshold(sigma: float, cells: int, false_alarm: float = FALSE_ALARM) -> float:
    """What a noisy count must exceed to stand out.

    Of `cells` empty cells with independent N(0, sigma²) noise the chance that any exceeds `sigma z` is at most
    `cells (1 - Φ(z))` (union), so z is the 1 - false_alarm / cells quantile. The noise of the clients' shares is a
    discrete Gaussian: to its last digit the same at such a sigma.

    >>> round(threshold(10.0, 195), 1)
    38.8
    """
    return sigma * NormalDist().inv_cdf(1.0 - false_alarm / max(1, cells))


@lru_cache(maxsize=64)
def universe(whole: bool, lower: float | None, upper: float | None) -> tuple[float, ...]:
    """Ascending edges of the cells: cell i holds edge i <= x < edge i + 1, and the outermost ones all that is beyond.

    Zero has a cell of its own. From there the cells double to both sides: of whole numbers {1}, {2, 3}, {4 .. 7}, ...;
    else [2^-32, 2^-31), ....

    >>> universe(True, 0.0, 9.0)
    (0.0, 1.0, 2.0, 4.0, 8.0, 10.0)

    Args:
        whole: whether every number is a whole one; the last edge is then one beyond the largest.
        lower, upper: public bounds; None where they are private.
    """
    if whole:
        steps = [2.0**k for k in range(_STEPS)]
        edges = [*(1.0 - n for n in reversed(steps)), *steps]
    else:
        powers = [2.0**k for k in range(_SMALLEST, _LARGEST + 1)]
        edges = [*(-x for x in reversed(powers)), 0.0, _ABOVE_ZERO, *powers]
    low = edges[0] if lower is None else lower
    high = edges[-1] if upper is None else upper + whole
    if low == high:  # one number
        high = math.nextafter(high, math.inf)
    return (low, *(edge for edge in edges if low < edge < high), high)


def places(edges: Floats, numbers: Floats) -> npt.NDArray[np.int64]:
    """(m,) the cell of each number, the nearest one for what lies beyond; numbers that are missing are left out."""
    known = numbers[~np.isnan(numbers)]
    found: npt.NDArray[Any] = np.searchsorted(edges[1:-1], known, side="right")
    return found.astype(np.int64, copy=False)


def histogram(edges: Floats, numbers: Floats) -> npt.NDArray[np.int64]:
    """(cells,) rows in each cell; one row is in at most one of them."""
    return np.bincount(places(edges, numbers), minlength=len(edges) - 1)


def significant_range(counts: Floats, least: float) -> tuple[int, int, bool]:
    """(first, last, whether they stood out): the outermost cells whose noisy count exceeds `least`.

    Where none does, the fullest one stands for all: a table too small for its noise gets a column of one bucket.
    """
    passing = np.flatnonzero(counts > least)
    if len(passing) == 0:
        fullest = int(np.argmax(counts))
        return fullest, fullest, False
    return int(passing[0]), int(passing[-1]), True
