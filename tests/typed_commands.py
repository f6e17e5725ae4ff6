"""Commands as somebody types them, in this process: what is printed, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fedsyn.front import cli


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
