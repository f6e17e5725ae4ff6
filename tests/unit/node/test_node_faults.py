"""Kill -9, power cuts and full disks at every system call between a request and its reply.

The steps are the node's own (`answer` below, as `fedsyn.ledgers.node_ledger` says): account, memory, charges,
noise, memory kept, answered, reply. A child process does them with every `write`, `pwrite`, `fsync`, `replace`, `link`
and `unlink` counted, and dies at one of them: before it, after it, or (of a write) in the middle. In a power cut only
what was waited for is left: bytes by `fsync` of their file, names by `fsync` of their folder. Then the requests come
again.

The invariant, for every place: whatever noise was drawn had its charge on the disk; each request has one reply, however
often it leaves; and in the end the ledger holds what was released, to the last digit, once. (A torn charge counts in
addition: nobody can know from the file whether it was followed by noise.)
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import BudgetExceeded, ConfigError, RunError
from fedsyn.ledgers.chain import read_lines
from fedsyn.ledgers.limits import LifetimeLimits
from fedsyn.ledgers.node_ledger import NodeLedger, init_ledger
from fedsyn.ledgers.node_lines import LedgerRun, NodeLines
from fedsyn.node.answering import Answering
from fedsyn.node.file import load_node_file
from fedsyn.node.memory import Memory
from fedsyn.node.rest import seal_table
from fedsyn.node.tables import Encoding
from fedsyn.node.task import Task
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Ledger, PrivacyBudget, Release, accountant_for
from fedsyn.wire.envelope import ANSWER
from support.lifetime_ledgers import noted_at_first
from support.node_folders import header_of, make_node, run_of

BUDGET = PrivacyBudget(1.0, 1e-6)
FACTS = LedgerRun("c", "s", "aim", "zcdp", BUDGET)
REQUESTS = ("join", "one-way", "select", "measure")
CALLS = ("write", "pwrite", "fsync", "replace", "link", "unlink")
LOST, DIED = 3, 9


def releases_of(request: str) -> list[Release]:
    """What a request costs: nothing, one release, a choice, two releases."""
    sigma = 1 / math.sqrt(0.4 * BUDGET.rho)
    return {
        "join": [],
        "one-way": [Release("one-way", 0, GAUSSIAN, sigma=sigma, count=2 - 1)],
        "select": [Release("select", 1, EXPONENTIAL, epsilon=math.sqrt(BUDGET.rho))],
        "measure": [Release("measure", 1, GAUSSIAN, sigma=sigma), Release("measure", 2, GAUSSIAN, sigma=sigma)],
    }[request]


EXPECTED = math.fsum(release.rho for request in REQUESTS for release in releases_of(request))


def answer(folder: Path, request: str, drawn: Callable[[str], bytes]) -> bytes:
    """A node's way from a request to its reply, by a process that remembers nothing."""
    book = NodeLedger(folder / "ledger.jsonl", LifetimeLimits(BUDGET, None, BUDGET))
    account = book.account("run", FACTS, request)
    memories = Memory(folder / "runs")
    for head in memories.heads():
        book.require(head)
    memory = memories.load("run", account.memory)
    if memory.digest == request and memory.reply is not None and account.repeats(memory.attempt, memory.number):
        return memory.reply
    ledger = Ledger(BUDGET, accountant_for("zcdp", BUDGET), noise_by="client", record=account.charge)
    ledger.reenter(account.releases)
    for release in releases_of(request):
        ledger.charge(release)
    reply = drawn(request)
    memory.state = {"answered": [*memory.state.get("answered", []), request]}
    memory.digest, memory.reply, memory.attempt, memory.head = request, reply, account.attempt, account.head
    memories.save("run", memory)
    account.answered(memory.number)
    return reply


# A child that dies ---------------------------------------------------------------------------------------------------


