"""Tables as people bring them, whose links hide from coarse looks: dropouts, logs, amounts that are mostly zero.

A maker takes a seed and gives a table; structure and rows are both drawn from it. Seeds 1, 2, ... are taken until
either side has one of that kind, as in `experiments/held_out`. All of it is public test data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd

from experiments.held_out.held_tables import Side, side_of


def dropouts(seed: int) -> pd.DataFrame:
    """A trial of 30 columns: three measurements at each of seven visits, all missing from a patient's last visit on."""
    rng = np.random.default_rng([11, seed])
    rows, visits = int(rng.integers(1_500, 3_001)), 7
    arm = rng.choice(["placebo", "low", "high"], rows, p=rng.dirichlet([8, 8, 8]))
    site = rng.choice([f"site {c}" for c in "ABCDEFGH"], rows, p=rng.dirichlet(np.full(8, 2.0)))
    age = rng.integers(18, 90, rows)
    leaves = rng.random((rows, visits)) < rng.uniform(0.04, 0.12) * np.where(arm == "high", 2.0, 1.0)[:, None]
    leaves[:, :2] = False
    gone = np.maximum.accumulate(leaves, axis=1)
    found: dict[str, object] = {"arm": arm, "site": site, "sex": rng.choice(["f", "m"], rows), "age": age}
    for name, mean, spread in (("sbp", 150, 15), ("weight", 80, 12), ("score", 20, 6)):
        own = rng.normal(size=(rows, 1)) * spread * rng.uniform(0.6, 0.9)
        trend = np.where(arm == "high", -0.12, np.where(arm == "low", -0.06, 0.0))[:, None] * spread * np.arange(visits)
        values = mean + own + trend + 0.4 * spread * rng.normal(size=(rows, visits)) + 0.1 * (age[:, None] - 54)
        found |= {f"{name}_v{k}": np.where(gone[:, k], np.nan, values[:, k].round(1)) for k in range(visits)}
    found["last_visit"] = (~gone).sum(axis=1)
    found["completed"] = np.where(gone[:, -1], "no", "yes")
    found["sae"] = np.where(rng.random(rows) < np.where(arm == "high", 0.08, 0.03), "yes", "no")
    found["reason"] = np.where(gone[:, -1], rng.choice(["moved", "side effect", "unknown"], rows), "")
    return pd.DataFrame(found).replace({"reason": {"": None}})


def logs(seed: int) -> pd.DataFrame:
    """20,000 lines of a server: levels and status codes, most of them rare, which know of each other, and latencies."""
    rng = np.random.default_rng([12, seed])
    rows = 20_000
    service = rng.integers(0, 6, rows)
    trouble = rng.random(rows) < rng.uniform(0.01, 0.06, 6)[service]
    level = np.where(trouble, "ERROR", rng.choice(["INFO", "DEBUG", "WARN"], rows, p=[0.75, 0.19, 0.06]))
    usual = rng.choice([200, 201, 204, 301, 404], rows, p=[0.8, 0.06, 0.04, 0.04, 0.06])
    status = np.where(trouble, rng.choice([500, 502, 503], rows, p=[0.6, 0.25, 0.15]), usual)
    latency = rng.lognormal(4.0 + 0.4 * (service == 2) + 2.0 * (status == 503), 0.5)
    size = np.where(np.isin(status, [204, 301]) | trouble, 0, rng.lognormal(8.0, 1.2, rows).round())
    seconds = np.sort(rng.integers(0, 7 * 86_400, rows))
    return pd.DataFrame(
        {
            "timestamp": pd.Timestamp("2024-03-01") + pd.to_timedelta(seconds, unit="s"),
            "level": level,
            "status_code": status,
            "service": np.array(["auth", "cart", "search", "mail", "api", "web"])[service],
            "host": np.array([f"host-{k:02d}" for k in range(12)])[2 * service + rng.integers(0, 2, rows)],
            "latency_ms": latency.round(1),
            "bytes": size,
            "retries": np.where(status == 503, rng.integers(1, 4, rows), 0),
            "method": rng.choice(["GET", "POST", "PUT", "DELETE"], rows, p=[0.7, 0.2, 0.07, 0.03]),
            "region": rng.choice(["eu", "us", "ap"], rows, p=[0.5, 0.4, 0.1]),
        }
    )


def amounts(seed: int) -> pd.DataFrame:
    """10,000 policies: numbers and amounts of claims are zero in nine rows of ten, together, and follow age and car."""
    rng = np.random.default_rng([13, seed])
    rows = 10_000
    age, car = rng.integers(18, 90, rows), rng.integers(0, 6, rows)
    rate = rng.uniform(0.04, 0.08) * np.where(age < 26, 3.0, 1.0) * (1.0 + 0.2 * car)
    number = rng.poisson(rate)
    own = rng.random(rows) < 0.6 * (number > 0)
    paid = np.where(number > 0, rng.lognormal(7.0 + 0.15 * car, 1.0), 0.0).round(2)
    return pd.DataFrame(
        {
            "exposure": rng.uniform(0.05, 1.0, rows).round(2),
            "driver_age": age,
            "car_class": np.array(list("ABCDEF"))[car],
            "region": rng.choice(["north", "east", "south", "west", "isles"], rows, p=[0.35, 0.3, 0.2, 0.13, 0.02]),
            "claims": number,
            "paid": paid,
            "deductible": np.where(number > 0, rng.choice([150, 300, 500], rows), 0),
            "injury": np.where((number > 0) & (rng.random(rows) < 0.2), rng.lognormal(8.0, 1.0, rows), 0.0).round(2),
            "fraud": np.where((paid > 3_000) & (rng.random(rows) < 0.16), "yes", "no"),
            "own_fault": np.where(own, "yes", "no"),
            "mileage": rng.lognormal(9.2, 0.5, rows).round(-2),
            "colour": rng.choice(["black", "white", "grey", "red", "blue"], rows),
        }
    )


MAKERS: dict[str, Callable[[int], pd.DataFrame]] = {made.__name__: made for made in (dropouts, logs, amounts)}


def frames() -> dict[str, tuple[Side, Callable[[], pd.DataFrame]]]:
    """Side and maker of each table by name."""
    found: dict[str, tuple[Side, Callable[[], pd.DataFrame]]] = {}
    for kind, make in MAKERS.items():
        sides = set[Side]()
        for seed in itertools.count(1):
            name = f"{kind}_{seed}"
            found[name] = side_of(name), lambda make=make, seed=seed: make(seed)  # type: ignore[misc]
            sides.add(found[name][0])
            if len(sides) == 2:
                break
    return found
