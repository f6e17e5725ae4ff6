"""What every ledger for life is kept in: appended lines, one writer at a time, no change that goes unnoticed."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import CannotWrite, ConfigError, LedgerDamaged, RunError
from fedsyn.ledgers.chain import Head, LedgerLines, LifetimeLedger, create, digest_of, legible, read_lines


class Plain(LedgerLines):
    """Lines that mean nothing."""

    owner, advice = "node", "look"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(tmp_path / "chain.jsonl", {"entry": "open"})
    return tmp_path / "chain.jsonl"


def opened(path: Path) -> LifetimeLedger[LedgerLines]:
    return LifetimeLedger(path, Plain)


def read(path: Path) -> LedgerLines:
    return read_lines(path, Plain())


def grown(path: Path, count: int = 4) -> LifetimeLedger[LedgerLines]:
    ledger = opened(path)
    with ledger.turn():
        for number in range(count):
            ledger.append({"entry": "line", "number": number, "text": "é\n"})
    return ledger


# Turns ---------------------------------------------------------------------------------------------------------------


def test_what_one_appends_the_other_reads_at_its_turn(path: Path) -> None:
    one, other = opened(path), opened(path)
    for ledger in (one, other, one):
        with ledger.turn() as lines:
            ledger.append({"entry": "line", "number": len(lines.entries)})
    assert [entry.get("number") for entry in read(path).entries] == [None, 1, 2, 3]
    assert len(other.lines.entries) == 3
    with other.turn() as lines:
        assert len(lines.entries) == 4 and lines.number == 4 and lines.size == path.stat().st_size


def _append_many(path: Path, count: int) -> None:
    ledger = opened(path)
    for _ in range(count):
        with ledger.turn() as lines:
            ledger.append({"entry": "line", "number": len(lines.entries)})


def test_processes_take_turns(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ledger = opened(path)  # a forked child must not share its parent's lock
    with ledger.turn():
        pass
    children = [context.Process(target=_append_many, args=(path, 25)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert [entry["number"] for entry in read(path).entries[1:]] == list(range(1, 76))


def test_appending_without_a_turn_is_refused(path: Path) -> None:
    ledger = opened(path)
    with pytest.raises(RunError, match="closed"):
        ledger.append({"entry": "line"})
    with ledger.turn(), pytest.raises(RunError, match="in use"), ledger.turn():
        pass
    assert len(read(path).entries) == 1


def test_a_file_that_is_missing_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open"):
        opened(tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no file"):
        read(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_file_that_went_away_is_refused_at_the_next_turn(path: Path) -> None:
    ledger = opened(path)
    path.unlink()
    with pytest.raises(RunError, match="cannot be opened"), ledger.turn():
        pass


def test_a_file_that_was_replaced_or_cut_is_noticed(path: Path) -> None:
    ledger = grown(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(LedgerDamaged, match="replaced or cut"), ledger.turn():
        pass
    copy = path.with_name("copy")
    copy.write_bytes(whole)
    path.write_bytes(whole)
    with ledger.turn():
        pass
    copy.replace(path)
    with pytest.raises(LedgerDamaged, match="replaced or cut"), ledger.turn():
        pass


def test_a_first_line_is_made_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "chain.jsonl"
    head = create(path, {"entry": "open"})
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        create(path, {"entry": "open", "other": 1})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    assert read(path).where == head and path.stat().st_mode & 0o777 == 0o600


# What is changed -----------------------------------------------------------------------------------------------------


def test_every_byte_that_is_changed_is_noticed(path: Path) -> None:
    """But in the last line: what makes it unreadable is a torn line, which counts at its worst."""
    grown(path, 1)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for place in range(last - 1):
        for value in (whole[place] ^ 1, ord("}")):
            if value == whole[place]:
                continue
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with pytest.raises(LedgerDamaged):
                read(path)
    head = Head(*read_lines_of(whole, path))
    for place in range(last, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            lines = read(path)
        except LedgerDamaged:
            continue
        assert lines.torn or not lines.holds(head), "a last line that was rewritten shows against a head"


def read_lines_of(whole: bytes, path: Path) -> tuple[int, str]:
    path.write_bytes(whole)
    return tuple(read(path).where)  # type: ignore[return-value]


@pytest.mark.parametrize("at", range(4))
def test_the_line_that_does_not_follow_is_named(path: Path, at: int) -> None:
    grown(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for changed, wrong in (
        ([*lines[:at], *lines[at + 1 :]], at + 1),
        ([*lines[: at + 1], *lines[at:]], at + 2),
        ([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], at + 1),
        ([*lines[:at], b" " + lines[at], *lines[at + 1 :]], at + 1),
        ([*lines[:at], b'{"a": 1, "a": 2}\n', *lines[at:]], at + 1),
    ):
        path.write_bytes(b"".join(changed))
        with pytest.raises(LedgerDamaged) as caught:
            read(path)
        assert caught.value.line == wrong and f"at line {wrong};" in str(caught.value)


def test_a_rewritten_chain_and_an_older_copy_show_against_a_head(path: Path) -> None:
    ledger = grown(path)
    head, whole = ledger.lines.where, path.read_bytes()
    assert ledger.lines.holds(head) and ledger.lines.holds(Head(0, "0" * 32))
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert not read(path).holds(head)
    follows, forged = "0" * 32, []
    for line in whole.splitlines():
        entry = json.loads(line) | {"follows": follows}
        entry["text"] = "changed"
        follows = digest_of(entry)
        forged.append(json.dumps(entry))
    path.write_text("\n".join(forged) + "\n")
    lines = read(path)  # every line follows
    assert not lines.holds(head) and not lines.holds(Head(2, head.digest))
    with pytest.raises(LedgerDamaged, match="older than what this node has seen"):
        opened(path).require(head)


# Torn lines ----------------------------------------------------------------------------------------------------------


def test_a_torn_line_is_written_down_at_the_next_turn_and_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    grown(path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        again = opened(path)
        kinds = [entry["entry"] for entry in again.lines.entries]
        assert kinds == ["open", "line", "line", "line"] + (
            [] if cut == start else ["line"] if cut == len(whole) - 1 else ["torn"]
        )
        with again.turn():
            again.append({"entry": "line"})
        assert [entry["entry"] for entry in read(path).entries] == [*kinds, "line"]


@pytest.mark.parametrize("tail", [b"\x00" * 50, b"\xff\xfe", b"[" * 100_000, b'{"format": 1, "ti'])
def test_whatever_a_power_cut_leaves_is_a_torn_line(path: Path, tail: bytes) -> None:
    grown(path)
    with path.open("ab") as file:
        file.write(tail)
    assert read(path).torn
    assert [entry["entry"] for entry in opened(path).lines.entries][-1] == "torn"
    assert not read(path).torn


def test_a_second_cut_while_the_first_is_written_down(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    grown(path)
    path.write_bytes(path.read_bytes()[:-5])
    opened(path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start - 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert [entry["entry"] for entry in opened(path).lines.entries].count("torn") == 1


def test_what_a_torn_line_says() -> None:
    line = (
        b'{"format": 1, "entry": "charge", "rho": 0.0125, "release": {"name": "a, \\"b\\": c", "round": 1}, "z": [1]}'
    )
    found = [legible(line[:cut]) for cut in range(len(line))]
    assert found[0] == {} and found[-1]["release"] == {"name": 'a, "b": c', "round": 1}
    for cut, says in enumerate(found):
        whole = json.loads(line)
        assert all(whole[key] == value for key, value in says.items()), cut
    assert legible(b"\x00" * 30) == {} and legible(b'[1, "a", "b') == {}


# Disks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_refuses_leaves_no_line_if_it_can_and_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, cut: bool
) -> None:
    """What was written in part is taken back; where that is refused, too, it counts as a crash's would."""
    ledger = grown(path)
    real = getattr(os, call)

    def full(descriptor: int, *rest: Any) -> Any:
        if call == "write":
            real(descriptor, rest[0][:9])
        raise OSError(28, "No space left on device")

    def never(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    said = r"cannot be written \(No space left on device\); nothing was released"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        if not cut:
            patch.setattr(os, "ftruncate", never)
        with (
            ledger.turn(),
            pytest.raises(CannotWrite, match=said),
        ):
            ledger.append({"entry": "line"})
    with ledger.turn() as lines:
        kinds = [entry["entry"] for entry in lines.entries]
        assert kinds[5:] == ([] if cut else ["torn"] if call == "write" else ["line"])
