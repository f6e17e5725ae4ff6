"""The one place, besides the two Flower entry points, that knows the mechanisms by name."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedsyn.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedsyn.config import RunConfig
    from fedsyn.protocol.client import TableClient
    from fedsyn.protocol.strategy import MechanismStrategy


@dataclass(frozen=True)
class Entry:
    """A mechanism: its two halves as `module:class`, and one line for `fedsyn mechanisms`."""

    strategy: str
    client: str
    summary: str
    source: str


MECHANISMS: dict[str, Entry] = {
    "aim": Entry(
        "strategies.aim:Aim",
        "clients.aim:AimClient",
        "central AIM, the yardstick: one data holder holds every row",
        "FLAIM Algorithm 2 (McKenna et al. 2022)",
    ),
    "naive_flaim": Entry(
        "strategies.flaim:NaiveFlaim",
        "clients.flaim:FlaimClient",
        "NaiveFLAIM: every client selects by AIM's score on its own rows",
        "Maddock et al. 2024, Algorithm 1",
    ),
    "augflaim_oracle": Entry(
        "strategies.flaim:AugFlaimOracle",
        "clients.flaim:AugFlaimOracleClient",
        "AugFLAIM (Oracle), not private: penalises by the true heterogeneity; simulations only",
        "Maddock et al. 2024, Algorithm 1",
    ),
    "augflaim": Entry(
        "strategies.flaim:AugFlaim",
        "clients.flaim:AugFlaimClient",
        "AugFLAIM (Private): clients select locally, penalised by a private proxy of heterogeneity",
        "Maddock et al. 2024, Algorithm 1",
    ),
    "flaim_random": Entry(
        "strategies.flaim:FlaimRandom",
        "clients.flaim:FlaimRandomClient",
        "FLAIM (Random): uniformly chosen cliques, the whole budget measures",
        "Maddock et al. 2024, Table 1",
    ),
    "fed_naive_bayes": Entry(
        "strategies.flaim:FedNaiveBayes",
        "clients.flaim:FlaimClient",
        "FedNaiveBayes: one-way marginals only, in every round",
        "Maddock et al. 2024, Table 1",
    ),
    "distributed_aim": Entry(
        "strategies.distributed_aim:DistributedAim",
        "clients.distributed_aim:DistributedAimClient",
        "Distributed AIM: noisy sums of local scores select, noisy sums measure; best with secure sums",
        "Sedimo & Near, Protocols 1 and 2",
    ),
    "sketch_aim": Entry(
        "strategies.sketch_aim:SketchAim",
        "clients.sketch_aim:SketchAimClient",
        "ours: one noisy sum of sketches selects for every round, noisy sums measure; best with secure sums",
        "fedsyn (docs/sketch_aim.md)",
    ),
    "privsyn": Entry(
        "strategies.privsyn:PrivSyn",
        "clients.privsyn:PrivSynClient",
        "central PrivSyn, the yardstick of its family: pairs by InDif, rows by GUM",
        "Zhang et al. 2021",
    ),
    "fed_privsyn": Entry(
        "strategies.privsyn:FedPrivSyn",
        "clients.privsyn:FedPrivSynClient",
        "FedPrivSyn: projected two-way marginals estimate all InDifs at once, the chosen pairs follow",
        "HeteroFedSyn, Algorithms 1 and 2",
    ),
    "ada_fed_privsyn": Entry(
        "strategies.privsyn:AdaFedPrivSyn",
        "clients.privsyn:FedPrivSynClient",
        "AdaFedPrivSyn: the same estimates, and pairs one after the other against the table so far",
        "HeteroFedSyn, Algorithms 3 and 4",
    ),
}


def register(name: str, strategy: str, client: str, summary: str = "", source: str = "") -> None:
    """Adds a mechanism under `name`; both halves as 'module:class' (see docs/adding_a_mechanism.md)."""
    if name in MECHANISMS:
        raise ConfigError(f"mechanism '{name}' is registered already")
    MECHANISMS[name] = Entry(strategy, client, summary, source)


def _entry(name: str) -> Entry:
    if name not in MECHANISMS:
        raise ConfigError(
            f"mechanism.name: unknown mechanism '{name}'{nearest(name, MECHANISMS)}; "
            f"available: {', '.join(sorted(MECHANISMS))}"
        )
    return MECHANISMS[name]


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def strategy_class(name: str) -> type[MechanismStrategy]:
    loaded: type[MechanismStrategy] = _load(_entry(name).strategy)
    return loaded


def client_class(name: str) -> type[TableClient]:
    loaded: type[TableClient] = _load(_entry(name).client)
    return loaded


def mechanism_options(config: RunConfig) -> Any:
    """The mechanism's own checked options (an instance of its `Config`)."""
    return _options(config.mechanism.name, json.dumps(config.mechanism.options, sort_keys=True))


@lru_cache(maxsize=32)
def _options(name: str, options: str) -> Any:
    from fedsyn.config import parse_options

    return parse_options(strategy_class(name).Config, json.loads(options), f"mechanism ({name})")


def check_config(config: RunConfig, where: str) -> None:
    """Checks what the models of `fedsyn.config` cannot know: names, options of plug-ins, combinations."""
    mechanism_options(config)
    strategy_class(config.mechanism.name).check(config)
    from fedsyn.aggregation import make_aggregation

    make_aggregation(config.aggregation, config.federation.minimum_cohort).check(config.federation.clients)
    if config.runtime.engine != "deployment":
        # A SuperNode never partitions, and the base install need not hold what partitioners import.
        from fedsyn.evaluation import validate_metrics
        from partitioners import make_partitioner

        make_partitioner(config.federation.partition.name, **config.federation.partition.options)
        # Whether the table has a label is known once its schema is read; `run.prepare` checks that.
        validate_metrics(config.evaluation, has_test=config.data.test_fraction > 0, label="unknown yet")
