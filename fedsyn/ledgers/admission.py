"""Admission of a run by a holder's ledger.

What its limits leave, and the refusal where that is too little.

It is looked at before a person is asked about a run, and again when the run begins. All of it is the ledger's word and
the holder's own limits, so a refusal may go to the operator: it depends on no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedsyn.errors import NodeError, NoRoom
from fedsyn.ledgers.limits import (
    CHOICE,
    PATIENCE,
    Cost,
    Kind,
    LifetimeLimits,
    Limit,
    adding,
    epsilon_of,
    largest_epsilon,
    require_filter,
    rho_of,
    total,
)
from fedsyn.ledgers.node_lines import LedgerRun, NodeLines
from fedsyn.privacy.budget import affordable, require_budget


@dataclass(frozen=True)
class Forecast:
    """One limit's state if a run spends all it announces.

    Every epsilon is at the limit's own delta.

    Attributes:
        limit: see there.
        spent: epsilon of what was charged.
        promised: the same, with what runs under way have announced and may still spend.
        after: the same, with all that this run asks for.
        fits: whether that is within the limit.
    """

    limit: Limit
    spent: float
    promised: float
    after: float
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        facts = {"limit": self.limit.name, **self.limit.budget.to_dict(), "spent": self.spent}
        return facts | {"with_runs_under_way": self.promised, "with_this_run": self.after, "fits": self.fits}

    @property
    def under_way(self) -> str:
        """Words for what runs under way may still spend.

        Empty where there are none.
        """
        return f" ({self.promised:.4g} with what runs under way may still spend)" if self.promised > self.spent else ""

    def __str__(self) -> str:
        budget = self.limit.budget
        return (
            f"{self.limit.name}: epsilon {budget.epsilon:g} at delta {budget.delta:g}; spent {self.spent:.4g}"
            f"{self.under_way}; with this run at most {self.after:.4g}{'' if self.fits else ', which is REFUSED'}"
        )


def forecasts(lines: NodeLines, facts: LedgerRun, limits: LifetimeLimits, now: float, run: str = "") -> list[Forecast]:
    """Returns one forecast for each limit that runs add up in.

    Args:
        lines: of the ledger.
        facts: of the run.
        limits: of the holder.
        now: seconds since 1970.
        run: its name, if it has begun: what it has spent and announced is not counted twice.
    """
    kind = lines.kind or facts.kind
    result = []
    for limit, spent, promised in _states(lines, limits, now, kind, run):
        known = lines.runs.get(run)
        more = (Cost(facts.announced, facts.kind == "gaussian") if known is None else known.rest).under(kind)
        sums = (spent, spent + promised, spent + promised + more)
        so_far, under_way, after = (epsilon_of(each, limit.budget.delta, kind) for each in sums)
        result.append(Forecast(limit, so_far, under_way, after, limit.fits(spent + promised, more, kind)))
    return result


def require_admissible(lines: NodeLines, run: str, facts: LedgerRun, limits: LifetimeLimits, now: float) -> None:
    """Refuses a run that no limit has room for.

    Or that is not the one which the ledger knows by its name.

    Raises:
        NoRoom: if it asks for more than is left; the message names what would fit.
        NodeError: if the ledger cannot add it up, or knows another run of this name.
    """
    if run in lines.runs:
        if lines.runs[run].facts != facts:
            raise NodeError(
                "this node knows another run of this name: a run keeps its configuration, schema and budget"
            )
        return

    def refusal(limit: str) -> str:
        return f"the holder's {limit} this run asks for {facts.budget}{_fitting(lines, facts, limits, now)}"

    # The limit for one run is compared in the run's own accountant: it adds up with nothing else.
    per_run = limits.per_run
    require_budget(
        per_run is None or affordable(facts.announced, rho_of(per_run, facts.kind)),
        lambda: refusal(f"limit for one run is {per_run}, and"),
        NoRoom,
    )
    # The others are compared in the filter of the ledger, with all runs so far and those under way.
    require_filter(facts.kind, lines.kind, limits)
    for each in forecasts(lines, facts, limits, now):
        spent = f"{each.limit.name} is {each.limit.budget}; spent: epsilon = {each.spent:.4g}{each.under_way};"
        require_budget(each.fits, partial(refusal, spent), NoRoom)


def _fitting(lines: NodeLines, facts: LedgerRun, limits: LifetimeLimits, now: float) -> str:
    """Names the largest epsilon, at this run's delta, that would fit.

    "" where it follows from more (Rényi orders).
    """
    if facts.kind not in ("gaussian", "zcdp"):
        return ""
    kind = lines.kind or facts.kind
    # In a ledger of Gaussian DP, a run of choices counts more than its rho: what is left holds so much less of it.
    weight = CHOICE if kind == "gaussian" and facts.kind == "zcdp" else 1.0
    rests = [
        max(0.0, rho_of(limit.budget, kind) - spent - promised) / weight
        for limit, spent, promised in _states(lines, limits, now, kind)
    ]
    if limits.per_run is not None:
        rests.append(rho_of(limits.per_run, facts.kind))
    epsilon = largest_epsilon(min(rests), facts.budget.delta, facts.kind)
    return "" if epsilon is None else f", and epsilon = {epsilon:g} would fit"


def _states(
    lines: NodeLines, limits: LifetimeLimits, now: float, kind: Kind, run: str = ""
) -> Iterator[tuple[Limit, float, float]]:
    """Yields each limit with what is spent and announced.

    In the filter's unit.
    """
    since = now - PATIENCE
    open_ = lines.open_runs().items()
    promised = total((each.rest for name, each in open_ if each.latest >= since and name != run), kind)
    for limit in adding(limits):
        yield limit, total(limit.within(lines.costs, now), kind), promised
