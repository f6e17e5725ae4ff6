"""`fedsyn node serve`: the process that people and systemd see. It starts the connection again whenever it has died."""

from __future__ import annotations

import datetime
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedsyn.errors import ConfigError, RunError
from fedsyn.nodes.lifetime.ledger import require_private
from fedsyn.nodes.node.file import NodeFile, load_node_file, require_files
from fedsyn.nodes.node.processes import BAD_INPUT, Bounds

_log = logging.getLogger("fedsyn.nodes.node")
_LONGEST = 30.0  # seconds between two starts of a connection that keeps dying
_SHORT, _MOST = 60.0, 10  # seconds; after 10 lives in a row that are shorter, the connection cannot be kept running
_GOODBYE = 15.0  # seconds that a connection has to end


def serve(path: Path, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
    """Run a node until SIGTERM or SIGINT.

    Raises:
        ConfigError: if its file, or a file that it names, cannot be used; or another process serves the same state.
        RunError: if its connection ends again and again, soon after each start.
    """
    file = load_node_file(path)
    require_files(file)
    lock, own = _only_one(file)
    stopping = threading.Event()
    serving = _Serving(stopping)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: serving.stop())
    _log.info("node '%s': table %s, SuperLink %s", file.name, file.data, file.superlink)
    wait, deaths = 0.2, 0
    try:
        while not stopping.is_set():
            started = time.monotonic()
            code = serving.until_it_ends(_start(path, bounds, lock))
            if stopping.is_set():
                break
            if code == BAD_INPUT:
                raise ConfigError("the node cannot go on (see above)")
            short = time.monotonic() - started < _SHORT
            wait, deaths = (min(2 * wait, _LONGEST), deaths + 1) if short else (0.2, 1)
            if deaths == _MOST:
                raise RunError(
                    f"the node's connection ended {_MOST} times in a row, each time within {_SHORT:g} s of its start "
                    f"(the last time with {_name(code)}); what it said is above"
                )
            _log.error("the connection has ended (%s); it is started again in %.1f s", _name(code), wait)
            stopping.wait(wait)
    finally:
        os.close(lock)
        os.close(own)


def _start(path: Path, bounds: Bounds, lock: int) -> subprocess.Popen[bytes]:
    """Start the connection, which holds the lock, too: a killed supervisor frees nothing that is still answered."""
    arguments = [path.resolve(), os.getpid(), bounds.seconds, bounds.megabytes]
    command = [sys.executable, "-m", "fedsyn.nodes.node.connection", *map(str, arguments)]
    return subprocess.Popen(command, pass_fds=[lock])


class _Serving:
    """The connection that runs now; waited for without looking, so that a node that is not asked costs nothing.

    Args:
        stopping: set when this process is to end.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._connection: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the connection, which has some seconds for its goodbye; called by a signal's handler."""
        self._stopping.set()
        connection = self._connection
        if connection is not None and connection.poll() is None:
            connection.terminate()
            late = threading.Timer(_GOODBYE, connection.kill)
            late.daemon = True
            late.start()

    def until_it_ends(self, connection: subprocess.Popen[bytes]) -> int:
        """Wait for the connection; return its exit code."""
        self._connection = connection
        if self._stopping.is_set():  # the signal came while the connection was being started
            self.stop()
        code = connection.wait()
        self._connection = None
        return code


def _only_one(file: NodeFile) -> tuple[int, int]:
    """Lock the state's folder, which is made if it is not there; return the connection's lock and the own one.

    A supervisor that was killed has lost its own lock, and its connection is about to end: that is waited for.

    Raises:
        ConfigError: if another process serves this state, or the folder cannot be used.
    """
    folder = file.state_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(file.ledger_file)  # before the rights are set right, which would hide it
        folder.chmod(0o700)
        lock, own = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("lock", "supervisor.lock"))
    except OSError as error:
        raise ConfigError(f"state: {folder} cannot be used ({error.strerror})") from None
    until = time.monotonic() + 2 * _GOODBYE
    while not (_locked(own) and _locked(lock)):
        if not _locked(own) or time.monotonic() > until:
            os.close(lock)
            os.close(own)
            raise ConfigError(f"state: another process serves {folder} already; stop it first")
        time.sleep(0.1)
    return lock, own


def _locked(lock: int) -> bool:
    """Lock a file, also once more; return whether this process has the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_served(file: NodeFile) -> bool:
    """Whether a process serves this node's state now."""
    try:
        lock = os.open(file.state_folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        return not _locked(lock)
    finally:
        os.close(lock)


def _name(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


# `fedsyn node status` -------------------------------------------------------------------------------------------------


def look(file: NodeFile) -> dict[str, Any]:
    """Return how a node is, as /status tells it; with `problems` of its own if nothing answers there."""
    if not is_served(file):
        return {"name": file.name, "ready": False, "problems": ["it is not running: fedsyn node serve"]}
    if file.listen is None:
        return {"name": file.name, "ready": True, "problems": [], "note": "it runs; with 'listen' it would say more"}
    import httpx

    try:
        answer = httpx.get(f"http://{file.listen}/status", timeout=5.0, trust_env=False)
        facts: dict[str, Any] = json.loads(answer.text)
    except (httpx.HTTPError, ValueError):
        return {"name": file.name, "ready": False, "problems": [f"it runs, and does not answer at {file.listen} yet"]}
    return facts


def said(facts: dict[str, Any]) -> str:
    """Return the same as text for people."""
    lines = [f"node '{facts['name']}': {'ready' if facts['ready'] else 'NOT ready'}"]
    lines += [f"  {problem}" for problem in facts["problems"]]
    if "note" in facts:
        lines.append(f"  {facts['note']}")
    if facts.get("last_contact"):
        when = datetime.datetime.fromtimestamp(facts["last_contact"], datetime.UTC)
        lines.append(f"  last contact with the SuperLink: {when:%Y-%m-%d %H:%M:%S} UTC, as node {facts['node']}")
    if "requests" in facts:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in facts["requests"].items())
        lines.append(f"  requests: {counts}; worker restarted {facts['worker_restarts']} times")
    budget = facts.get("budget")
    if budget is not None:
        lines.append(
            f"  spent: epsilon {budget['epsilon']:.4g} of {budget['limit']:g} at delta {budget['delta']:g} in "
            f"{budget['runs']} runs"
        )
    return "\n".join(lines)
