"""Runs whose server is killed, and resumed: as if nothing had happened, and nobody pays twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedsyn.aggregation.base import ServerSum
from fedsyn.config import RunConfig
from fedsyn.errors import RunError
from fedsyn.loading import parse_config
from fedsyn.protocol.joining import GONE
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.registry import contract_class
from fedsyn.runs import journal as journals
from support.killed_servers import Fate, Killed, KillingGrid, Nodes, served

CLOSED = """
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
"""
OPEN = CLOSED.replace("lower: 18, upper: 90, bins: 4", "bounds: private, bins: 4")
SECURE: Mapping[str, Any] = {"protocol": "secagg", "noise": "distributed", "dropout": 0.25, "corrupted": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "sketch_aim, malicious": {"mechanism": "sketch_aim", "aggregation": {**SECURE, "threat": "malicious"}},
    "sketch_aim": {"mechanism": "sketch_aim", "aggregation": SECURE},
    "augflaim, plain, private sizes": {
        "mechanism": "augflaim",
        "aggregation": {"protocol": "plain", "noise": "server"},
        "privacy": {"client_sizes": "private"},
    },
    "augflaim, one round a client": {
        "mechanism": "augflaim",
        "aggregation": {"protocol": "plain", "noise": "local"},
        "federation": {"sampling_rate": 0.5, "max_participations": 1, "minimum_cohort": 2},
    },
    "fed_privsyn, secure, private sizes": {
        "mechanism": "fed_privsyn",
        "aggregation": SECURE,
        "privacy": {"client_sizes": "private"},
        "evaluation": {"federated": True},
    },
    "distributed_aim, server's noise": {
        "mechanism": "distributed_aim",
        "aggregation": {"protocol": "secagg", "noise": "server", "dropout": 0.25, "corrupted": 0.0},
    },
    "sketch_aim, open schema, a whole client": {
        "mechanism": "sketch_aim",
        "aggregation": SECURE,
        "privacy": {"client_sizes": "private", "epsilon": 400.0, "unit": "client", "rows_per_client": 3},
        "schema": OPEN,
    },
    "sketch_aim, open schema, malicious, private sizes": {
        "mechanism": "sketch_aim",
        "aggregation": {**SECURE, "threat": "malicious"},
        "privacy": {"client_sizes": "private"},
        "schema": OPEN,
        "federation": {"max_participations": 2},
    },
}


def config_of(case: Mapping[str, Any], folder: Path, seed: int | None = 0) -> RunConfig:
    rng = np.random.default_rng(5)
    rows = 160
    table = pd.DataFrame({"age": rng.integers(18, 90, rows), "job": rng.choice(["clerk", "driver", "nurse"], rows)})
    table["smokes"] = np.where(rng.random(rows) < 0.2 + 0.5 * (table["job"] == "nurse"), "yes", "no")
    table.to_csv(folder / "rows.csv", index=False)
    (folder / "schema.yaml").write_text(case.get("schema", CLOSED), encoding="utf-8")
    name = str(case["mechanism"])
    options = {"rounds": 2} if "rounds" in contract_class(name).Options.model_fields else {}
    document: dict[str, Any] = {
        "mechanism": {"name": name, **options},
        "data": {"source": str(folder / "rows.csv"), "schema": str(folder / "schema.yaml"), "test_fraction": 0},
        "federation": {"clients": 4, "minimum_cohort": 3, **case.get("federation", {})},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "client_sizes": "public", **case.get("privacy", {})},
        "workload": {"degree": 2, "size": None},
        "aggregation": dict(case["aggregation"]),
        "evaluation": case.get("evaluation", []),
        "runtime": {"seed": seed},
    }
    return parse_config(document)


def facts(strategy: MechanismStrategy, nodes: Nodes, out: Path) -> dict[str, Any]:
    """What must not depend on whether the server was killed."""
    assert strategy.model is not None
    return {
        "model": {name: array.tobytes() for name, array in strategy.model.to_arrays().items()},
        "ledger": json.loads((out / "ledger.json").read_text(encoding="utf-8")),
        "clients": nodes.ledgers(),
        "rounds": (out / "rounds.jsonl").read_text(encoding="utf-8"),
        "federated": (out / "federated_evaluation.json").read_text(encoding="utf-8") if strategy.afterwards else None,
    }


class Federation:
    """A case's federation: each run of it starts with nodes that remember nothing."""

    def __init__(self, case: str, folder: Path, patch: pytest.MonkeyPatch, seed: int | None = 0) -> None:
        self.folder, self.patch = folder, patch
        self.config = config_of(CASES[case], folder, seed)
        self.runs = 0

    def run(self, *fates: int) -> tuple[dict[str, Any], Nodes, int]:
        """A run whose first server dies at the first of these events, the second at the second, and so on.

        Returns:
            Its facts, its nodes, and how many events the last server lived through.
        """
        self.runs += 1
        nodes, out = Nodes(self.config, self.folder / f"store{self.runs}"), self.folder / f"out{self.runs}"
        for turn, at in enumerate(fates):
            with pytest.raises(Killed):
                served(nodes, out, self.patch, Fate(at), turn=turn)
        fate = Fate()
        strategy = served(nodes, out, self.patch, fate, turn=len(fates))
        return facts(strategy, nodes, out), nodes, fate.events


