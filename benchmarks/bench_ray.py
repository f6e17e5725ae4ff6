"""What a round of many clients costs on Ray: our Grid against the in-process one and against Flower's own engine.

Every engine does the same run, with one round and with three, each in a process tree of its own; a round costs half the
difference, so that starting up is not counted. CPU seconds are those of all processes, Ray's included. The results
must be the same bits.

    python benchmarks/bench_ray.py                              # half an hour, most of it Flower's engine
    python benchmarks/bench_ray.py --clients 500 --skip flower
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ENGINES = ("inprocess", "ray", "flower")
NAMES = {
    "inprocess": "in process, serial",
    "ray": "Ray, our Grid",
    "flower": "Ray, Flower's engine",
}
FEW, MANY = 1, 3  # rounds


@dataclass(frozen=True)
class Cost:
    """Seconds of the clock and of the processors, of a whole process tree."""

    wall: float
    cpu: float


def configuration(clients: int, rounds: int, engine: str) -> dict[str, object]:
    return {
        "mechanism": {"name": "augflaim", "rounds": rounds},
        "data": {
            "source": "synthfs",
            "bins": 8,
            "options": {"beta": 1.0, "rows": 50_000, "clients": 100, "features": 14},
        },
        "federation": {"clients": clients, "partition": "iid"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "aggregation": {"protocol": "plain", "noise": "server"},
        "workload": {"degree": 2, "size": None},
        "evaluation": [],
        "runtime": {"engine": "ray" if engine == "ray" else "inprocess", "seed": 0},
    }


def one_run(engine: str, clients: int, rounds: int, out: Path) -> None:
    """The run itself, in the process that is measured."""
    from fedsyn.loading import parse_config

    config = parse_config(configuration(clients, rounds, engine))
    if engine != "flower":
        from fedsyn.runs.engines import run

        run(config, out)
        return
    from benchmarks.flower_engine import run_simulation
    from fedsyn.flower.launch import app_folder
    from fedsyn.runs.directory import page_file
    from fedsyn.runs.prepare import prepare
    from fedsyn.runs.run_config import run_config_of

    out.mkdir()
    config.save(out / "config.yaml")
    prepared = prepare(config, out / "store")
    overrides = run_config_of(config, store=prepared.folder, out=out)
    with app_folder() as app:
        log = run_simulation(app, overrides, nodes=clients, client_cpus=1, poll=lambda: page_file(out) is not None)
    if page_file(out) is None:
        raise SystemExit(f"Flower's engine left no result:\n{log}")


def measured(engine: str, clients: int, rounds: int, out: Path) -> Cost:
    """One run in a process of its own, and what it and all its descendants cost.

    Not every parent asks what its children took (Ray's does not), so they are watched: what is missed is what a process
    does in its last fifth of a second.
    """
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become this process' children
    started = time.perf_counter()
    command = [sys.executable, __file__, "--run", engine, "--clients", str(clients), "--rounds", str(rounds)]
    with tempfile.TemporaryFile("w+") as log:
        # Ray's workers are nicer than other processes by default: on a busy machine they would wait for those.
        environment = os.environ | {"RAY_worker_niceness": "0"}
        process = subprocess.Popen([*command, "--out", str(out)], stdout=log, stderr=log, text=True, env=environment)
        ticks: dict[int, int] = {}
        while process.poll() is None:
            descendants(ticks)
            time.sleep(0.2)
        wall = time.perf_counter() - started
        while descendants(ticks):  # what outlives the run for a moment
            bury()
            time.sleep(0.2)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{engine}: {log.read()[-5000:]}")
    return Cost(wall, sum(ticks.values()) / os.sysconf("SC_CLK_TCK"))


def bury() -> None:
    """Reaps the orphans that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(ticks: dict[int, int]) -> int:
    """Writes down the processor time of every descendant; how many there are."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                stats[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    found, new = set(), {os.getpid()}
    while new:
        new = {process for process, (parent, _) in stats.items() if parent in new} - found
        found |= new
    ticks.update({process: stats[process][1] for process in found})
    return len(found)


def main(clients: int, skip: list[str]) -> None:
    print(f"{os.cpu_count()} cores, {clients} clients in every round, augflaim: two requests a client and round\n")
    print("| engine | CPU s a round | wall s a round | CPU against the first | wall | run of 3: CPU s | wall s |")
    print("|---|---|---|---|---|---|---|")
    bits, base = None, None
    with tempfile.TemporaryDirectory(prefix="bench-ray-") as folder:
        for engine in ENGINES:
            if engine in skip:
                continue
            few, many = (measured(engine, clients, n, Path(folder) / f"{engine}{n}") for n in (FEW, MANY))
            cpu, wall = ((getattr(many, what) - getattr(few, what)) / (MANY - FEW) for what in ("cpu", "wall"))
            base = base or Cost(wall, cpu)
            table = (Path(folder) / f"{engine}{MANY}" / "synthetic.csv").read_bytes()
            bits = bits or table
            if table != bits:
                raise SystemExit(f"{engine} gave another table than the first engine")
            cells = [NAMES[engine], f"{cpu:.1f}", f"{wall:.1f}", f"{cpu / base.cpu:.2f} x", f"{wall / base.wall:.2f} x"]
            print("| " + " | ".join([*cells, f"{many.cpu:.1f}", f"{many.wall:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--skip", nargs="*", default=[], choices=ENGINES)
    parser.add_argument("--run", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        one_run(arguments.run, arguments.clients, arguments.rounds, arguments.out)
    else:
        main(arguments.clients, arguments.skip)
