"""A node that is killed after a charge and before it saved that it took part: its ledger counts the round."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsyn.config import RunConfig
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.memory import Memory
from fedsyn.node.tables import Encoding
from fedsyn.node.task import Task
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.protocol.client import TableClient
from fedsyn.protocol.cohorts import ROUNDS
from fedsyn.protocol.common import Evaluate, OneWay, Sizes
from fedsyn.registry import contract_class
from fedsyn.settings import FederationNode
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER, Envelope
from fedsyn.wire.requests import Request
from support.node_folders import SCHEMA, header_of, make_node, run_of

NAIVE = {"name": "fed_naive_bayes", "rounds": 2}


def configuration(**federation: Any) -> RunConfig:
    parts = {"clients": 4, "sampling_rate": 0.5, "max_participations": 1, **federation}
    return run_of(mechanism={**NAIVE}, federation=parts)


def task_of(config: RunConfig, t: int, run: str = "first") -> Task:
    """The request of round t for every one-way marginal."""
    schema = Schema.loads(SCHEMA, "schema.yaml").adjusted(config.data.bins, config.data.label)
    contract = contract_class("fed_naive_bayes")(config, schema.domain)
    layout, sigma = OneWay().layout(contract, ()), contract.steps[0].sigma  # type: ignore[attr-defined]
    spec = replace(layout.spec(sigma, 2, t), asked=2)
    header = header_of(config, "one-way", "sum", t, 10 * t, run)
    envelope = Envelope("one-way", "sum", t, config.sha256, {}, 10 * t, sum=spec)
    return Task(7, header["run_config"], header["fab_hash"], envelope.to_scalars(), [])


def in_child(node: Answering, task: Task) -> bool:
    """Whether a process that answers was killed before it did."""
    child = os.fork()
    if child == 0:
        try:
            node.answer(task)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def rounds_of(node: Answering, run: str = "first") -> set[int]:
    """That the ledger on the disk was charged for."""
    node.book.refresh()
    return {charge.release.round for charge in node.book.runs[run].charges if charge.release.name == "one-way"}


def said(node: Answering, task: Task) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(node.answer(task).scalars[ANSWER])
    return told


@pytest.fixture
def node(tmp_path: Path) -> Answering:
    made = Answering(load_node_file(make_node(tmp_path / "node")))
    made.tables.get(Encoding())
    return made


def dies_before_saving(node: Answering, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1 is answered by a child that is killed before its memory is saved."""
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "save", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
        assert in_child(node, task_of(config, 1))


def test_a_round_that_was_charged_counts_though_its_memory_was_never_saved(
    node: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration()
    dies_before_saving(node, config, monkeypatch)
    assert rounds_of(node) == {1}
    for again in (node, Answering(node.file, node.tables)):  # the same service, and a machine that starts again
        refused = said(again, task_of(config, 2))
        assert not refused["ok"] and "max_participations allows 1" in refused["sentence"]
        assert rounds_of(again) == {1}


def test_the_request_itself_is_answered_again_and_its_round_counts_once(
    node: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration()
    dies_before_saving(node, config, monkeypatch)
    node.book.refresh()
    spent = node.book.spent
    assert said(node, task_of(config, 1))["ok"] and rounds_of(node) == {1} and node.book.spent == spent
    assert not said(node, task_of(config, 2))["ok"] and rounds_of(node) == {1}


def test_a_second_participation_is_left_where_two_are_allowed(node: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(max_participations=2)
    dies_before_saving(node, config, monkeypatch)
    assert said(node, task_of(config, 2))["ok"] and rounds_of(node) == {1, 2}
    assert "max_participations allows 2" in said(node, task_of(config, 3))["sentence"]


def test_only_rounds_of_the_mechanism_are_counted_from_the_ledger() -> None:
    """What everybody is asked, and a deal, which stands in every ledger as of round 0, are none."""
    entries = [("sizes", 1), ("evaluate", 9), ("find-bins", 3), ("one-way", 0), ("one-way", 2), ("one-way", 2)]
    ledger = Ledger(PrivacyBudget(5.0, 1e-5))
    ledger.reenter([Release(name, t, GAUSSIAN, 1.0, sigma=50.0) for name, t in entries])
    config = SimpleNamespace(federation=FederationNode(max_participations=3))
    requests: dict[str, type[Request]] = {each.name: each for each in (OneWay, Sizes, Evaluate)}
    counted = {}
    for account in (None, SimpleNamespace(releases=ledger.releases)):
        holder: Any = SimpleNamespace(account=account, state={})
        call: Any = SimpleNamespace(request=OneWay(), round=4)
        client: Any = SimpleNamespace(config=config, holder=holder, ledger=ledger, requests=requests)
        TableClient._take_part(client, call)
        counted[account is not None] = holder.state[ROUNDS]
    assert counted == {False: [4], True: [2, 4]}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "power before"])
def test_killed_at_every_call_no_node_takes_part_in_more_rounds(node: Answering, when: str) -> None:
    from tests.unit.node.test_node_faults import Disk

    config, at = configuration(), 0
    while True:
        run = f"run-{at}"
        disk = Disk(node.file.state_folder, at, when)
        child = os.fork()
        if child == 0:
            disk.install()
            node.answer(task_of(config, 1, run))
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        node = Answering(node.file, node.tables)
        answered = said(node, task_of(config, 2, run))["ok"]
        assert rounds_of(node, run) == ({2} if answered else {1})
        if not killed:
            break
        at += 1
    assert at > 5
