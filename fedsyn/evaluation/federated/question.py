"""The holders' question about a table.

Public arrays, checked before anybody compares a row with them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.domain import Clique, Domain
from fedsyn.errors import ProtocolError
from fedsyn.evaluation.boxes import Boxes
from fedsyn.evaluation.trees import Trees
from fedsyn.table.counting.marginals import SparseMarginal, count_sparse_many
from fedsyn.table.counting.workload import Workload

#: Rows of the table that are compared: of a larger one so many are drawn.
MOST_ROWS = 200_000
#: Cliques of the workload that are compared: of a larger workload so many are drawn, with a fixed seed.
MOST_CLIQUES = 1_000


@dataclass(frozen=True, eq=False)
class TableQuestion:
    """A table, boxes over its columns, and a trained classifier.

    All of it is public.

    Attributes:
        domain: of the table.
        cliques: of the workload, whose marginals are compared.
        table: (N, d) codes.
        boxes: range queries.
        trees: the classifier, or none.
        label: column that it predicts; None: there is none.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    table: npt.NDArray[np.integer]
    boxes: Boxes
    trees: Trees
    label: int | None

    def arrays(self) -> list[npt.NDArray[Any]]:
        return [self.table, *self.boxes.arrays(), *self.trees.arrays()]

    @classmethod
    def read(
        cls, domain: Domain, workload: Workload, arrays: Sequence[npt.NDArray[Any]], label: int | None
    ) -> TableQuestion:
        """The question of a message. Raises ProtocolError for anything else.

        Clients of a simulation that share a process share one: found by the hash of its bytes.
        """
        if len(arrays) != 8:
            raise ProtocolError(f"expected 8 arrays in the question about the table, got {len(arrays)}")
        digest = hashlib.sha256(repr((domain.describe(), workload.cliques, label)).encode())
        for array in arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        if key not in _read:
            table, *rest = arrays
            question = cls(domain, compared_cliques(workload), table, Boxes(*rest[:3]), Trees(*rest[3:]), label)
            try:
                question.check()
            except ValueError as error:
                raise ProtocolError(f"the question about the table: {error}") from None
            _read[key] = question
            while len(_read) > 2:
                _read.popitem(last=False)
        return _read[key]

    def check(self) -> None:
        """ValueError unless everything fits the domain."""
        table, shape = self.table, self.domain.shape
        if table.dtype.kind not in "u" or table.ndim != 2 or table.shape[1] != len(shape):
            raise ValueError("expected a table of codes with one column for each attribute")
        if not 1 <= len(table) <= MOST_ROWS:
            raise ValueError(f"the table must have 1 to {MOST_ROWS:,} rows")
        if (table >= np.array(shape)).any():
            raise ValueError("the table has a code that there is not")
        if self.label is not None and not 0 <= self.label < len(shape):
            raise ValueError("the label must be one of the table's columns")
        self.boxes.check(shape)
        self.trees.check(shape, self.label)

    @cached_property
    def margins(self) -> tuple[SparseMarginal, ...]:
        """Counts the table's cliques, then its columns."""
        return tuple(count_sparse_many(self.table, self.domain, [*self.cliques, *self.columns]))

    @property
    def columns(self) -> tuple[Clique, ...]:
        return tuple((name,) for name in self.domain)

    @cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """(J,) share of the table in each box."""
        return self.boxes.counts(self.table) / len(self.table)


_read: OrderedDict[bytes, TableQuestion] = OrderedDict()


def compared_cliques(workload: Workload) -> tuple[Clique, ...]:
    """Returns the cliques that are compared.

    All of them, or a fixed choice of as many as are allowed.
    """
    cliques = workload.cliques
    if len(cliques) <= MOST_CLIQUES:
        return cliques
    chosen = np.random.default_rng(1).choice(len(cliques), MOST_CLIQUES, replace=False)
    return tuple(cliques[i] for i in np.sort(chosen))
