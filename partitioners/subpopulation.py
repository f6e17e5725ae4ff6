"""Subpopulation bias: each client is at home in one group.

A group is one value of an attribute, or several.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedsyn.errors import DataError
from fedsyn.table.data.partition import Partitioner, PartitionInput, apportion, fill_small_clients


class Subpopulation(Partitioner):
    """Single-label bias: clients that hold mostly one value of an attribute.

    The values that occur are put into groups; each group becomes the home of a number of clients proportional
    to its rows (at least one). The fraction `bias` of a group's rows is dealt evenly to its home clients; the
    remaining rows of all groups are shuffled together and dealt evenly to everybody. So a client's share of
    home rows is expected to be bias + (1 - bias) * (the group's share of the table): `bias: 1` gives pure
    clients and `bias: 0` an IID split.

    Attributes:
        attribute: the attribute that decides; the table's label unless set.
        bias: fraction of a group's rows that stays at home.
        groups: number of groups of neighbouring values with about equal numbers of rows. Unset: every value
            is its own group, or K groups where more values occur than there are clients.
    """

    name: ClassVar[str] = "subpopulation"
    attribute: str | None = None
    bias: float = Field(default=0.9, ge=0.0, le=1.0)
    groups: int | None = Field(default=None, ge=1)

    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        group = self._group_of_rows(table, clients)
        counts = np.bincount(group)
        homes = _home_clients(counts, clients)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        away = []
        first = 0
        for index, count in enumerate(counts):
            rows = rng.permutation(np.flatnonzero(group == index))
            stay = round(self.bias * int(count))
            for offset, share in enumerate(np.array_split(rows[:stay], homes[index])):
                parts[first + offset].append(share)
            away.append(rows[stay:])
            first += int(homes[index])
        # The longer of the uneven shares go to random clients: otherwise the first ones would always be
        # larger.
        shares = np.array_split(rng.permutation(np.concatenate(away)), clients)
        for client, share in zip(rng.permutation(clients), shares, strict=True):
            parts[client].append(share)
        shuffled = [rng.permutation(np.concatenate(part)) for part in parts]
        return fill_small_clients(shuffled, min_rows=int(clients <= table.rows))

    def _group_of_rows(self, table: PartitionInput, clients: int) -> np.ndarray:
        """Returns the group of each row, (n,).

        Groups are ordered by code, and none is empty.
        """
        values, index = np.unique(table.column(self.attribute, "attribute"), return_inverse=True)
        if self.groups is not None and self.groups > min(clients, values.size):
            raise DataError(
                f"federation.partition.groups is {self.groups}: more than the {clients} clients, or than the "
                f"{values.size} values of the attribute that occur"
            )
        wanted = min(clients, values.size) if self.groups is None else self.groups
        if wanted == values.size:
            return index
        return _merge_neighbours(np.bincount(index), wanted)[index]


def _merge_neighbours(counts: np.ndarray, groups: int) -> np.ndarray:
    """Returns the group of each value, (V,).

    A group has consecutive values and about as many rows as another; none is empty.
    """
    middle = (np.cumsum(counts) - counts / 2) / counts.sum()
    target = np.minimum((middle * groups).astype(np.int64), groups - 1)
    values = np.arange(counts.size)
    # A frequent value makes the target jump over groups: bound each step to 1, and leave enough values for
    # the rest.
    merged = np.empty(counts.size, dtype=np.int64)
    previous = -1
    for value in values:
        least = max(previous, groups - (counts.size - int(value)))
        previous = int(min(max(int(target[value]), least), previous + 1))
        merged[value] = previous
    return merged


def _home_clients(counts: np.ndarray, clients: int) -> np.ndarray:
    """Returns the number of home clients of each group, (G,).

    It is proportional to the group's rows, and at least one.
    """
    spare = clients - counts.size
    if spare == 0:
        return np.ones(counts.size, dtype=np.int64)
    # Proportional to all clients first, so that tiny groups do not distort the others more than they must.
    homes: np.ndarray = np.maximum(apportion(counts, clients), 1)
    for _ in range(int(homes.sum()) - clients):
        homes[np.argmax(np.where(homes > 1, homes / counts, -1.0))] -= 1
    return homes
