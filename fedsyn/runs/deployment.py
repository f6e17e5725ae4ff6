"""Deployment runs, from the side that starts them.

A run on a SuperLink that others operate is submitted, watched, resumed and brought home.

It always ends: with the metrics of a finished run, or with the real cause and what to do next. What the run has spent
stays spent, and stands in its journal (`fedsyn.runs.journal`) and ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError, FedsynError, RunError
from fedsyn.flower.control import COMPLETED, STOPPED, Control, RunState, Unreachable
from fedsyn.flower.launch import app_folder, submit, wait
from fedsyn.protocol.record import RoundRecord, Waiting
from fedsyn.protocol.waiting import Announcer
from fedsyn.runs import journal
from fedsyn.runs.directory import (
    ERROR_FILE,
    is_complete,
    load_metrics,
    load_waiting,
    page_file,
    raise_recorded_error,
    read_facts,
    recorded_error,
)
from fedsyn.runs.prepare import Prepared
from fedsyn.runs.returned import unpacked
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.submitted import Submitted, can_resume, forget, has_finished
from fedsyn.wire.orders import order_of
from fedsyn.wire.refusals import Kind

#: Set for as long as a run is ordered from there: an operator's folder, which sentences name.
FOLDER = "FEDSYN_OPERATOR_FOLDER"
Progress = Callable[[RoundRecord], None]


def superlink_of(config: RunConfig) -> Control:
    """Returns the SuperLink that a deployment's configuration names.

    Raises:
        ConfigError: it names none, or none that Flower's configuration has.
        RunError: it does not answer, or refuses.
    """
    if config.runtime.superlink is None:
        raise ConfigError("runtime.superlink: a deployment needs the name of a SuperLink connection of Flower")
    superlink = Control.named(config.runtime.superlink)
    try:
        superlink.state("1")
    except Unreachable as error:
        raise RunError(f"{error}; nothing was submitted") from None
    return superlink


def run_elsewhere(
    config: RunConfig,
    prepared: Prepared,
    out: Path,
    superlink: Control,
    progress: Progress | None,
    resumed: Submitted | None = None,
) -> dict[str, float]:
    """Runs a deployment on a SuperLink, and watches it.

    Flower starts the ServerApp, which serves and finishes the run. Returns the metrics.

    Args:
        config: the configuration.
        prepared: the schema, and no table.
        out: run directory; cleared before, unless the run is resumed.
        superlink: where the run goes.
        progress: called with each finished round, where SuperLink and starter share a disk.
        resumed: the run that goes on; None: a new one.

    Raises:
        FedsynError: it has not finished, and why.
    """
    submitted = resumed or Submitted.new(config, prepared.schema, superlink.name)
    config = named(config, submitted.run)
    if isinstance(progress, Waits):
        progress.called(submitted.run)
    watch = _Watch(out / "rounds.jsonl", progress)
    if resumed is not None:
        (out / ERROR_FILE).unlink(missing_ok=True)
    try:
        # An earlier attempt that is still going on is waited for; any other run is submitted.
        if resumed is None or not _ends_well(submitted, superlink, watch, config.runtime.patience):
            (out / ERROR_FILE).unlink(missing_ok=True)
            submitted = replace(submitted, superlink=superlink.name, flower_run="")
            submitted.save(out)
            flower_run = _submitted(config, prepared, out, submitted, resume=resumed is not None)
            submitted = replace(submitted, flower_run=flower_run)
            submitted.save(out)
        state = wait(superlink, submitted.flower_run, watch, patience=config.runtime.patience)
        watch()
        _brought_home(superlink, submitted, out)
        raise_recorded_error(out)
    except FedsynError as error:
        if has_finished(out):  # the SuperLink died, and what was left needed no holder
            return brought_to_its_end(out)
        # The run failed: nothing is kept if nothing was spent, else the error says how to go on.
        if not _is_worth_resuming(out, submitted):
            forget(out)
            raise
        # Bad input that the other side found after something was spent is a failed run (`told_what_was_spent`).
        can_go_on = not isinstance(error, RunError) or error.can_go_on
        raised = type(error)(f"{error}{_next(config, out, can_go_on)}")
        if isinstance(raised, RunError):
            raised.can_go_on = can_go_on
        raise raised from error
    if not is_complete(out):
        raise RunError(f"{_ended(state, submitted, superlink)}{_next(config, out)}")
    return brought_to_its_end(out)


def brought_to_its_end(out: Path) -> dict[str, float]:
    """Returns the metrics of a complete run.

    Nothing of the run is kept any more but its files.
    """
    journal.remove(out)  # also where the ServerApp was killed between its result and this
    forget(out)
    return load_metrics(out)


def named(config: RunConfig, run: str) -> RunConfig:
    """Returns a run's configuration with the run's name.

    All who take part speak of the run by it.
    """
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"run": run})})


def _ends_well(submitted: Submitted, superlink: Control, watch: _Watch, patience: float) -> bool:
    """Returns whether a run completes without being resumed.

    It may be going on still, and only nobody watched; or a SuperLink that was started anew has yet to notice that its
    ServerApp is gone. Two of them would not work side by side: one holds the journal. So the end of the first is waited
    for.
    """
    if (
        not submitted.flower_run
        or submitted.superlink != superlink.name
        or superlink.state(submitted.flower_run) is None
    ):
        return False
    return wait(superlink, submitted.flower_run, watch, patience=patience).outcome == COMPLETED


def _submitted(config: RunConfig, prepared: Prepared, out: Path, submitted: Submitted, *, resume: bool) -> str:
    """Submits the run, and returns Flower's number of it.

    The SuperLink may be another machine, so nothing travels by path.
    """
    from fedsyn.crypto.primitives import KeyPair

    reply = KeyPair(bytes.fromhex(submitted.secret)).public.hex()
    order = order_of(config, prepared.schema, submitted.run)
    facts = run_config_of(
        config, schema=prepared.schema, out=out, run=submitted.run, order=order, reply=reply, resume=resume
    )
    with app_folder() as app:
        return submit(app, submitted.superlink, facts)


def _brought_home(superlink: Control, submitted: Submitted, out: Path) -> None:
    """Fetches the run directory, if the ServerApp worked in another one."""
    if is_complete(out) or (out / ERROR_FILE).is_file():
        return
    try:
        log = superlink.log(submitted.flower_run)
    except Unreachable:
        return
    unpacked(log, submitted.run, bytes.fromhex(submitted.secret), out)


def _ended(state: RunState, submitted: Submitted, superlink: Control) -> str:
    """Describes how a run without a result has ended."""
    folder = os.environ.get(FOLDER)  # of `fedsyn deploy`: its connection is nobody else's
    log = (
        f"flwr log {submitted.flower_run} {superlink.name}"
        if folder is None
        else f"fedsyn deploy log {submitted.run} {folder}"
    )
    if state.outcome == STOPPED:
        return f"the run was stopped ({state.details})" if state.details else "the run was stopped"
    if state.outcome == COMPLETED:
        return f"the run is complete, and what it left has not come back; its log: {log}"
    why = f": {state.details}" if state.details else ""
    return f"the run's ServerApp ended without a result{why}; its log: {log}"


def _is_worth_resuming(out: Path, submitted: Submitted) -> bool:
    """Returns whether anything may have been spent.

    Nothing was if the run was never submitted, or if the run itself reported so.
    """
    if not submitted.flower_run:
        return False
    error = recorded_error(out)
    return error is None or error.kind is not Kind.INPUT or journal.unfinished(out) is not None


def _next(config: RunConfig, out: Path, can_go_on: bool = True) -> str:
    """Returns words on a failed run's cost, and what helps."""
    spent = _spent(out)
    if spent is None:
        cost, more = "What it has spent stays spent", ""
    elif spent > 0:
        cost, more = f"Epsilon {spent:.4g} is spent so far, by its ledger", ", and nobody pays twice"
    else:
        cost, more = "Nothing is spent", ""
    if not can_resume(config):
        return f". {cost}; a run of this kind cannot go on: start a new one with --force"
    if not can_go_on:
        return f". {cost}; it would end in the same way if it went on: start a new one with --force"
    return f". {cost}; once the cause is gone, type the same command with --out {out} --resume: it goes on{more}"


