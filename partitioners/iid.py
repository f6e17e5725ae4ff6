"""IID partition: uniformly random shares of equal size.

Sizes differ by at most one row.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedsyn.table.data.partition import Partitioner, PartitionInput


class Iid(Partitioner):
    """Uniformly random shares of equal size (FLAIM, Table 5, "IID")."""

    name: ClassVar[str] = "iid"

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        return list(np.array_split(rng.permutation(table.rows), clients))
