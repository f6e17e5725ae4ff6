"""Junction trees: which clique is joined to which, how a query travels, and what a tree costs before it is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush

from fedsyn.domain import Clique, Domain
from fedsyn.inference.triangulation import Axes, axes_of, bits, maximal, triangulate

# Passes over the cells of a tree clique that every calibration makes: maximum, subtraction, exp, sum, product.
FIXED_PASSES = 5
# Where an attribute lies, seen from a node, when it is not behind a neighbour.
HERE, ELSEWHERE = -1, -2


@dataclass(frozen=True)
class JunctionTree:
    """A rooted junction forest over the whole domain, one tree per connected component.

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
        """The node with the fewest cells whose clique contains `mask`; -1 where none does."""
        best = -1
        for node in self.holding[(mask & -mask).bit_length() - 1] if mask else range(len(self.cliques)):
            if mask & self.cliques[node] == mask and (best < 0 or self.cells[node] < self.cells[best]):
                best = node
        return best

    @cached_property
    def holding(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each rank is in, ascending."""
        out: list[list[int]] = [[] for _ in self.axes.sizes]
        for node, mask in enumerate(self.cliques):
            for rank in bits(mask):
                out[rank].append(node)
        return tuple(map(tuple, out))

    @cached_property
    def root_of(self) -> tuple[int, ...]:
        """For each node the root of its component."""
        root: list[int] = []
        for node, parent in enumerate(self.parents):
            root.append(node if parent < 0 else root[parent])
        return tuple(root)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """For each rank the root of its component."""
        return tuple(self.root_of[nodes[0]] for nodes in self.holding)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            nodes + ((parent,) if parent >= 0 else ())
            for nodes, parent in zip(self.children, self.parents, strict=True)
        )

    @cached_property
    def directions(self) -> tuple[tuple[int, ...], ...]:
        """For each node and rank: the neighbour behind which the attribute lies, or HERE, or ELSEWHERE."""
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
        """Attributes of `mask` outside the node by where they lie: neighbour (or ELSEWHERE) -> mask."""
        out: dict[int, int] = {}
        row = self.directions[node]
        for rank in bits(mask & ~self.cliques[node]):
            out[row[rank]] = out.get(row[rank], 0) | 1 << rank
        return out

    def components(self, mask: int) -> list[int]:
        """The parts of `mask` that lie in different components of the forest, in a fixed order."""
        out = []
        while mask:
            row = self.directions[self.containing(mask & -mask)]
            part = sum(1 << rank for rank in bits(mask) if row[rank] != ELSEWHERE)
            out.append(part)
            mask &= ~part
        return out


def connect(axes: Axes, cliques: tuple[int, ...]) -> JunctionTree:
    """Maximum spanning forest of the clique graph by shared attributes (Prim), roots the largest cliques."""
    ordered = sorted(cliques, key=lambda mask: (-axes.cells(mask), mask))
    holding: list[list[int]] = [[] for _ in axes.sizes]
    for node, mask in enumerate(ordered):
        for rank in bits(mask):
            holding[rank].append(node)
    order: list[int] = []
    parents: list[int] = []
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
    masks = tuple(ordered[i] for i in order)
    separators = tuple(masks[node] & masks[parent] if parent >= 0 else 0 for node, parent in enumerate(parents))
    return JunctionTree(axes, masks, tuple(parents), separators)


_build = lru_cache(maxsize=256)(connect)


def build_tree(axes: Axes, masks: Iterable[int]) -> JunctionTree:
    """Junction tree in which every mask is inside some node."""
    return _build(axes, triangulate(axes, masks))


def model_size(domain: Domain, cliques: Sequence[Clique]) -> int:
    """Cells of all cliques of the junction tree of a model with these cliques.

    Unmeasured attributes are included, and the cliques of the domain's structural zeros.
    """
    axes = axes_of(domain)
    return sum(axes.cells(mask) for mask in triangulate(axes, [*map(axes.mask, cliques), *axes.zeros]))


def table_counts(tree: JunctionTree, measured: Iterable[int]) -> list[int]:
    """Tables that a pass adds to each node and sums out of it: those of separators and of measured cliques."""
    tables = [0] * len(tree.cliques)
    for mask in measured:
        tables[tree.containing(mask)] += 1
    for parent in tree.parents:
        if parent >= 0:
            tables[parent] += 1
    return tables


def table_cells(tree: JunctionTree, measured: Iterable[int]) -> int:
    """Cells of the nodes of all measured cliques' tables, each at the smallest that holds it."""
    cells, cliques, holding = tree.cells, tree.cliques, [list[int]() for _ in tree.axes.sizes]
    smallest_first = sorted(range(len(cells)), key=cells.__getitem__)
    for node in smallest_first:
        for rank in bits(cliques[node]):
            holding[rank].append(node)
    found = 0
    for mask in measured:
        for node in holding[(mask & -mask).bit_length() - 1] if mask else smallest_first:
            if mask & cliques[node] == mask:
                found += cells[node]
                break
    return found


def tree_cost(tree: JunctionTree, measured: Iterable[int]) -> int:
    """What a pass over a tree costs (`pass_cost`), exactly: that of `table_counts`, without knowing them of each."""
    separators = sum(tree.cells[parent] for parent in tree.parents if parent >= 0)
    return FIXED_PASSES * sum(tree.cells) + 2 * (separators + table_cells(tree, measured))


def pass_cost(domain: Domain, cliques: Sequence[Clique]) -> float:
    """Cells that one calibration pass touches for a model with these cliques; about proportional to its time.

    Each tree clique is read or written a fixed number of times, and twice more (to add a table, to sum it out) for
    each separator and each maximal measured clique that it holds.
    """
    axes = axes_of(domain)
    measured = maximal([*map(axes.mask, cliques), *axes.zeros])
    tree = build_tree(axes, measured)
    return float(tree_cost(tree, measured))
