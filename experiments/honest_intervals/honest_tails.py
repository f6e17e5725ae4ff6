"""Tails of columns in bins: how far off their means and slopes are, exact counts, with what is open for it.

    python -m experiments.honest_intervals.honest_tails

The constants of `fedsyn/table/schema/inside.py` were chosen on the columns of `TUNING` and are reported on the others.
A slope is that of an outcome on the column, which goes by its own values: cov(made, own) / var(made).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedsyn.table.schema.inside import Inside

_ROWS = 4000
_U = (np.arange(_ROWS) + 0.5) / _ROWS
BINS = (32, 16, 8)


def _mixed(share: float, factor: float) -> np.ndarray:
    """Quantiles of a log-normal column, of which a share is so many times as large."""
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(3.6, 0.8, 400_000)) * np.where(rng.random(400_000) < share, factor, 1.0)
    return np.asarray(np.quantile(values, _U))


def _waves(height: float, noise: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.asarray(np.quantile(height * np.sin(rng.uniform(0, 6.3, 400_000)) + rng.normal(0, noise, 400_000), _U))


#: Columns by their quantiles, on which constants were chosen.
TUNING = {
    "normal": stats.norm().ppf(_U),
    "t 5": stats.t(5).ppf(_U),
    "logistic": stats.logistic().ppf(_U),
    "log-normal 0.5": stats.lognorm(0.5).ppf(_U),
    "gamma 2": stats.gamma(2).ppf(_U),
    "Weibull 1.5": stats.weibull_min(1.5).ppf(_U),
    "beta 2 5": stats.beta(2, 5).ppf(_U),
    "triangle": stats.triang(0.5).ppf(_U),
    "Pareto 3": stats.pareto(3).ppf(_U),
    "skew normal": stats.skewnorm(5).ppf(_U),
    "steep waves": _waves(8, 1.5),
    "5% tenfold": _mixed(0.05, 10.0),
}
JUDGING = {
    "t 10": stats.t(10).ppf(_U),
    "t 3": stats.t(3).ppf(_U),
    "Gumbel": stats.gumbel_r().ppf(_U),
    "beta 5 5": stats.beta(5, 5).ppf(_U),
    "beta 2 2": stats.beta(2, 2).ppf(_U),
    "log-normal 1": stats.lognorm(1).ppf(_U),
    "exponential": stats.expon().ppf(_U),
    "Laplace": stats.laplace().ppf(_U),
    "Pareto 4": stats.pareto(4).ppf(_U),
    "gentle waves": _waves(4, 2.5),
    "log-normal 1.3": stats.lognorm(1.3).ppf(_U),
    "2% fiftyfold": _mixed(0.02, 50.0),
}


@dataclass(frozen=True)
class Tail:
    """One column in equally full bins.

    `share`: most of its variance inside one bin. `top`: mean of the last bin beyond its edge, relative error; `three`:
    by the index of three bins. `slope`, `mean`: errors, the latter in standard deviations; and what counts for theirs.
    """

    share: float
    top: float
    three: float
    slope: float
    slope_open: float
    mean: float
    mean_open: float


def tail(values: np.ndarray, bins: int) -> Tail:
    """Returns how far off a column is, given quantiles of its own."""
    inner = np.quantile(values, np.arange(1, bins) / bins)
    room = 0.15 * (values[-1] - values[0])
    edges = np.r_[0.0 if values[0] >= 0 else values[0] - room, inner, values[-1] + room]
    codes, counts = np.minimum((_U * bins).astype(np.intp), bins - 1), np.full(bins, 1e7 / bins)

    def made(low: float | None, high: float | None) -> np.ndarray:
        """Values at the same places of their bins, with these leans at the ends."""
        middle, first, last = (Inside(edges, counts, lean) for lean in (0.0, low, high))
        place = _U * bins - codes
        parts = (codes == 0, first), (codes == bins - 1, last), ((codes > 0) & (codes < bins - 1), middle)
        for rows, inside in parts:
            place[rows] = inside.place(codes[rows], place[rows])
        return np.asarray(edges[codes] + place * np.diff(edges)[codes])

    def slope(numbers: np.ndarray) -> float:
        return float(np.cov(numbers, values)[0, 1] / numbers.var(ddof=1))

    def open_(of: list[float]) -> float:
        return float(np.hypot(of[0] - of[1], of[2] - of[3]) / 2 / np.sqrt(3))

    at, last = made(0.0, 0.0), codes == bins - 1
    leant = [made(0.0, 1.0), made(0.0, -1.0), made(1.0, 0.0), made(-1.0, 0.0)]
    within = np.bincount(codes, (at - (np.bincount(codes, at) / np.bincount(codes))[codes]) ** 2)
    beyond = [float(numbers[last].mean() - edges[-2]) for numbers in (at, made(None, None), values)]
    scale = float(values.std())
    return Tail(
        float(within.max() / ((at - at.mean()) ** 2).sum()),
        abs(beyond[0] / beyond[2] - 1),
        abs(beyond[1] / beyond[2] - 1),
        slope(at) - 1,
        open_([slope(numbers) for numbers in leant]),
        float(at.mean() - values.mean()) / scale,
        open_([float(numbers.mean()) for numbers in leant]) / scale,
    )


def lines() -> Iterator[str]:
    """Two tables in Markdown."""
    yield "| columns | bins | mean of the last bin is off by | nine of ten | by three bins | nine of ten |"
    yield "|---|---|---|---|---|---|"
    sides = {"tuning": TUNING, "judging": JUDGING}
    found = {(side, bins): [tail(v, bins) for v in some.values()] for side, some in sides.items() for bins in BINS}
    for (side, bins), tails in found.items():
        now, before = ([f(x) for x in tails] for f in (lambda x: x.top, lambda x: x.three))
        told = [f"{np.median(each):.1%} | {np.quantile(each, 0.9):.1%}" for each in (now, before)]
        yield f"| {side} | {bins} | {' | '.join(told)} |"
    yield ""
    yield "| columns | of a variance in one bin | columns | slopes within two | off, median | means within two |"
    yield "|---|---|---|---|---|---|"
    for side in sides:
        for low, high in ((0.0, 0.1), (0.1, 1 / 3), (1 / 3, 1.0)):
            some = [x for bins in BINS for x in found[side, bins] if low <= x.share < high]
            slopes, means = (
                np.mean([abs(off) <= 2 * open_ + 1e-3 for off, open_ in each])
                for each in ([(x.slope, x.slope_open) for x in some], [(x.mean, x.mean_open) for x in some])
            )
            off = np.median([abs(x.slope) for x in some])
            yield f"| {side} | {low:.0%} to {high:.0%} | {len(some)} | {slopes:.0%} | {off:.1%} | {means:.0%} |"


if __name__ == "__main__":
    print("\n".join(lines()))
