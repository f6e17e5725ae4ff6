"""A Ray cluster of two machines: no disk in common, machines that die, come late, or have another fedsyn.

The machines are network namespaces. On the second one, the folders of the first are hidden under an empty file system.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsyn.loading import load_config
from fedsyn.runs.engines import run
from fedsyn.sweep.results import read_cell
from support.loopback import BIN, ROOT, environment
from support.namespaces import Namespaces, namespaces_or_skip
from support.run_folders import assert_same_result, read_lines


@pytest.fixture(autouse=True, scope="module")
def ray_there() -> None:
    """Imported where the tests run, not where they are collected."""
    pytest.importorskip("ray")


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]

CONFIG = """\
mechanism: {name: augflaim, rounds: 60}
data: {source: synthfs, bins: 8, options: {beta: 1.0, clients: 40, rows: 4000, features: 6}}
federation: {clients: 40, partition: native}
privacy: {epsilon: 1.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
evaluation: [workload_error]
runtime: {engine: inprocess, seed: 0}
"""
PORT = 6399


class TwoMachines:
    """A Ray cluster: a first machine with one CPU, which runs the server half, and a second with two, when it joins."""

    def __init__(self, folder: Path, namespaces: Namespaces) -> None:
        self.namespaces, self.folder, self.logs = namespaces, folder, 0
        self.address = f"{namespaces.hosts[0]}:{PORT}"
        self.session = Path(tempfile.mkdtemp(prefix="fsr", dir="/tmp"))  # a socket's path may have 107 letters
        self.hidden = folder / "hidden"  # from the second machine
        self.hidden.mkdir()

    def begin(self) -> None:
        """The first machine starts the cluster."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.session}"]
        self._start(0, [], *head, "--num-cpus=1")
        self._wait_for_another(set())

    def join(self, *, hide: bool = True, pythonpath: Path = ROOT) -> None:
        """The second machine joins the cluster."""
        before = self.alive()
        hiding = " && ".join(f"mount -t tmpfs none {path}" for path in (self.hidden, self.session))
        hidden = ["sh", "-c", f'{hiding} && exec "$@"', "sh"] if hide else []
        self._start(1, hidden, f"--address={self.address}", "--num-cpus=2", pythonpath=pythonpath)
        self._wait_for_another(before)

    def kill(self) -> None:
        """The second machine dies at once and with everything on it."""
        raylets = [process for process in self._processes(1) if self._program(process) == "raylet"]
        assert len(raylets) == 1
        self._kill(raylets)
        self._empty(1)

    def freeze(self) -> None:
        """The second machine's workers stop in the middle of whatever they do."""
        for process in self._processes(1):
            with contextlib.suppress(OSError):
                if (Path("/proc") / str(process) / "cmdline").read_bytes().startswith(b"ray::call"):
                    os.kill(process, signal.SIGSTOP)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of fedsyn, on the first machine."""
        return subprocess.Popen(
            [*self.namespaces.prefix(0), str(BIN / "fedsyn"), *arguments],
            env=self._environment(ROOT),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def alive(self) -> set[str]:
        """The machines that the cluster believes to have; none while it does not answer."""
        asking = (
            "import sys; from ray._raylet import GcsClient;"
            "nodes = GcsClient(address=sys.argv[1]).get_all_node_info();"
            "print(*(key.hex() for key, node in nodes.items() if node.state == 0))"
        )
        command = [*self.namespaces.prefix(0), sys.executable, "-c", asking, self.address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return set(done.stdout.split()) if done.returncode == 0 else set()

    def status(self) -> str:
        """What Ray says of the machines that it has and of those that it would want; the autoscaler reads the same."""
        command = [*self.namespaces.prefix(0), str(BIN / "ray"), "status", "--address", self.address]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _wait_for_another(self, before: set[str]) -> None:
        """A machine that died may be believed in for a while: what counts is that there is a new one."""
        deadline = time.monotonic() + 180
        while not self.alive() - before:
            logs = sorted(self.folder.glob("ray*.log"))
            assert time.monotonic() < deadline, logs[-1].read_text(encoding="utf-8")[-3000:]
            time.sleep(0.5)

    def close(self) -> None:
        self._empty(1)
        self._empty(0)
        shutil.rmtree(self.session, ignore_errors=True)

    def _empty(self, index: int) -> None:
        deadline = time.monotonic() + 30
        while processes := self._processes(index):
            self._kill(processes)
            assert time.monotonic() < deadline
            time.sleep(0.2)

    @staticmethod
    def _kill(processes: Iterable[int]) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _start(self, index: int, before: list[str], *arguments: str, pythonpath: Path = ROOT) -> None:
        self.logs += 1
        command = [*self.namespaces.prefix(index), *before, str(BIN / "ray"), "start", "--block", *arguments]
        with (self.folder / f"ray{self.logs}.log").open("wb") as log:
            subprocess.Popen(
                [*command, f"--node-ip-address={self.namespaces.hosts[index]}", "--disable-usage-stats"],
                env=self._environment(pythonpath),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, pythonpath: Path) -> dict[str, str]:
        return environment(self.folder / "home") | {"PYTHONPATH": str(pythonpath)}

    def _processes(self, index: int) -> list[int]:
        command = ["ip", "netns", "pids", self.namespaces.name(index)]
        return [
            int(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        ]

    @staticmethod
    def _program(process: int) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{process}/exe").readlink().name
        return ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TwoMachines]:
    with namespaces_or_skip(2) as namespaces:
        made = TwoMachines(tmp_path, namespaces)
        try:
            made.begin()
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the run leaves in process."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
    run(load_config(folder / "run.yaml"), folder / "out")
    return folder / "out"


def a_run(cluster: TwoMachines, **ray: Any) -> tuple[subprocess.Popen[str], Path]:
    """The run, started on the cluster, with its folder."""
    file, out = cluster.folder / "run.yaml", cluster.hidden / "out"
    file.write_text(CONFIG, encoding="utf-8")
    sets = {"engine": "ray", "ray.address": cluster.address} | {f"ray.{key}": value for key, value in ray.items()}
    options = [text for key, value in sets.items() for text in ("--set", f"runtime.{key}={value}")]
    return cluster.start("run", str(file), "--out", str(out), *options), out


def reached(what: Callable[[], bool], process: subprocess.Popen[str], patience: float = 240.0) -> None:
    """Waits until something holds, while the process goes on."""
    deadline = time.monotonic() + patience
    while not what():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rounds(out: Path, at_least: int) -> Callable[[], bool]:
    return lambda: (out / "rounds.jsonl").is_file() and len(read_lines(out / "rounds.jsonl")) >= at_least


def test_machines_share_no_disk(cluster: TwoMachines, expected: Path) -> None:
    """A task needs two CPUs, which the second machine alone has: no client works where the server's files are."""
    process, out = a_run(cluster, cpus=2)
    reached(rounds(out, 0), process)
    cluster.join()  # and it may come late
    text = process.communicate(timeout=600)[0]
    assert process.returncode == 0, text
    assert_same_result(out, expected)


