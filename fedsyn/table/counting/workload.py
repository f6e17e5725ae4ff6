"""Workloads: the weighted cliques to answer well, and a mechanism's candidates.

A workload is public: it is configuration and never depends on the data. Candidates are its downward closure, with AIM's
weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedsyn.domain import Clique, Domain, Floats
from fedsyn.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedsyn.config import WorkloadNode

T = TypeVar("T")

# Sampling ranks all cliques up to this many; of more, it draws until enough distinct ones are found.
_ENUMERABLE = 1_000_000


@dataclass(frozen=True)
class Workload:
    """Weighted cliques.

    >>> domain = Domain(("age", "sex", "smoker"), (10, 2, 3))
    >>> pairs = all_kway(domain, 2)
    >>> pairs.cliques
    (('age', 'sex'), ('age', 'smoker'), ('sex', 'smoker'))
    >>> downward_closure([("age", "sex")], domain)
    [('age',), ('sex',), ('age', 'sex')]
    >>> candidate_weights(pairs, [("age",), ("age", "sex")])
    {('age',): 2.0, ('age', 'sex'): 4.0}

    Attributes:
        cliques: attribute names of each query, in domain order.
        weights: one positive weight per clique.
    """

    cliques: tuple[Clique, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cliques", tuple(tuple(clique) for clique in self.cliques))
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        if len(self.cliques) != len(self.weights):
            raise ValueError(f"{len(self.cliques)} cliques but {len(self.weights)} weights")
        if not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError("workload weights must be positive and finite")
        if any(len(set(clique)) != len(clique) for clique in self.cliques):
            raise ValueError("a workload clique repeats an attribute")

    def __len__(self) -> int:
        return len(self.cliques)

    @classmethod
    def uniform(cls, cliques: Iterable[Clique]) -> Workload:
        """The workload of these cliques, each of weight 1."""
        cliques = tuple(cliques)
        return cls(cliques, (1.0,) * len(cliques))


def all_kway(domain: Domain, k: int) -> Workload:
    """All cliques of k attributes, weight 1, in lexicographic domain order.

    A domain of fewer than k attributes has one clique instead: all its attributes.

    Raises:
        ValueError: k < 1.
    """
    return Workload.uniform(itertools.combinations(domain.attributes, _degree(domain, k)))


def random_kway(domain: Domain, k: int, size: int | None, rng: np.random.Generator) -> Workload:
    """Returns `size` distinct random cliques of k attributes.

    They are drawn uniformly without replacement, have weight 1, and stand in domain order.

    Args:
        domain: attributes to draw from; fewer than k: as in `all_kway`.
        k: attributes per clique.
        size: number of cliques; None, or at least the number of all cliques: all of them.
        rng: source of randomness (`random` is used).

    Raises:
        ValueError: k < 1 or size < 1.
    """
    degree = _degree(domain, k)
    if size is not None and size < 1:
        raise ValueError("a workload needs at least one clique")
    total = math.comb(len(domain), degree)
    if size is None or size >= total:
        return all_kway(domain, k)
    if total <= _ENUMERABLE:
        keep = set(np.argsort(rng.random(total), kind="stable")[:size].tolist())
        ranked = enumerate(itertools.combinations(range(len(domain)), degree))
        chosen = [axes for rank, axes in ranked if rank in keep]
    else:
        distinct: set[tuple[int, ...]] = set()
        limit = min(size, total // 2)  # far from exhausting them, so rejections stay rare
        if limit < size:
            raise ValueError(f"cannot draw {size} of {total} cliques; leave the size empty to take all")
        while len(distinct) < size:
            distinct.add(tuple(sorted(np.argsort(rng.random(len(domain)))[:degree].tolist())))
        chosen = sorted(distinct)
    return Workload.uniform(tuple(domain.attributes[i] for i in axes) for axes in chosen)


def subsets(items: Sequence[T], least: int = 1) -> Iterator[tuple[T, ...]]:
    """Yields all subsets of at least this size.

    Items keep the given order. Smaller subsets come first.
    """
    return itertools.chain.from_iterable(itertools.combinations(items, k) for k in range(least, len(items) + 1))


def downward_closure(cliques: Iterable[Clique], domain: Domain) -> list[Clique]:
    """All non-empty subsets of the cliques: AIM's candidates before the size filter.

    Returns:
        Distinct canonical cliques, sorted by their number of attributes, then by domain order.
    """
    whole = {tuple(sorted(set(domain.axes(clique)))) for clique in cliques}
    ordered = sorted({part for axes in whole for part in subsets(axes)}, key=lambda axes: (len(axes), axes))
    return [tuple(domain.attributes[i] for i in axes) for axes in ordered]


def candidate_weights(workload: Workload, candidates: Iterable[Clique]) -> dict[Clique, float]:
    """Returns AIM's weight of each candidate.

    w_q = sum over workload cliques r of weight_r * |q ∩ r|.

    The sum is linear in the attributes of q: each attribute contributes the total weight of the workload
    cliques that hold it. That makes one pass over the workload enough for any number of candidates.

    Source: McKenna et al. 2022 (AIM), Section 4; used by Maddock et al. 2024, Algorithms 1 and 2.
    """
    held: dict[str, float] = {}
    for clique, weight in zip(workload.cliques, workload.weights, strict=True):
        for name in clique:
            held[name] = held.get(name, 0.0) + weight
    return {tuple(q): sum(held.get(name, 0.0) for name in q) for q in candidates}


def _degree(domain: Domain, k: int) -> int:
    if k < 1:
        raise ValueError("cliques need at least one attribute")
    return min(k, len(domain))


# Candidates -----------------------------------------------------------------------------------------------------------


# Attributes of the largest clique that a domain wants (`fedsyn.table.schema.persons.wanted`).
_LARGEST_WANTED = 3
# Attributes of a clique where a domain wants none and the configuration leaves it open.
_PLAIN = 3
#: Cliques of a workload that others' configurations get: they must not exhaust a node's memory, or a reader's.
MOST_CLIQUES = 250_000


def bound_on_cliques(workload: Mapping[str, Any], columns: int) -> int:
    """Returns a bound on the cliques of a workload.

    It also bounds how many are looked at to draw the workload.
    """
    listed = workload.get("cliques")
    if isinstance(listed, list | tuple):
        return sum(2 ** min(len(one), 64) if isinstance(one, list | tuple) else 1 for one in listed)
    degree, size = workload.get("degree", 3), workload.get("size", 64)
    # What is wanted of a table of persons are pairs of its columns, with one column more at most.
    wanted = columns * columns * (1 << _LARGEST_WANTED) if degree is None else 0
    degree = _PLAIN if degree is None else degree
    if type(degree) is not int or not 0 < degree <= 64 or not (size is None or type(size) is int):
        return 0  # the model says what is wrong
    total = math.comb(columns, min(degree, columns))
    return max(wanted, int((total if size is None else min(total, size)) * 2**degree))


def strangers_workload(node: WorkloadNode, domain: Domain) -> Workload:
    """Returns the workload of a configuration that a stranger may have written.

    Works as `build_workload`, and raises ConfigError if the workload is too large.
    """
    if bound_on_cliques(node.model_dump(), len(domain)) > MOST_CLIQUES:
        raise ConfigError(f"workload: it has more cliques than are read of a run directory ({MOST_CLIQUES:,})")
    return build_workload(node, domain)


@lru_cache(maxsize=32)
def build_workload(node: WorkloadNode, domain: Domain) -> Workload:
    """Returns the workload that a configuration describes on this domain.

    It is the same on every party.

    Raises:
        ConfigError: an explicit clique names an unknown attribute.
    """
    if node.degree is None and node.cliques is None and domain.wanted:
        known = {domain.canonical(clique): weight for clique, weight in domain.wanted}
        return Workload(tuple(known), tuple(known.values()))
    if node.cliques is None:
        return random_kway(domain, node.degree or _PLAIN, node.size, np.random.default_rng(node.seed))
    for clique in node.cliques:
        for name in clique:
            if name not in domain:
                raise ConfigError(
                    f"workload.cliques: unknown attribute '{name}'{nearest(name, domain)}; "
                    f"the schema has: {', '.join(domain.attributes)}"
                )
    if not node.cliques or not all(node.cliques):
        raise ConfigError("workload.cliques: needs at least one clique, each with at least one attribute")
    return Workload.uniform(dict.fromkeys(domain.canonical(clique) for clique in node.cliques))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Cliques that a mechanism may select.

    They stand in one order that every party shares.

    Attributes:
        cliques: downward closure of the workload, sorted by (number of attributes, domain order).
        weights: (m,) w_q = sum over workload cliques r of weight_r * |q ∩ r|.
        cells: (m,) n_q, cells of each clique's marginal.
    """

    cliques: tuple[Clique, ...]
    weights: Floats
    cells: Floats

    @classmethod
    def of(cls, workload: Workload, domain: Domain) -> Candidates:
        return _candidates(workload, domain)

    def __len__(self) -> int:
        return len(self.cliques)


@lru_cache(maxsize=8)
def _candidates(workload: Workload, domain: Domain) -> Candidates:
    cliques = tuple(downward_closure(workload.cliques, domain))
    weights = candidate_weights(workload, cliques)
    return Candidates(
        cliques, np.array([weights[q] for q in cliques]), np.array([float(domain.size(q)) for q in cliques])
    )
