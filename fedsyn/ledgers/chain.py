"""Append-only JSON lines on disk, chained by digests.

Each line has a digest over the line before it.

A holder's node and a party have one each (`fedsyn.ledgers.node_ledger`, `party_ledger`), with its own kind of
lines.

A line is on the disk (`fsync` of the file, of its folder when it is made) before `LifetimeLedger.append` returns. It
is the JSON of its entry, character for character, and names the digest of the line before it: a line that was
changed, lost, repeated or moved is noticed when the file is read. Writers exclude each other by `flock`.

A last line that is torn (the machine stopped while it was written) was not yet followed by whatever it announces. The
reader of the lines says what is the worst that it can have been, and that is written down as a line of its own, kind
`torn`, before anything else. Anything else that does not fit is refused: then a person has to look.

What the lines alone cannot show: that somebody wrote all of them anew, digests included, or put back an older copy of
the file. Both show only against a head (line number and digest) that was kept elsewhere: `LedgerLines.holds`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from fedsyn.errors import CannotWrite, ConfigError, LedgerDamaged, RunError, Unable
from fedsyn.files import append_synced, sync_folder, try_lock, write_new

_FORMAT = 1
START = "0" * 32  # what the first line follows
TORN = "torn"
#: Seconds that a writer waits for another one: it holds the lock for two system calls.
_PATIENCE = 60.0


class Head(NamedTuple):
    """Position of a ledger.

    The number of its entries, and the digest of the last one.
    """

    entries: int
    digest: str


@dataclass
class LedgerLines:
    """Lines that were read of a ledger.

    A subclass says in `take` what its entries mean.

    Attributes:
        owner: of such a ledger, for people.
        advice: for people whose ledger is damaged.
        entries: in order.
        head: digest that the next line must name.
        fragments: last lines that are torn, as long as nothing says what they count as.
        size: bytes that were read.
        number: line ends that were read: the number of the line that comes next, less one.
        ended: whether the last line has its end.
    """

    owner: ClassVar[str]
    advice: ClassVar[str]

    entries: list[dict[str, Any]] = field(default_factory=list)
    head: str = START
    fragments: list[bytes] = field(default_factory=list)
    size: int = 0
    number: int = 0
    ended: bool = True

    @property
    def torn(self) -> bool:
        return bool(self.fragments)

    @property
    def spent(self) -> float:
        """Total rho that was charged."""
        return math.fsum(entry.get("rho", 0.0) for entry in self.entries if entry["entry"] != "begin")

    @property
    def where(self) -> Head:
        return Head(len(self.entries), self.head)

    def take(self, entry: Mapping[str, Any]) -> None:
        """Takes in an entry's meaning.

        Raises ValueError, LookupError or TypeError if it does not fit.
        """

    def mended(self) -> dict[str, Any]:
        """Returns the entry that counts the torn lines at their worst."""
        return {"entry": TORN}

    def add(self, entry: dict[str, Any]) -> None:
        """Takes in a line.

        Raises ValueError, LookupError or TypeError if it does not follow.
        """
        if entry["follows"] != self.head or entry["format"] != _FORMAT:
            raise ValueError
        if self.torn and entry["entry"] != TORN:
            raise ValueError
        self.take(entry)
        self.head = digest_of(entry)
        self.entries.append(entry)
        self.fragments.clear()

    def read(self, raw: bytes, path: Path) -> None:
        """Takes in what the file holds from `size` on.

        Raises:
            LedgerDamaged: if a line is damaged that is not the last one.
        """
        for place, line in enumerate(raw.split(b"\n")):
            self.number += place > 0
            if not line:
                continue
            try:
                entry = _parsed(line)
                # Half a line, or the end of one whose beginning was read before: its writer was stopped.
                if entry is None or (place == 0 and not self.ended):
                    self.fragments.append(line)
                else:
                    self.add(entry)
            except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError):
                raise damaged(path, self.number + 1, self.advice) from None
        self.size += len(raw)
        self.ended = raw.endswith(b"\n") if raw else self.ended

    def holds(self, head: Head) -> bool:
        """Returns whether the ledger goes through a noted head."""
        if head.entries > len(self.entries):
            return False
        after = self.entries[head.entries]["follows"] if head.entries < len(self.entries) else self.head
        return bool(after == head.digest)

    def require(self, head: Head, path: Path) -> None:
        """Raises LedgerDamaged unless the ledger holds a noted head.

        It was read from `path`.
        """
        if not self.holds(head):
            raise LedgerDamaged(
                f"ledger: {path} is older than what this {self.owner} has seen: its entry {head.entries} is missing or "
                f"another one; {self.advice}",
                min(head.entries, len(self.entries) + 1),
            )


L = TypeVar("L", bound=LedgerLines)


def damaged(path: Path, line: int, advice: str) -> LedgerDamaged:
    """Returns the error of a line that does not fit."""
    return LedgerDamaged(
        f"ledger: {path} was changed or is damaged at line {line}; nothing is released until somebody has found out "
        f"why: {advice}",
        line,
    )


def digest_of(entry: Mapping[str, Any]) -> str:
    """Returns 128 bits of SHA-256 over an entry and its past.

    Its `follows` stands for all that came before it.
    """
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:32]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Returns the entry of a line; None if it is torn.

    Raises ValueError if this module did not write it.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or json.dumps(entry).encode() != line:
        raise ValueError
    return entry


def legible(fragment: bytes) -> dict[str, Any]:
    """Returns what a torn line still says.

    Its members up to the last whole one. {} if nothing can be read.

    >>> legible(b'{"entry": "charge", "rho": 0.015, "release": {"name": "mea')
    {'entry': 'charge', 'rho': 0.015}
    """
    for comma in reversed(list(re.finditer(rb', "', fragment))):
        try:
            members = json.loads(fragment[: comma.start()] + b"}")
        except (ValueError, RecursionError):
            continue
        if isinstance(members, dict):
            return members
    return {}


def read_raw(path: Path) -> bytes:
    """Reads the file of a ledger without locking it.

    Raises ConfigError if it is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"ledger: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"ledger: cannot read {path} ({error.strerror})") from None


