"""Who signed a submitted app: Flower's own signatures, as `flower-supernode --trusted-entities` checks them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedsyn import yamlio
from fedsyn.errors import ConfigError

Publishers = Mapping[str, Ed25519PublicKey]
_LICENCE = "valid_license"  # beside the signatures: what the SuperLink says of itself, which proves nothing


@lru_cache(maxsize=2)
def load_publishers(path: Path) -> Publishers:
    """Public keys by the names that Flower gives them, from a YAML file of `NAME: ssh-ed25519 ...` lines.

    Raises:
        ConfigError: no such file, or not Ed25519 keys in OpenSSH's form.
    """
    keys: dict[str, Ed25519PublicKey] = {}
    for name, text in yamlio.read_mapping(path).items():
        try:
            key = load_ssh_public_key(str(text).encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey) or not isinstance(name, str):
            raise ConfigError(f"{path}: expected a line 'NAME: ssh-ed25519 ...' for each publisher")
        keys[name] = key
    if not keys:
        raise ConfigError(f"{path}: names no publisher")
    return keys


def publisher_of(fab_hash: str, verifications: Mapping[str, str], publishers: Publishers) -> str | None:
    """The publisher whose signature under the app (`fab_hash`: its SHA-256 in hex digits) is right; None: nobody's."""
    try:
        digest = bytes.fromhex(fab_hash)
    except ValueError:
        return None
    for name, text in verifications.items():
        if name != _LICENCE and name in publishers and _is_signed(digest, text, publishers[name]):
            return name
    return None


def _is_signed(digest: bytes, text: str, key: Ed25519PublicKey) -> bool:
    try:
        facts = json.loads(text)
        signature, when = facts["signature"], facts["signed_at"]
        key.verify(urlsafe_b64decode(signature + "=" * (-len(signature) % 4)), when.to_bytes(8, "big") + digest)
        return True
    except (InvalidSignature, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return False
