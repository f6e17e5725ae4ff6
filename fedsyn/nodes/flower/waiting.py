"""Questions that are asked again and again, held at the gate until there may be an answer.

Flower pushes nothing: a node asks for messages, and the SuperLink's own helper for tasks, over and over, and each look
costs the SuperLink milliseconds. The gate sees them, and what changes their answers as well: a ServerApp's push, an
order. So it holds a look until then, or until the SuperLink ends, and for `HOLD` seconds at most; a missed event costs
that long and nothing else.

* A node's look is held if it says that its last one found nothing (`WAITS`), and by Flower's own check is that node's.
  What is pushed between two of its looks is remembered.
* The helper's look is held as well. Nobody's is while something goes on: `QUIET` seconds after an order, or a call of a
  ServerApp, which asks for replies all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedsyn.nodes.flower.fleet_client import WAITS
from fedsyn.nodes.flower.guard import GUARDED, Scope
from fedsyn.nodes.flower.private import DeactivateNodeRequest, PullMessagesRequest, PushAppMessagesRequest

HOLD, QUIET = 20.0, 5.0
_LOOK, _LEAVE = "/v1/fleet/pull-messages", "/v1/fleet/deactivate-node"
_PUSH, _TASK = "/v1/runtime/push-messages", "/v1/runtime/acquire-task"
_WORK = ("/v1/runtime/", "/v1/control/start-run", "/v1/control/stop-run")


class Waiting:
    """What is being waited for.

    Args:
        authentic: whether a look is the node's that it names; asked in a thread.
        hold: seconds.
    """

    def __init__(self, authentic: Callable[[Scope, Any], bool], hold: float = HOLD) -> None:
        self._authentic, self._hold = authentic, hold
        self._pushed: dict[int, asyncio.Event] = {}
        self._ordered, self._busy_until = asyncio.Event(), 0.0

    @staticmethod
    def reads(path: str) -> bool:
        """Whether `before` and `after` need the body of a call of this machine."""
        return path == _PUSH

    async def before(self, scope: Scope, body: bytes) -> None:
        """Holds a look; returns at once for every other call."""
        if time.monotonic() < self._busy_until:
            return
        if scope["path"] == _LOOK and any(name == WAITS.encode() for name, _ in scope["headers"]):
            with contextlib.suppress(DecodeError):
                look = PullMessagesRequest.FromString(body)
                if await asyncio.get_running_loop().run_in_executor(None, self._authentic, scope, look):
                    event = self._pushed.setdefault(look.node.node_id, asyncio.Event())
                    await self._wait(event, scope)
                    event.clear()  # what was pushed until now is found by the look that follows
        elif scope["path"] == _TASK:
            await self._wait(self._ordered, scope)
            self._ordered.clear()

    def after(self, scope: Scope, body: bytes) -> None:
        """Notes what a call has changed, once it was answered."""
        path = str(scope["path"])
        with contextlib.suppress(DecodeError):
            if path == _PUSH:
                for message in PushAppMessagesRequest.FromString(body).messages_list:
                    self._pushed.setdefault(message.metadata.dst_node_id, asyncio.Event()).set()
            elif path == _LEAVE:  # its own look would keep a node that is to end
                event = self._pushed.pop(DeactivateNodeRequest.FromString(body).node_id, None)
                if event is not None:
                    event.set()
        if path.startswith(_WORK) and path != _TASK:
            self._busy_until = time.monotonic() + QUIET
            self._ordered.set()

    async def _wait(self, event: asyncio.Event, scope: Scope) -> None:
        """Until the event is set, or the server ends, which a held look would keep from it."""
        ending = scope.get("extensions", {}).get(GUARDED, {}).get("ending")
        waits = [asyncio.ensure_future(each.wait()) for each in (event, ending) if each is not None]
        try:
            await asyncio.wait(waits, timeout=self._hold, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
