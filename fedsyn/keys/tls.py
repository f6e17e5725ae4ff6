"""Mutual TLS between parties and operator.

Exactly one pinned certificate says who is at the other end.

gRPC gives a server the peer's certificate and the TLS version of a call, and both are checked in every one. A client
trusts one root, the certificate that it expects. Certificates say `CA: false`, so none of them can vouch for another.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from fedsyn.errors import ProtocolError
from fedsyn.keys.certificates import Credentials, host_in, split_address

VERSION = b"TLSv1.3"
MOST = 2**31 - 1  # bytes of a message
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MOST),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
)


def server_options(limit: int) -> list[tuple[str, Any]]:
    """Returns gRPC's options for a party's service.

    It takes messages of up to `limit` bytes.
    """
    return [
        *_OPTIONS,
        ("grpc.max_receive_message_length", min(limit, MOST)),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.so_reuseport", 0),
    ]


def server_credentials(credentials: Credentials, pinned: Sequence[str]) -> grpc.ServerCredentials:
    """Returns the credentials of a server.

    It shows its certificate, and asks each caller for one of the pinned ones.
    """
    pair = (credentials.key.encode(), credentials.certificate.encode())
    return grpc.ssl_server_credentials([pair], "\n".join(pinned).encode(), require_client_auth=True)


def channel_to(address: str, certificate: str, credentials: Credentials) -> grpc.Channel:
    """Opens a channel to the owner of a certificate, and nobody else."""
    grpc_credentials = grpc.ssl_channel_credentials(
        certificate.encode(), credentials.key.encode(), credentials.certificate.encode()
    )
    options = [
        *_OPTIONS,
        ("grpc.ssl_target_name_override", host_in(certificate)),
        ("grpc.max_receive_message_length", MOST),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
    ]
    return grpc.secure_channel(address, grpc_credentials, options=options)


def der(certificate: str) -> bytes:
    """Returns what is compared: the certificate, byte for byte."""
    try:
        return ssl.PEM_cert_to_DER_cert(certificate.strip())
    except ValueError:
        raise ProtocolError("a certificate is malformed") from None


def peer_of(context: grpc.ServicerContext, pins: Mapping[bytes, str]) -> str:
    """Returns the caller's name, by the certificate that it has shown.

    Raises:
        ProtocolError: if that is not in `pins`, or the connection is not TLS 1.3.
    """
    properties: Mapping[str, Sequence[bytes]] = context.auth_context()
    if tuple(properties.get("ssl_tls_version", ())) != (VERSION,):
        raise ProtocolError("the connection does not have TLS 1.3")
    shown = [der(pem.decode()) for pem in properties.get("x509_pem_cert", ())]
    if len(shown) != 1 or shown[0] not in pins:
        raise ProtocolError("the caller shows a certificate that this party has not pinned")
    return pins[shown[0]]


def trouble_with(address: str, certificate: str, credentials: Credentials, timeout: float = 5.0) -> str | None:
    """Returns what prevents a connection; None if nothing does.

    The text is the end of a sentence.

    gRPC tells only that it failed. So this looks at each step by itself, with a connection of its own.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is compared below, byte for byte
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads keys from files only
        path = Path(folder) / "own.pem"
        path.touch(0o600)
        path.write_text(credentials.key + credentials.certificate, encoding="utf-8")
        context.load_cert_chain(path)
    try:
        with socket.create_connection(split_address(address), timeout) as plain, context.wrap_socket(plain) as wrapped:
            if wrapped.getpeercert(binary_form=True) != der(certificate):
                return "shows another certificate than its card has"
            return None if _answers(wrapped) else "does not accept the certificate of this side"
    except ssl.SSLError:
        return "does not speak TLS 1.3"
    except TimeoutError:
        return "does not answer"
    except ConnectionRefusedError:
        return "does not listen there"
    except OSError:
        return "cannot be reached"


def _answers(wrapped: ssl.SSLSocket) -> bool:
    """Returns whether the other end answers.

    It looks at our certificate only when the handshake is over on this side.
    """
    try:
        return bool(wrapped.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False
