"""`fedsyn node ...`: what the administrator of a data holder's machine types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsyn.front.cli.node_approvals import approve, pending, reject
from fedsyn.front.cli.node_keys import new_keys
from fedsyn.front.cli.node_seal import seal
from fedsyn.output import log_to_stderr, say

app = typer.Typer(help="Run a data holder's node: serve a table, show its status, approve runs.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="NODE.yaml")]


@app.command()
def serve(
    file: FileArgument,
    task_seconds: Annotated[
        float, typer.Option(min=1.0, help="Seconds of wall time that one request may take.")
    ] = 300.0,
    task_memory: Annotated[
        int, typer.Option(min=64, help="Megabytes of memory that one request may take in addition to the table.")
    ] = 4096,
) -> None:
    """Serve one table to a federation until stopped; processes that die are restarted."""
    from fedsyn.nodes.node.processes import Bounds
    from fedsyn.nodes.node.serve import serve as run

    log_to_stderr("%(asctime)s %(name)s: %(message)s")
    run(file, Bounds(task_seconds, task_memory))


@app.command()
def status(
    file: FileArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a node's status: its connection, the requests it answered, the budget its table has spent."""
    import json

    from fedsyn.nodes.node.file import load_node_file
    from fedsyn.nodes.node.status import look, said

    facts = look(load_node_file(file))
    say(json.dumps(facts, indent=1) if as_json else said(facts))
    if not facts["ready"]:
        raise typer.Exit(1)


@app.command("init-ledger")
def init_ledger(file: FileArgument) -> None:
    """Create the lifetime ledger of a table that was never used. An existing one is never overwritten."""
    from fedsyn.nodes.lifetime.node_ledger import init_ledger
    from fedsyn.nodes.node.file import load_node_file

    loaded = load_node_file(file)
    loaded.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    init_ledger(loaded.ledger_file)
    say(f"made {loaded.ledger_file}; back it up with its .seen file, and never put an old copy in place")


for _command in (pending, approve, reject, new_keys, seal):
    app.command()(_command)
