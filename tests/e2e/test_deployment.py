"""Flower's own SuperNodes join a run on a real SuperLink through the refusals of every node; nowhere else do they."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsyn.runs.directory import load_model
from fedsyn.table.schema import Schema
from support.flower_page import check_table, write_app
from support.loopback import Federation, federation_of

pytestmark = pytest.mark.xdist_group("flower")

SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  job: {kind: categorical, categories: [clerk, driver, nurse]}
  smokes: {kind: categorical, categories: ['no', 'yes']}
"""
CONFIG = """\
mechanism: {name: augflaim, rounds: 1}
data: {source: survey, schema: schema.yaml}
federation: {clients: 3, minimum_cohort: 1}
privacy: {epsilon: 4.0, delta: 1.0e-5, client_sizes: public}
workload: {degree: 2, size: null}
evaluation: []
runtime: {engine: deployment, superlink: loopback}
"""
RUN_FILES = (
    "config.yaml",
    "schema.yaml",
    "synthetic.csv",
    "measurements.npz",
    "model.npz",
    "ledger.json",
    "metrics.json",
    "rounds.jsonl",
    "measured.jsonl",
    "report_public.html",
    "README.md",
    "predicted_quality.json",
)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with federation_of(tmp_path, SCHEMA, CONFIG) as started:
        yield started


def add_holder(federation: Federation, name: str, rows: int, schema: str = SCHEMA, **node_config: str | float) -> None:
    """A SuperNode with `rows` rows of its own and the schema that its holder approved."""
    rng = np.random.default_rng(rows)
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "job": rng.choice(["clerk", "driver", "nurse"], rows),
            "smokes": rng.choice(["no", "yes"], rows),
        }
    )
    data, schema_file = federation.folder / f"{name}.csv", federation.folder / f"{name}.yaml"
    table.to_csv(data, index=False)
    schema_file.write_text(schema, encoding="utf-8")
    federation.add_supernode(name, {"data": str(data), "schema": str(schema_file), **node_config})


def rounds_of(out: Path, name: str = "rounds.jsonl") -> list[dict]:
    return [json.loads(line) for line in (out / name).read_text(encoding="utf-8").splitlines()]


def check_run_directory(out: Path, epsilon: float) -> pd.DataFrame:
    """The run directory is complete, private, within its budget, and its table fits the schema."""
    assert {path.name for path in out.iterdir()} == set(RUN_FILES)
    ledger = json.loads((out / "ledger.json").read_text(encoding="utf-8"))
    assert ledger["private"] is True and ledger["not_private_because"] == []
    assert 0 < ledger["epsilon"] <= epsilon and ledger["budget"]["epsilon"] == epsilon
    assert ledger["releases"] and ledger["assumptions"]["seeded"] is False
    for name in ("ledger.json", "report_public.html"):
        assert "seeded noise" not in (out / name).read_text(encoding="utf-8")
    schema = Schema.loads(SCHEMA)
    synthetic = pd.read_csv(out / "synthetic.csv")
    assert list(synthetic.columns) == list(schema.columns)
    assert synthetic["age"].dtype == np.int64 and synthetic["age"].between(18, 90).all()
    assert set(synthetic["job"]) <= {"clerk", "driver", "nurse", "other"}
    assert set(synthetic["smokes"]) <= {"no", "yes", "other"}
    model = load_model(out / "model.npz")
    assert model.domain == schema.domain and model.total == pytest.approx(len(synthetic), abs=1)
    return synthetic


