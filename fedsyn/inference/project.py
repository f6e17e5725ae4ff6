"""Marginals of any clique, by variable elimination on a calibrated tree.

A clique inside a node is summed out of the smallest node that holds it. Any other is assembled at one node (the root of
the query): every neighbour in whose direction some of its attributes lie sends P(those attributes | separator), a table
that depends on nothing else in the query, so the queries of one round share them. All factors are probabilities, each
at most one, so nothing cancels and a conditional on an impossible cell is zero.

Products are `einsum`, not BLAS, which adds in an order that depends on its kernel and on its number of threads: a
result has the same bits in one process, on a worker with one thread, and on another processor's kernel. BLAS would be
about twice as fast on one thread where nothing but projecting is timed; whole runs cost the same (measured).

Where on a junction tree a query is assembled, in which order, and what that costs: arithmetic on masks only.

A plan depends on the tree alone, so it is made once per tree and shared by every model on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from fedsyn.inference.calibrate import Calibrator, broadcast_shape, sum_out
from fedsyn.inference.junction_tree import ELSEWHERE, Axes, JunctionTree, bits

# A query that costs more multiplications than this is worth trying every node as its root.
_SEARCH_FROM = 200_000
# Messages at one node whose orders are all tried; beyond, they are taken from the smallest.
_MOST_PERMUTED = 4


@dataclass(frozen=True)
class Assembly:
    """Order of multiplications that form P(mask | condition) at a node.

    It starts from the node's table, and multiplies by the messages of some neighbours, one after the other.

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


