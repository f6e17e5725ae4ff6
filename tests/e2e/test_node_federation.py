"""Nodes of data holders on a real SuperLink: each of their processes killed in the middle of secure sums."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.loopback import BIN, ROOT, Federation, environment, free_port
from support.node_folders import SCHEMA, make_node

pytestmark = [pytest.mark.xdist_group("flower"), pytest.mark.slow]

RUN = """
mechanism:   {name: sketch_aim, rounds: 2}
data:        {source: survey, schema: schema.yaml}
federation:  {clients: 3, minimum_cohort: 3, timeout: 120, connect_timeout: 120}
privacy:     {epsilon: 1.0, delta: 1.0e-6, client_sizes: private}
workload:    {degree: 2, size: null}
aggregation: {protocol: secagg, noise: distributed}
evaluation:  []
runtime:     {engine: deployment, superlink: loopback}
"""


class Nodes:
    """Three nodes of a federation, by number."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.files: list[Path] = []
        self.listens = [free_port() for _ in range(3)]
        for number, listen in enumerate(self.listens):
            folder = federation.folder / f"node-{number}"
            address = {"superlink": f"127.0.0.1:{federation.port}", "listen": f"127.0.0.1:{listen}"}
            self.files.append(make_node(folder, number, **address))
            self.start(number)

    def start(self, number: int) -> None:
        name = f"node-{number}"
        self.federation._start(
            name,
            [str(BIN / "fedsyn"), "node", "serve", str(self.files[number])],
            self.federation.folder / f"{name}-home",
        )

    def page(self, number: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.listens[number]}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until_ready(self, number: int, ready: bool = True) -> None:
        self.until(lambda: (self.page(number, "/readyz")[0] == 200) is ready)

    def until(self, true: object) -> None:
        end = time.monotonic() + 90.0
        while not true():  # type: ignore[operator]
            assert time.monotonic() < end, "\n".join(self.federation.log(f"node-{k}")[-2000:] for k in range(3))
            time.sleep(0.02)

    def lines(self, number: int, name: str) -> list[dict[str, object]]:
        path = self.files[number].parent / "state" / name
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def asked(self, number: int) -> int:
        return sum(line["event"] == "asked" for line in self.lines(number, "audit.jsonl"))

    def processes(self, number: int, part: str = "") -> list[int]:
        """Pids of a node, that of `node serve` first; `part` is of the command."""
        found = [self.federation.processes[f"node-{number}"].pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in task.read_text().split()]
        return [pid for pid in found if part in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    federation = Federation(tmp_path)
    try:
        yield Nodes(federation)
    finally:
        federation.close()


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_run_survives_the_death_of_every_part_of_its_nodes(nodes: Nodes) -> None:
    dead: list[str] = []

    def killer() -> None:
        nodes.until(lambda: nodes.asked(0) >= 4)
        kill(nodes.processes(0, "fedsyn.node.worker"))
        dead.append("worker")
        nodes.until(lambda: nodes.asked(1) >= 6)
        whole = nodes.processes(1)
        kill(whole)
        nodes.federation.processes["node-1"].wait(10.0)
        nodes.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in whole))  # no orphan stays
        nodes.start(1)
        dead.append("node")
        nodes.until(lambda: nodes.asked(2) >= 8)
        kill(nodes.processes(2, "node\0serve"))
        nodes.federation.processes["node-2"].wait(10.0)
        nodes.start(2)
        dead.append("link")

    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    out = nodes.federation.folder / "out"
    done = nodes.federation.fedsyn_run(nodes.federation.folder / "run.yaml", out)
    assert done.returncode == 0, done.stderr
    thread.join(1.0)
    assert dead == ["worker", "node", "link"]
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert all(not line["dropped"] and line["cohort"] == [0, 1, 2] for line in rounds)
    # What each node released is what it charged, once, whatever was killed; and what the server accounts for.
    ledger = json.loads((out / "ledger.json").read_text())
    expected = sorted((entry["name"], entry["round"]) for entry in ledger["releases"])
    for number in range(3):
        charged = [line["release"] for line in nodes.lines(number, "ledger.jsonl") if line["entry"] == "charge"]
        assert sorted((each["name"], each["round"]) for each in charged) == expected
        assert nodes.page(number, "/healthz") == (200, "alive\n")
        status, text = nodes.page(number, "/metrics")
        assert status == 200 and 'fedsyn_node_requests_total{outcome="answered"}' in text
        assert "fedsyn_node_epsilon_spent" in text
    assert "fedsyn_node_worker_restarts_total 1.0\n" in nodes.page(0, "/metrics")[1]


