"""Ends every command with one sentence and an exit code.

No traceback is printed that nobody asked for.

A traceback may show values of the table that was read, so it is printed only where FEDSYN_DEBUG=1 asks for it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import click

from fedsyn.errors import FedsynError, InputError, nearest
from fedsyn.output import DEBUG, no_more_output, reason, say, wants_tracebacks
from fedsyn.version import __version__

OK, FAILED, BAD_INPUT, BUG, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143


def ended(command: Callable[[], Any]) -> int:
    """Runs a command, and prints in one sentence what went wrong.

    Args:
        command: returns an exit code, or something else for success.

    Returns:
        0 success; 1 the run failed; 2 bad input; 70 a bug of fedsyn; 130 interrupted; 143 told to end (SIGTERM).
    """
    try:
        code = command()
        if code == INTERRUPTED:
            say("interrupted", error=True)
        return code if type(code) is int else OK
    except BaseException as error:
        if wants_tracebacks():
            traceback.print_exc()
        sentence, code = verdict(error)
        if sentence:
            say(sentence, error=True)
        return code


def verdict(error: BaseException) -> tuple[str, int]:
    """Returns the sentence for an exception, and the exit code.

    The sentence quotes nothing that the table holds.
    """
    if isinstance(error, InputError):
        return f"error: {error}", BAD_INPUT
    if isinstance(error, FedsynError):
        return f"failed: {error}", FAILED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return str(error.ctx.get_help() if error.ctx else error), BAD_INPUT
    if isinstance(error, click.ClickException):
        return f"error: {_mistyped(error)}", BAD_INPUT
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, SystemExit):
        return "terminated" * (error.code == TERMINATED), error.code if type(error.code) is int else FAILED
    if isinstance(error, BrokenPipeError):  # `| head` has seen enough
        no_more_output()
        return "", FAILED
    if isinstance(error, MemoryError):
        remedy = "give columns fewer bins, lower inference.max_cells_at_once, or take a machine with more of it"
        return f"failed: memory ran out; {remedy}", FAILED
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if isinstance(error.filename, str) else ""
        return f"failed: cannot use{where or ' a file'}: {error.strerror}", FAILED
    return _bug(error), BUG


def _mistyped(error: click.ClickException) -> str:
    """Explains what is wrong with a command line.

    The sentence also names the help that shows what is right.
    """
    known = error.ctx if isinstance(error, click.UsageError) else None
    path = known.command_path if known else "fedsyn"
    message = re.sub(r"\s+", " ", error.format_message()).strip().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        options = [name for param in known.command.params for name in param.opts] if known else []
        message = f"no such option: {error.option_name}{nearest(error.option_name, options)}"
    elif known is not None and isinstance(known.command, click.Group) and message.startswith("No such command"):
        word = message.split("'")[1]
        inner = [name for name, group in known.command.commands.items() if word in getattr(group, "commands", ())]
        there = f"; there is {path} {inner[0]} {word}" if inner else nearest(word, known.command.commands)
        message = f"no such command: {word}{there}"
    return f"{message[:1].lower()}{message[1:]}; see {path} --help"


def _bug(error: BaseException) -> str:
    return (
        f"this is a bug of fedsyn {__version__}: {reason(error)}; please report it with what you typed "
        f"and, if it holds no value of your table, the traceback that {DEBUG}=1 prints"
    )
