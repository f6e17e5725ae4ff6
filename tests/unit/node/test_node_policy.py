"""Orders, approvals and the audit log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsyn.errors import ConfigError, NodeError, RunError, WaitsForHolder
from fedsyn.keys.holder_keys import load_operator_key, new_identity
from fedsyn.node.approvals import MOST_WAITING, STALE, Approvals
from fedsyn.node.audit import MOST_LINES, Audit
from fedsyn.output import plain
from fedsyn.settings import PartyCard
from fedsyn.wire.orders import Subject, is_run_name, operator_of, signed_order
from support.node_folders import make_node
from support.typed_commands import Fedsyn, entry_point

SUBJECT = Subject("first", "c" * 64, "s" * 64)


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    """The command's own entry point, in this process."""
    return entry_point(capsys, monkeypatch)


# Orders ---------------------------------------------------------------------------------------------------------------


def test_an_order_is_of_one_run_one_configuration_and_one_schema(tmp_path: Path) -> None:
    public = new_identity(tmp_path / "operator.key")
    order = signed_order(load_operator_key(tmp_path / "operator.key"), SUBJECT)
    assert operator_of(order, SUBJECT) == public
    assert operator_of("", SUBJECT) == ""
    for other in (
        Subject("second", SUBJECT.config, SUBJECT.schema),
        Subject("first", "d" * 64, SUBJECT.schema),
        Subject("first", SUBJECT.config, "t" * 64),
        Subject("first", SUBJECT.schema, SUBJECT.config),
    ):
        with pytest.raises(NodeError, match="signed for another run"):
            operator_of(order, other)


def test_an_order_of_another_making_is_refused(tmp_path: Path) -> None:
    new_identity(tmp_path / "operator.key")
    order = signed_order(load_operator_key(tmp_path / "operator.key"), SUBJECT)
    facts = json.loads(order)
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    for bad in (
        "x",
        "[" * 900,
        order + " " * 1000,
        json.dumps({**facts, "format": 2}),
        json.dumps({**facts, "more": 1}),
        json.dumps({**facts, "operator": 3}),
        json.dumps({**facts, "operator": stranger}),
        json.dumps({**facts, "signature": facts["signature"][:-2]}),
        json.dumps({**facts, "signature": "zz"}),
    ):
        with pytest.raises(NodeError, match="the run's order is"):
            operator_of(bad, SUBJECT)


def test_an_operators_key_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "operator.key"
    new_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="cannot be created"):
        new_identity(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_operator_key(path)
    path.chmod(0o600)
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not what 'fedsyn operator-key' wrote"):
        load_operator_key(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_operator_key(tmp_path / "another")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "-a", ".a", "a..b", "a" * 65, "a\n", None, 3, "ä"])
def test_a_run_name_makes_a_file_name(name: object) -> None:
    assert not is_run_name(name)
    assert is_run_name("2026-11.first_run") and is_run_name("0" * 32)


# Approvals ------------------------------------------------------------------------------------------------------------