def test_nodes_wait_for_a_superlink_and_leave_it_politely(nodes: Nodes) -> None:
    federation = nodes.federation
    nodes.until_ready(0)
    kill([federation.processes["superlink"].pid])
    federation.processes["superlink"].wait(10.0)
    nodes.until_ready(0, ready=False)
    status, text = nodes.page(0, "/readyz")
    assert status == 503 and "cannot be reached" in text
    again = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(federation.port)]
    federation._start("superlink", again, federation.folder / "superlink-home")  # it knows nobody
    nodes.until_ready(0)
    process = federation.processes["node-0"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20.0) == 0
    assert "Deactivated node_id" in federation.log("superlink")


def test_a_node_killed_at_once_is_back_within_seconds(nodes: Nodes) -> None:
    nodes.until_ready(1)
    known = json.loads((nodes.files[1].parent / "state" / "node.json").read_text())
    kill(nodes.processes(1))
    nodes.federation.processes["node-1"].wait(10.0)
    nodes.start(1)
    nodes.until_ready(1)
    assert json.loads((nodes.files[1].parent / "state" / "node.json").read_text()) == known
    log = nodes.federation.log("node-1")
    assert "counts as online" not in log  # Flower's own node would be refused for a minute


class Unit:
    """A unit's command, started again by the unit's own rules: no systemd runs where the tests do."""

    def __init__(self, federation: Federation, file: Path) -> None:
        parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
        parser.read(ROOT / "deploy" / "systemd" / "fedsyn-node@.service", encoding="utf-8")
        service = parser["Service"]
        assert service["Restart"] == "always"
        program, *words = service["ExecStart"].split()
        words = [word.replace("/var/lib/fedsyn/%i", str(file.parent)) for word in words]
        self.command = [str(BIN / Path(program).name), *words]
        self.pause, self.final = float(service["RestartSec"]), int(service["RestartPreventExitStatus"])
        self.federation, self.stopping = federation, threading.Event()
        self.codes: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with (self.federation.folder / "unit.log").open("ab") as log:
            while not self.stopping.is_set() and self.final not in self.codes:
                self.process = subprocess.Popen(
                    self.command, env=environment(self.federation.folder / "unit-home"), stdout=log, stderr=log
                )
                self.codes.append(self.process.wait())
                self.stopping.wait(self.pause)

    def stop(self) -> None:
        self.stopping.set()
        if self.process is not None:
            self.process.terminate()
        self.thread.join(60.0)


def test_the_unit_brings_a_killed_node_back(nodes: Nodes) -> None:
    """kill -9 of `node serve`: the unit's command is started again, with the same ledger, and the node is ready."""
    federation, ledger = nodes.federation, nodes.files[0].parent / "state" / "ledger.jsonl"
    os.kill(federation.processes["node-0"].pid, signal.SIGTERM)
    federation.processes["node-0"].wait(60.0)
    before, unit = ledger.read_bytes(), Unit(federation, nodes.files[0])
    try:
        nodes.until_ready(0)
        assert unit.process is not None
        first = unit.process.pid
        os.kill(first, signal.SIGKILL)
        end = time.monotonic() + 60.0
        while not unit.codes:
            assert time.monotonic() < end
            time.sleep(0.05)
        nodes.until_ready(0, ready=False)
        nodes.until_ready(0)
        assert unit.codes == [-signal.SIGKILL] and unit.process.pid != first
        assert ledger.read_bytes() == before
    finally:
        unit.stop()


def test_a_second_process_does_not_serve_the_same_state(nodes: Nodes) -> None:
    nodes.until_ready(2)
    nodes.federation._start(
        "second", [str(BIN / "fedsyn"), "node", "serve", str(nodes.files[2])], nodes.federation.folder / "second-home"
    )
    assert nodes.federation.processes["second"].wait(60.0) == 2
    assert "another process serves" in nodes.federation.log("second")
