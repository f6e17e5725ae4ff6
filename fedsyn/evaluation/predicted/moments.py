"""Mean and standard deviation of columns of numbers, in a table and in the rows, by what was released.

The table's are known. The rows' follow from the noisy counts of a column's single values, their mean weighted by
precision: both are linear in the counts (the variance about the mean that they give), so their noise is known. Values
stand where the table has them inside a bin. What noise makes of the rows' variance is at least its standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.real.scores import level_of_codes, places
from fedsyn.evaluation.verdict import doubtful
from fedsyn.table.schema import BinnedColumn, Schema

#: A moment is called close or lost if it is so by this many standard deviations: experiments/verdicts, the tuning side.
DOUBT = 0.5


@dataclass(frozen=True)
class SeenMoments:
    """A column of numbers.

    Attributes:
        mean: how far the table's mean is from the rows', in their standard deviations.
        mean_spread: its standard deviation, by noise.
        variance: that of the rows over that of the table.
        variance_spread: its standard deviation, by noise.
    """

    mean: float
    mean_spread: float
    variance: float
    variance_spread: float

    def losses(self, doubt: float = DOUBT) -> list[tuple[str, float, str]]:
        """Return (kind, amount, words) of each, as `verdict.judged` takes them; doubt: in standard deviations."""
        times = 1.0 / math.sqrt(self.variance)
        off = 0.5 * self.variance_spread / self.variance
        return [
            (
                "mean",
                doubtful("mean", self.mean, doubt * self.mean_spread),
                f"its mean may be {self.mean:.2f} standard deviations off, as noise shows it",
            ),
            (
                "spread",
                doubtful("spread", abs(math.log(times)), doubt * off),
                f"its standard deviation may be {times:.2f} times the real one, as noise shows it",
            ),
        ]


def seen_moments(effects: Effects, schema: Schema) -> dict[str, SeenMoments]:
    """Return the moments of each column with bins whose single values were counted."""
    found: dict[str, SeenMoments] = {}
    for name, column in schema.columns.items():
        at, counts = places(schema, name), [m for m in effects.measured((name,)) if m.groups is None]
        if at is None or not isinstance(column, BinnedColumn) or not counts:
            continue
        known, weights = np.isfinite(at), np.array([m.sigma**-2 for m in counts])
        rows = np.average([m.values for m in counts], axis=0, weights=weights)[known]
        table = effects.masses[name][known]
        if min(rows.sum(), table.sum()) <= 0:
            continue
        rows, table, noise = rows / rows.sum(), table / table.sum(), 1.0 / math.sqrt(weights.sum()) / float(rows.sum())
        values = level_of_codes(column, effects.masses[name], at, effects.rows)[known]
        mean = float(rows @ values)
        apart, own = values - mean, float(table @ (values - table @ values) ** 2)
        if own <= 0:
            continue
        off = noise * math.sqrt(float((apart**4).sum())) / own
        variance = max(float(rows @ apart**2) / own, off)
        unit = math.sqrt(variance * own)
        told = abs(float(table @ apart)) / unit, noise * math.sqrt(float((apart**2).sum())) / unit, variance, off
        found[name] = SeenMoments(*(float(f"{number:.4g}") for number in told))
    return found
