"""A deployment's run from the outside.

This module has what its starter keeps of it, and where its ServerApp puts its files.

`fedsyn run` leaves `run.json` in the run directory while the run is not finished: its name, by which it is resumed, and
the key for what comes back. The ServerApp runs on the SuperLink's machine. If it finds that file under the same path,
it works in that directory: starter and SuperLink share a disk. If not, it works in a folder of its own there,
`runs_folder()/NAME`, and sends the run directory back in the end (`fedsyn.runs.returned`). In either case the journal
lies beside the ServerApp, on the SuperLink's machine.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsyn.config import FORMAT, RunConfig
from fedsyn.errors import ConfigError, RunError
from fedsyn.files import replace_synced
from fedsyn.registry import contract_class
from fedsyn.runs import journal
from fedsyn.runs.directory import default_out, is_complete, write_json
from fedsyn.table.schema import Schema
from fedsyn.wire.orders import is_run_name

FILE = "run.json"


@dataclass
class Submitted:
    """A starter's record of a run that is not finished.

    Attributes:
        run: its own name, the same when it is resumed.
        config: `RunConfig.sha256`.
        schema: hash of its schema.
        superlink: name of the connection that it was submitted to last.
        flower_run: Flower's number of it there; empty: it was not submitted yet.
        secret: X25519 key for the files that come back, hex.
    """

    run: str
    config: str
    schema: str
    superlink: str
    flower_run: str = ""
    secret: str = ""

    @classmethod
    def new(cls, config: RunConfig, schema: Schema, superlink: str) -> Submitted:
        return cls(new_name(), config.sha256, schema.sha256, superlink, secret=secrets.token_hex(32))

    @classmethod
    def load(cls, out: Path) -> Submitted:
        """Reads the record in a run directory.

        Raises:
            ConfigError: no unfinished run was started there.
        """
        try:
            facts = json.loads((out / FILE).read_text(encoding="utf-8"))
            return cls(**{key: str(value) for key, value in facts.items() if key != "format"})
        except FileNotFoundError:
            finished = (out / "metrics.json").is_file()
            why = "the run in it has finished" if finished else "no run that can be resumed was started in it"
            raise ConfigError(f"--resume: nothing to resume in {out}: {why}") from None
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(f"--resume: {out / FILE} is damaged; give the run up with --force") from None

    def save(self, out: Path) -> None:
        """Writes the record, readable by its owner alone.

        A crash leaves the old one or the new one.
        """
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"
        replace_synced(out / FILE, text.encode())

    def require_same(self, config: RunConfig, schema: Schema, out: Path) -> None:
        """Raises ConfigError unless the run goes on as it began."""
        if self.config != config.sha256:
            raise ConfigError(
                f"--resume: the run in {out} was started with another configuration; its own is {out / 'config.yaml'}"
            )
        if self.schema != schema.sha256:
            raise ConfigError(f"--resume: the schema is not the one that the run in {out} was started with")


def new_name() -> str:
    """Returns a new name for a run: ten hex digits.

    Operator, holders and parties share it. It can be read over a telephone.

    Two of a thousand runs at one table have the same one with probability 5e-7; a node refuses the second.
    """
    return secrets.token_hex(5)


def can_resume(config: RunConfig) -> bool:
    """Returns whether a run of this configuration can be resumed.

    It can if all that its server has to remember may stand in its journal. It cannot if parties keep a
    part of the run's state, or if a store in the server's memory holds exact counts.
    """
    return config.aggregation.capabilities.resumable and not contract_class(config.mechanism.name).store


def require_resumable(config: RunConfig) -> None:
    """Raises ConfigError unless a run of this configuration can be resumed."""
    if not can_resume(config):
        raise ConfigError(
            f"--resume: a run of '{config.mechanism.name}' with aggregation.protocol: {config.aggregation.protocol} "
            "keeps a part of its state where no journal may have it, and cannot go on; start a new one with --force"
        )


def is_unfinished(out: Path) -> bool:
    """Returns whether this directory has an unfinished run.

    The run was started there, has not finished, and can be resumed.
    """
    return (out / FILE).is_file() or journal.unfinished(out) is not None


def require_free(out: Path, *, resume: bool = False, force: bool = False) -> None:
    """Refuses a run directory that another run has, finished or not.

    Raises:
        ConfigError: says what to type to go on with that one, or to replace it.
    """
    if resume and force:
        raise ConfigError("--resume goes on with the run that --force gives up; leave out one of them")
    if resume or force:
        return
    if is_unfinished(out):
        raise ConfigError(
            f"{out} holds a run that has not finished: go on with it with --resume, or give it up with --force "
            "(what it has spent stays spent)"
        )
    if (out / "ledger.json").exists():
        raise ConfigError(
            f"{out} holds the result of an earlier run; choose another --out, or add --force to replace it"
        )


def has_finished(out: Path) -> bool:
    """Returns whether a run that is resumed needs nothing more.

    It left all of its files and no journal.

    Its starter may not have heard of it: the SuperLink died when what was left of the run needed no holder.
    """
    return is_complete(out) and not (out / "error.json").is_file() and journal.unfinished(out) is None


def forget(out: Path) -> None:
    """Removes the starter's record of a run.

    The run is finished, or is not resumed.
    """
    (out / FILE).unlink(missing_ok=True)


def give_up(out: Path) -> None:
    """Gives up the unfinished run of this directory.

    What it has spent is kept as its ledger.json.

    Raises:
        RunError: a process serves it still, or its journal is damaged.
    """
    if journal.unfinished(out) is not None:
        with journal.held(out):
            ledger = journal.spent(out)
            if ledger is not None and ledger.releases:
                write_json(out / "ledger.json", ledger.report())
    journal.remove(out)
    forget(out)


# The ServerApp's side -----------------------------------------------------------------------------------------------


def runs_folder() -> Path:
    """Returns the ServerApp's folder for runs of distant starters.

    Their disk is not seen there. It is FEDSYN_RUNS, or a folder in the user's own state.
    """
    named = os.environ.get("FEDSYN_RUNS")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedsyn" / "runs"


@dataclass
class RunFolder:
    """A ServerApp's working folder for one run.

    Attributes:
        out: the run directory; None: a new one, as the configuration says, once it is `made`.
        sends: whether its starter has to be sent what is in it.
    """

    out: Path | None
    sends: bool = False

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> RunFolder:
        """Chooses the folder by the run's configuration.

        Raises:
            RunError: the run has a name that names no folder.
        """
        named, run = str(run_config.get("out") or ""), str(run_config.get("run") or "")
        if not run:
            return cls(Path(named).resolve() if named else None)
        if not is_run_name(run):
            raise RunError("a run's name has 1 to 64 letters, digits, '.', '_' or '-'")
        if named and _is_started(Path(named), run):
            return cls(Path(named).resolve())
        return cls(runs_folder() / run, True)

    def made(self, config: RunConfig | None) -> Path:
        """Makes the run directory, and returns it.

        Where nobody named one, the configuration names it, if there is a valid one.
        """
        out = self.out or default_out(config)
        out.mkdir(parents=True, exist_ok=True, mode=0o700 if self.sends else 0o777)
        self.out = out.resolve()
        return self.out


def _is_started(out: Path, run: str) -> bool:
    """Returns whether this directory is the starter's own.

    It must also be possible to write to it.
    """
    try:
        facts = json.loads((out / FILE).read_text(encoding="utf-8"))
        return isinstance(facts, dict) and facts.get("run") == run and os.access(out, os.W_OK | os.X_OK)
    except (OSError, ValueError):
        return False
