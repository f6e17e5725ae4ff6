"""Commands of a data holder: `fedsyn node ...`.

The administrator of its machine types them, and the holder approves or rejects runs with them.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.errors import BudgetExceeded, ConfigError, NodeError
from fedsyn.front.cli.console import JsonOption, YesOption, confirm, out_console
from fedsyn.output import log_to_stderr, say

if TYPE_CHECKING:
    from fedsyn.config import RunConfig
    from fedsyn.keys.holder_keys import HolderCard
    from fedsyn.ledgers.admission import Forecast
    from fedsyn.ledgers.node_lines import LedgerRun, NodeLines
    from fedsyn.node.approvals import ApprovalRecord, Approvals
    from fedsyn.node.file import NodeFile


app = typer.Typer(help="Run a data holder's node: serve a table, show its status, approve runs.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="NODE.yaml")]
FileOrHereArgument = Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="[NODE.yaml]")]
RunArgument = Annotated[str, typer.Argument(help="Run name, or a prefix of it.", metavar="RUN")]
_HERE = Path("node.yaml")
_UNASKED = "there is nobody to ask: add --yes once you have read what the run wants"


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
    from fedsyn.node.serve import serve as run
    from fedsyn.node.task import Bounds

    log_to_stderr("%(asctime)s %(name)s: %(message)s")
    run(file, Bounds(task_seconds, task_memory))


@app.command()
def status(
    file: FileArgument,
    as_json: JsonOption = False,
) -> None:
    """Show a node's connection and the requests it answered.

    The budget that its table has spent is shown, too.
    """
    from fedsyn.node.file import load_node_file
    from fedsyn.node.serve import look, said

    facts = look(load_node_file(file))
    say(json.dumps(facts, indent=1) if as_json else said(facts))
    if not facts["ready"]:
        raise typer.Exit(1)


@app.command("init-ledger")
def init_ledger(file: FileArgument) -> None:
    """Create the lifetime ledger of a table not used before.

    It never overwrites an existing ledger.
    """
    from fedsyn.ledgers.node_ledger import init_ledger
    from fedsyn.node.file import load_node_file

    loaded = load_node_file(file)
    loaded.state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    init_ledger(loaded.ledger_file)
    say(f"made {loaded.ledger_file}; back it up with its .seen file, and never put an old copy in place")


@app.command()
def pending(
    file: FileOrHereArgument = _HERE,
    all_: Annotated[bool, typer.Option("--all", help="Also list the runs that were decided already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs that wait for this holder's approval."""
    node, approvals = _opened(file)
    waiting = []
    for entry in approvals.entries() if all_ else approvals.pending():
        try:
            waiting.append((entry, _forecasts(entry, node), ""))
        except ConfigError as error:  # of a run that waits since another version of fedsyn was here, for one
            waiting.append((entry, [], str(error)))
    if as_json:
        listed = [
            {"key": entry.key, **entry.model_dump(), "room": [each.to_dict() for each in limits], "problem": problem}
            for entry, limits, problem in waiting
        ]
        say(json.dumps(listed, indent=1))
        return
    for entry, limits, problem in waiting:
        say(f"{entry.subject.run}: {entry.state}, {_facts(entry)}")
        for line in [problem] if problem else limits:
            say(f"  {line}")
    if not waiting:
        say("no run waits for approval")


@app.command()
def approve(run: RunArgument, file: FileOrHereArgument = _HERE, yes: YesOption = False) -> None:
    """Show what a run may ask, then approve it for this node.

    What the run costs, and what budget it leaves, is shown, too.
    """
    node, approvals = _opened(file)
    entry = approvals.find(run)
    say(_explained(entry, node).rstrip())
    say(f"run {entry.subject.run}: {_facts(entry)}")
    say("what this table has given away, and what this run could add:")
    for forecast in _forecasts(entry, node):
        say(f"  {forecast}")
    _require_allowed(entry, node)
    confirm("Take part in this run?", yes, _UNASKED)
    approvals.decide(entry.key, approve=True)
    say(f"approved: {entry.subject.run}; a run of another name, configuration or schema is asked about anew")


