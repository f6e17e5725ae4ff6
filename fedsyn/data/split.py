"""Splitting a table's rows."""

from __future__ import annotations

import numpy as np

from fedsyn.errors import DataError


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
    if not 0 <= fraction < 1:
        raise ValueError("the test fraction must lie in [0, 1)")
    if n < 1:
        raise DataError("the table has no rows")
    held_out = min(round(n * fraction), n - 1)
    is_test = np.zeros(n, dtype=bool)
    is_test[np.argsort(rng.random(n), kind="stable")[:held_out]] = True
    return np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)
