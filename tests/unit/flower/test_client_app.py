"""The client entry point: what a node that holds real rows refuses, and what it needs to start."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.flower import Context, RecordDict
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import array_record, pack, read_reply
from fedsyn.loading import parse_config
from fedsyn.privacy import PrivacyBudget
from fedsyn.randomness import OS_LABEL
from fedsyn.runs import run_config as run_config_module
from fedsyn.runs.holders import _real_holder, app, client_fn
from fedsyn.runs.run_config import config_of
from fedsyn.settings import AggregationNode
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER, Envelope
from fedsyn.wire.refusals import NOT_READY

ROOT = Path(__file__).resolve().parents[3]
SECRET = "4711-diagnosis"
UNREADY = {"ok": False, **NOT_READY.fields}
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
            "privacy": {"epsilon": 2.0, "delta": 1e-5, "client_sizes": "public"},
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
    envelope = Envelope("join", "ask", 0, config.sha256, {"schema_hash": expected})
    (reply,) = grid.send_and_receive([grid.new_message(pack(array_record([]), envelope.to_scalars()), 1, "0", 60.0)])
    assert SECRET not in repr(reply.content)
    return json.loads(read_reply(reply)[1][ANSWER])


def test_a_holder_joins_with_its_own_rows_and_schema(node: dict[str, Any]) -> None:
    answer = join(node, run_config())
    assert answer["ok"] is True and answer["params"] == {"partition": None, "rows": 3}
    assert join({**node, "partition-id": 4}, run_config())["params"]["partition"] == 4


def test_a_holder_counts_its_rows_by_its_own_schema(node: dict[str, Any]) -> None:
    answer = join(node, run_config(), schema="another")
    assert answer["kind"] == "protocol" and "schema" in answer["sentence"]


@pytest.mark.parametrize("runtime", [{"engine": "inprocess", "seed": 1}, {"engine": "inprocess"}, {"engine": "ray"}])
def test_real_rows_take_part_in_deployments_only(node: dict[str, Any], runtime: dict[str, Any]) -> None:
    answer = join(node, run_config(**runtime))
    assert answer["ok"] is False and "must be 'deployment'" in answer["sentence"]


def test_real_rows_refuse_seeded_noise(node: dict[str, Any]) -> None:
    """Also from a server that does not run our checks: the seed reaches the node in a configuration of its making."""
    config = run_config()
    seeded = config.model_copy(update={"runtime": config.runtime.model_copy(update={"seed": 1})})
    answer = join(node, seeded)
    assert answer["ok"] is False and answer["sentence"] == INVALID
    with pytest.raises(ConfigError, match="refuses a seeded run"):
        _real_holder(seeded, node, {})


def test_a_holder_needs_an_approved_schema(node: dict[str, Any]) -> None:
    without = {key: value for key, value in node.items() if key != "schema"}
    assert "needs the schema" in join(without, run_config())["sentence"]
    drafted = SCHEMA.replace("dtype: integer}", f"dtype: integer, drafted: [bounds]}}  # {SECRET}")
    Path(node["schema"]).write_text(drafted, encoding="utf-8")
    assert join(node, run_config()) == UNREADY


@pytest.mark.parametrize(
    "rows",
    [None, b"", b"age\n3\n", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"],
    ids=["gone", "empty", "a column short", "a picture"],
)
def test_a_server_hears_the_same_of_whatever_stops_a_table(
    node: dict[str, Any], rows: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if rows is None:
        Path(node["data"]).unlink()
    else:
        Path(node["data"]).write_bytes(rows)
    assert join(node, run_config()) == UNREADY
    assert "because of DataError" in caplog.text and SECRET not in caplog.text  # its holder reads which


def test_a_holder_without_rows_joins(node: dict[str, Any]) -> None:
    Path(node["data"]).write_text("age,smokes\n", encoding="utf-8")
    assert join(node, run_config())["params"] == {"partition": None, "rows": 0}


def test_a_simulated_node_needs_a_partition_and_a_simulation() -> None:
    assert "neither 'data' nor 'partition-id'" in join({}, run_config())["sentence"]
    assert "needs 'data' and 'schema'" in join({"partition-id": 0}, run_config())["sentence"]


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
    assert client.ledger.budget == PrivacyBudget(*budget)  # type: ignore[attr-defined]
    assert client.holder.randomness.label == OS_LABEL  # type: ignore[attr-defined]


def test_a_budget_that_is_none_is_refused(node: dict[str, Any]) -> None:
    run = {"resolved": json.dumps(run_config().to_dict())}
    context = Context(run_id=1, node_id=1, node_config={**node, "epsilon": 0.0}, state=RecordDict(), run_config=run)
    with pytest.raises(ConfigError, match="epsilon"):
        client_fn(context)


def test_the_client_imports_nothing_heavy() -> None:
    """A SuperNode starts a process per message: what it imports it imports every time."""
    code = (
        "import sys, fedsyn.client_app, fedsyn.registry as r\n"
        # Of evaluation it has what it may be asked about its rows, and of the other door nothing.
        "other = {'fedsyn.server_app', 'fedsyn.evaluation.real', 'fedsyn.protocol.strategy'}\n"
        "print(sorted((other | {'fedsyn.plugins.strategies'}) & set(sys.modules)))\n"
        "[r.client_class(name) for name in r.MECHANISMS]\n"
        "heavy = {'jax_privacy', 'optax', 'dp_accounting', 'pandas', 'pyarrow', 'flwr.superlink', 'sqlalchemy'}\n"
        "heavy |= {'sklearn', 'altair', 'vl_convert', 'umap', 'jax', 'mbi', 'ray', 'scipy.stats', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["[]", "[]"]


# What a server may name, and what it hears ---------------------------------------------------------------------------


def asked_with(node: dict[str, Any], run: dict[str, Any]) -> str:
    """What the node answers under a run configuration of a hostile server."""
    grid = InProcessGrid(app, [node], run)
    envelope = Envelope("join", "ask", 0, "0" * 64, {"schema_hash": ""})
    (reply,) = grid.send_and_receive([grid.new_message(pack(array_record([]), envelope.to_scalars()), 1, "0", 60.0)])
    answer = json.loads(read_reply(reply)[1][ANSWER])
    assert answer["ok"] is False and SECRET not in repr(reply.content)
    return str(answer["sentence"])


REFUSED = "this node holds real rows: it takes a run from 'fedsyn run' only, and opens no file for it"
INVALID = "the run's configuration is not valid for this node's fedsyn (see this node's own log)"


@pytest.mark.parametrize("pinned", [{}, {"config-sha256": "0" * 64}])
@pytest.mark.parametrize(
    "content", [f"{SECRET}: HIV\n", f"mechanism: {{name: {SECRET}}}\n", f"{SECRET}, x\n1, 2\n", f"{{{SECRET}", None]
)
def test_a_holder_opens_no_file_that_a_server_names(
    node: dict[str, Any], tmp_path: Path, content: str | None, pinned: dict[str, str]
) -> None:
    """Neither its keys nor its names nor whether it is there come back, also from a file inside the app."""
    target = tmp_path / "private.yaml"
    if content is not None:
        target.write_text(content, encoding="utf-8")
    for name in (str(target), f"../../..{target}", "configs/flwr.yaml", ""):
        assert asked_with({**node, **pinned}, {"config": name, "set": f"data.source={target}"}) == REFUSED


_listening: list[list[str]] = []


def _listen(event: str, facts: tuple[Any, ...]) -> None:
    if event == "open":
        for names in _listening:
            names.append(str(facts[0]))


@functools.cache
def _hooked() -> None:
    """Adds the hook for good, as Python removes none: not at import, where it would slow every test of the process."""
    sys.addaudithook(_listen)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The names of all files that this process opens during the test."""
    _hooked()
    names: list[str] = []
    _listening.append(names)
    yield names
    _listening.clear()


