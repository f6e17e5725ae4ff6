"""Tables as newcomers bring them: a survey, a hospital's export, its visits, many laboratory values, a messy one.

Seeded, made for `tests/unit/evaluation/test_verdicts.py`, which reads what fedsyn says of their synthetic tables beside
the facts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedsyn.table.schema import Schema

ANSWERS = ("strongly disagree", "disagree", "neither", "agree", "strongly agree")


def survey(rows: int = 1_200, seed: int = 0) -> pd.DataFrame:
    """Ten Likert items of one factor (mean correlation near 0.57) and four columns that know nothing of them."""
    rng = np.random.default_rng([1, seed])
    scores = 0.8 * rng.normal(size=(rows, 1)) + 0.6 * rng.normal(size=(rows, 10))
    codes = np.digitize(scores, [-1.2, -0.4, 0.4, 1.2])
    columns = {f"q{i + 1}": np.array(ANSWERS)[codes[:, i]] for i in range(10)}
    columns["sex"] = rng.choice(["f", "m"], rows)
    columns["region"] = rng.choice(["north", "east", "south", "west"], rows, p=[0.4, 0.3, 0.2, 0.1])
    columns["age"] = rng.integers(18, 90, rows)
    columns["panel"] = rng.choice(["a", "b", "c"], rows)
    return pd.DataFrame(columns)


def patients(rows: int = 3_000, seed: int = 0) -> pd.DataFrame:
    """Wards that follow ages, costs with a heavy tail, stays that decide about readmission, 100 postcodes."""
    rng = np.random.default_rng([2, seed])
    age = np.where(rng.random(rows) < 0.15, rng.integers(0, 16, rows), rng.integers(16, 95, rows))
    adult = rng.choice(["Chirurgie", "Innere", "Oncology", "Geriatrie"], rows, p=[0.35, 0.35, 0.2, 0.1])
    ward = np.where(age < 16, "Kinderklinik", np.where(age > 80, "Geriatrie", adult))
    stay = np.minimum(60, rng.geometric(0.15, rows) + (age > 70) * 4)
    cost = np.minimum(100_000, rng.lognormal(7.6, 1.0, rows) * (1 + stay / 20)).round(2)
    again = rng.random(rows) < 1 / (1 + np.exp(2.5 - 0.11 * stay))
    postcode = np.array([f"{10_000 + 7 * i}" for i in range(100)])[rng.integers(0, 100, rows)]
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["f", "m"], rows),
            "ward": ward,
            "length_of_stay": stay,
            "cost": cost,
            "readmitted": np.where(again, "yes", "no"),
            "postcode": postcode,
        }
    )


def visits(people: int = 300, seed: int = 0) -> pd.DataFrame:
    """About five visits of each of 300 people: weight and pressure are a person's own."""
    rng = np.random.default_rng([3, seed])
    person = np.repeat(np.arange(people), rng.integers(2, 9, people))
    weight, pressure = rng.normal(75, 14, people), rng.normal(125, 15, people)
    return pd.DataFrame(
        {
            "weight": (weight[person] + rng.normal(0, 2, len(person))).round(1),
            "pressure": (pressure[person] + 0.5 * (weight[person] - 75) + rng.normal(0, 6, len(person))).round(),
            "sex": np.where(rng.random(people) < 0.5, "f", "m")[person],
            "treated": np.where(pressure[person] > 135, "yes", "no"),
        }
    )


def wide(columns: int = 60, rows: int = 1_000, seed: int = 0) -> pd.DataFrame:
    """Laboratory values of one factor (mean correlation near 0.8), and as many diagnoses that are rare but one."""
    rng = np.random.default_rng([4, seed])
    factor, half = rng.normal(size=(rows, 1)), columns // 2
    labs = 10 + 2 * (0.9 * factor + 0.436 * rng.normal(size=(rows, half)))
    found = {f"lab_{i:02d}": labs[:, i].round(2) for i in range(half)}
    share = np.r_[0.479, rng.uniform(0.02, 0.1, columns - half - 1)]
    return pd.DataFrame(found | {f"dx_{i:02d}": (rng.random(rows) < p).astype(int) for i, p in enumerate(share)})


def messy(rows: int = 3_000, seed: int = 0) -> pd.DataFrame:
    """A constant, spellings of yes and no, a mark for unknown, months, postcodes of few rows each."""
    rng = np.random.default_rng([5, seed])
    return pd.DataFrame(
        {
            "const": 1,
            "yn": rng.choice(["Yes", "Y", "ja", "no", "N", "nein"], rows),
            "score": np.where(rng.random(rows) < 0.106, 999, rng.integers(0, 61, rows)),
            "month": rng.integers(1, 13, rows),
            "grade": rng.choice(["A", "B", "C", "D"], rows, p=[0.1, 0.4, 0.3, 0.2]),
            "year": rng.integers(2015, 2025, rows),
        }
    )


def drafted(frame: pd.DataFrame) -> Schema:
    """The schema as fedsyn drafts it, approved without a change."""
    return Schema.draft(frame).approve()
