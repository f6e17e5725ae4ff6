"""What a node tells its own machine about itself: health, readiness, and figures for Prometheus. No value of a row."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedsyn.errors import ConfigError

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


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


def metrics(health: Health) -> str:
    """The figures in Prometheus' text format."""
    figures = health.figures
    lines: list[str] = []

    def add(name: str, kind: str, what: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP fedsyn_node_{name} {what}")
        lines.append(f"# TYPE fedsyn_node_{name} {kind}")
        lines.extend(f"fedsyn_node_{name}{labels} {value:.17g}" for labels, value in values.items())

    outcomes = {"answered": figures.answered, "refused": figures.refused, "failed": figures.failed}
    add(
        "requests_total",
        "counter",
        "Requests by their outcome.",
        {f'{{outcome="{name}"}}': float(count) for name, count in outcomes.items()},
    )
    # Whole seconds: how long one answer took depends on the rows.
    add(
        "answer_seconds_total", "counter", "Wall time of all answers, whole seconds.", {"": float(int(figures.seconds))}
    )
    add("worker_restarts_total", "counter", "Starts of the worker after its first.", {"": float(figures.restarts)})
    add("start_time_seconds", "gauge", "When the link started.", {"": figures.started})
    add("last_contact_seconds", "gauge", "When the SuperLink last answered; 0: never.", {"": health.last_contact})
    add("ready", "gauge", "1 if a request would be answered.", {"": float(not health.problems)})
    if health.budget is not None:
        delta = f'{{delta="{health.budget.delta:g}"}}'
        add("epsilon_spent", "gauge", "Of the table's life, by this node's ledger.", {delta: health.budget.epsilon})
        add("epsilon_limit", "gauge", "That the policy allows in the table's life.", {delta: health.budget.limit})
        add("runs_total", "counter", "Runs in this node's ledger.", {"": float(health.budget.runs)})
    return "\n".join(lines) + "\n"


def listen(address: str, look: Callable[[], Health]) -> ThreadingHTTPServer:
    """Serves /healthz (the process lives), /readyz and /status (JSON), and /metrics, in threads.

    Raises:
        ConfigError: the address cannot be listened at.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, kind, text = _page(self.path, look)
            except Exception as error:
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
        raise ConfigError(f"listen: {address} cannot be listened at ({error.strerror or error})") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _page(path: str, look: Callable[[], Health]) -> tuple[int, str, str]:
    if path == "/healthz":
        return 200, "text/plain", "alive\n"
    if path not in ("/readyz", "/status", "/metrics"):
        return 404, "text/plain", "one of /healthz, /readyz, /status, /metrics\n"
    health = look()
    if path == "/metrics":
        return 200, _PROMETHEUS, metrics(health)
    status = 503 if path == "/readyz" and health.problems else 200
    return status, "application/json", json.dumps(health.to_dict()) + "\n"