def test_a_holder_refuses_before_it_opens_anything(node: dict[str, Any], opened: list[str], tmp_path: Path) -> None:
    named = tmp_path / "named.yaml"
    named.write_text("mechanism: aim\n", encoding="utf-8")
    opened.clear()
    assert asked_with(node, {"config": str(named)}) == REFUSED
    assert not [name for name in opened if name.startswith(str(tmp_path))]  # not even the holder's own files


@pytest.mark.parametrize(
    "resolved",
    [
        json.dumps({SECRET: 1}),
        json.dumps(run_config().to_dict() | {"mechanism": {"name": SECRET}}),
        json.dumps(run_config().to_dict() | {"aggregation": {"noise": SECRET}}),
        f'{{"{SECRET}',
        "[" * 10_000,
        "3",
    ],
)
def test_a_configuration_error_does_not_travel(
    node: dict[str, Any], resolved: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = asked_with(node, {"resolved": resolved})
    assert told == INVALID
    assert "this node could not answer (" in caplog.text and "Traceback" not in caplog.text  # its holder learns more


def test_a_holder_opens_its_own_files_only(node: dict[str, Any], opened: list[str], tmp_path: Path) -> None:
    """Also where the resolved configuration names others."""
    for name in ("named.csv", "named.yaml"):
        (tmp_path / name).write_text("columns: {}\n", encoding="utf-8")
    document = run_config().to_dict()
    document["data"] |= {"source": str(tmp_path / "named.csv"), "schema": str(tmp_path / "named.yaml")}
    config = parse_config(document)
    opened.clear()
    assert join(node, config)["ok"] is True
    assert {name for name in opened if name.startswith(str(tmp_path))} == {node["data"], node["schema"]}


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"epsilon": 0.0}, "epsilon and delta"),
        ({"epsilon": SECRET}, "epsilon and delta"),
        ({"delta": 2.0}, "epsilon and delta"),
        ({"partition-id": SECRET}, "partition-id"),
        ({"partition-id": -1}, "partition-id"),
        ({"identity": SECRET}, "both 'identity' and 'roster'"),
        ({"config-sha256": SECRET}, "agreed to other configurations"),
    ],
)
def test_what_a_holder_set_up_wrongly_is_told_in_fixed_words(
    node: dict[str, Any], own: dict[str, Any], told: str
) -> None:
    config = run_config()
    if "identity" in own:
        config = config.model_copy(
            update={"aggregation": AggregationNode(protocol="secagg", noise="distributed", threat="malicious")}
        )
    message = asked_with({**node, **own}, {"resolved": json.dumps(config.to_dict())})
    assert told in message and "0.0" not in message


