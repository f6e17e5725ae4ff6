"""`fedsyn schema ...`: the public description of a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsyn.cli.console import err_console, writing

app = typer.Typer(help="Schemas: the public description of a table.", no_args_is_help=True)


@app.command("draft")
def draft_command(
    file: Annotated[str, typer.Argument(help="CSV or Parquet file.", metavar="FILE")],
    bins: Annotated[int, typer.Option(min=1, help="Bins of numeric columns.")] = 32,
    label: Annotated[str | None, typer.Option(help="Label column.")] = None,
    separator: Annotated[str, typer.Option(help="What stands between the cells of a CSV file.")] = ",",
    out: Annotated[Path | None, typer.Option(help="Where to write the draft; default: standard output.")] = None,
) -> None:
    """Propose a schema from a file. What was read from the data is marked; a run refuses it until it is approved."""
    from fedsyn.data import load_table
    from fedsyn.schema import draft_schema

    options = {} if separator == "," else {"separator": separator}
    draft = draft_schema(load_table(file, options), bins=bins, label=label)
    if out is None:
        sys.stdout.write(draft.dumps())
        return
    with writing(out):
        draft.save(out)
    err_console.print(
        f"{out}: a draft. Replace what is marked 'drafted' by values that are public knowledge, "
        "then set 'approved: true'."
    )
