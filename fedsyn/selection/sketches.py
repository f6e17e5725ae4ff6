"""Sketches: public linear projections of many marginals, small enough for one secure sum of all of them.

A sketch of a marginal M (n_q counts) is M S with a public integer matrix S (n_q, k), so the sum of the clients'
sketches IS the sketch of the pooled table, exactly and whatever the partition. Every row of one S has the same L2 norm
r: r is the sensitivity of the sketch to one row of the table, without looking at S.

    groups        S puts neighbouring values of each attribute together: a coarse marginal. One 1 per row, r = 1.
    interactions  What that coarse marginal has beyond the coarse marginals of its parts (`Interactions`).
    signs         k signs per cell: a +-1/sqrt(k) projection without its factor. r = sqrt(k).

For `signs`, E ||x S||^2 = r^2 ||x||^2 over the seed for every x, with variance at most 2 r^4 ||x||^4 / k (Alon, Matias
& Szegedy 1999): they see an error of any shape. `groups` has no seed and sees the part of an error that does not cancel
inside a group; there it adds up instead of averaging out. So does `interactions`.

Bits come from a counter-based function (splitmix64 of Steele, Lea & Flood 2014, keyed by SHA-256 of seed and clique):
no matrix is ever formed, and a client computes them for the cells that its rows touch only. They are public: nothing
about privacy rests on them.

Sums of look-ups for many cliques in one set of array calls: a small client spends its time in their overhead.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.selection.groups import Grouping, group_counts, unpack_grouping
from fedsyn.table.counting.marginals import count_sparse_many
from fedsyn.table.counting.reductions import dot


class Lookups:
    """For each clique and each of its attributes a table from value to integer; what a row gets is their sum.

    Args:
        axes: of each clique, the columns of its attributes.
        tables: of each clique, one (values,) int64 array per attribute.
        first: number of values of the first column.
    """

    def __init__(
        self, axes: Sequence[tuple[int, ...]], tables: Sequence[Sequence[npt.NDArray[np.int64]]], first: int
    ) -> None:
        flat = [table for own in tables for table in own]
        longest, end = max(map(len, axes), default=0), sum(map(len, flat))
        # A clique without such a place looks up the zeros at the end, by the values of the first column.
        columns = np.zeros((longest, len(axes)), np.int64)
        begins = np.full((longest, len(axes)), end, np.int64)
        position = 0
        for i, (clique, own) in enumerate(zip(axes, tables, strict=True)):
            for place, (axis, table) in enumerate(zip(clique, own, strict=True)):
                columns[place, i], begins[place, i] = axis, position
                position += len(table)
        self._places = list(zip(columns, begins, strict=True))
        self._flat = np.concatenate([*flat, np.zeros(first, np.int64)])

    def sums(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(n, cliques) int64 of (n, d) codes."""
        total = np.zeros((len(codes), len(self._places[0][0]) if self._places else 0), np.int64)
        for columns, begins in self._places:
            total += self._flat[begins + codes[:, columns]]
        return total


KINDS = ("interactions", "groups", "signs")
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# Cells whose signs are expanded at the same time: 64 of them fill 8 MB.
_CELLS_AT_ONCE = 1 << 14
_ROWS_AT_ONCE = 1 << 16
_FEW_BUCKETS = 1 << 14  # up to so many, array calls cost more than what they compute


