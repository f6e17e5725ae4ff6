"""Public facts of what a run must find for an open schema.

They are the same at the server and at every client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Floats
from fedsyn.private_bins.prefixes import FOLLOWED, is_word
from fedsyn.private_bins.ranges import allot, divisible, grid, lone, tree, universe
from fedsyn.table.counting.hierarchy import Hierarchy
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.open import OpenCategories, OpenRange, named_numbers
from fedsyn.table.schema.rules import named_categories

Allotment = Sequence[Sequence[int]]
#: Buckets of a universe that hold one value: a number and its neighbours on both sides.
_LONE_BUCKETS = 3
_DIGITS = set("0123456789abcdef")


@dataclass(frozen=True)
class PrivateRange:
    """A column of numbers of which bounds or bins are found.

    Attributes:
        name: of the column.
        wanted: what is found.
        whole: whether every number is a whole one.
        edges: of the universe.
        most: bins, whether they are found or equal.
        named: numbers of the values that the schema calls frequent.
    """

    name: str
    wanted: OpenRange
    whole: bool
    edges: tuple[float, ...]
    most: int
    named: tuple[float, ...] = ()

    def grid(self, cells: Sequence[int]) -> Floats:
        """Returns the grid's edges for an allotment of cells, (m,).

        The cells are allotted to the buckets of the universe.
        """
        return np.array(grid(self.edges, tuple(cells), self.whole))

    def tree(self, cells: Sequence[int]) -> Hierarchy:
        return tree(sum(cells))


@dataclass(frozen=True)
class PrivateCategories:
    """A column of which the categories are found."""

    name: str
    wanted: OpenCategories


class PrivateColumns:
    """The open columns of a schema, in its order.

    Args:
        schema: an open one.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        wanted = [(name, schema.columns[name], what) for name, what in schema.open.items()]
        self.ranges: tuple[PrivateRange, ...] = tuple(
            _private_range(name, column, what)
            for name, column, what in wanted
            if isinstance(what, OpenRange) and isinstance(column, BinnedColumn)
        )
        self.texts = tuple(
            PrivateCategories(name, what) for name, _, what in wanted if isinstance(what, OpenCategories)
        )

    @cached_property
    def binned(self) -> tuple[int, ...]:
        """Places in `ranges` of the columns whose bins are found."""
        return tuple(i for i, column in enumerate(self.ranges) if column.wanted.bins is not None)

    @property
    def levels(self) -> int:
        """The most levels that the trees of prefixes have."""
        return max((1 + column.wanted.length for column in self.texts), default=0)

    def check_cells(self, cells: Allotment) -> None:
        """Raises ValueError unless `cells` fits each column's universe.

        Each column of numbers gets some.
        """
        _require_one_each(cells, self.ranges, "bounds or bins are")
        if not all(
            divisible(column.edges, counts, column.whole) for column, counts in zip(self.ranges, cells, strict=True)
        ):
            raise ValueError("must allot cells to neighbouring buckets of each column's public universe")

    def check_prefixes(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Raises ValueError unless prefixes are hexadecimal and of one length.

        They may be no more, and no longer, than a column's tree allows.
        """
        _require_one_each(prefixes, self.texts, "categories are")
        if len({len(prefix) for column_prefixes in prefixes for prefix in column_prefixes}) > 1:
            raise ValueError("must be of one length")
        for column, column_prefixes in zip(self.texts, prefixes, strict=True):
            if len(set(column_prefixes)) < len(column_prefixes) or len(column_prefixes) > FOLLOWED * column.wanted.most:
                raise ValueError("must be different, and no more than two for each category that may be found")
            for prefix in column_prefixes:
                if len(prefix) % 2 or len(prefix) > 2 * column.wanted.length or set(prefix) - _DIGITS:
                    raise ValueError(
                        "must be pairs of lower-case hexadecimal digits, no longer than the schema asks for"
                    )

    def check_cuts(self, cells: Allotment, cuts: Sequence[Sequence[int]]) -> None:
        """Raises ValueError unless `cuts` are edges of those grids.

        There are none where bins are not found, and no more than wanted.
        """
        _require_one_each(cuts, self.ranges, "bounds or bins are")
        for column, counts, chosen in zip(self.ranges, cells, cuts, strict=True):
            most = column.wanted.bins
            fits = (
                not chosen
                if most is None
                else 2 <= len(chosen) <= most + 1
                and all(a < b for a, b in itertools.pairwise(chosen))
                and chosen[0] >= 0
                and chosen[-1] <= sum(counts)
            )
            if not fits:
                raise ValueError("must be ascending edges of the grid, for no more bins than the schema asks for")

    def check_atoms(self, cells: Allotment, cuts: Allotment, atoms: Allotment) -> None:
        """Raises ValueError unless `atoms` are cells of one value within the bins."""
        _require_one_each(atoms, self.ranges, "bounds or bins are")
        for column, counts, cut, chosen in zip(self.ranges, cells, cuts, atoms, strict=True):
            alone = lone(column.grid(counts), column.whole)
            first, end = (cut[0], cut[-1]) if cut else (0, len(alone))
            fits = all(first <= i < end and alone[i] for i in chosen) and len(chosen) <= column.most
            if not fits or list(chosen) != sorted(set(chosen)):
                raise ValueError("must be cells of one value each, ascending, within the bins and no more than these")

    def check_categories(self, categories: Sequence[Sequence[str]]) -> None:
        """Raises ValueError unless categories are words that the schema allows.

        It bounds their number and their length, and wants them to differ.
        """
        _require_one_each(categories, self.texts, "categories are")
        for column, words in zip(self.texts, categories, strict=True):
            if not all(is_word(text, self.schema.missing_text) for text in words):
                raise ValueError("must be texts without control characters or outer blanks that do not mean missing")
            lengths = [len(text.encode("utf-8")) for text in words]
            if len(set(words)) < len(words) or len(words) > column.wanted.most:
                raise ValueError("must be different, and no more than the schema asks for")
            if max(lengths, default=1) > column.wanted.length:
                raise ValueError("must be texts of no more bytes than the schema asks for")

    def closed(
        self, cells: Allotment, cuts: Allotment, categories: Sequence[Sequence[str]], atoms: Allotment | None = None
    ) -> Schema:
        """The schema with what was found in it; ValueError as the checks.

        Args:
            cells: of each column of numbers, cells of its grid for each bucket of its universe.
            cuts: edges of its grid that are edges of its bins.
            categories: of each column of categories, those that were found.
            atoms: cells of each grid that hold a value which many rows share; None: there are none.
        """
        atoms = [[] for _ in self.ranges] if atoms is None else atoms
        self.check_cells(cells)
        self.check_cuts(cells, cuts)
        self.check_atoms(cells, cuts, atoms)
        self.check_categories(categories)
        values: dict[str, Any] = {}
        shared: dict[str, list[float]] = {}
        for column, counts, chosen, own in zip(self.ranges, cells, cuts, atoms, strict=True):
            edges = column.grid(counts)
            values[column.name] = [float(x) for x in (edges[list(chosen)] if chosen else edges[[0, -1]])]
            shared[column.name] = [float(edges[i]) for i in own]
        values |= {column.name: list(words) for column, words in zip(self.texts, categories, strict=True)}
        return self.schema.closed(values, shared)

    def largest(self) -> Schema:
        """Returns the largest schema that may be found.

        It has as many bins and categories as there may be, and no two columns' bins equal.

        It is what the limits of a run are tried on before anything is spent. Categories that constraints name are in
        it, because those of others are forgotten.

        Raises:
            SchemaError: the constraints cannot hold for so many.
        """
        cells = [
            allot(column.edges, np.zeros(len(column.edges) - 1), 0, len(column.edges) - 2, column.whole)
            for column in self.ranges
        ]
        cuts: list[list[int]] = []
        atoms: list[list[int]] = []
        for i, (column, counts) in enumerate(zip(self.ranges, cells, strict=True)):
            total, most = sum(counts), min(column.wanted.bins or 0, sum(counts))
            shift = min(i, total - most)
            inner = np.linspace(1, total - 1 - shift, most - 1).astype(int) + shift if most else ()
            cuts.append([0, *map(int, inner), total] if most else [])
            # Equal bins are cut around atoms; bins that are found have them among their number.
            alone = np.flatnonzero(lone(column.grid(counts), column.whole))
            atoms.append([] if most else [int(i) for i in alone[: min(column.most, _LONE_BUCKETS)]])
        named = dict(named_categories(self.schema.constraints))
        words = [self._words(column, named.get(column.name, ())) for column in self.texts]
        return self.closed(cells, cuts, words, atoms)

    def _words(self, column: PrivateCategories, named: Iterable[str]) -> list[str]:
        """Returns as many words as may be found in a column.

        Words that constraints name come first.
        """
        pairs = map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz0123456789", repeat=2))
        fitting = (
            word
            for word in dict.fromkeys([*named, *pairs])
            if is_word(word, self.schema.missing_text) and len(word.encode()) <= column.wanted.length
        )
        return list(itertools.islice(fitting, column.wanted.most))


def _private_range(name: str, column: BinnedColumn, wanted: OpenRange) -> PrivateRange:
    named = named_numbers(column, wanted)
    edges = universe(column.whole, *_public(column, wanted), column.middle, named)
    return PrivateRange(name, wanted, column.whole, edges, wanted.bins or int(column.bins), named)


def _require_one_each(lists: Sequence[Any], columns: Sequence[Any], what: str) -> None:
    if len(lists) != len(columns):
        raise ValueError(f"must have one list for each column whose {what} private")


def _public(column: BinnedColumn, wanted: OpenRange) -> tuple[float | None, float | None]:
    """Returns the public bounds.

    They are the schema's, or those of everything that such a column can hold.
    """
    (low, high), (least, most) = column.span, column.reach
    return (least if wanted.lower else low), (most if wanted.upper else high)
