"""The journal of a run on disk.

It holds what `fedsyn.protocol.recorder` writes down, so that another server can go on where one was
killed.

Two files in a folder `journal` of the run directory, which nobody but the user may read (0700, 0600):

    answers   appended to and never changed: what began, who joined, every answer, every fitted model
    open      of the request under way alone: its charges, and the replies to the stages of its secure sum

A record is a head (its length, the SHA-256 of its payload, a checksum of the head) and a payload (JSON, and the arrays
in NumPy's own format; nothing is pickled). It is written by one call and fsynced before the next thing happens. So what
a crash leaves is a prefix of a record at the end of a file: nothing that followed had begun, and it is dropped. Damage
anywhere else is no crash: then the journal is refused, because charges may stand in what cannot be read.

When a request is answered, the answer is appended first and `open` emptied then; a crash between the two leaves an
`open` whose number has an answer already, and which is ignored.

**Secrets.** Row counts that are public, released values, models, who took part: what the run directory holds too.
Beside it the key of the run's ordinary randomness, which protects nothing, and, as long as a secure sum is under way,
what its clients sent. The folder is removed when the run has finished. Overwriting is no promise of a modern disk: who
has to rely on it encrypts the disk.

One process at a time: the folder is locked (`flock`), so that a server that was thought dead and one that goes on in
its place never serve the same run together.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsyn.errors import ConfigError, RunError
from fedsyn.files import append_synced, sync_folder, try_lock
from fedsyn.privacy import Ledger
from fedsyn.version import __version__

FOLDER = "journal"
_FORMAT = 1
_HEAD = struct.Struct("<Q32sI")  # length and digest of the payload, CRC-32 of these two
_ARRAY = "\0array"  # key of an object that stands for an array in a record's JSON: no facts have it


class RunJournal:
    """The journal of one run, held by this process (`fedsyn.protocol.recorder.Journal`).

    Made by `begin` or `resume`.
    """

    def __init__(self, folder: Path, lock: IO[bytes], facts: Mapping[str, Any]) -> None:
        self.folder, self.facts = folder, dict(facts)
        self._lock = lock
        self._past: Iterator[dict[str, Any]] = iter(())
        self._next: dict[str, Any] | None = None
        self._answered = 0  # number of the last request with an answer
        self._answers = (folder / "answers").open("ab", buffering=0)
        self._open = (folder / "open").open("ab", buffering=0)
        self._is_empty = (folder / "open").stat().st_size == 0

    # Life -------------------------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, out: Path, *, run: str, config: str, schema: str) -> RunJournal:
        """Begins the journal of a run, in its run directory.

        Args:
            out: the run directory.
            run: name of the run.
            config: `RunConfig.sha256`.
            schema: hash of the schema.

        Raises:
            ConfigError: there is one already.
        """
        folder = out / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        _require_own(folder)
        lock = held(out)
        if unfinished(out) is not None:
            lock.close()
            raise ConfigError(f"{out} has the journal of an unfinished run; resume it with --resume")
        key = secrets.token_hex(32)
        facts = {"kind": "begin", "format": _FORMAT, "fedsyn": __version__}
        facts |= {"run": run, "config": config, "schema": schema, "key": key}
        for name in ("open", "answers"):  # perhaps what is left of a process that was killed right here
            _private(folder / name).close()
            os.truncate(folder / name, 0)
        sync_folder(folder)
        sync_folder(out)
        with _private(folder / "answers") as file:
            _append(file, facts)
        return cls(folder, lock, facts)

    @classmethod
    def resume(cls, out: Path, *, run: str, config: str, schema: str) -> RunJournal:
        """Opens the journal that an earlier process of the run left.

        Raises:
            ConfigError: there is none, or it is of another run, configuration or schema.
            RunError: another process holds it, or it is damaged.
        """
        folder, facts = out / FOLDER, unfinished(out)
        if facts is None:
            raise ConfigError(f"there is no journal of the run in {out} on the SuperLink's machine: nothing to resume")
        if facts["run"] != run:
            raise ConfigError(f"the journal in {out} belongs to another run; name the directory of the one to resume")
        if (facts["config"], facts["schema"]) != (config, schema):
            raise ConfigError(f"the run in {out} was begun with another configuration or schema; resume it with those")
        lock = held(out)
        for name in ("answers", "open"):
            os.truncate(folder / name, sum(size for size, _ in _records(folder / name)))
        journal = cls(folder, lock, facts)
        journal._past = (record for _, record in _records(folder / "answers"))
        next(journal._past)
        journal._advance()
        return journal

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.facts["key"])

    def close(self) -> None:
        """Closes the journal, so that another process can resume it."""
        for file in (self._answers, self._open, self._lock):
            file.close()

    def remove(self) -> None:
        """Removes the journal of a run that has finished."""
        remove(self.folder.parent)
        self.close()

    # What a driver does with it ---------------------------------------------------------------------------------------

    @property
    def is_past(self) -> bool:
        return self._next is not None

    def past(self) -> Mapping[str, Any]:
        assert self._next is not None
        record = self._next
        self._answered = int(record.get("number", self._answered))
        self._advance()
        return record

    def _advance(self) -> None:
        self._next = next(self._past, None)

    def add(self, entry: Mapping[str, Any]) -> None:
        _append(self._answers, entry)
        self._answered = int(entry.get("number", self._answered))
        self._empty()

    def under_way(self) -> list[Mapping[str, Any]]:
        if self._is_empty:
            return []
        records = [record for _, record in _records(self.folder / "open")]
        self._is_empty = True  # given once: what is kept from now on is put behind it
        if records and records[0]["number"] <= self._answered:
            self._is_empty = False
            self._empty()
            return []
        return list(records)

    def keep(self, entry: Mapping[str, Any], *, first: bool = False) -> None:
        if first:
            self._is_empty = False
            self._empty()
        _append(self._open, entry)
        self._is_empty = False

    def _empty(self) -> None:
        if not self._is_empty or os.fstat(self._open.fileno()).st_size:
            os.ftruncate(self._open.fileno(), 0)
            os.fsync(self._open.fileno())
        self._is_empty = True


# What a folder holds ------------------------------------------------------------------------------------------------


def unfinished(out: Path) -> Mapping[str, Any] | None:
    """Returns the first facts in the journal of an unfinished run.

    Returns None if there is no such run in this directory. Raises RunError for a journal of another
    version.
    """
    folder = out / FOLDER
    if not (folder / "answers").is_file():
        return None
    _, facts = next(_records(folder / "answers"), (0, None))
    if facts is not None and facts.get("format") != _FORMAT:
        raise RunError(f"the journal in {folder} is of another version of fedsyn; resume with the one that wrote it")
    return facts


def spent(out: Path) -> Ledger | None:
    """Returns the ledger of the unfinished run in this directory.

    It has all that the run may have released. Returns None if the run has no ledger yet.

    Raises:
        RunError: the journal is damaged.
    """
    folder, state = out / FOLDER, None
    entries: list[Mapping[str, Any]] = []
    last = 0
    for _, record in _records(folder / "answers"):
        state = record["state"] if record["kind"] == "ledger" else state
        entries += record.get("releases", [])
        last = int(record.get("number", last))
    records = [record for _, record in _records(folder / "open")]
    if records and records[0]["number"] > last:
        entries += [record["release"] for record in records if record["kind"] == "charge"]
    return None if state is None else Ledger.from_dict({**state, "releases": entries})


def remove(out: Path) -> None:
    """Removes the journal of a run directory."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def held(out: Path) -> IO[bytes]:
    """Locks a run directory's journal, and returns the lock.

    It keeps other processes from the journal until it is closed.

    Raises:
        RunError: one of them holds it.
    """
    folder = out / FOLDER
    file = _private(folder / "lock")
    if not try_lock(file):
        file.close()
        raise RunError(
            f"another process serves the run in {out} (its journal is locked); wait until it has ended, or "
            "end it, and resume then"
        )
    return file


