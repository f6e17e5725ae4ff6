"""Flower's SuperLink behind a gate: `python -m fedsyn.flower.superlink --parent PID ARGUMENTS`.

In Flower 1.41 nodes (Fleet API), people (Control API) and ServerApps (Runtime API) call one port, and authentication of
nodes covers the first alone. So whoever reaches the port could submit an app, which the SuperLink's machine then runs;
register a node of its own; stop runs; or take a run's task and ask the holders in its place. The gate lets machines of
others have the Fleet API and nothing else. Whoever calls from this machine (a ServerApp does, and its operator) is let
through.

A proxy, or a translation of addresses, by which others seem to call from this machine opens the gate: have none.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

from fedsyn.flower import private
from fedsyn.flower.guard import (
    GUARDED,
    Bodies,
    GateLimits,
    Receive,
    RefusedRequest,
    Scope,
    address_of,
    known_node,
)
from fedsyn.flower.guard import run as guarded_run
from fedsyn.output import no_tracebacks

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: In every answer: how a supervisor knows that there is a gate, and that connections come through its door.
HEADER = (b"x-fedsyn-gate", b"1")
_OPEN = ("/v1/fleet/",)
_HEALTH = "/health"
#: A request with one of these came through a proxy: its caller is not who it seems to be.
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


class Gate:
    """ASGI app that refuses what nodes may not ask or send.

    This machine may ask for everything.

    Args:
        app: what it stands before.
        listen: address that the SuperLink listens on.
        known: whether the SuperLink knows the node that sent a request.
        limits: of bodies.
    """

    def __init__(
        self,
        app: App,
        listen: str = "",
        known: Callable[[Scope], bool] = known_node,
        limits: GateLimits = GateLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.app, self.listen = app, listen
        self._bodies = Bodies(limits, known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        hidden = any(name in _FORWARDED for name, _ in scope.get("headers", ()))
        client = None if hidden else scope.get("client")
        if scope["type"] != "http" or not allowed(str(scope["path"]), client, self.listen):
            await _refuse(scope, send, RefusedRequest(403, "only for the SuperLink's own machine"))
            return

        async def told(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and GUARDED in scope.get("extensions", {}):
                message["headers"] = [*message.get("headers", []), HEADER]
            await send(message)

        if not _for_nodes(str(scope["path"])):
            await self.app(scope, receive, told)
            return
        try:
            async with self._bodies.read(scope, receive) as body:
                if body is not None:
                    await self.app(scope, _again(body, receive), told)
        except RefusedRequest as refused:
            await _refuse(scope, send, refused)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, once more; then what else comes."""
    whole: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    del body

    async def receive_again() -> MutableMapping[str, Any]:
        return whole.pop() if whole else await receive()

    return receive_again


def allowed(path: str, client: tuple[str, int] | None, listen: str) -> bool:
    """Returns whether a caller may ask for a path.

    Everybody may ask for nodes' paths, this machine alone for all others.

    This machine calls from a loopback address; where the SuperLink listens on one address alone, from that one.

    >>> allowed("/v1/fleet/pull-messages", ("192.0.2.7", 40000), "0.0.0.0")
    True
    >>> allowed("/v1/control/start-run", ("192.0.2.7", 40000), "0.0.0.0")
    False
    >>> allowed("/v1/control/start-run", ("127.0.0.1", 40000), "0.0.0.0")
    True
    """
    if _for_nodes(path):
        return True
    if client is None:
        return False
    try:
        caller = address_of(client[0])
        return caller.is_loopback or caller == address_of(listen)
    except ValueError:  # neither is what it should be: nobody's name is looked up here
        return False


def _for_nodes(path: str) -> bool:
    return path == _HEALTH or path.startswith(_OPEN)


async def _refuse(scope: Scope, send: Send, refused: RefusedRequest) -> None:
    """Says why, and closes the connection.

    The rest of the body is not read.
    """
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{refused}\n".encode()})


def _listen(app: Any, **named: Any) -> None:
    """Serves Flower's app behind the gate.

    It does so however and whenever Flower made it, and returns when the server has ended.
    """
    app.add_middleware(Gate, listen=named["host"])  # the last one added is the first one asked
    guarded_run(app, **named)


def _watch_parent(parent: int, every: float = 0.5) -> None:
    """Ends this process and its helpers when its supervisor is gone."""
    while os.getppid() == parent:
        time.sleep(every)
    os.killpg(0, signal.SIGTERM)
    time.sleep(3.0)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Starts `flower-superlink` with the gate in front of everything else."""
    no_tracebacks()
    if sys.argv[1:2] == ["--parent"]:
        threading.Thread(target=_watch_parent, args=(int(sys.argv[2]),), daemon=True).start()
        del sys.argv[1:3]
    # Callers' addresses are those of their connections: no header of theirs changes them.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    # The console is for what is wrong; the log file, which is rotated, has the rest.
    private.update_console_handler("WARNING", timestamps=True, colored=False)
    command = private.superlink_command
    command.uvicorn = SimpleNamespace(run=_listen)  # without the call of `run`, nothing listens
    sys.argv[0] = "flower-superlink"
    command.flower_superlink()


if __name__ == "__main__":
    main()
