"""Sketches: public linear projections of many marginals, for one secure sum.

A sketch of a marginal M (n_q counts) is M S with a public integer matrix S (n_q, k), so the sum of the clients'
sketches IS the sketch of the pooled table, exactly and whatever the partition. Every row of one S has the same L2 norm
r: r is the sensitivity of the sketch to one row of the table, without looking at S.

    Sketcher      S puts neighbouring values of each attribute together: a coarse marginal. One 1 per row, r = 1.
    Interactions  What that coarse marginal has beyond the coarse marginals of its parts.

Both see the part of an error that does not cancel inside a group; there it adds up instead of averaging out. No matrix
is ever formed.

Public numbers say what sketches can show of a number of rows, before anything is asked (`width_of` and the functions
after it): mu^2 is the sketches' part of the budget, which buys noise of sigma = S / mu on a vector that one row moves
by S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum, sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.selection.coarse import Grouping, Packed, array_of, group_counts, key_of, unpack_grouping
from fedsyn.table.counting.marginals import Counter
from fedsyn.table.counting.sums import dot

_ROWS_AT_ONCE = 1 << 16
# Cells whose buckets are held at once: 128 kB, what a core's cache holds beside the cells.
_CELLS_AT_ONCE = 1 << 14
# Cells of a clique whose buckets are kept: 8 kB.
_FEW_CELLS = 1 << 10
# Steps in which a weight is rounded to an integer.
_FINEST = 8


# Sketches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketcher:
    """Coarse marginals of some cliques, as every party computes them.

    Attributes:
        domain: of the table.
        cliques: those sketched, two or more attributes each.
        width: k, the most entries of each.
        grouping: (attribute, number of groups) -> group of each value.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    width: int
    grouping: Grouping

    #: Whether entries may be negative.
    signed: ClassVar[bool] = False

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Entries k_q of each sketch."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Groups of each attribute of each clique."""
        return tuple(group_counts(self.domain, q, self.width) for q in self.cliques)

    @property
    def length(self) -> int:
        """Entries of all sketches together."""
        return sum(self.lengths)

    @cached_property
    def offsets(self) -> Integers:
        """Start of each sketch in the concatenated vector, (m + 1,)."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @cached_property
    def row_norms(self) -> tuple[float, ...]:
        """L2 norm r of every row of each clique's matrix, (m,)."""
        return (1.0,) * len(self.cliques)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the concatenated vector to one row.

        A row adds one row of each matrix.
        """
        return math.sqrt(math.fsum(r**2 for r in self.row_norms))

    @property
    def magnitude(self) -> float:
        """Largest absolute value that one row adds to one entry."""
        return 1.0

    def noises(self, i: int) -> int:
        """Returns how many independent noises `split` leaves in sketch i."""
        return self.lengths[i]

    def spread(self, i: int) -> float:
        """Returns the squared L2 norm of one row's sketch of clique i.

        It is in the unit of `of_marginal`.
        """
        return 1.0

    def unit(self, i: int) -> float:
        """Returns how much one record adds to sketch i before `split`."""
        return 1.0

    def of_rows(self, codes: Codes) -> Integers:
        """Returns the exact integer sketches of a table, (length,).

        `codes` is (n, d).
        """
        out = np.zeros(self.length, np.int64)
        tables, domain, counter = self._grouped
        smallest = np.min_scalar_type(max(domain.shape, default=1))
        for start in range(0, len(codes), _ROWS_AT_ONCE):
            rows = codes[start : start + _ROWS_AT_ONCE]
            groups = np.empty((len(rows), len(tables)), smallest)
            for j, (axis, of_value) in enumerate(tables):
                groups[:, j] = of_value[rows[:, axis]]
            out += counter.joined(groups)
        return out

    def of_marginal(self, i: int, values: npt.NDArray[np.floating]) -> Floats:
        """Returns the sketch of a whole marginal of clique i, (k_q,).

        It is in the unit of `values`.
        """
        return self._of_coarse(i, self.coarse(i, values))

    def split(self, vector: npt.NDArray[np.floating]) -> list[Floats]:
        """Splits a concatenated (noisy) vector into sketches in the unit of `of_marginal`."""
        parts = np.split(np.asarray(vector, np.float64), self.offsets[1:-1])
        return [part / self.unit(i) for i, part in enumerate(parts)]

    def coarse(self, i: int, values: npt.NDArray[np.floating]) -> Floats:
        """Returns the coarse marginal of clique i, (k_q,)."""
        if i in self._kept_buckets:
            flat = np.asarray(values, np.float64).ravel()
            return np.bincount(self._kept_buckets[i], flat, self.lengths[i]).astype(np.float64, copy=False)
        first, rest = self._buckets(i)
        coarse, cells = np.zeros(self.lengths[i]), np.asarray(values, np.float64).reshape(len(first), -1)
        step = max(1, _CELLS_AT_ONCE // len(rest))
        for start in range(0, len(first), step):
            block = slice(start, start + step)
            np.add.at(coarse, np.add.outer(first[block], rest).ravel(), cells[block].ravel())
        return coarse

    def together(self, coarse: Sequence[Floats]) -> Iterator[tuple[Integers, Floats, Floats]]:
        """Yields the sketches of one shape together.

        It yields their indices, their coarse marginals and their sketches in the unit of these, (b, k) each.

        Args:
            coarse: the coarse marginal of each clique.
        """
        for which in self._alike:
            stacked = np.stack([coarse[i] for i in which])
            yield which, stacked, self._of_coarse(int(which[0]), stacked)

    def _of_coarse(self, i: int, coarse: Floats) -> Floats:
        """Returns sketches of sketch i's coarse marginals, (k,) or (b, k)."""
        return coarse

    @cached_property
    def _alike(self) -> list[Integers]:
        """Sketches of one shape, whose cliques have one shape as well."""
        by_shape: dict[Any, list[int]] = {}
        for i, (clique, shape) in enumerate(zip(self.cliques, self.shapes, strict=True)):
            by_shape.setdefault((self.domain.shape_of(clique), shape), []).append(i)
        return [np.array(indices) for indices in by_shape.values()]

    def sigma_of(self, i: int, sigma: float) -> float:
        """Returns the noise's standard deviation in sketch i, as split.

        `sigma` is that of the whole vector.
        """
        return sigma / self.unit(i)

    # ---------------------------------------------------------------------------------------------- kernels

    @cached_property
    def _kept_buckets(self) -> dict[int, Integers]:
        """Buckets of the cliques of few cells."""
        few = [i for i, clique in enumerate(self.cliques) if self.domain.size(clique) <= _FEW_CELLS]
        return {i: np.add.outer(*self._buckets(i)).ravel() for i in few}

    def _buckets(self, i: int) -> tuple[Integers, Integers]:
        """Returns buckets of the cells of clique i, flat in C order.

        A cell's bucket is the sum of two numbers, those of its first attributes' values and of the others'. Groups
        without values have a bucket, too.
        """
        clique, shape = self.cliques[i], self.shapes[i]
        first = rest = np.zeros(1, np.int64)
        for axis in reversed(range(len(clique))):
            groups = np.asarray(self.grouping[clique[axis], shape[axis]], np.int64) * math.prod(shape[axis + 1 :])
            if len(first) == 1 and (len(rest) == 1 or len(rest) * len(groups) <= _CELLS_AT_ONCE):
                rest = np.add.outer(groups, rest).ravel()
            else:
                first = np.add.outer(groups, first).ravel()
        return first, rest

    @cached_property
    def _grouped(self) -> tuple[list[tuple[int, Integers]], Domain, Counter]:
        """Columns and groups of each grouping, with their domain and counter.

        Together they count a table in groups.
        """
        names: dict[tuple[str, int], str] = {}
        cliques = [
            tuple(names.setdefault(key, f"{len(names)}") for key in zip(clique, counts, strict=True))
            for clique, counts in zip(self.cliques, self.shapes, strict=True)
        ]
        tables = [(self.domain.axes((name,))[0], np.asarray(self.grouping[name, k], np.int64)) for name, k in names]
        domain = Domain(tuple(names.values()), tuple(k for _, k in names))
        return tables, domain, Counter(domain, cliques)


