"""The command `fedsyn init FILE`.

It writes a configuration and a drafted schema for one's own table.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsyn.errors import ConfigError
from fedsyn.front.cli.console import ForceOption, may_write, out_console, wrapped, writing
from fedsyn.front.cli.schemas import (
    BinsOption,
    DecimalOption,
    EncodingOption,
    HeaderOption,
    KeepOption,
    LabelOption,
    NoHeaderOption,
    RenameOption,
    SeparatorOption,
    SheetOption,
    SkipFooterOption,
    SkipRowsOption,
    data_as_typed,
    drafted,
    file_options,
    found,
)
from fedsyn.output import say

# Digits of 1 / delta, until somebody says otherwise: fewer rows than that are in most tables of people.
_DELTA = "1.0e-6"


def init(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Your table, one file per holder, or a file of people and one of their rows.", metavar="FILE"
        ),
    ],
    label: LabelOption = None,
    keep: KeepOption = None,
    bins: BinsOption = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    no_header: NoHeaderOption = False,
    skip_rows: SkipRowsOption = None,
    skip_footer: SkipFooterOption = None,
    rename: RenameOption = None,
    common: Annotated[bool, typer.Option("--common", help="Leave out columns that not every file has.")] = False,
    force: ForceOption = False,
) -> None:
    """Write run.yaml and a draft schema.yaml for your own table.

    Both are written to this folder. Then the next steps are printed.
    """
    from fedsyn.front.cli.drafts import show_draft
    from fedsyn.front.cli.reviewing import ask_about_persons
    from fedsyn.table.schema import Schema

    config, described = Path("run.yaml"), Path("schema.yaml")
    if all(Path(file).exists() for file in files):  # what is missing is said first
        for path in (config, described):
            may_write(path, force)
    options = file_options(separator, encoding, decimal, sheet, header, no_header, skip_rows, skip_footer, rename)
    cells, draft = drafted(files, options, bins, label, keep or (), common)
    with writing(described):
        described.write_text(draft.schema.dumps(), encoding="utf-8")
    show_draft(out_console, draft, cells.said, len(cells.frame), files[0] if len(files) == 1 else "")
    if sys.stdin.isatty():  # else what is proposed stands, for a review to answer
        ask_about_persons(described, cells.frame if draft.two is None else draft.two.whose)
    persons = Schema.load(described).persons
    source, of_people = list(files), None
    if draft.two is not None:
        if persons is None:
            described.unlink()
            raise ConfigError(
                f"{' and '.join(files)} are one table only where '{draft.two.key}' says whose a row is: nothing was "
                f"written. For one of them alone: fedsyn init {shlex.quote(files[draft.two.own_first])}"
            )
        of_people, *source = files if draft.two.own_first else files[::-1]
    with writing(config):
        text = config_text(source, cells.options.said(), persons is not None, of_people)
        config.write_text(text, encoding="utf-8")
    data = data_as_typed(files, options | found(cells))
    sentence = wrapped(
        "run.yaml, schema.yaml: written. Put public knowledge in place of what schema.yaml lists under 'drafted', "
        "and look at epsilon and delta in run.yaml. Then:"
    )
    say(f"{sentence}\n  fedsyn schema review schema.yaml {data}\n  fedsyn run run.yaml")


def config_text(
    files: Sequence[str], options: dict[str, Any], of_persons: bool = False, of_people: str | None = None
) -> str:
    """Returns a configuration's text with the keys that are needed.

    A comment says where all other keys are listed. With `of_persons` it protects persons. `of_people` is the file of
    the persons whose rows the other has.
    """
    from fedsyn import yamlio

    data: dict[str, Any] = {"source": files[0] if len(files) == 1 else list(files), "schema": "schema.yaml"}
    data |= {} if of_people is None else {"persons": of_people}
    parts = [
        _HEAD + yamlio.dumps({"data": data | ({"options": options} if options else {})}),
        _BUDGET_OF_PERSONS if of_persons else _BUDGET,
    ]
    parts += [(_ALONE if of_people is None else _ALONE_APART) + _ONE] if len(files) == 1 else []
    parts += [_PARQUET] if all(file.lower().endswith(".parquet") for file in files) else []
    return "\n".join(parts)


_HEAD = """\
# A run: fedsyn run run.yaml
# What is left out has its default; docs/reference/configuration.md lists every key.
"""
_BUDGET = f"""\
# The promise: (epsilon, delta)-differential privacy of each row. 1 is strong, 10 is weak.
epsilon: 1.0
# Well below 1 / the number of rows; choose it by public knowledge of how many there are, not by counting.
delta: {_DELTA}
"""
_BUDGET_OF_PERSONS = f"""\
# The promise: (epsilon, delta)-differential privacy of each person with all rows. 1 is strong, 10 is weak.
# schema.yaml says under `persons` whose a row is. Without it write unit: row, for a promise of each row alone.
epsilon: 1.0
# Well below 1 / the number of people; choose it by public knowledge of how many there are, not by counting.
delta: {_DELTA}
privacy: {{unit: person}}
"""
_ALONE = "# One file is one holder, who adds the noise; 10, say, would be a simulation of ten.\n"
_ALONE_APART = "# Two files are one holder's, who adds the noise; 10, say, would be a simulation of ten.\n"
_ONE = "federation: {clients: 1}\n"
_PARQUET = """\
# As the table came, with its types.
synthesis: {format: parquet}
"""
