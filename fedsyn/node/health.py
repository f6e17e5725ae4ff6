"""What a node tells its own machine about itself: health, readiness, and figures for Prometheus. No value of a row."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fedsyn.service.health import Metrics


@dataclass
class Figures:
    """Counts of a link since it started.

    Attributes:
        answered, refused, failed: requests by their outcome; failed ones needed more than a task may use, or crashed.
        seconds: wall time of all answers.
        restarts: how often the worker was started again.
        started: time of the start, seconds since 1970.
    """

    answered: int = 0
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0
    restarts: int = 0
    started: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Budget:
    """What a node's ledger says of its table's life."""

    epsilon: float
    limit: float
    delta: float
    runs: int


@dataclass(frozen=True)
class Health:
    """One look at a node; `problems` are sentences, and empty where the node would answer a request."""

    name: str
    node: int | None
    problems: tuple[str, ...]
    last_contact: float
    figures: Figures
    budget: Budget | None

    def to_dict(self) -> dict[str, Any]:
        """For `fedsyn node status` and /readyz."""
        figures = self.figures
        return {
            "name": self.name,
            "node": self.node,
            "ready": not self.problems,
            "problems": list(self.problems),
            "last_contact": self.last_contact,
            "started": figures.started,
            "requests": {"answered": figures.answered, "refused": figures.refused, "failed": figures.failed},
            "seconds": int(figures.seconds),
            "worker_restarts": figures.restarts,
            "budget": None if self.budget is None else vars(self.budget),
        }


def metrics(health: Health) -> Metrics:
    """The figures for Prometheus. Whole seconds: how long one answer took depends on the rows."""
    figures = health.figures
    outcomes = {"answered": figures.answered, "refused": figures.refused, "failed": figures.failed}
    told: dict[str, tuple[str, str, dict[str, float]]] = {
        "requests_total": (
            "counter",
            "Requests by their outcome.",
            {f'{{outcome="{name}"}}': float(count) for name, count in outcomes.items()},
        ),
        "answer_seconds_total": ("counter", "Wall time of all answers, whole seconds.", {"": int(figures.seconds)}),
        "worker_restarts_total": ("counter", "Starts of the worker after its first.", {"": figures.restarts}),
        "start_time_seconds": ("gauge", "When the link started.", {"": figures.started}),
        "last_contact_seconds": ("gauge", "When the SuperLink last answered; 0: never.", {"": health.last_contact}),
        "ready": ("gauge", "1 if a request would be answered.", {"": float(not health.problems)}),
    }
    if health.budget is not None:
        budget = health.budget
        delta = f'{{delta="{budget.delta:g}"}}'
        told["epsilon_spent"] = ("gauge", "Of the table's life, by this node's ledger.", {delta: budget.epsilon})
        told["epsilon_limit"] = ("gauge", "That the policy allows in the table's life.", {delta: budget.limit})
        told["runs_total"] = ("counter", "Runs in this node's ledger.", {"": budget.runs})
    return {f"fedsyn_node_{name}": facts for name, facts in told.items()}
