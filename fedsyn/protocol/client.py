"""The base of every client half: a `NumPyClient` that answers the requests of one mechanism for one data holder.

What leaves a client is decided here and in `clients/`. The base class guards four things, whoever the server is:
only methods marked with `@answers` can be called from outside; a request must name this protocol version and this
configuration; every release is charged to the client's own ledger before noise is drawn or counts are handed out; an
error leaves the client as a kind and a sentence about columns and counts, never as a value of a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution, Party, SumSpec, make_aggregation
from fedsyn.config import RunConfig
from fedsyn.counting.candidates import Candidates, build_workload
from fedsyn.counting.marginals import count_one_way, count_sparse_many
from fedsyn.domain import Clique, Domain
from fedsyn.errors import BudgetExceeded, FedsynError, ProtocolError
from fedsyn.flower import NumPyClient
from fedsyn.flower.bridge import FitClient
from fedsyn.privacy import Ledger, PrivacyBudget, accountant_for
from fedsyn.registry import mechanism_options, strategy_class
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.messages import ANSWER, Arrays, Envelope, to_json

if TYPE_CHECKING:
    pass

Method = TypeVar("Method", bound=Callable[..., Any])
_log = logging.getLogger("fedsyn")
JOIN = "join"
SIZES = "sizes"
ONE_WAY = "one-way"
_LARGEST_SIZE = 2.0**32


def answers(request: str) -> Callable[[Method], Method]:
    """Marks a method of a `TableClient` as the answer to a request name."""

    def mark(method: Method) -> Method:
        method.answers = request  # type: ignore[attr-defined]
        return method

    return mark


class TableClient(NumPyClient):
    """Answers a mechanism's requests from one table; subclassed in `clients/`, one method per request name."""

    _methods: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._methods = {
            name.answers: attribute
            for base in reversed(cls.__mro__)
            for attribute, name in vars(base).items()
            if hasattr(name, "answers")
        }

    def __init__(self, config: RunConfig, holder: Holder) -> None:
        self.config = config
        self.options = mechanism_options(config)
        self.holder = holder
        self.domain = holder.domain
        self.codes = holder.codes
        self.workload = build_workload(config.workload, holder.domain)
        budget = holder.budget or PrivacyBudget(config.privacy.epsilon, config.privacy.delta)
        accountant = accountant_for(strategy_class(config.mechanism.name).accountant, budget)
        state = holder.state.get("ledger")
        self.ledger = Ledger(budget, accountant, noise_by="client") if state is None else Ledger.from_dict(state)

    @property
    def size(self) -> float:
        """The row count that scores may use: the public one, or the one this client released with noise.

        Raises:
            ProtocolError: sizes are private and this client has not released its own yet.
        """
        if self.config.privacy.client_sizes == "public":
            return float(len(self.codes))
        if "size" not in self.holder.state:
            raise ProtocolError("this client's size is private and was not released yet")
        return float(self.holder.state["size"])

    def asked_cliques(self, call: Call) -> list[Clique]:
        """The candidates of the workload that a request names in its parameter 'cliques', checked."""
        candidates = Candidates.of(self.workload, self.domain)
        return [candidates.cliques[i] for i in indices(call.params.get("cliques"), len(candidates), "cliques")]

    def asked_marginals(self, call: Call) -> Contribution:
        """Their exact marginals; each is a count, L2 sensitivity 1."""
        cliques = self.asked_cliques(call)
        return marginal_contribution(self.codes, self.domain, cliques, range(len(cliques)))

    def to_client(self) -> FitClient:
        return FitClient(self)

    # NumPyClient ---------------------------------------------------------------------------------------------------

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Answers one request; never raises. The number of examples is always 0: sizes travel only where allowed."""
        request = ""
        arrays: Arrays
        reply: dict[str, Any]
        try:
            envelope = Envelope.from_scalars(config)
            request = envelope.request[:40]
            arrays, params = self._answer(envelope, list(parameters))
            reply = {"ok": True, "params": params}
        except BudgetExceeded as error:
            arrays, reply = [], {"ok": False, "error": "budget", "message": str(error)}
        except ProtocolError as error:
            arrays, reply = [], {"ok": False, "error": "protocol", "message": str(error)}
        except FedsynError as error:
            arrays, reply = [], {"ok": False, "error": "client", "message": str(error)}
        except Exception as error:
            # A message of an unexpected exception may quote data: only its type leaves the client.
            _log.exception("fedsyn: a request could not be answered; the server is told the kind of error only")
            arrays, reply = (
                [],
                {"ok": False, "error": "client", "message": f"unexpected {type(error).__name__}"},
            )
        # What was charged stays charged, whether or not the request could be answered in the end.
        if self.ledger.releases:
            self.holder.state["ledger"] = self.ledger.to_dict(compact=True)
        if self.holder.state:
            self.holder.save(self.holder.state)
        return arrays, 0, {ANSWER: to_json({"request": request, **reply})}

    def _answer(self, envelope: Envelope, arrays: Arrays) -> tuple[Arrays, dict[str, Any]]:
        if envelope.config_hash != self.config.sha256:
            raise ProtocolError("the server runs another configuration than this client was started with")
        attribute = self._methods.get(envelope.request)
        if attribute is None:
            raise ProtocolError(f"this mechanism's client does not answer '{envelope.request[:40]}'")
        partition = -1 if self.holder.partition is None else self.holder.partition
        key = ("client", partition, envelope.round, envelope.request, envelope.sequence)
        call = Call(envelope.round, dict(envelope.params), arrays, lambda: self.holder.randomness.generator(*key))
        if envelope.kind == "ask":
            answer = getattr(self, attribute)(call)
            if isinstance(answer, Contribution):  # exact counts, which only a sum protects
                raise ProtocolError(f"'{envelope.request[:40]}' is answered in a sum only")
            arrays, params = answer if isinstance(answer, tuple) else (answer, {})
        elif envelope.kind == "sum":
            arrays, params = self._sum(getattr(self, attribute), call, envelope, partition), {}
        else:
            raise ProtocolError(f"unknown kind of request '{envelope.kind[:40]}'")
        return arrays, params

    def _sum(self, method: Callable[[Call], Any], call: Call, envelope: Envelope, partition: int) -> Arrays:
        """One message of a sum: the method gives the exact part, the aggregation decides what of it is sent."""
        spec = SumSpec.from_text(str(call.params.pop("sum", None)))
        aggregation = make_aggregation(self.config.aggregation, self.config.federation.minimum_cohort)
        if aggregation.node.noise == "distributed" or aggregation.name != "plain":
            # Keyed by the sum, not by the exchange: protocols of one and of several stages draw the same shares.
            key = ("share", partition, envelope.round, envelope.request, spec.number)
            call = replace(call, make_source=lambda: self.holder.randomness.generator(*key))

        def contribution(arrays: Arrays) -> Contribution:
            part = method(replace(call, arrays=arrays))
            if not isinstance(part, Contribution):
                raise ProtocolError(f"'{envelope.request[:40]}' is not a sum")
            if part.length != spec.length:
                raise ProtocolError("the server lays the sum out for another domain or other cliques")
            return part

        central = strategy_class(self.config.mechanism.name).central
        party = Party(contribution, spec, self.ledger, call, envelope, self.holder, self.config.sha256, central)
        return aggregation.answer(party)

    # Requests that every mechanism understands -----------------------------------------------------------------------

    @answers(JOIN)
    def join(self, call: Call) -> tuple[Arrays, dict[str, Any]]:
        """Tells the server which partition this is and, where sizes are public, how many rows it has."""
        expected = call.params.get("schema")
        if expected != self.holder.schema_hash:
            raise ProtocolError("the server's schema is not the one this client approved (their hashes differ)")
        rows = len(self.codes) if self.config.privacy.client_sizes == "public" else None
        return [], {"partition": self.holder.partition, "rows": rows}

    @answers(SIZES)
    def sizes(self, call: Call) -> tuple[Arrays, dict[str, Any]]:
        """Releases this client's row count once with Gaussian noise.

        Sensitivity: one row changes the count by exactly 1. The noisy count is kept and used in every later score, so
        that the scores depend on the true count through this one release only.
        """
        if "size" not in self.holder.state:
            sigma = positive(call.params.get("sigma"), "sigma")
            noisy = self.ledger.gaussian(
                np.array([len(self.codes)]),
                sigma=sigma,
                sensitivity=1.0,
                name=SIZES,
                round=call.round,
                source=call.source,
            )
            # Clipped above too: noise of a hostile sigma would give a size whose distances drown single rows' counts.
            self.holder.state["size"] = min(max(1.0, float(noisy[0])), _LARGEST_SIZE)
        return [], {"rows": self.holder.state["size"]}

    @answers(ONE_WAY)
    def one_way(self, call: Call) -> Contribution:
        """Contributes every exact one-way marginal to a sum; one row touches each of the d once, L2 sensitivity 1."""
        cliques = [(name,) for name in self.domain]
        return marginal_contribution(self.codes, self.domain, cliques, range(len(cliques)))


def positive(value: Any, name: str) -> float:
    """A checked positive, finite number from a request; ProtocolError names the parameter."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ProtocolError(f"parameter '{name}' must be a positive number")
    return float(value)


