"""A component of measured cliques: its cliques in the junction tree under either elimination order, and their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsyn.inference.extension import Extension
from fedsyn.inference.junction_tree import FIXED_PASSES, JunctionTree, connect, table_counts
from fedsyn.inference.triangulation import Axes, bits, eliminate_greedily, eliminate_simplicial, maximal

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
        return tuple(tree_cost(tree, self.measured) for tree in self.trees)

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
            tables = sum(tree.cells[tree.containing(mask)] for mask in self.measured)
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
        return tuple(Extension(tree, self.measured) for tree in self.trees)


def tree_cost(tree: JunctionTree, measured: Sequence[int]) -> int:
    """What a pass over a tree costs (`pass_cost`), exactly."""
    counts = table_counts(tree, measured)
    return sum(cells * (FIXED_PASSES + 2 * count) for cells, count in zip(tree.cells, counts, strict=True))


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
