"""Whether what released values alone say of links is so: python -m experiments.verdicts.released --side tuning

`sketch_aim` runs at its defaults on the tables of `experiments/held_out`, seed 1. Each link that its public verdict
names (`predicted_quality.json`) is looked up in the comparison of the run's table with its real rows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np

from experiments.held_out.held_cells import Cell, fitted, spread
from experiments.held_out.held_tables import TABLES, available, row_counts, rows_of
from experiments.verdicts.run import schema_of
from fedsyn import yamlio
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.predicted.links import DOUBT, seen_links
from fedsyn.evaluation.real.comparison import compare_tables
from fedsyn.evaluation.verdict import judged_link
from fedsyn.inference import Evidence

STATES = ("kept", "weakened", "lost")
#: Standard deviations of doubt that one was chosen from.
DOUBTS = (0.0, 0.5, 1.0, 1.5, 2.0)


def told(name: str, rows: int, epsilon: float) -> list[tuple[float, float, str]]:
    """(kept, its standard deviation, what it is beside real rows) of each link that a run's public verdict names."""
    table, rng = rows_of(name), np.random.default_rng(rows)
    domain, train, schema = table.domain, table.train[:rows], schema_of(table)
    strategy = fitted(Cell(name, rows, epsilon, 1, "sketch_aim", ()).config(), train, domain)
    assert strategy.model is not None
    pairs, errors = list(combinations(domain, 2)), list(strategy.sketch_errors())
    effects = Effects(strategy.model, Evidence(strategy.measured, strategy.model.total), errors, pairs)
    links = seen_links(effects, errors, pairs, schema).links
    if not links:
        return []
    found = compare_tables(schema, train, strategy.model.sample(rows, rng), rng=rng)
    true = {(pair.first, pair.second): pair.judged().state for pair in found.pairs}
    return [(link.kept, link.spread, true[link.columns]) for link in links if link.columns in true]


def table_of(found: list[tuple[float, float, str]], doubt: float) -> Counter[tuple[str, str]]:
    """(called, is) -> number of links."""
    return Counter((judged_link("", 1.0, 1.0, kept, doubt * off).state, true) for kept, off, true in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--tables", nargs="*", default=[], help="default: all")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    options = parser.parse_args()
    found = []
    for name in spread([name for name, table in TABLES.items() if table.side == options.side and available(name)]):
        if not options.tables or name in options.tables:
            found += [each for n in row_counts(name) for e in options.epsilons for each in told(name, n, e)]
    print("| doubt | called kept | are kept | weakened | lost | called lost | are kept | weakened | lost |")
    print("|---" * 9 + "|")
    right = {}
    for doubt in DOUBTS if options.side == "tuning" else (DOUBT,):
        counts = table_of(found, doubt)
        cells = [f"{doubt:g} sd"]
        for state in ("kept", "lost"):
            called = sum(counts[state, true] for true in STATES)
            cells += [str(called), *(f"{counts[state, true] / max(called, 1):.0%}" for true in STATES)]
            right[state] = counts[state, state] / max(called, 1)
        print("| " + " | ".join(cells) + " |")
    if not options.check:
        return 0
    least = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["released"]
    good = all(right[state] >= float(share) for state, share in least.items())
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
