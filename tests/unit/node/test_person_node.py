"""Nodes that hold rows of persons: whom they take part for, what they say, and what their ledgers say."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unit.runs.test_whole_persons import SCHEMA, hospital, schema, two_tables

from fedsyn import yamlio
from fedsyn.config import RunConfig
from fedsyn.crypto.primitives import Identity
from fedsyn.errors import ConfigError, NotReady
from fedsyn.flower import Context, RecordDict
from fedsyn.ledgers.accounts import open_ledger, summary
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.tables import Encoding, Tables
from fedsyn.node.task import Task
from fedsyn.runs.holders import client_fn
from fedsyn.runs.run_config import run_config_of
from fedsyn.table.schema import Schema
from fedsyn.wire.envelope import ANSWER
from fedsyn.wire.orders import order_of
from support.node_folders import POLICY, header_of, make_node, run_of
from support.typed_commands import Fedsyn, entry_point

OPEN = POLICY | {"client_sizes": "any", "unit": "person"}
APART = {"least_rows": 0, "tables": ["patients", "visits"]}
PERSON = "one person with all rows at one client, added or removed"


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    return entry_point(capsys, monkeypatch)


def node_of(folder: Path, table: pd.DataFrame, policy: Any = OPEN, *, two: bool = False, **keys: Any) -> Path:
    """A node with rows of persons in one file, or in two."""
    path = make_node(folder, policy=policy, **({"persons": "patients.csv"} if two else {}), **keys)
    (folder / "schema.yaml").write_text(yamlio.dumps(schema(**APART) if two else SCHEMA), encoding="utf-8")
    if two:
        tables = two_tables(table)
        tables["patients"].to_csv(folder / "patients.csv", index=False)
    (tables["visits"] if two else table).to_csv(folder / "rows.csv", index=False)
    return path


def config_of(unit: str = "person", **more: Any) -> RunConfig:
    privacy = {"unit": unit, "client_sizes": "public", **more}
    return run_of(privacy={"epsilon": 1.0, "delta": 1e-6, **privacy})


def asked(file: Path, config: RunConfig, **header: Any) -> dict[str, Any]:
    """What the node says to `join`."""
    text = (file.parent / "schema.yaml").read_text(encoding="utf-8")
    made = header_of(config, "join", schema=text, **header)
    answer = Answering(load_node_file(file)).answer(Task(7, made["run_config"], made["fab_hash"], made["scalars"], []))
    told: dict[str, Any] = json.loads(answer.scalars[ANSWER])
    return told


def lines(file: Path) -> list[dict[str, Any]]:
    text = (file.parent / "state" / "ledger.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("two", [False, True])
def test_a_node_counts_people_and_its_ledger_names_them(tmp_path: Path, two: bool, fedsyn: Fedsyn) -> None:
    file = node_of(tmp_path / "node", hospital(90, none=0.2 if two else 0.0), two=two)
    told = asked(file, config_of())
    assert told["ok"] and told["params"]["rows"] == 90
    _, begun, *_ = lines(file)
    assert begun["unit"] == PERSON and begun["adjacency"].startswith("two federations are neighbours when all rows of")
    facts = summary(open_ledger(file.parent / "state" / "ledger.jsonl"))
    assert facts["unit"] == PERSON and facts["runs"][0]["holders_per_person"] == 1
    assert f"Unit: {PERSON}." in " ".join(fedsyn("ledger", "show", str(file)).out.split())


def test_a_ledger_of_runs_for_rows_and_for_persons_says_both(tmp_path: Path) -> None:
    """Nothing that adds them up is for persons: a row's cost is one of a person's many."""
    file = node_of(tmp_path / "node", hospital(40), OPEN | {"unit": "any"})
    assert asked(file, config_of())["ok"] and asked(file, config_of("row"), run="second")["ok"]
    facts = summary(open_ledger(file.parent / "state" / "ledger.jsonl"))
    one, other = f"{PERSON}, in 1 run; ", "one row, added or removed, at one client, in 1 run; "
    assert facts["unit"] == f"{one}{other}what all of them add up to is for a row whose person has no other"
    assert [run["unit"] for run in facts["runs"]] == [PERSON, "one row, added or removed, at one client"]


def test_a_policy_for_persons_refuses_runs_for_rows_before_anything_is_charged(tmp_path: Path) -> None:
    file = node_of(tmp_path / "node", hospital(40))
    told = asked(file, config_of("row"))
    assert not told["ok"] and told["sentence"] == (
        "this node's holder takes part in runs that protect persons: set privacy.unit: person"
    )
    assert [line["entry"] for line in lines(file)] == ["open"]


@pytest.mark.parametrize("what", ["no persons", "private bins"])
def test_a_schema_without_persons_refuses_runs_for_them_before_anything_is_charged(tmp_path: Path, what: str) -> None:
    file = node_of(tmp_path / "node", hospital(40), OPEN | {"unit": "any"})
    document = {key: value for key, value in SCHEMA.items() if what != "no persons" or key != "persons"}
    text = (file.parent / "schema.yaml").read_text(encoding="utf-8")
    if what == "private bins":
        open_ = {"kind": "integer", "bounds": "private"}
        document = {**SCHEMA, "columns": {**SCHEMA["columns"], "born": open_}}
    made = header_of(config_of(), "join", schema=text)
    (file.parent / "schema.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    answer = Answering(load_node_file(file)).answer(Task(7, made["run_config"], made["fab_hash"], made["scalars"], []))
    told = json.loads(answer.scalars[ANSWER])
    assert told["sentence"] == (
        "the run protects persons, and this node's schema says none, or has private bins, bounds or categories"
    )
    assert [line["entry"] for line in lines(file)] == ["open"]
    file.write_text(file.read_text(encoding="utf-8").replace("unit: any", "unit: person"), encoding="utf-8")
    why = "does not say whose a row is" if what == "no persons" else "'born' has private bins"
    with pytest.raises(ConfigError, match=f"policy.unit: person allows no run with this schema: .*{why}"):
        Answering(load_node_file(file))


@pytest.mark.parametrize("unit", ["person", "row"])
def test_an_order_is_signed_for_the_schema_that_holders_have(tmp_path: Path, unit: str) -> None:
    signer = Identity.generate()
    key = tmp_path / "operator.key"
    key.write_text(signer.to_bytes().hex() + "\n")
    key.chmod(0o600)
    policy = OPEN | {"unit": "any", "operators": [signer.public.hex()]}
    file = node_of(tmp_path / "node", hospital(40), policy)
    config = config_of(unit)
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"operator_key": str(key)})})
    rows = Schema.load(file.parent / "schema.yaml")
    order = order_of(config, rows.records if unit == "person" else rows, "first")
    assert asked(file, config, order=order)["ok"]
    other = order_of(config, Schema.from_dict(schema(most_rows=13)).records, "first")
    refused = asked(file, config, order=other)
    assert "signed for another run, configuration or schema" in refused["sentence"]


def test_a_holder_reads_whom_a_run_protects_before_saying_yes(tmp_path: Path, fedsyn: Fedsyn) -> None:
    file = node_of(tmp_path / "node", hospital(40), OPEN | {"approval": "by person"})
    assert asked(file, config_of())["kind"] == "approval"
    assert "for one person, epsilon 1.0 at delta 1e-06" in " ".join(fedsyn("node", "pending", str(file)).out.split())
    said = fedsyn("node", "approve", "first", str(file), "--yes")
    assert said.code == 0, said
    text = " ".join(said.out.split())
    assert f"Unit: {PERSON}; 'patient' says whose a row is; a person has 1 to 12 rows" in text
    assert "what it costs one person" in text and "all rows of one person are added or removed" in text
    assert asked(file, config_of())["ok"]


def test_a_table_of_many_columns_is_within_what_a_node_makes(tmp_path: Path) -> None:
    """60 columns are 122 of a record: far fewer pairs are wanted than there are triples."""
    file = node_of(tmp_path / "node", hospital(20))
    columns = {"patient": {"kind": "identifier"}} | {
        f"c{i}": {"kind": "categorical", "categories": ["a", "b"], "other": False} for i in range(60)
    }
    document = {"columns": columns, "persons": {"id": "patient", "constant": ["c0"], "most_rows": 5}}
    (file.parent / "schema.yaml").write_text(yamlio.dumps(document), encoding="utf-8")
    rows = pd.DataFrame({name: ["a", "b"] for name in columns})
    rows.to_csv(file.parent / "rows.csv", index=False)
    assert asked(file, config_of())["ok"]


# What files have against it ------------------------------------------------------------------------------------------


def warned(file: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the node's own log says of its tables before it is online."""
    caplog.clear()
    loaded = load_node_file(file)
    with caplog.at_level(logging.WARNING, logger="fedsyn"):
        Tables(loaded).get(Encoding.of_most(loaded))
    return [record.getMessage() for record in caplog.records]


