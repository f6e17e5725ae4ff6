"""Holders who never met, from `fedsyn deploy init` to a table: TLS, authenticated nodes, malicious secure sums."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.deployed import Deployed, check_table, deployed, namespaces_or_none

pytestmark = pytest.mark.xdist_group("flower")
NAMES = ("north", "south")

# What a stranger tries at the SuperLink's port; stock Flower 1.41 lists its nodes, and takes apps, from everybody.
STRANGER = """
import ssl, sys, urllib.error, urllib.request
trusting = ssl.create_default_context(cafile=sys.argv[2])
for path in ("/health", "/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"):
    method = "GET" if path in ("/health", "/docs") else "POST"
    asked = urllib.request.Request(f"https://{sys.argv[1]}{path}", method=method)
    asked.add_header("content-type", "application/x-protobuf")
    try:
        print(path, urllib.request.urlopen(asked, b"" if method == "POST" else None, 10, context=trusting).status)
    except urllib.error.HTTPError as error:
        print(path, error.code)
"""


@pytest.mark.slow
def test_from_init_to_a_table(tmp_path: Path) -> None:
    """The small one, of every day: namespaces where there are any, else loopback."""
    places = namespaces_or_none(1 + len(NAMES))
    try:
        with deployed(tmp_path, NAMES, places) as federation:
            done = federation.run("out", "--set", "mechanism.rounds=1")
            assert "may be released" in done.stdout
            check_table(federation)
            stranger_is_refused(federation)
            federation.check_ledgers("out")
            federation.call("deploy", "stop", "study")
            assert federation.processes["link"].wait(10.0) == 0
    finally:
        if places is not None:
            places.close()


def stranger_is_refused(federation: Deployed) -> None:
    """Another machine gets the nodes' API alone, and no node's answer without a registered key."""
    if federation.places is None:
        return  # on loopback everybody is this machine
    ca = federation.operator / "ca.crt"
    done = subprocess.run(
        [*federation.places.prefix(1), sys.executable, "-c", STRANGER, f"{federation.host}:{federation.port}", str(ca)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line.split() for line in done.stdout.splitlines()]
    assert [code for _, code in said] == ["200", "403", "403", "403", "403"], done.stdout + done.stderr
    with socket.create_connection((federation.places.hosts[0], federation.port), 5.0) as plain:  # no TLS, no answer
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200" not in plain.recv(100)
