"""Brute force for the inference tests: a model as one table over the whole (small) domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from fedsyn.domain import Clique, Domain

# Awkward clique sets over a..f, as (cardinalities, cliques).
CASES: dict[str, tuple[tuple[int, ...], tuple[Clique, ...]]] = {
    "nothing measured": ((2, 3, 4), ()),
    "only the empty clique": ((2, 3), ((),)),
    "one attribute": ((5,), (("a",),)),
    "one value": ((1,), (("a",),)),
    "chain": ((2, 3, 4, 3), (("a", "b"), ("b", "c"), ("c", "d"))),
    "star of triples": ((3, 2, 3, 2, 3), (("a", "b", "c"), ("c", "d"), ("c", "e"))),
    "cycle of four": ((3, 2, 3, 2), (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))),
    "cycle of six": (
        (2, 3, 2, 3, 2, 2),
        (("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "a")),
    ),
    "two components": ((3, 2, 4, 2), (("a", "c"), ("b", "d"))),
    "components and a free attribute": ((3, 2, 4, 2, 3), (("a", "c"), ("d", "e"), ("e",))),
    "permuted duplicates": ((3, 4, 2), (("a", "b"), ("b", "a"), ("c", "b"), ("b", "c"), ("b",))),
    "permuted triples": ((4, 2, 3, 2), (("a", "b", "c"), ("c", "a", "b"), ("b", "d"), ("d", "c"))),
    "whole domain": ((3, 2, 4, 2), (("d", "a", "c", "b"), ("a",), ("c", "a"))),
    "nested": ((4, 3, 2, 5), (("a",), ("b",), ("a", "b"), ("a", "b", "d"), ("d",), ("b", "d"))),
    "one-valued attributes": ((1, 3, 1, 2, 1), (("a", "b"), ("b", "c", "d"), ("d", "e"), ("c",))),
    "one-valued separators": ((3, 1, 2, 1), (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))),
    "grid": (
        (2, 3, 2, 2, 3, 2),
        (("a", "b"), ("b", "c"), ("d", "e"), ("e", "f"), ("a", "d"), ("b", "e"), ("c", "f")),
    ),
    "all pairs": (
        (2, 2, 3, 2, 2),
        tuple((x, y) for i, x in enumerate("abcde") for y in "abcde"[i + 1 :]),
    ),
}


def domain_of(shape: Sequence[int]) -> Domain:
    return Domain(tuple("abcdef"[: len(shape)]), tuple(shape))


def broadcast(domain: Domain, clique: Clique, table: np.ndarray) -> np.ndarray:
    """The clique's table with the axes of the whole domain."""
    ordered = [a for a in domain.attributes if a in clique]
    return table.transpose([clique.index(a) for a in ordered]).reshape(
        [domain[a] if a in clique else 1 for a in domain.attributes]
    )


def marginal(domain: Domain, joint: np.ndarray, clique: Sequence[str]) -> np.ndarray:
    """Marginal of a table over the whole domain, axes in the clique's order."""
    table = joint.sum(axis=tuple(i for i, a in enumerate(domain.attributes) if a not in clique))
    ordered = [a for a in domain.attributes if a in clique]
    return table.transpose([ordered.index(a) for a in clique])


class BruteForce:
    """log Z, log probabilities and the joint table of a model given by potentials."""

    def __init__(self, domain: Domain, potentials: Mapping[Clique, np.ndarray]) -> None:
        self.domain = domain
        score = np.zeros(domain.shape)
        for clique, table in potentials.items():
            score = score + broadcast(domain, clique, table)
        top = score.max()
        self.log_partition = float(top + np.log(np.exp(score - top).sum()))
        self.log_joint = score - self.log_partition
        self.joint = np.exp(self.log_joint)

    def marginal(self, clique: Sequence[str]) -> np.ndarray:
        return marginal(self.domain, self.joint, clique)


def all_cliques(domain: Domain) -> list[Clique]:
    """Every ordered clique of at most three attributes, and the whole domain."""
    out: list[Clique] = [()]
    for size in (1, 2, 3):
        out += permutations(domain.attributes, size)
    return [*out, domain.attributes]
