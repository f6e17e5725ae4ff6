"""A bad minute at one of three holders, in the first sum of a run and in a later round: it costs that minute.

As `deploy init` makes it for three holders, nobody may be missing: without the repetition a run ends of each of these.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.deployed import Deployed, check_table, descendants, namespaces_or_none

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("namespaces")]
NAMES = ("north", "south", "lake")
Fault = Callable[[Deployed], None]


def mounted(*words: str) -> None:
    if subprocess.run(["mount", *words], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")


@contextmanager
def little_room(federation: Deployed) -> Iterator[None]:
    """Lake's state on a small file system of its own."""
    state = federation.holder("lake") / "state"
    kept = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    mounted("-t", "tmpfs", "-o", "size=512k,mode=700", "none", str(state))
    try:
        for name, content in kept.items():
            (state / name).write_bytes(content)
            (state / name).chmod(0o600)
        yield
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def away(federation: Deployed) -> None:
    """All processes of a node are stopped, as on a machine that is asleep."""
    pid = federation.processes["lake"].pid
    stopped = [pid, *descendants(pid)]
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    time.sleep(60.0)
    for each in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)


def full(federation: Deployed) -> None:
    filler = federation.holder("lake") / "state" / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"0" * 512)
    time.sleep(10.0)
    filler.unlink()


def unwritable(federation: Deployed) -> None:
    ledger = str(federation.holder("lake") / "state" / "ledger.jsonl")
    if subprocess.run(["chattr", "+i", ledger], check=False, capture_output=True).returncode:
        pytest.skip("no file can be made immutable here")  # root writes to whatever it likes otherwise
    try:
        time.sleep(12.0)
    finally:
        subprocess.run(["chattr", "-i", ledger], check=True)


@pytest.mark.parametrize("fault", [away, full, unwritable], ids=["stopped 60 s", "disk full 10 s", "ledger 12 s"])
def test_a_bad_minute_in_the_first_sum_and_in_a_later_round(tmp_path: Path, fault: Fault) -> None:
    places = namespaces_or_none(1 + len(NAMES))
    federation = Deployed(tmp_path, NAMES, places)
    with contextlib.ExitStack() as stack:
        if places is not None:
            stack.callback(places.close)
        if fault is full:
            stack.enter_context(little_room(federation))
        stack.callback(federation.close)
        federation.link()
        federation.serve()
        federation.wait_online()
        run = federation.start("run", "deploy", "run", "study", "--out", "out", "--set", "mechanism.rounds=3")
        federation.wait_for(lambda: bool(federation.asked("lake")) or run.poll() is not None, 300.0)
        fault(federation)
        federation.wait_for(lambda: rounds(federation) >= 2 or run.poll() is not None, 400.0)
        assert run.poll() is None, federation.log("run") + federation.logs()
        before = len(federation.log("run"))
        fault(federation)
        assert run.wait(600.0) == 0, federation.log("run") + federation.logs()
        said = federation.log("run")
        if fault is not away:  # a node that comes back in time is waited for without a word
            assert "waits for 1 of 3 holders" in said[:before] and "lake (busy: " in said[:before], said
            assert "waits for 1 of 3 holders" in said[before:], said
        check_table(federation)
        assert len(federation.rounds()) == 4
        dropped = [line["dropped"] for line in federation.rounds()]
        assert not any(dropped), dropped
        federation.check_ledgers("out")
        spent = sorted(federation.charged("north"))
        assert all(sorted(federation.charged(name)) == spent for name in NAMES)
        assert len(set(spent)) == len(spent) == len(federation.ledger()["releases"])


def rounds(federation: Deployed) -> int:
    return max((line["round"] for line in federation.rounds()), default=-1)
