"""Lists of choices (`mechanisms`, `datasets`), and new signing keys.

Signing keys are made by `identity` and `operator-key`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedsyn.front.cli.console import out_console
from fedsyn.output import say


def identity(file: Annotated[Path, typer.Argument(help="New file for the private key.", metavar="FILE")]) -> None:
    """Create a data holder's signing key and print its public key.

    The public key goes into every holder's roster.
    """
    from fedsyn.keys.holder_keys import new_identity

    say(new_identity(file))


def operator_key(file: Annotated[Path, typer.Argument(help="New file for the private key.", metavar="FILE")]) -> None:
    """Create an operator's signing key and print its public key.

    The public key goes into each holder's policy.operators.
    """
    from fedsyn.keys.holder_keys import new_identity

    say(new_identity(file, "operator key"))


def mechanisms(
    statements: Annotated[
        bool, typer.Option("--statements", help="Print every privacy statement, as Markdown (docs/statements.md).")
    ] = False,
) -> None:
    """List the mechanisms."""
    from fedsyn.registry import client_class
    from fedsyn.registry import mechanisms as known

    if statements:
        from fedsyn.protocol.explain import statements_page

        say(statements_page({name: client_class(name) for name in known()}).rstrip("\n"))
        return
    table = Table("name", "what", "source")
    for name, entry in known().items():
        table.add_row(name, entry.summary, entry.source)
    out_console.print(table)


def datasets() -> None:
    """List the registered tables and their sources."""
    from fedsyn.table.data import dataset_names, describe

    table = Table("name", "rows", "label", "from")
    for name in dataset_names():
        entry: Any = describe(name)
        table.add_row(name, str(getattr(entry, "rows", "")), str(entry.schema_.label or ""), str(entry.origin))
    table.add_row("synthfs", "any", "", "generated (Maddock et al. 2024, appendix B.1.1)")
    out_console.print(table)
