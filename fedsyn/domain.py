"""Domains: attributes of an encoded table and their numbers of values.

Cliques are tuples of attributes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Clique = tuple[str, ...]
#: Arrays of any shape, by what they hold: numbers, counts and positions, truth values, values of attributes.
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.integer]


class Zeros:
    """Structural zeros: cells of a clique that no row can be in.

    Public knowledge says so. An instance unpacks as a pair.

    >>> clique, cells = Zeros(("sex", "pregnant"), np.array([[False, True], [False, False]]))
    >>> clique, int(cells.sum())
    (('sex', 'pregnant'), 1)

    Attributes:
        clique: distinct attributes.
        cells: boolean, of shape `domain.shape_of(clique)`, True where a cell is impossible; read-only.
    """

    __slots__ = ("_hash", "cells", "clique")

    def __init__(self, clique: Iterable[str], cells: npt.ArrayLike) -> None:
        self.clique: Clique = tuple(clique)
        self.cells: Flags = np.array(cells, dtype=bool, order="C")
        self.cells.flags.writeable = False
        self._hash = hash((self.clique, self.cells.shape, np.packbits(self.cells).tobytes()))

    def __iter__(self) -> Iterator[Any]:
        return iter((self.clique, self.cells))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Zeros) and self.clique == other.clique and np.array_equal(self.cells, other.cells)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        digest = base64.b64encode(np.packbits(self.cells).tobytes()).decode()
        return f"Zeros({self.clique}, {self.cells.shape}, {digest})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Zeros, (self.clique, self.cells)


@dataclass(frozen=True)
class Domain:
    """Attribute names with their cardinalities, in the encoded table's column order.

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
        zeros: structural zeros, in order; a `Zeros` or a pair (clique, boolean array) each.
        hidden: name and number of values of each attribute that a model has beside the table's: a factor, which no row
            holds. Cliques may name it; it is in no count of attributes, no code, no iteration.
        wanted: cliques that a workload has where nobody names any, with their weights; empty: any attributes together.
        coarser: attribute -> of each column that it determines, that column's value for each of its own, numbered from
            0. Like `ordered` a fact about the schema.
    """

    attributes: tuple[str, ...]
    shape: tuple[int, ...]
    ordered: Mapping[str, int] = field(default_factory=dict, compare=False)
    zeros: tuple[Zeros, ...] = ()
    hidden: tuple[tuple[str, int], ...] = ()
    coarser: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict, compare=False)
    wanted: tuple[tuple[Clique, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if len(self.attributes) != len(self.shape):
            raise ValueError(f"{len(self.attributes)} attributes but {len(self.shape)} cardinalities")
        object.__setattr__(self, "hidden", tuple((str(name), int(n)) for name, n in self.hidden))
        if len(self._index) != len(self.attributes) + len(self.hidden):
            raise ValueError("attribute names must be distinct")
        if any(n < 1 for n in self.sizes):
            raise ValueError("every attribute needs at least one value")
        if any(name not in self.attributes or not 0 <= n <= self[name] for name, n in self.ordered.items()):
            raise ValueError("no attribute has more ordered values than values")
        object.__setattr__(self, "zeros", tuple(z if isinstance(z, Zeros) else Zeros(*z) for z in self.zeros))
        for clique, cells in self.zeros:
            if not clique or len(set(clique)) != len(clique) or not set(clique) <= set(self.attributes):
                raise ValueError("structural zeros need distinct attributes of the domain")
            if cells.shape != self.shape_of(clique):
                raise ValueError(f"zeros of shape {cells.shape} for a clique of shape {self.shape_of(clique)}")

    @classmethod
    def from_dict(cls, cardinalities: Mapping[str, int]) -> Domain:
        return cls(tuple(cardinalities), tuple(cardinalities.values()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The attributes, and the hidden ones after them."""
        return (*self.attributes, *(name for name, _ in self.hidden))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each of `names`."""
        return (*self.shape, *(n for _, n in self.hidden))

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> int:
        return self.sizes[self._index[name]]

    def axes(self, clique: Iterable[str]) -> tuple[int, ...]:
        """Column indices of the clique's attributes; KeyError for an unknown attribute."""
        return tuple(self._index[name] for name in clique)

    def canonical(self, clique: Iterable[str]) -> Clique:
        """The clique without repeats, in domain order."""
        return tuple(self.names[i] for i in sorted(set(self.axes(clique))))

    def shape_of(self, clique: Iterable[str]) -> tuple[int, ...]:
        index, shape = self._index, self.sizes
        return tuple([shape[index[name]] for name in clique])

    def size(self, clique: Iterable[str] | None = None) -> int:
        """Number of cells of the clique's marginal, or of the whole domain.

        It is a Python int, which may be huge.
        """
        return math.prod(self.shape if clique is None else self.shape_of(clique))

    def project(self, clique: Iterable[str]) -> Domain:
        names = tuple(clique)
        ordered = {name: n for name, n in self.ordered.items() if name in names}
        return Domain(names, self.shape_of(names), ordered, tuple(z for z in self.zeros if set(z.clique) <= set(names)))

    def impossible(self, clique: Iterable[str]) -> Flags | None:
        """Returns the cells of a clique that its zeros make impossible.

        The result is None if there is no such cell.

        Zeros on further attributes count where every value of those is impossible. Cells that are impossible only by
        several zeros together are not looked for.

        Returns:
            Boolean, axes in the clique's order.
        """
        names = tuple(clique)
        out: Flags | None = None
        for zero_names, cells in self.zeros:
            if not set(zero_names) & set(names):
                continue
            table = cells.all(axis=tuple(i for i, name in enumerate(zero_names) if name not in names))
            if not table.any():
                continue
            shared = [name for name in zero_names if name in names]
            table = table.transpose(sorted(range(len(shared)), key=lambda i: names.index(shared[i])))
            table = table.reshape([self[name] if name in shared else 1 for name in names])
            out = np.zeros(self.shape_of(names), dtype=bool) if out is None else out
            out |= table
        return out

    def conditions(self, masks: Mapping[str, npt.ArrayLike]) -> dict[str, Flags]:
        """Returns allowed values by attribute.

        Raises ValueError for an unknown attribute or a wrong number of values.
        """
        out = {name: np.array(mask, dtype=bool) for name, mask in masks.items()}
        if any(name not in self.attributes or mask.shape != (self[name],) for name, mask in out.items()):
            raise ValueError("a condition needs an attribute of the domain and one boolean for each of its values")
        return out

    def violated(self, codes: Codes) -> Flags:
        """Returns whether each row lies in an impossible cell, (n,) bool.

        Rows are (n, d) codes.
        """
        out = np.zeros(len(codes), dtype=bool)
        for clique, cells in self.zeros:
            out |= cells[tuple(codes[:, axis] for axis in self.axes(clique))]
        return out

    def describe(self) -> dict[str, Any]:
        """Returns plain data (JSON) that `described` reads.

        They hold names, cardinalities, zeros and wanted cliques, but not which attributes are ordered.
        """
        facts: dict[str, Any] = {"attributes": list(self.attributes), "shape": list(self.shape)}
        if self.zeros:
            packed = [(z.clique, base64.b64encode(np.packbits(z.cells).tobytes()).decode()) for z in self.zeros]
            facts["zeros"] = [{"clique": list(clique), "cells": cells} for clique, cells in packed]
        if self.wanted:
            facts["wanted"] = [[list(clique), weight] for clique, weight in self.wanted]
        return facts

    @classmethod
    def described(cls, facts: Mapping[str, Any]) -> Domain:
        """Reads what `describe` wrote; further keys are ignored.

        Raises KeyError or ValueError for anything else.
        """
        domain = cls(tuple(facts["attributes"]), tuple(facts["shape"]))
        zeros = []
        for item in facts.get("zeros", ()):
            shape = domain.shape_of(item["clique"])
            packed = np.frombuffer(base64.b64decode(item["cells"], validate=True), np.uint8)
            if len(packed) != -(-math.prod(shape) // 8):
                raise ValueError("zeros of another size than their clique")
            zeros.append(Zeros(item["clique"], np.unpackbits(packed, count=math.prod(shape)).reshape(shape)))
        wanted = tuple((domain.canonical(clique), float(weight)) for clique, weight in facts.get("wanted", ()))
        return cls(domain.attributes, domain.shape, zeros=tuple(zeros), wanted=wanted)
