"""Noise that the clients add themselves, in integers: the common part of every protocol that opens only a total.

A client multiplies its exact integers by the plan's resolution and adds a discrete Gaussian share
(`fedsyn.privacy.distributed` has the argument). Whoever adds the vectors up learns a total whose noise no single party
knows; how the adding is done is the protocol's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import Contribution, Limits, SumSpec, check_contribution
from fedsyn.errors import ProtocolError
from fedsyn.privacy import Ledger, Release
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.wire.messages import Envelope, Sum, Summed, split_vector

if TYPE_CHECKING:
    from fedsyn.wire.holder import Call


def noise_plan(noise: str, spec: SumSpec, limits: Limits) -> DistributedNoise:
    """The shares of one sum, the same at every party; with `local` each client's share is the whole noise.

    Raises:
        ConfigError: no honest client is left in the worst case.
        ProtocolError: the shares would be sized for more clients than are asked.
    """
    local = noise == "local"
    if not local and limits.fewest > limits.asked:
        raise ProtocolError(
            f"{limits.asked} clients cannot make the noise of a sum that {limits.fewest} have to contribute to"
        )
    return DistributedNoise.plan(
        spec.sigma,
        sensitivity=spec.sensitivity,
        count=spec.count,
        length=spec.length,
        asked=limits.asked,
        fewest=1 if local else limits.fewest,
        corrupted=0 if local else limits.corrupted,
    )


def noisy_vector(
    contribution: Contribution, spec: SumSpec, plan: DistributedNoise, ledger: Ledger, call: Call, envelope: Envelope
) -> npt.NDArray[np.int64]:
    """A client's vector with its share of the noise on every entry, in units of 1/resolution; charges its ledger."""
    check_contribution(contribution, spec)
    return ledger.distributed(
        contribution.dense(),
        noise=plan,
        sigma=spec.sigma,
        sensitivity=spec.sensitivity,
        count=contribution.count,
        name=envelope.request,
        round=envelope.round,
        source=call.source,
    )


def promised(request: Sum, plan: DistributedNoise, round: int) -> Release:
    """The server's entry for a total that the clients' shares protect."""
    return plan.release(request.name, round, argument=request.argument)


def opened(total: npt.NDArray[np.int64], request: Sum, plan: DistributedNoise, contributors: tuple[int, ...]) -> Summed:
    """The answer that a total stands for: all contributors' shares are in it, so it carries at least sigma."""
    sigma = plan.sigma_of(len(contributors))
    return Summed(split_vector(total / plan.resolution, request.shapes), (sigma,) * len(request.shapes), contributors)
