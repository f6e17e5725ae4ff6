"""A run whose nodes wait for a person: the server asks those again, says for whom it waits, and gives up in time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsyn.config import FederationNode
from fedsyn.errors import NodeError, RunError, WaitsForHolder
from fedsyn.flower import Context
from fedsyn.flower.direct import TableApp
from fedsyn.flower.grid import InProcessGrid
from fedsyn.front.testing.harness import config_of, federation_of
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.keys.party_keys import new_party
from fedsyn.protocol import joining
from fedsyn.protocol.record import Missing
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class, strategy_class
from fedsyn.wire.holder import Holder
from fedsyn.wire.refusals import Kind, Refusal

WAITS = "this node waits for its holder to approve the run"


def federated(
    decided: Callable[[int, int], None],
    *,
    direct: bool,
    patience: float = 60.0,
    minimum: int = 1,
    mechanism: str = "fed_naive_bayes",
    **nodes: Any,
) -> tuple[Any, InProcessGrid, dict[int, int]]:
    """A server half and a Grid; `decided(partition, how often it was asked)` may raise."""
    federation = federation_of(awkward_table("every_kind"), False)
    node = {"patience": patience, "minimum_cohort": minimum}
    config = config_of(mechanism, len(federation.parts), federation=node, **nodes)
    names = {"nodes": {k + 1: k for k in range(3)}, "holders": {0: "north", 1: "south", 2: "lake"}}  # and one unknown
    runtime = config.runtime.model_copy(update={"engine": "deployment", "seed": None, **names})
    config = config.model_copy(update={"runtime": runtime})
    asked: dict[int, int] = {}

    def client_fn(context: Context) -> Any:
        partition = int(context.node_config["partition-id"])
        asked[partition] = asked.get(partition, 0) + 1
        decided(partition, asked[partition])
        codes, schema = federation.parts[partition], federation.table.schema
        holder = Holder(partition, codes, federation.domain, schema.sha256, Randomness(0))
        return client_class(config.mechanism.name)(config, holder)

    described = [{"partition-id": k} for k in range(len(federation.parts))]
    made = strategy_class(config.mechanism.name)
    strategy = made(config, federation.domain, federation.table.schema.sha256, randomness=Randomness(0))
    return strategy, InProcessGrid(TableApp(client_fn), described, {}, direct=direct), asked


@pytest.mark.parametrize("direct", [True, False])
def test_nodes_that_wait_are_asked_again_until_their_holders_say_yes(
    direct: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "PAUSE", 0.001)

    def decided(partition: int, often: int) -> None:
        if partition in (1, 2) and often <= 3 * partition:
            raise WaitsForHolder(WAITS)

    strategy, grid, asked = federated(decided, direct=direct)
    with caplog.at_level(logging.WARNING, "fedsyn.run"):
        strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3] and strategy.model is not None
    rounds = strategy.options.rounds
    assert asked == {0: 1 + rounds, 1: 4 + rounds, 2: 7 + rounds, 3: 1 + rounds}
    assert not any(record.not_joined for record in strategy.records)
    told = [r.getMessage() for r in caplog.records if "the run waits for" in r.getMessage()]
    assert len(told) == 2, told  # not each time
    assert f"2 of 4 holders to answer 'join' of round 0: south (approval: {WAITS}); lake (approval: {WAITS})" in told[0]
    assert f"1 of 4 holders to answer 'join' of round 0: lake (approval: {WAITS})" in told[1]


def test_a_holder_who_says_nothing_is_left_out_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PAUSE", 0.01)

    def decided(partition: int, often: int) -> None:
        if partition == 0:
            raise WaitsForHolder(WAITS)
        if partition == 1:
            raise NodeError("this node's holder does not want to take part in this run")

    strategy, grid, asked = federated(decided, direct=True, patience=0.05)
    strategy.start(grid)
    assert sorted(strategy.clients) == [2, 3] and asked[0] > 1 and asked[1] == 1
    north, south = strategy.records[0].not_joined
    assert north == Missing("north", Refusal(Kind.APPROVAL, WAITS)) and south.why.kind is Kind.POLICY
    assert str(south).startswith("south (policy: ") and "does not want" in str(south)
    strategy, grid, asked = federated(decided, direct=True, patience=600, minimum=4)
    with pytest.raises(
        RunError,
        match=r"only 2 of 4 clients joined.*\(north \(approval: this node waits for its holder.*; south \(policy: ",
    ):
        strategy.start(grid)
    assert set(asked.values()) == {1}, "without south it cannot begin, so nobody is waited for"


@pytest.mark.parametrize("waiting", [True, False])
def test_a_reply_that_is_lost_is_asked_for_again(waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message in transit may be lost: a node that was there a moment ago has not gone.

    Where nobody waits for a person, only if the run would fail without it.
    """
    monkeypatch.setattr(joining, "PAUSE", 0.001)

    def decided(partition: int, often: int) -> None:
        if waiting and partition == 1 and often <= 2:
            raise WaitsForHolder(WAITS)

    strategy, grid, asked = federated(decided, direct=False, minimum=1 if waiting else 4)
    whole, lost = (
        grid.send_and_receive,
        {(1, 2), (2, 1)} if waiting else {(2, 1), (2, 2)},
    )  # partition, and which of its messages

    def losing(messages: Any, *, timeout: float | None = None) -> Any:
        for reply in whole(messages, timeout=timeout):
            partition = reply.metadata.src_node_id - 1
            if (partition, asked[partition]) not in lost:
                yield reply

    monkeypatch.setattr(grid, "send_and_receive", losing)
    strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3]
    rounds = strategy.options.rounds
    often = {0: 1, 1: 3, 2: 2, 3: 1} if waiting else {0: 1, 1: 1, 2: 3, 3: 1}
    assert asked == {partition: times + rounds for partition, times in often.items()}


