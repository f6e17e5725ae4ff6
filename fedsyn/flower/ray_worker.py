"""What a Ray worker does: the messages of a chunk of nodes, one after the other, and the states that they leave."""

from __future__ import annotations

import importlib
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp

from fedsyn.flower.grid import _call, _copy
from fedsyn.flower.messages import content_bytes

#: A task ends after so many seconds, or bytes of replies, and leaves the rest of its chunk to be asked again: what a
#: lost machine costs is bounded, and so is what a reply must have of memory at a time.
ENOUGH_SECONDS, ENOUGH_BYTES = 10.0, 64 * 2**20


@dataclass(frozen=True)
class Job:
    """What all tasks of a run have in common.

    Attributes:
        app: 'module:attribute' of the ClientApp.
        setup: 'module:function' that is called with `given` before any client, in every process; '' for none.
        run_config: as the clients' contexts show it.
    """

    app: str
    setup: str
    run_config: Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """One message on its way to a worker.

    Attributes:
        metadata: of the message.
        content: of the message; None for that of all messages of the exchange.
        node_config: of its node.
        state: what its node remembers, pickled; None for nothing.
    """

    metadata: Metadata
    content: RecordDict | None
    node_config: Mapping[str, Any]
    state: bytes | None


@dataclass(frozen=True)
class Answer:
    """One reply on its way back.

    Attributes:
        reply: to the message.
        state: what the node remembers now, pickled; None where that is what it was.
        seconds: that the node took.
    """

    reply: Message
    state: bytes | None
    seconds: float


def work(job: bytes, given: Any, shared: bytes | None, chunk: bytes) -> bytes:
    """Answers the messages of a chunk, in order, until it is enough.

    Args:
        job: a pickled `Job`.
        given: for the job's setup; whatever was put into the object store.
        shared: pickled content of the messages that have none of their own.
        chunk: a pickled list of `Ask`.

    Returns:
        A pickled list of `Answer`s to the first messages of the chunk; at least one.
    """
    common, app = _prepared(job)
    if common.setup:
        _named(common.setup)(given)
    asks: Sequence[Ask] = pickle.loads(chunk)
    content = None if shared is None else pickle.loads(shared)
    answers: list[Answer] = []
    begun, size = time.monotonic(), 0
    for ask in asks:
        answer = _answer(app, common, ask, content)
        answers.append(answer)
        size += content_bytes(answer.reply.content) if answer.reply.has_content() else 0
        size += len(answer.state or b"")
        if size > ENOUGH_BYTES or time.monotonic() - begun > ENOUGH_SECONDS:
            break
    return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)


def _answer(app: ClientApp, job: Job, ask: Ask, shared: RecordDict | None) -> Answer:
    content = shared if ask.content is None else ask.content
    assert content is not None
    context = Context(
        run_id=ask.metadata.run_id,
        node_id=ask.metadata.dst_node_id,
        node_config=dict(ask.node_config),
        state=RecordDict() if ask.state is None else pickle.loads(ask.state),
        run_config=dict(job.run_config),
    )
    start = time.monotonic()
    reply = _call(app, _copy(Message(content=content, metadata=ask.metadata)), context)[0]
    seconds = time.monotonic() - start
    left = pickle.dumps(context.state, pickle.HIGHEST_PROTOCOL)
    return Answer(reply, None if left == ask.state else left, seconds)


@lru_cache(maxsize=2)
def _prepared(job: bytes) -> tuple[Job, ClientApp]:
    common: Job = pickle.loads(job)
    return common, _named(common.app)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
