"""Groups of neighbouring values: what a coarse marginal of a clique counts.

The number of groups of each attribute follows from public sizes (`group_counts`), where they are cut from released
one-way marginals (`equal_groups`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError

Grouping = Mapping[tuple[str, int], npt.NDArray[np.integer]]
#: An array of a message as a key of a cache: dtype, shape and bytes.
Packed = tuple[str, tuple[int, ...], bytes]


def group_counts(domain: Domain, clique: Clique, width: int) -> tuple[int, ...]:
    """Groups per attribute whose product is at most `width`: the smallest one grows first, none beyond its values."""
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
    domain: Domain,
    cliques: Sequence[Clique],
    width: int,
    mass: Mapping[str, npt.NDArray[np.floating]],
    scores: Mapping[str, npt.NDArray[np.floating]] | None = None,
) -> dict[tuple[str, int], npt.NDArray[np.int64]]:
    """The groups that sketches of these cliques need: (attribute, number of groups) -> group of each value.

    Groups are of neighbours: by their codes where these have an order, else by their scores or, without any, from the
    likeliest value to the rarest. The order in which unordered values are listed changes nothing.

    Args:
        domain: of the cliques.
        cliques: to be sketched.
        width: most buckets of a sketch.
        mass: each attribute's one-way distribution, from released values.
        scores: of attributes whose codes are in no order, a number for each value.
    """
    found = {}
    for name, g in grouping_keys(domain, cliques, width):
        own = np.asarray(mass[name], np.float64)
        along = np.arange(len(own)) if has_order(domain, name) else (scores or {}).get(name, -own)
        order = np.argsort(along, kind="stable")
        found[name, g] = np.empty(len(own), np.int64)
        found[name, g][order] = equal_groups(own[order], g)
    return found


def has_order(domain: Domain, name: str) -> bool:
    """Whether neighbouring codes of an attribute are alike: bins of numbers, ordered categories, or two values."""
    return domain[name] < 3 or domain.ordered.get(name, 0) > 2


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
    found = unpacked(packed, [(domain[name], groups) for name, groups in keys], "sketches")
    return dict(zip(keys, found, strict=True))


def key_of(packed: npt.NDArray[np.generic]) -> Packed:
    """Return an array of a message as a key: what is made of it, without a row, is shared by a process's clients."""
    array = np.ascontiguousarray(packed)
    return array.dtype.str, array.shape, array.tobytes()


def array_of(key: Packed) -> npt.NDArray[np.generic]:
    """Inverse of `key_of`."""
    dtype, shape, content = key
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)


def unpacked(
    packed: npt.NDArray[np.generic], sizes: Sequence[tuple[int, int]], what: str
) -> list[npt.NDArray[np.int64]]:
    """Return the group of each value of some attributes, one after the other in a server's array.

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
    found = [own.astype(np.int64) for own in np.split(flat, ends)] if sizes else []
    if any(not 0 <= int(own.min()) <= int(own.max()) < groups for own, (_, groups) in zip(found, sizes, strict=True)):
        raise ProtocolError(f"the groups of the {what} do not exist")
    return found
