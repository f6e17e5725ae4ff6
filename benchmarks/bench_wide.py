"""Wide tables: whole runs of 30, 60 and 200 columns (500 with --widest), and which cliques fit beside a tree for each.

    python benchmarks/bench_wide.py [--columns 30 60 200] [--mechanisms aim augflaim ...] [--widest] [--rows 50000]

The data: 50,000 rows in 20 clients (central mechanisms: one). A column has 2 to 8 values, every twentieth 16 to 32;
four in five follow the sum of one or two of the ten columns before them with probability 0.6. All pairs are the
workload, of 500 columns 20,000 random ones (docs/mechanisms.md, "Wide tables"). Each run is a process of its own with
one thread: its CPU seconds and peak memory are those of `fedsyn run` from reading the CSV to the report. The page's
table is printed last.

The alternative of the same run is the rule that `Capacity.which_fit` replaces: one junction tree per candidate. It is
asked for one round with as many measured pairs as a run ends with, about every candidate or, of more than 2,000, about
2,000 of them (its time is then scaled); the answers are compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.inference_suite.cells import LAUNCHER
from fedsyn import yamlio
from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Domain
from fedsyn.inference import model_size, pass_cost
from fedsyn.inference.capacity import Capacity

ROWS, CLIENTS = 50_000, 20
CENTRAL = ("aim", "privsyn")
MECHANISMS = ("aim", "augflaim", "sketch_aim", "distributed_aim", "privsyn", "fed_privsyn", "ada_fed_privsyn")
_ASKED = 2_000


def generate(columns: int, rows: int, seed: int = 0) -> tuple[npt.NDArray[np.int64], list[int]]:
    """(rows, columns) codes with planted dependencies, and the number of values of each column."""
    rng = np.random.default_rng([seed, columns])
    sizes = rng.integers(2, 9, columns)
    sizes[::20] = rng.integers(16, 33, len(sizes[::20]))
    codes = np.empty((rows, columns), np.int64)
    for j, size in enumerate(sizes):
        values = rng.choice(size, rows, p=rng.dirichlet(np.full(size, 0.8)))
        if j and rng.random() < 0.8:
            near = np.arange(max(0, j - 10), j)
            parents = rng.choice(near, size=min(j, 1 + int(rng.random() < 0.3)), replace=False)
            follow = rng.integers(0, size, 64)[codes[:, parents].sum(axis=1) % 64]
            values = np.where(rng.random(rows) < 0.6, follow, values)
        codes[:, j] = values
    return codes, [int(size) for size in sizes]


def write_table(folder: Path, columns: int, rows: int = ROWS) -> Domain:
    """`table.csv` and `schema.yaml` in a folder."""
    codes, sizes = generate(columns, rows)
    names = tuple(f"c{j:03d}" for j in range(columns))
    np.savetxt(folder / "table.csv", codes, fmt="%d", delimiter=",", header=",".join(names), comments="")
    kinds = {n: {"kind": "categorical", "categories": list(range(size))} for n, size in zip(names, sizes, strict=True)}
    (folder / "schema.yaml").write_text(yamlio.dumps({"columns": kinds}), encoding="utf-8")
    return Domain(names, tuple(sizes))


def document(folder: Path, mechanism: str, columns: int) -> dict[str, object]:
    """The configuration of a run on the table in a folder."""
    return {
        "mechanism": {"name": mechanism},
        "data": {"source": str(folder / "table.csv"), "schema": str(folder / "schema.yaml")},
        "federation": {"clients": 1 if mechanism in CENTRAL else CLIENTS},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": None if columns <= 200 else 20_000},
        "aggregation": {"protocol": "plain", "noise": "server"},
        "evaluation": ["workload_error"],
        "runtime": {"seed": 0},
    }


def run_one(folder: Path, mechanism: str, columns: int) -> None:
    """The child process: one run; prints CPU seconds, peak MB and the workload error."""
    from fedsyn.loading import parse_config
    from fedsyn.runs.engines import run

    with tempfile.TemporaryDirectory() as out:
        metrics = run(parse_config(document(folder, mechanism, columns)), Path(out) / "out")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(time.process_time(), peak, metrics["workload_error"])


def measured(folder: Path, mechanism: str, columns: int) -> tuple[float, float, float]:
    """CPU seconds, peak megabytes and workload error of a run in a process of its own."""
    command = [*LAUNCHER, sys.executable, __file__, "--child", mechanism, str(folder), "--columns", str(columns)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{mechanism} on {columns} columns failed:\n{done.stderr[-2000:]}")
    cpu, peak, error = map(float, done.stdout.split()[-3:])
    return cpu, peak, error


def by_whole_trees(domain: Domain, held: Sequence[Clique], clique: Clique, node: InferenceNode) -> bool:
    """The rule that `Capacity.which_fit` replaces: the tree of everything measured and this clique is built."""
    if any(set(clique) <= set(q) for q in held):
        return True
    cliques = [*held, clique]
    return model_size(domain, cliques) <= node.max_cells and pass_cost(domain, cliques) <= node.max_message_passing_cost


def compare_rules(domain: Domain) -> None:
    """One round of both rules, with a fifth as many measured pairs as columns and with half as many."""
    pairs, rng, node = list(combinations(domain.attributes, 2)), np.random.default_rng(0), InferenceNode()
    for share in (0.2, 0.5):
        held = Capacity(domain, node)
        held.add([pairs[i] for i in rng.choice(len(pairs), int(share * len(domain)), replace=False)])
        start = time.process_time()
        fitting = set(held.which_fit(pairs))
        new = time.process_time() - start
        asked = sorted(rng.permutation(len(pairs))[:_ASKED].tolist())
        start = time.process_time()
        answers = [by_whole_trees(domain, held.cliques, pairs[i], node) for i in asked]
        old = (time.process_time() - start) * len(pairs) / len(asked)
        equal = all((i in fitting) == answer for i, answer in zip(asked, answers, strict=True))
        print(
            f"  which of {len(pairs):,} pairs fit beside {len(held.cliques)}: {new:.2f} s; a tree for each: "
            f"{old:.1f} s, {old / new:.0f} times as long; answers {'equal' if equal else 'DIFFERENT'}"
        )
        if not equal:
            raise SystemExit("the rules differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[30, 60, 200])
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS), choices=MECHANISMS)
    parser.add_argument("--widest", action="store_true", help="500 columns as well")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_one(Path(arguments.child[1]), arguments.child[0], arguments.columns[0])
        return
    lines = [f"| columns | {' | '.join(arguments.mechanisms)} |", "|---" * (len(arguments.mechanisms) + 1) + "|"]
    for columns in [*arguments.columns, *([500] if arguments.widest else [])]:
        cells = [str(columns)]
        with tempfile.TemporaryDirectory() as name:
            domain = write_table(Path(name), columns, arguments.rows)
            print(f"{columns} columns, {arguments.rows:,} rows, {CLIENTS} clients")
            compare_rules(domain)
            for mechanism in arguments.mechanisms:
                cpu, peak, error = measured(Path(name), mechanism, columns)
                print(f"  {mechanism:>16}: workload error {error:.4f}", flush=True)
                cells.append(f"{cpu:.1f} ({peak:,.0f} MB)")
        lines.append(f"| {' | '.join(cells)} |")
    print("", "CPU seconds, and the peak of memory:", *lines, sep="\n")


if __name__ == "__main__":
    main()
