"""The smallest mechanism there is: sums of one vector of small counts, which follow from the client's number."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsyn.aggregation import Contribution
from fedsyn.config import RunConfig
from fedsyn.domain import Domain
from fedsyn.flower import ConfigRecord, Context, NumPyClient
from fedsyn.inference import Measurement
from fedsyn.keys.holder_keys import simulated_identities
from fedsyn.loading import parse_config
from fedsyn.privacy import PrivacyStatement
from fedsyn.protocol.client import TableClient, answers
from fedsyn.protocol.contract import Contract
from fedsyn.protocol.strategy import MechanismStrategy, Protocol
from fedsyn.randomness import Randomness
from fedsyn.registry import MECHANISMS, MechanismEntry
from fedsyn.settings import Node
from fedsyn.wire.holder import Call, Holder
from fedsyn.wire.requests import Layout, Sum, Summed, SumRequest

NAME = "bench_vector"
LARGEST = 4  # of a client's counts
DOMAIN = Domain(("a",), (2,))
SCHEMA_HASH = "none"
SIGMA = 100.0


def counts(partition: int, length: int) -> npt.NDArray[np.int64]:
    """A client's vector: (length,) counts from 0 to LARGEST."""
    return np.random.default_rng(partition).integers(0, LARGEST, length, endpoint=True)


@dataclass(frozen=True)
class Facts:
    """What is summed, and how.

    Attributes:
        clients: number of them; all are asked.
        length: of the vector.
        protocol: 'plain' or 'secagg'.
        repeats: sums in the run.
        threat: of a secure sum.
        noise: who adds it.
    """

    clients: int
    length: int
    protocol: str = "secagg"
    repeats: int = 1
    threat: str = "semi_honest"
    noise: str = "distributed"

    def config(self) -> RunConfig:
        aggregation = {name: getattr(self, name) for name in ("protocol", "noise", "threat")}
        return parse_config(
            {
                "mechanism": {"name": NAME, "length": self.length, "repeats": self.repeats},
                "data": {"source": "none"},
                "federation": {"clients": self.clients, "timeout": 3600.0},
                "privacy": {"epsilon": 1000.0, "delta": 1e-5},
                "workload": {"degree": 1, "size": None},
                "aggregation": aggregation,
                "evaluation": [],
                "runtime": {"seed": 0},
            }
        )


@dataclass
class Taken:
    """What one sum took.

    Attributes:
        seconds: on the wall.
        cpu: seconds of all processes.
        up: bytes that a client sent, on average.
        down: bytes that it received.
        error: largest difference from the exact sum, in counts.
        sigma: standard deviation of the noise that the result carries, in counts.
        digest: of the result's bits.
    """

    seconds: float
    cpu: float
    up: float
    down: float
    error: float
    sigma: float = 0.0
    digest: str = ""


@dataclass
class Clock:
    """Measures blocks; `cpu_seconds` says what the processes in question have used so far."""

    cpu_seconds: Callable[[], float] = time.process_time
    taken: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> Clock:
        self._busy = self.cpu_seconds()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._start
        self.taken.append((wall, self.cpu_seconds() - self._busy))


class VectorOptions(Node):
    length: int = 1000
    repeats: int = 1
    iterations: int = 1
    final_iterations: int = 1


class VectorContract(Contract):
    Options = VectorOptions
    accountant = "gaussian"
    statement = PrivacyStatement(
        public="everything: the vectors are made up",
        trust="{trust}",
        server_sees="{server}",
        client_sees="nothing of the others",
        cost="a benchmark's: nobody's rows are in the vectors",
        sampler="{sampler}",
    )


class Vector(SumRequest):
    """Everybody's vector."""

    name = "vector"
    leaves = "made-up counts, in a sum"
    costs = "nobody's rows are in it; charged as one vector of L2 sensitivity 1"

    def layout(self, contract: VectorContract, arrays: Sequence[npt.NDArray[Any]]) -> Layout:
        """One row counts in one entry only, by assumption."""
        return Layout.of_vector(contract.options.length, 1.0)


