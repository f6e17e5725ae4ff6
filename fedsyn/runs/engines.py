"""Runs a configuration on its engine.

A run happens in this process, on Ray, or on a SuperLink that others operate.

A simulation keeps its encoded rows in a folder (`run_store`) while it runs, which goes with the run, however it ends.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.files import try_lock
from fedsyn.flower.grid import InProcessGrid
from fedsyn.keys.holder_keys import load_operator_key
from fedsyn.protocol.record import RoundRecord
from fedsyn.registry import contract_class
from fedsyn.runs.deployment import brought_to_its_end, run_elsewhere, superlink_of
from fedsyn.runs.directory import RESULTS, keep_ledger
from fedsyn.runs.finish import finish
from fedsyn.runs.prepare import Prepared, prepare, with_layout
from fedsyn.runs.run_config import run_config_of
from fedsyn.runs.serve import Progress, serve, told_what_was_spent
from fedsyn.runs.submitted import Submitted, give_up, has_finished, require_resumable
from fedsyn.runs.synthesis import require_room
from fedsyn.settings import RayNode

if TYPE_CHECKING:
    from fedsyn.runs.prepare import Table
    from fedsyn.table.schema import Schema


_APP = "fedsyn.runs.holders:app"


log = logging.getLogger("fedsyn.run")


def run(
    config: RunConfig,
    out: Path | str,
    progress: Progress | None = None,
    *,
    table: Table | None = None,
    schema: Schema | None = None,
    full_page: bool = True,
    baseline: bool = False,
    resume: bool = False,
) -> dict[str, float]:
    """Runs a configuration on its engine; returns the metrics.

    Args:
        config: what to run.
        out: the run directory; made if it does not exist.
        progress: called with the record of each finished round.
        table: a simulation's rows, in place of `data.source`: one table, or a list (of `partition: native` clients).
        schema: what describes them, in place of `data.schema`.
        full_page: compare a simulation's table with the real rows, and draw charts (see `fedsyn.runs.finish.finish`).
        baseline: a simulation's metrics are those of independent columns, too, under names of their own.

    Raises:
        InputError: bad configuration, schema or data; nothing was run.
        FedsynError: the run failed; what had finished is in `out`.
    """
    out = Path(out).resolve()
    started = time.perf_counter()
    resumed = _resumed(config, out) if resume else None
    _make(out)
    # Everything that can be refused is refused before an earlier run is cleared away.
    try:
        with run_store(out) as store:
            if resumed is None:
                _spare_schemas(config, out)
            prepared = prepare(config, store, table, schema)
            _require_possible(config, prepared, out)
            if resumed is not None:
                resumed.require_same(config, prepared.schema, out)
                if has_finished(out):
                    return brought_to_its_end(out)
            if config.runtime.engine == "deployment":  # its ServerApp serves and finishes
                superlink = superlink_of(config)
                if resumed is None:
                    _clear(config, out)
                return run_elsewhere(config, prepared, out, superlink, progress, resumed)
            config = config if table is not None else with_layout(config, prepared.schema)
            log.info("%s, holders: %d, into %s", config.mechanism.name, prepared.clients, out)
            with simulation_grid(config, prepared) as grid:
                _clear(config, out)
                strategy = serve(config, prepared, grid, out, _logged(progress))
            with told_what_was_spent(lambda: strategy.ledger, out):
                metrics = finish(
                    config, prepared, strategy, out, started, full_page=full_page, baseline=baseline, progress=progress
                )
            log.info("finished: epsilon %.6g at delta %g", strategy.ledger.epsilon(), strategy.ledger.budget.delta)
            return metrics
    finally:
        if not any(out.iterdir()):
            out.rmdir()


def _make(out: Path) -> None:
    """Makes a run directory, unless it exists.

    Raises ConfigError if it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if out.is_file() else error.strerror
        raise ConfigError(f"the run directory {out} cannot be made: {why}; name another with --out") from None


def _resumed(config: RunConfig, out: Path) -> Submitted:
    """Returns the unfinished run in a run directory.

    Raises ConfigError if the directory has none, or if a run of this kind cannot be resumed.
    """
    if config.runtime.engine != "deployment":
        raise ConfigError(
            f"--resume: a run with runtime.engine: {config.runtime.engine} is a simulation, which starts again"
        )
    require_resumable(config)
    return Submitted.load(out)


