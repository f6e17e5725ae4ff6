"""How often honest intervals hold the population's own values, where numbers stand in bins with sensible public bounds.

    python -m experiments.honest_intervals.honest_values [--runs 200] [--populations patients survey] [--rows 2000]
    python -m experiments.honest_intervals.honest_values --exact    # the estimates from exact counts of the bins

Other figures of this folder take a number for the middle of its bin, in the population too; here the population has
heavy tails, and its values are known. `even`: the same tables with every number inside a bin equally likely.
"""

from __future__ import annotations

import argparse
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.held_out.held_cells import Cell, fitted
from fedsyn.evaluation.analysis import Estimator, Linear, Logit, Means, combine
from fedsyn.inference import Evidence, Posterior
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema

Floats = npt.NDArray[np.float64]
TABLES, LARGER = 20, 5
_TRUE_ROWS = 1_000_000


class Quantile(Estimator):
    """A quantile of the outcome, with Woodruff's variance."""

    title = "quantile"

    def __init__(self, share: float) -> None:
        self.share = share

    def estimate(self, y: Floats, X: Floats, names: Sequence[str]) -> tuple[Floats, Floats]:
        half = np.sqrt(self.share * (1 - self.share) / len(y))
        low, middle, high = np.quantile(y, [self.share - half, self.share, self.share + half])
        return np.array([middle]), np.array([((high - low) / 2.0) ** 2])