class Disk:
    """Counts system calls and dies at one of them; knows what a power cut would leave."""

    def __init__(self, root: Path, at: int, when: str, cut: int = 0) -> None:
        self.root, self.at, self.when, self.cut, self.count = root, at, when, cut, 0
        self.lengths: list[int] = []  # bytes of each call that is a write, 0 for any other
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}
        self.bytes: dict[int, bytes] = {}
        self.names: dict[Path, dict[str, int]] = {}
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._wait_for_names(folder)
            for path in folder.iterdir():
                if path.is_file():
                    self.bytes[path.stat().st_ino] = path.read_bytes()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._interposed(name))

    def _interposed(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            mine, self.count = self.count == self.at, self.count + 1
            self.lengths.append(len(given[1]) if name == "write" else 0)
            if mine and self.when == "torn" and name == "write":
                self.real["write"](given[0], bytes(given[1])[: self.cut])
                self._die()
            if mine and self.when in ("before", "power before", "torn"):
                self._die()
            if name == "fsync":  # a killed process loses nothing; what a power cut leaves is noted instead
                self._waited(Path(f"/proc/self/fd/{given[0]}").readlink())
                result = None
            else:
                result = self.real[name](*given, **named)
            if mine:
                self._die()
            return result

        return call

    def _waited(self, path: Path) -> None:
        if path.is_dir():
            self._wait_for_names(path)
        else:
            self.bytes[path.stat().st_ino] = path.read_bytes()

    def _wait_for_names(self, folder: Path) -> None:
        self.names[folder] = {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}

    def _die(self) -> None:
        if self.when.startswith("power"):
            for folder, names in self.names.items():
                for path in list(folder.iterdir()):
                    if path.is_file():
                        self.real["unlink"](path)
                for name, inode in names.items():
                    (folder / name).write_bytes(self.bytes.get(inode, b""))
        os.kill(os.getpid(), signal.SIGKILL)


def in_child(folder: Path, work: Callable[[Callable[[bytes], None]], None], disk: Disk | None = None) -> list[str]:
    """What a child let out, line by line, before it ended or was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write = os.write  # not counted: what is told has happened

            def tell(line: bytes) -> None:
                write(writing, line + b"\n")

            if disk is not None:
                disk.install()
            work(tell)
            code = 0
        except AssertionError:
            code = LOST
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.waitstatus_to_exitcode(status) == 0, "noise was drawn whose charge was not on the disk"
    return told


def lines_of(folder: Path) -> NodeLines:
    return read_lines(folder / "ledger.jsonl", NodeLines())


def answering(folder: Path, disk: Disk | None, start: int) -> Callable[[Callable[[bytes], None]], None]:
    """Answers the requests from `start` on; says when noise is drawn and when a reply leaves."""

    def work(tell: Callable[[bytes], None]) -> None:
        def drawn(request: str) -> bytes:
            token = os.urandom(6).hex()
            raw = (folder / "ledger.jsonl").read_bytes()
            if disk is not None and disk.when.startswith("power"):
                raw = disk.bytes[(folder / "ledger.jsonl").stat().st_ino]
            on_disk = NodeLines()
            on_disk.read(raw, folder)
            charged = [charge.release for charge in on_disk.runs["run"].charges if charge.request == request]
            assert charged == releases_of(request)
            tell(f"drawn {request} {token}".encode())
            return token.encode()

        for request in REQUESTS[start:]:
            reply = answer(folder, request, drawn)
            tell(f"left {request} {reply.decode()}".encode())

    return work


def new_node(folder: Path) -> Path:
    folder.mkdir()
    (folder / "runs").mkdir()
    init_ledger(folder / "ledger.jsonl")
    return folder


def run_out(folder: Path, *deaths: tuple[int, str, int]) -> tuple[list[str], list[int]]:
    """All requests, through some deaths: what was told, and the last child's `Disk.lengths`."""
    told: list[str] = []
    for at, when, cut in (*deaths, (-1, "never", 0)):
        disk = Disk(folder, at, when, cut)
        left = {line.split()[1] for line in told if line.startswith("left")}
        # The server asks again for what it has no reply to. The last one that left may have been lost on the way.
        start = len(left) - (bool(told) and told[-1].startswith("left"))
        told += in_child(folder, _counting(folder, disk, answering(folder, disk, start)), disk)
    return told, json.loads((folder / "calls").read_text())


def _counting(folder: Path, disk: Disk, work: Callable[..., None]) -> Callable[[Callable[[bytes], None]], None]:
    def counted(tell: Callable[[bytes], None]) -> None:
        work(tell)
        (folder / "calls").write_text(json.dumps(disk.lengths))

    return counted


def check(folder: Path, told: list[str], torn: bool = False) -> None:
    replies: dict[str, set[str]] = {}
    for line in told:
        what, request, token = line.split()
        if what == "left":
            replies.setdefault(request, set()).add(token)
    assert list(replies) == list(REQUESTS)
    assert all(len(tokens) == 1 for tokens in replies.values()), "two replies to one request left"
    book = NodeLedger(folder / "ledger.jsonl", LifetimeLimits(BUDGET, None, BUDGET))
    run = book.runs["run"]
    assert [charge.release for charge in run.charges] == [r for request in REQUESTS for r in releases_of(request)]
    assert all(charge.answered for charge in run.charges)
    if torn:
        costs = [release.rho for request in REQUESTS for release in releases_of(request)]
        assert run.torn in (0.0, *costs) or run.closed
        assert EXPECTED <= book.spent <= BUDGET.rho * (1 + 1e-9)
    else:
        assert book.spent == EXPECTED == run.spent and run.torn == 0.0


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process need not wait for the disk; what its children wait for, `Disk` notes."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The bytes that each system call of all requests writes when nothing dies."""
    folder = new_node(tmp_path_factory.mktemp("node") / "n")
    told, found = run_out(folder)
    check(folder, told)
    return found


@pytest.fixture(scope="module")
def calls(lengths: list[int]) -> int:
    """System calls of all requests when nothing dies."""
    assert len(lengths) > 40
    return len(lengths)


@contextmanager
def _many(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    made = iter(range(10**9))
    yield lambda: new_node(tmp_path / str(next(made)))


_WHEN = ("before", "after", "power before", "power after")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("when", "calls_apart"), [("power before", 7), *(pytest.param(when, 1, marks=pytest.mark.slow) for when in _WHEN)]
)
def test_killed_at_every_call(tmp_path: Path, calls: int, when: str, calls_apart: int) -> None:
    died = 0
    places = range(0, calls + 1, calls_apart)
    with _many(tmp_path) as node:
        for at in places:
            folder = node()
            told, _ = run_out(folder, (at, when, 0))
            check(folder, told)
            died += lines_of(folder).spent == EXPECTED
    assert died == len(places)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "power after"])
