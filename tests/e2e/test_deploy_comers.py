"""Who comes late: added while the SuperLink runs, harmless until everybody has its line, then one of four."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deployed import Deployed, deployed, table
from support.namespaces import Namespaces, namespaces_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
NAMES = ("north", "south", "lake")


@pytest.fixture(scope="module")
def places() -> Iterator[Namespaces]:
    with namespaces_or_skip(2 + len(NAMES)) as made:
        yield made


def test_a_late_joiner(tmp_path: Path, places: Namespaces) -> None:
    with deployed(tmp_path, NAMES, places, ("--approval", "always", "--rounds", "1", "--runs", "3")) as federation:
        federation.wait_online()
        own = tmp_path / "west"
        own.mkdir()
        assert federation.start("keys", "node", "new-keys", "--name", "west", cwd=own).wait(120.0) == 0
        rosters = {name: (federation.holder(name) / "roster.yaml").read_text(encoding="utf-8") for name in NAMES}
        said = federation.call("deploy", "add", "west", "--card", "west/west.card.yaml", "--folder", "study", "--yes")
        assert "the SuperLink knows" in said.stdout and "to north, south, lake" in said.stdout
        line = said.stdout.splitlines()[-1]
        # What the operator's command wrote here reaches the others by telephone, later: they have three lines yet.
        for name in NAMES:
            (federation.holder(name) / "roster.yaml").write_text(rosters[name], encoding="utf-8")
        for file in ("node.key", "identity.key"):
            shutil.copy(own / file, federation.holder("west") / file)
        table(450, 7).to_csv(federation.holder("west") / "rows.csv", index=False)
        federation.names = (*NAMES, "west")
        federation.edit("west", r"approval: by person", "approval: always")
        federation.serve("west")
        federation.wait_online("west")

        federation.run("three", "--set", "federation.clients=3", "--set", "federation.minimum_cohort=3")
        assert federation.rounds("three")[0]["cohort"] == [0, 1, 2] and not federation.rounds("three")[0]["not_joined"]
        assert federation.ledger("three")["private"] and not federation.charged("west") and not federation.audit("west")

        for name in NAMES:
            (federation.holder(name) / "roster.yaml").write_text(f"{rosters[name]}{line}\n", encoding="utf-8")
            federation.end(name)
        federation.wait_for(lambda: all(federation.last_said(name) == "offline" for name in NAMES), 120.0)
        federation.serve(*NAMES)
        federation.wait_online()
        federation.run("four")
        assert federation.rounds("four")[0]["cohort"] == [0, 1, 2, 3]
        assert federation.ledger("four")["private"] and federation.charged("west")
        assert len(federation.charged("north")) > len(federation.charged("west"))

        said = federation.call("deploy", "remove", "west", "--folder", "study")
        assert "run.yaml asks for 3 holders now" in said.stdout and "the SuperLink knows" in said.stdout
        federation.wait_for(lambda: statuses(federation)["west"] == "revoked", 60.0)


def statuses(federation: Deployed) -> dict[str, str]:
    return {holder["name"]: holder["status"] for holder in federation.status()["holders"]}
