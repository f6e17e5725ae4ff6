"""Commands on a table's public description: `fedsyn schema ...`.

A schema is drafted, looked at and approved.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedsyn.errors import ConfigError, DataError
from fedsyn.front.cli.console import ForceOption, err_console, may_write, out_console, working, wrapped, writing
from fedsyn.output import counted, plain, say

if TYPE_CHECKING:
    import pandas as pd

    from fedsyn.table.data.sources import Cells
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import Finding, How
    from fedsyn.table.schema.drafted_persons import Apart
    from fedsyn.table.schema.drafting import Draft
    from fedsyn.table.schema.holdings import Holding

app = typer.Typer(help="Draft, check and review a schema, the public description of a table.", no_args_is_help=True)

SeparatorOption = Annotated[str | None, typer.Option(help="Separator of a text file; default: detected.")]
EncodingOption = Annotated[str | None, typer.Option(help="Encoding of a text file; default: detected.")]
DecimalOption = Annotated[str | None, typer.Option(help="Decimal mark of a text file's numbers: '.' or ','.")]
SheetOption = Annotated[str | None, typer.Option(help="Sheet of an Excel file, by name or number; default: the first.")]
HeaderOption = Annotated[int | None, typer.Option(min=1, max=5, help="Rows of names, joined; default: 1.")]
NoHeaderOption = Annotated[bool, typer.Option("--no-header", help="No row has names: column_1, column_2, ...")]
SkipRowsOption = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Rows above the names, as an editor counts them.")
]
SkipFooterOption = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Rows at the end that are totals or notes; 0 keeps them.")
]
RenameOption = Annotated[
    list[str] | None, typer.Option(metavar="OLD=NEW", help="Name of a column in a file, and its name in the schema.")
]
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
    no_header: NoHeaderOption = False,
    skip_rows: SkipRowsOption = None,
    skip_footer: SkipFooterOption = None,
    rename: RenameOption = None,
    out: Annotated[Path | None, typer.Option(help="File for the draft; default: standard output.")] = None,
    force: ForceOption = False,
) -> None:
    """Draft a schema from a file.

    Values read from the data are marked; a run refuses them until they are approved.
    """
    from fedsyn.front.cli.drafts import show_draft

    if out is not None:
        may_write(out, force)
    options = file_options(separator, encoding, decimal, sheet, header, no_header, skip_rows, skip_footer, rename)
    cells, draft = drafted([file], options, bins, label, keep or ())
    text = draft.schema.dumps()
    if out is None:
        show_draft(err_console, draft, cells.said, len(cells.frame), file)
        say(text.rstrip("\n"))
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
    show_draft(out_console, draft, cells.said, len(cells.frame), file)
    sentence = f"{out}: a draft. Put public knowledge in place of what is listed under 'drafted', then approve it:"
    data = data_as_typed([file], options | found(cells))
    say(f"{wrapped(sentence)}\n  fedsyn schema review {shlex.quote(str(out))} {data}")


def found(cells: Cells) -> dict[str, Any]:
    """Returns what was found in a file whose columns no line names.

    Without names nothing shows it again, so it has to be typed.
    """
    return cells.options.said() if cells.options.header == 0 else {}


def file_options(
    separator: str | None,
    encoding: str | None,
    decimal: str | None,
    sheet: str | None,
    header: int | None,
    no_header: bool,
    skip_rows: int | None,
    skip_footer: int | None,
    rename: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Returns the options of a file, without those left out.

    Raises:
        ConfigError: rows of names, and none; a renaming that is not OLD=NEW.
    """
    if no_header and header is not None:
        raise ConfigError("--no-header and --header contradict each other: leave one out")
    options: dict[str, Any] = {"separator": separator, "encoding": encoding, "decimal": decimal, "sheet": sheet}
    options |= {"header": 0 if no_header else header, "skip_rows": skip_rows, "skip_footer": skip_footer}
    pairs = [text.partition("=") for text in rename or ()]
    if any(not (old.strip() and new.strip()) for old, _, new in pairs):
        raise ConfigError("--rename: expected OLD=NEW, a column's name in the file and its name in the schema")
    options["rename"] = {old: new for old, _, new in pairs} or None
    return {key: value for key, value in options.items() if value is not None}


def data_as_typed(files: Sequence[str], options: Mapping[str, Any]) -> str:
    """Returns files and their options as they are typed.

    `schema review` and `schema check` take them so.
    """
    words = [f"--data {shlex.quote(file)}" for file in files]
    for key, value in options.items():
        if key == "header" and value == 0:
            words.append("--no-header")
            continue
        values = [f"{old}={new}" for old, new in value.items()] if key == "rename" else [value]
        words += [f"--{key.replace('_', '-')} {shlex.quote(str(one))}" for one in values]
    return " ".join(words)


