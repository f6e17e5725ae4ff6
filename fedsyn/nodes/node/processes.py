"""What the processes of a node have in common: bounds of a task, and that none of them outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

#: Exit code of a worker whose node's files cannot be used: starting it again changes nothing.
BAD_INPUT = 2
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bounds:
    """What one task may use.

    Attributes:
        seconds: of wall time.
        megabytes: of memory beyond the table and what is imported.
    """

    seconds: float = 300.0
    megabytes: int = 4096


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that made it ends; end at once if it has ended already."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):  # not Linux: a process that lost its channel ends by itself
        return
    if os.getppid() != parent:
        os._exit(1)


def one_thread_each() -> dict[str, str]:
    """Return this process' environment, with no threads for linear algebra: they would not survive a fork."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1")}
