"""One cell of the suite is one fresh process: what it costs (imports, compilation, peak memory) is its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: A shell of two megabytes starts each cell: on Linux a peak begins with that of the program that forked it.
LAUNCHER = ("sh", "-c", '"$@"; exit $?', "sh")  # not `exec`: the shell forks


def run_cell(
    script: str, arguments: list[str], python: str = sys.executable, limit: int = 600, paths: Sequence[str] = ()
) -> dict[str, Any]:
    """Runs a script of this folder and returns what it reported; {"failed": why} where it did not come to an end.

    A cell writes one JSON object to the path that it gets as its last argument. It is stopped after `limit` seconds of
    CPU, its own and of all its threads: other work on the machine changes no outcome. `paths` come before all others on
    its module path.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cell.json"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        others = sys.path if python == sys.executable else ()  # another interpreter's packages are its own
        path = os.pathsep.join([*paths, str(HERE.parents[1]), *others])
        environment = {**os.environ, **threads, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        done = subprocess.run(
            [*LAUNCHER, python, str(HERE / script), *arguments, str(out)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        stopped = done.returncode in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)  # as a shell says it
        if stopped:
            found = json.loads(out.read_text()) if out.is_file() else {"failed": f"no result in {limit} CPU s"}
            return {**found, "stopped": limit}  # what it had found so far
        if out.is_file():
            return dict(json.loads(out.read_text()))
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        return {"failed": f"exit {done.returncode}: {last[0][:160]}"}


def number(value: float | None, width: int, digits: int = 2) -> str:
    """A figure, or a dash for a missing one."""
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"
