"""`fedsyn node ...`: what the administrator of a data holder's machine types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.errors import ConfigError
from fedsyn.front.cli.console import JsonOption
from fedsyn.front.cli.node_approvals import approve, pending, reject
from fedsyn.output import log_to_stderr, say

if TYPE_CHECKING:
    from fedsyn.nodes.service.holder_keys import HolderCard


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
    """Serve one table to a federation until stopped."""
    from fedsyn.nodes.node.serve import serve as run
    from fedsyn.nodes.node.task import Bounds

    log_to_stderr("%(asctime)s %(name)s: %(message)s")
    run(file, Bounds(task_seconds, task_memory))


@app.command()
def status(
    file: FileArgument,
    as_json: JsonOption = False,
) -> None:
    """Show a node's connection, the requests it answered, and the budget its table has spent."""
    from fedsyn.nodes.node.file import load_node_file
    from fedsyn.nodes.node.serve import look, said

    facts = look(load_node_file(file))
    say(json.dumps(facts, indent=1) if as_json else said(facts))
    if not facts["ready"]:
        raise typer.Exit(1)


@app.command("init-ledger")
def init_ledger(file: FileArgument) -> None:
    """Create the lifetime ledger of a table not used before. Never overwrites an existing ledger."""
    from fedsyn.nodes.lifetime.node_ledger import init_ledger
    from fedsyn.nodes.node.file import load_node_file

    loaded = load_node_file(file)
    loaded.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    init_ledger(loaded.ledger_file)
    say(f"made {loaded.ledger_file}; back it up with its .seen file, and never put an old copy in place")


for _command in (pending, approve, reject):
    app.command()(_command)


@app.command()
def new_keys(
    file: Annotated[Path | None, typer.Argument(help="What the node is and allows.", metavar="[NODE.yaml]")] = None,
    card: Annotated[
        Path | None, typer.Option(help="File for the card; default: NAME.card.yaml beside NODE.yaml.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of a holder that joins and has no NODE.yaml yet.")] = None,
    identity: Annotated[
        bool,
        typer.Option(
            "--identity/--no-identity",
            help="With --name: also create a signing key, for a federation with signed sums.",
        ),
    ] = True,
) -> None:
    """Create new keys for this node, and a card with the public keys for the operator and the other holders."""
    if (file is None) == (name is None):
        raise ConfigError("expected NODE.yaml of the node whose keys are replaced, or --name of a holder who joins")
    said = _replaced(file, card) if file is not None else _first(str(name), card, identity)
    say("\n".join(said))


def _replaced(file: Path, card: Path | None) -> list[str]:
    """New keys in place of a node's old ones; what is said."""
    from fedsyn.nodes.node.file import load_node_file
    from fedsyn.nodes.service.holder_keys import replace_keys

    loaded = load_node_file(file)
    out = card or file.resolve().parent / f"{loaded.name}.card.yaml"
    identity = None if loaded.identity is None else Path(loaded.identity)
    roster = None if loaded.roster is None else Path(loaded.roster)
    if roster is not None and loaded.partition is None:
        raise ConfigError(
            f"{file}: partition: a roster has a line for each partition, and this node does not say its own"
        )
    made = replace_keys(loaded.name, Path(loaded.key), identity, roster, loaded.partition)
    _write(made, out)
    said = [
        f"new keys of '{loaded.name}': the SuperLink takes them once its operator has typed",
        f"  fedsyn deploy rotate-keys {loaded.name} --card {out.name}",
        _tell(out, made),
    ]
    if made.identity is not None:
        said.append(f"the other holders' rosters need this line instead of yours: {loaded.partition}: {made.identity}")
    return [
        *said,
        "the old keys stand beside the new ones as *.old: delete them when the node is connected again; restart it",
    ]


def _first(name: str, card: Path | None, identity: bool) -> list[str]:
    """The first keys of a holder who joins, in this folder; what is said."""
    from fedsyn.nodes.service.holder_keys import replace_keys

    out = card or Path(f"{name}.card.yaml").resolve()
    made = replace_keys(name, Path("node.key"), Path("identity.key") if identity else None)
    _write(made, out)
    return [
        f"keys of '{name}' are in this folder; it takes part once the operator has typed",
        f"  fedsyn deploy add {name} --card {out.name}",
        _tell(out, made),
        "then put what the operator sends into this folder, beside the keys",
    ]


def _tell(out: Path, made: HolderCard) -> str:
    return (
        f"send {out} to the operator; tell operator and other holders its fingerprint by telephone: {made.fingerprint}"
    )


def _write(made: HolderCard, out: Path) -> None:
    from fedsyn.nodes.service.files import write_text

    try:
        write_text(out, made.dumps())
    except OSError as error:
        raise ConfigError(f"--card: cannot write {out}: {error.strerror}") from None


@app.command()
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
