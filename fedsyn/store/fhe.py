"""A store of ciphertexts: `aggregation.protocol: fhe` (Kumar et al. 2025, "FHAIM").

The paper's roles: data entities are the clients, which encrypt their answers and, with them, the noise of everything
that will be opened; the computation and generation entities are this server; the crypto-service entity is a party
(`fedsyn.parties.crypto`) that alone holds the secret key. `fedsyn.fhe` has what is computed.

*Noise of an opening.* Each client deals planes of discrete Gaussian shares, sized for the fewest honest ones
(`DistributedNoise.of_pool`); a marginal times the public factor γ is opened with slots that nothing was opened with
before (`NoiseRanges`), so no two releases share noise.

*Noise of a choice.* Server and crypto party add a whole Gumbel vector each (`fedsyn.privacy.selection`, with these two
for the parties that draw): neither knows all of it, and the two do not collude.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Limits
from fedsyn.counting.stored import StoredLayout, StoreFacts
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.nodes import FheNode
from fedsyn.privacy import EXPONENTIAL, DistributedNoise, Release, SelectionNoise
from fedsyn.privacy.distributed import pool_share
from fedsyn.privacy.release import CLIENTS, COUNTS, ROLES
from fedsyn.selection.terms import NORMS, Terms
from fedsyn.store.base import ClientDeal, ServedRun, Store, StoreServer
from fedsyn.store.crypto import CryptoKey, CryptoRun, pack, unpack
from fedsyn.wire.envelope import Arrays, Reply
from fedsyn.wire.requests import Choose, Layout, Open, Summed
from fedsyn.wire.sparse import split_vector

if TYPE_CHECKING:
    from fedsyn.fhe.products import ColumnLayout, Columns
    from fedsyn.fhe.slots import NoiseRanges, SlotLayout
    from fedsyn.parties.crypto import CryptoParty


class FheStore(Store):
    """`aggregation.protocol: fhe`."""

    name = "fhe"
    noises = "distributed"

    @property
    def fhe(self) -> FheNode:
        return self.node.fhe or FheNode()

    def check(self, clients: int) -> None:
        from fedsyn.fhe.seal import sealapi

        super().check(clients)
        if self.node.noise != "distributed":
            raise ConfigError(
                f"aggregation: protocol: fhe cannot go with noise: {self.node.noise}: the server would know the noise "
                "of what it opens; allowed: distributed"
            )
        if self.node.threat == "malicious":
            raise ConfigError(
                "aggregation: threat: malicious cannot go with protocol: fhe, whose server is trusted to compute what "
                "it should; allowed: mpc, or secagg for mechanisms that sum"
            )
        if not self.simulated and self.node.crypto is None:
            raise ConfigError(
                "aggregation.crypto: a deployment with protocol: fhe needs the card of its crypto party "
                "(fedsyn party card prints one)"
            )
        if self.fhe.scheme == "ckks" and self.fhe.compute != "client":
            raise ConfigError(
                f"aggregation.fhe: compute: {self.fhe.compute} counts exactly, with masks modulo a prime, which "
                "scheme: ckks does not have; allowed: scheme: bfv"
            )
        limits = self.limits(clients)
        pool_share(limits.fewest - limits.corrupted)
        sealapi()

    def limits(self, clients: int) -> Limits:
        """Who must have dealt before anything comes out, and who may be corrupted."""
        return Limits.of(self.node, clients, self.minimum)

    def assumptions(self) -> dict[str, str | int | float]:
        node = self.fhe
        facts: dict[str, str | int | float] = {
            "corrupted": self.node.corrupted,
            "dropout": self.node.dropout,
            "collude": "server and crypto party: no",
        }
        return {
            **super().assumptions(),
            **facts,
            "scheme": node.scheme,
            "compute": node.compute,
            "selector": node.selector,
        }

    def answer(self, part: ClientDeal) -> Arrays:
        """Encrypted counts or columns, and encrypted noise for all that will be opened, in one message."""
        from fedsyn.fhe.plan import check_message, layout_of, parameters_of
        from fedsyn.fhe.seal import encryptor_of
        from fedsyn.fhe.slots import planes_of

        config, domain, facts = part.config, part.holder.domain, part.facts
        key = CryptoKey(config, domain, part.request.layout(part.contract).cliques)
        parameters = parameters_of(config, domain, facts)
        encryptor = encryptor_of(parameters, key.read(part.arrays))
        layout = layout_of(parameters, domain, facts)
        planes = planes_of(layout, facts.openings, first_of(facts, len(domain)))
        check_message((layout.ciphertexts + planes) * parameters.bytes)
        part.promise(CLIENTS)
        vectors = self._counts(part, layout) if self.fhe.compute == "client" else self._columns(part, layout)
        limits = self.limits(config.federation.clients)
        share, slots = pool_share(limits.fewest - limits.corrupted), min(layout.copies * layout.stride, layout.slots)
        vectors += list(part.ledger.pool(planes * slots, share, part.source).reshape(planes, slots))
        return pack([piece for vector in vectors for piece in encryptor.to_bytes(vector)])

    def _counts(self, part: ClientDeal, layout: SlotLayout) -> list[npt.NDArray[np.int64]]:
        """`compute: client`: all cells, counted by the client."""
        exact = part.contribution()
        stored, vector = StoredLayout(exact.layout.cliques, part.holder.domain), exact.dense()
        return [layout.vector({clique: stored.marginal(vector, clique).ravel() for clique in layout.cliques})]

    def _columns(self, part: ClientDeal, layout: SlotLayout) -> list[npt.NDArray[np.int64]]:
        """`compute: packed | naive`: the one-hot columns of the attributes that this client holds."""
        from fedsyn.fhe.plan import columns_of

        codes, domain, partition = part.holder.codes, part.holder.domain, _partition(part)
        columns = columns_of(part.config, domain, partition, len(codes), layout.slots)
        held = dict.fromkeys(name for name, _ in columns.columns)
        places = {name: codes[:, list(domain).index(name)] for name in held}
        if any((column < 0).any() for column in places.values()):
            raise ProtocolError("this client does not hold the attributes that federation.columns gives to it")
        return list(columns.vectors(places))

    def serve(self, run: ServedRun) -> StoreServer:
        from fedsyn.parties.connect import connect_crypto

        return FheServer(run, self, lambda: connect_crypto(run.config, run.randomness))

    def who_sees_what(self) -> dict[str, str]:
        played = " (here a simulation, which protects nobody: one process plays both)" if self.simulated else ""
        seen = {
            "index": "; the crypto party reads the noisy scores of every choice, and is trusted with them",
            "gaussian": "; scores carry Gaussian noise that is accounted for, and anybody may see them",
        }
        return {
            "trust": "server and crypto party to follow the protocol, and not to collude: the server has ciphertexts, "
            "the crypto party their key; no more than the share aggregation.corrupted of the clients may collude with "
            f"either{played}{seen[self.fhe.selector]}",
            "server": "ciphertexts, which it cannot read; of what was dealt, only what the crypto party opens",
            "noise": "of marginals the clients, a share each, encrypted; of choices server and crypto party, a whole "
            "one each (2 times the variance of central noise)",
        }


class FheServer(StoreServer):
    """The computation entity: adds up ciphertexts, and asks the crypto party for what may come out.

    Args:
        run: what it serves.
        store: the public facts.
        connect: gives the crypto party, when it is first needed.
    """

    def __init__(self, run: ServedRun, store: FheStore, connect: Callable[[], CryptoParty]) -> None:
        super().__init__(run)
        self.store = store
        layout = run.layout
        self.crypto = CryptoRun(run.config, layout.domain, layout.cliques, run.minimum, connect)
        self._stored: list[Any] | None = None
        self._planes: list[Any] | None = None
        self._entities: dict[int, Columns] = {}  # where columns are split over holders

    # Public facts -----------------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> SlotLayout:
        from fedsyn.fhe.plan import layout_of

        return layout_of(self.parameters, self.run.layout.domain, self.run.facts)

    @cached_property
    def parameters(self) -> Any:
        from fedsyn.fhe.plan import parameters_of

        return parameters_of(self.run.config, self.run.layout.domain, self.run.facts)

    @cached_property
    def ranges(self) -> NoiseRanges:
        from fedsyn.fhe.slots import NoiseRanges

        facts = self.run.facts
        return NoiseRanges(self.layout, facts.openings, first_of(facts, len(self.run.layout.domain)))

    @cached_property
    def computation(self) -> Any:
        from fedsyn.fhe.plan import computation_of

        return computation_of(self.parameters, self.crypto.begun.keys)

    @property
    def limits(self) -> Limits:
        return self.store.limits(self.run.config.federation.clients)

    @property
    def is_open(self) -> bool:
        return self._stored is not None and len(self.dealt) >= max(1, self.run.minimum, self.limits.fewest)

    # Deals ------------------------------------------------------------------------------------------------------------

    def announce(self, rho: float) -> None:
        from fedsyn.fhe.plan import check_message

        check_message((self.layout.ciphertexts + self.ranges.planes) * self.parameters.bytes)
        self.crypto.announce(rho)

    def invitation(self, rho: float) -> Arrays:
        self.announce(rho)
        return self.crypto.invitation

    def deal(self, replies: Mapping[int, Reply]) -> None:
        from fedsyn.fhe.seal import added

        for partition, reply in sorted(replies.items()):
            try:
                columns = None if self.store.fhe.compute == "client" else self._columns_of(partition)
                count = self.layout.ciphertexts if columns is None else columns.ciphertexts
                read = self.computation.read(unpack(reply.arrays, count + self.ranges.planes))
            except (ProtocolError, ConfigError) as error:
                self.run.drop(partition, str(error))
                continue
            if columns is None:
                self._stored = added(self.computation.ring, self._stored, read[:count])
            else:
                self._multiply(partition, columns, read[:count])
            self._planes = added(self.computation.ring, self._planes, read[count:])
            self.dealt.append(partition)

    def _columns_of(self, partition: int) -> ColumnLayout:
        from fedsyn.fhe.plan import columns_of

        rows = self.run.rows(partition) or 0
        if any(entity.layout.rows != rows for entity in self._entities.values()):
            raise ProtocolError("it has another number of rows than the other holder of these people's columns")
        return columns_of(self.run.config, self.run.layout.domain, partition, rows, self.parameters.slots)

    def _multiply(self, partition: int, layout: ColumnLayout, ciphertexts: Sequence[Any]) -> None:
        """Counts, as soon as all attributes of some people are there."""
        from fedsyn.fhe.plan import products_of
        from fedsyn.fhe.products import Columns
        from fedsyn.fhe.seal import added

        config, columns = self.run.config, Columns.of(layout, ciphertexts)
        entities = [columns]
        if config.federation.columns is not None:
            self._entities[partition] = columns
            if len(self._entities) < len(config.federation.columns):
                return
            entities = [entity for _, entity in sorted(self._entities.items())]
        parts = (self.computation, entities, self.run.layout.domain, self.layout, self.crypto.party.sums)
        self._stored = added(self.computation.ring, self._stored, products_of(config, *parts).counts())

    # What comes out ---------------------------------------------------------------------------------------------------

    def choose(self, asked: Choose, round: int) -> int:
        from fedsyn.parties.crypto import gaussian_scores
        from fedsyn.parties.interface import ChooseOrder

        terms, request, number = asked.terms, asked.request, self.next_order()
        assert self._stored is not None
        source = self.run.randomness.generator("party", 0, round, request.name, number)
        own = self.run.party_ledger(0)
        zeros = np.zeros(len(terms.cliques), np.int64)
        if self.store.fhe.selector == "gaussian":
            vector = gaussian_scores(request.epsilon, terms)
            self._check_room(terms, vector.share * 64.0)
            self._promise(vector.release(request.name, round))
            share = own.distributed(
                zeros,
                noise=vector,
                sigma=vector.sigma,
                sensitivity=vector.sensitivity,
                count=1,
                name=request.name,
                round=round,
                source=source,
            )
        else:
            noise = SelectionNoise(request.epsilon, terms.moved)
            self._check_room(terms, noise.reach)
            self._promise(
                Release(request.name, round, EXPONENTIAL, terms.sensitivity, epsilon=noise.epsilon, noise_by=ROLES)
            )
            share = own.selection_share(
                zeros,
                noise=noise,
                draws=True,
                sensitivity=terms.sensitivity,
                name=request.name,
                round=round,
                source=source,
                noise_by=ROLES,
            )
        question = self.computation.scores(self._stored, self.layout, terms, share)
        answer = self.crypto.party.choose(ChooseOrder(number, request.name, round, request.epsilon, terms), question)
        if self.store.fhe.selector == "gaussian":
            return int(np.argmax(answer))
        if answer.shape != (1,) or not 0 <= int(answer[0]) < len(terms.cliques):
            raise RunError("the crypto party has chosen what was not offered to it")
        return int(answer[0])

    def _check_room(self, terms: Terms, noise: float) -> None:
        """Refuses a choice whose scores could leave the numbers that ciphertexts hold; ConfigError.

        Clients deal no more than the rows that they published (every score of this store rests on that).
        """
        from fedsyn.fhe.plan import most_of

        norm, exact = NORMS[terms.norm], self.store.fhe.scheme == "bfv"
        reach = norm.honest(terms.scale, terms.rows) + int(np.abs(terms.penalties).max())
        most = most_of(self.parameters) * (1 if exact else terms.unit)
        if int(terms.weights.max()) * reach + noise >= most:
            raise ConfigError(
                f"scores over {terms.rows} rows and their noise could exceed the {most:.3g} that ciphertexts hold: "
                "choose a larger privacy.epsilon, or fewer rounds"
            )

    def open(self, asked: Open, layout: Layout, round: int) -> Summed:
        from fedsyn.fhe.plan import unit_of
        from fedsyn.parties.interface import OpenOrder

        request, number = asked.request, self.next_order()
        noise = self.charge_opening(asked, layout, round)
        assert self._stored is not None and self._planes is not None
        pieces = self.ranges.reserve(layout.cliques)
        question = self.computation.marginals(self._stored, self._planes, noise.resolution, pieces)
        order = OpenOrder(number, request.name, round, request.sigma, layout.cliques)
        answer = self.crypto.party.open(order, question)
        total = np.zeros(noise.length, np.int64)
        if answer.shape != total.shape:
            raise RunError("the crypto party has opened something else than it was asked for")
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            total[piece.first : piece.first + size] = answer[at : at + size]
            at += size
        sigma = noise.sigma_of(len(self.dealt))
        values = split_vector(total / unit_of(self.parameters, noise.resolution), layout.shapes)
        return Summed(values, (sigma,) * len(layout.shapes), tuple(self.dealt))

    def charge_opening(self, asked: Open, layout: Layout, round: int) -> DistributedNoise:
        """Enters marginals whose noise the clients have dealt; gives its plan."""
        from fedsyn.fhe.parameters import MOST_FACTOR
        from fedsyn.fhe.plan import most_of

        length = sum(int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes)
        rows = sum(self.run.rows(k) or 0 for k in self.dealt)  # at least as many as there are
        limits = self.limits
        noise = DistributedNoise.of_pool(
            asked.request.sigma,
            asked=limits.asked,
            fewest=limits.fewest,
            corrupted=limits.corrupted,
            count=layout.count,
            length=length,
            most=min(MOST_FACTOR, most_of(self.parameters) // (2 * max(1, rows))),
        )
        self._promise(noise.release(asked.request.name, round, replaced=COUNTS))
        return noise

    def close(self) -> None:
        self.crypto.close()

    def traffic(self) -> list[dict[str, float]]:
        return self.crypto.traffic()


def first_of(facts: StoreFacts, attributes: int) -> Sequence[tuple[str, ...]]:
    """The cliques that one opening opens together: every attribute."""
    return facts.cliques[:attributes]


def _partition(part: ClientDeal) -> int:
    """This client's place: its own id, or the one that the server gave it."""
    given = part.arrays[-1]
    if given.shape != (1,) or given.dtype.kind not in "iu":
        raise ProtocolError("the request to deal does not say which client it is for")
    if part.holder.partition not in (None, int(given[0])):
        raise ProtocolError("the message is for another client of the store")
    return int(given[0])
