"""Where on a junction tree a query is assembled, in which order, and what that costs: arithmetic on masks only.

A plan depends on the tree alone, so it is made once per tree and shared by every model on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from fedsyn.inference.junction_tree import ELSEWHERE, JunctionTree
from fedsyn.inference.triangulation import bits

# A query that costs more multiplications than this is worth trying every node as its root.
_SEARCH_FROM = 200_000
# Messages at one node whose orders are all tried; beyond, they are taken from the smallest.
_MOST_PERMUTED = 4


@dataclass(frozen=True)
class Assembly:
    """How P(mask | given) is formed at a node: its table, times the messages of some neighbours, one after the other.

    Attributes:
        messages: (neighbour, attributes behind it, separator) in the order of multiplication.
        have: attributes of the node's table that take part.
        after: attributes left after each multiplication.
        cost: multiplications, those for messages with more than one attribute included (the others are shared).
        peak: cells of the largest intermediate table.
        per_cell: multiplications for one cell of the query alone.
    """

    messages: tuple[tuple[int, int, int], ...]
    have: int
    after: tuple[int, ...]
    cost: float
    peak: int
    per_cell: float


class Planner:
    """Plans for the queries on one tree."""

    def __init__(self, tree: JunctionTree) -> None:
        self.tree = tree
        self._assemblies: dict[tuple[int, int, int], Assembly] = {}
        self._roots: dict[int, int] = {}

    def assembly(self, node: int, mask: int, given: int) -> Assembly:
        """The cheapest order for P(mask | given) at a node whose clique contains `given` (0: the marginal)."""
        key = (node, mask, given)
        if key not in self._assemblies:
            self._assemblies[key] = self._plan(node, mask, given)
        return self._assemblies[key]

    def root(self, mask: int) -> int:
        """The node at which a query that lies in one component, but in no single node, is assembled.

        First guess: the fewest attributes in one message (a message with one attribute serves many queries), then the
        fewest messages, then the fewest cells. Where that is costly, the cheapest of all nodes.
        """
        if mask not in self._roots:
            guess = min(self._guesses(mask))[3]
            if self.assembly(guess, mask, 0).cost > _SEARCH_FROM:
                nodes = [score[3] for score in self._guesses(mask, everywhere=True)]
                guess = min(nodes, key=lambda n: (self.assembly(n, mask, 0).cost, n != guess, n))
            self._roots[mask] = guess
        return self._roots[mask]

    def _guesses(self, mask: int, everywhere: bool = False) -> list[tuple[int, int, int, int]]:
        tree, out = self.tree, []
        nodes: Iterable[int] = range(len(tree.cliques))
        if (
            mask.bit_count() == 2 and not everywhere
        ):  # one message with one attribute, at a node that has the other: none is better
            nodes = sorted({node for rank in bits(mask) for node in tree.holding[rank]})
        for node in nodes:
            clique = tree.cliques[node]
            groups = tree.groups(node, mask)
            if ELSEWHERE in groups:
                continue
            widest, needed = 0, mask & clique
            for other, group in groups.items():
                widest = max(widest, group.bit_count())
                needed |= clique & tree.cliques[other]
            out.append((widest, len(groups), tree.axes.cells(needed), node))
        return out

    def _plan(self, node: int, mask: int, given: int) -> Assembly:
        tree, clique = self.tree, self.tree.cliques[node]
        messages = [
            (other, part, clique & tree.cliques[other]) for other, part in sorted(tree.groups(node, mask).items())
        ]
        have = needed = (mask & clique) | given
        below, below_cell = 0.0, 0.0
        for other, part, link in messages:
            have |= link
            if part.bit_count() > 1:
                plan = self.assembly(other, part, link)
                below += plan.cost
                below_cell += plan.per_cell
        if len(messages) <= _MOST_PERMUTED:
            orders = list(permutations(messages))
        else:
            orders = [tuple(sorted(messages, key=lambda m: (tree.axes.cells(m[1] | m[2]), m)))]
        options = [self._follow(order, have, needed, (below, below_cell), mask) for order in orders]
        return min(options, key=lambda a: (a.cost, a.peak))

    def _follow(
        self,
        order: tuple[tuple[int, int, int], ...],
        have: int,
        needed: int,
        below: tuple[float, float],
        query: int,
    ) -> Assembly:
        cells = self.tree.axes.cells
        table, after, peak = have, [], 0
        cost = below[0] + cells(have)
        per_cell = below[1] + cells(have & ~query)
        for index, (_, part, _) in enumerate(order):
            needed |= part
            cost += cells(table | part)
            per_cell += cells(table & ~query)
            table = needed
            for _, _, link in order[index + 1 :]:
                table |= link
            after.append(table)
            # Writing an intermediate table costs more than multiplying into it.
            cost += 4 * cells(table)
            peak = max(peak, cells(table))
        return Assembly(order, have, tuple(after), cost, peak, per_cell)


@lru_cache(maxsize=32)
def planner_of(tree: JunctionTree) -> Planner:
    return Planner(tree)
