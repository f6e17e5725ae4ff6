"""Runs the cells of a sweep.

They run in this process, in a pool of processes, or as Ray tasks.

A cell is finished when its run directory holds a `cell.json` with status 'done'. That file is written last and
atomically, so a sweep that was killed at any moment knows which cells it need not run again.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsyn.config import FORMAT
from fedsyn.errors import ConfigError, FedsynError, InputError, RunError
from fedsyn.files import make_folder, require_no_link, write_text
from fedsyn.flower.ray_cluster import Cluster, LostTask, Needs
from fedsyn.output import no_tracebacks
from fedsyn.settings import RayNode
from fedsyn.sweep.results import CELL_FILE, SWEEP_FILE, Facts, read_cell
from fedsyn.sweep.spec import Cell, Sweep
from fedsyn.version import __version__

CellDone = Callable[[Cell, Facts], None]
Ended = Generator[tuple[str, Facts], None, None]
_MOST_ON_RAY = 1000  # cells that are submitted at a time


@dataclass(frozen=True)
class CellTask:
    """A cell, as a worker needs it to run it.

    It can be pickled.
    """

    cell: Cell
    folder: Path
    keep: str = "all"
    baseline: bool = False

    @property
    def facts(self) -> Facts:
        """Facts that every cell.json has."""
        return {"id": self.cell.id, "axes": self.cell.axes, "seed": self.cell.seed, "fedsyn": __version__}


# What a worker does ------------------------------------------------------------------------------------------------


def run_cell(task: CellTask) -> Facts:
    """Runs one cell into an emptied folder.

    Writes its cell.json, and returns it. A failure is a result, not an exception.

    An unexpected error leaves its type and where it was raised, not its text: that might quote a value of the table.
    """
    from fedsyn.runs.directory import drop_tables
    from fedsyn.runs.engines import run

    shutil.rmtree(task.folder, ignore_errors=True)
    started = time.perf_counter()
    facts: Facts = {**task.facts, "status": "done"}
    try:
        metrics = run(task.cell.config, task.folder, full_page=False, baseline=task.baseline)
        facts["metrics"] = {name: _finite(value) for name, value in metrics.items()}
    except FedsynError as error:
        facts |= failure(type(error).__name__, str(error), 2 if isinstance(error, InputError) else 1)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        facts |= failure(type(error).__name__, f"unexpected {type(error).__name__} in {frames[-1].name}", 1)
        facts["error"]["traceback"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    if task.keep == "metrics":
        drop_tables(task.folder)
    facts["seconds"] = round(time.perf_counter() - started, 3)
    write_facts(task.folder / CELL_FILE, facts)
    return facts


def failure(kind: str, message: str, exit_code: int) -> Facts:
    """Returns the part of cell.json that says what went wrong.

    `exit_code` is that of `fedsyn run` on this configuration.
    """
    return {"status": "failed", "error": {"type": kind, "message": message, "exit": exit_code}}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def write_facts(path: Path, facts: Facts) -> None:
    """Writes a file so that readers see none or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(facts, indent=1, ensure_ascii=False, default=str))


# Where cells run: (id, facts) of each as it ends --------------------------------------------------------------------


def _here(tasks: Sequence[CellTask]) -> Ended:
    """Runs one cell after another in this process."""
    for task in tasks:
        yield task.cell.id, run_cell(task)


def _in_processes(tasks: Sequence[CellTask], workers: int) -> Ended:
    """Runs cells in processes of this machine.

    A process that dies, killed for its memory, say, costs its own cell only.
    """
    waiting = collections.deque(tasks)
    while waiting:
        running: dict[futures.Future[Facts], CellTask] = {}
        with _pool(workers) as pool, contextlib.suppress(futures.process.BrokenProcessPool):
            while waiting or running:
                while waiting and len(running) < workers:
                    future = pool.submit(run_cell, waiting[0])
                    running[future] = waiting.popleft()
                done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for future in done:
                    facts = future.result()
                    yield running.pop(future).cell.id, facts
        # What was under way when a process died runs again, each in a process of its own: that shows which kills it.
        for task in running.values():
            yield task.cell.id, read_cell(task.folder) or _alone(task)  # it may have ended just before


def _alone(task: CellTask) -> Facts:
    try:
        with _pool(1) as pool:
            return pool.submit(run_cell, task).result()
    except futures.process.BrokenProcessPool:
        return _record_death(task, "its process died twice without a word (out of memory, perhaps)")


def _pool(workers: int) -> futures.ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent)


def _die_with_parent() -> None:
    """Ends a worker at once when its sweep was killed.

    Otherwise it would go on unseen.
    """
    no_tracebacks()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    importlib.import_module("multiprocessing.connection")
    threading.Thread(target=watch, daemon=True).start()


