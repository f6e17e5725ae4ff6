"""docs/deployment.md, followed as it stands: its schema, its commands, in namespaces. Only the host is another."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from deployed import Deployed, table
from loopback import ROOT
from namespaces import Namespaces
from test_deploy import check_table

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
PAGE, HOST = ROOT / "docs" / "deployment.md", "superlink.example.org"
NAMES = ("north", "south", "lake")


@pytest.fixture
def places() -> Iterator[Namespaces]:
    try:
        made = Namespaces(4)
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        yield made
    finally:
        made.close()


class Reader(Deployed):
    """People who do what the page says."""

    def __init__(self, folder: Path, places: Namespaces, schema: str) -> None:
        self.folder, self.names, self.places, self.tree = folder, NAMES, places, ROOT
        self.root, self.port, self.host = folder / "study", 8000, places.hosts[0]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.typed: list[str] = []
        (folder / "schema.yaml").write_text(schema, encoding="utf-8")

    def follow(self, line: str) -> None:
        words = shlex.split(line.replace(HOST, self.host))
        assert words[0] == "fedsyn"
        self.typed.append(line)
        match words[1:]:
            case ["deploy", "init", *_]:
                self.call(*words[1:])
                for seed, name in enumerate(NAMES):
                    own = self.folder / name / "rows.csv"
                    if own.exists():
                        shutil.copyfile(own, self.holder(name) / "rows.csv")
                    else:
                        table(300, seed).to_csv(self.holder(name) / "rows.csv", index=False)
            case ["deploy", "link", "study"]:
                self.link()
            case ["node", "serve", "node.yaml"]:
                self.serve()
                self.wait_online()
            case ["node", "new-keys", "node.yaml"]:
                self.at("north", *words[1:])
                card = (self.holder("north") / "north.card.yaml").read_text(encoding="utf-8")
                (self.folder / "north.card.yaml").write_text(card, encoding="utf-8")
            case ["deploy", "rotate-keys", "north", *_]:
                new = self.call(*words[1:], "--yes").stdout.splitlines()[-1]
                for name in ("south", "lake"):  # they were told the line by telephone
                    roster = self.holder(name) / "roster.yaml"
                    lines = [new if each.startswith("0:") else each for each in roster.read_text("utf-8").splitlines()]
                    roster.write_text("\n".join(lines) + "\n", encoding="utf-8")
                for name in NAMES:
                    self.end(name)
                self.serve()
            case ["deploy", "run", *_]:
                self.start("run", *words[1:])
            case ["node", "pending"]:
                for name in NAMES:
                    self.wait_for(lambda name=name: self.pending(name) != [], 240.0)  # type: ignore[misc]
            case ["node", "approve", "RUN"]:
                for name in NAMES:
                    said = self.at(name, "node", "approve", self.pending(name)[0], "--yes")
                    assert "what a server may ask of a data holder" in said
                assert self.processes["run"].wait(900.0) == 0, self.log("run") + self.logs()
            case _:
                self.call(*words[1:])

    def at(self, name: str, *words: str) -> str:
        """A command on a holder's machine."""
        process = self.start(f"{name}-once", *words, cwd=self.holder(name))
        assert process.wait(60.0) == 0, self.log(f"{name}-once")
        said = self.log(f"{name}-once")
        (self.folder / f"{name}-once.log").unlink()
        del self.processes[f"{name}-once"]
        return said

    def pending(self, name: str) -> list[str]:
        return [entry["run"] for entry in json.loads(self.at(name, "node", "pending", "--json"))]


def test_the_page_on_deployments(tmp_path: Path, places: Namespaces) -> None:
    page = PAGE.read_text(encoding="utf-8")
    schema = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).splitlines()
    reader = Reader(tmp_path, places, schema)
    try:
        for line in lines:
            if line.startswith("fedsyn deploy remove"):
                check_table(reader, "released")
            reader.follow(line)
        assert reader.processes["link"].wait(10.0) == 0
    finally:
        reader.close()


def test_the_tutorials_consortium_for_real(tmp_path: Path, places: Namespaces) -> None:
    """Its tables, each written in another way, its schema, and the commands of its last section."""
    page = (ROOT / "docs" / "tutorials" / "consortium.md").read_text(encoding="utf-8")
    python, schema = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)[0] for kind in ("python", "yaml"))
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", page.partition("\n## For real")[2], re.M | re.S)).splitlines()
    reader = Reader(tmp_path, places, schema)
    try:
        for line in lines:
            reader.follow(line)
        ledger = reader.ledger("released")
        assert len(lines) == 6 and ledger["private"] and ledger["assumptions"]["noise"] == "distributed"
        rows = pd.read_csv(tmp_path / "released" / "synthetic.csv")
        assert list(rows) == ["age", "sex", "smoker", "systolic", "readmitted"] and len(rows) > 3000
    finally:
        reader.close()


def test_three_holders_in_nine_commands(tmp_path: Path, places: Namespaces) -> None:
    """What the page asks of people who keep the first keys: a holder types two commands, the operator three."""
    schema = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    reader = Reader(tmp_path, places, schema)
    try:
        for line in (
            f"fedsyn deploy init --holders north south lake --operator-host {HOST} --schema schema.yaml --out study",
            "fedsyn deploy link study",
            "fedsyn node serve node.yaml",
            "fedsyn deploy run study --out released",
            "fedsyn node pending",
            "fedsyn node approve RUN",
        ):
            reader.follow(line)
        typed = [line for line in reader.typed if "pending" not in line]  # approve shows it as well
        count = sum(len(NAMES) if line.startswith("fedsyn node") else 1 for line in typed)
        assert count == 9
        check_table(reader, "released")
    finally:
        reader.close()
