"""The refusals that `fedsyn node serve` and a plain SuperNode share; `fedsyn.node.answering` has all of a node.

Each refusal is a fixed sentence about the run's configuration and what the holder agreed to, never about a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedsyn.config import RunConfig
from fedsyn.errors import NodeError
from fedsyn.runs.run_config import is_resolved


def require_resolved(run_config: Mapping[str, Any]) -> None:
    """Raises NodeError if reading the configuration would open a file: a server may not find out which files exist."""
    if not is_resolved(run_config):
        raise NodeError("this node holds real rows: it takes a run from 'fedsyn run' only, and opens no file for it")


def require_deployment(engine: object, seed: object) -> None:
    """Raises NodeError unless the run is a deployment whose noise nobody can foresee."""
    if engine != "deployment":
        raise NodeError("this node holds real rows: the run's runtime.engine must be 'deployment'")
    if seed is not None:
        raise NodeError("this node holds real rows and refuses a seeded run")


def require_agreed(config: RunConfig, agreed: Collection[str] | None, by_person: bool, pinned: bool) -> None:
    """Raises NodeError if the run protects less than its holder agreed to: the server makes its configuration.

    Args:
        config: of the run.
        agreed: hashes of the configurations that the holder agreed to; None: any.
        by_person: whether the holder approves each run.
        pinned: whether the node has an identity and a roster.
    """
    parties = config.aggregation.capabilities.parties
    if agreed is not None and config.sha256 not in agreed:
        raise NodeError("this node's holder agreed to other configurations than the run's")
    if parties is not None and agreed is None and not by_person:
        # The parties' keys stand in the configuration, which is the server's until the holder has agreed to it.
        raise NodeError(
            f"this node's holder must agree to {parties.words} of a run with aggregation.protocol: "
            f"{config.aggregation.protocol}: its policy needs configurations, or approval: by person "
            "(a plain SuperNode's --node-config needs config-sha256)"
        )
    if pinned and not config.aggregation.is_signed:
        raise NodeError(
            "this node has an identity and a roster: it takes part in runs with aggregation.protocol: secagg and "
            "aggregation.threat: malicious only, or with protocol: fhe and aggregation.roster"
        )
