"""Interface of every aggregation protocol: two halves of one sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedsyn.capabilities import Capabilities
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import GAUSSIAN, DistributedNoise, Ledger, Release
from fedsyn.privacy.against import Reads
from fedsyn.randomness import RandomSource
from fedsyn.settings import AggregationNode
from fedsyn.wire.envelope import Arrays, Stage, SumSpec
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.refusals import Kind, Refusal
from fedsyn.wire.requests import Layout, Sum, Summed
from fedsyn.wire.sparse import split_vector


@dataclass(frozen=True)
class Limits:
    """Numbers of clients that may be missing from a sum, or corrupted.

    With C the whole part of `aggregation.corrupted` times the asked clients, both numbers below are C wherever that is
    at least 1. Where it is 0, but `aggregation.corrupted` is not, one client is counted all the same: every contributor
    knows its own share of the noise and takes it off whatever is released, without colluding with anybody.
    `corrupted: 0` counts on nobody.

    Attributes:
        asked: clients that the server asks.
        fewest: contributors below which the sum is not opened.
        corrupted: clients whose shares the NOISE reckons as known. The one is counted unless the sum may have a single
            contributor: then each share is the whole noise, and there is none to take off.
        colluding: clients that the MASKS hide everybody else from, together with the server. The one is counted
            wherever masks can do that. With two contributors they cannot: the server and one of them take its vector
            off the total, and have the other's. There `corrupted` is 1 of two, so each share is the whole noise, and
            what they have is as private as the total.
    """

    asked: int
    fewest: int
    corrupted: int
    colluding: int = 0

    @property
    def dropouts(self) -> int:
        return self.asked - self.fewest

    @classmethod
    def of(cls, node: AggregationNode, clients: int, minimum: int) -> Limits:
        """Returns the limits that a configuration sets for a sum."""
        return cls.of_shares(node.corrupted, node.dropout, clients, minimum)

    @classmethod
    def of_shares(cls, corrupted: float, dropout: float, clients: int, minimum: int) -> Limits:
        fewest = max(1, minimum, clients - _share(dropout, clients))
        share, one = _share(corrupted, clients), 1 if corrupted > 0.0 and clients > 1 else 0
        return cls(clients, fewest, max(share, min(one, fewest - 1)), max(share, min(one, fewest - 2)))


def _share(fraction: float, clients: int) -> int:
    """Returns floor(fraction * clients), where 0.1 * 30 counts as 3."""
    return math.floor(fraction * clients + 1e-9)


@dataclass(frozen=True)
class Contribution:
    """One client's exact part of a sum, before any protection.

    A protecting protocol never sends it in this form.

    Attributes:
        cells: (m,) int64 strictly increasing flat positions in the concatenated arrays.
        values: (m,) int64 values, negative ones in a signed sum only.
        active: indices of the arrays that this client contributes to (the others are zero for a public reason); one
            row touches each of them once.
        layout: of the sum, by the client's own reckoning and not by what a server claims.
    """

    cells: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    active: tuple[int, ...]
    layout: Layout

    @classmethod
    def of_vector(cls, vector: npt.NDArray[np.int64], layout: Layout) -> Contribution:
        """Returns the contribution of a vector, the layout's only array."""
        if layout.shapes != (vector.shape,):
            raise ProtocolError("the server asks for a sum over another domain or other cliques than this client's")
        cells = np.flatnonzero(vector)
        return cls(cells, vector[cells], (0,), layout)

    @property
    def count(self) -> int:
        """Number of arrays that this client's rows touch."""
        return len(self.active)

    @property
    def length(self) -> int:
        """L, positions of the summed vector."""
        return self.layout.length

    def dense(self) -> npt.NDArray[np.int64]:
        """Returns the whole vector, (L,) int64."""
        vector = np.zeros(self.length, np.int64)
        vector[self.cells] = self.values
        return vector


class ClientKey(Protocol):
    """A client's way to the crypto party's keys, which the server carries."""

    invited: ClassVar[int]  # arrays that bring them, the last ones of a message

    @property
    def clients(self) -> int:
        """Number of clients of the run."""

    def pad(self, invitation: Arrays, part: ClientSum) -> tuple[bytes, bytes]:
        """Returns a pad's seed, and its box for the crypto party.

        It raises ProtocolError if the keys are not right.
        """


