"""Applies the rule of this folder's README to its results: ranks of the workloads, on either side of held_out's split.

python experiments/default_workload/choose.py [RUNS]    # the folder of check.py, default runs/default_workload
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from experiments.held_out.held_tables import TABLES
from fedsyn.sweep import load_results
from fedsyn.sweep.results import Summary

HERE = Path(__file__).resolve().parent

#: Criterion -> its metrics and whether low is good; a criterion's rank is the mean of its metrics' ranks.
CRITERIA = {
    "workload error": (("error_2way", "error_3way"), 1.0),
    "nll": (("nll",), 1.0),
    "learning": (("f1", "f1_xgb"), -1.0),
}


def ranks(found: list[Summary]) -> np.ndarray:
    """(workloads, criteria): 1 is best, by means over the seeds; equal means share their ranks."""
    columns = []
    for metrics, sign in CRITERIA.values():
        by_metric = [rankdata([sign * one.mean(metric) for one in found]) for metric in metrics]
        columns.append(np.mean(by_metric, axis=0))
    return np.stack(columns, axis=1)


def main() -> int:
    results = load_results(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/default_workload"))
    by_table: dict[str, dict[str, Summary]] = {}
    for one in results.summaries:
        if one.done:
            by_table.setdefault(str(one.axes["data.source"]), {})[_name(one)] = one
    workloads = list(dict.fromkeys(name for found in by_table.values() for name in found))
    print(f"| side | table | workload | {' | '.join(CRITERIA)} | mean |\n{'|---' * (4 + len(CRITERIA))}|")
    for side in ("tuning", "judging"):
        tables = [name for name in by_table if TABLES[name].side == side and len(by_table[name]) == len(workloads)]
        found = [ranks([by_table[table][name] for name in workloads]) for table in tables]
        for table, of_table in [
            *zip(tables, found, strict=True),
            *([("all", np.mean(found, axis=0))] if found else []),
        ]:
            for name, row in zip(workloads, of_table, strict=True):
                print(f"| {side} | {table} | {name} | {' | '.join(f'{r:.2f}' for r in row)} | {row.mean():.2f} |")
    return 0


def _name(one: Summary) -> str:
    size, degree = one.axes["workload.size"], one.axes["workload.degree"]
    return f"{'all' if size is None else size} of {degree}"


if __name__ == "__main__":
    sys.exit(main())
