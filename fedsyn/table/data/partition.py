"""Base of all partitioners.

It defines their input, the rules that their result keeps, and the repair of small clients.

A partitioner splits one encoded table into the tables of K simulated clients. It exists for simulations only:
in a deployment the data holders bring their own rows. Randomness therefore comes from a seeded
`np.random.Generator`.
"""

from __future__ import annotations

import copy
import heapq
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedsyn.domain import Domain, Flags
from fedsyn.errors import ConfigError, DataError, nearest
from fedsyn.randomness import OsRandom


@dataclass(frozen=True, eq=False)
class PartitionInput:
    """One encoded table that is to be split.

    Attributes:
        codes: (n, d) integer codes, columns in the order of `domain`.
        domain: attributes and their cardinalities.
        label: the attribute that label-skew partitioners use unless told otherwise.
        native: (n,) client id of each row where the source brings its own clients (SynthFS), else None.
        holders: ids of all of the source's own clients, ascending, also of those without rows; None: those in `native`.
    """

    codes: np.ndarray
    domain: Domain
    label: str | None = None
    native: np.ndarray | None = None
    holders: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.shape[1] != len(self.domain):
            raise DataError(f"codes of shape {self.codes.shape} do not fit a domain of {len(self.domain)} columns")
        if not np.issubdtype(self.codes.dtype, np.integer):
            raise DataError(f"codes must be integers, found {self.codes.dtype}")
        if self.native is not None and self.native.shape != (self.rows,):
            raise DataError(f"{self.native.size} native client ids for {self.rows} rows")

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0])

    def column(self, attribute: str | None, option: str) -> np.ndarray:
        """(n,) codes of `attribute`, or of the label where it is None.

        Raises:
            ConfigError: neither is set, or the attribute is unknown; `option` names the option to set.
        """
        name = self.label if attribute is None else attribute
        if name is None:
            raise ConfigError(f"the table has no label: set federation.partition.{option} to one of its columns")
        if name not in self.domain:
            raise ConfigError(
                f"federation.partition.{option}: no column '{name}'{nearest(name, self.domain.attributes)}"
            )
        return self.codes[:, self.domain.axes((name,))[0]]


