"""`fedsyn ledger show | verify | export`, and `fedsyn node seal`: what their owners and an ethics board type."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from fedsyn.errors import ConfigError, LedgerDamaged
from fedsyn.ledgers.limits import CHOICE, LifetimeLimits
from fedsyn.ledgers.node_ledger import NodeLedger, init_ledger
from fedsyn.ledgers.party_ledger import PartyLedger
from fedsyn.node.file import load_node_file
from fedsyn.node.memory import Memory, RunMemory
from fedsyn.privacy import EXPONENTIAL, PrivacyBudget, Release, zcdp_epsilon
from fedsyn.privacy.conversion import gaussian_epsilon
from support.lifetime_ledgers import ONE, PARTY, facts, noted_at_first, share, two_runs
from support.typed_commands import Fedsyn, entry_point

LIMITS = LifetimeLimits(None, None, PrivacyBudget(4.0, 1e-6))


@pytest.fixture
def fedsyn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    return entry_point(capsys, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of two runs: one answered all it charged, the other did not, and made a choice."""
    init_ledger(tmp_path / "ledger.jsonl")
    book = NodeLedger(tmp_path / "ledger.jsonl", LIMITS)
    first = book.account("a-first-run-with-a-long-name", facts(), "q1")
    first.charge(share(0.5))
    first.answered(1)
    book.end("a-first-run-with-a-long-name")
    second = book.account("second", facts("zcdp", mechanism="aim"), "q2")
    second.charge(Release("select", 3, EXPONENTIAL, epsilon=0.1, count=2))
    return book.path


@pytest.fixture
def node(path: Path) -> Path:
    """The node.yaml whose ledger it is."""
    state = path.parent / "state"
    state.mkdir()
    for name in (path.name, path.name + ".seen"):
        path.with_name(name).rename(state / name)
    text = (
        "name: north\nsuperlink: localhost:9092\ninsecure: true\nkey: node.key\ndata: rows.csv\nschema: schema.yaml\n"
        "policy: {lifetime: {epsilon: 4, delta: 1.0e-6}, per_period: {epsilon: 2, days: 30}}\n"
    )
    (path.parent / "node.yaml").write_text(text)
    return path.parent / "node.yaml"


@pytest.fixture
def party(tmp_path: Path) -> Path:
    two_runs(tmp_path / "party.jsonl")
    return tmp_path / "party.jsonl"


def epsilons() -> tuple[float, float]:
    """Of both runs together, and of the second by itself."""
    choice = 2 * 0.1**2 / 8
    together = gaussian_epsilon(math.sqrt(ONE.mu**2 / 2 + 2 * CHOICE * choice), 1e-6)
    return together, zcdp_epsilon(choice, 1e-6)


# show ----------------------------------------------------------------------------------------------------------------


def test_show_fits_into_80_columns(fedsyn: Fedsyn, path: Path) -> None:
    together, second = epsilons()
    shown = fedsyn("ledger", "show", path)
    lines = shown.out.splitlines()
    assert shown.code == 0 and all(len(line) <= 80 for line in lines[:3])
    assert lines[0].split() == ["run", "begun", "mechanism", "asked", "spent", "releases", "state"]
    assert lines[1].startswith("a-first-run-with-a-long-name ") and lines[1].split()[-2:] == ["1", "ended"]
    assert lines[2].split()[2:] == ["aim", "1", f"{second:.4g}", "0+1", "open"]
    assert "Unit: one row, added or removed, at one client." in lines
    assert lines[-1].startswith("spent: rho ") and lines[-1].endswith(f"epsilon {together:.4g} at delta 1e-06")


def test_show_of_a_node_knows_its_limits(fedsyn: Fedsyn, node: Path) -> None:
    together, _ = epsilons()
    shown = fedsyn("ledger", "show", node)
    assert f"limit for any 30 days: epsilon {together:.4g} of 2 at delta 1e-06 is spent; " in shown.out
    assert f"limit for life: epsilon {together:.4g} of 4 at delta 1e-06 is spent; " in shown.out


def test_show_of_one_run_lists_its_releases(fedsyn: Fedsyn, path: Path) -> None:
    shown = fedsyn("ledger", "show", path, "--run", "second").out.splitlines()
    assert len(shown) == 3 and all(len(line) <= 80 for line in shown[:2])
    assert shown[1].split()[2:] == ["select", "3", "exponential", "e", "0.1", "0.0025", "kept"]
    assert fedsyn("ledger", "show", path, "--run", "a-first").out.splitlines()[1].split()[2:5:2] == [
        "measure",
        "gaussian",
    ]
    wrong = fedsyn("ledger", "show", path, "--run", "zz")
    assert wrong.code == 2 and "no run begins with 'zz'" in wrong.err


