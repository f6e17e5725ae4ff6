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

from support.deployed import Deployed, check_table, table
from support.loopback import ROOT
from support.namespaces import Namespaces, namespaces_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
PAGE, HOST = ROOT / "docs" / "deployment.md", "superlink.example.org"
NAMES = ("north", "south", "lake")


@pytest.fixture
def places() -> Iterator[Namespaces]:
    with namespaces_or_skip(4) as made:
        yield made


class Reader(Deployed):
    """People who do what the page says; what the operator hands out is sent to its holder, and deleted there."""

    def __init__(self, folder: Path, places: Namespaces, schema: str) -> None:
        self.folder, self.names, self.places, self.tree = folder, NAMES, places, ROOT
        self.root, self.port, self.host = folder / "study", 8000, places.hosts[0]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.typed: list[str] = []
        (folder / "schema.yaml").write_text(schema, encoding="utf-8")

    def holder(self, name: str) -> Path:
        return self.folder / "machines" / name

    def received(self, name: str) -> None:
        """A holder puts the folder that it gets beside its own files, if it has any; the operator deletes it."""
        handed = super().holder(name)
        shutil.copytree(handed, self.holder(name), dirs_exist_ok=True)
        shutil.rmtree(handed)

    def follow(self, line: str) -> None:
        words = shlex.split(line.replace(HOST, self.host))
        assert words[0] == "fedsyn"
        self.typed.append(line)
        match words[1:]:
            case ["deploy", "init", *_]:
                self.call(*words[1:])
                for seed, name in enumerate(self.names):
                    self.received(name)
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
                self.new_keys("north")
            case ["deploy", "rotate-keys", name, *_]:
                line = self.call(*words[1:], "--yes").stdout.splitlines()[-1]
                for other in self.names:
                    if other != name:
                        self.told(other, line)
                self.restart()
            case ["deploy", "run", *_] | ["evaluate", *_]:
                self.start("run", *words[1:])
            case ["node", "pending"]:
                for name in self.names:
                    self.wait_for(lambda name=name: self.pending(name) != [], 240.0)  # type: ignore[misc]
            case ["node", "approve", "RUN"]:
                for name in self.names:
                    said = self.at(name, "node", "approve", self.pending(name)[0], "--yes")
                    assert "what a server may ask of a data holder" in said
                assert self.processes["run"].wait(900.0) == 0, self.log("run") + self.logs()
            case _:
                self.call(*words[1:])

    def new_keys(self, name: str, *words: str) -> None:
        """A holder makes its own keys, and sends the operator the card."""
        self.at(name, "node", "new-keys", *(words or ("node.yaml",)))
        shutil.copy(self.holder(name) / f"{name}.card.yaml", self.folder)

    def told(self, name: str, line: str) -> None:
        """A holder is told a line of its roster by telephone: a new holder's, or a new one of another."""
        roster, number = self.holder(name) / "roster.yaml", line.partition(":")[0]
        kept = [each for each in roster.read_text("utf-8").splitlines() if each.partition(":")[0] != number]
        roster.write_text("\n".join([*kept, line]) + "\n", encoding="utf-8")

    def restart(self) -> None:
        """Every holder whose node runs starts it again."""
        names = [name for name in self.names if name in self.processes]
        for name in names:
            self.end(name)
        self.serve(*names)

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
