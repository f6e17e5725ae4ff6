"""A holder that claims any number of rows: it costs itself, and fills neither the operator's memory nor the disk."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message

from fedsyn import yamlio
from fedsyn.front.testing.faults import Fault
from fedsyn.front.testing.harness import config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import awkward_table
from fedsyn.inference import EmpiricalModel, other_models
from fedsyn.loading import load_config
from fedsyn.runs import synthesis
from fedsyn.runs.engines import run
from fedsyn.runs.synthesis import MOST_UNASKED, expected_rows, rows_with_room
from fedsyn.wire.envelope import ANSWER, from_json, to_json

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


@pytest.mark.parametrize(
    ("name", "rows"), [("distributed_aim", 2.0**32), ("distributed_aim", 4e9), ("fed_privsyn", 2.0**32)]
)
def test_a_holder_with_which_no_run_could_reckon_is_left_out_before_more_is_spent(name: str, rows: float) -> None:
    federation = federation_of(awkward_table("missing_values"), False)
    config = config_of(name, 4, privacy={"client_sizes": "private"}, synthesis={"rows": 20})
    outcome = finished(execute(config, federation, faults={0: claim(rows)}))
    assert outcome.dropped == {0} and 0 not in outcome.strategy.clients
    assert outcome.strategy.model is not None and outcome.strategy.model.total < 1e4
    (sentence,) = {why.sentence for record in outcome.strategy.records for why in record.dropped.values()}
    assert sentence == f"it claims about {rows:,.0f} rows, and this run cannot compute with that number"


def test_rows_that_stand_for_a_claimed_total_stay_within_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_models, "MOST_CELLS", 20_000)
    federation = federation_of(awkward_table("missing_values"), False)
    config = config_of("fed_privsyn", 4, privacy={"client_sizes": "private"}, synthesis={"rows": 20})
    model = finished(execute(config, federation, faults={0: claim(3e9)})).strategy.model
    assert isinstance(model, EmpiricalModel)
    assert len(model.codes) == 20_000 // len(federation.domain) and model.total == pytest.approx(3e9, rel=1e-3)


def test_a_total_that_nobody_asked_for_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = awkward_table("missing_values").schema
    model: Any = SimpleNamespace(total=3.7e12)
    assert expected_rows(model) == MOST_UNASKED == rows_with_room(tmp_path, schema, model, "parquet")
    usage = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(synthesis.shutil, "disk_usage", lambda folder: usage)
    # Less than two characters a cell: as many rows as the disk holds with twenty.
    assert rows_with_room(tmp_path, schema, model) == 1_000_000 // (20 * len(schema.order))
    model.total = 1_000_000 / (2 * len(schema.order))
    assert rows_with_room(tmp_path, schema, model) == round(model.total)
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


def test_a_table_that_was_asked_for_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "MOST_UNASKED", 50)
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    run(load_config(tmp_path / "run.yaml", ["synthesis.rows=80"]), tmp_path / "out")
    assert len((tmp_path / "out" / "synthetic.csv").read_text(encoding="utf-8").splitlines()) == 81