def test_a_partys_ledger_is_shown_verified_and_exported_too(fedsyn: Fedsyn, party: Path) -> None:
    shown = fedsyn("ledger", "show", party)
    assert shown.code == 0 and "spent: rho 0.04" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines()[1:3]] == ["a", "b"]
    assert "one person with all rows" in json.loads(fedsyn("ledger", "export", party).out)["unit"]
    verified = fedsyn("ledger", "verify", party)
    assert verified.code == 0 and "6 lines, each follows the one before it" in verified.out
    found = list(csv.DictReader(io.StringIO(fedsyn("ledger", "export", party, "--format", "csv").out)))
    assert [(row["run"], row["request"], row["rho"]) for row in found] == [
        ("a", "one-way", "0.01"),
        ("b", "one-way", "0.01"),
        ("b", "select", "0.02"),
    ]
    party.write_bytes(party.read_bytes().replace(b"0.02", b"0.01"))
    damaged = fedsyn("ledger", "verify", party)
    assert damaged.code == 0, "a rewritten last line shows against a head alone"


def test_a_partys_run_is_shown_by_the_name_that_the_server_gave_it(fedsyn: Fedsyn, tmp_path: Path) -> None:
    budget = PrivacyBudget(4.0, 1e-6)
    book = PartyLedger(tmp_path / "party.jsonl", budget)
    book.begin("ab" * 32, 0.01, mechanism="aim", name="4f573fd48f")
    book.end("ab" * 32)
    book.close()
    shown = fedsyn("ledger", "show", tmp_path / "party.jsonl").out
    assert "4f573fd48f (abababababababab)" in shown and "mechanism" in shown
    assert fedsyn("ledger", "show", tmp_path / "party.jsonl", "--run", "4f57").code == 0


# verify --------------------------------------------------------------------------------------------------------------


def test_verify_tells_released_from_charged_only(fedsyn: Fedsyn, path: Path) -> None:
    verified = fedsyn("ledger", "verify", path)
    assert verified.code == 0
    assert "1 releases, 1 charged whose reply is not known to have left; 0 torn lines" in verified.out


def test_verify_names_the_line_of_every_change(fedsyn: Fedsyn, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    last = len(lines) - 1
    for changed, line in (
        ([lines[0], lines[1].replace(b'"epsilon": 1.0', b'"epsilon": 2.0'), *lines[2:]], 3),  # the next one tells
        ([*lines[:2], *lines[3:]], 3),
        ([*lines[:1], lines[2], lines[1], *lines[3:]], 2),
        ([*lines[:4], lines[3], *lines[4:]], 5),
        ([*lines[:last], lines[last][:30]], last + 1),
        (lines[:3], 4),  # the word that a reply may leave is missing, which its node has noted
        (lines[1:], 1),
    ):
        path.write_bytes(b"".join(changed))
        found = fedsyn("ledger", "verify", path)
        assert found.code == 1 and not found.out and len(found.err.splitlines()) == 1
        assert f"line {line}" in found.err or "entry" in found.err, (line, found.err)
    path.write_bytes(b"".join(lines[:last]))
    assert fedsyn("ledger", "verify", path).code == 0, "nothing had left with the charge that is missing"


def test_only_a_head_kept_elsewhere_shows_an_older_copy(fedsyn: Fedsyn, path: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.json"
    assert fedsyn("ledger", "export", path, "--head", "--out", head).code == 0
    NodeLedger(path, LIMITS)
    seen = path.with_name(path.name + ".seen")
    old, noted = path.read_bytes(), seen.read_bytes()
    book = NodeLedger(path, LIMITS)
    book.account("second", facts("zcdp", mechanism="aim"), "q3").charge(share(0.01))
    good = fedsyn("ledger", "verify", path, "--head", head)
    assert good.code == 0 and "goes on from the head" in good.out
    newer = tmp_path / "newer.json"
    fedsyn("ledger", "export", path, "--head", "--out", newer)
    path.write_bytes(old)
    seen.write_bytes(noted)
    assert fedsyn("ledger", "verify", path).code == 0
    found = fedsyn("ledger", "verify", path, "--head", newer)
    assert found.code == 1 and "is not the one that the head speaks of" in found.err
    facts_of_head = json.loads(head.read_text())
    newer.write_text(json.dumps(facts_of_head | {"sha256": "0" * 64}))
    assert fedsyn("ledger", "verify", path, "--head", newer).code == 1
    for text in ("", "[]", "{}", json.dumps(facts_of_head | {"format": 9})):
        newer.write_text(text)
        wrong = fedsyn("ledger", "verify", path, "--head", newer)
        assert wrong.code == 2 and "--head: " in wrong.err and "Traceback" not in wrong.err


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 2, "is empty: expected a ledger"),
        (b"a,b\n1,2\n", 2, "is not a ledger, nor a node's or a party's YAML file"),
        (b"\x89PNG\r\n\x1a\n", 2, "is not a ledger, nor a node's or a party's YAML file"),
        (b"[" * 100_000, 2, "is not a ledger, nor a node's or a party's YAML file"),
        (b'{"format": ' + b"[" * 100_000, 1, "damaged at line 1"),
        (b'{"format": 1, "name": "of another program"}\n', 1, "damaged at line 1"),
        (b'{"format": 1, "ti', 1, "damaged at line 1"),
        (None, 2, "does not exist"),
    ],
)
def test_what_is_no_ledger_is_said(fedsyn: Fedsyn, tmp_path: Path, content: bytes | None, code: int, said: str) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    found = fedsyn("ledger", "verify", path)
    assert found.code == code and said in found.err
    for command in ("show", "export"):
        assert fedsyn("ledger", command, path).code == 2


