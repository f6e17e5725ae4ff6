"""An operator's order: its signature under a run.

A holder's node can ask for it.

What is signed is the run's name, the hash of its configuration and that of its schema: an order says nothing about
another run, another configuration or another schema, so whoever has copied one can do with it what the operator asked
for and nothing else. `fedsyn run --operator-key FILE` (or `runtime.operator_key`) signs, `fedsyn operator-key FILE`
makes the key, and a node's `policy.operators` lists the public halves that it obeys.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsyn.errors import ConfigError, NodeError
from fedsyn.keys.holder_keys import load_operator_key

if TYPE_CHECKING:
    from fedsyn.config import RunConfig
    from fedsyn.crypto.primitives import Identity
    from fedsyn.table.schema import Schema

FORMAT = 1
_KEY = 32  # bytes of an Ed25519 key
_MOST = 1000  # characters of an order
_CONTEXT = b"fedsyn order of a run, format 1\x00"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_run_name(name: object) -> bool:
    """Returns whether this can name a run.

    A name has 1 to 64 letters, digits, '.', '_' and '-', which make a file's name anywhere.
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name


@dataclass(frozen=True)
class Subject:
    """The text that an operator signs, and a holder approves.

    They sign and approve exactly this text.

    Attributes:
        run: the run's own name.
        config: `RunConfig.sha256`.
        schema: hash of the schema of the rows, as the run's configuration adjusts it.
    """

    run: str
    config: str
    schema: str

    @property
    def signed(self) -> bytes:
        """The bytes under which the signature stands."""
        return _CONTEXT + json.dumps([self.run, self.config, self.schema], separators=(",", ":")).encode()


def signed_order(key: Identity, subject: Subject) -> str:
    """Returns the signed order of a run.

    It travels in the run's configuration under `order`.

    Raises:
        ConfigError: the run has no name that a node would take.
    """
    if not is_run_name(subject.run):
        raise ConfigError("a run's name has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first")
    signature = key.sign(subject.signed).hex()
    return json.dumps({"format": FORMAT, "operator": key.public.hex(), "signature": signature}, separators=(",", ":"))


def order_of(config: RunConfig, schema: Schema, run: str) -> str:
    """Returns the order of a deployment's run.

    It is signed with `runtime.operator_key`; "" where the configuration names none.

    Raises:
        ConfigError: as `load_operator_key` and `signed_order`.
    """
    if config.runtime.operator_key is None:
        return ""
    return signed_order(load_operator_key(config.runtime.operator_key), Subject(run, config.sha256, schema.rows.sha256))


def operator_of(order: str, subject: Subject) -> str:
    """Returns the public key of the operator who signed this run.

    It has 64 hex digits; it is "" where nobody signed.

    Raises:
        NodeError: an order that is malformed, or of another run, configuration or schema.
    """
    if not order:
        return ""
    from fedsyn.crypto.primitives import signed_by

    try:
        facts = json.loads(order) if len(order) <= _MOST else None
        if (
            not isinstance(facts, dict)
            or set(facts) != {"format", "operator", "signature"}
            or facts["format"] != FORMAT
        ):
            raise ValueError("another format")
        public, signature = bytes.fromhex(facts["operator"]), bytes.fromhex(facts["signature"])
    except (ValueError, TypeError, RecursionError):
        raise NodeError("the run's order is malformed: sign it with 'fedsyn run --operator-key FILE'") from None
    if len(public) != _KEY or not signed_by(public, signature, subject.signed):
        raise NodeError("the run's order is signed for another run, configuration or schema, or with another key")
    return public.hex()


__all__ = ["Subject", "is_run_name", "operator_of", "order_of", "signed_order"]
