"""The door and the gate before the SuperLink, with real sockets: what a stranger can make it read, and wait for."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsyn.flower.guard import Doorkeeper, GateLimits, Scope, server
from fedsyn.flower.superlink import Gate
from fedsyn.keys.certificates import new_authority, new_link

LIMITS = GateLimits(
    connections=8, headers=2**12, stranger=2**12, message=2**20, in_all=2**20, seconds=1.5, silence=2.0, slowest=2**20
)
NODE = b"x-node: known\r\n"


class App:
    """Answers with the length of what it was sent, and knows how much of it there was at most."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.wait = 0.0
        self.gate: Any = None
        self.server: Any = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        import asyncio

        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        message = await receive()
        assert not message["more_body"]
        self.lengths.append(len(message["body"]))
        await asyncio.sleep(self.wait)
        text = str(len(message["body"])).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})


@contextmanager
def served(limits: GateLimits = LIMITS, tls: Path | None = None) -> Iterator[tuple[App, Callable[[], socket.socket]]]:
    """An app behind gate and door, and what opens a connection to it."""
    app = App()
    gate = Gate(app, known=lambda scope: (b"x-node", b"known") in scope["headers"], limits=limits)
    files = {} if tls is None else {"ssl_certfile": str(tls / "one.crt"), "ssl_keyfile": str(tls / "one.key")}
    made = server(gate, limits, host="127.0.0.1", port=0, log_config=None, **files)
    app.gate, app.server = gate, made
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    while not made.started:
        time.sleep(0.01)
    address = made.servers[0].sockets[0].getsockname()

    def connect() -> socket.socket:
        return socket.create_connection(address, timeout=5.0)

    try:
        yield app, connect
    finally:
        made.should_exit = made.force_exit = True
        thread.join(10.0)


def head(length: int | None, more: bytes = b"", path: bytes = b"/v1/fleet/push-object") -> bytes:
    announced = b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
    return b"POST " + path + b" HTTP/1.1\r\nhost: x\r\n" + announced + more + b"\r\n"


def answer(line: socket.socket) -> bytes:
    """One whole response, or what came of it before the other side was gone."""
    got = b""
    try:
        while b"\r\n\r\n" not in got or not _body(got):
            part = line.recv(2**16)
            if not part:
                break
            got += part
    except ConnectionError:
        pass
    return got


def _body(got: bytes) -> bool:
    """Whether the body is whole: of the announced length, or chunks to the last one."""
    before, _, body = got.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", before)
    return body.endswith(b"0\r\n\r\n") if found is None else len(body) == int(found[1])