def test_a_machine_that_dies_is_noticed_and_its_clients_are_asked_again(cluster: TwoMachines, expected: Path) -> None:
    cluster.join()
    process, out = a_run(cluster, clients_per_task=5)
    reached(rounds(out, 10), process)
    answered = 0
    while answered < (now := len(read_lines(out / "rounds.jsonl"))):  # until the server waits for that machine
        assert process.poll() is None
        cluster.freeze()
        time.sleep(5.0)
        answered = now if len(read_lines(out / "rounds.jsonl")) == now else 0
    cluster.kill()
    text = process.communicate(timeout=600)[0]
    assert process.returncode == 0, text
    assert "Ray lost a machine" in text and "clients were asked again, and answered" in text
    assert "Raylet is terminated" not in text
    assert_same_result(out, expected)
    assert all(record["dropped"] == {} for record in read_lines(out / "rounds.jsonl"))


def test_without_a_machine_the_run_fails_and_says_why(cluster: TwoMachines) -> None:
    cluster.join()
    process, out = a_run(cluster, cpus=2, wait=5)
    reached(rounds(out, 5), process)
    cluster.kill()
    text = " ".join(process.communicate(timeout=600)[0].split())
    assert process.returncode == 1, text
    assert "the Ray cluster has had no machine with 2 CPUs for 5 s" in text and "Traceback" not in text
    assert not (out / "synthetic.csv").exists()


def test_a_machine_with_another_fedsyn_is_named(cluster: TwoMachines) -> None:
    other = cluster.folder / "other" / "fedsyn"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("", encoding="utf-8")
    (other / "version.py").write_text('__version__ = "0.0.1"\n', encoding="utf-8")
    cluster.join(pythonpath=other.parent)
    process, _ = a_run(cluster, cpus=2)
    text = " ".join(process.communicate(timeout=600)[0].split())
    assert process.returncode == 1, text
    assert "has fedsyn 0.0.1, the run has" in text and "install the same version on every machine" in text
    assert "Traceback" not in text


def test_a_sweep_outlives_its_machines(cluster: TwoMachines) -> None:
    """All cells are demanded at once, a machine that comes late works, and a cell may lose two machines."""
    base = CONFIG.replace("inprocess, seed: 0", f"inprocess, ray: {{cpus: 2, address: '{cluster.address}'}}")
    (cluster.folder / "base.yaml").write_text(base, encoding="utf-8")
    sweep, out = cluster.folder / "sweep.yaml", cluster.folder / "out"
    sweep.write_text("base: base.yaml\nseeds: [0, 1, 2]\n", encoding="utf-8")
    process = cluster.start("sweep", str(sweep), "--out", str(out), "--ray", cluster.address)

    def under_way() -> bool:
        return any(not (path.parent / "cell.json").exists() for path in out.glob("cells/*/rounds.jsonl"))

    reached(lambda: re.search(r"\{'CPU': 2\.0\}: 3\+? pending tasks", cluster.status()) is not None, process)
    for _ in range(2):
        cluster.join(hide=False)
        reached(under_way, process)
        cluster.kill()
        for path in out.glob("cells/*"):
            if not (path / "cell.json").exists():
                shutil.rmtree(path)  # what the lost machine began
    cluster.join(hide=False)
    text = process.communicate(timeout=600)[0]
    assert process.returncode == 0, text
    cells = [read_cell(path) for path in out.glob("cells/*")]
    assert [cell and cell["status"] for cell in cells] == ["done"] * 3
