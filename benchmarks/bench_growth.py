"""Growth laws: CPU seconds and memory of a whole run against rows, columns, values, clients and rounds.

Each axis is measured at five sizes, one fresh process per size, everything else fixed: the default mechanism and
workload, once where all columns share one factor (correlation 0.5) and once where they are independent. The slope is
that of the logarithm: 1 is linear, 2 quadratic. The named alternative is the law: `--check` fails where a slope of CPU
time or of memory is larger than its bound by more than the tolerance, never because of a time or a size.

Memory is the process' peak beyond what it has before the run.

    python benchmarks/bench_growth.py                          # all axes
    python benchmarks/bench_growth.py --axes clients,rounds --mechanism distributed_aim
    python benchmarks/bench_growth.py --check --sizes 3        # what the tests run: smaller and fewer sizes
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from benchmarks.inference_suite.cells import LAUNCHER
from fedsyn import yamlio

CHILD = """
import json, resource, sys, tempfile, time
from fedsyn.loading import parse_config
from fedsyn.runs.engines import run

config = parse_config(json.loads(sys.argv[1]))
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tempfile.TemporaryDirectory() as folder:
    start = time.process_time()
    run(config, folder + "/out")
    cpu = time.process_time() - start
print(json.dumps([cpu, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024]))
"""


@dataclass(frozen=True)
class Axis:
    """One thing that grows.

    Attributes:
        sizes: at which it is measured.
        law: largest slope of CPU time that is as it should be.
        why: the reason for it.
        memory: largest slope of memory.
        beside: sizes that are fixed otherwise than in `BASE`.
        grows: what grows, if the axis is not called by it.
    """

    sizes: tuple[int, ...]
    law: float
    why: str
    memory: float = 1.0
    beside: Mapping[str, int] = field(default_factory=dict)
    grows: str = ""


AXES = {
    "rows": Axis((50_000, 100_000, 200_000, 400_000, 800_000), 1.0, "every row is encoded, counted and sampled once"),
    "columns": Axis((10, 20, 40, 80, 160), 2.0, "up to 1,000 triples and their pairs are candidates"),
    "values": Axis((4, 8, 16, 32, 64), 2.0, "a pair has as many cells as values squared"),
    "values of 20 columns": Axis(
        (8, 16, 32, 64, 100), 2.0, "triples are candidates up to a size", 0.5, {"columns": 20}, "values"
    ),
    "clients": Axis((100, 200, 400, 800, 1600), 1.0, "every client is asked as often"),
    "rounds": Axis((4, 8, 16, 32, 64), 1.5, "each round fits all measurements so far"),
    "values of one column": Axis((1_000, 4_000, 16_000, 64_000, 256_000), 1.0, "its groups are cut in one pass"),
}
BASE = {"rows": 20_000, "columns": 10, "values": 8, "clients": 10, "rounds": 5}
TOLERANCE = (
    0.35  # of a slope over a range of 4: a factor of 1.6 between the ends, more than a busy machine adds to CPU time
)


#: What share of each column's variance is that of one factor of all columns.
TABLES = {"one factor": 0.5, "independent": 0.0}


def write_table(folder: Path, sizes: dict[str, int], shared: float) -> None:
    """`table.csv` and `schema.yaml`: columns of equally frequent values."""
    rng = np.random.default_rng(0)
    factor, own = rng.normal(size=(sizes["rows"], 1)), rng.normal(size=(sizes["rows"], sizes["columns"]))
    values = np.full(sizes["columns"], sizes["values"])
    values[0] = sizes.get("values of one column", sizes["values"])
    codes = np.floor(ndtr(math.sqrt(shared) * factor + math.sqrt(1.0 - shared) * own) * values)
    names = [f"c{i}" for i in range(sizes["columns"])]
    np.savetxt(folder / "table.csv", codes, fmt="%d", delimiter=",", header=",".join(names), comments="")
    kinds = {
        n: {"kind": "categorical", "categories": list(range(k))} for n, k in zip(names, values.tolist(), strict=True)
    }
    (folder / "schema.yaml").write_text(yamlio.dumps({"columns": kinds}), encoding="utf-8")


def config_of(mechanism: str, protocol: str, folder: Path, sizes: dict[str, int]) -> dict[str, object]:
    return {
        "mechanism": {"name": mechanism, "rounds": sizes["rounds"]},
        "data": {"source": str(folder / "table.csv"), "schema": str(folder / "schema.yaml")},
        "federation": {"clients": sizes["clients"], "partition": "iid"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "aggregation": {"protocol": protocol, "noise": "distributed"},
        "evaluation": [],
        "runtime": {"engine": "inprocess", "seed": 0},
    }


def measured(
    mechanism: str, protocol: str, sizes: dict[str, int], shared: float, **nodes: object
) -> tuple[float, float]:
    """CPU seconds of the run, and the megabytes that it took beyond an idle process.

    `nodes` are further ones of its configuration.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder), sizes, shared)
        return run(config_of(mechanism, protocol, Path(folder), sizes) | nodes)


def run(config: dict[str, object]) -> tuple[float, float]:
    """The same of a configuration."""
    command = [*LAUNCHER, sys.executable, "-c", CHILD, json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"a run failed:\n{done.stderr[-2000:]}")
    cpu, megabytes = json.loads(done.stdout.splitlines()[-1])
    return cpu, megabytes


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Least squares on logarithms."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(value, 1e-3)) for value in values]
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--mechanism", default="sketch_aim")
    parser.add_argument("--protocol", default="plain")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--sizes", type=int, default=5, help="the first of each axis")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a slope is steeper than its law")
    arguments = parser.parse_args()
    print(
        f"{arguments.mechanism}, {arguments.protocol} sums; {platform.machine()}, Python {platform.python_version()}."
    )
    print("Fixed unless it grows: " + ", ".join(f"{value:,} {name}" for name, value in BASE.items()) + ".\n")
    print(
        "| grows | columns | sizes | CPU s | slope | at most | memory, MB | slope | at most |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    steep = []
    for name, table in product(arguments.axes.split(","), arguments.tables.split(",")):
        axis, shared = AXES[name], TABLES[table]
        sizes = axis.sizes[: arguments.sizes]
        fixed = {**BASE, **axis.beside}
        cases = [{**fixed, axis.grows or name: size} for size in sizes]
        runs = [measured(arguments.mechanism, arguments.protocol, case, shared) for case in cases]
        time, memory = slope(sizes, [cpu for cpu, _ in runs]), slope(sizes, [mb for _, mb in runs])
        if time > axis.law + TOLERANCE:
            steep.append(f"{name}, {table}: {time:.2f}, at most {axis.law:g} ({axis.why})")
        if memory > axis.memory + TOLERANCE:
            steep.append(f"memory by {name}, {table}: {memory:.2f}, at most {axis.memory:g}")
        cells = [
            name,
            table,
            ", ".join(f"{size:,}" for size in sizes),
            ", ".join(f"{cpu:.2f}" for cpu, _ in runs),
            f"{time:.2f}",
        ]
        cells += [f"{axis.law:g}", ", ".join(f"{mb:.0f}" for _, mb in runs), f"{memory:.2f}", f"{axis.memory:g}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    if arguments.check and steep:
        raise SystemExit("steeper than their law: " + "; ".join(steep))


if __name__ == "__main__":
    main()
