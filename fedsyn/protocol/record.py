"""Records of a round.

They hold what was released and, apart from it, what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from fedsyn.errors import DataError
from fedsyn.output import first_of
from fedsyn.wire.refusals import Refusal


@dataclass(frozen=True)
class Missing:
    """One whose reply a run waits for, or goes on without.

    Attributes:
        who: name of the holder, or the number of its client or node.
        why: the reason.
    """

    who: str
    why: Refusal

    def __str__(self) -> str:
        return f"{self.who} ({self.why})"


def who(holders: Mapping[int, str], partition: int | None, node: int | None = None) -> str:
    """Returns words for a client.

    They are its holder's name if the operator knows it, otherwise a number.
    """
    if partition is not None:
        return holders.get(partition, f"client {partition}")
    return "a node" if node is None else f"node {node}"


def few(missing: Sequence[Missing], most: int = 5) -> str:
    """Returns who is missing and why, on one line.

    Beyond `most` of them it only counts.
    """
    return first_of([*map(str, missing)], most, ";")


@dataclass
class RoundRecord:
    """One round as everybody may see it; one line of rounds.jsonl.

    It holds nothing that was not public or released: on neighbouring tables with the same released values it is equal
    to the last byte.

    Attributes:
        round: t.
        cohort: partition ids of the clients that were asked.
        dropped: why a client's reply is not used, by partition id.
        not_joined: who is not in the run, and why; in round 0.
        selected: marginals that the round chose.
        sigma: noise of the round, where it has one.
        epsilon: of the round's choice, where it has one.
        notes: what else is worth knowing.
    """

    round: int
    cohort: list[int] = field(default_factory=list)
    dropped: dict[int, Refusal] = field(default_factory=dict)
    not_joined: list[Missing] = field(default_factory=list)
    selected: list[str] = field(default_factory=list)
    sigma: float | None = None
    epsilon: float | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> RoundRecord:
        """Reads a record from a line of rounds.jsonl (`asdict`).

        It raises DataError if the line is damaged.
        """
        try:
            return _ROUND.validate_python(facts)
        except ValueError:
            raise DataError("a line of rounds.jsonl is damaged") from None


@dataclass
class RoundCosts:
    """Costs of a round: one line of measured.jsonl, which is not public.

    The bytes of a reply count the non-empty cells of an exact vector, and times follow them. `parties` is what each
    computing party of a store has spent: bytes_sent to the other two, rounds of their messages, cpu seconds.
    """

    round: int
    messages: int = 0  # to clients, each of which answers once
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    parties: list[dict[str, float]] = field(default_factory=list)

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 6)


@dataclass(frozen=True)
class Waiting:
    """Absent clients of a run: waiting.json, while it waits.

    Attributes:
        request: its name.
        round: t.
        asked: how many were asked.
        until: seconds since 1970 when its patience ends.
        missing: whose reply is missing.
    """

    request: str
    round: int
    asked: int
    until: float
    missing: tuple[Missing, ...]

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.until))
        return (
            f"waits for {len(self.missing)} of {self.asked} holders to answer '{self.request}' of round {self.round}: "
            f"{few(self.missing)}; they are asked again until {day} (federation.patience)"
        )

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Waiting:
        """Reads the facts that `dataclasses.asdict` wrote."""
        return _WAITING.validate_python(facts)


_ROUND, _WAITING = TypeAdapter(RoundRecord), TypeAdapter(Waiting)
Observer = Callable[[RoundRecord, RoundCosts], None]
