"""What a federation costs while nothing happens: CPU of a SuperLink, its `deploy link` and three nodes, each process.

TLS and authenticated nodes, as `fedsyn deploy init` makes them, on loopback; no run is ordered. Beside it, in the same
run, the named alternative: Flower's own `flower-superlink` and `flower-supernode`. CPU is read from /proc over so many
seconds, after the federation has settled; a process that ended in between is counted by its parent.

    python benchmarks/bench_idle.py                 # 60 s of each
    python benchmarks/bench_idle.py --seconds 20 --settle 10
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bench_request import _processes, _tree, free_port
from fedsyn.flower.launch import environment, tool

SCHEMA = "columns:\n  age: {kind: integer, lower: 18, upper: 90, bins: 9}\n  smoker: {kind: boolean}\n"
NAMES = ("north", "south", "lake")
#: What a command line has, what it is called, first match first.
KINDS = (
    ("flower-superexec", "SuperLink's helper"),
    ("fedsyn.flower.superlink", "SuperLink"),
    ("flower-superlink", "SuperLink"),
    ("deploy link", "deploy link"),
    ("fedsyn.node.worker", "node: worker"),
    ("node serve", "node: connection"),
    ("flower-supernode", "SuperNode"),
)


class Started:
    """Processes that end with the block, and a folder for their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        own = {"OMP_NUM_THREADS": "1", "FLWR_HOME": str(folder / "home")}
        self.environment = environment() | own | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def start(self, command: Sequence[str]) -> None:
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            made = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(made)

    def call(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def cpu(self) -> dict[tuple[int, str], float]:
        """CPU seconds of each process by its number and kind; what it has reaped is in it."""
        processes, found = _processes(), dict[tuple[int, str], float]()
        for root in self.processes:
            for pid in _tree(root.pid, processes):
                _, own, reaped, command = processes[pid]
                kind = next((name for part, name in KINDS if part in command), "other")
                found[pid, kind] = own + reaped
        return found

    def close(self) -> None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self.processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, kind)
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20.0)


def fedsyn(started: Started) -> None:
    """A federation as its people start it."""
    cli, folder = [sys.executable, "-m", "fedsyn.front.cli"], started.folder
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    init = ["deploy", "init", "--holders", *NAMES, "--operator-host", "localhost", "--port", str(free_port())]
    options = ["--schema", str(folder / "schema.yaml"), "--approval", "always", "--out", str(folder / "study")]
    started.call([*cli, *init, *options])
    started.start([*cli, "deploy", "link", str(folder / "study" / "operator")])
    for name in NAMES:
        home = folder / "study" / "holders" / name
        (home / "rows.csv").write_text("age,smoker\n" + "30,true\n50,false\n" * 500, encoding="utf-8")
        started.start([*cli, "node", "serve", str(home / "node.yaml")])
    _until(started, "3 nodes online", lambda: (folder / "0.log").read_text("utf-8").count("is online") == len(NAMES))


def flower(started: Started) -> None:
    """Flower's own: without TLS, as its keys would have to be registered by hand."""
    port = free_port()
    started.start([tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)])
    _until(started, "a SuperLink", lambda: _listens(port))
    for _ in NAMES:
        command = [tool("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
        started.start([*command, "--port", str(free_port())])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(started: Started, what: str, true: Callable[[], bool]) -> None:
    end = time.monotonic() + 180.0
    while not true():
        if time.monotonic() > end or any(each.poll() is not None for each in started.processes):
            logs = "".join(path.read_text("utf-8", "replace") for path in sorted(started.folder.glob("*.log")))
            raise RuntimeError(f"{what}: not within 180 s\n{logs[-3000:]}")
        time.sleep(0.2)


def measure(name: str, begin: Callable[[Started], None], seconds: float, settle: float) -> None:
    with tempfile.TemporaryDirectory(prefix="fedsyn-idle-") as folder:
        started = Started(Path(folder))
        try:
            begin(started)
            time.sleep(settle)
            before, begun = started.cpu(), time.monotonic()
            time.sleep(seconds)
            after, wall = started.cpu(), time.monotonic() - begun
        finally:
            started.close()
    print(f"{name}, 3 nodes, {wall:.0f} s without a run: % of a core")
    shares: dict[str, list[float]] = {}
    for (pid, kind), spent in after.items():
        shares.setdefault(kind, []).append(100.0 * (spent - before.get((pid, kind), 0.0)) / wall)
    for kind, each in sorted(shares.items()):
        print(f"    {kind:<20} {max(each):6.2f}" + (f"   (the most of {len(each)})" if len(each) > 1 else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=20.0)
    parser.add_argument("--alternative", choices=["yes", "no"], default="yes")
    given = parser.parse_args()
    measure("fedsyn deploy link, fedsyn node serve", fedsyn, given.seconds, given.settle)
    if given.alternative == "yes":
        measure("flower-superlink, flower-supernode", flower, given.seconds, given.settle)


if __name__ == "__main__":
    main()
