"""Domain: the attributes of an encoded table and the number of values of each; cliques are tuples of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Clique = tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """Attribute names with their cardinalities, in the column order of the encoded table.

    >>> domain = Domain(("age", "sex", "smoker"), (10, 2, 3))
    >>> domain["age"], domain.size(("age", "sex")), domain.size()
    (10, 20, 60)
    >>> domain.canonical(("smoker", "age"))
    ('age', 'smoker')
    >>> domain.project(("sex", "age")).shape
    (2, 10)

    Attributes:
        attributes: distinct names.
        shape: number of values of each attribute, each at least 1.
        ordered: how many of an attribute's values, the first ones, stand in their natural order (bins of numbers);
            attributes without an order may be left out. A fact about the schema, lost where a domain is read back from
            an encoded table or a model; two domains that differ in nothing else are equal.
    """

    attributes: tuple[str, ...]
    shape: tuple[int, ...]
    ordered: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if len(self.attributes) != len(self.shape):
            raise ValueError(f"{len(self.attributes)} attributes but {len(self.shape)} cardinalities")
        if len(set(self.attributes)) != len(self.attributes):
            raise ValueError("attribute names must be distinct")
        if any(n < 1 for n in self.shape):
            raise ValueError("every attribute needs at least one value")
        if any(name not in self.attributes or not 0 <= n <= self[name] for name, n in self.ordered.items()):
            raise ValueError("no attribute has more ordered values than values")

    @classmethod
    def from_dict(cls, cardinalities: Mapping[str, int]) -> Domain:
        return cls(tuple(cardinalities), tuple(cardinalities.values()))

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.attributes)}

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> int:
        return self.shape[self._index[name]]

    def axes(self, clique: Iterable[str]) -> tuple[int, ...]:
        """Column indices of the clique's attributes; KeyError for an unknown attribute."""
        return tuple(self._index[name] for name in clique)

    def canonical(self, clique: Iterable[str]) -> Clique:
        """The clique without repeats, in domain order."""
        return tuple(self.attributes[i] for i in sorted(set(self.axes(clique))))

    def shape_of(self, clique: Iterable[str]) -> tuple[int, ...]:
        index, shape = self._index, self.shape
        return tuple([shape[index[name]] for name in clique])

    def size(self, clique: Iterable[str] | None = None) -> int:
        """Number of cells of the clique's marginal, or of the whole domain (a Python int: may be huge)."""
        return math.prod(self.shape if clique is None else self.shape_of(clique))

    def project(self, clique: Iterable[str]) -> Domain:
        names = tuple(clique)
        return Domain(names, self.shape_of(names), {name: n for name, n in self.ordered.items() if name in names})
