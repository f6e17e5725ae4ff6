"""Whole runs of AIM, one library after the other: CPU seconds, peak memory and the workload error of the rows.

    FEDSYN_DATA=DIR python benchmarks/inference_suite/bench_aim.py [--tables adult wide60 ...] [--rounds 10] \\
        [--python opendp=/path/to/python dpsynth=/path/to/python]

Every library gets the same encoded table, workload (random triples), epsilon, delta, number of rounds and largest
model; each run is a process of its own, one at a time. The libraries:

  fedsyn        `fedsyn run` of `aim` with its defaults, files and report included (`equal_size`: only the size of the
                model limits its cliques, as in the others; by default the cost of a pass does, too)
  fedsyn_mbi    the same with mbi 2.0 as the engine of its fits (`inference.engine: mbi`)
  mbi           AIM on mbi 2.0 alone (mbi_aim.py), mirror descent with `--iterations` a round, mbi's default
  opendp        OpenDP's AIM; wants mbi 1.1, so an environment of its own: `pip install 'opendp[mbi,polars]' pandas`,
                then `--python opendp=...`. It anneals: `rounds` is the most that it makes, and it often makes fewer
  dpsynth       Google's dpsynth, where it is installed; the adapter has never been run

A library that is not there prints "not installed". The column `x` is its CPU seconds over those of fedsyn's first row.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.inference_suite import tables
from benchmarks.inference_suite.aim_cell import LIBRARIES
from benchmarks.inference_suite.cells import run_cell
from fedsyn.privacy import PrivacyBudget
from fedsyn.table.counting.workload import random_kway

_LARGEST = 200_000  # cells of a workload's clique


def compare(name: str, arguments: argparse.Namespace, pythons: dict[str, str], folder: Path) -> None:
    table = tables.load(name)
    workload = random_kway(table.domain, 3, arguments.triples, np.random.default_rng(arguments.seed)).cliques
    workload = tuple(q for q in workload if math.prod(table.domain.shape_of(q)) <= _LARGEST)
    path = folder / f"{name}.npz"
    tables.write_table(path, table, list(workload))
    rows, columns = table.codes.shape
    print(f"\n{name}: {rows} rows, {columns} columns, {len(workload)} triples, T = {arguments.rounds}, ", end="")
    print(f"epsilon = {arguments.epsilon}, largest model {arguments.megabytes:.3g} MB")
    print("  library                    CPU s   wall s  process CPU  peak MB   error       x")
    rho = PrivacyBudget(arguments.epsilon, arguments.delta).rho
    cells = [(library, False) for library in arguments.libraries]
    if "fedsyn" in arguments.libraries:
        cells.insert(1 + arguments.libraries.index("fedsyn"), ("fedsyn", True))
    first = None
    for library, equal_size in cells:
        settings = {
            "library": library,
            "equal_size": equal_size or library == "fedsyn_mbi",
            "rho": rho,
            **{key: getattr(arguments, key) for key in _SETTINGS},
        }
        python = {"python": pythons[library]} if library in pythons else {}
        cell = run_cell("aim_cell.py", [str(path), json.dumps(settings)], limit=arguments.limit, **python)
        label = f"{library}{' equal_size' if equal_size else ''}"
        if "failed" in cell:
            print(f"  {label:22s} {cell['failed']}", flush=True)
            continue
        first = first or cell["cpu"]
        figures = f"{cell['cpu']:9.2f} {cell['wall']:8.2f} {cell['whole_cpu']:12.2f} {cell['peak_mb']:8.0f}"
        print(f"  {label:22s} {figures} {cell['error']:7.4f} {cell['cpu'] / first:7.1f}", flush=True)


_SETTINGS = ("epsilon", "delta", "rounds", "megabytes", "iterations", "seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tables.TABLES, default=tables.TABLES)
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--python", nargs="*", default=[], metavar="LIBRARY=INTERPRETER")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--triples", type=int, default=64, help="random triples of the workload")
    parser.add_argument("--megabytes", type=float, default=1_000_000 / 2**17, help="cells take 8 bytes")
    parser.add_argument("--iterations", type=int, default=1000, help="of mbi's mirror descent after each round")
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of a run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pythons = dict(one.split("=", 1) for one in arguments.python)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tables:
            why = tables.missing(name)
            if why:
                print(f"\n{name}: skipped, {why}")
            else:
                compare(name, arguments, pythons, Path(folder))


if __name__ == "__main__":
    main()
