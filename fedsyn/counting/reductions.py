"""Arithmetic with one result on every machine that runs the same NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def dot(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Inner product of two vectors: einsum and not BLAS, whose order of summation depends on the number of threads."""
    return float(np.einsum("i,i->", a, b))
