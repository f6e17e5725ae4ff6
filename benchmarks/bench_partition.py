"""Time of partitioners, of the heterogeneity metric and of workload error on a table the size of Adult.

Uses adult_flaim from the folder named by FEDSYN_DATA, else random codes over the same domain sizes. UMAP is
slow (a minute of CPU time) and therefore asked for: `python benchmarks/bench_partition.py --umap`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsyn.domain import Domain
from fedsyn.evaluation.inputs import EvaluationInput
from fedsyn.evaluation.real.marginals import client_heterogeneity
from fedsyn.evaluation.real.metrics import evaluate
from fedsyn.registry import partitioner as make_partitioner
from fedsyn.table.counting.workload import random_kway
from fedsyn.table.data.partition import PartitionInput

SHAPE = (85, 9, 100, 16, 7, 15, 6, 5, 2, 100, 100, 99, 42, 2)


def load() -> tuple[PartitionInput, str]:
    folder = Path(os.environ.get("FEDSYN_DATA", "."))
    if (folder / "adult_flaim.csv.gz").exists():
        import pandas as pd

        frame = pd.read_csv(folder / "adult_flaim.csv.gz")
        sizes = json.loads((folder / "adult_flaim.domain.json").read_text())
        domain = Domain(tuple(frame.columns), tuple(sizes[c] for c in frame.columns))
        return PartitionInput(frame.to_numpy().astype(np.uint8), domain, "income>50K"), "adult_flaim"
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, n, 48_842) ** 2 // n for n in SHAPE], axis=1).astype(np.uint8)
    return PartitionInput(codes, Domain(tuple(f"a{i}" for i in range(14)), SHAPE), "a13"), "random codes"


def measure(what: str, call: Callable[[], object]) -> object:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:<58} {wall:8.3f} s  {cpu:8.3f} CPU s", flush=True)
    return result


def main() -> None:
    table, source = load()
    print(f"{source}: {table.rows:,} rows, {len(table.domain)} attributes")
    workload = random_kway(table.domain, 3, 64, np.random.default_rng(0))
    for clients in (100, 1_000, 5_000):
        for name in ("iid", "quantity", "dirichlet", "subpopulation"):
            partitioner = make_partitioner(name)
            parts = measure(
                f"{name}, {clients:,} clients",
                lambda p=partitioner, k=clients: p.split(table, k, np.random.default_rng(0)),
            )
        measure(
            f"heterogeneity, {clients:,} clients, 64 three-way marginals",
            lambda parts=parts: client_heterogeneity(table.codes, table.domain, workload, parts),
        )
    half = np.random.default_rng(1).permutation(table.rows)[: table.rows // 2]
    data = EvaluationInput(
        train=table.codes,
        domain=table.domain,
        workload=workload,
        synthetic=table.codes[half],
        test=table.codes[:5_000],
        label=table.label,
    )
    measure("workload_error of a synthetic table", lambda: evaluate(["workload_error"], data))
    measure("auc, f1 and accuracy (imports included)", lambda: evaluate(["auc", "f1", "accuracy"], data))
    if "--umap" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FEDSYN_CACHE"] = folder
            clustering = make_partitioner("clustering")
            for what, clients in [
                ("nothing cached", 100),
                ("partition cached", 100),
                ("embedding cached", 50),
            ]:
                measure(
                    f"clustering, {clients} clients, {what}",
                    lambda k=clients: clustering.split(table, k, np.random.default_rng(0)),
                )


if __name__ == "__main__":
    main()
