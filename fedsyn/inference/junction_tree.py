"""Junction trees: triangulation, the links between cliques, and costs before building.

Attributes are handled as RANKS: their position when the domain is sorted by cardinality (ties by domain order). A
clique is a bit mask over ranks or an ascending tuple of them, so the axes of every table go from the smallest to the
largest cardinality: the innermost loop of each NumPy kernel is the longest one (twice as fast on large cliques), and a
separator's table broadcasts against its clique's by inserting axes of length one, never by a transpose.

Sources: Lauritzen & Spiegelhalter 1988; greedy elimination orders as in Koller & Friedman 2009, section 9.4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush

import numpy as np

from fedsyn.domain import Clique, Domain, Flags

# Cliques whose bits and cells are kept: the neighbours of an attribute are looked at again and again.
_KEPT = 1 << 15


@lru_cache(maxsize=_KEPT)
def bits(mask: int) -> tuple[int, ...]:
    """Returns positions of the set bits, ascending."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return tuple(out)


class _Cells(dict[int, int]):
    """Cells of masks, computed when they are first looked up.

    Planning looks them up millions of times: a dictionary that fills itself does it without a call of Python's.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes

    def __missing__(self, mask: int) -> int:
        if len(self) >= _KEPT:
            self.clear()
        cells = self[mask] = math.prod(self.sizes[rank] for rank in bits(mask))
        return cells


@dataclass(frozen=True)
class Axes:
    """Translation between the attribute names of a domain and ranks."""

    domain: Domain

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Domain column of each rank."""
        shape = self.domain.sizes
        return tuple(sorted(range(len(shape)), key=lambda i: (shape[i], i)))

    @cached_property
    def rank(self) -> dict[str, int]:
        names = self.domain.names
        return {names[column]: rank for rank, column in enumerate(self.order)}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Cardinality of each rank."""
        return tuple(self.domain.sizes[column] for column in self.order)

    @cached_property
    def zeros(self) -> dict[int, Flags]:
        """Structural zeros by mask, axes by rank.

        All zeros of one clique are joined.
        """
        out: dict[int, Flags] = {}
        for clique, cells in self.domain.zeros:
            order = sorted(range(len(clique)), key=lambda axis: self.rank[clique[axis]])
            table = np.ascontiguousarray(cells.transpose(order))
            mask = self.mask(clique)
            out[mask] = out[mask] | table if mask in out else table
        return out

    def impossible(self, mask: int) -> Flags | None:
        """Returns `Domain.impossible` of a clique, axes by rank."""
        if not self.domain.zeros or not mask:
            return None
        return self.domain.impossible([self.domain.names[self.order[rank]] for rank in bits(mask)])

    @cached_property
    def hidden(self) -> int:
        """Bit mask of the hidden attributes."""
        return self.mask(name for name, _ in self.domain.hidden)

    def mask(self, clique: Iterable[str]) -> int:
        """Returns the bit mask of a clique; KeyError for an unknown attribute."""
        out = 0
        for name in clique:
            out |= 1 << self.rank[name]
        return out

    def clique(self, mask: int) -> Clique:
        """Returns the clique of a mask, in domain order."""
        names = self.domain.names
        return tuple(names[column] for column in sorted(self.order[rank] for rank in bits(mask)))

    def by_rank(self, mask: int) -> Clique:
        """Returns the clique of a mask, in its tables' order."""
        return tuple(self.domain.names[self.order[rank]] for rank in bits(mask))

    @cached_property
    def cells(self) -> Callable[[int], int]:
        """Returns the cells of a mask's table."""
        return _Cells(self.sizes).__getitem__

    def shape(self, mask: int) -> tuple[int, ...]:
        return tuple(self.sizes[rank] for rank in bits(mask))


@lru_cache(maxsize=64)
def axes_of(domain: Domain) -> Axes:
    return Axes(domain)


def maximal(masks: Iterable[int]) -> list[int]:
    """Returns the masks that no other mask contains.

    None is repeated. Their order is fixed, larger ones first.
    """
    out: list[int] = []
    holding: dict[int, list[int]] = {}  # whatever contains a mask has its lowest bit, too
    # Larger masks first, so that whatever contains a mask is there before it.
    for mask in sorted(set(masks), key=lambda m: (-m.bit_count(), m)):
        candidates = holding.get(bits(mask)[0], ()) if mask else out
        if not any(mask & other == mask for other in candidates):
            out.append(mask)
            for rank in bits(mask):
                holding.setdefault(rank, []).append(mask)
    return out


def adjacency_of(count: int, masks: Iterable[int]) -> list[int]:
    """Returns the neighbours of each rank in the cliques' graph.

    The graph joins the attributes of each mask.
    """
    adjacency = [0] * count
    for mask in masks:
        for rank in bits(mask):
            adjacency[rank] |= mask
    return [mask & ~(1 << rank) for rank, mask in enumerate(adjacency)]


