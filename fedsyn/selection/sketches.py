"""Sketches: public linear projections of many marginals, small enough for one secure sum of all of them.

A sketch of a marginal M (n_q counts) is M S with a public integer matrix S (n_q, k), so the sum of the clients'
sketches IS the sketch of the pooled table, exactly and whatever the partition. Every row of one S has the same L2 norm
r: r is the sensitivity of the sketch to one row of the table, without looking at S.

    groups  S puts neighbouring values of each attribute together: a coarse marginal. One 1 per row, r = 1.
    count   CountSketch: a public hash sends each cell to one of k buckets with a sign. One +-1 per row, r = 1.
    signs   k signs per cell: a +-1/sqrt(k) projection without its factor. r = sqrt(k).

For `count` and `signs`, E ||x S||^2 = r^2 ||x||^2 over the seed for every x, with variance at most 2 r^4 ||x||^4 / k
(Charikar, Chen & Farach-Colton 2002; Alon, Matias & Szegedy 1999): both see an error of any shape. `groups` has no
seed and sees the part of an error that does not cancel inside a group; there it adds up instead of averaging out.

Bits come from a counter-based function (splitmix64 of Steele, Lea & Flood 2014, keyed by SHA-256 of seed and clique):
no matrix is ever formed, and a client computes them for the cells that its rows touch only. They are public: nothing
about privacy rests on them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.counting.marginals import count_sparse_many
from fedsyn.counting.reductions import dot
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.selection.lookups import Lookups

KINDS = ("groups", "count", "signs")
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# Cells whose signs are expanded at the same time: 64 of them fill 8 MB.
_CELLS_AT_ONCE = 1 << 14
_ROWS_AT_ONCE = 1 << 16
_FEW_BUCKETS = 1 << 14  # up to so many, array calls cost more than what they compute

Grouping = Mapping[tuple[str, int], npt.NDArray[np.integer]]


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


# Groups of neighbouring values --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)  # clients of a simulation that share a process ask for the same ones
def group_counts(domain: Domain, clique: Clique, width: int) -> tuple[int, ...]:
    """Groups per attribute whose product is at most `width`: the smallest one grows first, none beyond its values."""
    sizes = domain.shape_of(clique)
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


def equal_groups(mass: npt.NDArray[np.floating], groups: int) -> npt.NDArray[np.int64]:
    """Cuts neighbouring values into groups of nearly equal mass: minimises the sum of the groups' squared masses.

    Args:
        mass: (n,) of each value; negative ones count as 0. No mass at all: all values count alike.
        groups: how many, at least 1; n or more give every value a group of its own.

    Returns:
        (n,) non-decreasing group of each value, 0 to `groups` - 1, all of them in use.
    """
    n = len(mass)
    if groups >= n:
        return np.arange(n)
    weight = np.maximum(np.asarray(mass, np.float64), 0.0)
    # A little for every value, so that stretches without mass are shared out and the optimum is unique enough.
    weight = weight / max(float(weight.sum()), 1e-300) + 1e-9
    ends = np.concatenate([[0.0], np.cumsum(weight)])
    square = np.where(np.arange(n + 1)[:, None] > np.arange(n + 1), (ends[:, None] - ends) ** 2, np.inf)
    cost = np.full(n + 1, np.inf)
    cost[0] = 0.0
    starts = np.zeros((groups, n + 1), np.int64)
    for g in range(groups):
        total = square + cost  # (end, start)
        starts[g] = total.argmin(axis=1)
        cost = total.min(axis=1)
    out = np.empty(n, np.int64)
    end = n
    for g in range(groups - 1, -1, -1):
        start = int(starts[g, end])
        out[start:end] = g
        end = start
    return out


def grouping_of(
    domain: Domain, cliques: Sequence[Clique], width: int, mass: Mapping[str, npt.NDArray[np.floating]]
) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
    """The groups that sketches of these cliques need: (attribute, number of groups) -> group of each value.

    Args:
        domain: of the cliques.
        cliques: to be sketched.
        width: most buckets of a sketch.
        mass: each attribute's one-way distribution, from released values.
    """
    return {(name, g): equal_groups(mass[name], g) for name, g in grouping_keys(domain, cliques, width)}


def grouping_keys(domain: Domain, cliques: Sequence[Clique], width: int) -> list[tuple[str, int]]:
    """The (attribute, number of groups) that sketches of these cliques need, in the order of their first use."""
    return list(dict.fromkeys(key for q in cliques for key in zip(q, group_counts(domain, q, width), strict=True)))


def pack_grouping(grouping: Grouping) -> npt.NDArray[np.uint16]:
    """Groups as one array for a message, in the order of `grouping_keys`."""
    return np.concatenate([np.zeros(0, np.uint16), *(np.asarray(g, np.uint16) for g in grouping.values())])


def unpack_grouping(
    packed: npt.NDArray[np.generic], domain: Domain, cliques: Sequence[Clique], width: int
) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
    """Inverse of `pack_grouping` for a client, which does not trust it.

    Whatever groups a server sends, one row falls into one bucket of each sketch: only their range is checked.

    Raises:
        ProtocolError: wrong length or type, or a group that does not exist.
    """
    keys = grouping_keys(domain, cliques, width)
    flat = np.asarray(packed)
    if flat.ndim != 1 or flat.dtype.kind not in "ui" or len(flat) != sum(domain[name] for name, _ in keys):
        raise ProtocolError("the groups of the sketches do not fit the domain")
    found, start = {}, 0
    for name, groups in keys:
        own = flat[start : start + domain[name]].astype(np.int64)
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < groups:
            raise ProtocolError("the groups of the sketches do not exist")
        found[name, groups] = own
        start += domain[name]
    return found


# Sketches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketcher:
    """The sketches of some cliques, as every party computes them.

    Attributes:
        domain: of the table.
        cliques: those sketched, two or more attributes each.
        kind: 'groups', 'count' or 'signs'.
        width: k; sketches of `groups` and `count` are as long as their marginal where that has fewer cells.
        weights: one positive integer c_q per clique: its sketch is multiplied by it, and so is its sensitivity.
        seed: public, of the bits.
        grouping: (attribute, number of groups) -> group of each value; of `groups` only.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    kind: str
    width: int
    weights: tuple[int, ...]
    seed: int = 0
    grouping: Grouping | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind of a sketch must be one of {', '.join(KINDS)}")
        if self.width < 1 or len(self.weights) != len(self.cliques) or any(c < 1 for c in self.weights):
            raise ValueError("sketches need a width of at least 1 and one positive integer weight per clique")
        if self.kind == "groups" and self.grouping is None:
            raise ValueError("sketches of groups need the groups")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """k_q of each sketch."""
        if self.kind == "signs":
            return (self.width,) * len(self.cliques)
        if self.kind == "count":
            return tuple(min(self.width, self.domain.size(q)) for q in self.cliques)
        return tuple(math.prod(group_counts(self.domain, q, self.width)) for q in self.cliques)

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
        """r, the L2 norm of every row of every matrix (before the weights)."""
        return math.sqrt(self.width) if self.kind == "signs" else 1.0

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the concatenated vector to one row: it adds one row of each matrix, c_q times."""
        return self.row_norm * math.sqrt(sum(c * c for c in self.weights))

    @property
    def magnitude(self) -> float:
        """Largest absolute value that one row adds to one entry."""
        return float(max(self.weights, default=1))

    @property
    def signed(self) -> bool:
        return self.kind != "groups"

    def of_rows(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(length,) exact integer sketches of a table, (n, d) codes, weights included."""
        out = np.zeros(self.length, np.int64)
        if self.kind == "groups":
            for start in range(0, len(codes), _ROWS_AT_ONCE):
                self._add_groups(codes[start : start + _ROWS_AT_ONCE], out)
        else:
            sparse = count_sparse_many(codes, self.domain, self.cliques)
            for i, marginal in enumerate(sparse):
                part = self._project(i, marginal.cells, marginal.counts)
                out[self.offsets[i] : self.offsets[i + 1]] = np.rint(part).astype(np.int64)
        for i, weight in enumerate(self.weights):
            if weight != 1:
                out[self.offsets[i] : self.offsets[i + 1]] *= weight
        return out

    def of_marginal(self, i: int, values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """(k_q,) the sketch of a whole marginal of clique i, in the unit of `values`: r and weight divided out."""
        flat = np.asarray(values, np.float64).ravel()
        if self.kind == "groups":
            return _histogram(self._buckets[i], flat, self.lengths[i])
        return self._project(i, np.arange(len(flat)), flat) / self.row_norm

    def split(self, vector: npt.NDArray[np.floating]) -> list[npt.NDArray[np.float64]]:
        """The sketches inside a concatenated (noisy) vector, in the unit of `of_marginal`."""
        parts = np.split(np.asarray(vector, np.float64), self.offsets[1:-1])
        return [part / (self.row_norm * c) for part, c in zip(parts, self.weights, strict=True)]

    def sigma_of(self, i: int, sigma: float) -> float:
        """Standard deviation of the noise in an entry of `split`'s sketch i, for noise of `sigma` on the vector."""
        return sigma / (self.row_norm * self.weights[i])

    # ---------------------------------------------------------------------------------------------- kernels

    def _project(
        self, i: int, cells: npt.NDArray[np.integer], values: npt.NDArray[np.number]
    ) -> npt.NDArray[np.float64]:
        """Sum over cells of value * row of S; exact for integer values whose sums stay below 2^53."""
        k, key = self.lengths[i], clique_key(self.seed, self.cliques[i])
        counters: npt.NDArray[np.uint64] = np.asarray(cells).astype(np.uint64)
        if self.kind == "count":
            if k == self.domain.size(self.cliques[i]):
                return _histogram(cells, values, k)
            drawn = splitmix64(key, counters)
            bucket = ((drawn >> np.uint64(32)) * np.uint64(k)) >> np.uint64(32)
            sign = 1.0 - 2.0 * (drawn & np.uint64(1)).astype(np.float64)
            return _histogram(bucket.astype(np.int64), sign * values, k)
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
        for clique in self.cliques:
            stride, own = 1, []
            counts = group_counts(self.domain, clique, self.width)
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


def make_sketcher(
    domain: Domain,
    cliques: tuple[Clique, ...],
    kind: str,
    width: int,
    weights: tuple[int, ...],
    seed: int = 0,
    packed: npt.NDArray[np.generic] | None = None,
) -> Sketcher:
    """The sketches that a request describes; `packed`: its groups, see `unpack_grouping`.

    Clients of a simulation that share a process get one object, which holds no row: sharing saves work only.

    Raises:
        ProtocolError: the groups are missing or malformed.
    """
    if kind == "groups" and packed is None:
        raise ProtocolError("the request does not bring the groups of the sketches")
    groups = None if packed is None else np.ascontiguousarray(packed)
    key = None if groups is None else (groups.dtype.str, groups.shape, groups.tobytes())
    return _shared_sketcher(domain, cliques, kind, width, weights, seed, key)


@lru_cache(maxsize=4)
def _shared_sketcher(
    domain: Domain,
    cliques: tuple[Clique, ...],
    kind: str,
    width: int,
    weights: tuple[int, ...],
    seed: int,
    key: tuple[str, tuple[int, ...], bytes] | None,
) -> Sketcher:
    grouping = None
    if kind == "groups" and key is not None:
        packed = np.frombuffer(key[2], np.dtype(key[0])).reshape(key[1])
        grouping = unpack_grouping(packed, domain, cliques, width)
    return Sketcher(domain, cliques, kind, width, weights, seed, grouping)


def _histogram(
    buckets: npt.NDArray[np.integer], weights: npt.NDArray[np.number], length: int
) -> npt.NDArray[np.float64]:
    """(length,) sum of the weights in each bucket, float64 also where there is nothing to add."""
    return np.bincount(buckets, weights=weights, minlength=length).astype(np.float64, copy=False)


def squared_distance(residual: npt.NDArray[np.floating], sigma: float) -> float:
    """||sketch - sketch of the model||^2 - k sigma^2: unbiased for the squared L2 error that the sketch sees.

    Args:
        residual: (k,) difference of the noisy and the model's sketch, in counts.
        sigma: standard deviation of the noise in each entry.
    """
    flat = np.asarray(residual, np.float64).ravel()
    return dot(flat, flat) - len(flat) * sigma * sigma
