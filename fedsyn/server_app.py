"""Flower entry point of the server, for simulations and deployments."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsyn.config import RunConfig
from fedsyn.errors import FedsynError
from fedsyn.flower import FLOWER_LOG, Context, Grid, ServerApp
from fedsyn.flower.control import add_to_log
from fedsyn.flower.patient import patient
from fedsyn.output import no_tracebacks, reason, say
from fedsyn.protocol.record import RoundRecord
from fedsyn.runs.directory import PAGE_FILE, PUBLIC_PAGE_FILE, record_error
from fedsyn.runs.finish import finish
from fedsyn.runs.journal import RunJournal
from fedsyn.runs.prepare import Prepared, deployed, prepare
from fedsyn.runs.returned import lines_of, packed
from fedsyn.runs.run_config import config_of, store_of
from fedsyn.runs.serve import serve, told_what_was_spent
from fedsyn.runs.submitted import RunFolder, can_resume, has_finished, require_resumable
from fedsyn.table.schema import Schema

no_tracebacks()  # only Flower's own process for a ServerApp imports this module
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the configured mechanism over the Grid and writes the run directory.

    The run configuration names either a configuration of this app (`config`, with `set` assignments separated by
    semicolons; the number of simulated nodes decides the number of clients) or carries a resolved one with a
    deployment's schema (as `fedsyn run` does).
    """
    started = time.perf_counter()
    run_config, folder = context.run_config, RunFolder.of(context.run_config)
    with _told_and_sent(folder, grid, context):
        config = config_of(run_config, len(list(grid.get_node_ids())))
        out = folder.made(config)
        if run_config.get("resume") and has_finished(out):  # and its starter never heard of it
            return
        with _prepared(config, run_config, out) as prepared, _journal(config, prepared, run_config, out) as journal:
            strategy = serve(config, prepared, patient(grid, config.runtime.nodes), out, _logged, journal=journal)
            with told_what_was_spent(lambda: strategy.ledger, out):
                metrics = finish(config, prepared, strategy, out, started)
            if journal is not None:
                journal.remove()
        say(f"fedsyn: {out}")
        for name, value in metrics.items():
            say(f"fedsyn: {name} = {value:.6g}")


def _logged(record: RoundRecord) -> None:
    FLOWER_LOG.info("[ROUND %d] %s", record.round, ", ".join(record.selected) or "nothing selected")


@contextmanager
def _told_and_sent(folder: RunFolder, grid: Grid, context: Context) -> Iterator[None]:
    """Tells the starter why a run ended, and sends its files.

    A process that is told to end sends nothing.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):  # the first error counts
            record_error(folder.made(None), error)
        if isinstance(error, FedsynError):  # the text of any other may quote anything
            say(f"fedsyn: error: {error}", error=True)
        _send(folder, grid, context)
        raise
    _send(folder, grid, context)


def _send(folder: RunFolder, grid: Grid, context: Context) -> None:
    reply = str(context.run_config.get("reply") or "")
    if not folder.sends or not reply or folder.out is None:
        return
    try:
        lines = lines_of(packed(folder.out), str(context.run_config["run"]), bytes.fromhex(reply))
        add_to_log(grid, context.run_id, lines)
    except Exception as error:  # what became of the run counts; its files are here
        say(f"fedsyn: {folder.out} could not be sent back ({reason(error)})", error=True)


@contextmanager
def _prepared(config: RunConfig, run_config: Mapping[str, Any], out: Path) -> Iterator[Prepared]:
    """Yields what the run works with, in a temporary folder.

    The folder is gone afterwards unless somebody else made it.
    """
    config.save(out / "config.yaml")
    is_deployment = bool(run_config.get("schema"))
    folder = Path(tempfile.mkdtemp(prefix="fedsyn-")) if is_deployment else store_of(run_config)
    try:
        if is_deployment:
            yield deployed(config, Schema.loads(str(run_config["schema"]), "the run's schema"), folder)
        else:
            yield prepare(config, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _journal(
    config: RunConfig, prepared: Prepared, run_config: Mapping[str, Any], out: Path
) -> Iterator[RunJournal | None]:
    """Returns the journal of a deployment's run; None for any other run.

    A new journal, or that of the run which goes on.
    """
    run = str(run_config.get("run") or "")
    if run_config.get("resume"):
        require_resumable(config)
    if not run or not can_resume(config):
        yield None
        return
    for name in ("error.json", "metrics.json", PAGE_FILE, PUBLIC_PAGE_FILE):  # of an earlier try
        (out / name).unlink(missing_ok=True)
    opened = RunJournal.resume if run_config.get("resume") else RunJournal.begin
    journal = opened(out, run=run, config=config.sha256, schema=prepared.schema.sha256)
    try:
        yield journal
    finally:
        journal.close()
