"""FHAIM-L1: FHAIM with the polynomial of its appendix C in place of the absolute value, on the plain store.

A sweep names it as `mechanism: {name: experiments.fhaim_table3.polynomial:FhAimL1}`.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

import numpy as np

from fedsyn.capabilities import PLAIN
from fedsyn.config import RunConfig
from fedsyn.plugins.clients.aim import FhAimClient, FhAimContract, FhAimOptions
from fedsyn.plugins.strategies.aim import FhAim
from fedsyn.protocol.contract import require
from fedsyn.selection.terms import L1, NORMS, ChoiceTerms, Integers

#: Of |x| on [-1, 1], in powers of x²: FHAIM's appendix C, equation 4.
POLYNOMIAL = (0.0556, 3.6049, -11.9929, 24.4175, -23.6236, 8.5577)


class L1Polynomial(L1):
    """FHAIM's L1 over ciphertexts: sum of α p(|γ M - m| / α) with a polynomial of degree 10 for the absolute value.

    p(0) is 0.0556 and not 0, so with α = 10,000 an exact cell counts as one that is
    556 records off, and small differences drown. α grows with the table where the paper's would be left.
    """

    name = "l1_polynomial"
    #: Of p on [0, 1], at 1; p' has no larger value between its critical points
    #: (tests/unit/experiments/test_fhaim_experiments.py).
    steepest = 2.3314

    @staticmethod
    def alpha(rows: int) -> float:
        """The paper's range; no cell differs by more than `rows`."""
        return float(max(10_000, rows + 1))

    def moved(self, scale: int, rows: int) -> int:
        """γ max |p'|, and 1 for the rounding of the sum: α cancels."""
        return ceil(scale * self.steepest) + 1

    def largest(self, bits: int, cells: int) -> int:
        return 2 * cells << (bits - 1)  # p(x) <= 1.1 on [0, 1]; counts beyond `rows` are refused elsewhere

    def honest(self, scale: int, rows: int) -> int:
        return 4 * scale * rows

    def measure(self, differences: Integers, terms: ChoiceTerms) -> Integers:
        alpha = terms.scale * self.alpha(terms.rows)
        cells = alpha * np.polynomial.polynomial.polyval((differences / alpha) ** 2, POLYNOMIAL)
        return np.rint(np.add.reduceat(cells, terms.starts)).astype(np.int64)


NORMS[L1Polynomial.name] = L1Polynomial()


class FhAimL1Options(FhAimOptions):
    """Options of FHAIM with the polynomial for its only score."""

    score: Literal["l1_polynomial"] = "l1_polynomial"  # type: ignore[assignment]


class FhAimL1Contract(FhAimContract):
    """FHAIM's, on the plain store: no product computes the polynomial on ciphertexts."""

    Options = FhAimL1Options

    @classmethod
    def check(cls, config: RunConfig) -> None:
        super().check(config)
        trusted = config.aggregation.capabilities is PLAIN
        require(trusted, "mechanism.score: 'l1_polynomial' is computed with aggregation.protocol: plain only")


class FhAimL1Client(FhAimClient):
    """A data entity whose answers are chosen from by the polynomial."""

    Contract = FhAimL1Contract


class FhAimL1(FhAim):
    """FHAIM with the L1 score of its paper's ciphertexts."""

    Client = FhAimL1Client