def closed(line: socket.socket, within: float) -> bool:
    line.settimeout(within)
    try:
        while line.recv(2**16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_strangers_body_is_short_and_a_nodes_is_a_message() -> None:
    with served() as (app, connect):
        with connect() as line:
            for _ in range(2):  # the connection goes on
                line.sendall(head(100) + b"x" * 100)
                assert answer(line).endswith(b"100")
        for announced, more, status in (
            (LIMITS.stranger + 1, b"", b" 413 "),
            (2**29, b"", b" 413 "),
            (LIMITS.message + 1, NODE, b" 413 "),
        ):
            with connect() as line:
                line.sendall(head(announced, more))
                assert status in answer(line), announced  # before anything of it was sent
                assert closed(line, 2.0)
        with connect() as line:
            line.sendall(head(LIMITS.message, NODE) + b"x" * LIMITS.message)
            assert answer(line).endswith(b"%d" % LIMITS.message)
        assert app.lengths == [100, 100, LIMITS.message]


def test_what_is_received_counts_and_not_what_is_announced() -> None:
    with served() as (app, connect):
        with connect() as line:  # announced small and sent large: what is beyond is no request
            line.sendall(head(10) + b"x" * 10)
            assert answer(line).endswith(b"10")
            line.sendall(b"x" * 100_000)
            assert closed(line, 2.0)
        for more in (b"", NODE):  # in chunks, endless; a node announces what it sends
            sent = 0
            with connect() as line:
                line.sendall(head(None, more))
                try:
                    while sent < 2**24:
                        line.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
                        sent += 1024
                except OSError:
                    pass
                assert sent < 2**24
        with connect() as line:
            line.sendall(head(None) + b"5\r\nabcde\r\n0\r\n\r\n")
            assert answer(line).endswith(b"5")
        assert app.lengths == [10, 5]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("tls", [False, True])
def test_who_is_slow_is_let_go(tls: bool, tmp_path: Path) -> None:
    with served(tls=_certificate(tmp_path) if tls else None) as (app, connect):

        def secured() -> socket.socket:
            return _trusting().wrap_socket(connect(), server_hostname="localhost") if tls else connect()

        begun = time.monotonic()
        lines = [connect()]  # says nothing, not even hello
        for said in (b"", b"POST /v1/fl", head(100)[:-2], head(100), head(100) + b"x" * 99, head(5000, NODE) + b"x"):
            lines.append(secured())
            lines[-1].sendall(said)
        for line in lines:
            assert closed(line, 5.0)
        assert time.monotonic() - begun < 20.0 and not app.lengths
        with secured() as line:  # and all of them have left
            line.sendall(head(3) + b"abc")
            assert answer(line).endswith(b"3")


def test_headers_are_bounded() -> None:
    with served() as (app, connect):
        for endless in (b"x: " + b"y" * 2**16, b"x: y\r\n" * 2**14, b"\r\n" * 2**14):
            with connect() as line:
                try:
                    line.sendall((b"" if endless.startswith(b"\r") else head(0)[:-2]) + endless)
                except OSError:
                    continue
                assert closed(line, 1.0), endless[:8]  # before its time is over
        with connect() as line:  # a keep-alive connection is bounded anew
            for _ in range(20):
                line.sendall(head(3, b"x: " + b"y" * 3000 + b"\r\n") + b"abc")
                assert answer(line).endswith(b"3")
        assert app.lengths == [3] * 20


def test_connections_are_counted_before_tls(tmp_path: Path) -> None:
    with served(replace(LIMITS, seconds=30.0), tls=_certificate(tmp_path)) as (_, connect):
        silent = [connect() for _ in range(LIMITS.connections)]
        time.sleep(0.2)
        with connect() as line:
            assert closed(line, 2.0)
        assert not closed(silent[0], 0.1)
        silent.pop().close()
        time.sleep(0.2)
        with _trusting().wrap_socket(connect(), server_hostname="localhost") as secured:
            secured.sendall(head(3) + b"abc")
            assert answer(secured).endswith(b"3")
        for line in silent:
            line.close()


def test_connections_of_an_address() -> None:
    keeper = Doorkeeper(GateLimits(connections=10, per_address=2))
    first, second = keeper.enter("192.0.2.7"), keeper.enter("::ffff:192.0.2.7")
    assert first is not None and second is not None and keeper.enter("192.0.2.7") is None
    assert keeper.enter("192.0.2.8") is not None
    first()
    first()  # leaves once
    assert keeper.enter("192.0.2.7") is not None and keeper.enter("192.0.2.7") is None
    local = [keeper.enter("127.0.0.1") for _ in range(8)]
    assert sum(each is not None for each in local) == 7  # of this machine all that there is room for
    assert keeper.enter("2001:db8::1") is None


@pytest.mark.slow
def test_large_bodies_wait_for_each_other() -> None:
    with served(replace(LIMITS, silence=5.0)) as (app, connect):
        app.wait = 0.5
        size, lines = LIMITS.in_all * 2 // 3, [connect() for _ in range(3)]
        senders = [
            threading.Thread(target=line.sendall, args=(head(size, NODE) + b"x" * size,), daemon=True) for line in lines
        ]
        begun = time.monotonic()
        for sender in senders:
            sender.start()
        with connect() as line:  # a small one passes
            line.sendall(head(3) + b"abc")
            assert answer(line).endswith(b"3")
        assert [answer(line)[-6:] for line in lines] == [b"%d" % size] * 3
        assert time.monotonic() - begun > 1.4  # one after the other
        for line in lines:
            line.close()


def _certificate(folder: Path) -> Path:
    made = new_link(new_authority("test"), "test", ("localhost",))
    (folder / "one.crt").write_text(made.certificate, encoding="utf-8")
    (folder / "one.key").write_text(made.key, encoding="utf-8")
    return folder


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