@pytest.mark.slow
def test_plain_supernodes_join_through_the_refusals_of_every_node(federation: Federation) -> None:
    """A bad, a stingy holder and one of another schema cost only themselves."""
    add_holder(federation, "good", 100, **{"partition-id": 7})
    # The first sum fits into this holder's own budget, the choice and the second sum do not.
    add_holder(federation, "stingy", 90, epsilon=3.4)
    add_holder(federation, "elsewhere", 80, SCHEMA.replace("nurse", "teacher"))
    add_holder(federation, "broken", 70)
    add_holder(federation, "unlike", 60, **{"config-sha256": "0" * 64})
    broken = federation.folder / "broken.csv"
    broken.write_text("age,job,smoking\nforty-two,clerk,no\n", encoding="utf-8")

    # A deployment refuses a seed before anything is submitted.
    seeded = federation.fedsyn_run(federation.folder / "run.yaml", federation.folder / "seeded", "runtime.seed=1")
    assert seeded.returncode == 2 and "deployment refuses a seed" in seeded.stderr
    assert "Traceback" not in seeded.stderr and not (federation.folder / "seeded").exists()

    out = federation.folder / "out"
    done = federation.fedsyn_run(federation.folder / "run.yaml", out, "federation.clients=5", timeout=500)
    assert done.returncode == 0, done.stderr + federation.log("superlink") + federation.log("good")
    synthetic = check_run_directory(out, 4.0)
    assert len(synthetic) == 190  # row counts are public here
    joined, first = rounds_of(out)
    assert sorted(joined["cohort"]) == [0, 7]
    assert len(joined["not_joined"]) == 3 and joined["notes"] == []
    notes = " ".join(each["why"]["sentence"] for each in joined["not_joined"])
    assert "schema" in notes and "smok" not in notes
    assert {"kind": "not ready", "sentence": "see this node's own log"} in [
        each["why"] for each in joined["not_joined"]
    ]
    assert "agreed to other configurations than the run's" in notes  # as `fedsyn node` says it
    assert list(first["dropped"]) == ["0"] and first["dropped"]["0"]["kind"] == "budget"
    assert first["selected"]
    _, measured = rounds_of(out, "measured.jsonl")
    assert measured["bytes_up"] > 0 and measured["bytes_down"] > 0
    # The holder's own log says what is wrong; the value in its table stays with it.
    assert "lacks columns of the schema: 'smokes'" in federation.log("broken")
    assert "forty-two" not in federation.log("superlink") + notes


@pytest.mark.slow
def test_an_app_of_ones_own_runs_on_real_supernodes(federation: Federation) -> None:
    """The app of docs/flower.md, on machines that Flower alone has set up; one has a table that cannot be read.

    A SuperNode starts a process for each message, so that there is one round, and a sum is one message.
    """
    app = write_app(federation.folder / "app", clients=3)
    settings = (app / "run.yaml").read_text(encoding="utf-8").replace("rounds: 3", "rounds: 1")
    (app / "run.yaml").write_text(settings + "aggregation: {protocol: plain}\n", encoding="utf-8")
    rows = [app / "rows" / f"{k}.csv" for k in range(3)]
    pd.concat(pd.read_csv(file) for file in rows[1:]).to_csv(rows[1], index=False)
    rows[2].write_text("age,street\nforty-two,Elm\n", encoding="utf-8")
    for k in range(3):
        federation.add_supernode(f"holder{k}", {"partition-id": k})

    files = f'rows="{app / "rows"}" out="{app / "synthetic.csv"}"'
    done = federation.flwr("run", str(app), "loopback", "--stream", "--run-config", files, timeout=500)
    # `flwr run` exits with 0 even if the ServerApp failed: the table and the log are what counts.
    said = done.stdout + done.stderr
    assert (app / "synthetic.csv").exists(), said + federation.log("superlink") + federation.log("holder0")
    check_table(app / "synthetic.csv")
    assert "AugFlaim (augflaim), 2 columns" in said and "[ROUND 1] clients 2, dropped 0" in said
    # A node's own log names the column; nothing of its table is anywhere else.
    assert "lacks columns of the schema: 'ward'" in federation.log("holder2")
    heard = said + federation.log("superlink") + federation.log("holder0") + federation.log("holder1")
    assert "street" not in heard and "forty-two" not in heard + federation.log("holder2")