def is_clique(adjacency: Sequence[int], mask: int) -> bool:
    """Returns whether every two vertices of a mask are neighbours."""
    while mask:  # each is compared with those after it
        low = mask & -mask
        mask ^= low
        if mask & ~adjacency[low.bit_length() - 1]:
            return False
    return True


def _remove(adjacency: list[int], rank: int) -> None:
    keep = ~(1 << rank)
    for other in bits(adjacency[rank]):
        adjacency[other] &= keep


def eliminate_simplicial(adjacency: list[int], alive: int, queue: int | None = None) -> tuple[dict[int, int], int]:
    """Removes every vertex whose neighbours already form a clique.

    This adds no fill, so no heuristic can do better.

    Args:
        adjacency: neighbours of each rank.
        alive: vertices that are left.
        queue: those of them that may be simplicial; None: any.

    Returns:
        The clique of each vertex that was removed, in that order, and the mask of the vertices that are left, which
        are the same in every order; `adjacency` is changed in place.
    """
    cliques: dict[int, int] = {}
    queue = alive if queue is None else queue
    while queue:
        # Take one vertex out of the queue; it is simplicial if its neighbours form a clique.
        low = queue & -queue
        queue ^= low
        rank = low.bit_length() - 1
        neighbours = adjacency[rank]
        if not is_clique(adjacency, neighbours):
            continue
        cliques[rank] = neighbours | low
        _remove(adjacency, rank)
        alive ^= low
        queue |= neighbours & alive  # losing a neighbour may make them simplicial
    return cliques, alive


def eliminate_greedily(adjacency: list[int], alive: int, axes: Axes, by_fill: bool) -> list[int]:
    """Returns the cliques of a greedy elimination.

    The vertex with the fewest fill edges, or with the smallest clique, goes first; ties are broken by the other number,
    then by rank.

    What a vertex costs is kept until its neighbours, or the edges between them, change; where the smallest clique goes
    first, fill edges are counted for ties only. `adjacency` is changed in place.
    """
    cliques: list[int] = []
    # Cost of every vertex: the cells of its clique, and its fill edges.
    weights = {rank: axes.cells(adjacency[rank] | 1 << rank) for rank in bits(alive)}
    fills = {rank: _fill(adjacency, rank) for rank in weights} if by_fill else {}
    while alive:
        # Choose the cheapest vertex under this order.
        if by_fill:
            least = min(fills.values())
            rank = min((weights[r], r) for r, fill in fills.items() if fill == least)[1]
        else:
            smallest = min(weights.values())
            ties = [r for r, weight in weights.items() if weight == smallest]
            rank = ties[0] if len(ties) == 1 else min((_fill(adjacency, r), r) for r in ties)[1]
        # Remove it, and join its neighbours into a clique.
        neighbours = adjacency[rank]
        cliques.append(neighbours | 1 << rank)
        _remove(adjacency, rank)
        changed = neighbours
        for other in bits(neighbours):
            missing = neighbours & ~(1 << other) & ~adjacency[other]
            if missing:
                adjacency[other] |= missing
                for end in bits(missing):  # whoever sees both ends has one fill edge less
                    changed |= adjacency[other] & adjacency[end]
        # Whatever became simplicial goes at once, without fill.
        alive ^= 1 << rank
        simplicial, left = eliminate_simplicial(adjacency, alive, queue=changed & alive)
        for clique in simplicial.values():
            changed |= clique
        cliques += simplicial.values()
        for gone in bits((alive ^ left) | 1 << rank):
            del weights[gone]
            fills.pop(gone, None)
        alive = left
        # Costs change only around what was removed or joined.
        for other in bits(changed & alive):
            weights[other] = axes.cells(adjacency[other] | 1 << other)
            if by_fill:
                fills[other] = _fill(adjacency, other)
    return cliques


def _fill(adjacency: list[int], rank: int) -> int:
    """Counts edges that eliminating a vertex would add, from both ends."""
    neighbours, missing = adjacency[rank], 0
    for other in bits(neighbours):
        missing += (neighbours & ~adjacency[other]).bit_count() - 1  # none is a neighbour of its own
    return missing


@lru_cache(maxsize=8192)
def _triangulate(axes: Axes, masks: tuple[int, ...]) -> tuple[int, ...]:
    count = len(axes.sizes)
    adjacency = adjacency_of(count, masks)
    # Simplicial attributes need no fill; what is left of them is the core.
    first, alive = eliminate_simplicial(adjacency, (1 << count) - 1)
    if not alive:
        return tuple(maximal(first.values()))
    options = []
    # The better of two greedy orders for the core, by total cells.
    for by_fill in (False, True):
        cliques = maximal([*first.values(), *eliminate_greedily(list(adjacency), alive, axes, by_fill)])
        options.append((sum(axes.cells(c) for c in cliques), cliques))
    return tuple(min(options)[1])


