"""Asking again for missing answers.

A holder that is away for a minute, or for a night, costs a run that time.

A request needs so many usable replies: a sum its fewest contributors, a stage of a secure sum what the next one cannot
do without, any other request `federation.minimum_cohort`. With fewer of them the run waits, for `federation.patience`
seconds, and asks those that are missing again, as long as enough of them may come.

**Why asking again is safe, and free.** The message is the same to the last byte. A node that keeps its memory of the
run on its own disk (`Participant.again`) answers it in one of two ways. Either a reply had left, or was ready to: then
it is that reply, and nothing is charged. Or none had: then the attempt before was seen by nobody, what it had charged
pays for this one, and what it had drawn or masked is gone (`fedsyn.node.answering`). In both cases at most one
reply of a node to one request is ever seen: no two masked vectors of one sum, and no two answers of a committee's
member to one number, that could be put together. No other node is asked again, and nobody who has answered is: those
replies are kept here, in memory, until the request is complete. Where a run ends while it waits, nothing of the
incomplete request but its charges is in the journal, so that `--resume` asks for it again in the same way.

**Who is asked again.** Those whose reason may pass (`PASSING`): away, slow, waiting for a person, or unable for a
reason of the machine. A refusal by policy, budget or protocol is final for this run of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fedsyn.aggregation.base import Enough
from fedsyn.errors import Lost
from fedsyn.protocol.record import Missing, RoundRecord, Waiting, few, who
from fedsyn.wire.envelope import Reply
from fedsyn.wire.requests import Ask, Sum, Summed

Announce = Callable[[Waiting | None], None]
_log = logging.getLogger("fedsyn.run")


def at_least(number: int) -> Enough:
    return lambda replied: len(replied) >= number


def log_waiting(waiting: Waiting | None) -> None:
    """Logs what the run waits for; nothing when that is over."""
    if waiting is not None:
        _log.warning("the run %s", waiting)


class Announcer:
    """Announces each change in what a run waits for, once.

    Args:
        announce: called with it, and with None when nothing is missing any more.
    """

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._said: tuple[object, ...] | None = None

    def __call__(self, waiting: Waiting | None) -> None:
        facts = None if waiting is None else (waiting.request, waiting.missing)
        if facts != self._said:
            self._said = facts
            self._announce(waiting)


def require_whole(yielded: Ask | Sum, answer: Summed | Mapping[int, Reply], record: RoundRecord, minimum: int) -> None:
    """Ends a run that must stop when too few answered.

    Nothing of the answer is written down. Any client that could be asked again has been: what is missing now stays
    missing.

    Raises:
        Lost: it was.
    """
    minimum = min(len(yielded.cohort), max(1, minimum))
    if answer.opened if isinstance(answer, Summed) else len(answer) >= minimum:
        return
    missing = [Missing(who({}, k), record.dropped[k]) for k in yielded.cohort if k in record.dropped]
    why = "; ".join([*record.notes[-1:], *([f"missing: {few(missing)}"] if missing else [])])
    what = "was not opened" if isinstance(answer, Summed) else "was answered by too few clients"
    raise Lost(f"'{yielded.request.name}' of round {record.round} {what}{f' ({why})' if why else ''}", can_go_on=False)
