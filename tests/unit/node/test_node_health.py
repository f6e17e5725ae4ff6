"""What a node tells its own machine about itself, and what its replies do not tell others."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import ConfigError
from fedsyn.flower.fleet import Incoming
from fedsyn.health import Health, Pages, Requests, SpentBudget, exposition, pages_of
from fedsyn.node.connection import EarlierLife, NodeConnection, WorkerProcess, leaves_after
from fedsyn.node.file import load_node_file
from fedsyn.node.serve import _only_one, is_served, look, said, serve
from fedsyn.node.task import MOST_ARRAYS, MOST_HEADER, Bounds, fits
from fedsyn.wire.refusals import Kind, Refusal
from support.node_folders import make_node

FACTS = {"node": 42, "last_contact": 1001.5, "seconds": 1, "worker_restarts": 3}


def link_of(tmp_path: Path) -> NodeConnection:
    """A link that has answered, and is in contact."""
    link = NodeConnection(make_node(tmp_path / "node"), Bounds())
    for outcome, count in (("answered", 5), ("refused", 2), ("failed", 1)):
        for _ in range(count):
            link.requests.count(outcome)
    link.seconds, link.worker.restarts, link.worker.ready = 1.9, 3, True
    link.contact.node, link.contact.last, link.contact.connected = 42, 1001.5, True
    return link


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages_of_a_node(tmp_path: Path) -> None:
    link = link_of(tmp_path)
    server = Pages("127.0.0.1:0", pages_of(link.look))
    port = server.port
    try:
        assert get(port, "/healthz") == (200, "alive\n")
        status, text = get(port, "/readyz")
        assert status == 200 and json.loads(text)["budget"]["limit"] == 10.0
        link.contact.connected, link.contact.problem = False, "the SuperLink cannot be reached"
        status, text = get(port, "/readyz")
        assert status == 503 and json.loads(text)["problems"] == ["the SuperLink cannot be reached"]
        assert get(port, "/healthz")[0] == 200 and get(port, "/status")[0] == 200
        assert get(port, "/etc/passwd")[0] == 404
        with pytest.raises(ConfigError, match=r"^listen: cannot listen on"):
            Pages(f"127.0.0.1:{port}", pages_of(link.look))
    finally:
        server.close()


def test_figures_in_prometheus_own_format(tmp_path: Path) -> None:
    link = link_of(tmp_path)
    lines = exposition(link.look().metrics()).splitlines()
    for line in (
        'fedsyn_node_requests_total{outcome="refused"} 2.0',
        "fedsyn_node_worker_restarts_total 3.0",
        "fedsyn_node_last_contact_seconds 1001.5",
        'fedsyn_node_epsilon_spent{delta="1e-05"} 0.0',
        'fedsyn_node_epsilon_limit{delta="1e-05"} 10.0',
        "fedsyn_node_ready 1.0",
        "fedsyn_node_answer_seconds_total 1.0",  # whole seconds: one answer's time depends on the rows
    ):
        assert line in lines
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    assert all(line.startswith("#") or line.split("{")[0].split()[0] in named for line in lines)
    link.contact.connected = False
    link.file.ledger_file.unlink()  # nobody knows what is spent
    lost = exposition(link.look().metrics())
    assert "fedsyn_node_ready 0.0" in lost and "epsilon" not in lost
    fresh = exposition(Health("node", "x", (), Requests("requests", "outcome", known=(("refused",),))).metrics())
    assert 'fedsyn_node_requests_total{outcome="refused"} 0.0' in fresh


def test_a_reply_leaves_at_one_of_few_times() -> None:
    assert [leaves_after(seconds) for seconds in (0.0, 0.01, 0.099, 0.1)] == [0.1] * 4
    assert {leaves_after(0.1 + step / 1000) for step in range(1, 100)} == {0.2}
    assert leaves_after(3.0) == pytest.approx(3.2)


def test_status_of_a_node_that_does_not_run(tmp_path: Path) -> None:
    file = load_node_file(make_node(tmp_path / "node"))
    assert not is_served(file)
    facts = look(file)
    assert facts["ready"] is False and "not running" in said(facts)
    well = Health("node", "north", (), Requests("requests", "outcome"), SpentBudget(0.5, 4.0, 1e-6, 2), FACTS)
    assert "spent: epsilon 0.5 of 4" in said(well.to_dict())


def test_no_second_process_serves_a_state(tmp_path: Path) -> None:
    file = load_node_file(make_node(tmp_path / "node"))
    with _only_one(file):
        with pytest.raises(ConfigError, match=r"another process serves .*; stop it first"), _only_one(file):
            pass
        assert is_served(file)
        started = subprocess.Popen(["sleep", "5"], close_fds=False)  # it keeps nothing of the lock
    with started:
        assert not is_served(file) and started.poll() is None
        started.kill()
    (file.state_folder / "lock").write_text(f"{os.getpid()}\n")  # a number that somebody else's process has now
    with _only_one(file):
        assert is_served(file)
    assert not is_served(file)


def test_a_node_without_its_files_does_not_start(tmp_path: Path) -> None:
    path = make_node(tmp_path / "node")
    (tmp_path / "node" / "node.key").unlink()
    with pytest.raises(ConfigError, match="key: no such file"):
        serve(path)


@pytest.mark.parametrize("what", ["state", "state/ledger.jsonl"])
def test_a_node_whose_ledger_others_may_write_does_not_start(tmp_path: Path, what: str) -> None:
    """Setting the rights right would hide that an older ledger may have been put there."""
    path = make_node(tmp_path / "node")
    touched = path.parent / what
    touched.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{touched} can be written by others than its owner"):
        serve(path)
    assert touched.stat().st_mode & 0o777 == 0o777


def test_what_the_worker_would_not_read_is_not_sent_to_it(tmp_path: Path) -> None:
    assert fits({"a": 1}, [b"x"])
    assert not fits({"a": "x" * MOST_HEADER})
    assert not fits({}, [b""] * (MOST_ARRAYS + 1))
    worker = WorkerProcess(tmp_path / "none.yaml", Bounds())
    told = worker.ask({"scalars": {"envelope": "x" * MOST_HEADER}}, [])[0]
    assert told["failed"] is True and "larger than this node reads" in told["scalars"]["answer"]
    assert worker._process is None  # nothing was started for it


class Fleet:
    """The link's connection, as far as it says which runs go on."""

    def __init__(self) -> None:
        self.over: set[int] = set()
        self.calls = 0

    def is_running(self, run: int) -> bool:
        self.calls += 1
        return run not in self.over