def _require_possible(config: RunConfig, prepared: Prepared, out: Path) -> None:
    """Refuses a run that would fail too late.

    It would fail when an earlier run's results are gone, or the budget is spent.
    """
    contract_class(config.mechanism.name)(config, prepared.schema.domain)  # the workload fits the table
    if config.runtime.operator_key is not None:
        load_operator_key(config.runtime.operator_key)
    if config.synthesis.rows is not None:
        require_room(out, prepared.schema, config.synthesis.rows, config.synthesis.format or "csv")


def _logged(progress: Progress | None) -> Progress:
    """Returns a progress that logs each round and passes it on."""

    def advance(record: RoundRecord) -> None:
        log.info("round %d: %s", record.round, ", ".join(record.selected) or "nothing selected")
        if progress is not None:
            progress(record)

    return advance


def _spare_schemas(config: RunConfig, out: Path) -> None:
    """Refuses a run directory with somebody's own schema.yaml.

    A schema.yaml that an earlier run left there is no reason to refuse.
    """
    present = out / "schema.yaml"
    source = config.data.schema_file
    is_source = source is not None and present.exists() and Path(source).exists() and present.samefile(source)
    if is_source or (present.exists() and not (out / "ledger.json").exists()):
        raise ConfigError(
            f"the run directory {out} has a schema.yaml of its own, and a run writes one there; choose another folder"
        )


def _clear(config: RunConfig, out: Path) -> None:
    """Makes the run directory this run's.

    It is called when the run starts, not before: a typo must not cost an earlier run its results.

    The ledger of an earlier run that released anything is kept, as ledger-1.json and so on: what was spent on the rows
    stays spent, whatever becomes of its table.
    """
    give_up(out)
    keep_ledger(out)
    for name in (*RESULTS, "config.yaml"):  # a link is removed, and what it leads to stays
        (out / name).unlink(missing_ok=True)
    config.save(out / "config.yaml")


@contextmanager
def simulation_grid(config: RunConfig, prepared: Prepared) -> Iterator[InProcessGrid]:
    """Yields the Grid of a simulation.

    It is closed in the end, with all that it started.
    """
    from fedsyn.runs.holders import app

    nodes = [{"partition-id": k, "num-partitions": prepared.clients} for k in range(prepared.clients)]
    run_config = run_config_of(config, store=prepared.folder)
    if config.runtime.engine == "ray":
        grid = _ray_grid(config, prepared, nodes, run_config)
    else:
        grid = InProcessGrid(app, nodes, run_config)
    with closing(grid):
        yield grid


def _ray_grid(
    config: RunConfig, prepared: Prepared, nodes: Sequence[Mapping[str, Any]], run_config: Mapping[str, str]
) -> InProcessGrid:
    from fedsyn.flower.ray_cluster import Cluster, Needs
    from fedsyn.flower.ray_grid import RayGrid
    from fedsyn.runs.holders import app, packed_store

    settings = config.runtime.ray or RayNode()
    needs = Needs(settings.cpus, settings.memory, settings.retries, settings.wait)
    cluster = Cluster(settings.address, "runtime.ray", settings.runtime_env)
    try:
        return RayGrid(
            app,
            _APP,
            nodes,
            run_config,
            cluster=cluster,
            needs=needs,
            clients_per_task=settings.clients_per_task,
            setup="fedsyn.runs.holders:take_store",
            payload=packed_store(prepared.folder),
        )
    except BaseException:
        cluster.close()
        raise


_PREFIX, _LOCK = ".store-", "lock"
#: What a program that is told to end says in the end: 128 and the number of the signal, by convention.
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def run_store(out: Path) -> Iterator[Path]:
    """Yields a folder for the rows of a run, in its directory.

    It is removed in the end, also after Ctrl-C and SIGTERM.

    After SIGKILL, or a loss of power, the folder stays and the rows do not: they lie in files without a name
    (`fedsyn.table.data.encoded`), where the system has such files. The next run in the same directory removes what is
    left. A run that is still alive holds a lock on its folder, which the system lets go with its process.
    """
    _remove_stale(out)
    store = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
    lock = os.open(store / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try_lock(lock)
    try:
        with ended_by_sigterm():
            yield store
    finally:
        os.close(lock)
        shutil.rmtree(store, ignore_errors=True)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the program as Ctrl-C does.

    What has to be tidied up is, and the program exits with 143. This holds only where nobody else has a
    say: in the main thread of a program that has no handler of its own.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one does not interrupt the tidying up
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _remove_stale(out: Path) -> None:
    for folder in out.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:  # of a version without locks, or of a run that is only just starting or ending
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue
        stale = try_lock(lock)
        os.close(lock)
        if stale:
            shutil.rmtree(folder, ignore_errors=True)
