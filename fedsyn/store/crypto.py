"""What every use of protocol 'fhe' shares: the crypto party's key on its way to clients, and sums of their ciphertexts.

`fedsyn.aggregation.fhe` has the sums' rules, `fedsyn.store.fhe` the store.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError, RunError
from fedsyn.randomness import Randomness
from fedsyn.wire.envelope import Arrays

if TYPE_CHECKING:
    from fedsyn.aggregation import ServerSum
    from fedsyn.fhe.parameters import Parameters
    from fedsyn.parties.crypto import Begun, CryptoParty

_RUN = 32  # bytes
_KEY = "the request does not bring its run and the crypto party's key"


@dataclass(frozen=True)
class CryptoKey:
    """A client's way to the crypto party's key, which the server carries.

    Attributes:
        config: of the client.
        domain: of its schema.
        cliques: that it deals; none where it sums.
    """

    config: RunConfig
    domain: Domain
    cliques: tuple[Clique, ...] = ()
    invited: ClassVar[int] = 3

    @property
    def clients(self) -> int:
        return self.config.federation.clients

    def read(self, arrays: Arrays) -> bytes:
        """The run's public key; ProtocolError unless the crypto party of the client's own configuration has signed it
        for this run. A simulation, which protects nobody, takes what the message brings."""
        ours = arrays[: self.invited]
        if len(ours) < self.invited or any(array.dtype != np.uint8 or array.ndim != 1 for array in ours):
            raise ProtocolError(_KEY)
        run, public, signature = (array.tobytes() for array in ours)
        if len(run) != _RUN:
            raise ProtocolError(_KEY)
        if self.config.runtime.engine == "deployment":
            self._check(run, public, signature)
        return public

    def _check(self, run: bytes, public: bytes, signature: bytes) -> None:
        from fedsyn.parties.crypto import signed_keys
        from fedsyn.parties.interface import sealed_for
        from fedsyn.parties.keys import is_signed

        card = self.config.aggregation.crypto
        if card is None:
            raise ProtocolError("aggregation.crypto is missing: a real client takes no key from the server")
        agreed = sealed_for(run, self.config, self.domain, self.cliques)
        if not is_signed(card.certificate, signature, signed_keys(agreed, public)):
            raise ProtocolError("the run's key was not signed for this run by the crypto party that this client knows")

    def encrypted(self, invitation: Arrays, vector: Callable[[], npt.NDArray[np.int64]]) -> Arrays:
        """One client's part of a sum."""
        from fedsyn.fhe.plan import parameters_of
        from fedsyn.fhe.seal import encryptor_of

        encryptor = encryptor_of(parameters_of(self.config, self.domain, None), self.read(invitation))
        return pack(encryptor.to_bytes(vector()))


class CryptoRun:
    """The server's side of a run with a crypto party: connects, announces, and keeps what it answered.

    Args:
        config: of the run.
        domain: of the schema.
        cliques: that clients deal; none where they sum.
        minimum: clients without which nothing comes out.
        connect: gives the crypto party.
    """

    def __init__(
        self,
        config: RunConfig,
        domain: Domain,
        cliques: tuple[Clique, ...],
        minimum: int,
        connect: Callable[[], CryptoParty],
    ) -> None:
        self.config, self.domain, self.cliques, self.minimum = config, domain, cliques, minimum
        self._connect, self._begun = connect, None
        self._party: CryptoParty | None = None

    _begun: Begun | None

    @property
    def party(self) -> CryptoParty:
        if self._party is None:
            raise RunError("the run was not announced to the crypto party")
        return self._party

    @property
    def begun(self) -> Begun:
        if self._begun is None:
            raise RunError("the run was not announced to the crypto party")
        return self._begun

    def announce(self, rho: float) -> None:
        """Agrees on the run, once; `rho` is all that it may release."""
        from fedsyn.parties.interface import Announcement

        if self._begun is None:
            self._party = self._connect()
            nonce = secrets.token_bytes(16)
            told = Announcement(self.config, self.domain, self.cliques, rho, max(1, self.minimum), nonce)
            self._begun = self._party.begin(told)

    @property
    def invitation(self) -> Arrays:
        """What clients are sent along: run id, the run's public key, its signature."""
        pieces = (self.begun.run, self.begun.keys.public, self.begun.signature)
        return [np.frombuffer(piece, np.uint8) for piece in pieces]

    def close(self) -> None:
        if self._party is not None:
            self._party.end()

    def traffic(self) -> list[dict[str, float]]:
        """What the crypto party has spent."""
        from dataclasses import asdict

        return [] if self._party is None else [asdict(self._party.costs)]


class SumRun(CryptoRun):
    """The same for sums: adds up ciphertexts, and has totals opened."""

    @cached_property
    def _parameters(self) -> Parameters:
        from fedsyn.fhe.plan import parameters_of

        return parameters_of(self.config, self.domain, None)

    @cached_property
    def _computation(self) -> Any:
        from fedsyn.fhe.plan import computation_of

        return computation_of(self._parameters, self.begun.keys)

    def empty(self) -> Any:
        return None

    def added(self, total: Any, arrays: Arrays, length: int) -> Any:
        """The total with one client's vector of `length` entries; ProtocolError if it is none."""
        from fedsyn.fhe.seal import added

        pieces = unpack(arrays, -(-length // self._parameters.slots))
        return added(self._computation.ring, total, self._computation.read(pieces))

    def opened(self, whole: ServerSum, total: Any, contributors: int) -> npt.NDArray[np.int64]:
        """(L,) what the crypto party decrypts."""
        from fedsyn.parties.interface import TotalOrder

        spec = whole.spec
        facts = (spec.sigma, spec.sensitivity, spec.count, spec.length, spec.asked, contributors)
        answer = self.party.total(
            TotalOrder(spec.number, whole.name, whole.round, *facts), self._computation.drowned(total)
        )
        if answer.shape != (spec.length,):
            raise RunError("the crypto party has opened something else than it was asked for")
        return answer


def sums_with(config: RunConfig, domain: Domain, randomness: Randomness) -> SumRun:
    """The crypto party of a run that forms sums; nothing is connected yet."""
    from fedsyn.parties.connect import connect_crypto

    return SumRun(config, domain, (), config.federation.minimum_cohort, lambda: connect_crypto(config, randomness))


def pack(pieces: Sequence[bytes]) -> Arrays:
    """Byte strings as two arrays: their lengths, and all of them."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return [lengths, np.frombuffer(b"".join(pieces), np.uint8)]


def unpack(arrays: Arrays, count: int) -> list[bytes]:
    """The inverse; ProtocolError if there are not `count` of them."""
    fits = len(arrays) == 2 and arrays[0].shape == (count,) and arrays[0].dtype == np.int64 and arrays[1].ndim == 1
    whole = len(arrays[1]) if fits else 0
    if not fits or arrays[1].dtype != np.uint8 or (arrays[0] < 0).any() or (arrays[0] > whole).any():
        raise ProtocolError(f"what it sent is not {count} ciphertexts")
    ends = np.cumsum(arrays[0])
    if int(ends[-1]) != whole:
        raise ProtocolError(f"what it sent is not {count} ciphertexts")
    joined = arrays[1].tobytes()
    return [joined[end - length : end] for end, length in zip(ends.tolist(), arrays[0].tolist(), strict=True)]