# Records --------------------------------------------------------------------------------------------------------------


def _require_own(folder: Path) -> None:
    """Refuses a folder that others put there, or may read.

    It will hold what a run must remember. Raises ConfigError.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{folder} is not a folder that its owner alone may read; remove it, or choose another --out")


def _private(path: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)


def _append(file: IO[bytes], entry: Mapping[str, Any]) -> None:
    payload = encode(entry)
    head = struct.pack("<Q32s", len(payload), hashlib.sha256(payload).digest())
    try:
        append_synced(file.fileno(), head + struct.pack("<I", zlib.crc32(head)) + payload)
    except OSError as error:
        raise RunError(
            f"the run's journal cannot be written: {error.strerror}; make room, and resume the run with --resume"
        ) from None


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (bytes, entry) of each whole record.

    What a crash left of the last one is left out.

    Raises:
        RunError: it is damaged before its end.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, digest, checksum = _HEAD.unpack(head)
            if checksum != zlib.crc32(head[:-4]):
                if not head.strip(b"\0") and not file.read(1 << 20).strip(b"\0"):
                    return  # the file had grown, what belongs there had not arrived
                raise _damaged(path)
            if _HEAD.size + length > left:
                return
            payload = file.read(length)
            left -= _HEAD.size + length
            if hashlib.sha256(payload).digest() != digest:
                if left:
                    raise _damaged(path)
                return
            yield _HEAD.size + length, decode(payload)


def _damaged(path: Path) -> RunError:
    return RunError(
        f"the run's journal {path} is damaged, and what the run has spent cannot be read from it: it is not resumed"
    )


def encode(entry: Mapping[str, Any]) -> bytes:
    """Returns an entry as its JSON's length, JSON, and arrays."""
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {_ARRAY: len(arrays) - 1}
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(plain(entry), separators=(",", ":")).encode()
    buffer = io.BytesIO()
    buffer.write(struct.pack("<Q", len(text)))
    buffer.write(text)
    for array in arrays:
        np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(payload: bytes) -> dict[str, Any]:
    """Decodes what `encode` returned; tuples come back as lists."""
    buffer = io.BytesIO(payload)
    (length,) = struct.unpack("<Q", buffer.read(8))
    value = json.loads(buffer.read(length))
    arrays = []
    while buffer.tell() < len(payload):
        arrays.append(np.lib.format.read_array(buffer, allow_pickle=False))

    def filled(item: Any) -> Any:
        if isinstance(item, dict):
            if _ARRAY in item:
                return arrays[item[_ARRAY]]
            return {key: filled(inner) for key, inner in item.items()}
        return [filled(inner) for inner in item] if isinstance(item, list) else item

    result: dict[str, Any] = filled(value)
    return result
