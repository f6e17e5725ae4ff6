"""Sums of ciphertexts: `aggregation.protocol: fhe` for mechanisms that sum.

Each client hides its vector, with its share of the noise on it, under a pad modulo 2^64, seals the pad's seed to the
crypto party, sends ONE message, and may leave. The server adds up the hidden vectors of whoever has answered. The
crypto party, which has no client's vector, takes off the pads of the contributors that the server names, and answers if
they are at least the fewest that the noise was sized for. There are no stages, no keys between clients and nothing to
recover when one of them drops out. In exchange two roles must not collude, the server and the crypto party: one has
every hidden vector, the other one its pad (docs/fhe.md compares this with `secagg`).

Additions alone need no more: a sum of such ciphertexts is one under the sum of their keys, and opens for exactly those
keys. `fedsyn.stores.parties.boxes` proves that a server that deviates has nothing else from it; a lattice ciphertext in
its place would bind nobody, and be sixty times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import (
    Aggregation,
    Answering,
    ClientSum,
    Contributors,
    Forming,
    ServerSum,
    noise_of,
    noisy_vector,
    opened,
    promised,
)
from fedsyn.capabilities import FHE
from fedsyn.crypto.primitives import apply_masks
from fedsyn.errors import ConfigError, ProtocolError, refuse
from fedsyn.privacy import DistributedNoise
from fedsyn.wire.envelope import Reply, SumSpec, check_message
from fedsyn.wire.requests import Summed

_AT_ONCE, _LEAST = 2**30, 2**10  # bytes of vectors in memory at once (they are added up as they come), of one at least
_BOX = 256  # bytes, at most


class FheAggregation(Aggregation):
    """`aggregation.protocol: fhe`."""

    capabilities = FHE

    def check(self, clients: int) -> None:
        super().check(clients)
        node = self.node
        if node.fhe is not None and not node.fhe.is_bound:
            raise ConfigError("aggregation.fhe: sums are exact and have no choices; leave it out for this mechanism")
        noise_of("distributed", _any_sum(clients), self.limits(clients))  # refuses without a certain honest share

    def room(self, spec: SumSpec, rows: float) -> DistributedNoise:
        """Checks a sum modulo 2^64, and one client's vector in one message.

        The crypto party may add the noise once more, which has as much variance as the shares of H clients.
        """
        noise = noise_of("distributed", spec, self.limits(spec.asked))
        replace(noise, asked=noise.asked + noise.honest).check_ring(rows * spec.magnitude)
        check_message(8.0 * spec.length, "aggregation.protocol: fhe")
        return noise

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, part: ClientSum) -> Answering:
        """Returns the hidden vector and its box.

        The last arrays of the message bring the crypto party's keys.
        """
        assert part.key is not None
        count, arrays = part.key.invited, part.call.arrays
        refuse(len(arrays) < count, "the request does not bring the crypto party's keys")
        refuse(part.spec.asked > part.key.clients, "the server sizes the noise for more clients than the run has")
        noise = noise_of("distributed", part.spec, self.limits(part.spec.asked))
        seed, box = part.key.pad(arrays[-count:], part)
        contribution = yield arrays[:-count]
        padded = noisy_vector(contribution, part, noise).view(np.uint64)
        apply_masks(padded, [seed], [])
        return [padded, np.frombuffer(box, np.uint8)]

    # The server's half ------------------------------------------------------------------------------------------------

    def form(self, whole: ServerSum) -> Forming:
        limits, crypto = self.limits(len(whole.asked.cohort)), whole.crypto
        assert crypto is not None
        if limits.fewest > limits.asked:
            return Summed.nothing()
        noise = self.room(whole.spec, whole.rows)
        total, contributors = np.zeros(whole.spec.length, np.uint64), list[int]()
        at_once = max(1, _AT_ONCE // (8 * whole.spec.length + _LEAST))
        for first in range(0, len(whole.asked.cohort), at_once):
            cohort, missing = whole.asked.cohort[first : first + at_once], first - len(contributors)
            arrays = [*whole.asked.arrays, *crypto.invitation]
            replies = yield whole.message(cohort, arrays, limits.fewest, missing)
            contributors += _added(whole, crypto, replies, total)
        if len(contributors) < limits.fewest:
            return Summed.nothing()
        whole.ledger.promise(promised(whole, noise))
        summed = opened(crypto.opened(whole, total), whole.spec.shapes, noise, contributors)
        if not crypto.adds:
            return summed
        added_sigma = noise.whole().sigma_of(1)
        return replace(summed, sigmas=tuple(math.hypot(sigma, added_sigma) for sigma in summed.sigmas))

    def who_sees_what(self) -> dict[str, str]:
        return {
            "trust": "server and crypto party not to collude: the server has every client's hidden vector, the crypto "
            "party its pad; either may collude with no more than the share aggregation.corrupted of a sum's clients "
            "(one at least, unless that is 0). A server that deviates from the protocol learns no more than one that "
            "follows it",
            "server": "ciphertexts, which it cannot read, and every total with its noise on it (the crypto party sees "
            "totals too, with the clients' noise)",
            "noise": "the contributing clients, a share each, sized for the fewest honest ones; in a deployment whose "
            "crypto party has not pinned the clients' keys, the crypto party once more, the whole",
        }


def _added(
    whole: ServerSum, crypto: Contributors, replies: Iterable[Reply], total: npt.NDArray[np.uint64]
) -> list[int]:
    """Adds padded vectors to the total, in place; returns their owners.

    The crypto party takes off the pads later.
    """
    vectors, boxes = dict[int, npt.NDArray[np.uint64]](), dict[int, bytes]()
    for reply in replies:
        try:
            vectors[reply.partition], boxes[reply.partition] = _read(reply, whole.spec.length)
        except ProtocolError as error:
            whole.drop(reply.partition, str(error))
    refused = crypto.admitted(whole, boxes)
    for partition, vector in vectors.items():
        if partition in refused:
            whole.drop(partition, f"the crypto party: {refused[partition]}")
        else:
            total += vector
    return [partition for partition in vectors if partition not in refused]


def _read(reply: Reply, length: int) -> tuple[npt.NDArray[np.uint64], bytes]:
    """Reads one client's hidden vector and its box.

    It raises ProtocolError for anything else.
    """
    arrays = reply.arrays
    fits = len(arrays) == 2 and arrays[0].shape == (length,) and arrays[0].dtype == np.uint64
    if not fits or arrays[1].ndim != 1 or arrays[1].dtype != np.uint8 or len(arrays[1]) > _BOX:
        raise ProtocolError(f"what it sent is not a hidden vector of {length} numbers and its box")
    return arrays[0], arrays[1].tobytes()


def _any_sum(clients: int) -> SumSpec:
    return SumSpec(((1,),), 1.0, 1.0, 1, asked=clients)
