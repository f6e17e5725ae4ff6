"""`fedsyn node pending | approve | reject`: what a run wants of this holder, and what the holder says to it."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.errors import BudgetExceeded, ConfigError, NodeError
from fedsyn.front.cli.console import JsonOption, YesOption, confirm, out_console
from fedsyn.output import say

if TYPE_CHECKING:
    from fedsyn.nodes.lifetime.node_lines import LedgerRun, NodeLines
    from fedsyn.nodes.lifetime.room import Room
    from fedsyn.nodes.node.approvals import ApprovalRecord, Approvals
    from fedsyn.nodes.node.file import NodeFile

FileArgument = Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="[NODE.yaml]")]
RunArgument = Annotated[str, typer.Argument(help="Run name, or a prefix of it.", metavar="RUN")]
_HERE = Path("node.yaml")
_UNASKED = "there is nobody to ask: add --yes once you have read what the run wants"


def pending(
    file: FileArgument = _HERE,
    all_: Annotated[bool, typer.Option("--all", help="Also list the runs that were decided already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs that wait for this holder's approval."""
    node, approvals = _opened(file)
    found = []
    for entry in approvals.entries() if all_ else approvals.pending():
        try:
            found.append((entry, _rooms(entry, node), ""))
        except ConfigError as error:  # of a run that waits since another version of fedsyn was here, for one
            found.append((entry, [], str(error)))
    if as_json:
        listed = [
            {"key": entry.key, **entry.model_dump(), "room": [room.to_dict() for room in rooms], "problem": problem}
            for entry, rooms, problem in found
        ]
        say(json.dumps(listed, indent=1))
        return
    for entry, rooms, problem in found:
        say(f"{entry.subject.run}: {entry.state}, {_facts(entry)}")
        for line in [problem] if problem else rooms:
            say(f"  {line}")
    if not found:
        say("no run waits for approval")


def approve(run: RunArgument, file: FileArgument = _HERE, yes: YesOption = False) -> None:
    """Show what a run may ask, what it costs and what budget it leaves; then approve it for this node."""
    node, approvals = _opened(file)
    entry = approvals.find(run)
    say(_explained(entry, node).rstrip())
    say(f"run {entry.subject.run}: {_facts(entry)}")
    say("what this table has given away, and what this run could add:")
    for room in _rooms(entry, node):
        say(f"  {room}")
    _require_allowed(entry, node)
    confirm("Take part in this run?", yes, _UNASKED)
    approvals.decide(entry.key, approve=True)
    say(f"approved: {entry.subject.run}; a run of another name, configuration or schema is asked about anew")


def reject(
    run: Annotated[str | None, typer.Argument(help="Run, as in approve; omit with --all.", metavar="[RUN]")] = None,
    file: FileArgument = _HERE,
    yes: YesOption = False,
    all_: Annotated[bool, typer.Option("--all", help="Reject every run that waits.")] = False,
) -> None:
    """Reject a run, or all that wait. What a run has received already stays spent."""
    if all_:
        if run is not None and file != _HERE:
            raise ConfigError("--all rejects every run that waits: name no run beside it, NODE.yaml alone")
        _reject_all(_opened(file if run is None else Path(run))[1], yes)
        return
    if run is None:
        raise ConfigError("name the run to reject, as 'fedsyn node pending' lists it, or give --all")
    _, approvals = _opened(file)
    entry = approvals.find(run)
    say(f"run {entry.subject.run}: {entry.state}, {_facts(entry)}")
    confirm("Take no (further) part in this run?", yes, _UNASKED)
    approvals.decide(entry.key, approve=False)
    say(f"rejected: {entry.subject.run}")


def _reject_all(approvals: Approvals, yes: bool) -> None:
    waiting = approvals.pending()
    for entry in waiting:
        say(f"run {entry.subject.run}: {_facts(entry)}")
    if waiting:
        confirm(f"Take part in none of these {len(waiting)} runs?", yes, _UNASKED)
    for entry in waiting:
        approvals.decide(entry.key, approve=False)
    say(f"rejected: {len(waiting)}")


def operator_key(file: Annotated[Path, typer.Argument(help="New file for the private key.", metavar="FILE")]) -> None:
    """Create an operator's signing key and print its public key, which goes into each holder's policy.operators."""
    from fedsyn.nodes.service.identities import new_identity

    say(new_identity(file, "operator key"))


def _opened(file: Path) -> tuple[NodeFile, Approvals]:
    from fedsyn.nodes.node.approvals import Approvals
    from fedsyn.nodes.node.file import load_node_file

    node = load_node_file(file)
    return node, Approvals(node.state_folder / "approvals")


def _rooms(entry: ApprovalRecord, node: NodeFile) -> list[Room]:
    """What this table has given away, and what the run could add, for each limit of its holder."""
    from fedsyn.nodes.lifetime.room import rooms

    lines, facts = _of_the_run(entry, node)
    return rooms(lines, facts, node.policy.limits, time.time(), entry.subject.run)


def _require_allowed(entry: ApprovalRecord, node: NodeFile) -> None:
    """ConfigError where policy or ledger would refuse the run whatever a person says: they may have changed since."""
    from fedsyn.loading import parse_config
    from fedsyn.nodes.lifetime.room import require_room
    from fedsyn.nodes.node.policy import Policy

    lines, facts = _of_the_run(entry, node)
    try:
        Policy(node).check_configuration(parse_config(entry.config, f"run '{entry.subject.run}'"))
        require_room(lines, entry.subject.run, facts, node.policy.limits, time.time())
    except (BudgetExceeded, NodeError) as error:
        raise ConfigError(f"run '{entry.subject.run}' would be refused whatever you say: {error}") from None


def _of_the_run(entry: ApprovalRecord, node: NodeFile) -> tuple[NodeLines, LedgerRun]:
    """The table's ledger, read and not touched, and what the run is to it."""
    from fedsyn.loading import parse_config
    from fedsyn.nodes.lifetime.accounts import open_ledger
    from fedsyn.nodes.lifetime.room import facts_of

    lines = open_ledger(node.ledger_file).node
    if lines is None:
        raise ConfigError(f"{node.ledger_file} is not the ledger of a data holder's table")
    config = parse_config(entry.config, f"run '{entry.subject.run}'")
    return lines, facts_of(config, entry.subject.config, entry.subject.schema)


def _explained(entry: ApprovalRecord, node: NodeFile) -> str:
    """What `fedsyn explain` prints of the run, on this holder's own schema."""
    from fedsyn.loading import parse_config
    from fedsyn.protocol.explain import explain
    from fedsyn.registry import client_class, installed_only
    from fedsyn.table.schema import Schema

    with installed_only():
        config = parse_config(entry.config, f"run '{entry.subject.run}'")
        client = client_class(config.mechanism.name)
    schema = Schema.load(node.schema_file).adjusted(config.data.bins, config.data.label)
    if (config.sha256, schema.sha256) != (entry.subject.config, entry.subject.schema):
        raise ConfigError(
            f"run '{entry.subject.run}' was asked for under another schema of this node, or another version of fedsyn: "
            "let its operator start it anew"
        )
    return explain(config, schema.domain, client, schema).render(min(out_console.width, 100))


def _facts(entry: ApprovalRecord) -> str:
    asked = dt.datetime.fromtimestamp(entry.asked, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    privacy = entry.config.get("privacy", {})
    budget = f"epsilon {privacy.get('epsilon')} at delta {privacy.get('delta')}"
    operator = f"signed by operator {entry.operator}" if entry.operator else "signed by nobody"
    return f"asked {asked}, {budget}, {operator}, config-sha256 {entry.subject.config}"
