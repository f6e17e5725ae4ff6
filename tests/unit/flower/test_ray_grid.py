"""The Ray Grid behaves as the in-process one; what was lost is asked again, from the state that it had."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_flower_direct import SECRET, Heard, Odd, ask, good, heard

from fedsyn.config import RuntimeNode
from fedsyn.errors import ConfigError, RunError
from fedsyn.flower import Context, NumPyClient
from fedsyn.flower import ray_grid as module
from fedsyn.flower.direct import DirectReply, DirectRequest, TableApp
from fedsyn.flower.grid import Contexts, InProcessGrid, State
from fedsyn.flower.ray_cluster import Cluster, Needs, _knock, _shipped
from fedsyn.flower.ray_grid import RayGrid, work
from fedsyn.flower.state import read_state, write_state
from fedsyn.version import __version__

seen: dict[str, int] = {}


class Mortal(Odd):
    """A client that dies the first time it is asked."""

    def once(self, parameters: list[np.ndarray], counter: int) -> Any:
        mark = Path(str(self.context.node_config["mark"]))
        write_state(self.context, "999")  # what the lost attempt remembers is lost
        if not mark.exists():
            mark.touch()
            os._exit(3)
        write_state(self.context, str(counter))
        return [], 0, good({"counter": counter})


def client_fn(context: Context) -> NumPyClient:
    return Mortal(str(context.node_config["does"]), context)


app = TableApp(client_fn)
PATH = f"{__name__}:app"


def count(given: dict[str, int]) -> None:
    """The setup of a job."""
    seen.update(given)


def chunk(does: list[str], states: list[State] | None = None) -> bytes:
    """A chunk of requests to nodes 1, 2, ..., which share what they are asked."""
    contexts = Contexts([{"does": name} for name in does], {})
    for node, state in enumerate(states or (), 1):
        contexts.keep(node, state)
    asked = DirectRequest.of([np.arange(6)], {"a": "b"})
    return pickle.dumps([(context, asked) for context in contexts.values()])


def answers(*arguments: Any) -> list[tuple[DirectReply, State]]:
    found: list[tuple[DirectReply, State]] = pickle.loads(work(*arguments))
    return found


# A task, here -------------------------------------------------------------------------------------------------------


def test_a_second_attempt_starts_from_the_same_state() -> None:
    first = answers(PATH, "", None, chunk(["echo", "echo"]))
    again = chunk(["echo", "echo"], [state for _, state in first])
    attempts = [answers(PATH, "", None, again) for _ in range(2)]
    assert [[state[0] for _, state in attempt] for attempt in attempts] == [["2", "2"], ["2", "2"]]
    assert [answered.scalars for answered, _ in attempts[0]] == [answered.scalars for answered, _ in attempts[1]]
    assert [state[0] for _, state in first] == ["1", "1"]


def test_a_task_ends_when_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    three = chunk(["echo"] * 3)
    one, state = answers(PATH, "", None, three)[0]
    monkeypatch.setattr(module, "ENOUGH_BYTES", one.size + len(state[0] or "") + 1)
    assert len(answers(PATH, "", None, three)) == 2
    monkeypatch.setattr(module, "ENOUGH_BYTES", 10**6)
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 0.0)
    assert len(answers(PATH, "", None, three)) == 1


def test_the_setup_is_called_with_what_was_given() -> None:
    answers(PATH, f"{__name__}:count", {"rows": 5}, chunk(["echo"]))
    assert seen == {"rows": 5}


def test_a_machine_with_another_fedsyn_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr("fedsyn.output.no_tracebacks", lambda: made.append(True))  # this is no process of Ray's
    assert _shipped("builtins:len", __version__)("four") == ("", 4) and made == [True]
    text, value = _shipped("builtins:len", "0.0.1")("four")
    assert value is None and f"has fedsyn {__version__}, the run has 0.0.1: install the same version" in text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("address", "ray://host:10001", "HOST:PORT, .*of a Ray cluster; or 'auto'"),
        ("address", "host", "HOST:PORT, .*of a Ray cluster; or 'auto'"),
        ("cpus", 1.5, "a whole number of CPUs"),
        ("retries", -1, "greater than or equal to 0"),
    ],
)
def test_bad_keys(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RuntimeNode(ray={key: value})


def test_a_cluster_that_is_not_there() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"runtime.ray: no Ray cluster answers at '{address}'"):
            _knock(address, "runtime.ray")


@pytest.mark.parametrize("slow", [2, 3])
def test_a_ray_that_starts_too_slowly_is_started_again(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own limit cannot be reached at will on a machine that has the time: here `init` says what it says then."""
    ray, tries = pytest.importorskip("ray"), []

    def init(**options: Any) -> None:
        tries.append(options["address"])
        if len(tries) <= slow:
            kind = Exception if len(tries) == 1 else RuntimeError
            raise kind("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if slow < 3:
        assert Cluster(None, "runtime.ray").started
    else:
        with pytest.raises(ConfigError, match=r"runtime\.ray: cannot start Ray: .*: after 3 tries, The current node"):
            Cluster(None, "runtime.ray")
    assert tries == ["local"] * 3


# A cluster of this machine -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    own = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    made = Cluster(None, "runtime.ray", {"env_vars": {"PYTHONPATH": own}})
    yield made
    made.close()
    assert not made.ray.is_initialized()


def ray_grid(
    cluster: Cluster, does: list[str], *, mark: str = "", retries: int = 1, size: int | None = None
) -> RayGrid:
    nodes, needs = [{"does": name, "mark": mark} for name in does], Needs(0.5, None, 1, 60.0)
    return RayGrid(app, PATH, nodes, {}, cluster=cluster, needs=needs, clients_per_task=size)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("size", [None, 1, 3])
def test_ray_answers_as_this_process_does(cluster: Cluster, size: int | None) -> None:
    does = ["echo", "shapes", "raises", "writes", "nothing"]
    here = InProcessGrid(app, [{"does": name, "mark": ""} for name in does], {})
    there = ray_grid(cluster, does, size=size)
    assert there.is_direct
    ours, theirs = heard(here), heard(there)
    assert isinstance(ours, Heard) and ours == theirs and SECRET not in repr(theirs)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_late_reply_is_not_delivered_but_remembered(cluster: Cluster) -> None:
    grid = ray_grid(cluster, ["echo", "sleep", "echo"], size=3)
    assert sorted(ask(grid, 1, 2, 3, timeout=0.9)) == [1, 3]
    assert ask(grid, 2)[2].params["counter"] == 2


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_what_was_lost_with_its_process_is_asked_again(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = ray_grid(cluster, ["echo", "once", "echo"], mark=str(tmp_path / "mark"), size=3)
    ask(grid, 1, 3)
    replies = ask(grid, 1, 2, 3)
    assert [replies[node].params["counter"] for node in (1, 2, 3)] == [2, 1, 2]
    assert [read_state(context) for context in grid.contexts.values()] == ["2", "1", "2"]
    assert "Ray lost a process" in caplog.text and "3 clients were asked again" in caplog.text


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_what_is_lost_again_and_again_ends_the_run(cluster: Cluster) -> None:
    with pytest.raises(RunError, match=r"Ray lost a process.*task of 1 clients; lost 2 times"):
        ask(ray_grid(cluster, ["die"]), 1)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_what_this_machine_cannot_do(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="a task needs 100000 CPUs and 1 GB of memory, and this machine has less"):
        cluster.remote("builtins:len", Needs(100_000, 1.0, 0, 1.0))
    with pytest.raises(RunError, match=r"failed on a Ray worker with ModuleNotFoundError: .*no_such_module"):
        cluster.result(cluster.remote("no_such_module:f", Needs(1, None, 0, 1.0)).remote())
    with pytest.raises(RunError, match=r"failed on a Ray worker with ValueError$"):  # its text may quote anything
        cluster.result(cluster.remote("builtins:int", Needs(1, None, 0, 1.0)).remote(SECRET))
