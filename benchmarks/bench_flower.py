"""Where the processors' seconds of a run under Flower's simulation engine go: by process, and by whose code runs.

The run is configs/flwr.yaml on a SuperLink of its own, as `flwr run .` has it. Every process is measured by the system;
in Flower's simulation process and in Ray's actors a thread also looks fifty times a second whose code uses them
(benchmarks/sampler), which costs some of what it measures.

    python benchmarks/bench_flower.py --nodes 200
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.bench_ray import bury, descendants
from benchmarks.flower_engine import run_simulation

ROOT = Path(__file__).resolve().parents[1]
OWNERS = ("fedsyn", "imports by fedsyn", "imports by others", "Flower", "Ray", "other")


def one_run(nodes: int, out: Path) -> None:
    """The run itself, in the process that is measured."""
    result = out / "metrics.json"
    log = run_simulation(ROOT, {"out": str(out)}, nodes=nodes, client_cpus=1, poll=result.exists)
    if not result.exists():
        raise SystemExit(f"Flower's engine left no result:\n{log}")


def measured(nodes: int, folder: Path) -> tuple[float, int, dict[str, Counter[str]]]:
    """CPU seconds of all processes, messages, and the seconds of each kind of sampled process by whose code ran."""
    paths = [str(Path(__file__).parent / "sampler"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"SAMPLES": str(folder), "PYTHONPATH": os.pathsep.join(paths), "RAY_worker_niceness": "0"}
    out, used = folder / "run", dict[int, int]()
    command = [sys.executable, __file__, "--nodes", str(nodes), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | settings)
    while process.poll() is None:
        descendants(used)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(process.stderr.read().decode()[-3000:] if process.stderr else "the run failed")
    while descendants(used):
        bury()
        time.sleep(0.2)
    tick = os.sysconf("SC_CLK_TCK")
    kinds = {"simulation": Counter[str](), "actor": Counter[str]()}
    for file in folder.glob("*-*.json"):
        kinds[file.name.partition("-")[0]] += Counter(json.loads(file.read_text()))
    shares = {kind: Counter({owner: n / tick for owner, n in counts.items()}) for kind, counts in kinds.items()}
    lines = (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(used.values()) / tick, sum(json.loads(line)["messages"] for line in lines), shares


def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-flower-") as folder:
        total, messages, kinds = measured(nodes, Path(folder))
    sampled = sum(kinds.values(), Counter[str]())
    print(f"{nodes} SuperNodes, {messages:,} messages, {total:.1f} CPU s, {1000 * total / messages:.1f} ms a message\n")
    print("| CPU s of | simulation process | Ray's actors | ms a message |\n|---|---|---|---|")
    for owner in OWNERS:
        cells = [f"{kinds[kind][owner]:.1f}" for kind in ("simulation", "actor")]
        print(f"| {owner} | {' | '.join(cells)} | {1000 * sampled[owner] / messages:.2f} |")
    rest = total - sampled.total()
    print(f"| SuperLink, Ray's own processes, `flwr` | {rest:.1f} | | {1000 * rest / messages:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out is not None:
        one_run(arguments.nodes, arguments.out)
    else:
        main(arguments.nodes)
