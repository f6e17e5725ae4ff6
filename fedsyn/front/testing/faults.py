"""A federation with faulty nodes.

Its clients vanish, reply nonsense, or work in another order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.flower import ArrayRecord, ClientApp, ConfigRecord, Message, RecordDict
from fedsyn.flower.grid import InProcessGrid
from fedsyn.wire.envelope import ANSWER, to_json

Fault = Callable[[Message, int], Message | None]


class ScriptedGrid(InProcessGrid):
    """The in-process Grid with faulty nodes.

    It can also have another order of work and arrival.

    Args:
        app: the ClientApp.
        nodes: node configuration of each node.
        faults: by partition id, what becomes of its replies: (reply, number of earlier ones) -> reply or None.
        reverse: nodes work, and their replies arrive, in reverse order.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        *,
        faults: Mapping[int, Fault] | None = None,
        reverse: bool = False,
    ) -> None:
        super().__init__(app, nodes, {})
        self._faults = dict(faults or {})
        self._answered: dict[int, int] = {}
        self._reverse = reverse

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting = list(messages)
        replies = super().send_and_receive(waiting[::-1] if self._reverse else waiting, timeout=None)
        delivered = []
        for reply in replies:
            partition = reply.metadata.src_node_id - 1
            earlier = self._answered[partition] = self._answered.get(partition, -1) + 1
            fault = self._faults.get(partition)
            changed: Message | None = reply if fault is None else fault(reply, earlier)
            if changed is not None:
                delivered.append(changed)
        return delivered


def vanish(after: int) -> Fault:
    """Returns a fault that drops all replies but the first `after`."""
    return lambda reply, earlier: reply if earlier < after else None


def garble(after: int, kind: int) -> Fault:
    """Returns a fault that replies nonsense after `after` good replies.

    The nonsense is of another kind each time.
    """

    def fault(reply: Message, earlier: int) -> Message | None:
        if earlier < after:
            return reply
        reply.content = _GARBAGE[(earlier + kind) % len(_GARBAGE)](reply)
        return reply

    return fault


def _garbage(answer: str, arrays: Sequence[npt.NDArray[Any]] = ()) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(list(arrays)), "config": ConfigRecord({ANSWER: answer})})


def _plausible(reply: Message) -> RecordDict:
    """Returns a reply with the right request name, and nonsense.

    The nonsense stands where a mechanism reads its own parameters and arrays.
    """
    try:
        request = json.loads(str(reply.content["config"][ANSWER]))["request"]
    except (KeyError, TypeError, ValueError):
        request = "?"
    params = {"partition": -5, "rows": "many", "chosen": [10**12], "scores": "none"}
    nonsense = [np.array([[np.nan, -1.0]]), np.array([-(2**60)])]
    return _garbage(to_json({"request": request, "ok": True, "params": params}), nonsense)


_GARBAGE: tuple[Callable[[Message], RecordDict], ...] = (
    _plausible,
    lambda reply: RecordDict({}),
    lambda reply: _garbage("{'not': JSON"),
    lambda reply: _garbage(to_json({"request": "another", "ok": True, "params": {}})),
    lambda reply: _garbage(to_json({"request": "another", "ok": "certainly", "params": []})),
    lambda reply: _garbage(to_json({"ok": False, "kind": 7, "sentence": None})),
)
GARBAGE_KINDS = len(_GARBAGE)
