"""A real SuperLink behind the gate, with TLS and authenticated nodes, under strangers who send what nobody wants."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedsyn.deploy.init import init
from fedsyn.deploy.plan import FederationPlan
from fedsyn.deploy.superlink import SuperLinkProcess, agree, control_of
from fedsyn.flower.fleet import Contact, Endpoint, connect, load_key
from support.loopback import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
#: Times the memory that it had before: a hundred TLS connections with 64 KiB each cost it 0.3.
MOST_GROWTH = 1.5
HEAD = b"POST /v1/fleet/push-messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/protobuf\r\n"


class Stand:
    """A SuperLink that knows one node, `north`; another key is `strange`."""

    def __init__(self, folder: Path) -> None:
        made = init(FederationPlan("study", ("north", "south"), port=free_port()), folder / "study")
        self.made, self.federation = made, made.federation
        self.superlink = SuperLinkProcess(made.place, made.federation)
        self.port = made.federation.superlink.port
        end = time.monotonic() + 120.0
        while not self.superlink.healthy:
            assert time.monotonic() < end and not self.superlink.restarts, self.superlink.place.state
            self.superlink.tend()
            time.sleep(0.1)
        (self.north, self.south) = (folder / "study" / "holders" / name / "node.key" for name in ("north", "south"))
        with control_of(made.place, made.federation) as control:
            list(agree(control, made.federation.replaced(made.federation.holder("south").model_copy(update=GONE))))

    def client(self, key: Path) -> tuple[Any, bytes]:
        loaded = load_key(key)
        place = Endpoint(f"localhost:{self.port}", key, self.made.place.ca)
        return connect(place, loaded, Contact()), public_key_to_bytes(loaded.public_key())

    def line(self) -> ssl.SSLSocket:
        trusting = ssl.create_default_context(cafile=str(self.made.place.ca))
        return trusting.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), 10.0), server_hostname="localhost"
        )

    @property
    def memory(self) -> int:
        """Resident MB."""
        text = Path(f"/proc/{self.superlink.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) // 1024


GONE = {"revoked": "2026-01-01"}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    stand = Stand(tmp_path_factory.mktemp("gate"))
    try:
        yield stand
    finally:
        stand.superlink.stop()


def signed(stand: Stand, key: Path) -> bytes:
    """The headers that Flower's own client would send with this key."""
    kept: list[httpx.Request] = []
    client, public = stand.client(key)

    class Keep:
        def intercept(self, context: Any, call_next: object) -> httpx.Response:
            kept.append(context.request)
            raise httpx.ConnectError("kept")

    client._interceptors = (*client._interceptors[:-1], Keep())
    with contextlib.suppress(httpx.HTTPError):
        client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=15.0))
    mine = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
    wanted = [(name, value) for name, value in kept[0].headers.raw if name.lower() in mine]
    assert wanted, kept[0].headers
    return b"".join(name + b": " + value + b"\r\n" for name, value in wanted)


def send(stand: Stand, head: bytes, piece: bytes, megabytes: int) -> int:
    """Sends for as long as somebody reads; how many MB were taken."""
    sent = 0
    with contextlib.suppress(OSError), stand.line() as line:
        line.sendall(head)
        while sent < megabytes * 2**20:
            line.sendall(piece)
            sent += len(piece)
    return sent // 2**20


ATTACKS: dict[str, Callable[[Stand], tuple[bytes, bytes]]] = {
    "512 MB announced, no signature": lambda stand: (HEAD + b"content-length: %d\r\n\r\n" % 2**29, b"\x0a" * 2**16),
    "announced small and sent large": lambda stand: (HEAD + b"content-length: 100\r\n\r\n", b"\x0a" * 2**16),
    "in chunks without end": lambda stand: (
        HEAD + b"transfer-encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"\x0a" * 2**16 + b"\r\n",
    ),
    "a key that nobody registered": lambda stand: (
        HEAD + signed(stand, stand.south) + b"content-length: %d\r\n\r\n" % 2**29,
        b"\x0a" * 2**16,
    ),
    "a node's headers without end": lambda stand: (HEAD, b"x-y: " + b"z" * 2**16 + b"\r\n"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_strangers_bytes_are_not_kept(stand: Stand, attack: str) -> None:
    head, piece = ATTACKS[attack](stand)
    before, peak, ended = stand.memory, [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peak[0] = max(peak[0], stand.memory)
        peak[0] = max(peak[0], stand.memory)

    watcher = threading.Thread(target=watch)
    watcher.start()
    taken = send(stand, head, piece, 512)
    ended.set()
    watcher.join()
    print(f"{attack}: {taken} MB went out, resident memory {before} MB before, {peak[0]} MB at most")
    assert taken < 64  # what lies in sockets and in the loop's turns
    assert peak[0] < MOST_GROWTH * before


def test_a_hundred_strangers_at_once(stand: Stand) -> None:
    before, lines = stand.memory, []
    for _ in range(100):
        lines.append(stand.line())
        with contextlib.suppress(OSError):
            lines[-1].sendall(HEAD + b"content-length: %d\r\n\r\n" % 2**16 + b"\x0a" * (2**16 - 1))
    print(f"100 bodies of 64 KiB less a byte: {before} MB before, {stand.memory} MB with them")
    assert stand.memory < MOST_GROWTH * before
    started, let_go = time.monotonic(), 0
    for line in lines:
        line.settimeout(20.0)
        with contextlib.suppress(OSError):
            while line.recv(2**16):
                pass
        let_go += time.monotonic() - started < 30.0
        line.close()
    assert let_go == 100


def test_a_nodes_64_mb_pass_and_more_than_a_message_does_not(stand: Stand) -> None:
    client, public = stand.client(stand.north)
    activated = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=15.0))
    node = Node(node_id=activated.node_id)
    push = PushObjectRequest(node=node, run_id=1, object_id="0" * 64, object_content=os.urandom(2**26))
    with pytest.raises(httpx.HTTPStatusError) as told:  # such a run does not exist, says who has read it all
        client.PushObject(push)
    assert told.value.response.headers["x-fedsyn-gate"] == "1"
    head = HEAD.replace(b"push-messages", b"push-object") + signed(stand, stand.north)
    assert send(stand, head + b"content-length: %d\r\n\r\n" % 2**30, b"\x0a" * 2**16, 512) < 64
