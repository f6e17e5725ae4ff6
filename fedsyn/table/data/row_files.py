"""Files of rows that have no name on the disk: the system removes them when the last process that uses them has ended.

However it ends: SIGKILL, out of memory, a loss of power. A run keeps its encoded rows in such files, and nothing of its
own could tidy up after those. Where the file would stand lies a link to it, `/proc/PID/fd/N` of the process that made
it: other processes of the same user open it by its path as they would any file, as long as that process lives and
keeps it. Afterwards the link leads nowhere.

Linux has such links. Elsewhere (and where /proc is another system's) the files have their names, as any others, and who
made their folder has to remove them.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


class RowFiles:
    """Makes such files, and keeps them until it is closed, or nobody has it any more."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self.close = weakref.finalize(self, _close_all, self._open)

    @contextmanager
    def create(self, path: Path) -> Iterator[IO[bytes]]:
        """A file to write to, for its owner alone; when it is written it can be opened at `path`.

        What was at `path` is replaced then: who has that open keeps it.

        Raises:
            OSError: no room, or no right.
        """
        _leave_room()
        number = _unnamed(path.parent)
        link = f"/proc/{os.getpid()}/fd/{number}"
        if not _leads_to(link, number):
            os.close(number)
            with _named(path) as file:
                yield file
            return
        self._open.append(number)
        with os.fdopen(number, "wb", closefd=False) as file:
            yield file
        part = _beside(path)
        part.symlink_to(link)
        part.replace(path)

    def save(self, path: Path, array: npt.NDArray[Any]) -> None:
        """`numpy.save` into such a file."""
        with self.create(path) as file:
            np.save(file, array, allow_pickle=False)

    def write_text(self, path: Path, text: str) -> None:
        with self.create(path) as file:
            file.write(text.encode("utf-8"))


def _unnamed(folder: Path) -> int:
    """The descriptor of an empty file in this folder's file system that stands in no folder."""
    with suppress(OSError, AttributeError):
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    number, name = tempfile.mkstemp(prefix=".unnamed-", dir=folder)
    os.unlink(name)  # noqa: PTH108 - before a byte is in it
    return number


def _leave_room() -> None:
    """Lets this process have as many open files as it may at all: a file of rows stays open, and a wide open schema has
    two for each column."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # which not every system has

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leads_to(link: str, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(link), os.fstat(number))  # noqa: PTH116
    except OSError:
        return False


@contextmanager
def _named(path: Path) -> Iterator[IO[bytes]]:
    part = _beside(path)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file
    part.replace(path)


def _beside(path: Path) -> Path:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    return part


def _close_all(numbers: list[int]) -> None:
    while numbers:
        with suppress(OSError):
            os.close(numbers.pop())
