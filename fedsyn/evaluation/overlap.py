"""How well a private choice of the k best finds them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def top_k(scores: npt.ArrayLike, k: int) -> list[int]:
    """Indices of the k largest scores, best first; of equal scores the smaller index comes first.

    Raises:
        ValueError: fewer than k scores, k below 0, or a NaN.
    """
    values = np.asarray(scores, np.float64).ravel()
    if not 0 <= k <= values.size:
        raise ValueError(f"cannot take {k} of {values.size} scores")
    if np.isnan(values).any():
        raise ValueError("a score is not a number")
    return [int(i) for i in np.argsort(-values, kind="stable")[:k]]


def jaccard(one: Iterable[int], other: Iterable[int]) -> float:
    """|A ∩ B| / |A ∪ B|, between 0 and 1; two empty sets are equal, so 1.

    Source: Sedimo & Near, Section 6.1, U(T, A).
    """
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def top_k_overlap(scores: npt.ArrayLike, chosen: Iterable[int]) -> float:
    """Jaccard overlap of a choice of k options with the k that really score best."""
    chosen = set(chosen)
    return jaccard(top_k(scores, len(chosen)), chosen)
