"""Typed records of requests, and the ways to yield them.

A family's client half declares the records, its server half yields them.

A record has a name, parameters with their bounds, and what answering costs one row. Both halves use the same record:
the server fills it in, the client reads and checks it, and the ledgers of both charge what the record says. So no name,
no key of a parameter and no sensitivity stands twice.

| yielded | record | what the server learns | what is charged |
|---|---|---|---|
| `Ask` | `AskRequest` | each reply, already private | `AskRequest.releases`, before it is asked for |
| `Sum` | `SumRequest` | the sum over a cohort with Gaussian noise | `SumRequest.layout`, at the sum's sigma |
| `Deal` | `DealRequest` | nothing: exact answers go into a store | all that may follow, at the client |
| `Choose` | `ChooseRequest` | one index, by the exponential mechanism over scores of the store | one choice |
| `Open` | `OpenRequest` | some marginals of the store with Gaussian noise | each of them |

The last three are of one store (`fedsyn.stores`), which `aggregation.protocol` chooses. A client answers a
`Deal` only; what is chosen and opened of its rows afterwards is the store's business, within the budget that the deal
names.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, Release, sigma_for_rho
from fedsyn.privacy.release import COUNTS, TWICE
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.wire.envelope import Arrays, SumSpec

# Parameters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Below:
    """Checks indices into a list of the client's contract."""

    what: str
    unless: str = ""  # a parameter before this one that says how repeated ones differ

    def __call__(self, values: list[int], info: ValidationInfo) -> list[int]:
        if len(set(values)) != len(values) and not info.data.get(self.unless):
            raise ValueError("repeats an entry")
        if info.context is not None:
            length = len(getattr(info.context, self.what))
            if max(values, default=-1) >= length:
                raise ValueError(f"must be a list of integers from 0 to {length - 1}")
        return values


_Indices = list[Annotated[int, Field(ge=0)]]
#: Distinct positions in `Contract.candidates`.
CandidateIndices = Annotated[_Indices, AfterValidator(_Below("candidates")), Field(description="distinct candidates")]
#: At least one of them.
SomeCandidates = Annotated[CandidateIndices, Field(min_length=1)]
#: At least one of them; the same one several times where `shapes` says in which groups it is counted.
AnyCandidates = Annotated[
    _Indices,
    AfterValidator(_Below("candidates", unless="shapes")),
    Field(min_length=1, description="candidates, distinct ones unless they come in groups"),
]
#: Distinct positions in `Contract.pairs`.
PairIndices = Annotated[_Indices, AfterValidator(_Below("pairs")), Field(description="distinct pairs of attributes")]
#: A positive, finite number.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Request(BaseModel):
    """One request that a client answers; its fields are the parameters.

    Class attributes:
        name: on the wire, and of the entry in the ledgers.
        kind: how it is yielded.
        leaves: what leaves a client, for people.
        costs: what answering costs one row, for people.
        takes_part: whether who answers it takes part in a round (`federation.max_participations`); what everybody is
            asked before the first one is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    kind: ClassVar[str]
    leaves: ClassVar[str]
    costs: ClassVar[str]
    takes_part: ClassVar[bool] = True

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Requires that a request says what leaves a client and costs."""
        missing = [word for word in ("leaves", "costs") if hasattr(cls, "name") and not hasattr(cls, word)]
        if missing:
            raise TypeError(f"the request '{cls.__name__}' does not say what it {' and '.join(missing)}")

    @classmethod
    def largest(cls, contract: Any) -> Iterable[Layout]:
        """Returns the layouts of the largest requests of a run.

        A layout describes what a request sums, or opens.

        A run without room for one of them does not begin (`fedsyn.protocol.room`). A request that does not define this
        is refused when it is too large, in the middle of a run.

        Raises:
            ConfigError: a request can be too large for any protocol, or bring more than a message carries.
        """
        return ()

    @classmethod
    def read(cls, params: Mapping[str, Any], contract: Any) -> Self:
        """Reads the record of a message, checked against the contract.

        Raises ProtocolError, which names the parameter at fault.
        """
        try:
            return cls.model_validate(params, context=contract)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = problem["loc"][0] if problem["loc"] else None
            if where not in cls.model_fields:  # a name that the peer made up: it is not repeated
                allowed = ", ".join(cls.model_fields) or "none"
                raise ProtocolError(f"'{cls.name}' has a parameter that it does not take; allowed: {allowed}") from None
            message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            raise ProtocolError(f"parameter '{where}' {message[0].lower() + message[1:]}") from None


