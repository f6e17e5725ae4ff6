"""Measures how often intervals of `fedsyn analyse` hold what the rows of persons say.

    python experiments/persons/coverage.py [--orders day "as they come"] [--runs 8] [--persons 5000] [--epsilon 4]
                                           [--tables 8] [--mechanism sketch_aim] [--each] [--check]

A run draws patients and their visits, makes records of them, and draws tables of its posterior. The truth of each term
is that of many more patients, by least squares and Newton's steps over their rows and without a schema. Rows stand in
the order of a date (24 bins of two months each, and gaps from a week to months), in the order in which they come, or in
none. The answer counts each row once, or each patient once. Terms are held or not, as the result says of them: of held
ones the intervals should hold the truth in 95 of 100 runs. Widths are beside those of the real rows, with errors of
persons. `--each` prints one line a term.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedsyn
from fedsyn import yamlio
from fedsyn.domain import Floats, Integers
from fedsyn.evaluation.analysis.persons import Per

SPAN, BINS, MOST_ROWS = 1461, 24, 12
ORDERS = {"day": "day", "as they come": True, "none": False}
# Patients whose rows are the truth: its own error is a sixth of that of a run of 5,000.
POPULATION, NORMAL = 180_000, 1.96
_QUESTIONS = (
    "sbp",
    "proportion(event)",
    "sbp ~ arm + dose",
    "event ~ arm + dose",
    "change(sbp)",
    "change(sbp) ~ arm",
    "change(sbp) ~ change(dose)",
)
_OF_GAPS = ("change(day)", "change(day) ~ arm", "change(sbp) ~ change(day)")


class Asked(NamedTuple):
    """A formula, and what counts once."""

    formula: str
    per: Per


class Found(NamedTuple):
    """One term of one run.

    Attributes:
        off: of the estimate from the truth, in half widths of the interval.
        width: of the interval, beside that of the real rows.
        held: whether the result says so.
    """

    asked: Asked
    term: int
    off: float
    width: float
    held: bool


# Patients -------------------------------------------------------------------------------------------------------------


def visits(patients: int, seed: int) -> pd.DataFrame:
    """Returns the visits of patients, each one's in order.

    Those of arm b have more visits, a month apart; those of arm a come a week later, or months. Pressures have a part
    of the patient's own, and rise with dose and with time. Events are likeliest at the first visit.
    """
    rng = np.random.default_rng([4600, seed])
    sex, arm = rng.integers(0, 2, (2, patients))
    counts = np.minimum(1 + rng.poisson(np.where(arm == 1, 3.0, 1.5)), MOST_ROWS)
    whose, first = np.repeat(np.arange(patients), counts), np.cumsum(counts) - counts
    n, b = len(whose), arm[np.repeat(np.arange(patients), counts)] == 1
    weeks = np.where(rng.random(n) < 0.7, rng.integers(5, 10, n), rng.integers(60, 150, n))
    since = np.cumsum(np.where(b, rng.integers(25, 36, n), weeks))
    since = since - since[first][whose]
    start = (rng.random(patients) * (SPAN - since[first + counts - 1]).clip(min=1)).astype(np.int64)
    dose = np.clip(np.round(rng.normal(5 + 2 * sex[whose], 2.0)), 0, 12)
    own, noise = rng.normal(0.0, 8.0, patients), rng.normal(0.0, 6.0, n)
    pressure = 115 + own[whose] + 6.0 * b + 1.5 * dose + 0.05 * since + noise
    opens = np.arange(n) == first[whose]
    event = rng.random(n) < 1 / (1 + np.exp(2.0 - 0.8 * b - 0.15 * dose - 1.2 * opens))
    table = pd.DataFrame({"pid": whose, "sex": np.array(["f", "m"])[sex[whose]], "arm": np.where(b, "b", "a")})
    table["day"], table["dose"] = since + start[whose], dose.astype(int)
    table["sbp"], table["event"] = np.round(pressure, 1).clip(71, 199), np.where(event, "yes", "no")
    return table[table["day"] < SPAN].reset_index(drop=True)


def schema_of(order: str) -> dict[str, Any]:
    """Returns the schema of the visits."""
    columns: dict[str, Any] = {
        "pid": {"kind": "identifier"},
        "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
        "arm": {"kind": "categorical", "categories": ["a", "b"], "other": False},
        "dose": {"kind": "integer", "lower": 0, "upper": 12, "bins": 13},
        "sbp": {"kind": "numeric", "lower": 70, "upper": 200, "bins": 16},
        "event": {"kind": "categorical", "categories": ["no", "yes"], "other": False},
    }
    if order == "day":
        columns["day"] = {"kind": "date", "lower": "2020-01-01", "upper": "2023-12-31", "bins": BINS}
    persons = {"id": "pid", "constant": ["sex", "arm"], "most_rows": MOST_ROWS, "order": ORDERS[order]}
    return {"columns": columns, "persons": persons}


def questions(order: str) -> list[Asked]:
    """Returns what is asked of tables of rows in this order."""
    each = (*_QUESTIONS, *(_OF_GAPS if order == "day" else ()))
    return [*itertools.chain.from_iterable((Asked(one, "row"), Asked(one, "person")) for one in each), NUMBER]


NUMBER = Asked("number of rows ~ arm", "person")


# What rows say --------------------------------------------------------------------------------------------------------


def by_rows(rows: pd.DataFrame, asked: Asked, order: str) -> tuple[Floats, Floats]:
    """Returns what rows say to a question, and errors by persons, (k,) each."""
    size = rows.groupby("pid")["pid"].transform("size")
    if asked == NUMBER:
        table = rows.assign(**{"number of rows": size}).drop_duplicates("pid")
        return fitted(table, asked.formula.replace("number of rows", "Q"), np.ones(len(table)), "number of rows")
    if "change" not in asked.formula:
        weights = np.ones(len(rows)) if asked.per == "row" else 1.0 / size.to_numpy()
        return fitted(rows, asked.formula, weights)
    table = neighbours(rows) if order != "none" else others(rows)
    pairs = table.groupby("pid")["pid"].transform("size").to_numpy()
    each = 1.0 / pairs if asked.per == "person" else np.ones(len(table))
    if order == "none" and asked.per == "row":  # each row once, by one of the others
        each = 1.0 / (size.loc[table.index].to_numpy() - 1.0)
    return fitted(table, asked.formula, each)


def neighbours(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns rows with their changes to the next one of the same person."""
    after = rows.groupby("pid")[["sbp", "dose", "day"]].shift(-1)
    changes = (after - rows[["sbp", "dose", "day"]]).add_prefix("change ")
    return rows.join(changes)[after["sbp"].notna()]


