"""Counting kernels: many marginals of one encoded table in one call, dense and sparse.

A marginal of a clique holds the number of rows in each cell of the clique's sub-domain. Everything here is
exact integer counting without noise; L1 = L2 sensitivity to one row added or removed is 1.

Three forms, for three uses:
    `count`              dense arrays of shape `domain.shape_of(clique)`; built for tables of many rows.
    `count_sparse_many`  only the cells that rows fall into; built for small tables, big cliques and transport.
    `count_one_way`      all one-way marginals as one concatenated vector, at the price of a single bincount.

All of them accept codes of any integer dtype and memory order, require `0 <= codes[:, j] < domain.shape[j]`
(which `Schema.encode` guarantees), and treat an empty table and the empty clique `()` (one cell: the row
count) as ordinary.

Counts of very many pairs of attributes, as products of 0/1 columns.

One array call per pair costs ten times what counting a few thousand rows does. Written as 0/1 columns, one for each
value, a table X has all its two-way counts in X^T X. Sums of ones below 2^24 are exact in single precision, in whatever
order and on however many threads a BLAS adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Domain

# Index arrays are built for this many rows at a time: an index of 2 bytes and its 8-byte copy inside bincount
# stay in a level-2 cache of 1 MB together with the columns. Measured flat between 2**15 and 2**17.
_CHUNK = 1 << 16
# Numbers of 8 bytes that are held, and sorted, of a large table at a time.
_CELLS_AT_ONCE = 1 << 22
# From so many cliques on it is considered to count pairs together (`fedsyn.table.counting.marginals`).
_MANY = 64
# Numbers that are sorted at once without asking whether counting would be cheaper: those of a small table.
_FEW = 1 << 16


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
    _check_codes(codes, domain)
    axes = [_axes(domain, clique) for clique in cliques]
    shapes = [tuple(domain.shape[i] for i in clique) for clique in axes]
    sizes = [_prod(shape) for shape in shapes]
    results: list[np.ndarray | None] = [None] * len(axes)
    # Cliques in lexicographic order meet shared prefixes one after the other, so a prefix is computed once.
    n = codes.shape[0]
    multiplied = worth_multiplying(domain.shape, axes, n) if len(axes) >= _MANY else []
    if multiplied:
        pairs = [(axes[which][0], axes[which][1]) for which in multiplied]
        for which, flat in zip(multiplied, count_pairs(codes, domain, pairs), strict=True):
            results[which] = flat
    order = sorted(set(range(len(axes))).difference(multiplied), key=axes.__getitem__)
    # Chunks pay one pass over the cells each, so a clique of more cells is counted in longer ones.
    groups: dict[int, list[int]] = {}
    for which in order:
        groups.setdefault(_chunk_of(sizes[which]), []).append(which)
    for chunk, group in sorted(groups.items()):
        for start in range(0, n if group else 0, chunk):
            _count_chunk(codes[start : start + chunk], domain.shape, axes, sizes, group, results)
    return [
        np.zeros(shape, dtype=np.int64) if flat is None else flat.reshape(shape)
        for flat, shape in zip(results, shapes, strict=True)
    ]


def count_blocks(blocks: Iterable[np.ndarray], domain: Domain, cliques: Iterable[Sequence[str]]) -> list[np.ndarray]:
    """`count` of a table that comes in blocks of rows, none of which is kept: see `fedsyn.table.data.encoded_blocks`.

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
    """Number of rows to count at a time into `cells` cells: as many, or up to sixteen times as many."""
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
    """Adds the counts of one chunk of rows to `results` (flat int64 arrays; None stands for zeros)."""
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
    _check_codes(codes, domain)
    ends = np.cumsum(domain.shape, dtype=np.intp)
    total = int(ends[-1]) if len(ends) else 0
    if codes.shape[0] > _CHUNK:  # column by column: no (n, d) array of 8-byte indices
        return np.concatenate(
            [np.zeros(0, np.int64), *(c.ravel() for c in count(codes, domain, [(a,) for a in domain]))]
        )
    offsets = ends - np.asarray(domain.shape, dtype=np.intp)
    return np.bincount((codes + offsets).ravel(order="K"), minlength=total).astype(np.int64, copy=False)