class Contributors(Protocol):
    """The server's way to the crypto party, for sums."""

    @property
    def invitation(self) -> Arrays:
        """Arrays that each client is sent along with a request."""

    @property
    def adds(self) -> bool:
        """True if the crypto party adds the whole noise once more."""

    def admitted(self, whole: ServerSum, boxes: Mapping[int, bytes]) -> dict[int, str]:
        """Names contributors; returns why each refused one was refused, by partition."""

    def opened(self, whole: ServerSum, total: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the crypto party's answer for the admitted clients' total, (L,)."""


@dataclass(frozen=True)
class ClientSum:
    """A client's side of one message of a sum.

    Attributes:
        name: of the request.
        spec: the sum's public facts, as the server states them.
        stage: of a secure sum; None elsewhere.
        call: the request; its source is that of the client's noise in this sum.
        open_ledger: returns the client's own ledger; most messages of a secure sum charge nothing and need none.
        holder: the data holder, with the state that survives between messages.
        config_hash: of the client's own configuration.
        central: whether the mechanism has one data holder by design.
        key: hides vectors from all but the crypto party of a protocol that has one.
    """

    name: str
    spec: SumSpec
    stage: Stage | None
    call: Call[Any]
    open_ledger: Callable[[], Ledger]
    holder: Holder
    config_hash: str
    central: bool = False
    key: ClientKey | None = None

    @property
    def ledger(self) -> Ledger:
        return self.open_ledger()

    def checked(self, contribution: Contribution) -> Contribution:
        """Raises ProtocolError if this client's rows cost more than is accounted for.

        It looks at public facts only, never at the values: the server sees a refusal, and nobody is charged for it.
        Returns the contribution.
        """
        self.check(contribution.layout, contribution.count, self.spec)
        return contribution

    @staticmethod
    def check(layout: Layout, count: int, spec: SumSpec) -> None:
        """Raises ProtocolError unless a sum's description fits this sum and its cost.

        It must not account for less than one row moves.
        """
        if layout.shapes != spec.shapes or layout.signed != spec.signed:
            raise ProtocolError("the server asks for a sum over another domain or other cliques than this client's")
        if count > spec.count:
            raise ProtocolError(f"one row would touch {count} arrays of the sum, the server accounts for {spec.count}")
        if layout.sensitivity > spec.sensitivity:
            raise ProtocolError("the server accounts for a smaller sensitivity than that of the summed arrays")
        if layout.magnitude > spec.magnitude:
            raise ProtocolError("the server makes less room for one row than it takes in the summed arrays")

    def promised_to_server(self, contribution: Contribution) -> Contribution:
        """Charges an exact contribution whose noise the server has promised to add."""
        if self.checked(contribution).count:
            self.ledger.promise(replace(self.entry(contribution), noise_by="server"))
        return contribution

    def entry(self, contribution: Contribution) -> Release:
        """Returns the ledger's entry for a contribution that has any row."""
        return _entry(self.name, self.call.round, self.spec, contribution.layout, max(1, contribution.count))


#: Whether the clients that have replied are enough for what comes next.
Enough = Callable[[Collection[int]], bool]


@dataclass(frozen=True)
class Message:
    """One message to each client of a cohort.

    A sum's generator yields it and is sent the checked replies.

    Attributes:
        cohort: partition ids.
        arrays: that all of them get.
        each: further arrays for single clients, put behind those.
        stage: of a secure sum.
        exact: whether it brings the mechanism's own parameters, on which a contribution is computed.
        enough: with whose replies it is worth going on; without them those that are missing are asked again, if they
            can be. None: with those of as many as the run's minimum.
        streamed: the replies come as an iterator in partition order, so that one at a time is in memory; otherwise all
            at once, by partition.
    """

    cohort: Sequence[int]
    arrays: Arrays
    each: Mapping[int, Arrays] | None = None
    stage: Stage | None = None
    exact: bool = True
    enough: Enough | None = None
    streamed: bool = False


#: The server's half of a sum: yields messages, is sent replies, returns the sum.
Forming = Generator[Message, Any, Summed]
#: A client's answer to one message: yields, once that is found right, the arrays on which its exact part is to be
#: computed, is sent that part, and returns what the client replies. A message that needs no part yields nothing.
Answering = Generator[Arrays, Contribution, Arrays]


class Record(Protocol):
    """The round's record, as a sum writes into it."""

    round: int
    dropped: dict[int, Refusal]
    notes: list[str]


@dataclass(frozen=True)
class ServerSum:
    """The server's side of one sum.

    Attributes:
        asked: the sum that the mechanism asked for.
        layout: what is summed.
        spec: the same with the noise, as the clients are told.
        record: of the round; says why a client's reply is not used, or the sum was given up.
        rows: most rows that the cohort can have, for the check that no sum overflows.
        config_hash: of the run's configuration.
        ledger: the run's ledger, which draws the server's noise.
        source: the server's randomness for this sum.
        crypto: has contributors admitted and their total opened, under a protocol that has a crypto party.
        everyone: partition ids of all clients of the run.
    """

    asked: Sum
    layout: Layout
    spec: SumSpec
    record: Record
    rows: float
    config_hash: str
    ledger: Ledger
    source: RandomSource
    crypto: Contributors | None = None
    everyone: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.asked.request.name

    def drop(self, partition: int, sentence: str) -> None:
        """Records that a client's reply cannot be used, and why."""
        self.record.dropped[partition] = Refusal(Kind.REPLY, sentence)

    def message(self, cohort: Sequence[int], arrays: Arrays, fewest: int, before: int = 0) -> Message:
        """Returns a message whose replies are added up as they come.

        Args:
            cohort: who is asked now: all of the sum's, or the next of them.
            arrays: of the message.
            fewest: contributors that the sum needs.
            before: those of the sum's cohort that were asked before and did not contribute.
        """
        missing = len(self.asked.cohort) - max(1, fewest) - before  # that may be
        return Message(cohort, arrays, enough=lambda replied: len(cohort) - len(replied) <= missing, streamed=True)

    def entry(self) -> Release:
        """Returns the ledger's entry for the sum."""
        entry = _entry(self.name, self.record.round, self.spec, self.layout, self.spec.count)
        return replace(entry, argument=self.layout.argument)

    def with_server_noise(self, total: npt.NDArray[Any], contributors: Sequence[int]) -> Summed:
        """Charges, and adds the server's noise to an exact total."""
        noisy = self.ledger.gaussian(split_vector(total, self.spec.shapes), self.entry(), self.source)
        return Summed(noisy, (self.spec.sigma,) * len(self.spec.shapes), tuple(contributors))


def _entry(name: str, round: int, spec: SumSpec, layout: Layout, count: int) -> Release:
    """Returns a release of `count` arrays of a sum."""
    scale, replaced = spec.sigma, layout.replaced
    return Release(name, round, GAUSSIAN, spec.sensitivity, sigma=scale, count=count, replaced=replaced)


# Noise that clients add themselves, in integers: what protocols that open only a total have in common -----------------
#
# A client multiplies its exact integers by the plan's resolution and adds a discrete Gaussian share
# (`fedsyn.privacy.distributed` has the argument). Whoever adds the vectors up learns a total whose noise no party
# knows alone; how the adding is done is the protocol's business.


def noise_of(noise: str, spec: SumSpec, limits: Limits) -> DistributedNoise:
    """Returns the shares of one sum's noise, equal at every party.

    With `local` each client's share is the whole noise.

    Raises:
        ConfigError: no honest client is left in the worst case.
        ProtocolError: the shares would be sized for more clients than are asked.
    """
    local = noise == "local"
    if not local and limits.fewest > limits.asked:
        raise ProtocolError(
            f"{limits.asked} clients cannot make the noise of a sum that {limits.fewest} have to contribute to"
        )
    return DistributedNoise.of(
        spec.sigma,
        sensitivity=spec.sensitivity,
        count=spec.count,
        length=spec.length,
        asked=limits.asked,
        fewest=1 if local else limits.fewest,
        corrupted=0 if local else limits.corrupted,
    )


def noisy_vector(contribution: Contribution, part: ClientSum, noise: DistributedNoise) -> npt.NDArray[np.int64]:
    """Returns a client's vector with its share of the noise.

    Every entry has noise, in units of 1/resolution. The client's ledger is charged.
    """
    vector, entry = part.checked(contribution).dense(), part.entry(contribution)
    return part.ledger.distributed(vector, noise, entry, part.call.source, takes_part=contribution.count > 0)


def promised(whole: ServerSum, noise: DistributedNoise) -> Release:
    """Returns the server's entry for a total that clients' shares protect."""
    layout = whole.layout
    entry = noise.release(whole.name, whole.record.round, argument=layout.argument, replaced=layout.replaced)
    return replace(entry, shares=noise.shares)


def opened(
    total: npt.NDArray[np.int64],
    shapes: Sequence[tuple[int, ...]],
    noise: DistributedNoise,
    contributors: Sequence[int],
    shares: int | None = None,
) -> Summed:
    """Returns the answer that opened integers stand for.

    All shares are in them, so they carry at least sigma.

    Args:
        total: in units of 1/resolution.
        shapes: of its arrays.
        noise: of which it carries shares.
        contributors: whose counts are in it.
        shares: how many; those of the contributors when omitted.
    """
    sigma = noise.sigma_of(len(contributors) if shares is None else shares)
    return Summed(split_vector(total / noise.resolution, shapes), (sigma,) * len(shapes), tuple(contributors))


# What a protocol offers ----------------------------------------------------------------------------------------------


class TrustModel(ABC):
    """A way for clients' numbers to come together, and who is trusted.

    They come together in sums (`Aggregation`) or in a store.
    """

    capabilities: ClassVar[Capabilities]
    node: AggregationNode

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """The part of the clients' contributions that the server reads."""

    @abstractmethod
    def check(self, clients: int) -> None:
        """Raises ConfigError for a configuration that cannot serve this many clients."""

    def assumptions(self) -> dict[str, str | int | float]:
        """Returns the assumptions that the guarantee rests on."""
        return {"aggregation": self.node.protocol, "noise": self.node.noise, "server_reads": self.reads}

    @abstractmethod
    def who_sees_what(self) -> dict[str, str]:
        """Returns the `server`, `trust` and `noise` words of the privacy statement."""


class Aggregation(TrustModel):
    """One protocol of sums.

    `form` is the server's half, in one message or several; `answer` is the client's.

    Args:
        node: `aggregation` of the configuration.
        minimum: `federation.minimum_cohort`.
    """

    def __init__(self, node: AggregationNode, minimum: int = 1) -> None:
        self.node = node
        self.minimum = minimum

    def limits(self, clients: int) -> Limits:
        return Limits.of(self.node, clients, self.minimum)

    @property
    def reads(self) -> Reads:
        return "exact numbers" if self.node.noise == "server" else "releases"

    def check(self, clients: int) -> None:
        self.capabilities.require(self.node.noise, self.node.threat, store=False)
        if self.node.noise == "distributed" and self.node.corrupted + self.node.dropout >= 1.0:
            raise ConfigError(
                f"aggregation: corrupted ({self.node.corrupted:g}) and dropout ({self.node.dropout:g}) together leave "
                "no honest client to draw the noise; their sum must be below 1"
            )

    @abstractmethod
    def room(self, spec: SumSpec, rows: float) -> DistributedNoise | None:
        """Checks that a sum, its noise and its messages fit the protocol.

        It returns the plan of the noise if clients make it of integers.

        `form` asks before it sends anything, and `fedsyn.protocol.room` before the run's first charge, of every sum
        that the mechanism's plan may have.

        Args:
            spec: the sum's public facts.
            rows: most rows that its clients can have.

        Raises:
            ConfigError: they do not fit, or no honest client is left in the worst case.
        """

    def assumptions(self) -> dict[str, str | int | float]:
        node = self.node
        on_clients = {"corrupted": node.corrupted, "dropout": node.dropout} if node.rests_on_clients else {}
        return {**super().assumptions(), **on_clients}

    @abstractmethod
    def answer(self, part: ClientSum) -> Answering:
        """Returns a client's reply to one message of the sum.

        It charges the client's ledger before anything is sent.
        """

    @abstractmethod
    def form(self, whole: ServerSum) -> Forming:
        """Forms the sum.

        If too few contribute, nothing is opened and the server draws no noise.
        """

    # What a server may write down, so that another process can go on (fedsyn.protocol.recorder) ----------------------

    def may_rest(self, stage: Stage) -> bool:
        """Returns whether a stage's replies may lie on the server's disk.

        They may lie there only while their sum is under way, and never if they would give an exact total, or one
        client's vector with a part of the noise only.
        """
        return False

    def memory(self, known: int | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Returns what the server remembers between two sums.

        It is made of JSON values and arrays.

        Args:
            known: number of the setup that is written down already; None: none is.

        Returns:
            What changes with every sum, and the present setup with its `number`, or None where it is known.
        """
        return {}, None

    def remember(self, memory: Mapping[str, Any], setup: Mapping[str, Any] | None) -> None:
        """Restores an earlier process's `memory`, and its last setup."""
