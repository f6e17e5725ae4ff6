"""The server's side of finding an open schema's private values.

It runs before the mechanism, whatever that is.

One protocol for all of them: after the clients have joined (and released their sizes, where those are private), sums
over ALL of them, also where only some take part in a round of the mechanism. They are charged to the run's ledger and
to every client's, at most `schema_share` of the budget together. Each sum uses what earlier sums released and nothing
else; the shares of the parts are fixed before the first one. What finding does not spend, levels of trees that end
early, is the mechanism's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.errors import RunError, SchemaError
from fedsyn.flower import Grid
from fedsyn.privacy import sigma_for_rho
from fedsyn.private_bins.prefixes import SYMBOLS, PrefixTree
from fedsyn.private_bins.private_columns import PrivateRange
from fedsyn.private_bins.ranges import (
    FALSE_ALARM,
    NoisyGrid,
    allot,
    atoms_of,
    cuts,
    heavy,
    lone,
    range_around,
    range_noise,
    threshold,
)
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.driving import Driver
from fedsyn.protocol.finding import Close, FindBins, FindCategories, FindRanges, finding_of
from fedsyn.protocol.record import Observer
from fedsyn.protocol.recorder import Journal
from fedsyn.randomness import Randomness
from fedsyn.table.counting.hierarchy import HierarchicalMeasurement, least_squares
from fedsyn.table.schema import Schema
from fedsyn.wire.requests import Ask, Sum, Summed, SumRequest, Yielded

# Of the budget for columns of numbers: ranges are four numbers a column at most, bins are the rest.
_RANGE_SHARE = 0.25
Asking = Generator[Yielded, Any, Any]
Floats = npt.NDArray[np.float64]


class Opening(Driver):
    """Finds what is private of a schema.

    The mechanism's strategy continues with its clients, ledger and records.

    Args:
        config: the run's configuration.
        schema: an open one.
        family: the mechanism's contract.
        randomness, observer, journal: as for a strategy.

    Attributes:
        schema: the closed schema, once it is found.
    """

    def __init__(
        self,
        config: RunConfig,
        schema: Schema,
        family: type[Contract],
        *,
        randomness: Randomness,
        observer: Observer | None = None,
        journal: Journal | None = None,
    ) -> None:
        contract = family(config, schema.domain).opened(schema)
        super().__init__(contract, schema.sha256, randomness, observer, journal=journal)
        self.store = None  # it is the mechanism's, and there is none before the schema is closed
        self.finding = finding_of(contract)
        self.schema = schema

    def find(self, grid: Grid) -> Schema:
        """Joins the clients, finds, and closes the schema everywhere.

        A client that cannot be reached is left out. Returns the closed schema.

        Raises:
            RunError: too few clients for a sum, or for the run once it is closed.
        """
        timeout = self.config.federation.timeout
        self.join(grid, timeout)
        with self.timed("find"):
            self.schema = self.drive(self.protocol(), grid, timeout)
        return self.schema

    def protocol(self) -> Asking:
        """Asks for ranges, bins and categories; then tells everybody the findings."""
        rho = self.contract.budget.schema_share * self.ledger.remaining_rho
        finding = self.finding
        numbers = rho * len(finding.ranges) / len(finding.schema.open)
        cells, found_cuts, atoms = (yield from self._numbers(numbers)) if finding.ranges else ([], [], [])
        categories = (yield from self._categories(rho - numbers)) if finding.texts else []
        try:
            closed = finding.closed(cells, found_cuts, categories, atoms)
        except SchemaError as error:  # constraints that no bin which was found can satisfy
            raise RunError(f"what was found makes no schema: {error}") from None
        close = Close(cells=cells, cuts=found_cuts, atoms=atoms, categories=categories)
        replies = yield Ask(self.everyone(), close)
        self.clients = {k: client for k, client in self.clients.items() if k in replies}
        if len(self.clients) < max(1, self.config.federation.minimum_cohort):
            raise RunError("too few clients could be told what was found of the schema")
        return closed

    # Columns of numbers -----------------------------------------------------------------------------------------------

    def _numbers(self, rho: float) -> Asking:
        """Returns cells, cuts and atoms of ordered columns, for at most rho."""
        finding = self.finding
        share = _RANGE_SHARE if finding.binned else 1.0
        sums = yield from self._summed(FindRanges(), share * rho)
        least = threshold(max(sums.sigmas), sum(len(counts) for counts in sums.arrays))
        allotted = [
            self._allotted(column, counts, least) for column, counts in zip(finding.ranges, sums.arrays, strict=True)
        ]
        cells = [one for one, _ in allotted]
        atoms = [[bucket - one.index(1) for bucket in shared] if 1 in one else [] for one, shared in allotted]
        cuts: list[list[int]] = [[] for _ in finding.ranges]
        if not finding.binned:
            return cells, cuts, atoms
        sums = yield from self._summed(FindBins(cells=cells), (1.0 - share) * rho)
        arrays, sigma = iter(sums.arrays), max(sums.sigmas)
        for i in finding.binned:
            tree = finding.ranges[i].tree(cells[i])
            values = np.concatenate([next(arrays) for _ in tree.widths])
            counts, _ = least_squares([HierarchicalMeasurement(finding.ranges[i].name, tree, values, sigma)])
            cuts[i], atoms[i] = self._cut(finding.ranges[i], *allotted[i], counts, sigma)
        return cells, cuts, atoms

    def _allotted(self, column: PrivateRange, counts: Floats, least: float) -> tuple[list[int], list[int]]:
        """Returns the grid of the range, and the buckets that are atoms.

        The range stands out. The grid has a cell for each bucket where no bins are found.
        """
        edges = np.array(column.edges)
        atoms = heavy(counts, least, column.most) & lone(edges, column.whole)
        known = atoms | np.isin(edges[:-1], column.named)
        first, last, stands_out = range_around(counts, known, least)
        if not stands_out:
            where = "the fullest one is its range"
            if known.any():
                where = "beside values that many rows share; a bin has all others, and nothing tells their numbers"
            self.record.notes.append(f"{column.name}: no bucket stood out of the noise; {where}")
        # What is public of the bounds stays as it is.
        first, last = (first if column.wanted.lower else 0), (last if column.wanted.upper else len(counts) - 1)
        shared = np.flatnonzero(atoms).tolist()
        if column.wanted.bins is None:
            self.record.notes.append(f"{column.name}: found from {edges[first]:g} to {edges[last + 1]:g}")
            return [int(first <= i <= last) for i in range(len(counts))], shared
        return allot(column.edges, np.where(counts > least, counts, 0.0), first, last, column.whole), shared

    def _cut(
        self, column: PrivateRange, cells: list[int], shared: list[int], counts: Floats, sigma: float
    ) -> tuple[list[int], list[int]]:
        """Returns the bins' edges, and the atoms among the bins.

        Args:
            column: whose bins are found.
            cells: of its grid.
            shared: buckets of one value that many rows share.
            counts: (cells,) estimated rows.
            sigma: of the noise.
        """
        wanted, edges = column.wanted, column.grid(cells)
        assert wanted.bins is not None
        alone, named = lone(edges, column.whole), np.flatnonzero(np.isin(edges[:-1], column.named)).tolist()
        grid = NoisyGrid(edges, counts, sigma, range_noise(column.tree(cells), sigma), alone, named)
        cut = cuts(grid, wanted.bins, trim_low=wanted.lower, trim_high=wanted.upper)
        self.record.notes.append(
            f"{column.name}: found from {edges[cut[0]]:g} to {edges[cut[-1]]:g}, in {len(cut) - 1} bins"
        )
        # The outermost cells also have what lies beyond a bound that was private: a bucket alone tells atoms there.
        open_ends = [0] * wanted.lower + [len(counts) - 1] * wanted.upper
        sure = {column.edges[bucket] for bucket in shared}
        atoms = [i for i in atoms_of(grid, cut, wanted.bins) if i not in open_ends or edges[i] in sure]
        return cut, atoms

    # Columns of categories --------------------------------------------------------------------------------------------

    def _categories(self, rho: float) -> Asking:
        """Returns the categories of every such column, for at most rho.

        Each length of a prefix gets an equal part.
        """
        texts, levels = self.finding.texts, self.finding.levels
        missing = self.finding.schema.missing_text
        trees = [PrefixTree(column.wanted.most, column.wanted.length, missing) for column in texts]
        for _ in range(levels):
            if not any(tree.alive for tree in trees):
                break
            prefixes = [[prefix.hex() for prefix in tree.alive] for tree in trees]
            sums = yield from self._summed(FindCategories(prefixes=prefixes), rho / levels)
            arrays = iter(sums.arrays)
            candidates = sum(len(alive) for alive in prefixes) * SYMBOLS
            for tree in trees:
                if tree.alive:
                    tree.take(next(arrays), max(sums.sigmas), candidates, FALSE_ALARM / levels)
        for column, tree in zip(texts, trees, strict=True):
            self.record.notes.append(f"{column.name}: found {len(tree.categories)} categories")
        return [tree.categories for tree in trees]

    def _summed(self, request: SumRequest, rho: float) -> Asking:
        """Returns a sum over everybody that costs rho.

        It raises RunError if the sum is not opened.
        """
        count = request.layout(self.contract, ()).count
        sums: Summed = yield Sum(self.everyone(), request, sigma_for_rho(rho, np.sqrt(count)))
        if not sums.opened:
            raise RunError(f"'{request.name}': too few clients contributed to find what is private of the schema")
        return sums
