"""Native partition: the table's source names each row's client."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedsyn.errors import DataError
from fedsyn.table.data.partition import Partitioner, PartitionInput, group_rows


class Native(Partitioner):
    """The data set's clients, in the order of their ids.

    SynthFS is such a data set (FLAIM, appendix B.1.1).
    """

    name: ClassVar[str] = "native"

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        if table.native is None:
            raise DataError(
                "this table has no client ids of its own, so the native partition is not defined for it; "
                "choose another federation.partition.name"
            )
        ids = np.unique(table.native) if table.holders is None else table.holders
        if ids.size != clients:
            raise DataError(f"the table's own client ids name {ids.size} clients, but federation.clients is {clients}")
        return group_rows(np.searchsorted(ids, table.native), clients)