def drafted(
    files: Sequence[str],
    options: dict[str, Any],
    bins: int | None,
    label: str | None,
    keep: Sequence[str],
    common: bool = False,
) -> tuple[Cells, Draft]:
    """Reads all files and drafts a schema for them.

    Returns the cells of all files under one another, and the draft. With `common` columns that not every file has are
    left out.

    Raises:
        DataError: files of different columns, or no column is modelled.
    """
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.drafting import drafted as draft_of
    from fedsyn.table.schema.holdings import holdings_of, unlike

    with working(f"reading {', '.join(files[:3])}") as following:
        cells, parts, two = _together(files, options, common)
        how: dict[str, Any] = {"decimal": options.get("decimal"), "text": cells.text, "notes": cells.said, "two": two}
        how["holdings"] = [len(part) for part in parts.values()]
        following(f"drafting a schema of {len(cells.frame):,} rows")
        draft = draft_of(Schema, cells.frame, bins, label, keep, where=files[0], **how)
        return cells, draft.hinted(unlike(holdings_of(draft.schema, parts)))


def _together(
    files: Sequence[str], options: dict[str, Any], common: bool
) -> tuple[Cells, dict[str, pd.DataFrame], Apart | None]:
    """Returns the cells of all files.

    They are under one another, and those of each file apart. With `common` they have the columns that every file has.
    Two files of persons and of their rows are joined, and come apart as well.

    Raises:
        DataError: files have different columns.
    """
    import pandas as pd

    from fedsyn.table.data.alike import other_orders, require_renamed, shared_columns
    from fedsyn.table.data.sources import Cells, source_cells
    from fedsyn.table.schema.drafted_persons import apart, named_as

    parts = [source_cells(file, options) for file in files]
    columns = {file: list(map(str, part.frame.columns)) for file, part in zip(files, parts, strict=True)}
    require_renamed(columns, options.get("rename", {}))
    if len(parts) == 1:
        return parts[0], {}, None
    for file, part in zip(files, parts, strict=True):
        if part.text != parts[0].text:
            raise DataError(f"{file} and {files[0]} are files of different kinds: convert one of them")
    names = shared_columns(columns)
    two = None if common else apart({file: part.frame for file, part in zip(files, parts, strict=True)})
    if two is None and (not common or not names):
        _require_holders({file: part.frame for file, part in zip(files, parts, strict=True)})
    notes = [f"{file}: {note}" for file, part in zip(files, parts, strict=True) for note in part.said]
    same = all(part.options == parts[0].options for part in parts)
    known = parts[0].options if same else type(parts[0].options).of(options)
    if two is not None:
        if (both := [name for name in names if name != two.key]) and (first := two.tables[0]):
            notes.append(f"{', '.join(both)}: in both files; what {first} says of a person is taken")
        return Cells(two.rows, known, (*notes, two.said), parts[0].text), {}, named_as(two)
    for file, own in columns.items():
        if more := [name for name in own if name not in names]:
            notes.append(f"{file}: left out, as not every file has it: {', '.join(more)}")
    if moved := other_orders(columns):
        notes.append(f"{', '.join(moved)}: columns in another order, which changes nothing")
    frames = {file: part.frame[names] for file, part in zip(files, parts, strict=True)}
    return Cells(pd.concat(frames.values(), ignore_index=True), known, tuple(notes), parts[0].text), frames, None


def _require_holders(frames: Mapping[str, pd.DataFrame]) -> None:
    """Refuses files of different columns.

    Two of them might be persons and their rows.
    """
    from fedsyn.table.data.alike import require_same_columns
    from fedsyn.table.schema.drafted_persons import NOT_APART, nearly_apart

    columns = {file: list(map(str, frame.columns)) for file, frame in frames.items()}
    try:
        require_same_columns(columns)
    except DataError as error:
        if said := nearly_apart(frames) or _several_with_two(frames):
            raise DataError(said) from None
        raise DataError(f"{error}. Or, {NOT_APART}" if len(columns) == 2 else str(error)) from None


