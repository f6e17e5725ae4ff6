"""Files that are whole after a crash.

Each is written, waited for (`fsync` of file and folder) and put in place.

A link at a file's place is replaced, never followed: a stranger's directory may hold one that leads anywhere.
Private keys, too, are written by `write_new` alone: 0600 from the first byte on, and never over another file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedsyn.errors import ConfigError

#: Modes of a file that its owner alone may read, and of one for everybody.
PRIVATE, PUBLIC = 0o600, 0o644


def write_new(path: Path, content: bytes | str, mode: int = PRIVATE) -> None:
    """Writes a file that must not exist, and waits for the disk.

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


def append_synced(file: int, line: bytes) -> None:
    """Appends to an open file and waits for the disk.

    Raises OSError if it cannot; what was appended so far is taken back.
    """
    before, rest = os.fstat(file).st_size, memoryview(line)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError:
        with contextlib.suppress(OSError):  # where the disk lets it: else the line is torn
            os.ftruncate(file, before)
            os.fsync(file)
        raise


def is_open_to_others(path: Path) -> bool:
    """Returns whether others than its owner may use a file.

    Raises:
        OSError: it cannot be looked at.
    """
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def described_by(path: Path | str, what: str) -> Path:
    """Returns the path of a file that a person writes.

    Args:
        path: of the file.
        what: it is, as a clause.

    Raises:
        ConfigError: there is no such file.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} {'is a folder' if Path(path).is_dir() else 'does not exist'}: {what}")
    return Path(path)


def write_key(path: Path, secret: bytes, what: str) -> None:
    """Writes a new private key as hex digits.

    Raises ConfigError, which names the key by `what`, if it cannot.
    """
    try:
        write_new(path, secret.hex() + "\n")
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be created ({error.strerror})") from None


def replace_all(files: Mapping[Path, tuple[bytes | str, int]]) -> None:
    """Replaces several files, once all new ones could be written.

    After a crash each is either the old one or the new one, and none is old behind one that is new.

    Args:
        files: content and mode, by path, in this order.

    Raises:
        OSError: if one cannot be written; all are as they were.
    """
    suffix = f"part-{threading.get_native_id()}"  # this thread's
    parts = {path: path.with_name(f".{path.name}.{suffix}") for path in files}
    try:
        # All parts are on the disk before the first file is replaced.
        for path, (content, mode) in files.items():
            parts[path].unlink(missing_ok=True)  # of a thread of this number that was killed
            write_new(parts[path], content, mode)
        for path, part in parts.items():
            part.replace(path)
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
    for folder in {path.parent for path in files}:
        sync_folder(folder)


def replace_synced(path: Path, content: bytes | str, mode: int = PRIVATE) -> None:
    """Replaces a whole file; after a crash one of the two exists.

    Raises OSError if it cannot.
    """
    replace_all({path: (content, mode)})


def write_text(path: Path, text: str) -> None:
    """Replaces a text file that others may read, as `replace_synced` does."""
    replace_synced(path, text, PUBLIC)


def make_folder(folder: Path) -> None:
    """Makes a folder of a run or sweep directory, if missing.

    Raises ConfigError if it is a link.
    """
    require_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def shipped(name: str) -> Path:
    """Returns the path of a file that comes with fedsyn.

    It lies in a checkout or in an installed package.
    """
    package = Path(__file__).resolve().parent
    return next(file for folder in (package / "app", package.parent) if (file := folder / name).is_file())


def require_no_link(folder: Path) -> None:
    """Refuses a folder that is a link, with a ConfigError."""
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link, and files written there could land anywhere; remove the link")


def sync_folder(folder: Path) -> None:
    """Waits until a folder's new names are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Holds a lock file, which is made if it is missing.

    Yields False where another process holds it.

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
    """Locks an open file until it is closed.

    Returns False where another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Returns whether another process holds a lock file.

    Returns False where the file is missing or cannot be looked at.
    """
    if not path.exists():
        return False
    try:
        with locked(path) as alone:
            return not alone
    except OSError:
        return False
