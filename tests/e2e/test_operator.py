"""An operator's whole script in namespaces: from the folder to tables, a late joiner, refusals, what goes wrong.

Every command is typed as docs/deployment.md has it, each by its own person on its own machine. Faults that other slow
tests show (test_bad_minutes, test_deploy_faults, test_deployed_resume, test_node_federation) are left to them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_deploy_docs import HOST, NAMES, PAGE, Reader
from test_deploy_faults import SKEW

from support.deployed import check_table, deployed, facts, online, table
from support.namespaces import Namespaces, namespaces_or_skip

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
INIT = f"fedsyn deploy init --holders north south lake --operator-host {HOST} --schema schema.yaml --out study"


@pytest.fixture
def places() -> Iterator[Namespaces]:
    with namespaces_or_skip(2 + len(NAMES)) as made:
        yield made


class Consortium(Reader):
    """Three holders and an operator, then four."""

    def said(self) -> list[str]:
        """Names of the runs that were ordered, as the operator's commands said them."""
        return re.findall(r"^run ([0-9a-f]{10}):", self.log("run"), re.MULTILINE)

    def asked_about(self, line: str) -> str:
        """Orders a run, or an evaluation, until the operator reads that everybody's yes is missing. Its name."""
        before, count = len(self.said()), len(self.names)
        self.follow(line)
        self.wait_for(lambda: len(self.said()) > before, 600.0)
        run = self.said()[-1]
        waits = f"run {run} waits for {count} of {count} holders to answer 'join'"
        self.wait_for(lambda: waits in self.log("run"), 600.0)
        return run

    def ordered(self, line: str) -> str:
        """Takes a run to its end, which every holder approves. Returns its name."""
        run = self.asked_about(line)
        for name in self.names:
            assert self.pending(name) == [run]
            said = self.at(name, "node", "approve", run[:4], "--yes")
            assert "what a server may ask of a data holder" in said and "spent" in said
        assert self.processes.pop("run").wait(900.0) == 0, self.log("run") + self.logs()
        return run

    def all_charged(self) -> dict[str, int]:
        return {name: len(self.charged(name)) for name in self.names}


def test_from_the_folder_to_tables_and_to_its_end(tmp_path: Path, places: Namespaces) -> None:
    schema = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    people = Consortium(tmp_path, places, schema)
    try:
        people.follow(f"{INIT} --runs 1 --rounds 3")
        for name in NAMES:
            people.at(name, "schema", "check", "schema.yaml", "--data", "rows.csv")
        people.follow("fedsyn deploy link study")
        people.follow("fedsyn node serve node.yaml")
        own_keys(people)
        run = people.ordered("fedsyn deploy run study --out released")
        check_table(people, "released")
        assert people.ledger("released")["run"] == run
        people.check_ledgers("released")
        beyond_its_lifetime(people)
        west_joins(people)
        people.ordered("fedsyn deploy run study --out four")
        assert people.rounds("four")[0]["cohort"] == [0, 1, 2, 3] and people.ledger("four")["private"]
        assert sorted(people.charged("west")) == sorted(facts(each) for each in people.ledger("four")["releases"])
        stopped(people)
        who_goes(people)
        people.names = NAMES
        people.check_ledgers("released", "four")
    finally:
        people.close()


def own_keys(people: Consortium) -> None:
    """Nobody who has seen the folder can pass for a holder any more."""
    before = {name: (people.holder(name) / "node.key").read_bytes() for name in NAMES}
    for name in NAMES:
        people.new_keys(name)
        line = people.call(
            "deploy", "rotate-keys", name, "--card", f"{name}.card.yaml", "--folder", "study", "--yes"
        ).stdout.splitlines()[-1]
        for other in NAMES:
            if other != name:
                people.told(other, line)
    people.restart()
    people.wait_for(lambda: online(people) == set(NAMES), 180.0)
    assert all((people.holder(name) / "node.key").read_bytes() != before[name] for name in NAMES)


def beyond_its_lifetime(people: Consortium) -> None:
    """The second run does not fit: it is refused by the ledgers, with the numbers, and nobody is asked."""
    before, asked = people.all_charged(), {name: len(people.audit(name)) for name in NAMES}
    refused = people.run("second", code=1, timeout=300)
    sentence = (
        r"budget: the holder's limit for life is epsilon = 1 at delta = 1e-06; spent: epsilon = [01]\.?\d*; "
        r"this run asks for epsilon = 1 at delta = 1e-06"
    )
    for name in NAMES:
        assert re.search(rf"{name} \({sentence}", refused.stderr), refused.stderr
        assert people.pending(name) == [] and len(people.audit(name)) > asked[name]
    assert "nothing was released" in refused.stderr and people.all_charged() == before


