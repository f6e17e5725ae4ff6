"""Starting Flower from the outside: a simulation on Ray, and a run on a SuperLink that others operate.

`flwr run` only submits: it exits 0 whether or not the run succeeds. The state of a run is read from `flwr list`, and
what went wrong from the file that the ServerApp leaves beside its results.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsyn.errors import ConfigError, RunError

_FINISHED = "finished"


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
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("runtime.engine: 'ray' needs Flower's simulation engine: pip install fedsyn[simulation]")
    home = Path(tempfile.mkdtemp(prefix="fedsyn-flower-"))
    try:
        with _superlink(home, ["--simulation"]) as log:
            federation = f"num-supernodes={nodes} client-resources-num-cpus={client_cpus}"
            run_id = _submit(app, home, "own", run_config, ["--federation-config", federation])
            _wait(home, "own", run_id, poll)
            return _tail(log)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def run_on_superlink(app: Path, run_config: Mapping[str, str], *, superlink: str, poll: Callable[[], bool]) -> str:
    """Runs this app on a SuperLink of the user's Flower configuration and waits for the end."""
    run_id = _submit(app, None, superlink, run_config, [])
    _wait(None, superlink, run_id, poll)
    return f"flwr log {run_id} {superlink}"


@contextmanager
def app_folder() -> Iterator[Path]:
    """The Flower app to submit: the checkout, or, for an installed fedsyn, a folder made from its packages."""
    root = Path(__file__).resolve().parent.parent.parent
    if (root / "pyproject.toml").is_file():
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="fedsyn-app-") as folder:
        made = Path(folder) / "fedsyn"
        shutil.copytree(root / "fedsyn" / "app", made)
        for package in ("fedsyn", "strategies", "clients", "partitioners"):
            ignore = shutil.ignore_patterns("__pycache__", "app")
            shutil.copytree(root / package, made / package, ignore=ignore)
        yield made


@contextmanager
def _superlink(home: Path, options: list[str]) -> Iterator[Path]:
    """A SuperLink on loopback with its own home and port, stopped with everything it started at the end."""
    port = _free_port()
    connection = f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection, encoding="utf-8")
    log = home / "superlink.log"
    command = [_tool("flower-superlink"), "--insecure", "--isolation", "subprocess", *options]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=_environment(home), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
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


def _submit(app: Path, home: Path | None, superlink: str, run_config: Mapping[str, str], options: list[str]) -> str:
    """Submits the app; returns the run id."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False, encoding="utf-8") as file:
        for key, value in run_config.items():
            file.write(f"{key} = {json.dumps(value)}\n")  # a JSON string is a TOML basic string
    try:
        answer = _flwr(["run", str(app), superlink, "--run-config", file.name, "--format", "json", *options], home)
    finally:
        Path(file.name).unlink()
    if not answer.get("run-id"):
        raise RunError(f"Flower did not accept the run: {answer.get('error-message') or 'no run id'}")
    return str(answer["run-id"])


def _wait(home: Path | None, superlink: str, run_id: str, poll: Callable[[], bool], every: float = 12.0) -> None:
    """Waits until the run has ended, however it did.

    Asking costs a process of about two CPU seconds, so it is done seldom until there is a result.
    """
    asked = time.monotonic()
    while True:
        time.sleep(0.3)
        if time.monotonic() - asked < (1.0 if poll() else every):
            continue
        answer = _flwr(["list", superlink, "--run-id", run_id, "--format", "json"], home)
        runs = answer.get("runs") or []
        if runs and str(runs[0].get("status", "")).startswith(_FINISHED):
            return
        asked = time.monotonic()


def _flwr(arguments: list[str], home: Path | None) -> dict[str, Any]:
    """Calls the `flwr` command line and reads its JSON."""
    command = [_tool("flwr"), *arguments]
    try:
        done = subprocess.run(command, env=_environment(home), capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"'flwr {arguments[0]}' did not answer within 300 s") from None
    start = done.stdout.find("{")
    if start >= 0:
        try:
            answer: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[start:])[0]
        except json.JSONDecodeError:
            pass
        else:
            return answer
    raise RunError(f"'flwr {arguments[0]}' failed: {(done.stderr or done.stdout).strip()[-400:]}")


def _tool(name: str) -> str:
    """A command of the Flower that this Python imports."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    found = shutil.which(name)
    if found is None:
        raise RunError(f"the command '{name}' of Flower was not found; install fedsyn[simulation]")
    return found


def _environment(home: Path | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    environment.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    environment.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    # The SuperLink starts `flower-*` helpers by name: they must be those of this environment.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    if home is not None:
        environment["FLWR_HOME"] = str(home)
    return environment


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
