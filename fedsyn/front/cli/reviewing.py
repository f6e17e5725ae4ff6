"""The command `fedsyn schema review` in a terminal.

It asks about one column after the other, and writes the file after each answer.

What the table shows is printed for its holder alone; nothing of it is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsyn import yamlio
from fedsyn.errors import InputError
from fedsyn.front.cli.console import wrapped, writing
from fedsyn.output import plain, say
from fedsyn.table.schema import CategoricalColumn, Schema
from fedsyn.table.schema.approval import PERSONS, Finding, How, left, not_stated, people
from fedsyn.table.schema.column_base import IdentifierColumn
from fedsyn.table.schema.persons import persons_in_words
from fedsyn.table.schema.review import (
    approve,
    dropped,
    example_of,
    proposed_lines,
    stated,
    typed,
    with_column,
    with_persons,
)

if TYPE_CHECKING:
    import pandas as pd

_KEYS = "[y]es, public as it stands   [n]o, not now   [d]rop the column   [q]uit"
_BUY = "\n[b]uy: the run finds it by noisy sums"
_NOT_OF_PERSONS = (
    "a run for persons does not find bounds or categories, as its noisy sums are of rows: say what is public"
)
_WORDS = {word: word[0] for word in ("yes", "no", "drop", "quit", "buy", "public", "fold", "edit")}
_OF_CATEGORIES = "\n[p]ublic because ...   [f]old rare ones into 'other'\nor the categories, such as: {}"
_OF_BOUNDS = "   [e]dit in $EDITOR\nor what is public instead, such as: {}"


def review_in_terminal(
    file: Path, findings: Mapping[str, Finding] | None, few: int, rows: pd.DataFrame | None = None
) -> None:
    """Asks about each column that waits for approval.

    Then it asks about each constraint that a draft proposes, and about identifiers that repeat.

    Args:
        file: of the schema.
        findings: what its table shows, if it is at hand.
        few: rows that have to hold a category.
        rows: of the table, if it is at hand.
    """
    schema = Schema.load(file)
    names = [name for name in schema.unapproved if name in schema.columns]
    for number, name in enumerate(names, 1):
        while True:
            schema = Schema.load(file)
            waiting = left(schema, findings, few)
            if name not in waiting:
                break
            say(f"\n{number} of {len(names)}: {name}")
            say(yamlio.dumps(schema.to_dict()["columns"][name], width=80).rstrip())
            say(wrapped(f"read from the data: {'; '.join(waiting[name])}"))
            for remark in schema.hints.get(name, ()):
                say(wrapped(f"note: {plain(remark)}"))
            if findings is not None and name in findings:
                say(wrapped(f"the rows: {plain(findings[name].shown)}"))
            column = schema.columns[name]
            keys = _KEYS + ("" if schema.persons else _BUY)
            keys += _OF_CATEGORIES if isinstance(column, CategoricalColumn) else _OF_BOUNDS
            keys = keys.format(plain(example_of(column)))
            answer = typer.prompt(f"{keys}\n", default="n", show_default=False).strip()
            answer = _WORDS.get(answer.lower(), answer.lower() if len(answer) == 1 else answer)
            if answer == "q":
                return
            if answer == "n" or _answered(file, name, answer, findings, few):
                break
    _ask_about_constraints(file)
    ask_about_persons(file, rows)
    waiting = left(Schema.load(file), findings, few)
    rest = f"still to approve: {', '.join(waiting)}" if waiting else "nothing is left to approve"
    say(wrapped(f"{file}: {rest}"))
    say_not_stated(file, file.read_text(encoding="utf-8"))


def _answered(file: Path, name: str, answer: str, findings: Mapping[str, Finding] | None, few: int) -> bool:
    """Carries out an answer about one column.

    Returns False if that could not be done, or if the column was edited. Then the column is asked about
    again.
    """
    text = file.read_text(encoding="utf-8")
    try:
        if answer == "e":
            text = _edited(text, name, str(file))
        elif answer == "d":
            text = dropped(text, name, str(file))
        elif answer == "b" and Schema.loads(text, str(file)).persons is not None:
            raise InputError(_NOT_OF_PERSONS)
        elif answer in ("y", "p", "f", "b"):
            public = typer.prompt("public because").strip() if answer == "p" else None
            text = approve(text, [name], How(few, public, answer == "f", answer == "b"), findings, str(file))
        elif len(answer) > 1:
            text = typed(text, name, answer, str(file), (findings or {}).get(name))
        else:
            raise InputError(f"expected one of the letters, bounds or categories, got '{plain(answer)}'")
    except InputError as error:
        say(f"error: {error}")
        return False
    with writing(file):
        file.write_text(text, encoding="utf-8")
    return answer != "e"


def _ask_about_constraints(file: Path) -> None:
    """Asks whether each constraint that was seen to hold must hold.

    It must if it holds by its meaning, and so for every row there can be.
    """
    for one in proposed_lines(file.read_text(encoding="utf-8")):
        rule = one.rule
        text = file.read_text(encoding="utf-8")
        try:
            new, answer = stated(text, rule, holds=True, where=str(file)), ""
        except InputError:  # one of its columns is not modelled any more
            new, answer = text, "n"
        if not answer:
            say("\n" + wrapped(f"holds in all rows: {plain(str(one))}"))
            keys = "[y]es, it must: state it as a constraint   [n]o, it only happens to   [l]ater"
            answer = typer.prompt(f"{keys}\n", default="l", show_default=False).strip().lower()[:1]
        if answer in ("y", "n"):
            with writing(file):
                new = new if answer == "y" else stated(text, rule, holds=False, where=str(file))
                file.write_text(new, encoding="utf-8")


def ask_about_persons(file: Path, rows: pd.DataFrame | None) -> None:
    """Asks whether identifiers that repeat are persons.

    A yes approves what the draft says of them.

    Until somebody says that it does not, a run for single rows says that its promise is not for one person.
    """
    for name, column in Schema.load(file).aside.items():
        if not isinstance(column, IdentifierColumn) or not {"person", PERSONS} & {*column.drafted}:
            continue
        while True:
            schema = Schema.load(file)
            for sentence in people(schema, rows, [name]):
                say("\n" + wrapped(plain(sentence)))
            keys = "[y]es, it says which person a row is of   [n]o, its values are something else   [l]ater"
            persons = schema.persons
            if persons is not None and persons.id == name:
                say(wrapped(f"persons: {plain(persons_in_words(persons))}."))
                for sentence in _bound(schema, rows):
                    say(wrapped(f"{sentence}."))
                keys += f"\nor yes, and the most rows that a person may have instead, such as: {persons.most_rows}"
            answer = typer.prompt(f"{keys}\n", default="l", show_default=False).strip().lower()
            most = int(answer) if answer.isdecimal() and persons is not None and persons.id == name else None
            if most is None and answer[:1] not in ("y", "n"):
                break
            try:
                text = with_persons(file.read_text(encoding="utf-8"), name, answer[:1] != "n", most, str(file))
            except InputError as error:
                say(f"error: {error}")
                continue
            with writing(file):
                file.write_text(text, encoding="utf-8")
            break


def _bound(schema: Schema, rows: pd.DataFrame | None) -> list[str]:
    """Returns a sentence on a bound of rows that few people set."""
    from fedsyn.table.schema.drafted_persons import bound_of_few
    from fedsyn.table.schema.whose import PersonColumn

    column = PersonColumn.of(schema)
    whose = None if rows is None or column is None else column.numbered(rows)
    return [] if whose is None or schema.persons is None else bound_of_few(whose, schema.persons.most_rows)


def say_not_stated(file: Path, text: str) -> None:
    """Says which proposed constraints are not stated, and what to do."""
    proposed = proposed_lines(text)
    for sentence in not_stated(proposed):
        say(wrapped(plain(sentence)))
    if proposed:
        say(wrapped("State those that must hold in every row, for example:"))
        say(f"  fedsyn schema review {shlex.quote(str(file))} --state {shlex.quote(plain(proposed[0].rule))}")


def _edited(text: str, name: str, where: str) -> str:
    """Returns the schema's text after one column was edited.

    The user edits it in an editor.
    """
    import click

    column = yamlio.dumps(Schema.loads(text, where).to_dict()["columns"][name])
    try:
        changed = click.edit(column, extension=".yaml")
    except click.ClickException as error:
        raise InputError(f"{error.message}; set EDITOR to an editor of this machine") from None
    if changed is None:
        return text
    new = with_column(text, name, yamlio.loads(changed, name), where)
    Schema.loads(new, where)
    return new