class QueryPlanner:
    """Plans for the queries on one tree."""

    def __init__(self, tree: JunctionTree) -> None:
        self.tree = tree
        self._assemblies: dict[tuple[int, int, int], Assembly] = {}
        self._roots: dict[int, int] = {}

    def assembly(self, node: int, mask: int, condition: int) -> Assembly:
        """Returns the cheapest order for P(mask | condition) at a node.

        The node's clique contains `condition`; 0 stands for the marginal.
        """
        key = (node, mask, condition)
        if key not in self._assemblies:
            self._assemblies[key] = self._plan(node, mask, condition)
        return self._assemblies[key]

    def root(self, mask: int) -> int:
        """Returns the node at which a query is assembled.

        The query lies in one component, but in no single node. The first guess has the fewest attributes in one message
        (a message with one attribute serves many queries), then the fewest messages, then the fewest cells. Where that
        is costly, it is the cheapest of all nodes.
        """
        if mask not in self._roots:
            guess = min(self._guesses(mask))[3]
            if self.assembly(guess, mask, 0).cost > _SEARCH_FROM:
                nodes = [score[3] for score in self._guesses(mask, everywhere=True)]
                guess = min(nodes, key=lambda n: (self.assembly(n, mask, 0).cost, n != guess, n))
            self._roots[mask] = guess
        return self._roots[mask]

    def _guesses(self, mask: int, everywhere: bool = False) -> list[tuple[int, int, int, int]]:
        tree, out = self.tree, list[tuple[int, int, int, int]]()
        if mask.bit_count() == 2 and not everywhere:  # one message with one attribute: none is better
            one, other = bits(mask)
            for rank, far in ((one, other), (other, one)):
                for node in tree.holding[rank]:
                    clique, toward = tree.cliques[node], tree.directions[node][far]
                    out.append((1, 1, tree.axes.cells(1 << rank | clique & tree.cliques[toward]), node))
            return out
        for node, clique in enumerate(tree.cliques):
            groups = tree.groups(node, mask)
            if ELSEWHERE in groups:
                continue
            widest, needed = 0, mask & clique
            for other, group in groups.items():
                widest = max(widest, group.bit_count())
                needed |= clique & tree.cliques[other]
            out.append((widest, len(groups), tree.axes.cells(needed), node))
        return out

    def _plan(self, node: int, mask: int, condition: int) -> Assembly:
        tree, clique = self.tree, self.tree.cliques[node]
        # The messages that the query needs: one for each neighbour behind which attributes lie.
        messages = [
            (other, part, clique & tree.cliques[other]) for other, part in sorted(tree.groups(node, mask).items())
        ]
        # Costs of messages of several attributes, which serve this query alone.
        have = needed = (mask & clique) | condition
        below, below_cell = 0.0, 0.0
        for other, part, link in messages:
            have |= link
            if part.bit_count() > 1:
                plan = self.assembly(other, part, link)
                below += plan.cost
                below_cell += plan.per_cell
        # All orders of few messages; of many, the smallest tables first.
        if len(messages) == 1:
            return self._follow(tuple(messages), have, needed, (below, below_cell), mask)
        if len(messages) <= _MOST_PERMUTED:
            orders = list(permutations(messages))
        else:
            orders = [tuple(sorted(messages, key=lambda m: (tree.axes.cells(m[1] | m[2]), m)))]
        options = [self._follow(order, have, needed, (below, below_cell), mask) for order in orders]
        return min(options, key=lambda a: (a.cost, a.peak))

    def _follow(
        self, order: tuple[tuple[int, int, int], ...], have: int, needed: int, below: tuple[float, float], query: int
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
def planner_of(tree: JunctionTree) -> QueryPlanner:
    return QueryPlanner(tree)


# Cells of the largest intermediate table of a projection; bounds memory.
_PEAK_CELLS = 1 << 22
# A multiplication for a single cell costs about this many of a projection's, which run in longer loops.
_CELL_COST = 2.0
# Fewest pairs across a tree that are computed in two sweeps; their last bits differ from those of one by one.
_MANY_PAIRS = 200
# Numbers that two sweeps over a tree may hold, and their products that take as long as one pair by itself (measured).
_HELD, _PRODUCTS_PER_PAIR = 1 << 26, 200_000
# A message with more cells is not kept for later queries.
_KEPT_CELLS = 1 << 20
# Layouts of products that are kept: trees of one run share most of theirs.
_KEPT_LAYOUTS = 1 << 14


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiplies (b, m, k) @ (b, k, n) without BLAS.

    So the bits are the same for every number of threads and every kernel.
    """
    _, rows, inner = left.shape
    if inner == 1:
        return np.asarray(left * right)
    if rows > right.shape[2]:  # the innermost loop runs along the longer side: up to five times faster
        return matmul(right.transpose(0, 2, 1), left.transpose(0, 2, 1)).transpose(0, 2, 1)
    product: np.ndarray = np.einsum("bmk,bkn->bmn", np.ascontiguousarray(left), np.ascontiguousarray(right))
    return product


def _arranged(table: np.ndarray, mask: int, order: tuple[int, ...]) -> np.ndarray:
    """Returns a table over `mask`, by rank, with its axes in `order`."""
    return table.transpose(tuple(map(bits(mask).index, order)))


@lru_cache(maxsize=_KEPT_LAYOUTS)
def _layout(left: int, right: int, keep: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, int, int]]:
    """Returns axes of two tables, arranged as batches of matrices.

    Axes of the left table: shared ones that stay, its own, shared ones that are summed out; of the right one: shared
    ones that stay, those that are summed out, its own; and of the product by rank. Then how many there are of the
    left table's three kinds.
    """
    shared = left & right
    both, gone = bits(shared & keep), bits(shared & ~keep)
    only_left, only_right = bits(left & ~shared), bits(right & ~shared)
    order = both + only_left + only_right
    first, second = map(bits(left).index, both + only_left + gone), map(bits(right).index, both + gone + only_right)
    back = sorted(range(len(order)), key=order.__getitem__)
    return (tuple(first), tuple(second), tuple(back)), (len(both), len(only_left), len(gone))


@dataclass(frozen=True, eq=False)
class Conditionals:
    """Distributions of some attributes, each given the same others.

    Attributes:
        ranks: of the attributes.
        table: (sum of their sizes, cells of what is given), attribute after attribute.
    """

    ranks: tuple[int, ...]
    table: np.ndarray

    @classmethod
    def joined(cls, parts: list[Conditionals]) -> Conditionals:
        """Joins distributions that are given the same attributes."""
        ranks = tuple(rank for part in parts for rank in part.ranks)
        return cls(ranks, np.concatenate([part.table for part in parts]) if parts else np.zeros((0, 1)))


def _cells_in(axes: Axes, mask: int, part: int) -> np.ndarray:
    """Returns the part's cell of each cell of a mask.

    Cells are flat, so the result is (cells of the mask,).
    """
    cells = np.arange(axes.cells(part)).reshape(broadcast_shape(axes, part, mask))
    return np.broadcast_to(cells, axes.shape(mask)).ravel()


class TreeProjector:
    """Queries on one calibrated tree.

    It keeps small tables, which later queries can use again.

    Args:
        calibrator: after `run`; must not be run again while the projector is in use.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        self.tree: JunctionTree = calibrator.tree
        self.axes = calibrator.tree.axes
        self.planner = planner_of(calibrator.tree)
        self._tables = [calibrator.node_table(node) for node in range(len(self.tree.cliques))]
        self._marginals: dict[tuple[int, int], np.ndarray] = {}
        self._messages: dict[tuple[int, int, int], np.ndarray] = {}

    def node_marginal(self, node: int, keep: int) -> np.ndarray:
        """Returns the marginal of a subset of a node's clique.

        It is remembered, and may be an internal table.

        Attributes are summed out one by one, the largest first, and each step is remembered: subsets share the large
        steps, and the bits of an answer do not depend on what was asked before.
        """
        clique = self.tree.cliques[node]
        if keep == clique:
            return self._tables[node]
        key = (node, keep)
        if key not in self._marginals:
            smallest = clique & ~keep
            wider = keep | (smallest & -smallest)
            table = self.node_marginal(node, wider)
            self._marginals[key] = sum_out(table, self.axes, wider, keep)
        return self._marginals[key]

    def conditional(self, node: int, keep: int, condition: int) -> np.ndarray:
        """Returns P(keep | condition) at a node, over `keep`.

        `keep` contains `condition`. Where the condition is impossible, the result is 0.
        """
        joint = self.node_marginal(node, keep)
        margin = self.node_marginal(node, condition).reshape(broadcast_shape(self.axes, condition, keep))
        conditional = np.zeros_like(joint)
        np.divide(joint, margin, out=conditional, where=margin > 0)
        return conditional

    def contract(self, left: np.ndarray, left_mask: int, right: np.ndarray, right_mask: int, keep: int) -> np.ndarray:
        """Multiplies two tables and sums out what is not kept.

        All attributes outside `keep` are in both tables. The result is a view with axes by rank.
        """
        (of_left, of_right, back), (kept, mine, gone) = _layout(left_mask, right_mask, keep)
        first, second = left.transpose(of_left), right.transpose(of_right)
        # As batches of matrices: one product, and back to the order of ranks. A table may be a slice, so it has sizes.
        both, rows, inner = first.shape[:kept], first.shape[kept : kept + mine], first.shape[kept + mine :]
        columns = second.shape[kept + gone :]
        b, m, k, n = map(math.prod, (both, rows, inner, columns))
        out = matmul(first.reshape(b, m, k), second.reshape(b, k, n)).reshape(both + rows + columns)
        return out.transpose(back)

    def message(self, node: int, to: int, mask: int) -> np.ndarray:
        """Returns P(mask | separator), a node's message to a neighbour.

        It is over `mask` and the separator of `node` with its neighbour `to`, with axes by rank.

        Args:
            mask: attributes on `node`'s side of the edge, none of them in the separator.
        """
        key = (node, to, mask)
        table = self._messages.get(key)
        if table is None:
            table = self._assemble(node, mask, self.tree.cliques[node] & self.tree.cliques[to])
            # One attribute given a separator comes up in many queries; larger tables are dropped with the query.
            if mask.bit_count() == 1 and table.size <= _KEPT_CELLS:
                self._messages[key] = table
        return table

    def _assemble(self, node: int, mask: int, condition: int) -> np.ndarray:
        """Returns P(mask | condition), over both.

        `condition` is a subset of the node's clique; 0 stands for the marginal.
        """
        plan = self.planner.assembly(node, mask, condition)
        table = self.conditional(node, plan.have, condition) if condition else self.node_marginal(node, plan.have)
        messages = [self.message(other, node, part) for other, part, _ in plan.messages]
        return self._multiply(plan, table, messages, plan.peak)

    def _multiply(
        self, plan: Assembly, table: np.ndarray, messages: list[np.ndarray], peak: int, sliced: int = 0
    ) -> np.ndarray:
        """Returns the product of a plan.

        Where an intermediate table would be too large, it works in slices along a query attribute.
        """
        if peak > _PEAK_CELLS and sliced < len(messages) - 1:
            _, part, link = plan.messages[sliced]
            position = bits(part | link).index(part.bit_length() - 1)  # the largest attribute the message brings
            size = messages[sliced].shape[position]
            step = max(1, size * _PEAK_CELLS // peak)
            pieces = []
            for start in range(0, size, step):
                some = list(messages)
                some[sliced] = np.take(messages[sliced], range(start, min(start + step, size)), axis=position)
                pieces.append(self._multiply(plan, table, some, peak * step // size, sliced + 1))
            return np.concatenate(pieces, axis=bits(plan.after[-1]).index(part.bit_length() - 1))
        have = plan.have
        for message, (_, part, link), after in zip(messages, plan.messages, plan.after, strict=True):
            table = self.contract(table, have, message, part | link, after)
            have = after
        return table

    def project(self, mask: int) -> np.ndarray:
        """Returns the probabilities of all cells of a clique.

        Axes are by rank; the result may be a view of an internal table.
        """
        node = self.tree.containing(mask)
        if node >= 0:
            return self.node_marginal(node, mask)
        out, have = np.ones(()), 0
        for part in self.tree.components(mask):
            inside = self.tree.containing(part)
            if inside >= 0:
                table = self.node_marginal(inside, part)
            else:
                table = self._assemble(self.planner.root(part), part, 0)
            out = self.contract(out, have, table, part, ~0) if have else table
            have |= part
        return out

    def project_pairs(self, masks: Iterable[int]) -> dict[int, np.ndarray]:
        """Projects onto pairs that lie across the tree, by mask.

        Only pairs of trees where many are wanted, and two sweeps pay, are in the result.
        """
        apart: dict[int, list[int]] = {}
        for mask in masks:
            if self.tree.containing(mask) < 0:
                first, second = bits(mask)
                root = self.tree.roots[first]
                if root == self.tree.roots[second]:
                    apart.setdefault(root, []).append(mask)
        results: dict[int, np.ndarray] = {}
        for root, pairs in sorted(apart.items()):
            nodes = [node for node in range(len(self.tree.cliques)) if self.tree.root_of[node] == root]
            if len(pairs) >= _MANY_PAIRS and self._sweeps_pay(nodes, len(pairs)):
                self._sweep(nodes, set(pairs), results)
        return results

    def _sweeps_pay(self, nodes: list[int], pairs: int) -> bool:
        """Returns whether `_sweep` has room and pays.

        It pays if it is faster than the pairs one by one.
        """
        tree, sizes = self.tree, self.axes.sizes
        cells = [self.axes.cells(link) for link in tree.separators]
        # From the leaves: values in each subtree, and what carrying them up costs.
        new_values = {n: sum(sizes[rank] for rank in bits(tree.cliques[n] & ~tree.separators[n])) for n in nodes}
        below, held, products = dict(new_values), 0, 0
        for node in reversed(nodes):
            below[node] += sum(below[child] for child in tree.children[node])
            held += below[node] * cells[node]
            products += cells[node] * sum(below[child] * cells[child] for child in tree.children[node])
        # From the root: values met before each node, and what carrying them down costs.
        met = {nodes[0]: 0}
        for node in nodes:
            products += met[node] * cells[node] * new_values[node]
            values, carried = met[node] + new_values[node], met[node] * cells[node]
            for child in tree.children[node]:
                met[child] = values
                held += values * cells[child]
                products += carried * cells[child]
                values, carried = values + below[child], carried + below[child] * cells[child]
        return held <= _HELD and products < _PRODUCTS_PER_PAIR * pairs

    def _sweep(self, nodes: list[int], wanted: set[int], results: dict[int, np.ndarray]) -> None:
        """Puts the wanted pairs of one tree into `results`.

        Node after node, parents first and each subtree as a whole, what was met before is known given the separator
        with the parent; with the node's own new attributes that gives all pairs of both kinds by one product. What was
        met in a subtree is brought back to its parent by a sweep from the leaves before.

        Args:
            nodes: of the tree, parents first.
            wanted: pairs.
            results: where they are put, axes by rank.
        """
        tree = self.tree
        new = {node: tree.cliques[node] & ~tree.separators[node] for node in nodes}
        # From the leaves: the distributions of each subtree given its separator.
        below: dict[int, Conditionals] = {}  # what a subtree has, given its separator
        for node in reversed(nodes):
            to = tree.separators[node]
            parts = [self._conditionals(node, bits(new[node]), to)]
            parts += [self._carried(below[child], node, tree.separators[child], to) for child in tree.children[node]]
            below[node] = Conditionals.joined(parts)
        # From the root: what was met before, given each separator, beside a node's new attributes.
        queue = [
            (nodes[0], Conditionals.joined([]), 0)
        ]  # with what was met before its parent, and the place among its children
        while queue:
            node, met, index = queue.pop()
            link, parent = tree.separators[node], tree.parents[node]
            if parent >= 0:
                over = tree.separators[parent]
                parts = [self._conditionals(parent, bits(tree.cliques[parent] & ~link), link)]
                if met.ranks:
                    parts.append(self._carried(met, parent, over, link))
                for other in tree.children[parent][:index]:
                    parts.append(self._carried(below[other], parent, tree.separators[other], link))
                met = Conditionals.joined(parts)
                self._write_pairs(node, met, bits(new[node]), link, wanted, results)
            queue += [(child, met, place) for place, child in enumerate(tree.children[node])]

    def _conditionals(self, node: int, ranks: tuple[int, ...], condition: int) -> Conditionals:
        """Returns distributions of a node's attributes given others of it."""
        rows = [
            _arranged(
                self.conditional(node, condition | 1 << rank, condition),
                condition | 1 << rank,
                (rank, *bits(condition)),
            )
            for rank in ranks
        ]
        cells = self.axes.cells(condition)
        return Conditionals(ranks, np.concatenate([np.zeros((0, cells)), *(row.reshape(-1, cells) for row in rows)]))

    def _carried(self, known: Conditionals, node: int, condition: int, to: int) -> Conditionals:
        """Carries known distributions from one set of conditions to another.

        Both sets are attributes of one node.
        """
        axes, both = self.axes, condition | to
        step = np.zeros((axes.cells(condition), axes.cells(to)))
        step[_cells_in(axes, both, condition), _cells_in(axes, both, to)] = self.conditional(node, both, to).ravel()
        return Conditionals(known.ranks, matmul(known.table[None], step[None])[0])

    def _write_pairs(
        self,
        node: int,
        met: Conditionals,
        new: tuple[int, ...],
        link: int,
        wanted: set[int],
        results: dict[int, np.ndarray],
    ) -> None:
        """Puts wanted pairs of met and new attributes into `results`.

        The new attributes are those of one node.
        """
        sizes = self.axes.sizes
        tables = [_arranged(self.node_marginal(node, link | 1 << y), link | 1 << y, (*bits(link), y)) for y in new]
        beside = np.concatenate([table.reshape(-1, sizes[y]) for table, y in zip(tables, new, strict=True)], axis=1)
        block = matmul(met.table[None], beside[None])[0]
        top = 0
        for x in met.ranks:
            left = 0
            for y in new:
                mask = 1 << x | 1 << y
                if mask in wanted:
                    table = block[top : top + sizes[x], left : left + sizes[y]]
                    results[mask] = (table if x < y else table.T).copy()  # a view would keep the whole block
                left += sizes[y]
            top += sizes[x]

    def at(self, mask: int, columns: dict[int, np.ndarray]) -> np.ndarray:
        """Returns probabilities of single cells of a clique.

        Args:
            mask: the clique, not empty.
            columns: for each rank of `mask`, (m,) integer values.

        Returns:
            (m,) float64.
        """
        out: np.ndarray | None = None
        for part in self.tree.components(mask):
            cells = tuple(columns[rank] for rank in bits(part))
            node = self.tree.containing(part)
            if node >= 0:
                values = self.node_marginal(node, part)[cells]
            else:
                root = self.planner.root(part)
                plan = self.planner.assembly(root, part, 0)
                if plan.cost <= _CELL_COST * plan.per_cell * len(cells[0]):
                    values = self._assemble(root, part, 0)[cells]
                else:
                    values = self._assemble_in_steps(root, part, columns)
            out = values if out is None else out * values
        assert out is not None
        return out

    def _assemble_in_steps(self, root: int, part: int, columns: dict[int, np.ndarray]) -> np.ndarray:
        """Assembles a bounded number of cells at a time."""
        plan = self.planner.assembly(root, part, 0)
        count = len(next(iter(columns.values())))
        step = max(1, int(_PEAK_CELLS / plan.per_cell))
        pieces = []
        for start in range(0, max(count, 1), step):
            some = {rank: values[start : start + step] for rank, values in columns.items()}
            pieces.append(self._assemble_at(root, part, part, 0, some))
        return np.concatenate(pieces)

    def _gather(self, table: np.ndarray, mask: int, query: int, columns: dict[int, np.ndarray]) -> np.ndarray:
        """Returns slices of a table over `mask`, (m, ...).

        The query's attributes are fixed at each cell; the others are free.
        """
        fixed = bits(mask & query)
        if not fixed:
            return table[None]
        arranged = _arranged(table, mask, fixed + bits(mask & ~query))
        entries: np.ndarray = arranged[tuple(columns[rank] for rank in fixed)]
        return entries

    def _assemble_at(
        self, node: int, part: int, query: int, condition: int, columns: dict[int, np.ndarray]
    ) -> np.ndarray:
        """Returns P(part | condition) at single cells of the query.

        The result is (m, free attributes of `condition`).
        """
        plan = self.planner.assembly(node, part, condition)
        have = plan.have
        table = self.conditional(node, have, condition) if condition else self.node_marginal(node, have)
        # The node's own table at the cells; then one message after the other.
        values = self._gather(table, have, query, columns)
        free = have & ~query
        for index, (other, below, link) in enumerate(plan.messages):
            if below.bit_count() == 1:
                message = self._gather(self.message(other, node, below), below | link, query, columns)
            else:
                message = self._assemble_at(other, below, query, link, columns)
            # Attributes that no later message needs are summed out.
            later = condition
            for _, _, rest in plan.messages[index + 1 :]:
                later |= rest
            gone = free & ~later
            shape = broadcast_shape(self.axes, link & ~query, free)
            values = values * message.reshape(len(message), *shape)
            summed = tuple(1 + axis for axis, rank in enumerate(bits(free)) if gone >> rank & 1)
            values = np.add.reduce(values, summed) if summed else values
            free &= ~gone
        return values
