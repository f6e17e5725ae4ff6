"""FLAIM's variants with filter and combine on or off (Figure 2), and with totals as Algorithm 1 prints them.

`mechanism: {name: experiments.variants.flaim:NaiveFlaimVariant, filter_and_combine: true}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsyn.plugins.clients.flaim import (
    AugFlaimClient,
    AugFlaimContract,
    AugFlaimOracleClient,
    AugFlaimOracleContract,
    FlaimClient,
    FlaimContract,
    FlaimOptions,
)
from fedsyn.plugins.strategies.flaim import AugFlaim, AugFlaimOracle, Flaim, NaiveFlaim


class FlaimVariantOptions(FlaimOptions):
    """Options of the FLAIM family, and what its choices may be replaced by.

    Attributes:
        filter_and_combine: measure all one-way marginals in every round and leave them out of the choice; null: as the
            variant does (AugFLAIM (Private) does, the others do not).
        totals: what a sum of marginals is divided by before it meets sums over other clients: 'sizes', the contributing
            clients' public or released row counts; 'marginal', its own noisy total, as line 15 prints it.
    """

    filter_and_combine: bool | None = None
    totals: Literal["sizes", "marginal"] = "sizes"


class Combining(FlaimContract):
    """Filter and combine as the option says."""

    Options = FlaimVariantOptions

    @property
    def one_way_every_round(self) -> bool:  # type: ignore[override]
        chosen = self.options.filter_and_combine
        return super().one_way_every_round if chosen is None else bool(chosen)


class NaiveFlaimVariantContract(Combining):
    """NaiveFLAIM's, with the options of the variant."""


class AugFlaimVariantContract(Combining, AugFlaimContract):
    """AugFLAIM's, with the options of the variant."""


class AugFlaimOracleVariantContract(Combining, AugFlaimOracleContract):
    """The oracle's, with the options of the variant. NOT PRIVATE."""


class NaiveFlaimVariantClient(FlaimClient):
    """Answers as NaiveFLAIM's client."""

    Contract = NaiveFlaimVariantContract


class AugFlaimVariantClient(AugFlaimClient):
    """Answers as AugFLAIM's client."""

    Contract = AugFlaimVariantContract


class AugFlaimOracleVariantClient(AugFlaimOracleClient):
    """Answers as the oracle's client."""

    Contract = AugFlaimOracleVariantContract


class Dividing(Flaim):
    """Sums are divided by what the option says."""

    def records_behind(self, behind: Iterable[int], values: npt.NDArray[np.float64]) -> float:
        """Returns N_q; as printed it may be negative, and a sum of noise alone says nothing."""
        return super().records_behind(behind, values) if self.options.totals == "sizes" else float(np.sum(values))


class NaiveFlaimVariant(Dividing, NaiveFlaim):
    """NaiveFLAIM, with what its options replace."""

    Client = NaiveFlaimVariantClient


class AugFlaimVariant(Dividing, AugFlaim):
    """AugFLAIM (Private), with what its options replace."""

    Client = AugFlaimVariantClient


class AugFlaimOracleVariant(Dividing, AugFlaimOracle):
    """AugFLAIM (Oracle), with what its options replace."""

    Client = AugFlaimOracleVariantClient
