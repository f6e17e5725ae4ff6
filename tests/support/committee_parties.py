"""All parties of secure sums in one process; between two messages a client keeps its state alone."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation.secagg import wire
from fedsyn.aggregation.secagg.client import CommitteeClient
from fedsyn.aggregation.secagg.facts import ENROL, MASKED, RECOVER, UNMASK, Committee, Setup, SumFacts
from fedsyn.aggregation.secagg.server import CommitteeSumServer, Established, SetupServer
from fedsyn.crypto.primitives import Identity
from fedsyn.errors import ConfigError, ProtocolError

Gone = Mapping[str, Collection[int]]


def carried(arrays: wire.Arrays) -> wire.Arrays:
    """The arrays as a transport hands them on: through bytes, without pickle."""
    result = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        file.seek(0)
        result.append(np.load(file, allow_pickle=False))
    return result


def setup_of(clients: int, *, corrupted: int = 0, dropouts: int | None = None, **facts: Any) -> Setup:
    """A setup of clients 0, 2, 4, ...; a tenth of them may drop out."""
    lost = clients // 10 if dropouts is None else dropouts
    return Setup(b"a run", facts.pop("number", 0), tuple(range(0, 2 * clients, 2)), corrupted, lost, **facts)


class Parties:
    """The server and all clients. `gone` says which partitions do not answer which stage."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.identities = {k: Identity.derived(str(k).encode()) for k in setup.clients}
        self.roster = {k: identity.public for k, identity in self.identities.items()}
        self.states: dict[int, dict[str, Any]] = {k: {} for k in setup.clients}
        self.established: Established | None = None
        self.dropped: dict[int, str] = {}
        self.calls: dict[str, int] = {}
        self.messages: list[tuple[str, int, wire.Arrays]] = []
        self.sums = 0

    def client(self, partition: int) -> CommitteeClient:
        self.states[partition] = json.loads(json.dumps(self.states[partition]))
        secrets = {"identity": self.identities[partition], "roster": self.roster} if self.setup.is_malicious else {}
        return CommitteeClient(partition, self.states[partition], **secrets)

    def vector(self, partition: int, length: int) -> npt.NDArray[np.uint64]:
        return np.random.default_rng(partition).integers(0, 2**64, length, np.uint64)

    def total(self, partitions: Sequence[int], length: int) -> npt.NDArray[np.uint64]:
        return sum((self.vector(k, length) for k in partitions), np.zeros(length, np.uint64))

    def establish(self, gone: Gone | None = None) -> Established | list[int]:
        """The setup, or the clients without which it has to be tried again."""
        steps = SetupServer(self.setup, self.roster, self.drop).steps()
        step = next(steps)
        while True:
            replies = self._answers(
                step.stage, step.each, gone or {}, lambda k, s=step: self.setup_reply(k, s.stage, s.common)
            )
            try:
                step = steps.send(replies)
            except StopIteration as end:
                found: Established | list[int] = end.value
                break
        if isinstance(found, Established):
            self.established = found
        return found

    def setup_reply(self, partition: int, stage: str, common: wire.Arrays) -> wire.Arrays:
        if stage == ENROL:
            return self.client(partition).enrol(self.setup)
        return self.client(partition).deal(Committee(self.setup, common[0].tobytes()), common[1:])

    def facts(self, length: int = 5, cohort: Sequence[int] | None = None, **changed: Any) -> SumFacts:
        assert self.established is not None
        kept, cohort = self.established, tuple(self.setup.clients if cohort is None else cohort)
        facts: dict[str, Any] = {
            "committee": kept.committee,
            "transcript": kept.transcript,
            "dealt": wire.write_flags(kept.dealt).tobytes(),
            "epoch": kept.epoch,
            "identifier": b"a sum",
            "number": self.sums,
            "cohort": cohort,
            "length": length,
            "fewest": max(2 + self.setup.corrupted, len(cohort) - self.setup.dropouts),
            "corrupted": self.setup.corrupted,
        }
        return SumFacts(**{**facts, **changed})

    def sum(
        self, facts: SumFacts | None = None, gone: Gone | None = None
    ) -> tuple[npt.NDArray[np.uint64], tuple[int, ...]]:
        """One sum, to its end: the total, and the contributors."""
        assert self.established is not None
        self.established.renew()
        facts = facts or self.facts()
        self.sums += 1
        steps = CommitteeSumServer(facts, self.established, self.drop).steps()
        step = next(steps)
        while True:
            replies = self._answers(
                step.stage,
                step.each,
                gone or {},
                lambda k, s=step: self.reply(k, s.stage, facts, [*s.common, *s.each[k]]),
            )
            try:
                step = steps.send(replies)
            except StopIteration as end:
                opened: tuple[npt.NDArray[np.uint64], tuple[int, ...]] = end.value
                return opened

    def reply(self, partition: int, stage: str, facts: SumFacts, inbox: wire.Arrays) -> wire.Arrays:
        client = self.client(partition)
        if stage == MASKED:
            return client.mask(facts, client.layers(facts, inbox), self.vector(partition, facts.length))
        return {UNMASK: client.unmask, RECOVER: client.recover}[stage](facts, inbox)

    def _answers(self, stage: str, each: Mapping[int, Any], gone: Gone, work: Any) -> dict[int, wire.Arrays]:
        replies = {}
        for partition in each:
            if partition in gone.get(stage, ()):
                continue
            try:
                replies[partition] = carried(work(partition))
            except (ProtocolError, ConfigError) as error:
                self.drop(partition, str(error))
                continue
            self.calls[stage] = self.calls.get(stage, 0) + 1
            self.messages.append((stage, partition, replies[partition]))
        return replies

    def drop(self, partition: int, reason: str) -> None:
        self.dropped[partition] = reason