def west_joins(people: Consortium) -> None:
    """A fourth holder, with keys that nobody else has seen; the first three agree on room for two more runs."""
    people.names = (*NAMES, "west")
    people.holder("west").mkdir()
    people.new_keys("west", "--name", "west")
    said = people.call(
        "deploy", "add", "west", "--card", "west.card.yaml", "--runs", "3", "--folder", "study", "--yes"
    ).stdout
    assert "the SuperLink knows" in said and "to north, south, lake" in said
    people.received("west")
    table(350, 7).to_csv(people.holder("west") / "rows.csv", index=False)
    for name in NAMES:
        people.told(name, said.splitlines()[-1])
        people.edit(name, r"lifetime: \{epsilon: 1(\.0)?,", "lifetime: {epsilon: 3,")
    people.restart()
    people.serve("west")
    people.wait_for(lambda: online(people) == set(people.names), 180.0)


def stopped(people: Consortium) -> None:
    """A run that the operator stops while people think about it costs nobody anything."""
    before = people.all_charged()
    run = people.asked_about("fedsyn deploy run study --out given-up")
    assert f"run {run} is stopped" in people.call("deploy", "stop", "study", "--run", run[:4]).stdout
    assert people.processes.pop("run").wait(120.0) == 1
    assert "the run was stopped" in people.log("run")
    assert people.all_charged() == before
    for name in people.names:
        assert "rejected: 1" in people.at(name, "node", "reject", "--all", "--yes")


def who_goes(people: Consortium) -> None:
    """A new certificate, a holder that leaves, the end. A wrong name is one sentence, and changes nothing."""
    for words in (("remove", "nobody", "--folder", "study"), ("stop", "study", "--run", "nobody")):
        said = people.call("deploy", *words, code=2).stderr
        assert "nobody" in said and "Traceback" not in said
    people.call("deploy", "rotate-keys", "--link", "--folder", "study")
    people.follow("fedsyn deploy stop study")
    assert people.processes.pop("link").wait(120.0) == 0
    people.link()
    people.wait_for(lambda: online(people) == set(people.names), 180.0)
    assert "run.yaml asks for 3 holders now" in people.call("deploy", "remove", "south", "--folder", "study").stdout
    people.wait_for(lambda: online(people) == {"north", "lake", "west"}, 180.0)
    assert "removed already" in people.call("deploy", "remove", "south", "--folder", "study", code=2).stderr
    people.follow("fedsyn deploy stop study")
    assert people.processes["link"].wait(120.0) == 0


def test_two_operators_a_copied_node_a_cut_cable_and_a_clock(
    tmp_path: Path, places: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs at once, while a copy of lake's folder runs on another machine and north has no network for 30 s."""
    options = ("--approval", "always", "--rounds", "3", "--runs", "2")
    with deployed(tmp_path, NAMES, places, options) as federation:
        federation.wait_online()
        shutil.copytree(federation.holder("lake"), federation.holder("copy"))
        federation.names = (*NAMES, "copy")  # which has a machine of its own
        federation.serve("copy")
        federation.wait_for(lambda: "another node with the same key is running" in federation.log("copy"), 180.0)

        orders = [federation.start(out, "deploy", "run", "study", "--out", out) for out in ("one", "two")]
        federation.wait_for(lambda: all("run " in federation.log(out) for out in ("one", "two")), 600.0)
        third = federation.run("one", code=2)
        assert len(third.stderr.strip().splitlines()) == 1 and "has not finished" in third.stderr, third.stderr
        federation.wait_for(lambda: federation.rounds("one") != [], 300.0)
        places.cut(1)
        time.sleep(30.0)
        places.cut(1, "up")
        said = {out: order.wait(900.0) for out, order in zip(("one", "two"), orders, strict=True)}
        assert said == {"one": 0, "two": 0}, federation.log("one") + federation.log("two") + federation.logs()
        assert federation.audit("copy") == []  # it never got in
        federation.end("copy")
        federation.names = NAMES
        for out in ("one", "two"):
            check_table(federation, out)
        federation.check_ledgers("one", "two")

        if shutil.which("gcc") is None:
            return  # a clock that is off needs a C compiler here
        (tmp_path / "skew.c").write_text(SKEW, encoding="utf-8")
        library = tmp_path / "skew.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "skew.c"), "-ldl"], check=True)
        federation.end("lake")
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("SKEW", "15")
        federation.serve("lake")
        monkeypatch.undo()
        federation.wait_for(lambda: re.search(r"this node is 1\d s early", federation.log("lake")) is not None, 60.0)
        assert "not registered there any more" not in federation.log("lake")
        federation.end("lake")
        federation.serve("lake")
        federation.wait_for(lambda: online(federation) == set(NAMES), 120.0)
