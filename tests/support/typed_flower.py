"""`flwr` as its user types it, and the processes that it leaves running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.loopback import BIN, ROOT, environment, free_port


def processes_with(home: Path) -> list[int]:
    """Ids of the processes that carry this test's own Flower home in their environment."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def flwr(arguments: list[str], folder: Path, env: dict[str, str]) -> dict:
    done = subprocess.run(
        [str(BIN / "flwr"), *arguments, "--format", "json"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "{" in done.stdout, done.stdout + done.stderr
    return json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]


def run_to_its_end(arguments: list[str], folder: Path, env: dict[str, str]) -> None:
    started = flwr(arguments, folder, env)
    assert started.get("run-id"), started
    deadline = time.monotonic() + 900
    status = ""
    while not status.startswith("finished") and time.monotonic() < deadline:
        time.sleep(2)
        status = flwr(["list", "--run-id", str(started["run-id"])], folder, env)["runs"][0]["status"]
    log = Path(env["FLWR_HOME"]) / "local-superlink" / "superlink.log"
    assert status == "finished:completed", (status, log.read_text(encoding="utf-8")[-4000:])


def cloned(tmp_path: Path) -> Path:
    """Copies the files of the working tree that a clone would hold."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this copy of the sources is not a git checkout")
    folder = tmp_path / "clone"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def own_superlink(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yields an environment in which `flwr` starts a SuperLink of its own; stopped at the end, with its children."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("finding the processes of a detached SuperLink needs /proc")
    home = tmp_path / "flower-home"
    marked = environment(home) | {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "FEDSYN_CACHE": str(tmp_path / "cache"),
    }
    try:
        yield marked
    finally:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for process in processes_with(home):
                os.kill(process, kind)
            deadline = time.monotonic() + 10
            while processes_with(home) and time.monotonic() < deadline:
                time.sleep(0.2)
        assert not processes_with(home)
