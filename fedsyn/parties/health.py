"""What a party tells its own machine about itself: health, readiness, and figures for Prometheus.

All of it is public to whoever operates the party: how many orders, which of its runs, what its ledger has let out. No
secret, no share, no row count. It is plain HTTP without a password: `listen_health` belongs on an address of this
machine, or of the network in which it is watched.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedsyn.errors import ConfigError

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PAGES = ("/healthz", "/readyz", "/status", "/metrics")


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


def metrics(health: Health) -> str:
    """The figures in Prometheus' text format."""
    figures, lines = health.figures, list[str]()

    def add(name: str, kind: str, what: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP fedsyn_party_{name} {what}")
        lines.append(f"# TYPE fedsyn_party_{name} {kind}")
        lines.extend(f"fedsyn_party_{name}{labels} {value:.17g}" for labels, value in values.items())

    orders = {f'{{order="{order}",outcome="{outcome}"}}': count for (order, outcome), count in figures.orders.items()}
    add("orders_total", "counter", "Orders by name and outcome.", orders)
    add("start_time_seconds", "gauge", "When the party started.", {"": figures.started})
    add("last_order_seconds", "gauge", "When an order last came; 0: never.", {"": figures.latest})
    add("busy", "gauge", "1 while it is in a run.", {"": float(health.busy)})
    add("ready", "gauge", "1 if an order would be taken.", {"": float(not health.problems)})
    delta = f'{{delta="{health.delta:g}"}}'
    add("epsilon_spent", "gauge", "Of this party's life, by its ledger.", {delta: health.epsilon})
    add("epsilon_limit", "gauge", "That the policy allows in its life.", {delta: health.limit})
    add("runs_total", "counter", "Runs in this party's ledger.", {"": float(health.runs)})
    add("certificate_expires_seconds", "gauge", "When the card's certificate ends.", {"": health.expires})
    return "\n".join(lines) + "\n"


def listen(address: str, look: Callable[[], Health]) -> ThreadingHTTPServer:
    """Serves /healthz (the process lives), /readyz and /status (JSON), and /metrics, in threads.

    Raises:
        ConfigError: the address cannot be listened at.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # of a probe that connects and says nothing

        def do_GET(self) -> None:
            try:
                status, kind, text = _page(self.path, look)
            except Exception as error:  # its text may name a file
                status, kind, text = 500, "text/plain", f"{type(error).__name__}\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a probe every few seconds is no news."""

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise ConfigError(f"listen_health: cannot listen on {address} ({error.strerror or error})") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _page(path: str, look: Callable[[], Health]) -> tuple[int, str, str]:
    if path == "/healthz":
        return 200, "text/plain", "alive\n"
    if path not in PAGES:
        return 404, "text/plain", f"one of {', '.join(PAGES)}\n"
    health = look()
    if path == "/metrics":
        return 200, _PROMETHEUS, metrics(health)
    status = 503 if path == "/readyz" and health.problems else 200
    return status, "application/json", json.dumps(health.to_dict()) + "\n"
