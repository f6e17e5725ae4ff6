"""Ordinary tables, first steps and what is drafted: each goal of speed beside what it takes, whole processes.

    python benchmarks/bench_ordinary.py [--profile] [--rows N] [--repeats 2]

Tables of one factor, half of what varies in every column, in 32 bins each. `fedsyn run` is a process of its own with
one thread, from reading the CSV file to the page, `fit` alone is in one that has imported what it needs; the named
alternative is `aim` on the same rows, central, in the same run of this file. A first step, `fedsyn demo` among
them, is compared with a Python that imports NumPy. CPU seconds, the smallest of `--repeats`; a goal is what users
asked for, not a bound that a test holds.

--profile also prints in which parts a run of 60 columns (`bench_wide.py`) spends its time, by cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import inspect
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import bench_wide
from benchmarks.bench_long import cpu_seconds
from fedsyn import yamlio
from fedsyn.evaluation.predicted import predict_quality
from fedsyn.flower.launch import environment
from fedsyn.plugins.strategies.sketch_aim import Sketched
from fedsyn.protocol.client import TableClient
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.runs.report import compare, write_run_page
from fedsyn.runs.synthesis import write_synthetic
from fedsyn.selection.planning import Planner

RUN = "import sys\nfrom fedsyn.front.cli import main\nsys.argv = ['fedsyn', *sys.argv[1:]]\nsys.exit(main())"
COMMAND = (RUN, "run", "run.yaml", "--out", "out", "--force")
FIT = """
import sys, time
import pandas as pd
from fedsyn import Schema, Synthesizer
rows, schema, found = pd.read_csv("table.csv"), Schema.load("schema.yaml"), []
for _ in range(2):
    before = time.process_time()
    Synthesizer(schema=schema, epsilon=1.0, delta=1e-6, seed=0, mechanism=sys.argv[1]).fit(rows)
    found.append(time.process_time() - before)
print(min(found))
"""
SECURE = {"protocol": "secagg", "noise": "distributed"}
TRUSTED = {"protocol": "plain", "noise": "server"}


@dataclass(frozen=True)
class Table:
    """A table that many have, its holders, how their sums are added, and the CPU seconds asked for."""

    what: str
    rows: int
    columns: int
    holders: int
    aggregation: Mapping[str, str]
    goal: float


TABLES = (
    Table("30,000 x 15, one holder", 30_000, 15, 1, TRUSTED, 3.5),
    Table("30,000 x 15, twelve holders, secure sums", 30_000, 15, 12, SECURE, 4.0),
    Table("1,000 x 300, one holder", 1_000, 300, 1, TRUSTED, 15.0),
)
FIT_GOAL = 2.0
STEPS = (
    ("`fedsyn --help`", [RUN, "--help"], 0.2),
    ("`fedsyn demo`", [RUN, "demo", "--out", "out", "--force"], 3.0),
    ("the first `Synthesizer`", ["from fedsyn import Synthesizer\nSynthesizer()"], 0.6),
)
#: Variables that say whether bytecode is kept, and where.
BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
#: In whose calls a run's time is counted. None of them calls another one, so the shares add up.
PARTS: dict[str, Any] = {
    "plans": Planner.best,
    "sketches of the model": Sketched.distances,
    "fits": MechanismStrategy.estimate,
    "the clients' sums": TableClient.fit,
    "predicted quality": predict_quality,
    "comparison with real rows": compare,
    "the page": write_run_page,
    "the table": write_synthetic,
}


def write(folder: Path, table: Table) -> None:
    """`table.csv` and `schema.yaml` in a folder."""
    rng = np.random.default_rng(0)
    factor, own = rng.normal(size=(table.rows, 1)), rng.normal(size=(table.rows, table.columns))
    values = np.clip(np.sqrt(0.5) * (factor + own), -4.0, 4.0).round(4)
    frame = pd.DataFrame(values).add_prefix("c")
    frame.to_csv(folder / "table.csv", index=False)
    kind = {"kind": "numeric", "lower": -4.0, "upper": 4.0, "bins": 32}
    (folder / "schema.yaml").write_text(yamlio.dumps({"columns": dict.fromkeys(frame, kind)}), encoding="utf-8")


def run_file(folder: Path, mechanism: str, table: Table | None) -> None:
    """`run.yaml` for a mechanism; None: one trusted holder, as central mechanisms have it."""
    document: dict[str, Any] = {
        "mechanism": {"name": mechanism},
        "data": {"source": "table.csv", "schema": "schema.yaml"},
        "federation": {"clients": 1 if table is None else table.holders},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "aggregation": dict(TRUSTED if table is None else table.aggregation),
        "runtime": {"seed": 0},
    }
    (folder / "run.yaml").write_text(yamlio.dumps(document), encoding="utf-8")


def one_thread(without: Path | None = None) -> dict[str, str]:
    """The variables of a Python process with one thread that finds what this one does.

    It keeps bytecode; with `without`, a folder that has none, it neither keeps nor finds any.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    known = {name: value for name, value in environment().items() if name not in BYTECODE}
    kept = {} if without is None else dict(zip(BYTECODE, ("1", str(without)), strict=True))
    return known | threads | kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


