"""The tape of a watched run.

It has releases as they enter and leave a ledger, and what passes between the two sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution
from fedsyn.privacy import DistributedNoise, Ledger, Release, SelectionNoise
from fedsyn.privacy.release import TWICE
from fedsyn.randomness import RandomSource

SERVER = "server"


@dataclass(frozen=True)
class TapedRelease:
    """One release, with its inputs to a ledger and its output.

    `sensitivity`, `count` and `replaced` are as in `Release`.
    """

    kind: str
    name: str
    round: int
    inputs: tuple[npt.NDArray[Any], ...]
    sensitivity: float
    count: int
    replaced: float
    output: Any


@dataclass(frozen=True)
class TapedExchange:
    """One request as a client got it, and its reply.

    For a sum it also has the exact part that the client computed.
    """

    partition: int
    envelope: dict[str, Any]
    arrays: tuple[npt.NDArray[Any], ...]
    reply_arrays: tuple[npt.NDArray[Any], ...]
    reply: dict[str, Any]
    contribution: Contribution | None = None

    @property
    def active(self) -> tuple[int, ...] | None:
        """Places of the sum's arrays that the client adds to.

        None if the client computed no part.
        """
        return None if self.contribution is None else self.contribution.active

    def __str__(self) -> str:
        return f"'{self.envelope.get('request')}' of round {self.envelope.get('round')}, client {self.partition}"


@dataclass
class Tape:
    """All that was watched in one run.

    With a script, it also has the releases that the ledgers must repeat.
    """

    script: Mapping[str, Sequence[TapedRelease]] | None = None
    draws: dict[str, list[TapedRelease]] = field(default_factory=dict)
    exchanges: list[TapedExchange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    streams: set[tuple[Any, ...]] = field(default_factory=set)
    inside: int = 0

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Marks the time in which a ledger draws noise."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def enter(self, party: str, draw: TapedRelease) -> Any:
        """Records a release, and returns what its caller sees."""
        mine = self.draws.setdefault(party, [])
        mine.append(draw)
        if self.script is None:
            return draw.output
        scripted = self.script.get(party, ())
        if len(mine) > len(scripted):
            self.problems.append(f"{party}: release '{draw.name}' of round {draw.round} exists for one table only")
            return draw.output
        before = scripted[len(mine) - 1]
        facts = [(d.kind, d.name, d.round, [a.shape for a in d.inputs]) for d in (before, draw)]
        if facts[0] != facts[1]:
            self.problems.append(f"{party}: release '{draw.name}' of round {draw.round} is another one per table")
            return draw.output
        return before.output


class TapedLedger(Ledger):
    """A ledger that writes its releases to a tape."""

    tape: Tape
    party: str

    @classmethod
    def wrap(cls, ledger: Ledger, tape: Tape, party: str) -> TapedLedger:
        wrapped = cls.from_dict(ledger.to_dict())
        assert isinstance(wrapped, TapedLedger)
        wrapped.tape, wrapped.party = tape, party
        return wrapped

    def gaussian(self, values: Any, entry: Release, source: RandomSource) -> Any:
        with self.tape.drawing():
            output = super().gaussian(values, entry, source)
        return self.tape.enter(self.party, _draw("gaussian", self.releases[-1], tuple(map(np.array, values)), output))

    def sampled_gaussian(self, total: Any, rows: int, entry: Release, source: RandomSource) -> Any:
        """Tapes the sum over ALL rows as the release's input.

        One row moves it no farther, whichever of them are sampled.
        """
        with self.tape.drawing():
            output = super().sampled_gaussian(total, rows, entry, source)
        inputs = (np.array(total(np.arange(rows))),)
        return self.tape.enter(self.party, _draw("sampled gaussian", self.releases[-1], inputs, output))

    def distributed(
        self, values: Any, noise: DistributedNoise, entry: Release, source: RandomSource, *, takes_part: bool = True
    ) -> Any:
        with self.tape.drawing():
            output = super().distributed(values, noise, entry, source, takes_part=takes_part)
        # One vector of all the sum's arrays: a row that touches `count` of them moves it by sqrt(count) as much.
        moves = float(self.unit.rows * entry.sensitivity * np.sqrt(entry.count)) if takes_part else 0.0
        facts = (entry.name, entry.round, (np.array(values),), moves, int(takes_part), entry.replaced)
        return self.tape.enter(self.party, TapedRelease("distributed", *facts, output))

    def selection_share(
        self, scores: Any, noise: SelectionNoise, entry: Release, source: RandomSource, *, draws: bool
    ) -> Any:
        with self.tape.drawing():
            output = super().selection_share(scores, noise, entry, source, draws=draws)
        facts = (entry.name, entry.round, (np.array(scores, np.float64),), float(noise.moved), 1, TWICE, output)
        return self.tape.enter(self.party, TapedRelease("exponential", *facts))

    def exponential(self, scores: Any, entry: Release, source: RandomSource) -> int:
        with self.tape.drawing():
            output = super().exponential(scores, entry, source)
        inputs = (np.array(scores, dtype=np.float64),)
        return int(self.tape.enter(self.party, _draw("exponential", self.releases[-1], inputs, output)))


def _draw(kind: str, release: Release, inputs: tuple[npt.NDArray[Any], ...], output: Any) -> TapedRelease:
    facts = (release.sensitivity, release.count, release.replaced)
    return TapedRelease(kind, release.name, release.round, inputs, *facts, output)