def spoilt(folder: Path, name: str, change: Any) -> None:
    """Changes one of a node's tables."""
    table = pd.read_csv(folder / name, dtype=str, keep_default_na=False)
    change(table).to_csv(folder / name, index=False)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("unit", ["person", "any"])
def test_a_node_warms_the_records_that_runs_will_ask_for(tmp_path: Path, two: bool, unit: str) -> None:
    file = load_node_file(node_of(tmp_path / "node", hospital(30), OPEN | {"unit": unit}, two=two))
    tables, config = Tables(file), config_of()
    rows = tables.get(Encoding.of_most(file))
    assert len(rows.codes) == 30
    tables.reads = False
    assert tables.get(Encoding.of(config)) is rows


@pytest.mark.parametrize(
    ("name", "column"), [("rows.csv", "patient"), ("patients.csv", "patient"), ("patients.csv", "sex")]
)
def test_a_file_without_a_column_is_said_to_its_holder_alone(tmp_path: Path, name: str, column: str) -> None:
    file = node_of(tmp_path / "node", hospital(30), two=True)
    spoilt(file.parent, name, lambda table: table.drop(columns=column))
    with pytest.raises(NotReady) as caught:
        Tables(load_node_file(file)).get(Encoding(persons=True))
    cause = str(caught.value.__cause__)
    assert f"lacks the column '{column}'" in cause and "x1" not in cause
    told = asked(file, config_of())
    assert told["kind"] == "not ready" and told["sentence"] == "see this node's own log"


