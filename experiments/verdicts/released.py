"""Whether what released values alone say of a table is so: python -m experiments.verdicts.released --side tuning

`sketch_aim` runs at its defaults on the tables of `experiments/held_out`, seed 1. Each column and each link that its
public verdict names (`predicted_quality.json`) is looked up in the comparison of the run's table with its real rows.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from experiments.held_out.held_cells import Cell, fitted, spread
from experiments.held_out.held_tables import TABLES, available, row_counts, rows_of
from experiments.verdicts.run import frame_of, schema_of
from fedsyn import yamlio
from fedsyn.evaluation.predicted import predict_quality
from fedsyn.evaluation.predicted.effects import Effects
from fedsyn.evaluation.predicted.links import LINK_DOUBT, seen_links
from fedsyn.evaluation.predicted.moments import MOMENT_DOUBT, seen_moments
from fedsyn.evaluation.real.comparison import compare_tables
from fedsyn.evaluation.verdict import judged_link
from fedsyn.inference import Evidence
from fedsyn.table.counting.workload import Workload
from fedsyn.table.schema import BinnedColumn

STATES = ("kept", "changed", "lost")
WHAT = ("links", "columns of numbers", "other columns")
#: Standard deviations of doubt that one was chosen from.
DOUBTS = (0.0, 0.5, 1.0, 1.5, 2.0)
NOT_LOOKED_AT = float("inf")  # the moments of columns

Told = tuple[str, float, str, str]  # what, doubt, what it is called, what it is beside real rows


def told(name: str, rows: int, epsilon: float, chosen: bool) -> Iterator[Told]:
    """Each column and link that a run's public verdict names, by each doubt or the chosen one."""
    table, rng = rows_of(name), np.random.default_rng(rows)
    domain, train, schema = table.domain, table.train[:rows], schema_of(table)
    strategy = fitted(Cell(name, rows, epsilon, 1, "sketch_aim", ()).config(), train, domain)
    assert strategy.model is not None
    evidence, errors = Evidence(strategy.measured, strategy.model.total), list(strategy.sketch_errors())
    pairs = list(combinations(domain, 2))
    effects = Effects(strategy.model, evidence, errors, pairs)
    links = seen_links(effects, errors, pairs, schema, seen_moments(effects, schema)).links
    ones = Workload.uniform([(attribute,) for attribute in domain])
    quality = predict_quality(strategy.model, evidence, errors, ones, schema=schema)
    made = strategy.model.sample(rows, rng)
    found = compare_tables(frame_of(table, train), frame_of(table, made), rng=rng)
    true = {(pair.first, pair.second): pair.judged().state for pair in found.pairs}
    for doubt in [LINK_DOUBT] if chosen else DOUBTS:
        for link in links:
            if link.columns in true:
                called = judged_link("", 1.0, 1.0, link.kept, doubt * link.spread).state
                yield WHAT[0], doubt, called, true[link.columns]
    real = {column.name: column.judged().state for column in found.columns}
    for doubt in [MOMENT_DOUBT] if chosen else [*DOUBTS, NOT_LOOKED_AT]:
        looked = replace(quality, moments={}) if doubt == NOT_LOOKED_AT else quality
        for column in looked.judged_columns(doubt):
            what = WHAT[1 if isinstance(schema.columns[column.name], BinnedColumn) else 2]
            yield what, doubt, column.state, real[column.name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=("tuning", "judging"), default="tuning")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--tables", nargs="*", default=[], help="default: all")
    parser.add_argument("--check", action="store_true", help="compare with expected.yaml, which is of the judging side")
    options = parser.parse_args()
    counts = Counter[Told]()
    for name in spread([name for name, table in TABLES.items() if table.side == options.side and available(name)]):
        if not options.tables or name in options.tables:
            for rows in row_counts(name):
                for epsilon in options.epsilons:
                    counts.update(told(name, rows, epsilon, options.side == "judging"))
    print("| what, doubt | called kept | are kept | changed | lost | called lost | are kept | changed | lost |")
    print("|---" * 9 + "|")
    right = {}
    for what, doubt in sorted({each[:2] for each in counts}, key=lambda row: (WHAT.index(row[0]), row[1])):
        cells = [f"{what}, {doubt:g} sd"]
        for state in ("kept", "lost"):
            called = sum(counts[what, doubt, state, true] for true in STATES)
            cells += [str(called), *(f"{counts[what, doubt, state, true] / max(called, 1):.0%}" for true in STATES)]
            right[what, state] = counts[what, doubt, state, state] / max(called, 1)
        print("| " + " | ".join(cells) + " |")
    if not options.check:
        return 0
    least = yamlio.read_mapping(Path(__file__).with_name("expected.yaml"))["released"]
    good = all(right[what, state] >= float(share) for what, shares in least.items() for state, share in shares.items())
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
