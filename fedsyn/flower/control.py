"""Flower's Control API, called in this process.

It says who is registered and online, which runs there are, and how they end.

`flwr` on the command line does the same at two CPU seconds a call. An answer comes from the SuperLink's database. Every
ending is told apart, in one sentence: a SuperLink that does not answer, one that refuses, a run that it does not know
(any more), one that failed, was stopped or is complete.
"""

from __future__ import annotations

import contextlib
import datetime
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsyn.errors import ConfigError, RunError, nearest
from fedsyn.flower import Grid, private

T = TypeVar("T")
ONLINE, UNREGISTERED = "online", "unregistered"
FINISHED, COMPLETED, STOPPED = "finished", "completed", "stopped"


@dataclass(frozen=True)
class NodeFacts:
    """A node, as the SuperLink knows it.

    Attributes:
        id: the SuperLink's number of it.
        name: that it was registered by; empty where nobody gave one.
        key: its public key, in OpenSSH's one line.
        status: 'registered' (never seen), 'online', 'offline' or 'unregistered'.
        since: seconds that it has been so; None where the SuperLink does not say.
    """

    id: int
    name: str
    key: str
    status: str
    since: float | None


@dataclass(frozen=True)
class RunState:
    """A run, as the SuperLink reports it.

    Attributes:
        status: 'pending', 'starting', 'running' or 'finished'.
        outcome: of a finished one: 'completed', 'failed' or 'stopped'; else empty.
        details: Flower's own words.
        id: the SuperLink's number of it.
        since: seconds since it was submitted.
        settings: what it was submitted with (`run_config_of`), its configuration excepted.
    """

    status: str
    outcome: str = ""
    details: str = ""
    id: int = 0
    since: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Unreachable(RunError):
    """The SuperLink does not answer; it may later. `why`: in Flower's words."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} does not answer: {why}")
        self.why = why


class _UnknownRun(RunError):
    """The SuperLink knows no such run."""


class Control:
    """A SuperLink's Control API.

    Made by `at` for an address, or `named` in the user's Flower configuration.

    Each call raises Unreachable if the SuperLink does not answer, and RunError if it refuses.

    Args:
        client: Flower's.
        address: HOST:PORT.
        name: of the connection; empty where only the address is known.
    """

    def __init__(self, client: Any, address: str, name: str = "") -> None:
        self.address, self.name, self._client = address, name, client

    @classmethod
    def at(cls, address: str, root_certificates: str | None) -> Control:
        """Returns the API at HOST:PORT.

        `root_certificates` is the PEM of its certificate's authority, None without TLS.
        """
        client = private.ControlHttpClient.from_server_address(
            server_address=address,
            insecure=root_certificates is None,
            root_certificates=None if root_certificates is None else root_certificates.encode("ascii"),
            interceptors=[private.RuntimeVersionHttpInterceptor(component_name="fedsyn")],
        )
        return cls(client, address)

    @classmethod
    def named(cls, name: str) -> Control:
        """The API of a connection of the user's Flower configuration.

        Raises:
            ConfigError: there is no such connection, or it cannot be used.
        """
        import click

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                document, path = private.read_flower_config()
                known = [key for key, value in document.get("superlink", {}).items() if isinstance(value, dict)]
                if name not in known:
                    raise ConfigError(
                        f"runtime.superlink: no SuperLink connection '{name}' in {path}{nearest(name, known)}; it has "
                        f"{', '.join(known) or 'none'}"
                    )
                connection = private.read_superlink_connection(name)
                return cls(private.init_http_client_from_connection(connection), str(connection.address), name)
            except click.ClickException as error:
                raise ConfigError(f"runtime.superlink: '{name}': {_flat(error.format_message())}") from None

    def __str__(self) -> str:
        return f"the SuperLink '{self.name}' at {self.address}" if self.name else f"the SuperLink at {self.address}"

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def nodes(self) -> list[NodeFacts]:
        """All nodes that were ever registered, in that order."""
        answer = self._call(lambda: self._client.ListNodes(private.ListNodesRequest()))
        now = datetime.datetime.fromisoformat(answer.now)
        listed = sorted(answer.nodes_info, key=lambda node: str(node.registered_at))
        return [_node(node, now) for node in listed]

    def register(self, key: str, name: str) -> int:
        """Registers a node by its public key; returns its number.

        The key is OpenSSH's one line, registered once, for good.
        """
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

        public = load_ssh_public_key(key.encode("ascii"))
        assert isinstance(public, ec.EllipticCurvePublicKey)
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        request = private.RegisterNodeRequest(public_key=pem, name=name)
        return int(self._call(lambda: self._client.RegisterNode(request)).node_id)

    def unregister(self, node: int) -> None:
        """Takes a node's registration back: from now on it is refused."""
        self._call(lambda: self._client.UnregisterNode(private.UnregisterNodeRequest(node_id=node)))

    def runs(self, limit: int = 20) -> list[RunState]:
        """The latest runs, the newest first."""
        answer = self._call(lambda: self._client.ListRuns(private.ListRunsRequest(limit=limit)))
        now = datetime.datetime.fromisoformat(answer.now)
        runs = sorted(answer.run_dict.values(), key=lambda run: str(run.pending_at), reverse=True)
        return [_run(run, now) for run in runs]

    def state(self, run: str) -> RunState | None:
        """Returns what became of a run.

        None means that the SuperLink knows no such run.
        """
        try:
            answer = self._call(lambda: self._client.ListRuns(private.ListRunsRequest(run_id=int(run))))
        except _UnknownRun:
            return None
        entry = answer.run_dict.get(int(run))
        return None if entry is None else _run(entry, datetime.datetime.fromisoformat(answer.now))

    def stop(self, run: int) -> None:
        """Stops a run."""
        self._call(lambda: self._client.StopRun(private.StopRunRequest(run_id=run)))

    def log(self, run: str) -> str:
        """Returns everything that a finished run has logged.

        The text is empty where there is no such run.
        """
        parts = list[str]()
        with contextlib.suppress(_UnknownRun):
            self.follow(run, parts.append)
        return "".join(parts)

    def follow(self, run: str, write: Callable[[str], None]) -> None:
        """Writes what a run logs, piece by piece, until it ends."""

        def read() -> None:
            for part in self._client.StreamLogs(private.StreamLogsRequest(run_id=int(run))):
                write(part.log_output)

        self._call(read)

    def _call(self, ask: Callable[[], T]) -> T:
        import httpx

        try:
            return ask()
        except httpx.HTTPStatusError as error:
            with contextlib.suppress(httpx.HTTPError):
                error.response.read()
            reply = private.FlowerError.from_json(error.response.text)
            status = f"HTTP {error.response.status_code}"
            if error.response.status_code >= 500:
                raise Unreachable(str(self), status) from None
            is_unknown = reply is not None and reply.code == private.ApiErrorCode.RUN_ID_NOT_FOUND
            kind = _UnknownRun if is_unknown else RunError
            raise kind(f"{self} refused: {status if reply is None else reply.message}") from None
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise Unreachable(str(self), _flat(str(error))[:200] or type(error).__name__) from None


