"""The base of every client half.

It is a `NumPyClient` that answers the requests of one mechanism for one data holder.

What leaves a client is decided here and in `clients/`. The base class guards four things, whoever the server is:
only methods marked with `@answers` can be called from outside; a request must name this protocol version and this
configuration; every release is charged to the client's own ledger before noise is drawn or counts are handed out; an
error leaves the client as a kind and a sentence about columns and counts, never as a value of a row.
"""

from __future__ import annotations

import logging
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import make_aggregation
from fedsyn.aggregation.base import ClientKey, ClientSum, Contribution
from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, ProtocolError, Unable, refuse
from fedsyn.flower import NumPyClient
from fedsyn.privacy import GAUSSIAN, Ledger, Release, Unit, gaussian_rho
from fedsyn.privacy.budget import require_budget
from fedsyn.privacy.unit import kept_rows
from fedsyn.protocol.cohorts import take_part
from fedsyn.protocol.common import Evaluate, beside
from fedsyn.protocol.common import Join as Join
from fedsyn.protocol.common import Marginals as Marginals
from fedsyn.protocol.common import OneWay as OneWay
from fedsyn.protocol.common import RowTotal as RowTotal
from fedsyn.protocol.common import Sizes as Sizes
from fedsyn.protocol.contract import Contract as BaseContract
from fedsyn.protocol.joining import LARGEST_SIZE, usable_size
from fedsyn.protocol.plan import Step, require_planned
from fedsyn.protocol.stored import Answers, unused_requests
from fedsyn.selection.scores import l1_distances
from fedsyn.selection.views import ModelView
from fedsyn.stores import make_store
from fedsyn.stores.base import ClientDeal
from fedsyn.table.counting.marginals import count, count_one_way, count_sparse_many
from fedsyn.wire.envelope import ANSWER, Arrays, Envelope, SumSpec, to_json
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.refusals import refusal_of
from fedsyn.wire.requests import Layout, Request
from fedsyn.wire.sparse import LARGEST

Codes = npt.NDArray[np.integer]
Method = TypeVar("Method", bound=Callable[..., Any])
Answer = tuple[Arrays, dict[str, Any]]
_log = logging.getLogger("fedsyn")
#: Where a holder's state keeps the secrets that its coins are keyed by: of rows kept out, and of a cap on rows.
APART, KEPT = "rows apart", "kept_rows"
LATEST = "latest"  # number of the latest request, in the state of a holder that answers again
_ANSWERED = {"ask": "by an ask", "sum": "in a sum", "deal": "into a store"}


def answers(request: type[Request]) -> Callable[[Method], Method]:
    """Marks a method of a `TableClient` as the answer to a request."""

    def mark(method: Method) -> Method:
        method.answers = request  # type: ignore[attr-defined]
        return method

    return mark


