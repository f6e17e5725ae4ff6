"""What stated constraints do for a table, and what the planner makes of a column that another one determines.

    python experiments/constraints/run.py [--rows 1000 3000 10000] [--seeds 1 2 3 4 5] [--check]

A hospital's stays, as `fedsyn init` drafts them, ε = 1, δ = 1e-6: nobody is discharged before being admitted, wards
follow ages, buildings wards and regions postcodes. Errors are mean L1 distances of pairs of columns in 20,000 drawn
rows, over those of the same schema without constraints. Exit code: 0; 1 if what expected.yaml says does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.drafted_bins.run import DRAWN, bounded, distance
from experiments.held_out.held_cells import Assignments, Cell, fitted
from fedsyn.domain import Domain
from fedsyn.front.several import frame_of
from fedsyn.randomness import Randomness
from fedsyn.table.schema import Schema
from tests.support import newcomers

BUILDINGS = {
    "Kinderklinik": "North",
    "Geriatrie": "North",
    "Chirurgie": "South",
    "Innere": "South",
    "Oncology": "South",
}
#: Columns that another one determines, and pairs that a constraint is about.
DETERMINED, CONSTRAINED = ("building", "region"), (("age", "ward"), ("admitted", "discharged"))
PAIRS: Assignments = ("mechanism.name=sketch_aim", "workload={degree: 2}", "privacy.delta=1e-6")
KINDS = ("pairs with a determined column", "constrained pairs", "other pairs")


def stays(rows: int) -> pd.DataFrame:
    """The newcomers' export with dates in place of the length of a stay, buildings and regions."""
    table = newcomers.patients(rows)
    came = np.datetime64("2024-01-01") + np.random.default_rng(12).integers(0, 365, rows).astype("timedelta64[D]")
    left = came + table.pop("length_of_stay").to_numpy().astype("timedelta64[D]")
    region = "R" + (table["postcode"].astype(int) // 100).astype(str)
    return table.assign(admitted=came, discharged=left, building=table["ward"].map(BUILDINGS), region=region)


def constraints(table: pd.DataFrame) -> list[object]:
    """What everybody knows of the stays."""
    regions = dict(zip(table["postcode"], table["region"], strict=True))
    return [
        "admitted <= discharged",
        {"when": {"ward": "Kinderklinik"}, "then": {"age": "<= 15"}},
        {"when": {"age": "<= 15"}, "then": {"ward": "Kinderklinik"}},
        {"determines": "ward", "column": "building", "map": BUILDINGS},
        {"determines": "postcode", "column": "region", "map": regions},
    ]


def errors(table: pd.DataFrame, schema: Schema, plain: Schema, domain: Domain, seed: int) -> list[float]:
    """Mean distance of the pairs of each kind, and the share of drawn rows that break a constraint."""
    cell = Cell("stays", len(table), 1.0, seed, "", PAIRS)
    model = fitted(cell.config(), schema.encode(table), domain).model
    drawn = frame_of(schema, model, DRAWN, Randomness(seed))
    both = [plain.block(one).codes.astype(np.int64) for one in (table, drawn)]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for pair in combinations(plain.domain.names, 2):
        kind = KINDS[0] if set(pair) & set(DETERMINED) else KINDS[1] if pair in CONSTRAINED else KINDS[2]
        found[kind].append(distance(both, plain.domain.axes(pair)))
    ward, house = drawn["ward"].astype(str), drawn["building"].astype(str)
    broken = (ward == "Kinderklinik") != (drawn["age"] <= 15)
    broken |= (drawn["admitted"] > drawn["discharged"]) | (ward.isin(list(BUILDINGS)) & (house != ward.map(BUILDINGS)))
    return [*(float(np.mean(own)) for own in found.values()), float(np.mean(broken))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 3_000, 10_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml")
    options = parser.parse_args()
    print(f"| rows | schema | {' | '.join(KINDS)} | rows that break one |\n|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {}
    for rows in options.rows:
        table = stays(rows)
        plain = Schema.draft(table).approve(public="an experiment")
        stated = Schema.from_dict(plain.to_dict() | {"constraints": constraints(table)})
        ways: dict[str, tuple[Schema, Callable[[Domain], Domain]]] = {
            "without constraints": (plain, lambda own: own),
            "constraints": (stated, lambda own: own),
            "constraints, planner not told of determined columns": (stated, lambda own: replace(own, coarser={})),
        }
        every = {
            way: np.mean([errors(table, own, plain, told(own.domain), seed) for seed in options.seeds], axis=0)
            for way, (own, told) in ways.items()
        }
        base = every["without constraints"]
        for way, own in every.items():
            cells = [f"{a:.3f} ({a / b:.2f})" for a, b in zip(own[:-1], base[:-1], strict=True)]
            print(f"| {rows:,} | {way} | {' | '.join(cells)} | {own[-1]:.0%} |", flush=True)
        told, untold = list(every.values())[1:]
        for kind, a, b, c in zip(KINDS, told, base, untold, strict=False):
            ratios.setdefault(kind, []).append(a / b)
            ratios.setdefault(f"{kind}, of what it is untold", []).append(a / c)
    print("\n| pairs | geometric mean | worst |\n|---|---|---|")
    return bounded(ratios, Path(__file__).with_name("expected.yaml"), options.check)


if __name__ == "__main__":
    sys.exit(main())
