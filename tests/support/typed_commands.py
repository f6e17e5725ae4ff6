"""Commands as somebody types them, in this process: what is printed, and the exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
import pytest
import typer

from fedsyn.front import cli
from fedsyn.front.cli import app


@dataclass
class Result:
    """What a command left: its exit code, and what stood on its two outputs."""

    code: int
    out: str
    err: str


Fedsyn = Callable[..., Result]


def entry_point(capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fedsyn:
    """The command's own entry point; `capture` is pytest's capsys or capfd."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["fedsyn", *map(str, arguments)])
        monkeypatch.setattr(cli, "no_tracebacks", lambda: None)  # of a whole process, and this one is pytest's
        capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capture.readouterr()
        return Result(int(ended.value.code or 0), printed.out, printed.err)

    return call


def parse(line: str) -> click.Context:
    """Parses a `fedsyn ...` line down to its subcommand without running anything; click.UsageError if it is wrong."""
    command: click.Command = typer.main.get_command(app)
    context, words = click.Context(command, info_name="fedsyn"), shlex.split(line)[1:]
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert name is not None and found is not None
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=name)
    return command.make_context(name, list(words), parent=context)
