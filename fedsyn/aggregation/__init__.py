"""Secure and plain sums over clients, by protocol."""

from __future__ import annotations

from fedsyn.aggregation.base import Aggregation
from fedsyn.aggregation.base import Contribution as Contribution
from fedsyn.aggregation.fhe import FheAggregation
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.aggregation.secure import SecureAggregation
from fedsyn.settings import AggregationNode

PROTOCOLS: dict[str, type[Aggregation]] = {
    kind.capabilities.name: kind for kind in (PlainAggregation, SecureAggregation, FheAggregation)
}


def make_aggregation(node: AggregationNode, minimum: int = 1) -> Aggregation:
    """Returns the aggregation that a configuration asks for.

    `minimum` is its `federation.minimum_cohort`.
    """
    return PROTOCOLS[node.protocol](node, minimum)
