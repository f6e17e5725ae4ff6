"""Marginals of encrypted one-hot columns: FHAIM's COMPUTE step.

A data entity encrypts, for the values of its attributes, columns of 0 and 1 over its n rows. A cell of a two-way
marginal is the sum of the product of two columns; the columns may come from two entities that hold different attributes
of the same people, and neither sees the other's.

Three things make it cheap, beside Protocols 1 and 4 as printed (`experiments/fhaim_table4`).

1. Slots hold several columns side by side. Of each value an entity sends its column repeated as often as fits, and all
   its columns one after the other (`joined`): one product of the two gives that many cells.
2. The last value of an attribute needs no column: its cells are one-way cells less the others, and these linear.
3. Slots are not added up by rotations, which cost more than the products. Each carries a mask, uniform modulo t; the
   key holder adds up what is uniform to it, and encrypts the sums, uniform too, again (`KeyHolder.sums`); the masks'
   sums are subtracted from that ciphertext. So counts come out fresh, in the slots where they are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.config import RunConfig
from fedsyn.crypto.fhe.bfv import BfvComputation, DecryptionQuery, Sums, sum_modulo, uniform
from fedsyn.crypto.fhe.parameters import Parameters, bfv_for_store
from fedsyn.crypto.fhe.seal import added
from fedsyn.crypto.fhe.slots import SlotLayout
from fedsyn.domain import Domain
from fedsyn.errors import ProtocolError, refuse
from fedsyn.registry import contract_class
from fedsyn.settings import FheNode

Refresh = Callable[[DecryptionQuery, Sums], list[bytes]]
Column = tuple[str, int]
#: A public number, and coefficients of sums of slots: what a cell is.
Linear = tuple[int, dict[Column | tuple[Column, Column], int]]

_BATCH = 64  # ciphertexts that go to the key holder at once: some 80 MB


@dataclass(frozen=True)
class ColumnLayout:
    """Positions of one entity's columns in ciphertexts.

    Attributes:
        rows: n, of its table.
        slots: of one ciphertext.
        columns: attribute and value of each.
    """

    rows: int
    slots: int
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, rows: int, slots: int, domain: Domain, held: Sequence[str]) -> ColumnLayout:
        """Returns the layout of an entity that holds some attributes.

        Each attribute's last value has no column.
        """
        columns = [(name, value) for name in held for value in range(domain.size((name,)) - 1)]
        return cls(rows, slots, tuple(columns))

    @property
    def height(self) -> int:
        """Slots that one column takes.

        It is n, and 1 for a table without rows, whose columns are zeros.
        """
        return max(1, self.rows)

    @property
    def width(self) -> int:
        """Number of columns side by side in one ciphertext.

        It is 1 where two columns do not fit.
        """
        return max(1, self.slots // self.height)

    @property
    def chunks(self) -> int:
        """Ciphertexts that one column takes."""
        return ceil(self.height / self.slots)

    @property
    def groups(self) -> list[tuple[Column, ...]]:
        """The columns that lie side by side, group by group."""
        return [self.columns[i : i + self.width] for i in range(0, len(self.columns), self.width)]

    @property
    def ciphertexts(self) -> int:
        """Number of ciphertexts that the entity sends."""
        return len(self.columns) * self.chunks + (len(self.groups) if self.width > 1 else 0)

    def place(self, position: int) -> range:
        """Returns the slots of a column in a joined ciphertext.

        Of several chunks, each has them in the same place.
        """
        if self.width == 1:
            return range(min(self.height, self.slots))
        return range(position * self.height, (position + 1) * self.height)

    def vectors(self, codes: dict[str, npt.NDArray[np.integer]]) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the vectors to encrypt, each of at most `slots` entries.

        The repeated columns come first, then the joined ones, as `Columns.of` reads them.
        """

        def column(at: Column) -> npt.NDArray[np.int64]:
            indicator = np.zeros(self.height, np.int64)
            indicator[: self.rows] = codes[at[0]] == at[1]
            return indicator

        for each in self.columns:
            whole = np.tile(column(each), self.width)
            yield from (whole[i : i + self.slots] for i in range(0, len(whole), self.slots))
        if self.width > 1:
            yield from (np.concatenate([column(each) for each in group]) for group in self.groups)


@dataclass(frozen=True)
class Columns:
    """One entity's encrypted columns.

    Attributes:
        layout: of them.
        repeated: chunks of each column.
        joined: chunks of each group.
    """

    layout: ColumnLayout
    repeated: dict[Column, Sequence[Any]]
    joined: list[Sequence[Any]]

    @classmethod
    def of(cls, layout: ColumnLayout, ciphertexts: Sequence[Any]) -> Columns:
        """Reads an entity's ciphertexts; too few or too many are a ProtocolError."""
        if len(ciphertexts) != layout.ciphertexts:
            raise ProtocolError("a client sent more or fewer encrypted columns than its attributes take")
        count = len(layout.columns) * layout.chunks
        chunks = list(zip(*[iter(ciphertexts[:count])] * layout.chunks, strict=True))
        joined: list[Sequence[Any]] = [*chunks] if layout.width == 1 else [(one,) for one in ciphertexts[count:]]
        return cls(layout, dict(zip(layout.columns, chunks, strict=True)), joined)


