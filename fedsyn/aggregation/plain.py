"""Plain aggregation: every client's vector reaches the server, which adds them up.

The server must be trusted with each client's exact counts (`noise: server`), with vectors that carry only a share of
the noise (`noise: distributed`: the simulation of a secure sum without its cryptography, with the same result bit for
bit), or with nothing (`noise: local`, where every client perturbs its own vector with the full noise and the sum of c
clients carries sqrt(c) times as much).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Aggregation, Contribution, Exchange, SumSpec, check_contribution
from fedsyn.aggregation.shares import noise_plan, noisy_vector, opened, promised
from fedsyn.errors import ProtocolError
from fedsyn.privacy import GAUSSIAN, Ledger, Release
from fedsyn.randomness import RandomSource
from fedsyn.wire.messages import Arrays, Envelope, Sum, Summed, decode_sparse, encode_sparse, split_vector

if TYPE_CHECKING:
    from fedsyn.wire.holder import Call


class PlainAggregation(Aggregation):
    """`aggregation.protocol: plain`."""

    name = "plain"

    def contribute(
        self, contribution: Contribution, spec: SumSpec, ledger: Ledger, call: Call, envelope: Envelope
    ) -> Arrays:
        check_contribution(contribution, spec)
        if self.node.noise == "distributed":
            plan = noise_plan("distributed", spec, self.limits(spec.asked))
            return [noisy_vector(contribution, spec, plan, ledger, call, envelope)]
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
        ledger: Ledger,
        source: RandomSource,
        round: int,
        number: int = 0,
        rows: float = 2.0**40,
        config_hash: str = "",
        note: Callable[[str], None] = lambda text: None,
    ) -> Summed:
        spec = SumSpec.of(request, number)
        params = {**request.params, "sum": spec.to_text()}
        if self.node.noise == "distributed":
            return self._distributed(request, spec, params, exchange, drop, ledger, round, rows)
        local = self.node.noise == "local"
        if local and request.cohort:  # a noisy vector is released when it arrives, whether or not the sum is used
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
        replies = exchange(request.cohort, request.name, "sum", params, list(request.arrays))
        total: npt.NDArray[Any] = np.zeros(spec.length, np.float64 if local else np.int64)
        contributors = []
        noises = np.zeros(len(spec.shapes))  # noisy vectors in each array of the sum (local noise)
        for partition in sorted(replies):  # partition order: a float sum must not depend on the order of arrival
            try:
                if local:
                    vector, active = self._noisy_vector(replies[partition].arrays, spec)
                    total += vector
                    noises[active] += 1
                else:
                    cells, values = decode_sparse(replies[partition].arrays, spec.length, signed=spec.signed)
                    total[cells] += values
            except ProtocolError as error:
                drop(partition, str(error))
            else:
                contributors.append(partition)
        if len(contributors) < max(1, self.minimum):
            return Summed([], (), ())
        if local:
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

    def _distributed(
        self,
        request: Sum,
        spec: SumSpec,
        params: dict[str, Any],
        exchange: Exchange,
        drop: Callable[[int, str], None],
        ledger: Ledger,
        round: int,
        rows: float,
    ) -> Summed:
        """Adds up vectors that each carry a share of the noise."""
        limits = self.limits(len(request.cohort))
        if limits.fewest > limits.asked:
            return Summed([], (), ())
        plan = noise_plan("distributed", spec, limits)
        plan.check_ring(rows * spec.magnitude)
        replies = exchange(request.cohort, request.name, "sum", params, list(request.arrays))
        total = np.zeros(spec.length, np.int64)
        contributors = []
        for partition in sorted(replies):
            arrays = replies[partition].arrays
            if len(arrays) == 1 and arrays[0].dtype == np.int64 and arrays[0].shape == total.shape:
                total += arrays[0]  # wraps modulo 2^64, as a secure sum does
                contributors.append(partition)
            else:
                drop(partition, "a vector with a share of the noise has the wrong type or length")
        if len(contributors) < limits.fewest:
            return Summed([], (), ())
        ledger.promise(promised(request, plan, round))
        return opened(total, request, plan, tuple(contributors))

    @staticmethod
    def _noisy_vector(arrays: Arrays, spec: SumSpec) -> tuple[npt.NDArray[np.float64], list[int]]:
        """A client's locally perturbed vector, and the indices of the arrays in it; ProtocolError if malformed."""
        names = arrays[0] if arrays else np.zeros(0)
        if names.ndim != 1 or names.dtype.kind not in "ui":
            raise ProtocolError("a noisy vector does not say which arrays it holds")
        active = [int(i) for i in names]
        if len(set(active)) != len(active) or not all(0 <= i < len(spec.shapes) for i in active):
            raise ProtocolError("a noisy vector names arrays twice or arrays that are not part of the sum")
        parts = [np.zeros(shape) for shape in spec.shapes]
        if active:
            values = arrays[1] if len(arrays) == 2 else np.zeros(0)
            shapes = [spec.shapes[i] for i in active]
            expected = sum(math.prod(shape) for shape in shapes)
            if values.shape != (expected,) or values.dtype.kind != "f" or not np.all(np.isfinite(values)):
                raise ProtocolError("a noisy vector has the wrong length or holds values that are not finite")
            for i, part in zip(active, split_vector(values, shapes), strict=True):
                parts[i] = part
        return np.concatenate([part.ravel() for part in parts]), active

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
                "of a secure sum); beside it, no more than the share aggregation.corrupted of the clients",
                "server": "every contributing client's vector with a share of the noise on it",
                "noise": "the contributing clients, a share each",
            }
        return {
            "trust": "the server, with every exact vector that a client contributes to a sum",
            "server": "every contributing client's exact vector of every sum (protocol 'plain' hides nothing from it)",
            "noise": "the server, on the sum",
        }
