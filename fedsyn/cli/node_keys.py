"""`fedsyn node new-keys`: a holder's own keys, made on the holder's machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def new_keys(
    file: Annotated[Path, typer.Argument(help="What the node is and allows.", metavar="NODE.yaml")],
    card: Annotated[
        Path | None, typer.Option(help="Where the card goes; default: NAME.card.yaml beside the file.")
    ] = None,
) -> None:
    """Make new keys of this node, and a card with their public halves for the operator and the other holders."""
    from fedsyn.errors import ConfigError
    from fedsyn.node.file import load_node_file
    from fedsyn.node.keys import replace_keys, write_text

    loaded = load_node_file(file)
    out = card or file.resolve().parent / f"{loaded.name}.card.yaml"
    identity = None if loaded.identity is None else Path(loaded.identity)
    roster = None if loaded.roster is None else Path(loaded.roster)
    if roster is not None and loaded.partition is None:
        raise ConfigError(
            f"{file}: partition: a roster has a line for each partition, and this node does not say its own"
        )
    made = replace_keys(loaded.name, Path(loaded.key), identity, roster, loaded.partition)
    try:
        write_text(out, made.dumps())
    except OSError as error:
        raise ConfigError(f"--card: cannot write {out}: {error.strerror}") from None
    said = [
        f"new keys of '{loaded.name}': the SuperLink takes them once its operator has typed",
        f"  fedsyn deploy rotate-keys {loaded.name} --card {out.name}",
        f"send {out} to the operator; tell operator and other holders its fingerprint by telephone: {made.fingerprint}",
    ]
    if made.identity is not None:
        said.append(f"the other holders' rosters need this line instead of yours: {loaded.partition}: {made.identity}")
    said.append(
        "the old keys stand beside the new ones as *.old: delete them when the node is connected again; restart it"
    )
    sys.stdout.write("\n".join(said) + "\n")
