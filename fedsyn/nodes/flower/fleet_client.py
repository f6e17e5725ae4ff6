"""Where and as whom a node speaks with a SuperLink: its key, its calls, and what is known of the connection."""

from __future__ import annotations

import email.utils
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedsyn.errors import ConfigError
from fedsyn.nodes.flower.private import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_TOLERANCE,
    FleetHttpClient,
    NodeAuthHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from fedsyn.protocol.wire.envelope import MOST_MESSAGE

#: Seconds for which the SuperLink is told to expect a heartbeat: it takes a silent node for offline after twice that.
INTERVAL = 20.0
_TIMEOUT = 30.0  # of one call
_FORGOTTEN = 2 * INTERVAL + 30.0  # seconds after which a SuperLink has taken any last life for offline
_WRAPPED = 2**20  # bytes that Flower puts around an object
#: Seconds by which a signature may be older, or younger, than the SuperLink's own time: Flower's rule.
LATE, EARLY = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE), float(SYSTEM_TIME_TOLERANCE)
_UNSURE = 2.0  # seconds that the way of a request and a time in whole seconds may take


@dataclass(frozen=True)
class Place:
    """Where a node connects, and as whom.

    Attributes:
        superlink: HOST:PORT.
        key: file of the node's private key.
        root_certificates: file; None without TLS.
    """

    superlink: str
    key: Path
    root_certificates: Path | None


@dataclass
class Contact:
    """What is known of the connection; read by other threads.

    Attributes:
        node: number that the SuperLink gave; it stays the same for a key.
        connected: whether the last call came through and the SuperLink knows this node.
        last: time of the last answer of the SuperLink, seconds since 1970; 0 if there was none.
        problem: why it is not connected, a sentence.
    """

    node: int | None = None
    connected: bool = False
    last: float = 0.0
    problem: str = "not connected yet"


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key. Raises ConfigError if the file does not hold one."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"key: {path} is not a private key that Flower takes; make one: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
        ) from None
    return key


def connect(place: Place, key: ec.EllipticCurvePrivateKey, contact: Contact) -> FleetHttpClient:
    """Flower's client of the Fleet API, which signs every call; nothing is sent yet.

    Raises:
        ConfigError: the certificate cannot be used.
    """
    root = place.root_certificates
    try:
        verify: Any = ssl.create_default_context(cafile=str(root)) if root is not None else False
    except (OSError, ssl.SSLError):
        raise ConfigError(f"root_certificates: {root} holds no certificate in PEM") from None
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
        _Bounded(httpx.Client(verify=verify, timeout=_TIMEOUT, trust_env=False), contact),
    ]
    scheme = "http" if root is None else "https"
    return FleetHttpClient(f"{scheme}://{place.superlink}", interceptors=interceptors, verify=False)


class _Bounded:
    """The last interceptor: sends the request itself, and reads no more of an answer than is allowed."""

    def __init__(self, client: httpx.Client, contact: Contact) -> None:
        self._client, self._contact = client, contact

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        asked = context.request
        asked.extensions["timeout"] = self._client.timeout.as_dict()
        response = self._client.send(asked, stream=True)
        try:
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > MOST_MESSAGE + _WRAPPED:
                    raise httpx.RemoteProtocolError("the SuperLink's answer is larger than a node takes")
        finally:
            response.close()
        self._contact.last = time.time()
        headers = [(k, v) for k, v in response.headers.items() if k not in ("content-encoding", "content-length")]
        return httpx.Response(response.status_code, headers=headers, content=bytes(content), request=asked)


def refusal_of(response: httpx.Response, place: Place, waited: float = 0.0) -> str:
    """Why the SuperLink does not take this node, in a sentence for its holder.

    Args:
        response: of the SuperLink.
        place: where it is.
        waited: seconds for which it has been refusing this node.
    """
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return _unauthorized(response.headers.get("date", ""))
    if response.status_code == httpx.codes.PRECONDITION_FAILED:
        why = f"its key is not registered there (the operator registers {place.key.name}.pub)"
        if waited < _FORGOTTEN:
            return (
                f"the SuperLink does not take this node: {why}, or its last life counts as online for another "
                f"{2 * INTERVAL:.0f} s at most"
            )
        return (
            f"the SuperLink does not take this node: {why}, or another node with the same key is running: stop one of "
            "them (a last life would have been forgotten by now)"
        )
    return f"the SuperLink answers with status {response.status_code}"


def _unauthorized(told: str) -> str:
    """Why a signature was refused, with both clocks; `told` is the SuperLink's time, as HTTP writes it."""
    now = time.time()
    here = email.utils.formatdate(now, usegmt=True)
    window = f"Flower takes a signature that is up to {LATE:.0f} s late and {EARLY:.0f} s early"
    try:
        ahead = now - email.utils.parsedate_to_datetime(told).timestamp()
    except (TypeError, ValueError):
        return f"the SuperLink does not accept this node's signature; here it is {here}, and it tells no time; {window}"
    clocks = f"this machine's clock says {here}, the SuperLink's {told}"
    if ahead > EARLY - _UNSURE or -ahead > LATE - _UNSURE:
        return (
            f"the clocks differ: {clocks}, so this node is {abs(ahead):.0f} s {'early' if ahead > 0 else 'late'}; "
            f"{window}: set the clock that is wrong"
        )
    return (
        "the SuperLink does not accept this node's signature: its key is not registered there any more (the clocks are "
        f"not the cause: {clocks}; {window})"
    )
