"""What a node tells its own machine about itself, and what its replies do not tell others."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedsyn.errors import ConfigError
from fedsyn.node.file import load_node_file
from fedsyn.node.health import Budget, Figures, Health, listen, metrics
from fedsyn.node.link import EarlierLife, WorkerProcess, leaves_after
from fedsyn.node.processes import Bounds
from fedsyn.node.serve import is_served, serve
from fedsyn.node.status import look, said
from fedsyn.node.task import MOST_ARRAYS, MOST_HEADER, fits
from tests.node_folders import make_node

FIGURES = Figures(answered=5, refused=2, failed=1, seconds=1.9, restarts=3, started=1000.0)
WELL = Health("north", 42, (), 1001.5, FIGURES, Budget(0.5, 4.0, 1e-6, 2))
LOST = Health("north", None, ("the SuperLink cannot be reached",), 0.0, FIGURES, None)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages_of_a_node() -> None:
    state = [WELL]
    server = listen("127.0.0.1:0", lambda: state[0])
    port = server.server_port
    try:
        assert get(port, "/healthz") == (200, "alive\n")
        status, text = get(port, "/readyz")
        assert status == 200 and json.loads(text)["budget"]["limit"] == 4.0
        state[0] = LOST
        status, text = get(port, "/readyz")
        assert status == 503 and json.loads(text)["problems"] == ["the SuperLink cannot be reached"]
        assert get(port, "/healthz")[0] == 200 and get(port, "/status")[0] == 200
        assert get(port, "/etc/passwd")[0] == 404
        with pytest.raises(ConfigError, match="cannot be listened at"):
            listen(f"127.0.0.1:{port}", lambda: WELL)
    finally:
        server.shutdown()
        server.server_close()


def test_figures_in_prometheus_own_format() -> None:
    lines = metrics(WELL).splitlines()
    for line in (
        'fedsyn_node_requests_total{outcome="refused"} 2',
        "fedsyn_node_worker_restarts_total 3",
        "fedsyn_node_last_contact_seconds 1001.5",
        'fedsyn_node_epsilon_spent{delta="1e-06"} 0.5',
        'fedsyn_node_epsilon_limit{delta="1e-06"} 4',
        "fedsyn_node_ready 1",
        "fedsyn_node_answer_seconds_total 1",  # whole seconds: one answer's time depends on the rows
    ):
        assert line in lines
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    assert all(line.startswith("#") or line.split("{")[0].split()[0] in named for line in lines)
    assert "fedsyn_node_ready 0" in metrics(LOST) and "epsilon" not in metrics(LOST)


def test_a_reply_leaves_at_one_of_few_times() -> None:
    assert [leaves_after(seconds) for seconds in (0.0, 0.01, 0.099, 0.1)] == [0.1] * 4
    assert {leaves_after(0.1 + step / 1000) for step in range(1, 100)} == {0.2}
    assert leaves_after(3.0) == pytest.approx(3.2)


def test_status_of_a_node_that_does_not_run(tmp_path: Path) -> None:
    file = load_node_file(make_node(tmp_path / "node"))
    assert not is_served(file)
    facts = look(file)
    assert facts["ready"] is False and "not running" in said(facts)
    assert "spent: epsilon 0.5 of 4" in said(WELL.to_dict())


def test_a_node_without_its_files_does_not_start(tmp_path: Path) -> None:
    path = make_node(tmp_path / "node")
    (tmp_path / "node" / "node.key").unlink()
    with pytest.raises(ConfigError, match="key: no such file"):
        serve(path)


def test_what_the_worker_would_not_read_is_not_sent_to_it(tmp_path: Path) -> None:
    assert fits({"a": 1}, [b"x"])
    assert not fits({"a": "x" * MOST_HEADER})
    assert not fits({}, [b""] * (MOST_ARRAYS + 1))
    worker = WorkerProcess(tmp_path / "none.yaml", Bounds(), Figures())
    told = worker.ask({"scalars": {"envelope": "x" * MOST_HEADER}}, [])[0]
    assert told["failed"] is True and "larger than this node reads" in told["scalars"]["answer"]
    assert worker._process is None  # nothing was started for it


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
