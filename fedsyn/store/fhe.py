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

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsyn.aggregation.base import Limits
from fedsyn.counting.stored import StoredLayout, StoreFacts
from fedsyn.errors import ConfigError, ProtocolError, RunError
from fedsyn.nodes import FheNode
from fedsyn.privacy import EXPONENTIAL, DistributedNoise, Release, SelectionNoise
from fedsyn.privacy.distributed import pool_share
from fedsyn.privacy.release import CLIENTS, COUNTS, ROLES
from fedsyn.selection.terms import SquaredL2, Terms
from fedsyn.store.base import ClientDeal, ServedRun, Store, StoreServer
from fedsyn.wire.envelope import Arrays, Reply
from fedsyn.wire.requests import Choose, Layout, Open, Summed
from fedsyn.wire.sparse import split_vector

if TYPE_CHECKING:
    from fedsyn.fhe.slots import NoiseRanges, SlotLayout
    from fedsyn.parties.crypto import Begun, CryptoParty

_RUN = 32  # bytes


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
        limits = self.limits(clients)
        pool_share(limits.fewest - limits.corrupted)
        sealapi()

    def limits(self, clients: int) -> Limits:
        """Who must have dealt before anything comes out, and who may be corrupted."""
        return Limits.of(self.node, clients, self.minimum)

    def assumptions(self) -> dict[str, str | int | float]:
        node = self.fhe
        facts = {"corrupted": self.node.corrupted, "dropout": self.node.dropout, "collude": "server and crypto: no"}
        return {
            **super().assumptions(),
            **facts,
            "scheme": node.scheme,
            "compute": node.compute,
            "selector": node.selector,
        }

    def answer(self, part: ClientDeal) -> Arrays:
        """Encrypted counts, and encrypted noise for all that will be opened, in one message."""
        from fedsyn.fhe.plan import check_message, layout_of, parameters_of
        from fedsyn.fhe.seal import Encryptor
        from fedsyn.fhe.slots import planes_of

        config, domain, facts = part.config, part.holder.domain, part.facts
        run, public, signature = _read_invitation(part.arrays)
        if config.runtime.engine == "deployment":
            check_signature(self.node, run, config, part, public, signature)
        parameters = parameters_of(config, domain, facts)
        layout = layout_of(parameters, domain, facts)
        planes = planes_of(layout, facts.openings, first_of(facts, len(domain)))
        check_message((layout.ciphertexts + planes) * parameters.bytes)
        encryptor = Encryptor(parameters, public)
        exact = part.promised(CLIENTS)
        stored = StoredLayout(exact.layout.cliques, domain)
        vector = exact.dense()
        cells = {clique: stored.marginal(vector, clique).ravel() for clique in layout.cliques}
        sent = encryptor.to_bytes(layout.vector(cells))
        limits = self.limits(config.federation.clients)
        share, slots = pool_share(limits.fewest - limits.corrupted), min(layout.copies * layout.stride, layout.slots)
        noise = part.ledger.pool(planes * slots, share, part.source).reshape(planes, slots)
        sent += [piece for plane in noise for piece in encryptor.to_bytes(plane)]
        return pack(sent)

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
        self.store, self._connect = store, connect
        self._party: CryptoParty | None = None
        self._begun: Begun | None = None
        self._stored: list[Any] | None = None
        self._planes: list[Any] | None = None

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

        return computation_of(self.parameters, self.begun.keys)

    @property
    def party(self) -> CryptoParty:
        if self._party is None:
            self._party = self._connect()
        return self._party

    @property
    def begun(self) -> Begun:
        if self._begun is None:
            raise RunError("the run was not announced to the crypto party")
        return self._begun

    @property
    def limits(self) -> Limits:
        return self.store.limits(self.run.config.federation.clients)

    @property
    def is_open(self) -> bool:
        return len(self.dealt) >= max(1, self.run.minimum, self.limits.fewest)

    # Deals ------------------------------------------------------------------------------------------------------------

    def announce(self, rho: float) -> None:
        if self._begun is None:
            from fedsyn.fhe.plan import check_message
            from fedsyn.parties.interface import Announcement

            check_message((self.layout.ciphertexts + self.ranges.planes) * self.parameters.bytes)
            run, layout = self.run, self.run.layout
            nonce = secrets.token_bytes(16)
            announcement = Announcement(run.config, layout.domain, layout.cliques, rho, max(1, run.minimum), nonce)
            self._begun = self.party.begin(announcement)

    def invitation(self, rho: float) -> Arrays:
        """Run id, the run's public key and its signature."""
        self.announce(rho)
        pieces = (self.begun.run, self.begun.keys.public, self.begun.signature)
        return [np.frombuffer(piece, np.uint8) for piece in pieces]

    def deal(self, replies: Mapping[int, Reply]) -> None:
        from fedsyn.fhe.seal import added

        count = self.layout.ciphertexts
        for partition, reply in sorted(replies.items()):
            try:
                pieces = unpack(reply.arrays, count + self.ranges.planes)
                read = self.computation.read(pieces)
            except ProtocolError as error:
                self.run.drop(partition, str(error))
                continue
            self._stored = added(self.computation.ring, self._stored, read[:count])
            self._planes = added(self.computation.ring, self._planes, read[count:])
            self.dealt.append(partition)

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
            check_room(terms, vector.share * 64.0)
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
            check_room(terms, noise.reach)
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
        answer = self.party.choose(ChooseOrder(number, request.name, round, request.epsilon, terms), question)
        if self.store.fhe.selector == "gaussian":
            return int(np.argmax(answer))
        if answer.shape != (1,) or not 0 <= int(answer[0]) < len(terms.cliques):
            raise RunError("the crypto party has chosen what was not offered to it")
        return int(answer[0])

    def open(self, asked: Open, layout: Layout, round: int) -> Summed:
        from fedsyn.parties.interface import OpenOrder

        request, number = asked.request, self.next_order()
        noise = self.charge_opening(asked, layout, round)
        assert self._stored is not None and self._planes is not None
        pieces = self.ranges.reserve(layout.cliques)
        question = self.computation.marginals(self._stored, self._planes, noise.resolution, pieces)
        order = OpenOrder(number, request.name, round, request.sigma, layout.cliques)
        answer = self.party.open(order, question)
        total = np.zeros(noise.length, np.int64)
        if answer.shape != total.shape:
            raise RunError("the crypto party has opened something else than it was asked for")
        at = 0
        for piece in pieces:
            size = piece.stop - piece.start
            total[piece.first : piece.first + size] = answer[at : at + size]
            at += size
        sigma = noise.sigma_of(len(self.dealt))
        values = split_vector(total / noise.resolution, layout.shapes)
        return Summed(values, (sigma,) * len(layout.shapes), tuple(self.dealt))

    def charge_opening(self, asked: Open, layout: Layout, round: int) -> DistributedNoise:
        """Enters marginals whose noise the clients have dealt; gives its plan."""
        from fedsyn.fhe.parameters import LARGEST, MOST_FACTOR

        length = sum(int(np.prod(shape, dtype=np.int64)) for shape in layout.shapes)
        rows = sum(self.run.rows(k) or 0 for k in self.dealt)
        limits = self.limits
        noise = DistributedNoise.of_pool(
            asked.request.sigma,
            asked=limits.asked,
            fewest=limits.fewest,
            corrupted=limits.corrupted,
            count=layout.count,
            length=length,
            most=min(MOST_FACTOR, LARGEST // (2 * max(1, rows))),
        )
        self._promise(noise.release(asked.request.name, round, replaced=COUNTS))
        return noise

    def close(self) -> None:
        if self._party is not None:
            self._party.end()

    def traffic(self) -> list[dict[str, float]]:
        from dataclasses import asdict

        return [] if self._party is None else [asdict(self._party.costs)]


def first_of(facts: StoreFacts, attributes: int) -> Sequence[tuple[str, ...]]:
    """The cliques that one opening opens together: every attribute."""
    return facts.cliques[:attributes]


def check_room(terms: Terms, noise: float) -> None:
    """Refuses a choice whose scores could wrap around in the plain modulus; ConfigError.

    Clients deal no more than the rows that they published (`squared_l2` rests on that anyway).
    """
    from fedsyn.fhe.parameters import LARGEST

    squared = SquaredL2()
    reach = squared.honest(terms.scale, terms.rows) + int(np.abs(terms.penalties).max())
    if int(terms.weights.max()) * reach + noise >= LARGEST:
        raise ConfigError(
            f"scores over {terms.rows} rows and their noise could exceed the {LARGEST:.3g} that ciphertexts hold: "
            "choose a larger privacy.epsilon, or fewer rounds"
        )


def check_signature(node: Any, run: bytes, config: Any, part: ClientDeal, public: bytes, signature: bytes) -> None:
    """Refuses a key that the crypto party of the client's own configuration has not signed for this run."""
    from fedsyn.parties.crypto import signed_keys
    from fedsyn.parties.interface import sealed_for
    from fedsyn.parties.keys import is_signed

    if node.crypto is None:
        raise ProtocolError("aggregation.crypto is missing: a real client takes no key from the server")
    agreed = sealed_for(run, config, part.holder.domain, part.request.layout(part.contract).cliques)
    if not is_signed(node.crypto.certificate, signature, signed_keys(agreed, public)):
        raise ProtocolError(
            "the run's key was not signed for this run by the crypto party that this client knows"
        )


def pack(pieces: Sequence[bytes]) -> Arrays:
    """Byte strings as two arrays: their lengths, and all of them."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return [lengths, np.frombuffer(b"".join(pieces), np.uint8)]


def unpack(arrays: Arrays, count: int) -> list[bytes]:
    """The inverse; ProtocolError if there are not `count` of them."""
    fits = len(arrays) == 2 and arrays[0].shape == (count,) and arrays[0].dtype == np.int64 and arrays[1].ndim == 1
    if not fits or arrays[1].dtype != np.uint8 or (arrays[0] < 0).any() or arrays[0].sum() != len(arrays[1]):
        raise ProtocolError(f"what it sent is not {count} ciphertexts")
    whole, ends = arrays[1].tobytes(), np.cumsum(arrays[0])
    return [whole[end - length : end] for end, length in zip(ends.tolist(), arrays[0].tolist(), strict=True)]


def _read_invitation(arrays: Arrays) -> tuple[bytes, bytes, bytes]:
    if len(arrays) < 3 or any(array.dtype != np.uint8 or array.ndim != 1 for array in arrays[:3]):
        raise ProtocolError("the request to deal does not bring its run and the crypto party's key")
    run, public, signature = (array.tobytes() for array in arrays[:3])
    if len(run) != _RUN:
        raise ProtocolError("the request to deal does not bring its run and the crypto party's key")
    return run, public, signature
