"""`fedsyn compare`: runs side by side, in as many columns as the terminal has room for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsyn.front.cli.console import JsonOption, out_console
from fedsyn.output import plain, say

# Widest cell of a run; longer texts keep their two ends.
_WIDEST = 26


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Directories of two or more runs.", metavar="RUN RUN...")],
    as_json: JsonOption = False,
) -> None:
    """Show runs side by side: how their settings, guarantees and metrics differ."""
    from fedsyn.runs.compare import read_runs, rows_of

    runs = read_runs(folders)
    if as_json:
        say(json.dumps([run.to_dict() for run in runs], indent=1))
        return
    groups = rows_of(runs)
    every = [row for _, rows in groups for row in rows]
    cells = [[_short(texts[at]) for _, texts in every] for at in range(len(runs))]
    heads = [_short(run.name) for run in runs]
    widths = [max(len(text) for text in [head, *own]) for head, own in zip(heads, cells, strict=True)]
    label = max(len(what) for what, _ in every)
    for block in _blocks(widths, out_console.width - label):
        lines = [" " * label + "".join(f"  {heads[at]:>{widths[at]}}" for at in block)]
        row = 0
        for group, rows in groups:
            lines += ["", group]
            for what, _ in rows:
                lines.append(f"{what:<{label}}" + "".join(f"  {cells[at][row]:>{widths[at]}}" for at in block))
                row += 1
        say("\n".join(line.rstrip() for line in lines) + "\n")
    say("* the best of its row. Metrics of real rows are not for publication.")


def _short(text: str) -> str:
    text = plain(text, keep="")
    half = _WIDEST // 2
    return text if len(text) <= _WIDEST else f"{text[: half - 1]}…{text[-half:]}"


def _blocks(widths: list[int], room: int) -> list[list[int]]:
    """Runs that fit side by side: lists of their places; one at least in each."""
    blocks: list[list[int]] = [[]]
    for at, width in enumerate(widths):
        if blocks[-1] and sum(widths[other] + 2 for other in blocks[-1]) + width + 2 > room:
            blocks.append([])
        blocks[-1].append(at)
    return blocks
