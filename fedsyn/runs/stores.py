"""The folders in which a simulation keeps its encoded rows while it runs: they go with the run, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PREFIX, _LOCK = ".store-", "lock"
#: What a program that is told to end says in the end: 128 and the number of the signal, by convention.
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def run_store(out: Path) -> Iterator[Path]:
    """A folder for the rows of a run, in its run directory; removed in the end, also after Ctrl-C and SIGTERM.

    After SIGKILL, or a loss of power, the folder stays and the rows do not: they lie in files without a name
    (`fedsyn.table.data.row_files`), where the system has such files. The next run in the same directory removes what is
    left. A run that is still alive holds a lock on its folder, which the system lets go with its process.
    """
    _remove_stale(out)
    store = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
    lock = os.open(store / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    _locked(lock)
    try:
        with ended_by_sigterm():
            yield store
    finally:
        os.close(lock)
        shutil.rmtree(store, ignore_errors=True)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM ends the program as Ctrl-C does: what has to be tidied up is, and it exits with 143.

    Only where nobody else has a say: in the main thread of a program that has no handler of its own.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one does not interrupt the tidying up
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _remove_stale(out: Path) -> None:
    for folder in out.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:  # of a version without locks, or of a run that is only just starting or ending
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue
        stale = _locked(lock)
        os.close(lock)
        if stale:
            shutil.rmtree(folder, ignore_errors=True)


def _locked(file: int) -> bool:
    """Takes the lock of an open file; False where a living process has it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: the folder of a living run cannot be removed there either
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
