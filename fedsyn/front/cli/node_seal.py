"""`fedsyn node seal`: a holder's table on its disk under a key that the holder names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsyn.output import say


def seal(
    table: Annotated[Path, typer.Argument(help="The table: .csv, .csv.gz, .parquet, ...", metavar="TABLE")],
    key: Annotated[Path, typer.Option(help="Key file; created if it does not exist.", metavar="KEYFILE")],
    out: Annotated[Path | None, typer.Option(help="Encrypted file; default: TABLE.sealed.", metavar="FILE")] = None,
) -> None:
    """Encrypt a table at rest; nodes decrypt it in memory only."""
    from fedsyn.nodes.node.rest import seal_table

    sealed, made = seal_table(table, key, out)
    if made:
        say(f"made {key}: without it nobody opens the table; keep it off this disk, and a copy elsewhere")
    say(f"wrote {sealed}; in node.yaml: data: {sealed.name}, data_key: {key}")
    say(f"{table} is still there: remove it, and its backups, once the sealed one serves")
