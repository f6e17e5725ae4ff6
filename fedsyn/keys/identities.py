"""Signing keys of holders and operators, and pinned public keys.

Secure sums under the malicious threat model need a holder's key and a roster. A holder makes its key once (`fedsyn
identity FILE`), gives the public half to the others over a channel that the operator does not control, and writes all
of them into its own copy of the roster. Nobody takes a key from the server. An operator signs its runs with such a key
(`fedsyn operator-key FILE`, `fedsyn.wire.orders`).
"""

from __future__ import annotations

import hashlib
import stat
from functools import lru_cache
from pathlib import Path

from fedsyn import yamlio
from fedsyn.crypto.primitives import Identity, Roster
from fedsyn.errors import ConfigError, NodeError
from fedsyn.files import write_key
from fedsyn.table.data.sealed import key_of


def new_identity(path: Path, what: str = "identity") -> str:
    """Writes a new private key, readable by its owner alone.

    Returns the public key as 64 hex digits.

    Args:
        path: of the new file.
        what: the key is called in an error.

    Raises:
        ConfigError: if the file exists already or cannot be written.
    """
    identity = Identity.generate()
    write_key(path, identity.to_bytes(), what)
    return identity.public.hex()


def load_operator_key(path: Path | str) -> Identity:
    """Read the private key of an operator.

    Raises:
        ConfigError: if there is no such file, others may read it, or `fedsyn operator-key` did not write it.
    """
    path = Path(path)
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"operator key: {path} is readable by others than its owner; type: chmod 600 {path}")
        return Identity(key_of(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"operator key: no such file: {path}; make one: fedsyn operator-key {path}") from None
    except OSError as error:
        raise ConfigError(f"operator key: cannot read {path} ({error.strerror})") from None
    except ValueError:
        raise ConfigError(f"operator key: {path} is not what 'fedsyn operator-key' wrote") from None


@lru_cache(maxsize=2)
def load_identities(identity: str, roster: str) -> tuple[Identity, Roster]:
    """Reads a holder's private key, and all public keys.

    The public keys stand in a file of their own (YAML, id: hex).

    Raises:
        NodeError: if one of them is not such a file.
    """
    try:
        own = Identity(key_of(Path(identity).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise NodeError("identity: expected the file that 'fedsyn identity' wrote") from None
    return own, load_roster(Path(roster))


def load_roster(path: Path) -> dict[int, bytes]:
    """Reads the public keys that a holder pinned, by partition id.

    Raises NodeError if the file is not a roster.
    """
    try:
        document = yamlio.read_mapping(path)
        keys = {int(str(partition)): key_of(str(key)) for partition, key in document.items()}
        if len(keys) < len(document):
            raise ValueError("a partition id stands twice, spelled in two ways")
    except (ConfigError, ValueError, TypeError):
        raise NodeError(  # not that error's own text, which quotes the file
            "roster: expected a YAML file with one line for each data holder, partition id: public key (64 hex digits)"
        ) from None
    if len(set(keys.values())) != len(keys):
        raise NodeError("roster: two data holders have the same public key")
    return keys


@lru_cache(maxsize=2)
def _simulated(clients: int) -> tuple[tuple[Identity, ...], Roster]:
    identities = tuple(
        Identity.derived(hashlib.sha256(f"fedsyn simulated identity {k}".encode()).digest()) for k in range(clients)
    )
    return identities, {k: identity.public for k, identity in enumerate(identities)}


def simulated_identities(partition: int, clients: int) -> tuple[Identity, Roster]:
    """Returns a simulation's identities, which authenticate nobody.

    They follow from the partition id: all parties of a simulation are one machine anyway.
    """
    identities, roster = _simulated(clients)
    return identities[partition], roster
