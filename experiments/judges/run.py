"""Judges of others beside our verdict: python -m experiments.judges.run --side tuning

Of each table half of the rows are real. The other half, and what three mechanisms make of the real half, are the
synthetic tables. Beside the verdict stand SDMetrics' scores of columns and pairs on the raw values (`pip install
sdmetrics`; without it they are left out), the pMSE ratio, and the regression of the label.
"""

from __future__ import annotations

import argparse
import io
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.held_out.held_tables import side_of
from fedsyn import Synthesizer, yamlio
from fedsyn.evaluation.real.comparison import TableComparison, compare_tables
from fedsyn.table.data import load_dataset
from fedsyn.table.schema import Schema
from tests.support import newcomers
from tests.support.wrong_tables import POPULATIONS

#: Rows of a table: half of them are real.
MOST_ROWS = 6_000
BANDS = ((0.0, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01))
STATES = ("kept", "changed", "lost")


def rows_of(name: str) -> tuple[pd.DataFrame, Schema | None]:
    """At most so many rows of a table, and its schema; None: it is drafted."""
    if name in POPULATIONS:
        text = POPULATIONS[name].draw(MOST_ROWS, np.random.default_rng(1))
        return _read(text), None
    if name == "patients":
        return newcomers.patients(MOST_ROWS), None
    dataset = load_dataset(name)
    frame: pd.DataFrame = dataset.frame
    return frame.sample(min(MOST_ROWS, len(frame)), random_state=1, ignore_index=True), dataset.schema


#: Columns of codes whose zeros count.
CODES = ("postcode", "cost_centre")
#: Table -> its label.
TABLES = {
    **{name: population.label for name, population in POPULATIONS.items()},
    "obesity": "label",
    "patients": "readmitted",
    "insurance": "label",
    "compas": "two_year_recid",
    "abalone": "label",
}
#: Who makes a table: a mechanism, epsilon and the degree of its workload.
MAKERS = {
    "sketch_aim, ε = 1": ("sketch_aim", 1.0, 2),
    "mst, ε = 1": ("mst", 1.0, 2),
    "one-way, ε = 10": ("sketch_aim", 10.0, 1),
}
OTHERS = "other rows"


@dataclass(frozen=True)
class Judgement:
    """What the judges say of a table.

    Attributes:
        table, maker: whose.
        ours: the comparison.
        shapes, trends: SDMetrics' score of each column, and of each pair (its names in order); empty without it.
    """

    table: str
    maker: str
    ours: TableComparison
    shapes: dict[str, float]
    trends: dict[tuple[str, str], float]


