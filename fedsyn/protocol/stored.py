"""Requests to a store that every mechanism may yield.

    dealt = yield Deal(cohort, Answers(rho=self.ledger.remaining_rho))
    index = yield Choose(SelectClique(epsilon=epsilon), terms)
    sums  = yield Open(OpenMarginals(cliques=[chosen], sigma=sigma))

Only the first reaches clients. What a client promises with it is all that the store may release afterwards: its own
ledger has nothing left to give once it has dealt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsyn.protocol.common import Evaluate, RowTotal
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.plan import largest_measured
from fedsyn.wire.requests import ChooseRequest, DealRequest, Layout, OpenRequest, Request, SomeCandidates


class Answers(DealRequest):
    """Exact answers to the whole workload, for a store.

    They are asked for once in a run.
    """

    name = "deal"
    leaves = "the counts of all cliques of the workload, into a store that releases none of them as they are"
    costs = "all that the store may release: rho, entered by the client at once"

    def layout(self, contract: Contract) -> Layout:
        """Returns the layout: one row is in one cell of each marginal."""
        return Layout.of_marginals(contract.domain, contract.stored.cliques)


class SelectClique(ChooseRequest):
    """One eligible clique by the exponential mechanism over the store's scores."""

    name = "select"
    leaves = "the index of one clique, from the store"
    costs = "one choice: rho epsilon^2/8, whatever the score; one row moves it by the sensitivity that the ledger names"


class OpenOneWay(OpenRequest):
    """All one-way marginals of the store."""

    name = "one-way"
    leaves = "the store's counts of every attribute, with noise"
    costs = "d marginals of sensitivity 1: rho d/(2 sigma^2)"

    def layout(self, contract: Contract) -> Layout:
        return Layout.of_marginals(contract.domain, [(name,) for name in contract.domain])

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        return [Layout(((2 * sum(contract.domain.shape),),), len(contract.domain))]


class OpenMarginals(OpenRequest):
    """The store's marginals of some candidates."""

    name = "measure"
    leaves = "the store's counts of the chosen cliques, with noise"
    costs = "each marginal has sensitivity 1: rho 1/(2 sigma^2)"

    cliques: SomeCandidates

    def layout(self, contract: Contract) -> Layout:
        return Layout.of_marginals(contract.domain, [contract.candidates.cliques[i] for i in self.cliques])

    @classmethod
    def largest(cls, contract: Contract) -> Iterable[Layout]:
        return [Layout(((largest_measured(contract),),), 1)]


#: What a mechanism with a store names as its contract's `store`.
STORE_REQUESTS: tuple[type[Request], ...] = (Answers, SelectClique, OpenOneWay, OpenMarginals)


def unused_requests(requests: dict[str, type[Request]], contract: type[Any]) -> set[str]:
    """Returns names of a client's requests that this contract skips.

    They are sums if it has a store, and deals if it has none; and the sum of row counts, if there is one client, or
    each needs its own. Any mechanism may ask how good the table is.
    """
    kind = "sum" if contract.store else "deal"
    rows = {RowTotal.name} if contract.own_sizes or contract.central else set()
    return {
        name for name, request in requests.items() if (request.kind == kind and name != Evaluate.name) or name in rows
    }
