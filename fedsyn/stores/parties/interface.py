"""Messages from a server to the computing parties or crypto party.

They include the first facts that a crypto party is told.

A run has one `Announcement`, then deals, then orders, each numbered. Everything here is public. The parties compare
what each of them was told before they compute anything, so a server cannot tell them different things.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.seal import PublicKeys
from fedsyn.domain import Clique, Domain
from fedsyn.selection.terms import ChoiceTerms
from fedsyn.stores.parties.messages import STORE_VERSION, pack


@dataclass(frozen=True)
class Announcement:
    """A run, as the server announces it.

    It begins only if the parties agree on it.

    Attributes:
        config: the whole configuration.
        domain: of the schema.
        cliques: whose marginals each client deals, in this order (`Contract.stored`).
        rho: zCDP: all that the store may release of one row.
        minimum: dealt clients below which nothing is chosen or opened.
        nonce: 16 bytes of the server.
        clients: that have joined.
    """

    config: RunConfig
    domain: Domain
    cliques: tuple[Clique, ...]
    rho: float
    minimum: int
    nonce: bytes
    clients: int

    @property
    def length(self) -> int:
        """L, entries that one client deals."""
        return sum(self.domain.size(clique) for clique in self.cliques)


def run_id(announcement: Announcement, nonces: Sequence[bytes]) -> bytes:
    """Returns 32 bytes that bind a run.

    They cover its announcement and a nonce of each party, so no run can be played twice.
    """
    digest = hashlib.sha256(pack(Announcement, announcement))
    for nonce in nonces:
        digest.update(nonce)
    return digest.digest()


def sealed_for(run: bytes, config: RunConfig, domain: Domain, cliques: Sequence[Clique]) -> bytes:
    """Returns the 32 bytes that a client seals its deal to.

    They replace the bare run id, which tells it nothing.

    The client computes it from the configuration, schema and cliques that IT knows, a party from those that were
    announced to it. So a server that shows the two sides different worlds (another domain of the same length, another
    score, another threat model, other sizes) carries deals that no party can open.
    """
    facts = [STORE_VERSION, config.sha256, domain.attributes, domain.shape, [list(clique) for clique in cliques]]
    return hashlib.sha256(b"fedsyn store: agreed" + run + json.dumps(facts).encode()).digest()


@dataclass(frozen=True)
class PartyOrder:
    """Base of every order.

    Attributes:
        number: of the order in its run, from 0; none is answered twice.
        name: of the mechanism's request, for the ledgers.
        round: t.
    """

    number: int
    name: str
    round: int


@dataclass(frozen=True)
class ChooseOrder(PartyOrder):
    """One index by the exponential mechanism; `terms.cliques` lie inside stored ones."""

    epsilon: float
    terms: ChoiceTerms


@dataclass(frozen=True)
class OpenOrder(PartyOrder):
    """Some marginals, with noise of at least `sigma`.

    Each lies inside a stored one.
    """

    sigma: float
    cliques: tuple[Clique, ...]


@dataclass(frozen=True)
class TotalOrder(PartyOrder):
    """The total of a sum, as the crypto party opens it.

    Each contributor has sealed its pad to the very same facts.

    Attributes:
        sigma: of the sum's noise.
        sensitivity: L2, of one summed array.
        count: the most arrays that one row touches.
        length: L, entries of the vector.
        asked: clients.
    """

    sigma: float
    sensitivity: float
    count: int
    length: int
    asked: int


@dataclass(frozen=True)
class SealedDeal:
    """One client's deal to the parties.

    It goes through the server, which can read none of it.

    Attributes:
        public: 32 bytes, the client's X25519 key of this deal alone.
        boxes: for each party, sealed to it.
        correction: the dense slot, sealed for the two parties whose boxes have its key.
    """

    public: bytes
    boxes: tuple[bytes, bytes, bytes]
    correction: bytes

    def to_parts(self) -> tuple[bytes, ...]:
        """Returns the five byte strings that travel."""
        return (self.public, *self.boxes, self.correction)


@dataclass
class PartyCost:
    """One party's cost.

    It counts bytes to the other two, rounds of messages between them, and processor seconds.
    """

    bytes_sent: int = 0
    rounds: int = 0
    cpu: float = 0.0


@dataclass(frozen=True)
class Begun:
    """The crypto party's answer to an announcement.

    Attributes:
        run: id, 32 bytes.
        keys: of the run's ciphertexts; empty where it forms sums.
        seal: X25519 key of the run, to which clients seal their pads.
        signature: over all of it, by the key of its certificate; empty in a simulation.
        adds: whether it adds a whole noise of its own to totals.
    """

    run: bytes
    keys: PublicKeys
    seal: bytes
    signature: bytes
    adds: bool = False
