"""A real Flower federation on loopback for tests: a SuperLink, holders' nodes, and a Flower home of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedsyn import yamlio
from fedsyn.files import write_new
from fedsyn.ledgers.node_ledger import init_ledger

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
_OPENSSH = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """The environment of one party: its own Flower home, and this Python's commands first."""
    home.mkdir(parents=True, exist_ok=True)
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        # Two cores run all the parties of a test: no process may start a thread per core.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def signal_group(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """Signals a process group that this test started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, kind)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process group that this test started, politely first; nothing of it is left afterwards."""
    signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10.0)
    signal_group(process, signal.SIGKILL)
    process.wait(5.0)


class Federation:
    """A SuperLink and the nodes that joined it; `close` stops every process, whatever happened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        self.environment = environment(home)
        connection = f'[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(connection, encoding="utf-8")
        self._start(
            "superlink",
            ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)],
            folder / "superlink-home",
        )
        try:
            self._wait_for_port("superlink", self.port)
        except RuntimeError:
            self.close()
            raise

    def add_node(self, name: str, table: Path, schema: Path, *, agreed: str | None = None, **keys: Any) -> None:
        """Starts a `fedsyn node` that allows any run, or one configuration (`agreed`); `keys`: of node.yaml."""
        folder = self.folder / f"{name}-node"
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP384R1()).private_bytes(*_OPENSSH)
        write_new(folder / "node.key", key)
        policy: dict[str, Any] = {
            "approval": "always" if agreed is None else "by hash",
            "configurations": None if agreed is None else [agreed],
            "lifetime": {"epsilon": 1000, "delta": 1e-5},
            "minimum_cohort": 1,
            "corrupted": 0.0,
            "client_sizes": "any",
            **keys.pop("policy", {}),
        }
        document = {"name": name, "superlink": f"127.0.0.1:{self.port}", "insecure": True, "key": "node.key"}
        document |= {"data": str(table), "schema": str(schema), **keys, "policy": policy}
        (folder / "node.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
        (folder / "state").mkdir(mode=0o700)
        init_ledger(folder / "state" / "ledger.jsonl")
        self._start(name, ["fedsyn", "node", "serve", str(folder / "node.yaml")], self.folder / f"{name}-home")

    def add_supernode(self, name: str, node_config: Mapping[str, str | float]) -> None:
        """Starts Flower's own SuperNode with a home of its own, as on a machine of its own."""
        described = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in node_config.items())
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(free_port()), "--node-config", described]
        self._start(name, command, self.folder / f"{name}-home")

    def fedsyn_run(self, config: Path, out: Path, *sets: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """`fedsyn run` as its user types it, with this federation's Flower home."""
        settings = [word for assignment in sets for word in ("--set", assignment)]
        return self._typed("fedsyn", "run", str(config), "--out", str(out), *settings, timeout=timeout)

    def flwr(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """A command of Flower's as its user types it, with this federation's Flower home."""
        return self._typed("flwr", *words, timeout=timeout)

    def _typed(self, command: str, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / command), *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        nodes = [process for name, process in self.processes.items() if name != "superlink"]
        for process in nodes:  # all at once: each takes seconds to say goodbye to the SuperLink
            signal_group(process, signal.SIGTERM)
        for process in [*nodes, self.processes["superlink"]]:
            stop(process)

    def _start(self, name: str, command: list[str], home: Path) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=environment(home),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_port(self, name: str, port: int, patience: float = 240.0) -> None:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{self.log(name)}")
            with socket.socket() as probe:
                probe.settimeout(0.5)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{name} did not listen within {patience:g} s:\n{self.log(name)}")


@contextlib.contextmanager
def federation_of(folder: Path, schema: str, config: str) -> Iterator[Federation]:
    """A federation whose folder holds schema.yaml and run.yaml; afterwards all of its processes have ended."""
    (folder / "schema.yaml").write_text(schema, encoding="utf-8")
    (folder / "run.yaml").write_text(config, encoding="utf-8")
    started = Federation(folder)
    try:
        yield started
    finally:
        started.close()
        assert all(process.poll() is not None for process in started.processes.values())


def fedsyn_run(config: Path, out: Path, *sets: str, timeout: float = 300) -> None:
    command = [str(BIN / "fedsyn"), "run", str(config), "--out", str(out)]
    for assignment in sets:
        command += ["--set", assignment]
    done = subprocess.run(
        command, env=environment(out.parent / "home"), capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
