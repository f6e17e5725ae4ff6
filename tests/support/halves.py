"""One half of a mechanism alone: a client's answer to one request, without a server and without messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsyn.protocol.client import TableClient
from fedsyn.randomness import Randomness, RandomSource
from fedsyn.wire.holder import Call
from fedsyn.wire.requests import Request


def asked(
    client: TableClient,
    request: Request | tuple[type[Request], Mapping[str, Any]],
    arrays: Sequence[np.ndarray] = (),
    source: RandomSource | None = None,
) -> Call[Any]:
    """A request of round 1 as `client` gets it: read from its parameters, like one from the wire.

    Args:
        client: who is asked.
        request: a record, or its type and the parameters of a message that may be malformed.
        arrays: public arrays of the request.
        source: the client's randomness; seeded when omitted.
    """
    kind, params = (type(request), request.model_dump()) if isinstance(request, Request) else request

    call = Call(1, kind, params, client.contract, list(arrays), Randomness(0), ("test",))
    if source is not None:
        call.__dict__["source"] = source  # as if it had been made already
    return call
