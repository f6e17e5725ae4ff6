"""Ways to split one table into the tables of simulated clients; one file per family.

`make_partitioner(name, **options)` builds one; `partitioner.split(table, clients, rng)` gives each client's
rows.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fedsyn.data.partition import Partitioner, PartitionInput, check_partition
from fedsyn.errors import ConfigError, nearest
from partitioners.clustering import Clustering
from partitioners.dirichlet import Dirichlet
from partitioners.iid import Iid
from partitioners.native import Native
from partitioners.quantity import Quantity
from partitioners.subpopulation import Subpopulation

PARTITIONERS: dict[str, type[Partitioner]] = {
    family.name: family for family in (Iid, Quantity, Dirichlet, Subpopulation, Clustering, Native)
}

__all__ = [
    "PARTITIONERS",
    "Clustering",
    "Dirichlet",
    "Iid",
    "Native",
    "PartitionInput",
    "Partitioner",
    "Quantity",
    "Subpopulation",
    "check_partition",
    "make_partitioner",
]


def make_partitioner(name: str, **options: Any) -> Partitioner:
    """The partitioner of this name with these options.

    Raises:
        ConfigError: an unknown name or option (with the nearest valid one), or a value that is not allowed.
    """
    if name not in PARTITIONERS:
        raise ConfigError(
            f"federation.partition.name: unknown partitioner '{name}'{nearest(name, PARTITIONERS)}; "
            f"available: {', '.join(sorted(PARTITIONERS))}"
        )
    family = PARTITIONERS[name]
    unknown = [key for key in options if key not in family.model_fields]
    if unknown:
        allowed = ", ".join(family.model_fields) or "none"
        raise ConfigError(
            f"federation.partition.{unknown[0]}: no such option of '{name}'"
            f"{nearest(unknown[0], family.model_fields)}; options: {allowed}"
        )
    try:
        return family(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"federation.partition.{where}: {first['msg']}") from None
