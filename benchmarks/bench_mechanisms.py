"""Every mechanism, and the settings that matter, in the setting of configs/adult_flaim.yaml (epsilon = 1).

The baseline of the same run is central AIM. Skipped, with a reason, where the table is absent.

    python benchmarks/bench_mechanisms.py [--seeds 3]
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
NAIVE_BAYES = "mechanism={name: fed_naive_bayes, rounds: 10}"  # without the configuration's measure_fraction
AIM = ("mechanism.name=aim", "federation.sampling_rate=1.0")
DISTAIM = ("mechanism.name=distaim", "mechanism.iterations=12", "mechanism.final_iterations=12")
SETTINGS: tuple[tuple[str, ...], ...] = (
    AIM,
    (*AIM, "mechanism.rounds=null"),
    (*AIM, "mechanism.name=experiments.variants.aim:PrintedAim", "mechanism.rounds=null"),
    DISTAIM,
    (*DISTAIM, "aggregation.noise=distributed"),
    (*DISTAIM, "mechanism.rounds=null"),
    ("mechanism.name=augflaim",),
    ("mechanism.name=augflaim", "mechanism.rounds=null"),
    ("mechanism.name=experiments.variants.flaim:AugFlaimVariant", "mechanism.totals=marginal"),
    ("mechanism.name=augflaim", "mechanism.local_rounds=3"),
    ("mechanism.name=augflaim", "privacy.client_sizes=private"),
    ("mechanism.name=augflaim", "aggregation.noise=local"),
    ("mechanism.name=augflaim_oracle",),
    ("mechanism.name=naive_flaim",),
    ("mechanism.name=flaim_random",),
    (NAIVE_BAYES,),
    ("mechanism.name=augflaim", "federation.sampling_rate=1.0"),
    (NAIVE_BAYES, "federation.sampling_rate=1.0"),
    ("mechanism.name=augflaim", "privacy.epsilon=5"),
    (NAIVE_BAYES, "privacy.epsilon=5"),
)


def measure(sets: tuple[str, ...], seed: int) -> dict[str, float]:
    """Metrics of one run, with its CPU seconds."""
    config = load_config(CONFIG, [*sets, f"runtime.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        metrics = run(config, Path(folder) / "out")
    return metrics | {"cpu": time.process_time() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if not (Path(os.environ.get("FEDSYN_DATA", "")) / "adult_flaim.csv.gz").is_file():
        print("skipped: FEDSYN_DATA does not name a folder that holds adult_flaim.csv.gz")
        return
    measure(("mechanism.name=augflaim",), 0)  # imports, and the partition's cache, are not what is measured
    print(f"mean (sample sd) of {arguments.seeds} seeds; CPU seconds are the median\n")
    print("| setting | workload error | nll | CPU s |\n|---|---|---|---|")
    for sets in SETTINGS:
        runs = [measure(sets, seed) for seed in range(arguments.seeds)]
        cells = [" ".join(f"`{item}`" for item in sets)]
        for name, digits in (("workload_error", 3), ("nll", 2)):
            values = [one[name] for one in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.{digits}f} ({spread:.{digits}f})")
        cells.append(f"{statistics.median(one['cpu'] for one in runs):.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
