"""A Flower `Strategy` that drives itself: a round of a mechanism is several exchanges, each with its own messages."""

from __future__ import annotations

from collections.abc import Iterable

from fedsyn.flower import ArrayRecord, ConfigRecord, Grid, Message, MetricRecord, Strategy


class OwnLoop(Strategy):
    """The hooks of Flower's own loop, which a subclass's `start` replaces: none of them does anything."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: a mechanism's messages are made by its exchanges."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nothing: replies are read by the exchange that asked for them."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No evaluation on clients: it would be a release of its own."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing is logged: the statement and the settings stand in the run's ledger and configuration."""
