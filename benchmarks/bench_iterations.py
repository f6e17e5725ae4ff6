"""How many iterations a fit should get: workload error and nll of aim and augflaim for several fixed numbers.

The setting is configs/adult_flaim.yaml (64 random 3-way marginals, T = 10, epsilon = 1). The baseline of the same run
is each mechanism's own default. A fit that is stopped early is regularised: on noisy marginals of a sample of the
clients (augflaim) that helps both figures, on noisy marginals of every row (aim) it trades workload error for
likelihood. Skipped, with a reason, where the table is absent.

    python benchmarks/bench_iterations.py [--seeds 3] [--clients 100] [--mechanism augflaim ...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from fedsyn.loading import load_config
from fedsyn.runs.engines import run

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "adult_flaim.yaml"
ITERATIONS: dict[str, tuple[int | None, ...]] = {
    "augflaim": (None, 8, 12, 20, 30, 50),
    "aim": (None, 20, 30, 50, 100, 500),
}
# The yardstick has one data holder: no cohorts, no partition.
SETTINGS = {"augflaim": (), "aim": ("federation.sampling_rate=1.0",)}


def measure(mechanism: str, iterations: int | None, seed: int, clients: int) -> dict[str, float]:
    """Metrics of one run, with its CPU seconds; None is the mechanism's own number of iterations."""
    sets = [f"mechanism.name={mechanism}", f"runtime.seed={seed}", f"federation.clients={clients}"]
    if iterations is not None:
        sets += [f"inference.iterations={iterations}", f"inference.final_iterations={iterations}"]
    config = load_config(CONFIG, [*sets, *SETTINGS[mechanism]])
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        metrics = run(config, Path(folder) / "out")
    return metrics | {"cpu": time.process_time() - start}


def table(mechanism: str, seeds: int, clients: int) -> None:
    measure(mechanism, None, 0, clients)  # imports, and the partition's cache, are not what is measured
    print(f"{mechanism}: mean (sample sd) of {seeds} seeds; CPU seconds are the median")
    print("  iterations | workload error | nll | CPU s")
    for iterations in ITERATIONS[mechanism]:
        runs = [measure(mechanism, iterations, seed, clients) for seed in range(seeds)]
        cells = ["default" if iterations is None else str(iterations)]
        for name, digits in (("workload_error", 3), ("nll", 2)):
            values = [one[name] for one in runs]
            spread = statistics.stdev(values) if seeds > 1 else 0.0
            cells.append(f"{statistics.mean(values):.{digits}f} ({spread:.{digits}f})")
        cells.append(f"{statistics.median(one['cpu'] for one in runs):.1f}")
        print("  " + " | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--mechanism", nargs="+", choices=sorted(ITERATIONS), default=sorted(ITERATIONS, reverse=True))
    arguments = parser.parse_args()
    if not (Path(os.environ.get("FEDSYN_DATA", "")) / "adult_flaim.csv.gz").is_file():
        print("skipped: FEDSYN_DATA does not name a folder that holds adult_flaim.csv.gz")
        return
    for mechanism in arguments.mechanism:
        table(mechanism, arguments.seeds, arguments.clients)


if __name__ == "__main__":
    main()
