"""What a node remembers of a run: whole or not at all, never older than its ledger, and sealed where a key is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedsyn.errors import ConfigError, NodeError, RunError
from fedsyn.files import write_key
from fedsyn.ledgers.chain import Head
from fedsyn.node.memory import Memory, RunMemory

STATE = {"size": 17.25, "sum": {"number": 3, "keys": ["a" * 64, "é"]}, "secret": "a-cell-of-a-row"}


@pytest.fixture(params=["plain", "sealed"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    if request.param == "plain":
        return Memory(tmp_path / "runs")
    write_key(tmp_path / "key", os.urandom(32), "key")
    return Memory(tmp_path / "runs", tmp_path / "key")


def saved(memory: Memory, run: str = "run", reply: bytes | None = b"\n\x00reply\n") -> RunMemory:
    kept = RunMemory(STATE, "digest", reply, "attempt", head=Head(7, "f" * 32))
    memory.save(run, kept)
    return kept


def test_what_was_saved_is_loaded(memory: Memory) -> None:
    assert memory.load("run") == RunMemory()
    for reply in (b"", None, os.urandom(100_000)):
        kept = saved(memory, reply=reply)
        assert memory.load("run") == kept and kept.number == 1
    kept.state = {"more": 1}
    memory.save("run", kept)
    assert memory.load("run").number == 2 and memory.load("run").state == {"more": 1}
    assert memory.load("other") == RunMemory() and memory.load("../run") == RunMemory()
    assert memory.heads() == [Head(7, "f" * 32)]
    (file,) = memory.folder.iterdir()
    file.write_bytes(b"damaged")
    assert memory.heads() == []


def test_files_are_their_owners_alone(memory: Memory) -> None:
    saved(memory)
    (file,) = memory.folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and memory.folder.stat().st_mode & 0o777 == 0o700


def test_only_a_sealed_one_hides_what_it_holds(tmp_path: Path) -> None:
    write_key(tmp_path / "key", os.urandom(32), "key")
    for memory, hidden in ((Memory(tmp_path / "a"), False), (Memory(tmp_path / "b", tmp_path / "key"), True)):
        saved(memory)
        (file,) = memory.folder.iterdir()
        assert (b"a-cell-of-a-row" not in file.read_bytes()) == hidden


@pytest.mark.parametrize("number", [1, 5])
def test_a_memory_older_than_the_ledger_is_refused(memory: Memory, number: int) -> None:
    with pytest.raises(NodeError, match="missing, damaged or older than its ledger"):
        memory.load("run", number)
    saved(memory)
    if number == 1:
        assert memory.load("run", number).number == 1
    else:
        with pytest.raises(NodeError):
            memory.load("run", number)


def test_a_memory_that_was_put_back_or_belongs_to_another_run_is_refused(memory: Memory) -> None:
    kept = saved(memory)
    (file,) = memory.folder.iterdir()
    old = file.read_bytes()
    memory.save("run", kept)
    file.write_bytes(old)
    with pytest.raises(NodeError):
        memory.load("run", 2)
    saved(memory, "other")
    (second,) = (path for path in memory.folder.iterdir() if path != file)
    second.write_bytes(old)
    with pytest.raises(NodeError):
        memory.load("other")


def test_every_changed_byte_and_every_cut_is_noticed(memory: Memory) -> None:
    saved(memory)
    (file,) = memory.folder.iterdir()
    whole = file.read_bytes()
    for place in range(len(whole)):
        for changed in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:place]):
            file.write_bytes(changed)
            with pytest.raises(NodeError):
                memory.load("run")


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    for name in ("key", "other"):
        write_key(tmp_path / name, os.urandom(32), "key")
    saved(Memory(tmp_path / "runs", tmp_path / "key"))
    for other in (Memory(tmp_path / "runs", tmp_path / "other"), Memory(tmp_path / "runs")):
        with pytest.raises(NodeError):
            other.load("run")
    saved(Memory(tmp_path / "plain"))
    with pytest.raises(NodeError):
        Memory(tmp_path / "plain", tmp_path / "key").load("run")
    with pytest.raises(ConfigError, match="cannot read"):
        Memory(tmp_path / "runs", tmp_path / "none")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_refuses_keeps_the_old_memory(memory: Memory, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    kept = saved(memory)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RunError, match="has to remember cannot be written"):
            memory.save("run", kept)
    assert kept.number == 1 and memory.load("run") == kept and len(list(memory.folder.iterdir())) == 1


def test_leftovers_of_a_killed_process_go_at_the_next_start(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    saved(memory)
    (file,) = memory.folder.iterdir()
    (tmp_path / f".{file.name}.part-123").write_bytes(b"half")
    Memory(tmp_path)
    assert list(tmp_path.iterdir()) == [file]


def test_old_runs_are_forgotten(memory: Memory) -> None:
    saved(memory)
    saved(memory, "new")
    old = memory._path("run")
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 1000))
    (memory.folder / "notes.txt").write_text("the holder's own")
    assert memory.forget(2000) == 0 == memory.forget() and memory.forget(500) == 1
    assert memory.load("run") == RunMemory() and memory.load("new").number == 1
    assert (memory.folder / "notes.txt").exists()
    with pytest.raises(NodeError):
        memory.load("run", 1)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use"):
        Memory(tmp_path / "file" / "runs")