def made(real: pd.DataFrame, schema: Schema | None, maker: str) -> pd.DataFrame:
    """A table of as many rows as there are real ones."""
    mechanism, epsilon, degree = MAKERS[maker]
    workload = {} if degree == 2 else {"workload": {"degree": degree}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a schema cannot keep: the verdicts say it
        schema = schema or Schema.draft(real).approve()
        model = Synthesizer(epsilon=epsilon, schema=schema, mechanism=mechanism, seed=1, progress=False, **workload)
        table: pd.DataFrame = model.fit(real).sample(len(real))
    return table


def sdmetrics_scores(
    real: pd.DataFrame, synthetic: pd.DataFrame
) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """SDMetrics' column shapes and pair trends: numbers by Kolmogorov and Pearson, words by total variation."""
    if find_spec("sdmetrics") is None:
        return {}, {}
    from sdmetrics.reports import QualityReport

    real, synthetic = (_read(table) for table in (real, synthetic))
    kinds = {name: {"sdtype": _kind(real[name])} for name in real}
    for facts in kinds.values():
        if facts["sdtype"] == "datetime":
            facts["datetime_format"] = "%Y-%m-%d"
    report = QualityReport()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.generate({"": real}, {"": synthetic}, {"tables": {"": {"columns": kinds}}}, verbose=False)
        shapes, trends = (report.get_details(what, "") for what in ("Column Shapes", "Column Pair Trends"))
    pairs = zip(trends["Column 1"], trends["Column 2"], trends["Score"], strict=True)
    return (
        dict(zip(shapes["Column"], shapes["Score"].astype(float), strict=True)),
        {(min(a, b), max(a, b)): float(score) for a, b, score in pairs if np.isfinite(score)},
    )


def _read(table: pd.DataFrame) -> pd.DataFrame:
    """A table as its file is read; codes stay text."""
    return pd.read_csv(io.StringIO(table.to_csv(index=False)), dtype=dict.fromkeys(CODES, str))


def _kind(column: pd.Series) -> str:
    if pd.api.types.is_numeric_dtype(column):
        return "numerical"
    return "datetime" if column.dropna().astype(str).str.fullmatch(r"\d{4}-\d\d-\d\d").all() else "categorical"


def judged(name: str, maker: str) -> Judgement:
    """What all judges say of a maker's table."""
    frame, schema = rows_of(name)
    middle = len(frame) // 2
    real, other = (part.reset_index(drop=True) for part in (frame[:middle], frame[middle : 2 * middle]))
    table = other if maker == OTHERS else made(real, schema, maker)
    ours = compare_tables(real, table, label=TABLES[name], rng=np.random.default_rng(1))
    return Judgement(name, maker, ours, *sdmetrics_scores(real, table))


def row(one: Judgement) -> list[str]:
    """A table's line."""
    verdict, ours = one.ours.verdict(), one.ours
    fit = {True: "good", False: "not good", None: "not known"}
    uses = [f"{fit[use.fit]} ({use.kept} of {use.of})" for use in verdict.uses()[:2]]
    asked = next((score.judged() for score in ours.regressions or ()), None)
    told = ours.propensity
    return [
        one.table,
        one.maker,
        *uses,
        asked.state if asked else "-",
        f"{told.ratio:.1f}" if told else "-",
        f"{told.told:.0%}" if told else "-",
        f"{np.mean(list(one.shapes.values())):.2f}" if one.shapes else "-",
        f"{np.mean(list(one.trends.values())):.2f}" if one.trends else "-",
    ]


HEAD = (
    *("table", "maker", "our verdict: counts", "pairs", "label's regression", "pMSE ratio", "told"),
    *("SDMetrics: shapes", "trends"),
)


def crossed(some: list[Judgement], what: str) -> Counter[tuple[str, int]]:
    """How many columns or linked pairs have each state of ours and each band of SDMetrics' score."""
    counts = Counter[tuple[str, int]]()
    for one in some:
        scores: Mapping[object, float] = one.shapes if what == "columns" else one.trends
        if what == "columns":
            ours = {column.name: column.judged().state for column in one.ours.columns}
        else:
            ours = {
                (min(p.first, p.second), max(p.first, p.second)): p.judged().state for p in one.ours.pairs if p.linked
            }
        for key, state in ours.items():
            if key in scores:
                counts[state, next(at for at, (low, high) in enumerate(BANDS) if scores[key] < high)] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--tables", nargs="*", default=[], help="default: all of the side")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    found = []
    for name in options.tables or [name for name in TABLES if side_of(name) == options.side]:
        for maker in (OTHERS, *MAKERS):
            found.append(judged(name, maker))
            print(f"| {' | '.join(row(found[-1]))} |", flush=True)
    bands = " | ".join(f"{low:g} to {min(high, 1):g}" for low, high in BANDS)
    for what in ("columns", "linked pairs"):
        print(f"\n| {what}: ours, SDMetrics' score | {bands} |\n{'|---' * (1 + len(BANDS))}|")
        counts = crossed(found, what)
        for state in STATES:
            print(f"| {state} | {' | '.join(str(counts[state, at]) for at in range(len(BANDS)))} |")
    if not options.check:
        return 0
    most = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))
    ratios = {(one.table, one.maker): one.ours.propensity.ratio for one in found if one.ours.propensity}
    fresh = [ratio for (_, maker), ratio in ratios.items() if maker == OTHERS]
    apart = [ratio for (_, maker), ratio in ratios.items() if maker.startswith("one-way")]
    good = max(fresh) <= float(most["fresh"]) and min(apart) >= float(most["one_way"])
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
