"""Tools that every command shares.

They are two consoles, arguments that several commands take, progress, and the writing of files.
"""

from __future__ import annotations

import logging
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedsyn.errors import ConfigError
from fedsyn.output import console, say, shortened

if TYPE_CHECKING:
    from fedsyn.evaluation.verdict import Verdict

out_console = console()
err_console = console(error=True)

ConfigArgument = Annotated[Path, typer.Argument(help="YAML configuration of the run.", metavar="CONFIG.yaml")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.KEY=VALUE", help="Override one key; may be repeated."),
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


_FILES = "fedsyn.table.data"


def wrapped(text: str) -> str:
    """Returns a text in lines that fit the terminal."""
    width = min(out_console.width, 100)
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False))


class _Said(logging.Handler):
    """Prints warnings, and the format that was detected in a file."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "fedsyn.run":  # the progress bar shows it
            return
        if record.levelno >= logging.WARNING:
            say(f"warning: {record.getMessage()}", error=True)
        elif record.name.startswith(_FILES):
            say(record.getMessage(), error=True)


def say_what_is_logged() -> None:
    """Lets warnings, and what is logged about files, appear on standard error."""
    logger = logging.getLogger("fedsyn")
    if not any(isinstance(handler, _Said) for handler in logger.handlers):
        logger.addHandler(_Said(logging.INFO))
        logging.getLogger(_FILES).setLevel(logging.INFO)


#: Sets description, completed or advance of a bar; None: there is no terminal to show one.
Update = Callable[..., None] | None


class _Rounds:
    """Reports on a run.

    On a terminal a bar shows it. Elsewhere a line is printed whenever the run begins or ends to wait
    for somebody.

    Args:
        title: of the run.
        update: of a bar.
    """

    def __init__(self, title: str, update: Update) -> None:
        self._title, self._update, self._at, self._waited = title, update, "preparing", False

    def __call__(self, record: Any) -> None:
        """Shows a finished round."""
        selected = f": {record.selected[0]}" if record.selected else ""
        self._at = f"round {record.round}{selected}"
        self._show(self._at, completed=record.round)

    def stage(self, what: str) -> None:
        """Shows what is done besides rounds."""
        self._at = what
        self._show(what)

    def called(self, run: str) -> None:
        """Prints the run's name, which operator, holders and parties share."""
        err_console.print(f"run {run}: {self._title}", markup=False, highlight=False, soft_wrap=True)
        self._title = f"run {run}"
        self._show(self._at)

    def waits(self, waiting: Any) -> None:
        """Shows what the run waits for.

        None means that nothing is missing any more.
        """
        if waiting is not None or self._waited:
            self._waited = waiting is not None
            state = self._at if waiting is None else str(waiting)
            self._show(state)
            if self._update is None:
                line = f"{self._title} {state if waiting else 'goes on'}"
                err_console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self, state: str, completed: int | None = None) -> None:
        if self._update is not None:
            self._update(completed=completed, description=escape(f"{self._title}, {state}"))


