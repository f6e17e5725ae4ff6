"""Real numbers as integers for a secure sum, and back.

Sedimo & Near, "Efficient Distributed Differentially Private Synthetic Data ...", Algorithms 3 and 4, without what is
the aggregation's business: the noise (line 2) and the ring (line 3, and lines 2-6 of Algorithm 4).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Floating point may move an encoded value of at most LARGEST by this much before it is rounded. Sums of
#: millions of cells are exact to 3e-15 of their value, LARGEST times that is 0.05.
_FLOAT_ERROR = 0.1
LARGEST = 2.0**44


def encode(values: npt.ArrayLike, resolution: int) -> npt.NDArray[np.int64]:
    """`resolution * values`, rounded to the nearest integers (Algorithm 3, line 1, which truncates).

    Raises:
        ValueError: a value is not finite, or 2^53 or larger when scaled.
    """
    scaled = np.asarray(values, np.float64) * resolution
    if not (np.abs(scaled) < 2.0**53).all():
        raise ValueError("a value to encode is not finite or too large for its resolution")
    return np.rint(scaled).astype(np.int64)


def decode(sums: npt.ArrayLike, resolution: int) -> npt.NDArray[np.float64]:
    """`sums / resolution` (Algorithm 4, line 7); `sums` are signed, and no integers once noise is on them."""
    return np.asarray(sums, np.float64) / resolution


def encoded_moves(moves: npt.ArrayLike, resolution: int) -> npt.NDArray[np.int64]:
    """How far encoded values move at most when the values move by at most `moves`.

    Rounding two numbers to the nearest integers moves their distance x by at most 1, and leaves an integer: at most
    floor(x + 1). With x = resolution * moves that is x + 1 where x is whole (0.5 and 1.5 are one apart and round to 0
    and 2), and the ceiling of x otherwise. Another tenth is for the values' own floating point error, up to LARGEST.
    """
    return np.floor(np.asarray(moves, np.float64) * resolution + 1.0 + _FLOAT_ERROR).astype(np.int64)