class Partitioner(BaseModel, ABC):
    """Base class of partitioners.

    The fields of a subclass are the options that the configuration may set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]

    def split(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The row indices of each client.

        Args:
            table: the table to split.
            clients: number of clients K, at least 1.
            rng: the only source of randomness; the same state gives the same split.

        Returns:
            K sorted int64 arrays that hold every row index exactly once. A client may be left without rows.

        Raises:
            ConfigError: an option that the table cannot satisfy.
            DataError: no such split exists, for instance because `min_rows` are more than the table has.
        """
        if clients < 1:
            raise ConfigError(f"federation.clients must be at least 1, found {clients}")
        parts = [np.sort(np.asarray(part, dtype=np.int64)) for part in self.assign(table, clients, rng)]
        check_partition(parts, table.rows, clients)
        return parts

    @classmethod
    def with_options(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Returns the partitioner with these options.

        Raises ConfigError for a wrong option, with the nearest valid key.
        """
        from fedsyn.config import parse_options

        return parse_options(cls, dict(options), f"federation.partition ({name})")

    @abstractmethod
    def assign(self, table: PartitionInput, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Assigns the rows to the clients.

        `split` has checked that there is a client, and sorts and checks the result.
        """


def check_partition(parts: Sequence[np.ndarray], rows: int, clients: int) -> None:
    """Refuses parts that are not a partition of the rows.

    Raises DataError unless `parts` are one for each client, and hold each row once.
    """
    if len(parts) != clients:
        raise DataError(f"a partition into {clients} clients has {len(parts)} parts")
    held = np.zeros(rows, dtype=np.int64)
    for client, part in enumerate(parts):
        if part.size and (part.min() < 0 or part.max() >= rows):
            raise DataError(f"client {client}: a row index outside the {rows} rows of the table")
        np.add.at(held, part, 1)
    if (held != 1).any():
        raise DataError(
            f"a partition must hold each of the {rows} rows once: {np.count_nonzero(held == 0)} are missing and "
            f"{np.count_nonzero(held > 1)} are at several clients, or twice at one"
        )


def group_rows(assignment: np.ndarray, clients: int) -> list[np.ndarray]:
    """Returns the rows of each client, ascending.

    They come from the (n,) client index of each row. Parts may be empty.
    """
    order = np.argsort(assignment, kind="stable")
    edges = np.cumsum(np.bincount(assignment, minlength=clients))[:-1]
    return list(np.split(order, edges))


def apportion(shares: np.ndarray, total: int) -> np.ndarray:
    """Returns sizes that sum to `total`, (K,) int64.

    They are proportional to `shares`, by largest remainder.
    """
    exact = shares / shares.sum() * total
    sizes: np.ndarray = np.floor(exact).astype(np.int64)
    order = np.argsort(sizes - exact, kind="stable")
    sizes[order[: total - int(sizes.sum())]] += 1
    return sizes


def fill_small_clients(parts: list[np.ndarray], min_rows: int) -> list[np.ndarray]:
    """Moves rows from the largest clients until every client has `min_rows`; deterministic.

    Clients below the minimum are filled in index order, one row at a time: the row is the last of the client
    that is then the largest (the lowest index among equals). Callers pass parts in random order, so the last
    row is a random one. Everyone else keeps their rows.

    Raises:
        DataError: the table has fewer than K * min_rows rows.
    """
    sizes = np.array([part.size for part in parts], dtype=np.int64)
    rows, clients = int(sizes.sum()), len(parts)
    if clients * min_rows > rows:
        raise DataError(
            f"{clients} clients with at least {min_rows} rows each need {clients * min_rows} rows; "
            f"the table has {rows}: lower federation.clients or the partitioner's min_rows"
        )
    small = np.flatnonzero(sizes < min_rows)
    if small.size == 0:
        return parts
    # A donor stays above min_rows: while someone lacks a row and K * min_rows <= n, the largest has one to
    # spare.
    heap = [(-int(size), client) for client, size in enumerate(sizes) if size > min_rows]
    heapq.heapify(heap)
    moved_rows: dict[int, list[int]] = {}
    for client in small:
        taken = moved_rows.setdefault(int(client), [])
        for _ in range(min_rows - int(sizes[client])):
            negative, donor = heapq.heappop(heap)
            taken.append(int(parts[donor][-negative - 1]))
            sizes[donor] = -negative - 1
            if sizes[donor] > min_rows:
                heapq.heappush(heap, (negative + 1, donor))
    remaining = [part[:size] if size < part.size else part for part, size in zip(parts, sizes, strict=True)]
    return [
        np.concatenate([part, np.array(moved_rows[client], dtype=np.int64)]) if client in moved_rows else part
        for client, part in enumerate(remaining)
    ]


_BLOCK = 1 << 18
_SLOTS = 1 << 16


def toss(n: int, share: float) -> Flags:
    """Returns (n,) coins of the operating system.

    Each is true with the probability `share`.
    """
    if share in (0, 1):
        return np.full(n, bool(share))
    source = OsRandom()
    return np.concatenate(
        [source.random(min(_BLOCK, n - start)) < share for start in range(0, n, _BLOCK)] or [np.zeros(0, dtype=bool)]
    )


def draw_test_rows(n: int, fraction: float, rng: np.random.Generator) -> Flags:
    """Draws a uniform random test set.

    It takes one byte a row and little more.

    The rows whose random numbers are the smallest; of equal numbers the earlier row. The numbers are drawn twice, block
    by block, rather than kept: the first time to see below which they are the smallest.

    Args:
        n: number of rows.
        fraction: share of the test set, 0 <= fraction < 1; the number of test rows is rounded to the nearest.
        rng: source of randomness (`random` is used).

    Returns:
        (n,) mask of the test rows; at least one row is left to train on.

    Raises:
        DataError: n < 1.
        ValueError: fraction out of range.
    """
    if not 0 <= fraction < 1:
        raise ValueError("the test fraction must lie in [0, 1)")
    if n < 1:
        raise DataError("the table has no rows")
    held_out = min(round(n * fraction), n - 1)
    again = copy.deepcopy(rng)
    histogram = np.zeros(_SLOTS, dtype=np.int64)
    for start in range(0, n, _BLOCK):
        histogram += np.bincount(_slot(rng.random(min(_BLOCK, n - start))), minlength=_SLOTS)
    below = np.cumsum(histogram)
    edge = int(np.searchsorted(below, held_out, side="left"))  # the slot that is only partly taken
    is_test = np.zeros(n, dtype=bool)
    numbers, rows = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for start in range(0, n, _BLOCK):
        number = again.random(min(_BLOCK, n - start))
        slot = _slot(number)
        is_test[start : start + len(number)] = slot < edge
        at_edge = np.flatnonzero(slot == edge)
        numbers.append(number[at_edge])
        rows.append(start + at_edge)
    wanted = held_out - int(below[edge] - histogram[edge])
    is_test[np.concatenate(rows)[np.argsort(np.concatenate(numbers), kind="stable")[:wanted]]] = True
    return is_test


def _slot(numbers: np.ndarray) -> np.ndarray:
    """Returns the slot of [0, 1) in which each number lies.

    The slots are equally wide. The result is exact, as their number is a power of two.
    """
    return (numbers * _SLOTS).astype(np.int64)
