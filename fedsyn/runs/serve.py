"""The second step of a run.

It drives the mechanism's server half over a Grid, round after round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedsyn.config import RunConfig
from fedsyn.errors import InputError, Lost, RunError
from fedsyn.flower import Grid
from fedsyn.privacy import Ledger
from fedsyn.protocol.driving import Driver
from fedsyn.protocol.opening import Opening
from fedsyn.protocol.record import RoundCosts, RoundRecord, Waiting
from fedsyn.protocol.strategy import MechanismStrategy
from fedsyn.protocol.waiting import log_waiting
from fedsyn.registry import contract_class, strategy_class
from fedsyn.runs.directory import append_line, write_json, write_waiting
from fedsyn.runs.federated_evaluation import FederatedEvaluation
from fedsyn.runs.journal import RunJournal
from fedsyn.runs.prepare import Prepared, randomness_of
from fedsyn.table.schema import Schema
from fedsyn.table.schema.approval import person_columns

_ALONE = "with federation.on_loss: go_on it goes on without what is missing"
Progress = Callable[[RoundRecord], None]


@runtime_checkable
class Staged(Protocol):
    """A `Progress` that also hears what a run does besides rounds."""

    def stage(self, what: str) -> None:
        """Takes what is done now, in a few words."""


def at_stage(progress: Progress | None, what: str) -> None:
    """Reports what a run does now, where somebody wants to hear it."""
    if isinstance(progress, Staged):
        progress.stage(what)


def serve(
    config: RunConfig,
    prepared: Prepared,
    grid: Grid,
    out: Path,
    progress: Progress | None,
    make: Callable[..., MechanismStrategy] | None = None,
    journal: RunJournal | None = None,
) -> MechanismStrategy:
    """Drives the mechanism over a Grid.

    Returns the strategy, which holds model and ledger.

    Writes rounds.jsonl, which is public, and measured.jsonl, which is not, as rounds finish. `make` makes the server
    half in place of the registered one. With a journal another process can go on; rounds in it are reported again.
    """
    rounds, measured = out / "rounds.jsonl", out / "measured.jsonl"
    for path in (rounds, measured):
        path.write_text("", encoding="utf-8")

    def observe(record: RoundRecord, costs: RoundCosts) -> None:
        append_line(rounds, asdict(record))
        append_line(measured, vars(costs))
        if progress is not None:
            progress(record)

    def waits(waiting: Waiting | None) -> None:
        log_waiting(waiting)
        write_waiting(out, waiting)

    # An open schema is closed first, by a driver of its own whose ledger is written; else the mechanism drives at once.
    server_half, schema = make or strategy_class(config.mechanism.name), prepared.schema
    randomness = randomness_of(config)
    if journal is not None:
        randomness = randomness.keyed(journal.key)
    drawn: dict[str, Any] = {"randomness": randomness, "observer": observe}
    driver: Driver
    strategy: MechanismStrategy | None = None
    if schema.open:
        driver = opening = Opening(config, schema, contract_class(config.mechanism.name), journal=journal, **drawn)
        strategy_class(config.mechanism.name).require_engine(opening.contract)  # which makes its fits later
    else:
        driver = strategy = server_half(config, schema.domain, schema.sha256, **drawn, **_journaled(journal))
    driver.waits, alone = waits, journal is None and config.runtime.engine != "deployment"
    waits(None)  # what a server that was killed may have left
    try:
        with told_what_was_spent(lambda: driver.ledger, out, alone=alone):
            # The columns are found, the tables encoded anew, and the mechanism goes on behind what that has cost.
            if strategy is None:
                closed_schema = opening.find(grid)
                write_json(out / "ledger.json", _report(config, schema, driver.ledger))
                prepared = prepared.close(closed_schema)
                prepared.schema.save(out / "schema.yaml")
                strategy = server_half(config, prepared.schema.domain, schema.sha256, after=opening, **drawn)
            if config.evaluation.federated:
                strategy.afterwards = FederatedEvaluation(config, prepared, strategy, randomness, out)
            strategy.run(grid)
    finally:
        write_json(out / "ledger.json", _report(config, schema, driver.ledger))
    return strategy


def _report(config: RunConfig, schema: Schema, ledger: Ledger) -> dict[str, Any]:
    """Returns the content of ledger.json.

    In a deployment it has the run's own name. Where one row is protected, it names the columns of the schema that say
    which person a row is of: the promise is for none of them.
    """
    named: dict[str, Any] = {} if config.runtime.run is None else {"run": config.runtime.run}
    persons = person_columns(schema) if config.privacy.unit == "row" else ()
    return named | ledger.report() | ({"persons": list(persons)} if persons else {})


def _journaled(journal: RunJournal | None) -> dict[str, Any]:
    """Returns the keyword for a journal, none without a journal.

    A mechanism of somebody else's may make its server half itself.
    """
    return {} if journal is None else {"journal": journal}


@contextmanager
def told_what_was_spent(ledger: Callable[[], Ledger], out: Path, *, alone: bool = False) -> Iterator[None]:
    """Turns bad input that is noticed too late into a failed run.

    It is too late after anything was released. The error says what that has cost.

    `InputError` means that nothing was spent. What can be known before is checked before (`prepare`). A run that is
    `alone`, a simulation, also says what a lost sum has cost, and what helps; a deployment's starter does.
    """
    try:
        yield
    except Lost as lost:
        if not alone:
            raise
        known = ledger()
        cost = f"Epsilon {known.epsilon():.4g} is spent, by its ledger" if known.releases else "Nothing is spent"
        raise Lost(f"{lost}. {cost}; a simulation asks nobody again: {_ALONE}", False) from lost
    except InputError as error:
        known = ledger()
        if not known.releases:
            raise
        spent = f"after epsilon {known.epsilon():.4g} at delta {known.budget.delta:g} was spent"
        raise RunError(f"{error} ({spent}; the ledger is in {out})", False) from error
