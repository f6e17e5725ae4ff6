"""A junction tree's growth by one clique, without building the tree.

`triangulate` has two properties that keep the difference local (tests/property/test_capacity_properties.py compares
every answer with whole trees):

- Attributes that no measured cliques connect do not influence each other: a component's cliques are those that it would
  have alone, under either elimination order. Only the choice between the orders concerns all components together.
- Simplicial attributes can be eliminated in any order: what is left, the CORE, is the same, and only a core is
  triangulated by a heuristic. Outside of it a new clique changes only what comes later in the elimination than its
  attributes (`Component.closure`).

So most candidates cost a few operations on masks: one between two components adds its own cells and nothing else, one
inside a component closes a few cycles, which are triangulated together with the core alone.

Where measured cliques form many cycles, a new one can change a whole triangulation. There the tree as it is, extended
by the clique (`inference.extension`), gives a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedsyn.domain import Codes, Flags
from fedsyn.inference.extension import Extension
from fedsyn.inference.junction_tree import (
    FIXED_PASSES,
    Axes,
    JunctionTree,
    bits,
    connect,
    eliminate_greedily,
    eliminate_simplicial,
    is_clique,
    maximal,
    parent_cells,
    table_cells,
    tree_cost,
)

#: The two elimination orders of `triangulate`: smallest clique first, fewest fill edges first.
ORDERS = (False, True)


@dataclass(frozen=True, eq=False)
class Component:
    """Connected attributes and their junction tree under either order.

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
        eliminated, core = eliminate_simplicial(local, mask)
        # Reach of each eliminated attribute: all that is eliminated later because of it.
        closure: dict[int, int] = {}
        for rank, clique in reversed(eliminated.items()):  # what is eliminated later comes first
            reach = clique
            for other in bits(clique & ~core & ~(1 << rank)):
                reach |= closure[other]
            closure[rank] = reach
        # Cliques of eliminated attributes that are maximal, with their cells.
        maximal_cliques = set(maximal(eliminated.values()))
        fringe = {}
        for rank, clique in eliminated.items():
            if clique in maximal_cliques:
                maximal_cliques.discard(clique)
                fringe[rank] = (clique, axes.cells(clique))
        # The core under either greedy order; without a core both are the same.
        by_order = []
        for order in ORDERS:
            greedy = eliminate_greedily(list(local), core, axes, order)
            by_order.append(
                tuple(maximal([*eliminated.values(), *greedy])) if core else tuple(maximal(eliminated.values()))
            )
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
        """The component's part of `pass_cost`, under each order."""
        return self._of_each(lambda tree: tree_cost(tree, self.measured))

    @cached_property
    def neighbours(self) -> tuple[dict[int, int], ...]:
        """Cells of each clique's largest neighbour, under each order.

        A clique that shares no attribute with another has 0.
        """
        return tuple(_largest_neighbours(self.axes, cliques) for cliques in self.by_order)

    @cached_property
    def pass_bound(self) -> tuple[int, ...]:
        """Bound on the cost of a pass over these cliques.

        It holds for them as a part of a larger tree, too.
        """
        out = []
        for order in ORDERS:
            tree, near = self.trees[order], self.neighbours[order]
            tables = table_cells(self.axes, tree.cliques, self.measured)
            out.append(FIXED_PASSES * self.cells[order] + 2 * (tables + sum(near.values())))
        return tuple(out)

    @cached_property
    def fringe_cells(self) -> int:
        return sum(cells for _, cells in self.fringe.values())

    @cached_property
    def guests(self) -> dict[int, list[int]]:
        """Maximal cliques of eliminated attributes, for each other attribute in them.

        No clique is listed for the attribute with which it was eliminated.
        """
        out: dict[int, list[int]] = {}
        for rank, (clique, _) in self.fringe.items():
            for other in bits(clique & ~(1 << rank)):
                out.setdefault(other, []).append(clique)
        return out

    @cached_property
    def extension(self) -> tuple[Extension, ...]:
        return self._of_each(lambda tree: Extension(tree, self.measured))

    def _of_each(self, compute: Callable[[JunctionTree], Any]) -> tuple[Any, ...]:
        """Applies a function to the tree of each order.

        If both trees are the same, it is applied once.
        """
        first, second = self.trees
        result = compute(first)
        return (result, result if second is first else compute(second))


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


