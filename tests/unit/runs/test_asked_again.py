"""Nodes that are away, lose a reply or cannot answer for a while: each is asked again, and the run is as if it had not.

Model, records and every ledger are those of a run in which nothing happened, to the last bit, and no node works twice
for one request. Without the repetition the sum is lost: nobody may be missing here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_resume import config_of, facts

from fedsyn.config import RunConfig
from fedsyn.errors import Lost
from fedsyn.flower import ArrayRecord, ConfigRecord, Message, RecordDict
from fedsyn.protocol import exchange
from fedsyn.runs import journal as journals
from fedsyn.runs.directory import load_waiting
from fedsyn.runs.serve import serve
from fedsyn.stores.base import StoreServer
from fedsyn.wire.envelope import ENVELOPE
from fedsyn.wire.refusals import PASSING, Kind, Refusal
from support.killed_servers import Fate, KillingGrid, Nodes, served

ALL: Mapping[str, Any] = {"protocol": "secagg", "noise": "distributed", "dropout": 0.0, "corrupted": 0.0}
EVERYBODY = {"minimum_cohort": 4}
CASES: dict[str, dict[str, Any]] = {
    "malicious": {
        "mechanism": "sketch_aim",
        "aggregation": {**ALL, "threat": "malicious"},
        "privacy": {"client_sizes": "private"},
    },
    "semi-honest": {"mechanism": "sketch_aim", "aggregation": ALL},
    "one may be missing": {"mechanism": "sketch_aim", "aggregation": {**ALL, "dropout": 0.25}},
    "plain, the server's noise": {
        "mechanism": "augflaim",
        "aggregation": {"protocol": "plain", "noise": "server"},
        "privacy": {"client_sizes": "private"},
    },
    "secure, the server's noise": {"mechanism": "distributed_aim", "aggregation": {**ALL, "noise": "server"}},
}
#: Whose runs are never resumed.
STORES: dict[str, dict[str, Any]] = {
    "a store": {"mechanism": "distaim", "aggregation": {"protocol": "mpc", "noise": "distributed"}}
}
Place = tuple[str, int, int]  # request, or stage of a secure sum; round; number of the request
Faults = dict[tuple[Place, int], list[str]]  # by place and partition: what happens to each message, in turn


class FlakyGrid(KillingGrid):
    """Delivers messages but for some: 'away' brings none, 'lost' loses the reply, 'busy' and 'budget' are refusals."""

    def __init__(self, nodes: Nodes, faults: Faults, out: Path) -> None:
        super().__init__(nodes, Fate(), 0, frozenset())
        self.faults, self.out = faults, out
        self.asked: dict[tuple[Place, int], int] = defaultdict(int)
        self.seen: list[str] = []  # what waiting.json said when somebody was asked again

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        delivered, replies, lost = [], [], set()
        for message in messages:
            envelope = json.loads(str(message.content["config"][ENVELOPE]))
            name = envelope.get("stage", {}).get("name") or envelope["request"]
            place = (name, envelope["round"], envelope["sequence"])
            node = message.metadata.dst_node_id
            key = (place, self.order[node - 1])
            if self.asked[key]:
                waiting = load_waiting(self.out)
                self.seen.append("" if waiting is None else str(waiting))
            self.asked[key] += 1
            fault = self.faults[key].pop(0) if self.faults.get(key) else ""
            if fault in (Kind.BUSY, Kind.BUDGET):
                content = {
                    "arrays": ArrayRecord(),
                    "config": ConfigRecord(dict(Refusal(Kind(fault), "no; nothing").scalars)),
                }
                self.push_messages([message])
                self._waiting.clear()
                replies.append(Message(RecordDict(content), reply_to=message))
            elif fault != "away":
                delivered.append(message)
                if fault == "lost":
                    lost.add(node)
        replies += super().send_and_receive(delivered, timeout=timeout)
        return [reply for reply in replies if reply.metadata.src_node_id not in lost]


class Federation:
    """A case's federation, whose nodes remember nothing at the beginning of each run."""

    def __init__(self, case: str, folder: Path, patch: pytest.MonkeyPatch, **keys: Any) -> None:
        self.folder, self.patch, self.runs = folder, patch, 0
        federation = {} if "missing" in case else EVERYBODY
        described = (CASES | STORES)[case]
        privacy = {"epsilon": 40.0, **described.get("privacy", {})}  # later rounds find something to measure, too
        document = {**described, "federation": {**federation, **keys}, "privacy": privacy}
        self.config: RunConfig = config_of(document, folder)
        self.patch.setattr(exchange, "PAUSE", 0.001)
        self.patch.setattr(exchange, "LONGEST", 0.001)

    def begin(self) -> tuple[Nodes, Path]:
        self.runs += 1
        return Nodes(self.config, self.folder / f"store{self.runs}"), self.folder / f"out{self.runs}"

    def run(self, nodes: Nodes, out: Path, faults: Faults | None = None) -> tuple[dict[str, Any], FlakyGrid]:
        """One server's process: its facts, and its Grid."""
        grid = FlakyGrid(nodes, faults or {}, out)
        with self.patch.context() as patch:
            patch.setattr(nodes, "grid", lambda *_: grid)
            strategy = served(nodes, out, self.patch)
        assert load_waiting(out) is None and not (out / "waiting.json").exists()
        return facts(strategy, nodes, out), grid

    def undisturbed(self) -> tuple[dict[str, Any], list[Place]]:
        """Its facts, and every place at which a node was asked for something that it may charge."""
        whole, grid = self.run(*self.begin())
        places = dict.fromkeys(place for place, _ in grid.asked if place[0] not in ("join", "close"))
        return whole, list(places)


