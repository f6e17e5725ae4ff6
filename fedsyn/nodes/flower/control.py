"""Flower's Control API, called in this process: who is registered and online, which runs there are, and how they end.

`flwr` on the command line does the same at two CPU seconds a call. An answer comes from the SuperLink's database; a
refusal or a silence is one sentence.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fedsyn.errors import RunError
from fedsyn.nodes.flower import private

T = TypeVar("T")
ONLINE, UNREGISTERED = "online", "unregistered"


@dataclass(frozen=True)
class NodeFacts:
    """What the SuperLink knows of a node.

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
class RunFacts:
    """What the SuperLink knows of a run.

    Attributes:
        id: the SuperLink's number of it.
        status: 'pending', 'starting', 'running' or 'finished'.
        outcome: of a finished one: 'completed', 'failed' or 'stopped'; else empty.
        since: seconds since it was submitted.
        settings: what it was submitted with (`run_config_of`), its configuration excepted.
    """

    id: int
    status: str
    outcome: str
    since: float | None
    settings: Mapping[str, str]


class Control:
    """A SuperLink's Control API.

    Args:
        address: HOST:PORT.
        root_certificates: PEM of the authority that its certificate must come from; None: no TLS.

    Each call raises RunError if the SuperLink cannot be reached, or refuses.
    """

    def __init__(self, address: str, root_certificates: str | None) -> None:
        self.address = address
        self._client = private.ControlHttpClient.from_server_address(
            server_address=address,
            insecure=root_certificates is None,
            root_certificates=None if root_certificates is None else root_certificates.encode("ascii"),
            interceptors=[private.RuntimeVersionHttpInterceptor(component_name="fedsyn")],
        )

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
        """Registers a node by its public key (OpenSSH's one line); its number. A key is registered once, for good."""
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

    def runs(self, limit: int = 20) -> list[RunFacts]:
        """The latest runs, the newest first."""
        answer = self._call(lambda: self._client.ListRuns(private.ListRunsRequest(limit=limit)))
        now = datetime.datetime.fromisoformat(answer.now)
        found = sorted(answer.run_dict.values(), key=lambda run: str(run.pending_at), reverse=True)
        return [_run(run, now) for run in found]

    def stop(self, run: int) -> None:
        """Stops a run."""
        self._call(lambda: self._client.StopRun(private.StopRunRequest(run_id=run)))

    def _call(self, ask: Callable[[], T]) -> T:
        import httpx

        try:
            return ask()
        except httpx.HTTPStatusError as error:
            told = private.FlowerError.from_json(error.response.text)
            why = told.message if told else f"HTTP {error.response.status_code}"
            raise RunError(f"the SuperLink at {self.address} refused: {why}") from None
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise RunError(f"the SuperLink at {self.address} does not answer: {_why(error)}") from None


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


def _run(run: Any, now: datetime.datetime) -> RunFacts:
    settings = {key: str(value) for key, value in private.user_config_from_proto(run.override_config).items()}
    for large in ("resolved", "schema"):
        settings.pop(large, None)
    return RunFacts(run.run_id, run.status.status, run.status.sub_status, _ago(run.pending_at, now), settings)


def _ago(when: str, now: datetime.datetime) -> float | None:
    return (now - datetime.datetime.fromisoformat(when)).total_seconds() if when else None


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__
