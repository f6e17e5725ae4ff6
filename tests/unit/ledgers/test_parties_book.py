"""A party's ledger for life: on disk before noise, whatever happens to the process, and never quietly changed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import BudgetExceeded, ConfigError, RunError
from fedsyn.ledgers.party_ledger import PartyLedger, called, read_party_lines
from fedsyn.privacy import Ledger, PrivacyBudget, zcdp_epsilon
from fedsyn.runs.deployment import named
from support.lifetime_ledgers import PARTY, two_runs
from support.parties_bench import Bench, mpc_config, three_hosts


def book_at(path: Path, budget: PrivacyBudget = PARTY) -> PartyLedger:
    return PartyLedger(path, budget)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# Lines ---------------------------------------------------------------------------------------------------------------


def test_lines_are_appended_and_totals_run_over_all_runs(path: Path) -> None:
    two_runs(path)
    reading = read_party_lines(path)
    assert reading.runs == {"a": [0.05, 0.01], "b": [0.04, pytest.approx(0.03)]} and reading.open == "b"
    assert reading.spent == pytest.approx(0.04) and not reading.torn
    before = path.read_bytes()
    book = book_at(path)
    assert book.spent == pytest.approx(0.04) and book.epsilon == zcdp_epsilon(book.spent, 1e-5)
    book.begin("c", 0.01)
    assert path.read_bytes().startswith(before)
    assert [json.loads(line)["entry"] for line in path.read_bytes().splitlines()][-2:] == ["end", "begin"]


def test_a_run_is_called_by_its_own_name_with_the_parties_id_behind(tmp_path: Path) -> None:
    """Its name is what operator and holders say; which run it was follows from the id alone."""
    hosts = three_hosts(tmp_path)
    config = named(mpc_config(), "3f9c2a1b7d")
    run = Bench(hosts=hosts, config=config).run
    for host in hosts:
        assert host.book is not None
        reading = read_party_lines(host.book.path)
        assert {key: line["name"] for key, line in reading.begun.items()} == {run.hex(): "3f9c2a1b7d"}
        assert reading.open == run.hex()
    assert (
        called(run.hex(), "3f9c2a1b7d") == f"3f9c2a1b7d ({run.hex()[:16]})" and called(run.hex(), "") == run.hex()[:16]
    )


def test_a_line_is_on_the_disk_before_the_call_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, synced = book_at(path), []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(path.read_bytes()), real(file)))
    for step in (lambda: book.begin("a", 0.1), lambda: book.charge("a", 0.1), lambda: book.end("a")):
        before = len(synced)
        step()
        assert len(synced) == before + 1 and synced[-1] == path.read_bytes()


def test_a_run_charges_its_book_before_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk when a party draws: already the line of that very order, at that very party."""
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    found: list[float] = []
    for name in ("distributed", "selection_share"):
        real = getattr(Ledger, name)

        def drawing(self: Ledger, *given: Any, real: Any = real, **named: Any) -> Any:
            index = next(p.index for p in bench.parties.halves if p._begun.ledger is self)
            found.append(read_party_lines(hosts[index].book.path).spent - self.spent_rho)
            return real(self, *given, **named)

        monkeypatch.setattr(Ledger, name, drawing)
    bench.parties.choose(choice := bench.choice())
    bench.parties.open(opening := bench.opening())
    costs = [choice.epsilon**2 / 8] * 3 + [2 / (2 * opening.sigma**2)] * 3
    assert found == [pytest.approx(cost) for cost in costs]


def test_a_charge_beyond_the_total_leaves_no_line(path: Path) -> None:
    book = book_at(path)
    book.begin("a", PARTY.rho)
    book.charge("a", 0.9 * PARTY.rho)
    before = path.read_bytes()
    for step in (book.charge, book.begin):
        with pytest.raises(BudgetExceeded, match="over all runs this party may release epsilon = 3"):
            step("b" if step == book.begin else "a", 0.2 * PARTY.rho)
    assert path.read_bytes() == before
    book.charge("a", PARTY.rho - book.spent)  # the rest fits exactly


