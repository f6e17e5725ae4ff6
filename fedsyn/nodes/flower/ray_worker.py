"""What a Ray worker does: the messages of a chunk of nodes, one after the other, and the states that they leave."""

from __future__ import annotations

import importlib
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp

from fedsyn.nodes.flower.direct import Answered, Asked, ask
from fedsyn.nodes.flower.grid import State, _call, _client_fn, _copy, _state_of
from fedsyn.nodes.flower.messages import content_bytes

#: A task ends after so many seconds, or bytes of replies, and leaves the rest of its chunk to be asked again: what a
#: lost machine costs is bounded, and so is what a reply must have of memory at a time.
ENOUGH_SECONDS, ENOUGH_BYTES = 10.0, 64 * 2**20


@dataclass(frozen=True)
class Job:
    """What all tasks of a run have in common.

    Attributes:
        app: 'module:attribute' of the ClientApp.
        setup: 'module:function' that is called with `given` before any client, in every process; '' for none.
    """

    app: str
    setup: str


@dataclass(frozen=True)
class Ask:
    """One message on its way to a worker.

    Attributes:
        context: of its node.
        metadata: of the message.
        content: of the message; None for that of all messages of the exchange.
    """

    context: Context
    metadata: Metadata
    content: RecordDict | None


@dataclass(frozen=True)
class Call:
    """A request that a worker makes of a client without a message.

    Attributes:
        context: of the node.
        asked: of it.
    """

    context: Context
    asked: Asked


@dataclass(frozen=True)
class Answer:
    """One answer on its way back.

    Attributes:
        reply: to the message, or the client's answer to a call.
        state: what the node remembers now.
        seconds: that the node took.
    """

    reply: Message | Answered
    state: State
    seconds: float

    @property
    def size(self) -> int:
        """Bytes, about."""
        if isinstance(self.reply, Answered):
            own = self.reply.size
        else:
            own = content_bytes(self.reply.content) if self.reply.has_content() else 0
        return own + len(self.state[0] or "")


def work(job: bytes, given: Any, shared: bytes | None, chunk: bytes) -> bytes:
    """Answers the requests of a chunk, in order, until it is enough.

    Args:
        job: a pickled `Job`.
        given: for the job's setup; whatever was put into the object store.
        shared: pickled content of the messages that have none of their own.
        chunk: a pickled list of `Ask` or `Call`.

    Returns:
        A pickled list of `Answer`s to the first requests of the chunk; at least one.
    """
    common, app = _prepared(job)
    if common.setup:
        _named(common.setup)(given)
    requests: Sequence[Ask | Call] = pickle.loads(chunk)
    content = None if shared is None else pickle.loads(shared)
    answers: list[Answer] = []
    begun, size = time.monotonic(), 0
    for request in requests:
        answer = _called(app, request) if isinstance(request, Call) else _answer(app, request, content)
        answers.append(answer)
        size += answer.size
        if size > ENOUGH_BYTES or time.monotonic() - begun > ENOUGH_SECONDS:
            break
    return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)


def _answer(app: ClientApp, request: Ask, shared: RecordDict | None) -> Answer:
    content = shared if request.content is None else request.content
    assert content is not None
    start = time.monotonic()
    reply = _call(app, _copy(Message(content=content, metadata=request.metadata)), request.context)[0]
    return Answer(reply, _state_of(request.context), time.monotonic() - start)


def _called(app: ClientApp, request: Call) -> Answer:
    answered = ask(_client_fn(app), request.asked, request.context)
    return Answer(answered, _state_of(request.context), answered.seconds)


@lru_cache(maxsize=2)
def _prepared(job: bytes) -> tuple[Job, ClientApp]:
    common: Job = pickle.loads(job)
    return common, _named(common.app)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