# The tree, and one more clique ----------------------------------------------------------------------------------------


@dataclass
class TreeChange:
    """Cliques of the components that a new clique touches, with it.

    Attributes:
        make: the new cliques under an order, and the old ones that stay, as (their cells, the largest, a list of them).
        same: both orders give the same.
        bound: the most that a pass costs there, under an order; None: as many tables as there can be, each the largest.
    """

    make: Callable[[bool], tuple[Sequence[int], int, int, Callable[[], list[int]]]]
    same: bool
    axes: Axes
    bound: Callable[[bool], int] | None = None
    _made: dict[bool, tuple[Sequence[int], int, int, Callable[[], list[int]]]] = field(default_factory=dict)

    def _of(self, order: bool) -> tuple[Sequence[int], int, int, Callable[[], list[int]]]:
        order = order and not self.same
        if order not in self._made:
            self._made[order] = self.make(order)
        return self._made[order]

    def cells(self, order: bool) -> int:
        added, unchanged, _, _ = self._of(order)
        return unchanged + sum(map(self.axes.cells, added))

    def largest(self, order: bool) -> int:
        """Returns the cells of the largest clique, or more."""
        added, _, largest, _ = self._of(order)
        return max(largest, max(map(self.axes.cells, added), default=1))

    def cliques(self, order: bool) -> list[int]:
        added, _, _, unchanged = self._of(order)
        return [*unchanged(), *added]