class Products:
    """COMPUTE over one table, whose attributes one entity holds, or several.

    Args:
        computation: BFV's.
        entities: their columns; together every attribute once.
        domain: of the schema.
        layout: of the store that the counts go into; cliques of at most two attributes.
        refresh: the key holder's `sums`.
    """

    def __init__(
        self,
        computation: BfvComputation,
        entities: Sequence[Columns],
        domain: Domain,
        layout: SlotLayout,
        refresh: Refresh,
    ) -> None:
        self.computation, self.entities, self.domain, self.layout = computation, entities, domain, layout
        self.ring, self._refresh = computation.ring, refresh
        self.count = 0  # products so far

    @property
    def rows(self) -> int:
        return self.entities[0].layout.rows

    def counts(self) -> list[Any]:
        """Returns the store's ciphertexts: all cells of its cliques, in every copy."""
        known: dict[int, int] = {}
        needed: dict[Column | tuple[Column, Column], list[tuple[int, int]]] = {}
        for name, cell in self._cells():
            known[cell], parts = self._linear(name)
            for part, factor in parts.items():
                needed.setdefault(part, []).append((cell, factor))
        fresh, sums = None, self._sums()
        while batch := list(islice(sums, _BATCH)):
            fresh = added(self.ring, fresh, self._refreshed(batch, needed, known))
        return self._with(fresh, known)

    def _refreshed(
        self,
        batch: Sequence[tuple[Any, Sequence[tuple[Any, range]]]],
        needed: Mapping[Any, Sequence[tuple[int, int]]],
        known: dict[int, int],
    ) -> list[Any]:
        """Returns masked sums for the cells that need them, encrypted again.

        It subtracts their masks from `known`.
        """
        sent: list[bytes] = []
        starts: list[int] = []
        sizes, terms = [], []
        for ciphertext, sums in batch:
            mask, first = uniform(self.ring.modulus, self._slots), len(sent) * self._slots
            for name, place in sums:
                hidden = sum_modulo(mask[place.start : place.stop], self.ring.modulus)
                for cell, factor in needed.get(name, ()):
                    terms.append((cell, len(starts), factor))
                    known[cell] -= hidden * factor
                starts.append(first + place.start)
                sizes.append(len(place))
            sent.append(self.computation.hidden(ciphertext, mask))
        return self._again(DecryptionQuery(tuple(sent), tuple(starts), tuple(sizes)), terms)

    @property
    def _slots(self) -> int:
        return self.computation.parameters.slots

    # Which sums are needed, and what cells they make ------------------------------------------------------------------

    def _cells(self) -> Iterator[tuple[tuple[Column, ...], int]]:
        """Yields every cell of the store: attributes with values, and its slot."""
        for clique in self.layout.cliques:
            start, shape = self.layout.range_of(clique)[0], self.domain.shape_of(clique)
            for cell, values in enumerate(np.ndindex(*shape)):
                yield tuple(zip(clique, values, strict=True)), start + cell

    def _linear(self, name: tuple[Column, ...]) -> Linear:
        """Returns a cell as a linear function of sums of slots."""
        for place, (attribute, value) in enumerate(name):
            last = self.domain.size((attribute,)) - 1
            if value == last and (attribute, value) not in self._sent:
                rest = name[:place] + name[place + 1 :]
                constant, parts = self._linear(rest) if rest else (self.rows, {})
                for other in range(last):
                    c, more = self._linear((*name[:place], (attribute, other), *name[place + 1 :]))
                    constant -= c
                    for part, factor in more.items():
                        parts[part] = parts.get(part, 0) - factor
                return constant, {part: factor for part, factor in parts.items() if factor}
        if len(name) == 1:
            return 0, {name[0]: 1}
        first, second = sorted(name, key=lambda column: self._order[column[0]])
        return 0, {(first, second): 1}

    @cached_property
    def _sent(self) -> frozenset[Column]:
        return frozenset(column for entity in self.entities for column in entity.layout.columns)

    @cached_property
    def _order(self) -> dict[str, int]:
        """Order of the attributes: of two, the earlier one is repeated."""
        names = [name for entity in self.entities for name, _ in entity.layout.columns]
        return {name: place for place, name in enumerate(dict.fromkeys([*names, *self.domain]))}

    def _sums(self) -> Iterator[tuple[Any, list[tuple[Any, range]]]]:
        """Yields ciphertexts, with the slots that add up and their target."""
        pairs = {frozenset(clique) for clique in self.layout.cliques if len(clique) == 2}
        for entity in self.entities:
            for group, joined in zip(entity.layout.groups, entity.joined, strict=True):
                places = [(column, entity.layout.place(i)) for i, column in enumerate(group)]
                yield self._added(joined), list(places)
                for earlier in self.entities:
                    for one, repeated in earlier.repeated.items():
                        matches = [
                            ((one, other), place)
                            for other, place in places
                            if self._order[one[0]] < self._order[other[0]] and {one[0], other[0]} in pairs
                        ]
                        if matches:
                            yield self._inner(repeated, joined), list(matches)

    # On ciphertexts ---------------------------------------------------------------------------------------------------

    def _inner(self, one: Sequence[Any], other: Sequence[Any]) -> Any:
        """Sums slotwise products over chunks, relinearised once."""
        evaluator, total = self.ring.evaluator, None
        for a, b in zip(one, other, strict=True):
            product = self.ring.api.Ciphertext()
            evaluator.multiply(a, b, product)
            self.count += 1
            if total is None:
                total = product
            else:
                evaluator.add_inplace(total, product)
        return self.computation.relinearised(total)

    def _added(self, chunks: Sequence[Any]) -> Any:
        total = self.ring.copied(chunks[0])
        for chunk in chunks[1:]:
            self.ring.evaluator.add_inplace(total, chunk)
        return total

    def _again(self, query: DecryptionQuery, terms: Sequence[tuple[int, int, int]]) -> list[Any]:
        """Has combinations of masked sums encrypted again.

        Args:
            query: the masked sums.
            terms: (slot, sum, factor): what the key holder adds up.
        """
        fresh = self.computation.read(self._refresh(query, Sums.of(terms, self.layout.length, self.layout.copies)))
        if len(fresh) != self.layout.ciphertexts:
            raise ProtocolError("the key holder encrypted more or fewer sums than it was asked for")
        return fresh

    def _with(self, fresh: list[Any] | None, known: dict[int, int]) -> list[Any]:
        """Adds the known part of each cell to every copy.

        That part is a constant, less the masks.
        """
        one = np.zeros(self.layout.length, np.int64)
        one[list(known)] = [number % self.ring.modulus for number in known.values()]
        whole = np.tile(one, self.layout.copies)
        if fresh is None:  # every attribute has one value
            return self.computation.encrypted(whole)
        for index, ciphertext in enumerate(fresh):
            plain = self.ring.encoded(whole[index * self._slots : (index + 1) * self._slots])
            self.ring.evaluator.add_plain_inplace(ciphertext, plain)
        return fresh


