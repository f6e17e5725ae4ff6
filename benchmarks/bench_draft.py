"""`fedsyn schema draft` on a wide CSV file, beside pandas.read_csv of the same file.

    python benchmarks/bench_draft.py [--rows 100000] [--columns 60]

The file has ids, integers, decimals, money with thousands, dates, datetimes, categories, booleans, codes with leading
zeros and free text in turn. CPU seconds of this process (all threads), each step once, in a fresh process; the same run
prints what pandas takes to read the file with its own guesses (`low_memory=False`), which knows numbers and text only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd


def table(rows: int, columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    makers = (
        lambda: [f"P{k:09d}" for k in rng.integers(0, 10**9, rows)],
        lambda: rng.integers(0, 110, rows),
        lambda: rng.normal(37, 1, rows).round(1),
        lambda: [f"{x:,.2f}" for x in rng.lognormal(7, 1, rows)],
        lambda: _moments("1930-01-01", rng.integers(0, 30_000, rows), "D").strftime("%d.%m.%Y"),
        lambda: _moments("2020-01-01", rng.integers(0, 10**8, rows), "s"),
        lambda: rng.choice(["north", "south", "west"], rows),
        lambda: rng.choice(["TRUE", "FALSE"], rows),
        lambda: [f"{k:05d}" for k in rng.integers(0, 900, rows)],
        lambda: [f"patient {k} was seen and sent home again" for k in rng.integers(0, 10**9, rows)],
    )
    return pd.DataFrame({f"c{j}": makers[j % len(makers)]() for j in range(columns)})


def _moments(first: str, steps: np.ndarray, unit: str) -> pd.DatetimeIndex:
    return pd.Timestamp(first) + pd.to_timedelta(steps, unit)


def draft(path: str) -> None:
    from fedsyn.table.data.sources import read_cells
    from fedsyn.table.schema.drafting import draft_columns

    start = time.process_time()
    cells = read_cells(path)
    read = time.process_time()
    guesses = draft_columns(cells.frame, text=True)
    kinds = sorted({guess.column.kind for guess in guesses.values()})
    done = time.process_time()
    print(f"  fedsyn: read {read - start:6.2f}  guess {done - read:6.2f}  together {done - start:6.2f}", flush=True)
    print(f"          {len(cells.frame)} rows, {len(guesses)} columns: {', '.join(kinds)}")


def plain(path: str) -> None:
    start = time.process_time()
    frame = pd.read_csv(path, low_memory=False)
    seconds = time.process_time() - start
    print(f"  pandas.read_csv:                         {seconds:6.2f}", flush=True)
    print(
        f"          {len(frame)} rows, {len(frame.columns)} columns: {', '.join(sorted(set(map(str, frame.dtypes))))}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--step", choices=("draft", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        {"draft": draft, "plain": plain}[asked.step](asked.path)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table(asked.rows, asked.columns).to_csv(path, index=False)
        print(f"{asked.columns} columns x {asked.rows} rows, {path.stat().st_size / 1e6:.0f} MB; CPU seconds")
        for step in ("draft", "plain"):
            subprocess.run([sys.executable, __file__, "--step", step, "--path", str(path)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