def patients(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Age, severity, length of stay, cost (log-normal) and readmission."""
    severity = rng.integers(1, 5, rows)
    age = np.clip(rng.normal(50 + 3 * severity, 15, rows), 0, 109).astype(int)
    stay = np.minimum(1 + rng.exponential(2 + 1.2 * severity, rows), 60).astype(int)
    cost = np.minimum(np.exp(7.2 + 0.2 * severity + rng.normal(0, 1.0, rows)), 100_000)
    odds = -2.0 + 0.11 * stay + 0.01 * (age - 50)
    readmitted = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return pd.DataFrame({"age": age, "severity": severity, "stay": stay, "cost": cost, "readmitted": readmitted})


def survey(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Three answers of one factor, age, and income with a Pareto tail."""
    factor = rng.standard_normal(rows)
    items = {
        f"q{i}": np.clip(np.rint(3 + load * factor + rng.normal(0, 0.8, rows)), 1, 5).astype(int)
        for i, load in enumerate((0.8, 0.7, 0.6), 1)
    }
    age = rng.integers(18, 90, rows)
    income = np.minimum(
        1500 * np.exp(0.15 * factor) * (1 + rng.pareto(2.8, rows)) * rng.uniform(0.4, 1.0, rows), 50_000
    )
    return pd.DataFrame({**items, "age": age, "income": income})


def _whole(low: int, high: int, bins: Any = "values") -> dict[str, Any]:
    return {"kind": "numeric", "dtype": "integer", "lower": low, "upper": high, "bins": bins}


_COLUMNS: dict[str, dict[str, Any]] = {
    "patients": {
        "age": _whole(0, 109, 11),
        "severity": _whole(1, 4),
        "stay": _whole(0, 60, [0, 2, 4, 6, 9, 15, 60]),
        "cost": {"kind": "numeric", "bins": [0, 1000, 2000, 4000, 8000, 16000, 100000]},
        "readmitted": _whole(0, 1),
    },
    "survey": {
        **{f"q{i}": _whole(1, 5) for i in (1, 2, 3)},
        "age": _whole(18, 89, 8),
        "income": {"kind": "numeric", "bins": [0, 750, 1500, 2500, 4000, 8000, 50000]},
    },
}
_MAKERS = {"patients": patients, "survey": survey}
#: Population -> kind, columns (the outcome first), estimator.
ASKED: dict[str, list[tuple[str, tuple[str, ...], Estimator]]] = {
    "patients": [
        *(("mean", (name,), Means()) for name in ("age", "stay", "cost")),
        *(("quantile", ("cost",), Quantile(share)) for share in (0.5, 0.9)),
        ("proportion", ("readmitted",), Means()),
        ("linear", ("cost", "severity"), Linear()),
        ("linear", ("stay", "severity"), Linear()),
        ("logistic", ("readmitted", "stay"), Logit()),
    ],
    "survey": [
        *(("mean", (name,), Means()) for name in ("age", "income")),
        *(("quantile", ("income",), Quantile(share)) for share in (0.5, 0.9)),
        ("linear", ("income", "q1"), Linear()),
        ("linear", ("q1", "q2"), Linear()),
    ],
}


def schema_of(population: str) -> Schema:
    """The public schema."""
    return Schema.from_dict({"columns": _COLUMNS[population]})


def estimate(frame: pd.DataFrame, columns: tuple[str, ...], by: Estimator) -> tuple[Floats, Floats]:
    """Estimates and variances of one table; without the intercept."""
    y = frame[columns[0]].to_numpy(np.float64)
    if len(columns) == 1:
        return by.estimate(y, y[:, None], columns)
    X = np.column_stack([np.ones(len(y)), *(frame[name].to_numpy(np.float64) for name in columns[1:])])
    q, v = by.estimate(y, X, ["1", *columns[1:]])
    return q[1:], v[1:]


@cache
def truth(population: str) -> list[Floats]:
    """The population's values, from a million rows."""
    frame = _MAKERS[population](np.random.default_rng(11), _TRUE_ROWS)
    return [estimate(frame, columns, by)[0] for _, columns, by in ASKED[population]]


def run(population: str, rows: int, epsilon: float, number: int) -> Iterator[tuple[str, str, bool, bool, float]]:
    """(kind, term, honest interval holds the truth, that of even bins does, width / the real rows') of what is held."""
    seed = zlib.crc32(repr((population, rows, epsilon, number)).encode())
    rng, schema = np.random.default_rng(seed), schema_of(population)
    real = _MAKERS[population](rng, rows)
    config = Cell(population, rows, epsilon, seed, "", ("workload={degree: 2, size: null}",)).config()
    strategy = fitted(config, schema.encode(real), schema.domain)
    assert strategy.model is not None
    posterior = Posterior(strategy.model, Evidence(strategy.measured, strategy.model.total))
    frames, even = list[pd.DataFrame](), list[pd.DataFrame]()
    for _ in range(TABLES):
        model = posterior.draw(rng)
        codes = model.sample(LARGER * rows, rng, independent=True)
        frames.append(
            decoding(schema, model, {name: rng.uniform(-1.0, 1.0) for name in schema.columns}).decode(codes, rng)
        )
        even.append(schema.decode(codes, rng))
    for (kind, columns, by), true in zip(ASKED[population], truth(population), strict=True):
        if not posterior.holds(columns):
            continue
        ends = [_interval(some, columns, by) for some in (frames, even)]
        width = (ends[0][1] - ends[0][0]) / (2 * 1.96 * np.sqrt(estimate(real, columns, by)[1]))
        held = [bool(low[0] <= true[0] <= high[0]) for low, high in ends]
        name = f"{columns[0]} {by.share:g}" if isinstance(by, Quantile) else " ~ ".join(columns)
        yield kind, name, held[0], held[1], float(width[0])


def exact(population: str) -> Iterator[str]:
    """What bins alone cost: estimates from the values of many rows, and from the exact counts of their bins."""
    rng, schema = np.random.default_rng(11), schema_of(population)
    real = _MAKERS[population](rng, _TRUE_ROWS)
    codes = schema.encode(real)
    counts = {name: np.bincount(codes[:, axis]).astype(np.float64) for axis, name in enumerate(schema.domain)}
    made = schema.shaped(counts).decode(codes, rng)
    for kind, columns, by in ASKED[population]:
        values = (float(estimate(frame, columns, by)[0][0]) for frame in (real, made))
        yield f"| {kind} | {' ~ '.join(columns)} | " + " | ".join(f"{value:.4g}" for value in values) + " |"


def _interval(frames: Sequence[pd.DataFrame], columns: tuple[str, ...], by: Estimator) -> tuple[Floats, Floats]:
    found = [estimate(frame, columns, by) for frame in frames]
    return combine([q for q, _ in found], [v for _, v in found], ratio=float(LARGER)).interval()


def lines(found: Sequence[tuple[str, str, bool, bool, float]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| kind | estimate | n | honest | even bins | width / real's |"
    yield "|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[tuple[bool, bool, float]]] = defaultdict(list)
    for kind, name, held, even, width in found:
        groups[kind, name].append((held, even, width))
        groups[kind, "**all**"].append((held, even, width))
    for (kind, name), some in sorted(groups.items()):
        held, even, width = np.array(some, np.float64).T
        yield f"| {kind} | {name} | {len(some)} | {held.mean():.0%} | {even.mean():.0%} | {np.median(width):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--populations", nargs="+", choices=_MAKERS, default=list(_MAKERS))
    parser.add_argument("--every", type=int, default=0, help="print the table after so many runs, too")
    parser.add_argument("--exact", action="store_true", help="what bins alone cost")
    options = parser.parse_args()
    if options.exact:
        print("| kind | estimate | values | exact counts of bins |", "|---|---|---|---|", sep="\n")
        print(*(line for population in options.populations for line in exact(population)), sep="\n")
        return
    found: list[tuple[str, str, bool, bool, float]] = []
    for number in range(1, options.runs + 1):
        for population in options.populations:
            found += run(population, options.rows, options.epsilon, number)
        if options.every and number % options.every == 0:
            print(f"{number} runs", *lines(found), sep="\n", flush=True)
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
