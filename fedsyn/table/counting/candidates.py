"""The cliques that a mechanism may select: a configuration's workload, and its downward closure with AIM's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import WorkloadNode
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, nearest
from fedsyn.table.counting.workload import Workload, candidate_weights, downward_closure, random_kway

#: Cliques of a workload that others' configurations get: they must not exhaust a node's memory, or a reader's.
MOST_CLIQUES = 250_000


def bound_on_cliques(workload: Mapping[str, Any], columns: int) -> int:
    """Bound on the cliques of a workload, and on how many are looked at to draw it."""
    listed = workload.get("cliques")
    if isinstance(listed, list | tuple):
        return sum(2 ** min(len(one), 64) if isinstance(one, list | tuple) else 1 for one in listed)
    degree, size = workload.get("degree", 3), workload.get("size", 64)
    if type(degree) is not int or not 0 < degree <= 64 or not (size is None or type(size) is int):
        return 0  # the model says what is wrong
    total = math.comb(columns, min(degree, columns))
    return int((total if size is None else min(total, size)) * 2**degree)


def strangers_workload(node: WorkloadNode, domain: Domain) -> Workload:
    """`build_workload` of a configuration that a stranger may have written. Raises ConfigError if it is too large."""
    if bound_on_cliques(node.model_dump(), len(domain)) > MOST_CLIQUES:
        raise ConfigError(f"workload: it has more cliques than are read of a run directory ({MOST_CLIQUES:,})")
    return build_workload(node, domain)


@lru_cache(maxsize=32)
def build_workload(node: WorkloadNode, domain: Domain) -> Workload:
    """The workload that a configuration describes, on this domain; the same on every party.

    Raises:
        ConfigError: an explicit clique names an unknown attribute.
    """
    if node.cliques is None:
        return random_kway(domain, node.degree, node.size, np.random.default_rng(node.seed))
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
    """The cliques that a mechanism may select, in one order that every party shares.

    Attributes:
        cliques: downward closure of the workload, sorted by (number of attributes, domain order).
        weights: (m,) w_q = sum over workload cliques r of weight_r * |q ∩ r|.
        cells: (m,) n_q, cells of each clique's marginal.
    """

    cliques: tuple[Clique, ...]
    weights: npt.NDArray[np.float64]
    cells: npt.NDArray[np.float64]

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
        cliques,
        np.array([weights[q] for q in cliques]),
        np.array([float(domain.size(q)) for q in cliques]),
    )
