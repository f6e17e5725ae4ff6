"""Commands of a federation's operator: `fedsyn deploy ...`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsyn.errors import ConfigError, nearest
from fedsyn.front.cli.console import (
    ForceOption,
    JsonOption,
    SetOption,
    YesOption,
    confirm,
    duration,
    err_console,
    print_table,
    stop_event,
)
from fedsyn.front.cli.runs import OutOption, ResumeOption, carry_out
from fedsyn.output import log_handler, say

if TYPE_CHECKING:
    from fedsyn.config import RunConfig
    from fedsyn.deploy.changes import HolderChange
    from fedsyn.deploy.federation import OperatorFolder
    from fedsyn.deploy.init import NewFederation
    from fedsyn.deploy.plan import Approval, FederationPlan
    from fedsyn.deploy.status import Status

app = typer.Typer(help="Run a federation on real machines: its files, its SuperLink, its runs.", no_args_is_help=True)

FolderArgument = Annotated[
    Path, typer.Argument(help="Folder that 'deploy init' wrote, or its operator/.", metavar="[FOLDER]")
]
FolderOption = Annotated[Path, typer.Option("--folder", help="Folder that 'deploy init' wrote, or its operator/.")]
HERE = Path()
# Said with a holder's line of the rosters.
_SEND_LINE = "send this line of their roster.yaml to {others}; they compare it with {name}, and restart their nodes:"


def _place(folder: Path) -> OperatorFolder:
    """Returns the place of a federation's files."""
    from fedsyn.deploy.federation import place_of

    return place_of(folder)


