"""Flower's own simulation engine as benchmarks start it: a SuperLink of its own in simulation mode, on Ray."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsyn.errors import RunError
from fedsyn.flower.control import Control
from fedsyn.flower.launch import environment, submit, tool, wait


def run_simulation(
    app: Path, run_config: Mapping[str, str], *, nodes: int, client_cpus: int, poll: Callable[[], bool]
) -> str:
    """Runs this app on a SuperLink of its own in simulation mode (Ray) and waits for the end.

    Args:
        app: folder with pyproject.toml.
        run_config: Flower run configuration.
        nodes: number of simulated SuperNodes.
        client_cpus: CPUs that Ray reserves for each client.
        poll: called about three times a second while the run goes on; true once the run has left its result.

    Returns:
        The end of the log.
    """
    home = Path(tempfile.mkdtemp(prefix="fedsyn-flower-"))
    os.environ["FLWR_HOME"] = str(home)
    try:
        with _superlink(home, ["--simulation"]) as log:
            federation = f"num-supernodes={nodes} client-resources-num-cpus={client_cpus}"
            run_id = submit(app, "own", run_config, ["--federation-config", federation])
            wait(Control.named("own"), run_id, poll)
            return _tail(log)
    finally:
        del os.environ["FLWR_HOME"]
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _superlink(home: Path, options: list[str]) -> Iterator[Path]:
    """A SuperLink on loopback with its own home and port, stopped with everything it started at the end."""
    port = _free_port()
    connection = f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection, encoding="utf-8")
    log = home / "superlink.log"
    command = [tool("flower-superlink"), "--insecure", "--isolation", "subprocess", *options]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment(), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for_port(port, process, log)
        yield log
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process group, politely first."""
    import signal

    for kind, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, kind)
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunError(f"Flower's SuperLink did not start:\n{_tail(log)}")
        with socket.socket() as probe:
            probe.settimeout(0.5)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RunError(f"Flower's SuperLink did not start within {patience:g} s:\n{_tail(log)}")


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
