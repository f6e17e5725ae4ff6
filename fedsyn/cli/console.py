"""What every command shares: two consoles, arguments that several take, progress, and files that are written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsyn.errors import ConfigError

out_console = Console()
err_console = Console(stderr=True)

ConfigArgument = Annotated[Path, typer.Argument(help="YAML configuration of the run.", metavar="CONFIG.yaml")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.KEY=VALUE", help="Override one key; may be repeated."),
]


class _Said(logging.Handler):
    """Prints what is logged, such as how a file was found to be written."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "fedsyn.run":  # the progress bar shows it
            return
        err_console.print(record.getMessage(), markup=False, highlight=False, soft_wrap=True)


def say_what_is_logged() -> None:
    """Lets what is logged about files appear on standard error."""
    logger = logging.getLogger("fedsyn.data")
    if not any(isinstance(handler, _Said) for handler in logger.handlers):
        logger.addHandler(_Said(logging.INFO))
        logger.setLevel(logging.INFO)


@contextmanager
def round_progress(title: str, rounds: int | None) -> Iterator[Any]:
    """A callback for finished rounds: a bar on a terminal, silence elsewhere."""
    if not err_console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task(f"{title}, preparing", total=rounds)

        def advance(record: Any) -> None:
            selected = f": {record.selected[0]}" if record.selected else ""
            bar.update(task, completed=record.round, description=f"{title}, round {record.round}{selected}")

        yield advance


@contextmanager
def cell_progress(title: str, cells: int) -> Iterator[Any]:
    """A callback for finished cells: a bar with the time left on a terminal, a line now and then elsewhere."""
    if not err_console.is_terminal:
        yield _Lines(title, cells)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task(title, total=cells)
        failed = 0

        def advance(cell: Any, facts: dict[str, Any]) -> None:
            nonlocal failed
            failed += facts["status"] != "done"
            bar.update(task, advance=1, description=f"{title}, {failed} failed" if failed else title)

        yield advance


class _Lines:
    """Says how far a sweep is, about ten times in all: what a log shows."""

    def __init__(self, title: str, cells: int) -> None:
        self.title, self.cells, self.done, self.failed, self.started = title, cells, 0, 0, time.monotonic()

    def __call__(self, cell: Any, facts: dict[str, Any]) -> None:
        self.done += 1
        self.failed += facts["status"] != "done"
        step = max(1, self.cells // 10)
        if self.done % step and self.done < self.cells:
            return
        left = (time.monotonic() - self.started) / self.done * (self.cells - self.done)
        failed = f", {self.failed} failed" if self.failed else ""
        ahead = f", about {_duration(left)} left" if self.done < self.cells else ""
        err_console.print(f"{self.title}: {self.done} of {self.cells} cells{failed}{ahead}", highlight=False)


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failure to write into a message."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"cannot write {path}: there is no folder {path.absolute().parent}") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def nothing() -> Iterator[None]:
    yield
