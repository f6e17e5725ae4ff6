"""How many iterations a fit should get: workload error and nll of augflaim and aim for several fixed numbers.

The setting is configs/adult_flaim.yaml (64 random 3-way marginals, T = 10, epsilon = 1). The baseline of the same run
is each mechanism's own default, in bold. A fit that is stopped early is regularised: on noisy marginals of a sample of
the clients (augflaim) that helps both figures, on noisy marginals of every row (aim) it trades workload error for
likelihood. Prints the page's table, mean (sample sd) over the seeds. Skipped, with a reason, where the table is absent.

    python benchmarks/bench_iterations.py [--seeds 3] [--clients 100] [--source adult_flaim]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from fedsyn.loading import load_config
from fedsyn.registry import contract_class
from fedsyn.runs.engines import run

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "adult_flaim.yaml"
ITERATIONS = {"augflaim": (8, 12, 20, 30, 50), "aim": (20, 30, 50, 100, 500)}
# The yardstick has one data holder: no cohorts, no partition.
SETTINGS = {"augflaim": (), "aim": ("federation.sampling_rate=1.0",)}


def measured(mechanism: str, iterations: int, arguments: argparse.Namespace) -> list[str]:
    """The number, the workload error and the nll, as the table has them."""
    sets = [f"mechanism.name={mechanism}", f"federation.clients={arguments.clients}", *SETTINGS[mechanism]]
    sets += [f"data.source={arguments.source}"]
    sets += [f"inference.iterations={iterations}", f"inference.final_iterations={iterations}"]
    runs = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run(load_config(CONFIG, [*sets, f"runtime.seed={seed}"]), Path(folder) / "out"))
    default = contract_class(mechanism).Options.model_fields["iterations"].default
    cells = [f"**{iterations}**" if iterations == default else str(iterations)]
    for name, digits in (("workload_error", 3), ("nll", 2)):
        values = [one[name] for one in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.mean(values):.{digits}f} ({spread:.{digits}f})")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--source", default="adult_flaim")
    arguments = parser.parse_args()
    if not (Path(os.environ.get("FEDSYN_DATA", "")) / f"{arguments.source}.csv.gz").is_file():
        print(f"skipped: FEDSYN_DATA does not name a folder that holds {arguments.source}.csv.gz")
        return
    heads = [f"iterations | `{mechanism}` workload error | nll" for mechanism in ITERATIONS]
    print(f"| {' | | '.join(heads)} |\n|---|---|---|---|---|---|---|", flush=True)
    for numbers in zip(*ITERATIONS.values(), strict=True):
        cells = [measured(name, number, arguments) for name, number in zip(ITERATIONS, numbers, strict=True)]
        print(f"| {' | | '.join(' | '.join(one) for one in cells)} |", flush=True)


if __name__ == "__main__":
    main()
