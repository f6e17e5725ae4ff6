"""A store of ciphertexts: `aggregation.protocol: fhe` (Kumar et al. 2025, "FHAIM").

The paper's roles: data entities are the clients, which encrypt their answers and, with them, the noise of everything
that will be opened; the computation and generation entities are this server; the crypto-service entity is a party
(`fedsyn.stores.parties.crypto`) that alone holds the secret key. `fedsyn.crypto.fhe` has what is computed.

*Noise of an opening.* Each client deals planes of discrete Gaussian shares, sized for the fewest honest ones
(`DistributedNoise.of_pool`); a marginal times the public factor γ is opened with slots that nothing was opened with
before (`NoiseRanges`), so no two releases share noise.

*Pads.* The encrypted counts, for choices, carry a pad under the ciphertext. Counts and planes for openings carry other
pads and are not encrypted besides. All are uniform modulo t, from one seed that is sealed to the crypto party
(`fedsyn.stores.parties.boxes`). It takes them off an opening itself, by the order; off the counts that choices are made
on once, for all contributors together. Without pads (`FheNode.is_bound`) the planes are encrypted, too.

*Noise of a choice.* Server and crypto party add a whole Gumbel vector each (`fedsyn.privacy.shared_choice`, with
these two for the parties that draw): neither knows all of it, and the two do not collude.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Limits
from fedsyn.capabilities import FHE
from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.parameters import LARGEST, Parameters
from fedsyn.crypto.fhe.products import ColumnLayout, columns_of, holders_of, message_of, parameters_of
from fedsyn.crypto.fhe.seal import encryptor_of, sealapi
from fedsyn.crypto.fhe.slots import SlotLayout, planes_of
from fedsyn.domain import Domain
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import DistributedNoise, SelectionNoise
from fedsyn.privacy.distributed import pool_share
from fedsyn.privacy.release import CLIENTS, ROLES
from fedsyn.selection.terms import NORMS, ChoiceTerms
from fedsyn.settings import FheNode
from fedsyn.stores.base import ClientDeal, ServedRun, Store, StoreServer
from fedsyn.stores.crypto import CryptoKey, pack
from fedsyn.stores.fhe_server import FheServer
from fedsyn.stores.parties.boxes import Pads, of_deal
from fedsyn.stores.parties.crypto import pooled_noise
from fedsyn.stores.parties.sealing import DealFacts
from fedsyn.table.counting.stored import StoredLayout, StoreFacts
from fedsyn.wire.envelope import Arrays, check_message


class FheStore(Store):
    """`aggregation.protocol: fhe`."""

    capabilities = FHE
    choices_by = ROLES

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._holders = holders_of(config)

    @property
    def fhe(self) -> FheNode:
        return self.node.fhe or FheNode()

    def check(self, clients: int) -> None:
        super().check(clients)
        if not self.simulated:
            self._check_deployed()
        limits = self.limits
        if self.federation.columns is not None and self.fhe.compute != "client" and limits.corrupted < 1:
            raise ConfigError(
                "aggregation.corrupted: 0 counts on nobody, and holders of different columns must not rely on each "
                "other's share of the noise; allowed: any share above 0"
            )
        if self.federation.sampling_rate < 1.0 and limits.fewest > self.federation.sampling_rate * clients:
            raise ConfigError(
                f"federation.sampling_rate: {limits.fewest} clients must have dealt before anything is opened, and a "
                f"round asks {self.federation.sampling_rate * clients:g} on average: raise it, or aggregation.dropout"
            )
        pool_share(limits.fewest - limits.corrupted)
        sealapi()

    def _check_deployed(self) -> None:
        """Refuses what real clients should not be asked for; ConfigError."""
        if not self.fhe.is_bound:
            raise ConfigError(
                f"aggregation.fhe: compute: {self.fhe.compute} trusts the server with what is opened and is for "
                "simulations; allowed in a deployment: compute: client"
            )
        if self.node.crypto is None:
            raise ConfigError(
                "aggregation.crypto: a deployment with protocol: fhe needs the card of its crypto party "
                "(fedsyn party card prints one)"
            )
        if sorted(self.node.roster or ()) != list(range(self._holders)):
            raise ConfigError(
                "aggregation.roster: in a deployment with protocol: fhe the crypto party of a store must know its "
                f"clients: the public key (fedsyn identity) of each of the clients 0 to {self._holders - 1}"
            )
        if self.federation.sampling_rate < 1.0:
            raise ConfigError(
                "federation.sampling_rate: the crypto party of a store is told its contributors once; allowed in a "
                "deployment with protocol: fhe: 1"
            )

    @property
    def limits(self) -> Limits:
        """Numbers of clients that must have dealt, or may be corrupted."""
        return Limits.of(self.node, self._holders, self.minimum)

    @property
    def fewest(self) -> int:
        return self.limits.fewest

    def assumptions(self) -> dict[str, str | int | float]:
        return {
            **super().assumptions(),
            "corrupted": self.node.corrupted,
            "dropout": self.node.dropout,
            "collude": "server and crypto party: no",
            "scheme": "bfv",
            "compute": self.fhe.compute,
        }

    def answer(self, part: ClientDeal) -> Arrays:
        """Returns encrypted counts or columns, and noise for all openings.

        All travels in one message; with pads, the box does too.
        """
        config, domain, facts = part.config, part.holder.domain, part.contract.store_facts
        key = CryptoKey(config, domain, part.request.layout(part.contract).cliques)
        keys = key.read(part.call.arrays)
        partitions = [] if self.fhe.compute == "client" else [part.partition]
        parameters, layout, planes, columns = self._deal_of(config, domain, facts, partitions, len(part.holder.codes))
        encryptor = encryptor_of(parameters, keys.public)
        deal_facts = DealFacts(part.request.rho, part.public_rows)
        seed, box = key.sealed(keys, of_deal(deal_facts), part.holder) if self.fhe.is_bound else (b"", b"")
        part.promise(CLIENTS)
        vectors = _vectors(part, columns[0]) if columns else self._counts(part, layout)
        limits = self.limits
        share, slots = pool_share(limits.fewest - limits.corrupted), layout.noisy
        noise = part.ledger.pool(planes * slots, share, part.request.release(CLIENTS), part.call.source)
        if not self.fhe.is_bound:
            vectors += list(noise.reshape(planes, slots))
            return pack([piece for vector in vectors for piece in encryptor.to_bytes(vector)])
        counted, numbers = Pads(layout, planes, encryptor.ring.modulus).add(seed).on(vectors[0], noise)
        ciphertexts = pack(encryptor.to_bytes(counted.astype(np.int64)))
        return [*ciphertexts, numbers, np.frombuffer(deal_facts.to_bytes() + box, np.uint8)]

    def _counts(self, part: ClientDeal, layout: SlotLayout) -> list[npt.NDArray[np.int64]]:
        """`compute: client`: all cells, counted by the client."""
        exact = part.answer(part.call)
        stored, vector = StoredLayout(exact.layout.cliques, part.holder.domain), exact.dense()
        return [layout.vector({clique: stored.marginal(vector, clique).ravel() for clique in layout.cliques})]

    def serve(self, run: ServedRun) -> StoreServer:
        return FheServer(run, self, self.limits)

    # Room -------------------------------------------------------------------------------------------------------------

    def room_of_deals(self, contract: Any, rows: float) -> None:
        """Checks that a client's ciphertexts fit one message.

        Columns have `rows` rows, if those are encrypted.
        """
        config = contract.config
        holders = 1 if config.federation.columns is None else config.federation.clients
        try:
            self._deal_of(config, contract.domain, contract.store_facts, range(holders), math.ceil(rows))
        except ProtocolError as error:
            raise ConfigError(f"aggregation.fhe: compute: {self.fhe.compute}: {error}") from None

    def _deal_of(
        self, config: RunConfig, domain: Domain, facts: StoreFacts, partitions: Iterable[int], rows: int
    ) -> tuple[Parameters, SlotLayout, int, list[ColumnLayout]]:
        """Returns what deals are made of.

        That is parameters, layout, planes of noise, and each client's columns if it encrypts them.

        Args:
            config, domain, facts: of the run.
            partitions: of clients.
            rows: of each.

        Raises:
            ConfigError: one of them does not fit a message.
            ProtocolError: it cannot be made of columns.
        """
        parameters = parameters_of(config)
        layout = SlotLayout(facts.cliques, domain, parameters.slots)
        planes, encrypts = planes_of(layout, facts.openings, facts.attributes), self.fhe.compute != "client"
        columns = [columns_of(config, domain, k, rows, layout.slots) for k in partitions if encrypts]
        sent = max((one.ciphertexts for one in columns), default=layout.ciphertexts)
        size = message_of(self.fhe, sent, planes, layout, parameters)
        check_message(size, "aggregation.protocol: fhe", simulated=self.simulated)
        return parameters, layout, planes, columns

    def room_of_choice(self, terms: ChoiceTerms, epsilon: float) -> SelectionNoise:
        """Scores of honest clients, and their noise, stay below what ciphertexts hold.

        Clients deal no more than the rows that they published (every score of this store rests on that).
        """
        terms.check()
        noise = SelectionNoise(epsilon, terms.moved)
        reach = NORMS[terms.norm].honest(terms.scale, terms.rows) + int(np.abs(terms.penalties).max())
        if int(terms.weights.max()) * reach + noise.reach >= LARGEST:
            raise ConfigError(
                f"scores over {terms.rows:,} rows, up to {float(int(terms.weights.max()) * reach):.3g}, and their "
                f"noise of up to {noise.reach:.3g} could exceed the {LARGEST:.3g} that ciphertexts hold: sum fewer "
                "rows, or choose fewer rounds or a smaller workload.degree"
            )
        return noise

    def room_of_opening(self, sigma: float, *, count: int, length: int, rows: int) -> DistributedNoise | None:
        """Returns the noise that clients deal before sigma is known.

        Its resolution is the largest that leaves the counts room.
        """
        return pooled_noise(sigma, self.limits, count=count, length=length, rows=rows)

    def who_sees_what(self) -> dict[str, str]:
        columns = self.federation.columns is not None
        pooled = self.limits.corrupted
        split = f", also where {pooled} of them are holders of columns; a row is one person, at all holders" * columns
        played = " (here a simulation, which protects nobody: one process plays both)" if self.simulated else ""
        seen = "; the crypto party reads the noisy scores of every choice, and is trusted with them"
        bound = (
            "; a server that deviates gets of marginals what an honest one gets, and by each choice an index of any "
            "function of the total over all clients"
        )
        if not self.fhe.is_bound:
            how = f"compute: {self.fhe.compute}"
            bound = f"; with {how} the server is trusted with all that is opened (simulations only)"
        return {
            "trust": "server and crypto party to follow the protocol, and not to collude: the server has ciphertexts, "
            "the crypto party their key; no more than the share aggregation.corrupted of the clients (one at least, "
            f"unless that is 0) may collude with either{split}{played}{seen}{bound}",
            "server": "ciphertexts, which it cannot read; of what was dealt, only what the crypto party opens",
            "noise": "the clients (marginals: a share each, which the server cannot read) and server and crypto party "
            "(choices: a whole one each, 2 times the variance of central noise)",
        }


def _vectors(part: ClientDeal, columns: ColumnLayout) -> list[npt.NDArray[np.int64]]:
    """`compute: packed`: the one-hot columns of the attributes that this client holds."""
    codes, domain = part.holder.codes, part.holder.domain
    held = dict.fromkeys(name for name, _ in columns.columns)
    places = {name: codes[:, list(domain).index(name)] for name in held}
    if any((column < 0).any() for column in places.values()):
        raise ProtocolError("this client does not hold the attributes that federation.columns gives to it")
    return list(columns.vectors(places))
