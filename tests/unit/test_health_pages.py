"""The pages of a node, a party and a SuperLink, asked by those who keep them waiting."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request

import pytest

from fedsyn.health import Page, Pages

PAGES: dict[str, Page] = {"/healthz": lambda: (200, "text/plain", "alive\n")}


def connect(pages: Pages) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pages.port), timeout=5.0)


def closed(line: socket.socket) -> bool:
    try:
        return line.recv(100) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_connections_are_few_and_end() -> None:
    pages = Pages("127.0.0.1:0", PAGES, seconds=2.0, connections=4)
    try:
        before, silent = threads(), [connect(pages) for _ in range(4)]
        time.sleep(0.1)
        assert threads() == before + 4
        more = [connect(pages) for _ in range(20)]
        assert all(closed(line) for line in more) and threads() <= before + 4
        assert all(closed(line) for line in silent)
        until = time.monotonic() + 10.0  # a connection's place is free when its thread has ended, soon after
        while threads() > before and time.monotonic() < until:
            time.sleep(0.01)
        with urllib.request.urlopen(f"http://127.0.0.1:{pages.port}/healthz", timeout=5) as answer:
            assert answer.read() == b"alive\n"
        for line in [*silent, *more]:
            line.close()
    finally:
        pages.close()


@pytest.mark.parametrize("said", [b"GET /hea", b"GET /healthz HTTP/1.0\r\nx: y"])
def test_a_letter_now_and_then_does_not_hold_a_thread(said: bytes) -> None:
    """A limit of each read would be met for ever."""
    pages = Pages("127.0.0.1:0", PAGES, seconds=0.6)
    try:
        with connect(pages) as line:
            begun = time.monotonic()
            line.settimeout(0.1)
            line.sendall(said)
            while time.monotonic() - begun < 5.0:
                try:
                    line.sendall(b"z")
                    if line.recv(1000) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            assert 0.4 < time.monotonic() - begun < 5.0
    finally:
        pages.close()
