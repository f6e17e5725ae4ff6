"""Fingerprints that an entry's figures rest on, as the sweep of its experiment has it."""

from __future__ import annotations

import re
from functools import cache

from claims.register import ROOT, Run
from fedsyn.config import RunConfig
from fedsyn.registry import MECHANISMS, contract_class, strategy_class
from fedsyn.sweep import load_sweep

_FAMILIES = {
    "aim": ("aim", "distaim", "fhaim"),
    "flaim": ("augflaim", "naive_flaim", "augflaim_oracle", "flaim_random", "fed_naive_bayes"),
    "privsyn": ("privsyn", "fed_privsyn", "ada_fed_privsyn"),
    "mst": ("mst", "fed_mst"),
    "ctgan": ("fed_dp_ctgan",),
    "sketch_aim": ("sketch_aim",),
    "each_alone": ("each_alone",),
    "distributed_aim": ("distributed_aim",),
}
_PROTOCOLS = {"secagg": "secure_sums", "mpc": "parties", "fhe": "ciphertexts"}
_LEARNERS = re.compile(r"(?:.*:)?(?:auc|accuracy|f1|rmse)(?:_\w+)?")


def missing(run: Run) -> list[str]:
    """Returns the fingerprints that an entry needs and does not name."""
    swept = re.match(r"python experiments/check\.py (\w+)", run.command)
    return sorted(of_sweep(swept[1]) - run.fingerprints.keys()) if swept else []


@cache
def of_sweep(name: str) -> frozenset[str]:
    """Returns those of an experiment's cells; none without a sweep."""
    path = ROOT / "experiments" / name / "sweep.yaml"
    cells = load_sweep(path).cells if path.is_file() else ()
    return frozenset(fingerprint for cell in cells for fingerprint in _of_cell(cell.config))


def _of_cell(config: RunConfig) -> set[str]:
    found = {_family(config.mechanism.name)}
    if not contract_class(config.mechanism.name).central:
        partition = config.federation.partition.name
        found |= {"clustering": {"splits"}, "native": set()}.get(partition, {"partitions"})
        found |= {"cohorts"} if config.federation.max_participations is not None else set()
    found |= {_PROTOCOLS[config.aggregation.protocol]} if config.aggregation.protocol in _PROTOCOLS else set()
    found |= {"client_unit"} if config.privacy.unit == "client" else set()
    return found | ({"learners"} if any(map(_LEARNERS.fullmatch, config.evaluation.metrics)) else set())


@cache
def _family(mechanism: str) -> str:
    """Returns the fingerprint of a mechanism, or of the one from which a variant derives."""
    bases = strategy_class(mechanism).__mro__
    name = next(name for base in bases for name in MECHANISMS if strategy_class(name) is base)
    return next(family for family, names in _FAMILIES.items() if name in names)
