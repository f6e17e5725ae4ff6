"""Quantity skew: the clients' rows are alike, but their numbers differ."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedsyn.table.data.partition import Partitioner, PartitionInput, apportion, fill_small_clients


class Quantity(Partitioner):
    """Random rows, in shares drawn from a symmetric Dirichlet distribution.

    Attributes:
        alpha: concentration; 0.1 gives a few large clients and many small ones, 100 nearly equal sizes.
        min_rows: no client has fewer; missing rows are taken from the largest clients.
    """

    name: ClassVar[str] = "quantity"
    alpha: float = Field(default=0.5, ge=1e-3, allow_inf_nan=False)
    min_rows: int = Field(default=1, ge=0)

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        sizes = apportion(rng.dirichlet(np.full(clients, self.alpha)), table.rows)
        parts = np.split(rng.permutation(table.rows), np.cumsum(sizes)[:-1])
        return fill_small_clients(list(parts), self.min_rows)
