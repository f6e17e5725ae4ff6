"""A party's ledger for life: what all runs together have released, on disk before any noise is drawn.

One JSON object a line, appended, never changed. A line is on the disk (`fsync`) before `begin` or `charge` returns, and
noise is drawn only after that; so a release that happened has its line, whatever happens to the process or the machine.
Each line holds a digest over the line before it: a line that was changed, lost or moved is noticed.

A last line that is torn (the machine stopped while it was written) was not yet followed by noise. It cannot be read, so
it counts for the worst that it can have been: the run before it counts as if it had spent all that it announced. When
the ledger is opened the next time, that is written down as a line of its own, and a run without an end gets one.
Anything else that does not fit is refused: then a person has to look.

What this file cannot know: that it was replaced by an older copy of itself. Keep it where no backup overwrites it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsyn.errors import BudgetExceeded, ConfigError, RunError
from fedsyn.privacy import PrivacyBudget, zcdp_epsilon
from fedsyn.privacy.accountant import affordable

_FORMAT = 1
_START = "0" * 32  # what the first line follows


@dataclass
class Reading:
    """What a ledger's lines say.

    Attributes:
        entries: in order.
        chain: digest that the next line must name.
        torn: whether a last line is torn.
        spent: rho of all runs.
        runs: run id -> [announced rho, spent rho].
        open: id of the last run that was begun, None after its end.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    chain: str = _START
    torn: bool = False
    runs: dict[str, list[float]] = field(default_factory=dict)
    open: str | None = None

    @property
    def spent(self) -> float:
        return math.fsum(entry.get("rho", 0.0) for entry in self.entries if entry["entry"] != "begin")

    @property
    def worst(self) -> float:
        """What a torn line can have released at most: the rest of what the run before it announced."""
        if self.open is None:
            return 0.0
        announced, spent = self.runs[self.open]
        return max(0.0, announced - spent)

    def add(self, entry: dict[str, Any]) -> None:
        """Takes a line in; ValueError if it does not follow."""
        kind, run, rho = entry["entry"], entry["run"], float(entry.get("rho", 0.0))
        if entry["follows"] != self.chain or entry["format"] != _FORMAT or not 0.0 <= rho < math.inf:
            raise ValueError
        if kind == "begin" and run not in self.runs:
            self.runs[run], self.open = [rho, 0.0], run
        elif kind in ("release", "torn") and (run in self.runs or kind == "torn"):
            self.runs.setdefault(run, [0.0, 0.0])[1] += rho
        elif kind == "end" and run in self.runs:
            self.open = None
        else:
            raise ValueError
        self.chain = _digest(entry)
        self.entries.append(entry)


def read_book(path: Path) -> Reading:
    """Reads a ledger without changing or locking it.

    Raises:
        ConfigError: a line is damaged that is not the last one, or the file cannot be read.
    """
    reading = Reading()
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return reading
    except OSError as error:
        raise ConfigError(f"ledger: cannot read {path} ({error.strerror})") from None
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:  # torn, if nothing comes after it but the line that says so
            reading.torn = True
            continue
        try:
            if reading.torn and entry["entry"] != "torn":
                raise ValueError
            reading.add(entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path, number) from None
        reading.torn = False
    return reading


def _damaged(path: Path, number: int) -> ConfigError:
    return ConfigError(
        f"ledger: {path} was changed or is damaged at line {number}; nothing is released until somebody has found out "
        "why: restore the true file, or start a new party with a new key"
    )


class Book:
    """The ledger of one running party; nobody else can open it meanwhile.

    Args:
        path: of the file; made if there is none.
        budget: of all runs together.

    Raises:
        ConfigError: it is damaged, cannot be written, or another process has it.
    """

    def __init__(self, path: Path, budget: PrivacyBudget) -> None:
        self.path, self.budget = path, budget
        is_new = not path.exists()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"ledger: cannot open {path} ({error.strerror})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"ledger: another process has {path} open: a party runs once") from None
        try:
            if is_new:
                _sync_folder(path.parent)
            self._reading = read_book(path)
            self._mend()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def spent(self) -> float:
        """rho of all runs so far."""
        return self._reading.spent

    @property
    def epsilon(self) -> float:
        """The same as epsilon, at the policy's delta."""
        return zcdp_epsilon(self.spent, self.budget.delta)

    def check(self, rho: float) -> None:
        """BudgetExceeded if `rho` more would exceed the total."""
        if not affordable(self.spent + rho, self.budget.rho):
            raise BudgetExceeded(
                f"over all runs this party may release epsilon = {self.budget.epsilon:g} at delta = "
                f"{self.budget.delta:g}; {self.epsilon:.4g} is spent, and {rho:.4g} rho more would exceed it"
            )

    def begin(self, run: str, rho: float, **facts: Any) -> None:
        """A run that may release up to `rho`; BudgetExceeded if that would exceed the total."""
        self.check(rho)
        self._append({"entry": "begin", "run": run, "rho": rho, **facts})

    def charge(self, run: str, rho: float, **facts: Any) -> None:
        """One release, on disk when this returns; BudgetExceeded if it would exceed the total, and then no line."""
        self.check(rho)
        self._append({"entry": "release", "run": run, "rho": rho, **facts})

    def end(self, run: str) -> None:
        self._append({"entry": "end", "run": run})

    def _append(self, entry: dict[str, Any]) -> None:
        """Writes a line and waits for the disk; after a failure the book takes nothing more."""
        if self._file < 0:
            raise RunError("the ledger of this party is closed")
        whole = {"format": _FORMAT, "time": int(time.time()), **entry, "follows": self._reading.chain}
        self._reading.add(whole)  # first: what does not follow never gets into the file
        line = memoryview(json.dumps(whole).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError:
            self.close()  # the line may be torn: only a fresh look at the file knows
            raise RunError("the ledger of this party cannot be written; nothing was released") from None

    def _mend(self) -> None:
        """Ends a torn last line and enters the worst that it can have been; ends a run that has no end."""
        reading = self._reading
        raw = self.path.read_bytes()
        if raw and not raw.endswith(b"\n"):
            os.write(self._file, b"\n")
        if reading.torn:
            self._append({"entry": "torn", "run": reading.open or "", "rho": reading.worst})
            reading.torn = False
        if reading.open is not None:
            self.end(reading.open)


def _digest(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:32]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
