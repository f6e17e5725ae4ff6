"""Measures when the events of people with many of them happen: by gaps, and by steps between bins alone.

    python experiments/persons/events.py [--families NAME ...] [--epsilons 1 4] [--seeds 2] [--persons 3000]

Events of generated people in one year, in 8 bins. How many a person has is lognormal; when, follows a law for each
family, and a kind follows the quarter. Errors are L1 distances, 0 to 2, of shares of rows between months, between 18
groups of gaps, of quarters with kinds, and of shares of persons between groups of the days from the first event to the
last. "By steps" is the same model without `fedsyn.runs.timeline`. `payments`, `bursts` and `season` were looked at
while it was built; the others were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd

import fedsyn
from experiments.persons.gaps import options
from experiments.persons.run import distance
from fedsyn.domain import Floats
from fedsyn.runs.persons import WholePersons

YEAR, DAY = 366, 86_400
GAPS = np.geomspace(60, 100 * DAY, 17)
SPANS = np.array([1, 7, 30, 60, 90, 120, 180, 240, 300, 330, 360])
#: Days of a person's events in the year, of any number, for a generator and the number that was asked for.
Law = Callable[[np.random.Generator, int], Floats]


def _payments(rng: np.random.Generator, n: int) -> Floats:
    """At a steady rate from the first day on."""
    return np.cumsum(rng.exponential(300 / n, n))


def _bursts(rng: np.random.Generator, n: int) -> Floats:
    """Some minutes apart, then days of none."""
    gaps = np.where(rng.random(n) < 0.8, rng.exponential(0.01, n), rng.exponential(1500 / n, n))
    return rng.uniform(0, 60) + np.cumsum(gaps)


def _season(rng: np.random.Generator, n: int) -> Floats:
    """Most of them in summer."""
    return np.sort(np.clip(rng.normal(200, 50, n), 0, YEAR - 0.01))


def _readings(rng: np.random.Generator, n: int) -> Floats:
    """Each day at about the same time."""
    return rng.integers(0, max(YEAR - n, 1)) + np.arange(n) + rng.uniform(0.3, 0.32, n)


def _stays(rng: np.random.Generator, n: int) -> Floats:
    """All within a month."""
    return np.sort(rng.uniform(0, YEAR - 30) + rng.uniform(0, 30, n))


def _growth(rng: np.random.Generator, n: int) -> Floats:
    """More and more."""
    return np.sort(YEAR * np.sqrt(rng.random(n)))


LAWS: dict[str, Law] = {
    "payments": _payments,
    "bursts": _bursts,
    "season": _season,
    "readings": _readings,
    "stays": _stays,
    "growth": _growth,
}
SCHEMA = {
    "columns": {
        "id": {"kind": "identifier", "make": "sequence"},
        "city": {"kind": "categorical", "categories": ["Berlin", "Paris", "Rome"], "other": False},
        "at": {"kind": "datetime", "lower": "2024-01-01T00:00:00", "upper": "2024-12-31T23:59:59", "bins": 8},
        "kind": {"kind": "categorical", "categories": list("abcd"), "other": False},
    },
    "persons": {"id": "id", "order": "at", "constant": ["city"], "most_rows": 500},
}
START = pd.Timestamp("2024-01-01")


def events(law: Law, persons: int, seed: int) -> pd.DataFrame:
    """Returns the events of people, in order; `at` is in days."""
    rng = np.random.default_rng([47, seed])
    counts = np.clip(rng.lognormal(3.0, 0.9, persons).astype(int), 1, 500)
    days = [law(rng, int(n)) for n in counts]
    days = [some[some < YEAR] if (some < YEAR).any() else np.array([YEAR / 2]) for some in days]
    whose = np.repeat(np.arange(persons), [len(some) for some in days])
    at, city = np.concatenate(days), rng.integers(0, 3, persons)
    kind = (np.where(rng.random(len(at)) < 0.7, at // 91.5, rng.integers(0, 4, len(at))).astype(int) + city[whose]) % 4
    names = np.array(["Berlin", "Paris", "Rome"])
    return pd.DataFrame({"id": whose, "city": names[city][whose], "at": at, "kind": np.array(list("abcd"))[kind]})


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Returns events as a file has them."""
    return table.assign(at=(START + pd.to_timedelta((table["at"] * DAY).astype(int), unit="s")).astype(str))


def seen(table: pd.DataFrame) -> list[pd.Series]:
    """Returns what is compared: months, gaps, quarters with kinds, and days between first and last events."""
    at, of = table["at"], table.groupby("id")["at"]
    gaps = (of.diff().dropna() * DAY).round()
    months = np.minimum(at // 30.5, 11).astype(int)
    quarters = np.minimum(at // 91.5, 3).astype(int)
    return [
        pd.Series(months).astype(str),
        pd.Series(np.digitize(gaps, GAPS)).astype(str),
        quarters.astype(str) + table["kind"].astype(str),
        pd.Series(np.digitize(of.max() - of.min(), SPANS)).astype(str),
    ]


@contextmanager
def by_steps() -> Iterator[None]:
    """Lets whole persons be made without a timeline."""
    whole = WholePersons.timeline
    WholePersons.timeline = None
    try:
        yield
    finally:
        WholePersons.timeline = whole


def errors(fitted: fedsyn.Synthesizer, real: pd.DataFrame) -> list[float]:
    """Returns the errors of a table of the same number of persons."""
    made = fitted.sample(seed=1)
    made["at"] = (pd.to_datetime(made["at"].astype(str), errors="coerce") - START).dt.total_seconds() / DAY
    made = made.dropna(subset="at")
    return [
        distance(one.value_counts(normalize=True), other.value_counts(normalize=True))
        for one, other in zip(seen(real), seen(made), strict=True)
    ]


def main() -> None:
    asked = options(__doc__, LAWS, 3000)
    print(
        "| events | epsilon | way | months | gaps | quarters and kinds | first to last |\n|---|---|---|---|---|---|---|"
    )
    for family in asked.families:
        for epsilon in asked.epsilons:
            found: dict[str, list[list[float]]] = {"by gaps": [], "by steps": []}
            for seed in range(asked.seeds):
                real = events(LAWS[family], asked.persons, seed)
                fitted = fedsyn.Synthesizer(epsilon, 1e-6, SCHEMA, seed=seed, privacy={"unit": "person"}).fit(
                    in_words(real)
                )
                found["by gaps"].append(errors(fitted, real))
                with by_steps():
                    found["by steps"].append(errors(fitted, real))
            for way, each in found.items():
                print(
                    f"| {family} | {epsilon:g} | {way} | {' | '.join(f'{x:.2f}' for x in np.mean(each, axis=0))} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
