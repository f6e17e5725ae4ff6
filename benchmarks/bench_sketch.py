"""sketch_aim: time and size of its sketches, and what each of its choices is worth (`--ablations`).

The baseline of the ablations is central AIM with either penalty, in the same run. Tables that FEDSYN_DATA does not
hold are skipped.

    python benchmarks/bench_sketch.py [--ablations] [--tables adult_flaim magic marketing shoppers] [--seeds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.sketch_aim_ablation.variant import CountSketch, Signs
from fedsyn.domain import Domain
from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from fedsyn.selection.coarse import grouping_of
from fedsyn.selection.sketches import Sketcher
from fedsyn.table.counting.workload import Candidates, random_kway
from fedsyn.table.data import load_dataset
from fedsyn.wire.sparse import encode_sparse

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "sketch_aim.yaml"
SIMPLE = (
    "aggregation.protocol=plain",
    "aggregation.noise=server",
    "federation.clients=10",
    "federation.partition=iid",
)
OURS = "mechanism.name=sketch_aim"
VARIANT = "mechanism.name=experiments.sketch_aim_ablation.variant:Variant"
KINDS: dict[str, type[Sketcher]] = {"groups": Sketcher, "count": CountSketch, "signs": Signs}
CENTRAL = ("mechanism.name=aim", "aggregation.protocol=plain", "aggregation.noise=server")
ABLATIONS: tuple[tuple[str, ...], ...] = (
    (*CENTRAL, "mechanism.penalty=cells"),
    (*CENTRAL, "mechanism.penalty=effective"),
    (OURS,),
    # What the sketches are
    (VARIANT, "mechanism.sketch=groups"),
    (VARIANT, "mechanism.sketch=groups", "mechanism.sizes=[2]"),
    (VARIANT, "mechanism.sketch=count"),
    (VARIANT, "mechanism.sketch=signs", "mechanism.width=16"),
    (VARIANT, "mechanism.sizes=[2]"),
    (VARIANT, "mechanism.sizes=[3]"),
    (OURS, "mechanism.width=16"),
    (OURS, "mechanism.width=36"),
    (OURS, "mechanism.width=100"),
    # How the budget is divided
    (OURS, "mechanism.sketch_share=0.02"),
    (OURS, "mechanism.sketch_share=0.05"),
    (OURS, "mechanism.sketch_share=0.2"),
    (OURS, "mechanism.one_way_share=0.2"),
    (OURS, "mechanism.one_way_share=0.4"),
    # What is measured
    (VARIANT, "mechanism.even=true"),
    (OURS, "mechanism.rounds=2"),
    (OURS, "mechanism.rounds=10"),
    # How it is fitted
    (OURS, "inference.shrinkage=0"),
    (OURS, "inference.shrinkage=50"),
    (OURS, "inference.stop_at_noise_level=false"),
    (OURS, "inference.stop_at_noise_level=false", "inference.iterations=25", "inference.final_iterations=25"),
    (*CENTRAL, "mechanism.penalty=effective", "mechanism.iterations=25", "mechanism.final_iterations=25"),
    (*CENTRAL, "mechanism.penalty=effective", "mechanism.rounds=20"),
)


def fastest(function: Callable[[], object], repeats: int = 5) -> float:
    """Least milliseconds of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def kernels(domain: Domain, codes: np.ndarray) -> None:
    """Time and bytes of the sketches of a table's candidates, for one client and for the server."""
    candidates = Candidates.of(random_kway(domain, 3, 64, np.random.default_rng(0)), domain)
    pairs = tuple(q for q in candidates.cliques if len(q) == 2)
    mass = {name: np.bincount(codes[:, axis], minlength=domain[name]) for axis, name in enumerate(domain)}
    marginals = [np.outer(mass[a], mass[b]) / len(codes) for a, b in pairs]
    print(f"{len(pairs)} pairs, {sum(m.size for m in marginals):,} cells; milliseconds; bytes that a client sends\n")
    print("| sketch | k | entries | client, 40 rows | client, all rows | server | bytes, 40 rows | masked |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for width in (16, 36, 64, 256):
            grouping = grouping_of(domain, pairs, width, mass) if kind == "groups" else {}
            sketcher = KINDS[kind](domain, pairs, width, grouping)
            few = sketcher.of_rows(codes[:40])
            small = fastest(lambda s=sketcher: s.of_rows(codes[:40]))
            large = fastest(lambda s=sketcher: s.of_rows(codes), 2)
            server = fastest(lambda s=sketcher: [s.of_marginal(i, m) for i, m in enumerate(marginals)], 2)
            sent = sum(a.nbytes for a in encode_sparse(np.flatnonzero(few), few[few != 0]))
            cells = (f"{sketcher.length:,}", f"{small:.2f}", f"{large:.0f}", f"{server:.1f}", f"{sent:,}")
            print(f"| {kind} | {width} | " + " | ".join(cells) + f" | {8 * sketcher.length:,} |", flush=True)


def measure(sets: tuple[str, ...], table: str, seed: int) -> dict[str, float]:
    """Metrics of one run, with its CPU seconds."""
    config = load_config(CONFIG, [*SIMPLE, f"data.source={table}", *sets, f"runtime.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        metrics = run(config, Path(folder) / "out")
    return metrics | {"cpu": time.process_time() - start}


def ablations(tables: list[str], seeds: int) -> None:
    """One option at a time, mean (sample sd) of the workload error, and the mean nll."""
    print(f"\nworkload error, mean (sample sd) of {seeds} seeds / mean nll\n")
    print("| setting | " + " | ".join(tables) + " | CPU s |\n" + "|---" * (len(tables) + 2) + "|")
    for sets in ABLATIONS:
        cells, cpu = [" ".join(f"`{item.removeprefix('mechanism.')}`" for item in sets)], []
        for table in tables:
            runs = [measure(sets, table, seed) for seed in range(seeds)]
            errors = [one["workload_error"] for one in runs]
            spread = statistics.stdev(errors) if seeds > 1 else 0.0
            nll = statistics.mean(one["nll"] for one in runs)
            cells.append(f"{statistics.mean(errors):.4f} ({spread:.4f}) / {nll:.2f}")
            cpu += [one["cpu"] for one in runs]
        print("| " + " | ".join(cells) + f" | {statistics.median(cpu):.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ablations", action="store_true", help="run the ablations, not the kernels")
    parser.add_argument("--tables", nargs="+", default=["adult_flaim", "magic", "marketing", "shoppers"])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("FEDSYN_DATA", ""))
    tables = [name for name in arguments.tables if (folder / f"{name}.csv.gz").is_file()]
    if not tables:
        print("skipped: FEDSYN_DATA does not name a folder that holds one of the tables")
    elif arguments.ablations:
        ablations(tables, arguments.seeds)
    else:
        dataset = load_dataset(tables[0])
        print(f"{tables[0]}: ", end="")
        kernels(dataset.schema.domain, dataset.encode())


if __name__ == "__main__":
    main()
