"""Tables with rules planted in them: a trial with dropout, a staff list, claims, pupils of schools in districts.

Seeded. Each rule holds in every row, and `PLANTED` says how a schema states it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

VISITS = ["sbp_v0", "sbp_v1", "sbp_v2", "sbp_v3", "sbp_v4"]


def trial(rows: int = 1_800, seed: int = 0) -> pd.DataFrame:
    """Visits of which a patient misses all after the first missed; who completed has an end of treatment."""
    rng = np.random.default_rng([1, seed])
    last = np.minimum(rng.geometric(0.12, rows), len(VISITS)) - 1
    level = rng.normal(150, 12, rows)
    frame = pd.DataFrame(
        {
            "arm": rng.choice(["placebo", "low", "high"], rows),
            "sex": rng.choice(["female", "male"], rows),
            "randomised": pd.Timestamp("2023-01-02") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
        }
    )
    for at, name in enumerate(VISITS):
        values = (level - 2 * at + rng.normal(0, 6, rows)).round()
        frame[name] = pd.array(np.where(at <= last, values, np.nan)).astype("Int64")
    done = last == len(VISITS) - 1
    frame["status"] = np.where(done, "completed", rng.choice(["lost", "withdrawn"], rows))
    end = frame["randomised"] + pd.to_timedelta(rng.integers(150, 210, rows), "D")
    frame["completed_on"] = end.where(pd.Series(done))
    return frame


def staff(rows: int = 900, seed: int = 0) -> pd.DataFrame:
    """Everybody who is terminated has a date of it, after the hire, and a reason; nobody else has."""
    rng = np.random.default_rng([2, seed])
    hired = pd.Timestamp("2010-01-01") + pd.to_timedelta(rng.integers(0, 4_000, rows), "D")
    status = rng.choice(["active", "leave", "terminated"], rows, p=[0.55, 0.05, 0.4])
    out = pd.Series(status == "terminated")
    left = pd.Series(hired + pd.to_timedelta(rng.integers(30, 1_400, rows), "D"))
    grade = rng.choice(["G1", "G2", "G3"], rows)
    return pd.DataFrame(
        {
            "grade": grade,
            "salary": (30_000 + 12_000 * (grade == "G3") + 100 * rng.integers(0, 90, rows)),
            "hired": hired,
            "status": status,
            "terminated_on": left.where(out),
            "reason": pd.Series(rng.choice(["own wish", "dismissed", "retired"], rows)).where(out),
        }
    )


def claims(rows: int = 4_000, seed: int = 0) -> pd.DataFrame:
    """Amounts that are zero where there is no claim, and only there; nine in ten have none."""
    rng = np.random.default_rng([3, seed])
    number = np.where(rng.random(rows) < 0.1, rng.geometric(0.8, rows), 0)
    amount = np.where(number > 0, np.ceil(rng.lognormal(7, 1, rows)) * np.maximum(number, 1), 0)
    return pd.DataFrame(
        {
            "region": rng.choice(["north", "south", "west"], rows),
            "age": rng.integers(18, 90, rows),
            "claims": number,
            "amount": amount.astype(int),
        }
    )


def pupils(rows: int = 4_000, seed: int = 0) -> pd.DataFrame:
    """120 schools, each in one of 12 districts."""
    rng = np.random.default_rng([4, seed])
    school = rng.integers(0, 120, rows)
    district = np.random.default_rng(5).integers(0, 12, 120)[school]
    return pd.DataFrame(
        {
            "school": [f"S{number:03d}" for number in school],
            "district": [f"district {number}" for number in district],
            "grade": rng.choice(["9", "10"], rows),
            "score": np.clip(rng.normal(500 + 8 * (district - 6), 90), 200, 800).round().astype(int),
        }
    )


TABLES: dict[str, Callable[..., pd.DataFrame]] = {"trial": trial, "staff": staff, "claims": claims, "pupils": pupils}
PLANTED: dict[str, list[Any]] = {
    "trial": [
        {"missing": "sbp_v4", "where": {"status": ["lost", "withdrawn"]}},
        {"missing": "completed_on", "where": {"status": ["lost", "withdrawn"]}},
        {"dropout": [*VISITS[1:], "completed_on"]},
        "randomised <= completed_on",
    ],
    "staff": [
        {"missing": "terminated_on", "where": {"status": ["active", "leave"]}},
        {"missing": "reason", "where": {"status": ["active", "leave"]}},
        "hired <= terminated_on",
    ],
    "claims": [{"zero": ["claims", "amount"]}],
    "pupils": [{"nested": ["school", "district"]}],
}
