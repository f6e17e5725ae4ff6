"""Room of a model for further cliques in its junction tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Domain, Flags, Integers
from fedsyn.errors import ConfigError
from fedsyn.inference.growth import Growth
from fedsyn.inference.junction_tree import axes_of, maximal, model_size, pass_cost


def require_room(domain: Domain, node: InferenceNode) -> None:
    """Raises ConfigError for structural zeros that no model may honour.

    Raises:
        ConfigError: one sentence that says what to change.
    """
    if not domain.zeros:
        return
    widest = max((clique for clique, _ in domain.zeros), key=domain.size)
    cells, cost = model_size(domain, []), pass_cost(domain, [])
    for name, needed, bound in (
        ("max_cells", cells, node.max_cells),
        ("max_message_passing_cost", cost, node.max_message_passing_cost),
    ):
        if needed > bound:
            raise ConfigError(
                f"the schema's constraints need a model of inference.{name} = {needed:.0f} or more (now {bound:.0f}), "
                f"most of it for the columns {', '.join(widest)}; give them fewer bins (or equal ones, where they are "
                f"compared), or raise inference.{name}"
            )


# `which_fit` triangulates anew what a clique may change as long as that concerns so many attributes, or fewer.
MOST_ATTRIBUTES = 48
# The same for a plan, which asks about all candidates again for each clique that it takes.
PLANNED_ATTRIBUTES = 16


class Capacity:
    """Measured cliques so far, and the bounds on further ones.

    Two bounds, because they fail separately: cells bound memory and message size; the cost of one message-passing
    sweep bounds time, which an unlucky clique can raise a hundredfold while the cells stay few.

    The cliques of structural zeros are in every model, so its size counts them from the start.

    Args:
        domain: the schema's domain.
        node: `inference` of the configuration, for `max_cells` and `max_message_passing_cost`.

    Raises:
        ConfigError: the structural zeros alone need more than the bounds allow.
    """

    def __init__(self, domain: Domain, node: InferenceNode) -> None:
        self.domain = domain
        self.max_cells = node.max_cells
        self.max_message_passing_cost = node.max_message_passing_cost
        self._axes = axes_of(domain)
        self._cliques: dict[Clique, int] = {}  # with their masks; maximal ones only
        self._growth: Growth | None = None
        self._stale: Growth | None = None
        require_room(domain, node)

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """The maximal measured cliques."""
        return tuple(self._cliques)

    @property
    def growth(self) -> Growth:
        """The junction tree of the cliques so far, ready to be extended."""
        if self._growth is None:
            masks = tuple(self._cliques.values())
            if self._axes.zeros:
                masks = tuple(maximal([*masks, *self._axes.zeros]))
            self._growth = Growth(self._axes, masks, self._stale)
            self._stale = None
        return self._growth

    def copy(self) -> Capacity:
        """Returns an independent copy with the same cliques and bounds."""
        other = copy.copy(self)
        other._cliques = dict(self._cliques)
        return other

    def add(self, cliques: Iterable[Clique]) -> None:
        """Records measured cliques; one inside another costs nothing."""
        for clique in cliques:
            mask = self._axes.mask(clique)
            if any(mask & other == mask for other in self._cliques.values()):
                continue
            inside = [q for q, other in self._cliques.items() if other & mask == other]
            for q in inside:
                del self._cliques[q]
            self._cliques[self.domain.canonical(clique)] = mask
            self._stale, self._growth = self._growth or self._stale, None

    def fits(self, clique: Clique, share: float = 1.0) -> bool:
        """Returns whether a clique keeps the model within both bounds.

        The model may fill only the part `share` of them.
        """
        return self.growth.fits(self._axes.mask(clique), share * self.max_cells, share * self.max_message_passing_cost)

    def take(self, clique: Clique, share: float = 1.0, alone: Callable[[Clique], bool] | None = None) -> bool:
        """Adds a clique to a plan if there is room for it.

        `test`, then `alone`, and the tree's own size must allow it. Returns whether it was added.
        """
        if not self.test(share, PLANNED_ATTRIBUTES)(clique) or not (alone is None or alone(clique)):
            return False
        before = self._cliques, self._growth, self._stale
        self._cliques = dict(self._cliques)
        self.add([clique])
        if self._growth is None and not self.growth.within(
            share * self.max_cells, share * self.max_message_passing_cost
        ):
            self._cliques, self._growth, self._stale = before
            return False
        return True

    def which_fit(self, cliques: Sequence[Clique], share: float = 1.0) -> list[int]:
        """Returns the indices of cliques that could be added next.

        Each is judged on its own, as `fits` does, unless more than `MOST_ATTRIBUTES` attributes might have to be
        triangulated anew. Then the tree as it is must have room for the clique, which is carried along it
        (`Extension`): in a table of many columns a triangulation per candidate would take minutes a round.
        """
        fits = self.test(share)
        return [i for i, clique in enumerate(cliques) if fits(clique)]

    def test(self, share: float = 1.0, most: int = MOST_ATTRIBUTES) -> Callable[[Clique], bool]:
        """Returns `which_fit` as a test of single cliques.

        It judges beside the present cliques, whatever is added later.
        """
        cells, cost, growth, mask = (
            share * self.max_cells,
            share * self.max_message_passing_cost,
            self.growth,
            self._axes.mask,
        )
        return lambda clique: growth.fits(mask(clique), cells, cost, most)

    def pairs(self, cliques: Sequence[Clique]) -> Integers:
        """Returns the ranks of each pair, the lower first, (m, 2).

        A clique that is no pair has -1 twice.
        """
        rank = self._axes.rank
        return np.array([sorted(map(rank.__getitem__, q)) if len(q) == 2 else (-1, -1) for q in cliques], np.int64)

    def lacking(self, pairs: Integers, share: float = 1.0) -> Flags:
        """Marks the pairs that have no room, (m,).

        It can tell only of pairs (as `pairs` gives them) in cores of more than `PLANNED_ATTRIBUTES` attributes.
        """
        return self.growth.lacking(
            pairs, share * self.max_cells, share * self.max_message_passing_cost, PLANNED_ATTRIBUTES
        )

    def add_while_fitting(self, cliques: Sequence[Clique]) -> list[int]:
        """Adds each clique that fits beside those added before.

        Returns the indices of the added ones.
        """
        added = []
        for i, clique in enumerate(cliques):
            if self.fits(clique):
                self.add([clique])
                added.append(i)
        return added


class PlannedTree:
    """A tree for a plan, apart from the capacity's.

    The plan takes candidates into it; the capacity stays as it is.

    Args:
        capacity: of the measurements so far.
        cliques: the candidates.
        pairs: `Capacity.pairs` of them.
        share: of both bounds.
    """

    def __init__(self, capacity: Capacity, cliques: Sequence[Clique], pairs: Integers, share: float) -> None:
        self._alone = capacity.test(share, PLANNED_ATTRIBUTES)
        self._tree, self._cliques, self._pairs, self._share = capacity.copy(), cliques, pairs, share

    def alone(self, i: int) -> bool:
        """Returns whether a candidate has room beside the measurements alone."""
        return self._alone(self._cliques[i])

    def take(self, i: int) -> bool:
        """Takes a candidate if there is room, also without the others (`Capacity.take`).

        A tree of more cliques is seldom the better one: then a candidate has room in it and none alone.
        """
        return self._tree.take(self._cliques[i], self._share, self._alone)

    def lacking(self, which: Integers) -> Flags:
        """Marks the candidates that are known to be refused.

        It marks only those for which this is known at once.
        """
        return self._tree.lacking(self._pairs[which], self._share)