@dataclass(frozen=True)
class Interactions(Sketcher):
    """Coarse marginals beyond their parts, centred along every axis.

    They have g_1 x ... x g_j groups.

    P = (x)_a (I - J/g_a), J all ones, is the orthogonal projection onto tensors whose sums along each axis are 0: the
    residual space of McKenna et al. 2020 and of ResidualPlanner (Xiao et al. 2023). Errors of a model whose marginals
    of the parts are right lie in it, so nothing of them is lost. Two things are gained:

    - *Sensitivity.* One row adds the unit tensor of its cell, projected: its squared L2 norm is prod (1 - 1/g_a),
      for every cell: a quarter for two binary attributes, an eighth for three.
    - *Noise.* The server projects what it has opened, and noise is left in prod (g_a - 1) dimensions instead of
      prod g_a: one instead of four.

    So that contributions are integers and all sketches of a size have about the same noise in records, sketch q is
    multiplied by its `factor`, a multiple of prod g_a: the one nearest to `_FINEST` times the largest prod g_a of all,
    and to `of_pairs` times as much for a pair. A row of its matrix then has norm factor * sqrt(prod (1 - 1/g_a)),
    exactly, and no entry above the factor.

    Attributes:
        of_pairs: how many times as much noise in records other sketches have as those of two attributes.
    """

    of_pairs: float = 1.0

    signed: ClassVar[bool] = True

    @cached_property
    def factors(self) -> tuple[int, ...]:
        """Multipliers of the projected counts, (m,)."""
        most = _FINEST * max(self.lengths, default=1) if self.of_pairs != 1.0 else max(self.lengths, default=1)
        weights = (self.of_pairs if len(clique) == 2 else 1.0 for clique in self.cliques)
        return tuple(max(1, round(w * most / k)) * k for w, k in zip(weights, self.lengths, strict=True))

    @cached_property
    def row_norms(self) -> tuple[float, ...]:
        return tuple(f * math.sqrt(self.spread(i)) for i, f in enumerate(self.factors))

    @property
    def magnitude(self) -> float:
        return float(max(self.factors, default=1))

    def noises(self, i: int) -> int:
        return math.prod(g - 1 for g in self.shapes[i])

    def spread(self, i: int) -> float:
        return math.prod(1.0 - 1.0 / g for g in self.shapes[i])

    def unit(self, i: int) -> float:
        return float(self.factors[i])

    def _of_coarse(self, i: int, coarse: Floats) -> Floats:
        return np.asarray(self._centred(i, coarse) / self.lengths[i])

    def split(self, vector: npt.NDArray[np.floating]) -> list[Floats]:
        out = np.array(vector, np.float64)
        for i, places in self._places:
            out[places] = self._centred(i, out[places] / self.unit(i)) / self.lengths[i]
        return np.split(out, self.offsets[1:-1])

    def of_rows(self, codes: Codes) -> Integers:
        out = super().of_rows(codes)
        for i, places in self._places:
            out[places] = self._centred(i, out[places]) * (self.factors[i] // self.lengths[i])
        return out

    @property
    def _places(self) -> Iterator[tuple[int, Integers]]:
        """Yields one sketch of each shape, and its likes' places.

        Places are positions in the concatenated vector, (b, k).
        """
        for which in self._alike:
            i = int(which[0])
            yield i, self.offsets[which][:, None] + np.arange(self.lengths[i])

    def _centred(self, i: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns prod g_a times the projection, which keeps integers.

        The result is (..., k_q).
        """
        shape = self.shapes[i]
        cube = part.reshape(*part.shape[:-1], *shape)
        for axis, groups in enumerate(shape):
            cube = groups * cube - cube.sum(axis=axis - len(shape), keepdims=True)
        return cube.reshape(part.shape)


def make_sketcher(
    kind: Callable[..., Sketcher],
    domain: Domain,
    cliques: tuple[Clique, ...],
    width: int,
    packed: npt.NDArray[np.generic],
    *more: float,
) -> Sketcher:
    """Returns the sketches that a request describes.

    `packed` has its groups (`unpack_grouping`); `more` is what this kind takes besides.

    Clients of a simulation that share a process get one object, which holds no row: sharing saves work only.

    Raises:
        ProtocolError: the groups are malformed.
    """
    return _shared_sketcher(kind, domain, cliques, width, key_of(packed), *more)


@lru_cache(maxsize=4)
def _shared_sketcher(
    kind: Callable[..., Sketcher],
    domain: Domain,
    cliques: tuple[Clique, ...],
    width: int,
    packed: Packed,
    *more: float,
) -> Sketcher:
    return kind(domain, cliques, width, unpack_grouping(array_of(packed), domain, cliques, width), *more)


def squared_distance(residual: npt.NDArray[np.floating], sigma: float, noises: int | None = None) -> float:
    """Returns a sketched squared L2 error, free of noise on average.

    It is ||sketch - sketch of the model||^2 less what its noise adds: unbiased for what it sees of the error.

    Args:
        residual: (k,) difference of the noisy and the model's sketch, in counts.
        sigma: standard deviation of the noise in each entry.
        noises: independent ones in the residual; None: one an entry.
    """
    flat = np.asarray(residual, np.float64).ravel()
    return dot(flat, flat) - (len(flat) if noises is None else noises) * sigma * sigma


def squared_distances(residuals: Floats, sigmas: Floats, noises: int) -> Floats:
    """Returns the `squared_distance` of each of (b, k) residuals, (b,).

    Each has a noise of its own.
    """
    return np.asarray(np.einsum("ij,ij->i", residuals, residuals) - noises * sigmas * sigmas)


# What rows show -------------------------------------------------------------------------------------------------------


def weight_of_pairs(queries: Mapping[int, float]) -> float:
    """Returns the noise of other sketches over that of pairs.

    A pair is part of many queries of three attributes: what its sketch does not show is missed in each of them. Noise
    of sigma_q on sketches that a_q queries need costs sum a_q sigma_q in all; a budget for sum 1/sigma_q^2 divides best
    with sigma_q in proportion to a_q^(-1/3) (PrivSyn's allocation, Zhang et al. 2021, Section 4.2). Pairs never weigh
    less than others.

    Args:
        queries: number of attributes -> weight of the queries that hold a sketched clique of that size, on average.
    """
    pairs, others = queries.get(2, 0.0), max((a for size, a in queries.items() if size > 2), default=0.0)
    return max(1.0, (pairs / others) ** (1.0 / 3.0)) if pairs and others else 1.0


def as_pairs(sketched: Mapping[int, float], of_pairs: float) -> dict[int, float]:
    """Counts sketches by what they cost, in sketches of pairs.

    Args:
        sketched: number of attributes -> how many sketches have as many.
        of_pairs: noise of other sketches over that of pairs (`weight_of_pairs`).
    """
    return {size: count / (1.0 if size == 2 else of_pairs**2) for size, count in sketched.items()}


# The mean-square contingency (phi^2) of a pair that one standard deviation of a sketch's noise may hide. Chosen on the
# tuning side of experiments/held_out.
_HIDDEN = 0.1
# Sketches for which a share of the budget is meant, and how much more many of them may have. Chosen on the same side,
# where wide tables with up to 1,000 triples have 500 to 2,500.
_FEW, _MOST_RAISED = 500, 3.0
#: The largest share of the budget that goes into finding an order, where no pair has one of its own, and the
#: correlations of the weakest factor whose order must be found: half of a column's own variance.
ARRANGING, ARRANGED = 0.3, 0.5


def width_of(mu2: float, sketched: Mapping[int, float], rows: float, most: int) -> int:
    """Returns the number of entries of a sketch, which is public.

    It is the most that still shows an association, and enough for any interaction.

    A pair of mean-square contingency phi^2 puts n^2 phi^2 / k of squared distance between a sketch of k groups of equal
    mass and independence. Of its noise (sqrt(k) - 1)^2 dimensions are left, so that of the distance has a standard
    deviation of sqrt(2) (sqrt(k) - 1) sigma^2, where sigma^2 = S^2 / mu^2 and S^2 = sum (1 - k^(-1/j))^j over the
    sketches of j attributes (`Interactions`).

    Args:
        mu2: of the sketches.
        sketched: number of attributes -> how many sketches have as many (`as_pairs`).
        rows: n, public or released.
        most: the option `width`.
    """
    fewest = min(most, 1 << min(sketched, default=2))
    for k in range(most, fewest, -1):
        squared = fsum(c2 * (1.0 - k ** (-1.0 / size)) ** size for size, c2 in sketched.items())
        if _HIDDEN * rows * rows / k >= sqrt(2.0) * (sqrt(k) - 1.0) * squared / mu2:
            return k
    return fewest


def sketched_sizes(mu2: float, sketched: Mapping[int, float], rows: float, most: int) -> list[int]:
    """Returns the clique sizes that are sketched, smallest first.

    They are public, as `width_of` is, and follow from the same arguments. The smallest size, pairs as a rule, is always
    sketched; a further size of j if the sketches, its own among them, then still have the 2^j entries below which j
    attributes have no interaction.
    """
    chosen = sorted(sketched)[:1]
    for size in sorted(sketched)[1:]:
        if width_of(mu2, {s: sketched[s] for s in [*chosen, size]}, rows, most) < 2**size:
            break
        chosen.append(size)
    return chosen


def more_for_many(mu2: float, sketched: Mapping[int, float], rows: float, most: int) -> float:
    """Returns the factor by which many sketches raise their share.

    A share f of the budget takes f from the rounds, whose error grows in proportion. What m sketches do not show goes
    with the noise of each, and so with m / f. The sum of a f and b m / f is least at an f in proportion to the root of
    m. A share that is right for `_FEW` sketches is therefore multiplied by the root of m / `_FEW`, by at most
    `_MOST_RAISED`. Where rows are so few that pairs alone are sketched, more of the budget shows little more of them:
    the factor is 1.

    The factor is public, as `width_of` is, and follows from the same arguments, `mu2` at the share itself.
    """
    sizes = sketched_sizes(mu2, sketched, rows, most)
    if len(sizes) < 2:
        return 1.0
    return min(max(1.0, sqrt(fsum(sketched[size] for size in sizes) / _FEW)), _MOST_RAISED)


def shows_nothing(mu2: float, sketches: int, rows: float) -> bool:
    """Returns whether even a perfect association would drown in noise.

    Then nothing is sketched, and one measurement has all of the budget. The number is public. It compares as `width_of`
    does at the fewest groups, k = 2^j, which leave one dimension of noise: n^2 phi^2 / k against sqrt(2) (m / k) / mu^2
    for m sketches, at the largest phi^2 that there is. Two halves that always go together have 1, and so have j halves
    the last of which is the parity of the others.
    """
    return rows * rows < sqrt(2.0) * sketches / mu2


def arranging_share(
    mu2: float, pairs: Sequence[tuple[int, int]], sizes: Sequence[int], rows: float, sketched: int
) -> float:
    """Returns the share of the budget for ordering unordered values.

    Say that one factor links columns of g values each, with correlations of `ARRANGED`. Then the matrix of all pairs
    has an eigenvalue of ARRANGED n sum(1/g); noise of sigma in every entry has one of 2 sqrt(N) sigma, N the sum of g -
    1. The share makes the first twice the second: the eigenvector then has a squared correlation of 15/16 with that of
    the rows (Benaych-Georges & Nadakuditi 2011). An order helps the pairs of such columns alone, so the most is
    `ARRANGING` times their share of all pairs. Where it takes more than twice that, nothing would be found, and nothing
    is looked for.

    Args:
        mu2: of the whole budget.
        pairs: values of both attributes of each sketched pair that has a column without an order.
        sizes: values of each attribute in them.
        rows: n, public or released.
        sketched: pairs that are sketched.
    """
    if not pairs or rows <= 0:
        return 0.0
    squared = fsum((1.0 - 1.0 / g) * (1.0 - 1.0 / h) for g, h in pairs)
    noise = 2.0 * sqrt(sum(g - 1 for g in sizes) * squared / mu2)
    share = (2.0 * noise / (ARRANGED * rows * fsum(1.0 / g for g in sizes))) ** 2
    most = ARRANGING * len(pairs) / sketched
    return min(share, most) if share <= 2.0 * most else 0.0