def _several_with_two(frames: Mapping[str, pd.DataFrame]) -> str:
    """Returns what to do where several holders have two files each."""
    from itertools import combinations

    from fedsyn.table.schema.drafted_persons import apart

    if len(frames) % 2 or len({tuple(sorted(map(str, frame.columns))) for frame in frames.values()}) != 2:
        return ""
    for pair in combinations(frames, 2):
        if (two := apart({file: frames[file] for file in pair})) is not None:
            names = " ".join(map(shlex.quote, two.tables))
            return (
                f"these are persons and their rows of {len(frames) // 2} holders, and a draft is of one: fedsyn init "
                f"{names}. Then look at those of each with fedsyn schema check, and list all in run.yaml, one of each "
                "holder: data: {source: [files of rows], persons: [files of persons]}"
            )
    return ""


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
    no_header: NoHeaderOption = False,
    skip_rows: SkipRowsOption = None,
    skip_footer: SkipFooterOption = None,
    rename: RenameOption = None,
) -> None:
    """Print what in a schema needs approval, and what does not fit.

    Exit code 1 if anything needs approval, or a row has a value that the schema cannot place.
    """
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import left, people
    from fedsyn.table.schema.holdings import cannot_place, sentences
    from fedsyn.table.schema.persons import persons_in_words

    schema = Schema.load(file).rows  # a run for persons writes that of its records, and tables are of rows
    options = file_options(separator, encoding, decimal, sheet, header, no_header, skip_rows, skip_footer, rename)
    seen = _read(schema, data, few, options)
    heard = people(schema) if seen is None else sentences(seen.holdings)
    broken = _broken(schema, seen.rows) if seen is not None and schema.constraints else []
    known = [] if schema.persons is None else [f"persons: {persons_in_words(schema.persons)}"]
    for sentence in [*known, *heard, *_of_persons(schema, seen), *broken]:
        say(sentence)
    waiting = left(schema, None if seen is None else seen.findings, few)
    columns = len(schema.columns) + (schema.persons is not None)  # with the one that says whose a row is
    for name, words in waiting.items():
        say(f"{name}: read from the data: {'; '.join(words)}")
    if waiting:
        command = f"fedsyn schema review {shlex.quote(str(file))} {data_as_typed(data or ['FILE'], options)}"
        need = f"{counted(columns, 'column')} need{'s' * (columns == 1)} approval"
        say(f"{len(waiting)} of {need}: {command}")
    if seen is not None and any(map(cannot_place, seen.holdings.values())):
        say(f"{file}: it does not fit: the rows have values that it cannot place")
    elif not waiting:
        apart = ", ".join(name for name in schema.aside if name not in schema.order)
        out = f"; left out: {apart}" if apart else ""
        say(f"{file}: {counted(columns, 'column')}, nothing needs approval{out}")
        return
    raise typer.Exit(1)


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
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="RULE",
            help="State a proposed constraint, as 'hired <= left' or '{zero: [claims, paid]}'; 'all' states every one.",
        ),
    ] = None,
    maps: Annotated[
        list[Path] | None,
        typer.Option(
            "--map", metavar="FILE", help="Public CSV of a code and its group, named as columns; may be repeated."
        ),
    ] = None,
    few: FewOption = 10,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    decimal: DecimalOption = None,
    sheet: SheetOption = None,
    header: HeaderOption = None,
    no_header: NoHeaderOption = False,
    skip_rows: SkipRowsOption = None,
    skip_footer: SkipFooterOption = None,
    rename: RenameOption = None,
) -> None:
    """Approve a drafted schema, and state what holds in every row.

    Go through it column by column in a terminal, or approve the named columns at once.
    """
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import How
    from fedsyn.table.schema.review import with_map, with_stated

    schema = Schema.load(file)
    if fold and not data:
        raise ConfigError("--fold needs the table, to count its rows: --data FILE")
    options = file_options(separator, encoding, decimal, sheet, header, no_header, skip_rows, skip_footer, rename)
    seen = _read(schema, data, few, options)
    if not (approve or every or state or maps):
        _review_one_by_one(file, schema, seen, few)
        return
    text = file.read_text(encoding="utf-8")
    for known in maps or ():
        text = with_map(text, known, str(file))
    text = with_stated(text, state or (), str(file))
    names = list(approve or (schema.unapproved if every else ()))
    _approve_at_once(file, text, names, How(few, public, fold, private), seen)


def _review_one_by_one(file: Path, schema: Schema, seen: Seen | None, few: int) -> None:
    """Asks about each column in a terminal."""
    from fedsyn.front.cli.reviewing import review_in_terminal
    from fedsyn.table.schema.approval import people
    from fedsyn.table.schema.holdings import unlike

    if not sys.stdin.isatty():
        raise ConfigError("a review asks in a terminal; without one, name columns: --approve COLUMN, or --all")
    findings, rows = (None, None) if seen is None else (seen.findings, seen.rows)
    different = {} if seen is None else unlike(seen.holdings)
    for sentence in [*(f"{name}: {text}" for name, text in different.items()), *people(schema, rows)]:
        say(sentence)
    review_in_terminal(file, findings, few, rows)


