"""Running the cells of a sweep: in this process, in a pool of processes, or as Ray tasks.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedsyn.config import FORMAT
from fedsyn.errors import ConfigError, FedsynError, InputError, RunError
from fedsyn.nodes.flower.ray_cluster import Cluster, LostTask, Needs
from fedsyn.nodes.service.files import write_text
from fedsyn.output import no_tracebacks
from fedsyn.runs.sweep.results import CELL_FILE, SWEEP_FILE, Facts, read_cell
from fedsyn.runs.sweep.spec import Cell, Sweep
from fedsyn.settings import RayNode
from fedsyn.version import __version__

CellDone = Callable[[Cell, Facts], None]


@dataclass(frozen=True)
class CellTask:
    """What a worker needs to run a cell; it can be pickled."""

    cell: Cell
    folder: Path
    keep: str = "all"

    @property
    def facts(self) -> Facts:
        """What every cell.json says."""
        return {"id": self.cell.id, "axes": self.cell.axes, "seed": self.cell.seed, "fedsyn": __version__}


# What a worker does ------------------------------------------------------------------------------------------------


def run_cell(task: CellTask) -> Facts:
    """Runs one cell into an emptied folder; returns and leaves its cell.json. A failure is a result, not an exception.

    An unexpected error leaves its type and where it was raised, not its text: that might quote a value of the table.
    """
    from fedsyn.runs.directory import drop_tables
    from fedsyn.runs.engines import run

    shutil.rmtree(task.folder, ignore_errors=True)
    started = time.perf_counter()
    facts: Facts = {**task.facts, "status": "done"}
    try:
        metrics = run(task.cell.config, task.folder, full_page=False)
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
    """The part of cell.json that says what went wrong; exit_code: that of `fedsyn run` on this configuration."""
    return {"status": "failed", "error": {"type": kind, "message": message, "exit": exit_code}}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def write_facts(path: Path, facts: Facts) -> None:
    """Readers see no file or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(facts, indent=1, ensure_ascii=False, default=str))


# Where workers run -------------------------------------------------------------------------------------------------


class Workers(Protocol):
    """A place that runs cells. `capacity` is how many it takes at a time."""

    capacity: int

    def submit(self, task: CellTask) -> None: ...

    def finished(self) -> list[tuple[str, Facts]]:
        """Waits for at least one submitted cell; (id, facts) of each that has ended."""
        ...

    def close(self) -> None: ...


class ThisProcess:
    """One cell after another, here."""

    capacity = 1

    def __init__(self) -> None:
        self._task: CellTask | None = None

    def submit(self, task: CellTask) -> None:
        self._task = task

    def finished(self) -> list[tuple[str, Facts]]:
        assert self._task is not None
        return [(self._task.cell.id, run_cell(self._task))]

    def close(self) -> None:
        pass


class ProcessPool:
    """Processes of this machine. One that dies, killed for its memory, say, costs its own cell only."""

    def __init__(self, workers: int) -> None:
        self.capacity = workers
        self._running: dict[futures.Future[Facts], CellTask] = {}
        self._pool = self._start(workers)

    @staticmethod
    def _start(workers: int) -> futures.ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent)

    def submit(self, task: CellTask) -> None:
        try:
            self._running[self._pool.submit(run_cell, task)] = task
        except futures.process.BrokenProcessPool as error:
            # A worker died since the last look; `finished` will find this one too and sort it out.
            broken: futures.Future[Facts] = futures.Future()
            broken.set_exception(error)
            self._running[broken] = task

    def finished(self) -> list[tuple[str, Facts]]:
        done, _ = futures.wait(self._running, return_when=futures.FIRST_COMPLETED)
        if any(isinstance(future.exception(), futures.process.BrokenProcessPool) for future in done):
            return self._after_a_death()
        return [(self._running.pop(future).cell.id, future.result()) for future in done]

    def _after_a_death(self) -> list[tuple[str, Facts]]:
        """Runs the cells that were under way again, each in a process of its own: that shows which of them kills it."""
        self._pool.shutdown(wait=True)
        tasks = list(self._running.values())
        self._running.clear()
        ended = []
        for task in tasks:
            facts = read_cell(task.folder)  # it may have ended just before
            ended.append((task.cell.id, facts or self._run_alone(task)))
        self._pool = self._start(self.capacity)
        return ended

    def _run_alone(self, task: CellTask) -> Facts:
        alone = self._start(1)
        try:
            return alone.submit(run_cell, task).result()
        except futures.process.BrokenProcessPool:
            return record_death(task, "its process died twice without a word (out of memory, perhaps)")
        finally:
            alone.shutdown(wait=True)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _die_with_parent() -> None:
    """A worker whose sweep was killed stops at once instead of going on unseen."""
    no_tracebacks()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    importlib.import_module("multiprocessing.connection")
    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True, eq=False)
