"""What is left for a run: a holder sees it before saying yes, and is not asked about what would be refused anyway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsyn import yamlio
from fedsyn.errors import BudgetExceeded
from fedsyn.front.cli import app
from fedsyn.front.cli.ending import ended
from fedsyn.ledgers.limits import LifetimeLimits
from fedsyn.ledgers.node_ledger import NodeLedger
from fedsyn.ledgers.node_lines import LedgerRun
from fedsyn.node.answering import Answering
from fedsyn.node.approvals import Approvals
from fedsyn.node.file import NodeFile, load_node_file
from fedsyn.node.task import Task
from fedsyn.privacy import GAUSSIAN, PrivacyBudget, Release
from fedsyn.runs.deployment import named
from fedsyn.wire.envelope import ANSWER
from support.node_folders import header_of, make_node, run_of

POLICY = {
    "per_run": {"epsilon": 1.0},
    "per_period": {"epsilon": 1.2, "days": 30},
    "lifetime": {"epsilon": 1.46, "delta": 1e-6},
    "minimum_cohort": 1,
    "protocols": ["plain"],
    "noise": ["local"],
    "approval": "by person",
}


def node(folder: Path, **changed: Any) -> NodeFile:
    return load_node_file(make_node(folder / "node", policy=POLICY | changed))


def asked(
    answering: Answering, epsilon: float = 1.0, run: str = "3f9c2a1b7d", config_name: str | None = None, **privacy: Any
) -> dict[str, Any]:
    """What the node says to `join`."""
    config = named(run_of(privacy={"epsilon": epsilon, "delta": 1e-6, **privacy}), config_name or run)
    header = header_of(config, "join", run=run)
    task = Task(header["run"], header["run_config"], header["fab_hash"], header["scalars"], [])
    told: dict[str, Any] = json.loads(answering.answer(task).scalars[ANSWER])
    return told


def spend(file: NodeFile, epsilon: float, run: str = "before") -> None:
    """A run of that epsilon that spends all of it and ends."""
    budget = PrivacyBudget(epsilon, 1e-6)
    facts = LedgerRun("c" * 64, "s" * 64, "sketch_aim", "gaussian", budget)
    book = NodeLedger(file.ledger_file, LifetimeLimits(None, None, PrivacyBudget(1000.0, 1e-6)))
    account = book.account(run, facts)
    account.charge(Release("all", 0, GAUSSIAN, 1.0, sigma=(0.5 / facts.announced) ** 0.5 * (1 + 1e-9)))
    book.end(run)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = ended(lambda: app(list(words), standalone_mode=False))
    said = capsys.readouterr()
    return code, said.out, " ".join(said.err.split())


def test_nobody_is_asked_about_a_run_that_policy_or_ledger_refuse(tmp_path: Path) -> None:
    file = node(tmp_path)
    answering, approvals = Answering(file), Approvals(file.state_folder / "approvals")
    told = asked(answering, 5.0)
    assert told["kind"] == "budget" and "limit for one run is epsilon = 1 " in told["sentence"]
    told = asked(answering, client_sizes="public")
    assert "does not publish its row count" in told["sentence"]
    spend(file, 1.0)
    told = asked(answering, 1.0)
    assert (
        told["kind"] == "budget"
        and "limit for any 30 days" in told["sentence"]
        and "spent: epsilon = 1;" in told["sentence"]
    )
    assert "the run has two names" in asked(answering, config_name="0011223344")["sentence"]
    assert approvals.entries() == [] and "3f9c2a1b7d" not in answering.book.runs
    fitting = float(told["sentence"].partition(", and epsilon = ")[2].partition(" would fit")[0])
    told = asked(answering, fitting, "0011223344")
    assert told["kind"] == "approval", told
    assert [entry.subject.run for entry in approvals.pending()] == ["0011223344"]


def test_nobody_is_asked_about_another_run_of_a_known_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, where = node(tmp_path), str(tmp_path / "node" / "node.yaml")
    answering, approvals = Answering(file), Approvals(file.state_folder / "approvals")
    spend(file, 0.2, "0011223344")
    told = asked(answering, 0.5, "0011223344")
    assert not told["ok"] and "knows another run of this name" in told["sentence"] and approvals.entries() == []
    assert asked(answering, 0.5, "3f9c2a1b7d")["kind"] == "approval"
    spend(file, 0.1, "3f9c2a1b7d")  # begun under the same name while the question waited
    code, _, err = typed(capsys, "node", "approve", "3f9c2a1b7d", where, "--yes")
    assert code == 2 and "would be refused whatever you say: this node knows another run of this name" in err


@pytest.mark.parametrize("accountant", ["gaussian", "zcdp"])
@pytest.mark.parametrize("first", ["gaussian", "zcdp"])
@pytest.mark.parametrize("spent", [0.2011, 0.9, 1.4])
def test_what_a_refusal_says_would_fit_does_and_not_much_more(
    tmp_path: Path, first: str, accountant: str, spent: float
) -> None:
    """After a failed run: the rest of the budget can be used, and the number is the largest of three digits."""
    file = node(tmp_path, per_period=None)
    book = NodeLedger(file.ledger_file, file.policy.limits)
    begun = LedgerRun("c" * 64, "s" * 64, "sketch_aim", first, PrivacyBudget(1.0, 1e-6))
    sigma = (0.5 / LedgerRun("c" * 64, "", "", first, PrivacyBudget(spent, 1e-6)).announced) ** 0.5
    wide = NodeLedger(file.ledger_file, LifetimeLimits(None, None, PrivacyBudget(1.46, 1e-6)))
    asked_for = begun if spent <= 1.0 else LedgerRun("c" * 64, "s" * 64, "m", first, PrivacyBudget(1.46, 1e-6))
    account = wide.account("failed", asked_for)
    account.charge(Release("all", 0, GAUSSIAN, 1.0, sigma=sigma * (1 + 1e-9)))
    wide.end("failed")
    book.refresh()

    def facts(epsilon: float) -> LedgerRun:
        return LedgerRun("d" * 64, "s" * 64, "sketch_aim", accountant, PrivacyBudget(epsilon, 1e-6))

    with pytest.raises(BudgetExceeded) as refused:
        book.require_taken("next", facts(1.46))
    fitting = float(str(refused.value).partition(", and epsilon = ")[2].partition(" would fit")[0])
    book.require_taken("next", facts(fitting))
    with pytest.raises(BudgetExceeded):
        book.require_taken("next", facts(fitting * 1.02))
    assert "next" not in book.runs  # nothing was written


def test_the_page_says_what_was_spent_is_asked_and_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, where = node(tmp_path), str(tmp_path / "node" / "node.yaml")
    spend(file, 0.2011)
    assert asked(Answering(file), 0.75)["kind"] == "approval"
    code, out, err = typed(capsys, "node", "pending", where)
    assert code == 0 and out.startswith("3f9c2a1b7d: pending, asked "), err
    assert "  limit for any 30 days: epsilon 1.2 at delta 1e-06; spent 0.2011; with this run at most 0.7837" in out
    assert "  limit for life: epsilon 1.46 at delta 1e-06; spent 0.2011; with this run at most 0.7837" in out
    (listed,) = json.loads(typed(capsys, "node", "pending", where, "--json")[1])
    assert [room["fits"] for room in listed["room"]] == [True, True] and listed["run"] == "3f9c2a1b7d"
    for name in ("4", "3f9c2a1b7d-"):
        code, _, err = typed(capsys, "node", "approve", name, where, "--yes")
        assert code == 2 and f"no run '{name}' was asked for" in err and "waiting: 3f9c2a1b7d" in err
    code, out, err = typed(capsys, "node", "approve", "3f9c", where, "--yes")  # as it is read over a telephone
    assert code == 0 and "spent 0.2011; with this run at most" in out, err
    assert "what a server may ask of a data holder" in out and out.splitlines()[-1].startswith("approved: 3f9c2a1b7d;")


@pytest.mark.parametrize("corrupted", [0.05, 0.0])
def test_the_page_says_who_faces_what(tmp_path: Path, capsys: pytest.CaptureFixture[str], corrupted: float) -> None:
    """The operator's choice of `corrupted`, `dropout` and `minimum_cohort` stands there, and what it comes to."""
    open_to_all = {"protocols": ["secagg"], "noise": ["distributed"], "corrupted": 0.0}
    file, where = node(tmp_path, **open_to_all), str(tmp_path / "node" / "node.yaml")
    aggregation = {"protocol": "secagg", "noise": "distributed", "corrupted": corrupted, "dropout": 0.2}
    config = run_of(federation={"clients": 3, "minimum_cohort": 2}, aggregation=aggregation)
    header = header_of(named(config, "3f9c2a1b7d"), "join", run="3f9c2a1b7d")
    Answering(file).answer(Task(header["run"], header["run_config"], header["fab_hash"], header["scalars"], []))
    code, out, err = typed(capsys, "node", "approve", "3f9c2a1b7d", where, "--yes")
    page = " ".join(out.split())
    assert code == 0, err
    assert f"aggregation.corrupted {corrupted:g}" in page
    assert "a sum over 3 of them is opened with 3 contributors or more (aggregation.dropout 0.2, " in page
    assert "federation.minimum_cohort 2)" in page
    found = "1 against another holder alone" if corrupted else "1.245 against another holder alone"
    assert found in page and ("Up to 1 of the 3 holders" in page) == (corrupted > 0)


