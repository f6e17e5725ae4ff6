"""The client entry point: what a node that holds real rows refuses, and what it needs to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsyn.client_app import _real_holder, app, client_fn
from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.flower import Context, RecordDict
from fedsyn.flower.grid import InProcessGrid, new_message
from fedsyn.flower.messages import array_record, pack, read_reply
from fedsyn.loading import parse_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.randomness import OS_LABEL
from fedsyn.schema import Schema
from fedsyn.wire.messages import ANSWER, Envelope

SECRET = "4711-diagnosis"
SCHEMA = """\
columns:
  age: {kind: numeric, lower: 18, upper: 90, bins: 4, dtype: integer}
  smokes: {kind: categorical, categories: ['no', 'yes']}
"""


def run_config(**runtime: Any) -> RunConfig:
    return parse_config(
        {
            "mechanism": "augflaim",
            "data": {"source": "survey"},
            "federation": {"clients": 1},
            "privacy": {"epsilon": 2.0, "delta": 1e-5},
            "workload": {"degree": 1, "size": None},
            "evaluation": [],
            "runtime": runtime or {"engine": "deployment"},
        }
    )


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Any]:
    """The node configuration of a data holder."""
    (tmp_path / "rows.csv").write_text("age,smokes\n30,no\n40,yes\n50,no\n", encoding="utf-8")
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    return {"data": str(tmp_path / "rows.csv"), "schema": str(tmp_path / "schema.yaml")}


def join(node: dict[str, Any], config: RunConfig, schema: str | None = None) -> dict[str, Any]:
    """The node's answer to a server that asks who it is."""
    grid = InProcessGrid(app, [node], {"resolved": json.dumps(config.to_dict())})
    expected = schema or Schema.loads(SCHEMA).sha256
    envelope = Envelope("join", "ask", 0, config.sha256, {"schema": expected})
    (reply,) = grid.send_and_receive([new_message(grid, pack(array_record([]), envelope.to_scalars()), 1, "0", 60.0)])
    assert SECRET not in repr(reply.content)
    return json.loads(read_reply(reply)[1][ANSWER])


def test_a_holder_joins_with_its_own_rows_and_schema(node: dict[str, Any]) -> None:
    answer = join(node, run_config())
    assert answer["ok"] is True and answer["params"] == {"partition": None, "rows": 3}
    assert join({**node, "partition-id": 4}, run_config())["params"]["partition"] == 4


def test_a_holder_counts_its_rows_by_its_own_schema(node: dict[str, Any]) -> None:
    answer = join(node, run_config(), schema="another")
    assert answer["error"] == "protocol" and "schema" in answer["message"]


@pytest.mark.parametrize("runtime", [{"engine": "inprocess", "seed": 1}, {"engine": "inprocess"}, {"engine": "ray"}])
def test_real_rows_take_part_in_deployments_only(node: dict[str, Any], runtime: dict[str, Any]) -> None:
    answer = join(node, run_config(**runtime))
    assert answer["ok"] is False and "must be 'deployment'" in answer["message"]


def test_real_rows_refuse_seeded_noise(node: dict[str, Any]) -> None:
    """Also from a server that does not run our checks: the seed reaches the node in a configuration of its making."""
    config = run_config()
    seeded = config.model_copy(update={"runtime": config.runtime.model_copy(update={"seed": 1})})
    answer = join(node, seeded)
    assert answer["ok"] is False and "seed" in answer["message"]
    with pytest.raises(ConfigError, match="refuses a seeded run"):
        _real_holder(seeded, node, {})


def test_a_holder_needs_an_approved_schema(node: dict[str, Any]) -> None:
    without = {key: value for key, value in node.items() if key != "schema"}
    assert "needs the schema" in join(without, run_config())["message"]
    drafted = SCHEMA.replace("dtype: integer}", f"dtype: integer, drafted: [bounds]}}  # {SECRET}")
    Path(node["schema"]).write_text(drafted, encoding="utf-8")
    answer = join(node, run_config())
    assert answer["ok"] is False and "SchemaError" in answer["message"]


@pytest.mark.parametrize("rows", ["", f"age,smokes\n{SECRET},no\n", "age\n3\n", f"age,smokes\n1,no,{SECRET}\n"])
def test_bad_rows_stay_with_their_holder(node: dict[str, Any], rows: str) -> None:
    Path(node["data"]).write_text(rows, encoding="utf-8")
    answer = join(node, run_config())
    assert answer["ok"] is False and answer["message"] == "DataError (see this node's own log)"


def test_a_simulated_node_needs_a_partition_and_a_simulation() -> None:
    assert "neither 'data' nor 'partition-id'" in join({}, run_config())["message"]
    assert "needs 'data' and 'schema'" in join({"partition-id": 0}, run_config())["message"]


@pytest.mark.parametrize(
    ("own", "budget"),
    [
        ({}, (2.0, 1e-5)),
        ({"epsilon": 0.5}, (0.5, 1e-5)),
        ({"epsilon": 9.0}, (2.0, 1e-5)),
        ({"epsilon": 1, "delta": 1e-7}, (1.0, 1e-7)),
        ({"delta": 1e-3}, (2.0, 1e-5)),
    ],
)
def test_the_smaller_budget_binds(node: dict[str, Any], own: dict[str, Any], budget: tuple[float, float]) -> None:
    run = {"resolved": json.dumps(run_config().to_dict())}
    context = Context(run_id=1, node_id=1, node_config={**node, **own}, state=RecordDict(), run_config=run)
    client = client_fn(context)
    assert client.numpy_client.ledger.budget == PrivacyBudget(*budget)  # type: ignore[attr-defined]
    assert client.numpy_client.holder.randomness.label == OS_LABEL  # type: ignore[attr-defined]


def test_a_budget_that_is_none_is_refused(node: dict[str, Any]) -> None:
    run = {"resolved": json.dumps(run_config().to_dict())}
    context = Context(run_id=1, node_id=1, node_config={**node, "epsilon": 0.0}, state=RecordDict(), run_config=run)
    with pytest.raises(ConfigError, match="epsilon"):
        client_fn(context)


def test_the_client_imports_nothing_heavy() -> None:
    """A SuperNode starts a process per message: what it imports it imports every time."""
    code = (
        "import sys, fedsyn.client_app, fedsyn.registry as r\n"
        "[r.client_class(name) for name in r.MECHANISMS]\n"
        "heavy = {'pandas', 'pyarrow', 'sklearn', 'matplotlib', 'umap', 'jax', 'mbi', 'ray', 'scipy.stats'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
