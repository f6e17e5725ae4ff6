"""The server's loop over a Grid of a deployment: who is offline, who is slow, and who is asked again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedsyn.errors import RunError
from fedsyn.flower import patient as module
from fedsyn.flower.messages import apart, array_record, is_together
from fedsyn.flower.patient import PatientGrid, patient
from fedsyn.protocol.joining import Queue, wait_for_nodes
from fedsyn.wire.refusals import Kind

UNAVAILABLE = 5  # Flower's code for a node that the SuperLink cannot reach
Nodes = dict[int, Callable[[int], str]]


class Link(HttpGrid):
    """A SuperLink in memory behind Flower's own HTTP Grid: each node is a function of how often it was asked.

    A node says 'answer', 'silent', 'offline', 'half' (it announces a reply and is killed before it sends the rest), or
    'late' (the rest comes a while after, and is not known before).
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(token="x")
        self.nodes, self.activated = nodes, dict.fromkeys(nodes, "first")
        self.gone: set[int] = set()
        self.asked: dict[int, list[RecordDict]] = {node: [] for node in nodes}
        self.waiting: dict[str, Message] = {}
        self.objects: dict[str, bytes] = {}
        self.later: dict[str, tuple[float, bytes]] = {}
        self.numbers = itertools.count()

    @property
    def _runtime_client(self) -> Any:
        return self

    def push_messages(self, messages: Any) -> list[str]:
        names = []
        for message in messages:
            name = f"m{next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            self.asked[message.metadata.dst_node_id].append(message.content)
            names.append(name)
        return names

    def get_nodes(self) -> list[NodeInfo]:
        there = {node: since for node, since in self.activated.items() if node not in self.gone}
        return [NodeInfo(node_id=node, last_activated_at=since) for node, since in there.items()]

    # Flower's Runtime API
    def PullMessages(self, request: Any) -> Any:
        got = SimpleNamespace(messages_list=[], message_object_trees=[])
        for name in sorted(request.message_ids):
            message = self.waiting.get(name)
            if message is None:
                # Imported here: with it comes Flower's database.
                from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message

                # It was announced before, or never sent: a SuperLink says so by an error.
                lost = create_message_error_unavailable_ins_message(name, 1)
                self.objects |= {key: each.deflate() for key, each in get_all_nested_objects(lost).items()}
                got.messages_list.append(message_to_proto(lost))
                got.message_object_trees.append(get_object_tree(lost))
                continue
            node = message.metadata.dst_node_id
            does = self.nodes[node](len(self.asked[node])) if node in self.activated else "offline"
            if does == "silent":
                continue
            del self.waiting[name]
            content = RecordDict({"config": ConfigRecord({"from": node})})
            reply = Message(content, reply_to=message)
            if does == "offline":
                reply = Message(Error(UNAVAILABLE, "away"), reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = {key: each.deflate() for key, each in get_all_nested_objects(reply).items()}
            tree: ObjectTree = get_object_tree(reply)
            if does == "late":
                self.later |= {key: (time.monotonic() + 4 * module._OBJECT, each) for key, each in objects.items()}
            self.objects |= dict.fromkeys(objects, b"") if does in ("half", "late") else objects
            got.messages_list.append(message_to_proto(reply))
            got.message_object_trees.append(tree)
        return got

    def PullObject(self, request: Any) -> PullObjectResponse:
        content = self.objects[request.object_id]
        when, late = self.later.get(request.object_id, (0.0, b""))
        if late and time.monotonic() < when:
            return PullObjectResponse(object_found=False, object_available=False)
        content = content or late
        return PullObjectResponse(object_found=True, object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:
        return ConfirmMessageReceivedResponse()


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK", 0.05), ("_RETURN", 0.3), ("_OBJECT", 0.1), ("_AGAIN", 30.0)):
        monkeypatch.setattr(module, name, seconds)
    for name, number in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):  # as in a server app's process
        monkeypatch.setattr(TaskIdentity, name, number)


def ask(link: Link, again: tuple[int, ...] = (), timeout: float = 1.0) -> tuple[PatientGrid, dict[int, Message]]:
    grid = PatientGrid(link)
    grid.get_node_ids()
    for node in again:
        grid.answers_again(node)
    content = RecordDict({"config": ConfigRecord({"same": "bytes"})})
    sent = [Message(content, node, "train", ttl=60.0) for node in link.nodes]
    replies = grid.send_and_receive(sent, timeout=timeout)
    return grid, {reply.metadata.src_node_id: reply for reply in replies}


def test_only_a_deployments_grid_is_wrapped() -> None:
    link = Link({})
    assert isinstance(patient(link), PatientGrid)
    other: Any = object()
    assert patient(other) is other


def test_everybodys_reply_comes_once() -> None:
    _, replies = ask(Link(dict.fromkeys((1, 2, 3), lambda asked: "answer")))
    assert {node: reply.content["config"]["from"] for node, reply in replies.items()} == {1: 1, 2: 2, 3: 3}


def test_offline_is_told_from_slow() -> None:
    link = Link({1: lambda asked: "answer", 2: lambda asked: "offline", 3: lambda asked: "silent"})
    grid, replies = ask(link, timeout=0.3)
    assert sorted(replies) == [1, 2]
    assert replies[2].has_error() and grid.silence(2, "sizes", 60, replies[2]).kind is Kind.OFFLINE
    assert grid.silence(3, "sizes", 60).kind is Kind.SLOW
    assert [len(link.asked[node]) for node in (1, 2, 3)] == [1, 1, 1]  # nobody said that it answers again


def test_a_node_that_comes_back_gets_the_same_bytes_again() -> None:
    link = Link({1: lambda asked: "offline" if asked == 1 else "answer"})
    grid, replies = ask(link, again=(1,))
    assert replies[1].has_content() and len(link.asked[1]) == 2
    first, second = link.asked[1]
    assert first.object_id == second.object_id
    assert grid.silence(1, "sizes", 60).kind is Kind.SLOW  # no longer offline


def test_a_node_that_was_started_anew_is_asked_at_once() -> None:
    def silent_until_restarted(asked: int) -> str:
        link.activated[1] = "second"  # killed after it took the message, and back before anybody noticed
        return "silent" if asked == 1 else "answer"

    link = Link({1: silent_until_restarted})
    _, replies = ask(link, again=(1,))
    assert replies[1].has_content() and len(link.asked[1]) == 2


def test_a_reply_that_was_broken_off_is_asked_for_again() -> None:
    link = Link({1: lambda asked: "half" if asked == 1 else "answer", 2: lambda asked: "half"})
    _, replies = ask(link, again=(1,))
    assert replies[1].has_content() and len(link.asked[1]) == 2
    assert 2 not in replies and len(link.asked[2]) == 1  # its reply is waited for until the request's own end


def test_the_reply_of_a_node_that_is_not_asked_again_may_take_its_time() -> None:
    link = Link({1: lambda asked: "answer", 2: lambda asked: "late"})
    _, replies = ask(link, timeout=5.0)
    assert {node: reply.has_error() for node, reply in replies.items()} == {1: False, 2: False}
    assert len(link.asked[2]) == 1


def test_a_node_that_goes_in_the_middle_of_its_reply_is_not_waited_for() -> None:
    def half(asked: int) -> str:
        link.gone.add(2)
        return "half"

    link = Link({1: lambda asked: "answer", 2: half})
    grid, replies = ask(link, timeout=5.0)
    assert {node: reply.has_error() for node, reply in replies.items()} == {1: False, 2: True}
    assert grid.silence(2, "sizes", 60).kind is Kind.OFFLINE and len(link.asked[2]) == 1


def test_arrays_travel_together_to_those_who_answer_again_only() -> None:
    link = Link(dict.fromkeys((1, 2, 3), lambda asked: "answer"))
    grid = PatientGrid(link)
    grid.get_node_ids()
    for node in (1, 3):
        grid.answers_again(node)
    record = array_record([np.arange(3), np.arange(4)])
    content = RecordDict({"arrays": record, "config": ConfigRecord({})})
    sent = [Message(content, node, "train", ttl=60.0) for node in link.nodes]
    assert len(grid.send_and_receive(sent, timeout=1.0)) == 3
    came = {node: contents[0]["arrays"] for node, contents in link.asked.items()}
    assert [is_together(came[node]) for node in (1, 2, 3)] == [True, False, True] and came[1] is came[3]
    assert came[2] is record and [bytes(array.data) for array in apart(came[1]).values()] == [
        bytes(array.data) for array in record.values()
    ]


def test_a_node_that_stays_away_does_not_hold_up_a_round() -> None:
    def gone(asked: int) -> str:
        link.activated.pop(1, None)
        return "offline"

    link = Link({1: gone})
    grid, replies = ask(link, again=(1,), timeout=60.0)  # it ends after _RETURN, not after the timeout
    assert not replies and grid.silence(1, "sizes", 60).kind is Kind.OFFLINE
    module._RETURN = 60.0  # and later ones not at all, until it has been seen again
    assert grid.send_and_receive([Message(RecordDict(), 1, "train", ttl=60.0)], timeout=60.0)[0].has_error()
    link.nodes[1], link.activated[1] = lambda asked: "answer", "second"
    assert grid.send_and_receive([Message(RecordDict(), 1, "train", ttl=60.0)], timeout=60.0)[0].has_content()


def test_a_silent_node_that_answers_again_is_asked_again_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link({1: lambda asked: "silent"})
    ask(link, again=(1,), timeout=0.5)
    assert len(link.asked[1]) == 1  # it may well be computing
    monkeypatch.setattr(module, "_AGAIN", 0.1)
    link = Link({1: lambda asked: "answer" if asked == 3 else "silent"})
    _, replies = ask(link, again=(1,), timeout=5.0)
    assert replies[1].has_content()
    assert len(link.asked[1]) == 3


def test_a_node_that_the_run_is_not_for_is_not_seen() -> None:
    """A fourth one, registered and online, is asked nothing, and a run does not begin because it is there."""
    link = Link(dict.fromkeys((11, 12, 13, 14), lambda asked: "answer"))
    assert sorted(patient(link).get_node_ids()) == [11, 12, 13, 14]
    grid = patient(link, {11: 0, 13: 2, 15: 3})
    assert sorted(grid.get_node_ids()) == [11, 13]
    queue = Queue(0.0, 0.01, {11: 0, 13: 2, 15: 3}, {3: "west"}, lambda _: None)
    with pytest.raises(RunError, match=r"2 of 3 clients connected within 0\.01 s .*not connected: west \(offline: "):
        wait_for_nodes(grid, 3, 3, queue)