class TableClient(NumPyClient):
    """Answers a mechanism's requests from one table.

    `clients/` has its subclasses, with one method per request.

    Class attributes:
        Contract: what both halves agree on; set by the family.
        requests: every request that a server may send, by name.
    """

    Contract: ClassVar[type[BaseContract]]
    requests: ClassVar[dict[str, type[Request]]] = {}
    _methods: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        all_marked = [
            (attribute, method.answers)
            for base in reversed(cls.__mro__)
            for attribute, method in vars(base).items()
            if hasattr(method, "answers")
        ]
        marked = dict(all_marked)
        hidden = {request.name for _, request in all_marked} - {request.name for request in marked.values()}
        if hidden:
            raise TypeError(f"{cls.__name__}: one of its methods hides the answer to '{min(hidden)}'; rename it")
        cls.requests = {request.name: request for request in marked.values()}
        cls._methods = {request.name: attribute for attribute, request in marked.items()}
        for unused in unused_requests(cls.requests, getattr(cls, "Contract", BaseContract)):
            del cls.requests[unused], cls._methods[unused]

    def __init__(self, config: RunConfig, holder: Holder) -> None:
        self.config = config
        self.contract = self.agreed(config, holder)
        self.options = self.contract.options
        self.holder = holder
        self.domain = holder.domain
        self.kept = rows_that_count(holder, self.contract.unit)
        counted = holder.codes if self.kept is None else holder.codes[self.kept]
        self.codes, self.apart = set_apart(counted, holder, config.evaluation.held_out)
        self.candidates = self.contract.candidates
        self.budget = self.contract.budget_of(holder.budget)

    def agreed(self, config: RunConfig, holder: Holder) -> BaseContract:
        """Returns the contract that this client works under."""
        return shared_contract(self.Contract, config, holder.domain)

    @cached_property
    def ledger(self) -> Ledger:
        """This holder's ledger of the run.

        It follows the holder's own account if there is one, otherwise the run's state. It is restored for a request
        that charges, or is checked against what was charged, and for no other message.
        """
        holder, budget = self.holder, self.budget
        account = holder.account
        if account is None and "ledger" in holder.state:
            return Ledger.from_dict(holder.state["ledger"])  # with the unit of what was asked last
        record = None if account is None else account.charge
        ledger = Ledger(budget.guarantee, budget.accountant, noise_by="client", record=record, unit=budget.unit)
        ledger.reenter(() if account is None else account.releases)
        return ledger

    @property
    def size(self) -> float:
        """Row count that scores may use.

        It is the public one, or the one that this client released with noise.

        Raises:
            ProtocolError: sizes are private and this client has not released its own yet.
        """
        if self.config.privacy.client_sizes == "public":
            return float(len(self.codes))
        refuse("size" not in self.holder.state, "this client's size is private and was not released yet")
        return usable_size(float(self.holder.state["size"]))

    def view(self, arrays: Arrays) -> ModelView:
        """Returns marginals of the model that a request brings.

        It raises ProtocolError if the model is beyond the run's limits.
        """
        return ModelView.of(self.domain, arrays, self.config.inference)

    def distances(self, which: Sequence[int], arrays: Arrays) -> npt.NDArray[np.float64]:
        """Returns ||M_q(D) - n p_q||_1 of candidates q, (m,).

        The request brings the model p. One row moves each distance by at most 1: neither p nor n, the public or
        released row count, moves with it.
        """
        cliques = [self.candidates.cliques[i] for i in which]
        return l1_distances(self.codes, self.domain, cliques, self.view(arrays), self.size)

    def choose(self, scores: npt.NDArray[np.float64], call: Call[Any]) -> int:
        """Chooses the index of one score by the exponential mechanism.

        The choice costs the epsilon that the request charges.
        """
        (release,) = call.request.releases(self.contract)
        return self.ledger.exponential(scores, replace(release, round=call.round, count=1), call.source)

    def counts(self, cliques: Iterable[Clique]) -> list[npt.NDArray[np.int64]]:
        """Counts its own rows over each clique, exactly.

        One row is in one cell of each, so it moves an array by 1. What leaves the client goes through `perturb`.
        """
        return count(self.codes, self.domain, cliques)

    def perturb(self, values: Sequence[npt.NDArray[Any]], call: Call[Any]) -> list[npt.NDArray[np.float64]]:
        """Releases arrays with the Gaussian noise that the request charges."""
        (release,) = call.request.releases(self.contract)
        return self.ledger.gaussian(values, replace(release, round=call.round), call.source)

    def marginals(self, layout: Layout, active: Iterable[int] | None = None) -> Contribution:
        """Returns a client's exact part of a sum of marginals.

        It holds counts over the cliques in `active`, and zero for the others.

        Args:
            layout: of the sum, made by `Layout.of_marginals`.
            active: indices of the cliques that this client contributes to, ascending; all of them when omitted.
        """
        chosen = tuple(range(len(layout.cliques)) if active is None else active)
        cells, counts = layout_counts(self.codes, self.domain, layout, chosen)
        return Contribution(cells, counts, chosen, layout)

    # NumPyClient ---------------------------------------------------------------------------------------------------

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Answers one request.

        The number of examples is always 0: sizes travel only where allowed.

        Raises Unable or MemoryError only if the holder has an account: its charges then pay for the next attempt.
        """
        request = ""
        arrays: Arrays = []
        reply: dict[str, Any]
        try:
            envelope = Envelope.from_scalars(config)
            request = envelope.request[:40]
            arrays, params = self._answer(envelope, list(parameters))
            reply = {"ok": True, "params": params}
        except Exception as error:
            if self.holder.account is not None and isinstance(error, Unable | MemoryError):
                raise
            if type(error) is ConfigError:  # from a sum's public numbers: the configuration itself was read before
                error = ProtocolError(str(error))
            arrays, reply = [], {"ok": False, **refusal_of(error).fields}
        # What was charged stays charged, whether or not the request could be answered in the end.
        if self.holder.account is None and "ledger" in vars(self) and self.ledger.releases:
            self.holder.state["ledger"] = self.ledger.to_dict(compact=True)
        if self.holder.state:
            self.holder.save(self.holder.state)
        return arrays, 0, {ANSWER: to_json({"request": request, **reply})}

    def _answer(self, envelope: Envelope, arrays: Arrays) -> Answer:
        if envelope.config_hash != self.config.sha256:
            raise ProtocolError("the server runs another configuration than this client was started with")
        name = envelope.request[:40]
        refuse(envelope.request not in self._methods, f"this mechanism's client does not answer '{name}'")
        record, method = self.requests[envelope.request], getattr(self, self._methods[envelope.request])
        refuse(envelope.kind not in _ANSWERED, f"unknown kind of request '{envelope.kind[:40]}'")
        if envelope.kind != record.kind:  # exact counts leave inside a sum, or into a store, only
            raise ProtocolError(f"'{name}' is answered {_ANSWERED[record.kind]} only")
        self._require_newer(envelope)
        key = ("client", self._place, envelope.round, envelope.request, envelope.sequence)
        facts = (envelope.round, record, envelope.params, self.contract, arrays, self.holder.randomness, key)
        call: Call[Any] = Call(*facts)
        if envelope.kind == "sum":
            return self._sum(method, call, envelope), {}
        self._take_part(call)
        if envelope.kind == "deal":
            self._require_planned(call.request, None, call.request.rho)
            return self._deal(method, call), {}
        releases = call.request.releases(self.contract)
        if releases and not isinstance(call.request, Sizes):  # which is released once, and repeated
            self._require_planned(call.request, None, math.fsum(release.rho for release in releases))
        answer = method(call)
        if isinstance(answer, Contribution):
            raise ProtocolError(f"'{name}' is answered in a sum only")
        arrays, params = answer
        return arrays, params

    def _require_affordable(self, call: Call[Any], spec: SumSpec) -> None:
        """Refuses a sum beyond plan or budget, before counting a row.

        The time that counting takes would tell something about rows.

        Raises:
            ProtocolError: less noise than planned, or the description of another sum than the request's.
            BudgetExceeded: it costs more than is left.
        """
        layout = call.layout  # by this client's own reckoning
        self._require_planned(call.request, layout, layout.count * gaussian_rho(spec.sigma, layout.sensitivity))
        ClientSum.check(layout, layout.count, spec)
        self._take_part(call)
        cost = Release(call.request.name, call.round, GAUSSIAN, spec.sensitivity, sigma=spec.sigma, count=layout.count)
        require_budget(self.ledger.can_afford(cost), lambda: "the sum would cost more than is left")

    def _take_part(self, call: Call[Any]) -> None:
        """Calls `take_part` with this client's count of rounds.

        A ledger for life, if the client has one, counts too. A holder's own account has a line for each release, with
        its round, on the disk before noise was drawn. Without an account, ledger and count are one state and saved
        together. Round 0 does not count: a deal has it, whenever it is made.
        """
        mine = {name for name, record in self.requests.items() if record.takes_part}
        entries = () if self.holder.account is None else self.holder.account.releases
        charged = [each.round for each in entries if each.name in mine and each.round > 0]
        take_part(call.request, call.round, self.config.federation, self.holder.state, charged)

    def _require_newer(self, envelope: Envelope) -> None:
        """Raises ProtocolError for a request older than one that was answered.

        Only a holder that remembers for life can tell. A server numbers its requests, and sends one again only with the
        same number and bytes. `join` has no number.
        """
        if not self.holder.again or envelope.request == Join.name:
            return
        if not self.holder.state.get(LATEST, 0) <= envelope.sequence < 2**53:
            raise ProtocolError("this request comes before one that this client was asked already")
        self.holder.state[LATEST] = envelope.sequence

    def _require_planned(self, request: Request, layout: Layout | None, rho: float) -> None:
        """Raises ProtocolError for a request that costs one row more than planned.

        Nothing is charged before.
        """
        if steps := self.steps_for(request):
            require_planned(steps, request, layout, rho, self.ledger)

    def steps_for(self, request: Request) -> Sequence[Step]:
        """Returns the steps that a request must keep to.

        If there are steps, a request that matches none of them is refused.
        """
        step = beside(self.contract).get(type(request))
        return self.contract.steps if step is None else (step,)

    @property
    def _place(self) -> int:
        return -1 if self.holder.partition is None else self.holder.partition

    def _sum(self, method: Callable[[Call[Any]], Any], call: Call[Any], envelope: Envelope) -> Arrays:
        """Answers one message of a sum.

        The method gives the exact part; the aggregation decides what of it is sent.
        """
        if envelope.sum is None:
            raise ProtocolError("the description of the sum is missing")
        aggregation = make_aggregation(self.config.aggregation, self.config.federation.minimum_cohort)
        if aggregation.node.noise == "distributed" or aggregation.capabilities.hides:
            # Keyed by the sum, not by the exchange: protocols of one and of several stages draw the same shares.
            key = ("share", self._place, envelope.round, envelope.request, envelope.sum.number)
            call = replace(call, key=key)

        # All that the aggregation may use of this client, of which it asks for the ledger only when it charges.
        part = ClientSum(
            envelope.request,
            envelope.sum,
            envelope.stage,
            call,
            lambda: self.ledger,
            self.holder,
            self.config.sha256,
            self.contract.central,
            self._crypto_key() if aggregation.capabilities.parties else None,
        )
        steps = aggregation.answer(part)
        try:
            # The plan and the budget are checked before a row is counted.
            exact_call = replace(call, arrays=next(steps))
            self._require_affordable(exact_call, envelope.sum)
            contribution = method(exact_call)
            if not isinstance(contribution, Contribution):
                raise ProtocolError(f"'{envelope.request[:40]}' is not a sum")
            # The aggregation charges, protects and packs the exact part; its last step ends the generator.
            steps.send(contribution)
        except StopIteration as end:
            sent: Arrays = end.value
            return sent
        raise AssertionError("a client computes its part of a sum once")

    def _crypto_key(self) -> ClientKey:
        """Returns the way to the crypto party's keys."""
        from fedsyn.stores.crypto import CryptoKey  # certificates and parties, which most runs do without

        return CryptoKey(self.config, self.domain)

    def _deal(self, method: Callable[[Call[Any]], Any], call: Call[Any]) -> Arrays:
        """Answers a request to deal.

        The method gives the exact answers; the store decides how they are protected.
        """
        return make_store(self.config).answer(ClientDeal(call, method, self.ledger, self.holder, self.contract))

    # Answers of every mechanism --------------------------------------------------------------------------------------

    @answers(Join)
    def join(self, call: Call[Join]) -> Answer:
        """Tells the server this partition, and its row count if public."""
        if call.request.schema_hash != self.holder.schema_hash:
            raise ProtocolError("the server's schema is not the one this client approved (their hashes differ)")
        rows = len(self.codes) if self.config.privacy.client_sizes == "public" else None
        again = {"again": True} if self.holder.again else {}
        return [], {"partition": self.holder.partition, "rows": rows, **again}

    @answers(Sizes)
    def sizes(self, call: Call[Sizes]) -> Answer:
        """Releases this client's row count once with Gaussian noise.

        Sensitivity: one row changes the count by exactly 1. The noisy count is kept and used in every later score, so
        that the scores depend on the true count through this one release only. It leaves as it came out, also below 0:
        what each side makes of it is post-processing, and a sum of counts that were cut off would be too large.
        """
        if self.config.privacy.client_sizes == "public" or self.contract.sums_rows:
            raise ProtocolError("row counts are public in this run, or summed: nobody releases its own with noise")
        if "size" not in self.holder.state:
            (release,) = call.request.releases(self.contract)
            self._require_planned(call.request, None, release.rho)
            (noisy,) = self.perturb([np.array([len(self.codes)])], call)
            # Bounded: noise of a hostile sigma would give a size whose distances drown single rows' counts.
            self.holder.state["size"] = min(max(-LARGEST_SIZE, float(noisy[0])), LARGEST_SIZE)
        return [], {"rows": self.holder.state["size"]}

    @answers(RowTotal)
    def count_rows(self, call: Call[RowTotal]) -> Contribution:
        """Contributes the number of its rows that take part.

        One row changes that by exactly 1.
        """
        refuse(not self.contract.sums_rows, "row counts are not summed in this run")
        return Contribution.of_vector(np.array([len(self.codes)]), call.layout)

    @answers(Evaluate)
    def evaluate_table(self, call: Call[Evaluate]) -> Contribution:
        """Contributes how far its rows are from a table (`fedsyn.evaluation.federated.statistics`)."""
        size = call.request.even if self.contract.sums_rows else self.size
        return call.request.contribution(self.contract, call.arrays, self.codes, size, self.apart)

    @answers(OneWay)
    def one_way(self, call: Call[OneWay]) -> Contribution:
        """Contributes every exact one-way marginal to a sum.

        One row touches each of the d marginals once: L2 sensitivity 1 each.
        """
        return self.marginals(call.layout)

    @answers(Answers)
    def deal(self, call: Call[Answers]) -> Contribution:
        """Deals every stored marginal, exact.

        One row touches each marginal once: L2 sensitivity 1 each.
        """
        return self.marginals(call.request.layout(self.contract))


