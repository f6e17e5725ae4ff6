"""Whole runs for persons beside runs for single rows of the same file: CPU seconds, peak memory, the time of a row.

    python benchmarks/bench_persons.py                                        # 100,000 persons with 2 million rows
    python benchmarks/bench_persons.py --persons 20000 --rows-each 20 --holders 1 20
    python benchmarks/bench_persons.py --holders 1 --overlap                  # and a constraint from row to row

Patients with three columns of their own and one to many visits in order, with five columns and a date. A run is
`fedsyn run` in a process of its own with one thread, from reading the CSV file to the page. The named alternative is
the same run with `unit: row`: it protects single rows, and as many rows are drawn one by one. CPU seconds of all its
processes, the largest peak of one. With `--overlap` a visit has nights, too, and an end which is their sum with its
begin. The run for persons then stands beside one in which no visit begins before the last one is over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.bench_ordinary import RUN, SECURE, TRUSTED, one_thread
from benchmarks.inference_suite.cells import LAUNCHER
from fedsyn import yamlio

GOAL_SECONDS, GOAL_MEGABYTES = 120, 2000
END, OVERLAP = "discharged = admitted + nights", "discharged <= next.admitted"


def write(folder: Path, persons: int, each: int, *, ends: bool) -> int:
    """Writes `table.csv` and its schemas, and returns the number of rows.

    `schema.yaml` has no constraint from row to row; `overlap.yaml`, which is of visits with ends, has one.
    """
    rng = np.random.default_rng(46)
    counts = np.minimum(rng.geometric(1.0 / each, persons), 20 * each)
    whose, n = np.repeat(np.arange(persons), counts), int(counts.sum())
    own = {"sex": 2, "region": 12, "status": 4}
    visits = {"ward": 8, "kind": 5, "severity": 6, "outcome": 3}
    table: dict[str, Any] = {"patient_id": whose}
    hidden = rng.random(persons)
    for name, size in own.items():
        table[name] = _words(name, size, hidden, rng)[whose]
    for name, size in visits.items():
        table[name] = _words(name, size, hidden[whose], rng)
    table["cost"] = np.round(np.exp(4.0 + hidden[whose] + rng.normal(0, 0.5, n)), 2)
    # Visits of one person are some days apart.
    step = rng.geometric(0.05, n)
    since = np.cumsum(step)
    first = since[np.cumsum(counts) - counts]
    days = 365 + (since - first[whose] + rng.integers(0, 300, persons)[whose]) % 1400
    begin = np.datetime64("2020-01-01") + days
    table["admitted"] = begin.astype(str)
    if ends:  # before the next visit begins
        table["nights"] = np.minimum(rng.integers(0, 4, n), np.append(step[1:], 4))
        table["discharged"] = (begin + table["nights"]).astype(str)
    frame = pd.DataFrame(table)
    frame.to_csv(folder / "table.csv", index=False)
    columns: dict[str, Any] = {"patient_id": {"kind": "identifier", "make": "sequence"}}
    for name in (*own, *visits):
        columns[name] = {"kind": "categorical", "categories": np.unique(table[name]).tolist(), "other": False}
    columns["cost"] = {"kind": "numeric", "lower": 0, "upper": 5000, "bins": 20}
    columns["admitted"] = {"kind": "date", "lower": "2020-01-01", "upper": "2025-12-31", "bins": 24}
    keys = {"id": "patient_id", "order": "admitted", "constant": list(own), "most_rows": int(20 * each)}
    if ends:
        columns["nights"] = {"kind": "integer", "lower": 0, "upper": 4, "bins": 5}
        columns["discharged"] = {"kind": "date", "lower": "2020-01-01", "upper": "2026-01-31"}
    for name, rules in (("schema", [END]), ("overlap", [END, OVERLAP])) if ends else (("schema", []),):
        document = {"columns": columns, "constraints": rules, "persons": keys}
        (folder / f"{name}.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    return n


def _words(name: str, size: int, hidden: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns a word each, which follows a hidden number more or less closely."""
    place = np.clip(hidden + rng.normal(0, 0.3, len(hidden)), 0, 1 - 1e-9)
    return np.array([f"{name} {i}" for i in range(size)])[(place * size).astype(np.int64)]


def run(folder: Path, unit: str, holders: int, schema: str = "schema") -> tuple[float, float]:
    """CPU seconds of a run, and its peak in megabytes."""
    document: dict[str, Any] = {
        "data": {"source": "table.csv", "schema": f"{schema}.yaml"},
        "federation": {"clients": holders},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "unit": unit},
        "aggregation": SECURE if holders > 1 else TRUSTED,
        "runtime": {"seed": 0},
    }
    (folder / "run.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    command = [*LAUNCHER, sys.executable, "-c", RUN, "run", "run.yaml", "--out", f"out-{unit}-{holders}", "--force"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, env=one_thread(), stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)  # of this run alone, and of what it started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a run failed:\n{(folder / 'said').read_text()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persons", type=int, default=100_000)
    parser.add_argument("--rows-each", type=int, default=20, metavar="N", help="on average")
    parser.add_argument("--holders", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--overlap", action="store_true", help=f"also a run for persons with '{OVERLAP}'")
    options = parser.parse_args()
    print(f"goals: {GOAL_SECONDS} CPU s, {GOAL_MEGABYTES:,} MB\n")
    names = ("holders", "unit", "persons", "rows", "CPU s", "us a row", "peak MB", "times `row`")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        rows = write(Path(name), options.persons, options.rows_each, ends=options.overlap)
        for holders in options.holders:
            found = {f"`{unit}`": run(Path(name), unit, holders) for unit in ("row", "person")}
            if options.overlap:
                found["`person`, no overlaps"] = run(Path(name), "person", holders, "overlap")
            for unit, (seconds, peak) in found.items():
                each, times = 1e6 * seconds / rows, seconds / found["`row`"][0]
                line = f"| {holders} | {unit} | {options.persons:,} | {rows:,} | {seconds:.1f} | {each:.1f}"
                print(f"{line} | {peak:,.0f} | {times:.1f} |", flush=True)


if __name__ == "__main__":
    main()
