"""The commands `fedsyn sample`, `analyse` and `evaluate`.

They draw rows from a model, analyse them, and compare them with real rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.errors import ConfigError
from fedsyn.front.cli.console import (
    ForceOption,
    JsonOption,
    err_console,
    may_write,
    out_console,
    say_line,
    say_verdict,
    working,
    writing,
)
from fedsyn.output import counted, is_terminal, no_more_output, say, table_stream

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from fedsyn.evaluation.record import Evaluation
    from fedsyn.front.archive import ReleasedRun
    from fedsyn.inference import AnyModel
    from fedsyn.randomness import Randomness
    from fedsyn.table.data.options import FileOptions
    from fedsyn.table.schema import Schema

RealOption = Annotated[
    list[Path], typer.Option(help="Table of real rows, or that of the persons and that of their rows.", metavar="FILE")
]
_SHOWN_ROWS = 8  # of a table that is long


def sample(
    source: Annotated[Path, typer.Argument(help="Saved model, or directory of a run.", metavar="MODEL_OR_RUN")],
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rows, or protected people; default: as fitted, five times with --tables."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Only rows that meet this condition (=, !=, <, <=, >, >=; COLUMN= is missing); may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file, or a folder for tables; default: standard output.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed: the same seed draws the same rows.")] = None,
    tables: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="Number of tables, one per posterior draw; --out must be a folder."),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Draw more rows from a fitted model, with conditions if you like.

    This costs no privacy, ever.
    """
    from fedsyn.config import MOST_ROWS
    from fedsyn.front.archive import read_release
    from fedsyn.front.conditions import read_conditions, restrict
    from fedsyn.privacy.unit import counted_as
    from fedsyn.randomness import Randomness
    from fedsyn.runs.synthesis import expected_rows, write_synthetic
    from fedsyn.table.data.options import written_as

    if rows is not None and rows > MOST_ROWS:
        raise ConfigError(f"--rows: expected a number of rows from 1 to {MOST_ROWS:,}, got {rows:,}")
    if tables is not None:
        _several(source, out, tables, rows, where or (), seed, force)
        return
    if out is not None:
        if out.suffix.lower() not in (".csv", ".parquet"):
            raise ConfigError(f"--out {out}: the name must end in .csv or .parquet")
        may_write(out, force)
    release = read_release(source)
    schema, model = restrict(release.schema, release.model, read_conditions(release.schema, where or ()))
    wanted = rows if rows is not None else expected_rows(model)
    layout = written_as(release.config.data.options, release.schema.rows)
    if out is None:
        _to_standard_output(schema, model, wanted, Randomness(seed), layout)
    else:
        # Made beside its place, so that a file is there whole or not at all.
        drawn = counted(wanted, *counted_as(release.config.privacy.unit))
        drawing = working(f"drawing {drawn}")
        with writing(out), drawing, tempfile.TemporaryDirectory(dir=out.parent) as folder:
            staging = Path(folder) / f"rows{out.suffix.lower()}"
            write_synthetic(staging, schema, model, wanted, Randomness(seed), keep=False, layout=layout)
            staging.replace(out)
        say(f"{drawn} in {out}", error=True)
    _warn(release, "this table")


