"""GUM: rows whose marginals follow noisy one- and two-way marginals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Domain
from fedsyn.inference.measurements import Measurement


@dataclass(frozen=True)
class GumConfig:
    """How rows are fitted (defaults are usable)."""

    iterations: int = 50


def synthesize(
    domain: Domain,
    measurements: Sequence[Measurement],
    rows: int,
    rng: np.random.Generator,
    config: GumConfig | None = None,
    *,
    total: float | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """(rows, d) codes in the smallest unsigned type, columns in domain order.

    total: public number of records (None: estimated from the measurements); rows may differ from it.
    start: (rows, d) codes to start from instead of the initialisation (a warm start for adaptive mechanisms).
    """
    raise NotImplementedError
