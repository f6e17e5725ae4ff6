"""The cliques that a mechanism may select: a configuration's workload, and its downward closure with AIM's weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsyn.config import WorkloadNode
from fedsyn.domain import Clique, Domain
from fedsyn.errors import ConfigError, nearest
from fedsyn.table.counting.workload import Workload, candidate_weights, downward_closure, random_kway


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
