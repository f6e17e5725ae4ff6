"""A client of a recorded run that is asked again, with messages of the tests' own."""

from __future__ import annotations

import json
from typing import Any

from fedsyn.front.testing.harness import Outcome
from fedsyn.front.testing.tape import TapedExchange
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.randomness import Randomness
from fedsyn.registry import client_class
from fedsyn.wire.envelope import ANSWER, ENVELOPE, to_json
from fedsyn.wire.holder import Holder


class Client:
    """A client of the recorded run as it was before its first message, with a memory of its own."""

    def __init__(self, recorded: Outcome, partition: int = 0) -> None:
        table = recorded.federation
        self.config = recorded.config
        self.memory: dict[str, Any] = {}
        self.make = lambda: client_class(self.config.mechanism.name)(
            self.config,
            Holder(
                partition,
                table.parts[partition],
                table.domain,
                table.table.schema.sha256,
                Randomness(0),
                self.memory,
                identities=lambda: simulated_identities(partition, len(table.parts)),
            ),
        )

    def ask(self, envelope: dict[str, Any], given: Any) -> dict[str, Any]:
        sent, _, scalars = self.make().fit(list(given), {ENVELOPE: to_json(envelope)})
        answer = json.loads(scalars[ANSWER])
        return {**answer, "arrays": sent}


def changed(exchange: TapedExchange, part: str, **facts: Any) -> dict[str, Any]:
    """The envelope with other facts of its `sum` or `stage`."""
    return {**exchange.envelope, part: {**exchange.envelope[part], **facts}}