def _node(node: Any, now: datetime.datetime) -> NodeFacts:
    from cryptography.hazmat.primitives import serialization

    public = serialization.load_pem_public_key(node.public_key)
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    since = {
        "registered": node.registered_at,
        ONLINE: node.last_activated_at,
        "offline": node.last_deactivated_at,
        UNREGISTERED: node.unregistered_at,
    }.get(node.status, "")
    return NodeFacts(node.node_id, node.name, line, node.status, _ago(since, now))


def _run(run: Any, now: datetime.datetime) -> RunState:
    settings = {key: str(value) for key, value in private.user_config_from_proto(run.override_config).items()}
    for large in ("resolved", "schema"):
        settings.pop(large, None)
    status = run.status
    return RunState(
        status.status, status.sub_status, _flat(status.details), run.run_id, _ago(run.pending_at, now), settings
    )


def _ago(when: str, now: datetime.datetime) -> float | None:
    return (now - datetime.datetime.fromisoformat(when)).total_seconds() if when else None


def _flat(text: str) -> str:
    return " ".join(text.split())


def add_to_log(grid: Grid, run: int, lines: Sequence[str], at_once: int = 2**18) -> None:
    """Adds lines to the log of the run that this ServerApp serves.

    Waits until the SuperLink has them.

    Printed lines go the same way, but a process that ends has three seconds for all that it has printed.

    Args:
        grid: the ServerApp's.
        run: Flower's number of the run.
        lines: with their ends.
        at_once: characters of one message.
    """
    client = private.runtime_client(grid)
    waiting, size = list[str](), 0
    for line in [*lines, None]:
        if line is not None:
            waiting.append(line)
            size += len(line)
        if waiting and (line is None or size >= at_once):
            client.PushLogs(private.PushLogsRequest(node=private.Node(node_id=0), run_id=run, logs=waiting))
            waiting, size = [], 0
