"""Moments of columns of numbers, by what was released."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsyn.domain import Floats
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.record import short
from fedsyn.evaluation.scores import level_of_codes, places
from fedsyn.evaluation.verdict import LOST, doubtful
from fedsyn.table.schema import BinnedColumn, Schema

#: A moment is called close or lost if it is so by this many standard deviations of noise: experiments/verdicts, the
#: tuning side.
MOMENT_DOUBT = 0.5
#: Standard deviations of a normal variable that hold nine of ten.
QUANTILE = 1.6449


@dataclass(frozen=True)
class SeenMoments:
    """A column of numbers.

    Attributes:
        mean: how far the table's mean is from the rows', in their standard deviations.
        mean_spread: its standard deviation, by noise.
        variance: that of the rows over that of the table.
        variance_spread: its standard deviation, by noise.
        mean_inside: standard deviation of `mean`, as nothing tells where values lie inside their bins.
        spread_inside: that of the logarithm of the rows' standard deviation, by the same.
    """

    mean: float
    mean_spread: float
    variance: float
    variance_spread: float
    mean_inside: float = 0.0
    spread_inside: float = 0.0

    @property
    def spread_doubt(self) -> float:
        """Doubt of the standard deviation's logarithm, by noise and bins."""
        return math.hypot(0.5 * self.variance_spread / self.variance, self.spread_inside)

    def ratio(self) -> str:
        """Returns the table's standard deviation over the rows', in words.

        Where it may be 1 for all that the noise says, in nine tables of ten, the words are its interval.
        """
        low, high = (self.variance + sign * QUANTILE * self.variance_spread for sign in (-1.0, 1.0))
        if not low <= 1.0 <= high:
            return f"about {1.0 / math.sqrt(self.variance):.2f}"
        least = 1.0 / math.sqrt(high)
        return f"{least:.2f} to {1.0 / math.sqrt(low):.2f}" if low > 0.0 else f"at least {least:.2f}"

    def losses(self, doubt: float = MOMENT_DOUBT) -> list[tuple[str, float, str]]:
        """Returns (kind, amount, words) of each loss.

        `verdict.judged` takes them. `doubt` is in standard deviations of noise. A moment is not known whose bins alone
        leave open, in nine of ten columns, whether it is lost; nor is a standard deviation that noise alone makes
        larger than the table's.
        """
        times, ratio = 1.0 / math.sqrt(self.variance), self.ratio()
        figures = (
            ("mean", self.mean, self.mean_spread, self.mean_inside, f"about {self.mean:.2f} standard deviations off"),
            (
                "spread",
                abs(math.log(times)),
                0.5 * self.variance_spread / self.variance,
                self.spread_inside,
                f"{ratio} times the real one",
            ),
        )
        losses = []
        for (kind, amount, noise, inside, words), name in zip(figures, ("mean", "standard deviation"), strict=True):
            text = f"its {name} is {words}, estimated from the noisy counts"
            off = math.hypot(doubt * noise, inside)
            if QUANTILE * inside > LOST[kind]:
                text, off = f"its bins are too wide to know its {name}", math.inf
            elif kind == "spread" and self.variance > 1.0 and self.variance_spread >= self.variance:
                text, off = f"the noise is too strong to know its {name}", math.inf
            losses.append((kind, doubtful(kind, amount, off), text))
        return losses


def seen_moments(effects: Effects, schema: Schema) -> dict[str, SeenMoments]:
    """Returns the moments of columns whose single values were counted.

    Only columns with bins have them.

    The table's are known. The rows' follow from the noisy counts of a column's single values, their mean weighted by
    precision: both are linear in the counts (the variance about the mean that they give), so their noise is known. What
    noise makes of the rows' variance is at least its standard deviation.

    Values stand where the table has them inside a bin, and may stand anywhere there: the mean of a bin's values is
    taken to be anywhere in it, each place equally likely, and each bin's by itself.
    """
    moments: dict[str, SeenMoments] = {}
    for name, column in schema.columns.items():
        at, counts = places(schema, name), [m for m in effects.measured((name,)) if m.groups is None]
        if at is None or not isinstance(column, BinnedColumn) or not counts:
            continue
        # The column's shares in the rows, by precision, and in the table.
        known, weights = np.isfinite(at), np.array([m.sigma**-2 for m in counts])
        rows = np.average([m.values for m in counts], axis=0, weights=weights)[known]
        table = effects.masses[name][known]
        if min(rows.sum(), table.sum()) <= 0:
            continue
        rows, table, noise = rows / rows.sum(), table / table.sum(), 1.0 / math.sqrt(weights.sum()) / float(rows.sum())
        # The table's mean in the rows' standard deviations, and the rows' variance in the table's, with their noise.
        values = level_of_codes(column, effects.masses[name], at, effects.rows)[known]
        mean = float(rows @ values)
        apart, table_variance = values - mean, float(table @ (values - table @ values) ** 2)
        if table_variance <= 0:
            continue
        off = noise * math.sqrt(float((apart**4).sum())) / table_variance
        seen = float(rows @ apart**2) / table_variance
        variance = max(seen, off)
        # Where noise hides the rows' variance, they are measured by the table's if that is smaller.
        unit = math.sqrt((variance if seen > off else min(variance, 1.0)) * table_variance)
        figures = [abs(float(table @ apart)) / unit, noise * math.sqrt(float((apart**2).sum())) / unit, variance, off]
        inside = _inside(np.maximum(rows, 0.0), *(ends - mean for ends in column.ends))
        # Values of a bin that stand at one place move the mean with them, and have no variance of their own.
        figures += [math.sqrt(inside[0]) / unit, 0.5 * math.hypot(math.sqrt(inside[1]), inside[0]) / unit**2]
        moments[name] = SeenMoments(*map(short, figures))
    return moments


def _inside(shares: Floats, low: Floats, high: Floats) -> tuple[float, float]:
    """Returns the variances of mean and variance, by places inside bins.

    Args:
        shares: (bins,) of the rows.
        low, high: (bins,) ends of the bins, about the mean.
    """
    # Moments of a variable that is anywhere between both ends: its square, and the square of that.
    second = (low**2 + low * high + high**2) / 3.0
    fourth = (low**4 + low**3 * high + low**2 * high**2 + low * high**3 + high**4) / 5.0
    spread = (high - low) ** 2 / 12.0
    return float(shares**2 @ spread), float(shares**2 @ np.maximum(fourth - second**2, 0.0))
