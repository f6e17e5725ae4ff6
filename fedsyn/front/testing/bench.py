"""Input of a conformance check.

It is a mechanism on one table, and the runs that several checks look at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fedsyn.config import RunConfig
from fedsyn.errors import ConfigError
from fedsyn.front.testing.failures import Skipped
from fedsyn.front.testing.harness import Outcome, config_of, execute, federation_of, finished
from fedsyn.front.testing.schemas import AwkwardTable
from fedsyn.registry import client_class

Check = TypeVar("Check", bound=Callable[..., None])
Nodes = Mapping[str, Mapping[str, Any]]

_PRIVATE = {"privacy": {"client_sizes": "private"}}
_CLIENT = {"privacy": {"client_sizes": "private", "unit": "client", "rows_per_client": 3, "epsilon": 10.0}}
_LOCAL = {"aggregation": {"noise": "local"}}
_DISTRIBUTED = {"aggregation": {"noise": "distributed"}}
#: What a check changes in the configuration, by the name that a report gives it.
SETTINGS: Mapping[str, Nodes] = {
    "as configured": {},
    "sampled cohorts": {"federation": {"sampling_rate": 0.6}},
    "private sizes": _PRIVATE,
    "local noise": _LOCAL,
    "distributed noise": _DISTRIBUTED,
    "private sizes and local noise": _PRIVATE | _LOCAL,
    "a client as the unit": _CLIENT,
    "private sizes and distributed noise": _PRIVATE | _DISTRIBUTED,
}


def under(*settings: str) -> Callable[[Check], Check]:
    """Marks a check that is made once under each setting.

    The check takes the setting's nodes.
    """

    def mark(check: Check) -> Check:
        check.settings = settings  # type: ignore[attr-defined]
        return check

    return mark


@dataclass
class Bench:
    """A mechanism on one table, with runs that several checks share."""

    name: str
    table: AwkwardTable
    options: Mapping[str, Any] | None
    _runs: dict[str, Outcome] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.client = client_class(self.name)
        self.contract = self.client.Contract
        self.federation = federation_of(self.table, self.contract.central)

    def config(self, **nodes: Any) -> RunConfig:
        """Returns the ordinary configuration with some nodes changed.

        It has seed 0, noise by the server and public sizes.
        """
        return config_of(self.name, len(self.federation.parts), self.options, **nodes)

    def supported(self, **nodes: Any) -> RunConfig:
        """Returns the configuration that `config` returns.

        Raises `Skipped` if the mechanism's contract refuses it, which is an answer, too.
        """
        try:
            return self.config(**nodes)
        except ConfigError as error:
            raise Skipped(f"refused by the mechanism: {error}") from None

    def require_taken(self) -> None:
        """Raises `Skipped` if the mechanism's plan refuses this table.

        A ConfigError of the plan is an answer, too: a run ends with it before anything is charged.
        """
        config = self.config()
        try:
            contract = self.contract(config, self.federation.domain)
            list(contract.plan(contract.budget.mechanism, self.federation.rows))
        except ConfigError as error:
            raise Skipped(f"refused by the mechanism: {error}") from None

    def base(self, **nodes: Any) -> Outcome:
        """Returns the finished run of a configuration.

        Each configuration is run once.
        """
        key = json.dumps(nodes, sort_keys=True)
        if key not in self._runs:
            self._runs[key] = execute(self.supported(**nodes) if nodes else self.config(), self.federation)
        return finished(self._runs[key])

    def require_private(self) -> None:
        """Skips baselines that read exact data and say so.

        Raises `Skipped` for them.
        """
        if self.contract.not_private:
            raise Skipped(f"declared not private: {self.contract.not_private}")

    def require_several(self) -> None:
        """Skips mechanisms with one data holder of every row.

        Raises `Skipped` for them.
        """
        if len(self.federation.parts) == 1:
            raise Skipped("one data holder has every row")

    def replies_of(self, partition: int) -> int:
        """Counts a client's replies in the ordinary run."""
        return sum(exchange.partition == partition for exchange in self.base().tape.exchanges)


def equal_arrays(one: Mapping[str, np.ndarray], two: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(one[key].tobytes() == two[key].tobytes() for key in one)
