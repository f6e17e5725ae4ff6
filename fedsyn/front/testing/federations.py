"""Small federations of awkward tables, and the configurations under which checks run a mechanism on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.capabilities import PLAIN
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.loading import parse_config
from fedsyn.registry import contract_class

Codes = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Federation:
    """A table that is split between clients.

    Attributes:
        table: the awkward table.
        parts: (n_k, d) codes of each client; the last one of a federation of several has no rows.
    """

    table: AwkwardTable
    parts: tuple[Codes, ...]

    @property
    def domain(self) -> Domain:
        return self.table.schema.domain

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.parts)

    def other_rows(self) -> Federation:
        """The same schema and row counts, entirely different rows."""
        rng = np.random.default_rng(99)
        shape = np.array(self.domain.shape)
        parts = [((1.0 - rng.random(part.shape) ** 3) * shape).astype(part.dtype) for part in self.parts]
        return Federation(self.table, tuple(parts))

    def with_part(self, client: int, codes: Codes) -> Federation:
        parts = list(self.parts)
        parts[client] = codes
        return Federation(self.table, tuple(parts))


def federation_of(table: AwkwardTable, central: bool) -> Federation:
    """One holder of everything, or: four clients, one of them empty; more clients than rows for the smallest tables."""
    codes = table.encode()
    if central:
        return Federation(table, (codes,))
    holding = 3 if len(codes) > 12 else len(codes)
    parts = [codes[k::holding] for k in range(holding)]
    empty = 1 if len(codes) > 12 else 3
    return Federation(table, (*parts, *[codes[:0]] * empty))


def config_of(name: str, clients: int, options: Mapping[str, Any] | None = None, **nodes: Any) -> RunConfig:
    """A small run's configuration; `nodes` are merged into the document's nodes."""
    if options is None:
        options = {"rounds": 2} if "rounds" in contract_class(name).Options.model_fields else {}
    document: dict[str, Any] = {
        "mechanism": {"name": name, **options},
        "data": {"source": "conformance.csv"},
        "federation": {"clients": clients},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "client_sizes": "public"},
        "workload": {"degree": 2, "size": 6, "seed": 1},
        "aggregation": {"protocol": PLAIN.name, "noise": "server"},
        "evaluation": {"metrics": []},
        "runtime": {"seed": 0},
    }
    for key, node in nodes.items():
        document[key] = {**document.get(key, {}), **node}
    return parse_config(document)
