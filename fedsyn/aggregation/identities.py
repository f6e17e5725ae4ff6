"""Who signs: a data holder's own key, and the roster of public keys that it pinned.

Secure sums under the malicious threat model need both. A holder makes its key once (`fedsyn identity FILE`), gives the
public half to the others over a channel that the operator does not control, and writes all of them into its own copy
of the roster. Nobody takes a key from the server.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedsyn import yamlio
from fedsyn.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from fedsyn.aggregation.secagg import Identity

Roster = Mapping[int, bytes]


def new_identity(path: Path) -> str:
    """Writes a new private key, readable by its owner alone; returns the public key as 64 hex digits.

    Raises:
        ConfigError: the file exists already or cannot be written.
    """
    from fedsyn.aggregation.secagg import Identity

    identity = Identity.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"identity: {path} cannot be created ({error.strerror})") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(identity.to_bytes().hex() + "\n")
    return identity.public.hex()


@lru_cache(maxsize=2)
def load_identities(identity: str, roster: str) -> tuple[Identity, Roster]:
    """A deployment's holder: its private key from one file, everybody's public keys from another (YAML, id: hex).

    Raises:
        NodeError: one of them is not what it should be.
    """
    from fedsyn.aggregation.secagg import Identity

    try:
        own = Identity.from_bytes(_hex(Path(identity).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise NodeError("identity: expected the file that 'fedsyn identity' wrote") from None
    return own, _load_roster(Path(roster))


def _load_roster(path: Path) -> dict[int, bytes]:
    try:
        document = yamlio.read_mapping(path)
        keys = {int(str(partition)): _hex(str(key)) for partition, key in document.items()}
        if len(keys) < len(document):
            raise ValueError("a partition id stands twice, spelled in two ways")
    except (ConfigError, ValueError, TypeError):
        raise NodeError(  # not that error's own text, which quotes the file
            "roster: expected a YAML file with one line for each data holder, partition id: public key (64 hex digits)"
        ) from None
    if len(set(keys.values())) != len(keys):
        raise NodeError("roster: two data holders have the same public key")
    return keys


def _hex(text: str) -> bytes:
    key = bytes.fromhex(text.strip())
    if len(key) != 32:
        raise ValueError("a key has 32 bytes")
    return key


@lru_cache(maxsize=2)
def _simulated(clients: int) -> tuple[tuple[Identity, ...], Roster]:
    from fedsyn.aggregation.secagg import Identity

    identities = tuple(
        Identity.derived(hashlib.sha256(f"fedsyn simulated identity {k}".encode()).digest()) for k in range(clients)
    )
    return identities, {k: identity.public for k, identity in enumerate(identities)}


def simulated_identities(partition: int, clients: int) -> tuple[Identity, Roster]:
    """A simulation's identities. They follow from the partition id, so they authenticate nobody: all parties of a
    simulation are one machine anyway."""
    identities, roster = _simulated(clients)
    return identities[partition], roster
