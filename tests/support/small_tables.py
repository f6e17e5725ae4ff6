"""A table of four attributes and a model of it, small enough to be counted by hand."""

from __future__ import annotations

import itertools

import numpy as np

from fedsyn.domain import Domain
from fedsyn.inference import EstimateConfig, Measurement, Model, estimate

DOMAIN = Domain(("a", "b", "c", "d"), (2, 3, 4, 5))


def table(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, n, rows) ** 2 // n for n in DOMAIN.shape], axis=1).astype(np.uint8)


def a_model(seed: int = 3) -> Model:
    rng = np.random.default_rng(seed)
    measured = [Measurement(q, rng.random(DOMAIN.shape_of(q)) ** 3 * 10, 1.0) for q in itertools.pairwise("abcd")]
    return estimate(DOMAIN, measured, total=50.0, config=EstimateConfig(iterations=40))