def check_every_death(federation: Federation, step: int) -> None:
    whole, nodes, events = federation.run()
    once = Counter(partition for partition, _ in nodes.worked)
    assert events > 30 and len(set(nodes.worked)) == len(nodes.worked)
    for at in range(1, events, step):
        resumed, nodes, _ = federation.run(at)
        assert resumed == whole, f"killed at event {at} of {events}"
        assert len(set(nodes.worked)) == len(nodes.worked), f"killed at event {at}: a node has worked twice"
        assert Counter(partition for partition, _ in nodes.worked) == once, f"killed at event {at}"


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.thorough) if "its rows found" in case else case for case in CASES]
)
def test_a_server_that_was_killed_goes_on_as_if_it_had_not_been(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_every_death(Federation(case, tmp_path, monkeypatch), 83)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_wherever_it_was_killed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_every_death(Federation(case, tmp_path, monkeypatch), 1)


@pytest.mark.slow
def test_one_that_is_killed_again_and_again_comes_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation("sketch_aim, open schema, malicious, private sizes", tmp_path, monkeypatch)
    whole, _, _ = federation.run()
    resumed, nodes, _ = federation.run(40, 9, 3, 14, 8, 30)
    assert resumed == whole
    assert len(set(nodes.worked)) == len(nodes.worked)


@pytest.mark.parametrize("case", ["augflaim, plain, private sizes", "distributed_aim, server's noise"])
def test_an_exact_total_never_stands_in_the_journal(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Callable[[type, str], list[Any]]
) -> None:
    """Neither the total nor what gives it: an exact reply to a plain sum, the unmasking of a secure one."""
    written: list[Mapping[str, Any]] = []
    real = journals._append
    monkeypatch.setattr(journals, "_append", lambda file, entry: (written.append(entry), real(file, entry)))
    drawn = watch(ServerSum, "with_server_noise")
    Federation(case, tmp_path, monkeypatch).run()
    totals = [np.asarray(seen.arguments[0]).tobytes() for seen in drawn]
    assert totals and all(array.tobytes() not in totals for entry in written for array in arrays_in(entry))
    noisy = [array.tobytes() for entry in written if entry["kind"] == "answer" for array in arrays_in(entry)]
    assert any(array.tobytes() in noisy for seen in drawn for array in seen.result.arrays)
    stages = [entry for entry in written if entry["kind"] == "replies"]
    masked = [entry for entry in stages if len(arrays_in(entry)) and arrays_in(entry)[0].dtype == np.uint64]
    # Of a secure run the setup's two stages, and one a sum: what comes after the masked vectors takes the masks off.
    assert len(stages) == len(masked) + 2 if stages else "plain" in case
    assert len(masked) == (0 if "plain" in case else len(totals))


def arrays_in(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [array for item in inner for array in arrays_in(item)]


def test_noise_of_the_operating_system_is_paid_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a seed two runs choose differently; what each client has paid is what the server has entered."""
    federation = Federation("sketch_aim", tmp_path, monkeypatch, seed=None)
    for at in range(5, 85, 26):  # a run that finds nothing to measure in its last round is the shorter for it
        resumed, nodes, _ = federation.run(at)
        assert resumed["ledger"]["epsilon"] <= 4.0
        assert not resumed["ledger"]["assumptions"]["seeded"]
        for entries in resumed["clients"].values():
            assert sum(entry["rho"] for entry in entries) == pytest.approx(resumed["ledger"]["rho"], rel=0.02)
        assert len(set(nodes.worked)) == len(nodes.worked)


# Who comes back -------------------------------------------------------------------------------------------------------


def stopped(federation: Federation, at: int) -> tuple[Nodes, Path]:
    """A run whose server died at an event, and nobody has resumed yet."""
    federation.runs += 1
    nodes, out = Nodes(federation.config, federation.folder / f"store{federation.runs}"), federation.folder / "out"
    with pytest.raises(Killed):
        served(nodes, out, federation.patch, Fate(at))
    return nodes, out


def quick(config: RunConfig) -> RunConfig:
    """The same, with a second's patience for nodes."""
    return config.model_copy(
        update={
            "federation": config.federation.model_copy(update={"connect_timeout": 1.0, "timeout": 5.0, "patience": 1.0})
        }
    )


def test_a_client_that_does_not_come_back_is_missed_and_one_that_comes_late_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation("augflaim, plain, private sizes", tmp_path, monkeypatch)
    federation.config = quick(federation.config)
    nodes, out = stopped(federation, 45)
    gone = {2}

    class Returned(KillingGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            asked = list(messages)
            if len(nodes.worked) > before + 2:
                self.without = frozenset()
            return super().send_and_receive(asked, timeout=timeout)

    before = len(nodes.worked)
    monkeypatch.setattr(Nodes, "grid", lambda self, fate, turn, without: Returned(self, fate, turn, frozenset(gone)))
    strategy = served(nodes, out, monkeypatch, turn=1)
    assert strategy.model is not None
    dropped = {record.round: dict(record.dropped) for record in strategy.records if 2 in record.dropped}
    assert dropped and all(found[2] == GONE for found in dropped.values())
    assert 2 in {partition for partition, _ in nodes.worked[before:]}, "it was found when it was there again"
    assert len(set(nodes.worked)) == len(nodes.worked)


def test_nothing_is_sent_where_too_few_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation("augflaim, plain, private sizes", tmp_path, monkeypatch)
    federation.config = quick(federation.config)
    nodes, out = stopped(federation, 45)
    before = list(nodes.worked)
    with pytest.raises(RunError, match=r"2 of the run's 4 clients have come back within 1 s .*the minimum is 3"):
        served(nodes, out, monkeypatch, without=(0, 1))
    assert nodes.worked == before
    assert served(nodes, out, monkeypatch).model is not None, "and it can be resumed again"


def test_a_node_without_memory_would_pay_twice_and_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation("augflaim, one round a client", tmp_path, monkeypatch)
    federation.config = quick(federation.config)
    nodes, out = stopped(federation, 45)
    before = list(nodes.worked)
    monkeypatch.setattr("support.killed_servers.AGAIN", "forgets")
    with pytest.raises(RunError, match="keeps no memory of the run on its disk"):
        served(nodes, out, monkeypatch)
    assert nodes.worked == before


def test_another_request_than_the_one_that_was_written_down_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of fedsyn might ask: what is written down and what is asked do not go together."""
    federation = Federation("sketch_aim, malicious", tmp_path, monkeypatch)
    nodes, out = stopped(federation, 80)
    before = list(nodes.worked)
    with monkeypatch.context() as patched:
        patched.setattr("fedsyn.protocol.recorder.digest", lambda asked: "another")
        with pytest.raises(RunError, match="comes to another request than the one that was written down"):
            served(nodes, out, monkeypatch)
    assert nodes.worked == before
    assert served(nodes, out, monkeypatch).model is not None
