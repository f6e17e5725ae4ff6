"""Files that are whole after a crash, also where two threads write one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Timer

import pytest

from fedsyn import files


def test_two_threads_replace_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, path, write = Barrier(2), tmp_path / "notes.json", files.write_new

    def write_new(part: Path, content: bytes | str, mode: int) -> None:
        both.wait(10)  # the other one's old part was looked for
        write(part, content, mode)
        both.wait(10)  # the other one's part is there, and not in its place

    monkeypatch.setattr(files, "write_new", write_new)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: files.replace_synced(path, text), ("one", "two")))
    assert path.read_text(encoding="utf-8") in ("one", "two") and list(tmp_path.iterdir()) == [path]


def test_a_lock_that_is_looked_at_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path, looks, enough = tmp_path / "lock", Event(), Event()

    def look() -> None:
        with files.locked(path) as alone:
            assert alone
            looks.set()
            enough.wait(30.0)

    with ThreadPoolExecutor(1) as pool:
        looker = pool.submit(look)
        assert looks.wait(30.0)
        with files.locked(path) as at_once:
            assert not at_once
        Timer(0.1, enough.set).start()
        with files.locked(path, patience=30.0) as later:
            assert later
        looker.result()