def test_runs_that_nobody_answered_are_not_kept_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, fleet = NodeConnection(make_node(tmp_path / "node"), Bounds()), Fleet()
    monkeypatch.setattr(link, "fleet", fleet)
    link.life.is_node(42)
    answers = {1: True, 2: False}
    ended: list[list[str]] = []

    def ask(header: dict[str, Any], blobs: object) -> tuple[dict[str, Any], list[bytes]]:
        ended.append(header["ended"])
        answered = {"answer": json.dumps({"ok": True})}
        scalars = answered if answers.get(header["run"], True) else Refusal(Kind.POLICY, "no").scalars
        return {"scalars": scalars, "arrays": []}, []

    monkeypatch.setattr(link.worker, "ask", ask)
    for run, name in ((1, "first"), (2, "first"), (3, "../x"), (4, "x" * 10_000)):
        link.answer(Incoming(run, {"run": name}, "", {}, {}, []))
    assert link.life.runs == {1: "first"} and EarlierLife(link.file).runs == {1: "first"}
    for run in range(100, 150):
        link._began(run, f"run-{run}")
    assert len(link.life.runs) <= 32
    fleet.calls, fleet.over = 0, {149}
    for _ in range(5):
        link.answer(Incoming(999, {"run": "another"}, "", {}, {}, []))
    assert ended[-5:] == [["run-149"], [], [], [], []] and fleet.calls <= 32


def test_what_is_known_of_an_earlier_life_is_of_the_same_key_and_superlink(tmp_path: Path) -> None:
    file = load_node_file(make_node(tmp_path / "node"))
    life = EarlierLife(file)
    assert life.node is None
    life.runs[7] = "first"
    life.is_node(42)
    again = EarlierLife(file)
    assert (again.node, again.runs) == (42, {7: "first"})
    assert EarlierLife(file.model_copy(update={"superlink": "elsewhere:1"})).node is None
    (file.state_folder / "node.json").write_text("[", encoding="utf-8")
    assert EarlierLife(file).node is None
