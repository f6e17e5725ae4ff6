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
from fedsyn.private_bins.ranges import allot, divisible, grid, tree, universe
from fedsyn.table.counting.hierarchy import Hierarchy
from fedsyn.table.schema import BinnedColumn, Schema
from fedsyn.table.schema.open import OpenCategories, OpenRange
from fedsyn.table.schema.rules import named_categories

Allotment = Sequence[Sequence[int]]
_DIGITS = set("0123456789abcdef")


@dataclass(frozen=True)
class PrivateRange:
    """A column of numbers of which bounds or bins are found.

    Attributes:
        name: of the column.
        wanted: what is found.
        whole: whether every number is a whole one.
        edges: of the universe.
    """

    name: str
    wanted: OpenRange
    whole: bool
    edges: tuple[float, ...]

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
            PrivateRange(name, what, column.whole, universe(column.whole, *_public(column, what), column.middle))
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

    def closed(self, cells: Allotment, cuts: Sequence[Sequence[int]], categories: Sequence[Sequence[str]]) -> Schema:
        """The schema with what was found in it; ValueError as the checks."""
        self.check_cells(cells)
        self.check_cuts(cells, cuts)
        self.check_categories(categories)
        values: dict[str, Any] = {}
        for column, counts, chosen in zip(self.ranges, cells, cuts, strict=True):
            edges = column.grid(counts)
            values[column.name] = [float(x) for x in (edges[list(chosen)] if chosen else edges[[0, -1]])]
        values |= {column.name: list(words) for column, words in zip(self.texts, categories, strict=True)}
        return self.schema.closed(values)

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
        for i, (column, counts) in enumerate(zip(self.ranges, cells, strict=True)):
            total, most = sum(counts), min(column.wanted.bins or 0, sum(counts))
            shift = min(i, total - most)
            inner = np.linspace(1, total - 1 - shift, most - 1).astype(int) + shift if most else ()
            cuts.append([0, *map(int, inner), total] if most else [])
        named = dict(named_categories(self.schema.constraints))
        return self.closed(cells, cuts, [self._words(column, named.get(column.name, ())) for column in self.texts])

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


def _require_one_each(lists: Sequence[Any], columns: Sequence[Any], what: str) -> None:
    if len(lists) != len(columns):
        raise ValueError(f"must have one list for each column whose {what} private")


def _public(column: BinnedColumn, wanted: OpenRange) -> tuple[float | None, float | None]:
    """Returns the public bounds.

    They are the schema's, or those of everything that such a column can hold.
    """
    (low, high), (least, most) = column.span, column.reach
    return (least if wanted.lower else low), (most if wanted.upper else high)