def triangulate(axes: Axes, masks: Iterable[int]) -> tuple[int, ...]:
    """Returns the maximal cliques of a triangulation.

    The graph is that of the cliques over the WHOLE domain. Simplicial attributes go first, then the better (fewer cells
    in total) of two greedy elimination orders. An attribute in no clique becomes a clique of its own. The result does
    not depend on the order of `masks`.
    """
    return _triangulate(axes, tuple(maximal(masks)))


# The tree -------------------------------------------------------------------------------------------------------------


# Passes over the cells of a tree clique that every calibration makes: maximum, subtraction, exp, sum, product.
FIXED_PASSES = 5
# Where an attribute lies, seen from a node, when it is not behind a neighbour.
HERE, ELSEWHERE = -1, -2


@dataclass(frozen=True)
class JunctionTree:
    """A rooted junction forest over the whole domain: one tree per component.

    Attributes:
        axes: names and cardinalities of the ranks.
        cliques: mask of each node; parents come before children.
        parents: parent node of each node, -1 for a root.
        separators: mask shared with the parent, 0 for a root.
    """

    axes: Axes
    cliques: tuple[int, ...]
    parents: tuple[int, ...]
    separators: tuple[int, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        out: list[list[int]] = [[] for _ in self.cliques]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                out[parent].append(node)
        return tuple(tuple(nodes) for nodes in out)

    @cached_property
    def cells(self) -> tuple[int, ...]:
        return tuple(self.axes.cells(mask) for mask in self.cliques)

    def containing(self, mask: int) -> int:
        """Returns the node of fewest cells whose clique contains `mask`.

        The result is -1 if none does.
        """
        best = -1
        for node in self.holding[(mask & -mask).bit_length() - 1] if mask else range(len(self.cliques)):
            if mask & self.cliques[node] == mask and (best < 0 or self.cells[node] < self.cells[best]):
                best = node
        return best

    @cached_property
    def holding(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that each rank is in, ascending."""
        out: list[list[int]] = [[] for _ in self.axes.sizes]
        for node, mask in enumerate(self.cliques):
            for rank in bits(mask):
                out[rank].append(node)
        return tuple(map(tuple, out))

    @cached_property
    def root_of(self) -> tuple[int, ...]:
        """The root of each node's component."""
        root: list[int] = []
        for node, parent in enumerate(self.parents):
            root.append(node if parent < 0 else root[parent])
        return tuple(root)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The root of each rank's component."""
        return tuple(self.root_of[nodes[0]] for nodes in self.holding)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            nodes + ((parent,) if parent >= 0 else ())
            for nodes, parent in zip(self.children, self.parents, strict=True)
        )

    @cached_property
    def directions(self) -> tuple[tuple[int, ...], ...]:
        """Neighbour behind which each attribute lies, seen from each node.

        HERE stands for an attribute of the node, ELSEWHERE for one in another component.
        """
        count = len(self.axes.sizes)
        out = [[ELSEWHERE] * count for _ in self.cliques]
        for rank in range(count):
            front = [node for node, mask in enumerate(self.cliques) if mask >> rank & 1]
            for node in front:
                out[node][rank] = HERE
            while front:
                reached = []
                for node in front:
                    for other in self.neighbours[node]:
                        if out[other][rank] == ELSEWHERE:
                            out[other][rank] = node
                            reached.append(other)
                front = reached
        return tuple(map(tuple, out))

    def groups(self, node: int, mask: int) -> dict[int, int]:
        """Groups the attributes outside a node by where they lie.

        It maps a neighbour, or ELSEWHERE, to a mask.
        """
        out: dict[int, int] = {}
        row = self.directions[node]
        for rank in bits(mask & ~self.cliques[node]):
            out[row[rank]] = out.get(row[rank], 0) | 1 << rank
        return out

    def components(self, mask: int) -> list[int]:
        """Splits `mask` by the components of the forest.

        The parts come in a fixed order.
        """
        out = []
        while mask:
            row = self.directions[self.containing(mask & -mask)]
            part = sum(1 << rank for rank in bits(mask) if row[rank] != ELSEWHERE)
            out.append(part)
            mask &= ~part
        return out


def connect(axes: Axes, cliques: tuple[int, ...]) -> JunctionTree:
    """Links cliques into a maximum spanning forest (Prim).

    A link weighs as much as attributes are shared. Roots are the largest cliques.
    """
    ordered = sorted(cliques, key=lambda mask: (-axes.cells(mask), mask))
    # The nodes that hold each attribute: only they can share it with another clique.
    holding: list[list[int]] = [[] for _ in axes.sizes]
    for node, mask in enumerate(ordered):
        for rank in bits(mask):
            holding[rank].append(node)
    order: list[int] = []
    parents: list[int] = []
    # Prim's algorithm, tree by tree: the link with most shared attributes comes next.
    placed, nearest = [False] * len(ordered), [0] * len(ordered)
    for start in range(len(ordered)):  # a root is the largest clique that no other root reached
        if placed[start]:
            continue
        # Links of cliques that touch the tree: (-attributes shared, position of the parent in `order`, itself).
        links = [(0, 0, start)]
        while links:
            minus_shared, parent, node = heappop(links)
            if placed[node]:
                continue
            placed[node] = True
            parents.append(parent if minus_shared else -1)
            # What shares attributes of the parent alone shares as many with the parent: only new ones bring nearer.
            new = ordered[node] & ~ordered[order[parent]] if minus_shared else ordered[node]
            order.append(node)
            for other in {n for rank in bits(new) for n in holding[rank]}:
                shared = (ordered[node] & ordered[other]).bit_count()
                if shared > nearest[other] and not placed[other]:  # as near an earlier one comes first
                    nearest[other] = shared
                    heappush(links, (-shared, len(order) - 1, other))
    # Nodes in the order in which they were placed: parents come before children.
    masks = tuple(ordered[i] for i in order)
    separators = tuple(masks[node] & masks[parent] if parent >= 0 else 0 for node, parent in enumerate(parents))
    return JunctionTree(axes, masks, tuple(parents), separators)


_build = lru_cache(maxsize=256)(connect)


def build_tree(axes: Axes, masks: Iterable[int]) -> JunctionTree:
    """Returns a junction tree in which every mask is inside some node."""
    return _build(axes, triangulate(axes, masks))


def model_size(domain: Domain, cliques: Sequence[Clique]) -> int:
    """Returns the cells of a model's junction tree.

    The model has these cliques. All cliques of the tree count, those of unmeasured attributes and of the domain's
    structural zeros included.
    """
    axes = axes_of(domain)
    return sum(axes.cells(mask) for mask in triangulate(axes, [*map(axes.mask, cliques), *axes.zeros]))


def table_counts(tree: JunctionTree, measured: Iterable[int]) -> list[int]:
    """Returns how many tables a pass handles at each node.

    They are those of separators and of measured cliques, added and summed out.
    """
    tables = [0] * len(tree.cliques)
    for mask in measured:
        tables[tree.containing(mask)] += 1
    for parent in tree.parents:
        if parent >= 0:
            tables[parent] += 1
    return tables


def table_cells(axes: Axes, cliques: Sequence[int], measured: Iterable[int]) -> int:
    """Returns the cells of the nodes that measured cliques lie at.

    Each lies at the smallest node that holds it: at itself, if it is one.
    """
    cells = {clique: axes.cells(clique) for clique in cliques}
    rest = list[int]()
    total = 0
    for mask in measured:
        if mask in cells:
            total += cells[mask]
        else:
            rest.append(mask)
    if rest:
        smallest_first = sorted(cells, key=cells.__getitem__)
        holding: dict[int, list[int]] = {mask & -mask: [] for mask in rest}
        for lowest, holders in holding.items():
            holders.extend(clique for clique in smallest_first if clique & lowest == lowest)
        for mask in rest:
            total += next((cells[clique] for clique in holding[mask & -mask] if mask & clique == mask), 0)
    return total


def parent_cells(tree: JunctionTree) -> int:
    """Returns the cells of each node's parent, added up."""
    return sum(tree.cells[parent] for parent in tree.parents if parent >= 0)


def tree_cost(tree: JunctionTree, measured: Iterable[int]) -> int:
    """Returns the exact cost of a pass over a tree.

    It equals `pass_cost`, without the `table_counts` of each node.
    """
    tables = table_cells(tree.axes, tree.cliques, measured)
    return FIXED_PASSES * sum(tree.cells) + 2 * (parent_cells(tree) + tables)


def pass_cost(domain: Domain, cliques: Sequence[Clique]) -> float:
    """Returns the cells that one calibration pass touches.

    The model has these cliques. The time of a pass is about proportional.

    Each tree clique is read or written a fixed number of times, and twice more (to add a table, to sum it out) for
    each separator and each maximal measured clique that it holds.
    """
    axes = axes_of(domain)
    measured = maximal([*map(axes.mask, cliques), *axes.zeros])
    tree = build_tree(axes, measured)
    return float(tree_cost(tree, measured))
