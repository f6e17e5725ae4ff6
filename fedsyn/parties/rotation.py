"""New keys for a party, or an operator, in place of its old ones, which are gone afterwards.

Deals that were sealed to the old key and recorded on their way can then be opened by nobody, also by whoever takes
the machine. The new files are made beside the old ones first, and then take their places one by one: a rotation that
was interrupted is finished by the next one. Of the old party its card is kept, as `card-N.yaml`: it is public, and says
who the party was in its ledger's past.

Nobody else learns of it by itself. Each side knows a party by the one card that it has pinned: until the others have
the new one they refuse the party, and from then on they refuse the old key.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedsyn.errors import ConfigError
from fedsyn.parties.keys import (
    CARD,
    CERTIFICATE,
    SEAL_KEY,
    TLS_KEY,
    load_credentials,
    load_party,
    new_operator,
    new_party,
)
from fedsyn.parties.policy import load_card
from fedsyn.parties.tls import name_of
from fedsyn.settings import PartyNode

_NEXT = "next"
_DONE = "complete"  # stands in the folder of new files once they are all there


def rotate_party(folder: Path, address: str | None = None) -> tuple[PartyNode, PartyNode]:
    """Replaces a party's keys, under the same name; the old card and the new one.

    Args:
        folder: of `fedsyn party keygen`.
        address: a new HOST:PORT; None: the old one.

    Raises:
        ConfigError: it is no party's folder, or cannot be written; the old keys are still there then.
    """
    if not _is_interrupted(folder):
        old = load_party(folder)[0]
        _discard(folder)
        new_party(folder / _NEXT, old.name, address or old.address)
        _write(folder / _NEXT / "old.yaml", (folder / CARD).read_bytes())
        _write(folder / _NEXT / _DONE, b"")
    kept = _kept(folder)
    _move(folder / _NEXT / "old.yaml", folder / kept)
    for name in (SEAL_KEY, TLS_KEY, CERTIFICATE, CARD):
        _move(folder / _NEXT / name, folder / name)
    _discard(folder)
    return load_card(folder / kept), load_party(folder)[0]


def rotate_operator(folder: Path) -> None:
    """Replaces an operator's key and certificate.

    Raises:
        ConfigError: it is no operator's folder, or cannot be written; the old key is still there then.
    """
    if not _is_interrupted(folder):
        name = name_of(load_credentials(folder).certificate)
        _discard(folder)
        new_operator(folder / _NEXT, name)
        _write(folder / _NEXT / _DONE, b"")
    for file in (TLS_KEY, CERTIFICATE):
        _move(folder / _NEXT / file, folder / file)
    _discard(folder)


def _is_interrupted(folder: Path) -> bool:
    return (folder / _NEXT / _DONE).exists()


def _kept(folder: Path) -> str:
    """Where the old card goes: where it is already, if the rotation was interrupted behind it."""
    number = 1
    while (folder / f"card-{number}.yaml").exists():
        number += 1
    return f"card-{number}.yaml" if (folder / _NEXT / "old.yaml").exists() else f"card-{number - 1}.yaml"


def _move(source: Path, target: Path) -> None:
    """Nothing where it was moved before."""
    try:
        if source.exists():
            source.replace(target)
            _sync(target.parent)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; type the same command again") from None


def _write(path: Path, data: bytes) -> None:
    """On the disk, with all that was written to the folder before it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        for each in path.parent.iterdir():
            _sync(each)
        _sync(path.parent)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(folder: Path) -> None:
    """New files that were never complete, or what is left of those that have their places. `complete` goes last."""
    made = folder / _NEXT
    if not made.is_dir():
        return
    for name in (SEAL_KEY, TLS_KEY, CERTIFICATE, CARD, "old.yaml", _DONE):
        (made / name).unlink(missing_ok=True)
    made.rmdir()
