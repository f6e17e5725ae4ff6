"""What a party tells its own machine about itself: health, readiness, and figures for Prometheus.

All of it is public to whoever operates the party: how many orders, which of its runs, what its ledger has let out. No
secret, no share, no row count. It is plain HTTP without a password: `listen_health` belongs on an address of this
machine, or of the network in which it is watched.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedsyn.service.health import Metrics


class Figures:
    """Counts of a party since it started; several threads add to them."""

    def __init__(self) -> None:
        self.started, self.latest = time.time(), 0.0
        self._orders: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def count(self, order: str, outcome: str) -> None:
        """One order, by its name, and 'answered', 'refused' or 'failed'."""
        with self._lock:
            self._orders[order, outcome] += 1
            self.latest = time.time()

    @property
    def orders(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(sorted(self._orders.items()))


@dataclass(frozen=True)
class Health:
    """One look at a party.

    Attributes:
        name: of its card.
        role: 'compute' or 'crypto'.
        problems: sentences; empty where it would take a run or go on with the one that it is in.
        busy: whether it is in a run.
        figures: since its start.
        epsilon, limit, delta: what its ledger has let out in its life, and may.
        runs: in its ledger.
        expires: when the certificate of its card ends, seconds since 1970.
    """

    name: str
    role: str
    problems: tuple[str, ...]
    busy: bool
    figures: Figures
    epsilon: float
    limit: float
    delta: float
    runs: int
    expires: float

    def to_dict(self) -> dict[str, Any]:
        """For /readyz and /status."""
        return {
            "name": self.name,
            "role": self.role,
            "ready": not self.problems,
            "problems": list(self.problems),
            "busy": self.busy,
            "started": self.figures.started,
            "last_order": self.figures.latest,
            "orders": {f"{order} {outcome}": count for (order, outcome), count in self.figures.orders.items()},
            "budget": {"epsilon": self.epsilon, "limit": self.limit, "delta": self.delta, "runs": self.runs},
            "certificate_expires": self.expires,
        }


def metrics(health: Health) -> Metrics:
    """The figures for Prometheus."""
    figures, delta = health.figures, f'{{delta="{health.delta:g}"}}'
    told: dict[str, tuple[str, str, dict[str, float]]] = {
        "orders_total": (
            "counter",
            "Orders by name and outcome.",
            {f'{{order="{order}",outcome="{outcome}"}}': n for (order, outcome), n in figures.orders.items()},
        ),
        "start_time_seconds": ("gauge", "When the party started.", {"": figures.started}),
        "last_order_seconds": ("gauge", "When an order last came; 0: never.", {"": figures.latest}),
        "busy": ("gauge", "1 while it is in a run.", {"": float(health.busy)}),
        "ready": ("gauge", "1 if an order would be taken.", {"": float(not health.problems)}),
        "epsilon_spent": ("gauge", "Of this party's life, by its ledger.", {delta: health.epsilon}),
        "epsilon_limit": ("gauge", "That the policy allows in its life.", {delta: health.limit}),
        "runs_total": ("counter", "Runs in this party's ledger.", {"": health.runs}),
        "certificate_expires_seconds": ("gauge", "When the card's certificate ends.", {"": health.expires}),
    }
    return {f"fedsyn_party_{name}": facts for name, facts in told.items()}
