"""A client half's inputs: its data holder, and one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError
from fedsyn.privacy import PrivacyBudget, Release
from fedsyn.randomness import Randomness, RandomSource
from fedsyn.selection.views import ModelView
from fedsyn.table.schema import Schema
from fedsyn.table.schema.encoding import OwnRows
from fedsyn.wire.envelope import Arrays
from fedsyn.wire.requests import Layout, Request

R = TypeVar("R", bound=Request)
#: Partition ids stay below this: no client can make a list of clients long by the id that it claims.
MOST_PARTITIONS = 2**20


class Account(Protocol):
    """Releases of a holder in one run, on its own disk.

    They outlive every process: part of its ledger for life.
    """

    @property
    def releases(self) -> Sequence[Release]:
        """Charged in this run so far, in order."""

    def charge(self, release: Release) -> None:
        """Writes a release down before its noise is drawn.

        It is on the disk when this returns.

        Raises:
            BudgetExceeded: it would exceed a limit of the holder's, and nothing is written.
            RunError: it cannot be written, and nothing may be released.
        """


@dataclass
class Holder:
    """A data holder's part in a run.

    Attributes:
        partition: its id among the clients; None if the server is to assign one (deployments).
        codes: (n, d) integer codes of its own rows, in the domain's column order.
        domain: the schema's domain.
        schema_hash: hash of the approved schema that encoded the rows, as it was before anything was found.
        randomness: seeded in a simulation, the operating system's otherwise.
        state: JSON-able memory that survives between requests (ledger, unfinished secure sum, the mechanism's own).
        budget: the most that this holder is willing to spend; None: the run's budget.
        pooled: exact marginals of all clients' rows together, for oracles; None outside a simulation.
        own: its own values in the columns of which something is private, as long as that was not found.
        open_schema: the schema that says what is to be found; None from when it is closed, or was never open.
        identities: this holder's signing key, and the public key of every client by partition, as the holder pinned
            them; needed by secure sums under the malicious threat model.
        account: what it has let out in this run, on its own disk; None where the run's state is all that is kept.
        save: called with `state` after every request, answered or refused, once there is something to remember.
        again: whether it answers a request that comes a second time as it did the first, and pays once; `join` says so.
    """

    partition: int | None
    codes: npt.NDArray[np.integer]
    domain: Domain
    schema_hash: str
    randomness: Randomness
    state: dict[str, Any] = field(default_factory=dict)
    budget: PrivacyBudget | None = None
    account: Account | None = None
    save: Callable[[dict[str, Any]], None] = lambda state: None
    again: bool = False
    pooled: Callable[[], ModelView] | None = None
    own: OwnRows | None = None
    open_schema: Schema | None = None
    identities: Callable[[], tuple[Any, Mapping[int, bytes]]] = field(default=lambda: _no_identity())


def _no_identity() -> tuple[Any, Mapping[int, bytes]]:
    raise ProtocolError("this client has no identity: the malicious threat model needs 'identity' and 'roster'")


@dataclass(frozen=True)
class Call(Generic[R]):
    """One request as a client method sees it.

    Attributes:
        round: t.
        record: what is asked.
        params: its parameters, as they came.
        contract: of the client, against which they are checked.
        arrays: public arrays of the request.
        randomness: the client's.
        key: of its stream for this request.
    """

    round: int
    record: type[R]
    params: Mapping[str, Any]
    contract: Any
    arrays: Arrays
    randomness: Randomness
    key: tuple[int | str, ...]

    @cached_property
    def request(self) -> R:
        """The request's parameters, read when first needed.

        Most messages of a secure sum bring none.

        Raises ProtocolError if they are not what the record allows.
        """
        return self.record.read(self.params, self.contract)

    @cached_property
    def layout(self) -> Layout:
        """Layout of the requested sum, as this client works it out.

        Raises ProtocolError as `request`.
        """
        request: Any = self.request  # of a sum
        layout: Layout = request.layout(self.contract, self.arrays)
        return layout

    @cached_property
    def source(self) -> RandomSource:
        """This client's randomness for this request; made when it is first needed."""
        return self.randomness.generator(*self.key)
