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
from test_flower import NODES, SECRET, echo, send

from fedsyn.config import RuntimeNode
from fedsyn.errors import ConfigError, RunError
from fedsyn.nodes.flower import ClientApp, ConfigRecord, Context, Message, RecordDict
from fedsyn.nodes.flower import ray_worker as worker
from fedsyn.nodes.flower.bridge import read_state, write_state
from fedsyn.nodes.flower.grid import InProcessGrid, new_message
from fedsyn.nodes.flower.messages import array_record, pack, read_reply
from fedsyn.nodes.flower.ray_cluster import Cluster, Needs, _knock, _shipped
from fedsyn.nodes.flower.ray_grid import RayGrid
from fedsyn.version import __version__

app = ClientApp()  # `echo`, and a node that dies the first time it is asked
seen: dict[str, int] = {}


@app.train()
def _answer(message: Message, context: Context) -> Message:
    order = message.content["config"]["order"]
    if order.startswith("die once:"):
        mark = Path(order.removeprefix("die once:"))
        write_state(context, "999")  # what the lost attempt remembers is lost
        if not mark.exists():
            mark.touch()
            os._exit(3)
        write_state(context, str(1))
    return echo(message, context)


def count(given: dict[str, int]) -> None:
    """The setup of a job."""
    seen.update(given)


def chunk(orders: list[str], states: list[Any]) -> bytes:
    """A chunk of messages to nodes 1, 2, ..., which share nothing."""
    grid = InProcessGrid(app, NODES, {"key": "value"})
    arrays = array_record([np.arange(6)])
    messages = [new_message(grid, pack(arrays, {"order": order}), i + 1, "7", 60.0) for i, order in enumerate(orders)]
    grid.push_messages(messages)
    for node, state in enumerate(states, 1):
        if state is not None:
            grid._contexts.keep(node, state)
    contexts = [grid.contexts[message.metadata.dst_node_id] for message in messages]
    asks = [worker.Ask(c, message.metadata, message.content) for c, message in zip(contexts, messages, strict=True)]
    return pickle.dumps(asks)


def job(setup: str = "") -> bytes:
    return pickle.dumps(worker.Job(f"{__name__}:app", setup))


def answers(*arguments: Any) -> list[worker.Answer]:
    found: list[worker.Answer] = pickle.loads(worker.work(*arguments))
    return found


# A task, here -------------------------------------------------------------------------------------------------------


def test_a_second_attempt_starts_from_the_same_state() -> None:
    first = answers(job(), None, None, chunk(["hello", "hello"], [None, None]))
    again = chunk(["hello", "hello"], [answer.state for answer in first])
    attempts = [answers(job(), None, None, again) for _ in range(2)]
    assert [[read_reply(a.reply)[1]["counter"] for a in attempt] for attempt in attempts] == [[2, 2], [2, 2]]
    assert [a.state for a in attempts[0]] == [a.state for a in attempts[1]] != [a.state for a in first]


def test_a_task_ends_when_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    three = chunk(["hello"] * 3, [None] * 3)
    one = answers(job(), None, None, three)[0]
    monkeypatch.setattr(worker, "ENOUGH_BYTES", one.size + 1)
    assert len(answers(job(), None, None, three)) == 2
    monkeypatch.setattr(worker, "ENOUGH_BYTES", 10**6)
    monkeypatch.setattr(worker, "ENOUGH_SECONDS", 0.0)
    assert len(answers(job(), None, None, three)) == 1


def test_what_all_get_reaches_each_as_it_was_sent() -> None:
    content = pack(array_record([np.arange(6)]), {"order": "scribble"})
    asks = [
        worker.Ask(ask.context, ask.metadata, None) for ask in pickle.loads(chunk(["hello", "hello"], [None, None]))
    ]
    found = answers(job(), None, pickle.dumps(content), pickle.dumps(asks))
    assert [len(read_reply(answer.reply)[0]) for answer in found] == [1, 1]


def test_the_setup_is_called_with_what_was_given() -> None:
    answers(job(f"{__name__}:count"), {"rows": 5}, None, chunk(["hello"], [None]))
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
        ("address", "ray://host:10001", "HOST:PORT of a Ray cluster, 'auto'"),
        ("address", "host", "HOST:PORT of a Ray cluster, 'auto'"),
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


