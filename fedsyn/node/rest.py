"""Data at rest on a holder's disk, under its key.

It covers the holder's table (`fedsyn node seal`), and what a node remembers of runs.

The key is a file that the holder names, `data_key` in node.yaml: on a stick, on a mounted secret, or what systemd
decrypts for the service (`LoadCredentialEncrypted=data.key`, then `data_key: /run/credentials/UNIT/data.key`). Whoever
has the disk without that file has neither rows nor unfinished sums. Ledger and audit log hold no data and stay plain.

Nothing is ever decrypted to a file: the data readers take blocks of a sealed table in memory
(`fedsyn.table.data.sealed`).
"""

from __future__ import annotations

import os
from pathlib import Path

from fedsyn.errors import ConfigError
from fedsyn.files import sync_folder, write_key
from fedsyn.table.data.opening import SUFFIXES
from fedsyn.table.data.sealed import (
    KEY,
    SEALED,
    is_sealed,
    open_sealed,
    read_key,
    sealed_blocks,
)


def seal_table(table: Path, key_file: Path, out: Path | None = None) -> tuple[Path, bool]:
    """Writes a table's sealed copy, and reads it back once.

    Args:
        table: a file that the data readers know.
        key_file: with the holder's key; made if it does not exist.
        out: the sealed file, which must not exist; `TABLE.sealed` unless given.

    Returns:
        The sealed file, and whether the key is new.

    Raises:
        ConfigError: if the table is not a file or sealed already, the key is not one, or `out` cannot be written.
    """
    # Refuse what could not be read again, before anything is written.
    out = table.with_name(table.name + SEALED) if out is None else out
    if not table.is_file():
        raise ConfigError(f"no such file: {table}")
    if is_sealed(table):
        raise ConfigError(f"{table} is sealed already")
    if not out.name.lower().endswith(tuple(s for s in SUFFIXES if s.endswith(SEALED))):
        ending = "".join(table.suffixes[-2:]) + SEALED
        raise ConfigError(f"--out: {out} must end in what the table is, and {SEALED}: *{ending}")
    if out.exists():
        raise ConfigError(f"--out: {out} is there already: remove it, or name another")
    # The holder's key, made where there is none.
    is_new = not key_file.exists()
    if is_new:
        write_key(key_file, os.urandom(KEY), "key")
    key = read_key(key_file)
    # Write beside the target, compare with the table, and only then put it in place.
    part = out.with_name(f".{out.name}.part-{os.getpid()}")
    try:
        with table.open("rb") as plain, part.open("xb") as file:
            part.chmod(0o600)
            for piece in sealed_blocks(plain, key):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        _require_same(table, part, key)
        part.replace(out)
        sync_folder(out.absolute().parent)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return out, is_new


def _require_same(table: Path, sealed: Path, key: bytes) -> None:
    """Raises ConfigError unless what was sealed is what the table holds."""
    with table.open("rb") as plain, open_sealed(sealed, key) as opened:
        while True:
            one, other = plain.read(1 << 20), opened.read(1 << 20)
            if one != other:
                raise ConfigError(f"{table} was changed while it was sealed: seal it again")
            if not one:
                return
