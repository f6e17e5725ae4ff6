"""What every aggregation protocol offers to the mechanisms: two halves of one sum."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.config import AggregationNode
from fedsyn.errors import ProtocolError
from fedsyn.privacy import Ledger
from fedsyn.randomness import RandomSource

if TYPE_CHECKING:
    from fedsyn.protocol.client import Call
    from fedsyn.protocol.messages import Arrays, Envelope, Reply, Sum, Summed


@dataclass(frozen=True)
class SumSpec:
    """The public facts of a `Sum`, as its clients receive them.

    Attributes:
        shapes: shapes of the summed arrays.
        sigma: standard deviation of the noise on the sum, in records.
        sensitivity: L2 sensitivity of one array.
        count: the most arrays that one row may touch.
    """

    shapes: tuple[tuple[int, ...], ...]
    sigma: float
    sensitivity: float
    count: int

    @classmethod
    def of(cls, request: Sum) -> SumSpec:
        return cls(request.shapes, request.sigma, request.sensitivity, request.count)

    def to_text(self) -> str:
        return json.dumps([self.shapes, self.sigma, self.sensitivity, self.count], separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=8)
    def from_text(cls, text: str) -> SumSpec:
        """Reads the facts from a request; ProtocolError if they are malformed."""
        try:
            shapes, sigma, sensitivity, count = json.loads(text)
            shapes = tuple(tuple(int(n) for n in shape) for shape in shapes)
            spec = cls(shapes, float(sigma), float(sensitivity), int(count))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise ProtocolError("the description of the sum is malformed") from None
        if any(n < 1 for shape in shapes for n in shape) or not 0 < spec.sigma < math.inf or spec.count < 1:
            raise ProtocolError("the description of the sum is malformed")
        if not 0 < spec.sensitivity < math.inf:
            raise ProtocolError("the description of the sum is malformed")
        return spec

    @cached_property
    def length(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Contribution:
    """One client's exact part of a sum, before any protection: never sent as it is by a protecting protocol.

    Attributes:
        cells: (m,) int64 strictly increasing flat positions in the concatenated arrays.
        values: (m,) int64 non-negative values.
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

    def dense(self) -> npt.NDArray[np.int64]:
        vector = np.zeros(self.length, np.int64)
        vector[self.cells] = self.values
        return vector


Exchange = Callable[[Sequence[int], str, str, Mapping[str, Any], "Arrays"], "dict[int, Reply]"]


class Aggregation(ABC):
    """One protocol: `run` is the server's half (it may use several exchanges), `contribute` the client's."""

    name: ClassVar[str]

    def __init__(self, node: AggregationNode) -> None:
        self.node = node

    @abstractmethod
    def contribute(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> Arrays:
        """Charges the client's ledger and returns what the client sends."""

    @abstractmethod
    def run(
        self,
        request: Sum,
        *,
        exchange: Exchange,
        drop: Callable[[int, str], None],
        minimum: int,
        ledger: Ledger,
        source: RandomSource,
        round: int,
    ) -> Summed:
        """Forms the sum; with fewer than `minimum` contributors nothing is opened and no noise of the server drawn.

        Args:
            request: what to sum.
            exchange: sends one message to each client of a cohort and returns the checked replies.
            drop: records that a client's reply was refused, and why.
            minimum: fewest contributors.
            ledger: the run's ledger, which draws the server's noise.
            source: the server's randomness for this sum.
            round: for the ledger.
        """

    @abstractmethod
    def who_sees_what(self) -> dict[str, str]:
        """The `server sees`, `trust` and `noise` parts of the privacy statement."""
