"""Files that are whole after a crash: written, waited for (`fsync` of file and folder), put in place.

Private keys, too, are written by `write_new` alone: 0600 from the first byte on, and never over another file.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedsyn.errors import ConfigError


def write_new(path: Path, content: bytes | str, mode: int = 0o600) -> None:
    """Write a file that does not exist yet, and wait for the disk.

    Raises:
        FileExistsError: if there is a file, or a link, of that name; it is left as it is.
        OSError: if it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(content.encode() if isinstance(content, str) else content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_key(path: Path, secret: bytes, what: str) -> None:
    """Write a new private key as hex digits. Raises ConfigError, which names the key by `what`, if it cannot."""
    try:
        write_new(path, secret.hex() + "\n")
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be created ({error.strerror})") from None


def replace_synced(path: Path, content: bytes | str, mode: int = 0o600) -> None:
    """Put a whole file in the place of another: after a crash one of the two is there. Raises OSError if it cannot."""
    part = path.with_name(f".{path.name}.part-{threading.get_native_id()}")  # this thread's own
    try:
        part.unlink(missing_ok=True)  # of one of this number that was killed
        write_new(part, content, mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Put a whole text that others may read in the place of another, as `replace_synced`."""
    replace_synced(path, text, 0o644)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's new names are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Hold a lock file, which is made if there is none; yields False where another process holds it.

    Args:
        path: of the file.
        patience: seconds to wait for it: who only looks whether it is held holds it for a moment.
    """
    descriptor, until = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), time.monotonic() + patience
    try:
        while not (alone := try_lock(descriptor)) and time.monotonic() < until:
            time.sleep(0.05)
        yield alone
    finally:
        os.close(descriptor)


def try_lock(file: int | IO[bytes]) -> bool:
    """Lock an open file until it is closed; return False where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
