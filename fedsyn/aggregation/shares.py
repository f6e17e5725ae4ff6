"""Noise that the clients add themselves, in integers: the common part of every protocol that opens only a total.

A client multiplies its exact integers by the plan's resolution and adds a discrete Gaussian share
(`fedsyn.privacy.distributed` has the argument). Whoever adds the vectors up learns a total whose noise no single party
knows; how the adding is done is the protocol's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.base import ClientSum, Contribution, Limits, ServerSum
from fedsyn.errors import ProtocolError
from fedsyn.privacy import Release
from fedsyn.privacy.distributed import DistributedNoise
from fedsyn.wire.envelope import SumSpec
from fedsyn.wire.requests import Summed
from fedsyn.wire.sparse import split_vector


def noise_of(noise: str, spec: SumSpec, limits: Limits) -> DistributedNoise:
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
    return DistributedNoise.of(
        spec.sigma,
        sensitivity=spec.sensitivity,
        count=spec.count,
        length=spec.length,
        asked=limits.asked,
        fewest=1 if local else limits.fewest,
        corrupted=0 if local else limits.corrupted,
    )


def noisy_vector(contribution: Contribution, part: ClientSum, noise: DistributedNoise) -> npt.NDArray[np.int64]:
    """A client's vector with its share of the noise on every entry, in units of 1/resolution; charges its ledger."""
    vector, entry = part.checked(contribution).dense(), part.entry(contribution)
    return part.ledger.distributed(vector, noise, entry, part.call.source, takes_part=contribution.count > 0)


def promised(whole: ServerSum, noise: DistributedNoise) -> Release:
    """The server's entry for a total that the clients' shares protect."""
    layout = whole.layout
    entry = noise.release(whole.name, whole.record.round, argument=layout.argument, replaced=layout.replaced)
    return replace(entry, shares=noise.shares)


def opened(
    total: npt.NDArray[np.int64],
    shapes: Sequence[tuple[int, ...]],
    noise: DistributedNoise,
    contributors: Sequence[int],
    shares: int | None = None,
) -> Summed:
    """The answer that opened integers stand for: all shares are in them, so they carry at least sigma.

    Args:
        total: in units of 1/resolution.
        shapes: of its arrays.
        noise: of which it carries shares.
        contributors: whose counts are in it.
        shares: how many; those of the contributors when omitted.
    """
    sigma = noise.sigma_of(len(contributors) if shares is None else shares)
    return Summed(split_vector(total / noise.resolution, shapes), (sigma,) * len(shapes), tuple(contributors))