@contextmanager
def _bar(title: str, total: int | None, *more: ProgressColumn) -> Iterator[Update]:
    """Yields the update of a bar on a terminal, else None.

    The bar disappears when the work that it shows is done.
    """
    if not err_console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, *more, console=err_console, transient=True) as bar:
        yield partial(bar.update, bar.add_task(escape(title), total=total))


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being done, and since when.

    It yields a callback that takes what is done next.
    """
    if not err_console.is_terminal:
        yield lambda following: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True) as shown:
        task = shown.add_task(escape(what), total=None)
        yield lambda following: shown.update(task, description=escape(following))


@contextmanager
def round_progress(title: str, rounds: int | None) -> Iterator[_Rounds]:
    """Yields a callback for finished rounds, and for waiting.

    A terminal shows them in a bar.
    """
    with _bar(f"{title}, preparing", rounds) as update:
        yield _Rounds(title, update)


@contextmanager
def cell_progress(title: str, cells: int) -> Iterator[Any]:
    """Yields a callback for finished cells of a sweep.

    A terminal shows them in a bar with the time left. Elsewhere a line is printed now and then.
    """
    with _bar(title, cells, TextColumn("left:"), TimeRemainingColumn()) as update:
        yield _Cells(title, cells, update)


class _Cells:
    """Reports the progress of a sweep.

    On a terminal a bar shows it. Elsewhere about ten lines are printed in all, which a log shows.
    """

    def __init__(self, title: str, cells: int, update: Update) -> None:
        self._title, self._cells, self._update = title, cells, update
        self._done, self._failed, self._started = 0, 0, time.monotonic()

    def __call__(self, cell: Any, facts: dict[str, Any]) -> None:
        self._done += 1
        self._failed += facts["status"] != "done"
        failed = f", {self._failed} failed" if self._failed else ""
        if self._update is not None:
            self._update(advance=1, description=escape(f"{self._title}{failed}"))
        elif self._done == self._cells or self._done % max(1, self._cells // 10) == 0:
            left = (time.monotonic() - self._started) / self._done * (self._cells - self._done)
            ahead = f", about {duration(left)} left" if left else ""
            say(f"{self._title}: {self._done} of {self._cells} cells{failed}{ahead}", error=True)


def duration(seconds: float) -> str:
    """Returns a short text: `40 s`, `12 min`, `3 h`, `2 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_table(head: Iterable[str], rows: Iterable[Sequence[str]], **looks: Any) -> None:
    """Prints plain columns.

    `looks` are options of every column.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(name, **looks)
    for row in rows:
        table.add_row(*row)
    out_console.print(table, highlight=False)


HEAD = 17  # letters of what a line is about, with blanks
_MOST_LINES = 5  # of a verdict, with a line for the page one more
_SHORTEST = 40  # columns of a terminal's text
_LONGEST_NAME = 40  # letters of a pair of columns


# Lines of a path or a command.
_WHOLE = ("synthetic table", "both joined", "ledger", "page", "more rows", "more people")


def say_line(what: str, text: str, style: str | None = None, *, most: int = 0) -> int:
    """Prints `what: text`, and returns the number of lines.

    A sentence goes on below itself, and one that is too long ends before a comma. A path or a command stays whole.

    Args:
        what: the line is about.
        text: of the line.
        style: of rich.
        most: lines that the text may take; 0: as many as it needs.
    """
    head, whole = f"{f'{what}:':<{HEAD}}", what in _WHOLE
    width = max(_SHORTEST, min(out_console.width, 100) - HEAD)
    lines = [text] if whole else _wrapped(text, width, most)
    for number, line in enumerate(lines):
        start = head if number == 0 else " " * HEAD
        out_console.print(f"{start}{line}", soft_wrap=True, highlight=False, markup=False, style=style)
    return len(lines)


def _wrapped(text: str, width: int, most: int) -> list[str]:
    """Returns at most `most` lines of a text.

    0 is no limit.

    >>> _wrapped("use fewer bins, or raise inference.max_cells", 22, 1)
    ['use fewer bins …']
    """
    clauses = text.split(", ")
    for left in range(len(clauses), 0, -1):
        lines = textwrap.wrap(", ".join(clauses[:left]) + ("" if left == len(clauses) else " …"), width)
        if not most or len(lines) <= most:
            return lines
    return textwrap.wrap(text, width, max_lines=most, placeholder=" …")


def say_verdict(verdict: Verdict) -> None:
    """Prints a verdict in at most five lines of 80 columns.

    A table of people with several rows has three uses more, and may take seven lines.
    What the table is good for, what not and why, what is not known, and what to do next.
    """
    from fedsyn.evaluation.verdict import worst

    uses = {"good for": verdict.good(), "not good for": verdict.bad(), "not known": verdict.unknown()}
    amiss = worst([one for one in (*verdict.columns, *verdict.links) if one.state != "kept"], verdict.foremost)
    texts = {}
    for what, some in uses.items():
        counts = [f" ({use.kept} of {use.of} kept)" if use.of and use.name != "regression" else "" for use in some]
        texts[what] = ", ".join(f"{use.name}{count}" for use, count in zip(some, counts, strict=True))
    if amiss is not None and any(use.of for use in uses["not good for"]):
        name = shortened(amiss.name, _LONGEST_NAME)
        texts["not good for"] += f"; {name} {amiss.became}"
    said = [(what, text) for what, text in {**texts, "next": verdict.next}.items() if text]
    left = _MOST_LINES + (2 if verdict.persons is not None else 0)
    for after, (what, text) in zip(reversed(range(len(said))), said, strict=True):
        left -= say_line(what, text, most=left - after)  # each of those that follow has a line


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failure to write into a message."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"cannot write {path}: there is no folder {path.absolute().parent}") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def may_write(path: Path, force: bool, *, folder: bool = False) -> None:
    """Refuses to replace a file or a folder, unless `force` is set.

    Somebody may have edited it.

    Raises:
        ConfigError: the file exists, or there is no such folder.
    """
    if path.is_dir() and not folder:
        raise ConfigError(f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file() and not folder:
        raise ConfigError(f"{path} is a pipe or a device, not a file: name a file")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; choose another name, or add --force to replace it")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")


def confirm(question: str, yes: bool, unasked: str) -> None:
    """Asks a person to confirm, unless `yes` is set.

    The command ends if the answer is no. Raises ConfigError, with the sentence `unasked`, if nobody can
    be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(unasked)
    if not typer.confirm(question):
        raise typer.Exit(1)


def stop_event() -> threading.Event:
    """Returns an event that SIGTERM and Ctrl-C set."""
    stopping = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stopping.set())
    return stopping