class AskRequest(Request):
    """A request whose replies reach the server one by one.

    Each must already be private.
    """

    kind = "ask"

    @abstractmethod
    def releases(self, contract: Any) -> tuple[Release, ...]:
        """Returns what one row of an asked client pays.

        Empty only if a reply depends on no row. The round is filled in.
        """

    def choices(self, epsilon: float, sensitivity: float = 1.0, count: int = 1, argument: str = "") -> Release:
        """Returns the release of a client's choices.

        Each is by the exponential mechanism.
        """
        release = Release(self.name, 0, EXPONENTIAL, sensitivity, epsilon=epsilon, noise_by="each client")
        return replace(release, count=count, argument=argument)

    def noisy(self, sigma: float, count: int = 1, sensitivity: float = 1.0, argument: str = "") -> Release:
        """Returns the release of a client's own counts, with Gaussian noise.

        Args:
            sigma: of the noise on each array, in records.
            count: arrays that one row has a part in.
            sensitivity: L2, of one array to one row.
            argument: why `count` is below the number of arrays, if it is.
        """
        release = Release(self.name, 0, GAUSSIAN, sensitivity, sigma=sigma, noise_by="each client", replaced=COUNTS)
        return replace(release, count=count, argument=argument)


class SumRequest(Request):
    """A request for the cohort's sum plus Gaussian noise.

    The server learns nothing else.
    """

    kind = "sum"

    @abstractmethod
    def layout(self, contract: Any, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """Returns what is summed, and how far one row moves it.

        Args:
            contract: of the family.
            arrays: the public arrays of the request.
        """

    @classmethod
    def largest(cls, contract: Any) -> Iterable[Layout]:
        """Returns the layout of a request without parameters."""
        return () if cls.model_fields else [cls().layout(contract, ())]


class DealRequest(Request):
    """A request for exact answers that go into a store.

    Nothing comes out of the store but by `Choose` and `Open`.
    """

    kind = "deal"

    rho: Annotated[float, Field(gt=2.0**-64, lt=2.0**64, description="zCDP: the most that the store may release")]

    @abstractmethod
    def layout(self, contract: Any) -> Layout:
        """Returns the layout of a client's deal."""

    def release(self, noise_by: str) -> Release:
        """Returns the client's entry for all that the store may release.

        It is one Gaussian release of that rho.

        The store's own ledger enters each choice and each marginal, and stops at the same rho.
        """
        argument = "all choices and marginals of the store, together at most this rho, and 1e-9 of the run's to round"
        sigma = sigma_for_rho(self.rho)
        return Release(self.name, 0, GAUSSIAN, 1.0, sigma=sigma, noise_by=noise_by, argument=argument)


class ChooseRequest(Request):
    """A request to the store for ONE index, by the exponential mechanism."""

    kind = "choose"

    epsilon: Positive


class OpenRequest(Request):
    """A request to the store for marginals with Gaussian noise."""

    kind = "open"

    sigma: Positive

    @abstractmethod
    def layout(self, contract: Any) -> Layout:
        """Returns the layout of the marginals."""


@dataclass(frozen=True)
class Layout:
    """Arrays that a sum adds up.

    A contribution is the concatenation of its arrays.

    Attributes:
        shapes: of the summed arrays.
        count: the most of these arrays that one row touches.
        sensitivity: L2 sensitivity of one array, one row added or removed.
        signed: whether a contribution may hold negative values (sketches); counts may not.
        magnitude: largest absolute value that one row adds to one entry, for the check that no sum can overflow.
        replaced: how much farther an array moves when a row is exchanged for another one, at most 2.
        argument: why one row touches only `count` of the arrays, where that is fewer than all of them.
        cliques: whose exact marginals the arrays are, where they are marginals.
    """

    shapes: tuple[tuple[int, ...], ...]
    count: int
    sensitivity: float = 1.0
    signed: bool = False
    magnitude: float = 1.0
    replaced: float = TWICE
    argument: str = ""
    cliques: tuple[Clique, ...] = ()

    @classmethod
    def of_marginals(
        cls, domain: Domain, cliques: Sequence[Clique], *, count: int | None = None, argument: str = ""
    ) -> Layout:
        """Returns the layout of marginals as counts.

        One row is in one cell of each, so each has sensitivity 1.
        """
        return _of_marginals(domain, tuple(cliques), max(1, len(cliques)) if count is None else count, argument)

    @classmethod
    def of_vector(
        cls, length: int, sensitivity: float, *, signed: bool = False, magnitude: float = 1.0, replaced: float = TWICE
    ) -> Layout:
        """ONE vector that a row moves by at most `sensitivity`."""
        return cls(((length,),), 1, sensitivity, signed, magnitude, replaced)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Start of each array in a contribution, (arrays + 1,).

        The last entry is where the last array ends.
        """
        offsets = np.cumsum([0, *(math.prod(shape) for shape in self.shapes)], dtype=np.int64)
        offsets.flags.writeable = False
        return offsets

    @property
    def length(self) -> int:
        """L, positions of a contribution."""
        return int(self.offsets[-1])

    def spec(self, sigma: float, clients: int, number: int) -> SumSpec:
        """Returns the description of a sum that clients are sent."""
        facts = (self.shapes, sigma, self.sensitivity, self.count, self.signed, self.magnitude)
        return SumSpec(*facts, max(1, clients), number)


@lru_cache(maxsize=8)  # clients of a simulation that share a process are asked for the same ones
def _of_marginals(domain: Domain, cliques: tuple[Clique, ...], count: int, argument: str) -> Layout:
    shapes = tuple(domain.shape_of(clique) for clique in cliques)
    return Layout(shapes, count, replaced=COUNTS, argument=argument, cliques=cliques)


# What a mechanism yields ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """Asks each client of a cohort.

    The answer is `dict[partition, Reply]` of the replies that came.

    Attributes:
        cohort: partition ids of the clients that are asked.
        request: what each of them is asked.
        arrays: public arrays, the same for every client (for instance the current model).
    """

    cohort: Sequence[int]
    request: AskRequest
    arrays: Sequence[npt.NDArray[Any]] = ()


@dataclass(frozen=True)
class Sum:
    """Sums over a cohort; the answer is `Summed`.

    Attributes:
        cohort: partition ids of the clients that are asked.
        request: what each of them contributes.
        sigma: standard deviation of the noise on the sum, in units of the summed values (records, for counts).
        arrays: public arrays, the same for every client.
    """

    cohort: Sequence[int]
    request: SumRequest
    sigma: float
    arrays: Sequence[npt.NDArray[Any]] = ()


@dataclass(frozen=True)
class Deal:
    """Asks each client of a cohort to deal into the store.

    The answer is the partition ids that dealt.

    Attributes:
        cohort: partition ids of clients that have not dealt in this run.
        request: what each of them deals.
    """

    cohort: Sequence[int]
    request: DealRequest


@dataclass(frozen=True)
class Choose:
    """Asks the store for an index.

    The answer is that of one of `terms.cliques`, or None if too few clients have dealt.

    Attributes:
        request: with the epsilon of the choice.
        terms: the public integers that the scores are made of.
    """

    request: ChooseRequest
    terms: ChoiceTerms


@dataclass(frozen=True)
class Open:
    """Asks the store for noisy marginals.

    The answer is `Summed` over all clients that have dealt.

    Attributes:
        request: which marginals, and their noise.
    """

    request: OpenRequest


Yielded = Ask | Sum | Deal | Choose | Open


@dataclass(frozen=True)
class Summed:
    """Answer to a `Sum` or an `Open`.

    Attributes:
        arrays: noisy sums, float64, in the shapes that were asked for; none if the sum was not opened.
        sigmas: standard deviation of the noise that each array carries (larger than asked for with local noise).
        contributors: partition ids whose contribution is in the sum, ascending.
    """

    arrays: Arrays
    sigmas: tuple[float, ...]
    contributors: tuple[int, ...]

    @classmethod
    def nothing(cls) -> Summed:
        """Too few contributions: nothing was opened, and nothing charged for it."""
        return cls([], (), ())

    @property
    def opened(self) -> bool:
        return bool(self.contributors)
