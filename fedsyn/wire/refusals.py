"""Refusals: a kind for code, and a sentence for people.

A node says why it does not answer, a server why a reply is missing, a run why it has ended. All three are one type,
which travels, is kept and is shown in one form. Nothing is decided by the words of a sentence.

**What a node tells is a release.** `refusal_of` is the only way from an error to a refusal that leaves a node. It lets
out the sentences of errors that speak of a request, of the holder's configuration, of its limits and what it charged,
or of public numbers. Of every other error it lets out that the node is not ready, in the same words: a table that is
gone, that lacks a column or that is no table at all are one thing to a server, and neither a class nor a text tells it
of a value. No kind depends on a row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedsyn.errors import (
    BudgetExceeded,
    ConfigError,
    LedgerDamaged,
    NodeError,
    NoRoom,
    ProtocolError,
    Unable,
    WaitsForHolder,
)
from fedsyn.output import log_failure, plain
from fedsyn.wire.envelope import ANSWER, from_json, to_json

_log = logging.getLogger("fedsyn")
#: Characters of a sentence that a server takes from a node.
MOST_SENTENCE = 1000
_UNFIT = f"(its sentence is longer than {MOST_SENTENCE:,} characters, or does not print; see the node's own log)"
#: Stands for a configuration that does not parse: the parser's words may quote it.
INVALID = "the run's configuration is not valid for this node's fedsyn (see this node's own log)"
_OVER_BUDGET = "the release would exceed what this holder allows; nothing was released"
_NO_MEMORY = "this node ran out of memory for the request"


class Kind(StrEnum):
    """Closed set of reasons for a missing answer, or a run's end."""

    # A node's reasons.
    POLICY = "policy"  # the holder does not allow the run, or the request
    BUDGET = "budget"  # it would cost more than the holder allows
    APPROVAL = "approval"  # a person has yet to approve the run
    PROTOCOL = "protocol"  # the request does not follow the protocol or the run's plan
    CONFIGURATION = "configuration"  # the run's configuration is not valid at the node
    BUSY = "busy"  # the node cannot answer now: a disk is full, memory ran out, the task was killed
    UNREADY = "not ready"  # whatever else stops the node: its own log says what
    # A server's reasons for a missing reply.
    OFFLINE = "offline"  # the node is not connected
    SLOW = "slow"  # no reply came in time
    ABSENT = "absent"  # the client has not come back to a resumed run
    REPLY = "reply"  # a reply came and cannot be used
    # A run's reasons for its end.
    INPUT = "input"  # bad input; nothing was spent
    FAILED = "failed"  # the run may go on once the cause is gone
    OVER = "over"  # the run would end in the same way if it went on


#: Kinds that say nothing of a node except that it was not heard.
UNHEARD = frozenset((Kind.OFFLINE, Kind.SLOW, Kind.BUSY))
#: Kinds for which a client that is missing may answer when it is asked again.
PASSING = UNHEARD | {Kind.APPROVAL, Kind.ABSENT}
_FINAL = (Kind.POLICY, Kind.BUDGET, Kind.PROTOCOL, Kind.CONFIGURATION, Kind.UNREADY)
_OF_NODES = frozenset((*_FINAL, Kind.APPROVAL, Kind.BUSY))


@dataclass(frozen=True)
class Refusal:
    """Why something was not done.

    Attributes:
        kind: decides what follows.
        sentence: for people.
    """

    kind: Kind
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"

    @property
    def fields(self) -> dict[str, str]:
        """The JSON form, on the wire and in files."""
        return {"kind": self.kind.value, "sentence": self.sentence}

    @property
    def scalars(self) -> dict[str, str]:
        """The reply of a node that refuses."""
        return {ANSWER: to_json({"ok": False, **self.fields})}


#: All that a server hears of what stops a node.
NOT_READY = Refusal(Kind.UNREADY, "see this node's own log")


def answer_of(scalars: Mapping[str, Any]) -> dict[str, Any] | Refusal:
    """Returns the answer's fields, or the node's refusal.

    A sentence that is too long, or does not print, is replaced as a whole.

    Raises:
        ProtocolError: the reply is neither; a node has only the kinds that are a node's.
    """
    answer = from_json(scalars.get(ANSWER), "answer")
    if answer.get("ok") is True:
        return answer
    kind, sentence = answer.get("kind"), answer.get("sentence")
    if not isinstance(sentence, str) or not isinstance(kind, str) or kind not in _OF_NODES:
        raise ProtocolError("the reply is neither an answer nor a refusal")
    is_fit = len(sentence) <= MOST_SENTENCE and plain(sentence, keep="") == sentence
    return Refusal(Kind(kind), sentence if is_fit else _UNFIT)


def refusal_of(error: Exception) -> Refusal:
    """Returns what a server may know of a failure at a node."""
    match error:
        case WaitsForHolder():
            return Refusal(Kind.APPROVAL, str(error))
        case ProtocolError():
            return Refusal(Kind.PROTOCOL, str(error))
    log_failure(_log, "fedsyn: this node could not answer", error)
    match error:
        case NodeError():
            return Refusal(Kind.POLICY, str(error))
        case NoRoom():
            return Refusal(Kind.BUDGET, str(error))
        case BudgetExceeded():  # its own text is one of the account's inner workings
            return Refusal(Kind.BUDGET, _OVER_BUDGET)
        case Unable():
            return Refusal(Kind.BUSY, error.told)
        case MemoryError():
            return Refusal(Kind.BUSY, _NO_MEMORY)
        case ConfigError() if not isinstance(error, LedgerDamaged):
            return Refusal(Kind.CONFIGURATION, INVALID)
    return NOT_READY
