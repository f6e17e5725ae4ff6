"""`fedsyn.FlowerApp`: what it takes, what it refuses by name, and what its SuperNodes answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsyn
from fedsyn.errors import ConfigError, FedsynError, ProtocolError, RunError
from fedsyn.flower import Array, ArrayRecord, ClientApp, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from fedsyn.flower.grid import InProcessGrid
from fedsyn.flower.messages import read_reply
from fedsyn.wire.refusals import Kind

SECRET = "4711-diagnosis"
SCHEMA = {
    "columns": {
        "age": {"kind": "integer", "lower": 0, "upper": 99, "bins": 10},
        "ward": {"kind": "categorical", "categories": ["north", "south"], "other": False},
    }
}
CLIENTS = 4


def config(**nodes: Any) -> dict[str, Any]:
    base = {"mechanism": {"name": "augflaim", "rounds": 2}, "epsilon": 2, "delta": 1e-6}
    return base | {"federation": {"clients": CLIENTS}, "runtime": {"seed": 0}} | nodes


def rows_of(context: Context) -> pd.DataFrame:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return pd.DataFrame({"age": rng.integers(20, 60, 200), "ward": rng.choice(["north", "south"], 200, p=[0.2, 0.8])})


def grid_of(app: fedsyn.FlowerApp, clients: int = CLIENTS, client_app: ClientApp | None = None) -> InProcessGrid:
    if client_app is None:
        client_app = ClientApp()
        client_app.train()(app.answer)
    return InProcessGrid(client_app, [{"partition-id": k, "num-partitions": clients} for k in range(clients)], {})


def same_arrays(one: ArrayRecord, other: ArrayRecord) -> bool:
    return {k: a.data for k, a in one.items()} == {k: a.data for k, a in other.items()}


# What it gives --------------------------------------------------------------------------------------------------------


def test_rows_may_be_frames_or_files_and_are_asked_for_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(context: Context) -> pd.DataFrame:
        asked.append(int(context.node_config["partition-id"]))
        return rows_of(context)

    def files(context: Context) -> Path:
        path = tmp_path / f"{context.node_config['partition-id']}.csv"
        rows_of(context).to_csv(path, index=False)
        return path

    frames, paths = (fedsyn.FlowerApp(config(), SCHEMA, of) for of in (counted, files))
    results = [app.strategy().start(grid_of(app)) for app in (frames, paths)]
    assert sorted(asked) == list(range(CLIENTS))
    assert same_arrays(results[0].arrays, results[1].arrays)


def test_a_run_of_its_own_parts_is_the_run_of_fedsyn() -> None:
    """The same clients, seed and configuration: the model that `fedsyn.run` makes of these tables, bit for bit."""
    app = fedsyn.FlowerApp(config(), SCHEMA, rows_of)
    ours = app._model(app.strategy().start(grid_of(app)).arrays)
    tables = [rows_of(Context(1, k, {"partition-id": k}, None, {})) for k in range(CLIENTS)]
    data = {"data": {"source": "rows", "test_fraction": 0.0}, "evaluation": []}
    theirs = fedsyn.run(config(**data), table=tables, schema=SCHEMA).synthesizer.model
    for name, values in theirs.to_arrays().items():
        np.testing.assert_array_equal(ours.to_arrays()[name], values)


PERSONS: dict[str, Any] = {
    "columns": {"id": {"kind": "identifier", "make": "sequence"}, **SCHEMA["columns"]},
    "persons": {"id": "id", "order": True, "constant": ["age"], "most_rows": 8},
}


def visits_of(context: Context) -> pd.DataFrame:
    """200 people of each SuperNode, with 1 to 8 rows."""
    rng, node = np.random.default_rng(int(context.node_config["partition-id"])), context.node_config["partition-id"]
    whose = np.repeat(np.arange(200), rng.integers(1, 9, 200))
    wards = rng.choice(["north", "south"], len(whose), p=[0.2, 0.8])
    ids = [f"{SECRET}-{node}-{who}" for who in whose]
    return pd.DataFrame({"id": ids, "age": rng.integers(20, 60, 200)[whose], "ward": wards})


@pytest.mark.parametrize("protocol", ["plain", "secagg"])
def test_persons_are_protected_as_in_a_run_of_fedsyn(protocol: str) -> None:
    """Whoever protects persons counts records of them: the same clients and seed give the same model, bit for bit."""
    noise = {"aggregation": {"protocol": protocol, "noise": "server" if protocol == "plain" else "distributed"}}
    nodes: dict[str, Any] = {
        "privacy": {"unit": "person", "client_sizes": "public"},
        "workload": {"degree": 2},
        **noise,
    }
    app = fedsyn.FlowerApp(config(**nodes), PERSONS, visits_of)
    result = app.strategy().start(grid_of(app))
    ours = app._model(result.arrays)
    assert ours.total == 200 * CLIENTS
    tables = [visits_of(Context(1, k, {"partition-id": k}, None, {})) for k in range(CLIENTS)]
    data = {"data": {"source": "rows", "test_fraction": 0.0}, "evaluation": []}
    theirs = fedsyn.run(config(**nodes, **data), table=tables, schema=PERSONS).synthesizer.model
    for name, values in theirs.to_arrays().items():
        np.testing.assert_array_equal(ours.to_arrays()[name], values)
    table = app.table(result.arrays, rows=50)
    assert table["id"].nunique() == 50 and (table.groupby("id")["age"].nunique() == 1).all()


@pytest.mark.parametrize(
    ("unit", "schema", "said"),
    [
        ("person", SCHEMA, "does not say whose a row is"),
        (None, PERSONS, "the schema says that a person may have several rows"),
    ],
)
def test_an_app_protects_persons_or_is_told_not_to(unit: str | None, schema: Any, said: str) -> None:
    nodes = {} if unit is None else {"privacy": {"unit": unit}}
    with pytest.raises(FedsynError, match=said):
        fedsyn.FlowerApp(config(**nodes), schema, visits_of)


def test_evaluate_fn_gets_the_model_of_each_round_and_its_figures_are_in_the_result() -> None:
    app, seen = fedsyn.FlowerApp(config(), SCHEMA, rows_of), dict[int, ArrayRecord]()
    strategy = app.strategy()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen[server_round] = arrays
        share = float((app.table(arrays, rows=500)["ward"] == "south").mean())
        return MetricRecord({"south": share}) if server_round > 1 else None

    result = strategy.start(grid_of(app), evaluate_fn=evaluate)
    assert list(seen) == [1, 2] and same_arrays(seen[2], result.arrays)
    assert abs(result.evaluate_metrics_serverapp[2]["south"] - 0.8) < 0.1 and 1 not in result.evaluate_metrics_serverapp
    rounds = result.train_metrics_clientapp
    assert list(rounds) == [0, 1, 2] and rounds[1]["clients"] == CLIENTS and rounds[1]["dropped"] == 0
    assert 0 < rounds[1]["epsilon"] < rounds[2]["epsilon"] == strategy.ledger.epsilon() <= 2.0


def test_looking_at_rounds_changes_nothing() -> None:
    app = fedsyn.FlowerApp(config(), SCHEMA, rows_of)
    looking = app.strategy().start(grid_of(app), evaluate_fn=lambda t, arrays: (app.table(arrays), None)[1])
    assert same_arrays(looking.arrays, app.strategy().start(grid_of(app)).arrays)


# What it refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"initial_arrays": ArrayRecord()}, "initial_arrays=...): a mechanism starts from what it measures"),
        ({"num_rounds": 3}, "num_rounds=...): the rounds follow from the configuration"),
        ({"num_rounds": 0}, "num_rounds=...): the rounds follow"),
        ({"train_config": ConfigRecord({"lr": 0.1})}, "train_config=...): clients answer"),
        ({"evaluate_config": ConfigRecord()}, "evaluate_config=...): clients evaluate nothing"),
        ({"timeout": 0.0}, "timeout: expected more than 0 seconds"),
    ],
)
def test_start_refuses_by_name_what_it_has_no_use_for(given: dict[str, Any], said: str) -> None:
    app = fedsyn.FlowerApp(config(), SCHEMA, rows_of)
    strategy = app.strategy()
    with pytest.raises(ConfigError) as caught:
        strategy.start(grid_of(app), **given)
    assert said in str(caught.value) and not strategy.ledger.releases


def test_a_timeout_is_honoured() -> None:
    app = fedsyn.FlowerApp(config(federation={"clients": CLIENTS, "connect_timeout": 0.1}), SCHEMA, rows_of)
    with pytest.raises(RunError, match=r"no reply to 'join' within 1e-09 s"):
        app.strategy().start(grid_of(app), timeout=1e-9)


@pytest.mark.parametrize("hook", ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"])
def test_a_loop_of_somebody_elses_is_told(hook: str) -> None:
    strategy = fedsyn.FlowerApp(config(), SCHEMA, rows_of).strategy()
    arguments = (1, ArrayRecord(), ConfigRecord(), None) if hook.startswith("configure") else (1, [])
    with pytest.raises(ConfigError, match=f"AugFlaim has no {hook}"):
        getattr(strategy, hook)(*arguments)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"data": {"source": "rows.csv"}}, "no use for 'data.source'"),
        ({"evaluation": ["workload_error"]}, "no use for 'evaluation'"),
        ({"synthesis": {"rows": 5}}, "no use for 'synthesis'"),
        ({"federation": {"clients": CLIENTS, "partition": "iid"}}, "no use for 'federation.partition'"),
        ({"runtime": {"engine": "ray"}}, "no use for 'runtime.engine'"),
        ({"mechansim": "aim"}, "unknown key 'mechansim' (did you mean 'mechanism'?)"),
        ({"mechanism": "agflaim"}, "did you mean 'augflaim'?"),
        (
            {"aggregation": {"protocol": "secagg", "threat": "malicious", "noise": "distributed"}},
            "needs keys of holders",
        ),
    ],
)
def test_a_key_that_would_be_ignored_is_refused_by_name(nodes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fedsyn.FlowerApp(config(**nodes), SCHEMA, rows_of)
    assert said in str(caught.value)


def test_columns_that_are_to_be_found_are_refused() -> None:
    found = {"columns": {**SCHEMA["columns"], "age": {"kind": "integer", "bounds": "private"}}}
    with pytest.raises(ConfigError, match="schema: age would have to be found in the run"):
        fedsyn.FlowerApp(config(), found, rows_of)


def test_arrays_of_something_else_are_no_table() -> None:
    app = fedsyn.FlowerApp(config(), SCHEMA, rows_of)
    with pytest.raises(ConfigError, match="expected the arrays of this app's strategy"):
        app.table(ArrayRecord({"weights": Array(np.zeros(3))}))


# What a SuperNode that cannot answer says -----------------------------------------------------------------------------


def raises(context: Context) -> pd.DataFrame:
    raise ValueError(f"could not read {SECRET}")


def lacks(context: Context) -> pd.DataFrame:
    return pd.DataFrame({SECRET: [1]})


@pytest.mark.parametrize("of", [raises, lacks, lambda context: None])
def test_rows_that_cannot_be_used_are_one_thing_to_the_server(
    of: Callable[[Context], Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = fedsyn.FlowerApp(config(), SCHEMA, of)
    with caplog.at_level(logging.WARNING, "fedsyn"), pytest.raises(RunError) as caught:
        app.strategy().start(grid_of(app))
    assert "only 0 of 4 clients joined" in str(caught.value) and "see this node's own log" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "this node could not answer" in caplog.text


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [("augflaim", "has 5 SuperNodes, and the run 4 holders (federation.clients)"), ("mst", "1 holder (mechanism)")],
)
def test_another_number_of_supernodes_is_told(mechanism: str, said: str) -> None:
    app = fedsyn.FlowerApp(config(mechanism=mechanism), SCHEMA, rows_of)
    with pytest.raises(RunError) as caught:
        app.strategy().start(grid_of(app, clients=5))
    assert said in str(caught.value)


def test_a_mechanism_of_one_holder_runs_on_one_supernode() -> None:
    app = fedsyn.FlowerApp(config(mechanism="mst"), SCHEMA, rows_of)
    table = app.table(app.strategy().start(grid_of(app, clients=1)).arrays)
    assert 150 < len(table) < 250


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"partition-id": 0}, "a seeded run is for simulations, and this node is not in one"),
        ({"partition-id": 0, "num-partitions": 1, "config-sha256": "0" * 64}, "agreed to other configurations"),
        ({"partition-id": 0, "num-partitions": 1, "epsilon": -1}, "must be positive numbers"),
        ({"partition-id": "x", "num-partitions": 1}, "partition-id must be a whole number"),
    ],
)
def test_a_supernodes_own_limits_hold(node: dict[str, Any], said: str) -> None:
    app, client = fedsyn.FlowerApp(config(federation={"clients": 1}), SCHEMA, rows_of), ClientApp()
    client.train()(app.answer)
    with pytest.raises(RunError) as caught:
        app.strategy().start(InProcessGrid(client, [node], {}))
    assert said in str(caught.value)


def test_a_supernode_spends_no_more_than_its_own_epsilon() -> None:
    app, client = fedsyn.FlowerApp(config(federation={"clients": 2}), SCHEMA, rows_of), ClientApp()
    client.train()(app.answer)
    nodes = [{"partition-id": k, "num-partitions": 2} for k in range(2)]
    strategy = app.strategy()
    strategy.start(InProcessGrid(client, [nodes[0], nodes[1] | {"epsilon": 0.1}], {}))
    assert {k: why.kind for k, why in strategy.records[0].dropped.items()} == {1: Kind.BUDGET}


def test_a_client_app_without_the_answer_is_told_what_it_lacks() -> None:
    """Flower turns what a ClientApp raises into a code; the sentence says where to look, and what to return."""
    asked = grid_of(fedsyn.FlowerApp(config(), SCHEMA, rows_of)).new_message(RecordDict(), 1, "1", 60.0)
    for code, said in {1: "its ClientApp could not be loaded", 2: "what `fedsyn.FlowerApp.answer` returns"}.items():
        with pytest.raises(ProtocolError) as caught:
            read_reply(Message(Error(code, SECRET), reply_to=asked))
        assert said in str(caught.value) and SECRET not in str(caught.value)


def test_a_train_function_that_returns_something_else_is_dropped() -> None:
    app, other = fedsyn.FlowerApp(config(), SCHEMA, rows_of), ClientApp()

    @other.train()
    def train(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    with pytest.raises(RunError, match="only 0 of 4 clients joined"):
        app.strategy().start(grid_of(app, client_app=other))