def test_a_holder_takes_part_with_parties_only_if_it_agreed_to_them(node: dict[str, Any]) -> None:
    """Their keys stand in the configuration, which is the server's word until its hash is pinned."""
    document = run_config().to_dict()
    document["mechanism"] = {"name": "distaim", "rounds": 2}
    pem = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----"
    cards = [{"name": n, "address": f"{n}:1", "key": n * 64, "certificate": pem.format(n)} for n in "abc"]
    document["aggregation"] |= {"protocol": "mpc", "noise": "distributed", "parties": cards}
    config = parse_config(document)
    assert "must agree to the three parties" in asked_with(node, {"resolved": json.dumps(config.to_dict())})
    assert join({**node, "config-sha256": config.sha256}, config)["ok"] is True
    document["aggregation"]["parties"] = [*cards[:2], {**cards[2], "key": "1" * 64}]  # another party: another hash
    other = parse_config(document)
    message = asked_with({**node, "config-sha256": config.sha256}, {"resolved": json.dumps(other.to_dict())})
    assert "agreed to other configurations" in message


# A simulation that `flwr run` started --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.yaml", "configs/../../outside.yaml", "configs/a.yaml"])
def test_flwr_run_reads_configurations_of_the_app_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "app" / "configs").mkdir(parents=True)
    (tmp_path / "outside.yaml").write_text(f"{SECRET}: 1\n", encoding="utf-8")
    (tmp_path / "app" / "configs" / "a.yaml").symlink_to(tmp_path / "outside.yaml")
    monkeypatch.setattr(run_config_module, "APP_DIR", tmp_path / "app")
    with pytest.raises(ConfigError, match="a configuration of the app") as caught:
        config_of({"config": name})
    assert SECRET not in str(caught.value)


def test_flwr_run_takes_files_relative_to_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two sides run in folders of Flower's choice, and must mean the same file."""
    monkeypatch.chdir(tmp_path)
    run = {"config": "configs/flwr.yaml", "set": "data.source=rows.csv; data.schema=configs/deployment_schema.yaml"}
    config = config_of(run, nodes=7)
    assert config.federation.clients == 7
    assert config.data.source == str(ROOT / "rows.csv")
    assert config.data.schema_file == str(ROOT / "configs" / "deployment_schema.yaml")


def test_flwr_run_starts_no_deployment() -> None:
    """Its nodes would refuse to open the file; so the ServerApp says at once what to do."""
    with pytest.raises(ConfigError, match="'fedsyn run' starts a deployment"):
        config_of({"config": "configs/deployment.yaml"})


def test_the_servers_door_imports_no_client_nor_the_common_part_anything_heavy() -> None:
    absent = {
        "fedsyn.runs.run_config": [
            "pandas",
            "fedsyn.evaluation",
            "fedsyn.plugins.strategies",
            "fedsyn.plugins.clients",
            "fedsyn.flower",
            "flwr",
        ],
        "fedsyn.server_app": ["fedsyn.client_app"],
    }
    lines = [
        f"import {module}\nprint([name for name in {names} if name in sys.modules])" for module, names in absent.items()
    ]
    code = "\n".join(["import sys", *lines])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["[]", "[]"]
