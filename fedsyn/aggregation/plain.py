"""Plain aggregation: every client's vector reaches the server, which adds them up.

The server must be trusted with each client's exact counts (`noise: server`), with vectors that carry only a share of
the noise (`noise: distributed`: the simulation of a secure sum without its cryptography, with the same result bit for
bit), or with nothing (`noise: local`, where every client perturbs its own vector with the full noise and the sum of c
clients carries sqrt(c) times as much).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import (
    Aggregation,
    Answering,
    ClientSum,
    Contribution,
    Forming,
    Message,
    ServerSum,
    noise_of,
    noisy_vector,
    opened,
    promised,
)
from fedsyn.capabilities import PLAIN
from fedsyn.errors import ConfigError, ProtocolError, refuse
from fedsyn.privacy import DistributedNoise
from fedsyn.privacy.against import Reads
from fedsyn.wire.envelope import Arrays, Reply, SumSpec, check_message
from fedsyn.wire.requests import Summed
from fedsyn.wire.sparse import LARGEST, decode_sparse, encode_sparse, split_vector


class PlainAggregation(Aggregation):
    """`aggregation.protocol: plain`."""

    capabilities = PLAIN

    @property
    def reads(self) -> Reads:
        return "exact numbers" if self.node.noise == "server" else "vectors"

    def room(self, spec: SumSpec, rows: float) -> DistributedNoise | None:
        """Checks the ring of shares, or the range of a reply.

        Shares must fit a ring of 64 bits; exact and locally perturbed values must fit a reply.
        """
        check_message(8.0 * spec.length, "aggregation.protocol: plain")
        if self.node.noise == "distributed":
            noise = noise_of("distributed", spec, self.limits(spec.asked))
            noise.check_ring(rows * spec.magnitude)
            return noise
        if rows * spec.magnitude >= LARGEST:
            raise ConfigError(
                f"a sum of values up to {rows * spec.magnitude:.3g} may leave the 2^{LARGEST.bit_length() - 1} that "
                "replies may hold: sum fewer rows or smaller marginals (workload.degree, data.bins, "
                "inference.max_cells)"
            )
        return None

    # The client's half ------------------------------------------------------------------------------------------------

    def answer(self, part: ClientSum) -> Answering:
        contribution = yield part.call.arrays
        if self.node.noise == "distributed":
            noise = noise_of("distributed", part.spec, self.limits(part.spec.asked))
            return [noisy_vector(contribution, part, noise)]
        if self.node.noise == "server":
            exact = part.promised_to_server(contribution)
            return encode_sparse(exact.cells, exact.values)
        return self._local(part.checked(contribution), part)

    @staticmethod
    def _local(contribution: Contribution, part: ClientSum) -> Arrays:
        """Returns the indices of a client's arrays, and the noisy arrays.

        The client adds the full noise itself. Without arrays there are no noisy ones.
        """
        if not contribution.active:
            return [np.zeros(0, np.int64)]
        parts = split_vector(contribution.dense(), part.spec.shapes)
        active = [parts[i].ravel() for i in contribution.active]
        noisy = part.ledger.gaussian(active, part.entry(contribution), part.call.source)
        return [np.asarray(contribution.active, np.int64), np.concatenate(noisy)]

    # The server's half ------------------------------------------------------------------------------------------------

    def form(self, whole: ServerSum) -> Forming:
        if self.node.noise == "distributed":
            return (yield from self._form_distributed(whole))
        self.room(whole.spec, whole.rows)
        if self.node.noise == "local":
            return (yield from self._form_local(whole))
        spec, total = whole.spec, np.zeros(whole.spec.length, np.int64)

        def add(arrays: Arrays) -> None:
            cells, values = decode_sparse(arrays, spec.length, signed=spec.signed)
            total[cells] += values

        contributors = yield from self._added(whole, self.minimum, add)
        if not contributors:
            return Summed.nothing()
        return whole.with_server_noise(total, contributors)

    @staticmethod
    def _added(
        whole: ServerSum, fewest: int, add: Callable[[Arrays], None]
    ) -> Generator[Message, Iterable[Reply], list[int]]:
        """Adds up replies in partition order; returns who contributed.

        A float sum depends on the order. The list is empty if too few contributed.

        Args:
            whole: the sum.
            fewest: contributors that it needs.
            add: adds one client's arrays; its ProtocolError drops the client.
        """
        contributors = []
        for reply in (yield whole.message(whole.asked.cohort, list(whole.asked.arrays), fewest)):
            try:
                add(reply.arrays)
            except ProtocolError as error:
                whole.drop(reply.partition, str(error))
            else:
                contributors.append(reply.partition)
        return contributors if len(contributors) >= fewest else []

    def _form_local(self, whole: ServerSum) -> Forming:
        """Adds up vectors that each carry the full noise."""
        spec = whole.spec
        if whole.asked.cohort:  # a noisy vector is released when it arrives, whether or not the sum is used
            whole.ledger.promise(replace(whole.entry(), noise_by="each client"))
        total = np.zeros(spec.length)
        noises = np.zeros(len(spec.shapes))  # noisy vectors in each array of the sum

        def add(arrays: Arrays) -> None:
            vector, active = _noisy_vector(arrays, spec)
            total[:] += vector
            noises[active] += 1

        contributors = yield from self._added(whole, self.minimum, add)
        if not contributors:
            return Summed.nothing()
        sigmas = tuple(float(spec.sigma * np.sqrt(max(1.0, n))) for n in noises)
        return Summed(split_vector(total, spec.shapes), sigmas, tuple(contributors))

    def _form_distributed(self, whole: ServerSum) -> Forming:
        """Adds up vectors that each carry a share of the noise."""
        limits = self.limits(len(whole.asked.cohort))
        if limits.fewest > limits.asked:
            return Summed.nothing()
        noise = self.room(whole.spec, whole.rows)
        assert noise is not None
        if noise.is_local:  # then a single vector carries the whole noise, and is released when it arrives
            whole.ledger.promise(promised(whole, noise))
        total = np.zeros(whole.spec.length, np.int64)

        def add(arrays: Arrays) -> None:
            if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].shape != total.shape:
                raise ProtocolError("a vector with a share of the noise has the wrong type or length")
            total[:] += arrays[0]  # wraps modulo 2^64, as a secure sum does

        contributors = yield from self._added(whole, limits.fewest, add)
        if not contributors:
            return Summed.nothing()
        if not noise.is_local:
            whole.ledger.promise(promised(whole, noise))
        return opened(total, whole.spec.shapes, noise, contributors)

    def who_sees_what(self) -> dict[str, str]:
        if self.node.noise == "local":
            return {
                "trust": "nobody: every client perturbs its own vector before it leaves",
                "server": "every client's vector with the full noise on it",
                "noise": "each client, on its own vector",
            }
        if self.node.noise == "distributed":
            return {
                "trust": "the server, with every client's vector, which carries but a share of the noise (a simulation "
                "of a secure sum); beside it, no more than the share aggregation.corrupted of the clients (one at "
                "least, unless that is 0)",
                "server": "every contributing client's vector with a share of the noise on it",
                "noise": "the contributing clients, a share each",
            }
        return {
            "trust": "the server, with every exact vector that a client contributes to a sum",
            "server": "every contributing client's exact vector of every sum (protocol 'plain' hides nothing from it)",
            "noise": "the server, on the sum",
        }


def _noisy_vector(arrays: Arrays, spec: SumSpec) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Reads a client's noisy vector, and its arrays' indices.

    It raises ProtocolError if they are malformed.

    Values stay below 2^53, as exact ones do: an honest vector and its noise are far from it, and no number of clients
    can then make a sum that is not finite.
    """
    names = arrays[0] if arrays else np.zeros(0)
    refuse(names.ndim != 1 or names.dtype.kind not in "ui", "a noisy vector does not say which arrays it holds")
    active = [int(i) for i in names]
    if len(set(active)) != len(active) or not all(0 <= i < len(spec.shapes) for i in active):
        raise ProtocolError("a noisy vector names arrays twice or arrays that are not part of the sum")
    parts: list[npt.NDArray[Any]] = [np.zeros(shape) for shape in spec.shapes]
    if active:
        values = arrays[1] if len(arrays) == 2 else np.zeros(0)
        shapes = [spec.shapes[i] for i in active]
        expected = sum(math.prod(shape) for shape in shapes)
        refuse(values.shape != (expected,) or values.dtype.kind != "f", "a noisy vector has the wrong length or type")
        if not np.all(np.abs(values) < LARGEST):  # also where a value is not a number
            raise ProtocolError(f"a noisy vector holds values that are not numbers below 2^{LARGEST.bit_length() - 1}")
        for i, part in zip(active, split_vector(values, shapes), strict=True):
            parts[i] = part
    return np.concatenate([np.zeros(0), *(part.ravel() for part in parts)]), active