def _on_ray(tasks: Sequence[CellTask], address: str) -> Ended:
    """Runs cells as tasks of a Ray cluster.

    Every machine of it needs fedsyn, and sees the sweep's folder and the data.

    All cells are submitted at once (up to a thousand at a time), each with the CPUs and the memory that it needs: Ray
    queues them, an autoscaler sees the demand, and a machine that joins late gets its share.
    """
    cluster = Cluster(None if address == "local" else address, f"--ray {address}")
    waiting = collections.deque((task, 0) for task in tasks)  # with how often it was lost with its machine
    running: dict[Any, tuple[CellTask, int]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _MOST_ON_RAY:
                task, losses = waiting.popleft()
                run = cluster.remote("fedsyn.sweep.execute:run_cell", _needs(task))
                running[run.remote(task)] = (task, losses)
            for reference in cluster.some_of(running, [_needs(task) for task, _ in running.values()]):
                task, losses = running.pop(reference)
                try:
                    facts: Facts = cluster.result(reference)
                except LostTask as lost:
                    left = read_cell(task.folder)  # perhaps it ended just before its machine did
                    if left is None and losses < _needs(task).retries:
                        waiting.appendleft((task, losses + 1))
                        continue
                    facts = left or _record_death(task, f"{lost}; this cell was lost {losses + 1} times")
                except RunError as error:
                    facts = _record_death(task, str(error))
                yield task.cell.id, facts
    finally:
        cluster.cancel(list(running))
        cluster.close()


def _needs(task: CellTask) -> Needs:
    """Returns what a machine must have free, by `runtime.ray` of the configuration."""
    settings = task.cell.config.runtime.ray or RayNode()
    return Needs(settings.cpus, settings.memory, settings.retries, settings.wait)


def _record_death(task: CellTask, message: str) -> Facts:
    """Writes cell.json for a cell whose process could not.

    Returns its content.
    """
    facts = task.facts | failure("RunError", message, 1)
    write_facts(task.folder / CELL_FILE, facts)
    return facts


# The sweep ---------------------------------------------------------------------------------------------------------


def run_sweep(
    sweep: Sweep,
    out: Path | str,
    *,
    workers: int = 1,
    ray: str | None = None,
    resume: bool = False,
    on_done: CellDone | None = None,
) -> int:
    """Runs every cell that is not finished into `out`/cells/ID.

    Returns the number of cells that failed.

    Args:
        sweep: the checked sweep.
        out: its folder; empty or new, unless `resume`.
        workers: processes; 1 runs the cells here.
        ray: address of a Ray cluster, 'local' to start one here; replaces `workers`.
        resume: skip finished cells, and run failed ones again.
        on_done: called for every cell, the skipped ones included.

    Raises:
        ConfigError: `out` cannot be used, or Ray cannot be reached.
    """
    out = Path(out).resolve()
    _open_folder(out, resume)
    record = {
        "format": FORMAT,
        "name": sweep.name,
        "document": sweep.document,
        "cells": [{"id": cell.id, "axes": cell.axes, "seed": cell.seed} for cell in sweep.cells],
    }
    write_facts(out / SWEEP_FILE, record)
    # Finished cells are reported at once; the others wait.
    failed, waiting = 0, []
    for cell in sweep.cells:
        facts = read_cell(out / "cells" / cell.id)
        if facts is not None and facts["status"] == "done":
            if on_done is not None:
                on_done(cell, facts)
        else:
            waiting.append(cell)
    if not waiting:
        return 0
    # Run the others here, in processes, or on Ray, and report each as it ends.
    cells = {cell.id: cell for cell in waiting}
    tasks = [CellTask(cell, out / "cells" / cell.id, sweep.keep, sweep.baseline) for cell in waiting]
    for task in tasks:
        require_no_link(task.folder)
    results = _on_ray(tasks, ray) if ray else _in_processes(tasks, workers) if workers > 1 else _here(tasks)
    with contextlib.closing(results):
        for cell_id, facts in results:
            failed += facts["status"] != "done"
            if on_done is not None:
                on_done(cells[cell_id], facts)
    return failed


def _open_folder(out: Path, resume: bool) -> None:
    if out.is_file():
        raise ConfigError(f"{out} is a file; a sweep needs a folder")
    if out.is_dir() and any(out.iterdir()):
        if not resume:
            raise ConfigError(f"{out} is not empty: --resume continues the sweep in it, --out names another folder")
        if not (out / SWEEP_FILE).is_file():
            raise ConfigError(f"{out} is not empty and holds no sweep to resume")
    try:
        make_folder(out / "cells")
    except OSError as error:
        raise ConfigError(f"the folder {out} cannot be made: {error.strerror}") from None
