"""Splitting a table's rows."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from fedsyn.errors import DataError

_BLOCK = 1 << 18
_SLOTS = 1 << 16


def train_test_split(n: int, fraction: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws a uniform random test set.

    Args:
        n: number of rows.
        fraction: share of the test set, 0 <= fraction < 1; the number of test rows is rounded to the nearest.
        rng: source of randomness (`random` is used).

    Returns:
        Ascending int64 row indices of the training set (at least one) and of the test set.

    Raises:
        DataError: n < 1.
        ValueError: fraction out of range.
    """
    is_test = draw_test_rows(n, fraction, rng)
    return np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)


def draw_test_rows(n: int, fraction: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """(n,) mask of the test set that `train_test_split` draws, in one byte a row and little more.

    The rows whose random numbers are the smallest; of equal numbers the earlier row. The numbers are drawn twice, block
    by block, rather than kept: the first time to see below which they are the smallest.
    """
    if not 0 <= fraction < 1:
        raise ValueError("the test fraction must lie in [0, 1)")
    if n < 1:
        raise DataError("the table has no rows")
    held_out = min(round(n * fraction), n - 1)
    again = copy.deepcopy(rng)
    histogram = np.zeros(_SLOTS, dtype=np.int64)
    for start in range(0, n, _BLOCK):
        histogram += np.bincount(_slot(rng.random(min(_BLOCK, n - start))), minlength=_SLOTS)
    below = np.cumsum(histogram)
    edge = int(np.searchsorted(below, held_out, side="left"))  # the slot that is only partly taken
    is_test = np.zeros(n, dtype=bool)
    numbers, rows = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for start in range(0, n, _BLOCK):
        number = again.random(min(_BLOCK, n - start))
        slot = _slot(number)
        is_test[start : start + len(number)] = slot < edge
        at_edge = np.flatnonzero(slot == edge)
        numbers.append(number[at_edge])
        rows.append(start + at_edge)
    wanted = held_out - int(below[edge] - histogram[edge])
    is_test[np.concatenate(rows)[np.argsort(np.concatenate(numbers), kind="stable")[:wanted]]] = True
    return is_test


def _slot(numbers: np.ndarray) -> np.ndarray:
    """Which of equally wide parts of [0, 1) a number lies in; exact, as their number is a power of two."""
    return (numbers * _SLOTS).astype(np.int64)
