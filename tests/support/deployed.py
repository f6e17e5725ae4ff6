"""A federation as its people set it up: `fedsyn deploy init`, `deploy link`, a `fedsyn node serve` for each holder.

TLS and authentication are on. Each party runs in a network namespace of its own where there are any, else on loopback.
`close` ends every process, whatever happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from support.loopback import ROOT, environment, free_port, stop
from support.namespaces import Namespaces

SCHEMA = """\
columns:
  age: {kind: integer, lower: 18, upper: 89, bins: 6}
  ward: {kind: categorical, categories: [heart, lung, skin], other: false}
  smoker: {kind: boolean, texts: ["no", "yes"]}
  readmitted: {kind: boolean, texts: ["no", "yes"]}
label: readmitted
"""


def table(rows: int, seed: int) -> pd.DataFrame:
    """A made-up holder's table."""
    rng = np.random.default_rng(seed)
    smoker = rng.random(rows) < 0.3
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "ward": rng.choice(["heart", "lung", "skin"], rows),
            "smoker": np.where(smoker, "yes", "no"),
            "readmitted": np.where(rng.random(rows) < 0.2 + 0.3 * smoker, "yes", "no"),
        }
    )


def namespaces_or_none(count: int) -> Namespaces | None:
    """So many network namespaces; None where this machine or user has none."""
    try:
        return Namespaces(count)
    except OSError:
        return None


