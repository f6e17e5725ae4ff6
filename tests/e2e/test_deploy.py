"""Holders who never met, from `fedsyn deploy init` to a table: TLS, authenticated nodes, malicious secure sums."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from deployed import Deployed, deployed, namespaces_or_none
from loopback import ROOT

pytestmark = pytest.mark.xdist_group("flower")
NAMES = ("north", "south", "lake")

# What a stranger tries at the SuperLink's port: what stock Flower 1.41 would answer.
STRANGER = """
import sys
from fedsyn.errors import RunError
from fedsyn.flower.control import Control
ca = open(sys.argv[2]).read()
for what in ("nodes", "runs"):
    with Control(sys.argv[1], ca) as control:
        try:
            print(what, len(getattr(control, what)()))
        except RunError as error:
            print(what, error)
"""


def test_from_init_to_a_table(tmp_path: Path) -> None:
    """The small one, of every day: namespaces where there are any, else loopback."""
    places = namespaces_or_none(4)
    try:
        with deployed(tmp_path, NAMES, places) as federation:
            done = federation.run("out", "--set", "mechanism.rounds=1")
            assert "may be released" in done.stdout
            check_table(federation)
            stranger_is_refused(federation)
            assert {holder["status"] for holder in federation.status()["holders"]} == {"online"}
            federation.call("deploy", "stop", "study")
            assert federation.processes["link"].wait(10.0) == 0
    finally:
        if places is not None:
            places.close()


def check_table(federation: Deployed, out: str = "out") -> None:
    rows = pd.read_csv(federation.folder / out / "synthetic.csv")
    assert list(rows.columns) == ["age", "ward", "smoker", "readmitted"] and len(rows) > 800
    ledger = federation.ledger(out)
    assert ledger["private"] is True and 0 < ledger["epsilon"] <= 1.0
    assumed = ledger["assumptions"]
    assert (assumed["aggregation"], assumed["noise"], assumed["seeded"]) == ("secagg", "distributed", False)
    joined, *rounds = federation.rounds(out)
    assert joined["cohort"] == list(range(len(federation.names))) and joined["notes"] == []
    assert all(line["dropped"] == {} for line in rounds)


def stranger_is_refused(federation: Deployed) -> None:
    """Another machine gets the nodes' API alone, and no node's answer without a registered key."""
    if federation.places is None:
        return  # on loopback everybody is this machine
    ca = federation.operator / "ca.crt"
    done = subprocess.run(
        [*federation.places.prefix(1), sys.executable, "-c", STRANGER, f"{federation.host}:{federation.port}", str(ca)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
    with socket.create_connection((federation.places.hosts[0], federation.port), 5.0) as plain:  # no TLS, no answer
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200" not in plain.recv(100)
