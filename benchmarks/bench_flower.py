"""Where the processors' seconds of a run under Flower's simulation engine go: by process, and by whose code runs.

The run is configs/flwr.yaml on a SuperLink of its own, as `flwr run .` has it. Every process is measured by the system;
in Flower's simulation process and in Ray's actors a thread also looks fifty times a second whose code uses them
(benchmarks/sampler), which costs some of what it measures. What those two take outside of Python's threads is a row of
its own: Ray's threads, the start of Python, and the sampler.

    python benchmarks/bench_flower.py --nodes 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_ray import bury, descendants
from benchmarks.flower_engine import run_simulation

ROOT = Path(__file__).resolve().parents[1]
OWNERS = ("fedsyn", "imports by fedsyn", "imports by others", "Flower", "Ray", "other")
SAMPLED = ("simulation", "actor")
#: Part of a command line -> what the process belongs to; the first that fits. This program is what types `flwr run`.
PROCESSES = {"ray/": "Ray's services", "ray::": "Ray's services", "flower-super": "SuperLink", "": "`flwr`"}


@dataclass
class Measured:
    """Processor seconds of a run.

    Attributes:
        messages: how many were sent.
        sampled: kind of process -> whose code -> seconds of Python's threads.
        processes: kind of a sampled process, or what another one belongs to -> all its seconds.
    """

    messages: int
    sampled: dict[str, dict[str, float]]
    processes: dict[str, float]


def one_run(nodes: int, out: Path) -> None:
    """The run itself, in the process that is measured."""
    result = out / "metrics.json"
    log = run_simulation(ROOT, {"out": str(out)}, nodes=nodes, client_cpus=1, poll=result.exists)
    if not result.exists():
        raise SystemExit(f"Flower's engine left no result:\n{log}")


def measured(nodes: int, folder: Path) -> Measured:
    """Returns the CPU seconds of all processes of a run, and of the sampled ones by whose code ran."""
    paths = [str(Path(__file__).parent / "sampler"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"SAMPLES": str(folder), "PYTHONPATH": os.pathsep.join(paths), "RAY_worker_niceness": "0"}
    out, used, commands = folder / "run", dict[int, int](), dict[int, str]()
    command = [sys.executable, __file__, "--nodes", str(nodes), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | settings)
    while process.poll() is None:
        descendants(used)
        read_commands(commands, used)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(process.stderr.read().decode()[-3000:] if process.stderr else "the run failed")
    while descendants(used):
        bury()
        time.sleep(0.2)
    tick = os.sysconf("SC_CLK_TCK")
    sampled, kinds = {kind: dict.fromkeys(OWNERS, 0.0) for kind in SAMPLED}, dict[int, str]()
    for file in folder.glob("*-*.json"):
        kind, _, pid = file.stem.partition("-")
        for owner, ticks in json.loads(file.read_text()).items():
            sampled[kind][owner] += ticks / tick
        kinds[int(pid)] = kind
    processes = defaultdict[str, float](float)
    for number, ticks in used.items():
        processes[kinds.get(number) or owner_of(commands.get(number, ""))] += ticks / tick
    lines = (out / "measured.jsonl").read_text(encoding="utf-8").splitlines()
    return Measured(sum(json.loads(line)["messages"] for line in lines), sampled, processes)


def read_commands(commands: dict[int, str], processes: Iterable[int]) -> None:
    """Notes the command line of each process that is alive."""
    for number in processes:
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
            commands[number] = line or commands.get(number, "")


def owner_of(command: str) -> str:
    return next(owner for part, owner in PROCESSES.items() if part in command)


def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-flower-") as folder:
        run = measured(nodes, Path(folder))
    total, a_message = sum(run.processes.values()), 1000 / run.messages
    print(f"{nodes} SuperNodes, {run.messages:,} messages, {total:.1f} CPU s, {a_message * total:.1f} ms a message\n")
    print("| CPU s of | simulation process | Ray's actors | other processes | ms a message |\n|---|---|---|---|---|")
    rows = {owner: [run.sampled[kind][owner] for kind in SAMPLED] for owner in OWNERS}
    rows["outside of Python's threads"] = [run.processes[kind] - sum(run.sampled[kind].values()) for kind in SAMPLED]
    for name, seconds in rows.items():
        cells = " | ".join(f"{each:.1f}" for each in seconds)
        print(f"| {name} | {cells} | | {a_message * sum(seconds):.2f} |")
    for name in dict.fromkeys(PROCESSES.values()):
        print(f"| {name} | | | {run.processes[name]:.1f} | {a_message * run.processes[name]:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out is not None:
        one_run(arguments.nodes, arguments.out)
    else:
        main(arguments.nodes)