def interrupted(config: RunConfig, out: Path) -> str:
    """Describes the state of a run whose command somebody interrupted.

    It also says what helps. It is empty if there is nothing to say.
    """
    if config.runtime.engine == "deployment":
        try:
            if not Submitted.load(out).flower_run:
                return ""
        except FedsynError:
            return ""
        again = f"; the same one with --out {out} --resume waits for it" if can_resume(config) else ""
        return f"the run goes on without this command{again}"
    spent = _spent(out)
    return f"epsilon {spent:.4g} is spent, by its ledger; a simulation starts again, with --force" if spent else ""


def _spent(out: Path) -> float | None:
    """Returns the epsilon that an unfinished run has released.

    It is read from the run's journal or ledger. Returns None if it cannot be seen here.
    """
    try:
        ledger = journal.spent(out) if journal.unfinished(out) is not None else None
        if ledger is not None:
            return ledger.epsilon() if ledger.releases else 0.0
        report = read_facts(out / "ledger.json")
        return float(report["epsilon"]) if report["releases"] else 0.0
    except (FedsynError, OSError, ValueError, KeyError, TypeError):
        return None


@runtime_checkable
class Waits(Protocol):
    """A `Progress` that also hears what the run waits for.

    It is told the run's name, too.
    """

    def called(self, run: str) -> None:
        """Takes the run's name, before anybody is asked."""

    def waits(self, waiting: Waiting | None) -> None:
        """Takes each change in what the run waits for.

        None means that nothing is missing any more.
        """


class _Watch:
    """Reports the rounds that another process appends to rounds.jsonl.

    It also reports what waiting.json says.
    """

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self.path, self.progress, self.seen = path, progress, 0
        self.announce = Announcer(progress.waits) if isinstance(progress, Waits) else None

    def __call__(self) -> bool:
        """Reports what is new.

        Returns whether the run has left its result or its error.
        """
        if self.announce is not None:
            self.announce(load_waiting(self.path.parent))
        if self.progress is not None and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for line in lines[self.seen :]:
                self.progress(RoundRecord.read(json.loads(line)))
            self.seen = max(self.seen, len(lines))
        folder = self.path.parent
        return page_file(folder) is not None or (folder / ERROR_FILE).is_file()


__all__ = ["brought_to_its_end", "run_elsewhere", "superlink_of"]
