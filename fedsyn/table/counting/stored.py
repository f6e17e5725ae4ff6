"""Layout of a store's marginals.

Decides which marginals a store keeps, and where in it every other one is found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedsyn.domain import Clique, Domain, Integers


def stored_cliques(cliques: Sequence[Clique], domain: Domain) -> tuple[Clique, ...]:
    """Returns the cliques to keep, those inside no other one.

    All of `cliques`, and every attribute, can be found in them.

    Marginals of the rest are sums of theirs: linear, and so free on secret shares and ciphertexts.
    """
    sets = [frozenset(clique) for clique in cliques]
    holding = _holders(sets)
    largest = [
        q
        for q, members in zip(cliques, sets, strict=True)
        if not any(members < sets[i] for i in _fewest(holding, members))
    ]
    covered = frozenset[str]().union(*sets)
    alone = [(name,) for name in domain if name not in covered]
    return tuple(dict.fromkeys([*largest, *alone]))


def _holders(sets: Sequence[Collection[str]]) -> dict[str, list[int]]:
    """Positions of the cliques that have each attribute."""
    out: dict[str, list[int]] = {}
    for i, names in enumerate(sets):
        for name in names:
            out.setdefault(name, []).append(i)
    return out


def _fewest(holding: Mapping[str, list[int]], clique: Collection[str]) -> Sequence[int]:
    """Returns positions of the cliques with this one's rarest attribute.

    All cliques that contain this one are among them.
    """
    return min((holding.get(name, []) for name in clique), key=len, default=[])


@dataclass(frozen=True)
class StoreFacts:
    """Requests that a store may answer in a run.

    They are public, and the same for everybody.

    Attributes:
        cliques: that may be chosen or opened, every attribute first.
        choices: the most choices.
        openings: the most openings; one of them opens every attribute, each other one a single clique.
        norm: of the scores.
    """

    cliques: tuple[Clique, ...]
    choices: int
    openings: int
    norm: str

    @property
    def attributes(self) -> tuple[Clique, ...]:
        """Cliques that the one opening of every attribute opens."""
        return tuple(clique for clique in self.cliques if len(clique) == 1)


@dataclass(frozen=True)
class StoredPlace:
    """Place of a marginal in a stored vector.

    Attributes:
        start: first cell of the stored marginal that holds it.
        shape: of that one.
        over: its axes that are summed away.
    """

    start: int
    shape: tuple[int, ...]
    over: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64))


class StoredLayout:
    """Layout of a store.

    The store holds some marginals, one after the other in C order.

    >>> domain = Domain(("age", "sex", "smoker"), (10, 2, 3))
    >>> StoredLayout([("age", "sex"), ("smoker",)], domain).place(("sex",))
    StoredPlace(start=0, shape=(10, 2), over=(0,))

    Args:
        cliques: that are kept.
        domain: of the schema.
    """

    def __init__(self, cliques: Sequence[Clique], domain: Domain) -> None:
        self.cliques, self.domain = tuple(cliques), domain
        sizes = [domain.size(clique) for clique in self.cliques]
        self._starts = list(accumulate(sizes, initial=0))
        self._found: dict[Clique, StoredPlace] = {}
        self._sets = [frozenset(clique) for clique in self.cliques]
        self._holding = _holders(self._sets)

    @property
    def starts(self) -> list[int]:
        """First cell of each stored marginal."""
        return self._starts[:-1]

    @property
    def length(self) -> int:
        """L, cells of the store."""
        return self._starts[-1]

    def place(self, clique: Clique) -> StoredPlace:
        """Returns the place of a marginal.

        It is found in the smallest stored marginal that has its attributes.

        Raises:
            KeyError: no stored clique has them all.
        """
        if clique not in self._found:
            names = frozenset(clique)
            near = _fewest(self._holding, names) if names else range(len(self.cliques))
            holding = [i for i in near if names <= self._sets[i]]
            if not holding:
                raise KeyError(clique)
            i = min(holding, key=lambda i: self._starts[i + 1] - self._starts[i])
            over = tuple(axis for axis, name in enumerate(self.cliques[i]) if name not in clique)
            self._found[clique] = StoredPlace(self._starts[i], self.domain.shape_of(self.cliques[i]), over)
        return self._found[clique]

    def marginal(self, vector: Integers, clique: Clique) -> Integers:
        """Returns a marginal in its own shape.

        It comes from a stored vector (L,) int64, or from a share of it (modulo 2^64).
        """
        place = self.place(clique)
        summed: Integers = (
            vector[place.start : place.stop].reshape(place.shape).sum(axis=place.over, dtype=vector.dtype)
        )
        return summed
