"""Files that are whole after a crash: written, waited for (`fsync` of file and folder), put in place."""

from __future__ import annotations

import os
from pathlib import Path


def replace_synced(path: Path, content: bytes) -> None:
    """Puts a whole new file in the place of an old one, 0600: after a crash one of the two is there; OSError."""
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        write_synced(part, content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Writes a new file, 0600, and waits for the disk; a file of that name is replaced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