def bad_minute(place: Place, one_may_be: bool) -> Faults:
    """All but one node are missing at a place, for one message, two and three; where one may be, just too many."""
    if one_may_be:
        return {(place, 0): ["lost"], (place, 1): [Kind.BUSY]}
    return {(place, 0): ["away"], (place, 1): ["lost", Kind.BUSY], (place, 2): [Kind.BUSY, "lost", "away"]}


def check_once(nodes: Nodes) -> None:
    assert len(set(nodes.worked)) == len(nodes.worked), "a node has worked twice for one request"


@pytest.mark.parametrize("case", CASES)
def test_a_bad_minute_everywhere_costs_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(case, tmp_path, monkeypatch)
    whole, places = federation.undisturbed()
    expected = {"one-way"} if "plain" in case else {"enrol", "masked", "unmask"}
    assert expected <= {name for name, *_ in places} and len({number for *_, number in places}) >= 2
    nodes, out = federation.begin()
    faults: Faults = {}
    for place in places:
        faults |= bad_minute(place, "missing" in case)
    found, grid = federation.run(nodes, out, faults)
    assert found == whole
    check_once(nodes)
    assert max(grid.asked.values()) == (2 if "missing" in case else 4)
    assert all("waits for" in said and "'" in said for said in grid.seen) and any("busy: no" in s for s in grid.seen)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_that_lost_its_patience_is_resumed_at_every_place(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_resumed(Federation(case, tmp_path, monkeypatch, patience=0.02, connect_timeout=1.0), 1)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["malicious", "plain, the server's noise"])
def test_a_run_that_lost_its_patience_is_resumed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_resumed(Federation(case, tmp_path, monkeypatch, patience=0.02, connect_timeout=1.0), 1_000)


def check_resumed(federation: Federation, step: int) -> None:
    """Two nodes are away for good at a place: the run ends there, nothing of it is final, and it goes on later."""
    whole, places = federation.undisturbed()
    for place in dict.fromkeys([*places[::step], places[-1]]):
        nodes, out = federation.begin()
        away: Faults = {(place, k): ["away"] * 10_000 for k in (0, 2)}
        with pytest.raises(Lost, match=r"too few to go on; missing: client 0 \(slow: no .*; client 2 ") as raised:
            federation.run(nodes, out, away)
        assert raised.value.can_go_on and "federation.patience" in str(raised.value), place
        spent = journals.spent(out)
        found, _ = federation.run(nodes, out)
        assert found == whole, place
        check_once(nodes)
        assert spent is not None and spent.epsilon() <= whole["ledger"]["epsilon"] * (1 + 1e-9)


