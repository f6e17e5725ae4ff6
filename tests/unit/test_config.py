"""The configuration: every wrong entry is named with its place and the nearest valid key; hashes and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.loading import load_config, parse_config

ROOT = Path(__file__).resolve().parents[2]


def document(**nodes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "mechanism": {"name": "augflaim", "rounds": 3},
        "data": {"source": "synthfs"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
    }
    for name, keys in nodes.items():
        base[name] = base[name] | keys if isinstance(keys, dict) and name in base else keys
    return base


def write(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(match: str, **nodes: Any) -> str:
    with pytest.raises(ConfigError, match=match) as caught:
        parse_config(document(**nodes))
    assert "pydantic" not in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


# Wrong keys and values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ({"federaton": {}}, r"unknown key 'federaton' \(did you mean 'federation'\?\)"),
        ({"federation": {"client": 3}}, r"'federation.client' \(did you mean 'clients'\?\); allowed here: .*timeout"),
        ({"privacy": {"epsilonn": 3}}, r"'privacy.epsilonn' \(did you mean 'epsilon'\?\)"),
        ({"data": {"schemas": "x"}}, r"'data.schemas' \(did you mean 'schema'\?\)"),
        ({"mechanism": {"round": 3}}, r"'round' \(did you mean 'rounds'\?\); allowed here: .*local_rounds"),
        ({"mechanism": {"name": "augflam"}}, r"unknown mechanism 'augflam' \(did you mean 'augflaim'\?\)"),
        ({"federation": {"partition": "clusterin"}}, r"did you mean 'clustering'"),
        ({"federation": {"partition": {"name": "dirichlet", "bta": 1}}}, r"bta"),
        ({"evaluation": ["workload_eror"]}, r"did you mean 'workload_error'"),
        ({"aggregation": {"noise": "sever"}}, r"aggregation.noise"),
        ({"runtime": {"engine": "rya"}}, r"runtime.engine: .*'inprocess', 'ray' or 'deployment'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_valid_one(nodes: dict[str, Any], match: str) -> None:
    refused(match, **nodes)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon: .*greater than 0"),
        ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": float("nan")}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": float("inf")}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": "much"}}, "privacy.epsilon: .*number"),
        ({"privacy": {"delta": 0}}, "privacy.delta"),
        ({"privacy": {"delta": 1.0}}, "privacy.delta"),
        ({"federation": {"clients": 0}}, "federation.clients"),
        ({"federation": {"clients": 2.5}}, "federation.clients"),
        ({"federation": {"sampling_rate": 0}}, "federation.sampling_rate"),
        ({"federation": {"sampling_rate": 1.1}}, "federation.sampling_rate"),
        ({"federation": {"clients": 3, "minimum_cohort": 4}}, r"minimum_cohort \(4\) must not exceed clients \(3\)"),
        ({"data": {"test_fraction": 1.0}}, "data.test_fraction"),
        ({"workload": {"degree": 0}}, "workload.degree"),
        ({"synthesis": {"rows": 100_000_000_000}}, "synthesis.rows: .*less than or equal to 1000000000"),
        ({"mechanism": {"rounds": 0}}, "rounds"),
        ({"mechanism": {"measure_fraction": 1.0}}, "measure_fraction"),
        ({"runtime": {"seed": -1}}, "runtime.seed"),
        ({"runtime": {"engine": "deployment", "seed": 3}}, "deployment refuses a seed"),
        ({"evaluation": ["nll"], "data": {"test_fraction": 0}}, "nll"),
        ({"mechanism": {"name": "aim"}, "federation": {"sampling_rate": 0.5}}, "'aim' has one data holder"),
        ({"privacy": None}, "missing key 'privacy'"),
        ({"data": 3}, "data: expected keys below it"),
        ({"federation": [3]}, "federation: expected keys below it"),
        ({"mechanism": 3}, "mechanism"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(nodes: dict[str, Any], match: str) -> None:
    refused(match, **nodes)


def test_all_problems_are_told_at_once() -> None:
    message = refused("epsilon", privacy={"epsilon": -1, "delta": 2}, federation={"client": 3})
    assert all(part in message for part in ("privacy.epsilon", "privacy.delta", "federation.client"))


@pytest.mark.parametrize("missing", ["data", "privacy"])
def test_a_missing_node_is_named(missing: str) -> None:
    nodes = document()
    del nodes[missing]
    with pytest.raises(ConfigError, match=f"missing key '{missing}'"):
        parse_config(nodes)


def test_epsilon_has_no_default() -> None:
    nodes = document()
    del nodes["privacy"]["epsilon"]
    with pytest.raises(ConfigError, match=r"missing key 'privacy.epsilon'"):
        parse_config(nodes)


@pytest.mark.parametrize("value", [None, [], "text", 3, {3: "x"}])
def test_what_is_no_mapping_of_keys_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        parse_config(value)


def test_names_alone_stand_for_mechanism_and_partitioner() -> None:
    config = parse_config(document() | {"mechanism": "augflaim", "federation": {"partition": "iid"}})
    assert config.mechanism.name == "augflaim" and config.mechanism.options == {}
    assert config.federation.partition.name == "iid"


# Files ----------------------------------------------------------------------------------------------------------------


SHIPPED = [file for file in sorted((ROOT / "configs").glob("**/*.yaml")) if "\nmechanism:" in file.read_text("utf-8")]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_every_configuration_that_we_ship_is_valid(file: Path) -> None:
    assert isinstance(load_config(file), RunConfig)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"),
        ("- a\n- b\n", "mapping"),
        ("just text", "mapping"),
        ("a: [1, 2\nb: 3\n", "not valid YAML at line"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_with_its_name(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        load_config(write(tmp_path, text))
    assert "run.yaml" in str(caught.value)


def test_a_missing_file_or_a_binary_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*absent.yaml"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=r"binary.yaml"):
        load_config(tmp_path / "binary.yaml")


def test_there_are_shipped_configurations() -> None:
    assert {"demo.yaml", "adult.yaml", "flwr.yaml"} <= {file.name for file in SHIPPED}


@pytest.mark.parametrize(
    ("name", "workload", "size"),
    [
        ("sketch_aim", {}, 1000),
        ("sketch_aim", {"degree": 2}, 1000),
        ("sketch_aim", {"size": 64}, 64),
        ("sketch_aim", {"size": None}, None),
        ("sketch_aim", {"cliques": [["a", "b"]]}, 64),  # its cliques are what counts
        ("aim", {}, 64),
    ],
)
def test_a_workload_that_nobody_sized(name: str, workload: dict[str, Any], size: int | None) -> None:
    config = parse_config({"mechanism": name, "data": "adult", "epsilon": 1, "delta": 1e-6, "workload": workload})
    assert config.workload.size == size
    assert RunConfig(**config.to_dict()) == config


def test_an_empty_node_means_the_defaults() -> None:
    assert parse_config(document() | {"federation": None}) == parse_config(document())


def test_a_resolved_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = parse_config(document(workload={"cliques": [["x1", "x2"]]}, federation={"partition": {"name": "iid"}}))
    config.save(tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert parse_config(config.to_dict()) == config
    assert yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8"))["data"]["schema"] is None


def test_file_names_are_relative_to_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the file is there: a name means one place, not whichever has a file of that name."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "rows.csv").write_text("a\n1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = load_config(write(folder, TEXT.replace("synthfs", "rows.csv, schema: sub/schema")))
    assert config.data.source == str(folder / "rows.csv")
    assert config.data.schema_file == str(folder / "sub" / "schema")


def test_cards_of_parties_are_read_from_files_beside_the_configuration(tmp_path: Path) -> None:
    """And are part of the hash that a holder agrees to."""
    pem = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----"
    cards = [{"name": n, "address": f"{n}:1", "key": n * 64, "certificate": pem.format(n)} for n in "abc"]
    for card in cards:
        (tmp_path / f"{card['name']}.yaml").write_text(yaml.safe_dump(card), encoding="utf-8")
    text = TEXT.replace("augflaim", "distaim")
    text += "aggregation: {protocol: mpc, noise: distributed, parties: [a.yaml, b.yaml, c.yaml]}\n"
    text += "runtime: {operator: keys}\n"
    config = load_config(write(tmp_path, text))
    assert config.aggregation.parties is not None
    assert [party.model_dump() for party in config.aggregation.parties] == cards
    assert config.runtime.operator == str(tmp_path / "keys")
    assert parse_config(config.to_dict()).sha256 == config.sha256
    for what, card in (
        ("name", {"name": "a"}),
        ("HOST:PORT", {"address": "http://c:1"}),
        ("0.0.0.0", {"address": "0.0.0.0:1"}),
    ):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({**cards[2], **card}), encoding="utf-8")
        with pytest.raises(ConfigError, match=what):
            load_config(tmp_path / "run.yaml")
    names = [str(tmp_path / f"{card['name']}.yaml") for card in cards]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(cards[2]), encoding="utf-8")
    assert load_config(tmp_path / "run.yaml", [f"aggregation.parties={names}"]) == config
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**cards[2], "key": "d" * 64}), encoding="utf-8")
    assert load_config(tmp_path / "run.yaml").sha256 != config.sha256
    (tmp_path / "c.yaml").unlink()
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match=r"aggregation\.parties"):
        load_config(write(tmp_path, text.replace("[a.yaml, b.yaml, c.yaml]", "[a.yaml, b.yaml]")))


@pytest.mark.parametrize("name", ["adult", "synthfs", "survey", "openml:adult/2", "openml:rows.csv", "sklearn:iris"])
def test_a_registered_name_is_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "adult").write_text("a file with the name of a table", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_config(write(tmp_path, TEXT.replace("synthfs", f"'{name}'"))).data.source == name
    assert load_config(write(tmp_path, TEXT), [f"data.source={name}"]).data.source == name
    assert parse_config(document(data={"source": name})).data.source == name


@pytest.mark.parametrize("name", ["rows.csv", "Rows.CSV.GZ", "sub/rows.parquet", "../rows.csv", "sub/rows"])
def test_file_names_typed_by_hand_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sets = [f"data.source={name}", "data.schema=schema.yaml"]
    given = {"source": name, "schema": "schema.yaml"}
    for config in (
        load_config(write(tmp_path, TEXT), sets),
        load_config(write(tmp_path, TEXT), [f"data={{source: {name}, schema: schema.yaml}}"]),
        parse_config(document(data=given)),
    ):
        assert config.data.source == str(tmp_path / "here" / name)
        assert config.data.schema_file == str(tmp_path / "here" / "schema.yaml")
    assert given == {"source": name, "schema": "schema.yaml"}  # the caller's own dictionary stays as it is
    absolute = load_config(write(tmp_path, TEXT), ["data.source=/elsewhere/rows.csv"])
    assert absolute.data.source == "/elsewhere/rows.csv"


def test_a_saved_configuration_means_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config(write(tmp_path, TEXT), ["data.source=rows.csv", "data.schema=schema.yaml"])
    config.save(tmp_path / "out" / "config.yaml")
    monkeypatch.chdir("/")
    assert config.data.source == str(tmp_path / "rows.csv")
    assert load_config(tmp_path / "out" / "config.yaml") == config


# Assignments ----------------------------------------------------------------------------------------------------------

TEXT = """\
mechanism: augflaim
data: {source: synthfs, options: {beta: 1.0}}
federation:
privacy: {epsilon: 1.0, delta: 0.00001}
"""


def test_assignments_are_read_as_yaml_and_make_missing_nodes(tmp_path: Path) -> None:
    sets = [
        "privacy.epsilon=2.5",
        "mechanism.rounds=4",
        "federation.clients=7",
        "federation.partition=quantity",
        "data.options.clients=7",
        "workload.size=null",
        "evaluation=[workload_error, nll]",
        "runtime.seed=3",
    ]
    config = load_config(write(tmp_path, TEXT.replace("federation:\n", "")), sets)
    assert config.privacy.epsilon == 2.5 and config.mechanism.options["rounds"] == 4
    assert config.federation.clients == 7 and config.federation.partition.name == "quantity"
    assert config.data.options == {"beta": 1.0, "clients": 7}
    assert config.workload.size is None and config.runtime.seed == 3
    assert config.evaluation.metrics == ("workload_error", "nll")


def test_an_assignment_fills_an_empty_node(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, TEXT), ["federation.clients=7"]).federation.clients == 7


def test_an_option_of_a_partitioner_keeps_its_name(tmp_path: Path) -> None:
    text = TEXT.replace("federation:", "federation: {partition: dirichlet}")
    config = load_config(write(tmp_path, text), ["federation.partition.beta=0.3"])
    assert config.federation.partition.name == "dirichlet" and config.federation.partition.options == {"beta": 0.3}


def test_the_last_assignment_wins(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, TEXT), ["privacy.epsilon=2", "privacy.epsilon=3"]).privacy.epsilon == 3.0


@pytest.mark.parametrize(
    ("assignment", "match"),
    [
        ("privacy.epsilon", r"expected KEY.KEY=VALUE"),
        ("=3", r"expected KEY.KEY=VALUE"),
        ("privacy.epsilon.x=3", "'epsilon' is a value"),
        ("privacy.epsilon=[1", "not valid YAML"),
        ("privacy.epsilom=3", "did you mean 'epsilon'"),
        ("privacy.epsilon=", r"privacy.epsilon"),
    ],
)
def test_a_wrong_assignment_is_refused(tmp_path: Path, assignment: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(write(tmp_path, TEXT), [assignment])


# The hash that client and server compare ------------------------------------------------------------------------------


def test_the_hash_depends_on_what_client_and_server_must_share_only() -> None:
    base = parse_config(document())
    assert base.sha256 == parse_config(document()).sha256 and len(base.sha256) == 64
    same = [
        {"runtime": {"engine": "ray", "seed": 5}},
        {"data": {"test_fraction": 0.2}},
        {"data": {"test_fraction": 0.2}, "evaluation": ["nll"]},
        {"synthesis": {"rows": 5}},
        {"federation": {"partition": {"name": "quantity"}}},
    ]
    assert {parse_config(document(**nodes)).sha256 for nodes in same} == {base.sha256}
    other = [
        {"mechanism": {"rounds": 4}},
        {"mechanism": {"name": "aim"}},
        {"privacy": {"epsilon": 1.01}},
        {"privacy": {"client_sizes": "public"}},
        {"workload": {"seed": 1}},
        {"aggregation": {"noise": "local"}},
        {"federation": {"minimum_cohort": 2}},
    ]
    hashes = {parse_config(document(**nodes)).sha256 for nodes in other}
    assert len(hashes) == len(other) and base.sha256 not in hashes


def test_the_hash_is_the_same_however_the_file_is_written(tmp_path: Path) -> None:
    first = write(tmp_path, TEXT)
    config = load_config(first)
    reordered = write(tmp_path, "\n".join(reversed(TEXT.splitlines())))
    assert load_config(reordered).sha256 == config.sha256
    assert load_config(reordered, ["mechanism.name=augflaim"]).sha256 == config.sha256
    options = ["mechanism.rounds=3", "mechanism.measure_fraction=0.8"]
    assert load_config(first, options).sha256 == load_config(first, options[::-1]).sha256


def test_a_configuration_cannot_be_changed() -> None:
    config = parse_config(document())
    with pytest.raises(Exception, match="frozen"):
        config.privacy.epsilon = 9.0  # type: ignore[misc]


# Short forms ----------------------------------------------------------------------------------------------------------


def test_three_keys_are_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age\n1\n", encoding="utf-8")
    (tmp_path / "schema.yaml").write_text("columns: {age: {kind: numeric, lower: 0, upper: 9}}\n", encoding="utf-8")
    (tmp_path / "run.yaml").write_text("data: rows.csv\nepsilon: 1\ndelta: 1e-6\n", encoding="utf-8")
    config = load_config(tmp_path / "run.yaml")
    assert (config.privacy.epsilon, config.privacy.delta, config.mechanism.name) == (1.0, 1e-6, "sketch_aim")
    assert config.data.source == str(tmp_path / "rows.csv")
    assert config.data.schema_file == str(tmp_path / "schema.yaml")
    (tmp_path / "rows.schema.yaml").write_text("columns: {}\n", encoding="utf-8")  # its own name comes first
    assert load_config(tmp_path / "run.yaml").data.schema_file == str(tmp_path / "rows.schema.yaml")
    changed = load_config(tmp_path / "run.yaml", ["epsilon=2", "data.label=age"])
    assert (changed.privacy.epsilon, changed.data.label, changed.data.source) == (2.0, "age", config.data.source)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("data: x\nepsilon: 1\n", "missing key 'privacy.delta'"),
        ("data: x\n", "missing key 'privacy': write for instance 'epsilon: 1' and 'delta: 1e-6'"),
        ("data: x\nepsilon: 1\nprivacy: {epsilon: 2, delta: 0.1}\n", "'epsilon' is given twice"),
        ("data: x\nepsilonn: 1\ndelta: 1e-6\n", r"unknown key 'epsilonn' \(did you mean 'epsilon'"),
        ("data: x\nepsilon: much\ndelta: 1e-6\n", "privacy.epsilon: .*number"),
    ],
)
def test_a_wrong_short_form_is_one_sentence(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=match):
        load_config(tmp_path / "run.yaml")


def test_rows_are_held_out_of_a_table_that_is_not_for_release_only() -> None:
    nodes = document()
    nodes["runtime"] = {"seed": None}
    assert parse_config(nodes).data.test_fraction == 0.0
    assert parse_config(nodes | {"runtime": {"seed": 3}}).data.test_fraction == 0.1
    explicit = nodes | {"data": {**nodes["data"], "test_fraction": 0.3}}
    assert parse_config(explicit).data.test_fraction == 0.3
    assert parse_config(explicit).data.split_seed is None
    with pytest.raises(ConfigError, match=r"data\.split_seed: leave it out, or set runtime\.seed"):
        parse_config(nodes | {"data": {**nodes["data"], "split_seed": 0}})
    with pytest.raises(ConfigError, match="'nll' needs held-out rows"):
        parse_config(nodes | {"evaluation": ["nll"]})