def test_the_total_holds_over_a_restart(path: Path) -> None:
    book = book_at(path)
    book.begin("a", PARTY.rho)
    book.charge("a", 0.7 * PARTY.rho)
    book.close()
    again = book_at(path)
    with pytest.raises(BudgetExceeded):
        again.begin("b", 0.4 * PARTY.rho)
    again.begin("b", 0.3 * PARTY.rho)


def test_two_processes_cannot_have_one_ledger(path: Path) -> None:
    book = book_at(path)
    with pytest.raises(ConfigError, match=r"another process has .* open: a party runs once"):
        book_at(path)
    assert read_party_lines(path).entries == []  # looking is allowed
    book.close()
    book_at(path).close()


def test_a_ledger_that_cannot_be_written_takes_nothing_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = book_at(path)
    book.begin("a", 0.1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="cannot be written"):
            book.charge("a", 0.01)
    with pytest.raises(RunError, match="closed"):
        book.charge("a", 0.01)
    assert book_at(path).spent == 0.0, "nothing was released, and the line was taken back"


def test_a_run_ends_where_a_partys_ledger_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = three_hosts(tmp_path)
    bench = Bench(hosts=hosts)
    bench.deal()
    real, broken = os.fsync, hosts[2].book._file

    def failing(file: int) -> None:
        if file == broken:
            raise OSError(5, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(RunError, match="party 2: the ledger of this party cannot be written"):
        bench.parties.open(bench.opening())
    assert bench.parties.halves[2]._begun is None


# Torn lines ----------------------------------------------------------------------------------------------------------


def test_a_line_torn_anywhere_counts_as_the_rest_of_its_run(path: Path) -> None:
    """The last line, cut at every byte: nothing, or all that run b had left of what it announced; never less."""
    two_runs(path)
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(start, len(whole) + 1):
        path.write_bytes(whole[:cut])
        book = book_at(path)
        if cut == start:
            assert book.spent == pytest.approx(0.02)  # no byte of the line was written, so no noise was drawn
        elif cut >= len(whole) - 1:
            assert book.spent == pytest.approx(0.04)  # only the end of the line is missing
        else:
            assert book.spent == pytest.approx(0.01 + 0.04)
        book.begin("c", 0.001)
        book.close()
        reading = read_party_lines(path)
        assert not reading.torn and reading.open == "c"


def test_zeros_after_a_power_cut_are_a_torn_line(path: Path) -> None:
    two_runs(path)
    path.write_bytes(path.read_bytes() + bytes(100))
    book = book_at(path)
    assert book.spent == pytest.approx(0.01 + 0.04)


def test_a_second_power_cut_while_the_first_is_written_down(path: Path) -> None:
    two_runs(path)
    path.write_bytes(path.read_bytes()[:-20])
    book_at(path).close()
    mended = path.read_bytes()
    lines = mended.splitlines(keepends=True)
    torn = next(i for i, line in enumerate(lines) if b'"torn"' in line)
    for cut in range(len(lines[torn])):
        path.write_bytes(b"".join(lines[:torn]) + lines[torn][:cut])
        book = book_at(path)
        assert book.spent == pytest.approx(0.01 + 0.04)
        book.close()


def test_a_torn_begin_costs_nothing(path: Path) -> None:
    two_runs(path)
    book = book_at(path)
    spent = book.spent
    book.begin("c", 0.1)
    book.close()
    path.write_bytes(path.read_bytes()[:-7])
    assert book_at(path).spent == pytest.approx(spent)


def test_a_run_without_an_end_gets_one_and_keeps_what_it_spent(path: Path) -> None:
    two_runs(path)
    book = book_at(path)
    assert book.spent == pytest.approx(0.04) and read_party_lines(path).open is None
    before = path.read_bytes()
    with pytest.raises(ValueError):
        book.begin("b", 0.1)  # no run is begun twice
    assert path.read_bytes() == before


# Changed lines -------------------------------------------------------------------------------------------------------


def _changed(lines: list[bytes], at: int) -> list[list[bytes]]:
    spent = lines[at].replace(b'"rho": 0.01', b'"rho": 0.001').replace(b'"name"', b'"nome"')
    swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
    return [[*lines[:at], *lines[at + 1 :]], [*lines[: at + 1], lines[at], *lines[at + 1 :]], swapped] + (
        [[*lines[:at], spent, *lines[at + 1 :]]] if spent != lines[at] else []
    )


@pytest.mark.parametrize("at", range(5))
def test_a_line_that_was_lost_changed_repeated_or_moved_is_noticed(path: Path, at: int) -> None:
    two_runs(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for changed in _changed(lines, at):
        path.write_bytes(b"".join(changed))
        with pytest.raises(ConfigError, match="was changed or is damaged at line") as caught:
            book_at(path)
        assert "restore the true file" in str(caught.value)


@pytest.mark.parametrize("line", [b"garbage", b"[]", b"{}", b'{"entry": "release"}', b"\xff\xfe", b"17"])
def test_a_damaged_line_in_the_middle_is_refused(path: Path, line: bytes) -> None:
    two_runs(path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]) + b"\n")
    with pytest.raises(ConfigError, match="was changed or is damaged"):
        book_at(path)