def test_a_strangers_yaml_file_and_a_folder_are_said(fedsyn: Fedsyn, tmp_path: Path) -> None:
    for text in ("mechanism: {name: aim}", "superlink: {hosts: [a]}", "a: 1"):
        (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
        found = fedsyn("ledger", "verify", tmp_path / "x.yaml")
        assert found.code == 2 and found.err.endswith("x.yaml is not a ledger, nor a node's or a party's YAML file\n")
    found = fedsyn("ledger", "verify", tmp_path)
    assert found.code == 2 and "is a folder: name a ledger, or its YAML file" in found.err


def test_verify_compares_the_ledger_with_what_runs_remember(fedsyn: Fedsyn, node: Path) -> None:
    """As the next start will: an older ledger that was put back with its note does not hold what a memory keeps."""
    state = node.parent / "state"
    old = {name: (state / name).read_bytes() for name in ("ledger.jsonl", "ledger.jsonl.seen")}
    file = load_node_file(node)
    book, memory = NodeLedger(file.ledger_file, file.policy.limits), Memory(state / "runs")
    account = book.account("third", facts("gaussian"), "q")
    memory.save("third", RunMemory(head=account.head))
    (state / "runs" / ".half.part-1").touch()
    assert fedsyn("ledger", "verify", node).code == 0
    for name, content in old.items():
        (state / name).write_bytes(content)
    assert fedsyn("ledger", "verify", file.ledger_file).code == 0
    told = fedsyn("ledger", "verify", node)
    assert told.code == 1 and "is older than what this node has seen" in told.err
    assert (state / "runs" / ".half.part-1").exists(), "what another process may be writing is left alone"


def test_a_node_whose_ledger_is_missing(fedsyn: Fedsyn, node: Path) -> None:
    (node.parent / "state" / "ledger.jsonl").unlink()
    found = fedsyn("ledger", "show", node)
    assert found.code == 2 and "there is no file" in found.err


# export --------------------------------------------------------------------------------------------------------------


def test_an_export_says_what_an_ethics_board_asks(fedsyn: Fedsyn, node: Path, tmp_path: Path) -> None:
    together, _ = epsilons()
    exported = json.loads(fedsyn("ledger", "export", node).out)
    assert exported["unit"] == "one row, added or removed, at one client"
    assert all(run["adjacency"].startswith("two federations are neighbours") for run in exported["runs"])
    assert exported["adds_up_as"] == "gaussian" and exported["epsilon"] == pytest.approx(together)
    assert [limit["epsilon"] for limit in exported["limits"]] == [2.0, 4.0]
    assert [run["run"] for run in exported["runs"]] == ["a-first-run-with-a-long-name", "second"]
    assert math.fsum(row["rho"] for row in exported["releases"]) == pytest.approx(exported["rho"])
    assert {row["state"] for row in exported["releases"]} == {"released", "charged only"}
    out = tmp_path / "releases.csv"
    assert fedsyn("ledger", "export", node, "--format", "csv", "--out", out).code == 0
    table = list(csv.DictReader(out.open()))
    assert [row["request"] for row in table] == ["measure", "select"] and table[1]["count"] == "2"
    assert float(table[0]["rho"]) == exported["releases"][0]["rho"]
    wrong = fedsyn("ledger", "export", node, "--out", tmp_path / "none" / "x.json")
    assert wrong.code == 2 and "cannot write" in wrong.err


def test_torn_lines_count_before_anybody_mends_them(fedsyn: Fedsyn, path: Path) -> None:
    spent = json.loads(fedsyn("ledger", "export", path).out)["rho"]
    raw = path.read_bytes()
    path.write_bytes(raw + raw.splitlines()[2][:-20])
    exported = json.loads(fedsyn("ledger", "export", path).out)
    assert exported["rho"] == pytest.approx(spent + share(0.5).rho)
    assert "the last line is torn: it counts as rho" in fedsyn("ledger", "show", path).out
    assert path.read_bytes().startswith(raw) and len(path.read_bytes().splitlines()) == len(raw.splitlines()) + 1
    NodeLedger(path, LIMITS)
    assert json.loads(fedsyn("ledger", "export", path).out)["rho"] == pytest.approx(exported["rho"])
    assert "1 torn lines" in fedsyn("ledger", "verify", path).out


def test_verify_says_of_a_cut_line_what_the_next_start_says(fedsyn: Fedsyn, path: Path) -> None:
    """A line that its node has noted was cut: that is no writer who was stopped, and no start takes it for one."""
    cut = path.read_bytes()
    book = NodeLedger(path, LIMITS)
    account = book.account("second", facts("zcdp", mechanism="aim"), "q2")
    account.answered(1)
    path.write_bytes(path.read_bytes()[:-30])
    told = fedsyn("ledger", "verify", path)
    assert told.code == 1 and "is older than what this node has seen" in told.err and "counts as" not in told.err
    torn = path.read_bytes()
    with pytest.raises(LedgerDamaged) as refused:
        NodeLedger(path, LIMITS)
    assert told.err.strip() == str(refused.value)
    assert path.read_bytes() == torn, "a start that refuses leaves the file as it is, for whoever looks into it"
    # The same cut of a line that nobody noted is a writer's who was stopped: both say so, and the start goes on.
    path.write_bytes(cut + torn[len(cut) :])
    noted_at_first(path)
    assert "which the next start writes down" in fedsyn("ledger", "verify", path).err
    assert NodeLedger(path, LIMITS).lines.entries[-1]["entry"] == "torn"


@pytest.mark.parametrize("mode", [0o777, 0o770])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_ledger_that_others_may_write_is_told_and_refused(
    fedsyn: Fedsyn, path: Path, party: Path, what: str, mode: int
) -> None:
    for ledger in (path, party):
        fine = fedsyn("ledger", "verify", ledger)
        touched = ledger.parent if what == "folder" else ledger
        touched.chmod(mode)
        told = fedsyn("ledger", "verify", ledger)
        with pytest.raises(
            ConfigError, match=f"{touched} can be written by others .*: chmod go-w {touched}$"
        ) as refused:
            NodeLedger(path, LIMITS) if ledger == path else PartyLedger(party, PARTY)
        assert (fine.code, told.code) == (0, 2) and str(refused.value) in told.err
        touched.chmod(0o700)
        assert fedsyn("ledger", "verify", ledger).code == 0
    path.parent.chmod(0o1777)  # as /tmp is: nobody replaces a file of another one's there
    assert fedsyn("ledger", "verify", path).code == 0


# seal ----------------------------------------------------------------------------------------------------------------


def test_seal(fedsyn: Fedsyn, tmp_path: Path) -> None:
    table, key = tmp_path / "rows.csv", tmp_path / "data.key"
    table.write_text("age\n7\n")
    done = fedsyn("node", "seal", table, "--key", key)
    assert done.code == 0 and f"made {key}" in done.out and f"wrote {table}.sealed" in done.out
    assert "is still there: remove it" in done.out and table.exists()
    again = fedsyn("node", "seal", table, "--key", key)
    assert again.code == 2 and "is there already" in again.err
    assert fedsyn("node", "seal", tmp_path / "none.csv", "--key", key).code == 2
