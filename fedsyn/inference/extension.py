"""What a junction tree costs when it is extended by a clique, its shape kept: a bound for trees that are too tangled.

Where measured cliques form many cycles, a new one can change a whole triangulation. A tree that holds the clique is
always there all the same: carry one of two attributes along the tree, into every node on the way to the other. For all
pairs of attributes at once that is arithmetic on an array of sums along paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedsyn.inference.junction_tree import FIXED_PASSES, JunctionTree, table_counts
from fedsyn.inference.triangulation import bits

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
    def by_cells(self) -> Floats:
        """(k, k) cells of the nodes on the way from each attribute's nodes to each other's, the first node left out."""
        return self._between(self.cells)

    @cached_property
    def by_passes(self) -> Floats:
        """(k, k) the same sums of what a pass costs at those nodes."""
        return self._between(self.passes)

    def added(self, mask: int) -> tuple[float, float]:
        """Cells, and cost of a pass, that carrying attributes adds until some node holds all of `mask`, its table too.

        Of a pair the cheaper one is carried to the other. Of more, all others go to the nodes of the first, and each
        node on the way counts as if all of them went through it.
        """
        ranks = sorted(bits(mask))
        sizes = [self.tree.axes.sizes[rank] for rank in ranks]
        at = [self.position[rank] for rank in ranks]
        if len(ranks) == 2:
            carried = [(self.by_cells[at[i], at[1 - i]] * (sizes[i] - 1), i) for i in (0, 1)]
            cells, i = min(carried)
            passes = self.by_passes[at[i], at[1 - i]] * (sizes[i] - 1)
            return float(cells), float(passes) + self._table(float(cells), mask)
        cells = passes = 0.0
        for i in range(1, len(ranks)):
            growth = (sizes[i] - 1) * math.prod(sizes[1:]) // sizes[i]
            cells += self.by_cells[at[i], at[0]] * growth
            passes += self.by_passes[at[i], at[0]] * growth
        return float(cells), float(passes) + self._table(float(cells), mask)

    def _table(self, added: float, mask: int) -> float:
        """Cost of the clique's own table: twice the cells of its node, which has no more than these."""
        return 2.0 * (float(self.cells.max()) + added + self.tree.axes.cells(mask))

    def _between(self, weights: Floats) -> Floats:
        """(k, k) least sum of the weights along a path from a node with one attribute to a node with the other.

        Without the first node's. Nodes with one attribute are connected, so the least sum is that of the shortest way.
        """
        count = len(weights)
        sums = np.zeros((count, count))
        for node, parent in enumerate(self.tree.parents):  # parents come first
            sums[node, node] = weights[node]
            if parent >= 0:
                sums[node, :node] = sums[parent, :node] + weights[node]
                sums[:node, node] = sums[node, :node]
        sums -= weights[:, None]
        holders = [[n for n, mask in enumerate(self.tree.cliques) if mask >> rank & 1] for rank in self.ranks]
        flat = np.concatenate([np.array(nodes) for nodes in holders])
        starts = np.cumsum([0, *(len(nodes) for nodes in holders)])[:-1]
        from_each = np.minimum.reduceat(sums[flat], starts, axis=0)
        out: Floats = np.minimum.reduceat(from_each[:, flat], starts, axis=1)
        return out