def _approve_at_once(file: Path, text: str, names: Sequence[str], how: How, seen: Seen | None) -> None:
    """Approves columns of a schema's text and writes it.

    Says what is left to approve, and what was not answered.
    """
    from fedsyn.front.cli.reviewing import say_not_stated
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.approval import people, standing
    from fedsyn.table.schema.review import approve

    before = {rule.text for rule in Schema.load(file).constraints}
    stated = [rule.text for rule in Schema.loads(text, str(file)).constraints if rule.text not in before]
    unanswered = standing(Schema.loads(text, str(file)).hints, names)
    text = approve(text, names, how, None if seen is None else seen.findings, str(file))
    with writing(file):
        file.write_text(text, encoding="utf-8")
    waiting = Schema.loads(text).unapproved
    rest = f"still to approve: {', '.join(waiting)}" if waiting else "nothing is left to approve"
    done = [f"stated: {plain(rule)}" for rule in stated]
    done += [f"approved {counted(len(names), 'column')}"] if names or not stated else []
    say(wrapped(f"{file}: {'; '.join([*done, rest])}"))
    for sentence in [*people(Schema.loads(text), None if seen is None else seen.rows), *unanswered]:
        say(wrapped(f"{plain(sentence)}."))
    say_not_stated(file, text)


class Seen(NamedTuple):
    """Rows that a schema is looked at with.

    Attributes:
        rows: of all tables, in the columns that the schema has.
        findings: of each column.
        holdings: of each table, by its name; a single one has none.
    """

    rows: pd.DataFrame
    findings: dict[str, Finding]
    holdings: dict[str, Holding]


def _read(schema: Schema, data: list[str] | None, few: int, options: dict[str, Any]) -> Seen | None:
    """Reads the tables' columns that the schema has.

    Returns None without a table.
    """
    import pandas as pd

    from fedsyn.table.data.alike import require_renamed, require_schema_columns
    from fedsyn.table.data.sources import source_cells
    from fedsyn.table.schema.approval import findings
    from fedsyn.table.schema.holdings import holdings_of

    if not data:
        return None
    with working(f"reading {', '.join(data[:3])}"):
        frames = {file: source_cells(file, options, schema.needed, list(schema.aside)).frame for file in data}
        columns = {file: list(map(str, frame.columns)) for file, frame in frames.items()}
        require_renamed(columns, options.get("rename", {}))
        frames = _joined(schema, frames)
        require_schema_columns({file: list(map(str, frame.columns)) for file, frame in frames.items()}, schema)
        known = {
            file: frame[[name for name in schema.every_column if name in frame.columns]]
            for file, frame in frames.items()
        }
        rows = pd.concat(known.values(), ignore_index=True)
        holdings = holdings_of(schema, known if len(known) > 1 else {"": rows})
        return Seen(rows, findings(schema, rows, few), holdings)


def _joined(schema: Schema, frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Returns one table of each holder, files of persons and rows joined."""
    from fedsyn.table.schema.joined import joined, pairs_of

    if schema.persons is None or schema.persons.tables is None:
        return frames
    pairs = pairs_of({name: [*frame.columns] for name, frame in frames.items()}, schema)
    return {
        f"{persons} and {rows}": joined(frames[persons], frames[rows], schema, (persons, rows))
        for persons, rows in pairs
    } or frames


def _of_persons(schema: Schema, seen: Seen | None) -> list[str]:
    """Returns sentences on what rows have against `persons` of the schema."""
    from fedsyn.table.schema.approval import nameless_rows
    from fedsyn.table.schema.drafted_persons import differing
    from fedsyn.table.schema.holdings import changing
    from fedsyn.table.schema.whose import Whose

    if seen is None or schema.persons is None or schema.persons.id not in seen.rows.columns:
        return []
    who = Whose(schema.missing_text)
    who.of(seen.rows[schema.persons.id])
    return [*changing([differing(schema, seen.rows)]), *nameless_rows(schema.persons, who.nameless)]


def _broken(schema: Schema, rows: pd.DataFrame) -> list[str]:
    """Returns sentences on the constraints that rows of the table break."""
    from fedsyn.table.schema.joined import there_are

    broken, all_ = schema.violations(rows).items(), counted(len(there_are(schema, rows)), "row")
    return [f"constraint '{text}': {n:,} of {all_} break it" for text, n in broken if n]