def test_one_file_without_the_identifier_is_said_to_its_holder_alone(tmp_path: Path) -> None:
    file = node_of(tmp_path / "node", hospital(30))
    spoilt(file.parent, "rows.csv", lambda table: table.drop(columns="patient"))
    with pytest.raises(NotReady) as caught:
        Tables(load_node_file(file)).get(Encoding(persons=True))
    assert "lacks the column 'patient', which the schema names under persons" in str(caught.value.__cause__)


def test_what_a_holders_rows_have_against_the_schema_is_one_sentence_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is refused for a row, and no value stands in a sentence."""
    table = hospital(60)
    table.loc[table.index[:3], "patient"] = ["", None, "NA"]
    long = pd.concat([table[table["patient"] == "x59"].iloc[:1]] * 15)
    table = pd.concat([table[table["patient"] != "x59"], long], ignore_index=True)
    table.loc[table.index[-1], "sex"] = "f" if table["sex"].iloc[-1] == "m" else "m"
    said = warned(node_of(tmp_path / "node", table), caplog)
    for sentence in (
        "'patient': 3 rows have no value, and each counts as a person of its own",
        "'patient': somebody has 15 rows, and persons.most_rows in the schema is 12: who has more counts as a person "
        "with 12",
        "column 'sex' differs between the rows of 1 person, and the schema says that it is the same in all rows "
        "(persons.constant): one of the values stands for all",
    ):
        assert said.count(sentence) == 1, said
    assert not any("x5" in sentence for sentence in said)


def test_two_tables_that_disagree_take_part_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A patient who stands twice, and visits of nobody: no row decides whether its holder is in a run."""
    file = node_of(tmp_path / "node", hospital(60), two=True)
    spoilt(file.parent, "patients.csv", lambda t: pd.concat([t[t["patient"] != "x7"], t.iloc[:2].assign(sex="m")]))
    said = warned(file, caplog)
    told = asked(file, config_of())
    assert told["ok"] and told["params"]["rows"] == 59  # of x7 no sex is known, and the schema has no place for that
    assert any("patients.csv has 2 rows too many" in line and "the first one of each counts" in line for line in said)
    assert any("rows of persons whom" in line and "what it would say of them is missing" in line for line in said), said
    assert not any("x7" in line for line in said)


@pytest.mark.parametrize("two", [False, True])
def test_a_plain_supernode_holds_persons_too(tmp_path: Path, two: bool) -> None:
    """Its node configuration names both files."""
    file = load_node_file(node_of(tmp_path / "node", hospital(70, none=0.2 if two else 0.0), two=two))
    config, read = config_of(), Schema.load(file.schema_file).records
    node: dict[str, str | int] = {"data": file.data, "schema": file.schema_file, "partition-id": 0}
    context = Context(1, 0, node | ({"persons": str(file.persons)} if two else {}), RecordDict(), {})
    context.run_config = run_config_of(config, schema=read)
    client = client_fn(context)
    assert len(client.codes) == 70 and client.domain == read.domain
