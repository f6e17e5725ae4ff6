"""Calibration of a junction tree, in one pass up and one down.

It turns log potentials into exact marginals and log Z.

A `Calibrator` is compiled once per clique set: every buffer and view is allocated then, and a pass is a flat list of
NumPy ufunc calls on them. Going up, a clique's table is shifted by the maximum over each cell of its separator. ONE exp
per cell then gives the message (log of the sums). The same values are kept as a conditional distribution, which the way
down only has to scale. So no logarithm of a marginal is taken, nothing divides by zero, and no cell is exponentiated
twice.

Structural zeros are one more log potential, `LOWEST` in impossible cells: finite, so that no pass meets inf - inf, and
so low that whatever finite potentials are added to it vanish in rounding, and that exp underflows to exactly 0 beside
any possible cell. A separator cell in which everything is impossible sends `LOWEST` on; its marginal is exactly 0.

Small tables are combined before they meet a large one (two one-way potentials cost one addition on a three-way clique,
not two), and marginals are summed out of the smallest table that holds them.

Sums and maxima over some axes of a contiguous table are taken in the way that is fast, with the bits that NumPy gives.
It reduces the middle axis of a contiguous three-axis view fast, several scattered axes at once slowly, and a short
last axis slowest of all: it pays some 25 ns for every row of it, so a maximum over rows of two costs thirty times one
over columns. Short rows are therefore turned into columns first, a block of them at a time. That changes no bit: a
maximum has no order, and fewer than eight numbers NumPy adds one after the other either way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsyn.domain import Flags
from fedsyn.inference.junction_tree import Axes, JunctionTree, bits

# Rows are short, and turned, up to this width. Sums of more are pairwise in a row, but not down a column.
_WIDEST: dict[np.ufunc, int] = {np.maximum: 63, np.add: 7}
# A table with fewer cells takes less time than a second call.
_FEWEST_CELLS = 2048
#: Cells that are turned at once: in the second-level cache.
BLOCK_CELLS = 1 << 15


def inner_first(shape: Sequence[int], remaining: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Returns reductions as three-axis views, the innermost axes first.

    Each run of axes that goes gives one (before, reduced, after).
    """
    runs = _runs(shape, remaining)
    return [
        (
            math.prod(length for _, length in runs[:at]),
            size,
            math.prod(length for keep, length in runs[at + 1 :] if keep),
        )
        for at, (keep, size) in reversed(list(enumerate(runs)))
        if not keep and size > 1
    ]