def printed(arguments: Sequence[str], folder: Path, bytecode: bool = True) -> str:
    """What a Python process with one thread prints."""
    command = [sys.executable, "-c", *arguments]
    variables = one_thread(None if bytecode else folder)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[1:])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def seconds(arguments: Sequence[str], folder: Path, repeats: int, bytecode: bool = True) -> float:
    """CPU seconds of a Python process and its children, the smallest of some."""
    found = []
    for _ in range(repeats):
        before = cpu_seconds()
        printed(arguments, folder, bytecode)
        found.append(cpu_seconds() - before)
    return min(found)


def ordinary(table: Table, repeats: int) -> tuple[float, float]:
    """CPU seconds of the default mechanism and of `aim`."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), table)
        for mechanism, own in (("sketch_aim", table), ("aim", None)):
            run_file(Path(name), mechanism, own)
            found.append(seconds([*COMMAND], Path(name), repeats))
    return found[0], found[1]


def without_bytecode(table: Table, repeats: int) -> tuple[float, float]:
    """CPU seconds of a run without bytecode, and of one with it."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), table)
        run_file(Path(name), "sketch_aim", table)
        kept = seconds([*COMMAND], Path(name), repeats)
        return seconds([*COMMAND], Path(name), repeats, bytecode=False), kept


def fit_alone(table: Table) -> tuple[float, float]:
    """CPU seconds of `Synthesizer.fit` by the default mechanism and by `aim`, the smaller of two in one process."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), table)
        found = [float(printed([FIT, mechanism], Path(name))) for mechanism in ("sketch_aim", "aim")]
    return found[0], found[1]


def profile(rows: int, columns: int = 60) -> None:
    """Prints the shares of a run's parts."""
    with tempfile.TemporaryDirectory() as name:
        bench_wide.write_table(Path(name), columns, rows)
        profiler = cProfile.Profile()
        profiler.enable()
        bench_wide.run_one(Path(name), "sketch_aim", columns)
        profiler.disable()
    found: Any = pstats.Stats(profiler)
    codes = {what: inspect.unwrap(part).__code__ for what, part in PARTS.items()}
    places = {what: (code.co_filename, code.co_firstlineno, code.co_name) for what, code in codes.items()}
    # A part that a few rows never reach takes no time.
    spent = {what: found.stats[place][3] if place in found.stats else 0.0 for what, place in places.items()}
    shares = {what: seconds / found.total_tt for what, seconds in spent.items()}
    print(f"\n| part of a run of {columns} columns | share of its time |\n|---|---|")
    for what, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"| {what} | {share:.0%} |")
    print(f"| all others: what fits beside a tree, reading, files | {1 - sum(shares.values()):.0%} |")


def beside_aim(what: str, goal: float, own: float, aim: float) -> str:
    return f"| {what} | {own:.1f} | {goal:g} | `aim`: {aim:.1f} | {own / aim:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="also where a wide run spends its time")
    parser.add_argument("--rows", type=int, default=bench_wide.ROWS, help="at most, of every table")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    print("| what | CPU s | goal | the alternative | times that |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        numpy = seconds(["import numpy"], Path(folder), arguments.repeats)
        for what, command, goal in STEPS:
            own = seconds(command, Path(folder), arguments.repeats)
            print(f"| {what} | {own:.2f} | {goal:g} | `import numpy`: {numpy:.2f} | {own / numpy:.1f} |", flush=True)
    tables = [replace(table, rows=min(table.rows, arguments.rows)) for table in TABLES]
    for table in tables:
        print(beside_aim(table.what, table.goal, *ordinary(table, arguments.repeats)), flush=True)
    print(beside_aim(f"{tables[0].what}, `fit` alone", FIT_GOAL, *fit_alone(tables[0])), flush=True)
    none, kept = without_bytecode(tables[0], arguments.repeats)
    what, goal = f"{tables[0].what}, without bytecode", 1.5 * kept
    print(f"| {what} | {none:.1f} | {goal:.1f} | with it: {kept:.1f} | {none / kept:.1f} |")
    if arguments.profile:
        profile(arguments.rows)


if __name__ == "__main__":
    main()
