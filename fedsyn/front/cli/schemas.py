"""Commands on a table's public description: `fedsyn schema ...`.

A schema is drafted, looked at and approved.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.front.cli.console import ForceOption, err_console, may_write, out_console, wrapped, writing
from fedsyn.output import counted, say

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.table.data.sources import Cells
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import Finding
    from fedsyn.table.schema.draft import Guess
    from fedsyn.table.schema.proposals import Proposal

app = typer.Typer(help="Draft, check and review a schema, the public description of a table.", no_args_is_help=True)

SeparatorOption = Annotated[str | None, typer.Option(help="Separator of a text file; default: detected.")]
EncodingOption = Annotated[str | None, typer.Option(help="Encoding of a text file; default: detected.")]
DecimalOption = Annotated[str | None, typer.Option(help="Decimal mark of a text file's numbers: '.' or ','.")]
SheetOption = Annotated[str | None, typer.Option(help="Sheet of an Excel file, by name or number; default: the first.")]
HeaderOption = Annotated[int | None, typer.Option(min=1, max=5, help="Rows of names, joined; default: 1.")]
SkipRowsOption = Annotated[int | None, typer.Option(min=0, max=1000, help="Rows above the names, such as a title.")]
BinsOption = Annotated[int | None, typer.Option(help="Bins of ordered columns; default: as many as rows carry.")]
LabelOption = Annotated[str | None, typer.Option(help="Column that the evaluation predicts.")]
KeepOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Keep a column that looks personal; may be repeated.")
]
DataOption = Annotated[
    list[str] | None, typer.Option(help="Table that the schema describes; may be repeated.", metavar="FILE")
]
FewOption = Annotated[int, typer.Option(min=1, help="A category that fewer rows hold is rare.")]


@app.command("draft")
def draft_command(
    file: Annotated[str, typer.Argument(help="CSV, TSV, Excel or Parquet file.", metavar="FILE")],
    bins: BinsOption = None,
    label: LabelOption = None,
    keep: KeepOption = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    skip_rows: SkipRowsOption = None,
    out: Annotated[Path | None, typer.Option(help="File for the draft; default: standard output.")] = None,
    force: ForceOption = False,
) -> None:
    """Draft a schema from a file.

    Values read from the data are marked; a run refuses them until they are approved.
    """
    from fedsyn.front.cli.drafts import show_draft

    if out is not None:
        may_write(out, force)
    options = file_options(separator, encoding, decimal, sheet, header, skip_rows)
    cells, guesses, holding, text = drafted([file], options, bins, label, keep or ())
    if out is None:
        show_draft(err_console, guesses, holding, cells.notes, len(cells.frame), file)
        say(text.rstrip("\n"))
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
    show_draft(out_console, guesses, holding, cells.notes, len(cells.frame), file)
    sentence = f"{out}: a draft. Put public knowledge in place of what is listed under 'drafted', then approve it:"
    say(f"{wrapped(sentence)}\n  fedsyn schema review {shlex.quote(str(out))} {data_as_typed([file], options)}")


def file_options(
    separator: str | None,
    encoding: str | None,
    decimal: str | None,
    sheet: str | None,
    header: int | None,
    skip_rows: int | None,
) -> dict[str, Any]:
    """Returns the options of a file, without those left out."""
    options: dict[str, Any] = {"separator": separator, "encoding": encoding, "decimal": decimal, "sheet": sheet}
    options |= {"header": header, "skip_rows": skip_rows}
    return {key: value for key, value in options.items() if value is not None}


def data_as_typed(files: Sequence[str], options: Mapping[str, Any]) -> str:
    """Returns files and their options as they are typed.

    `schema review` and `schema check` take them so.
    """
    words = [f"--data {shlex.quote(file)}" for file in files]
    words += [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in options.items()]
    return " ".join(words)


def drafted(
    files: Sequence[str], options: dict[str, Any], bins: int | None, label: str | None, keep: Sequence[str]
) -> tuple[Cells, dict[str, Guess], list[Proposal], str]:
    """Reads all files and drafts a schema for them.

    Returns the cells of all files under one another, the guess for each column, the constraints that
    hold, and the draft's text.

    Raises:
        DataError: files of different columns, or no column is modelled.
    """
    from fedsyn.front.cli.drafts import carried
    from fedsyn.table.schema import BinnedColumn, Schema
    from fedsyn.table.schema.columns import KINDS
    from fedsyn.table.schema.draft import draft_columns, drafted_schema
    from fedsyn.table.schema.drafted_bins import FINEST
    from fedsyn.table.schema.proposals import proposed_constraints
    from fedsyn.table.schema.review import remarks

    cells = _together(files, options)
    guesses = draft_columns(cells.frame, bins, label, keep, decimal=options.get("decimal"), text=cells.text)
    if not any(guess.column.kind in KINDS for guess in guesses.values()):
        raise DataError(
            f"no column of {files[0]} is left to synthesise: each is empty, personal, free text, one value in every "
            "row, or different in every row; --keep NAME keeps one that is not empty"
            + "".join(f"; {note}" for note in cells.notes)
        )
    schema = Schema.from_dict(drafted_schema(guesses, label), files[0])
    # Constraints that hold may need columns with a missing value, or with finer bins.
    holding = proposed_constraints(schema, cells.frame)
    for name in {one.unknown for one in holding} - {""}:
        guesses[name] = replace(guesses[name], column=guesses[name].column.model_copy(update={"missing": True}))
    if bins is None and holding:
        for name in {name for one in holding for name in one.columns}:
            if isinstance(column := guesses[name].column, BinnedColumn):  # wide bins keep little of what it holds to
                guesses[name] = replace(guesses[name], column=column.cut(FINEST))
    schema = Schema.from_dict(drafted_schema(guesses, label), files[0])
    comments, rows, first = remarks(guesses, holding), len(cells.frame), next(iter(guesses))
    comments[first] = [f"{counted(rows, 'row')}.{carried(guesses, rows)}", *comments.get(first, ())]
    return cells, guesses, holding, schema.dumps(comments)


def _together(files: Sequence[str], options: dict[str, Any]) -> Cells:
    """Returns the cells of all files under one another.

    Raises:
        DataError: a file has other columns than the first one.
    """
    import pandas as pd

    from fedsyn.table.data.sources import Cells, source_cells

    parts = [source_cells(file, options) for file in files]
    names = list(parts[0].frame.columns)
    for file, part in zip(files, parts, strict=True):
        others = [str(name) for name in part.frame.columns if name not in names]
        lacking = [str(name) for name in names if name not in list(part.frame.columns)]
        if others or lacking:
            wrong = f"has no column '{lacking[0]}'{nearest(lacking[0], others)}" if lacking else f"has '{others[0]}'"
            raise DataError(f"{file} {wrong}, unlike {files[0]}: all holders have the same columns")
        if part.text != parts[0].text:
            raise DataError(f"{file} and {files[0]} are files of different kinds: convert one of them")
    if len(parts) == 1:
        return parts[0]
    notes = tuple(f"{file}: {note}" for file, part in zip(files, parts, strict=True) for note in part.notes)
    same = all(part.options == parts[0].options for part in parts)
    frame = pd.concat([part.frame[names] for part in parts], ignore_index=True)
    return Cells(frame, parts[0].options if same else type(parts[0].options).of(options), notes, parts[0].text)


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A schema.", metavar="SCHEMA.yaml")],
    data: DataOption = None,
    few: FewOption = 10,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    skip_rows: SkipRowsOption = None,
) -> None:
    """Print what in a schema still needs approval, and why.

    Exit code 1 if anything does.
    """
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import left, people

    schema = Schema.load(file)
    options = file_options(separator, encoding, decimal, sheet, header, skip_rows)
    rows, findings = _read(schema, data, few, options)
    sentences = people(schema, rows)
    if rows is not None and findings is not None:
        shown = (
            sentence for name in findings for sentence in _shown(name, findings[name], schema.columns[name].missing)
        )
        sentences = [*shown, *sentences, *(_broken(schema, rows) if schema.constraints else ())]
    for sentence in sentences:
        say(sentence)
    waiting = left(schema, findings, few)
    for name, words in waiting.items():
        say(f"{name}: read from the data: {'; '.join(words)}")
    if waiting:
        command = f"fedsyn schema review {shlex.quote(str(file))} {data_as_typed(data or ['FILE'], options)}"
        need = f"{counted(len(schema.columns), 'column')} need{'s' * (len(schema.columns) == 1)} approval"
        say(f"{len(waiting)} of {need}: {command}")
        raise typer.Exit(1)
    apart = ", ".join(name for name in schema.aside if name not in schema.order)
    out = f"; left out: {apart}" if apart else ""
    say(f"{file}: {counted(len(schema.columns), 'column')}, nothing needs approval{out}")


@app.command("review")
def review_command(
    file: Annotated[Path, typer.Argument(help="A schema.", metavar="SCHEMA.yaml")],
    data: DataOption = None,
    approve: Annotated[
        list[str] | None, typer.Option("--approve", metavar="COLUMN", help="Approve a column; may be repeated.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Approve all columns.")] = False,
    public: Annotated[str | None, typer.Option(help="Reason why the categories of these columns are public.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Merge rare categories into 'other'.")] = False,
    private: Annotated[
        bool,
        typer.Option("--private", help="Let the run find bounds and categories with noisy sums."),
    ] = False,
    few: FewOption = 10,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    skip_rows: SkipRowsOption = None,
) -> None:
    """Approve a drafted schema.

    Go through it column by column in a terminal, or approve the named columns at once.
    """
    from fedsyn.front.cli.reviewing import review_in_terminal
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import How, people
    from fedsyn.table.schema.review import approve as approved
    from fedsyn.table.schema.review import proposed_lines

    schema = Schema.load(file)
    if fold and not data:
        raise ConfigError("--fold needs the table, to count its rows: --data FILE")
    options = file_options(separator, encoding, decimal, sheet, header, skip_rows)
    rows, findings = _read(schema, data, few, options)
    if not approve and not every:
        if not sys.stdin.isatty():
            raise ConfigError("a review asks in a terminal; without one, name columns: --approve COLUMN, or --all")
        for sentence in people(schema, rows):
            say(sentence)
        review_in_terminal(file, findings, few)
        return
    names = list(approve or schema.unapproved)
    text = file.read_text(encoding="utf-8")
    text = approved(text, names, How(few, public, fold, private), findings, str(file))
    with writing(file):
        file.write_text(text, encoding="utf-8")
    waiting = Schema.loads(text).unapproved
    rest = f"still to approve: {', '.join(waiting)}" if waiting else "nothing is left to approve"
    say(wrapped(f"{file}: approved {counted(len(names), 'column')}; {rest}"))
    if proposed_lines(text):
        say(wrapped("What was seen to hold is left in it as comments (#?): answer them in a terminal, or delete them."))


def _read(
    schema: Schema, data: list[str] | None, few: int, options: dict[str, Any]
) -> tuple[pd.DataFrame | None, dict[str, Finding] | None]:
    """Reads the table's columns that the schema has.

    Returns them and what they show, or None for both without a table.
    """
    import pandas as pd

    from fedsyn.table.data.sources import source_cells
    from fedsyn.table.schema.approval import findings

    if not data:
        return None, None
    frames = []
    for file in data:
        frame = source_cells(file, options, columns=list(schema.columns)).frame
        schema.require_columns(frame.columns, where=file)
        frames.append(frame[[name for name in schema.every_column if name in frame.columns]])
    rows = pd.concat(frames, ignore_index=True)
    return rows, findings(schema, rows, few)


def _broken(schema: Schema, rows: pd.DataFrame) -> list[str]:
    """Returns sentences on the constraints that rows of the table break."""
    try:
        broken = schema.violations(rows)
    except DataError as error:  # said of the column already
        return [f"constraints are not counted: {error}"]
    return [f"constraint '{text}': {n:,} of {counted(len(rows), 'row')} break it" for text, n in broken.items() if n]


def _shown(name: str, finding: Finding, missing: bool) -> list[str]:
    """Returns sentences on the misfits between a column and its table.

    `missing` is true if the column has a place for missing values.
    """
    sentences, rows = [], partial(counted, what="row")
    if finding.unread:
        verb = "does" if finding.unread == 1 else "do"
        sentences.append(f"{rows(finding.unread)} {verb} not hold what its kind reads; a run would refuse them")
    if finding.absent and not missing:
        sentences.append(f"{rows(finding.absent)} without a value would be given one; missing: true keeps them missing")
    if finding.outside:
        sentences.append(f"{rows(finding.outside)} outside of its bounds would go to its first or last bin")
    if finding.unlisted:
        values = f"{counted(finding.unlisted, 'value')} in {rows(finding.unlisted_rows)}"
        sentences.append(f"{values} {'is' if finding.unlisted == 1 else 'are'} in none of its categories")
    return [f"{name}: {sentence}" for sentence in sentences]
