"""`fedsyn node ...`: what the administrator of a data holder's machine types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsyn.cli.node_approvals import approve, pending, reject
from fedsyn.cli.node_keys import new_keys
from fedsyn.cli.node_seal import seal
from fedsyn.output import log_to_stderr, say

app = typer.Typer(
    help="A data holder's node: serve it, look at it, say which runs it takes part in.", no_args_is_help=True
)

FileArgument = Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="NODE.yaml")]


@app.command()
def serve(
    file: FileArgument,
    task_seconds: Annotated[float, typer.Option(min=1.0, help="Wall time that one request may take.")] = 300.0,
    task_memory: Annotated[
        int, typer.Option(min=64, help="Megabytes that one request may take, beyond the table.")
    ] = 4096,
) -> None:
    """Answer a federation's requests from one table until stopped; a part that dies is started again."""
    from fedsyn.node.processes import Bounds
    from fedsyn.node.serve import serve as run

    log_to_stderr("%(asctime)s %(name)s: %(message)s")
    run(file, Bounds(task_seconds, task_memory))


@app.command()
def status(
    file: FileArgument,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print how a node is: connected or why not, what it answered, what its table has given away."""
    import json

    from fedsyn.node.file import load_node_file
    from fedsyn.node.status import look, said

    facts = look(load_node_file(file))
    say(json.dumps(facts, indent=1) if as_json else said(facts))
    if not facts["ready"]:
        raise typer.Exit(1)


@app.command("init-ledger")
def init_ledger(file: FileArgument) -> None:
    """Make the ledger of a table that has given nothing away yet; once in its life, and never over another."""
    from fedsyn.lifetime.node_ledger import init_ledger
    from fedsyn.node.file import load_node_file

    loaded = load_node_file(file)
    loaded.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    init_ledger(loaded.ledger_file)
    say(f"made {loaded.ledger_file}; back it up with its .seen file, and never put an old copy in place")


for _command in (pending, approve, reject, new_keys, seal):
    app.command()(_command)
