"""Servers that are killed at every boundary, and nodes that keep their memory on their own disk and answer again.

The nodes are the real clients; what is around them is what `fedsyn node serve` is around them: a request that is the
last one over again gets the stored reply. So a test needs no SuperLink to kill a server some hundred times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedsyn.config import RunConfig
from fedsyn.flower import ConfigRecord, Message, RecordDict
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.privacy import Ledger
from fedsyn.protocol.joining import AGAIN
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.runs import journal as journals
from fedsyn.runs.holders import client_fn
from fedsyn.runs.journal import RunJournal
from fedsyn.runs.prepare import Prepared, prepare
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import serve
from fedsyn.wire.envelope import ANSWER, ENVELOPE, to_json


class Killed(BaseException):
    """The server's process is gone: nothing of it runs any more."""


class Fate:
    """Kills the server at one event of its life.

    Args:
        at: number of the event; None: never.

    Attributes:
        events: so far.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.events, self.is_over = at, 0, False

    def passes(self) -> bool:
        """Whether the server lives on after this event."""
        self.events += 1
        self.is_over = self.is_over or self.events - 1 == self.at
        return not self.is_over

    def check(self) -> None:
        if not self.passes():
            raise Killed


class Nodes:
    """The nodes of a run: what each of them remembers, and how often it has worked for an answer.

    Args:
        config: of the run.
        folder: for the encoded tables.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.prepared: Prepared = prepare(config, folder)
        self.run_config = run_config_of(config, store=self.prepared.folder)
        self.states: dict[int, Any] = {}
        self.forgetful: set[int] = set()  # that do not say in `join` that they answer again
        self.last: dict[int, tuple[str, RecordDict]] = {}
        self.worked: list[tuple[int, str]] = []  # partition and digest of each request that was answered anew

    def answer(self, message: Message, context: Any, call_next: Callable[[Message, Any], Message]) -> Message:
        partition, digest = int(context.node_config["partition-id"]), _digest(message)
        joins = json.loads(str(message.content["config"][ENVELOPE]))["request"] == "join"
        if not joins and self.last.get(partition, ("", None))[0] == digest:
            return Message(_copied(self.last[partition][1]), reply_to=message)
        reply = call_next(message, context)
        if joins:  # free, and no part of what a node remembers
            answer = json.loads(str(reply.content["config"][ANSWER]))
            if answer["ok"]:
                answer["params"][AGAIN] = partition not in self.forgetful
            reply.content["config"] = ConfigRecord({ANSWER: to_json(answer)})
        else:
            self.worked.append((partition, digest))
            self.last[partition] = digest, _copied(reply.content)
        return reply

    def ledgers(self) -> dict[int, list[dict[str, Any]]]:
        """Each client's own ledger."""
        texts = {k: json.loads(text or "{}") for k, (text, _) in sorted(self.states.items())}
        read = {k: Ledger.from_dict(state["ledger"]) for k, state in texts.items() if "ledger" in state}
        return {k: [release.to_dict() for release in ledger.releases] for k, ledger in read.items()}

    def grid(self, fate: Fate, turn: int = 0, without: Iterable[int] = ()) -> KillingGrid:
        """What a server's process sees of them: other node ids in every one."""
        return KillingGrid(self, fate, turn, frozenset(without))


class KillingGrid(InProcessGrid):
    """Delivers messages until the server is killed; a node that has got its message answers all the same."""

    def __init__(self, nodes: Nodes, fate: Fate, turn: int, without: frozenset[int]) -> None:
        clients = nodes.prepared.clients
        self.order = [(k + turn) % clients for k in range(clients)]
        described = [{"partition-id": k, "num-partitions": clients} for k in self.order]
        app = TableApp(client_fn, [nodes.answer])
        super().__init__(app, described, nodes.run_config)
        self.nodes, self.fate, self.without = nodes, fate, without
        for node, partition in enumerate(self.order, 1):
            if partition in nodes.states:
                self._contexts.keep(node, nodes.states[partition])

    def get_node_ids(self) -> list[int]:
        return [node for node, k in enumerate(self.order, 1) if k not in self.without]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        self.fate.check()
        waiting = [self._waiting.pop(i) for i in self.push_messages(messages)]
        replies = []
        for number, message in enumerate(waiting):
            if number == (len(waiting) + 1) // 2:
                self.fate.check()  # half of the messages had left
            replies.append(self._handle(message))
            partition = self.order[message.metadata.dst_node_id - 1]
            context = self._contexts[message.metadata.dst_node_id]
            self.nodes.states[partition] = (context.text, context.state)
        self.fate.check()  # nobody has read the replies
        return replies


def _digest(message: Message) -> str:
    """Of the contents of a message: scalars and arrays, not Flower's number or time."""
    hashed = hashlib.sha256(str(message.content["config"][ENVELOPE]).encode())
    for key, array in message.content["arrays"].items():
        hashed.update(f"|{key}|{array.dtype}|{array.shape}|".encode() + array.data)
    return hashed.hexdigest()


def _copied(content: RecordDict) -> RecordDict:
    return RecordDict({key: type(record)(dict(record)) for key, record in content.items()})


@contextmanager
def killed_while_writing(patch: pytest.MonkeyPatch, fate: Fate) -> Iterator[None]:
    """Before a record is written, in its middle, or after it."""
    real = journals._append

    def append(file: Any, entry: Any) -> None:
        fate.check()
        if not fate.passes():
            whole = journals.encode(entry)
            file.write(journals._HEAD.pack(len(whole), b"\1" * 32, 0)[: 1 + fate.events % 40])
            raise Killed
        real(file, entry)
        fate.check()

    with patch.context() as patched:
        patched.setattr(journals, "_append", append)
        yield


def served(
    nodes: Nodes,
    out: Path,
    patch: pytest.MonkeyPatch,
    fate: Fate | None = None,
    *,
    turn: int = 0,
    without: Iterable[int] = (),
) -> MechanismStrategy:
    """One server's process: it begins the run, or goes on with it; Killed if that is its fate."""
    fate = fate or Fate()
    out.mkdir(exist_ok=True)
    journal: RunJournal | None = None
    try:
        with killed_while_writing(patch, fate):
            named = {"run": "r", "config": nodes.config.sha256, "schema": nodes.prepared.schema.sha256}
            opened = RunJournal.begin if journals.unfinished(out) is None else RunJournal.resume
            journal = opened(out, **named)
            return serve(nodes.config, nodes.prepared, nodes.grid(fate, turn, without), out, None, journal=journal)
    finally:
        if journal is not None:
            journal.close()
