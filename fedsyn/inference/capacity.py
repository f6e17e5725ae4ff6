"""How large a model may become: which cliques can still be added to its junction tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsyn.config import InferenceNode
from fedsyn.domain import Clique, Domain
from fedsyn.inference import model_size, pass_cost


class Capacity:
    """The cliques of the measurements so far, and the bounds that a further one must respect.

    Two bounds, because they fail separately: cells bound memory and message size; the cost of one message-passing
    sweep bounds time, which an unlucky clique can raise a hundredfold while the cells stay few.

    Args:
        domain: the schema's domain.
        node: `inference` of the configuration, for `max_cells` and `max_pass_cost`.
    """

    def __init__(self, domain: Domain, node: InferenceNode) -> None:
        self.domain = domain
        self.max_cells = node.max_cells
        self.max_pass_cost = node.max_pass_cost
        self._cliques: dict[Clique, None] = {}

    @property
    def cliques(self) -> tuple[Clique, ...]:
        return tuple(self._cliques)

    def add(self, cliques: Iterable[Clique]) -> None:
        """Records measured cliques. Those inside another one cost nothing."""
        for clique in cliques:
            self._cliques[self.domain.canonical(clique)] = None
        sets = [frozenset(q) for q in self._cliques]
        self._cliques = {
            q: None for q, own in zip(list(self._cliques), sets, strict=True) if not any(own < other for other in sets)
        }

    def fits(self, clique: Clique, share: float = 1.0) -> bool:
        """Whether the model with this clique added stays within `share` of both bounds."""
        if any(set(clique) <= set(q) for q in self._cliques):
            return True
        if self.domain.size(clique) > share * self.max_cells:
            return False
        cliques = [*self._cliques, clique]
        return (
            model_size(self.domain, cliques) <= share * self.max_cells
            and pass_cost(self.domain, cliques) <= share * self.max_pass_cost
        )

    def which_fit(self, cliques: Sequence[Clique], share: float = 1.0) -> list[int]:
        """Indices of the cliques that could be added next, each on its own."""
        return [i for i, clique in enumerate(cliques) if self.fits(clique, share)]

    def add_while_fitting(self, cliques: Sequence[Clique]) -> list[int]:
        """Adds the cliques one after the other as long as the bounds hold; indices of those that were added."""
        added = []
        for i, clique in enumerate(cliques):
            if self.fits(clique):
                self.add([clique])
                added.append(i)
        return added
