"""What one request costs a federation of real processes on loopback: wall time, and processor time of each process.

A SuperLink, one to three data holders, one run; then the same run on `flower-supernode`, the named alternative:
Flower's own way from a message to a reply. Processor time is read from /proc between the first and the last reply of
the run, so that no start of a process is in it; a request is one message to one node, and its reply.

    python benchmarks/bench_request.py                      # 1 and 3 nodes, and flower-supernode with 1
    python benchmarks/bench_request.py --nodes 3 --alternative no
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
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsyn.flower.launch import environment, tool

SCHEMA = """
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 9, dtype: integer}
  city: {kind: categorical, categories: [a, b, c, d]}
  smoker: {kind: categorical, categories: ["no", "yes"]}
  region: {kind: categorical, categories: ["n", s, e, w, x]}
"""
RUN = """
mechanism:   {{name: sketch_aim, rounds: {rounds}}}
data:        {{source: survey, schema: schema.yaml}}
federation:  {{clients: {nodes}, sampling_rate: 1.0, minimum_cohort: 1, timeout: 120, connect_timeout: 100}}
privacy:     {{epsilon: 1.0, delta: 1.0e-6, client_sizes: private}}
workload:    {{degree: 2, size: null}}
aggregation: {aggregation}
evaluation:  []
runtime:     {{engine: deployment, superlink: bench}}
"""
NODE = """
name: node-{number}
superlink: 127.0.0.1:{port}
insecure: true
key: node.key
data: rows.csv
schema: ../schema.yaml
partition: {number}
policy:
  approval: always
  minimum_cohort: 1
  protocols: [plain, secagg]
  noise: [server, distributed]
  lifetime: {{epsilon: 100, delta: 1.0e-5}}
"""
OURS, PARTS = "fedsyn node", ("SuperLink", "worker", "link", "server app")
_TICK = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Cpu:
    """Processor seconds of process trees, read over and over in a thread.

    Attributes:
        roots: name and pid of each tree.
        log: of the SuperLink, which has a line for each reply.
        readings: time, replies so far, and seconds of each tree by name; 'server app' is taken out of the SuperLink's.
    """

    roots: list[tuple[str, int]]
    log: Path
    readings: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._app: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, nodes: int) -> tuple[int, float, dict[str, float]]:
        """Replies, wall seconds and CPU seconds of each tree from every node's first reply to the last reply of all."""
        last = self.readings[-1][1]
        begin = next(reading for reading in self.readings if reading[1] >= nodes)
        end = next(reading for reading in self.readings if reading[1] == last)
        spent = {name: end[2][name] - begin[2].get(name, 0.0) for name in end[2]}
        return end[1] - begin[1], end[0] - begin[0], spent

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            processes = _processes()
            reading: dict[str, float] = {}
            for name, root in self.roots:
                for pid in _tree(root, processes):
                    own, reaped, command = processes[pid][1:]
                    kind = _kind(name, command)
                    if kind == "server app":
                        self._app[pid] = own + reaped
                    else:
                        reading[kind] = reading.get(kind, 0.0) + own + reaped
            # A server app that has ended was reaped by the SuperLink's side: it is counted once.
            alive = {pid for pid in self._app if pid in processes}
            reading["server app"] = sum(self._app.values())
            gone = sum(seconds for pid, seconds in self._app.items() if pid not in alive)
            reading["SuperLink"] = reading.get("SuperLink", 0.0) - gone
            replies = self.log.read_bytes().count(b"[Fleet.PushMessages] Push replies")
            self.readings.append((time.monotonic(), replies, reading))


def _kind(root: str, command: str) -> str:
    if root == "SuperLink":
        return "server app" if "flwr-serverapp" in command or "superexec" in command else "SuperLink"
    if "fedsyn.node.worker" in command:
        return "worker"
    if "node serve" in command:
        return "link"
    return root


