"""`node.yaml`: every mistake is one sentence that says what is allowed, and nothing is believed that is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsyn import yamlio
from fedsyn.errors import ConfigError
from fedsyn.node.file import NodeFile, load_node_file, require_files
from fedsyn.privacy import PrivacyBudget

WHOLE: dict[str, Any] = {
    "format": 1,
    "name": "north",
    "superlink": "superlink.example.org:8000",
    "root_certificates": "ca.crt",
    "key": "node.key",
    "data": "rows.csv",
    "schema": "schema.yaml",
    "partition": 0,
    "identity": "identity.key",
    "roster": "roster.yaml",
    "state": "state",
    "listen": "127.0.0.1:9100",
    "policy": {
        "per_run": {"epsilon": 1, "delta": 1e-6},
        "per_period": {"epsilon": 2, "days": 90},
        "lifetime": {"epsilon": 4, "delta": 1e-6},
        "mechanisms": ["sketch_aim"],
        "requests": ["one-way", "sketch", "measure", "sizes"],
        "protocols": ["secagg"],
        "noise": ["distributed"],
        "threat": "malicious",
        "minimum_cohort": 3,
        "approval": "by hash",
        "configurations": ["0" * 64],
        "operators": ["a" * 64],
    },
}
LEAST: dict[str, Any] = {
    "name": "north",
    "superlink": "localhost:9092",
    "insecure": True,
    "key": "node.key",
    "data": "rows.csv",
    "schema": "schema.yaml",
    "policy": {"lifetime": {"epsilon": 4, "delta": 1e-6}},
}


def load(folder: Path, document: Any) -> NodeFile:
    file = folder / "node.yaml"
    file.write_text(yamlio.dumps(document), encoding="utf-8")
    return load_node_file(file)


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The document with some keys, or keys of its policy (`policy_X`), replaced; None takes a key out."""
    out = {**document, "policy": dict(document["policy"])}
    for key, value in changes.items():
        node = out["policy"] if key.startswith("policy_") else out
        key = key.removeprefix("policy_")
        node[key] = value
        if value is None:
            del node[key]
    return out


def test_names_are_relative_to_the_file_and_limits_are_budgets(tmp_path: Path) -> None:
    file = load(tmp_path, WHOLE)
    assert file.files["data"] == tmp_path / "rows.csv"
    assert file.state_folder == tmp_path / "state"
    limits = file.policy.limits
    assert limits.per_run == PrivacyBudget(1, 1e-6)
    assert limits.per_period == (PrivacyBudget(2, 1e-6), 90)  # the delta of the lifetime
    assert limits.lifetime == PrivacyBudget(4, 1e-6)


def test_what_is_not_said_is_the_safe_way(tmp_path: Path) -> None:
    policy = load(tmp_path, LEAST).policy
    assert policy.approval == "by person"
    assert "plain" not in policy.protocols and "server" not in policy.noise
    assert policy.minimum_cohort == 2
    assert policy.limits.per_run is None and policy.limits.per_period is None


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (changed(WHOLE, shema="x"), "unknown key 'shema' (did you mean 'schema'?)"),
        (changed(WHOLE, policy_mechanism=["aim"]), "'policy.mechanism' (did you mean 'mechanisms'?)"),
        (changed(WHOLE, policy_lifetime=None), "missing key 'policy.lifetime'"),
        (changed(WHOLE, policy_lifetime={"epsilon": 4}), "missing key 'policy.lifetime.delta'"),
        (changed(WHOLE, policy_mechanisms=["sketch_aym"]), "no mechanism 'sketch_aym' (did you mean 'sketch_aim'?)"),
        (changed(WHOLE, policy_requests=["measur"]), "no request 'measur' (did you mean 'measure'?)"),
        (changed(WHOLE, policy_mechanisms="sketch_aim"), "policy.mechanisms: expected a list: [sketch_aim]"),
        (changed(WHOLE, policy_protocols=["secag"]), "(did you mean 'secagg'?)"),
        (changed(WHOLE, policy_approval="person"), "'by person'"),
        (changed(WHOLE, policy_configurations=None), "approval 'by hash' needs configurations"),
        (changed(WHOLE, policy_configurations=["AB"]), "64 lower-case hex digits"),
        (changed(WHOLE, policy_operators=["x"]), "an operator's public key has 64"),
        (changed(WHOLE, policy_operators=[]), "policy.operators: must"),
        (changed(WHOLE, policy_per_run={"epsilon": 9}), "policy.per_run is more than policy.lifetime"),
        (changed(WHOLE, policy_per_period={"epsilon": 9, "days": 1}), "policy.per_period is more than policy.lifetime"),
        (changed(WHOLE, policy_minimum_cohort=True), "minimum_cohort must be a number"),
        (changed(WHOLE, insecure=True), "one of the two"),
        (changed(WHOLE, root_certificates=None), "one of the two"),
        (changed(WHOLE, roster=None), "roster is missing"),
        (changed(WHOLE, roster=None, identity=None), "policy.threat: malicious needs identity and roster"),
        (changed(WHOLE, superlink="nowhere"), "superlink: expected HOST:PORT"),
        (changed(WHOLE, listen="http://x:80"), "listen: expected HOST:PORT"),
        (changed(WHOLE, name="../north"), "name:"),
        (changed(WHOLE, format=2), "format: must be 1"),
        (changed(WHOLE, partition=-1), "partition:"),
    ],
)
def test_each_problem_is_one_sentence(tmp_path: Path, document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, document)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load_node_file(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        load_node_file(tmp_path / "node.yaml")


def test_files_that_are_missing_or_open_to_others_are_named(tmp_path: Path) -> None:
    file = load(tmp_path, LEAST)
    with pytest.raises(ConfigError, match=f"key: no such file: {tmp_path}/node.key"):
        require_files(file)
    for name in ("node.key", "rows.csv", "schema.yaml"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(ConfigError, match="readable by others than its owner; type: chmod 600"):
        require_files(file)
    (tmp_path / "node.key").chmod(0o600)
    require_files(file)
