"""What every aggregation protocol offers to the mechanisms: two halves of one sum."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedsyn.config import AggregationNode
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import Ledger
from fedsyn.randomness import RandomSource

if TYPE_CHECKING:
    from fedsyn.wire.holder import Call, Holder
    from fedsyn.wire.messages import Arrays, Envelope, Reply, Sum, Summed


@dataclass(frozen=True)
class SumSpec:
    """The public facts of a `Sum`, as its clients receive them.

    Attributes:
        shapes: shapes of the summed arrays.
        sigma: standard deviation of the noise on the sum, in units of the summed values.
        sensitivity: L2 sensitivity of one array.
        count: the most arrays that one row may touch.
        signed: whether values may be negative.
        magnitude: largest absolute value that one row adds to one entry.
        asked: number of clients that the server asks.
        number: of the sum in its run, from 0; no two sums of a run share one.
    """

    shapes: tuple[tuple[int, ...], ...]
    sigma: float
    sensitivity: float
    count: int
    signed: bool = False
    magnitude: float = 1.0
    asked: int = 1
    number: int = 0

    @classmethod
    def of(cls, request: Sum, number: int = 0) -> SumSpec:
        return cls(
            request.shapes,
            request.sigma,
            request.sensitivity,
            request.count,
            request.signed,
            request.magnitude,
            max(1, len(request.cohort)),
            number,
        )

    def to_text(self) -> str:
        return json.dumps([getattr(self, field.name) for field in fields(self)], separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=8)
    def from_text(cls, text: str) -> SumSpec:
        """Reads the facts from a request; ProtocolError if they are malformed."""
        try:
            shapes, sigma, sensitivity, count, signed, magnitude, asked, number = json.loads(text)
            shapes = tuple(tuple(int(n) for n in shape) for shape in shapes)
            spec = cls(
                shapes,
                float(sigma),
                float(sensitivity),
                int(count),
                signed is True,
                float(magnitude),
                int(asked),
                int(number),
            )
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise ProtocolError("the description of the sum is malformed") from None
        positive = (spec.sigma, spec.sensitivity, spec.magnitude)
        whole = any(n < 1 for shape in shapes for n in shape) or spec.count < 1 or spec.asked < 1 or spec.number < 0
        if whole or not all(0 < value < math.inf for value in positive):
            raise ProtocolError("the description of the sum is malformed")
        return spec

    @cached_property
    def length(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Limits:
    """Who may be missing from a sum, and who may be corrupted: numbers of clients.

    Attributes:
        asked: clients that the server asks.
        fewest: contributors below which the sum is not opened.
        corrupted: clients that may collude with the server.
    """

    asked: int
    fewest: int
    corrupted: int

    @property
    def dropouts(self) -> int:
        return self.asked - self.fewest

    @classmethod
    def of(cls, node: AggregationNode, asked: int, minimum: int) -> Limits:
        """The limits that a configuration sets for a sum over `asked` clients."""
        fewest = max(1, minimum, asked - _share(node.dropout, asked))
        return cls(asked, fewest, _share(node.corrupted, asked))


def _share(fraction: float, clients: int) -> int:
    """floor(fraction * clients), where 0.1 * 30 counts as 3."""
    return math.floor(fraction * clients + 1e-9)


@dataclass(frozen=True)
class Contribution:
    """One client's exact part of a sum, before any protection: never sent as it is by a protecting protocol.

    Attributes:
        cells: (m,) int64 strictly increasing flat positions in the concatenated arrays.
        values: (m,) int64 values, negative ones in a signed sum only.
        count: number of arrays that this client's rows touch; one row touches each of them once.
        active: indices of the arrays that this client contributes to (the others are zero for a public reason).
        length: number of positions of the summed vector.
        sensitivity: L2 sensitivity of one array: the client's own knowledge, not what a server claims.
    """

    cells: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    count: int
    active: tuple[int, ...]
    length: int
    sensitivity: float = 1.0

    @classmethod
    def of_vector(cls, vector: npt.NDArray[np.int64], sensitivity: float) -> Contribution:
        """ONE array of exact integers that one row moves by at most `sensitivity` in L2."""
        cells = np.flatnonzero(vector)
        return cls(cells, vector[cells], 1, (0,), len(vector), sensitivity)

    def dense(self) -> npt.NDArray[np.int64]:
        vector = np.zeros(self.length, np.int64)
        vector[self.cells] = self.values
        return vector


class Exchange(Protocol):
    """Sends one message to each client of a cohort and returns the checked replies, by partition.

    `each` are further arrays for single clients, put behind the arrays that all of them get.
    """

    def __call__(
        self,
        cohort: Sequence[int],
        name: str,
        kind: str,
        params: Mapping[str, Any],
        arrays: Arrays,
        each: Mapping[int, Arrays] | None = None,
    ) -> dict[int, Reply]: ...


@dataclass(frozen=True)
class Party:
    """A client's side of one message of a sum.

    Attributes:
        contribution: computes the client's exact part from the request's arrays; called only when it is needed.
        spec: the sum's public facts.
        ledger: the client's own.
        call: the request; its source is that of the client's noise in this sum.
        envelope: of the message.
        holder: the data holder, with the state that survives between messages.
        config_hash: of the client's own configuration.
        central: whether the mechanism has one data holder by design.
    """

    contribution: Callable[[Arrays], Contribution]
    spec: SumSpec
    ledger: Ledger
    call: Call
    envelope: Envelope
    holder: Holder
    config_hash: str
    central: bool = False


class Aggregation(ABC):
    """One protocol: `run` is the server's half (it may use several exchanges), `answer` the client's.

    Args:
        node: `aggregation` of the configuration.
        minimum: `federation.minimum_cohort`.
    """

    name: ClassVar[str]

    def __init__(self, node: AggregationNode, minimum: int = 1) -> None:
        self.node = node
        self.minimum = minimum

    def limits(self, asked: int) -> Limits:
        return Limits.of(self.node, asked, self.minimum)

    def check(self, clients: int) -> None:
        """Refuses a configuration that could form no sum over `clients` clients; ConfigError says why."""
        if self.node.noise == "distributed" and self.node.corrupted + self.node.dropout >= 1.0:
            raise ConfigError(
                f"aggregation: corrupted ({self.node.corrupted:g}) and dropout ({self.node.dropout:g}) together leave "
                "no honest client to draw the noise; their sum must be below 1"
            )

    def answer(self, party: Party) -> Arrays:
        """What a client sends in reply to one message of the sum."""
        contribution = party.contribution(party.call.arrays)
        return self.contribute(contribution, party.spec, party.ledger, party.call, party.envelope)

    @abstractmethod
    def contribute(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> Arrays:
        """Charges the client's ledger and returns the client's part as this protocol sends it."""

    @abstractmethod
    def run(
        self,
        request: Sum,
        *,
        exchange: Exchange,
        drop: Callable[[int, str], None],
        ledger: Ledger,
        source: RandomSource,
        round: int,
        number: int = 0,
        rows: float = 2.0**40,
        config_hash: str = "",
        note: Callable[[str], None] = lambda text: None,
    ) -> Summed:
        """Forms the sum; with too few contributors nothing is opened and no noise of the server drawn.

        Args:
            request: what to sum.
            exchange: sends one message to each client of a cohort and returns the checked replies.
            drop: records that a client's reply was refused, and why.
            ledger: the run's ledger, which draws the server's noise.
            source: the server's randomness for this sum.
            round: for the ledger.
            number: of the sum in its run.
            rows: most rows that the cohort can have, for the check that no sum overflows.
            config_hash: of the run's configuration.
            note: records why a sum was given up.
        """

    @abstractmethod
    def who_sees_what(self) -> dict[str, str]:
        """The `server sees`, `trust` and `noise` parts of the privacy statement."""


def check_contribution(contribution: Contribution, spec: SumSpec) -> None:
    """Refuses to take part in a sum whose server accounts for less than this client's rows cost; ProtocolError.

    Only public facts are looked at, never the values: a refusal is seen by the server and charged to nobody. So
    `signed` is not checked here; where a negative value matters, the server is the one that refuses it.
    """
    if contribution.count > spec.count:
        raise ProtocolError(
            f"one row would touch {contribution.count} arrays of the sum, the server accounts for {spec.count}"
        )
    if contribution.sensitivity > spec.sensitivity:
        raise ProtocolError("the server accounts for a smaller sensitivity than that of the summed arrays")