class _Submitted:
    """A cell on Ray, what a machine must have free for it, and how often it was lost with its machine."""

    task: CellTask
    needs: Needs
    losses: int = 0

    @classmethod
    def of(cls, task: CellTask) -> _Submitted:
        """As `runtime.ray` of its configuration says; else a CPU for each process that it starts."""
        runtime = task.cell.config.runtime
        settings = runtime.ray or RayNode()
        cpus = settings.cpus or max(runtime.workers, runtime.client_cpus)
        return cls(task, Needs(cpus, settings.memory, settings.retries, settings.wait))


class RayTasks:
    """Tasks of a Ray cluster. Every machine of it needs fedsyn, and sees the sweep's folder and the data.

    All cells are submitted at once (up to a thousand at a time), each with the CPUs and the memory that it needs: Ray
    queues them, an autoscaler sees the demand, and a machine that joins late gets its share.
    """

    capacity = 1000

    def __init__(self, address: str) -> None:
        self._cluster = Cluster(None if address == "local" else address, f"--ray {address}")
        self._running: dict[Any, _Submitted] = {}

    def submit(self, task: CellTask) -> None:
        self._submit(_Submitted.of(task))

    def _submit(self, cell: _Submitted) -> None:
        run = self._cluster.remote("fedsyn.runs.sweep.execute:run_cell", cell.needs)
        self._running[run.remote(cell.task)] = cell

    def finished(self) -> list[tuple[str, Facts]]:
        ended: list[tuple[str, Facts]] = []
        while not ended:
            for reference in self._cluster.some_of(self._running, [cell.needs for cell in self._running.values()]):
                cell = self._running.pop(reference)
                facts = self._facts(reference, cell)
                if facts is not None:
                    ended.append((cell.task.cell.id, facts))
        return ended

    def _facts(self, reference: Any, cell: _Submitted) -> Facts | None:
        """What a cell left; None where it was lost and is asked for again."""
        try:
            found: Facts = self._cluster.result(reference)
        except LostTask as lost:
            ended = read_cell(cell.task.folder)  # perhaps just before its machine did
            if ended is not None:
                return ended
            if cell.losses < cell.needs.retries:
                self._submit(replace(cell, losses=cell.losses + 1))
                return None
            return record_death(cell.task, f"{lost}; this cell was lost {cell.losses + 1} times")
        except RunError as error:
            return record_death(cell.task, str(error))
        return found

    def close(self) -> None:
        self._cluster.cancel(list(self._running))
        self._cluster.close()


def record_death(task: CellTask, message: str) -> Facts:
    """cell.json of a cell whose process could not write one itself."""
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
    """Runs every cell that is not finished into `out`/cells/ID. Returns how many cells of the sweep failed.

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
    cells = {cell.id: cell for cell in waiting}
    place: Workers = RayTasks(ray) if ray else (ProcessPool(workers) if workers > 1 else ThisProcess())
    with contextlib.closing(place):
        for cell_id, facts in _results(waiting, place, out, sweep.keep):
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
        (out / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {out} cannot be made: {error.strerror}") from None


def _results(cells: Sequence[Cell], place: Workers, out: Path, keep: str) -> Iterator[tuple[str, Facts]]:
    """Hands out cells, as many at a time as the place takes; (id, facts) of each as it ends."""
    waiting, running = collections.deque(cells), 0
    while waiting or running:
        while waiting and running < place.capacity:
            cell = waiting.popleft()
            place.submit(CellTask(cell, out / "cells" / cell.id, keep))
            running += 1
        for ended in place.finished():
            running -= 1
            yield ended
