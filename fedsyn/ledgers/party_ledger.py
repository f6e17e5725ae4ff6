"""A party's ledger for life.

What all runs together have released, on disk before any noise is drawn.

A line is on the disk before `begin` or `charge` returns, and noise is drawn only after that; so a release that happened
has its line, whatever happens to the process or the machine.

A torn last line counts for the worst that it can have been: the run before it counts as if it had spent all that it
announced. When the ledger is opened the next time, that is written down as a line of its own, and a run without an end
gets one.

What this file cannot know: that it was replaced by an older copy of itself. Keep it where no backup overwrites it, or
keep its head elsewhere (`fedsyn ledger export --head`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsyn.config import RunConfig
from fedsyn.ledgers.chain import TORN, LedgerLines, LifetimeLedger, read_lines
from fedsyn.ledgers.limits import Kind
from fedsyn.privacy import PrivacyBudget, zcdp_epsilon
from fedsyn.privacy.budget import affordable, require_budget


@dataclass
class PartyLines(LedgerLines):
    """Lines that were read of a party's ledger.

    Attributes:
        runs: run id -> [announced rho, spent rho].
        begun: run id -> the entry of its begin.
        open: id of the last run that was begun, None after its end.
    """

    owner: ClassVar[str] = "party"
    kind: ClassVar[Kind] = "zcdp"
    advice: ClassVar[str] = "restore the true file, or start a new party with a new key"

    begun: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    open: str | None = None

    @property
    def torn_rho(self) -> float:
        """Most that a torn line can have released.

        The rest of what the run before it announced.
        """
        if self.open is None or not self.torn:
            return 0.0
        announced, spent = self.runs[self.open]
        return max(0.0, announced - spent)

    def mended(self) -> dict[str, Any]:
        return {"entry": TORN, "run": self.open or "", "rho": self.torn_rho}

    def take(self, entry: Mapping[str, Any]) -> None:
        kind, run, rho = entry["entry"], entry["run"], float(entry.get("rho", 0.0))
        if not 0.0 <= rho < math.inf:
            raise ValueError
        if kind == "begin" and run not in self.runs:
            self.runs[run], self.open = [rho, 0.0], run
            self.begun[run] = entry
        elif kind in ("release", TORN) and (run in self.runs or kind == TORN):
            self.runs.setdefault(run, [0.0, 0.0])[1] += rho
        elif kind == "end" and run in self.runs:
            self.open = None
        else:
            raise ValueError


def facts_of(config: RunConfig) -> dict[str, str]:
    """Returns the facts of a run's first line.

    Its own name is the server's word, and binds nothing: the id does.
    """
    facts = {"mechanism": config.mechanism.name, "configuration": config.sha256}
    return facts | ({"name": config.runtime.run} if config.runtime.run else {})


def called(run: str, name: str | None) -> str:
    """Returns words for a run: its name, and the parties' id."""
    return f"{name} ({run[:16]})" if name else run[:16]


def read_party_lines(path: Path) -> PartyLines:
    """Reads a party's ledger without changing or locking it.

    Nothing was read where there is no file.

    Raises:
        ConfigError: if a line is damaged that is not the last one, or the file cannot be read.
    """
    return read_lines(path, PartyLines()) if path.exists() else PartyLines()


class PartyLedger(LifetimeLedger[PartyLines]):
    """The ledger of one running party.

    No other process can open it meanwhile.

    Args:
        path: of the file; made if there is none.
        budget: of all runs together.

    Raises:
        ConfigError: if it is damaged, cannot be written, or another process has it.
    """

    def __init__(self, path: Path, budget: PrivacyBudget) -> None:
        self.budget = budget
        super().__init__(path, PartyLines, alone=True)
        try:
            if self.lines.open is not None:
                self.end(self.lines.open)
        except BaseException:
            self.close()
            raise

    @property
    def epsilon(self) -> float:
        """Epsilon spent, at the policy's delta."""
        return zcdp_epsilon(self.spent, self.budget.delta)

    def require_left(self, rho: float, remedy: Callable[[], str] = str) -> None:
        """Raises BudgetExceeded if `rho` more would exceed the total.

        `remedy` says what would fit.
        """
        require_budget(
            affordable(self.spent + rho, self.budget.rho),
            lambda: (
                f"over all runs this party may release {self.budget}; {self.epsilon:.4g} is spent, and {rho:.4g} "
                f"rho more would exceed it{remedy()}"
            ),
        )

    def begin(self, run: str, rho: float, **facts: Any) -> None:
        """Begins a run that may release up to `rho`.

        Raises BudgetExceeded if that would exceed the total.
        """
        self.require_left(rho)
        self.append({"entry": "begin", "run": run, "rho": rho, **facts})

    def charge(self, run: str, rho: float, **facts: Any) -> None:
        """Charges one release, on disk when this returns.

        Raises BudgetExceeded, and writes nothing, if it would exceed the total.
        """
        self.require_left(rho)
        self.append({"entry": "release", "run": run, "rho": rho, **facts})

    def end(self, run: str) -> None:
        """Ends a run: it releases nothing more."""
        self.append({"entry": "end", "run": run})
