"""Encoding of vectors in messages.

It writes sparse integer vectors in the smallest types, and cuts flat vectors into arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.errors import ProtocolError, refuse
from fedsyn.wire.envelope import Arrays

#: Absolute values of a contribution stay below this: what a float64 holds exactly.
LARGEST = 2**53


def encode_sparse(cells: npt.NDArray[np.integer], values: npt.NDArray[np.integer]) -> Arrays:
    """Encodes a sparse integer vector as two arrays.

    They hold gaps between sorted cells, and values, in the smallest integer types.

    Args:
        cells: (m,) strictly increasing flat positions.
        values: (m,) integers, negative ones in a signed sum only.
    """
    gaps = np.array(cells, np.int64)
    gaps[1:] -= cells[:-1]  # np.diff with a first value costs several times as much where there are few cells
    return [gaps.astype(_smallest(gaps)), values.astype(_smallest(values))]


def decode_sparse(
    arrays: Sequence[npt.NDArray[Any]], length: int, *, signed: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Decodes what `encode_sparse` wrote.

    It is checked against the summed vector's length. Raises ProtocolError if malformed.
    """
    refuse(len(arrays) != 2, f"a sparse vector has 2 arrays, the reply has {len(arrays)}")
    gaps, values = arrays
    for part in (gaps, values):
        if part.ndim != 1 or part.dtype.kind not in "ui":
            raise ProtocolError("a sparse vector must hold one-dimensional integer arrays")
    refuse(gaps.shape != values.shape or len(gaps) > length, "a sparse vector's cells and values do not match")
    least = -LARGEST if signed else -1
    if len(gaps) and (int(gaps.min()) < 0 or int(gaps.max()) > length or int(values.min()) <= least):
        raise ProtocolError("a sparse vector holds negative or oversized entries")
    refuse(len(gaps) and int(values.max()) >= LARGEST, "a sparse vector holds negative or oversized entries")
    cells = np.cumsum(gaps, dtype=np.int64)
    if len(cells) and (cells[-1] >= length or (len(cells) > 1 and int(gaps[1:].min()) < 1)):
        raise ProtocolError(f"a sparse vector's cells must increase and stay below {length}")
    return cells, values.astype(np.int64)


def _smallest(values: npt.NDArray[np.integer]) -> np.dtype[Any]:
    if not len(values):
        return np.dtype(np.uint8)
    low, high = int(values.min()), int(values.max())
    if low >= 0:
        return np.dtype(np.min_scalar_type(high))
    return np.result_type(np.min_scalar_type(low), np.min_scalar_type(-high - 1) if high > 0 else np.int8)


def split_vector(vector: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Views of a flat vector in the given shapes, in order."""
    sizes = [math.prod(shape) for shape in shapes]
    bounds = np.cumsum([0, *sizes])
    return [vector[bounds[i] : bounds[i + 1]].reshape(shape) for i, shape in enumerate(shapes)]