def outer_first(shape: Sequence[int], remaining: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Returns reductions as three-axis views, the outermost axes first.

    They are faster, since the rows of the first steps are longer, but sums get other bits.
    """
    runs = _runs(shape, remaining)
    return [
        (
            math.prod(length for keep, length in runs[:at] if keep),
            size,
            math.prod(length for _, length in runs[at + 1 :]),
        )
        for at, (keep, size) in enumerate(runs)
        if not keep and size > 1
    ]


def _runs(shape: Sequence[int], remaining: Sequence[bool]) -> list[tuple[bool, int]]:
    """Joins neighbouring axes that all stay or all go."""
    pairs = itertools.groupby(zip(remaining, shape, strict=True), key=lambda pair: pair[0])
    return [(keep, math.prod(size for _, size in run)) for keep, run in pairs]


def turns(ufunc: np.ufunc, before: int, reduced: int, after: int) -> bool:
    """Returns whether it pays to turn a reduction's rows into columns.

    It does if rows are short, and the table is large enough for `reduce_rows`.
    """
    return after == 1 and reduced <= _WIDEST[ufunc] and before * reduced >= _FEWEST_CELLS


def reduce_rows(ufunc: np.ufunc, table: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> None:
    """Computes `ufunc.reduce(table, 1, None, out)`, by columns.

    Args:
        ufunc: np.add for fewer than eight columns, or np.maximum.
        table: (rows, columns) C-contiguous.
        out: (rows,).
        scratch: (BLOCK_CELLS,) float64, overwritten.
    """
    rows, width = table.shape
    step = len(scratch) // width
    for start in range(0, rows, step):
        part = table[start : start + step]
        columns = scratch[: part.size].reshape(width, len(part))
        np.copyto(columns, part.T)
        ufunc.reduce(columns, 0, None, out[start : start + step])


Op = tuple[Callable[..., Any], tuple[Any, ...]]
#: Log potential of an impossible cell. Potentials are far smaller; sums of as many as there can be stay finite.
LOWEST = -1e200


def broadcast_shape(axes: Axes, mask: int, into: int) -> tuple[int, ...]:
    """Returns the shape in which a table over `mask` broadcasts.

    The other attributes of `into` get axes of length one.
    """
    return tuple(axes.sizes[rank] if mask >> rank & 1 else 1 for rank in bits(into))


def sum_out(table: np.ndarray, axes: Axes, mask: int, keep: int) -> np.ndarray:
    """Returns the marginal over `keep` of a contiguous table.

    `keep` is a subset of `mask`; the result may share memory.
    """
    remaining = [bool(keep >> rank & 1) for rank in bits(mask)]
    for before, reduced, after in inner_first(axes.shape(mask), remaining):
        if turns(np.add, before, reduced, after):
            sums = np.empty(before)
            reduce_rows(np.add, table.reshape(before, reduced), sums, np.empty(min(BLOCK_CELLS, table.size)))
            table = sums
        else:
            table = np.add.reduce(table.reshape(before, reduced, after), 1)
    return table.reshape(axes.shape(keep))


class Calibrator:
    """Message passing on one junction tree for one tuple of potential cliques.

    Args:
        tree: junction tree in which every factor is inside some node.
        factors: distinct non-empty masks, the cliques that carry potentials.
        zeros: structural zeros by mask, axes by rank, each inside some node; True where a cell is impossible.

    Attributes:
        theta: (n,) float64, the log potentials of all factors one after the other; the caller writes, `run` reads.
        marginals: (n,) float64, probabilities of the factors' cells after `run`, same layout.
        log_partition: natural log of Z after `run`.
    """

    def __init__(self, tree: JunctionTree, factors: Sequence[int], zeros: Mapping[int, Flags] | None = None) -> None:
        self.tree = tree
        self.factors = tuple(factors)
        self._zeros = {mask: np.where(cells, LOWEST, 0.0) for mask, cells in (zeros or {}).items()}
        cells = [tree.axes.cells(mask) for mask in self.factors]
        self.offsets = np.concatenate([[0], np.cumsum(cells, dtype=np.int64)]).astype(np.int64)
        self.theta = np.zeros(int(self.offsets[-1]))
        self.marginals = np.zeros_like(self.theta)
        self.log_partition = 0.0
        self._tables = [np.zeros(tree.axes.shape(mask)) for mask in tree.cliques]
        self._messages = [np.zeros(tree.axes.shape(mask)) for mask in tree.separators]
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._ops: list[Op] = []
        self._scratch = np.empty(min(BLOCK_CELLS, max(tree.cells, default=0)))
        self._compile()

    def views(self, flat: np.ndarray) -> list[np.ndarray]:
        """Returns the factors' tables inside a flat vector.

        The vector is laid out like `theta`; nothing is copied.
        """
        shapes = [self.tree.axes.shape(mask) for mask in self.factors]
        bounds = self.offsets.tolist()
        return [flat[a:b].reshape(shape) for a, b, shape in zip(bounds[:-1], bounds[1:], shapes, strict=True)]

    def run(self) -> float:
        """Makes one pass and returns log Z.

        It leaves probabilities in `marginals` and in the node tables.
        """
        for function, arguments in self._ops:
            function(*arguments)
        self.log_partition = math.fsum(
            float(part) for pair in self._parts for part in (pair[0].flat[0], pair[1].flat[0])
        )
        return self.log_partition

    @property
    def is_possible(self) -> bool:
        """True if the zeros leave any row possible; valid after `run`."""
        return self.log_partition > LOWEST / 2

    def node_table(self, node: int) -> np.ndarray:
        """Returns the joint probabilities of a node's clique.

        Axes are by rank; the next `run` overwrites the table.
        """
        return self._tables[node]

    def _compile(self) -> None:
        """Lays out one pass: up from the leaves, then down."""
        tree = self.tree
        # The factors and zeros of each node.
        held: list[list[int]] = [[] for _ in tree.cliques]
        for factor, mask in enumerate(self.factors):
            held[self._home(mask)].append(factor)
        barred: list[list[tuple[int, np.ndarray]]] = [[] for _ in tree.cliques]
        for mask, table in self._zeros.items():
            barred[self._home(mask)].append((mask, table))
        scales: list[np.ndarray] = [np.empty(0)] * len(tree.cliques)
        # Up: add a node's potentials and its children's messages, and send its own.
        theta = self.views(self.theta)
        for node in range(len(tree.cliques) - 1, -1, -1):
            addends = [(self.factors[f], theta[f]) for f in held[node]]
            addends += [(tree.separators[c], self._messages[c]) for c in tree.children[node]]
            addends += barred[node]
            self._compile_sum(self._tables[node], tree.cliques[node], addends)
            scales[node] = self._compile_up(node)
        # Down: scale each node by its separator's marginal, and sum out factors and separators.
        marginals = self.views(self.marginals)
        for node in range(len(tree.cliques)):
            # _messages[node] holds the separator's marginal on the way down: its message has been used by then.
            self._ops.append((np.divide, (self._messages[node], scales[node], scales[node])))
            table = self._tables[node]
            shape = broadcast_shape(tree.axes, tree.separators[node], tree.cliques[node])
            self._ops.append((np.multiply, (table, scales[node].reshape(shape), table)))
            targets = [(self.factors[f], marginals[f]) for f in held[node]]
            targets += [(tree.separators[c], self._messages[c]) for c in tree.children[node]]
            self._compile_projections(table, tree.cliques[node], targets)

    def _home(self, mask: int) -> int:
        node = self.tree.containing(mask)
        if node < 0:
            raise ValueError("a potential does not fit into any clique of the tree")
        return node

    def _compile_up(self, node: int) -> np.ndarray:
        """Compiles shift, exp, sum and message; returns the sums' buffer.

        Each cell is shifted by the maximum over its separator's cell.
        """
        tree, table, message = self.tree, self._tables[node], self._messages[node]
        clique, separator = tree.cliques[node], tree.separators[node]
        # Buffers for the maxima and the sums over each cell of the separator.
        top, sums = np.zeros_like(message), np.zeros_like(message)
        shape = broadcast_shape(tree.axes, separator, clique)
        # One exp a cell, after a shift by the separator's maximum; its sums are the message.
        self._compile_reduction(np.maximum, table, clique, top, separator)
        self._ops.append((np.subtract, (table, top.reshape(shape), table)))
        self._ops.append((np.exp, (table, table)))
        self._compile_reduction(np.add, table, clique, sums, separator)
        self._ops.append((np.log, (sums, message)))
        # A root's message is its part of log Z.
        if tree.parents[node] >= 0:
            self._ops.append((np.add, (message, top, message)))
        else:
            log_sum = np.zeros_like(message)
            self._ops.append((np.copyto, (log_sum, message)))
            self._parts.append((top, log_sum))
            self._ops.append((message.fill, (1.0,)))  # the empty separator has probability one
        return sums

    def _compile_reduction(self, ufunc: np.ufunc, table: np.ndarray, mask: int, out: np.ndarray, keep: int) -> None:
        axes = self.tree.axes
        remaining = [bool(keep >> rank & 1) for rank in bits(mask)]
        order = outer_first if ufunc is np.maximum else inner_first  # only sums depend on it
        steps = order(axes.shape(mask), remaining)
        if not steps:
            self._ops.append((np.copyto, (out.reshape(-1), table.reshape(-1))))
        for index, (before, reduced, after) in enumerate(steps):
            target = out if index == len(steps) - 1 else np.zeros(before * after)
            if turns(ufunc, before, reduced, after):
                rows = table.reshape(before, reduced)
                self._ops.append((reduce_rows, (ufunc, rows, target.reshape(-1), self._scratch)))
            else:
                view = table.reshape(before, reduced, after)
                self._ops.append((ufunc.reduce, (view, 1, None, target.reshape(before, after))))
            table = target

    def _compile_sum(self, out: np.ndarray, mask: int, addends: Iterable[tuple[int, np.ndarray]]) -> None:
        """Compiles `out`, the sum of tables over subsets of `mask`.

        Small tables are first added to ones that contain them.
        """
        axes = self.tree.axes
        # Tables by clique, and a place for those that fit without the largest attribute.
        groups: dict[int, list[np.ndarray]] = {}
        for part, table in addends:
            groups.setdefault(part, []).append(table.reshape(-1))
        inner = mask & ~(1 << (mask.bit_length() - 1))  # the clique without its largest attribute
        loose = [p for p in groups if p & inner == p]
        if len(loose) > 1 and inner not in groups:
            groups[inner] = []
        # From the smallest: add a clique's tables up, and hand the sum to the next one that contains it.
        order = sorted(groups, key=lambda p: (axes.cells(p), p))
        pending: dict[int, list[tuple[int, np.ndarray]]] = {part: [(part, t) for t in groups[part]] for part in order}
        top: list[tuple[int, np.ndarray]] = pending.pop(mask, [])
        for position, part in enumerate(order):
            if part == mask:
                continue
            terms = pending[part]
            host = next((p for p in order[position + 1 :] if p != mask and part & p == part), None)
            if len(terms) > 1:
                buffer = np.zeros(axes.shape(part))
                self._compile_additions(buffer, part, terms)
                terms = [(part, buffer)]
            (top if host is None else pending[host]).extend(terms)
        self._compile_additions(out, mask, top)

    def _compile_additions(self, out: np.ndarray, mask: int, terms: list[tuple[int, np.ndarray]]) -> None:
        views = [t.reshape(broadcast_shape(self.tree.axes, part, mask)) for part, t in terms]
        if not views:
            self._ops.append((out.fill, (0.0,)))
        elif len(views) == 1:
            self._ops.append((np.copyto, (out, views[0])))
        else:
            self._ops.append((np.add, (views[0], views[1], out)))
            for view in views[2:]:
                self._ops.append((np.add, (out, view, out)))

    def _compile_projections(self, table: np.ndarray, mask: int, targets: Iterable[tuple[int, np.ndarray]]) -> None:
        """Compiles marginals of a node's table.

        Each is summed out of the smallest table that is there already.
        """
        axes = self.tree.axes
        groups: dict[int, list[np.ndarray]] = {}
        for part, out in targets:
            groups.setdefault(part, []).append(out)
        inner = mask & ~(1 << (mask.bit_length() - 1))
        if sum(p & inner == p for p in groups) > 1 and inner not in groups:
            groups[inner] = [np.zeros(axes.shape(inner))]
        # From the largest: each out of the smallest table that contains it.
        have: list[tuple[int, np.ndarray]] = [(mask, table)]
        for part in sorted(groups, key=lambda p: (-axes.cells(p), -p.bit_count(), p)):
            source, values = min(
                ((m, t) for m, t in have if m & part == part), key=lambda pair: (axes.cells(pair[0]), pair[0])
            )
            first, *rest = groups[part]
            self._compile_reduction(np.add, values, source, first, part)
            for other in rest:
                self._ops.append((np.copyto, (other, first)))
            have.append((part, first))