def indices(value: Any, length: int, name: str) -> list[int]:
    """Returns a reply's list, checked: distinct integers in [0, length)."""
    valid = isinstance(value, Sequence) and not isinstance(value, str)
    if not valid or any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < length for i in value):
        raise ProtocolError(f"parameter '{name}' must be a list of integers from 0 to {length - 1}")
    refuse(len(set(value)) != len(value), f"parameter '{name}' repeats an entry")
    return list(value)


def noisy_arrays(arrays: Sequence[npt.NDArray[Any]], shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Returns a reply's noisy arrays, checked: of these shapes, numbers below 2^53."""
    refuse([array.shape for array in arrays] != list(shapes), "the reply's arrays have other shapes")
    for array in arrays:
        sound = array.dtype.kind == "f" and bool(np.all(np.abs(array) < LARGEST))  # not where a value is not a number
        refuse(not sound, "the reply's arrays hold values that are not numbers below 2^53")
    return list(arrays)


# Which of a holder's rows take part ----------------------------------------------------------------------------------


def rows_that_count(holder: Holder, unit: Unit) -> npt.NDArray[np.int64] | None:
    """Returns positions of the holder's rows that take part, ascending.

    None means that all of them do. If a whole client is protected they are the same in every message of a run
    (`fedsyn.privacy.unit.kept_rows`): the coins are keyed by a secret that the holder draws in its first message.
    Nothing about privacy rests on it.
    """
    if not unit.caps:
        return None
    secret = bytes.fromhex(holder.state.setdefault(KEPT, os.urandom(16).hex()))
    place = -1 if holder.partition is None else holder.partition
    coins = holder.randomness.keyed(secret).ordinary("kept rows", place)
    return None if len(holder.codes) <= unit.rows else kept_rows(len(holder.codes), unit.rows, coins)


def set_apart(codes: Codes, holder: Holder, share: float) -> tuple[Codes, Codes]:
    """Returns rows that make the run, and rows set apart.

    The division is the same in every message of a run.

    Each row has a coin of its own, keyed by a secret that the holder draws in its first message: one row more or less
    changes no other row's side, in distribution. Given the coins the mechanism is run on the first part alone, so its
    guarantee holds for a row that is there; a row on the other side is in one entry of one later sum. Nothing is
    charged less for that: the ledger adds both up.
    """
    if not share:
        return codes, codes[:0]
    secret = bytes.fromhex(holder.state.setdefault(APART, os.urandom(16).hex()))
    place = (holder.partition or 0) if holder.randomness.seeded else 0  # a node learns its partition on the way
    coins = holder.randomness.keyed(secret).ordinary("rows apart", place).random(len(codes)) < share
    return codes[~coins], codes[coins]


# What clients of a process share --------------------------------------------------------------------------------------

_contracts: OrderedDict[tuple[type[BaseContract], int, int], BaseContract] = OrderedDict()


def shared_contract(kind: type[BaseContract], config: RunConfig, domain: Domain) -> BaseContract:
    """Returns a configuration's contract, shared by a process' clients.

    It keeps configuration and domain, so their ids stay theirs.
    """
    key = (kind, id(config), id(domain))
    contract = _contracts.get(key)
    if contract is None or contract.config is not config or contract.domain is not domain:
        contract = _contracts[key] = kind(config, domain)
        while len(_contracts) > 4:
            _contracts.popitem(last=False)
    return contract


@lru_cache(maxsize=8)
def _one_way_first(domain: Domain, cliques: tuple[Clique, ...]) -> bool:
    return cliques[: len(domain)] == tuple((name,) for name in domain)


def layout_counts(
    codes: npt.NDArray[np.integer], domain: Domain, layout: Layout, active: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns non-empty cells and counts of some marginals.

    The marginals are laid out one after the other.

    Args:
        codes: (n, d) the client's rows.
        domain: its domain.
        layout: of the sum, of marginals.
        active: indices of the cliques to count, ascending.
    """
    cliques, offsets = layout.cliques, layout.offsets
    cells, counts = [], []
    rest = list(active)
    d = len(domain)
    if rest[:d] == list(range(d)) and _one_way_first(domain, cliques):
        # All one-way marginals come first, as in most sums: one histogram counts them together.
        one_way = count_one_way(codes, domain)
        cells.append(np.flatnonzero(one_way))
        counts.append(one_way[cells[0]])
        rest = rest[d:]
    for i, marginal in zip(rest, count_sparse_many(codes, domain, [cliques[i] for i in rest]), strict=True):
        cells.append(offsets[i] + marginal.cells)
        counts.append(marginal.counts)
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *cells]), np.concatenate([empty, *counts])