@app.command()
def reject(
    run: Annotated[str | None, typer.Argument(help="Run, as in approve; omit with --all.", metavar="[RUN]")] = None,
    file: FileOrHereArgument = _HERE,
    yes: YesOption = False,
    all_: Annotated[bool, typer.Option("--all", help="Reject every run that waits.")] = False,
) -> None:
    """Reject a run, or all that wait.

    What a run has received already stays spent.
    """
    if all_ and run is not None and file != _HERE:
        raise ConfigError("--all rejects every run that waits: name no run beside it, NODE.yaml alone")
    if run is None and not all_:
        raise ConfigError("name the run to reject, as 'fedsyn node pending' lists it, or give --all")
    _, approvals = _opened(Path(run) if all_ and run is not None else file)
    entries = approvals.pending() if all_ else [approvals.find(str(run))]
    for entry in entries:
        say(f"run {entry.subject.run}: {entry.state}, {_facts(entry)}")
    if entries:
        whole = f"Take part in none of these {len(entries)} runs?" if all_ else "Take no (further) part in this run?"
        confirm(whole, yes, _UNASKED)
    for entry in entries:
        approvals.decide(entry.key, approve=False)
    say(f"rejected: {len(entries) if all_ else entries[0].subject.run}")


def _opened(file: Path) -> tuple[NodeFile, Approvals]:
    from fedsyn.node.approvals import Approvals
    from fedsyn.node.file import load_node_file

    node = load_node_file(file)
    return node, Approvals(node.state_folder / "approvals")


def _forecasts(entry: ApprovalRecord, node: NodeFile) -> list[Forecast]:
    """Returns a forecast for each limit of the holder.

    It says what this table has given away, and what the run could add.
    """
    from fedsyn.ledgers.admission import forecasts

    lines, facts = _of_the_run(entry, node)
    return forecasts(lines, facts, node.policy.limits, time.time(), entry.subject.run)


def _require_allowed(entry: ApprovalRecord, node: NodeFile) -> None:
    """Raises ConfigError if policy or ledger would refuse the run.

    They would, whatever a person says. They may have changed since the run asked.
    """
    from fedsyn.ledgers.admission import require_admissible
    from fedsyn.node.policy import Policy

    lines, facts = _of_the_run(entry, node)
    try:
        Policy(node).check_configuration(_asked(entry))
        require_admissible(lines, entry.subject.run, facts, node.policy.limits, time.time())
    except (BudgetExceeded, NodeError) as error:
        raise ConfigError(f"run '{entry.subject.run}' would be refused whatever you say: {error}") from None


def _of_the_run(entry: ApprovalRecord, node: NodeFile) -> tuple[NodeLines, LedgerRun]:
    """Returns the table's ledger, and the run as a ledger sees it.

    The ledger is read and not touched.
    """
    from fedsyn.ledgers.accounts import open_ledger
    from fedsyn.ledgers.node_lines import LedgerRun

    lines = open_ledger(node.ledger_file).node
    if lines is None:
        raise ConfigError(f"{node.ledger_file} is not the ledger of a data holder's table")
    return lines, LedgerRun.of(_asked(entry), entry.subject.config, entry.subject.schema)


def _asked(entry: ApprovalRecord) -> RunConfig:
    """Returns the run's configuration, checked."""
    from fedsyn.loading import parse_config

    return parse_config(entry.config, f"run '{entry.subject.run}'")


def _explained(entry: ApprovalRecord, node: NodeFile) -> str:
    """Returns what `fedsyn explain` prints of the run.

    This holder's own schema is used.
    """
    from fedsyn.protocol.explain import explain
    from fedsyn.registry import client_class, installed_only
    from fedsyn.table.schema import Schema

    with installed_only():
        config = _asked(entry)
        client = client_class(config.mechanism.name)
    rows = Schema.load(node.schema_file).adjusted(config.data.bins, config.data.label)
    if (config.sha256, rows.sha256) != (entry.subject.config, entry.subject.schema):
        raise ConfigError(
            f"run '{entry.subject.run}' was asked for under another schema of this node, or another version of fedsyn: "
            "let its operator start it anew"
        )
    schema = rows.records if config.privacy.unit == "person" else rows
    return explain(config, schema.domain, client, schema).render(min(out_console.width, 100))


