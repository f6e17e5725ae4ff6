"""Arithmetic with one result on every machine that runs the same NumPy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def dot(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Inner product of two vectors: einsum and not BLAS, whose order of summation depends on kernel and threads."""
    return float(np.einsum("i,i->", a, b))


def norm(a: npt.NDArray[np.float64]) -> float:
    """Euclidean norm of a vector: `np.linalg.norm` takes it from BLAS."""
    return math.sqrt(dot(a, a))
