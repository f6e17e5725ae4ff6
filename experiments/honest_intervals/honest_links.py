"""How far slopes are off that exact counts of bins give, beside what an interval takes to be open.

    python -m experiments.honest_intervals.honest_links

Two columns in equally full bins, between bounds a tenth of their range beyond the rows. Numbers inside bins are those
of tables of an analysis, in ten draws of what counts leave open. `shuffled`: what slopes owe to how numbers go along
inside bins. The share of it that counts as a standard deviation (`_UNKNOWN` of `fedsyn/evaluation/analysis/whole.py`)
was chosen on the tuning kinds, and is judged on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.special import ndtri

from fedsyn.domain import Floats
from fedsyn.evaluation.analysis.whole import _UNKNOWN, _shuffled
from fedsyn.inference import Model
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema
from fedsyn.table.schema.binned import NumericColumn

_ROWS, _DRAWS = 200_000, 10
_Pair = Callable[[np.random.Generator], tuple[Floats, Floats]]


def _normal(rho: float, df: float = np.inf) -> _Pair:
    """Two normal columns, or t, of some correlation."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats]:
        x, scale = rng.normal(size=_ROWS), 1.0 if np.isinf(df) else np.sqrt(rng.chisquare(df, _ROWS) / df)
        return x / scale, (rho * x + np.sqrt(1 - rho**2) * rng.normal(size=_ROWS)) / scale

    return draw


def _clayton(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two even columns that go together in their lower tails (Clayton, theta = 2)."""
    u, w = rng.random((2, _ROWS))
    return u, ((w ** (-2 / 3) - 1) * u**-2.0 + 1) ** -0.5


def _of(outcome: Callable[[Floats, np.random.Generator], Floats], gamma: float | None = None) -> _Pair:
    """A normal column, or a gamma one, and an outcome of it."""

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats]:
        x = rng.normal(size=_ROWS) if gamma is None else rng.gamma(gamma, size=_ROWS)
        return x, outcome(x, rng)

    return draw


def _groups(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two groups apart, and nothing that links the columns in either."""
    group = rng.integers(0, 2, _ROWS)
    return 3 * group + rng.normal(size=_ROWS), 2 * group + rng.normal(size=_ROWS)


#: Side -> kind -> its values.
PAIRS: dict[str, dict[str, _Pair]] = {
    "tuning": {
        "normal 0.3": _normal(0.3),
        "normal 0.9": _normal(0.9),
        "log-normal": lambda rng: (lambda x, y: (np.exp(0.8 * x), np.exp(0.8 * y)))(*_normal(0.5)(rng)),
        "lower tails": lambda rng: (lambda u, v: (ndtri(u), ndtri(v)))(*_clayton(rng)),
        "spread grows": _of(lambda x, rng: 0.7 * x + np.abs(x) * rng.normal(size=_ROWS)),
        "kink": _of(lambda x, rng: 2 * np.maximum(x - 0.5, 0) + rng.normal(size=_ROWS)),
        "gamma": _of(lambda x, rng: x + rng.gamma(2, size=_ROWS), 2.0),
        "two groups": _groups,
    },
    "judging": {
        "normal 0.6": _normal(0.6),
        "t of 6": _normal(0.6, 6),
        "log and normal": lambda rng: (lambda x, y: (np.exp(0.5 * x), y))(*_normal(0.7)(rng)),
        "lower tails, exponential": lambda rng: (lambda u, v: (-np.log(u), -np.log(v)))(*_clayton(rng)),
        "exponential": _of(lambda x, rng: x * rng.exponential(size=_ROWS), 3.0),
        "square": _of(lambda x, rng: x**2 / 3 + x + rng.normal(size=_ROWS)),
        "saturates": _of(lambda x, rng: np.tanh(x) + 0.4 * rng.normal(size=_ROWS)),
        "steps": _of(lambda x, rng: np.rint(x) + 0.5 * rng.normal(size=_ROWS)),
    },
}


def _slope(frame: pd.DataFrame, outcome: str, term: str) -> float:
    return float(frame[outcome].cov(frame[term]) / frame[term].var())


def rows_of(side: str, bins: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Yields kind, slope, its error, its spread over draws, and what it owes to shuffles, as shares of the slope."""
    for number, (kind, draw) in enumerate(PAIRS[side].items()):
        rng = np.random.default_rng(number)
        values = pd.DataFrame(dict(zip("xy", draw(rng), strict=True)))
        edges = {}
        for name, column in values.items():
            beyond = 0.1 * (column.max() - column.min())
            inner = column.quantile(np.arange(1, bins) / bins)
            edges[str(name)] = [column.min() - beyond, *inner, column.max() + beyond]
        schema = Schema(columns={name: NumericColumn(bins=tuple(at)) for name, at in edges.items()}, approved=True)
        codes = schema.encode(values).astype(np.intp)
        cells = np.bincount(codes @ [bins, 1], minlength=bins**2).reshape(bins, bins)
        model = Model(schema.domain, {("x", "y"): np.log(np.maximum(cells, 0.5))}, _ROWS)
        leans = rng.uniform(-1, 1, (_DRAWS, 2))
        made = [decoding(schema, model, dict(zip("xy", lean, strict=True))).decode(codes, rng) for lean in leans]
        mixed = [_shuffled(frame, edges, rng) for frame in made]
        for ends in (("y", "x"), ("x", "y")):
            true, found, loose = _slope(values, *ends), *([_slope(f, *ends) for f in some] for some in (made, mixed))
            figures = np.mean(found) - true, np.std(found, ddof=1), np.mean(found) - np.mean(loose)
            yield kind, " ~ ".join(ends), *(float(figure / true) for figure in figures)


def main() -> None:
    print(
        "| columns | bins | slopes | within two | spread of errors | off, median | nine of ten |",
        "|---" * 7 + "|",
        sep="\n",
    )
    for side in PAIRS:
        for bins in (32, 16):
            _, _, *figures = zip(*rows_of(side, bins), strict=True)
            off, lean, owed = map(np.array, figures)
            far = off / np.hypot(np.sqrt(1 + 1 / _DRAWS) * lean, _UNKNOWN * owed)
            off = np.abs(off)
            told = f"{np.mean(np.abs(far) < 2):.0%} | {np.sqrt(np.mean(far**2)):.2f} | {np.median(off):.1%}"
            print(f"| {side} | {bins} | {len(off)} | {told} | {np.quantile(off, 0.9):.1%} |")


if __name__ == "__main__":
    main()
