"""The head of a stored model other than a junction tree: its format, its domain and its total, as one array of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError


def packed_head(domain: Domain, total: float, format_: str) -> np.ndarray:
    """(n,) uint8, for the key `model` of a model's arrays."""
    head = {
        "format": format_,
        "attributes": list(domain.attributes),
        "shape": list(domain.shape),
        "total": total.hex(),
    }
    return np.frombuffer(json.dumps(head).encode(), dtype=np.uint8).copy()


def total_of(domain: Domain, arrays: Mapping[str, np.ndarray], format_: str, what: str) -> float:
    """The total that a head says, after it was found to be of this format and domain.

    Raises:
        ProtocolError: another format, or another domain.
        KeyError, TypeError, ValueError: it is malformed.
    """
    head = json.loads(np.asarray(arrays["model"], dtype=np.uint8).tobytes())
    if head["format"] != format_:
        raise ProtocolError(f"unknown format of a {what} model; this version reads '{format_}'")
    if (tuple(head["attributes"]), tuple(head["shape"])) != (domain.attributes, domain.shape):
        raise ProtocolError("the model belongs to another domain than the schema's")
    return float.fromhex(head["total"])