class VectorClient(TableClient):
    """Contributes its vector."""

    Contract = VectorContract

    @answers(Vector)
    def vector(self, call: Call[Vector]) -> Contribution:
        """Follows from the client's number."""
        own = counts(self.holder.partition or 0, self.options.length)
        return Contribution.of_vector(own, call.request.layout(self.contract, call.arrays))


class VectorStrategy(MechanismStrategy):
    """Sums everybody's vector, a few times."""

    Client = VectorClient
    clock: Clock
    before_sums: Callable[[], object] = staticmethod(lambda: None)

    def protocol(self) -> Protocol:
        self.taken: list[Taken] = []
        length, cohort = self.options.length, self.everyone()
        exact = sum((counts(k, length) for k in cohort), np.zeros(length, np.int64))
        self.before_sums()
        for t in range(1, self.options.repeats + 1):
            self.begin_round(t)
            with self.clock:
                summed: Summed = yield Sum(cohort, Vector(), SIGMA)
            if not summed.opened:
                raise RuntimeError(f"the sum was not formed: {self.record.dropped}")
            up, down = (n / len(cohort) for n in (self.costs[-1].bytes_up, self.costs[-1].bytes_down))
            error = float(np.max(np.abs(summed.arrays[0] - exact)))
            digest = hashlib.sha256(summed.arrays[0].tobytes()).hexdigest()
            self.taken.append(Taken(*self.clock.taken[-1], up, down, error, summed.sigmas[0], digest))
        self.estimate([Measurement(("a",), np.ones(2), 1.0)])


MECHANISMS[NAME] = MechanismEntry(f"{__name__}:VectorStrategy", f"{__name__}:VectorClient", "a benchmark's vector")


def make_client(config: RunConfig, partition: int, context: Context) -> NumPyClient:
    """The client half of client `partition`, with this configuration's state in its node's context."""
    key = f"bench {config.sha256}"  # several configurations share a simulation, and no ledger
    record = context.state.get(key)

    def save(kept: dict[str, Any]) -> None:
        context.state[key] = ConfigRecord({"state": json.dumps(kept, separators=(",", ":"))})

    return client_of(config, partition, {} if record is None else json.loads(str(record["state"])), save)


def client_of(
    config: RunConfig, partition: int, state: dict[str, Any], save: Callable[[dict[str, Any]], None]
) -> NumPyClient:
    """The same, with a memory that is kept elsewhere."""
    holder = Holder(
        partition,
        np.zeros((1, 1), np.uint8),
        DOMAIN,
        SCHEMA_HASH,
        Randomness(config.runtime.seed),
        state,
        identities=lambda: simulated_identities(partition, config.federation.clients),
        save=save,
    )
    return VectorClient(config, holder)


def to_text(sides: Sequence[Facts]) -> str:
    return json.dumps([asdict(facts) for facts in sides])


@lru_cache(maxsize=2)
def from_text(text: str) -> dict[str, tuple[Facts, RunConfig]]:
    """The sides of a simulation by the hash of their configurations, which every request carries."""
    sides = [Facts(**values) for values in json.loads(text)]
    return {config.sha256: (facts, config) for facts, config in ((facts, facts.config()) for facts in sides)}


def make_strategy(facts: Facts, clock: Clock) -> VectorStrategy:
    config = facts.config()
    strategy = VectorStrategy(config, DOMAIN, SCHEMA_HASH, randomness=Randomness(config.runtime.seed))
    strategy.clock = clock
    return strategy


def write_results(out: Path, results: dict[str, list[Taken]]) -> None:
    text = json.dumps({name: [asdict(one) for one in taken] for name, taken in results.items()})
    part = out.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(out)


def read_results(out: Path) -> dict[str, list[Taken]]:
    return {name: [Taken(**one) for one in taken] for name, taken in json.loads(out.read_text("utf-8")).items()}