def test_killed_twice_at_every_pair_of_calls(tmp_path: Path, calls: int, when: str) -> None:
    with _many(tmp_path) as node:
        for at in range(0, calls, 2):
            for again in range(0, calls, 3):
                folder = node()
                told, _ = run_out(folder, (at, when, 0), (again, when, 0))
                check(folder, told)


@pytest.mark.slow
def test_killed_in_the_middle_of_every_write(tmp_path: Path, lengths: list[int]) -> None:
    """A torn charge counts beside the one that is made instead, so the run may end short of its budget, never over."""
    with _many(tmp_path) as node:
        for at, length in enumerate(lengths):
            for cut in range(1, length, 7):
                folder = node()
                try:
                    told, _ = run_out(folder, (at, "torn", cut))
                except AssertionError:  # the child that lived was refused: its budget is spent on the torn line
                    book = NodeLedger(folder / "ledger.jsonl", LifetimeLimits(BUDGET, None, BUDGET))
                    assert book.runs["run"].torn > 0 and book.epsilon <= BUDGET.epsilon
                    continue
                check(folder, told, torn=True)


def test_a_torn_charge_that_leaves_no_room_refuses_the_run(tmp_path: Path, calls: int) -> None:
    """Also where nothing of it can be read: then the rest of the run counts, and the run does not go on."""
    folder = new_node(tmp_path / "n")
    told, _ = run_out(folder)
    check(folder, told)
    raw = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    first = next(i for i, line in enumerate(raw) if b'"charge"' in line)
    for tail, torn in ((b"\0" * 64, BUDGET.rho), (raw[first][:-30], releases_of("one-way")[0].rho)):
        (folder / "ledger.jsonl").write_bytes(b"".join(raw))
        noted_at_first(folder / "ledger.jsonl")
        (folder / "ledger.jsonl").write_bytes(b"".join(raw[:first]) + tail)
        book = NodeLedger(folder / "ledger.jsonl", LifetimeLimits(BUDGET, None, BUDGET))
        assert book.spent == pytest.approx(torn, rel=1e-12)
        account = book.account("run", FACTS, "one-way")
        if tail.startswith(b"\0"):
            with pytest.raises(BudgetExceeded):
                account.charge(releases_of("select")[0])


