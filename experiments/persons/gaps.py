"""Measures how far apart a person's rows lie: with gaps in the records, and by dates in their bins alone.

    python experiments/persons/gaps.py [--families NAME ...] [--epsilons 1 4] [--seeds 2] [--persons 5000]

Visits of generated patients in four years, in 24 bins of two months. What lies between two visits follows a law for
each family, and a third column follows it: `kind` says whether it is short. Errors are L1 distances, 0 to 2, between
shares of gaps in 18 groups, and of gaps with the kind of the later visit. "By bins" are the same synthetic visits with
dates drawn anew in their bins, in order: what dates by themselves would know. `series`, `yearly` and `spread` were
looked at while gaps were built, and their bins chosen; the others were not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

import fedsyn
from experiments.persons.run import mean_distance
from fedsyn.domain import Integers

SPAN, BINS = 1461, 24
GROUPS = np.array([0, 1, 2, 3, 4, 6, 8, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 400])
Law = Callable[[np.random.Generator, int], Integers]


def _series(rng: np.random.Generator, n: int) -> Integers:
    """A week in a series of visits, months between series."""
    return np.where(rng.random(n) < 0.7, rng.integers(5, 10, n), rng.integers(60, 200, n))


def _bursts(rng: np.random.Generator, n: int) -> Integers:
    """Several visits a day, then weeks of none."""
    return np.where(rng.random(n) < 0.5, 0, rng.integers(20, 60, n))


LAWS: dict[str, Law] = {
    "series": _series,
    "yearly": lambda rng, n: np.maximum(rng.normal(182, 15, n), 1).astype(np.int64),
    "spread": lambda rng, n: rng.integers(0, 120, n),
    "monthly": lambda rng, n: rng.integers(28, 32, n),
    "bursts": _bursts,
    "heavy": lambda rng, n: np.minimum(rng.lognormal(2.5, 1.3, n), 900).astype(np.int64),
}
SCHEMA = {
    "columns": {
        "id": {"kind": "identifier", "make": "sequence"},
        "sex": {"kind": "categorical", "categories": ["f", "m"], "other": False},
        "day": {"kind": "date", "lower": "2020-01-01", "upper": "2023-12-31", "bins": BINS},
        "kind": {"kind": "categorical", "categories": ["early", "late"], "other": False},
        "ward": {"kind": "categorical", "categories": list("abcdef"), "other": False},
    },
    "persons": {"id": "id", "order": "day", "constant": ["sex"], "most_rows": 20},
}


def visits(law: Law, persons: int, seed: int) -> pd.DataFrame:
    """Returns the visits of patients, in order."""
    rng = np.random.default_rng([46, seed])
    counts = np.minimum(rng.geometric(0.25, persons), 20)
    whose = np.repeat(np.arange(persons), counts)
    gap, sex, first = law(rng, len(whose)), rng.integers(0, 2, persons), np.cumsum(counts) - counts
    since = np.cumsum(gap)
    since = since - since[first][whose]
    start = (rng.random(persons) * np.maximum(SPAN - since[first + counts - 1], 1)).astype(np.int64)
    day = since + start[whose]
    short = gap <= np.median(gap)
    ward = (day // 244 + short + sex[whose] + rng.integers(0, 2, len(whose))) % 6
    table = pd.DataFrame({"id": whose, "sex": np.array(["f", "m"])[sex][whose], "day": day})
    table["kind"], table["ward"] = np.where(short, "early", "late"), np.array(list("abcdef"))[ward]
    return table[day < SPAN].reset_index(drop=True)


def gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the group of each gap, and the kind of the later visit."""
    between = table["day"].groupby(table["id"]).diff()
    found = pd.DataFrame({"gap": np.digitize(between.fillna(0), GROUPS), "kind": table["kind"].astype(str)})
    return found[between.notna()].assign(one="")


def by_bins(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Returns the table with days drawn anew in their bins, in order."""
    edges = np.array([-(-b * SPAN // BINS) for b in range(BINS + 1)])
    code = np.searchsorted(edges, table["day"], side="right") - 1
    drawn = np.random.default_rng(seed).integers(edges[code], edges[code + 1])
    return table.assign(day=drawn).sort_values(["id", "day"], kind="stable")


def options(about: str | None, families: Iterable[str], persons: int) -> argparse.Namespace:
    """Returns the options of an experiment on families of tables."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(families), choices=list(families))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--persons", type=int, default=persons)
    return parser.parse_args()


def main() -> None:
    asked = options(__doc__, LAWS, 5000)
    print(
        "| family | epsilon | gaps | gaps, by bins | gap and kind | gap and kind, by bins |\n|---|---|---|---|---|---|"
    )
    for family in asked.families:
        for epsilon in asked.epsilons:
            found = []
            for seed in range(asked.seeds):
                real = visits(LAWS[family], asked.persons, seed)
                rows = real.assign(day=(np.datetime64("2020-01-01") + real["day"].to_numpy()).astype(str))
                fitted = fedsyn.Synthesizer(epsilon, 1e-6, SCHEMA, seed=seed, privacy={"unit": "person"}).fit(rows)
                made = fitted.sample()
                made["day"] = (pd.to_datetime(made["day"].astype(str)) - pd.Timestamp("2020-01-01")).dt.days
                both = [gaps(made), gaps(by_bins(made, seed))]
                pairs = (("gap", "one"), ("gap", "kind"))
                found.append([mean_distance((gaps(real), one), [pair]) for pair in pairs for one in both])
            print(f"| {family} | {epsilon:g} | {' | '.join(f'{x:.2f}' for x in np.mean(found, axis=0))} |", flush=True)


if __name__ == "__main__":
    main()