def splitmix64(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 pseudo-random bits for each counter: the counter-th output of splitmix64 started at `key`."""
    z = np.uint64(key) + (counters + np.uint64(1)) * _GAMMA  # wraps modulo 2^64, as it should
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def clique_key(seed: int, clique: Clique) -> int:
    """The 64-bit key of a clique's bits: a hash of the seed and the attributes' names, the same on every party."""
    text = json.dumps([seed, list(clique)], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def sign_bits(key: int, cells: npt.NDArray[np.uint64], k: int) -> npt.NDArray[np.uint8]:
    """(m, k) bits of a sign matrix's rows: 0 stands for +1 and 1 for -1."""
    words = -(-k // 64)
    places = np.asarray(cells[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64), np.uint64)
    drawn = splitmix64(key, places)
    return np.unpackbits(drawn.astype("<u8").view(np.uint8).reshape(len(cells), -1), axis=1, count=k)


# Sketches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketcher:
    """The sketches of some cliques, as every party computes them. `make_sketcher` chooses the class for a kind.

    Attributes:
        domain: of the table.
        cliques: those sketched, two or more attributes each.
        kind: 'groups' or 'signs'; 'interactions' of the class of that name.
        width: k; all but those of 'signs' are as long as their marginal where that has fewer cells.
        seed: public, of the bits.
        grouping: (attribute, number of groups) -> group of each value; of 'groups' and 'interactions' only.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    kind: str
    width: int
    seed: int = 0
    grouping: Grouping | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind of a sketch must be one of {', '.join(KINDS)}")
        if self.width < 1:
            raise ValueError("sketches need a width of at least 1")
        if self.is_grouped and self.grouping is None:
            raise ValueError("sketches of groups need the groups")

    @property
    def is_grouped(self) -> bool:
        """Whether neighbouring values are put together: the request brings the groups."""
        return self.kind in ("groups", "interactions")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """k_q of each sketch."""
        if self.kind == "signs":
            return (self.width,) * len(self.cliques)
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
    def offsets(self) -> npt.NDArray[np.int64]:
        """(m + 1,) where each sketch starts in the concatenated vector."""
        return np.cumsum([0, *self.lengths], dtype=np.int64)

    @property
    def row_norm(self) -> float:
        """r, the L2 norm of every row of every matrix."""
        return math.sqrt(self.width) if self.kind == "signs" else 1.0

    @cached_property
    def row_norms(self) -> tuple[float, ...]:
        """(m,) r of each clique."""
        return (self.row_norm,) * len(self.cliques)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the concatenated vector to one row: it adds one row of each matrix."""
        return math.sqrt(math.fsum(r**2 for r in self.row_norms))

    @property
    def magnitude(self) -> float:
        """Largest absolute value that one row adds to one entry."""
        return 1.0

    @property
    def signed(self) -> bool:
        return self.kind != "groups"

    def noises(self, i: int) -> int:
        """Independent noises in what `split` gives of sketch i."""
        return self.lengths[i]

    def spread(self, i: int) -> float:
        """Squared L2 norm of what one row adds to the sketch of clique i, in the unit of `of_marginal`."""
        return 1.0

    def unit(self, i: int) -> float:
        """Entries of the vector for one record of the sketch of clique i."""
        return self.row_norm

    def of_rows(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(length,) exact integer sketches of a table, (n, d) codes."""
        out = np.zeros(self.length, np.int64)
        if self.is_grouped:
            for start in range(0, len(codes), _ROWS_AT_ONCE):
                self._add_groups(codes[start : start + _ROWS_AT_ONCE], out)
        else:
            sparse = count_sparse_many(codes, self.domain, self.cliques)
            for i, marginal in enumerate(sparse):
                part = self._project(i, marginal.cells, marginal.counts)
                out[self.offsets[i] : self.offsets[i + 1]] = np.rint(part).astype(np.int64)
        return out

    def of_marginal(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """(k_q,) the sketch of a whole marginal of clique i, in the unit of `values`: r is divided out."""
        flat = np.asarray(values, np.float64).ravel()
        if self.is_grouped:
            return self.coarse(i, flat)
        return self._project(i, np.arange(len(flat)), flat) / self.row_norm

    def split(self, vector: npt.NDArray[np.floating]) -> list[npt.NDArray[np.float64]]:
        """The sketches inside a concatenated (noisy) vector, in the unit of `of_marginal`."""
        parts = np.split(np.asarray(vector, np.float64), self.offsets[1:-1])
        return [part / self.unit(i) for i, part in enumerate(parts)]

    def coarse(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """(k_q,) the coarse marginal of clique i, of a sketch by groups."""
        return _histogram(self._buckets[i], np.asarray(values, np.float64).ravel(), self.lengths[i])

    def sigma_of(self, i: int, sigma: float) -> float:
        """Standard deviation of the noise in an entry of `split`'s sketch i, for noise of `sigma` on the vector."""
        return sigma / self.unit(i)

    # ---------------------------------------------------------------------------------------------- kernels

    def _project(
        self, i: int, cells: npt.NDArray[np.integer], values: npt.NDArray[np.number]
    ) -> npt.NDArray[np.float64]:
        """Sum over cells of value * row of S; exact for integer values whose sums stay below 2^53."""
        k, key = self.lengths[i], clique_key(self.seed, self.cliques[i])
        counters: npt.NDArray[np.uint64] = np.asarray(cells).astype(np.uint64)
        out = np.zeros(k)
        for start in range(0, len(counters), _CELLS_AT_ONCE):
            some, weight = counters[start : start + _CELLS_AT_ONCE], values[start : start + _CELLS_AT_ONCE]
            bits = sign_bits(key, some, k)
            # Summed as one minus twice the bits, in a fixed order: einsum and not BLAS, whose order depends on threads.
            out += np.asarray(weight, np.float64).sum() - 2.0 * np.einsum("i,ij->j", weight, bits.astype(np.float64))
        return out

    @cached_property
    def _lookups(self) -> list[list[npt.NDArray[np.int64]]]:
        """Per clique and attribute: value -> group * stride, so that the bucket of a row is a sum of look-ups."""
        assert self.grouping is not None
        tables = []
        for clique, counts in zip(self.cliques, self.shapes, strict=True):
            stride, own = 1, []
            for name, groups in zip(reversed(clique), reversed(counts), strict=True):
                own.append(np.asarray(self.grouping[name, groups], np.int64) * stride)
                stride *= groups
            tables.append(own[::-1])
        return tables

    @cached_property
    def _buckets(self) -> list[npt.NDArray[np.int64]]:
        """Per clique: the bucket of each cell, flat in C order."""
        found = []
        for own in self._lookups:
            flat = np.zeros(1, np.int64)
            for lookup in own:
                flat = (flat[:, None] + lookup).ravel()
            found.append(flat)
        return found

    @cached_property
    def _shared_lookups(self) -> Lookups:
        first = max(self.domain.shape[:1], default=1)
        return Lookups([self.domain.axes(q) for q in self.cliques], self._lookups, first)

    def _add_groups(self, codes: npt.NDArray[np.integer], out: npt.NDArray[np.int64]) -> None:
        if len(codes) * len(self.cliques) <= _FEW_BUCKETS:
            buckets = self._shared_lookups.sums(codes) + self.offsets[:-1]
            out += np.bincount(buckets.ravel(), minlength=len(out))
            return
        for i, (clique, own) in enumerate(zip(self.cliques, self._lookups, strict=True)):
            bucket = np.zeros(len(codes), np.int64)
            for axis, lookup in zip(self.domain.axes(clique), own, strict=True):
                bucket += lookup[codes[:, axis]]
            part = out[self.offsets[i] : self.offsets[i + 1]]
            part += np.bincount(bucket, minlength=len(part))


@dataclass(frozen=True)
class Interactions(Sketcher):
    """What a coarse marginal has beyond its parts: the counts of g_1 x ... x g_j groups, centred along every axis.

    P = (x)_a (I - J/g_a), J all ones, is the orthogonal projection onto tensors whose sums along each axis are 0: the
    residual space of McKenna et al. 2020 and of ResidualPlanner (Xiao et al. 2023). Errors of a model whose marginals
    of the parts are right lie in it, so nothing of them is lost. Two things are gained:

    - *Sensitivity.* One row adds the unit tensor of its cell, projected: its squared L2 norm is prod (1 - 1/g_a),
      for every cell: a quarter for two binary attributes, an eighth for three.
    - *Noise.* The server projects what it has opened, and noise is left in prod (g_a - 1) dimensions instead of
      prod g_a: one instead of four.

    So that contributions are integers and all sketches have about the same noise in records, sketch q is multiplied by
    its `factor`, the multiple of prod g_a that is nearest to the largest prod g_a of all. A row of its matrix then has
    norm factor * sqrt(prod (1 - 1/g_a)), exactly, and no entry above the factor.
    """

    @cached_property
    def factors(self) -> tuple[int, ...]:
        """(m,) what the projected counts are multiplied by."""
        most = max(self.lengths, default=1)
        return tuple(max(1, round(most / k)) * k for k in self.lengths)

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

    def of_marginal(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        return self._centred(i, self.coarse(i, values)) / self.lengths[i]

    def split(self, vector: npt.NDArray[np.floating]) -> list[npt.NDArray[np.float64]]:
        return [self._centred(i, part) / self.lengths[i] for i, part in enumerate(super().split(vector))]

    def of_rows(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        out = super().of_rows(codes)
        for i, (factor, length) in enumerate(zip(self.factors, self.lengths, strict=True)):
            part = out[self.offsets[i] : self.offsets[i + 1]]
            part[...] = self._centred(i, part) * (factor // length)
        return out

    def _centred(self, i: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(k_q,) prod g_a times the projection: integers of integers."""
        cube = part.reshape(self.shapes[i])
        for axis, groups in enumerate(self.shapes[i]):
            cube = groups * cube - cube.sum(axis=axis, keepdims=True)
        return cube.ravel()


def make_sketcher(
    domain: Domain,
    cliques: tuple[Clique, ...],
    kind: str,
    width: int,
    packed: npt.NDArray[np.generic],
) -> Sketcher:
    """The sketches by groups that a request describes; `packed`: its groups, see `unpack_grouping`.

    Clients of a simulation that share a process get one object, which holds no row: sharing saves work only.

    Raises:
        ProtocolError: the groups are malformed.
    """
    groups = np.ascontiguousarray(packed)
    return _shared_sketcher(domain, cliques, kind, width, (groups.dtype.str, groups.shape, groups.tobytes()))


@lru_cache(maxsize=4)
def _shared_sketcher(
    domain: Domain,
    cliques: tuple[Clique, ...],
    kind: str,
    width: int,
    key: tuple[str, tuple[int, ...], bytes],
) -> Sketcher:
    packed = np.frombuffer(key[2], np.dtype(key[0])).reshape(key[1])
    grouping = unpack_grouping(packed, domain, cliques, width)
    return (Interactions if kind == "interactions" else Sketcher)(domain, cliques, kind, width, grouping=grouping)


def _histogram(
    buckets: npt.NDArray[np.integer], weights: npt.NDArray[np.number], length: int
) -> npt.NDArray[np.float64]:
    """(length,) sum of the weights in each bucket, float64 also where there is nothing to add."""
    return np.bincount(buckets, weights=weights, minlength=length).astype(np.float64, copy=False)


def squared_distance(residual: npt.NDArray[np.floating], sigma: float, noises: int | None = None) -> float:
    """||sketch - sketch of the model||^2 less what its noise adds: unbiased for the squared L2 error that it sees.

    Args:
        residual: (k,) difference of the noisy and the model's sketch, in counts.
        sigma: standard deviation of the noise in each entry.
        noises: independent ones in the residual; None: one an entry.
    """
    flat = np.asarray(residual, np.float64).ravel()
    return dot(flat, flat) - (len(flat) if noises is None else noises) * sigma * sigma
