"""Common part of every use of protocol 'fhe'.

It brings the crypto party's keys to clients, and forms sums of what they hide.

`fedsyn.aggregation.fhe` has the sums' rules, `fedsyn.stores.fhe` the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import ClientSum, ServerSum
from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError, RunError, refuse
from fedsyn.keys.certificates import is_signed
from fedsyn.randomness import Randomness
from fedsyn.stores.parties import connect
from fedsyn.stores.parties.boxes import of_sum, seal_box
from fedsyn.stores.parties.crypto import signed_keys
from fedsyn.stores.parties.driven import CryptoParty
from fedsyn.stores.parties.interface import Announcement, Begun, TotalOrder, sealed_for
from fedsyn.wire.envelope import Arrays, SumSpec
from fedsyn.wire.holder import Holder

_RUN = 32  # bytes
_NOT_ANNOUNCED = "the run was not announced to the crypto party"
_KEY = "the request does not bring its run and the crypto party's keys"


@dataclass(frozen=True)
class Keys:
    """The crypto party's keys of a run, as a client verified them.

    Attributes:
        agreed: what the run is (`fedsyn.stores.parties.interface.sealed_for`).
        public: of the ciphertexts of a store; empty where it sums.
        seal: to which pads are sealed.
    """

    agreed: bytes
    public: bytes
    seal: bytes


@dataclass(frozen=True)
class CryptoKey:
    """A client's way to the crypto party's keys, which the server carries.

    Attributes:
        config: of the client.
        domain: of its schema.
        cliques: that it deals; none where it sums.
    """

    config: RunConfig
    domain: Domain
    cliques: tuple[Clique, ...] = ()
    invited: ClassVar[int] = 4

    @property
    def clients(self) -> int:
        return self.config.federation.clients

    @property
    def is_real(self) -> bool:
        """Returns whether there is somebody to protect."""
        return self.config.runtime.engine == "deployment"

    def read(self, arrays: Arrays) -> Keys:
        """Reads the run's keys from a message.

        Raises ProtocolError unless the crypto party of the client's own configuration has signed them for this run. A
        simulation, which protects nobody, takes what the message brings.
        """
        ours = arrays[: self.invited]
        refuse(len(ours) < self.invited or any(array.dtype != np.uint8 or array.ndim != 1 for array in ours), _KEY)
        run, public, seal, signature = (array.tobytes() for array in ours)
        refuse(len(run) != _RUN, _KEY)
        keys = Keys(sealed_for(run, self.config, self.domain, self.cliques), public, seal)
        if self.is_real:
            self._check(keys, signature)
        return keys

    def _check(self, keys: Keys, signature: bytes) -> None:
        card = self.config.aggregation.crypto
        if card is None:
            raise ProtocolError("aggregation.crypto is missing: a real client takes no key from the server")
        if not is_signed(card.certificate, signature, signed_keys(keys.agreed, keys.public, keys.seal)):
            raise ProtocolError("the run's keys were not signed for it by the crypto party that this client knows")

    def sealed(self, keys: Keys, facts: bytes, holder: Holder) -> tuple[bytes, bytes]:
        """Returns a new pad's seed, and its box.

        The box is signed where the configuration pins this client's key.

        Raises:
            ProtocolError: this client does not know its own place, or not the key that is pinned for it.
        """
        roster, identity, partition = self.config.aggregation.roster, None, holder.partition
        if partition is None:
            raise ProtocolError("a client of protocol fhe needs a partition id of its own, which no server can change")
        if roster is not None:
            identity, _ = holder.identities()
            if self.is_real and roster.get(partition) != identity.public.hex():
                raise ProtocolError("the configuration names another key for this client in aggregation.roster")
        return seal_box(facts, keys.agreed, partition, keys.seal, identity)

    def pad(self, invitation: Arrays, part: ClientSum) -> tuple[bytes, bytes]:
        """Returns the pad's seed for a client's part of a sum.

        The box comes with it.
        """
        order = order_of(part.name, part.call.round, part.spec)
        return self.sealed(self.read(invitation), of_sum(order), part.holder)


def order_of(name: str, round: int, spec: SumSpec) -> TotalOrder:
    """Returns the order of a sum.

    Its clients seal their pads to it and the server sends it.
    """
    return TotalOrder(spec.number, name, round, spec.sigma, spec.sensitivity, spec.count, spec.length, spec.asked)


class CryptoRun:
    """The server's side of a run with a crypto party.

    It connects, announces, and keeps what the party answered.

    Args:
        config: of the run.
        domain: of the schema.
        randomness: the server's.
        cliques: that clients deal; none where they sum.
    """

    def __init__(
        self, config: RunConfig, domain: Domain, randomness: Randomness, cliques: tuple[Clique, ...] = ()
    ) -> None:
        self.config, self.domain, self.randomness, self.cliques = config, domain, randomness, cliques
        self._party: CryptoParty | None = None
        self._begun: Begun | None = None

    @property
    def party(self) -> CryptoParty:
        if self._party is None:
            raise RunError(_NOT_ANNOUNCED)
        return self._party

    @property
    def begun(self) -> Begun:
        if self._begun is None:
            raise RunError(_NOT_ANNOUNCED)
        return self._begun

    def announce(self, rho: float, clients: int) -> None:
        """Agrees on the run, once.

        `clients` is the number that have joined; `rho` is all that the run may release.
        """
        if self._begun is None:
            self._party = connect.connect_crypto(self.config, self.randomness)
            minimum, nonce = self.config.federation.minimum_cohort, secrets.token_bytes(16)
            announced = Announcement(self.config, self.domain, self.cliques, rho, minimum, nonce, clients)
            self._begun = self._party.begin(announced)

    @property
    def invitation(self) -> Arrays:
        """Returns what clients are sent along.

        These are the run id, the run's public keys, and their signature.
        """
        pieces = (self.begun.run, self.begun.keys.public, self.begun.seal, self.begun.signature)
        return [np.frombuffer(piece, np.uint8) for piece in pieces]

    def close(self) -> None:
        if self._party is not None:
            self._party.end()

    def traffic(self) -> list[dict[str, float]]:
        """Returns what the crypto party has spent."""
        return [] if self._party is None else [asdict(cost) for cost in self._party.costs]


class SumRun(CryptoRun):
    """The server's side of sums over a crypto party.

    It has contributors admitted, and totals opened.
    """

    def admitted(self, whole: ServerSum, boxes: Mapping[int, bytes]) -> dict[int, str]:
        """Names contributors; why each refused one was refused."""
        return self.party.admit(order_of(whole.name, whole.record.round, whole.spec), boxes) if boxes else {}

    def opened(self, whole: ServerSum, total: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the crypto party's answer for the admitted clients' total, (L,)."""
        answer = self.party.total(order_of(whole.name, whole.record.round, whole.spec), total)
        if answer.shape != (whole.spec.length,):
            raise RunError("the crypto party has opened something else than it was asked for")
        return answer

    @property
    def adds(self) -> bool:
        """Returns whether the crypto party adds the whole noise once more."""
        return self.begun.adds


def pack(pieces: Sequence[bytes]) -> Arrays:
    """Byte strings as two arrays: their lengths, and all of them."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return [lengths, np.frombuffer(b"".join(pieces), np.uint8)]


def unpack(arrays: Arrays, count: int) -> list[bytes]:
    """The inverse. Raises ProtocolError if there are not `count` of them."""
    fits = len(arrays) == 2 and arrays[0].shape == (count,) and arrays[0].dtype == np.int64 and arrays[1].ndim == 1
    whole = len(arrays[1]) if fits else 0
    if not fits or arrays[1].dtype != np.uint8 or (arrays[0] < 0).any() or (arrays[0] > whole).any():
        raise ProtocolError(f"what it sent is not {count} ciphertexts")
    ends = np.cumsum(arrays[0])
    refuse(int(ends[-1]) != whole, f"what it sent is not {count} ciphertexts")
    joined = arrays[1].tobytes()
    return [joined[end - length : end] for end, length in zip(ends.tolist(), arrays[0].tolist(), strict=True)]
