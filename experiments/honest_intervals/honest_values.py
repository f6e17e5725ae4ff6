"""How often honest intervals of `fedsyn.analyse` hold the population's own values, where numbers stand in bins.

    python -m experiments.honest_intervals.honest_values [--runs 200] [--populations patients survey] [--rows 2000]
    python -m experiments.honest_intervals.honest_values --out FILE.csv --populations sensors --rows 200000 --no-even
    python -m experiments.honest_intervals.honest_values --exact    # the estimates from exact counts of the bins

Other figures of this folder take a number for the middle of its bin, in the population too; here the population's
values are known. `patients` and `survey` have heavy tails in few bins between sensible public bounds; the bins of
`study` and `sensors` are those that `Schema.draft` gives to rows of the population. `even`: the same tables with every
number inside a bin equally likely (`patients` and `survey`). What `analyse` calls not held does not count.
"""

from __future__ import annotations

import argparse
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.held_out.held_cells import Cell, fitted
from fedsyn.evaluation.analysis import Analysis, analyse
from fedsyn.evaluation.analysis.formulas import columns_in, question_of
from fedsyn.evaluation.analysis.tables import SyntheticTables, bins_of
from fedsyn.front.several import held_of, numbers_of
from fedsyn.inference import Evidence, Model, Posterior
from fedsyn.runs.synthesis import decoding
from fedsyn.table.schema import Schema

#: Tables, rows of each / real rows, and at most so many.
TABLES, LARGER, MOST_ROWS = 20, 5, 200_000
_TRUE_ROWS = 1_000_000
_HALF = 1.959964  # of a 95% interval, in standard errors


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


