"""A holder that claims any number of rows: it costs itself, and fills neither the operator's memory nor the disk."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Message

from fedsyn import yamlio
from fedsyn.aggregation.base import Contribution
from fedsyn.errors import RunError
from fedsyn.flower import ArrayRecord
from fedsyn.flower.messages import read_reply
from fedsyn.front.archive import read_release
from fedsyn.front.testing.faults import Fault
from fedsyn.front.testing.harness import config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import EmpiricalModel, Model, other_models
from fedsyn.loading import load_config
from fedsyn.protocol.driving import Driver
from fedsyn.protocol.stored import OpenOneWay
from fedsyn.randomness import Randomness
from fedsyn.runs import federated_evaluation, finish, synthesis
from fedsyn.runs.engines import run
from fedsyn.runs.federated_evaluation import with_rows
from fedsyn.runs.synthesis import MOST_UNASKED, decoding, expected_rows, rows_with_room, write_synthetic
from fedsyn.wire.envelope import ANSWER, from_json, to_json
from fedsyn.wire.requests import Open, Sum, Summed

RUN = """\
mechanism: {name: sketch_aim}
data: {source: synthfs, bins: 6, options: {beta: 1.0, clients: 4, rows: 400, features: 3}}
federation: {clients: 4, partition: native}
privacy: {epsilon: 8.0, delta: 1.0e-5}
workload: {degree: 2, size: null}
runtime: {seed: 3}
"""


def claim(rows: float) -> Fault:
    """Replaces the row count that a client releases."""

    def fault(reply: Message, earlier: int) -> Message:
        record = reply.content["config"]
        answer = from_json(record[ANSWER], "answer")
        if answer.get("request") == "sizes":
            record[ANSWER] = to_json({**answer, "params": {"rows": rows}})
        return reply

    return fault


def summed(lie: Callable[[npt.NDArray[np.uint64]], Any]) -> Fault:
    """Changes the masked vectors that a client sends to secure sums: what is added to one is added to the sum."""

    def fault(reply: Message, earlier: int) -> Message:
        arrays, _ = read_reply(reply)
        if len(arrays) == 2 and arrays[0].dtype == np.uint64:  # not where it takes masks off again
            arrays[0] = np.asarray(lie(arrays[0]), np.uint64)
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return fault


FAR = np.uint64(2**50)
LIES: dict[str, Callable[[npt.NDArray[np.uint64]], Any]] = {
    "much is added": lambda vector: vector + FAR,
    "much is taken away": lambda vector: vector - FAR,
    "the largest": lambda vector: np.full_like(vector, 2**63 - 1),
    "random words": lambda vector: np.random.default_rng(0).integers(0, 2**64, vector.shape, np.uint64),
}


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("sketch_aim", "the largest"),
        ("sketch_aim", "random words"),
        ("fed_mst", "much is added"),
        ("augflaim", "much is taken away"),
        ("ada_fed_privsyn", "much is added"),
    ],
)
def test_a_sum_that_no_rows_give_ends_the_run_before_more_is_spent(name: str, lie: str) -> None:
    federation = federation_of(awkward_table("missing_values"), False)
    secure = {"protocol": "secagg", "noise": "distributed"}
    config = config_of(name, 4, privacy={"client_sizes": "private"}, aggregation=secure)
    assert finished(execute(config, federation)).error is None
    outcome = execute(config, federation, faults={0: summed(LIES[lie])})
    assert isinstance(outcome.error, RunError) and not outcome.error.can_go_on
    assert re.match(r"the clients' sum '[\w-]+' holds a value of \d", str(outcome.error))
    assert "a client sent what no table holds, and the sum does not say which" in str(outcome.error)
    assert len([release for release in outcome.strategy.ledger.releases if release.name != "sizes"]) == 1


@pytest.mark.parametrize(
    ("name", "rows"),
    [("sketch_aim", 1e15), ("distributed_aim", 2.0**32), ("distributed_aim", 4e9), ("fed_privsyn", 2.0**32)],
)
def test_a_holder_with_which_no_run_could_reckon_is_left_out_before_more_is_spent(name: str, rows: float) -> None:
    federation = federation_of(awkward_table("missing_values"), False)
    config = config_of(name, 4, privacy={"client_sizes": "private"}, synthesis={"rows": 20})
    outcome = finished(execute(config, federation, faults={0: claim(rows)}))
    assert outcome.dropped == {0} and 0 not in outcome.strategy.clients
    assert outcome.strategy.model is not None and outcome.strategy.model.total < 1e4
    (sentence,) = {why.sentence for record in outcome.strategy.records for why in record.dropped.values()}
    assert sentence == f"it claims about {rows:,.0f} rows, and this run cannot compute with that number"


def dealt_times(factor: int) -> Fault:
    """Multiplies the counts that a client deals into a store of the server's."""

    def fault(reply: Message, earlier: int) -> Message:
        arrays, _ = read_reply(reply)
        if len(arrays) == 2:
            reply.content["arrays"] = ArrayRecord([arrays[0], arrays[1].astype(np.int64) * factor])
        return reply

    return fault


