"""Bounds on what a stranger may use of the SuperLink.

Connections, bytes and seconds are bounded before anything of Flower's is asked.

Flower reads a request's body whole, and parses it, before it looks at the signature; uvicorn bounds neither headers nor
bodies, and waits for both as long as it takes. Here

* a connection is counted before its TLS handshake, by its address and with all others, and has `seconds` for the
  handshake and for the headers of each request;
* a body of more than `stranger` bytes is read only for a node that the SuperLink knows: its signature is checked by
  Flower's own rule first. A body without an announced length is never longer than that;
* a node's body is at most one message (`message`), and all of them together at most `in_all` bytes: the next one waits
  at the door, unread.

So a stranger costs at most `connections` times (`headers` + `stranger`) bytes and what TLS keeps of a connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedsyn.flower import private
from fedsyn.wire.envelope import MOST_MESSAGE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
#: Among the extensions of a request that came through the `Door`.
GUARDED = "fedsyn.guarded"


@dataclass(frozen=True)
class GateLimits:
    """Bounds of what is read for others.

    Attributes:
        connections, per_address: open at a time; this machine's own are counted with all, and not by address.
        headers: bytes of a request's first line and headers.
        stranger: bytes of a body whose sender is not known. What a node sends to become known is a few hundred.
        message: bytes of a known node's body: an object of a message, and what Flower wraps it in.
        in_all: bytes of all bodies above `stranger` at a time.
        seconds: for a handshake, for headers, for a stranger's body.
        silence: seconds between two parts of a known node's body, and for which a body waits for its turn.
        slowest: bytes a second below which a known node's body is given up.
    """

    connections: int = 2048
    per_address: int = 128
    headers: int = 2**15
    stranger: int = 2**16
    message: int = MOST_MESSAGE + 2**20
    in_all: int = MOST_MESSAGE + 2**20
    seconds: float = 10.0
    silence: float = 30.0
    slowest: float = 2.0**13


class RefusedRequest(Exception):
    """A request is not read; its status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns an address; an IPv4 address mapped into IPv6 becomes IPv4.

    Raises ValueError for anything else.
    """
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


# Connections ---------------------------------------------------------------------------------------------------------


class Doorkeeper:
    """Counts connections.

    Args:
        limits: see there.
    """

    def __init__(self, limits: GateLimits) -> None:
        self.limits = limits
        self.open: Counter[str] = Counter()

    def enter(self, caller: str) -> Callable[[], None] | None:
        """Returns a function to call when the connection ends.

        It may be called more than once. None: there are too many connections.
        """
        try:
            address = address_of(caller)
            one, local = str(address), address.is_loopback
        except ValueError:
            one, local = "", False
        if self.open.total() >= self.limits.connections:
            return None
        if self.open[one] >= self.limits.per_address and not local:
            return None
        self.open[one] += 1
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self.open[one] -= 1
                if not self.open[one]:
                    del self.open[one]

        return leave


class Connection(HttpToolsProtocol):
    """Uvicorn's HTTP, with bounds of headers."""

    def __init__(self, *arguments: Any, limits: GateLimits, left: Callable[[], None], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.limits, self._left = limits, left
        self._early = list[bytes]()  # TLS hands over what came with the end of its handshake before it is announced
        self._in_head, self._head = True, 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._headers_came()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            self._early.append(data)
            return
        if self.parser is None:
            return
        if self._in_head:
            self._wait_for_headers()
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > self.limits.headers:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {GUARDED: {}}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._headers_came()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._in_head, self._head = True, 0
        super().on_response_complete()

    def _wait_for_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def _headers_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Door(asyncio.Protocol):
    """A connection before TLS.

    Args:
        keeper: counts it.
        context: of TLS; None without.
        make: makes the HTTP of a connection, given what it is to call when it ends.
    """

    def __init__(
        self, keeper: Doorkeeper, context: ssl.SSLContext | None, make: Callable[[Callable[[], None]], Connection]
    ) -> None:
        self._keeper, self._context, self._make = keeper, context, make
        self._handshake: asyncio.Task[None] | None = None  # held: the loop alone would forget it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        left = self._keeper.enter(str((transport.get_extra_info("peername") or ("",))[0]))
        if left is None:
            transport.abort()
            return
        if self._context is None:
            http = self._make(left)
            transport.set_protocol(http)
            http.connection_made(transport)
            return
        transport.pause_reading()
        self._handshake = asyncio.get_running_loop().create_task(self._secure(transport, self._context, left))

    async def _secure(self, raw: asyncio.Transport, context: ssl.SSLContext, left: Callable[[], None]) -> None:
        http, seconds = self._make(left), self._keeper.limits.seconds
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw, http, context, server_side=True, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except OSError:  # ssl.SSLError and TimeoutError are such: no TLS, or none in time
            secured = None
        if secured is None or secured.is_closing():
            raw.abort()
            left()
        else:
            http.connection_made(secured)


def run(app: Any, **named: Any) -> None:
    """`uvicorn.run` behind a `Door`: returns when the server has ended."""
    server(app, GateLimits(), **named).run()


def server(app: Any, limits: GateLimits, **named: Any) -> uvicorn.Server:
    """A uvicorn server whose connections come through a `Door`."""
    named = {key: value for key, value in named.items() if key not in ("reload", "workers")}
    # Of asyncio, as uvloop reads on after `pause_reading` in `connection_made`, and a ClientHello would be lost.
    config = uvicorn.Config(
        app, **{"ws": "none", "loop": "asyncio", "timeout_keep_alive": 30, "timeout_graceful_shutdown": 2, **named}
    )
    config.load()
    context, config.ssl = config.ssl, None  # TLS begins after the connection was counted
    keeper = Doorkeeper(limits)

    def door(**options: Any) -> Door:
        return Door(keeper, context, lambda left: Connection(**options, limits=limits, left=left))

    config.http_protocol_class = door  # type: ignore[assignment]
    logging.getLogger("uvicorn.error").addFilter(_Seldom())
    return _Server(config)


class _Server(uvicorn.Server):
    """A server that checks twice a second whether it must end.

    Uvicorn's ten checks cost an idle SuperLink much.
    """

    async def main_loop(self) -> None:
        tenths, each = 0, 5
        while not await self.on_tick(tenths):
            tenths = (tenths + each) % 864000
            await asyncio.sleep(each / 10)


class _Seldom(logging.Filter):
    """Log filter that lets each warning through once a minute.

    Anyone who reaches the port can cause any number of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now = time.monotonic()
        if now - self._told.get(record.msg, -60.0) < 60.0:
            return False
        self._told[record.msg] = now
        return True


# Bodies --------------------------------------------------------------------------------------------------------------


class Bodies:
    """Reads the bodies of requests within limits.

    Args:
        limits: see there.
        known: whether the SuperLink knows who sent a request; asked in a thread.
    """

    def __init__(self, limits: GateLimits, known: Callable[[Scope], bool]) -> None:
        self.limits, self._known = limits, known
        self._taken, self._freed = 0, asyncio.Condition()

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes | None]:
        """Yields the body of a request, which counts within the block.

        None if its sender went away.

        Raises:
            RefusedRequest: it is longer than allowed, or did not come in time.
        """
        length = _announced(scope)
        if length is None or length <= self.limits.stranger:
            yield await self._within(receive, self.limits.stranger, self.limits.seconds)
            return
        if length > self.limits.message:
            raise RefusedRequest(413, f"a body of more than {self.limits.message} bytes is not read")
        if not await asyncio.get_running_loop().run_in_executor(None, self._known, scope):
            raise RefusedRequest(
                413, f"a body of more than {self.limits.stranger} bytes is read of a registered node only"
            )
        await self._take(length)
        try:
            yield await self._within(receive, length, self.limits.silence + length / self.limits.slowest)
        finally:
            async with self._freed:
                self._taken -= length
                self._freed.notify_all()

    async def _take(self, length: int) -> None:
        try:
            async with asyncio.timeout(self.limits.silence), self._freed:
                await self._freed.wait_for(lambda: self._taken + length <= self.limits.in_all)
                self._taken += length
        except TimeoutError:
            raise RefusedRequest(503, "other nodes' messages are being read; try again") from None

    async def _within(self, receive: Receive, most: int, seconds: float) -> bytes | None:
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await asyncio.wait_for(receive(), self.limits.silence)
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    more = bool(message.get("more_body", False))
                    if len(body) > most:
                        raise RefusedRequest(413, f"a body without an announced length is read up to {most} bytes")
        except TimeoutError:
            raise RefusedRequest(408, "the body did not come in time") from None
        return bytes(body)


def _announced(scope: Scope) -> int | None:
    """Returns the announced length of a body.

    None means that it comes in chunks. Uvicorn has refused what is not a number.
    """
    headers = dict(scope.get("headers", ()))
    if b"transfer-encoding" in headers:
        return None
    return int(headers.get(b"content-length", b"0"))


def known_node(scope: Scope) -> bool:
    """Returns whether a node that the SuperLink knows signed a request.

    It applies Flower's own rule.
    """
    from base64 import b64decode

    from fastapi import HTTPException, Request

    request = Request({**scope, "state": {}})
    try:
        key = b64decode(request.headers[private.FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    except (KeyError, ValueError):
        return False
    node = private.get_linkstate(request).get_node_id_by_public_key(key)
    if node is None:
        return False
    # Flower asks whether the key is that of the node in the body, which nobody has read yet.
    request.state.protobuf_request = private.PullMessagesRequest(node=private.Node(node_id=node))
    try:
        private.authenticate_node(request)
    except HTTPException:
        return False
    return True
