"""What is left for a run: looked at before a person is asked about it, and again when it begins.

All of it is the ledger's word and the holder's own limits, so a refusal may go to the operator: it depends on no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedsyn.config import RunConfig
from fedsyn.errors import BudgetExceeded, NodeError
from fedsyn.ledgers.limits import (
    CHOICE,
    PATIENCE,
    Cost,
    Kind,
    LifetimeLimits,
    Limit,
    adding,
    capacity,
    epsilon_of,
    largest_epsilon,
    require_filter,
    total,
)
from fedsyn.ledgers.node_lines import LedgerRun, NodeLines
from fedsyn.privacy import PrivacyBudget
from fedsyn.privacy.accountant import affordable
from fedsyn.registry import client_class


def facts_of(config: RunConfig, configuration: str, schema: str) -> LedgerRun:
    """Return what a run is to the ledger: it announces its whole budget, and is refused where a limit is smaller.

    Args:
        config: of the run.
        configuration: its hash, as the run was admitted under.
        schema: hash of the schema.
    """
    contract = client_class(config.mechanism.name).Contract
    order = getattr(contract, "order_of", None)  # of a contract that counts in Rényi DP
    accountant = contract.accountant if order is None else f"{contract.accountant} {order(config)}"
    node = config.privacy
    return LedgerRun(configuration, schema, config.mechanism.name, accountant, node.budget, node.client_sizes)


@dataclass(frozen=True)
class Room:
    """What a run would leave of one limit; every epsilon is at the limit's own delta.

    Attributes:
        limit: see there.
        spent: epsilon of what was charged.
        kept: the same, with what runs under way have announced and may still spend.
        after: the same, with all that this run asks for.
        fits: whether that is within the limit.
    """

    limit: Limit
    spent: float
    kept: float
    after: float
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        facts = {"limit": self.limit.name, **self.limit.budget.to_dict(), "spent": self.spent}
        return facts | {"with_runs_under_way": self.kept, "with_this_run": self.after, "fits": self.fits}

    def __str__(self) -> str:
        budget = self.limit.budget
        kept = f" ({self.kept:.4g} with what runs under way may still spend)" if self.kept > self.spent else ""
        return (
            f"{self.limit.name}: epsilon {budget.epsilon:g} at delta {budget.delta:g}; spent {self.spent:.4g}{kept}; "
            f"with this run at most {self.after:.4g}{'' if self.fits else ', which is REFUSED'}"
        )


def rooms(lines: NodeLines, facts: LedgerRun, limits: LifetimeLimits, now: float, run: str = "") -> list[Room]:
    """Return one record for each limit that runs add up in.

    Args:
        lines: of the ledger.
        facts: of the run.
        limits: of the holder.
        now: seconds since 1970.
        run: its name, if it has begun: what it has spent and announced is not counted twice.
    """
    kind = lines.kind or facts.kind
    found = []
    for limit, spent, promised in _states(lines, limits, now, kind, run):
        known = lines.runs.get(run)
        more = (Cost(facts.announced, facts.kind == "gaussian") if known is None else known.rest).under(kind)
        sums = (spent, spent + promised, spent + promised + more)
        now_, kept, after = (epsilon_of(each, limit.budget.delta, kind) for each in sums)
        found.append(Room(limit, now_, kept, after, limit.fits(spent + promised, more, kind)))
    return found


def require_room(lines: NodeLines, run: str, facts: LedgerRun, limits: LifetimeLimits, now: float) -> None:
    """Refuse a run for which no room is left, or that is not the one which the ledger knows by its name.

    Raises:
        BudgetExceeded: if it asks for more than is left; the message names what would fit.
        NodeError: if the ledger cannot add it up, or knows another run of this name.
    """
    if run in lines.runs:
        if lines.runs[run].facts != facts:
            raise NodeError(
                "this node knows another run of this name: a run keeps its configuration, schema and budget"
            )
        return
    asked, own = facts.budget, limits.per_run
    asks = f"this run asks for epsilon = {asked.epsilon:g} at delta = {asked.delta:g}"
    ends = f"{asks}{_fitting(lines, facts, limits, now)}; nothing was released"
    if own is not None and not affordable(facts.announced, capacity(own, facts.kind)):
        raise BudgetExceeded(f"the holder's limit for one run is {said(own)}, and {ends}")
    require_filter(facts.kind, lines.kind, limits)
    for room in rooms(lines, facts, limits, now):
        if room.fits:
            continue
        kept = f" ({room.kept:.4g} with what runs under way may still spend)" if room.kept > room.spent else ""
        raise BudgetExceeded(
            f"the holder's {room.limit.name} is {said(room.limit.budget)}; spent: epsilon = {room.spent:.4g}{kept}; "
            f"{ends}"
        )


def said(budget: PrivacyBudget) -> str:
    return f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}"


def _fitting(lines: NodeLines, facts: LedgerRun, limits: LifetimeLimits, now: float) -> str:
    """Name the largest epsilon, at this run's delta, that would fit; "" where it follows from more (Rényi orders)."""
    if facts.kind not in ("gaussian", "zcdp"):
        return ""
    kind = lines.kind or facts.kind
    weight = CHOICE if kind == "gaussian" and facts.kind == "zcdp" else 1.0
    rests = [
        max(0.0, capacity(limit.budget, kind) - spent - promised) / weight
        for limit, spent, promised in _states(lines, limits, now, kind)
    ]
    if limits.per_run is not None:
        rests.append(capacity(limits.per_run, facts.kind))
    found = largest_epsilon(min(rests), facts.budget.delta, facts.kind)
    return "" if found is None else f", and epsilon = {found:g} would fit"


def _states(
    lines: NodeLines, limits: LifetimeLimits, now: float, kind: Kind, run: str = ""
) -> Iterator[tuple[Limit, float, float]]:
    """Yield each limit, what is spent of it and what other runs have announced, in the filter's unit."""
    since = now - PATIENCE
    open_ = lines.open_runs().items()
    promised = total((each.rest for name, each in open_ if each.latest >= since and name != run), kind)
    for limit in adding(limits):
        yield limit, total(limit.within(lines.costs, now), kind), promised
