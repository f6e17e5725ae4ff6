"""The combining rules alone, where all is Gaussian: coverage and width over noise and rows of tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedsyn.evaluation.analysis import combine

_TABLES, _QUANTITIES = 20, 40_000
# Beside those that `fedsyn sample --tables 20` draws: fewer tables, and smaller ones.
_OTHERS = ((2, 1.0), (2, 5.0), (3, 5.0), (5, 5.0), (12, 0.25), (12, 1.0), (20, 0.1), (20, 0.3))


def lines() -> list[str]:
    """Two tables in Markdown. Noise: variance of the privacy noise / that of the real rows; ideal: a known variance."""
    out = ["| noise | rows of a table / real rows | coverage | width / ideal |", "|---|---|---|---|"]
    for noise in (0.0, 0.5, 3.0):
        for ratio in (1.0, 2.0, 5.0):
            share, widths = _intervals(_TABLES, ratio, noise)
            out.append(f"| {noise:g} | {ratio:g} | {100 * share:.1f}% | {widths.mean():.2f} |")
    out += [
        "",
        "| tables | rows of a table / real rows | noise | coverage | median width / ideal |",
        "|---|---|---|---|---|",
    ]
    for tables, ratio in _OTHERS:
        for noise in (0.0, 3.0):
            share, widths = _intervals(tables, ratio, noise)
            out.append(f"| {tables} | {ratio:g} | {noise:g} | {100 * share:.1f}% | {np.median(widths):.3g} |")
    return out


def _intervals(tables: int, ratio: float, noise: float) -> tuple[float, npt.NDArray[np.float64]]:
    """The share that holds the truth, and all widths."""
    rng, spread, v = np.random.default_rng(3), np.sqrt(1.0 + noise), 1.0 / ratio
    centre = rng.normal(0, spread, _QUANTITIES)
    estimates = centre + rng.normal(0, np.hypot(spread, np.sqrt(v)), (tables, _QUANTITIES))
    low, high = combine(estimates, np.full(estimates.shape, v), ratio=ratio).interval()
    return float(((low < 0) & (high > 0)).mean()), (high - low) / (2 * 1.96 * spread)
