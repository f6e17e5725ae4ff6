"""Commands of a party: `fedsyn party ...`.

The administrator of a computing or crypto party types them, and an operator once.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from pathlib import Path
from typing import Annotated

import typer

from fedsyn.errors import ConfigError
from fedsyn.front.cli.console import stop_event
from fedsyn.output import log_to_stderr, say

app = typer.Typer(
    help="Run a computing party (protocol 'mpc') or a crypto party ('fhe'): keys and service.",
    no_args_is_help=True,
)

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the keys.", metavar="DIR")]
FileArgument = Annotated[Path, typer.Argument(help="What the party is and allows.", metavar="PARTY.yaml")]


@app.command()
def keygen(
    folder: FolderArgument,
    name: Annotated[str, typer.Option(help="Name by which the others know it.")],
    address: Annotated[str | None, typer.Option(help="HOST:PORT at which the others reach this party.")] = None,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator", help="Create an operator's keys: for the server that gives orders, not for a party."
        ),
    ] = False,
) -> None:
    """Create the keys of a party, or of an operator.

    It never overwrites a key.
    """
    from fedsyn.keys.party_keys import CARD, CERTIFICATE, new_operator, new_party

    if operator:
        if address is not None:
            raise ConfigError("--address: an operator has none, parties never call it; leave it out")
        new_operator(folder, name)
        say(f"wrote the operator's key to {folder}; give {folder / CERTIFICATE} to the parties, and write into")
        say(f"the run's configuration: runtime: {{operator: {folder.resolve()}}}")
        return
    if address is None:
        raise ConfigError("--address: a party needs HOST:PORT, where the others reach it; an operator needs --operator")
    party_card = new_party(folder, name, address)
    say(f"wrote the keys of party '{name}' to {folder}; give {folder / CARD} to the operator, every data holder and")
    say(f"the other parties if there are any, and tell them its fingerprint: {party_card.fingerprint}")
    say(f"print both: fedsyn party card {folder}")


@app.command()
def card(folder: FolderArgument) -> None:
    """Print a party's public card.

    It is an entry of `aggregation.parties`, or `aggregation.crypto`.
    """
    from fedsyn import yamlio
    from fedsyn.keys.party_keys import load_party

    party_card = load_party(folder)[0]
    say(f"# fingerprint: {party_card.fingerprint}\n{yamlio.dumps(party_card.model_dump())}".rstrip())


@app.command()
def rotate(
    folder: FolderArgument,
    address: Annotated[str | None, typer.Option(help="A new HOST:PORT; default: the old one.")] = None,
) -> None:
    """Replace the keys of a party, or of an operator.

    The old keys are destroyed.
    """
    from fedsyn.keys.party_keys import CARD, CERTIFICATE, rotate_operator, rotate_party

    if (folder / CERTIFICATE).is_file() and not (folder / CARD).is_file():
        if address is not None:
            raise ConfigError("--address: an operator has none, parties never call it; leave it out")
        rotate_operator(folder)
        say(
            f"the operator's key in {folder} is new; give {folder / CERTIFICATE} to the parties, who put it in place of"
        )
        say("the old one and start anew: from then on they refuse the old key")
        return
    old, new = rotate_party(folder, address)
    say(f"party '{new.name}' has new keys in {folder}; the old ones are destroyed (fingerprint {old.fingerprint})")
    say("1. start the party anew: one that runs still has the old keys in memory")
    say(f"2. give {folder / CARD} to the operator, every data holder and the other parties; each puts it in the place")
    say(
        "   of the old card and starts anew: from then on the old key is refused. A configuration with another card has"
    )
    say("   another hash, to which data holders agree anew")
    say(f"3. tell them its fingerprint: {new.fingerprint}")


@app.command()
def serve(file: FileArgument) -> None:
    """Run a party's service until it is stopped."""
    from fedsyn.stores.parties.policy import load_party_file
    from fedsyn.stores.parties.serving import service_of

    log_to_stderr("%(asctime)s %(message)s", logging.WARNING)
    logging.getLogger("fedsyn.party").setLevel(logging.INFO)
    _one_arena()
    service = service_of(load_party_file(file))
    stopping = stop_event()
    service.start()
    party, budget = service.cards[0], service.book.budget
    say(f"party '{party.name}' listens on port {service.port}; fingerprints:")
    for each in service.cards:
        say(f"  {each.name} ({each.address}): {each.fingerprint}")
    say(f"spent so far: epsilon {service.book.epsilon:.4g} of {budget.epsilon:g} at delta {budget.delta:g}")
    stopping.wait()
    say("stopping")
    service.stop()


def _one_arena() -> None:
    """Lets glibc keep one pool of memory instead of one a thread.

    Shares are large, and one thread frees what another has taken. With a pool for each thread, every
    run would leave more memory behind (`benchmarks/bench_parties.py --repeats 12`).
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