def others(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns rows with their changes to each other one of the same person."""
    both = rows.reset_index().merge(rows.reset_index(), on="pid", suffixes=("", " then"))
    both = both[both["index"] != both["index then"]]
    for name in ("sbp", "dose", "day"):
        both[f"change {name}"] = both[f"{name} then"] - both[name]
    return both.set_index("index")


def fitted(table: pd.DataFrame, formula: str, weights: Floats, outcome: str | None = None) -> tuple[Floats, Floats]:
    """Returns coefficients and their errors by persons.

    They are means of a column, or a regression: logistic of `event`, else linear.
    """
    left, _, right = formula.partition("~")
    if not right and "change" not in formula:
        name = left.strip().removeprefix("proportion(").removesuffix(")")
        values = table[name].to_numpy()
        columns = [values == word for word in ("no", "yes")] if name == "event" else [values]
        each = [least_squares(np.ones((len(table), 1)), np.asarray(y, float), weights, table) for y in columns]
        return np.concatenate([q for q, _ in each]), np.concatenate([v for _, v in each])
    terms = [term.strip() for term in right.split("+")] if right else []
    X = np.column_stack([np.ones(len(table)), *(values_of(table, term) for term in terms)])
    y = values_of(table, outcome or left.strip())
    return least_squares(X, y, weights, table, logistic=left.strip() == "event")


def values_of(table: pd.DataFrame, term: str) -> Floats:
    """Returns a column as numbers: of two words, whether it is the second."""
    series = table[re.sub(r"change\((\w+)\)", r"change \1", term)]
    return np.asarray(series if series.dtype.kind in "iuf" else series.isin(["b", "yes"]), np.float64)


def least_squares(
    X: Floats, y: Floats, weights: Floats, table: pd.DataFrame, logistic: bool = False
) -> tuple[Floats, Floats]:
    """Returns weighted coefficients, and errors that take each person for one observation."""
    beta, fit, slope = np.zeros(X.shape[1]), np.zeros(len(y)), np.ones(len(y))
    for _ in range(12 if logistic else 1):
        if logistic:
            fit = 1.0 / (1.0 + np.exp(-X @ beta))
            slope = fit * (1.0 - fit)
        bread = (X * (weights * slope)[:, None]).T @ X
        beta = beta + np.linalg.solve(bread, X.T @ (weights * (y - fit)))
    fit = 1.0 / (1.0 + np.exp(-X @ beta)) if logistic else X @ beta
    whose = pd.factorize(table["pid"])[0]
    scores = [np.bincount(whose, column * weights * (y - fit)) for column in X.T]
    half = np.linalg.inv(bread) @ np.stack(scores)
    return beta, np.sqrt((half**2).sum(axis=1))


# Runs -----------------------------------------------------------------------------------------------------------------


def of_run(order: str, truth: dict[Asked, Floats], asked: argparse.Namespace, seed: int) -> Iterator[Found]:
    """Yields the terms of one run."""
    rows = visits(asked.persons, seed)
    read = rows.drop(columns="day") if order != "day" else rows.assign(day=dates(rows["day"].to_numpy()))
    release = fedsyn.Synthesizer(
        asked.epsilon, 1e-6, schema_of(order), asked.mechanism, seed=seed, privacy={"unit": "person"}, progress=False
    )
    tables = release.fit(read).sample(tables=asked.tables, seed=seed)
    for question, true in truth.items():
        found = fedsyn.analyse(tables, question.formula, per=question.per).to_frame()
        errors = by_rows(rows, question, order)[1]
        for at, (low, high, held) in enumerate(zip(found["low"], found["high"], found["held"], strict=True)):
            half = max((high - low) / 2.0, 1e-12)
            off = (found["estimate"].iloc[at] - true[at]) / half
            real = NORMAL * errors[at]  # none of a mean that is zero whatever the rows
            yield Found(question, at, float(off), float(half / real) if real > 1e-9 else np.nan, bool(held))


def dates(days: Integers) -> list[str]:
    return list((np.datetime64("2020-01-01") + days).astype(str))


def shares(found: Sequence[Found]) -> dict[str, float]:
    """Returns what the table says of the terms of some runs."""
    held, rest = ([each for each in found if each.held == which] for which in (True, False))
    return {
        "terms": len(found),
        "held": len(held) / max(len(found), 1),
        "held, cover": covered(held),
        "not held, cover": covered(rest),
        "width": float(np.nanmedian([each.width for each in held])) if held else np.nan,
    }


def covered(found: Sequence[Found]) -> float:
    """Returns the share of intervals that hold the truth."""
    return float(np.mean([abs(each.off) <= 1.0 for each in found])) if found else np.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", nargs="+", default=["day", "as they come"], choices=list(ORDERS))
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--persons", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--mechanism", default="sketch_aim")
    parser.add_argument("--each", action="store_true", help="one line a term")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    asked = parser.parse_args()
    known = dict[tuple[str, str], dict[str, float]]()
    print(
        "| order | questions of | terms | held | held ones cover | others cover | width |\n"
        "|---|---|---|---|---|---|---|"
    )
    for order in asked.orders:
        population = visits(POPULATION if order != "none" else POPULATION // 3, 10**6)
        truth = {question: by_rows(population, question, order)[0] for question in questions(order)}
        found = [term for seed in range(asked.runs) for term in of_run(order, truth, asked, seed)]
        for kind, some in kinds(found).items():
            known[order, kind] = each = shares(some)
            rates = " | ".join("–" if np.isnan(x) else f"{100 * x:.0f}%" for x in list(each.values())[1:4])
            width = "–" if np.isnan(each["width"]) else f"{each['width']:.2f}"
            print(f"| {order} | {kind} | {each['terms']:,.0f} | {rates} | {width} |", flush=True)
        if asked.each:
            of_terms(found, truth)
    return says_otherwise(known) if asked.check else 0


def kinds(found: Sequence[Found]) -> dict[str, list[Found]]:
    """Returns terms by what is asked: of rows, of persons, of changes, of gaps."""
    out: dict[str, list[Found]] = {"rows": [], "persons": [], "changes": [], "gaps": []}
    for each in found:
        formula = each.asked.formula
        is_change = "change" in formula
        kind = "gaps" if "change(day)" in formula else "changes" if is_change else f"{each.asked.per}s"
        out[kind].append(each)
    return {kind: some for kind, some in out.items() if some}


def of_terms(found: Sequence[Found], truth: dict[Asked, Floats]) -> None:
    """Prints one line a term: truth, held and covered runs, and the mean error in standard ones."""
    for question, true in truth.items():
        for at, value in enumerate(true):
            some = [each for each in found if each.asked == question and each.term == at]
            parts = [(which, [each for each in some if each.held == which]) for which in (True, False)]
            said = [
                f"{'held' if which else 'not held'} {len(part)}, cover {100 * covered(part):.0f}%, "
                f"off by {NORMAL * np.mean([each.off for each in part]):+.2f}, "
                f"width {np.nanmedian([each.width for each in part]):.2f}"
                for which, part in parts
                if part
            ]
            print(f"    {question.formula} by {question.per}, term {at} ({value:.3f}): {'; '.join(said)}", flush=True)


def says_otherwise(known: dict[tuple[str, str], dict[str, float]]) -> int:
    """Prints what expected.yaml says and the runs do not; returns an exit code."""
    limits = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["coverage"]
    wrong = [
        f"{order}, {kind}: {what} is {each[what]:.3f}, expected at least {least}"
        for (order, kind), each in known.items()
        for what, least in limits.items()
        if each[what] < least
    ]
    print(*(wrong or ["as expected"]), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
