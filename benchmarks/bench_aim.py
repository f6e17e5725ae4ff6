"""Whole central AIM on both inference engines, side by side in one run.

Adult (from $FEDSYN_DATA or OpenML), 32 bins, 64 random three-way marginals, T = 10, epsilon = 1. Both engines run the
same mechanism through the same protocol with the same seed; `mbi` fits with its own mirror descent and the number of
iterations of FLAIM's code (100 after each round, 1,000 at the end), the native engine with the mechanism's defaults.
The ratio is of CPU seconds and of wall seconds of the whole run, partition and evaluation included.

`--engine native` runs one engine alone; `--rounds` shortens.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from fedsyn.loading import load_config
from fedsyn.runs.engines import run

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "aim.yaml"


def measure(engine: str, rounds: int, source: str) -> tuple[float, float, dict[str, float]]:
    name = "experiments.mbi_engine:Aim" if engine == "mbi" else "aim"
    settings = [f"mechanism.name={name}", f"mechanism.rounds={rounds}", f"data.source={source}"]
    if engine == "mbi":
        settings += ["inference.iterations=100", "inference.final_iterations=1000"]
    config = load_config(CONFIG, settings)
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = run(config, Path(folder) / "out")
        return time.perf_counter() - wall, time.process_time() - cpu, metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--engine", choices=("native", "mbi", "both"), default="both")
    parser.add_argument("--source", default="adult")
    arguments = parser.parse_args()
    measure("native", 1, arguments.source)  # imports and file caches are nobody's cost
    engines = ("native", "mbi") if arguments.engine == "both" else (arguments.engine,)
    results = {}
    print(f"central AIM on {arguments.source}, T = {arguments.rounds}")
    for engine in engines:
        wall, cpu, metrics = results[engine] = measure(engine, arguments.rounds, arguments.source)
        error, nll = metrics["workload_error"], metrics["nll"]
        print(f"{engine:>7}: wall {wall:7.2f} s, CPU {cpu:7.2f} s, workload error {error:.4f}, nll {nll:.3f}")
    if len(results) == 2:
        ratios = [mbi / native for mbi, native in zip(results["mbi"][:2], results["native"][:2], strict=True)]
        print(f"native is {ratios[0]:.0f} times faster (wall), {ratios[1]:.0f} times (CPU)")


if __name__ == "__main__":
    main()