def test_a_deal_of_more_rows_than_were_released_costs_its_holder_alone() -> None:
    federation = federation_of(awkward_table("missing_values"), False)
    config = config_of("distaim", 4, privacy={"client_sizes": "private"}, aggregation={"noise": "distributed"})
    assert finished(execute(config, federation)).dropped == set()
    outcome = finished(execute(config, federation, faults={0: dealt_times(10**6)}))
    assert outcome.dropped == {0}
    first = next(record for record in outcome.strategy.records if record.dropped)
    assert first.dropped[0].sentence == "the counts that it dealt are those of more rows than it released"
    assert outcome.strategy.model is not None and outcome.strategy.model.total < 1e4


@pytest.mark.parametrize(("protocol", "factor"), [("mpc", 1000), ("mpc", -1000), ("fhe", 1000)])
def test_marginals_of_a_store_that_no_rows_give_end_the_run_before_more_is_spent(
    protocol: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees what is dealt into these stores; their first opening shows it."""
    federation = federation_of(awkward_table("missing_values"), False)
    store = {"protocol": protocol, "noise": "distributed"}
    name = "fhaim" if protocol == "fhe" else "distaim"
    config = config_of(name, 4, privacy={"client_sizes": "public"}, aggregation=store)
    assert finished(execute(config, federation)).error is None
    real = Contribution.dense
    monkeypatch.setattr(Contribution, "dense", lambda contribution: factor * real(contribution))
    outcome = execute(config, federation)
    assert isinstance(outcome.error, RunError) and not outcome.error.can_go_on
    assert re.match(r"the store's 'one-way' holds counts of \d", str(outcome.error))
    assert "a client sent what no table holds, and the store does not say which" in str(outcome.error)
    assert {release.name for release in outcome.strategy.ledger.releases} == {"one-way"}


def test_a_marginal_of_a_store_adds_up_to_its_rows() -> None:
    config = config_of("distaim", 4, privacy={"client_sizes": "public"})
    strategy = finished(execute(config, federation_of(awkward_table("missing_values"), False))).strategy
    rows, sigma = strategy.most_rows(strategy.everyone()), 1e-3
    opening = Open(OpenOneWay(sigma=sigma))

    def said(*counts: float) -> str | None:
        return strategy.impossible(opening, Summed([np.array(counts)], (sigma,), strategy.everyone()))

    assert said(rows / 2, rows / 2 + 0.01) is None
    assert said(rows + 1e-3, -1e-3) is None and said(2 * rows, -rows) is not None
    assert str(said(rows / 2, rows / 2 + 0.03)).startswith(
        "the store's 'one-way' holds counts of"
    )  # within each cell's bound


@pytest.mark.parametrize("name", ["fed_privsyn", "ada_fed_privsyn"])
def test_rows_that_stand_for_a_claimed_total_stay_within_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "MOST_CELLS", 20_000)
    federation = federation_of(awkward_table("missing_values"), False)
    config = config_of(name, 4, privacy={"client_sizes": "private"}, synthesis={"rows": 20})
    model = finished(execute(config, federation, faults={0: claim(3e9)})).strategy.model
    assert isinstance(model, EmpiricalModel)
    assert len(model.codes) == 20_000 // len(federation.domain) and model.total == pytest.approx(3e9, rel=1e-3)


def test_a_total_that_nobody_asked_for_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = awkward_table("missing_values").schema
    model = Model(schema.domain, {}, 3.7e12)
    usage = SimpleNamespace(free=1e15)
    monkeypatch.setattr(synthesis.shutil, "disk_usage", lambda folder: usage)
    assert expected_rows(model) == MOST_UNASKED == rows_with_room(tmp_path, schema, model)
    # No more than the disk holds, and nine tenths of that.
    usage.free = 200_000
    rows, file = rows_with_room(tmp_path, schema, model), BytesIO()
    write_synthetic(file, decoding(schema, model), model, rows, Randomness(1), keep=False)
    assert 0.85 * usage.free < file.tell() < 0.95 * usage.free
    # A table that fits has all of its rows, though ample ones would not fit.
    model.total = float(rows)
    assert rows_with_room(tmp_path, schema, model) == rows
    usage.free = 3
    assert rows_with_room(tmp_path, schema, model) == 1


@pytest.mark.parametrize("federated", [False, True])
def test_the_model_a_table_and_a_sentence_are_written(
    federated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(synthesis, "MOST_UNASKED", 50)
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    out, asked = tmp_path / "out", f"evaluation.federated={str(federated).lower()}"
    with caplog.at_level(logging.WARNING):
        run(load_config(tmp_path / "run.yaml", [asked]), out)
    assert (out / "model.npz").is_file()
    assert len((out / "synthetic.csv").read_text(encoding="utf-8").splitlines()) == 51
    (sentence,) = [record.message for record in caplog.records if "released row counts" in record.message]
    assert "a table of 50 rows is written; synthesis.rows, or fedsyn sample" in sentence
    assert "50 rows and 3 columns, made by" in (out / "README.md").read_text(encoding="utf-8")
    # The folder says what it holds, also when it is run or reported again.
    assert yamlio.read_mapping(out / "config.yaml")["synthesis"]["rows"] == 50


def test_the_sentence_names_the_total_and_the_holder_that_claims_most_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = awkward_table("missing_values").schema
    sizes = {2: 3.9e9, 5: 1e3}
    strategy: Any = SimpleNamespace(
        model=Model(schema.domain, {}, sum(sizes.values())),
        clients={k: SimpleNamespace(rows=rows) for k, rows in sizes.items()},
    )
    config = config_of("sketch_aim", 2)
    with caplog.at_level(logging.WARNING):
        rows = with_rows(config, schema, strategy, tmp_path).synthesis.rows
    assert rows is not None and 1 <= rows <= MOST_UNASKED
    assert caplog.messages[0].startswith(
        f"the holders' released row counts come to 3,900,001,000, and a table of {rows:,} rows is written "
        "(more than half of them are those of one: client 2: 3,900,000,000); synthesis.rows"
    )
    strategy.clients[5].rows = 3.8e9  # neither has more than half of twice as many
    strategy.model.total = 7.8e9
    with caplog.at_level(logging.WARNING):
        with_rows(config, schema, strategy, tmp_path)
    assert "more than half" not in caplog.messages[1]


@pytest.mark.parametrize(("federated", "drawing"), [(False, finish), (True, federated_evaluation)])
def test_a_table_that_cannot_be_written_leaves_the_model(
    federated: bool, drawing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drawing, "write_synthetic", full)
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    with pytest.raises(OSError, match="No space left"):
        run(load_config(tmp_path / "run.yaml", [f"evaluation.federated={str(federated).lower()}"]), tmp_path / "out")
    release = read_release(tmp_path / "out")
    assert release.model.total > 0 and release.schema.domain.attributes == release.model.domain.attributes


def test_holders_that_lie_about_a_table_lose_their_answer_and_not_the_table(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    config = load_config(tmp_path / "run.yaml", ["evaluation.federated=true"])
    real = Driver.impossible

    def lied(self: Driver, request: Sum | Open, sums: Summed) -> str | None:
        if request.request.name == "evaluate":
            sums.arrays[0][...] = 1e12
        return real(self, request, sums)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Driver, "impossible", lied)
        run(config, tmp_path / "out")
    assert (tmp_path / "out" / "synthetic.csv").is_file()
    rounds = (tmp_path / "out" / "rounds.jsonl").read_text(encoding="utf-8")
    assert "a client sent what no table holds" in rounds and "nothing is known of how good the table is" in rounds


def test_a_table_that_was_asked_for_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "MOST_UNASKED", 50)
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    run(load_config(tmp_path / "run.yaml", ["synthesis.rows=80"]), tmp_path / "out")
    assert len((tmp_path / "out" / "synthetic.csv").read_text(encoding="utf-8").splitlines()) == 81
