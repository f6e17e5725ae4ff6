"""Coarse marginals: neighbouring values counted in groups, for less noise.

Measured with the same noise, a marginal of few groups has less of it in all than one of many cells, and leaves more of
a dependence unseen. `best_cells` weighs the two. `CoarseMarginals.expanded` brings a coarse marginal back to cells:
inside a group of cells the attributes are taken as independent, each as its one-way marginal has it. That is what the
maximum-entropy model of the coarse and the one-way marginals says, too.

The number of groups of each attribute follows from public sizes (`group_counts`), where they are cut from released
one-way marginals (`equal_groups`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Codes, Domain, Floats, Integers
from fedsyn.errors import ProtocolError
from fedsyn.inference import Measurement
from fedsyn.inference.shrinkage import Departure
from fedsyn.table.counting.sums import sums_of_groups

Grouping = Mapping[tuple[str, int], Codes]
#: An array of a message as a key of a cache: dtype, shape and bytes.
Packed = tuple[str, tuple[int, ...], bytes]


def group_counts(domain: Domain, clique: Clique, width: int) -> tuple[int, ...]:
    """Returns groups per attribute whose product is at most `width`.

    The smallest number grows first; none exceeds the attribute's number of values.
    """
    return _group_counts(domain.shape_of(clique), width)


@lru_cache(maxsize=4096)  # a wide table has few shapes
def _group_counts(sizes: tuple[int, ...], width: int) -> tuple[int, ...]:
    groups = [1] * len(sizes)
    while True:
        options = [
            (groups[j], j)
            for j in range(len(sizes))
            if groups[j] < sizes[j] and math.prod(groups) // groups[j] * (groups[j] + 1) <= width
        ]
        if not options:
            return tuple(groups)
        groups[min(options)[1]] += 1


#: Neighbours of an attribute of more values are put together first, into as many pieces at most: exact cuts take time
#: and memory for the square of their number. A piece is half mass, half values, so it has at most 2/1024 of the mass or
#: is one value. Of 64 groups of equal mass each is then off by less than 1/8 of its mass, and the sum of squares by
#: less than 1/64.
_PIECES = 1 << 10
# Most groups that are cut at once; each of them is cut again for more.
_AT_ONCE = 64


def equal_groups(mass: npt.NDArray[np.floating], groups: int) -> Integers:
    """Cuts neighbouring values into groups of nearly equal mass.

    The sum of the groups' squared masses is smallest, or nearly so if there are more values than `_PIECES`.

    Args:
        mass: (n,) of each value; negative ones count as 0. No mass at all: all values count alike.
        groups: how many, at least 1; n or more give every value a group of its own.

    Returns:
        (n,) non-decreasing group of each value, 0 to `groups` - 1, all of them in use.
    """
    return groupings(mass, [groups])[0]


def groupings(mass: npt.NDArray[np.floating], counts: Sequence[int]) -> list[Integers]:
    """Returns the `equal_groups` for several numbers of groups."""
    n = len(mass)
    cut = [count for count in counts if count < n]
    # A little for every value, so that stretches without mass are shared out and the optimum is unique enough.
    weight = np.maximum(np.asarray(mass, np.float64), 0.0)
    weight = weight / max(float(weight.sum()), 1e-300) + 1e-9
    if n <= _PIECES:
        groups = _exact_groups(weight, cut)
    else:
        along = np.cumsum(weight / weight.sum() + 1.0 / n) * (_PIECES / 2.0)
        pieces = np.unique(np.minimum(along.astype(np.int64), _PIECES - 1), return_inverse=True)[1]
        few = _exact_groups(sums_of_groups(pieces, weight), [min(count, _AT_ONCE) for count in cut])
        groups = [
            _cut_again(weight, one[pieces], count) if count > _AT_ONCE else one[pieces]
            for one, count in zip(few, cut, strict=True)
        ]
    made = iter(groups)
    return [next(made) if count < n else np.arange(n) for count in counts]


def _exact_groups(weight: Floats, counts: Sequence[int]) -> list[Integers]:
    """Returns the best cuts for each number of groups below n."""
    n, most = len(weight), max(counts, default=0)
    ends = np.concatenate([[0.0], np.cumsum(weight)])
    square = np.where(np.arange(n + 1)[:, None] > np.arange(n + 1), (ends[:, None] - ends) ** 2, np.inf)
    cost = np.full(n + 1, np.inf)
    cost[0] = 0.0
    starts = np.zeros((most, n + 1), np.int64)
    for g in range(most):
        total = square + cost  # (end, start)
        starts[g] = total.argmin(axis=1)
        cost = total[np.arange(n + 1), starts[g]]
    out = np.empty((len(counts), n), np.int64)
    for groups, count in zip(out, counts, strict=True):
        end = n
        for g in range(count - 1, -1, -1):
            start = int(starts[g, end])
            groups[start:end] = g
            end = start
    return list(out)


def _cut_again(weight: Floats, groups: Integers, count: int) -> Integers:
    """Returns `count` groups that refine fewer.

    The next cut is always where it takes most from the sum of squares, if groups are cut evenly.
    """
    parts = np.split(weight, np.flatnonzero(np.diff(groups)) + 1)
    masses, counts = [float(part.sum()) for part in parts], [1] * len(parts)
    gains = [(-(mass**2) / 2.0, j) for j, mass in enumerate(masses) if len(parts[j]) > 1]
    heapify(gains)
    for _ in range(count - len(parts)):
        j = gains[0][1]
        counts[j] += 1
        if counts[j] < len(parts[j]):
            heapreplace(gains, (-(masses[j] ** 2) / (counts[j] * (counts[j] + 1)), j))
        else:
            heappop(gains)
    finer = [equal_groups(part, k) for part, k in zip(parts, counts, strict=True)]
    return np.concatenate([group + first for group, first in zip(finer, np.cumsum([0, *counts]), strict=False)])


def grouping_of(
    domain: Domain,
    cliques: Sequence[Clique],
    width: int,
    mass: Mapping[str, npt.NDArray[np.floating]],
    scores: Mapping[str, npt.NDArray[np.floating]] | None = None,
) -> dict[tuple[str, int], Integers]:
    """Returns the groups of values that sketches of some cliques need.

    The result maps (attribute, number of groups) to the group of each value. Groups are of neighbours: by their codes
    where these have an order, else by their scores or, without any, from the likeliest value to the rarest. The order
    in which unordered values are listed changes nothing.

    Args:
        domain: of the cliques.
        cliques: to be sketched.
        width: most buckets of a sketch.
        mass: each attribute's one-way distribution, from released values.
        scores: of attributes whose codes are in no order, a number for each value.
    """
    grouping = {}
    for name, g in grouping_keys(domain, cliques, width):
        masses = np.asarray(mass[name], np.float64)
        along = np.arange(len(masses)) if has_order(domain, name) else (scores or {}).get(name, -masses)
        order = np.argsort(along, kind="stable")
        grouping[name, g] = np.empty(len(masses), np.int64)
        grouping[name, g][order] = equal_groups(masses[order], g)
    return grouping


def has_order(domain: Domain, name: str) -> bool:
    """Returns whether neighbouring codes of an attribute are alike.

    Bins of numbers are, and so are ordered categories and two values.
    """
    return domain[name] < 3 or domain.ordered.get(name, 0) > 2


def grouping_keys(domain: Domain, cliques: Sequence[Clique], width: int) -> list[tuple[str, int]]:
    """Returns the (attribute, number of groups) that sketches of cliques need.

    They are in the order of their first use.
    """
    return list(dict.fromkeys(key for q in cliques for key in zip(q, group_counts(domain, q, width), strict=True)))


def pack_grouping(grouping: Grouping) -> npt.NDArray[np.uint16]:
    """Packs groups into one array for a message, as `grouping_keys` orders them."""
    return np.concatenate([np.zeros(0, np.uint16), *(np.asarray(g, np.uint16) for g in grouping.values())])


def unpack_grouping(
    packed: npt.NDArray[np.generic], domain: Domain, cliques: Sequence[Clique], width: int
) -> dict[tuple[str, int], Integers]:
    """Unpacks the groups of `pack_grouping` at a client, which trusts none.

    Whatever groups a server sends, one row falls into one bucket of each sketch: only their range is checked.

    Raises:
        ProtocolError: wrong length or type, or a group that does not exist.
    """
    keys = grouping_keys(domain, cliques, width)
    parts = unpacked(packed, [(domain[name], groups) for name, groups in keys], "sketches")
    return dict(zip(keys, parts, strict=True))


def key_of(packed: npt.NDArray[np.generic]) -> Packed:
    """Returns an array of a message as a key of a cache.

    Clients that share a process also share what is made of the array without a row.
    """
    array = np.ascontiguousarray(packed)
    return array.dtype.str, array.shape, array.tobytes()


def array_of(key: Packed) -> npt.NDArray[np.generic]:
    """Returns the array of a `key_of`."""
    dtype, shape, content = key
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)


def unpacked(packed: npt.NDArray[np.generic], sizes: Sequence[tuple[int, int]], what: str) -> list[Integers]:
    """Returns the group of each value, attribute after attribute.

    Args:
        packed: of all of them.
        sizes: of each, its values and its groups.
        what: is grouped, for the error.

    Raises:
        ProtocolError: wrong length or type, or a group that does not exist.
    """
    flat = np.asarray(packed)
    if flat.ndim != 1 or flat.dtype.kind not in "ui" or len(flat) != sum(values for values, _ in sizes):
        raise ProtocolError(f"the groups of the {what} do not fit the domain")
    ends = np.cumsum([values for values, _ in sizes])[:-1]
    parts = [part.astype(np.int64) for part in np.split(flat, ends)] if sizes else []
    if any(
        not 0 <= int(part.min()) <= int(part.max()) < groups for part, (_, groups) in zip(parts, sizes, strict=True)
    ):
        raise ProtocolError(f"the groups of the {what} do not exist")
    return parts


# Coarse marginals -----------------------------------------------------------------------------------------------------


Groups = tuple[Codes, ...]
Number = TypeVar("Number", np.int64, np.float64)


def best_cells(distance: float, sigma: float) -> float:
    """Returns k, the number of cells with the least expected error.

    It may be below 1. Noise costs an L1 error of sqrt(2/pi) sigma k. What k cells leave unseen of a dependence that is
    smooth on both axes falls with the width of a cell, as k^(-1/2): all of it, `distance`, at k = 1. The sum is least
    at k = (sqrt(pi/8) distance / sigma)^(2/3).

    Args:
        distance: L1 norm of the dependence, in records.
        sigma: of the measurement, in records.
    """
    return float((math.sqrt(math.pi / 8.0) * max(distance, 0.0) / sigma) ** (2.0 / 3.0))


def resolution(distance: float, sigma: float, cells: float) -> tuple[float, float]:
    """Returns the cells to measure a pair in, and its L1 error.

    The error is the expected one, in records. `best_cells` gives the cells, but 4 at least (two groups each). Measured
    in all its cells the pair has the noise of those that carry it, and nothing is left unseen: where that error is
    less, the number of cells is infinite.

    Args:
        distance: L1 norm of the dependence, in records.
        sigma: of the measurement, in records.
        cells: that carry the marginal.
    """
    noise = math.sqrt(2.0 / math.pi) * sigma
    k = max(4.0, best_cells(distance, sigma))
    coarse = noise * k + max(distance, 0.0) / math.sqrt(k)
    return (k, coarse) if coarse < noise * cells else (math.inf, noise * cells)


@dataclass(frozen=True)
class CoarseMarginals:
    """Some cliques, and the groups of values to count each in.

    Attributes:
        domain: of the table.
        cliques: m of them.
        groups: per clique and attribute, the group of each value, from 0 without gaps.
        shapes: per clique, the number of groups of each attribute.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    groups: tuple[Groups, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, domain: Domain, cliques: Sequence[Clique], cells: Sequence[int], mass: Mapping[str, Floats]
    ) -> CoarseMarginals:
        """Forms groups of about equal mass, with about `cells` cells per clique.

        If there is room, each value is a group. Only values that have an order are put together, into two groups of
        each attribute at least.

        Args:
            domain: of the table.
            cliques: m of them.
            cells: (m,) cells of each, about.
            mass: each attribute's one-way distribution, from released values.
        """
        groups = tuple(
            tuple(
                _groups(domain, name, count, mass[name])
                for name, count in zip(q, _counts(domain, q, most), strict=True)
            )
            for q, most in zip(cliques, cells, strict=True)
        )
        return cls.in_groups(domain, cliques, groups)

    def pack(self) -> npt.NDArray[np.unsignedinteger]:
        """Returns all groups as one array for a message.

        A number takes two bytes where that is enough, otherwise four.
        """
        most = max((count for shape in self.shapes for count in shape), default=0)
        dtype = np.uint16 if most <= 2**16 else np.uint32
        return np.concatenate(
            [np.zeros(0, dtype), *(g.astype(dtype) for clique_groups in self.groups for g in clique_groups)]
        )

    @classmethod
    def unpack(
        cls, domain: Domain, cliques: Sequence[Clique], shapes: Sequence[Sequence[int]], packed: npt.NDArray[np.generic]
    ) -> CoarseMarginals:
        """Unpacks the groups of `pack` at a client, which trusts none.

        Whatever groups a server sends, one row is in one cell of each coarse marginal: only their range is checked.
        Clients of a simulation that share a process get one object, which holds no row: sharing saves work only.

        Raises:
            ProtocolError: wrong length or type, or a group that does not exist.
        """
        return _shared(domain, tuple(cliques), tuple(map(tuple, shapes)), key_of(packed))

    @classmethod
    def in_groups(cls, domain: Domain, cliques: Sequence[Clique], groups: Sequence[Groups]) -> CoarseMarginals:
        """Returns cliques counted in these groups.

        `groups` has the group of each value: numbers from 0, all of them in use.
        """
        shapes = tuple(tuple(int(g.max()) + 1 for g in clique_groups) for clique_groups in groups)
        return cls(domain, tuple(cliques), tuple(groups), shapes)

    @property
    def lengths(self) -> list[int]:
        """Cells of each coarse marginal."""
        return [math.prod(shape) for shape in self.shapes]

    def positions(self, codes: Codes) -> Integers:
        """Returns each row's cells in the concatenated coarse marginals, (m, n).

        `codes` is (n, d).
        """
        out, start = np.empty((len(self.cliques), len(codes)), np.int64), 0
        for i, (clique, groups, shape) in enumerate(zip(self.cliques, self.groups, self.shapes, strict=True)):
            cell = np.zeros(len(codes), np.int64)
            for axis, group, count in zip(self.domain.axes(clique), groups, shape, strict=True):
                cell = cell * count + np.asarray(group, np.int64)[codes[:, axis]]
            out[i] = cell + start
            start += math.prod(shape)
        return out

    def of_rows(self, codes: Codes) -> list[Integers]:
        """Returns the exact coarse marginals of a table, (n, d) codes."""
        whole = np.bincount(self.positions(codes).ravel(), minlength=sum(self.lengths))
        return self.split(whole)

    def split(self, vector: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """Splits a vector into the coarse marginals inside it."""
        parts = np.split(vector, np.cumsum(self.lengths)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def departure(self, i: int, values: Floats, sigma: float, mass: Mapping[str, Floats]) -> Departure:
        """Returns coarse marginal i beside its values under independence.

        The arguments are those of `expanded`.
        """
        independent = np.ones(())
        for name, group, count in zip(self.cliques[i], self.groups[i], self.shapes[i], strict=True):
            p = np.maximum(np.asarray(mass[name], np.float64), 0.0)
            marginal = np.bincount(group, weights=p / max(p.sum(), 1e-300), minlength=count)
            independent = np.multiply.outer(independent, marginal)
        return Departure(independent.ravel(), np.asarray(values, np.float64).ravel(), sigma)

    def expanded(self, i: int, values: Floats, sigma: float, mass: Mapping[str, Floats]) -> Measurement:
        """Returns coarse marginal i as a measurement of cells.

        A fit takes one sigma for all cells of a measurement. Spread over a group's cells in the proportions w, an error
        of one group costs the loss sum(w^2) / sigma_cells^2 where it should cost 1 / sigma^2: sigma_cells is sigma
        times the root of the mean of sum(w^2), over the groups. Fine marginals are returned as they are.

        Args:
            i: which clique.
            values: noisy counts, in the groups' shape.
            sigma: of their noise, in records.
            mass: each attribute's one-way distribution, from released values.
        """
        clique, shape = self.cliques[i], self.shapes[i]
        if shape == self.domain.shape_of(clique):
            return Measurement(clique, values, sigma)
        weights, squares = np.ones(()), np.ones(())
        for name, group, count in zip(clique, self.groups[i], shape, strict=True):
            p = np.maximum(np.asarray(mass[name], np.float64), 0.0) + 1e-12  # empty groups are spread evenly
            proportions = p / np.bincount(group, weights=p, minlength=count)[group]
            weights = np.multiply.outer(weights, proportions)
            squares = np.multiply.outer(squares, np.bincount(group, weights=proportions * proportions, minlength=count))
        cells = np.asarray(values, np.float64).reshape(shape)[np.ix_(*self.groups[i])]
        return Measurement(clique, cells * weights, sigma * math.sqrt(float(squares.mean())), math.prod(shape))


@lru_cache(maxsize=4)
def _shared(
    domain: Domain, cliques: tuple[Clique, ...], shapes: tuple[tuple[int, ...], ...], packed: Packed
) -> CoarseMarginals:
    if len(shapes) != len(cliques) or any(len(s) != len(q) for s, q in zip(shapes, cliques, strict=False)):
        raise ProtocolError("parameter 'shapes' must hold the groups of each attribute of each clique")
    names, counts = list(itertools.chain(*cliques)), list(itertools.chain(*shapes))
    sizes = [(domain[name], count) for name, count in zip(names, counts, strict=True)]
    if any(count > values for values, count in sizes):
        raise ProtocolError("the groups of the coarse marginals do not exist")
    groupings = iter(unpacked(array_of(packed), sizes, "coarse marginals"))
    return CoarseMarginals(
        domain, cliques, tuple(tuple(itertools.islice(groupings, len(clique))) for clique in cliques), shapes
    )


def _counts(domain: Domain, clique: Clique, cells: int) -> tuple[int, ...]:
    """Returns the number of groups of each attribute.

    An attribute without an order gets all its values; the others share the rest.
    """
    ordered = tuple(name for name in clique if domain.ordered.get(name, 0) > 2)
    room = cells // math.prod(domain[name] for name in clique if name not in ordered)
    counts = dict(zip(ordered, group_counts(domain, ordered, max(2 ** len(ordered), room)), strict=True))
    return tuple(counts.get(name, domain[name]) for name in clique)


def _groups(domain: Domain, name: str, count: int, mass: Floats) -> Integers:
    """Returns the group of each value, (size,).

    Values without a place in the order (a missing value) keep groups of their own.
    """
    if count >= domain[name]:
        return np.arange(domain[name])
    ordered = domain.ordered[name]
    groups = equal_groups(np.asarray(mass)[:ordered], max(2, count - (domain[name] - ordered)))
    return np.concatenate([groups, np.arange(groups[-1] + 1, groups[-1] + 1 + domain[name] - ordered)])
