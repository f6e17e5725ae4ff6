"""Dirichlet label skew.

Each class is spread over the clients by a Dirichlet draw.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedsyn.table.data.partition import Partitioner, PartitionInput, apportion, fill_small_clients


class Dirichlet(Partitioner):
    """Label skew with one parameter.

    See Li et al. 2022, and Maddock et al. 2024, appendix B.2.

    For each class c a vector p_c ~ Dirichlet(beta, ..., beta) over the K clients says which share of the
    class' rows, taken in random order, each client gets. A small beta gives strong skew in the label and in
    the clients' sizes.

    A plain draw (`min_rows: 0`) leaves clients without rows. The published code gives every client one row of
    every class, which needs K rows per class; here a client below `min_rows` is filled with random rows of the largest
    clients instead, which works for rare classes too. `min_rows: 2` comes closest to the published code on
    tables with two classes.

    Attributes:
        beta: concentration of the Dirichlet distribution.
        label: the attribute whose values are the classes; the table's label unless set.
        min_rows: no client has fewer rows.
    """

    name: ClassVar[str] = "dirichlet"
    beta: float = Field(default=0.5, ge=1e-3, allow_inf_nan=False)
    label: str | None = None
    min_rows: int = Field(default=1, ge=0)

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        classes = table.column(self.label, "label")
        shares: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for value in np.unique(classes):
            rows = rng.permutation(np.flatnonzero(classes == value))
            sizes = apportion(rng.dirichlet(np.full(clients, self.beta)), rows.size)
            for client, share in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
                if share.size:
                    shares[client].append(share)
        # Shuffled, so that the repair does not take the rows of the last class only.
        parts = [rng.permutation(np.concatenate(s)) if s else np.empty(0, dtype=np.int64) for s in shares]
        return fill_small_clients(parts, self.min_rows)