@app.command()
def init(
    out: Annotated[Path, typer.Option(help="New folder; its name becomes the federation's name.")],
    holders: Annotated[list[str], typer.Option(help="Data holders: --holders north south, or north,south.")],
    more: Annotated[list[str] | None, typer.Argument(help="Further data holders.", metavar="[NAME]...")] = None,
    operator_host: Annotated[
        list[str] | None, typer.Option(help="Name or IP by which holders reach the SuperLink; may be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the SuperLink.")] = 8000,
    schema: Annotated[Path | None, typer.Option(help="Agreed schema, if you have one already.")] = None,
    parties: Annotated[
        list[str] | None,
        typer.Option(help="NAME=HOST:PORT: three times for computing parties, once for a crypto party."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Epsilon of one run.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of one run.")] = 1e-6,
    rounds: Annotated[int, typer.Option(help="Rounds of the mechanism.")] = 10,
    runs: Annotated[
        int, typer.Option(help="Number of runs that the lifetime limits allow; a failed run may use one up.")
    ] = 2,
    approval: Annotated[
        str, typer.Option(help="How each holder approves a run: 'by person', 'by hash' or 'always'.")
    ] = "by person",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no authentication: for trials only.")
    ] = False,
    wheel: Annotated[
        Path | None, typer.Option(help="Wheel of fedsyn that everybody installs; its SHA-256 goes into each README.")
    ] = None,
) -> None:
    """Write the folders of the operator, every data holder and every party.

    Each of them gets one folder, with its keys and instructions.
    """
    from fedsyn.deploy.init import init as write
    from fedsyn.deploy.plan import APPROVALS, FederationPlan, split_names, split_parties

    if approval not in APPROVALS:
        near = nearest(approval, APPROVALS)
        raise ConfigError(f"--approval: must be one of {', '.join(map(repr, APPROVALS))}, found '{approval}'{near}")
    chosen: Approval = approval
    plan = FederationPlan(
        out.absolute().name,
        split_names([*holders, *(more or ())]),
        split_parties(parties or ()),
        tuple(operator_host or ("localhost",)),
        port,
        schema=schema,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        runs=runs,
        approval=chosen,
        insecure=insecure,
        wheel=wheel,
    )
    _say_made(plan, write(plan, out), out)


@app.command()
def link(folder: FolderArgument = HERE) -> None:
    """Run the SuperLink until stopped.

    It is restarted when it dies, and the nodes of federation.yaml are registered.
    """
    from fedsyn.deploy.superlink import SuperLinkService, only_one

    place = _place(folder)
    log = logging.getLogger("fedsyn.link")
    log.addHandler(log_handler("%(asctime)s %(message)s"))
    log.setLevel(logging.INFO)
    stopping = stop_event()
    with only_one(place):
        service = SuperLinkService(place, log.info)
        name, facts = service.federation.name, service.federation.superlink
        say(f"SuperLink of '{name}': nodes call {facts.address}; log: {place.state / 'superlink.log'}")
        if facts.insecure:
            err_console.print("INSECURE: no TLS and no authentication of nodes; for trials only", style="bold red")
        service.run(stopping)
    say("stopped")


@app.command()
def run(
    folder: FolderArgument = HERE,
    config: Annotated[Path | None, typer.Option(help="Configuration to use instead of the folder's run.yaml.")] = None,
    set_: SetOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    resume: ResumeOption = False,
) -> None:
    """Start a run, wait for it, and write its results.

    The synthetic table, the model and the ledger are written to a directory.
    """
    with linked(folder, config, set_ or ()) as loaded:
        carry_out(loaded, out, force, resume)


@contextmanager
def linked(folder: Path, config: Path | None, assignments: Sequence[str]) -> Iterator[RunConfig]:
    """Yields the configuration to run on a federation.

    The federation's SuperLink can be reached.
    """
    from fedsyn.deploy.ordering import addressed, configuration, connected, require_link

    place = _place(folder)
    federation = place.load()
    loaded = configuration(place, federation, config, assignments)
    require_link(place, federation)
    loaded, absent = addressed(loaded, place, federation)
    if absent:
        err_console.print(f"not online: {', '.join(absent)}; waiting for them", highlight=False)
    with connected(place, federation):
        yield loaded


@app.command()
def status(
    folder: FolderArgument = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show who is online and since when, and the latest runs.

    Exit code 1 if 'deploy link' is not running.
    """
    from fedsyn.deploy.status import status as look

    state = look(_place(folder))
    if as_json:
        say(json.dumps(state.to_dict(), indent=1))
    else:
        _show_status(state)
    if state.link == "down":
        raise typer.Exit(1)


@app.command()
def log(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Run name, or a prefix of it.")],
    folder: FolderArgument = HERE,
) -> None:
    """Print the log of a run's server until the run has finished."""
    from fedsyn.deploy.status import follow_log

    follow_log(_place(folder), run_name, say)


@app.command()
def stop(
    folder: FolderArgument = HERE,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Name of the run to stop instead, or its beginning.")
    ] = None,
) -> None:
    """Stop the SuperLink or, with --run, one run.

    What was released stays charged.
    """
    from fedsyn.deploy.status import stop_run
    from fedsyn.deploy.superlink import stop_link

    place = _place(folder)
    if run_id is not None:
        say(f"run {stop_run(place, run_id)} is stopped; what holders released stays charged")
        return
    stop_link(place)
    say("the SuperLink is stopped; a run that it was in can go on: fedsyn deploy link, then deploy run --resume")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the new holder.", metavar="NAME")],
    card: Annotated[Path, typer.Option(help="Card that 'fedsyn node new-keys --name NAME' wrote at the holder.")],
    runs: Annotated[int, typer.Option(help="Number of runs that its lifetime limit allows.", min=1, max=1000)] = 2,
    folder: FolderOption = HERE,
    yes: YesOption = False,
) -> None:
    """Add a holder that joins late.

    A folder to send to it is written, and a line for the other holders' rosters is printed.
    """
    from fedsyn.config import load_options
    from fedsyn.deploy.changes import add
    from fedsyn.keys.holder_keys import HolderCard

    place = _place(folder)
    _compared(name, load_options(HolderCard, card).fingerprint, yes)
    changed = add(place, name, card, runs)
    holder = changed.holder
    say(f"{name} takes part as number {holder.partition}: {holder.card.fingerprint}")
    _say_change(changed)
    say(f"send all of {place.handed_out / name} to {name}, which puts its own keys beside node.yaml; delete it here")
    _say_line(changed, _SEND_LINE)


