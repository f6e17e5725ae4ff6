"""Plain aggregation: every client's vector reaches the server, which sums and adds the noise.

The server must be trusted with each client's exact counts (`noise: server`), or with nothing (`noise: local`, where
every client perturbs its own vector with the full noise and the sum of c clients carries sqrt(c) times as much).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.aggregation.base import Aggregation, Contribution, Exchange, SumSpec
from fedsyn.errors import ProtocolError
from fedsyn.privacy import GAUSSIAN, Ledger, Release
from fedsyn.protocol.messages import Arrays, Envelope, Sum, Summed, decode_sparse, encode_sparse, split_vector
from fedsyn.randomness import RandomSource

if TYPE_CHECKING:
    from fedsyn.protocol.client import Call


class PlainAggregation(Aggregation):
    """`aggregation.protocol: plain`."""

    name = "plain"

    def contribute(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> Arrays:
        if contribution.count > spec.count:
            raise ProtocolError(
                f"one row would touch {contribution.count} arrays of the sum, the server accounts for {spec.count}"
            )
        if contribution.sensitivity > spec.sensitivity:
            raise ProtocolError("the server accounts for a smaller sensitivity than that of the summed arrays")
        if self.node.noise == "server":
            if contribution.count:
                ledger.promise(
                    Release(
                        envelope.request,
                        envelope.round,
                        GAUSSIAN,
                        spec.sensitivity,
                        sigma=spec.sigma,
                        count=contribution.count,
                        noise_by="server",
                    )
                )
            return encode_sparse(contribution.cells, contribution.values)
        if not contribution.active:
            return [np.zeros(0, np.int64)]
        parts = split_vector(contribution.dense(), spec.shapes)
        noisy = ledger.gaussian(
            [parts[i].ravel() for i in contribution.active],
            sigma=spec.sigma,
            sensitivity=spec.sensitivity,
            name=envelope.request,
            round=envelope.round,
            source=call.source,
        )
        return [np.asarray(contribution.active, np.int64), np.concatenate(noisy)]

    def run(
        self,
        request: Sum,
        *,
        exchange: Exchange,
        drop: Callable[[int, str], None],
        minimum: int,
        ledger: Ledger,
        source: RandomSource,
        round: int,
    ) -> Summed:
        spec = SumSpec.of(request)
        params = {**request.params, "sum": spec.to_text()}
        replies = exchange(request.cohort, request.name, "sum", params, list(request.arrays))
        local = self.node.noise == "local"
        total = np.zeros(spec.length, np.float64 if local else np.int64)
        contributors = []
        noises = np.zeros(len(spec.shapes))  # noisy vectors in each array of the sum (local noise)
        for partition in sorted(replies):  # partition order: a float sum must not depend on the order of arrival
            try:
                if local:
                    vector, active = self._noisy_vector(replies[partition].arrays, spec)
                    total += vector
                    noises[active] += 1
                else:
                    cells, values = decode_sparse(replies[partition].arrays, spec.length)
                    total[cells] += values
            except ProtocolError as error:
                drop(partition, str(error))
            else:
                contributors.append(partition)
        if len(contributors) < max(1, minimum):
            return Summed([], (), ())
        if local:
            ledger.promise(
                Release(
                    request.name,
                    round,
                    GAUSSIAN,
                    request.sensitivity,
                    sigma=request.sigma,
                    count=request.count,
                    noise_by="each client",
                    argument=request.argument,
                )
            )
            sigmas = tuple(float(request.sigma * np.sqrt(max(1.0, n))) for n in noises)
            return Summed(split_vector(total, request.shapes), sigmas, tuple(contributors))
        noisy = ledger.gaussian(
            split_vector(total, request.shapes),
            sigma=request.sigma,
            sensitivity=request.sensitivity,
            count=request.count,
            name=request.name,
            round=round,
            source=source,
            argument=request.argument,
        )
        return Summed(noisy, (request.sigma,) * len(request.shapes), tuple(contributors))

    @staticmethod
    def _noisy_vector(arrays: Arrays, spec: SumSpec) -> tuple[np.ndarray, np.ndarray]:
        """A client's locally perturbed vector from its active arrays; ProtocolError if malformed."""
        vector = np.zeros(spec.length)
        active = arrays[0] if arrays else np.zeros(0)
        if active.ndim != 1 or active.dtype.kind not in "ui" or np.any(active >= len(spec.shapes)) or np.any(active < 0):
            raise ProtocolError("a noisy vector names arrays that are not part of the sum")
        if len(np.unique(active)) != len(active):
            raise ProtocolError("a noisy vector repeats an array")
        if not len(active):
            return vector, np.zeros(0, np.int64)
        sizes = [int(np.prod(shape)) for shape in spec.shapes]
        offsets = np.cumsum([0, *sizes])
        values = arrays[1] if len(arrays) == 2 else np.zeros(0)
        if values.shape != (sum(sizes[i] for i in active),) or values.dtype.kind != "f" or not np.all(np.isfinite(values)):
            raise ProtocolError("a noisy vector has the wrong length or holds values that are not finite")
        position = 0
        for i in active:
            vector[offsets[i] : offsets[i + 1]] = values[position : position + sizes[i]]
            position += sizes[i]
        return vector, active

    def who_sees_what(self) -> dict[str, str]:
        if self.node.noise == "local":
            return {
                "trust": "nobody: every client perturbs its own vector before it leaves",
                "server": "every client's vector with the full noise on it",
                "noise": "each client, on its own vector",
            }
        return {
            "trust": "the server, with every exact vector that a client contributes to a sum",
            "server": "every contributing client's exact vector of every sum (protocol 'plain' hides nothing from it)",
            "noise": "the server, on the sum",
        }
