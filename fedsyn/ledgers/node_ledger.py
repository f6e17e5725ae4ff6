"""A holder's ledger for life.

What its table has given away in all runs, on disk before any noise is drawn.

What its lines mean is in `fedsyn.ledgers.node_lines`; how they add up, and why one conversion holds for a whole
life, is in `fedsyn.ledgers.limits`.

**Invariant.** Whatever process is killed, at whatever instruction, and whatever the disk refuses:

1. *No charge is lost.* A line is on the disk before `RunAccount.charge` returns, and noise is drawn after that.
2. *None is counted twice.* A charge whose reply did not leave pays for the next attempt at the identical request: the
   noise of the attempt before was seen by nobody. "Did not leave" is what the ledger says: a reply leaves only after
   its attempt was marked as answered, and an attempt that lost a charge to a later one cannot be marked.
3. *The file can be read, or is counted at its worst.* A torn last line counts as what can be read of it, or else as the
   largest rest of any run under way, none of which then goes on.
4. *Whatever cannot be written or trusted is refused*, and nothing is released.

**Two checks.** When a run begins, its whole budget must fit beside what is spent and what other runs announced and have
not spent, so that a run that was let in is not starved by one that came later. That is a courtesy: it keeps nothing on
disk, and ends with a run or after a day of silence. Each charge is checked again, under the lock, against the limits
and what is spent by then; that alone is what the limits rest on, also with several processes, runs and nodes that share
a file.

**Clocks.** An entry's time is never before one seen earlier, and a period ends at the clock's own time: a clock that
jumps back frees nothing early. One that is set *forward* does; only the limit for life needs no clock.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedsyn.errors import CannotWrite, ConfigError, LedgerDamaged, NodeError, Unable
from fedsyn.files import replace_synced
from fedsyn.ledgers.admission import require_admissible
from fedsyn.ledgers.chain import Head, LifetimeLedger, create
from fedsyn.ledgers.limits import Cost, Kind, LifetimeLimits, Limit, adding, epsilon_of, total
from fedsyn.ledgers.node_lines import Charge, LedgerRun, NodeLines, Run
from fedsyn.privacy import GAUSSIAN, Release
from fedsyn.privacy.budget import affordable, require_budget

#: Requests, and charges, of one run: a server that asks for next to nothing, for ever, does not fill the disk.
MOST = 50_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NodeLedger(LifetimeLedger[NodeLines]):
    """The ledger of one table.

    Several processes may have it open: they take turns.

    Args:
        path: of the file.
        limits: of the holder.
        now: the clock, seconds since 1970.

    Raises:
        ConfigError: if the ledger is missing (`init_ledger` makes it, once), cannot be written, or others may write it.
        LedgerDamaged: if it was changed, or is older than what was seen of it (`PATH.seen`), or nobody can say so.
    """

    def __init__(self, path: Path | str, limits: LifetimeLimits, *, now: Callable[[], float] = time.time) -> None:
        self.limits, self._now, path = limits, now, Path(path)
        if not path.exists():
            raise ConfigError(
                f"ledger: {path} is missing; a lost ledger is not a fresh start: restore it from a backup, or, for a "
                "table that has given nothing away yet, type: fedsyn node init-ledger NODE.yaml"
            )
        seen = seen_head(path)
        super().__init__(path, partial(NodeLines, now=now), seen=seen)
        if self.lines.opened is None:
            raise LedgerDamaged(f"ledger: {path} has no first line; {NodeLines.advice}", 1)
        if seen is None and len(self.lines.entries) > 1:  # a node notes it before its first run
            raise LedgerDamaged(
                f"ledger: {_seen(path)} is missing, so {path} may be an older copy: restore both from one backup", 1
            )
        self._note()

    # -------------------------------------------------------------------------------------------------- what is spent

    @property
    def kind(self) -> Kind:
        """The filter of this table's life; before the first run, 'zcdp'."""
        return self.lines.kind or "zcdp"

    @property
    def runs(self) -> Mapping[str, Run]:
        return self.lines.runs

    @property
    def epsilon(self) -> float:
        """Epsilon spent, at the delta of the limit for life."""
        return epsilon_of(total(self.lines.costs, self.kind), self.limits.lifetime.delta, self.kind)

    def refresh(self) -> None:
        """Reads what other processes, a forked child for one, have appended."""
        with self.turn():
            pass

    # ----------------------------------------------------------------------------------------------------------- runs

    def account(self, run: str, facts: LedgerRun, request: str = "") -> RunAccount:
        """Opens a run's account, for one attempt at one request.

        The run begins if it has not.

        Args:
            run: its name.
            facts: what it is; the same for all its requests.
            request: digest of the request that is to be answered. Without one no charge is ever taken over.

        Raises:
            BudgetExceeded: if the run asks for more than a limit leaves; the message may go to the operator. Nothing
                is written.
            NodeError: if the name cannot be used, or belongs to another run.
            Unable: if the ledger cannot be written.
        """
        with self.turn() as lines:
            self._require_taken(lines, run, facts)
            begins = run not in lines.runs
            if begins:
                entry = {"entry": "begin", "time": lines.stamp(), "run": run, **facts.to_dict()}
                self.append({**entry, "rho": facts.announced})
        if begins:
            self._note()
        return RunAccount(self, run, request)

    def require_taken(self, run: str, facts: LedgerRun) -> None:
        """Refuses a run that `account` would refuse; writes nothing.

        Before a person is asked about the run.

        Raises:
            BudgetExceeded, NodeError, Unable: as `account`.
        """
        with self.turn() as lines:
            self._require_taken(lines, run, facts)

    def _require_taken(self, lines: NodeLines, run: str, facts: LedgerRun) -> None:
        if not _NAME.fullmatch(run):
            raise NodeError("this node takes a run only under a name of letters, digits, '.', '_' and '-', up to 100")
        require_admissible(lines, run, facts, self.limits, self._now())
        if run in lines.runs and lines.runs[run].memory >= MOST:
            raise NodeError(f"this run has asked this node {MOST} times: no run goes on for longer")

    def end(self, run: str) -> None:
        """Ends a run.

        What it announced and has not spent is free for others. It may still charge.
        """
        with self.turn() as lines:
            if run in lines.runs and not lines.runs[run].ended:
                self.append({"entry": "end", "time": lines.stamp(), "run": run})

    def _check_charge(self, lines: NodeLines, run: Run, release: Release) -> None:
        rho = run.counts(release)
        what = f"release '{release.name}' of round {release.round} costs rho = {rho:.4g}"
        gaussian = release.mechanism == GAUSSIAN
        require_budget(
            len(run.charges) < MOST, lambda: f"this run has charged {MOST} releases: no run goes on for longer"
        )
        # A run that was counted as Gaussian noise alone announced nothing for a choice.
        is_open = not run.closed and (gaussian or run.facts.kind != "gaussian")
        require_budget(is_open, lambda: f"{what}, and this run may charge no such thing any more")
        fits = affordable(run.spent + rho, run.facts.announced)
        require_budget(fits, lambda: f"{what}, more than is left of what its run announced")
        # What binds for life: each limit, in the ledger's own filter, whatever this run or another has announced.
        kind, now = lines.kind or run.facts.kind, self._now()
        more = Cost(rho, gaussian).under(kind)
        for limit in adding(self.limits):
            spent = total(limit.within(lines.costs, now), kind)
            require_budget(limit.fits(spent, more, kind), partial(_beyond, limit, spent, kind, what))

    def _note(self, *, wait: bool = True) -> None:
        """Keeps the head beside the ledger.

        An older copy of the ledger alone is noticed at the next start.

        `wait`: for the disk. Where a reply is about to leave there is no need to: the ledger itself was waited for, and
        the note is written over the one before, all of one length and in one sector.
        """
        where = self.lines.where
        text = f'{{"format": 1, "entries": {where.entries:12d}, "head": "{where.digest}"}}\n'.encode()
        try:
            if wait:
                replace_synced(_seen(self.path), text)
                return
            descriptor = os.open(_seen(self.path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, text, 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CannotWrite(
                f"cannot record the ledger's position in {_seen(self.path)} ({error.strerror}); nothing was released",
                error,
            ) from None


class RunAccount:
    """A holder's releases in one run.

    As seen by one attempt at one request (`wire.holder.Account`).

    In this order: `charge` before noise is drawn; the reply is kept (`fedsyn.node.memory`) with the name of the
    attempt; `answered`; the reply leaves.

    Attributes:
        attempt: random name of this attempt; the memory keeps it beside the reply.
    """

    def __init__(self, ledger: NodeLedger, run: str, request: str) -> None:
        self.run, self.request, self.attempt = run, request, secrets.token_hex(8)
        self._ledger = ledger

    @property
    def releases(self) -> Sequence[Release]:
        """Releases charged in this run, in order.

        Without those that this attempt charges again for free.
        """
        return tuple(charge.release for charge in self._charges if not self._pays(charge))

    @property
    def memory(self) -> int:
        """Number of the newest memory with which a reply left.

        An older one is not this run's.
        """
        return self._ledger.runs[self.run].memory

    @property
    def head(self) -> Head:
        """Position of the ledger, for the memory to keep.

        An older ledger beside it is then noticed.
        """
        return self._ledger.lines.where

    def charge(self, release: Release) -> None:
        """Writes a release down before its noise is drawn.

        It is on the disk when this returns.

        Raises:
            BudgetExceeded: if it would exceed the run's budget or a limit of the holder's; nothing is written.
            Unable: if it cannot be written, and nothing may be released.
        """
        ledger = self._ledger
        with ledger.turn() as lines:
            run = lines.runs[self.run]
            rho = run.counts(release)
            common = {"run": self.run, "rho": rho, "request": self.request, "attempt": self.attempt}
            # An equal charge of an earlier attempt at this request, whose reply never left, pays for this one.
            for number, charge in enumerate(run.charges):
                if self._pays(charge) and charge.release == release:
                    del common["rho"]
                    entry = {"entry": "again", "time": lines.stamp(), **common, "number": number}
                    ledger.append(entry)
                    return
            ledger._check_charge(lines, run, release)
            facts = {"configuration": run.facts.configuration, "mechanism": run.facts.mechanism}
            ledger.append(
                {
                    "entry": "charge",
                    "time": lines.stamp(),
                    **common,
                    "number": len(run.charges),
                    **facts,
                    "release": release.to_dict(),
                }
            )

    def answered(self, memory: int = 0) -> None:
        """Notes that the reply may leave.

        Called once the reply and all that the run has to remember are on the disk, and before the reply leaves.

        Args:
            memory: number of the memory that this attempt kept (`RunMemory.number`); 0 if it kept none.

        Raises:
            Unable: if the ledger cannot be written, or another attempt has taken a charge over, or has let a reply out
                with a memory of this number: this reply must not leave.
        """
        if not self._settle(self.attempt, memory, fresh=memory > 0):
            raise Unable("another process of this node answers this request: nothing was released by this one")

    def repeats(self, attempt: str | None, memory: int = 0) -> bool:
        """Returns whether an earlier attempt's reply may leave.

        Once more, or at last.

        Args:
            attempt: its name, as the memory has it.
            memory: the memory's number.

        Raises:
            Unable: if the ledger cannot be written.
        """
        return attempt is not None and self._settle(attempt, memory)

    @property
    def _charges(self) -> list[Charge]:
        return self._ledger.runs[self.run].charges

    def _pays(self, charge: Charge) -> bool:
        """Returns whether an earlier attempt's charge is this one's to use."""
        mine = charge.request == self.request != "" and charge.owner != self.attempt
        return mine and not charge.answered

    def _settle(self, attempt: str, memory: int, *, fresh: bool = False) -> bool:
        """Marks an attempt's charges as answered.

        False if one of them is another attempt's by now.

        `fresh`: the memory was kept just now; False if a reply has left with its number, or a later one.
        """
        ledger = self._ledger
        with ledger.turn() as lines:
            run = lines.runs[self.run]
            charged = [(number, charge) for number, charge in enumerate(run.charges) if attempt in charge.attempts]
            # Of all attempts that share a charge, the last owner's reply leaves, and no other.
            if any(charge.owner != attempt for _, charge in charged) or (fresh and memory <= run.memory):
                return False
            numbers = [number for number, charge in charged if not charge.answered]
            if numbers or memory > run.memory:  # also of a reply that cost nothing: no older memory is this run's
                entry = {"entry": "answered", "time": lines.stamp(), "run": self.run, "request": self.request}
                ledger.append({**entry, "attempt": attempt, "numbers": numbers, "memory": memory})
                ledger._note(wait=False)
        return True


def _beyond(limit: Limit, spent: float, kind: Kind, what: str) -> str:
    """Returns the refusal of a release beyond a limit."""
    epsilon = epsilon_of(spent, limit.budget.delta, kind)
    return f"the holder's {limit.name} is {limit.budget}; spent: epsilon = {epsilon:.4g}; {what}"


def seen_head(path: Path) -> Head | None:
    """Returns the head that the node noted last, or None.

    Raises ConfigError if the note cannot be read.
    """
    try:
        noted = json.loads(_seen(path).read_bytes())
        return Head(int(noted["entries"]), str(noted["head"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"ledger: {_seen(path)}, which says how far the ledger was, cannot be read; restore it with its ledger"
        ) from None


def init_ledger(path: Path, now: Callable[[], float] = time.time) -> None:
    """Makes the ledger of a table, once: `fedsyn node init-ledger`.

    Raises ConfigError if there is or was one.
    """
    if path.exists():
        raise ConfigError(f"ledger: there is one already, {path}; it is kept for the life of its table")
    if _seen(path).exists():
        raise ConfigError(
            f"ledger: {path} is missing, but {_seen(path)} says that there was one: restore it from a backup; if the "
            "table it speaks of is gone for good too, remove that file first"
        )
    first = {"entry": "open", "time": int(now()), "id": secrets.token_hex(16)}
    try:
        create(path, first)
    except OSError as error:
        raise ConfigError(f"ledger: cannot make {path} ({error.strerror})") from None


def _seen(path: Path) -> Path:
    return path.with_name(path.name + ".seen")