class Growth:
    """The junction tree of measured cliques, and its possible extensions.

    Args:
        axes: of the domain.
        measured: maximal measured cliques.
        before: of other cliques; components that are the same are taken from there.
    """

    def __init__(self, axes: Axes, measured: Sequence[int], before: Growth | None = None) -> None:
        self.axes, self.measured = axes, tuple(measured)
        # Components of the tree before that no added or removed clique touches stay.
        changed, untouched = (1 << len(axes.sizes)) - 1, list[Component]()
        if before is not None:
            joined = 0
            for mask in set(before.measured) ^ set(self.measured):
                joined |= mask
            untouched = [c for c in before.components if not c.mask & joined]
            for component in untouched:
                changed &= ~component.mask
        # Neighbours, and measured cliques, of the attributes of all other components.
        self.adjacency: list[int] = [0] * len(axes.sizes) if before is None else list(before.adjacency)
        self.holding: list[list[int]] = [[] for _ in axes.sizes] if before is None else list(before.holding)
        for rank in bits(changed):
            self.adjacency[rank], self.holding[rank] = 0, []
        for mask in measured:
            if mask & changed:
                for rank in bits(mask):
                    self.adjacency[rank] |= mask & ~(1 << rank)
                    self.holding[rank].append(mask)
        # Split the other attributes into components, and triangulate each.
        self.components: list[Component] = untouched
        self.component_of: list[Component] = [None] * len(axes.sizes)  # type: ignore[list-item]
        while changed:
            mask = self._reached(changed & -changed)
            changed ^= mask
            self.components.append(Component.of(axes, self.adjacency, mask, tuple(self.holding_any(mask))))
        for component in self.components:
            for rank in bits(component.mask):
                self.component_of[rank] = component

    def holding_any(self, mask: int) -> list[int]:
        """Returns the measured cliques that touch these attributes."""
        return list(dict.fromkeys(m for rank in bits(mask) for m in self.holding[rank]))

    def _reached(self, start: int) -> int:
        """Returns the attributes that measured cliques connect with `start`."""
        reached, front = start, start
        while front:
            for rank in bits(front):
                reached |= self.adjacency[rank]
            front = reached & ~start
            start = reached
        return reached

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """Total cells of the whole tree, under each order."""
        return tuple(sum(c.cells[order] for c in self.components) for order in ORDERS)

    @cached_property
    def passes(self) -> tuple[int, ...]:
        return tuple(sum(c.passes[order] for c in self.components) for order in ORDERS)

    def within(self, max_cells: float, max_pass: float) -> bool:
        """Returns whether the tree as it is respects both bounds."""
        cells = min(self.cells)
        fewest = min(passes for size, passes in zip(self.cells, self.passes, strict=True) if size == cells)
        return cells <= max_cells and fewest <= max_pass

    def holds(self, mask: int) -> bool:
        """Returns whether a measured clique contains this one."""
        return any(mask & m == mask for m in self.holding[(mask & -mask).bit_length() - 1]) if mask else True

    # What fits --------------------------------------------------------------------------------------------------------

    def fits(self, mask: int, max_cells: float, max_pass: float, most: int | None = None) -> bool:
        """Returns whether one more clique keeps the tree within bounds.

        Args:
            mask: the clique.
            max_cells: bound on the cells of all its cliques (`model_size`).
            max_pass: bound on the cost of a pass (`pass_cost`).
            most: where more attributes than this might have to be triangulated anew, the tree as it is, extended by
                the clique (`Extension`), is compared with the bounds in its place; None: never.
        """
        # Cheap answers first: it is inside a measured clique, or too large by itself.
        if self.holds(mask):
            return True
        if self.axes.cells(mask) > max_cells:
            return False
        # The components that it touches; their cores may be too large to be triangulated anew.
        touched = list(dict.fromkeys(self.component_of[rank] for rank in bits(mask)))
        tangled = most is not None and sum(c.core.bit_count() for c in touched) > most
        joins_too_much = tangled and len(touched) > 1 and self._is_over(mask, touched, max_pass)
        if joins_too_much and not self._extended_fits(mask, touched, max_cells, max_pass):
            return False
        # Exact answers where the change is local; else those of the extended tree.
        change = self._joined(mask, touched)
        if change is None and not tangled:
            change = self._recut(mask, touched, most)
        answer = None if change is None else self._within(mask, touched, change, max_cells, max_pass, not tangled)
        return self._extended_fits(mask, touched, max_cells, max_pass) if answer is None else answer

    def lacking(self, pairs: Codes, max_cells: float, max_pass: float, most: int) -> Flags:
        """Marks pairs that `fits` refuses, as far as arithmetic tells.

        It marks only pairs inside a component whose core is larger than `most`.

        Args:
            pairs: (k, 2) ranks, the lower one first.
            max_cells: as of `fits`.
            max_pass: as of `fits`.
            most: as of `fits`.

        Returns:
            (k,) True only if the pair does not fit.
        """
        order, out = self.cells[1] < self.cells[0], np.zeros(len(pairs), np.bool_)
        for component in self.components:
            if component.core.bit_count() <= most:
                continue
            extension = component.extension[order]
            place = np.full(len(self.adjacency), -1)
            place[extension.ranks] = np.arange(len(extension.ranks))
            first, second = place[pairs.T]
            cells, passes = extension.of_pairs[:, first, second]
            full = (self.cells[order] + cells > max_cells) | (self.passes[order] + passes > max_pass)
            out |= full & (first >= 0) & (second >= 0) & (cells > 0.0)  # a node may hold the pair already
        return out

    def _joined(self, mask: int, touched: Sequence[Component]) -> TreeChange | None:
        """Returns the change if nothing need be triangulated anew, else None.

        The clique then joins parts of components that are cliques already. Two graphs glued along a clique keep their
        triangulations, as long as at most one of them has a core: what hangs on that core is simplicial.
        """
        parts = [mask & c.mask for c in touched]
        if sum(c.core != 0 for c in touched) > 1 or not all(is_clique(self.adjacency, part) for part in parts):
            return None
        if len(touched) == 1:
            return self._unchanged(touched[0])

        def make(order: bool) -> tuple[Sequence[int], int, int, Callable[[], list[int]]]:
            gone = [p for p, c in zip(parts, touched, strict=True) if p in c.sets[order]]
            unchanged = sum(c.cells[order] for c in touched) - sum(map(self.axes.cells, gone))
            largest = max(c.largest[order] for c in touched)
            return [mask], unchanged, largest, lambda: [q for c in touched for q in c.by_order[order] if q not in gone]

        return TreeChange(
            make, all(not c.core for c in touched), self.axes, lambda order: self._bound(mask, touched, order)
        )

    def _is_over(self, mask: int, touched: Sequence[Component], max_pass: float) -> bool:
        """Returns whether joining components certainly exceeds `max_pass`.

        If it does, no bound on the cost of a pass is within it, under either order.

        `_bound` is at least this, and so is the coarser one of `_within`: no answer is yes before the extended tree's.
        """
        node_cost = (FIXED_PASSES + 2) * self.axes.cells(mask)
        return all(
            self.passes[order] + sum(c.pass_bound[order] - c.passes[order] for c in touched) + node_cost > max_pass
            for order in ORDERS
        )

    def _bound(self, mask: int, touched: Sequence[Component], order: bool) -> int:
        """Returns a bound on the cost of a pass in joined components.

        It uses that a node's parent is one of its neighbours.
        """
        cells, parent, more = self.axes.cells(mask), 0, 0
        for component in touched:
            for clique, largest in component.neighbours[order].items():
                if clique & mask:
                    parent = max(parent, self.axes.cells(clique))
                    more += max(0, cells - largest)
        return sum(c.pass_bound[order] for c in touched) + (FIXED_PASSES + 2) * cells + 2 * (parent + more)

    def _unchanged(self, component: Component) -> TreeChange:
        def make(order: bool) -> tuple[Sequence[int], int, int, Callable[[], list[int]]]:
            return [], component.cells[order], component.largest[order], lambda: list(component.by_order[order])

        return TreeChange(make, not component.core, self.axes)

    def _recut(self, mask: int, touched: Sequence[Component], most: int | None) -> TreeChange | None:
        """Returns the change, triangulated anew around the core.

        It is None if that concerns more than `most` attributes.
        """
        # All that may change: the cores, and what is eliminated after the clique's attributes.
        around = 0
        for component in touched:
            around |= component.core
            for rank in bits(mask & component.mask & ~component.core):
                around |= component.closure[rank]
        if most is not None and around.bit_count() > most:
            return None
        # The graph of those attributes, with the new clique.
        local = [0] * len(self.adjacency)
        for rank in bits(around):
            local[rank] = self.adjacency[rank] & around
        for rank in bits(mask):
            local[rank] |= mask & ~(1 << rank)
        first, core = eliminate_simplicial(local, around)
        # Cells of the cliques that stay as they were.
        unchanged = sum(
            c.fringe_cells - sum(c.fringe[rank][1] for rank in bits(around & c.mask) if rank in c.fringe)
            for c in touched
        )
        largest = max(c.largest[order] for c in touched for order in ORDERS)

        def rest() -> list[int]:
            return [q for c in touched for rank, (q, _) in c.fringe.items() if not around >> rank & 1]

        def make(order: bool) -> tuple[Sequence[int], int, int, Callable[[], list[int]]]:
            greedy = eliminate_greedily(list(local), core, self.axes, order) if core else []
            cliques = maximal([*first.values(), *greedy])
            return [q for q in cliques if not self._absorbed(q, around, touched)], unchanged, largest, rest

        return TreeChange(make, not core, self.axes)

    @staticmethod
    def _absorbed(clique: int, around: int, touched: Sequence[Component]) -> bool:
        """Returns whether an unchanged attribute's clique contains this one."""
        low = (clique & -clique).bit_length() - 1
        return any(
            clique & other == clique and other & ~around
            for component in touched
            for other in component.guests.get(low, ())
        )

    def _within(
        self,
        mask: int,
        touched: Sequence[Component],
        change: TreeChange,
        max_cells: float,
        max_pass: float,
        exactly: bool,
    ) -> bool | None:
        """Returns whether the changed tree respects both bounds.

        The cost is bounded first; it is computed only if the bounds do not tell, and if `exactly`. Otherwise the answer
        is then None.
        """
        # Cells and pass costs of the components that the clique does not touch.
        cells = [self.cells[order] - sum(c.cells[order] for c in touched) for order in ORDERS]
        passes = [self.passes[order] - sum(c.passes[order] for c in touched) for order in ORDERS]
        # The most tables that the changed part can have.
        inside = {m for rank in bits(mask) for m in self.holding[rank] if m & mask == m}
        held = sum(len(c.measured) for c in touched) - len(inside) + 1
        nodes = sum(c.mask.bit_count() for c in touched)  # a forest has no more nodes than attributes
        tables = 2 * (held + nodes)
        # Certainly within both bounds, whichever order wins.
        first = change.cells(False)
        if cells[0] + first <= max_cells and cells[1] <= cells[0] + first:
            # Whichever order wins, its cliques have no more cells than these.
            most = cells[0] + first - cells[1]
            if max(passes) + max(most, first) * (FIXED_PASSES + tables) <= max_pass:
                return True
        # Certainly beyond the cells.
        totals = [cells[0] + first, cells[1] + change.cells(True)]
        if min(totals) > max_cells:
            return False

        def cheap(order: bool) -> bool | None:
            changed_cells = change.cells(order)
            if passes[order] + changed_cells * FIXED_PASSES > max_pass:
                return False
            largest = changed_cells * FIXED_PASSES + change.largest(order) * tables
            if passes[order] + (largest if change.bound is None else change.bound(order)) <= max_pass:
                return True
            if not exactly:
                return None
            measured = [*(m for c in touched for m in c.measured if m not in inside), mask]
            # All but the parents' cells follows from the cliques, and a parent is at most the largest neighbour.
            cliques = tuple(change.cliques(order))
            least = passes[order] + FIXED_PASSES * changed_cells + 2 * table_cells(self.axes, cliques, measured)
            if least > max_pass or least + 2 * sum(_largest_neighbours(self.axes, cliques).values()) <= max_pass:
                return least <= max_pass
            return least + 2 * parent_cells(connect(self.axes, cliques)) <= max_pass

        # The order with fewer cells wins; of equal ones `triangulate` compares the lists of cliques.
        if totals[0] != totals[1]:
            return cheap(totals[1] < totals[0])
        first_answer, second = cheap(False), cheap(True)
        if first_answer == second:  # whichever order wins, which takes long to tell
            return second
        return second if self._listed(touched, change, True) < self._listed(touched, change, False) else first_answer

    def _listed(self, touched: Sequence[Component], change: TreeChange, order: bool) -> list[int]:
        """Returns all cliques of the changed tree, listed as `triangulate` does.

        It compares the lists of equally large trees. The list is empty if both orders give the same.
        """
        if change.same and all(not c.core for c in self.components if c not in touched):
            return []
        others = [q for c in self.components if c not in touched for q in c.by_order[order]]
        return maximal([*others, *change.cliques(order)])

    def _extended_fits(self, mask: int, touched: Sequence[Component], max_cells: float, max_pass: float) -> bool:
        """Returns whether the extended tree respects both bounds.

        It is the tree as it is, with attributes carried along it and components joined by the clique.
        """
        # Carry the clique's attributes along each component's tree.
        order = self.cells[1] < self.cells[0]
        cells, passes = float(self.cells[order]), float(self.passes[order])
        for component in touched:
            part = mask & component.mask
            if part & (part - 1):
                more, longer = component.extension[order].added(part)
                cells, passes = cells + more, passes + longer
        # A node of its own joins the components.
        if len(touched) > 1:
            node_cells = self.axes.cells(mask)
            cells += node_cells
            passes += node_cells * (FIXED_PASSES + 2 + 2 * len(touched))
            passes += 2.0 * max(c.largest[order] for c in touched)
        return cells <= max_cells and passes <= max_pass