@app.command()
def rotate_keys(
    name: Annotated[str | None, typer.Argument(help="Name of the holder or the party.", metavar="[NAME]")] = None,
    card: Annotated[Path | None, typer.Option(help="Card that 'node new-keys' or 'party rotate' wrote.")] = None,
    link_: Annotated[bool, typer.Option("--link", help="Create a new key and certificate for the SuperLink.")] = False,
    folder: FolderOption = HERE,
    yes: YesOption = False,
) -> None:
    """Replace the public keys of a holder or a party.

    The new keys are those of a card. --link renews the SuperLink's key and certificate instead.
    """
    from fedsyn.config import load_options
    from fedsyn.deploy.changes import renew_link, rotate_keys
    from fedsyn.keys.holder_keys import HolderCard

    place = _place(folder)
    if link_ == (name is not None) or (name is None) != (card is None):
        raise ConfigError(
            "expected NAME --card FILE for a holder's or a party's new keys, or --link for the SuperLink's; see --help"
        )
    if name is None or card is None:
        renew_link(place)
        say("a new key and certificate for the SuperLink; nobody has to hear of it: fedsyn deploy stop, then link")
        return
    if any(party.name == name for party in place.load().parties):
        _rotate_party(place, name, card, yes)
        return
    _compared(name, load_options(HolderCard, card).fingerprint, yes)
    changed = rotate_keys(place, name, card)
    say(f"{name} has new keys: {changed.holder.card.fingerprint}")
    _say_change(changed)
    _say_line(changed, _SEND_LINE)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the holder.", metavar="NAME")],
    folder: FolderOption = HERE,
) -> None:
    """Remove a holder for good.

    Its node is refused from now on, and the other holders delete its roster line.
    """
    from fedsyn.deploy.changes import remove

    place = _place(folder)
    changed = remove(place, name)
    say(f"{name} is out, for good")
    _say_change(changed)
    _say_line(changed, "tell {others} to delete this line of their roster.yaml, and to restart their nodes:")
    say("holders who demand a larger minimum_cohort lower it in node.yaml, or take part no more")


def _rotate_party(place: OperatorFolder, name: str, card: Path, yes: bool) -> None:
    from fedsyn.config import load_options
    from fedsyn.deploy.changes import rotate_party
    from fedsyn.settings import PartyCard

    fingerprint = load_options(PartyCard, card).fingerprint
    _compared(name, fingerprint, yes)
    run = rotate_party(place, name, card)
    say(f"{name} has new keys: {fingerprint}")
    federation = place.load()
    whom = [*(entry.name for entry in federation.present), *(entry.name for entry in federation.parties)]
    others = ", ".join(each for each in whom if each != name)
    say(f"send {card} to {others}: it takes the place of their parties/{name}.yaml; then they restart")
    say(f"{name} puts it there, too, and restarts. Whose policy pins configurations writes this hash there:")
    say(run)


# What is said --------------------------------------------------------------------------------------------------------


