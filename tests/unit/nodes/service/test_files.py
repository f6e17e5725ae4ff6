"""Files that are whole after a crash, also where two threads write one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fedsyn.nodes.service import files


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
