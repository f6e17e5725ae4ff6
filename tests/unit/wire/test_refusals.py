"""What leaves a node of an error, what a server believes of a refusal, and which kinds decide what."""

from __future__ import annotations

import errno
import json
import logging
from typing import Any

import pytest

from fedsyn.errors import (
    BudgetExceeded,
    CannotWrite,
    ConfigError,
    DataError,
    LedgerDamaged,
    NodeError,
    NoRoom,
    NotReady,
    ProtocolError,
    SchemaError,
    WaitsForHolder,
)
from fedsyn.wire.envelope import ANSWER
from fedsyn.wire.refusals import (
    INVALID,
    MOST_SENTENCE,
    NOT_READY,
    PASSING,
    UNHEARD,
    Kind,
    Refusal,
    answer_of,
    refusal_of,
)

SECRET = "patient 4711 has 17 rows"
UNTOLD: list[tuple[Exception, Kind]] = [
    (ValueError(SECRET), Kind.UNREADY),
    (KeyError(SECRET), Kind.UNREADY),
    (DataError(SECRET), Kind.UNREADY),
    (SchemaError(SECRET), Kind.UNREADY),
    (NotReady(SECRET), Kind.UNREADY),
    (LedgerDamaged(SECRET, 3), Kind.UNREADY),
    (ConfigError(SECRET), Kind.CONFIGURATION),
    (BudgetExceeded(SECRET), Kind.BUDGET),
    (CannotWrite(SECRET, OSError(errno.ENOSPC, "full")), Kind.BUSY),
    (MemoryError(SECRET), Kind.BUSY),
]


@pytest.mark.parametrize(("error", "kind"), UNTOLD, ids=lambda value: type(value).__name__)
def test_an_error_leaves_a_node_as_a_kind_alone(error: Exception, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    error.__cause__ = ValueError(SECRET)
    with caplog.at_level(logging.DEBUG):
        refusal = refusal_of(error)
    assert refusal.kind is kind and "4711" not in json.dumps(refusal.scalars)
    assert caplog.records, "its holder reads nothing of it"
    assert refusal.sentence == INVALID or kind is not Kind.CONFIGURATION
    assert refusal == NOT_READY or kind is not Kind.UNREADY


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (NodeError, Kind.POLICY),
        (WaitsForHolder, Kind.APPROVAL),
        (ProtocolError, Kind.PROTOCOL),
        (NoRoom, Kind.BUDGET),
    ],
)
def test_a_sentence_about_the_request_or_the_holders_policy_is_told(made: type[Exception], kind: Kind) -> None:
    assert refusal_of(made("set privacy.unit: client")) == Refusal(kind, "set privacy.unit: client")


def reply(**fields: Any) -> dict[str, Any]:
    return {ANSWER: json.dumps({"ok": False, **fields})}


@pytest.mark.parametrize("kind", Kind)
def test_a_node_has_only_the_kinds_of_a_node(kind: Kind) -> None:
    """It says of itself neither that it was not heard nor how the run ends."""
    servers = (Kind.OFFLINE, Kind.SLOW, Kind.ABSENT, Kind.REPLY, Kind.INPUT, Kind.FAILED, Kind.OVER)
    if kind not in servers:
        assert answer_of(Refusal(kind, "why").scalars) == Refusal(kind, "why")
        return
    with pytest.raises(ProtocolError, match="neither an answer nor a refusal"):
        answer_of(Refusal(kind, "why").scalars)


@pytest.mark.parametrize("kind", [None, 7, True, [], {}, ["busy"], "BUSY", "busy: ", "unheard", "x" * 10**6])
def test_a_kind_that_there_is_not_is_no_refusal(kind: object) -> None:
    with pytest.raises(ProtocolError, match="neither an answer nor a refusal"):
        answer_of(reply(kind=kind, sentence="why"))


@pytest.mark.parametrize("sentence", [None, 7, ["why"], {"why": 1}])
def test_a_sentence_that_is_no_text_is_no_refusal(sentence: object) -> None:
    with pytest.raises(ProtocolError, match="neither an answer nor a refusal"):
        answer_of(reply(kind="busy", sentence=sentence))


@pytest.mark.parametrize("sentence", ["x" * (MOST_SENTENCE + 1), "a\x1b[2Jb", "a\nb", "\u202eevil", "\ud800", "a\x00"])
def test_a_sentence_that_is_not_fit_to_show_is_replaced_as_a_whole(sentence: str) -> None:
    refusal = answer_of(reply(kind="busy", sentence=sentence))
    assert isinstance(refusal, Refusal) and refusal.kind is Kind.BUSY
    assert refusal.sentence.startswith("(its sentence is longer") and refusal.sentence.isprintable()


@pytest.mark.parametrize("sentence", ["x" * MOST_SENTENCE, "", "busy: offline: ünïcödé 病院"])
def test_a_sentence_is_never_cut(sentence: str) -> None:
    assert answer_of(reply(kind="budget", sentence=sentence)) == Refusal(Kind.BUDGET, sentence)


def test_what_may_pass_and_what_is_final() -> None:
    assert {"approval", "busy", "offline", "slow", "absent"} == PASSING and {"busy", "offline", "slow"} == UNHEARD
