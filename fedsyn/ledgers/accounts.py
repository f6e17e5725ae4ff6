"""Readings of a ledger for life, a holder's or a party's.

Nothing is locked or changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsyn.errors import ConfigError, LedgerDamaged
from fedsyn.ledgers.chain import TORN, Head, damaged, read_raw, require_private
from fedsyn.ledgers.limits import CHOICE, Kind, LifetimeLimits, adding, epsilon_of, rho_of, total
from fedsyn.ledgers.node_ledger import seen_head
from fedsyn.ledgers.node_lines import NodeLines, Run, spent_by
from fedsyn.ledgers.party_ledger import PartyLines
from fedsyn.privacy import PrivacyBudget, zcdp_epsilon
from fedsyn.privacy.statement import UNIT

#: Whom a party's entries protect. Its orders do not say whose records they count.
OF_A_PARTY = f"{UNIT}; of a run for persons, one person with all rows"
_FORMAT = 1
_BEGINS = b'{"format": '  # every line of a ledger
#: Columns of `rows`, in order.
COLUMNS = (
    "time",
    "run",
    "configuration",
    "mechanism",
    "request",
    "round",
    "noise",
    "sigma",
    "epsilon",
    "count",
    "sensitivity",
    "rho",
    "noise_by",
    "state",
)


@dataclass
class LedgerReading:
    """A ledger that was read.

    Attributes:
        path: of its file.
        raw: the file.
        lines: what it says, `NodeLines` or a party's `PartyLines`; torn lines are not yet counted in it.
        limits: of the holder, where its node.yaml is known.
        budget: of the party, where its party.yaml is known.
    """

    path: Path
    raw: bytes
    lines: NodeLines | PartyLines
    limits: LifetimeLimits | None = None
    budget: PrivacyBudget | None = None

    @property
    def node(self) -> NodeLines | None:
        return self.lines if isinstance(self.lines, NodeLines) else None

    @property
    def kind(self) -> Kind:
        """The filter that costs add up in."""
        return self.lines.kind or "zcdp"

    @property
    def delta(self) -> float | None:
        """Delta at which epsilon is told.

        The limit's, or where none is known the smallest of the runs'.
        """
        if self.limits is not None:
            return self.limits.lifetime.delta
        if self.budget is not None:
            return self.budget.delta
        return min((run.facts.budget.delta for run in self.node.runs.values()), default=None) if self.node else None

    def spent(self) -> tuple[float, float]:
        """Returns (rho, the same in the filter's unit).

        Torn lines count at their worst.
        """
        rho = self.lines.spent + self.lines.torn_rho
        if self.node is None or self.kind != "gaussian":
            return rho, rho
        return rho, total(self.node.costs, self.kind) + CHOICE * self.lines.torn_rho


def open_ledger(path: Path, limits: LifetimeLimits | None = None, budget: PrivacyBudget | None = None) -> LedgerReading:
    """Reads a ledger.

    Args:
        path: of its file.
        limits: of the holder, where its node.yaml is known.
        budget: of the party, where its party.yaml is known.

    Raises:
        LedgerDamaged: if a line was changed, lost or moved.
        ConfigError: if it is missing, cannot be read, or is not a ledger.
    """
    raw = read_raw(path)
    if not raw:
        raise ConfigError(f"{path} is empty: expected a ledger")
    if not _BEGINS.startswith(raw[: len(_BEGINS)]):
        raise ConfigError(f"{path} is not a ledger, nor a node's or a party's YAML file")
    try:
        of_a_node = json.loads(raw.split(b"\n", 1)[0])["entry"] == "open"
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged(path, 1, NodeLines.advice) from None
    lines = NodeLines() if of_a_node else PartyLines()
    lines.read(raw, path)
    return LedgerReading(path, raw, lines, limits, budget)


# Verification ---------------------------------------------------------------------------------------------------------


def verify(
    opened: LedgerReading, head: Mapping[str, Any] | None = None, remembered: Iterable[Head] = ()
) -> dict[str, Any]:
    """Checks a ledger as its next start will.

    Its lines follow each other. Returns numbers of entries and releases.

    Args:
        opened: the ledger.
        head: what `head_of` said of it before, kept elsewhere.
        remembered: heads that its node's memories of runs keep.

    Raises:
        LedgerDamaged: if its last line is torn, or it does not hold what was seen of it.
        ConfigError: if `head` is not one, or others than its owner may write the ledger or its folder.
    """
    lines = opened.lines
    require_private(opened.path)
    seen = seen_head(opened.path) if opened.node is not None else None
    for noted in [*([] if seen is None else [seen]), *remembered]:
        lines.require(noted, opened.path)
    if lines.torn:
        number = opened.raw.count(b"\n", 0, opened.raw.rindex(lines.fragments[-1])) + 1
        raise LedgerDamaged(
            f"ledger: the last line of {opened.path} is torn (line {number}): its writer was stopped; it counts as "
            f"rho = {lines.torn_rho:.4g}, which the next start writes down",
            number,
        )
    if head is not None:
        _verify_head(opened, head)
    torn = sum(entry["entry"] == TORN for entry in lines.entries)
    counts = {"entries": len(lines.entries), "head": lines.head, "torn": torn}
    if opened.node is not None:
        charges = [charge for run in opened.node.runs.values() for charge in run.charges]
        answered = sum(charge.answered for charge in charges)
        counts |= {"released": answered, "charged_only": len(charges) - answered}
    else:
        counts |= {"released": sum(entry["entry"] == "release" for entry in lines.entries)}
    return counts


def head_of(opened: LedgerReading) -> dict[str, Any]:
    """Returns the head, for keeping elsewhere.

    No older and no rewritten ledger agrees with it (SHA-256 of its bytes so far).
    """
    return {
        "format": _FORMAT,
        "ledger": opened.path.name,
        "entries": len(opened.lines.entries),
        "head": opened.lines.head,
        "bytes": len(opened.raw),
        "sha256": hashlib.sha256(opened.raw).hexdigest(),
    }


def _verify_head(opened: LedgerReading, head: Mapping[str, Any]) -> None:
    try:
        before, size, whole = Head(int(head["entries"]), str(head["head"])), int(head["bytes"]), str(head["sha256"])
        if head["format"] != _FORMAT:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ConfigError("--head: expected what 'fedsyn ledger export --head' wrote") from None
    if not opened.lines.holds(before) or hashlib.sha256(opened.raw[:size]).hexdigest() != whole:
        raise LedgerDamaged(
            f"ledger: {opened.path} is not the one that the head speaks of: it is older, or was written anew; entry "
            f"{before.entries} is missing or another one",
            min(before.entries, len(opened.lines.entries) + 1),
        )


# What it says ---------------------------------------------------------------------------------------------------------


def standing(opened: LedgerReading) -> list[dict[str, Any]]:
    """Returns one record for each limit.

    Its budget, and what is spent of it, as epsilon at its own delta.
    """
    rho, spent = opened.spent()
    if opened.limits is not None and opened.node is not None:
        now, worst = datetime.now(UTC).timestamp(), spent - total(opened.node.costs, opened.kind)
        records = []
        for limit in adding(opened.limits):
            inside = total(limit.within(opened.node.costs, now), opened.kind) + worst
            records.append(_standing(limit.name, limit.budget, inside, opened.kind))
        return records
    if opened.budget is not None:
        return [_standing("limit for life", opened.budget, rho, "zcdp")]
    return []


def _standing(name: str, budget: PrivacyBudget, spent: float, kind: Kind) -> dict[str, Any]:
    left = max(0.0, 1.0 - spent / rho_of(budget, kind))
    epsilon = epsilon_of(spent, budget.delta, kind)
    return {"limit": name, **budget.to_dict(), "spent_epsilon": epsilon, "left_share": left}


def summary(opened: LedgerReading) -> dict[str, Any]:
    """Returns everything but the single releases."""
    rho, spent = opened.spent()
    opening = (opened.node.opened or {}) if opened.node else {}
    delta = opened.delta
    return {
        "format": _FORMAT,
        "ledger": opened.path.name,
        "of": "a holder's table" if opened.node is not None else "a party",
        "id": opening.get("id"),
        "unit": OF_A_PARTY if opened.node is None else opened.node.unit,
        "adds_up_as": opened.kind,
        "rho": rho,
        "delta": delta,
        "epsilon": None if delta is None else epsilon_of(spent, delta, opened.kind),
        "limits": standing(opened),
        "runs": [_run(name, run) for name, run in opened.node.runs.items()] if opened.node else _party_runs(opened),
        "head": head_of(opened),
    }


def _run(name: str, run: Run) -> dict[str, Any]:
    kind, budget = run.facts.kind, run.facts.budget
    answered = sum(charge.answered for charge in run.charges)
    return {
        "run": name,
        "begun": _when(run.begun),
        **run.facts.to_dict(),
        "spent_rho": run.spent,
        "spent_epsilon": epsilon_of(spent_by(run, kind), budget.delta, kind),
        "released": answered,
        "charged_only": len(run.charges) - answered,
        "torn_rho": run.torn,
        "state": "closed" if run.closed else "ended" if run.ended else "open",
        "latest": _when(run.latest),
    }


def _party_runs(opened: LedgerReading) -> list[dict[str, Any]]:
    lines, delta, records = opened.lines, opened.delta, list[dict[str, Any]]()
    assert isinstance(lines, PartyLines)
    for run, (announced, spent) in lines.runs.items():
        begun, state = lines.begun.get(run, {}), "open" if run == lines.open else "ended"
        facts = {"run": run, "name": begun.get("name") or None, "begun": _when(begun["time"]) if begun else None}
        facts |= {key: begun.get(key) for key in ("mechanism", "configuration")}
        epsilon = None if delta is None else zcdp_epsilon(spent, delta)
        records.append(
            facts | {"announced_rho": announced, "spent_rho": spent, "spent_epsilon": epsilon, "state": state}
        )
    return records


def rows(opened: LedgerReading, run: str | None = None) -> list[dict[str, Any]]:
    """Returns one record for each release (and torn line), with `COLUMNS`."""
    records = [_row(opened, entry) for entry in opened.lines.entries if entry["entry"] in ("charge", "release", TORN)]
    flat = [row for several in records for row in several]
    return [row for row in flat if run is None or row["run"] == run]


def _row(opened: LedgerReading, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    when = _when(entry["time"])
    if entry["entry"] == TORN:
        parts = entry["runs"] if opened.node is not None else {entry["run"]: entry["rho"]}
        return [{"time": when, "run": run, "rho": rho, "state": "torn line"} for run, rho in parts.items()]
    if opened.node is None:
        known = {"run": entry["run"], "rho": entry["rho"], "request": entry.get("name"), "round": entry.get("round")}
        return [{"time": when, **known, "state": "released"}]
    release = entry["release"]
    charge = opened.node.runs[entry["run"]].charges[entry["number"]]
    facts = {name: entry[name] for name in ("run", "configuration", "mechanism", "rho")}
    facts |= {"request": release["name"], "noise": release["mechanism"]}
    facts |= {name: release.get(name) for name in ("round", "sigma", "epsilon", "count", "sensitivity", "noise_by")}
    return [{"time": when, **facts, "state": "released" if charge.answered else "charged only"}]


def _when(seconds: float) -> str:
    """Returns a time as `2026-11-22T19:05:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
