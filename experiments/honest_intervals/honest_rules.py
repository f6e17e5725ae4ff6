"""The combining rules alone, where all is Gaussian: coverage and width over noise and rows of tables."""

from __future__ import annotations

import numpy as np

from fedsyn.analysis import combine

_TABLES, _QUANTITIES = 20, 40_000


def lines() -> list[str]:
    """A table in Markdown. Noise: variance of the privacy noise / that of the real rows; ideal: a known variance."""
    out = ["| noise | rows of a table / real rows | coverage | width / ideal |", "|---|---|---|---|"]
    for noise in (0.0, 0.5, 3.0):
        for ratio in (1.0, 2.0, 5.0):
            rng, spread, v = np.random.default_rng(3), np.sqrt(1.0 + noise), 1.0 / ratio
            centre = rng.normal(0, spread, _QUANTITIES)
            estimates = centre + rng.normal(0, np.hypot(spread, np.sqrt(v)), (_TABLES, _QUANTITIES))
            low, high = combine(estimates, np.full(estimates.shape, v), ratio=ratio).interval()
            share, wide = ((low < 0) & (high > 0)).mean(), (high - low).mean() / (2 * 1.96 * spread)
            out.append(f"| {noise:g} | {ratio:g} | {100 * share:.1f}% | {wide:.2f} |")
    return out
