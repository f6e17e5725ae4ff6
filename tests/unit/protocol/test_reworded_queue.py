"""A queue does the same whatever its refusals say: each of them reworded, in every form."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from test_node_waits import federated

from fedsyn.errors import BudgetExceeded, ConfigError, NodeError, RunError, Unable, WaitsForHolder
from fedsyn.protocol import joining
from fedsyn.wire.refusals import Kind
from support.reworded import FORMS, reword

#: What a node raises, and what the server learns.
FINAL: dict[Kind, Callable[[], Exception]] = {
    Kind.POLICY: lambda: NodeError("no"),
    Kind.BUDGET: lambda: BudgetExceeded("no"),
    Kind.CONFIGURATION: lambda: ConfigError("no"),
    Kind.UNREADY: lambda: ValueError("no"),
}


@pytest.fixture
def words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Kind], str]:
    monkeypatch.setattr(joining, "PAUSE", 0.001)
    return reword(monkeypatch, request.param)


each_form = pytest.mark.parametrize("words", FORMS, indirect=True)


@each_form
@pytest.mark.parametrize("direct", [True, False])
def test_a_queue_waits_and_its_operator_reads_for_whom(
    words: Callable[[Kind], str], direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def decided(partition: int, often: int) -> None:
        if partition == 1 and often <= 3:
            raise WaitsForHolder("no")
        if partition == 2 and often <= 2:
            raise Unable("no")  # as any lost reply: asked again while another one waits

    strategy, grid, asked = federated(decided, direct=direct)
    with caplog.at_level(logging.WARNING, "fedsyn.run"):
        strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3] and strategy.model is not None
    rounds = strategy.options.rounds
    assert asked == {0: 1 + rounds, 1: 4 + rounds, 2: 3 + rounds, 3: 1 + rounds}
    told = [r.getMessage() for r in caplog.records if "the run waits for" in r.getMessage()]
    both = f"south (approval: {words(Kind.APPROVAL)}); lake (busy: {words(Kind.BUSY)})"
    assert len(told) == 2 and both in told[0] and f"south (approval: {words(Kind.APPROVAL)})" in told[1]


@each_form
@pytest.mark.parametrize("kind", FINAL)
def test_who_refuses_for_good_is_asked_once_and_named(words: Callable[[Kind], str], kind: Kind) -> None:
    def decided(partition: int, often: int) -> None:
        if partition == 1:
            raise FINAL[kind]()
        if partition == 2 and often == 1:
            raise WaitsForHolder("no")

    strategy, grid, asked = federated(decided, direct=True)
    strategy.start(grid)
    assert sorted(strategy.clients) == [0, 2, 3] and asked[1] == 1 and asked[2] > 2
    (missing,) = strategy.records[0].not_joined
    assert str(missing) == f"south ({kind}: {words(kind)})" and missing.why.kind is kind
    strategy, grid, asked = federated(decided, direct=True, patience=600, minimum=4)
    with pytest.raises(RunError, match="only 2 of 4 clients joined, the minimum is 4") as ended:
        strategy.start(grid)
    assert set(asked.values()) == {1}, "without south it cannot begin, so nobody is waited for"
    assert str(missing) in str(ended.value)


@each_form
def test_a_lost_reply_is_asked_for_again(words: Callable[[Kind], str], monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid, asked = federated(lambda *_: None, direct=False, minimum=4)
    whole = grid.send_and_receive

    def losing(messages: Any, *, timeout: float | None = None) -> Any:
        for reply in whole(messages, timeout=timeout):
            if reply.metadata.src_node_id != 3 or asked[2] > 2:
                yield reply

    monkeypatch.setattr(grid, "send_and_receive", losing)
    strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3] and not strategy.records[0].not_joined
    assert asked[2] == 3 + strategy.options.rounds


@each_form
def test_a_node_that_is_off_is_waited_for_and_named(
    words: Callable[[Kind], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(joining, "PAUSE", 600.0)
    strategy, grid, _ = federated(lambda *_: None, direct=True, patience=86400.0, minimum=4)
    everybody = grid.get_node_ids()
    monkeypatch.setattr(grid, "get_node_ids", lambda: [n for n in everybody if n != 3 or clock[0] >= 3600])
    with caplog.at_level(logging.WARNING, "fedsyn.run"):
        strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3] and 3600 <= clock[0] <= 4200
    assert any(f"lake (offline: {words(Kind.OFFLINE)})" in record.getMessage() for record in caplog.records)