def split_one_way(vector: np.ndarray, domain: Domain) -> list[np.ndarray]:
    """Cuts a concatenated vector of one-way marginals into one array (view) per attribute."""
    return np.split(vector, np.cumsum(domain.shape)[:-1]) if len(domain) else []


def count_sparse_many(codes: np.ndarray, domain: Domain, cliques: Iterable[Sequence[str]]) -> list[SparseMarginal]:
    """The non-empty cells of many marginals; all cliques are counted together, so small tables cost little.

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
    found: dict[int, SparseMarginal] = {}
    sizes = [_prod(tuple(domain.shape[i] for i in clique)) for clique in axes]
    for group in groups_within(_CELLS_AT_ONCE, [i for i, size in enumerate(sizes) if size <= n], lambda i: sizes[i]):
        dense = count(codes, domain, [cliques[i] for i in group])
        found |= {i: dense_to_sparse(marginal) for i, marginal in zip(group, dense, strict=True)}
    for group in groups_within(_CELLS_AT_ONCE, [i for i, size in enumerate(sizes) if size > n], lambda i: n):
        found |= dict(zip(group, _sorted_cells(codes, domain, [axes[i] for i in group]), strict=True))
    return [found[i] for i in range(len(axes))]


def groups_within(most: int, which: Sequence[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Runs of the given numbers whose sizes add up to at most `most` (one alone may be larger), in order."""
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


def _sorted_cells(codes: np.ndarray, domain: Domain, axes: Sequence[tuple[int, ...]]) -> list[SparseMarginal]:
    """The non-empty cells of some cliques, from the sorted cells of the rows."""
    n = codes.shape[0]
    index = np.empty((len(axes), n), dtype=np.int64)
    # Blocks of rows bound the work space of the matrix product for large tables.
    strides = cell_strides(domain, axes)
    for start in range(0, n, _CHUNK):
        stop = min(n, start + _CHUNK)
        np.matmul(strides, codes[start:stop].T.astype(np.int64), out=index[:, start:stop])
    index.sort(axis=1)
    return _runs(index)


