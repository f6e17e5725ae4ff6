"""Sums of ciphertexts: `aggregation.protocol: fhe` for mechanisms that sum.

Each client encrypts its vector, with its share of the noise on it, under the crypto party's key, sends ONE message, and
may leave. The server adds ciphertexts of whoever has answered; the crypto party decrypts the total, if at least the
fewest contributors are in it that the noise was sized for. There are no stages, no keys between clients and nothing to
recover when one of them drops out. In exchange two roles must not collude, the server and the crypto party: one has
every client's ciphertext, the other one the key (docs/fhe.md compares this with `secagg`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedsyn.aggregation.base import Aggregation, ClientSum, ServerSum
from fedsyn.aggregation.shares import noise_of, noisy_vector, opened, promised
from fedsyn.errors import ConfigError, ProtocolError
from fedsyn.privacy import DistributedNoise
from fedsyn.wire.envelope import Arrays, SumSpec, check_message
from fedsyn.wire.requests import Summed

if TYPE_CHECKING:
    from fedsyn.fhe.parameters import Parameters

# Bytes of ciphertexts that are in memory at once (they are added up as they come), of a slot, of a message at least.
_AT_ONCE, _SLOT, _LEAST = 2**30, 64, 2**19


class FheAggregation(Aggregation):
    """`aggregation.protocol: fhe`."""

    name = "fhe"
    has_crypto_party = True

    def check(self, clients: int) -> None:
        from fedsyn.fhe.parameters import bfv_for_sums
        from fedsyn.fhe.seal import sealapi

        super().check(clients)
        node = self.node
        if node.noise != "distributed":
            raise ConfigError(
                f"aggregation: protocol: fhe cannot go with noise: {node.noise}: the crypto party would see an exact "
                "total; allowed: distributed"
            )
        if node.threat == "malicious":
            raise ConfigError(
                "aggregation: threat: malicious cannot go with protocol: fhe, whose server is trusted to add up what "
                "it should; allowed: secagg"
            )
        if node.fhe is not None and (node.fhe.scheme, node.fhe.compute, node.fhe.selector) != (
            "bfv",
            "client",
            "index",
        ):
            raise ConfigError("aggregation.fhe: sums are exact and have no choices; leave it out for this mechanism")
        limits = self.limits(clients)
        noise_of("distributed", _any_sum(clients), limits)  # refuses a federation without a certain honest share
        bfv_for_sums(clients)
        sealapi()

    def room(self, spec: SumSpec, rows: float) -> DistributedNoise:
        """A sum in the plain modulus, and the ciphertexts of one client in one message."""
        from fedsyn.fhe.parameters import PLAIN_BITS

        noise = noise_of("distributed", spec, self.limits(spec.asked))
        noise.check_ring(rows * spec.magnitude, PLAIN_BITS - 2)
        parameters = self._parameters(spec.asked)
        check_message(float(self._ciphertexts(spec.length, spec.asked) * parameters.bytes), "aggregation.protocol: fhe")
        return noise

    def room_of_all(self, clients: int, sums: Iterable[tuple[int, int]]) -> None:
        """The crypto party decrypts so many ciphertexts in a run, and no more."""
        from fedsyn.fhe.parameters import most_answers

        needed = sum(times * self._ciphertexts(length, clients) for length, times in sums)
        most = most_answers(self._parameters(clients))
        if needed > most:
            raise ConfigError(
                f"the run's sums could have {needed:,} ciphertexts, and a crypto party decrypts {most:,} in a run: "
                "lower mechanism.rounds or inference.max_cells"
            )

    def _ciphertexts(self, length: int, clients: int) -> int:
        return -(-length // self._parameters(clients).slots)

    @staticmethod
    def _parameters(clients: int) -> Parameters:
        from fedsyn.fhe.parameters import bfv_for_sums

        return bfv_for_sums(clients)

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, part: ClientSum) -> Arrays:
        """The encrypted vector; the last arrays of the message are what the crypto party's key needs."""
        assert part.key is not None
        count, arrays = part.key.invited, part.call.arrays
        if len(arrays) < count:
            raise ProtocolError("the request does not bring the crypto party's key")
        if part.spec.asked > part.key.clients:
            raise ProtocolError("the server sizes the noise for more clients than the run has")
        noise = noise_of("distributed", part.spec, self.limits(part.spec.asked))
        ours = arrays[:-count]
        return part.key.encrypted(arrays[-count:], lambda: noisy_vector(part.contribution(ours), part, noise))

    # The server's half ------------------------------------------------------------------------------------------------

    def run(self, whole: ServerSum) -> Summed:
        limits, crypto = self.limits(len(whole.cohort)), whole.crypto
        assert crypto is not None
        if limits.fewest > limits.asked:
            return Summed.nothing()
        noise = self.room(whole.spec, whole.rows)
        total, contributors = crypto.empty(), list[int]()
        at_once = max(1, _AT_ONCE // (_SLOT * whole.spec.length + _LEAST))
        for first in range(0, len(whole.cohort), at_once):
            asked = whole.cohort[first : first + at_once]
            arrays, missing = [*whole.arrays, *crypto.invitation], first - len(contributors)
            for partition, reply in whole.replies(asked, arrays, limits.fewest, missing):
                try:
                    total = crypto.added(total, reply.arrays, whole.spec.length)
                except ProtocolError as error:
                    whole.drop(partition, str(error))
                else:
                    contributors.append(partition)
        if len(contributors) < limits.fewest:
            return Summed.nothing()
        whole.ledger.promise(promised(whole, noise))
        return opened(crypto.opened(whole, total, len(contributors)), whole, noise, tuple(contributors))

    def who_sees_what(self) -> dict[str, str]:
        return {
            "trust": "server and crypto party to follow the protocol, and not to collude: the server has every "
            "client's ciphertext, the crypto party the key; either may collude with no more than the share "
            "aggregation.corrupted of a sum's clients (one at least, unless that is 0)",
            "server": "ciphertexts, which it cannot read, and every total with the clients' noise on it (which the "
            "crypto party sees too)",
            "noise": "the contributing clients, a share each, sized for the fewest honest ones",
        }


def _any_sum(clients: int) -> SumSpec:
    return SumSpec(((1,),), 1.0, 1.0, 1, asked=clients)
