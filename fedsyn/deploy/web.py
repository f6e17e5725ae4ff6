"""A few pages over HTTP for whoever watches a process: /healthz, /readyz, /metrics. No TLS: keep it on the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedsyn.errors import ConfigError
from fedsyn.parties.keys import split_address

#: What a page answers: status and text.
Page = Callable[[], tuple[int, str]]


class Web:
    """Serves pages in a thread until `close`.

    Raises:
        ConfigError: nobody can listen there.
    """

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        host, port = split_address(address)

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, text = (404, "no such page\n") if page is None else page()
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def metrics(facts: Mapping[str, tuple[str, str, Mapping[str, float]]]) -> str:
    """Prometheus' text: name -> (kind, help, labels in braces or nothing -> value).

    >>> print(metrics({"up": ("gauge", "Whether it is up.", {"": 1})}), end="")
    # HELP up Whether it is up.
    # TYPE up gauge
    up 1
    """
    lines = []
    for name, (kind, meaning, values) in facts.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value:g}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"
