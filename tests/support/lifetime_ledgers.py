"""Ledgers for life as tests fill them: a node's run and share of a budget, a party's two runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedsyn.ledgers.node_lines import LedgerRun
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.privacy import GAUSSIAN, PrivacyBudget, Release

ONE = PrivacyBudget(1.0, 1e-6)
PARTY = PrivacyBudget(3.0, 1e-5)


def facts(kind: str = "gaussian", budget: PrivacyBudget = ONE, **changed: Any) -> LedgerRun:
    given = {"configuration": "c" * 64, "schema": "s" * 64, "mechanism": "sketch_aim", "accountant": kind}
    return LedgerRun(**{**given, "budget": budget, **changed})


def share(part: float, budget: PrivacyBudget = ONE, round: int = 1) -> Release:
    """A Gaussian release of a part of a budget's mu²."""
    return Release("measure", round, GAUSSIAN, sigma=1 / (budget.mu * math.sqrt(part)), noise_by="client")


def two_runs(path: Path) -> None:
    """Runs a (0.01 of 0.05, ended) and b (0.03 of 0.04, not ended: the process stopped) of a party."""
    book = PartyLedger(path, PARTY)
    book.begin("a", 0.05, mechanism="aim")
    book.charge("a", 0.01, name="one-way", round=1, number=0)
    book.end("a")
    book.begin("b", 0.04, mechanism="aim")
    book.charge("b", 0.01, name="one-way", round=1, number=0)
    book.charge("b", 0.02, name="select", round=1, number=1)
    book.close()


def noted_at_first(path: Path) -> None:
    """Leaves the note of a ledger as its node made it at its first start, so that fewer lines are no older copy."""
    first, second = path.read_bytes().splitlines()[:2]
    assert json.loads(first)["entry"] == "open"
    note = {"entries": 1, "head": json.loads(second)["follows"]}
    path.with_name(path.name + ".seen").write_text(json.dumps(note))