@pytest.mark.parametrize("rho", [-0.01, float("nan"), float("inf")])
def test_a_negative_charge_does_not_make_room(path: Path, rho: float) -> None:
    two_runs(path)
    lines = path.read_bytes().splitlines()
    entry = json.loads(lines[-1]) | {"rho": rho}
    path.write_bytes(b"\n".join([*lines[:-1], json.dumps(entry).encode()]) + b"\n")
    with pytest.raises(ConfigError, match="damaged"):
        book_at(path)


def test_no_file_is_an_empty_ledger_and_a_folder_is_none(tmp_path: Path) -> None:
    assert read_party_lines(tmp_path / "none").spent == 0.0
    with pytest.raises(ConfigError, match="cannot open"):
        book_at(tmp_path)


# A process that is killed --------------------------------------------------------------------------------------------

CHILD = """
import sys, itertools
from pathlib import Path
from support.parties_bench import Bench, mpc_config, three_hosts
hosts = three_hosts(Path(sys.argv[1]), seed=None, epsilon_per_run=900.0, epsilon_total=1000.0)
bench = Bench(mpc_config(privacy={"epsilon": 900.0}), hosts=hosts, seed=None, rho=50.0)
bench.parties.deal({k: bench.sealed(k, rho=60.0) for k in range(3)})
print("dealt", flush=True)
for _ in itertools.count():
    order = bench.opening(sigma=20.0)
    bench.parties.open(order)
    print(order.number, flush=True)
"""


@pytest.mark.thorough
def test_kill_9_in_the_middle_of_a_run_loses_no_release(tmp_path: Path) -> None:
    """Whatever came out has its line in all three ledgers; the next start finds an honest total and goes on."""
    imports = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=imports) as child:
        assert child.stdout is not None
        for line in itertools.islice(child.stdout, 12):
            last = line.strip()
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
    came_out = int((rest or [last])[-1]) + 1
    assert came_out >= 11
    for index in range(3):
        path = tmp_path / f"{index}.jsonl"
        lines = read_party_lines(path)
        charged = sum(entry["entry"] == "release" for entry in lines.entries)
        assert lines.open is not None and came_out <= charged + lines.torn <= came_out + 1
        with closing(book_at(path, PrivacyBudget(1000.0, 1e-5))) as book:
            assert book.spent >= came_out * 2 / (2 * 20.0**2) * (1 - 1e-9)
            assert read_party_lines(path).open is None
            with pytest.raises(ValueError):
                book.begin(lines.open, 1.0)
            book.begin("next", 1.0)
