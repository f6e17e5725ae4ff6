"""Measures what a constraint between visits costs: stays, gaps and overlaps, without it and with it.

    python experiments/persons/overlap.py [--persons 4000] [--seeds 3] [--epsilon 1]

Visits of generated patients, of whom the next begins days or months after the last one is over; those of surgery are
long. Either the nights of a visit are a column of the model, and its end is their sum with its begin, or both dates
are. The nights may be hidden: the table has both dates alone, and the nights are read from them. Errors are L1
distances, 0 to 2, between shares in 14 groups of days: from one begin to the next, of stays, and of the number of rows.
An overlap is a visit that begins before the last one is over.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import fedsyn

GROUPS = np.array([0, 1, 2, 3, 5, 8, 12, 16, 24, 32, 64, 96, 128, 256, 2000])
OVERLAP = "discharged <= next.admitted"
WARDS = ["children", "heart", "surgery"]


def visits(persons: int, seed: int) -> pd.DataFrame:
    """Returns the visits of patients in three years, in order; none overlap."""
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.geometric(0.35, persons), 12)
    whose = np.repeat(np.arange(persons), counts)
    ward = rng.choice(WARDS, len(whose))
    nights = np.where(ward == "surgery", rng.integers(5, 15, len(whose)), rng.integers(0, 4, len(whose)))
    pause = np.where(rng.random(len(whose)) < 0.5, rng.integers(1, 10, len(whose)), rng.integers(60, 120, len(whose)))
    step, first = np.r_[0, (nights + pause)[:-1]], np.r_[True, whose[1:] != whose[:-1]]
    step[first] = rng.integers(0, 700, persons)
    since = np.cumsum(step)
    day = np.datetime64("2022-01-01") + since - np.repeat(since[first] - step[first], counts)
    table = pd.DataFrame({"patient": whose, "admitted": day, "ward": ward, "nights": nights})
    table["discharged"] = table["admitted"] + pd.to_timedelta(nights, unit="D")
    return table[table["discharged"] < "2025-01-01"].astype({"admitted": str, "discharged": str})


def schema(*rules: str, summed: bool, hidden: bool = False) -> dict[str, Any]:
    """Returns the schema of visits, with rules of its own."""
    day: dict[str, Any] = {"kind": "date", "lower": "2022-01-01", "upper": "2024-12-31", "bins": 12}
    of_nights = {"kind": "integer", "lower": 0, "upper": 20, "bins": 10, "hidden": hidden}
    nights: dict[str, Any] = {"nights": of_nights} if summed else {}
    columns = {
        "patient": {"kind": "identifier", "make": "sequence"},
        "admitted": day,
        "ward": {"kind": "categorical", "categories": WARDS, "other": False},
        **nights,
        "discharged": day,
    }
    within = "discharged = admitted + nights" if summed else "admitted <= discharged"
    keys = {"id": "patient", "order": "admitted", "most_rows": 12}
    return {"columns": columns, "constraints": [within, *rules], "persons": keys}


@dataclass(frozen=True)
class Seen:
    """Facts of a table.

    Attributes:
        gaps, stays: days from one begin to the next, and of each visit.
        sizes: rows of each patient.
        overlap: share of visits that end after the next one begins.
    """

    gaps: npt.NDArray[np.int64]
    stays: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    overlap: float

    @classmethod
    def of(cls, table: pd.DataFrame) -> Seen:
        start, stop = (pd.to_datetime(table[name].astype(str)) for name in ("admitted", "discharged"))
        after = start.groupby(table["patient"]).shift(-1)
        there = after.notna()
        gaps, stays = (after - start)[there].dt.days.to_numpy(), (stop - start).dt.days.to_numpy()
        sizes = table.groupby("patient").size().to_numpy()
        return cls(gaps, stays, sizes, float((stop > after)[there].mean()))

    def off(self, other: Seen) -> list[float]:
        """Returns L1 distances of gaps, stays and numbers of rows."""
        pairs = ((self.gaps, other.gaps), (self.stays, other.stays), (self.sizes, other.sizes))
        shares = [[np.histogram(days, GROUPS)[0] / len(days) for days in pair] for pair in pairs]
        return [float(np.abs(one - two).sum()) for one, two in shares]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persons", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    print("| discharged | constraint | gaps | stays | numbers of rows | overlaps | sampling, CPU |")
    print("|---|---|---|---|---|---|---|")
    ways = ((True, False, "a sum"), (True, True, "a sum, nights hidden"), (False, False, "a column"))
    for summed, hidden, what in ways:
        first = 0.0
        for rules in ((), (OVERLAP,)):
            found = []
            for seed in range(1, options.seeds + 1):
                real = visits(options.persons, seed)
                real = real if summed and not hidden else real.drop(columns="nights")
                stated, privacy = schema(*rules, summed=summed, hidden=hidden), {"unit": "person"}
                made = fedsyn.Synthesizer(options.epsilon, 1e-6, stated, seed=seed, privacy=privacy).fit(real)
                before = time.process_time()
                seen = Seen.of(made.sample())
                found.append([*Seen.of(real).off(seen), seen.overlap, time.process_time() - before])
            *errors, overlap, seconds = np.mean(found, axis=0)
            first = first or seconds
            spread = np.std(found, axis=0) / np.sqrt(len(found))
            cells = [f"{error:.3f} ± {sd:.3f}" for error, sd in zip(errors, spread[:3], strict=True)]
            cells += [f"{overlap:.1%}", f"{seconds / first:.1f} times"]
            print(f"| {what} | {'yes' if rules else 'no'} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
