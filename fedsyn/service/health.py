"""A few pages over HTTP for whoever watches a process: /healthz, /readyz, /status, /metrics.

Plain HTTP without a password: an address of the machine, or of the network in which it is watched. Who asks has ten
seconds and one of a few connections, as the pages run in the process that answers for its holder.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar

from fedsyn.errors import ConfigError

#: What a page answers: status, media type and text.
Page = Callable[[], tuple[int, str, str]]
#: Of a metric: name -> kind, help, and labels in braces or nothing -> value.
Metrics = Mapping[str, tuple[str, str, Mapping[str, float]]]
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SECONDS, CONNECTIONS = 10.0, 16


class Watched(Protocol):
    """One look at a service."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences; empty where it would answer a request."""

    def to_dict(self) -> dict[str, Any]:
        """For /readyz and /status."""


Look = TypeVar("Look", bound=Watched)


class Pages:
    """Serves pages in threads until `close`.

    Args:
        address: HOST:PORT; port 0: any free one.
        pages: by their path.
        key: of the file that names the address.
        seconds: that one connection has, whatever it does.
        connections: at a time; the next one is closed at once.

    Raises:
        ConfigError: nobody can listen there.
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
            self._server = _Server((host.strip("[]"), int(port)), _handler(pages), seconds, connections)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"{key}: cannot listen on {address} ({getattr(error, 'strerror', error)})") from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
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
        """Nothing: a connection that broke off is no news."""


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
            """Nothing: a probe every few seconds is no news."""

    return Handler


def pages_of(look: Callable[[], Look], metrics: Callable[[Look], Metrics]) -> dict[str, Page]:
    """/healthz (the process lives), /readyz and /status (JSON), and /metrics of a service."""

    def told(unready: int) -> tuple[int, str, str]:
        found = look()
        return unready if found.problems else 200, "application/json", json.dumps(found.to_dict()) + "\n"

    return {
        "/healthz": lambda: (200, "text/plain", "alive\n"),
        "/readyz": lambda: told(503),
        "/status": lambda: told(200),
        "/metrics": lambda: (200, PROMETHEUS, exposition(metrics(look()))),
    }


def exposition(metrics: Metrics) -> str:
    """Metrics as Prometheus reads them.

    >>> print(exposition({"up": ("gauge", "Whether it is up.", {"": 1})}), end="")
    # HELP up Whether it is up.
    # TYPE up gauge
    up 1
    """
    lines = []
    for name, (kind, meaning, values) in metrics.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value:.17g}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
