"""The squared distance of a sketch: its mean is the squared error, its variance that of docs/mechanisms/sketch_aim.md.

False alarms: a mean is compared with its own standard error over DRAWS independent draws, within 4.5 of them: 7e-6 per
comparison by the normal approximation, 1e-4 for this file. A sample variance of DRAWS values whose kurtosis is below
15 has a relative standard deviation below sqrt(14 / DRAWS) = 6%: 30% are five of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.sketch_aim_ablation.variant import CountSketch, Signs
from fedsyn.domain import Domain
from fedsyn.selection.coarse import grouping_of
from fedsyn.selection.sketches import Interactions, Sketcher, squared_distance
from fedsyn.table.counting.marginals import count

DRAWS = 4000
DOMAIN = Domain(("a", "b"), (12, 15))
CLIQUE = ("a", "b")
WIDTH = 16
SIGMA = 9.0  # on the summed integers, in multiples of a row's norm


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Codes of 500 dependent rows, and a model's marginal of as many records: their independent product."""
    rng = np.random.default_rng(11)
    a = np.floor(12 * rng.random(500) ** 2).astype(np.int64)
    b = (a + np.floor(15 * rng.random(500) ** 3).astype(np.int64)) % 15
    codes = np.stack([a, b], axis=1)
    model = np.outer(np.bincount(a, minlength=12), np.bincount(b, minlength=15)) / 500
    return codes, model


def draws(kind: str, fresh_seeds: bool) -> tuple[np.ndarray, Sketcher]:
    """DRAWS squared distances, each with its own noise and, if asked for, its own public seed."""
    codes, model = tables()
    rng = np.random.default_rng(5)
    mass = {"a": model.sum(axis=1), "b": model.sum(axis=0)}
    grouping = grouping_of(DOMAIN, [CLIQUE], WIDTH, mass) if kind in ("groups", "interactions") else {}
    made: Any = {"interactions": Interactions, "groups": Sketcher, "count": CountSketch, "signs": Signs}[kind]
    found = np.empty(DRAWS)
    for i in range(DRAWS):
        seed = () if grouping else (i if fresh_seeds else 0,)
        sketcher = made(DOMAIN, (CLIQUE,), WIDTH, grouping, *seed)
        parts = [codes[:120], codes[120:121], codes[121:]]  # three clients
        sigma = SIGMA * sketcher.row_norms[0]
        noisy = sum(sketcher.of_rows(part) for part in parts) + rng.normal(0.0, sigma, sketcher.length)
        residual = sketcher.split(noisy)[0] - sketcher.of_marginal(0, model)
        found[i] = squared_distance(residual, sketcher.sigma_of(0, sigma), sketcher.noises(0))
    return found, sketcher


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["count", "signs"])
def test_over_seeds_the_mean_is_the_squared_error_of_the_marginal(kind: str) -> None:
    codes, model = tables()
    error = (count(codes, DOMAIN, [CLIQUE])[0] - model).ravel()
    exact = float(error @ error)
    found, sketcher = draws(kind, fresh_seeds=True)
    assert abs(found.mean() - exact) < 4.5 * found.std(ddof=1) / math.sqrt(DRAWS)
    noise = sketcher.sigma_of(0, SIGMA * sketcher.row_norms[0])
    # Projection, noise, and their product: 2 (|x|^4 - sum x^4) / k + 2 k sigma^4 + 4 sigma^2 |x|^2.
    expected = 2 * (exact**2 - float((error**4).sum())) / WIDTH + 2 * WIDTH * noise**4 + 4 * noise**2 * exact
    assert found.var(ddof=1) == pytest.approx(expected, rel=0.3)
    assert 4.5 * found.std(ddof=1) / math.sqrt(DRAWS) < 0.1 * exact, "the test must be able to see a bias of a tenth"


@pytest.mark.parametrize(
    "kind", ["interactions", "groups", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("count", "signs"))]
)
def test_over_the_noise_the_mean_is_the_squared_error_that_the_matrix_sees(kind: str) -> None:
    codes, model = tables()
    found, sketcher = draws(kind, fresh_seeds=False)
    error = count(codes, DOMAIN, [CLIQUE])[0] - model
    seen = sketcher.of_marginal(0, error)
    exact = float(seen @ seen)
    noise = sketcher.sigma_of(0, SIGMA * sketcher.row_norms[0])
    assert abs(found.mean() - exact) < 4.5 * found.std(ddof=1) / math.sqrt(DRAWS)
    assert found.var(ddof=1) == pytest.approx(2 * sketcher.noises(0) * noise**4 + 4 * noise**2 * exact, rel=0.3)
    assert 4.5 * found.std(ddof=1) / math.sqrt(DRAWS) < 0.5 * sketcher.noises(0) * noise**2, (
        "missing noise must be seen"
    )