@pytest.mark.slow
def test_a_refusal_is_final_until_the_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation("malicious", tmp_path, monkeypatch)
    whole, places = federation.undisturbed()
    place = next(place for place in places if place[0] == "masked")
    nodes, out = federation.begin()
    grid = FlakyGrid(nodes, {(place, 1): [Kind.BUDGET]}, out)
    with monkeypatch.context() as patch, pytest.raises(Lost, match=r"3 of 4 clients, too few .* client 1 \(budget: no"):
        patch.setattr(nodes, "grid", lambda *_: grid)
        served(nodes, out, monkeypatch)
    assert grid.asked[place, 1] == 1, "it was asked again, in vain"
    found, _ = federation.run(nodes, out)
    assert found == whole
    check_once(nodes)


@pytest.mark.slow
def test_go_on_goes_on_without_the_sum_and_within_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lost sum would have cost is not spent a second time: nobody pays more than for the whole plan."""
    federation = Federation("secure, the server's noise", tmp_path, monkeypatch, on_loss="go_on", patience=0.02)
    whole, places = federation.undisturbed()
    sums = [place for place in places if place[0] == "masked"]
    for place in (sums[1], sums[-1]):
        nodes, out = federation.begin()
        found, _ = federation.run(nodes, out, {(place, 1): ["away"] * 10_000})
        assert found["rounds"] != whole["rounds"] and "was not opened" in found["rounds"]
        lines = [json.loads(line) for line in found["rounds"].splitlines()]
        assert lines[place[1]]["dropped"]["1"]["kind"] in PASSING
        spent = {k: sum(entry["rho"] for entry in entries) for k, entries in found["clients"].items()}
        assert max(spent.values()) <= whole["ledger"]["rho"] * (1 + 1e-9) and spent[1] < spent[0]
        assert found["ledger"]["rho"] <= spent[0] * (1 + 1e-9)
        check_once(nodes)


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_bad_minute_costs_a_store_nothing(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deals come in blocks, of which each may be smaller than the fewest that the store opens from."""
    monkeypatch.setattr(StoreServer, "at_once", at_once)
    federation = Federation("a store", tmp_path, monkeypatch)
    whole, places = federation.undisturbed()
    (deal,) = (place for place in places if place[0] == "deal")
    nodes, out = federation.begin()
    found, grid = federation.run(nodes, out, bad_minute(deal, one_may_be=False))
    assert found == whole
    check_once(nodes)
    assert max(grid.asked.values()) == 4


def test_a_node_that_forgets_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would pay twice; and a run that cannot do without it cannot be resumed either."""
    federation = Federation("semi-honest", tmp_path, monkeypatch)
    _, places = federation.undisturbed()
    nodes, out = federation.begin()
    nodes.forgetful = {1}
    grid = FlakyGrid(nodes, {(places[0], 1): ["lost"]}, out)
    with monkeypatch.context() as patch, pytest.raises(Lost, match="client 1") as raised:
        patch.setattr(nodes, "grid", lambda *_: grid)
        served(nodes, out, monkeypatch)
    assert max(grid.asked.values()) == 1 and not raised.value.can_go_on


def test_a_simulation_that_lost_a_sum_says_what_it_cost_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation("plain, the server's noise", tmp_path, monkeypatch)
    _, places = federation.undisturbed()
    monkeypatch.setattr("support.killed_servers.AGAIN", "forgets")
    nodes, out = federation.begin()
    out.mkdir()
    with pytest.raises(Lost, match=r"Epsilon [\d.]+ is spent, by its ledger; a simulation asks nobody again: with fed"):
        serve(nodes.config, nodes.prepared, FlakyGrid(nodes, {(places[-1], 1): ["away"]}, out), out, None)
    assert json.loads((out / "ledger.json").read_text(encoding="utf-8"))["releases"]