def read_lines(path: Path, lines: L) -> L:
    """Reads a ledger without changing or locking it.

    Raises:
        LedgerDamaged: if a line is damaged that is not the last one.
        ConfigError: if the file is missing or cannot be read.
    """
    lines.read(read_raw(path), path)
    return lines


def require_private(path: Path) -> None:
    """Raises ConfigError if others than its owner may write a ledger.

    Or its folder: they could put an older one there.

    In a folder like /tmp (sticky) nobody replaces another one's file.
    """
    for each in (path.parent, path):
        with contextlib.suppress(OSError):  # opening the file will tell of it
            mode = each.stat().st_mode
            if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
                raise ConfigError(
                    f"ledger: {each} can be written by others than its owner, who could put an older ledger there; "
                    f"find out whether somebody did, then type: chmod go-w {each}"
                )


class LifetimeLedger(Generic[L]):
    """A ledger that is written to.

    Either one process has it for as long as it is open (`alone`), or any number of processes take turns: each turn is
    a `with ledger.turn():`, which locks the file, reads what others appended, and mends a torn last line. A turn opens
    the file anew, because a forked child shares its parent's open file and so its lock.

    Args:
        path: of the file, which must be there unless `alone`.
        make: returns empty lines of this ledger's kind.
        alone: keep the lock until `close`; the file is made if there is none.
        seen: a head that was noted before. It is looked for before a torn line is mended: a file that is refused stays
            as it is.

    Raises:
        ConfigError: if the file cannot be opened, others may write it, or (`alone`) another process has it.
        LedgerDamaged: if it was changed, or does not go on from `seen`.
    """

    def __init__(self, path: Path, make: Callable[[], L], *, alone: bool = False, seen: Head | None = None) -> None:
        require_private(path)
        self.path, self.alone = path, alone
        self._make, self._file, self._inode = make, -1, 0
        self.lines: L = make()
        self._of = f"the ledger of this {self.lines.owner}"
        self._known = self.lines.where if seen is None else seen
        self._reread = False
        is_new = not path.exists()
        try:
            self._open(os.O_CREAT if alone else 0)
        except OSError as error:
            raise ConfigError(f"ledger: cannot open {path} ({error.strerror})") from None
        self._inode = os.fstat(self._file).st_ino
        try:
            self._lock(0.0 if alone else _PATIENCE)
            if is_new:
                sync_folder(path.parent)
            self._refresh()
        except OSError as error:
            self.close()
            raise ConfigError(f"ledger: cannot write {path} ({error.strerror})") from None
        except BaseException:
            self.close()
            raise
        if not alone:
            self.close()

    @property
    def spent(self) -> float:
        """rho of all runs so far."""
        return self.lines.spent

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @contextmanager
    def turn(self) -> Iterator[L]:
        """Holds the lines as they are now.

        Nobody else appends until the end of the block.

        Raises:
            Unable: if the file cannot be opened, locked or mended.
            LedgerDamaged: if it was changed, replaced or cut since it was read last.
        """
        if self._file >= 0:
            raise RunError(f"{self._of} is in use")
        try:
            try:
                self._open(0)
                self._lock(_PATIENCE)
                self._refresh()
            except OSError as error:
                why = f"{self._of} cannot be opened ({error.strerror}); nothing was released"
                raise CannotWrite(why, error) from None
            yield self.lines
        finally:
            self.close()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Writes a line and waits for the disk.

        `format`, `time` and `follows` are added.

        Raises:
            RunError: if it is closed, or cannot be written (`CannotWrite`). What there is of the line is taken back,
                where the disk lets it; else it is torn. An `alone` ledger takes nothing more, another one reads the
                whole file again at its next turn.
            ValueError, LookupError, TypeError: if it does not fit; nothing is written.
        """
        if self._file < 0:
            raise RunError(f"{self._of} is closed")
        lines = self.lines
        whole = {"format": _FORMAT, "time": int(time.time()), **entry, "follows": lines.head}
        line = (b"" if lines.ended else b"\n") + json.dumps(whole).encode() + b"\n"
        lines.add(whole)  # first: what does not follow never gets into the file
        self._reread = True
        try:  # nothing was released: a full disk does not cost what a torn line may
            append_synced(self._file, line)
        except OSError as error:
            self.close()  # only a fresh look at the file knows what is in it
            why = f"{self._of} cannot be written ({error.strerror}); nothing was released"
            raise CannotWrite(why, error) from None
        except BaseException:
            self.close()
            raise
        lines.size, lines.number, lines.ended = lines.size + len(line), lines.number + 1 + (not lines.ended), True
        self._known, self._reread = lines.where, False

    def require(self, head: Head | None) -> None:
        """Raises LedgerDamaged unless the ledger holds a head noted elsewhere.

        In a memory for one.
        """
        if head is not None:
            self.lines.require(head, self.path)

    def _open(self, more: int) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | more, 0o600)

    def _lock(self, patience: float) -> None:
        until = time.monotonic() + patience
        while not try_lock(self._file):
            if self.alone:
                raise ConfigError(f"ledger: another process has {self.path} open: a {self.lines.owner} runs once")
            if time.monotonic() > until:
                raise Unable(f"{self._of} is held by another process; nothing was released")
            time.sleep(0.005)

    def _refresh(self) -> None:
        """Reads what is new, and counts torn lines at their worst."""
        if self._reread:
            self.lines, self._reread = self._make(), False
        status = os.fstat(self._file)
        if status.st_ino != self._inode or status.st_size < self.lines.size:
            raise LedgerDamaged(
                f"ledger: {self.path} was replaced or cut while this {self.lines.owner} was running; "
                f"{self.lines.advice}",
                len(self.lines.entries) + 1,
            )
        # Only what others appended since the last look is read; if that fails, the next turn reads the whole file.
        self._reread = True
        raw = os.pread(self._file, status.st_size - self.lines.size, self.lines.size)
        self.lines.read(raw, self.path)
        self.require(self._known)
        if raw:
            os.fsync(self._file)  # its writer may have been killed before it could wait for the disk
        self._known, self._reread = self.lines.where, False
        if self.lines.torn:
            try:
                self.append(self.lines.mended())
            except ValueError:  # a torn first line: there is nothing that it could follow
                raise damaged(self.path, self.lines.number + 1, self.lines.advice) from None


def create(path: Path, entry: Mapping[str, Any]) -> Head:
    """Makes a ledger with its first line, all or nothing.

    Returns its head.

    Raises:
        FileExistsError: if there is a file already; it is left as it is.
        OSError: if it cannot be written.
    """
    whole = {"format": _FORMAT, "time": int(time.time()), **entry, "follows": START}
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        part.unlink(missing_ok=True)  # of a process of this number that was killed
        write_new(part, json.dumps(whole).encode() + b"\n")
        os.link(part, path)  # fails where there is one: a rename would put this one in its place
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)
    return Head(1, digest_of(whole))