def _say_made(plan: FederationPlan, created: NewFederation, out: Path) -> None:
    from fedsyn.deploy.init import digest_of
    from fedsyn.deploy.plan import INSECURE, SEEN

    federation = created.federation
    say(f"wrote the federation '{plan.name}' to {out}:")
    say(f"  {out}/operator  stays here; NEVER send it. Its README.md has your commands")
    for holder in federation.holders:
        folder, mark = f"{out}/holders/{holder.name}", holder.card.fingerprint
        say(f"  {folder}  send all of it to {holder.name}, and delete it here: {mark}")
    for party in federation.parties:
        say(f"  {out}/parties/{party.name}  send all of it to {party.name}, and delete it here: {party.fingerprint}")
    say(
        "send over a channel that nobody else reads. By telephone, compare the fingerprints above"
        + (f" and that of ca.crt: {created.authority}" if created.authority else "")
    )
    say(_room(plan))
    if plan.wheel is not None:
        say(f"everybody installs {plan.wheel.name} of their folder; tell its SHA-256, too: {digest_of(plan.wheel)}")
    if plan.schema is None:
        say(f"no schema was given: put the agreed schema.yaml into {out}/operator and into each holder's folder")
    if plan.hosts == ("localhost",):
        say("nodes on other machines need --operator-host: as it stands, the SuperLink is 'localhost'")
    say(f"then, here: fedsyn deploy link {out}")
    err_console.print(SEEN.strip(), style="bold yellow", highlight=False, soft_wrap=True)
    if plan.insecure:
        err_console.print(INSECURE.strip(), style="bold red", highlight=False, soft_wrap=True)


def _room(plan: FederationPlan) -> str:
    """Returns a sentence on the budget that the lifetime limits allow."""
    runs = "one run" if plan.runs == 1 else f"{plan.runs} runs"
    text = f"room: each table's life has epsilon {plan.lifetime:g} at delta {plan.delta:g}"
    text += f", for {runs} of epsilon {plan.epsilon:g}"
    if plan.parties:
        text += f"; each party's has epsilon {plan.party_total:g}"
    return text + "; a failed run uses up what it released (--runs)"


def _compared(name: str, fingerprint: str, yes: bool) -> None:
    """Asks whether the holder has confirmed this fingerprint by telephone.

    The command ends if not.
    """
    question = f"as {name} told you, by telephone, the fingerprint {fingerprint}?"
    confirm(f"H{question}", yes, f"there is nobody to ask: h{question} Then add --yes")


def _say_change(changed: HolderChange) -> None:
    sentences = {True: "the SuperLink knows", None: "no SuperLink runs here: it follows at its next start"}
    say(
        sentences.get(
            changed.followed, "the SuperLink has not followed within 30 s: see what 'fedsyn deploy link' says"
        )
    )
    if changed.problem is not None:
        say(f"run.yaml is as it was: {changed.problem}")
    if changed.run is not None:
        clients = len(changed.federation.present)
        say(f"run.yaml asks for {clients} holders now; whose policy pins configurations writes this hash there:")
        say(changed.run)


def _say_line(changed: HolderChange, what: str) -> None:
    """Tells what the other holders do with a holder's roster line.

    Nothing is printed for a holder without one.
    """
    holder = changed.holder
    if holder.identity is not None:
        others = ", ".join(other.name for other in changed.federation.present if other.name != holder.name)
        say(what.format(others=others, name=holder.name))
        say(f"{holder.partition}: {holder.identity}")


def _show_status(status: Status) -> None:
    restarts = f", started again {status.restarts} times" if status.restarts else ""
    say(f"{status.name}: the SuperLink, {status.address}, is {status.link}{restarts}")
    if status.link == "down":
        say("no 'fedsyn deploy link' runs on this machine; start it: fedsyn deploy link")
    if status.certificate is None:
        say("INSECURE: no TLS and no authentication of nodes")
    elif status.certificate < 60:
        say(f"its certificate ends in {status.certificate:.0f} days: fedsyn deploy rotate-keys --link")
    print_table(
        ("holder", "id", "status", "since", "fingerprint"),
        [(one.name, str(one.partition), one.status, _ago(one.since), one.fingerprint) for one in status.holders],
    )
    if status.runs:
        print_table(
            ("run", "status", "since", "rounds", "directory"),
            [
                (
                    one.name or one.id,
                    one.status,
                    _ago(one.since),
                    "" if one.rounds is None else str(one.rounds),
                    one.out,
                )
                for one in status.runs
            ],
        )
    for each in status.runs:
        if each.waits is not None:
            say(f"run {each.name or each.id} {each.waits}")


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
