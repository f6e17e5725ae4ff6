"""Approval by a person.

It records which runs wait, who said yes, and to what exactly.

Approved is one `Subject` signed by one operator: the run's name, the hash of its configuration, the hash of the schema.
A run of the same name with another configuration is another subject, and waits anew. The folder belongs to the node's
account and is open to nobody else; otherwise nothing in it counts as approved.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedsyn.errors import CannotWrite, ConfigError, NodeError, WaitsForHolder, nearest
from fedsyn.files import replace_synced
from fedsyn.settings import Node
from fedsyn.wire.orders import Subject

#: Runs that may wait at a time: a server must not fill the holder's disk with questions.
MOST_WAITING = 100
#: Seconds after which a question that nobody answered makes room for another one, and characters of one.
STALE, MOST_TEXT = 2 * 86400.0, 2**16
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ApprovalRecord(Node):
    """One run that a person decides about, as its file has it.

    Attributes:
        format: version of the file's format.
        run, config_sha256, schema_sha256: of what is approved, or not (`subject`).
        operator: public key of the operator who signed the run; "" where nobody did.
        state: of the matter.
        asked: seconds since 1970 when the node was asked first.
        decided: when somebody decided; None: nobody has.
        config: the run's whole configuration, for the person who decides.
    """

    format: Literal[1] = 1
    run: str
    config_sha256: str
    schema_sha256: str
    operator: str
    state: Literal["pending", "approved", "rejected"] = "pending"
    asked: float
    decided: float | None = None
    config: dict[str, Any]

    @property
    def subject(self) -> Subject:
        return Subject(self.run, self.config_sha256, self.schema_sha256)

    @property
    def key(self) -> str:
        """The matter's name.

        It is the run's name, '@' (which no run's name has), and 16 digits of a hash of what is approved.
        """
        return _key(self.subject, self.operator)


class Approvals:
    """The approvals of a node, a file each.

    Args:
        folder: of the files; made, for its owner alone, when the first run waits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def require(self, subject: Subject, operator: str, config: Mapping[str, Any]) -> None:
        """Lets an approved run pass; notes that another one waits.

        Args:
            subject: what is to be approved.
            operator: who signed it, or "".
            config: the run's whole configuration, for the person who decides.

        Raises:
            WaitsForHolder: if nobody has decided yet.
            NodeError: if somebody said no; or the folder is open to others, so that nothing in it counts.
        """
        self._require_own()
        path = self._path(_key(subject, operator))
        entry = self._read(path)
        if entry is None or (entry.subject, entry.operator) != (subject, operator):
            record = ApprovalRecord(
                run=subject.run,
                config_sha256=subject.config,
                schema_sha256=subject.schema,
                operator=operator,
                asked=time.time(),
                config=dict(config),
            )
            if len(record.model_dump_json()) > MOST_TEXT:
                raise NodeError("the run's configuration is longer than this node shows to a person")
            self._make_room()
            self._write(record)
            raise WaitsForHolder("this node waits for its holder to approve the run")
        if entry.state == "rejected":
            raise NodeError("this node's holder does not want to take part in this run")
        if entry.state != "approved":
            raise WaitsForHolder("this node waits for its holder to approve the run")

    def _make_room(self) -> None:
        waiting = self.pending()
        if len(waiting) < MOST_WAITING:
            return
        if time.time() - waiting[0].asked < STALE:
            raise NodeError("too many runs wait for this node's holder already")
        self._path(waiting[0].key).unlink(missing_ok=True)

    def entries(self) -> list[ApprovalRecord]:
        """Returns all matters, the oldest first; other files are left out."""
        records = (self._read(path) for path in sorted(self.folder.glob("*.json")))
        return sorted((entry for entry in records if entry is not None), key=lambda entry: entry.asked)

    def pending(self) -> list[ApprovalRecord]:
        """Returns the runs that wait for a decision, the oldest first."""
        return [entry for entry in self.entries() if entry.state == "pending"]

    def find(self, name: str) -> ApprovalRecord:
        """Finds a matter by its run's name, or a unique beginning.

        Raises:
            ConfigError: if no run is named so; several begin so; or one was asked with several configurations.
        """
        entries = self.entries()
        named = [e for e in entries if e.subject.run == name]
        if not named:
            named = [e for e in entries if name and e.key.startswith(name)]
            runs = sorted({e.subject.run for e in named})
            if len(runs) > 1:
                raise ConfigError(f"several runs begin with '{name}': {', '.join(runs)}")
        waiting = [e for e in named if e.state == "pending"] if len(named) > 1 else named
        if len(waiting) == 1:
            return waiting[0]
        if named:
            keys = ", ".join(entry.key for entry in waiting or named)
            raise ConfigError(f"run '{name}' was asked for with several configurations: name one of {keys}")
        keys_known = [e.key for e in entries] + [e.subject.run for e in entries]
        listed = ", ".join(e.subject.run for e in entries if e.state == "pending") or "none"
        raise ConfigError(f"no run '{name}' was asked for{nearest(name, keys_known)}; waiting: {listed}")

    def decide(self, name: str, *, approve: bool) -> ApprovalRecord:
        """Writes down the holder's decision about a run.

        It is on the disk when this returns. A later word replaces an earlier.

        Raises:
            ConfigError: as `find`, or if the folder is open to others.
        """
        self._require_own()
        state = "approved" if approve else "rejected"
        decided = self.find(name).model_copy(update={"state": state, "decided": time.time()})
        self._write(decided)
        return decided

    # Files ------------------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _require_own(self) -> None:
        try:
            facts = self.folder.stat()
        except FileNotFoundError:
            return
        if facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
            raise NodeError(
                "the folder of this node's approvals must belong to its own account and be open to nobody else"
            )

    def _read(self, path: Path) -> ApprovalRecord | None:
        try:
            facts = path.lstat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
                return None
            entry = ApprovalRecord.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return entry if path.name == f"{entry.key}.json" else None

    def _write(self, entry: ApprovalRecord) -> None:
        path = self._path(entry.key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_own()
            replace_synced(path, entry.model_dump_json(indent=1))
        except OSError as error:
            raise CannotWrite(f"{path} cannot be written ({error.strerror})", error) from None


def _key(subject: Subject, operator: str) -> str:
    text = json.dumps([subject.run, subject.config, subject.schema, operator])
    return f"{subject.run}@{hashlib.sha256(text.encode()).hexdigest()[:16]}"
