"""Looks that the gate holds: let go by what changes their answer, and by nothing that a stranger does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest

from fedsyn.nodes.flower.fleet_client import WAITS
from fedsyn.nodes.flower.waiting import Waiting

HOLD = 1.0
LOOK = {"path": "/v1/fleet/pull-messages", "headers": [(WAITS.encode(), b"1")]}
TASK = {"path": "/v1/runtime/acquire-task", "headers": []}


def look(node: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def push(*nodes: int) -> tuple[dict[str, Any], bytes]:
    messages = [Message(metadata=Metadata(dst_node_id=node)) for node in nodes]
    body = PushAppMessagesRequest(messages_list=messages).SerializeToString()
    return {"path": "/v1/runtime/push-messages", "headers": []}, body


async def held(waiting: Waiting, scope: Any, body: bytes = b"", then: Any = None) -> float:
    """Seconds for which a call is held; `then` is what happens meanwhile."""
    begun = time.monotonic()
    if then is not None:
        asyncio.get_running_loop().call_later(0.1, waiting.after, *then)
    await waiting.before(scope, body)
    return time.monotonic() - begun


def test_a_look_is_held_until_something_was_pushed_to_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("fedsyn.nodes.flower.waiting.QUIET", 0.0)
        waiting = Waiting(lambda scope, message: True, HOLD)
        assert await held(waiting, LOOK, look(1)) >= HOLD
        assert await held(waiting, LOOK, look(1), push(2, 1)) < HOLD
        assert await held(waiting, LOOK, look(2)) < HOLD  # it was pushed to before it looked
        assert await held(waiting, LOOK, look(2), push(1)) >= HOLD  # another's
        left = {"path": "/v1/fleet/deactivate-node"}, DeactivateNodeRequest(node_id=2).SerializeToString()
        assert await held(waiting, LOOK, look(2), left) < HOLD
        # One that may have more to fetch, any other call, what is no message: not held.
        assert await held(waiting, {**LOOK, "headers": []}, look(3)) < HOLD
        assert await held(waiting, {**LOOK, "path": "/v1/fleet/get-run"}, look(3)) < HOLD
        assert await held(waiting, LOOK, b"\xff\xff") < HOLD

    asyncio.run(story())


def test_a_strangers_look_takes_no_nodes_message_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held, or let go, for another, it would leave the node waiting for what has been pushed."""

    async def story() -> None:
        waiting = Waiting(lambda scope, message: "stranger" not in scope, HOLD)
        monkeypatch.setattr("fedsyn.nodes.flower.waiting.QUIET", 0.0)
        waiting.after(*push(1))
        assert await held(waiting, {**LOOK, "stranger": True}, look(1)) < HOLD
        assert await held(waiting, LOOK, look(1)) < HOLD

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/create-task", "/v1/runtime/push-task-output"])
def test_the_helper_is_held_while_nothing_goes_on(path: str) -> None:
    async def story() -> None:
        waiting = Waiting(lambda scope, message: True, HOLD)
        assert await held(waiting, TASK) >= HOLD
        assert await held(waiting, TASK, b"", ({"path": path}, b"")) < HOLD
        assert await held(waiting, TASK) < HOLD  # something goes on
        assert await held(waiting, LOOK, look(1)) < HOLD
        listed = Waiting(lambda scope, message: True, HOLD)
        assert await held(listed, TASK, b"", ({"path": "/v1/control/list-nodes"}, b"")) >= HOLD

    asyncio.run(story())