def cell_strides(domain: Domain, axes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """(cliques, d) int64 matrix that turns a row of codes into flat cell indices."""
    strides = np.zeros((len(axes), len(domain)), dtype=np.int64)
    for row, clique in enumerate(axes):
        stride = 1
        for axis in reversed(clique):
            strides[row, axis] = stride
            stride *= domain.shape[axis]
        if stride > np.iinfo(np.int64).max:
            raise ValueError(f"the clique at position {row} has {stride} cells: too many to number")
    return strides


def _runs(index: np.ndarray) -> list[SparseMarginal]:
    """Run lengths of each sorted row of a (cliques, n) index."""
    cliques, n = index.shape
    first = np.empty((cliques, n), dtype=bool)
    first[:, :1] = True
    np.not_equal(index[:, 1:], index[:, :-1], out=first[:, 1:])
    positions = np.flatnonzero(first)
    cells = index.ravel()[positions]
    counts = np.diff(positions, append=cliques * n)
    ends = np.cumsum(first.sum(axis=1)).tolist()
    starts = [0, *ends[:-1]]
    return [SparseMarginal(cells[a:b], counts[a:b]) for a, b in zip(starts, ends, strict=True)]


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


def _prod(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


# Rows that are multiplied at a time: their 0/1 columns take 4 bytes each, and their counts stay exact.
_ROWS = 1 << 12
# Attributes of more values are counted one pair at a time: their products would mostly add zeros.
_LARGEST_SIZE = 32
# Columns of the left factor at a time; with all those of the right one they bound the product.
_LEFT = 1 << 10
# Seconds that a pair costs by itself, and that each of its rows adds; seconds of a multiplication (measured).
_PER_PAIR, _PER_ROW, _PER_PRODUCT = 1e-5, 2.5e-9, 4e-11

Axes = tuple[int, ...]


def worth_multiplying(shape: Sequence[int], axes: Sequence[Axes], rows: int) -> list[int]:
    """Positions of the cliques that are counted faster by products, all together: none, or every small pair."""
    pairs = [i for i, q in enumerate(axes) if len(q) == 2 and max(shape[q[0]], shape[q[1]]) <= _LARGEST_SIZE]
    columns = sum(shape[axis] for axis in {axis for i in pairs for axis in axes[i]})
    singly = len(pairs) * (_PER_PAIR + _PER_ROW * rows)
    together = _PER_PRODUCT * rows * columns**2 / 2 + _PER_PAIR * (10 + len(pairs) / 5)
    return pairs if together < singly else []


def count_pairs(
    codes: npt.NDArray[np.integer], domain: Domain, pairs: Sequence[tuple[int, int]]
) -> list[npt.NDArray[np.int64]]:
    """Flat counts of some pairs, in C order of the given order of their two columns.

    Args:
        codes: (n, d) rows.
        domain: their domain.
        pairs: two different columns each.
    """
    plan = _plan(domain.shape, tuple(pairs))
    total = np.zeros(plan.length, np.int64)
    for start in range(0, len(codes), _ROWS):
        part = codes[start : start + _ROWS][:, plan.axes]
        ones = np.zeros((len(part), plan.columns), np.float32)
        ones[np.arange(len(part))[:, None], part + plan.starts] = 1.0
        for left, right, target, source in plan.blocks:
            product = ones[:, left].T @ ones[:, right]
            total[target] += product.ravel()[source].astype(np.int64)
    return np.split(total, plan.bounds[1:-1])


class _Plan:
    """Which products hold which pairs.

    Attributes:
        axes: the attributes that take part, ascending.
        starts: first 0/1 column of each.
        columns: number of 0/1 columns.
        blocks: (columns of the left factor, of the right one, cells of the result, where the product has them).
        bounds: (m + 1,) first cell of each pair in the result.
    """

    def __init__(self, shape: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> None:
        self.axes = sorted({axis for pair in pairs for axis in pair})
        sizes = np.array([shape[axis] for axis in self.axes], np.int64)
        ends = np.cumsum(sizes)
        self.starts, self.columns = ends - sizes, int(ends[-1])
        position = {axis: i for i, axis in enumerate(self.axes)}
        first = np.array([position[a] for a, _ in pairs])
        second = np.array([position[b] for _, b in pairs])
        cells = sizes[first] * sizes[second]
        self.bounds = np.concatenate([[0], np.cumsum(cells)]).astype(np.int64)
        self.length = int(self.bounds[-1])
        low = np.minimum(first, second)
        self.blocks = []
        begin = 0
        while begin < len(self.axes):
            end = int(np.searchsorted(ends, self.starts[begin] + _LEFT, side="right"))
            end = max(end, begin + 1)
            chosen = np.flatnonzero((low >= begin) & (low < end))
            if len(chosen):
                left = slice(int(self.starts[begin]), int(ends[end - 1]))
                right = slice(int(self.starts[begin]), self.columns)
                self.blocks.append((left, right, *self._cells(chosen, first, second, sizes, right)))
            begin = end

    def _cells(
        self,
        chosen: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        right: slice,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cells of the chosen pairs in the result, and in the product of a block, flat."""
        width = self.columns - right.start
        lengths = self.bounds[chosen + 1] - self.bounds[chosen]
        pair = np.repeat(chosen, lengths)
        inside = np.arange(len(pair)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        i, j = np.divmod(inside, sizes[second[pair]])
        a, b = self.starts[first[pair]] + i - right.start, self.starts[second[pair]] + j - right.start
        swapped = first[pair] > second[pair]
        return self.bounds[pair] + inside, np.where(swapped, b, a) * width + np.where(swapped, a, b)


@lru_cache(maxsize=4)
def _plan(shape: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> _Plan:
    return _Plan(shape, pairs)
