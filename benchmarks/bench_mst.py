"""MST central and federated: workload error, likelihood, and how long a sketch should be.

Each table at each epsilon, 64 random 3-way marginals, ten even clients, a trusted server's noise. The baseline of the
same run is one-way marginals alone. `fed_mst` that measures its pairs in all cells, and (`--widths`) with sketches of a
fixed width, stands beside the derived ones. Skipped, with a reason, where FEDSYN_DATA does not hold a table.

    python benchmarks/bench_mst.py [--tables adult_flaim shoppers compas insurance] [--epsilons 0.3 1] [--seeds 3]
        [--widths]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedsyn.errors import DataError
from fedsyn.loading import load_config
from fedsyn.plugins.strategies.mst import FedMst, Floats
from fedsyn.runs.engines import run
from fedsyn.selection.scores import expected_noise

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "fed_mst.yaml"
SIMPLE = (
    "aggregation.protocol=plain",
    "aggregation.noise=server",
    "federation.clients=10",
    "federation.partition=iid",
)
SETTINGS: tuple[tuple[str, ...], ...] = (
    ("mechanism.name=fed_naive_bayes", "mechanism.rounds=1"),
    ("mechanism.name=mst",),
    ("mechanism.name=fed_mst",),
    ("mechanism.name=benchmarks.bench_mst:AllCells",),
)
WIDTHS = tuple(("mechanism.name=fed_mst", f"mechanism.width={width}") for width in (4, 9, 16, 36, 64))


class AllCells(FedMst):
    """fed_mst that measures the pairs of its tree in all cells, never in groups of values."""

    def resolutions(
        self, some: Sequence[int], distances: Floats, carried: Floats, sigma: float
    ) -> list[tuple[float, float]]:
        return [(math.inf, float(noise)) for noise in expected_noise(sigma, carried)]


def measure(settings: tuple[str, ...], seed: int) -> dict[str, float]:
    """Metrics of one run, with its CPU seconds."""
    config = load_config(CONFIG, [*SIMPLE, *settings, f"runtime.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        metrics = run(config, Path(folder) / "out")
    return metrics | {"cpu": time.process_time() - start}


def cells(settings: tuple[str, ...], seeds: int) -> str:
    runs = [measure(settings, seed) for seed in range(seeds)]
    out = []
    for name, digits in (("workload_error", 3), ("nll", 2)):
        values = [one[name] for one in runs]
        spread = statistics.stdev(values) if seeds > 1 else 0.0
        out.append(f"{statistics.mean(values):.{digits}f} ({spread:.{digits}f})")
    return " | ".join([*out, f"{statistics.median(one['cpu'] for one in runs):.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=["adult_flaim", "shoppers", "compas", "insurance"])
    parser.add_argument("--epsilons", nargs="+", default=["0.3", "1"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--widths", action="store_true", help="also fed_mst with sketches of 4 to 64 entries")
    args = parser.parse_args()
    print(f"mean (sample sd) of {args.seeds} seeds; CPU seconds are the median")
    print("table | epsilon | setting | workload error | nll | CPU s")
    for table in args.tables:
        for epsilon in args.epsilons:
            for settings in SETTINGS + (WIDTHS if args.widths else ()):
                given = (f"data.source={table}", f"privacy.epsilon={epsilon}", *settings)
                try:
                    found = cells(given, args.seeds)
                except DataError as error:
                    print(f"{table}: skipped: {error}")
                    break
                print(" | ".join([table, epsilon, ", ".join(s.split(".")[-1] for s in settings), found]), flush=True)


if __name__ == "__main__":
    main()
