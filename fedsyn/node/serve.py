"""`fedsyn node serve` and `fedsyn node status`.

One process serves a node's state, and says how the node is.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsyn.errors import ConfigError
from fedsyn.files import is_locked, locked
from fedsyn.ledgers.chain import require_private
from fedsyn.node.file import NodeFile, load_node_file, require_files
from fedsyn.node.task import Bounds

_log = logging.getLogger("fedsyn.node")
_LOCK = "lock"
_GOODBYE = 15.0  # seconds that a node has to end


def serve(path: Path, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
    """Runs a node until SIGTERM or SIGINT.

    Raises:
        ConfigError: if its file, or a file that it names, cannot be used; or another process serves the same state.
    """
    from fedsyn.node.connection import NodeConnection

    file = load_node_file(path)
    require_files(file)
    with _only_one(file):
        node = NodeConnection(path, bounds)

        def stop(*_: object) -> None:
            late = threading.Timer(_GOODBYE, os._exit, (0,))  # a request may take longer, and is asked again
            late.daemon = True
            late.start()
            node.stop()

        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, stop)
        _log.info("node '%s': table %s, SuperLink %s", file.name, file.data, file.superlink)
        node.serve()


@contextmanager
def _only_one(file: NodeFile) -> Iterator[None]:
    """Holds the state's folder, which is made if missing.

    Its lock ends with this process, however that ends.

    Raises:
        ConfigError: if another process serves this state, or the folder cannot be used.
    """
    folder = file.state_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(file.ledger_file)  # before the rights are set right, which would hide it
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"state: {folder} cannot be used ({error.strerror})") from None
    with locked(folder / _LOCK, patience=1.0) as alone:
        if not alone:
            raise ConfigError(f"state: another process serves {folder} already; stop it first")
        yield


def is_served(file: NodeFile) -> bool:
    """Returns whether a process serves this node's state now."""
    return is_locked(file.state_folder / _LOCK)


# `fedsyn node status` -------------------------------------------------------------------------------------------------


def look(file: NodeFile) -> dict[str, Any]:
    """Returns a node's state, as /status tells it.

    If nothing answers there, the state has `problems` of its own.
    """
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
    """Returns the same as text for people."""
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
