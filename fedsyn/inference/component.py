"""A component of measured cliques: its cliques in the junction tree under either elimination order, and their costs.

What a junction tree costs when it is extended by a clique, its shape kept: a bound for trees that are too tangled.

Where measured cliques form many cycles, a new one can change a whole triangulation. A tree that holds the clique is
always there all the same: carry one of two attributes along the tree, into every node on the way to the other. For all
pairs of attributes at once that is arithmetic on an array of sums along paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.inference.junction_tree import FIXED_PASSES, JunctionTree, connect, table_cells, table_counts, tree_cost
from fedsyn.inference.triangulation import Axes, bits, eliminate_greedily, eliminate_simplicial, maximal

Floats = npt.NDArray[np.float64]


class Extension:
    """One component's junction tree, and what carrying attributes along it adds.

    Args:
        tree: of one component.
        measured: the measured cliques in it.
    """

    def __init__(self, tree: JunctionTree, measured: Sequence[int]) -> None:
        self.tree = tree
        self.ranks = sorted({rank for mask in tree.cliques for rank in bits(mask)})
        self.position = {rank: i for i, rank in enumerate(self.ranks)}
        self.cells = np.array(tree.cells, dtype=np.float64)
        self.passes = self.cells * (FIXED_PASSES + 2.0 * np.array(table_counts(tree, measured)))

    @cached_property
    def between(self) -> Floats:
        """(2, k, k) cells of the nodes on the way from each attribute to each other, and what a pass costs there.

        The least sums along a path from a node with one attribute to a node with the other, without the first node's.
        Nodes with one attribute are connected, so the least sum is that of the shortest way.
        """
        weights = np.stack([self.cells, self.passes])
        count = len(self.cells)
        sums = np.zeros((2, count, count))
        for node, parent in enumerate(self.tree.parents):  # parents come first
            sums[:, node, node] = weights[:, node]
            if parent >= 0:
                sums[:, node, :node] = sums[:, parent, :node] + weights[:, node, None]
                sums[:, :node, node] = sums[:, node, :node]
        sums -= weights[:, :, None]
        holders = [self.tree.holding[rank] for rank in self.ranks]
        flat = np.concatenate([np.array(nodes) for nodes in holders])
        starts = np.cumsum([0, *(len(nodes) for nodes in holders)])[:-1]
        from_each = np.minimum.reduceat(sums[:, flat], starts, axis=1)
        out: Floats = np.minimum.reduceat(from_each[:, :, flat], starts, axis=2)
        return out

    def added(self, mask: int) -> tuple[float, float]:
        """Cells, and cost of a pass, that carrying attributes adds until some node holds all of `mask`, its table too.

        Of a pair the cheaper one is carried to the other. Of more, all others go to the nodes of the first, and each
        node on the way counts as if all of them went through it.
        """
        ranks = sorted(bits(mask))
        sizes = [self.tree.axes.sizes[rank] for rank in ranks]
        at = [self.position[rank] for rank in ranks]
        if len(ranks) == 2:
            cells, passes = self.of_pairs[:, at[0], at[1]]
            return float(cells), float(passes)
        cells = passes = 0.0
        for i in range(1, len(ranks)):
            growth = (sizes[i] - 1) * math.prod(sizes[1:]) // sizes[i]
            cells += self.between[0, at[i], at[0]] * growth
            passes += self.between[1, at[i], at[0]] * growth
        return float(cells), float(passes) + self._table(float(cells), mask)

    @cached_property
    def of_pairs(self) -> Floats:
        """(2, k, k) `added` of each pair of attributes, the one of the lower rank first."""
        sizes = np.array([self.tree.axes.sizes[rank] for rank in self.ranks], np.float64)
        there = self.between * (sizes - 1.0)[:, None]
        back = there.transpose(0, 2, 1)
        cells, passes = np.where(there[0] <= back[0], there, back)
        return np.stack([cells, passes + 2.0 * (float(self.cells.max()) + cells + np.multiply.outer(sizes, sizes))])

    def _table(self, added: float, mask: int) -> float:
        """Cost of the clique's own table: twice the cells of its node, which has no more than these."""
        return 2.0 * (float(self.cells.max()) + added + self.tree.axes.cells(mask))


#: The two elimination orders of `triangulate`: smallest clique first, fewest fill edges first.
ORDERS = (False, True)


