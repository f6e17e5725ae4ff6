"""What happened in a round: what was released, and apart from it what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

#: How the note begins that says who is not in a run, and why.
NOT_JOINED = "not joined: "


@dataclass
class RoundRecord:
    """One round as everybody may see it; one line of rounds.jsonl.

    Holds nothing that was not public or released: on neighbouring tables with the same released values it is equal to
    the last byte.
    """

    round: int
    cohort: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    sigma: float | None = None
    epsilon: float | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> RoundRecord:
        """A record from a line of rounds.jsonl."""
        return cls(**{f.name: facts[f.name] for f in fields(cls) if f.name in facts})


@dataclass
class RoundCosts:
    """What a round cost; one line of measured.jsonl. Not public.

    The bytes of a reply count the non-empty cells of an exact vector, and times follow them. `workload_error` is
    measured against the real rows, where a simulation asks for it. `parties` is what each computing party of a store
    has spent: bytes_sent to the other two, rounds of their messages, cpu seconds.
    """

    round: int
    messages: int = 0  # to clients, each of which answers once
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    workload_error: float | None = None
    parties: list[dict[str, float]] = field(default_factory=list)

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 6)


@dataclass(frozen=True)
class Missing:
    """One whose reply a run waits for.

    Attributes:
        partition: its id; None where it has not said who it is.
        node: Flower's number of its node; None where that is not known.
        why: in one sentence.
    """

    partition: int | None
    node: int | None
    why: str

    def named(self, names: Mapping[int, str] | None = None) -> str:
        """`NAME (why)`; `names` are of holders, by partition id."""
        number = self.partition
        if number is None:
            return f"a node ({self.why})" if self.node is None else f"node {self.node} ({self.why})"
        return f"{(names or {}).get(number, f'client {number}')} ({self.why})"


@dataclass(frozen=True)
class Waiting:
    """What a run waits for: waiting.json of a run directory, as long as it does.

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

    def sentence(self, names: Mapping[int, str] | None = None) -> str:
        """`waits for 1 of 3 holders to answer 'measure' of round 2: lake (offline: ...); ...`."""
        who = "; ".join(each.named(names) for each in self.missing[:5])
        more = f"; and {len(self.missing) - 5} more" if len(self.missing) > 5 else ""
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.until))
        return (
            f"waits for {len(self.missing)} of {self.asked} holders to answer '{self.request}' of round {self.round}: "
            f"{who}{more}; they are asked again until {day} (federation.patience)"
        )

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Waiting:
        """Inverse of `dataclasses.asdict`."""
        return _WAITING.validate_python(facts)


_WAITING = TypeAdapter(Waiting)
Observer = Callable[[RoundRecord, RoundCosts], None]