def study(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """A trial: arm, blood pressure before and after, dose by weight, and a response."""
    arm = rng.choice(["high", "low", "placebo"], rows)
    before = np.rint(rng.normal(150, 12, rows))
    after = np.rint(before + np.select([arm == "low", arm == "high"], [-8.0, -14.0], -2.0) + rng.normal(0, 6, rows))
    weight = np.round(rng.gamma(20, 4, rows), 1)
    odds = 0.05 * (150 - after) + 0.02 * (weight - 80)
    response = np.where(rng.random(rows) < 1 / (1 + np.exp(-odds)), "yes", "no")
    return pd.DataFrame({"arm": arm, "before": before, "after": after, "weight": weight, "response": response})


def sensors(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Temperature by the hour, humidity that falls with it, latency, and an alarm."""
    hour = rng.uniform(0, 2 * np.pi, rows)
    temperature = np.round(21 + 4 * np.sin(hour) + rng.normal(0, 2.5, rows), 1)
    humidity = np.round(85 - 1.5 * temperature + rng.normal(0, 3.5, rows), 1)
    latency = np.rint(np.exp(rng.normal(3.6, 0.8, rows)))
    alarm = np.where(rng.random(rows) < 1 / (1 + np.exp(-(temperature - 25) / 2)), "yes", "no")
    return pd.DataFrame({"temperature": temperature, "humidity": humidity, "latency": latency, "alarm": alarm})


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
_MAKERS = {"patients": patients, "survey": survey, "study": study, "sensors": sensors}
#: Population -> kind and formula.
ASKED: dict[str, tuple[tuple[str, str], ...]] = {
    "patients": (
        *(("mean", name) for name in ("age", "stay", "cost")),
        *(("quantile", f"quantile(cost, {share})") for share in (0.5, 0.9)),
        ("proportion", "proportion(readmitted)"),
        ("linear", "cost ~ severity"),
        ("linear", "stay ~ severity"),
        ("logistic", "readmitted ~ stay"),
    ),
    "survey": (
        *(("mean", name) for name in ("age", "income")),
        *(("quantile", f"quantile(income, {share})") for share in (0.5, 0.9)),
        ("linear", "income ~ q1"),
        ("linear", "q1 ~ q2"),
    ),
    "study": (
        *(("mean", name) for name in ("after", "weight")),
        *(("quantile", f"quantile(weight, {share})") for share in (0.5, 0.9)),
        ("proportion", "proportion(response)"),
        ("groups", "after ~ arm"),
        ("groups", "before ~ arm"),
        ("change", "after - before ~ arm"),
        ("linear", "after ~ before"),
        ("logistic", "response ~ after"),
        ("logistic", "response ~ weight"),
    ),
    "sensors": (
        *(("mean", name) for name in ("temperature", "humidity", "latency")),
        *(("quantile", f"quantile(latency, {share})") for share in (0.5, 0.9)),
        ("proportion", "proportion(alarm)"),
        ("groups", "humidity ~ alarm"),
        ("linear", "humidity ~ temperature"),
        ("linear", "temperature ~ humidity"),
        ("logistic", "alarm ~ temperature"),
    ),
}


@dataclass(frozen=True)
class Line:
    """One estimate of one run.

    `off`: how far it is from the truth, in half widths of its interval, which has the truth up to 1. `even`: that of
    even bins, or nan. `width`: of the interval, over that of the real rows. `held`: as `analyse` says. In variances of
    the real rows' estimate: `between` of tables' estimates, `within` them, and `inside`, what bins leave open.
    """

    population: str
    rows: int
    run: int
    kind: str
    name: str
    off: float
    even: float
    width: float
    held: int
    between: float
    within: float
    inside: float


@cache
def schema_of(population: str) -> Schema:
    """The public schema."""
    if population in _COLUMNS:
        return Schema.from_dict({"columns": _COLUMNS[population]})
    return Schema.draft(_MAKERS[population](np.random.default_rng(7), 20_000)).approve()


def estimated(frames: Sequence[pd.DataFrame], formula: str) -> Analysis:
    """Estimates from tables of which nothing else is said."""
    return analyse(SyntheticTables(frames), formula)


@cache
def truth(population: str) -> dict[tuple[str, str], float]:
    """The population's values by formula and term, from a million rows."""
    frame = _MAKERS[population](np.random.default_rng(11), _TRUE_ROWS)
    return {
        (formula, term): float(value)
        for _, formula in ASKED[population]
        for term, value in estimated([frame, frame], formula).to_frame().estimate.items()
    }


def run(
    population: str,
    rows: int,
    epsilon: float,
    number: int,
    asked: Sequence[tuple[str, str]] | None = None,
    tables: int = TABLES,
    largest: int = MOST_ROWS,
    with_even: bool = True,
) -> Iterator[Line]:
    """Yields what each interval of one run comes to, from tables of at most `largest` rows."""
    seed = zlib.crc32(repr((population, rows, epsilon, number)).encode())
    rng, schema = np.random.default_rng(seed), schema_of(population)
    real = _MAKERS[population](rng, rows)
    config = Cell(population, rows, epsilon, seed, "", ("workload={degree: 2, size: null}",)).config()
    strategy = fitted(config, schema.encode(real), schema.domain)
    assert strategy.model is not None
    evidence = Evidence(strategy.measured, strategy.model.total)
    posterior = Posterior(strategy.model, evidence, numbers_of(schema, strategy.model))
    frames, even = list[pd.DataFrame](), list[pd.DataFrame]()
    for _ in range(tables):
        model = posterior.draw(rng)
        codes = model.sample(min(LARGER * rows, largest), rng, independent=True)
        lean = {name: float(rng.uniform(-1.0, 1.0)) for name in schema.columns}
        frames.append(decoding(schema, model, lean).decode(codes, rng))
        if with_even and population in _COLUMNS:
            even.append(schema.decode(codes, rng))
    held = frozenset(map(frozenset, held_of(schema, posterior)))
    drawn = SyntheticTables(frames, rows, held, bins=bins_of(schema))
    for kind, formula in asked or ASKED[population]:
        analysis = analyse(drawn, formula)
        found, combined = analysis.to_frame(), analysis.combined
        question = question_of(formula, SyntheticTables([real]))
        own = dict(zip((term.name for term in question.terms), question.estimates([real])[1][0] ** 0.5, strict=True))
        other = estimated(even, formula).to_frame() if even else None
        terms = [term for term in found.index if term != "Intercept" and not term.endswith(("= 0", "= no"))]
        for term in terms:
            true, line = truth(population)[formula, term], found.loc[term]
            off, even_off = (
                (one.estimate - true) * 2 / (one.high - one.low)
                for one in (line, line if other is None else other.loc[term])
            )
            width = (line.high - line.low) / (2 * _HALF * own[term]) if own[term] > 0 else np.inf
            name = formula if len(terms) == 1 else f"{formula} [{term}]"
            figures = float(off), float("nan") if other is None else float(even_off), float(width), int(line.held)
            at, unit = found.index.get_loc(term), own[term] ** 2 or np.nan
            inside = np.broadcast_to(combined.inside, combined.between.shape)
            parts = (float(each[at] / unit) for each in (combined.between, combined.within, inside))
            yield Line(population, rows, number, kind, name, *figures, *parts)


def exact(population: str) -> Iterator[str]:
    """What bins alone cost: estimates from many rows' values, from exact counts of bins, and from those of cells."""
    rng, schema = np.random.default_rng(11), schema_of(population)
    real = _MAKERS[population](rng, _TRUE_ROWS)
    codes = schema.encode(real)
    counts = {name: np.bincount(codes[:, axis]).astype(np.float64) for axis, name in enumerate(schema.domain)}
    alone = schema.shaped(counts).decode(codes, rng)
    for kind, formula in ASKED[population]:
        names, _ = columns_in(formula, list(real.columns))
        frames = (real, alone, _of_cells(schema, real[names], rng))
        values = (estimated([frame, frame], formula).to_frame().estimate.iloc[-1] for frame in frames)
        yield f"| {kind} | {formula} | " + " | ".join(f"{value:.4g}" for value in values) + " |"


def _of_cells(schema: Schema, real: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Rows with the same cells, and numbers inside them as a table of an analysis has them."""
    facts = schema.to_dict()
    some = Schema.from_dict({**facts, "columns": {name: facts["columns"][name] for name in real.columns}})
    codes, names = some.encode(real), tuple(some.domain)
    shape = some.domain.shape_of(names)
    cells = np.bincount(np.ravel_multi_index(tuple(codes.T), shape), minlength=int(np.prod(shape))).reshape(shape)
    model = Model(some.domain, {names: np.log(np.maximum(cells, 1e-9))}, len(real))
    return decoding(some, model, dict.fromkeys(names, 0.0)).decode(codes, rng)


def lines(found: Sequence[Line]) -> Iterator[str]:
    """A table in Markdown.

    `draws`: what the posterior's draws differ by, and `bins`: what these leave open, in the real rows' variances.
    """
    heads = "population | rows | kind | estimate | n | held | honest | even bins | width / real's | off / half | spread"
    yield f"| {heads} | draws | bins |"
    yield "|---" * 13 + "|"
    groups: dict[tuple[str, int, str, str], list[Line]] = defaultdict(list)
    for line in found:
        for population, name in ((line.population, line.name), (line.population, "**all**"), ("**all**", "**all**")):
            groups[population, line.rows, line.kind, name].append(line)
    for group, some in sorted(groups.items()):
        of = [(x.off, x.even, x.width, x.between, x.within, x.inside) for x in some if x.held]
        off, even, width, between, within, inside = np.array(of or [(np.nan,) * 6]).T
        share = f"{np.mean(np.abs(even) <= 1):.0%}" if np.isfinite(even).all() else ""
        told = (
            f"{np.mean(np.abs(off) <= 1):.0%} | {share} | {np.median(width):.2f} | {off.mean():+.2f} | {off.std():.2f}"
            f" | {np.nanmedian(between - within):.2f} | {np.nanmedian(inside):.2f}"
        )
        held = sum(x.held for x in some)
        yield f"| {' | '.join(map(str, group))} | {len(some)} | {held} | {told if held else ' | | | | | | '} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[2000])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--populations", nargs="+", choices=_MAKERS, default=list(_MAKERS))
    parser.add_argument("--out", type=Path, help="file of results: what is there is not run again")
    parser.add_argument("--tables", type=int, default=TABLES, help="of a run")
    parser.add_argument("--largest", type=int, default=MOST_ROWS, help="most rows of a table, else five times the real")
    parser.add_argument("--no-even", action="store_true", help="without tables of even bins")
    parser.add_argument("--exact", action="store_true", help="what bins alone cost")
    options = parser.parse_args()
    if options.exact:
        print("| kind | estimate | values | exact counts of bins | of cells |", "|---" * 5 + "|", sep="\n")
        print(*(line for population in options.populations for line in exact(population)), sep="\n")
        return
    found = _read(options.out) if options.out and options.out.is_file() else []
    done = {(line.population, line.rows, line.run) for line in found}
    for number, population, rows in product(range(1, options.runs + 1), options.populations, options.rows):
        if (population, rows, number) in done:
            continue
        shape = options.tables, options.largest, not options.no_even
        new = list(run(population, rows, options.epsilon, number, None, *shape))
        found += new
        if options.out:
            pd.DataFrame([asdict(line) for line in new]).to_csv(
                options.out, mode="a", header=not options.out.is_file(), index=False
            )
    print("\n".join(lines(found)))


def _read(path: Path) -> list[Line]:
    return [Line(*line) for line in pd.read_csv(path).itertuples(index=False)]


if __name__ == "__main__":
    main()
