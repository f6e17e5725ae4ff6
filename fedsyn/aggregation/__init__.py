"""How a sum over clients is formed, and who sees what."""

from __future__ import annotations

from fedsyn.aggregation.base import Aggregation, Contribution, SumSpec
from fedsyn.aggregation.plain import PlainAggregation
from fedsyn.config import AggregationNode

PROTOCOLS: dict[str, type[Aggregation]] = {"plain": PlainAggregation}


def make_aggregation(node: AggregationNode) -> Aggregation:
    """The aggregation that a configuration asks for."""
    return PROTOCOLS[node.protocol](node)


__all__ = ["PROTOCOLS", "Aggregation", "Contribution", "PlainAggregation", "SumSpec", "make_aggregation"]
