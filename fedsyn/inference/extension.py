"""A junction tree that holds one more clique, without a new triangulation.

Such a tree always exists: carry one of two attributes along the tree as it is, into every node on the way to the other.
Its cost bounds the cost of the best tree, and for all pairs at once it is arithmetic on an array of sums along paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fedsyn.domain import Floats
from fedsyn.inference.junction_tree import FIXED_PASSES, JunctionTree, bits, table_counts


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
        """Cells and pass cost on the way between attributes, (2, k, k).

        They are the least sums along a path from a node with one attribute to a node with the other, without the first
        node's. Nodes with one attribute are connected, so the least sum is that of the shortest way.
        """
        # Sums of cells and pass costs along the path between any two nodes, parents first.
        weights = np.stack([self.cells, self.passes])
        count = len(self.cells)
        sums = np.zeros((2, count, count))
        for node, parent in enumerate(self.tree.parents):  # parents come first
            sums[:, node, node] = weights[:, node]
            if parent >= 0:
                sums[:, node, :node] = sums[:, parent, :node] + weights[:, node, None]
                sums[:, :node, node] = sums[:, node, :node]
        # The first node of a path does not count.
        sums -= weights[:, :, None]
        # Least sum from any node with one attribute to any node with the other.
        holders = [self.tree.holding[rank] for rank in self.ranks]
        flat = np.concatenate([np.array(nodes) for nodes in holders])
        starts = np.cumsum([0, *(len(nodes) for nodes in holders)])[:-1]
        from_each = np.minimum.reduceat(sums[:, flat], starts, axis=1)
        out: Floats = np.minimum.reduceat(from_each[:, :, flat], starts, axis=2)
        return out

    def added(self, mask: int) -> tuple[float, float]:
        """Returns the cells and pass cost that carrying attributes adds.

        They are carried until some node holds all of `mask`. The clique's table counts, too. Of a pair the cheaper
        attribute is carried to the other. Of more, all others go to the nodes of the first, and each node on the way
        counts as if all of them went through it.
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
        """Result of `added` for each pair of attributes, (2, k, k).

        The attribute of the lower rank is the first index.
        """
        sizes = np.array([self.tree.axes.sizes[rank] for rank in self.ranks], np.float64)
        there = self.between * (sizes - 1.0)[:, None]
        back = there.transpose(0, 2, 1)
        cells, passes = np.where(there[0] <= back[0], there, back)
        return np.stack([cells, passes + 2.0 * (float(self.cells.max()) + cells + np.multiply.outer(sizes, sizes))])

    def _table(self, added: float, mask: int) -> float:
        """Returns a bound on the cost of the clique's own table.

        It is twice the cells of the node that holds it.
        """
        return 2.0 * (float(self.cells.max()) + added + self.tree.axes.cells(mask))
