"""Sends the recorded messages of a run over a shaped link between two network namespaces, and takes the time.

The server is in one namespace, all clients are in the other, each with a TCP connection of its own; both ends of the
one link between them are limited by a token bucket (`tc ... tbf`), so that it is the server's bandwidth that is shared.
What is sent is what was sent in the run, byte for byte, in the run's exchanges: the server waits for all replies before
it asks again. Nobody computes anything. Needs root, `ip` and `tc`.

    python links.py serve FILE EXCHANGES ADDRESS     # these two are started by `measured`
    python links.py clients FILE EXCHANGES ADDRESS
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

PORT = 9700
LENGTH = struct.Struct("<II")  # a frame: the client's number, the payload's bytes
Exchange = list[tuple[int, bytes, bytes]]


def reason_against() -> str | None:
    """Why links cannot be shaped on this machine; None if they can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}" if missing else None


class Link:
    """Two namespaces and a shaped link between them; they are gone when the block ends."""

    def __init__(self, megabits: float) -> None:
        self.megabits, self.name = megabits, f"fedsyn{os.getpid() % 100000}"
        self.server, self.client = f"{self.name}-s", f"{self.name}-c"

    def __enter__(self) -> Link:
        ends = {self.server: (f"{self.name}0"[-15:], 1), self.client: (f"{self.name}1"[-15:], 2)}
        (one, _), (other, _) = ends.values()
        try:
            for namespace in ends:
                _run(["ip", "netns", "add", namespace])
            _run(["ip", "link", "add", one, "netns", self.server, "type", "veth", "peer", "name", other, "netns",
                  self.client])  # fmt: skip
            for namespace, (device, number) in ends.items():
                _run(["ip", "-n", namespace, "addr", "add", f"10.97.0.{number}/24", "dev", device])
                _run(["ip", "-n", namespace, "link", "set", device, "up"])
                # A small bucket: what a link may send at once after a pause is free. A long queue: a hundred clients
                # that answer at once lose no packets.
                bucket = max(1_600, int(self.megabits * 250))  # a frame, or two milliseconds
                limits = ["rate", f"{self.megabits}mbit", "burst", str(bucket), "limit", "200000000"]
                _run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (self.server, self.client):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def start(self, role: str, recorded: Path, exchanges: int) -> subprocess.Popen[str]:
        namespace = self.server if role == "serve" else self.client
        program = [sys.executable, str(Path(__file__).resolve()), role, str(recorded), str(exchanges), "10.97.0.1"]
        return subprocess.Popen(["ip", "netns", "exec", namespace, *program], stdout=subprocess.PIPE, text=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def measured(recorded: Path, exchanges: int, megabits: float) -> float:
    """Seconds that the first `exchanges` of a recorded run take over a link of so many megabits a second."""
    with Link(megabits) as link:
        server = link.start("serve", recorded, exchanges)
        clients = link.start("clients", recorded, exchanges)
        try:
            out, _ = server.communicate(timeout=600)
        finally:
            for process in (server, clients):
                process.kill()
                process.wait()
    return float(out)


def load(recorded: Path, exchanges: int) -> list[Exchange]:
    everything: list[Exchange] = pickle.loads(recorded.read_bytes())
    return everything[:exchanges]


async def serve(plan: list[Exchange], address: str) -> float:
    """The server's side: seconds from the first request to the last reply."""
    streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    wanted = {client for exchange in plan for client, _, _ in exchange}
    there = asyncio.Event()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, _ = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        streams[client] = (reader, writer)
        if streams.keys() == wanted:
            there.set()

    async def ask(client: int, request: bytes, reply: bytes) -> None:
        reader, writer = streams[client]
        writer.write(LENGTH.pack(client, len(request)) + request)
        await writer.drain()
        _, length = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if await reader.readexactly(length) != reply:
            raise OSError("a reply is not what was recorded")

    listener = await asyncio.start_server(welcome, address, PORT, backlog=4096)
    await there.wait()
    start = time.perf_counter()
    for exchange in plan:
        await asyncio.gather(*(ask(*one) for one in exchange))
    taken = time.perf_counter() - start
    listener.close()
    return taken


async def answer(plan: list[Exchange], address: str) -> None:
    """The clients' side: each reads its request whole, then replies."""
    own: dict[int, list[bytes]] = {}
    for exchange in plan:
        for client, _, reply in exchange:
            own.setdefault(client, []).append(reply)

    async def one(client: int, replies: list[bytes]) -> None:
        for attempt in range(100):
            try:
                reader, writer = await asyncio.open_connection(address, PORT)
                break
            except OSError:
                if attempt == 99:
                    raise
                await asyncio.sleep(0.2)
        writer.write(LENGTH.pack(client, 0))
        for reply in replies:
            _, length = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            await reader.readexactly(length)
            writer.write(LENGTH.pack(client, len(reply)) + reply)
            await writer.drain()
        await reader.read()  # until the server is gone

    await asyncio.gather(*(one(client, replies) for client, replies in own.items()))


def command_line() -> None:
    role, recorded, exchanges, address = sys.argv[1:]
    plan = load(Path(recorded), int(exchanges))
    if role == "serve":
        print(asyncio.run(serve(plan, address)))
    else:
        asyncio.run(answer(plan, address))


if __name__ == "__main__":
    command_line()