def test_a_run_that_would_be_refused_by_now_is_not_approved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody spent the budget, or changed the policy, while the question waited."""
    file, path = node(tmp_path), tmp_path / "node" / "node.yaml"
    assert asked(Answering(file), 0.75)["kind"] == "approval"
    spend(file, 1.0)
    code, out, err = typed(capsys, "node", "approve", "3f9c2a1b7d", str(path), "--yes")
    assert code == 2 and "would be refused whatever you say: the holder's limit for any 30 days" in err
    assert "which is REFUSED" in out and "approved" not in out
    text = (
        path.read_text(encoding="utf-8")
        .replace("epsilon: 1.2", "epsilon: 9.0")
        .replace("epsilon: 1.46", "epsilon: 9.0")
    )
    document = yamlio.loads(text, "node.yaml")
    path.write_text(yamlio.dumps(document | {"policy": document["policy"] | {"mechanisms": ["mst"]}}), encoding="utf-8")
    code, _, err = typed(capsys, "node", "approve", "3f9c2a1b7d", str(path), "--yes")
    assert code == 2 and "does not allow the run's mechanism" in err
    assert [entry.state for entry in Approvals(file.state_folder / "approvals").entries()] == ["pending"]


def test_a_name_that_begins_two_runs_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, where = node(tmp_path), str(tmp_path / "node" / "node.yaml")
    answering = Answering(file)
    for run in ("3f9c2a1b7d", "3f00000000"):
        assert asked(answering, 0.5, run)["kind"] == "approval"
    code, _, err = typed(capsys, "node", "approve", "3f", where, "--yes")
    assert code == 2 and "several runs begin with '3f': 3f00000000, 3f9c2a1b7d" in err
    assert typed(capsys, "node", "reject", "3f0", where, "--yes")[0] == 0
    states = {e.subject.run: e.state for e in Approvals(file.state_folder / "approvals").entries()}
    assert states == {"3f00000000": "rejected", "3f9c2a1b7d": "pending"}
