"""Repeated rows of a table, beside those of real rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsyn.evaluation.record import percent
from fedsyn.evaluation.verdict import Judged, judged

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Repeats:
    """Shares of rows that repeat an earlier one in every cell.

    As many rows of each table are read.

    A mechanism that knows a few rows and writes them many times has every column and link of theirs; what it lacks is
    the other rows.

    Attributes:
        real, synthetic: shares, 0 to 1.
        rows: of each table.
    """

    real: float
    synthetic: float
    rows: int

    def judged(self) -> Judged:
        """Returns the loss of rows that repeats stand in for."""
        words = f"{percent(self.synthetic)} of rows repeat others, {percent(self.real)} of real ones"
        return judged("variety of rows", [("repeats", max(0.0, self.synthetic - self.real), words)])


def repeats(real: pd.DataFrame, synthetic: pd.DataFrame, rng: np.random.Generator) -> Repeats:
    """Counts the repeats among as many rows of either table."""
    rows = min(len(real), len(synthetic))
    shares = [
        float(table.iloc[rng.choice(len(table), rows, replace=False)].duplicated().mean())
        for table in (real, synthetic)
    ]
    return Repeats(shares[0], shares[1], rows)
