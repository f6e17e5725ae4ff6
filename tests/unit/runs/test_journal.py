"""The journal of a run on disk: what it holds, what a crash leaves of it, and what it refuses."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsyn.errors import ConfigError, RunError
from fedsyn.privacy import GAUSSIAN, Ledger, PrivacyBudget, Release
from fedsyn.runs import journal as journals
from fedsyn.runs.journal import FOLDER, RunJournal, decode, encode

NAMED = {"run": "r", "config": "c", "schema": "s"}


def ledger() -> Ledger:
    return Ledger(PrivacyBudget(1.0, 1e-6), noise_by="server")


def release(name: str) -> dict[str, Any]:
    return Release(name, 1, GAUSSIAN, 1.0, sigma=40.0, noise_by="server").to_dict()


def begun(out: Path) -> RunJournal:
    made = RunJournal.begin(out, **NAMED)
    made.add({"kind": "ledger", "state": ledger().to_dict()})
    return made


def entries(journal: RunJournal) -> list[Any]:
    found = []
    while journal.is_past:
        found.append(journal.past())
    return found


def test_arrays_and_values_come_back_as_they_were() -> None:
    whole = {
        "text": "ä",
        "float": 0.1 + 0.2,
        "none": None,
        "nested": [{"a": np.arange(6.0).reshape(2, 3)}, [np.zeros(0, np.uint8)]],
        "scalar": np.float64(0.1),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "empty": {},
    }
    back = decode(encode(whole))
    assert (back["text"], back["float"], back["none"], back["empty"]) == ("ä", 0.1 + 0.2, None, {})
    assert back["scalar"] == 0.1 and back["nested"][1][0].dtype == np.uint8
    assert np.array_equal(back["nested"][0]["a"], whole["nested"][0]["a"])
    assert back["fortran"].flags.f_contiguous and np.array_equal(back["fortran"], whole["fortran"])
    with pytest.raises(ValueError, match=r"pickle|object"):
        encode({"a": np.array([object()])})


def test_nobody_else_reads_it_and_its_key_stays_the_same(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    key = journal.key
    assert len(key) == 32
    journal.close()
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "journal").iterdir()} == {0o600}
    again = RunJournal.resume(tmp_path, **NAMED)
    assert again.key == key and [entry["kind"] for entry in entries(again)] == ["ledger"]
    again.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", [1, 7, 43, 44, 45, 60])
def test_what_a_crash_left_of_a_record_is_dropped(tmp_path: Path, lost: int) -> None:
    journal = begun(tmp_path)
    journal.add({"kind": "answer", "number": 1, "releases": [release("a")]})
    before = (tmp_path / "journal" / "answers").stat().st_size
    journal.add({"kind": "answer", "number": 2, "releases": [release("b")]})
    journal.close()
    file = tmp_path / "journal" / "answers"
    torn = file.read_bytes()[: before + lost]
    file.write_bytes(torn)
    again = RunJournal.resume(tmp_path, **NAMED)
    assert file.stat().st_size == before
    assert [entry.get("number") for entry in entries(again)] == [None, 1]
    again.add({"kind": "answer", "number": 2, "releases": []})
    again.close()
    assert [entry.get("number") for entry in entries(RunJournal.resume(tmp_path, **NAMED))] == [None, 1, 2]


def test_room_that_a_crash_left_empty_is_dropped(tmp_path: Path) -> None:
    begun(tmp_path).close()
    file = tmp_path / "journal" / "answers"
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(300))
    RunJournal.resume(tmp_path, **NAMED).close()
    assert file.read_bytes() == whole


@pytest.mark.parametrize("where", [3, 60, 200])
def test_damage_is_no_crash_and_nothing_is_resumed(tmp_path: Path, where: int) -> None:
    journal = begun(tmp_path)
    journal.add({"kind": "answer", "number": 1, "releases": [release("a")]})
    journal.close()
    file = tmp_path / "journal" / "answers"
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(RunError, match="damaged"):
        entries(RunJournal.resume(tmp_path, **NAMED))


def test_what_is_kept_of_a_request_ends_with_its_answer(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    journal.keep({"kind": "open", "number": 1, "asked": "x"}, first=True)
    journal.keep({"kind": "charge", "release": release("a")})
    journal.close()
    found = journals.spent(tmp_path)
    assert found is not None and [entry.name for entry in found.releases] == ["a"]
    again = RunJournal.resume(tmp_path, **NAMED)
    entries(again)
    assert [entry["kind"] for entry in again.under_way()] == ["open", "charge"]
    assert again.under_way() == []
    kept = (tmp_path / "journal" / "open").read_bytes()
    again.add({"kind": "answer", "number": 1, "releases": [release("a")]})
    assert (tmp_path / "journal" / "open").stat().st_size == 0
    again.close()
    # As if it had died between the answer and the removal: what was kept is of a request that has its answer.
    (tmp_path / "journal" / "open").write_bytes(kept)
    found = journals.spent(tmp_path)
    assert found is not None and [entry.name for entry in found.releases] == ["a"], "not twice"
    last = RunJournal.resume(tmp_path, **NAMED)
    entries(last)
    assert last.under_way() == []


def test_it_belongs_to_one_run_and_one_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        RunJournal.resume(tmp_path, **NAMED)
    journal = begun(tmp_path)
    with pytest.raises(RunError, match="another process"):
        RunJournal.resume(tmp_path, **NAMED)
    journal.close()
    with pytest.raises(ConfigError, match="unfinished run; resume it with --resume"):
        RunJournal.begin(tmp_path, **NAMED)
    for other, message in (
        ({"run": "q"}, "another run"),
        ({"config": "d"}, "another configuration"),
        ({"schema": "t"}, "another configuration or schema"),
    ):
        with pytest.raises(ConfigError, match=message):
            RunJournal.resume(tmp_path, **{**NAMED, **other})


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from fedsyn.runs.journal import RunJournal\n"
        "RunJournal.begin(pathlib.Path(sys.argv[1]), run='r', config='c', schema='s')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env=dict(os.environ))
    assert died.returncode == -9
    RunJournal.resume(tmp_path, **NAMED).close()


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = begun(tmp_path)

    before, real, calls = (tmp_path / "journal" / "answers").stat().st_size, os.write, []

    def full(descriptor: int, data: Any) -> int:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, bytes(data)[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device; make room, and resume"):
        journal.add({"kind": "answer", "number": 1, "releases": []})
    monkeypatch.undo()
    assert (tmp_path / "journal" / "answers").stat().st_size == before, "no part of a record is left in the middle"


def test_a_folder_that_somebody_else_put_there_is_no_journal(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for place, number in (("open", 0o755), ("linked", None)):
        out = tmp_path / place
        out.mkdir()
        if number is None:
            (out / FOLDER).symlink_to(elsewhere)
        else:
            (out / FOLDER).mkdir()
            (out / FOLDER).chmod(number)
        with pytest.raises(ConfigError, match="its owner alone may read"):
            RunJournal.begin(out, run="r", config="c", schema="s")
    assert not any(elsewhere.iterdir())