def analyse(
    tables: Annotated[
        Path, typer.Argument(help="Folder made by: fedsyn sample RUN --tables 20 --out DIR.", metavar="DIR")
    ],
    formula: Annotated[
        str,
        typer.Argument(
            help="'readmitted ~ age + ward', 'mean(age)', 'quantile(age, 0.9)' or 'proportion(ward)'.",
            metavar="FORMULA",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="ols or logit; default: logit for an outcome of two values.", metavar="NAME")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    censored: Annotated[
        str | None,
        typer.Option(help="Censored values (<0.5): bound or leave_out; needed where there are any.", metavar="WAY"),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(help="Of a run for persons, what counts once: row or person.", metavar="WHAT"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate means, proportions and regressions.

    Their intervals include the noise. This costs no privacy.
    """
    from fedsyn.evaluation.analysis import analyse as analysed

    estimates = analysed(tables, formula, model, level=level, censored=censored, per=per)  # type: ignore[arg-type]
    text = json.dumps(estimates.to_dict(), indent=1) if as_json else str(estimates)
    say(text)


def evaluate(
    synthetic: Annotated[Path, typer.Argument(help="Synthetic table, or directory of a run.", metavar="SYNTHETIC")],
    real: RealOption,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="Schema of the synthetic table, which says what to do next; default: schema.yaml beside it, if any.",
            metavar="FILE",
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column to predict; default: the schema's.")] = None,
    regression: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMULA",
            help="Regression whose coefficients to compare, such as 'sbp ~ age + arm'; may be repeated.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a page to this file.", metavar="PAGE.html")] = None,
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Compare a synthetic table with real rows.

    What this prints is not private.
    """
    import numpy as np

    from fedsyn.evaluation.real.comparison import MOST_ROWS, compare_tables
    from fedsyn.runs.directory import reading_of, synthetic_file
    from fedsyn.runs.real_rows import rows_of_people
    from fedsyn.table.schema import Schema
    from fedsyn.table.schema.whose import PersonColumn

    if out is not None:
        may_write(out, force)
    table = synthetic_file(synthetic) if synthetic.is_dir() else synthetic
    beside = table.with_name("schema.yaml")
    schema = beside if schema is None and beside.is_file() else schema
    known = None if schema is None else Schema.load(schema).rows.adjusted(None, label)
    rng, reading = np.random.default_rng(0), None if known is None else reading_of(table, known)
    with working(f"reading {table}") as following:
        rows = rows_of_people(table, reading, known.order if known else None, PersonColumn.of(known), MOST_ROWS, rng)
        following(f"reading {' and '.join(map(str, real))}")
        real_rows = _real_rows(real, known, list(rows.columns), rng)
        following("comparing")
        comparison = compare_tables(real_rows, rows, label=label, schema=known, regressions=regression or (), rng=rng)
    if out is not None:
        from fedsyn.evaluation.report.evaluations import evaluation_page

        with writing(out):
            evaluation_page(comparison, out, table.name)
    if as_json:
        say(json.dumps(comparison.to_dict(), indent=1))
    else:
        say_verdict(comparison.verdict())
        _show(comparison)
        say_line(
            "page", "--out PAGE.html writes one" if out is None else f"{out} (beside real rows, not for publication)"
        )


def _real_rows(files: list[Path], schema: Schema | None, names: list[str], rng: np.random.Generator) -> pd.DataFrame:
    """Returns real rows of whole persons.

    Raises:
        ConfigError: two files, and the schema knows of one, or more than two.
        DataError: one file of two.
    """
    from fedsyn.evaluation.real.comparison import MOST_ROWS
    from fedsyn.runs.real_rows import rows_of_people
    from fedsyn.table.data.joined import joined_files
    from fedsyn.table.schema.joined import require_both
    from fedsyn.table.schema.whose import PersonColumn

    if len(files) == 1:
        rows = rows_of_people(files[0], None, names, PersonColumn.of(schema), MOST_ROWS, rng)
        if schema is not None:  # a table of rows alone may be compared with one
            require_both(rows.columns, schema, str(files[0]), "--real FILE of {} --real FILE of {}", among=names)
        return rows
    if len(files) > 2 or schema is None or schema.persons is None or schema.persons.tables is None:
        raise ConfigError("--real: expected one table; two only of persons and of their rows, as the schema names them")
    return joined_files(files[0], files[1], schema, None)


def _several(
    source: Path, out: Path | None, count: int, rows: int | None, where: Sequence[str], seed: int | None, force: bool
) -> None:
    """Writes a folder of tables, whole or not at all."""
    from fedsyn.front.archive import read_release
    from fedsyn.front.conditions import read_conditions
    from fedsyn.front.several import write_tables

    if out is None or out.suffix:
        raise ConfigError("--tables needs a folder for them: --out DIR")
    may_write(out, force, folder=True)
    if out.exists() and not (out / "tables.json").is_file():
        raise ConfigError(f"{out} is something else than a folder of tables; choose another name")
    release = read_release(source)
    conditions = read_conditions(release.schema, where)
    drawing = working(f"drawing {count} tables")
    with writing(out), drawing as following, tempfile.TemporaryDirectory(dir=out.absolute().parent) as folder:
        staging = Path(folder) / "tables"
        staging.mkdir()
        size = write_tables(
            staging, release, count, rows, conditions, seed, lambda at: following(f"drawing table {at} of {count}")
        )
        if out.exists():
            out.rename(Path(folder) / "before")
        staging.replace(out)
    say(f"{count} tables of {size:,} rows in {out}", error=True)
    _warn(release, "these tables")


def _warn(release: ReleasedRun, what: str) -> None:
    if not release.ledger.get("private", False):
        reasons = (
            "; ".join(release.ledger.get("not_private_because", ())) or "its ledger does not say that it is private"
        )
        err_console.print(f"do not release {what}: {reasons}", soft_wrap=True, highlight=False, style="yellow")


def _to_standard_output(
    schema: Schema, model: AnyModel, rows: int, randomness: Randomness, layout: FileOptions
) -> None:
    from fedsyn.runs.synthesis import write_synthetic

    if is_terminal():  # which shows UTF-8
        layout = layout.model_copy(update={"encoding": None})
    try:
        write_synthetic(table_stream(), schema, model, rows, randomness, keep=False, layout=layout)
    except BrokenPipeError:  # `| head` has seen enough
        no_more_output()


def _show(evaluation: Evaluation) -> None:
    """Prints an evaluation's texts, and the first rows of its tables."""
    from rich.table import Table as Shown

    from fedsyn.evaluation.report.evaluations import not_looked_at, sections
    from fedsyn.evaluation.report.tables import Table

    pieces = [piece for section in sections(evaluation) for piece in section.pieces]
    for table in (piece for piece in pieces if isinstance(piece, str | Table)):
        if isinstance(table, str):
            out_console.print(table, highlight=False)
            continue
        if table.folded:
            continue
        left = len(table.rows) - _SHOWN_ROWS
        more = f"and {counted(left, 'row')} more; --out writes all" if left > 0 else None
        out_console.print(table.caption, highlight=False)
        shown = Shown(caption=more, caption_justify="left")
        for right, name in list(zip(table.numeric, table.head, strict=True))[: table.narrow]:
            shown.add_column(name, justify="right" if right else "left")
        for row in table.rows[:_SHOWN_ROWS]:
            shown.add_row(*row[: table.narrow])
        out_console.print(shown)
    for sentence in not_looked_at(evaluation):
        out_console.print(f"Not looked at. {sentence}", highlight=False)
    if not evaluation.PUBLIC:
        out_console.print("Computed from real rows without noise: not for publication.", highlight=False)
