"""Health pages of a node, a party and a SuperLink.

They are served over HTTP as /healthz, /readyz, /status and /metrics.

Plain HTTP without a password: an address of the machine, or of the network in which it is watched. All of it is public
to the people who operate the service: no value of a row, no row count, no secret, no share. A caller has ten seconds
and one of a few connections, as the pages run in the process that answers for its holder.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedsyn.errors import ConfigError

#: What a page answers: status, media type and text.
Page = Callable[[], tuple[int, str, str]]
#: Kind, help, and a value, or values with their labels.
Metric = tuple[str, str, float | Sequence[tuple[dict[str, str], float]]]
#: By name.
Metrics = Mapping[str, Metric]
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SECONDS, CONNECTIONS = 10.0, 16


class Requests:
    """Counts of a service's requests since its start.

    Several threads may add to them.

    Args:
        what: they are called, in the plural.
        labels: that they are counted by.
        known: values of these labels that are told before the first one was counted.
    """

    def __init__(self, what: str, *labels: str, known: tuple[tuple[str, ...], ...] = ()) -> None:
        self.what, self.labels, self.started, self.latest = what, labels, time.time(), 0.0
        self._counts, self._lock = Counter(dict.fromkeys(known, 0)), threading.Lock()

    def count(self, *values: str) -> None:
        """Counts one request, by the values of its labels."""
        with self._lock:
            self._counts[values] += 1
            self.latest = time.time()

    @property
    def counts(self) -> dict[tuple[str, ...], int]:
        """Values of the labels -> number of requests."""
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True)
class SpentBudget:
    """Budget that a ledger for life reports."""

    epsilon: float
    limit: float
    delta: float
    runs: int


@dataclass(frozen=True)
class Health:
    """One look at a service.

    Attributes:
        service: 'node', 'party' or 'link'.
        name: of this one.
        problems: sentences; empty where it would answer a request.
        requests: since its start; None if it does not count them.
        budget: None if there is no ledger, or it cannot be read.
        facts: more for /readyz and /status.
        figures: more for /metrics.
    """

    service: str
    name: str
    problems: tuple[str, ...]
    requests: Requests | None = None
    budget: SpentBudget | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    figures: Metrics = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns what /readyz, /status and `fedsyn node status` tell."""
        document: dict[str, Any] = {"name": self.name, "ready": not self.problems, "problems": list(self.problems)}
        if self.requests is not None:
            counts = {" ".join(values): count for values, count in self.requests.counts.items()}
            document |= {"started": self.requests.started, self.requests.what: counts}
        return document | {"budget": None if self.budget is None else vars(self.budget), **self.facts}

    def metrics(self) -> Metrics:
        """Returns the figures for Prometheus."""
        metrics: dict[str, Metric] = {"ready": ("gauge", "1 if a request would be answered.", float(not self.problems))}
        metrics |= self.figures
        if (requests := self.requests) is not None:
            labels, what = requests.labels, requests.what
            counts = [(dict(zip(labels, values, strict=True)), count) for values, count in requests.counts.items()]
            metrics[f"{what}_total"] = ("counter", f"{what.capitalize()} by {' and '.join(labels)}.", counts)
            metrics["start_time_seconds"] = ("gauge", "Time of the start.", requests.started)
        if (budget := self.budget) is not None:
            delta = {"delta": f"{budget.delta:g}"}
            metrics["epsilon_spent"] = ("gauge", "Epsilon of all runs, by the ledger.", [(delta, budget.epsilon)])
            metrics["epsilon_limit"] = ("gauge", "Epsilon that the policy allows for life.", [(delta, budget.limit)])
            metrics["runs_total"] = ("counter", "Runs in the ledger.", budget.runs)
        return {f"fedsyn_{self.service}_{name}": metric for name, metric in metrics.items()}


class Pages:
    """Serves pages in threads until `close`.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        pages: by their path.
        key: of the file that names the address, for errors.
        seconds: after which a connection is closed, whatever it does.
        connections: at a time; the next one is closed at once.

    Raises:
        ConfigError: if the address cannot be listened on.
    """

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Page],
        key: str = "listen",
        seconds: float = SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = _PageServer((host.strip("[]"), int(port)), _handler(pages), seconds, connections)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"{key}: cannot listen on {address} ({getattr(error, 'strerror', error)})") from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Any, seconds: float, connections: int) -> None:
        self._seconds, self._free = seconds, threading.BoundedSemaphore(connections)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A limit of each read alone would let a letter a second hold a thread for hours.
        late = threading.Timer(self._seconds, self._hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def _hang_up(self, request: Any) -> None:
        with contextlib.suppress(OSError):  # it has gone by itself
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a connection that broke off."""


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            try:
                status, kind, text = (404, "text/plain", f"one of {', '.join(pages)}\n") if page is None else page()
            except Exception as error:  # its text may name a file
                status, kind, text = 500, "text/plain", f"{type(error).__name__}\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing of a probe every few seconds."""

    return Handler


def pages_of(look: Callable[[], Health]) -> dict[str, Page]:
    """Returns the pages of a service.

    They are /healthz (the process lives), /readyz and /status (JSON), and /metrics.
    """

    def status_page(unready: int) -> tuple[int, str, str]:
        health = look()
        return unready if health.problems else 200, "application/json", json.dumps(health.to_dict()) + "\n"

    return {
        "/healthz": lambda: (200, "text/plain", "alive\n"),
        "/readyz": lambda: status_page(503),
        "/status": lambda: status_page(200),
        "/metrics": lambda: (200, PROMETHEUS, exposition(look().metrics())),
    }


def exposition(metrics: Metrics) -> str:
    """Returns metrics in the format that Prometheus reads.

    >>> print(exposition({"up": ("gauge", "Whether it is up.", 1)}), end="")
    # HELP up Whether it is up.
    # TYPE up gauge
    up 1.0
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import Metric as Family

    class Collector:
        def collect(self) -> Iterator[Family]:
            for name, (kind, meaning, values) in metrics.items():
                family = Family(name.removesuffix("_total"), meaning, kind)
                for labels, value in values if isinstance(values, Sequence) else [({}, values)]:
                    family.add_sample(name, labels, value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()
