"""The in-process Grid behaves as Flower's own: copies, error replies, one context per node, late replies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from flwr.app import Error
from flwr.compat.client.numpy_client import NumPyClient

from fedsyn.errors import ConfigError, DataError, NodeError, ProtocolError
from fedsyn.flower import ArrayRecord, ClientApp, ConfigRecord, Context, Message, RecordDict
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import array_record, content_bytes, pack, read_reply
from fedsyn.flower.state import read_state, write_state

SECRET = "4711-diagnosis"
echo = ClientApp()  # answers with what it was asked, and with what it knows


@echo.train()
def _echo(message: Message, context: Context) -> Message:
    order = message.content["config"]["order"]
    if order == "fail":
        raise ValueError(f"could not convert {SECRET}")
    if order == "sleep":
        time.sleep(1.0)
    counter = int(read_state(context) or 0) + 1
    write_state(context, str(counter))
    facts = {
        "counter": counter,
        "node": context.node_id,
        "name": str(context.node_config["name"]),
        "run": str(context.run_config["key"]),
        "group": message.metadata.group_id,
    }
    doubled = [2 * array.numpy() for array in message.content["arrays"].values()]
    if order == "scribble":  # a client that changes what it received
        message.content["config"]["order"] = SECRET
        message.content["arrays"]["more"] = message.content["arrays"]["0"]
    return Message(RecordDict({"arrays": array_record(doubled), "config": ConfigRecord(facts)}), reply_to=message)


NODES = [{"name": "zero"}, {"name": "one"}, {"name": "two"}]


def serial() -> InProcessGrid:
    return InProcessGrid(echo, NODES, {"key": "value"})


def send(grid: InProcessGrid, orders: dict[int, str], timeout: float | None = 60) -> dict[int, Message]:
    shared = array_record([np.arange(6).reshape(2, 3), np.array([0.5])])
    messages = [grid.new_message(pack(shared, {"order": order}), node, "7", 60.0) for node, order in orders.items()]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    for message, (node, order) in zip(messages, orders.items(), strict=True):
        assert message.metadata.dst_node_id == node and message.content["config"]["order"] == order
        assert list(message.content["arrays"]) == ["0", "1"]
    assert list(shared) == ["0", "1"]
    return {reply.metadata.src_node_id: reply for reply in replies}


def test_every_node_answers_with_its_own_context() -> None:
    grid = serial()
    assert list(grid.get_node_ids()) == [1, 2, 3]
    before = {node: int(read_state(context) or 0) for node, context in grid.contexts.items()}
    send(grid, {1: "hello", 3: "hello"})
    replies = send(grid, {3: "hello", 1: "hello", 2: "hello"})
    assert sorted(replies) == [1, 2, 3]
    for node, reply in replies.items():
        arrays, facts = read_reply(reply)
        np.testing.assert_array_equal(arrays[0], 2 * np.arange(6).reshape(2, 3))
        assert facts.pop("counter") == before[node] + (1 if node == 2 else 2)
        assert facts == {"node": node, "name": NODES[node - 1]["name"], "run": "value", "group": "7"}
        assert reply.metadata.dst_node_id == 0 and reply.metadata.reply_to_message_id


def test_a_client_cannot_change_the_servers_or_anothers_records() -> None:
    grid = serial()
    replies = send(grid, {1: "scribble", 2: "hello"})  # `send` checks what the server holds afterwards
    assert len(read_reply(replies[2])[0]) == 2


def test_an_exception_becomes_an_error_reply_without_its_text() -> None:
    grid = serial()
    replies = send(grid, {1: "hello", 2: "fail", 3: "hello"})
    assert sorted(replies) == [1, 2, 3]
    assert replies[2].has_error() and SECRET not in str(replies[2].error.reason)
    with pytest.raises(ProtocolError, match="error code 0"):
        read_reply(replies[2])
    assert read_reply(replies[3])[1]["name"] == "two"


def test_a_late_reply_is_not_delivered_but_remembered_by_its_client() -> None:
    grid = serial()
    before = int(read_state(grid.contexts[2]) or 0)
    replies = send(grid, {1: "hello", 2: "sleep", 3: "hello"}, timeout=0.9)
    assert 2 not in replies and replies
    after = read_reply(send(grid, {2: "hello"})[2])[1]["counter"]
    assert after == before + 2


def test_pushed_messages_can_be_pulled() -> None:
    grid = serial()
    messages = [grid.new_message(pack(array_record([]), {"order": "x"}), node, "1", 60.0) for node in (2, 3)]
    first, second = grid.push_messages(messages)
    (reply,) = grid.pull_messages([second])
    assert reply.metadata.src_node_id == 3 and reply.metadata.reply_to_message_id == second
    assert [r.metadata.src_node_id for r in grid.pull_messages([first, second, "unknown"])] == [2]


# A client half behind messages, and what a message weighs ------------------------------------------------------------


class Doubler(NumPyClient):
    def fit(self, parameters: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
        if config.get("raise"):
            kinds = {"data": DataError, "config": ConfigError, "node": NodeError, "value": ValueError}
            raise kinds[config["raise"]](f"about {SECRET}")
        return [2 * p for p in parameters], 0, {"answer": f"{len(parameters)} arrays"}


def asked_by_message(config: dict, arrays: list[np.ndarray]) -> Message:
    grid = InProcessGrid(TableApp(lambda context: Doubler()), [{}], {}, direct=False)
    return next(iter(grid.send_and_receive([grid.new_message(pack(array_record(arrays), config), 1, "", 60.0)])))


@pytest.mark.parametrize("arrays", [[], [np.arange(4)], [np.zeros((2, 0)), np.array(3.5), np.ones(2, np.uint16)]])
def test_a_request_comes_to_fit_and_its_result_as_a_reply(arrays: list[np.ndarray]) -> None:
    received, facts = read_reply(asked_by_message({"a": 1}, arrays))
    assert facts == {"answer": f"{len(arrays)} arrays"}
    assert len(received) == len(arrays)
    for ours, theirs in zip(arrays, received, strict=True):
        np.testing.assert_array_equal(theirs, 2 * ours)
        assert theirs.shape == ours.shape and theirs.dtype == (2 * ours).dtype


@pytest.mark.parametrize(
    ("kind", "told"), [("data", "own log"), ("value", "own log"), ("config", "not valid for this node")]
)
def test_the_bridge_lets_no_text_of_an_error_out(kind: str, told: str) -> None:
    reply = asked_by_message({"raise": kind}, [])
    arrays, facts = read_reply(reply)
    assert arrays == [] and told in facts["answer"] and SECRET not in repr(reply.content)


def test_the_bridge_passes_on_what_a_node_says_on_purpose() -> None:
    _, facts = read_reply(asked_by_message({"raise": "node"}, []))
    assert f"about {SECRET}" in facts["answer"]  # whoever raises it answers for its words


def reply_with(content: RecordDict) -> Message:
    grid = serial()
    request = grid.new_message(pack(ArrayRecord(), {"order": "x"}), 1, "", 60.0)
    return Message(content, reply_to=request)


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([1 + 2j]), np.array(["2020-01-01"], "datetime64[D]"), np.zeros(2, "u1,f4")]
)
def test_only_numbers_are_read(array: np.ndarray) -> None:
    with pytest.raises(ProtocolError):
        read_reply(reply_with(RecordDict({"arrays": array_record([array]), "config": ConfigRecord({})})))


def test_an_error_reply_is_a_protocol_error_without_its_text() -> None:
    grid = serial()
    request = grid.new_message(pack(ArrayRecord(), {"order": "x"}), 1, "", 60.0)
    with pytest.raises(ProtocolError) as caught:
        read_reply(Message(Error(code=5, reason=SECRET), reply_to=request))
    assert "error code 5" in str(caught.value) and SECRET not in str(caught.value)
    with pytest.raises(ProtocolError, match="error code 2") as caught:
        read_reply(Message(Error(code=2, reason=SECRET), reply_to=request))
    assert SECRET not in str(caught.value)


def test_content_bytes_counts_arrays_and_scalars() -> None:
    small = content_bytes(pack(array_record([np.zeros(10, np.uint8)]), {"k": "abc"}))
    large = content_bytes(pack(array_record([np.zeros(1010, np.uint8)]), {"k": "abcd"}))
    assert large - small == 1001  # NumPy pads the header, so that its length is that of both
    assert 10 + 3 < small < 300