def indices(value: Any, length: int, name: str) -> list[int]:
    """A checked list of distinct integers in [0, length), from a request or reply."""
    valid = isinstance(value, Sequence) and not isinstance(value, str)
    if not valid or any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < length for i in value):
        raise ProtocolError(f"parameter '{name}' must be a list of integers from 0 to {length - 1}")
    if len(set(value)) != len(value):
        raise ProtocolError(f"parameter '{name}' repeats an entry")
    return list(value)


def marginal_contribution(
    codes: npt.NDArray[np.integer], domain: Domain, cliques: Sequence[Clique], active: Sequence[int]
) -> Contribution:
    """A client's exact part of a sum of marginals: counts over the cliques in `active`, zero for the others.

    Args:
        codes: (n, d) the client's rows.
        domain: its domain.
        cliques: layout of the sum, one marginal after the other.
        active: indices of the cliques that this client contributes to, ascending.
    """
    offsets = np.cumsum([0, *(domain.size(q) for q in cliques)], dtype=np.int64)
    cells, counts = [], []
    rest = list(active)
    d = len(domain)
    if rest[:d] == list(range(d)) and all(q == (name,) for q, name in zip(cliques, domain, strict=False)):
        # All one-way marginals come first, as in most sums: one histogram counts them together.
        one_way = count_one_way(codes, domain)
        cells.append(np.flatnonzero(one_way))
        counts.append(one_way[cells[0]])
        rest = rest[d:]
    for i, marginal in zip(rest, count_sparse_many(codes, domain, [cliques[i] for i in rest]), strict=True):
        cells.append(offsets[i] + marginal.cells)
        counts.append(marginal.counts)
    empty = np.zeros(0, np.int64)
    return Contribution(
        np.concatenate([empty, *cells]),
        np.concatenate([empty, *counts]),
        count=len(active),
        active=tuple(active),
        length=int(offsets[-1]),
    )