def test_people_have_a_day_and_nobody_sleeps_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder says yes after 23 hours: `federation.patience` is a day, and the time is the test's own."""
    clock = [0.0]
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(joining, "PAUSE", 600.0)

    def decided(partition: int, often: int) -> None:
        if partition == 1 and clock[0] < 23 * 3600:
            raise WaitsForHolder(WAITS)

    strategy, grid, asked = federated(decided, direct=True, patience=FederationNode().patience, minimum=4)
    seen: list[Any] = []
    strategy.waits = seen.append
    strategy.start(grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3] and asked[1] == 6 * 23 + 1 + strategy.options.rounds
    assert [each and each.missing[0].who for each in seen] == ["south", None]  # told once, and when it was over
    assert clock[0] < FederationNode().patience == 24 * 3600

    clock[0] = 0.0
    strategy, grid, _ = federated(lambda k, _: decided(k, 0) or never(k), direct=True, minimum=4, patience=86400.0)
    with pytest.raises(RunError, match=r"only 3 of 4 clients joined.*south \(approval"):
        strategy.start(grid)
    assert clock[0] >= 86400.0


@pytest.mark.parametrize(
    ("comes", "minimum", "joined"), [(23.0, 4, 4), (0.01, 3, 4), (23.0, 3, 3), (48.0, 4, None)]
)  # hours
def test_a_node_that_is_off_is_named_and_waited_for(
    comes: float, minimum: int, joined: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a run that needs it has `federation.patience`, a run that does not `connect_timeout`."""
    clock = [0.0]
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(joining, "PAUSE", 600.0)
    strategy, grid, asked = federated(lambda *_: None, direct=True, patience=86400.0, minimum=minimum)
    everybody = grid.get_node_ids()
    monkeypatch.setattr(grid, "get_node_ids", lambda: [n for n in everybody if n != 3 or clock[0] >= 3600 * comes])
    away = "lake (offline: its node is not connected)"
    with caplog.at_level(logging.WARNING, "fedsyn.run"):
        if joined is None:
            with pytest.raises(
                RunError, match=r"3 of 4 clients connected within 86400 s \(federation\.patience\)"
            ) as no:
                strategy.start(grid)
            assert str(no.value).endswith(f"the minimum is 4; not connected: {away}") and not any(asked.values())
        else:
            strategy.start(grid)
    told = [r.getMessage() for r in caplog.records if "the run waits for" in r.getMessage()]
    assert len(told) == (minimum == 4) and all(f"1 of 4 holders to answer 'join' of round 0: {away}" in m for m in told)
    if joined is not None:
        assert len(strategy.clients) == joined
        assert [str(each) for each in strategy.records[0].not_joined] == ([] if joined == 4 else [away])
        waited = strategy.config.federation.connect_timeout if joined == 3 else 3600 * comes
        assert waited <= clock[0] <= waited + 600.0


@pytest.mark.parametrize(("dropout", "fewest"), [(0.0, 4), (0.25, 3)])
def test_a_store_that_opens_from_more_clients_waits_for_them(
    dropout: float, fewest: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A minimum_cohort of 2 lets sums of 2 come out; a store's noise is sized for as many as may not drop out."""
    pytest.importorskip("tenseal")
    clock = [0.0]
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(joining, "PAUSE", 600.0)
    roster = {k: f"{k:064x}" for k in range(4)}
    card = new_party(tmp_path / "elder", "elder", "127.0.0.1:7443").model_dump()
    aggregation = {"protocol": "fhe", "noise": "distributed", "dropout": dropout, "crypto": card, "roster": roster}
    strategy, grid, asked = federated(
        lambda *_: None, direct=True, patience=7200.0, minimum=2, mechanism="fhaim", aggregation=aggregation
    )
    told: list[int] = []
    monkeypatch.setattr(strategy, "announce", lambda share: told.append(len(strategy.clients)) or never(1))
    everybody = grid.get_node_ids()
    monkeypatch.setattr(grid, "get_node_ids", lambda: [n for n in everybody if n != 3])
    with pytest.raises((RunError, WaitsForHolder)) as ended:
        strategy.start(grid)
    if fewest == 4:
        assert str(ended.value).startswith("3 of 4 clients connected within 7200 s (federation.patience), the minimum")
        assert not told and not asked and clock[0] == 7200.0
    else:
        assert told == [3] and clock[0] < strategy.config.federation.connect_timeout + 600.0


def never(partition: int) -> None:
    if partition == 1:
        raise WaitsForHolder(WAITS)
