"""A store that the server keeps in the clear.

It serves the papers' simulation, and central AIM's one holder.

The server must be trusted with every client's exact answers. With `noise: server` it draws the noise itself, as much as
a central mechanism; with `noise: distributed` it plays the three parties, share by share, so that a run over `mpc` with
the same seed is equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import opened
from fedsyn.capabilities import PLAIN
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import EXPONENTIAL, GAUSSIAN, DistributedNoise, Release, SelectionNoise
from fedsyn.privacy.shared_choice import DRAWING
from fedsyn.randomness import RandomSource
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.stores.base import ClientDeal, ServedRun, Store, StoreServer
from fedsyn.wire.envelope import Arrays, Reply
from fedsyn.wire.requests import Choose, Layout, Open, Summed
from fedsyn.wire.sparse import decode_sparse, encode_sparse

# Of all clients together: times the finest scale of a score, 2^20, they stay in 62 bits.
_MOST_ROWS = 2**40


class PlainStore(Store):
    """`aggregation.protocol: plain`."""

    capabilities = PLAIN
    reads = "exact numbers"

    def answer(self, part: ClientDeal) -> Arrays:
        part.promise("server")
        exact = part.answer(part.call)
        return encode_sparse(exact.cells, exact.values)

    def serve(self, run: ServedRun) -> StoreServer:
        return PlainServer(run, self, self.node.noise == "distributed")

    def room_of_choice(self, terms: ChoiceTerms, epsilon: float) -> SelectionNoise:
        """Returns the noise of a choice.

        It is the noise of the parties that it plays, or noise in doubles, of which no step may be lost in rounding.
        """
        if self.node.noise == "distributed":
            return super().room_of_choice(terms, epsilon)
        terms.check()
        if not terms.exact:  # decided by public numbers
            raise ConfigError(
                f"scores over {terms.rows} rows do not fit doubles; allowed: aggregation.noise: distributed"
            )
        return SelectionNoise(epsilon, terms.moved)

    def room_of_opening(self, sigma: float, *, count: int, length: int, rows: int) -> DistributedNoise | None:
        """Returns the noise of an opening, as the parties that it plays.

        Noise that the server draws itself has no ring.
        """
        if self.node.noise != "distributed":
            return None
        return super().room_of_opening(sigma, count=count, length=length, rows=rows)

    def who_sees_what(self) -> dict[str, str]:
        shares = self.node.noise == "distributed"
        return {
            "trust": "the server, with every client's exact answers to the whole workload"
            + (" (it plays the three parties of protocol 'mpc': a simulation)" if shares else ""),
            "server": "every client's exact answers to the whole workload (protocol 'plain' hides nothing from it)",
            "noise": "the server, in the shares of three parties" if shares else "the server",
        }


class PlainServer(StoreServer):
    """Adds up what it is dealt.

    Args:
        run: what it serves.
        store: of the configuration.
        shares: whether the noise is that of three parties, each with a ledger, and not the central one.
    """

    def __init__(self, run: ServedRun, store: Store, shares: bool) -> None:
        super().__init__(run, store)
        self.parties = [run.party_ledger(i) for i in range(3)] if shares else []
        self.total = np.zeros(run.layout.length, np.int64)

    def deal(self, replies: Mapping[int, Reply]) -> None:
        for partition, reply in sorted(replies.items()):
            try:
                cells, values = decode_sparse(reply.arrays, len(self.total))
                self._check_rows(cells, values, self.run.rows(partition), self.run.most_of(partition))
            except ProtocolError as error:
                self.run.drop(partition, str(error))
            else:
                self.total[cells] += values
                self.dealt.append(partition)

    def _check_rows(
        self, cells: npt.NDArray[np.int64], values: npt.NDArray[np.int64], rows: int | None, most: float
    ) -> None:
        """Refuses counts that are not of a table.

        Every marginal has the same number of rows: the published one, or one that the released one can stand for.

        The squared score's sensitivity rests on it. ProtocolError; the server sees these counts anyway.
        """
        starts = np.array(self.run.layout.starts)
        which = np.searchsorted(starts, cells, side="right") - 1
        sums = np.bincount(which, weights=values, minlength=len(starts))
        if (sums != sums[0]).any() or (rows is not None and sums[0] != rows):
            raise ProtocolError("the marginals that it dealt are not those of one table of its size")
        if sums[0] > most:
            raise ProtocolError("the counts that it dealt are those of more rows than it released")
        if float(sums[0]) + float(self.total.max(initial=0)) >= _MOST_ROWS:
            raise ProtocolError("the counts that it dealt are those of more rows than a store takes")

    def choose(self, choice: Choose, round: int) -> int:
        terms, request, number = self.promised(choice), choice.request, self.next_order()
        scores = terms.scores(self.run.layout.marginal(self.total, clique) for clique in terms.cliques)
        if not self.parties:
            self.store.room_of_choice(terms, request.epsilon)
            entry = Release(request.name, round, EXPONENTIAL, terms.sensitivity, epsilon=request.epsilon)
            source = self._source("server", round, request.name, number)
            return self.run.ledger.exponential(scores / terms.unit, entry, source)
        noise, entry = self.charge_choice(choice, round)
        for party, ledger in enumerate(self.parties):
            source = self._source("party", party, round, request.name, number)
            scores = ledger.selection_share(scores, noise, entry, source, draws=party in DRAWING)
        return int(np.argmax(scores))

    def open(self, opening: Open, layout: Layout, round: int) -> Summed:
        request, number = opening.request, self.next_order()
        exact = [self.run.layout.marginal(self.total, clique) for clique in layout.cliques]
        if not self.parties:
            count, replaced = len(exact), layout.replaced
            entry = Release(request.name, round, GAUSSIAN, sigma=request.sigma, count=count, replaced=replaced)
            noisy = self.run.ledger.gaussian(exact, entry, self._source("server", round, request.name, number))
            return Summed(noisy, (request.sigma,) * len(noisy), tuple(self.dealt))
        noise, entry = self.charge_opening(opening, layout, round)
        flat: npt.NDArray[np.int64] = np.concatenate([part.ravel() for part in exact])
        total = np.zeros(len(flat), np.int64)
        for party, ledger in enumerate(self.parties):
            values = flat if party == 0 else np.zeros(len(flat), np.int64)
            total += ledger.distributed(values, noise, entry, self._source("party", party, round, request.name, number))
        return opened(total, layout.shapes, noise, self.dealt, len(self.parties))

    def _source(self, *key: int | str) -> RandomSource:
        return self.run.randomness.generator(*key)
