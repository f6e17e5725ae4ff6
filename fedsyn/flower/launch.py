"""Starting a run from the outside, on a SuperLink that others operate.

`flwr run` only submits: it exits 0 whether or not the run succeeds. What becomes of a run the SuperLink tells
(`fedsyn.flower.control`), and what went wrong stands in the file that the ServerApp leaves beside its results.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsyn.errors import RunError
from fedsyn.flower.control import FINISHED, Control, RunState, Unreachable
from fedsyn.version import installing


@contextmanager
def app_folder() -> Iterator[Path]:
    """Yields the folder of the Flower app to submit.

    It is the checkout or, for an installed fedsyn, a folder made from its packages.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="fedsyn-app-") as folder:
        app = Path(folder) / "fedsyn"
        shutil.copytree(root / "fedsyn" / "app", app)
        plug_ins = ("strategies", "clients", "partitioners")
        ignore = shutil.ignore_patterns("__pycache__", "app", *plug_ins)
        shutil.copytree(root / "fedsyn", app / "fedsyn", ignore=ignore)
        for package in plug_ins:  # as in the checkout: beside `fedsyn`
            shutil.copytree(root / "fedsyn" / "plugins" / package, app / package, ignore=ignore)
        yield app


def submit(app: Path, superlink: str, run_config: Mapping[str, str], options: Sequence[str] = ()) -> str:
    """Submits the app, with further options of `flwr run`.

    Returns the run id.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False, encoding="utf-8") as file:
        for key, value in run_config.items():
            file.write(f"{key} = {json.dumps(value)}\n")  # a JSON string is a TOML basic string
    try:
        answer = _flwr(["run", str(app), superlink, "--run-config", file.name, "--format", "json", *options])
    finally:
        Path(file.name).unlink()
    if not answer.get("run-id"):
        raise RunError(f"Flower did not accept the run: {answer.get('error-message') or 'no run id'}")
    return str(answer["run-id"])


def wait(
    superlink: Control, run_id: str, poll: Callable[[], bool], *, every: float = 5.0, patience: float = 120.0
) -> RunState:
    """Waits until the run has ended, however it did, and says how.

    Args:
        superlink: where it is.
        run_id: Flower's number of it.
        poll: looks for a result; True where there is one, and the SuperLink is asked at once.
        every: seconds between two questions otherwise.
        patience: seconds for which the SuperLink may not answer.

    Raises:
        RunError: the SuperLink does not answer for longer than that, or knows no such run any more.
    """
    asked_at = heard = time.monotonic()
    while True:
        time.sleep(0.3)
        if time.monotonic() - asked_at < (0.5 if poll() else every):
            continue
        asked_at = time.monotonic()
        try:
            state = superlink.state(run_id)
        except Unreachable as error:
            if time.monotonic() - heard > patience:
                raise RunError(
                    f"{superlink} has not answered for {patience:g} s ({error.why}); the run may be going on there"
                ) from None
            continue
        heard = time.monotonic()
        if state is None:
            raise RunError(
                f"{superlink} knows no run {run_id} any more: it was started anew without the --database that it had"
            )
        if state.status == FINISHED:
            return state


def _flwr(arguments: list[str]) -> dict[str, Any]:
    """Calls the `flwr` command line and reads its JSON."""
    command = [tool("flwr"), *arguments]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
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


def tool(name: str) -> str:
    """A command of the Flower that this Python imports."""
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    path = shutil.which(name)
    if path is None:
        raise RunError(f"the command '{name}' of Flower was not found: {installing('simulation')}")
    return path


def environment() -> dict[str, str]:
    """Returns this process' environment, in which Flower finds its helpers.

    The settings that keep Flower from phoning home stand there already.
    """
    variables = dict(os.environ)
    variables["RAY_USAGE_STATS_ENABLED"] = "0"
    # The SuperLink starts `flower-*` helpers by name: they must be those of this environment.
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"
    return variables
