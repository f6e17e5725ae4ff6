"""Kernels that count many marginals of one table.

One call counts the marginals of one encoded table, dense or sparse.

A marginal of a clique holds the number of rows in each cell of the clique's sub-domain. Everything here is
exact integer counting without noise; L1 = L2 sensitivity to one row added or removed is 1.

Three forms, for three uses:
    `count`              dense arrays of shape `domain.shape_of(clique)`; built for tables of many rows.
    `count_sparse_many`  only the cells that rows fall into; built for small tables, big cliques and transport.
    `count_one_way`      all one-way marginals as one concatenated vector, at the price of a single bincount.

All of them accept codes of any integer dtype and memory order, require `0 <= codes[:, j] < domain.shape[j]`
(which `Schema.encode` guarantees), and treat an empty table and the empty clique `()` (one cell: the row
count) as ordinary.

An array call for each clique costs as much as counting a few thousand rows does, so the cliques of a small table are
counted together, by one bincount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Codes, Domain, Integers

# Index arrays are built for this many rows at a time: an index of 2 bytes and its 8-byte copy inside bincount
# stay in a level-2 cache of 1 MB together with the columns. Measured flat between 2**15 and 2**17.
_CHUNK = 1 << 16
# Numbers of 8 bytes that are held, and sorted, of a large table at a time.
_CELLS_AT_ONCE = 1 << 22
# A table of so many rows is small: its cliques are counted together.
_FEW_ROWS = 1 << 12
# From so many pairs on it is considered to multiply; attributes of more values are left out, as their products mostly
# add zeros; columns of a product, and rows of one; attributes in a strip (8 to 24 measured about the same).
_MANY_PAIRS, _MOST_VALUES, _MOST_COLUMNS, _MULTIPLIED, _STRIP = 1000, 32, 1 << 12, 1 << 12, 12
# Seconds that a pair by itself costs more than here, and that each of its rows adds; of a multiplication (measured).
_PER_PAIR, _PER_ROW, _PER_PRODUCT = 2e-6, 3e-9, 2e-11
# Numbers that are counted together at a time: what the cache of a core holds.
_NUMBERS_AT_ONCE = 1 << 17
# Numbers that are sorted at once without asking whether counting would be cheaper: those of a small table.
_FEW = 1 << 16


Axes = tuple[int, ...]


@dataclass(frozen=True)
class SparseMarginal:
    """The non-empty cells of one marginal.

    Attributes:
        cells: (m,) int64 flat C-order cell indices within `domain.shape_of(clique)`, strictly increasing.
        counts: (m,) int64 positive counts of rows.
    """

    cells: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> int:
        """Number of rows counted."""
        return int(self.counts.sum())


def count(codes: np.ndarray, domain: Domain, cliques: Iterable[Sequence[str]]) -> list[np.ndarray]:
    """Counts many marginals of one table.

    Args:
        codes: (n, d) integer codes, columns in the order of `domain`.
        domain: the attributes of `codes`.
        cliques: attribute names of each marginal; the axes of a result follow the order given. No name twice.

    Returns:
        One int64 array of shape `domain.shape_of(clique)` per clique, in the order given.

    Raises:
        ValueError: `codes` does not have one column per attribute, or a clique repeats an attribute.
        KeyError: a clique names an attribute that is not in the domain.
    """
    counter = Counter(domain, cliques)
    return [flat.reshape(shape) for flat, shape in zip(counter.flat(codes), counter.shapes, strict=True)]


class Counter:
    """`count` of the same marginals of one table after the other.

    Args:
        domain: the attributes of the tables.
        cliques: attribute names of each marginal, in the order of its axes.

    Raises:
        ValueError: a clique repeats an attribute.
        KeyError: a clique names an attribute that is not in the domain.
    """

    def __init__(self, domain: Domain, cliques: Iterable[Sequence[str]]) -> None:
        self.domain = domain
        self.axes = [_axes(domain, clique) for clique in cliques]
        self.shapes = [tuple(domain.shape[i] for i in clique) for clique in self.axes]
        self.sizes = [prod(shape) for shape in self.shapes]

    def flat(self, codes: np.ndarray) -> list[np.ndarray]:
        """Counts of each clique, flat in C order; see `count`."""
        _check_codes(codes, self.domain)
        axes, sizes, shape, n = self.axes, self.sizes, self.domain.shape, len(codes)
        results: list[np.ndarray | None] = [None] * len(axes)
        products = self._products
        if products is not None and products.pay(n):
            ends = np.cumsum(products.cells)[:-1]
            for i, counts in zip(self._pairs, np.split(products.counts(codes), ends), strict=True):
                results[i] = counts
        rest = [which for which, flat in enumerate(results) if flat is None]
        if n <= _FEW_ROWS:
            _count_together(codes, shape, axes, sizes, rest, results)
        # Cliques in lexicographic order meet shared prefixes one after the other, so a prefix is computed once.
        order = sorted(rest if n > _FEW_ROWS else (), key=axes.__getitem__)
        # Chunks pay one pass over the cells each, so a clique of more cells is counted in longer ones.
        groups: dict[int, list[int]] = {}
        for which in order:
            groups.setdefault(_chunk_of(sizes[which]), []).append(which)
        for chunk, group in sorted(groups.items()):
            for start in range(0, n, chunk):
                _count_chunk(codes[start : start + chunk], shape, axes, sizes, group, results)
        return [np.zeros(k, np.int64) if flat is None else flat for flat, k in zip(results, sizes, strict=True)]

    def joined(self, codes: np.ndarray) -> np.ndarray:
        """All counts one after the other, as one vector."""
        products = self._products
        if products is not None and len(self._pairs) == len(self.axes) and products.pay(len(codes)):
            _check_codes(codes, self.domain)
            return products.counts(codes)
        return np.concatenate([np.zeros(0, np.int64), *self.flat(codes)])

    @cached_property
    def _pairs(self) -> list[int]:
        """The cliques of two attributes of few values."""
        shape = self.domain.shape
        return [i for i, q in enumerate(self.axes) if len(q) == 2 and max(shape[q[0]], shape[q[1]]) <= _MOST_VALUES]

    @cached_property
    def _products(self) -> PairProducts | None:
        if len(self._pairs) < _MANY_PAIRS:
            return None
        return PairProducts(self.domain.shape, np.array([self.axes[i] for i in self._pairs]))


class PairProducts:
    """Counts of very many pairs of attributes at once.

    With a 0/1 column for each value, a table X has all its two-way counts in X^T X. Sums of ones below 2^24 are exact
    in single precision, in whatever order a BLAS adds them. Attributes of as many values stand side by side, a few in a
    strip; of a strip's products only those are made that lie in a strip with which it has a pair: one attribute in
    several groupings has none with itself, and few of its groupings have one with a partner's.

    Args:
        shape: values of each attribute.
        pairs: (m, 2) attributes.
    """

    def __init__(self, shape: Sequence[int], pairs: Codes) -> None:
        used, place = np.unique(pairs, return_inverse=True)
        order = np.argsort(np.array(shape)[used], kind="stable")
        self.used = used[order]
        self.sizes = np.array(shape)[self.used]
        self.starts, self.columns = np.cumsum(self.sizes) - self.sizes, int(self.sizes.sum())
        self._pairs = np.argsort(order)[place.reshape(pairs.shape).T]
        self.cells = self.sizes[self._pairs].prod(axis=0)

    def pay(self, rows: int) -> bool:
        """Returns whether products are faster than one pair after another."""
        alone = len(self.cells) * (_PER_PAIR + _PER_ROW * rows)
        return self.columns <= _MOST_COLUMNS and _PER_PRODUCT * rows * self._area < alone

    @cached_property
    def _area(self) -> int:
        """Numbers in all blocks."""
        top, bottom, left, right = self._blocks[0].T
        return int(((bottom - top) * (right - left)).sum())

    @cached_property
    def _blocks(self) -> tuple[Integers, Integers]:
        """Blocks of X^T X to compute, and each pair's block.

        (b, 4) holds each block's rows and columns, from and to. (m,) holds the block of each pair.
        """
        edges = np.append(self.starts, self.columns)[[*range(0, len(self.used), _STRIP), len(self.used)]]
        strips = len(edges) - 1
        low, high = np.sort(self._pairs // _STRIP, axis=0)
        wanted = np.zeros((strips, strips + 1), np.int8)
        wanted[low, high] = 1
        blocks, of = list[tuple[int, int, int, int]](), np.zeros((strips, strips), np.int64)
        for strip, step in enumerate(np.diff(wanted, axis=1, prepend=0)):
            for first, end in zip(np.flatnonzero(step > 0), np.flatnonzero(step < 0), strict=True):
                of[strip, first:end] = len(blocks)
                blocks.append((edges[strip], edges[strip + 1], edges[first], edges[end]))
        return np.array(blocks), of[low, high]

    @cached_property
    def _at(self) -> tuple[Integers, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Places of cells in their blocks and in the result.

        (b + 1,) says where each block's cells begin. Two arrays (sum of `cells`,) say where each cell is in its
        block, and where it is in the result.
        """
        blocks, block_of = self._blocks
        order = np.argsort(block_of, kind="stable")
        (first, second), cells = self._pairs[:, order], self.cells[order]
        ends = np.cumsum(cells)
        of = np.repeat(np.arange(len(cells), dtype=np.int32), cells)
        cell = np.arange(ends[-1]) - (ends - cells)[of]
        row, column = np.divmod(cell, self.sizes[second][of])
        row, column = row + self.starts[first][of], column + self.starts[second][of]
        turned = (first // _STRIP > second // _STRIP)[of]
        row, column = np.where(turned, column, row), np.where(turned, row, column)
        top, _, left, right = blocks[block_of[order]].T
        within = (row - top[of]) * (right - left)[of] + column - left[of]
        among = (np.cumsum(self.cells) - self.cells)[order][of] + cell
        bounds = np.append(0, ends)[np.searchsorted(block_of[order], np.arange(len(blocks) + 1))]
        return bounds, within.astype(np.int32), among.astype(np.int32)

    def counts(self, codes: np.ndarray) -> np.ndarray:
        """(sum of `cells`,) int64 counts of all pairs."""
        bounds, within, among = self._at
        totals = np.zeros(len(within))
        for start in range(0, len(codes), _MULTIPLIED):
            part = codes[start : start + _MULTIPLIED, self.used]
            if (part < 0).any() or (part >= self.sizes).any():  # it would count as a neighbour's value
                raise ValueError("a code lies outside its attribute")
            ones = np.zeros((len(part), self.columns), np.float32)
            ones[np.arange(len(part))[:, None], part + self.starts] = 1.0
            for (top, bottom, left, right), span in zip(self._blocks[0], map(slice, bounds, bounds[1:]), strict=True):
                totals[span] += (ones[:, top:bottom].T @ ones[:, left:right]).ravel()[within[span]]
        out = np.empty(len(totals), np.int64)
        out[among] = totals
        return out


def _count_together(
    codes: np.ndarray,
    shape: Sequence[int],
    axes: Sequence[Axes],
    sizes: Sequence[int],
    wanted: Sequence[int],
    results: list[np.ndarray | None],
) -> None:
    """Puts flat counts of a small table's cliques into `results`.

    Counts as many cliques at a time as there is room for.
    """
    columns, width = np.ascontiguousarray(codes.T, dtype=np.int64), np.array(shape, dtype=np.int64)
    for length in {len(axes[i]) for i in wanted}:
        alike = [i for i in wanted if len(axes[i]) == length]
        for group in groups_within(_NUMBERS_AT_ONCE, alike, lambda i: sizes[i] + len(codes)):
            ends = np.cumsum([sizes[i] for i in group])
            cells = np.zeros((len(group), len(codes)), dtype=np.int64)
            for axis in np.array([axes[i] for i in group], dtype=np.intp).reshape(len(group), length).T:
                cells *= width[axis, None]
                cells += columns[axis]
            cells[1:] += ends[:-1, None]
            counts = np.bincount(cells.ravel(), minlength=int(ends[-1]))
            for i, flat in zip(group, np.split(counts, ends[:-1]), strict=True):
                results[i] = flat


def count_blocks(blocks: Iterable[np.ndarray], domain: Domain, cliques: Iterable[Sequence[str]]) -> list[np.ndarray]:
    """Counts a table that comes in blocks of rows.

    Returns what `count` returns and keeps no block. See `fedsyn.table.data.encoded_blocks`.

    >>> domain = Domain(("sex", "smoker"), (2, 2))
    >>> [counted] = count_blocks([np.array([[0, 1], [1, 1]]), np.array([[0, 0]])], domain, [("sex",)])
    >>> counted.tolist()
    [2, 1]
    """
    cliques = [tuple(clique) for clique in cliques]
    totals = count(np.empty((0, len(domain)), np.uint8), domain, cliques)
    for block in blocks:
        for total, counts in zip(totals, count(block, domain, cliques), strict=True):
            total += counts
    return totals


def _chunk_of(cells: int) -> int:
    """Returns how many rows to count at a time.

    The smallest chunk is `_CHUNK`. A larger one has at least as many rows as `cells`, and fewer than sixteen
    times as many.
    """
    chunk = _CHUNK
    while chunk < cells:
        chunk <<= 4
    return chunk


def _count_chunk(
    codes: np.ndarray,
    shape: tuple[int, ...],
    axes: list[tuple[int, ...]],
    sizes: list[int],
    order: list[int],
    results: list[np.ndarray | None],
) -> None:
    """Adds the counts of one chunk of rows to `results`.

    `results` holds flat int64 arrays. None stands for zeros.
    """
    n = codes.shape[0]
    columns: dict[tuple[int, np.dtype], np.ndarray] = {}
    prefix_axes: tuple[int, ...] = ()
    prefix: list[np.ndarray] = []  # prefix[k] indexes the first k + 1 attributes of prefix_axes
    dtype = np.dtype(np.uint16)
    for which in order:
        clique = axes[which]
        if not clique:
            _add(results, which, np.array([n], dtype=np.int64))
            continue
        # The smallest type that holds every cell index: 2-byte arithmetic runs four times as fast as 8-byte.
        needed = _index_dtype(sizes[which])
        if needed != dtype:
            dtype, prefix_axes, prefix = needed, (), []
        shared = 0
        while shared < min(len(prefix), len(clique)) and clique[shared] == prefix_axes[shared]:
            shared += 1
        prefix, prefix_axes = prefix[:shared], clique
        for axis in clique[shared:]:
            if (axis, dtype) not in columns:
                columns[axis, dtype] = codes[:, axis].astype(dtype)
            column = columns[axis, dtype]
            if prefix:
                index = np.multiply(prefix[-1], dtype.type(shape[axis]), dtype=dtype)
                index += column
            else:
                index = column
            prefix.append(index)
        _add(results, which, np.bincount(prefix[-1], minlength=sizes[which]))


def _add(results: list[np.ndarray | None], which: int, counts: np.ndarray) -> None:
    total = results[which]
    if total is None:
        results[which] = counts.astype(np.int64, copy=False)
    else:
        total += counts


def count_one_way(codes: np.ndarray, domain: Domain) -> np.ndarray:
    """All one-way marginals at once.

    Args:
        codes: (n, d) integer codes.
        domain: the attributes of `codes`.

    Returns:
        (sum of domain.shape,) int64: the one-way counts of every attribute, concatenated in domain order.
        `split_one_way` cuts it back.
    """
    if len(codes) <= _FEW_ROWS:
        _check_codes(codes, domain)
        sizes = np.array(domain.shape, np.int64)
        cells = np.add(codes, np.cumsum(sizes) - sizes, dtype=np.int64, casting="unsafe")
        return np.bincount(cells.ravel(), minlength=int(sizes.sum()))
    return np.concatenate([np.zeros(0, np.int64), *count(codes, domain, [(name,) for name in domain])])


def split_one_way(vector: np.ndarray, domain: Domain) -> list[np.ndarray]:
    """Cuts a vector of one-way marginals into one array per attribute.

    The vector is their concatenation, and the arrays are views of it.
    """
    return np.split(vector, np.cumsum(domain.shape)[:-1]) if len(domain) else []


def count_sparse_many(codes: np.ndarray, domain: Domain, cliques: Iterable[Sequence[str]]) -> list[SparseMarginal]:
    """Returns the non-empty cells of many marginals.

    All cliques are counted together, so small tables cost little.

    Memory grows with rows x cliques, never with the number of cells; of a large table, with neither: what has few cells
    is counted in chunks of rows, and the rest a few cliques at a time.

    Raises:
        ValueError: a clique has more cells than an int64 index can number, or see `count`.
    """
    _check_codes(codes, domain)
    cliques = [tuple(clique) for clique in cliques]
    axes = [_axes(domain, clique) for clique in cliques]
    n = codes.shape[0]
    if n * len(axes) <= _FEW:
        return _sorted_cells(codes, domain, axes) if axes else []
    marginals: dict[int, SparseMarginal] = {}
    sizes = [prod(domain.shape[i] for i in clique) for clique in axes]
    for group in groups_within(_CELLS_AT_ONCE, [i for i, size in enumerate(sizes) if size <= n], lambda i: sizes[i]):
        dense = count(codes, domain, [cliques[i] for i in group])
        marginals |= {i: dense_to_sparse(marginal) for i, marginal in zip(group, dense, strict=True)}
    for group in groups_within(_CELLS_AT_ONCE, [i for i, size in enumerate(sizes) if size > n], lambda i: n):
        marginals |= dict(zip(group, _sorted_cells(codes, domain, [axes[i] for i in group]), strict=True))
    return [marginals[i] for i in range(len(axes))]


def groups_within(most: int, which: Sequence[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Yields runs of numbers whose sizes add up to `most`.

    The sum of a run's sizes is at most `most`, except that a single number may be larger. The order stays.
    """
    group: list[int] = []
    held = 0
    for i in which:
        if group and held + size(i) > most:
            yield group
            group, held = [], 0
        group.append(i)
        held += size(i)
    if group:
        yield group


def _sorted_cells(codes: np.ndarray, domain: Domain, axes: Sequence[Axes]) -> list[SparseMarginal]:
    """Returns the non-empty cells of some cliques.

    They come from the sorted cells of the rows.
    """
    cells = np.empty((len(axes), len(codes)), dtype=np.int64)
    # Blocks of rows bound the work space of the product for large tables.
    strides = cell_strides(domain, tuple(axes))
    for start in range(0, len(codes), _CHUNK):
        part = slice(start, start + _CHUNK)
        np.matmul(strides, codes[part].T.astype(strides.dtype), out=cells[:, part], casting="unsafe")
    distinct, counts, bounds = runs_of(cells)
    return [SparseMarginal(distinct[a:b], counts[a:b]) for a, b in pairwise(bounds)]


@lru_cache(maxsize=8)
def cell_strides(domain: Domain, axes: tuple[Axes, ...]) -> np.ndarray:
    """Returns the matrix that turns codes into flat cell indices.

    (cliques, d), applied to a row of codes: float64, or int64 if a clique has more than 2^53 cells.
    """
    strides = np.zeros((len(axes), len(domain)), dtype=np.int64)
    largest = 0
    for row, clique in enumerate(axes):
        stride = 1
        for axis in reversed(clique):
            strides[row, axis] = stride
            stride *= domain.shape[axis]
        if stride > np.iinfo(np.int64).max:
            raise ValueError(f"the clique at position {row} has {stride} cells: too many to number")
        largest = max(largest, stride)
    return strides if largest > 2**53 else strides.astype(np.float64)


def runs_of(cells: Integers) -> tuple[Integers, Integers, list[int]]:
    """Returns each row's distinct cells, their frequencies, and each row's bounds.

    The array is (cliques, n). The bounds say where each row's distinct cells begin and end.

    Sorts the array in place.
    """
    cliques, n = cells.shape
    cells.sort(axis=1)
    begins = np.ones((cliques, n), dtype=bool)
    np.not_equal(cells[:, 1:], cells[:, :-1], out=begins[:, 1:])
    first = np.flatnonzero(begins)
    bounds = np.searchsorted(first, np.arange(cliques + 1) * n).tolist()
    return cells.ravel()[first], np.diff(first, append=cliques * n), bounds


def dense_to_sparse(dense: np.ndarray) -> SparseMarginal:
    """The non-empty cells of a dense count array of any shape."""
    flat = np.ascontiguousarray(dense).reshape(-1)
    cells = np.flatnonzero(flat).astype(np.int64, copy=False)
    return SparseMarginal(cells, flat[cells].astype(np.int64, copy=False))


def _check_codes(codes: np.ndarray, domain: Domain) -> None:
    if codes.ndim != 2 or codes.shape[1] != len(domain):
        raise ValueError(f"codes of shape {codes.shape} do not fit a domain of {len(domain)} attributes")
    if codes.dtype.kind not in "ui":
        raise ValueError(f"codes must be integers, not {codes.dtype}")


def _axes(domain: Domain, clique: Sequence[str]) -> tuple[int, ...]:
    axes = domain.axes(clique)
    if len(set(axes)) != len(axes):
        raise ValueError(f"clique {tuple(clique)} repeats an attribute")
    return axes


def _index_dtype(cells: int) -> np.dtype:
    for dtype in (np.uint16, np.uint32):
        if cells <= np.iinfo(dtype).max:  # an axis of that many values is itself multiplied with in this type
            return np.dtype(dtype)
    return np.dtype(np.int64)