class Deployed:
    """A federation in a folder.

    Args:
        folder: empty, of this test.
        names: of the data holders.
        places: network namespaces, one for the operator and one for each holder; None: all on loopback.
        options: further ones of `deploy init`.
        tree: the checkout that runs.
        rows: of each holder's table.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        places: Namespaces | None = None,
        options: Sequence[str] = ("--approval", "always"),
        *,
        tree: Path = ROOT,
        rows: int = 400,
    ) -> None:
        self.folder, self.names, self.places, self.tree = folder, tuple(names), places, tree
        self.root, self.port = folder / "study", free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "agreed.yaml").write_text(SCHEMA, encoding="utf-8")
        self.host = places.hosts[0] if places else "127.0.0.1"
        command = ["deploy", "init", "--holders", *self.names, "--operator-host", self.host, "--port", str(self.port)]
        command += ["--schema", "agreed.yaml", "--out", "study", *options]
        self.said = self.call(*command).stdout
        for seed, name in enumerate(self.names):
            table(rows + 50 * seed, seed).to_csv(self.holder(name) / "rows.csv", index=False)

    # Files -----------------------------------------------------------------------------------------------------------

    @property
    def operator(self) -> Path:
        return self.root / "operator"

    def holder(self, name: str) -> Path:
        return self.root / "holders" / name

    def edit(self, name: str, pattern: str, text: str) -> None:
        """Changes a holder's node.yaml, as its holder does: the pattern must be there."""
        file = self.holder(name) / "node.yaml"
        changed, count = re.subn(pattern, text, file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert count == 1, (pattern, file.read_text(encoding="utf-8"))
        file.write_text(changed, encoding="utf-8")

    # Processes -------------------------------------------------------------------------------------------------------

    def call(self, *words: str, timeout: float = 900, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """A command of fedsyn, on the operator's machine; its exit code must be `code`, if one is named."""
        done = subprocess.run(
            [*self._prefix("link"), sys.executable, "-m", "fedsyn.front.cli", *words],
            env=self._environment("operator"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert code is None or done.returncode == code, done.stderr + done.stdout + self.logs()
        return done

    def start(
        self, name: str, *words: str, cwd: Path | None = None, tree: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A command of fedsyn that goes on; its output is in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self._prefix(name), sys.executable, "-m", "fedsyn.front.cli", *words],
                env=self._environment(name, tree),
                cwd=cwd or self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def link(self) -> None:
        """Starts the operator's `deploy link`."""
        self.start("link", "deploy", "link", "study")
        self.wait_for((self.operator / "state" / "link.json").exists)

    def serve(self, *names: str, tree: Path | None = None) -> None:
        """Starts holders' nodes; all of them if none is named."""
        for name in names or self.names:
            self.start(name, "node", "serve", "node.yaml", cwd=self.holder(name), tree=tree)

    def run(
        self, out: str = "out", *words: str, timeout: float = 900, code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """`deploy run`, to its end."""
        return self.call("deploy", "run", "study", "--out", out, *words, timeout=timeout, code=code)

    def kill(self, name: str) -> None:
        """Ends all processes of a party by SIGKILL: of its group, and those that left it."""
        process = self.processes.pop(name)
        for child in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait(10.0)

    def end(self, name: str) -> None:
        """Ends a party politely."""
        stop(self.processes.pop(name))

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for name, process in list(self.processes.items()):
            children = descendants(process.pid)
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                self.kill(name)
            for child in children:  # what a party started and did not end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    # What was released -----------------------------------------------------------------------------------------------

    def asked(self, name: str) -> list[str]:
        """Digests of the requests that a holder's node was asked, in order, by its audit log."""
        return [
            entry["digest"]
            for entry in self.audit(name)
            if entry.get("event") == "asked" and entry["request"] != "join"
        ]

    def audit(self, name: str) -> list[dict[str, Any]]:
        return lines_of(self.holder(name) / "state" / "audit.jsonl")

    def charged(self, name: str) -> list[tuple[Any, ...]]:
        """What stands in a holder's ledger for life, one entry a release."""
        entries = lines_of(self.holder(name) / "state" / "ledger.jsonl")
        return [facts(entry["release"]) for entry in entries if entry["entry"] == "charge"]

    def check_ledgers(self, *outs: str) -> None:
        """Each node's ledger equals what it released, to the last digit: each of the server's releases that it had a
        part in stands there once; whatever else stands there was charged for a reply that the server had to drop."""
        announced = {out: [facts(release) for release in self.ledger(out)["releases"]] for out in outs}
        dropped = {out: {line["round"]: line["dropped"] for line in self.rounds(out)} for out in outs}
        partition = {name: number for number, name in enumerate(self.names)}
        for name in self.names:
            charged = sorted(self.charged(name))
            with_it = [
                release
                for out in outs
                for release in announced[out]
                if str(partition[name]) not in dropped[out].get(release[1], {})
            ]
            lost = [
                release
                for out in outs
                for release in announced[out]
                if str(partition[name]) in dropped[out].get(release[1], {})
            ]
            without = list(charged)
            for release in with_it:
                assert release in without, (name, release, charged)
                without.remove(release)
            assert all(release in lost for release in without), (name, without)
            assert len(set(without)) == len(without), (name, without)

    # What it says ----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("deploy", "status", "study", "--json", code=None).stdout)
        return found

    def wait_online(self, *names: str, patience: float = 180.0) -> None:
        """Until the link has said that these holders are online; all of them if none is named."""
        wanted = names or self.names
        self.wait_for(lambda: all(self.last_said(name) == "online" for name in wanted), patience)

    def last_said(self, name: str) -> str | None:
        """What the link said last of a node: online, offline."""
        found = re.findall(rf" {name} is (\w+)$", self.log("link"), re.MULTILINE)
        return found[-1] if found else None

    def wait_for(self, happened: Callable[[], bool], patience: float = 60.0) -> None:
        deadline = time.monotonic() + patience
        while not happened():
            assert time.monotonic() < deadline, f"not within {patience:g} s:\n{self.logs()}"
            time.sleep(0.1)

    def rounds(self, out: str = "out") -> list[dict[str, Any]]:
        return lines_of(self.folder / out / "rounds.jsonl")

    def ledger(self, out: str = "out") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / out / "ledger.json").read_text(encoding="utf-8"))
        return found

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def logs(self) -> str:
        tails = [f"--- {name}\n{self.log(name)[-1500:]}" for name in ("link", *self.names)]
        superlink = self.operator / "state" / "superlink.log"
        tails += [f"--- superlink\n{superlink.read_text(encoding='utf-8')[-1500:]}"] if superlink.exists() else []
        return "\n".join(tails)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _prefix(self, name: str) -> list[str]:
        if self.places is None:
            return []
        name = name.removesuffix("-once")  # a command beside a holder's node
        return self.places.prefix(1 + self.names.index(name) if name in self.names else 0)

    def _environment(self, name: str, tree: Path | None = None) -> dict[str, str]:
        variables = environment(self.folder / f"{name}-home") | {"PYTHONPATH": str(tree or self.tree), "COLUMNS": "100"}
        del variables["FLWR_HOME"]  # an administrator has none
        return variables | {"HOME": str(self.folder / f"{name}-home")}


def facts(release: dict[str, Any]) -> tuple[Any, ...]:
    """A release as both ledgers write it down; numbers to the last digit."""
    return tuple(release.get(key) for key in ("name", "round", "sensitivity", "sigma", "count", "rho", "mechanism"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; none if it is not there."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        children = parents.get(open_.pop(), [])
        found += children
        open_ += children
    return found


@contextlib.contextmanager
def deployed(folder: Path, names: Sequence[str], *given: Any, **named: Any) -> Iterator[Deployed]:
    """A federation whose link and nodes run; afterwards nothing of it does."""
    made = Deployed(folder, names, *given, **named)
    try:
        made.link()
        made.serve()
        yield made
    finally:
        made.close()


def check_table(federation: Deployed, out: str = "out") -> None:
    rows = pd.read_csv(federation.folder / out / "synthetic.csv")
    assert list(rows.columns) == ["age", "ward", "smoker", "readmitted"] and len(rows) > 500
    ledger = federation.ledger(out)
    assert ledger["private"] is True and 0 < ledger["epsilon"] <= 1.0
    assumed = ledger["assumptions"]
    assert (assumed["aggregation"], assumed["noise"], assumed["seeded"]) == ("secagg", "distributed", False)
    joined, *rounds = federation.rounds(out)
    assert joined["cohort"] == list(range(len(federation.names))) and joined["not_joined"] == []
    assert all(line["dropped"] == {} for line in rounds)


def online(federation: Deployed) -> set[str]:
    return {holder["name"] for holder in federation.status()["holders"] if holder["status"] == "online"}