def _facts(entry: ApprovalRecord) -> str:
    from fedsyn.privacy.unit import kind_of

    time = dt.datetime.fromtimestamp(entry.asked, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    privacy = entry.config.get("privacy", {})
    whom = kind_of(privacy.get("unit")).hidden
    budget = f"for {whom}, epsilon {privacy.get('epsilon')} at delta {privacy.get('delta')}"
    operator = f"signed by operator {entry.operator}" if entry.operator else "signed by nobody"
    return f"asked {time}, {budget}, {operator}, config-sha256 {entry.subject.config}"


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
    """Create new keys for this node, and a card to hand out.

    The card has the public keys, for the operator and the other holders.
    """
    if (file is None) == (name is None):
        raise ConfigError("expected NODE.yaml of the node whose keys are replaced, or --name of a holder who joins")
    lines = _replaced(file, card) if file is not None else _first(str(name), card, identity)
    say("\n".join(lines))


def _replaced(file: Path, card: Path | None) -> list[str]:
    """Replaces a node's keys by new ones; returns lines to print."""
    from fedsyn.keys.holder_keys import replace_keys
    from fedsyn.node.file import load_node_file

    loaded = load_node_file(file)
    out = card or file.resolve().parent / f"{loaded.name}.card.yaml"
    identity = None if loaded.identity is None else Path(loaded.identity)
    roster = None if loaded.roster is None else Path(loaded.roster)
    if roster is not None and loaded.partition is None:
        raise ConfigError(
            f"{file}: partition: a roster has a line for each partition, and this node does not say its own"
        )
    new_card = replace_keys(loaded.name, Path(loaded.key), identity, roster, loaded.partition)
    _write(new_card, out)
    lines = [
        f"new keys of '{loaded.name}': the SuperLink takes them once its operator has typed",
        f"  fedsyn deploy rotate-keys {loaded.name} --card {out.name}",
        _tell(out, new_card),
    ]
    if new_card.identity is not None:
        lines.append(
            f"the other holders' rosters need this line instead of yours: {loaded.partition}: {new_card.identity}"
        )
    return [
        *lines,
        "the old keys stand beside the new ones as *.old: delete them when the node is connected again; restart it",
    ]


def _first(name: str, card: Path | None, identity: bool) -> list[str]:
    """Creates the first keys of a holder who joins, in this folder.

    Returns lines to print.
    """
    from fedsyn.keys.holder_keys import replace_keys

    out = card or Path(f"{name}.card.yaml").resolve()
    new_card = replace_keys(name, Path("node.key"), Path("identity.key") if identity else None)
    _write(new_card, out)
    return [
        f"keys of '{name}' are in this folder; it takes part once the operator has typed",
        f"  fedsyn deploy add {name} --card {out.name}",
        _tell(out, new_card),
        "then put what the operator sends into this folder, beside the keys",
    ]


def _tell(out: Path, card: HolderCard) -> str:
    return (
        f"send {out} to the operator; tell operator and other holders its fingerprint by telephone: {card.fingerprint}"
    )


def _write(card: HolderCard, out: Path) -> None:
    from fedsyn.files import write_text

    try:
        write_text(out, card.dumps())
    except OSError as error:
        raise ConfigError(f"--card: cannot write {out}: {error.strerror}") from None


@app.command()
def seal(
    table: Annotated[Path, typer.Argument(help="The table: .csv, .csv.gz, .parquet, ...", metavar="TABLE")],
    key: Annotated[Path, typer.Option(help="Key file; created if it does not exist.", metavar="KEYFILE")],
    out: Annotated[Path | None, typer.Option(help="Encrypted file; default: TABLE.sealed.", metavar="FILE")] = None,
) -> None:
    """Encrypt a table at rest; nodes decrypt it in memory only."""
    from fedsyn.node.rest import seal_table

    sealed, is_new = seal_table(table, key, out)
    if is_new:
        say(f"made {key}: without it nobody opens the table; keep it off this disk, and a copy elsewhere")
    say(f"wrote {sealed}; in node.yaml: data: {sealed.name}, data_key: {key}")
    say(f"{table} is still there: remove it, and its backups, once the sealed one serves")
