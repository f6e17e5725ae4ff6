"""Bounds and bins found by noisy sums against 32 equal bins, on skewed columns: what it gains, and what it costs.

    FEDSYN_DATA=FOLDER python benchmarks/bench_private_bins.py [--clients 10 100] [--seeds 3] [--mechanism sketch_aim]

Two tables: Adult (`capital-gain`: 92% zeros and a spike at 99999) and a generated one (`cost`: log-normal, cents).
Each is synthesised at epsilon 1 for the whole run, finding included, three ways: with 32 equal bins between bounds that
somebody may know (Adult's 0 to 99999; a cost of 0 to a million), with 32 equal bins between 0 and the table's own
largest value (which nobody may look up: the best that equal bins can do), and with `bounds: private`.

Printed, as the mean over seeds: the Wasserstein distance between the synthetic and the real column in its own unit, its
ratio to the first way's; the largest share of the zCDP budget that finding spent; and what the other columns pay for
it, the mean total variation distance of all pairs of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsyn.config import RunConfig
from fedsyn.loading import parse_config
from fedsyn.runs.engines import run
from fedsyn.table.data import load_dataset
from fedsyn.table.schema import Schema

WAYS = ("32 equal bins, public bounds", "32 equal bins, largest value", "private")
_ROWS = 20_000


def adult() -> tuple[pd.DataFrame, dict[str, Any], str]:
    """Adult with its registered schema, and the skewed column."""
    dataset = load_dataset("adult")
    return dataset.frame, dataset.schema.to_dict(), "capital-gain"


def costs() -> tuple[pd.DataFrame, dict[str, Any], str]:
    """A generated table of a hospital: the cost of a stay grows with age and ward, and is log-normal."""
    rng = np.random.default_rng(1)
    age, ward = rng.integers(0, 95, _ROWS), rng.integers(0, 4, _ROWS)
    cost = np.exp(rng.normal(5.5 + age / 95 + 0.3 * ward, 1.4)).round(2)
    frame = pd.DataFrame({"cost": cost, "age": age, "ward": ward, "sex": rng.integers(0, 2, _ROWS)})
    columns = {
        "cost": {"kind": "decimal", "places": 2, "lower": 0, "upper": 1_000_000},
        "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 20},
        "ward": {"kind": "categorical", "categories": [0, 1, 2, 3]},
        "sex": {"kind": "categorical", "categories": [0, 1]},
    }
    return frame, {"columns": columns}, "cost"


def described(data: dict[str, Any], name: str, way: str, frame: pd.DataFrame) -> Schema:
    """The schema with the column described one way."""
    column = {key: value for key, value in data["columns"][name].items() if key != "bins"}
    if way == WAYS[0]:
        column |= {"bins": 32}
    elif way == WAYS[1]:
        column |= {"lower": 0, "upper": int(np.ceil(frame[name].max())), "bins": 32}
    else:
        column = {key: value for key, value in column.items() if key not in ("lower", "upper")} | {"bounds": "private"}
    return Schema.from_dict({**data, "columns": {**data["columns"], name: column}, "approved": True})


def config(mechanism: str, clients: int, seed: int) -> RunConfig:
    return parse_config(
        {
            "mechanism": mechanism,
            "data": {"source": "table", "test_fraction": 0.0},
            "federation": {"clients": clients},
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "workload": {"size": 64},
            "evaluation": [],
            "runtime": {"seed": seed},
        }
    )


def wasserstein(a: np.ndarray, b: np.ndarray) -> float:
    """Mean distance between the quantiles of two columns, at 100,000 places."""
    places = (np.arange(100_000) + 0.5) / 100_000
    return float(np.abs(np.quantile(a, places) - np.quantile(b, places)).mean())


def pairs_apart(real: np.ndarray, made: np.ndarray) -> float:
    """Mean total variation distance over all pairs of columns of two tables of codes."""
    distances = []
    for i, j in itertools.combinations(range(real.shape[1]), 2):
        joint = [np.unique(t[:, i].astype(np.int64) * 10_000 + t[:, j], return_counts=True) for t in (real, made)]
        shares = [dict(zip(cells.tolist(), (n / n.sum()).tolist(), strict=True)) for cells, n in joint]
        cells = shares[0].keys() | shares[1].keys()
        distances.append(0.5 * sum(abs(shares[0].get(c, 0.0) - shares[1].get(c, 0.0)) for c in cells))
    return float(np.mean(distances))


def measured(
    frame: pd.DataFrame, data: dict[str, Any], name: str, way: str, settings: RunConfig
) -> tuple[float, float, float]:
    """(Wasserstein distance of the column, share of the budget for finding, distance of the other columns' pairs)."""
    with tempfile.TemporaryDirectory() as folder:
        run(settings, folder, table=frame, schema=described(data, name, way, frame))
        made = pd.read_csv(Path(folder) / "synthetic.csv")
        ledger = json.loads((Path(folder) / "ledger.json").read_text(encoding="utf-8"))
    found = sum(entry["rho"] for entry in ledger["releases"] if entry["name"].startswith("find-"))
    public = Schema.from_dict({**data, "approved": True})
    others = [i for i, column in enumerate(public.columns) if column != name]
    apart = pairs_apart(public.encode(frame)[:, others], public.encode(made)[:, others])
    share = found / (ledger["capacity"] * ledger["rho"] / ledger["spent"])  # rho, whatever the accountant's unit
    return wasserstein(frame[name].to_numpy(), made[name].to_numpy()), share, apart


def lines(clients: list[int], seeds: int, mechanism: str) -> Iterator[str]:
    for title, made in (("adult", adult()), ("generated", costs())):
        frame, data, name = made
        for k in clients:
            first = None
            for way in WAYS:
                runs = [measured(frame, data, name, way, config(mechanism, k, seed)) for seed in range(seeds)]
                distance, _, apart = np.mean(runs, axis=0)
                share = max(run[1] for run in runs)
                first = distance if first is None else first
                yield (
                    f"{title:10s} {name:13s} {k:5d} {way:29s} {distance:10.1f} {distance / first:7.3f} "
                    f"{share:7.1%} {apart:8.4f}"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mechanism", default="sketch_aim")
    arguments = parser.parse_args()
    print(f"{'table':10s} {'column':13s} {'K':>5s} {'way':29s}", end=" ")
    print(f"{'distance':>10s} {'ratio':>7s} {'found':>7s} {'others':>8s}")
    for line in lines(arguments.clients, arguments.seeds, arguments.mechanism):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