def _processes() -> dict[int, tuple[int, float, float, str]]:
    """Parent, own seconds, seconds of children that ended, and command, by pid."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                facts = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                command = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            own, reaped = (int(facts[11]) + int(facts[12])) / _TICK, (int(facts[13]) + int(facts[14])) / _TICK
            found[int(folder.name)] = (int(facts[1]), own, reaped, command)
    return found


def _tree(root: int, processes: dict[int, tuple[int, float, float, str]]) -> Iterator[int]:
    if root in processes:
        yield root
    for pid, facts in processes.items():
        if facts[0] == root:
            yield from _tree(pid, processes)


class Federation:
    """A SuperLink and its nodes in a folder; every process ends with the block."""

    def __init__(self, folder: Path, nodes: int, rounds: int, protocol: str) -> None:
        self.folder, self.nodes, self.port = folder, nodes, free_port()
        self.processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        home = folder / "home"
        home.mkdir()
        text = f'[superlink.bench]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(text, encoding="utf-8")
        own = {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.environment = environment() | own | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        aggregation = "{protocol: secagg, noise: distributed}" if protocol == "secagg" else "{protocol: plain}"
        (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
        run = RUN.format(rounds=rounds, nodes=nodes, aggregation=aggregation)
        (folder / "run.yaml").write_text(run, encoding="utf-8")
        self._start(
            "SuperLink", [tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError("the SuperLink does not listen")

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            made = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        self.processes.append((name, made))

    def start_nodes(self, kind: str) -> None:
        source = np.random.default_rng(1)
        for number in range(self.nodes):
            folder = self.folder / f"node-{number}"
            folder.mkdir()
            lines = [
                f"{source.integers(18, 90)},{source.choice(list('abcd'))},{source.choice(['no', 'yes'])},"
                f"{source.choice(list('nsewx'))}"
                for _ in range(1000)
            ]
            (folder / "rows.csv").write_text("\n".join(["age,city,smoker,region", *lines]), encoding="utf-8")
            if kind == OURS:
                self._fedsyn_node(folder, number)
            else:
                config = f'data="{folder / "rows.csv"}" schema="{self.folder / "schema.yaml"}" partition-id={number}'
                command = [tool("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
                self._start(f"node-{number}", [*command, "--port", str(free_port()), "--node-config", config])

    def _fedsyn_node(self, folder: Path, number: int) -> None:
        key = ["ssh-keygen", "-t", "ecdsa", "-b", "384", "-N", "", "-q", "-f", str(folder / "node.key")]
        subprocess.run(key, check=True)
        text = NODE.format(number=number, port=self.port)
        (folder / "node.yaml").write_text(text, encoding="utf-8")
        cli = [sys.executable, "-m", "fedsyn.front.cli", "node"]
        subprocess.run(
            [*cli, "init-ledger", str(folder / "node.yaml")],
            env=self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._start(f"node-{number}", [*cli, "serve", str(folder / "node.yaml")])

    def run(self) -> None:
        out = self.folder / "out"
        command = [sys.executable, "-m", "fedsyn.front.cli", "run", str(self.folder / "run.yaml"), "--out", str(out)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def close(self) -> None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for _, process in reversed(self.processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, kind)
            for _, process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10.0)


def measure(kind: str, nodes: int, rounds: int, protocol: str) -> None:
    with tempfile.TemporaryDirectory(prefix="fedsyn-bench-") as name:
        federation = Federation(Path(name), nodes, rounds, protocol)
        try:
            federation.start_nodes(kind)
            roots = [("SuperLink" if who == "SuperLink" else kind, made.pid) for who, made in federation.processes]
            cpu = Cpu(roots, federation.folder / "SuperLink.log")
            federation.run()
            time.sleep(0.3)
            cpu.stop()
            _print(kind, nodes, cpu)
        finally:
            federation.close()


def _print(kind: str, nodes: int, cpu: Cpu) -> None:
    """Prints a row of the page's table; a node of Flower has neither worker nor link, and stands in `all`."""
    requests, wall, spent = cpu.between(nodes)
    each = [spent.get(part, 0.0) / requests for part in PARTS]
    label = f"{nodes}" if kind == OURS else f"{kind}, {nodes}"
    row = [f"{seconds:.3f}" for seconds in (*each, sum(spent.values()) / requests)]
    print(
        f"| {label} | {' | '.join(row)} |    {requests} requests, {wall * nodes / requests:.2f} s wall an exchange",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--protocol", choices=["plain", "secagg"], default="plain")
    parser.add_argument("--alternative", choices=["yes", "no"], default="yes")
    given = parser.parse_args()
    print(f"| nodes | {' | '.join(PARTS)} | all |\n|---|{'---|' * (len(PARTS) + 1)}", flush=True)
    for nodes in given.nodes:
        measure(OURS, nodes, given.rounds, given.protocol)
    if given.alternative == "yes":
        measure("flower-supernode", min(given.nodes), given.rounds, given.protocol)


if __name__ == "__main__":
    main()