# Disks that refuse ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("code", [28, 30])
def test_a_disk_that_refuses_lets_nothing_out(
    tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """ENOSPC and EROFS, once at every call: the request fails or is answered, and the next attempt pays nothing."""
    for at in range(calls):
        folder, left, count = new_node(tmp_path / str(at)), [], 0
        real = {name: getattr(os, name) for name in CALLS}

        def interposed(name: str, real: Any = real, at: int = at) -> Callable[..., Any]:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count - 1 == at:
                    raise OSError(code, os.strerror(code))
                return real[name](*given, **named)

            return call

        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, interposed(name))
            for request in REQUESTS:
                for _ in range(3):
                    try:
                        answer(folder, request, lambda _: os.urandom(6).hex().encode())
                    except (RunError, ConfigError):
                        continue
                    left.append(request)
                    break
        assert left == list(REQUESTS)
        book = NodeLedger(folder / "ledger.jsonl", LifetimeLimits(BUDGET, None, BUDGET))
        assert book.spent == EXPECTED and not book.runs["run"].torn


def test_a_read_only_folder_lets_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_node(tmp_path / "n")
    real = os.open

    def read_only(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, os.strerror(30))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ConfigError, match=r"cannot open .*Read-only file system"):
        answer(folder, "one-way", lambda _: pytest.fail("noise was drawn"))


# The node's own answers ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "power before"])
def test_a_nodes_own_answer_killed_at_every_call(tmp_path: Path, when: str) -> None:
    """`Answering` itself, with policy, audit log, sealed memory and a real table: two requests, one charged release."""
    node = make_node(tmp_path / "node")
    seal_table(node.parent / "rows.csv", node.parent / "data.key")
    (node.parent / "rows.csv").unlink()
    text = node.read_text().replace("data: rows.csv\n", "data: rows.csv.sealed\ndata_key: data.key\n")
    node.write_text(text)
    file, config = load_node_file(node), run_of()
    answering, asked = Answering(file), [("join", {}), ("sizes", {"sigma": 40.0})]
    answering.tables.get(Encoding())  # as the worker that is forked has read it

    def ask(name: str, tell: Callable[[bytes], None]) -> None:
        for number, (request, params) in enumerate(asked):
            header = header_of(config, request, sequence=number, run=name, **params)
            task = Task(7, header["run_config"], header["fab_hash"], header["scalars"], [])
            tell(answering.answer(task).scalars[ANSWER].encode())

    at, expected = 0, Release("sizes", 0, GAUSSIAN, 1.0, sigma=40.0).rho
    while True:
        name, before = f"run-{at}", answering.book.spent
        disk = Disk(file.state_folder, at, when)
        told = in_child(file.state_folder, lambda tell, name=name: ask(name, tell), disk)
        if when.startswith("power"):
            answering = Answering(file, answering.tables)  # the machine starts again
        told += in_child(file.state_folder, lambda tell, name=name: ask(name, tell))
        replies = [line for line in told if "rows" in line and '"rows":null' not in line.replace(" ", "")]
        assert replies and len(set(replies)) == 1 and all('"ok":true' in line.replace(" ", "") for line in told)
        answering.book.refresh()
        run = answering.book.runs[name]
        assert run.spent == expected == pytest.approx(answering.book.spent - before)
        assert [charge.answered for charge in run.charges] == [True]
        if len(told) == 4:
            break
        answering.book.end(name)
        at += 1
    assert at > 20
