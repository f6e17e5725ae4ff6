"""`fedsyn schema review` in a terminal: one column after the other, and the file is written after each answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from fedsyn import yamlio
from fedsyn.errors import InputError
from fedsyn.front.cli.console import writing
from fedsyn.output import say
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.approval import Finding, How, left
from fedsyn.table.schema.review import approve, with_column

_KEYS = "[y]es, it is public   [n]o, not now   [e]dit   [q]uit\n[b]uy: the run finds it by noisy sums"
_KEYS_OF_CATEGORIES = "   [p]ublic because ...\n[f]old what few rows hold into 'other'"


def review_in_terminal(file: Path, found: Mapping[str, Finding] | None, few: int) -> None:
    """Asks about each column that waits for approval.

    Args:
        file: of the schema.
        found: what its table shows, if it is at hand.
        few: rows that have to hold a category.
    """
    schema = Schema.load(file)
    names = list(schema.unapproved)
    for number, name in enumerate(names, 1):
        while True:
            schema = Schema.load(file)
            waiting = left(schema, found, few)
            if name not in waiting:
                break
            say(f"\n{number} of {len(names)}: {name}")
            say(yamlio.dumps(schema.to_dict()["columns"][name]).rstrip())
            say(f"read from the data: {'; '.join(waiting[name])}")
            listed = isinstance(schema.columns[name], CategoricalColumn)
            keys = f"{_KEYS}{_KEYS_OF_CATEGORIES if listed else ''}\n"
            answer = typer.prompt(keys, default="n", show_default=False).strip().lower()[:1]
            if answer == "q":
                return
            if answer == "n" or (answer in "yfpeb" and _answered(file, name, answer, found, few)):
                break
    waiting = left(Schema.load(file), found, few)
    say(f"{file}: {'still to approve: ' + ', '.join(waiting) if waiting else 'nothing is left to approve'}")


def _answered(file: Path, name: str, answer: str, found: Mapping[str, Finding] | None, few: int) -> bool:
    """Does what was answered; False if it could not be done, and the column is asked about again."""
    text = file.read_text(encoding="utf-8")
    try:
        if answer == "e":
            text = _edited(text, name, str(file))
        else:
            public = typer.prompt("public because").strip() if answer == "p" else None
            text = approve(text, [name], How(few, public, answer == "f", answer == "b"), found, str(file))
    except InputError as error:
        say(f"error: {error}")
        return False
    with writing(file):
        file.write_text(text, encoding="utf-8")
    return answer != "e"


def _edited(text: str, name: str, where: str) -> str:
    """The schema's text after its user has edited one column in an editor."""
    import click

    column = yamlio.dumps(Schema.loads(text, where).to_dict()["columns"][name])
    changed = click.edit(column, extension=".yaml")
    if changed is None:
        return text
    new = with_column(text, name, yamlio.loads(changed, name), where)
    Schema.loads(new, where)
    return new
