"""A federation of real processes on loopback whose SuperLink and ServerApp can be killed; nodes of `fedsyn node`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.loopback import BIN, ROOT, environment, free_port, signal_group, stop

SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
"""
CONFIG = """\
mechanism: {name: sketch_aim, rounds: 4}
data: {source: survey, schema: schema.yaml}
federation: {clients: 3, minimum_cohort: 3, timeout: 60, connect_timeout: 90}
privacy: {epsilon: 1.0, delta: 1.0e-6, client_sizes: private}
workload: {degree: 2, size: null}
aggregation: {protocol: secagg, noise: distributed, corrupted: 0.0, dropout: 0.0}
evaluation: []
runtime: {engine: deployment, superlink: loopback, patience: 6}
"""
NODE = """\
format: 1
name: node-{number}
superlink: 127.0.0.1:{port}
insecure: true
key: node.key
data: rows.csv
schema: ../schema.yaml
partition: {number}
policy:
  approval: always
  minimum_cohort: 2
  corrupted: 0.0
  dropout: 0.0
  lifetime: {{epsilon: 1.0, delta: 1.0e-6}}
"""


class Machines:
    """A SuperLink and three holders; `close` ends every process."""

    def __init__(self, folder: Path, *, database: bool = True) -> None:
        self.folder, self.port, self.database = folder, free_port(), database
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
        (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
        self.environment = environment(folder / "home") | {"PYTHONPATH": str(ROOT), "FEDSYN_RUNS": str(folder / "runs")}
        connection = f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(connection, encoding="utf-8")
        self.start_link()
        for number in range(3):
            self.start_node(number)

    def start_link(self) -> None:
        command = [str(BIN / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "link.db")] if self.database else []
        self._start("superlink", command, "link-home")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(self.log("superlink"))

    def start_node(self, number: int) -> None:
        own = self.folder / f"node-{number}"
        if not own.exists():
            own.mkdir()
            rng, rows = np.random.default_rng(number), 100 + 10 * number
            table = pd.DataFrame(
                {
                    "age": rng.integers(18, 90, rows),
                    "job": rng.choice(["clerk", "driver", "nurse"], rows),
                    "smokes": rng.choice(["no", "yes"], rows),
                }
            )
            table.to_csv(own / "rows.csv", index=False)
            key = ec.generate_private_key(ec.SECP384R1())
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
            (own / "node.key").write_bytes(key.private_bytes(*form))
            (own / "node.key").chmod(0o600)
            (own / "node.yaml").write_text(NODE.format(number=number, port=self.port), encoding="utf-8")
            self.node_command(number, "init-ledger")
        self._start(
            f"node-{number}", [sys.executable, "-m", "fedsyn.front.cli", "node", "serve", str(own / "node.yaml")]
        )

    def node_command(self, number: int, word: str, *more: str) -> str:
        """What `fedsyn node WORD` prints on a holder's machine."""
        file = str(self.folder / f"node-{number}" / "node.yaml")
        command = [sys.executable, "-m", "fedsyn.front.cli", "node", word, file, *more]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def _start(self, name: str, command: list[str], home: str = "node-home") -> None:
        own = self.environment | {"FLWR_HOME": str(self.folder / home)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=own, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """The process, at once and without a word; what it has started finds that out by itself."""
        self.processes[name].kill()
        self.processes[name].wait(10)

    def server_app(self) -> int:
        """Process id of the ServerApp."""
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = status.read_bytes().split(b"\0")
                own = f"FLWR_HOME={self.folder}/link-home".encode() in (status.parent / "environ").read_bytes()
            except OSError:
                continue
            if own and any(word.endswith(b"flwr-serverapp") for word in words):
                return int(status.parent.name)
        raise AssertionError("no ServerApp runs")

    def run(self, out: Path, *more: str) -> subprocess.Popen[str]:
        """`fedsyn run`, under way."""
        command = [
            sys.executable,
            "-m",
            "fedsyn.front.cli",
            "run",
            str(self.folder / "run.yaml"),
            "--out",
            str(out),
            *more,
        ]
        return subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def close(self) -> None:
        for process in self.processes.values():
            signal_group(process, signal.SIGTERM)
        for process in self.processes.values():
            stop(process)


def ended(process: subprocess.Popen[str], timeout: float = 240) -> tuple[int, str, str]:
    """Exit code and outputs of a command."""
    try:
        printed, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, said = process.communicate()
        raise AssertionError(f"it did not end within {timeout:g} s:\n{printed}\n{said}") from None
    return process.returncode, printed, said


def wait_for(
    condition: Callable[[], bool], what: str, process: subprocess.Popen[str], machines: Machines, timeout: float = 120
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"the command ended before {what}: {process.communicate()}\n{machines.logs()}")
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"not within {timeout:g} s: {what}: {process.communicate()}\n{machines.logs()}")
        time.sleep(0.02)


def rounds(out: Path) -> int:
    """Finished rounds of a run directory."""
    file = out / "rounds.jsonl"
    return len(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else 0
