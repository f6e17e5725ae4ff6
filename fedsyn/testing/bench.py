"""What a conformance check gets: a mechanism on one table, and the runs that several checks look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.randomness import SEEDED_LABEL
from fedsyn.registry import contract_class
from fedsyn.testing.harness import Outcome, config_of, execute, federation_of, finished
from fedsyn.testing.schemas import AwkwardTable


@dataclass
class Bench:
    """A mechanism on one table, and the runs that several checks look at."""

    name: str
    table: AwkwardTable
    options: Mapping[str, Any] | None
    _runs: dict[str, Outcome] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.contract = contract_class(self.name)
        self.federation = federation_of(self.table, self.contract.central)

    def config(self, **nodes: Any) -> RunConfig:
        return config_of(self.name, len(self.federation.parts), self.options, **nodes)

    def base(self, **nodes: Any) -> Outcome:
        """The ordinary run (seed 0, noise by the server, public sizes), or that of another configuration; run once."""
        key = json.dumps(nodes, sort_keys=True)
        if key not in self._runs:
            self._runs[key] = execute(self.config(**nodes), self.federation)
        return finished(self._runs[key])

    def supported(self, **nodes: Any) -> RunConfig | None:
        """The configuration, or None if the mechanism's own `check` refuses it: that is an answer too."""
        try:
            return self.config(**nodes)
        except ConfigError:
            return None


def declared_private(bench: Bench) -> bool:
    """Baselines that read exact data say so in every ledger; of them only the rest is checked."""
    return not [caveat for caveat in bench.base().strategy.ledger.caveats if caveat != SEEDED_LABEL]


def equal_arrays(one: Mapping[str, np.ndarray], two: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(one[key].tobytes() == two[key].tobytes() for key in one)
