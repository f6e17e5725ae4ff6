"""`deploy init --parties`, run to its table as it was written: three computing parties, or one crypto party.

Nobody edits a file. The run is called by one name, which operator, holders and parties read in their own places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from support.deployed import Deployed, table
from support.loopback import free_port
from support.namespaces import Namespaces, namespaces_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
NAMES = ("north", "south", "lake")


@pytest.fixture(scope="module")
def places() -> Iterator[Namespaces]:
    with namespaces_or_skip(1 + len(NAMES)) as made:
        yield made


@pytest.mark.parametrize("parties", [("alder",), ("alder", "birch", "cedar")], ids=["a crypto party", "three parties"])
def test_what_init_wrote_runs_to_its_table(tmp_path: Path, places: Namespaces, parties: tuple[str, ...]) -> None:
    if len(parties) == 1:
        pytest.importorskip("tenseal")
    words = [word for name in parties for word in ("--parties", f"{name}={places.hosts[0]}:{free_port()}")]
    federation = Deployed(tmp_path, NAMES, places, (*words, "--rounds", "2"))
    try:
        for name in parties:
            federation.start(name, "party", "serve", "party.yaml", cwd=federation.root / "parties" / name)
        federation.link()
        federation.serve()
        federation.wait_online()
        for name in parties:
            federation.wait_for(lambda name=name: "listens on port" in federation.log(name))  # type: ignore[misc]
        run = federation.start("run", "deploy", "run", "study", "--out", "out")
        federation.wait_for(lambda: "run " in federation.log("run"), 240.0)
        called = re.search(r"^run ([0-9a-f]{10})\b", federation.log("run"), re.MULTILINE)
        assert called is not None, federation.log("run")
        run_name = called[1]
        federation.wait_for(lambda: all(waits(federation, name) == [run_name] for name in NAMES), 300.0)
        # The operator reads whose word is missing, before anybody has said a word.
        federation.wait_for(lambda: "lake (approval: this node waits for its holder" in federation.log("run"), 60.0)
        shown = federation.call("deploy", "status", "study").stdout
        assert run_name in shown and "south (approval: this node waits for its holder" in shown, shown
        for name in NAMES:
            federation.call("node", "approve", run_name[:4], str(federation.holder(name) / "node.yaml"), "--yes")
        assert run.wait(900.0) == 0, federation.log("run") + federation.logs() + "".join(map(federation.log, parties))
        ledger = federation.ledger()
        assert ledger["private"] and ledger["run"] == run_name and 0 < ledger["epsilon"] <= 1.0
        rows = pd.read_csv(tmp_path / "out" / "synthetic.csv")
        assert list(rows) == list(table(1, 0)) and 800 < len(rows) < 2000
        for name in NAMES:
            spent = federation.call("ledger", "show", str(federation.holder(name) / "node.yaml")).stdout
            assert run_name in spent
            assert {entry.get("run") for entry in federation.audit(name)} == {run_name}
        for name in parties:
            file = federation.root / "parties" / name / "party.yaml"
            assert f"run {run_name} (" in federation.log(name)
            assert run_name in federation.call("ledger", "show", str(file)).stdout
        assert run_name in federation.call("deploy", "status", "study").stdout
        assert federation.call("deploy", "log", run_name[:5], "study").returncode == 0
    finally:
        federation.close()


def waits(federation: Deployed, name: str) -> list[str]:
    """Runs that a holder is asked about."""
    said = federation.call("node", "pending", str(federation.holder(name) / "node.yaml"), "--json").stdout
    return [entry["run"] for entry in json.loads(said)]
