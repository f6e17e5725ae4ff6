"""The public facts of one secure sum, and the error that ends it."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import graph
from fedsyn.errors import ConfigError, ProtocolError

SEMI_HONEST, MALICIOUS = "semi_honest", "malicious"
SPARSE, FULL = "sparse", "full"
KEYS, SHARES, MASKED, AGREE, UNMASK = "keys", "shares", "masked", "agree", "unmask"


class SecureSumAborted(ProtocolError):
    """Too few clients are left: the secure sum ends and nothing is opened."""


@dataclass(frozen=True)
class Session:
    """The public facts of one secure sum, the same at every party.

    A client must take `dropouts`, `corrupted`, `threat` and `graph` from its OWN configuration, never from what a
    server claims: they are what its privacy rests on. All of them enter `digest`, which every derived key, share and
    signature is bound to, so parties that disagree about one of them cannot finish a sum together.

    Attributes:
        identifier: unique to this sum; no two sums of any run share one.
        clients: partition ids asked, ascending.
        length: number of entries of the summed vector, each in Z_2^64.
        dropouts: most clients that may drop out, counted over all stages.
        corrupted: most clients that may collude with the server.
        threat: `semi_honest` or `malicious`.
        graph: `sparse` or `full`.
        failure_bits: the graph fails with probability at most 2^-failure_bits (see `graph.derive`).

    Raises:
        ConfigError: where the parameters cannot protect anybody.
    """

    identifier: bytes
    clients: tuple[int, ...]
    length: int
    dropouts: int
    corrupted: int
    threat: str = SEMI_HONEST
    graph: str = SPARSE
    failure_bits: int = 40

    def __post_init__(self) -> None:
        n = len(self.clients)
        ids = np.asarray(self.clients, np.int64)
        if n and (ids[0] < 0 or np.any(np.diff(ids) <= 0)):
            raise ConfigError("the clients of a secure sum must be distinct partition numbers in ascending order")
        if self.threat not in (SEMI_HONEST, MALICIOUS):
            raise ConfigError(f"aggregation.threat must be {SEMI_HONEST} or {MALICIOUS}")
        if self.graph not in (SPARSE, FULL):
            raise ConfigError(f"aggregation.graph must be {SPARSE} or {FULL}")
        if self.length < 1 or self.dropouts < 0 or self.corrupted < 0 or not 1 <= self.failure_bits <= 256:
            raise ConfigError(
                "a secure sum needs at least one entry, no negative number of dropouts or corrupted clients, and "
                "aggregation.failure_bits between 1 and 256"
            )
        if self.fewest - self.corrupted < 2:
            raise ConfigError(
                f"a secure sum of {n} clients of which {self.dropouts} may drop out and {self.corrupted} may collude "
                "with the server leaves fewer than two honest contributors: it would hide nothing. Ask more clients, "
                "or lower aggregation.dropout or aggregation.corrupted"
            )
        if self.threat == MALICIOUS and self.graph == SPARSE:
            raise ConfigError(
                "aggregation.threat: malicious needs aggregation.graph: full. A malicious server chooses who drops "
                "out after it has seen the neighbour graph, and can cut single clients off a sparse one"
            )
        if self.threat == MALICIOUS and 2 * self.fewest <= n + self.corrupted:
            raise ConfigError(
                f"aggregation.threat: malicious needs 2 * fewest survivors > clients + corrupted, or the server could "
                f"have two different sets of survivors signed; here 2 * {self.fewest} <= {n} + {self.corrupted}. "
                "Lower aggregation.dropout or aggregation.corrupted"
            )

    @property
    def fewest(self) -> int:
        """Fewest survivors with which the sum is opened."""
        return len(self.clients) - self.dropouts

    @cached_property
    def _parameters(self) -> tuple[int, int]:
        n = len(self.clients)
        if self.graph == SPARSE:
            return graph.derive(n, self.corrupted, self.dropouts, self.failure_bits)
        return n - 1, graph.full_threshold(n, self.corrupted, self.dropouts)

    @property
    def degree(self) -> int:
        """Number k of neighbours of each client."""
        return self._parameters[0]

    @property
    def threshold(self) -> int:
        """Number t of shares that open a secret."""
        return self._parameters[1]

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the round trips, in order."""
        if self.threat == MALICIOUS:
            return (KEYS, SHARES, MASKED, AGREE, UNMASK)
        return (KEYS, SHARES, MASKED, UNMASK)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all facts; it separates this sum's keys, shares and signatures from those of every other."""
        facts = [self.length, self.dropouts, self.corrupted, self.threat, self.graph, self.failure_bits]
        head = json.dumps(["fedsyn secure sum 1", self.identifier.hex(), len(self.clients), *facts])
        return hashlib.sha256(head.encode() + b"\0" + np.asarray(self.clients, "<i8").tobytes()).digest()

    def position(self, partition: int) -> int:
        """The place of a client in `clients`, or -1 if the sum does not name it."""
        place = bisect_left(self.clients, partition)
        return place if place < len(self.clients) and self.clients[place] == partition else -1

    @cached_property
    def neighbours(self) -> npt.NDArray[np.int64]:
        """(n, k) positions of each client's neighbours, ascending in each row; public."""
        return graph.neighbours(self.digest, len(self.clients), self.degree)

    def neighbours_of(self, position: int) -> npt.NDArray[np.int64]:
        """(k,) positions of one client's neighbours, ascending, in memory of the order of n."""
        return graph.neighbours_of(self.digest, len(self.clients), self.degree, position)