# What a configuration means: parameters and columns, the same at server, clients and crypto party --------------------

_MOST_ROWS = 2**24
_MOST_PRODUCTS = 2**16  # of one client, 64 of which come back in a piece


def holders_of(config: RunConfig) -> int:
    """Returns how many clients deal: one if the mechanism is central."""
    return 1 if contract_class(config.mechanism.name).central else config.federation.clients


def message_of(node: FheNode, sent: int, planes: int, layout: SlotLayout, parameters: Parameters) -> float:
    """Returns the bytes of one client's message, without its box.

    Counts or columns are ciphertexts; pads and noise are numbers where openings are bound.
    """
    if node.is_bound:
        return float(sent * parameters.bytes + 8 * (layout.entries + planes * layout.noisy))
    return float((sent + planes) * parameters.bytes)


def parameters_of(config: RunConfig) -> Parameters:
    """Returns the parameters of the ciphertexts of a run's store.

    Raises:
        ConfigError: they do not fit what is secure.
    """
    clients = config.federation.clients
    if config.fhe.compute == "client":
        return bfv_for_store(clients)
    # Columns of up to 2^24 rows (`columns_of` refuses more), whose sums come back in up to 2^10 pieces a client.
    return bfv_for_store(clients * 2**10, 2**10)


def columns_of(config: RunConfig, domain: Domain, partition: int, rows: int, slots: int) -> ColumnLayout:
    """Returns how a client's one-hot columns of `rows` rows lie in ciphertexts.

    Raises:
        ProtocolError: the configuration names no columns for this client, or the table is too large.
    """
    held, split = tuple(domain), config.federation.columns
    if split is not None:
        if not 0 <= partition < len(split):
            raise ProtocolError(f"federation.columns names the attributes of clients 0 to {len(split) - 1}")
        held = tuple(name for name in domain if name in split[partition])
    refuse(rows > _MOST_ROWS, f"encrypted columns have at most {_MOST_ROWS} rows")
    layout = ColumnLayout.of(rows, slots, domain, held)
    if len(layout.columns) * (len(layout.groups) + 1) > _MOST_PRODUCTS:
        raise ProtocolError(f"{len(layout.columns)} encrypted columns make too many products: lower data.bins")
    return layout
