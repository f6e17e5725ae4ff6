"""A node's memory of a run between two requests.

It is on disk, so that a restarted node goes on where it was.

One file a run, replaced as a whole: after a crash either the old one is there or the new one. It holds the run's state
(unfinished secure sums, the mechanism's own) and the last request's reply, so that the same request gets the same reply
again and nothing is charged. A file is sealed under the holder's key, if there is one.

A memory has a number, which grows with every `save`; the ledger notes it when a reply leaves, also one that cost
nothing. A memory that is missing, or has a smaller number than the ledger's, is not this run's: what it forgot may be
what keeps a secure sum's mask from being used twice. `load` refuses it. The other way round a memory keeps the ledger's
head: a ledger that was put back alone does not hold it (`LifetimeLedger.require`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsyn.errors import CannotWrite, ConfigError, NodeError, Unable
from fedsyn.files import replace_synced, sync_folder
from fedsyn.ledgers.chain import Head
from fedsyn.table.data.sealed import read_key, seal_bytes, unseal_bytes

_FORMAT = 1
#: Seconds for which a run that is not heard of is remembered: its secrets do not stay on the disk for longer.
KEPT = 7 * 86400.0
_END = ".memory"
_OURS = re.compile(r"[0-9a-f]{64}\.memory")


@dataclass
class RunMemory:
    """A node's memory of one run.

    Attributes:
        state: JSON values: `Holder.state`.
        digest: of the last request, None before the first.
        reply: to it.
        attempt: that made the reply (`RunAccount.attempt`).
        number: how often it was saved.
        head: of the ledger when it was saved (`RunAccount.head`): a ledger without it is older than this memory.
    """

    state: dict[str, Any] = field(default_factory=dict)
    digest: str | None = None
    reply: bytes | None = None
    attempt: str | None = None
    number: int = 0
    head: Head | None = None


class Memory:
    """The memories of a node's runs.

    Args:
        folder: made if there is none, for its owner alone.
        key_file: with the holder's key, under which the files are sealed; None: they are plain.
        look: leave the folder as it is: another process may be writing there.

    Raises:
        ConfigError: if the folder cannot be made or written, or the key's file does not hold a key.
    """

    def __init__(self, folder: Path | str, key_file: Path | str | None = None, *, look: bool = False) -> None:
        self.folder = Path(folder)
        self._key = None if key_file is None else read_key(Path(key_file))
        if look:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for leftover in self.folder.glob(".*.part-*"):  # of a process that was killed
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"state: cannot use {self.folder} ({error.strerror})") from None

    def load(self, run: str, at_least: int = 0) -> RunMemory:
        """Loads the memory of a run; empty before its first request.

        Args:
            run: its name.
            at_least: the number that the ledger knows of (`RunAccount.memory`).

        Raises:
            NodeError: if the memory is damaged, missing or older than that.
            Unable: if it cannot be read.
        """
        path = self._path(run)
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            memory = RunMemory()
        except OSError as error:
            raise Unable(
                f"what this node remembers of the run cannot be read ({error.strerror}); nothing was released"
            ) from None
        else:
            memory = self._read(raw, path.name)
        if memory.number < at_least:
            raise _lost()
        return memory

    def save(self, run: str, memory: RunMemory) -> None:
        """Writes a run's memory to disk, its number raised by one.

        It is there when this returns.

        Raises:
            CannotWrite: if it cannot be written; then nothing may leave.
        """
        number = memory.number + 1
        reply = None if memory.reply is None else len(memory.reply)
        header = {"format": _FORMAT, "run": run, **vars(memory), "number": number, "reply": reply}
        body = json.dumps(header, separators=(",", ":")).encode() + b"\n" + (memory.reply or b"")
        raw = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        if self._key is not None:
            raw = seal_bytes(raw, self._key, _about(self._path(run).name))
        try:
            replace_synced(self._path(run), raw)
        except OSError as error:
            raise CannotWrite(
                f"what this node has to remember cannot be written ({error.strerror}); nothing was released", error
            ) from None
        memory.number = number

    def heads(self) -> list[Head]:
        """Returns the heads of the ledger that are remembered.

        A memory that cannot be read is its run's matter.
        """
        heads = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if _OURS.fullmatch(path.name):
                with contextlib.suppress(NodeError, OSError):
                    heads.append(self._read(path.read_bytes(), path.name).head)
        return [head for head in heads if head is not None]

    def forget(self, older_than: float = KEPT, now: float | None = None) -> int:
        """Removes old memories; returns their number.

        It removes those last saved more than `older_than` seconds ago.

        The run's charges stay in the ledger. A run that is forgotten cannot go on.
        """
        since, count = (time.time() if now is None else now) - older_than, 0
        with contextlib.suppress(OSError):  # what cannot be removed now is removed another time
            for path in self.folder.iterdir():
                if _OURS.fullmatch(path.name) and path.stat().st_mtime < since:
                    path.unlink(missing_ok=True)
                    count += 1
            if count:
                sync_folder(self.folder)
        return count

    def _path(self, run: str) -> Path:
        return self.folder / (hashlib.sha256(run.encode()).hexdigest() + _END)

    def _read(self, raw: bytes, name: str) -> RunMemory:
        try:
            if self._key is not None:
                raw = unseal_bytes(raw, self._key, _about(name))
            digest, body = raw.split(b"\n", 1)
            if hashlib.sha256(body).hexdigest().encode() != digest:
                raise ValueError
            line, reply = body.split(b"\n", 1)
            header = json.loads(line)
            if header["format"] != _FORMAT or len(reply) != (header["reply"] or 0):
                raise ValueError
            if self._path(header["run"]).name != name:
                raise ValueError
            last_reply = None if header["reply"] is None else reply
            head = None if header.get("head") is None else Head(int(header["head"][0]), str(header["head"][1]))
            return RunMemory(
                header["state"], header["digest"], last_reply, header["attempt"], int(header["number"]), head
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            raise _lost() from None


def _about(name: str) -> bytes:
    return b"fedsyn run memory " + name.encode()


def _lost() -> NodeError:
    return NodeError(
        "what this node remembers of the run is missing, damaged or older than its ledger: the run cannot go on here"
    )