def test_a_run_waits_until_somebody_says_yes_to_exactly_that(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approvals")
    config = {"privacy": {"epsilon": 1.0}}
    for _ in range(2):
        with pytest.raises(WaitsForHolder):
            approvals.require(SUBJECT, "", config)
    (waiting,) = approvals.pending()
    assert waiting.config == config and (tmp_path / "approvals").stat().st_mode & 0o777 == 0o700
    approvals.decide("first", approve=True)
    approvals.require(SUBJECT, "", config)
    Approvals(tmp_path / "approvals").require(SUBJECT, "", config)  # another process
    for subject, operator in ((Subject("first", "d" * 64, SUBJECT.schema), ""), (SUBJECT, "a" * 64)):
        with pytest.raises(WaitsForHolder):
            approvals.require(subject, operator, config)
    with pytest.raises(ConfigError, match="several configurations: name one of"):
        approvals.decide("first", approve=True)
    approvals.decide(waiting.key, approve=False)
    with pytest.raises(NodeError, match="does not want to take part"):
        approvals.require(SUBJECT, "", config)


def test_no_run_can_be_called_like_another_ones_key(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approvals")
    for subject in (SUBJECT, Subject("second", "c" * 64, "s" * 64)):
        with pytest.raises(WaitsForHolder):
            approvals.require(subject, "", {})
    key = next(entry.key for entry in approvals.pending() if entry.subject == SUBJECT)
    assert not is_run_name(key) and approvals.find(key).subject == approvals.find("f").subject == SUBJECT
    with pytest.raises(WaitsForHolder):
        approvals.require(Subject(key.replace("@", "-"), "e" * 64, "s" * 64), "", {})
    assert approvals.decide("first", approve=True).subject == SUBJECT, "a whole name is no other run's beginning"
    with pytest.raises(ConfigError, match="several runs begin with 'fir': first, first-"):
        approvals.find("fir")


def test_one_command_says_no_to_all_that_waits(tmp_path: Path, fedsyn: Fedsyn) -> None:
    """A run that somebody approved stays approved; a rejected one stays rejected when it asks again."""
    node = make_node(tmp_path / "node")
    approvals = Approvals(tmp_path / "node" / "state" / "approvals")
    subjects = [Subject(f"run-{number}", "c" * 64, "s" * 64) for number in range(4)]
    for subject in subjects:
        with pytest.raises(WaitsForHolder):
            approvals.require(subject, "", {})
    approvals.decide("run-0", approve=True)
    assert fedsyn("node", "reject", "--all", str(node)).code == 2  # nobody is there to be asked
    assert fedsyn("node", "reject", "run-1", str(node), "--all", "--yes").code == 2
    assert len(approvals.pending()) == 3
    done = fedsyn("node", "reject", "--all", str(node), "--yes")
    assert done.code == 0 and "rejected: 3" in done.out and not approvals.pending()
    approvals.require(subjects[0], "", {})
    with pytest.raises(NodeError, match="does not want to take part"):
        approvals.require(subjects[1], "", {})
    assert "rejected: 0" in fedsyn("node", "reject", "--all", str(node), "--yes").out


def test_an_approval_that_others_could_have_written_is_none(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approvals")
    with pytest.raises(WaitsForHolder):
        approvals.require(SUBJECT, "", {})
    entry = approvals.decide("first", approve=True)
    path = tmp_path / "approvals" / f"{entry.key}.json"
    path.chmod(0o660)
    with pytest.raises(WaitsForHolder):
        approvals.require(SUBJECT, "", {})
    approvals.decide("first", approve=True)
    approvals.require(SUBJECT, "", {})
    (tmp_path / "approvals").chmod(0o770)
    with pytest.raises(NodeError, match="open to nobody else"):
        approvals.require(SUBJECT, "", {})
    (tmp_path / "approvals").chmod(0o700)
    path.write_text(path.read_text(encoding="utf-8").replace("c" * 64, "d" * 64), encoding="utf-8")
    with pytest.raises(WaitsForHolder):  # what stands in a file is what was approved, not what it is called
        approvals.require(SUBJECT, "", {})
    path.write_text("{", encoding="utf-8")
    with pytest.raises(WaitsForHolder):
        approvals.require(SUBJECT, "", {})


def test_a_server_cannot_fill_the_disk_with_runs_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approvals = Approvals(tmp_path / "approvals")
    for number in range(MOST_WAITING):
        with pytest.raises(WaitsForHolder):
            approvals.require(Subject(f"r{number}", "c", "s"), "", {})
    with pytest.raises(NodeError, match="too many runs wait"):
        approvals.require(SUBJECT, "", {})
    assert len(approvals.pending()) == MOST_WAITING
    later = time.time() + STALE + 1.0
    monkeypatch.setattr("fedsyn.node.approvals.time.time", lambda: later)
    with pytest.raises(WaitsForHolder):  # the oldest question that nobody answered makes room
        approvals.require(SUBJECT, "", {})
    assert len(approvals.pending()) == MOST_WAITING and "r0" not in {e.subject.run for e in approvals.pending()}
    with pytest.raises(NodeError, match="longer than this node shows"):
        approvals.require(Subject("long", "c", "s"), "", {"data": "x" * 2**16})
    with pytest.raises(ConfigError, match=r"no run 'r1x' was asked for \(did you mean"):
        approvals.find("r1x")


# Audit ----------------------------------------------------------------------------------------------------------------


def test_an_audit_line_holds_public_facts_only(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "state" / "audit.jsonl")
    audit.write(event="request", run="first", request="x" * 1000, epsilon=0.5, refused=None)
    audit.write(event="answer", ok=True)
    lines = [json.loads(line) for line in audit.path.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["request", "answer"]
    assert len(lines[0]["request"]) == 200 and audit.path.stat().st_mode & 0o777 == 0o600
    values: Any = [1, 2]
    with pytest.raises(TypeError):
        audit.write(values=values)
    assert len(audit.path.read_text(encoding="utf-8").splitlines()) == 2


def test_what_cannot_be_written_down_is_not_answered(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match="nothing is answered"):
        Audit(tmp_path / "audit.jsonl").write(event="request")
    with pytest.raises(RunError, match="nothing is answered"):
        Audit(Path("/dev/full")).write(event="request")


def test_whoever_asks_without_end_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [6e9]
    monkeypatch.setattr("fedsyn.node.audit.time.time", lambda: now[0])
    path = tmp_path / "audit.jsonl"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    for number in range(MOST_LINES + 30):
        Audit(path).write(event="refused", number=number)
    assert len(lines()) == MOST_LINES
    Audit(path).write(event="answered", rho=0.5)  # a charge is told whatever went before
    assert len(lines()) == MOST_LINES + 1
    now[0] += 60.0
    Audit(path).write(event="refused", number=-1)
    assert lines()[-1]["number"] == -1 and lines()[-1]["left_out"] == 30
    Audit(path).write(event="refused", number=-2)
    assert "left_out" not in lines()[-1]


@pytest.mark.parametrize("name", ["a\x1b[2Kb", "a\rb", "a\nb", "a\u202eb", "a\x00"])
def test_no_text_of_a_server_moves_the_cursor_of_whoever_approves(name: str) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----"
    card = {"address": "a:1", "key": "a" * 64, "certificate": pem}
    assert PartyCard(name="Klinik Köln 1", **card).name == "Klinik Köln 1"
    with pytest.raises(ValueError, match="expected"):
        PartyCard(name=name, **card)
    assert plain(f"Party: {name}", keep="").isprintable()