@dataclass(frozen=True, eq=False)
class Component:
    """Attributes that measured cliques connect, and the cliques of their junction tree under either order.

    Attributes:
        mask: its attributes.
        measured: maximal measured cliques inside.
        core: attributes that are left when no simplicial one is.
        closure: for each attribute outside the core, itself and whatever is eliminated later because of it.
        fringe: (clique, cells) of each attribute outside the core whose clique is a maximal one.
        by_order: all maximal cliques, for each of `ORDERS`.
    """

    axes: Axes
    mask: int
    measured: tuple[int, ...]
    core: int
    closure: Mapping[int, int]
    fringe: Mapping[int, tuple[int, int]]
    by_order: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, axes: Axes, adjacency: Sequence[int], mask: int, measured: tuple[int, ...]) -> Component:
        local = list(adjacency)
        found, core = eliminate_simplicial(local, mask)
        closure: dict[int, int] = {}
        for rank, clique in reversed(found.items()):  # what is eliminated later comes first
            reach = clique
            for other in bits(clique & ~core & ~(1 << rank)):
                reach |= closure[other]
            closure[rank] = reach
        kept = set(maximal(found.values()))
        fringe = {}
        for rank, clique in found.items():
            if clique in kept:
                kept.discard(clique)
                fringe[rank] = (clique, axes.cells(clique))
        by_order = []
        for order in ORDERS:
            greedy = eliminate_greedily(list(local), core, axes, order)
            by_order.append(tuple(maximal([*found.values(), *greedy])) if core else tuple(maximal(found.values())))
        return cls(axes, mask, measured, core, closure, fringe, tuple(by_order))

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """Total cells of all cliques, under each order."""
        return tuple(sum(map(self.axes.cells, cliques)) for cliques in self.by_order)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Cells of the largest clique, under each order."""
        return tuple(max(map(self.axes.cells, cliques)) for cliques in self.by_order)

    @cached_property
    def sets(self) -> tuple[frozenset[int], ...]:
        return tuple(map(frozenset, self.by_order))

    @cached_property
    def trees(self) -> tuple[JunctionTree, ...]:
        first = connect(self.axes, self.by_order[0])
        return (first, first if self.by_order[0] == self.by_order[1] else connect(self.axes, self.by_order[1]))

    @cached_property
    def passes(self) -> tuple[int, ...]:
        """Its part of `pass_cost`, under each order."""
        return self._of_each(lambda tree: tree_cost(tree, self.measured))

    @cached_property
    def neighbours(self) -> tuple[dict[int, int], ...]:
        """Cells of each clique's largest neighbour, by order; 0 if no other clique shares an attribute."""
        return tuple(_largest_neighbours(self.axes, cliques) for cliques in self.by_order)

    @cached_property
    def pass_bound(self) -> tuple[int, ...]:
        """The most that a pass costs in a tree of these cliques, also as a part of a larger tree."""
        out = []
        for order in ORDERS:
            tree, near = self.trees[order], self.neighbours[order]
            tables = table_cells(tree, self.measured)
            out.append(FIXED_PASSES * self.cells[order] + 2 * (tables + sum(near.values())))
        return tuple(out)

    @cached_property
    def fringe_cells(self) -> int:
        return sum(cells for _, cells in self.fringe.values())

    @cached_property
    def guests(self) -> dict[int, list[int]]:
        """By attribute, what the attributes outside the core were eliminated onto, their clique without themselves."""
        out: dict[int, list[int]] = {}
        for rank, (clique, _) in self.fringe.items():
            for other in bits(clique & ~(1 << rank)):
                out.setdefault(other, []).append(clique)
        return out

    @cached_property
    def extension(self) -> tuple[Extension, ...]:
        return self._of_each(lambda tree: Extension(tree, self.measured))

    def _of_each(self, made: Callable[[JunctionTree], Any]) -> tuple[Any, ...]:
        """What is made of the tree of each order; once where both are the same."""
        first, second = self.trees
        found = made(first)
        return (found, found if second is first else made(second))


def _largest_neighbours(axes: Axes, cliques: Sequence[int]) -> dict[int, int]:
    cells = {clique: axes.cells(clique) for clique in cliques}
    best: dict[int, list[int]] = {}
    for clique in sorted(cliques, key=lambda q: (-cells[q], q)):
        for rank in bits(clique):
            best.setdefault(rank, []).append(clique)
    return {
        clique: max((cells[q] for rank in bits(clique) for q in best[rank][:2] if q != clique), default=0)
        for clique in cliques
    }
