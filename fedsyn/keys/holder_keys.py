"""A holder's two keys, and the card with their public halves.

The *node key* (ECDSA, P-384, in OpenSSH's format) is how the SuperLink knows a node; the *identity* (Ed25519) is how
other holders know whose message they read in a secure sum. Whoever made the keys has them: a holder who did not make
its own makes new ones (`fedsyn node new-keys`), and gives the card to the operator and to the other holders.

Secure sums under the malicious threat model need an identity and a roster. A holder makes its key once (`fedsyn
identity FILE`), gives the public half to the others over a channel that the operator does not control, and writes all
of them into its own copy of the roster. Nobody takes a key from the server. An operator signs its runs with such a key
(`fedsyn operator-key FILE`, `fedsyn.wire.orders`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field, field_validator

from fedsyn import yamlio
from fedsyn.config import parse_options
from fedsyn.crypto.primitives import Identity, Roster
from fedsyn.errors import ConfigError, NodeError
from fedsyn.files import PRIVATE, PUBLIC, is_open_to_others, replace_all, write_key
from fedsyn.settings import Node, digits_to_compare
from fedsyn.table.data.sealed import key_of

#: What a node, a holder or a party may be called: a folder's name, too.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
_HEADER = "# Public: give it to the operator and to the other holders. The fingerprint, to be read to them: {}\n"


class HolderCard(Node):
    """The public halves of a holder's keys.

    Attributes:
        format: version of this file's format.
        name: of the holder.
        node: public node key, one line as in `node.key.pub` of `ssh-keygen`, without a comment.
        identity: public signing key, 64 hex digits; null: the federation's sums need none.
    """

    format: Literal[1] = 1
    name: str = Field(pattern=NAME)
    node: str
    identity: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

    @field_validator("node")
    @classmethod
    def _is_a_key(cls, text: str) -> str:
        public_node_key(text)
        return " ".join(text.split()[:2])

    @property
    def fingerprint(self) -> str:
        """Text that two people read to each other to compare cards."""
        return digits_to_compare(f"{self.name}\n{self.node}\n{self.identity or ''}".encode())

    def dumps(self) -> str:
        """The card as a file."""
        return _HEADER.format(self.fingerprint) + yamlio.dumps(self.model_dump())


def public_node_key(text: str) -> ec.EllipticCurvePublicKey:
    """Reads a public node key from its line.

    Raises ValueError, which says what is expected, if it is not one.
    """
    try:
        key = serialization.load_ssh_public_key(text.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm, UnicodeEncodeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("expected a public node key in one line, 'ecdsa-sha2-nistp384 AAAA...'")
    return key


class NewKeys(NamedTuple):
    """A holder's new keys.

    Attributes:
        key: text of the private node key's file.
        identity: text of the private signing key's file; None if none was asked for.
        card: the public halves.
    """

    key: str
    identity: str | None
    card: HolderCard


def new_keys(name: str, *, identity: bool = True) -> NewKeys:
    """Makes a holder's keys.

    Raises ConfigError if the name cannot be a folder's name.
    """
    key, raw = ec.generate_private_key(ec.SECP384R1()), serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, raw)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    signer = Identity.generate() if identity else None
    options = {"name": name, "node": public.decode(), "identity": signer and signer.public.hex()}
    card: HolderCard = parse_options(HolderCard, options, "keys")
    return NewKeys(secret.decode(), None if signer is None else signer.to_bytes().hex() + "\n", card)


def replace_keys(
    name: str, key: Path, identity: Path | None = None, roster: Path | None = None, partition: int | None = None
) -> HolderCard:
    """Replaces a holder's keys and its line in its roster.

    Returns the card.

    The old files stay beside the new ones as `*.old` until the next time: the SuperLink knows them until its operator
    has the card.

    Raises:
        ConfigError: if a file cannot be written, or the roster is not one.
    """
    keys = new_keys(name, identity=identity is not None)
    files: dict[Path, tuple[bytes | str, int]] = {}
    for path, text in ((key, keys.key), (identity, keys.identity)):
        if path is not None and text is not None:
            if path.exists():
                files[path.with_name(path.name + ".old")] = path.read_bytes(), PRIVATE
            files[path] = text, PRIVATE
    if roster is not None and partition is not None and keys.card.identity is not None:
        known = load_roster(roster) if roster.exists() else {}
        line = {partition: keys.card.identity}
        files[roster] = roster_text({number: key.hex() for number, key in known.items()} | line), PUBLIC
    try:
        replace_all(files)
    except OSError as error:
        raise ConfigError(f"cannot write the new keys: {error.filename}: {error.strerror}") from None
    return keys.card


def roster_text(identities: Mapping[int, str]) -> str:
    """Writes a roster as a file's text: partition id, public signing key."""
    head = "# Everybody's public signing keys by partition id, as this holder knows them. Compare them by telephone.\n"
    return head + "".join(f"{partition}: {key}\n" for partition, key in sorted(identities.items()))


# Who signs, and the roster of public keys that a holder pinned --------------------------------------------------------


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
    """Reads the private key of an operator.

    Raises:
        ConfigError: if there is no such file, others may read it, or `fedsyn operator-key` did not write it.
    """
    path = Path(path)
    try:
        if is_open_to_others(path):
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
        signer = Identity(key_of(Path(identity).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise NodeError("identity: expected the file that 'fedsyn identity' wrote") from None
    return signer, load_roster(Path(roster))


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