def ray_grid(cluster: Cluster, **options: Any) -> RayGrid:
    needs = Needs(0.5, None, options.pop("retries", 1), 60.0)
    return RayGrid(app, f"{__name__}:app", NODES, {"key": "value"}, cluster=cluster, needs=needs, **options)


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("size", [None, 1, 3])
def test_ray_answers_as_this_process_does(cluster: Cluster, size: int | None) -> None:
    here, there = InProcessGrid(app, NODES, {"key": "value"}), ray_grid(cluster, clients_per_task=size)
    for orders in ({1: "hello", 3: "scribble"}, {3: "hello", 1: "hello", 2: "fail"}, {2: "hello"}):
        ours, theirs = send(here, orders), send(there, orders)
        assert sorted(ours) == sorted(theirs) == sorted(orders)
        for node, order in orders.items():
            if order == "fail":
                assert theirs[node].has_error() and SECRET not in str(theirs[node].error.reason)
            else:
                (arrays, facts), (others, told) = read_reply(ours[node]), read_reply(theirs[node])
                assert facts == told and all(map(np.array_equal, arrays, others)) and len(arrays) == len(others)
    states = [{node: read_state(context) for node, context in grid.contexts.items()} for grid in (here, there)]
    assert states[0] == states[1]


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
def test_a_late_reply_is_not_delivered_but_remembered(cluster: Cluster) -> None:
    grid = ray_grid(cluster, clients_per_task=3)
    assert sorted(send(grid, {1: "hello", 2: "sleep", 3: "hello"}, timeout=0.9)) == [1, 3]
    assert read_reply(send(grid, {2: "hello"})[2])[1]["counter"] == 2


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
def test_what_was_lost_with_its_process_is_asked_again(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = ray_grid(cluster, clients_per_task=3)
    send(grid, {1: "hello", 3: "hello"})
    replies = send(grid, {1: "hello", 2: f"die once:{tmp_path / 'mark'}", 3: "hello"})
    assert [read_reply(replies[node])[1]["counter"] for node in (1, 2, 3)] == [2, 2, 2]
    assert "Ray lost a process" in caplog.text and "3 clients were asked again" in caplog.text


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
def test_what_is_lost_again_and_again_ends_the_run(cluster: Cluster) -> None:
    with pytest.raises(RunError, match=r"Ray lost a process.*task of 1 clients; lost 2 times"):
        send(ray_grid(cluster), {1: "die"})


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
def test_what_can_be_pulled(cluster: Cluster) -> None:
    grid = ray_grid(cluster)
    content = pack(array_record([]), {"order": "x"})
    first, second = grid.push_messages([new_message(grid, content, node, "1", 60.0) for node in (2, 3)])
    assert [reply.metadata.reply_to_message_id for reply in grid.pull_messages([second, "unknown"])] == [second]
    assert [reply.metadata.src_node_id for reply in grid.pull_messages([first, second])] == [2]
    assert grid.pull_messages([first]) == []


@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
def test_what_this_machine_cannot_do(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="a task needs 100000 CPUs and 1 GB of memory, and this machine has less"):
        cluster.remote("builtins:len", Needs(100_000, 1.0, 0, 1.0))
    with pytest.raises(RunError, match=r"failed on a Ray worker with ModuleNotFoundError: .*no_such_module"):
        cluster.result(cluster.remote("no_such_module:f", Needs(1, None, 0, 1.0)).remote())
    with pytest.raises(RunError, match=r"failed on a Ray worker with ValueError$"):  # its text may quote anything
        cluster.result(cluster.remote("builtins:int", Needs(1, None, 0, 1.0)).remote(SECRET))


def test_messages_keep_their_records() -> None:
    """A `RecordDict` and its arrays survive the way to a worker and back."""
    content = RecordDict({"arrays": array_record([np.arange(3)]), "config": ConfigRecord({"a": 1, "b": [1.5]})})
    found = pickle.loads(pickle.dumps(content))
    assert found["config"] == content["config"] and np.array_equal(found["arrays"]["0"].numpy(), np.arange(3))
